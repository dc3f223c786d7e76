"""Helpers that let the same formula work on numpy arrays and torch tensors; and tied values."""

from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device, is_torch_array

from bnuq.frozen import frozen
from bnuq.shapes import Float, Integer, Shaped

Array = Any  # a numpy array or a torch tensor; naming the tensor type would import torch
_NUMPY_IS_COMPLETE = hasattr(np, "cumulative_sum")  # numpy 2.1 and later have all functions of the standard


def array_namespace(*arrays: Any) -> Any:
    """The array API's functions for these arrays: numpy's own for its arrays, where it has them all, as the namespace
    that array_api_compat makes for numpy imports the whole of it (0.1 s)."""
    if _NUMPY_IS_COMPLETE and all(isinstance(array, np.ndarray) for array in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


def log(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """ln x, and −∞ at 0 without numpy's warning."""
    xp = array_namespace(x)
    zero = x == 0
    return xp.where(zero, xp.full_like(x, -float("inf")), xp.log(xp.where(zero, xp.ones_like(x), x)))


def as_numpy(values: Shaped[Array, "..."]) -> np.ndarray:
    """The same values as a numpy array on the CPU, without their gradient."""
    if is_torch_array(values):
        values = values.detach().cpu()
    return np.asarray(values)


def as_float64(values: Shaped[Array, "..."]) -> Float[np.ndarray, "..."]:
    """The same values as a numpy array of float64."""
    if is_torch_array(values):
        values = values.detach().cpu().double()  # bfloat16 has no numpy type
    return np.asarray(values, dtype=np.float64)


def like(values: Float[Array, "..."] | float, model: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same values in the array type, dtype and device of `model`."""
    return array_namespace(model).asarray(values, dtype=model.dtype, device=device(model))


@frozen
class Ties:
    """The order of each row, and the ties of all rows one after another: where each starts, its number of points; and
    the number of ties of each row. A value that no other point has is a tie of one point."""

    order: Integer[np.ndarray, "row point"]
    start: Integer[np.ndarray, "tie"]
    count: Integer[np.ndarray, "tie"]
    number: Integer[np.ndarray, "row"]

    def sums(self, values: Float[np.ndarray, "row point"]) -> Float[np.ndarray, "tie"]:
        """The sum of `values` over the points of each tie."""
        return np.add.reduceat(np.take_along_axis(values, self.order, axis=1).ravel(), self.start)


def ties_of_rows(values: Float[np.ndarray, "row point"]) -> Ties:
    """The points of each row, the smallest value first; those of a tie in any order."""
    order = np.argsort(values, axis=1)
    ranked = np.take_along_axis(values, order, axis=1)
    first = np.ones(values.shape, dtype=bool)
    np.not_equal(ranked[:, 1:], ranked[:, :-1], out=first[:, 1:])
    start = np.flatnonzero(first)
    return Ties(order, start, np.diff(start, append=values.size), first.sum(axis=1))
