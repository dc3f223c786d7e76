"""`bnuq metrics`: every figure that bnuq knows, with unit and direction."""

from __future__ import annotations

import typer

_WORDS = {"higher": "more is better", "lower": "less is better", "none": "neither way is better"}


def command() -> None:
    """List the metrics: name, unit, which way is better, and source."""
    from bnuq.metrics import METRICS

    for metric in METRICS.values():
        typer.echo(f"{metric.name:20} {metric.title}")
        typer.echo(f"{'':20} {metric.unit}; {_WORDS[metric.direction]}; {metric.source}")
