"""A network, its draws and their uncertainty as one module of plain torch operations, which `torch.export` can trace.

It runs the plan of the engine: what no draw touches is computed once, and draws are stacked like additional points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from bnuq.sampling import counter_rng
from bnuq.sampling.dropout import Dropout, dropped_by
from bnuq.sampling.executor import Executor
from bnuq.sampling.interception import DropoutCall, aten, noise_call
from bnuq.sampling.noise import answered
from bnuq.sampling.planning import Level
from bnuq.sampling.program import StepContext, plain_step
from bnuq.sampling.sites import DropoutSite, NoiseSite
from bnuq.sampling.trace import Operation, filled

Kind = Literal["classes", "labels", "values"]  # of a classification or segmentation, of several labels, of a regression


@dataclass(frozen=True)
class Scoring:
    """How samples become outputs: logits are divided by the `temperature`; values, of which there is one for each
    output, are scaled to the unit of the targets and have an observation noise of this variance."""

    kind: Kind
    temperature: float = 1.0
    std: tuple[float, ...] = (1.0,)
    mean: tuple[float, ...] = (0.0,)
    noise: tuple[float, ...] = (0.0,)


class Predictor(nn.Module):
    """The mean prediction and its uncertainty from all samples of a plan.

    For inputs (points, …) `forward` gives a dict, float32: of classes and labels "mean" (probabilities),
    "predictive_entropy" and "mutual_information" in nats; of values "mean" and "variance". Masks of dropout are those
    of points number 0, 1, … of a set. All samples pass together: memory is that of as many times the points.
    """

    std: Tensor
    mean: Tensor
    noise: Tensor

    def __init__(self, executor: Executor, scoring: Scoring) -> None:
        super().__init__()
        plan, self.samples, self._scoring = executor.plan, executor.samples, scoring
        self._plan, self._affine = plan, [*executor.affine]
        self._masks: dict[int, Masks] = {}
        self._noises: dict[int, NoiseSite] = {}
        self._constants = [number for number, value in enumerate(executor.fixed) if value is not None]
        for number in self._constants:
            self._keep(f"constant_{number}", executor.fixed[number])
        for position, (scale, shift) in executor.affine.items():
            self._keep(f"scale_{position}", scale)
            self._keep(f"shift_{position}", shift)
        for position in plan.at(Level.SAMPLE):
            site = plan.operations[position].site
            if isinstance(site, DropoutSite) and site.stochastic and executor.dropout is not None:
                self._masks[position] = Masks(executor.dropout, site)
                self.add_module(f"masks_{position}", self._masks[position])
            elif isinstance(site, NoiseSite) and executor.noise is not None:
                value = plan.trace.values[plan.operations[position].outputs[0]]
                options = (value.dtype, torch.device("cpu"))
                draws = [executor.noise.numbers(site, value.shape, draw, 0, *options) for draw in range(self.samples)]
                self._noises[position] = site
                self._keep(f"noise_{position}", torch.stack(draws))
        for name in ("std", "mean", "noise"):
            self._keep(name, torch.tensor(getattr(scoring, name), dtype=torch.float64))

    def _keep(self, name: str, tensor: Tensor) -> None:
        # A tensor of inference mode cannot be exported, and one in another layout is taken for a part of another.
        self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """The mean and its uncertainty for these inputs (points, …)."""
        return self.scored(self.passes(inputs))

    @property
    def has_masks(self) -> bool:
        return bool(self._masks)

    def scored(self, samples: Tensor) -> dict[str, Tensor]:
        """The mean and its uncertainty of these raw outputs (T, points, …)."""
        samples = samples.double()
        if self._scoring.kind == "values":
            values = samples * self.std + self.mean
            variance = values.var(0, correction=0) + self.noise
            return {"mean": values.mean(0).float(), "variance": variance.float()}
        logits = samples / self._scoring.temperature
        if self._scoring.kind == "labels":  # two classes for each label
            logits = torch.stack([torch.zeros_like(logits), logits], 2)
        log_p = logits.log_softmax(2)
        p, log_mean = log_p.exp(), log_p.logsumexp(0) - float(np.log(self.samples))
        mean = log_mean.exp()
        found = {
            "mean": mean if self._scoring.kind == "classes" else mean[:, 1],
            "predictive_entropy": -(mean * log_mean).sum(1),
            "mutual_information": (p * (log_p - log_mean)).sum(2).mean(0).clamp_min(0.0),
        }
        return {name: values.float() for name, values in found.items()}

    def passes(self, inputs: Tensor) -> Tensor:
        """Raw outputs (T, points, …)."""
        rows, plan = inputs.shape[0], self._plan
        values: list[Any] = [None] * len(plan.trace.values)
        for number in self._constants:
            values[number] = getattr(self, f"constant_{number}")
        values[plan.trace.input] = inputs.clone()  # the network may write into its input
        for position in plan.at(Level.CHUNK):
            _run(plan.operations[position], values, rows)
        together = self.samples if plan.stackable else 1
        outputs = [
            self._sample_level(values, rows, range(first, first + together))
            for first in range(0, self.samples, together)
        ]
        return torch.cat(outputs)

    def _sample_level(self, chunk: Sequence[Any], rows: int, draws: range) -> Tensor:
        """Raw outputs (draws, points, …) of some draws."""
        values, plan = [*chunk], self._plan
        for number in plan.boundary:
            if len(draws) > 1 and (axis := plan.trace.values[number].axis) is not None:
                values[number] = torch.cat([values[number]] * len(draws), axis)
        for position in plan.at(Level.SAMPLE):
            operation, layer = plan.operations[position], plan.folded.get(position)
            if layer is not None:
                _run(layer, values, rows * len(draws))
            if position in self._affine:
                values[operation.outputs[0]] = self._normalized(position, values[operation.arguments[0].number], draws)
            elif position in self._masks:
                source, mask = values[operation.arguments[0].number], self._masks[position]
                values[operation.outputs[0]] = mask(source, rows, draws, in_place=bool(operation.writes))
            elif position in self._noises:
                numbers = getattr(self, f"noise_{position}")[draws[0]]
                _run(operation, values, rows, numbers)
            else:
                _run(operation, values, rows * len(draws))
        output = values[plan.trace.output]
        return output.unflatten(0, (len(draws), rows))

    def _normalized(self, position: int, x: Tensor, draws: range) -> Tensor:
        spread = (len(draws), 1, -1, *[1] * (x.ndim - 2))
        scale, shift = (
            getattr(self, f"{name}_{position}")[draws.start : draws.stop].view(spread) for name in ("scale", "shift")
        )
        return (x.unflatten(0, (len(draws), -1)) * scale + shift).flatten(0, 1).to(x.dtype)


def _run(operation: Operation, values: list[Any], rows: Any, noise: Tensor | None = None) -> None:
    """Run an operation as it was recorded; with `noise`, one that asks for these numbers."""
    function, arguments = operation.function, filled(operation.arguments, rows)
    if function is aten.view.default:
        function = aten.reshape.default  # values may have another layout than in the recording

    def drawn(*args: Any, **named: Any) -> Tensor:
        call = noise_call(function, args, named)
        assert call is not None and noise is not None
        return answered(call, noise)

    plain_step(function, arguments, operation.result, None if noise is None else drawn)(values, _NOTHING)


_NOTHING = StepContext(range(0), 0, {})


class Masks(nn.Module):
    """The masks of one dropout, from numbers that only depend on the seed, the draw and the entry.

    They are those of an evaluation on a CPU, except for the one entry in 65,536 whose first 16 bits do not decide: it
    is kept where that is more likely.
    """

    draws: Tensor
    one: Tensor

    def __init__(self, dropout: Dropout, site: DropoutSite) -> None:
        super().__init__()
        self._site, self._seed = site, dropout.seed
        draws = torch.arange(dropout.first, dropout.first + dropout.samples)
        self.register_buffer("draws", draws)
        self.register_buffer("one", torch.ones(1, dtype=torch.int64))

    def forward(self, x: Tensor, rows: int, draws: range, *, in_place: bool) -> Tensor:
        """`x` of so many points for each of the draws, after the dropout."""
        call = DropoutCall(x, self._site.p, self._site.variety, in_place, training=False)
        keys = self.draws[draws.start : draws.stop]

        def entries(first: int, count: int) -> Tensor:
            assert first == 0
            # Enough blocks of 16 entries, as a product: a quotient would tie the program to its number of points.
            enough = rows * (1 + int(count // rows) // 16) + 1
            blocks = self.one.expand(enough).cumsum(0)  # which Philox counts from 1
            counter = (blocks, *(self.one * int(each) for each in (self._site.order, 0, counter_rng.MASK)))
            random = philox(counter, self.one * self._seed, keys[:, None])
            quarters = torch.stack([random >> shift & 0xFFFF for shift in (0, 16, 32, 48)], -1)
            threshold = self._site.p * 2**16
            return (quarters.flatten(1)[:, :count] >= int(threshold + 0.5)).to(torch.uint8)

        return dropped_by(call, self._site, entries, len(keys), 0)


_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox(counter: Sequence[Tensor], seed: Tensor, draw: Tensor) -> Int64[Tensor, "draw word"]:
    """The words of numpy's Philox for each `draw` (draw, 1) and block, of four words each, as signed numbers.

    `counter` has four parts, the first with the numbers of the blocks.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x64-10.
    """
    a, b, c, d = counter
    keys = [seed, draw]
    for _ in range(10):
        (high_a, low_a), (high_c, low_c) = (_product(m, x) for m, x in zip(_MULTIPLIERS, (a, c), strict=True))
        a, b, c, d = high_c ^ b ^ keys[0], low_c, high_a ^ d ^ keys[1], low_a
        keys = [key + _signed(step) for key, step in zip(keys, _WEYL, strict=True)]
    return torch.stack(torch.broadcast_tensors(a, b, c, d), -1).flatten(1)


def _product(multiplier: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low word of the product of two unsigned words."""
    high, low = multiplier >> 32, multiplier & 0xFFFFFFFF
    x_high, x_low = _upper(x), x & 0xFFFFFFFF
    middle = high * x_low + _upper(low * x_low)
    other = low * x_high + (middle & 0xFFFFFFFF)
    return high * x_high + _upper(middle) + _upper(other), x * _signed(multiplier)


def _upper(x: Tensor) -> Tensor:
    return x >> 32 & 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
