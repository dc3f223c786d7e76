"""`bnuq metrics`: lists every metric, with unit, direction and tolerance."""

from __future__ import annotations

from bnuq.cli.streams import print_entry
from bnuq.estimates import Metric

_WORDS = {"higher": "higher is better", "lower": "lower is better", "none": "no direction"}


def command() -> None:
    """List the metrics: name, unit, direction, the tolerance of `bnuq check`, and source."""
    from bnuq.metrics import METRICS

    for metric in METRICS.values():
        print_entry(f"{metric.name:20} ", metric.title)
        print_entry(f"{'':20} ", f"{metric.unit}; {_WORDS[metric.direction]}{_tolerance(metric)}; {metric.source}")


def _tolerance(metric: Metric) -> str:
    return f"; bnuq check tolerates {metric.tolerance}" if metric.tolerance else ""
