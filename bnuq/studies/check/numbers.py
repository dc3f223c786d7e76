"""The numbers of a check: estimates, changes, errors and p-values with as many digits as they need."""

from __future__ import annotations

import math

from bnuq.gate.comparing import LEVEL
from bnuq.gate.records import Decisive, EstimateComparison, Floor
from bnuq.report.numbers import decimals, number, signed

SMALLEST_P = 0.0001  # that is written as such


def change_and_error(comparison: EstimateComparison) -> tuple[str, str]:
    """The change, and its error if it is known; a change of nothing is "0", not so many decimals of it."""
    digits = _digits(comparison)
    change, error = comparison.change, comparison.se
    text = "0" if change == 0 else signed(change, digits)
    if error is None or math.isnan(error) or error == change == 0:
        return text, ""
    return text, "0" if error == 0 else number(error, digits)


def before_and_now(comparison: EstimateComparison, *, distinct: bool = True) -> tuple[str, str]:
    """The estimate of the baseline and the current one, with as many decimals as distinguish them if they are to be
    `distinct`."""
    digits, values = _digits(comparison), (comparison.baseline, comparison.current)

    def written() -> tuple[str, str]:
        return number(values[0], digits), number(values[1], digits)

    while distinct and digits < 9 and values[0] != values[1] and len(set(written())) == 1:
        digits += 1
    return written()


def amount(value: float) -> str:
    """Three digits of a number that is not below 0, without zeros at its end."""
    return f"{value:.3g}"


def visible(comparison: EstimateComparison) -> str:
    """The smallest worsening that would have been found; a dash where nothing is known of it."""
    return "–" if comparison.detectable is None else amount(comparison.detectable)


def signed_loss(comparison: EstimateComparison) -> str:
    """The smallest worsening that would have been found, in the direction in which it is one."""
    sign = {"higher": "−", "lower": "+", "none": "±"}[comparison.direction]
    return f"{sign}{visible(comparison)}"


def decided_by(decisive: Decisive) -> str:
    """ "34,000 points", or of an OOD estimate "34,000 + 68,000 points"; "128 samples"; or both."""
    points = " + ".join(f"{n:,}" for _, n in decisive.points)
    samples = "" if decisive.samples is None else f"{decisive.samples:,} samples"
    return " and ".join(filter(None, (points and f"{points} examples", samples)))


def chance(p: float) -> str:
    """A p-value with two digits, three where two would not show on which side of the level it is."""
    if p < SMALLEST_P:
        return f"< {SMALLEST_P:.4f}"
    return f"{p:.3g}" if 0.9 * LEVEL < p < 1.1 * LEVEL else f"{p:.2g}"


def _digits(comparison: EstimateComparison) -> int:
    if comparison.unit == "percent":
        return 2
    if "target unit" in comparison.unit:
        return max(0, decimals((comparison.baseline, comparison.current)) - 1)
    return 4


def required_value(floor: Floor) -> str:
    if math.isnan(floor.value):
        return "not a number"
    digits = 4 if abs(floor.value) < 10 else max(0, decimals([floor.value]))
    while digits < 9 and floor.value != floor.bound and round(floor.value, digits) == round(floor.bound, digits):
        digits += 1  # a value that is rounded to its bound looks as if it were met
    error = "" if floor.se is None or not math.isfinite(floor.value) else f" ± {number(floor.se, digits)}"
    return f"{number(floor.value, digits)}{error}"
