"""Samples with and without dropout, computed together: what comes before the first dropout, once for both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnuq import devices
from bnuq.errors import is_out_of_memory
from bnuq.sampling.deviation import difference
from bnuq.sampling.engine import Stochastic

_MOST_KEPT = 2**24  # numbers of outputs, 64 MiB
_TOLERANCE = 1e-3  # of the spread of an output over draws: what rounding may change


@dataclass
class WithDropout:
    """Two engines of the same draws, of which `dropped` has dropout as well. Its passes also give the samples of the
    `plain` one, of the method of this name, which is asked first; its own are kept until it is asked for them."""

    plain: Stochastic
    dropped: Stochastic
    name: str
    kept: dict[tuple[int, bytes], Tensor] = field(default_factory=dict)
    is_verified: bool = False
    is_off: bool = False
    _has_given: bool = False

    def outputs(self, engine: Stochastic, inputs: Tensor, start: int) -> Tensor | None:
        """The samples (T, n, …) of one of the two; None where it has to compute them alone."""
        if (self.is_off and not self.kept) or not devices.is_host(inputs.device):
            return None
        key = start, hashlib.sha256(inputs.contiguous().view(torch.uint8).numpy().data).digest()
        if engine is self.dropped:
            outputs = self.kept.pop(key, None)
            self._has_given |= outputs is not None
            return outputs
        both = None if self.is_off or key in self.kept else self._both(inputs, start)
        if both is None:
            return None
        dropped, plain = both
        self.is_off = sum(each.numel() for each in self.kept.values()) + dropped.numel() > _MOST_KEPT
        if not self.is_off:
            self.kept[key] = dropped.clone()
        return plain

    def given_by(self, engine: Stochastic) -> str | None:
        """The method whose passes gave the samples of this engine."""
        return self.name if self._has_given and engine is self.dropped else None

    def _both(self, inputs: Tensor, start: int) -> tuple[Tensor, Tensor] | None:
        """The samples with dropout and without it; the first ones are compared with those of each engine alone."""
        try:
            both = self.dropped.with_and_without_dropout(inputs, start)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            both = None  # of values that no copy can stand for
        if both is not None and not self.is_verified:
            draws = sorted({0, self.plain.samples - 1})
            for outputs, engine in zip(both, (self.dropped, self.plain), strict=True):
                alone = engine.passes(inputs, start, draws)
                if not difference(outputs[draws], alone, draws=True).is_within(_TOLERANCE):
                    both = None
                    break
        self.is_off, self.is_verified = both is None, True
        return both
