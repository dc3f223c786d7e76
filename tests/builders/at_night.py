"""Of many like cases of a test, some are run by `make test`, and the others by `make nightly`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test, nightly but for those that are kept."""
    return [pytest.param(*_parts(case), marks=() if case in kept else pytest.mark.nightly) for case in cases]


def every_third(cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test, two in three of them nightly."""
    ordered = [*cases]
    return but(ordered[::3], ordered)


def _parts(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
