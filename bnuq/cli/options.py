"""The options that mean the same in several commands, and how texts are taken apart, with errors that name them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from bnuq.config import MOST, Samples, as_toml
from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import check_writable

REFERENCE = "a file, a folder, a known name such as cifar10:test, or file.py:function; NAME=REF names it"

Train = Annotated[str | None, typer.Option(help=f"Reference that mini-batches are drawn from: {REFERENCE}.")]
Test = Annotated[str | None, typer.Option(help="Labelled test set.")]
Ood = Annotated[list[str] | None, typer.Option(help="Out-of-distribution set; repeat it, or use commas.")]
Validation = Annotated[str | None, typer.Option(help="Points held out of training.")]
Group = Annotated[
    str | None,
    typer.Option(
        help="The array, or the column of a table, that tells which points belong together: laboratory, camera, site.",
        metavar="NAME",
        show_default="group",
    ),
]
Arch = Annotated[
    str | None, typer.Option(help="file.py:factory, package.module:factory, timm:NAME or torchvision:NAME.")
]
Layers = Annotated[
    list[str] | None,
    typer.Option(help='Which BatchNorms to sample: all, first:k, last:k, or globs like "layer1.*".'),
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same figures.", show_default="0")]
Tau = Annotated[
    float | None,
    typer.Option(
        help="Regression: the precision τ of the observations, 1 / (noise sd)², where it is known.",
        show_default="fitted to the validation points",
    ),
]
PllOf = Annotated[
    str | None,
    typer.Option(
        help="Regression: PLL of the mixture of draws, or of a Gaussian with its moments: mixture, moment or "
        "moment_full (with the covariance of the outputs).",
        show_default="mixture",
        metavar="NAME",
    ),
]
CrpsOf = Annotated[
    str | None,
    typer.Option(
        help="Regression: CRPS of the Gaussian with the draws' moments, of their mixture, or of the bare draws: "
        "gaussian, mixture, ensemble or fair (ensemble without its bias).",
        show_default="gaussian",
        metavar="NAME",
    ),
]
FitBy = Annotated[
    str | None,
    typer.Option(
        help="Regression: what τ and the constant baseline are the best by, on validation points: crps or pll.",
        show_default="crps",
        metavar="NAME",
    ),
]
VarianceOf = Annotated[
    str | None,
    typer.Option(
        help="MCBN: a mini-batch's variance, biased (as training normalises) or unbiased.",
        show_default="biased",
        metavar="NAME",
    ),
]
BatchesOf = Annotated[
    str | None,
    typer.Option(
        help="MCBN: what comes together in a mini-batch: random points, stratified (every class in proportion) or a "
        "single group (laboratory, camera, site).",
        show_default="random",
        metavar="NAME",
    ),
]
Replacement = Annotated[
    bool | None, typer.Option(help="MCBN: draw the points of a mini-batch with replacement.", show_default="without")
]
QueryInBatch = Annotated[
    bool | None,
    typer.Option(help="MCBN: the query is one of the mini-batch's b points. Slow.", show_default="not"),
]
PerQuery = Annotated[
    bool | None,
    typer.Option(help="MCBN: T mini-batches of its own for every query, n·T forwards. Slow.", show_default="shared"),
]
CountsOf = Annotated[
    str | None,
    typer.Option(
        help="Laws of MCBN's noise: the values that statistics are of, nominal (b times positions) or measured.",
        show_default="measured where there is a reference",
        metavar="NAME",
    ),
]
CovarianceOf = Annotated[
    str | None,
    typer.Option(
        help="mcbn-empirical: what varies together: channel, layer, layer:k (k directions) or network.",
        show_default="layer",
        metavar="NAME",
    ),
]
LawDraws = Annotated[
    int | None, typer.Option(help="Mini-batches that laws of MCBN's noise are fitted to.", show_default="64")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.", show_default="auto")]
Arithmetic = Annotated[
    str | None, typer.Option(help="Arithmetic: float32, tf32, bfloat16 or float64.", show_default="float32")
]
ChunkSize = Annotated[
    int | None, typer.Option(help="Points that pass together: bounds memory, and changes figures by rounding (1e-7).")
]
Limit = Annotated[int | None, typer.Option(help="At most this many points of each evaluated set.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where known data sets lie, before $BNUQ_DATA.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")]
Full = Annotated[bool, typer.Option("--full", help="Print everything, not one screen of what matters.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Strict = Annotated[bool, typer.Option("--strict", help="A warning becomes exit code 2.")]
TrustPickle = Annotated[bool, typer.Option("--trust-pickle", help="Run the code inside a pickled checkpoint.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Run code named by a file that was merely found, and remember that.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def listed(values: list[str] | None) -> tuple[str, ...] | None:
    """The values of a repeatable option; commas separate, except in the name of a file that exists."""
    if values is None:
        return None
    return tuple(
        part.strip()
        for value in values
        for part in ([value] if _is_there(value) or _is_there(value.partition("=")[2]) else value.split(","))
        if part.strip()
    )


def _is_there(name: str) -> bool:
    return bool(name) and exists(expanded(name))


def samples_of(text: str | None) -> Samples | None:
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise RequestError(
            f'--samples is {as_toml(text)[1:-1]}; expected a whole number of at least 1, or "auto".'
        ) from None


def whole_numbers(
    option: str, text: str | None, *, least: int = 1, most: int = MOST, such_as: str
) -> tuple[int, ...] | None:
    """The whole numbers in a list with commas; RequestError for anything else."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 20 and least <= int(word) <= most for word in words):
        of_at_least = f" of at least {least}" if least > 1 else ""
        raise RequestError(
            f"--{option} is {as_toml(text)[1:-1]}; expected whole numbers{of_at_least}, such as {such_as}."
        )
    return None if text is None else tuple(map(int, words))


def chosen(option: str, text: str | None, known: Any) -> Any:
    """`text`, which must be one of the names of the Literal `known`."""
    names = get_args(known)
    if text is None or text in names:
        return text
    raise RequestError(f"--{option} is {text}; expected {', '.join(names[:-1])} or {names[-1]}.")


def positive(option: str, value: float | None) -> float | None:
    if value is None or 0 < value < math.inf:
        return value
    raise RequestError(f"--{option} is {value:g}; expected a number above 0.")


def replaceable(asked: Path, option: str, what: str, opening: bytes) -> Path:
    """Where a file goes; RequestError where one is there that bnuq did not write: that does not begin with the regular
    expression `opening`, and is not empty; ResultError where it cannot be written."""
    path = expanded(asked)
    if exists(path) and not _begins_with(path, opening):
        raise RequestError(f"{option} {asked} is another file than a {what} of bnuq; name another.")
    if not path.resolve().parent.is_dir():
        raise RequestError(f"{option} {asked}: its folder does not exist. Make the folder first.")
    check_writable(path)
    return path


def _begins_with(path: Path, opening: bytes) -> bool:
    if not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            start = file.read(400)
    except OSError:
        return False
    return not start or re.match(opening, start, re.DOTALL) is not None
