"""The analytic noise models of a result beside the MCBN that they approximate, in a table."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq.estimates import Estimate
from bnuq.records.approximation import approximations
from bnuq.records.evaluation import Result
from bnuq.report.document import Cell, Paragraph, Part, Row, Table
from bnuq.report.method_names import method_label
from bnuq.report.numbers import number, signed


def parts(result: Result) -> Iterator[Part]:
    """The table of the noise models beside MCBN, and what it says; nothing if there is none to compare with."""
    compared = approximations(result)
    if not compared:
        return
    rows: list[Row] = []
    for model in compared:
        rows.append((method_label(model.method), ()))
        for name, ratio in model.ratio.items():
            pll = model.pll if name == "test" else None
            cells = _cell(ratio, 2), Cell(number(model.rank[name], 3)), _change(pll), _change(model.auroc.get(name))
            rows.append((f"  {name}", cells))
    uncertainty = "MI" if compared[0].uncertainty == "mutual_information" else "variance"
    header = (f"mean {uncertainty} / mcbn's", "rank corr.", "PLL", f"AUROC by {uncertainty}")
    yield Table(header, tuple(rows), stacks=True)
    yield Paragraph(
        "≈: an approximation that draws every layer's statistics from a noise model instead of mini-batches. A "
        f"ratio of 1 means the mean {uncertainty} of mcbn, a rank correlation of 1 its ranking of the examples. PLL "
        "and AUROC are differences from mcbn; ± Monte Carlo error of both methods, without the error of fitting "
        "the noise model.",
        dim=True,
    )


def _cell(estimate: Estimate, digits: int) -> Cell:
    return Cell(number(estimate.value, digits), "" if estimate.mc_se is None else f"±{number(estimate.mc_se, digits)}")


def _change(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("")
    return Cell(signed(estimate.value), "" if estimate.mc_se is None else f"±{number(estimate.mc_se)}")
