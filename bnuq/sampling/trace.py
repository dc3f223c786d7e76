"""The trace of a network: the operations of one forward in order, with their arguments as functions of the row
count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bnuq.errors import BnuqError, SamplingError, is_device_failure, is_out_of_memory
from bnuq.frozen import frozen
from bnuq.sampling.recorded_calls import OtherCallsError
from bnuq.sampling.sites import Site

CHECKED_ROWS = 8  # rows on which a plan is compared with the network itself
_CHECKED_ENTRIES = 2**19  # of the input at most, unless there are only three rows


class NotTraceableError(BnuqError):
    """The network cannot be recorded as a fixed sequence of operations; the message says why."""


class OtherPathError(NotTraceableError):
    """Two forwards did not run the same operations."""


@frozen
class Ref:
    """An argument of an operation: the value with this number."""

    number: int


@frozen
class PerRow:
    """An argument of an operation: a whole number that depends on the row count, `slope` · rows + `offset`."""

    slope: int
    offset: int


@frozen
class Operation:
    """One operation. Its arguments are positional. Tensors in them, and in `result`, are Refs or trees of Refs.

    `site` is the stochastic site, if the operation is one. `writes` are the memory groups that it writes into.
    """

    function: Any
    arguments: tuple
    result: Any
    site: Site | None = None
    writes: frozenset[int] = frozenset()

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(refs_in(self.arguments))

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(refs_in(self.result))


@frozen
class Value:
    """A tensor of the trace. `shape` is that for three rows, `axis` the axis that grows with the row count (None where
    none does), `rows` the entries along it per row. Values of the same `group` may share memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int | None
    rows: int
    group: int

    @property
    def entries_per_row(self) -> int:
        """Entries per row; all entries where no axis grows."""
        total = 1
        for axis, size in enumerate(self.shape):
            total *= self.rows if axis == self.axis else size
        return total


@frozen
class Trace:
    """A forward from value `input` to value `output`; `constants` are the parameters and buffers it reads."""

    operations: tuple[Operation, ...]
    values: tuple[Value, ...]
    constants: Mapping[int, Tensor]
    input: int
    output: int


def refs_in(tree: Any) -> Iterator[int]:
    """The numbers of the values in a tree of arguments or results."""
    if isinstance(tree, Ref):
        yield tree.number
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from refs_in(item)


def filled(tree: Any, rows: int) -> Any:
    """The tree of arguments for `rows` rows."""
    if isinstance(tree, PerRow):
        return tree.slope * rows + tree.offset
    return type(tree)(filled(item, rows) for item in tree) if isinstance(tree, (tuple, list)) else tree


def uneven_parts(rows: int) -> tuple[int, ...]:
    """The sizes of unequal parts of so many rows, such as 3, 2 and 3: points that depend on one another, or on their
    place, give other outputs then. Of many rows, a few are in small parts, in which others are the extremes, and the
    rest is cut where no place has the same remainder by 2, 3, 4 or 5 in its part."""
    cuts = [3, 5] if rows > 3 else [max(1, rows - 1)]
    if rows >= 16:
        cuts += [7, next(cut for cut in range(rows // 2 + 4, 7, -1) if math.gcd(cut, 60) == 1)]
    ends = [0, *(cut for cut in cuts if cut < rows), rows]
    return tuple(end - start for start, end in pairwise(ends))


@contextmanager
def on_other_inputs() -> Iterator[None]:
    """Turns a failure of the network, or of its operations, on other inputs into a NotTraceableError."""
    try:
        yield
    except (NotTraceableError, OtherCallsError):
        raise
    except (SamplingError, RuntimeError, IndexError, TypeError, ValueError) as error:
        if is_out_of_memory(error) or is_device_failure(error):
            raise
        raise NotTraceableError(f"its operations cannot be run again ({str(error).splitlines()[0]})") from error


def checked_rows(inputs: Tensor) -> int:
    """The rows on which a plan is compared with the network: fewer where points are large, but three at least."""
    return min(CHECKED_ROWS, max(3, _CHECKED_ENTRIES // max(1, inputs[0].numel())))


def other_inputs(inputs: Tensor, count: int | None = None) -> Tensor:
    """So many plausible inputs, by default `checked_rows`, that differ from those of the recording."""
    count = checked_rows(inputs) if count is None else count
    rows = torch.cat([inputs[:count]] * -(-count // len(inputs)))[:count]
    if not rows.is_floating_point():
        return rows.flip(0)
    factors = torch.linspace(0.8, 1.0, count, dtype=rows.dtype, device=rows.device)  # no two rows alike
    return (0.8 * rows.flip(0) + 0.2 * rows.roll(1, 0)) * factors.view(-1, *[1] * (rows.ndim - 1))
