"""The shape annotations are held: of bnuq's own functions, and of functions within functions, however often made."""

from __future__ import annotations

import subprocess
import sys
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


ALIKE = """
import itertools, sys
import numpy as np
from bnuq import shapes
assert "jaxtyping" not in sys.modules
import jaxtyping
kinds = [name for name in vars(shapes) if name[0].isupper() and hasattr(jaxtyping, name) and name != "TYPE_CHECKING"]
texts = ["", " point", "a b", "#a *b", "*any 3 c", "a *b", "...", "2", "a 3", "point _"]
dtypes = "bool int8 uint8 int16 uint16 int32 int64 uint64 float16 float32 float64 complex128 <U3 object".split()
sizes = [(), (2,), (3,), (0,), (2, 3), (3, 2), (2, 3, 4), (3, 3, 4)]
values = [np.zeros(size, dtype) for dtype in dtypes for size in sizes] + [None, 3, 2.0, np.float64(1), [1.0], "a"]
count = 0
for name, text, array in itertools.product(kinds, texts, (np.ndarray, __import__("typing").Any)):
    ours, theirs = (getattr(module, name)[array, text] for module in (shapes, jaxtyping))
    assert ours.dim_str == theirs.dim_str, (ours.dim_str, theirs.dim_str)
    for value in values:
        assert isinstance(value, ours) == isinstance(value, theirs), (ours, value)
        count += isinstance(value, ours)
print(len(kinds), count)
"""


@pytest.mark.nightly
def test_without_jaxtyping_the_same_arrays_are_told_apart() -> None:
    done = subprocess.run([sys.executable, "-c", ALIKE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds, alike = map(int, done.stdout.split())
    assert kinds == 14 and alike > 1000


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
