"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import option
from bnuq.cli.output import Printing
from bnuq.config import MAX_COUNT, as_toml
from bnuq.config.schema import DataSection, GivenOptions, ModelSection, SamplingSection
from bnuq.errors import RequestError

Model = Annotated[
    str | None,
    typer.Argument(
        help="A checkpoint (model.pt) or a run file (model.toml); default: bnuq.toml in this folder.", metavar="MODEL"
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(
        help="Draw the figures into this folder, too; needs matplotlib.", metavar="DIR", rich_help_panel="Output"
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Folder of finished parts, from which an interrupted run continues; removed when the run completes.",
        show_default="OUT.work",
        metavar="DIR",
        rich_help_panel="Output",
    ),
]
Train = Annotated[str | None, option(DataSection, "train")]
Test = Annotated[str | None, option(DataSection, "test")]
Arch = Annotated[str | None, option(ModelSection, "arch")]
Seed = Annotated[int | None, option(SamplingSection, "seed")]
Device = Annotated[str | None, option(GivenOptions, "device")]
DataRoot = Annotated[Path | None, option(GivenOptions, "data_root")]
TrustPickle = Annotated[bool, option(GivenOptions, "trust_pickle")]
TrustCode = Annotated[bool, option(GivenOptions, "trust_code")]
AsJson = Annotated[bool, option(Printing, "json")]
Full = Annotated[bool, option(Printing, "full")]
Quiet = Annotated[bool, option(Printing, "quiet")]
Debug = Annotated[bool, option(Printing, "debug")]


def whole_numbers(
    option: str, text: str | None, *, minimum: int = 1, maximum: int = MAX_COUNT, such_as: str
) -> tuple[int, ...] | None:
    """The whole numbers in a comma-separated list; RequestError for anything else."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 20 and minimum <= int(word) <= maximum for word in words):
        bound = f" of at least {minimum}" if minimum > 1 else ""
        raise RequestError(f"--{option} is {as_toml(text)[1:-1]}; expected whole numbers{bound}, such as {such_as}.")
    return None if text is None else tuple(map(int, words))
