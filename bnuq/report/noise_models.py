"""The analytic laws of a result beside the MCBN that they stand for, in words and in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bnuq.config import ANALYTIC
from bnuq.estimates import Estimate
from bnuq.records.approximation import Approximation, approximations
from bnuq.records.evaluation import Result
from bnuq.report.numbers import number, signed
from bnuq.report.parts import GAP, Cell, Paragraph, Part, Row, Table, title


def labelled(method: str) -> str:
    """A method's name at the head of a column; ≈ before one that is an approximation."""
    return f"≈ {method}" if method in ANALYTIC else method


def in_words(result: Result) -> Iterator[str]:
    """What every law is worth, beside MCBN where that was evaluated."""
    beside = approximations(result)
    yield from map(_in_words, beside)
    if not beside and (laws := [name for name in result.methods if name in ANALYTIC]):
        yield (
            f"{' and '.join(laws)}: an analytic model of MCBN's noise around the running statistics, not MCBN, "
            "and not checked against it here; with a reference (--train), bnuq measures how far it is off."
        )


def _in_words(one: Approximation) -> str:
    ratio, rank = one.ratio["test"], one.rank["test"]
    mean = _UNCERTAINTY[one.uncertainty]
    text = f"{one.method} is an analytic noise model, not MCBN: its {mean} on the test set is {_times(ratio)} mcbn's"
    if math.isfinite(rank):
        text += f", and ranks the points {_ranks(rank)} (ρ {number(rank, 2)})"
    if one.understates:
        text += ". It badly understates this network's uncertainty"
    elif one.overstates:
        text += ". It badly overstates this network's uncertainty"
    return f"{text}."


_UNCERTAINTY = {"mutual_information": "mean MI", "variance": "mean variance of samples"}


def _ranks(rank: float) -> str:
    return "as mcbn does" if rank >= 0.95 else "roughly as mcbn does" if rank >= 0.8 else "differently from mcbn"


def _times(ratio: Estimate) -> str:
    error = "" if ratio.mc_se is None else f" ± {number(ratio.mc_se, 2)}"
    return f"{number(ratio.value, 2)}{error} times"


def parts(result: Result) -> Iterator[Part]:
    """The table of the laws beside MCBN, and what it says; nothing where there is none to hold against."""
    beside = approximations(result)
    if not beside:
        return
    yield from (GAP, title("Analytic noise models compared with mcbn"))
    rows: list[Row] = []
    for one in beside:
        rows.append((labelled(one.method), ()))
        for name, ratio in one.ratio.items():
            gain = one.pll if name == "test" else None
            cells = _cell(ratio, 2), Cell(number(one.rank[name], 3)), _change(gain), _change(one.auroc.get(name))
            rows.append((f"  {name}", cells))
    uncertainty = "MI" if beside[0].uncertainty == "mutual_information" else "variance"
    yield Table(
        (f"mean {uncertainty} / mcbn's", "rank corr.", "PLL", f"AUROC by {uncertainty}"), tuple(rows), stacks=True
    )
    yield Paragraph(
        "≈: an approximation that draws every layer's statistics from a noise model instead of mini-batches. A "
        f"ratio of 1 means the mean {uncertainty} of mcbn, a rank correlation of 1 its ranking of the points. PLL "
        "and AUROC are differences from mcbn; ± Monte Carlo error of both methods, without the error of fitting "
        "the noise model.",
        "dim",
    )


def _cell(estimate: Estimate, digits: int) -> Cell:
    return Cell(number(estimate.value, digits), "" if estimate.mc_se is None else f"±{number(estimate.mc_se, digits)}")


def _change(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("")
    return Cell(signed(estimate.value), "" if estimate.mc_se is None else f"±{number(estimate.mc_se)}")
