"""Points in the order of a value, and which of them are tied; for many rows of values at once."""

import numpy as np

from bnuq.frozen import frozen
from bnuq.shapes import Float, Integer


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
    """The points of each row, the smallest value first."""
    order = np.argsort(values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    first = np.ones(values.shape, dtype=bool)
    np.not_equal(ranked[:, 1:], ranked[:, :-1], out=first[:, 1:])
    start = np.flatnonzero(first)
    return Ties(order, start, np.diff(start, append=values.size), first.sum(axis=1))
