"""`bnuq init`: writes the run file of a checkpoint, with what can be determined filled in."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import Printing
from bnuq.cli.progress import progress_of
from bnuq.cli.streams import print_line, stdout
from bnuq.config import Options, resolve_checkpoint
from bnuq.config.schema import DataSection, GivenOptions, ModelSection
from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file, kind_of
from bnuq.files.fetching import hub_name, model_path, stem_of
from bnuq.files.folders import expanded

_SUFFIXES = (".pt", ".pth", ".th", ".ckpt", ".safetensors", ".bin")  # of the checkpoints that are looked for
_QUESTIONS = {
    "arch": "Function that builds the network (file.py:function, timm:NAME, torchvision:NAME)",
    "train": "Training set (a file, a folder, or a name such as cifar10:train)",
    "test": "Labelled test set",
}


@with_options(
    options=(
        SectionOptions(DataSection, without="perturb"),
        SectionOptions(ModelSection),
        SectionOptions(GivenOptions, "device threads data_root trust_pickle"),
    ),
    printing=SectionOptions(Printing, "quiet debug"),
)
def command(
    checkpoint: Annotated[
        str | None, typer.Argument(help="The checkpoint; default: the only one in this folder.", metavar="CHECKPOINT")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="The run file.",
            show_default="CHECKPOINT.toml, or bnuq.toml without CHECKPOINT",
            metavar="FILE",
            rich_help_panel="Common options",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing run file.", rich_help_panel="Common options")
    ] = False,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Write the run file of a checkpoint. Determines the number of classes, the task, and the training pipeline that
    fits its statistics; marks with TODO what it cannot determine. In a terminal, asks for what is missing."""
    folder = Path.cwd()
    model = folder / _checkpoint(checkpoint, folder)
    beside = folder / f"{stem_of(model)}.toml" if hub_name(model) else model.with_suffix(".toml")
    default = folder / "bnuq.toml" if checkpoint is None else beside
    path = default if out is None else folder / expanded(out)
    _check_out(path, force=force)  # before questions are asked and the network is read
    if not printing.quiet:
        print_line(f"The run file will be {_shown(path, folder)}{' (replaced)' * exists(path)}.")
    asked = Options(options | _answers(options))
    run = resolve_checkpoint(model, asked, folder=folder)
    from bnuq.evaluation.request_checks import check_files

    check_files(run)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.studies.init.compute import init

    with threads(run.threads):
        written = init(run, path, given=asked.keys(), progress=progress)
    if printing.quiet:
        return
    print_line(f"{_shown(path, folder)} was written.")
    if written.unsure:
        print_line("Likely, but please check:")
        for line in written.unsure:
            print_line(f"  - {line}")
    if written.todo:
        print_line(f"Left to fill in, marked TODO: {', '.join(written.todo)}")
    words = ["bnuq", "evaluate", _shown(path, folder)]
    words += [] if run.data_root is None else ["--data-root", str(run.data_root)]
    words += ["--trust-pickle"] if run.trust_pickle else []
    print_line(f"{'Then' if written.needed else 'Next'}: {shlex.join(words)}")


def _checkpoint(named: str | None, folder: Path) -> Path:
    """The checkpoint that was named, or the only one in `folder`."""
    if named is not None:
        if not named.strip() or "\0" in named or Path(named).suffix.lower() == ".toml":
            raise RequestError(f"the checkpoint is {named[:80]!r}; expected a file of weights, such as model.pt.")
        return model_path(named, folder)
    checkpoints = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() in _SUFFIXES and kind_of(path) in ("zip", "safetensors", "pickle")
    )
    if len(checkpoints) == 1:
        return Path(checkpoints[0])
    amount = f"are {len(checkpoints)} checkpoints" if checkpoints else "is no checkpoint"
    raise RequestError(
        f"no checkpoint was named and there {amount} in this folder{': ' * bool(checkpoints)}"
        f"{', '.join(checkpoints)}. Name one: "
        f"bnuq init {shlex.quote(checkpoints[0]) if checkpoints else 'model.pt'}"
    )


def _check_out(path: Path, *, force: bool) -> None:
    if path.suffix.lower() != ".toml":
        raise RequestError(f"--out {path} is not a run file name; expected one that ends in .toml.")
    if exists(path) and not (force and is_file(path)):
        raise RequestError(f"{path} exists already. Replace it with --force, or name another file with --out.")


def _answers(options: Options) -> dict[str, str]:
    """What the user answers where this is a terminal, of what was not given."""
    if not (sys.stdin is not None and sys.stdin.isatty() and stdout().isatty()):
        return {}
    answers = {}
    for key, question in _QUESTIONS.items():
        if key not in options:
            print_line(f"{question} [Enter to skip]: ", nl=False)
            stdout().flush()
            if answer := sys.stdin.readline().strip():
                answers[key] = answer
    return answers


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
