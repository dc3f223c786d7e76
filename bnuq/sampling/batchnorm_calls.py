"""Counts the BatchNorm calls of a forward, which must be those of the forward that found the sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn

from bnuq.errors import SamplingError
from bnuq.sampling.interception import BatchNormCall, CallObserver, addresses_of, copied, forward, undisturbed
from bnuq.sampling.sites import BatchNormSite


class OtherCallsError(SamplingError):
    """A forward calls different BatchNorms than the first forward, or calls them more or less often."""


class BatchNormCalls:
    """Counts the BatchNorm calls of one forward, which must match those of the forward that found `sites`.

    Without this check, additional calls (virtual batches, loops of varying length, early exits) would silently use
    running statistics.
    """

    def __init__(self, sites: Sequence[BatchNormSite]) -> None:
        self._expected = sites[0].calls if sites else None
        self._names = {site.address: site.name for site in sites if not site.occurrence}
        self._counts: Counter[int] = Counter()

    def key(self, call: BatchNormCall) -> tuple[int, int]:
        """The site's key of this call; OtherCallsError where there is no such site."""
        address, occurrence = call.address, self._counts[call.address]
        self._counts[address] += 1
        if self._expected is not None and occurrence >= self._expected.get(address, 0):
            raise OtherCallsError(
                f"{self._name(address)} is called more often than in the first forward. {_FIXED_PATH}"
            )
        return address, occurrence

    def check_complete(self) -> None:
        """Raise OtherCallsError where the forward skipped a call."""
        for address, count in (self._expected or {}).items():
            if self._counts[address] < count:
                raise OtherCallsError(
                    f"{self._name(address)} was called {self._counts[address]} times in a forward, and {count} times "
                    f"in the first one. {_FIXED_PATH}"
                )

    def _name(self, address: int) -> str:
        return f"BatchNorm {self._names[address]}" if address in self._names else "a BatchNorm"


_FIXED_PATH = "bnuq needs a network whose path depends neither on its input nor on the number of points."


_SMALLEST_SLICE = 4  # points; smaller slices are implausible, so the cause must be another one


def other_calls(model: nn.Module, sites: Sequence[BatchNormSite], batch: Tensor) -> OtherCallsError:
    """The error for a `model` whose BatchNorm calls for `batch` differ from those for a few points; call it inside
    `undisturbed`."""
    largest = largest_batch(model, sites, batch, len(batch))
    if largest == len(batch) or largest < _SMALLEST_SLICE:
        return OtherCallsError(f"the number of BatchNorm calls depends on the network's input. {_FIXED_PATH}")
    training = {
        True: ", in training mode too, so its training noise is that of a slice",
        False: ", but the whole batch in training mode",
        None: "",
    }[slices_in_training(model, batch, largest)]
    return OtherCallsError(
        f"in evaluation mode the network calls its BatchNorms more often for {len(batch)} points than for {largest}: "
        f"it normalises slices of its batch{training}. Use mini-batches of at most {largest} points (--batch-size "
        f"{largest})."
    )


def slices_in_training(model: nn.Module, batch: Tensor, largest: int) -> bool | None:
    """Whether training mode, too, makes more BatchNorm calls for `batch` than for `largest` of its points; None where
    that cannot be determined."""
    addresses = addresses_of(model)
    call_counts: Counter[int] = Counter()  # calls that normalise by their batch, by the number of points

    def seen(call: object) -> None:
        if isinstance(call, BatchNormCall) and call.training and call.address not in addresses:
            call_counts[points] += 1

    points = 0
    try:
        twin = copied(model).train()
        for points in (largest, len(batch)):
            with undisturbed(twin, evaluation=False), CallObserver(seen):
                forward(twin, batch[:points].clone())
    except Exception:  # the copy may not run, which says nothing
        return None
    return call_counts[len(batch)] > call_counts[largest] if call_counts else None


def smallest_batch(sites: Sequence[BatchNormSite]) -> int:
    """The fewest points of which every BatchNorm has a variance: one where each point has several positions."""
    return 1 if all(site.positions > 1 for site in sites) else 2


def largest_batch(model: nn.Module, sites: Sequence[BatchNormSite], example: Tensor, limit: int) -> int:
    """The largest number of points, up to `limit`, for which `model` calls each BatchNorm as often as for two points.

    It is below `limit` where the network normalises slices of its batch (virtual batches). Calls that depend on the
    data have no effect, because two points of `example` are repeated. Call it inside `undisturbed`.
    """
    repeated = example[:2].repeat(limit // len(example[:2]) + 1, *[1] * (example.ndim - 1))

    def same(points: int) -> bool:
        return _same_calls(model, sites, repeated[:points])

    if same(limit) or not same(2):
        return limit
    fits, too_many = min(2, limit), limit
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if same(middle) else (fits, middle)
    return fits


def _same_calls(model: nn.Module, sites: Sequence[BatchNormSite], inputs: Tensor) -> bool:
    calls = BatchNormCalls(sites)

    try:
        with CallObserver(lambda call: calls.key(call) if isinstance(call, BatchNormCall) else None):
            forward(model, inputs.clone())
        calls.check_complete()
    except OtherCallsError:
        return False
    return True
