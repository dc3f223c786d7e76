"""`bnuq methods`: lists the methods that make a network stochastic."""

from __future__ import annotations

from bnuq.cli.streams import print_entry
from bnuq.methods import METHODS


def command() -> None:
    """List the methods, and what each needs."""
    for method in METHODS:
        print_entry(f"{method.name:17} ", method.help)
