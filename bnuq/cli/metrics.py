"""`bnuq metrics`: every estimate that bnuq knows, with unit, direction and tolerance."""

from __future__ import annotations

from bnuq.cli.output import say
from bnuq.estimates import Metric

_WORDS = {"higher": "more is better", "lower": "less is better", "none": "neither way is better"}


def command() -> None:
    """List the metrics: name, unit, which way is better, how much worse `bnuq check` lets it be, and source."""
    from bnuq.metrics import METRICS

    for metric in METRICS.values():
        say(f"{metric.name:20} {metric.title}")
        say(f"{'':20} {metric.unit}; {_WORDS[metric.direction]}{_tolerance(metric)}; {metric.source}")


def _tolerance(metric: Metric) -> str:
    return f"; bnuq check tolerates {metric.tolerance}" if metric.tolerance else ""
