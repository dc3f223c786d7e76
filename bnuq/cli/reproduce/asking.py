"""What the commands that reproduce an experiment ask alike."""

from __future__ import annotations

from pathlib import Path

from bnuq.cli.options import whole_numbers
from bnuq.errors import RequestError


def sizes_of(text: str | None) -> tuple[int, ...] | None:
    """The mini-batch sizes in a list with commas, each once, in order; None for none given. RequestError for others."""
    sizes = whole_numbers("batch-sizes", text, least=2, such_as="32,128")
    return None if sizes is None else tuple(sorted(set(sizes)))


def check_places(out: Path, figures: Path | None) -> None:
    """RequestError where the folder of `out` is not there; makes `figures`, once it is known that they can be drawn."""
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: its folder does not exist. Make the folder first.")
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        drawing.make_folder(figures)
