"""How a report writes numbers, with their errors, and names them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from bnuq.estimates import Estimate
from bnuq.files.references import without_name
from bnuq.metrics.registry import metric_of
from bnuq.report.document import Cell

_MOST = 10_000  # percents
_ROUNDING = 1e-15  # of float64: what is smaller with its error is 0 in a table
UNITS = {"nats": " nats", "percent": " %"}  # behind a number in a sentence; others go without saying


def number(value: float | None, digits: int = 4) -> str:
    """With so many decimals; by a power of ten where they would not show it."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value).replace("-", "−").replace("nan", "–")
    value += 0.0  # no sign of 0
    small = 0 < abs(value) < 10.0**-digits / 2
    text = f"{value:.1e}" if small else f"{value + 0.0:.{digits}f}" if abs(value) < 1e9 else f"{value:.4e}"  # no −0
    return text.replace("-", "−")


def decimals(values: Iterable[float | None]) -> int:
    """How many decimals show five digits of the largest of the values, whatever unit they have; from 0 to 9."""
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value) and value != 0]
    return min(9, max(0, 4 - math.floor(math.log10(max(sizes))))) if sizes else 4


def digits_of(metric: str, values: Iterable[float | None]) -> int:
    """How many decimals these values of a metric are shown with."""
    digits = metric_of(metric).digits
    return decimals(values) if digits is None else digits


def written(metric: str) -> tuple[int | None, int, str]:
    """How sentences write a metric: with how many decimals (None: as its scale asks), times what, and its unit."""
    known = metric_of(metric)
    return (2, 100, " %") if known.percent else (known.digits, 1, UNITS.get(known.unit, ""))


def signed(value: float, digits: int = 4) -> str:
    return ("+" if value >= 0 else "") + number(value, digits)


def share(value: float) -> str:
    """Percents, as the number before the sign."""
    return f"{value:.1f}".replace("-", "−") if math.isfinite(value) else number(value)


def share_with_error(estimate: Estimate | None) -> Cell:
    """Percents in a table; a dash if there are none, or where they are so many that they say nothing."""
    if estimate is None or math.isnan(estimate.value):
        return Cell("–")
    if abs(estimate.value) > _MOST:
        return Cell("–", f"{'<−' if estimate.value < 0 else '>'}{_MOST:,} %")
    error = total(estimate)
    return Cell(f"{share(estimate.value)} %", "" if error is None else f"±{share(error)}")


def percent(estimate: Estimate) -> str:
    error = total(estimate)
    return f"{100 * estimate.value:.2f} %" + (f" ± {100 * error:.2f}" if error else "")


def total(estimate: Estimate) -> float | None:
    """Over points and draws together; None if that over points is unknown: the other alone would mislead."""
    return None if estimate.se is None else math.hypot(estimate.se, estimate.mc_se or 0.0)


def with_error(estimate: Estimate | None, digits: int | None = 4) -> Cell:
    """An estimate in a table, with so many decimals or, where it has an error of its scale or of at least 1, with two
    digits of the error; a dash if there is none. An error of 0 says nothing, but the bound of a share of 0 or 1."""
    if estimate is None:
        return Cell("–")
    error, value = total(estimate), estimate.value
    if error is None or error < _ROUNDING:
        error, value = error and 0.0, 0.0 if abs(value) < _ROUNDING else value
    digits = shown_with(error, digits, [value])
    low, high = (value if end is None else end for end in (estimate.low, estimate.high))
    if not error and low < high and value in (0, 1):
        return Cell(grouped(value, digits), f"≥{grouped(low, 2)}" if value else f"≤{grouped(high, 2)}")
    if not error or not math.isfinite(value):
        return Cell(grouped(value, digits))
    return Cell(grouped(value, digits), f"±{grouped(error, digits)}")


def shown_with(error: float | None, digits: int | None, values: Iterable[float]) -> int:
    """How many decimals show two digits of an error; as many as are given if it is below 1, and without an error as
    many as the values ask for."""
    known = error is not None and math.isfinite(error) and error > 0
    if known and (digits is None or error >= 1):
        return min(9, max(0, 1 - exponent(error)))
    return decimals(values) if digits is None else digits


def error_of(estimate: Estimate) -> float | None:
    """Over points and draws where both are known, else over the one that is."""
    known = [error for error in (estimate.se, estimate.mc_se) if error is not None]
    return math.hypot(*known) if known else None


def interval_of(estimate: Estimate) -> tuple[float, float]:
    """The 95 % interval of the estimate, or by its errors; NaN if it has neither."""
    if estimate.low is not None and estimate.high is not None:
        return estimate.low, estimate.high
    error = error_of(estimate)
    reach = math.nan if error is None else 1.96 * error
    return estimate.value - reach, estimate.value + reach


def and_error(estimate: Estimate) -> str:
    """Value and error with two digits of the error."""
    error = error_of(estimate)
    if error is None or not (math.isfinite(error) and error > 0):
        return three_digits(estimate.value)
    digits = shown_with(error, None, [])
    return f"{grouped(estimate.value, digits)} ± {grouped(error, digits)}"


def estimate_cell(estimate: Estimate | None, digits: int) -> Cell:
    """An estimate in a table with so many decimals, its error over points and draws or over the one that is known."""
    if estimate is None:
        return Cell("–")
    error = error_of(estimate)
    known = error is not None and math.isfinite(error) and math.isfinite(estimate.value)
    return Cell(number(estimate.value, digits), f"±{number(error, digits)}" if known else "")


def three_digits(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    return grouped(value, min(9, max(0, 2 - exponent(value))))


def grouped(value: float, digits: int) -> str:
    """With so many decimals, and commas between thousands."""
    if not 1000 <= abs(value) < 1e9:
        return number(value, digits)
    return f"{value:,.{digits}f}".replace("-", "−")


def exponent(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def named(metric: str, *, roomy: bool = True) -> str:
    """A metric or a score in a table or a sentence."""
    known = metric_of(metric)
    return known.label if roomy else known.short or known.label


def headed(metric: str, *, roomy: bool = True) -> str:
    """The same as the head of a row or a column: which way is better stands before it."""
    return f"{metric_of(metric).arrow} {named(metric, roomy=roomy)}"


def count(amount: int, noun: str) -> str:
    return f"{amount or 'no'} {noun}{'' if amount == 1 else 's'}"


def of_reference(reference: str) -> str:
    """The file or the known name in a reference, without its folder and the name that was given to it; a folder of
    pictures with that of their masks."""
    place, colon, part = without_name(reference)[1].partition(":")
    part = part if Path(place).suffix else Path(part).name  # an array in a file may have a path, too
    return f"{Path(place).name}{colon}{part}"


def full_command(paths: Iterable[Path | None], program: str = "bnuq", options: str = "") -> str:
    """The command that prints everything of the results at these paths, shown from the working folder."""
    near = (path and (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path) for path in paths)
    return f"{program} report {' '.join(quote(str(path or 'RESULT')) for path in near)}{options} --full"


def noise_sd(tau: float) -> float:
    """The standard deviation of observation noise of this precision; infinite at 0."""
    return tau**-0.5 if tau > 0 else math.inf
