"""The stochastic sites of a network, as values: its BatchNorms, dropouts and noise, and what cannot be sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from torch import Tensor

from bnuq.errors import RequestError
from bnuq.frozen import frozen


@frozen
class Site:
    """One call of a BatchNorm or of a dropout in the network's evaluation-mode forward.

    `name` is the layer's module path; the second call of a layer in the same forward is `path#2`. `reason` says why a
    site is not stochastic, empty where it is. `order` counts the calls of its kind, `place` those of both kinds.
    """

    kind: ClassVar[Literal["batchnorm", "dropout", "learned"]]
    name: str
    order: int
    reason: str = ""
    place: int = field(default=0, kw_only=True)

    @property
    def stochastic(self) -> bool:
        return not self.reason


@frozen
class BatchNormSite(Site):
    """A BatchNorm. A call is identified by `address`, that of its running mean, and `occurrence` in the forward."""

    kind = "batchnorm"
    channels: int = 0
    positions: int = 1  # values per channel that one point contributes: z, 1 after a dense layer
    eps: float = 0.0
    momentum: float | None = 0.0  # torch's; None where the layer keeps a cumulative average
    tracked: bool = True  # evaluation mode uses running statistics
    never_trained: bool = False  # running statistics still at (0, 1)
    unscaled: int = 0  # channels that vary over points, and whose running variance is 0
    running_mean: Tensor | None = field(default=None, repr=False, compare=False)
    running_var: Tensor | None = field(default=None, repr=False, compare=False)
    address: int = field(default=0, repr=False, compare=False)
    occurrence: int = field(default=0, repr=False, compare=False)
    calls: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)  # of the network, by address

    @property
    def key(self) -> tuple[int, int]:
        """The key that identifies the call while the network runs."""
        return self.address, self.occurrence

    @property
    def is_frozen(self) -> bool:
        return self.reason.startswith("frozen")

    @property
    def is_differentiated(self) -> bool:
        return self.reason == DIFFERENTIATED


DIFFERENTIATED = "the forward differentiates through it, in training through the statistics of its mini-batch too"


@frozen
class DropoutSite(Site):
    """A dropout; its call is identified by its order."""

    kind = "dropout"
    p: float = 0.0
    variety: str = ""
    batch_axis: int | None = None  # the axis along which points lie; None where no axis grows with them
    rows: int = 1  # entries along that axis that one point contributes
    interleaved: bool = False  # the first entries of all points come before the second entries


@frozen
class NoiseSite(Site):
    """Random numbers that a layer draws in evaluation mode too, such as those of weights with a learned deviation; a
    call is identified by its order. `shape` is that of one call, for two points."""

    kind = "learned"
    family: Literal["normal", "uniform", "bernoulli"] = "normal"
    shape: tuple[int, ...] = ()
    batch_axis: int | None = None  # the axis along which points lie; None where all points share the numbers
    rows: int = 1  # entries along that axis that one point contributes
    interleaved: bool = False  # the first entries of all points come before the second entries


@frozen
class Sites:
    """The sites of one network, and the randomness of training that cannot be reproduced here: BatchNorms that are out
    of reach, and dropout and other noise that is `hidden`; (layer, reason) each."""

    batchnorms: tuple[BatchNormSite, ...]
    dropouts: tuple[DropoutSite, ...]
    noises: tuple[NoiseSite, ...] = ()
    unreachable_batchnorms: tuple[tuple[str, str], ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()

    @property
    def unreachable(self) -> tuple[tuple[str, str], ...]:
        return self.unreachable_batchnorms + self.hidden

    @property
    def live_batchnorms(self) -> tuple[BatchNormSite, ...]:
        return tuple(site for site in self.batchnorms if site.stochastic)

    def left_out(self, fixed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The layers that cannot be sampled, with the reason: the unreachable ones, and those in `fixed`."""
        yield from self.unreachable
        named = {layer for layer, _ in self.unreachable}
        yield from ((layer, reason) for layer, reason in fixed if layer not in named)

    @property
    def live_noises(self) -> tuple[NoiseSite, ...]:
        return tuple(site for site in self.noises if site.stochastic)

    @property
    def live_dropouts(self) -> tuple[DropoutSite, ...]:
        return tuple(site for site in self.dropouts if site.stochastic)


def having(sites: Sequence[Site]) -> str:
    """`its only dropout layer has` or `its 3 dropout layers have`, for a sentence on sites of one kind."""
    kind = "dropout" if sites[0].kind == "dropout" else "BatchNorm"
    return f"its only {kind} layer has" if len(sites) == 1 else f"its {len(sites)} {kind} layers have"


def select_layers(sites: Sequence[BatchNormSite], layers: str | Sequence[str]) -> tuple[BatchNormSite, ...]:
    """The sites that `layers` picks: "all", "first:k", "last:k" (in execution order), or glob patterns over names.

    Raises RequestError where a pattern matches nothing or k is out of range. Source: Teye et al. 2018, §4.4, sample
    the first blocks only.
    """
    if layers == "all":
        return tuple(sites)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    if not patterns:
        raise RequestError('layers is empty; expected "all", "first:k", "last:k" or glob patterns over layer names.')
    if len(patterns) == 1 and patterns[0].partition(":")[0] in ("first", "last"):
        end, _, count = patterns[0].partition(":")
        if not count.isdecimal() or len(count) > 9 or not 1 <= int(count) <= len(sites):
            raise RequestError(
                f'layers is "{patterns[0]}"; expected {end}:k with k from 1 to {len(sites)}, '
                f"the number of stochastic BatchNorm layers."
            )
        return tuple(sites[: int(count)] if end == "first" else sites[-int(count) :])
    for pattern in patterns:
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise RequestError(
                f'layers: "{pattern}" matches no stochastic BatchNorm layer; expected "all", "first:k", "last:k" or '
                f"glob patterns over these names: {', '.join(site.name for site in sites)}."
            )
    return tuple(site for site in sites if any(fnmatchcase(site.name, pattern) for pattern in patterns))
