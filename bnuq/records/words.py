"""Numbers and metrics in the sentences of a record."""

from __future__ import annotations

import math

from bnuq.metrics.registry import metric_of

MEASURED, SET = 2, 6  # digits of percents: of a measured share, and of one that was set, such as a risk
_MOST_DECIMALS = 9


def plain(metric: str) -> str:
    """A metric without abbreviation."""
    title = metric_of(metric).title.partition(",")[0]
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def three(value: float | None) -> str:
    """Three digits, or as many as the value has, up to nine."""
    if value is None or not math.isfinite(value):
        return str(value)
    digits = next((digits for digits in range(3, 10) if float(f"{value:.{digits}g}") == value), 3)
    text = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def percent(share: float, digits: int = MEASURED) -> str:
    """So many digits, and all before the decimal point; more where 0 % or 100 % would be said that is not exact. A dash
    where the share is not known."""
    if math.isnan(share):
        return "–"
    value, decimals = 100 * share, digits - 2 + (abs(share) < 0.1)
    text = f"{value:.{decimals}f}"
    while float(text) in (0, 100) and float(text) != value and decimals < _MOST_DECIMALS:
        decimals += 1
        text = f"{value:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"
