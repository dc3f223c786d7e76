"""Less work at the reference, in runs that are not about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bnuq.evaluation import draws, features


def at_the_reference(patch: pytest.MonkeyPatch, *, batches: int = 4, points: int = 300) -> None:
    """So many mini-batches in the reference check, and points to which post-hoc scores are fitted."""
    patch.setattr(draws, "BATCHES", batches)
    patch.setattr(features, "_MOST_POINTS", points)


@pytest.fixture(scope="module", autouse=True)
def few_batches() -> Iterator[None]:
    """For a module that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        at_the_reference(patch, batches=8)
        yield
