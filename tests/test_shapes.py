"""The shape annotations are held: of bnuq's own functions, and of functions within functions, however often made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import shapes
from jaxtyping import Float, TypeCheckError, jaxtyped

from bnuq import metrics


def test_arguments_that_do_not_fit_an_annotation_are_refused() -> None:
    with pytest.raises(TypeCheckError):
        metrics.mutual_information(np.zeros((2, 3, 4), np.int64))  # type: ignore
    with pytest.raises(TypeCheckError):
        metrics.brier(np.full((3, 2), 0.5), np.zeros(4, np.int64))


def scaled(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    @jaxtyped(typechecker=shapes.held)
    def inner(x: Float[np.ndarray, "row column"]) -> Float[np.ndarray, " row"]:
        return factor * x.sum(1) if factor else x

    return inner


def test_a_function_that_is_made_again_computes_its_own_and_is_held_too() -> None:
    for factor in (1.0, 3.0):
        assert (scaled(factor)(np.ones((4, 2))) == 2 * factor).all()
        with pytest.raises(TypeCheckError):
            scaled(factor)(np.ones(4))
    with pytest.raises(TypeCheckError):  # what it returns
        scaled(0.0)(np.ones((4, 2)))
