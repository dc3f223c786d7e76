"""Samples with and without dropout, computed together: what comes before the first dropout, once for both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bnuq import devices
from bnuq.sampling.deviation import difference
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.trace import other_inputs

_MOST_KEPT = 2**24  # numbers of outputs, 64 MiB
_TOLERANCE = 1e-2  # of the spread of an output over draws: what rounding may change


@dataclass
class Together:
    """Two engines of the same draws, of which `dropped` has dropout as well: its passes also give the samples of
    `plain`, which is asked first, and are kept until it is asked for the same points itself."""

    plain: Stochastic
    dropped: Stochastic
    _kept: dict[tuple[int, bytes], Tensor] = field(default_factory=dict)
    _room: int = _MOST_KEPT

    def outputs(self, engine: Stochastic, inputs: Tensor, start: int) -> Tensor | None:
        """The samples (T, n, …) of one of the two; None where it has to compute them alone."""
        key = start, hashlib.sha256(inputs.contiguous().view(torch.uint8).numpy().data).digest()
        if engine is self.dropped:
            outputs = self._kept.pop(key, None)
            self._room += 0 if outputs is None else outputs.numel()
            return outputs
        if key in self._kept or self._room <= 0 or not self.dropped.is_planned(inputs):
            return None
        plain, dropped = self.dropped.both(inputs, start)
        self._kept[key] = dropped.clone()
        self._room -= dropped.numel()
        return plain

    @property
    def agrees(self) -> bool:
        """Whether both have plans, and those of `dropped` give the samples of `plain`, on inputs of no set."""
        engines = self.plain, self.dropped
        if any(engine.executor is None or not engine.arithmetic.is_exact for engine in engines):
            return False
        inputs = other_inputs(self.plain.example)
        if not devices.is_host(inputs.device) or not all(engine.is_planned(inputs) for engine in engines):
            return False
        given, wanted = self.dropped.both(inputs, 0)[0], self.plain.passes(inputs)
        return difference(given, wanted, draws=True).proves(_TOLERANCE)


def compute_together(plain: Stochastic, dropped: Stochastic) -> None:
    """Compute the samples of two engines together from now on, where that changes none beyond rounding."""
    together = Together(plain, dropped)
    if together.agrees:
        plain.together = dropped.together = together.outputs
