"""A network, its draws and their uncertainty as one module of plain torch operations, which `torch.export` can trace.

It runs the plan of the engine: what no draw touches is computed once, and draws are stacked like additional points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.metrics.posthoc import PointScore
from bnuq.sampling.executor import PlanExecutor
from bnuq.sampling.head import last_layer
from bnuq.sampling.interception import aten, noise_request
from bnuq.sampling.noise import answered
from bnuq.sampling.program import StepContext, plain_step
from bnuq.sampling.program_draws import Augmentation, BankDraws, MaskDraws, Numbers
from bnuq.sampling.schedule import Level
from bnuq.sampling.sites import DropoutSite, NoiseSite
from bnuq.sampling.trace import Operation, filled

Kind = Literal["classes", "labels", "values"]  # of a classification or segmentation, of several labels, of a regression


SCORES = (
    "predictive_entropy",
    "mutual_information",
    "expected_entropy",
    "least_confidence",
)  # to accept by


@frozen
class Acceptance:
    """What is accepted: points with a score of at most the threshold; or, without a score, how far the intervals of
    values reach: the threshold, or with `noise` the threshold times the root of the draws' variance and that noise."""

    threshold: float
    score: str = ""
    noise: tuple[float, ...] = ()


@frozen
class Scoring:
    """How samples become outputs: logits are multiplied by `scale` and moved by `shift`, one number or one for each
    class; values, of which there is one for each output, are scaled to the unit of the targets and have an observation
    noise of this variance."""

    kind: Kind
    scale: tuple[float, ...] = (1.0,)
    shift: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    mean: tuple[float, ...] = (0.0,)
    noise: tuple[float, ...] = (0.0,)
    accepts: Acceptance | None = None


class ExportedPredictor(nn.Module):
    """The mean prediction and its uncertainty from all samples of some `passes`, one after the other.

    For inputs (points, …) `forward` gives a dict, float32: of classes and labels "mean" (probabilities),
    "predictive_entropy" and "mutual_information" in nats; of values "mean" and "variance". Where it accepts by a
    certificate, "accept" of classes is whether a point (or pixel) is accepted, and "half_width" of values how far its
    certified interval reaches. With a `drift` module, "drift" is what that gives for these points; `ood` adds scores.
    """

    def __init__(
        self, passes: Sequence[SamplePasses], scoring: Scoring, drift: nn.Module | None, ood: nn.Module | None
    ) -> None:
        super().__init__()
        self.drift, self.ood = drift, ood
        self.passes, self._kind, self._accepts = nn.ModuleList(passes), scoring.kind, scoring.accepts
        reach = () if scoring.accepts is None else scoring.accepts.noise
        self.register_buffer("reach", torch.tensor(reach, dtype=torch.float64))
        self.has_masks = any(part.has_masks for part in passes)
        for name in ("scale", "shift", "std", "mean", "noise"):
            self.register_buffer(name, torch.tensor(getattr(scoring, name), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """The mean and its uncertainty for these inputs (points, …)."""
        result = self.scored(torch.cat([part(inputs) for part in self.passes]))
        result = result if self.ood is None else result | self.ood(inputs)
        return result if self.drift is None else result | {"drift": self.drift(inputs)}

    def scored(self, samples: Tensor) -> dict[str, Tensor]:
        """The mean and its uncertainty of these raw outputs (T, points, …)."""
        samples = samples.double()
        shape = (-1, *[1] * (samples.ndim - 3))
        scale, shift, std, mean, noise = (
            getattr(self, name).view(shape) for name in ("scale", "shift", "std", "mean", "noise")
        )
        if self._kind == "values":
            values = samples * std + mean
            of_draws = values.var(0, correction=0)
            scores = {"mean": values.mean(0).float(), "variance": (of_draws + noise).float()}
            if self._accepts is None:
                return scores
            scale = (of_draws + self.reach).sqrt() if self._accepts.noise else torch.ones_like(of_draws)
            return scores | {"half_width": (self._accepts.threshold * scale).float()}
        logits = samples * scale + shift
        if self._kind == "labels":  # two classes for each label
            logits = torch.stack([torch.zeros_like(logits), logits], 2)
        log_p = logits.log_softmax(2)
        p, log_mean = log_p.exp(), log_p.logsumexp(0) - float(np.log(samples.shape[0]))
        mean = log_mean.exp()
        scores = {
            "mean": mean if self._kind == "classes" else mean[:, 1],
            "predictive_entropy": -torch.where(mean > 0, mean * log_mean, 0.0).sum(1),  # a class may be masked
            "mutual_information": torch.where(p > 0, p * (log_p - log_mean), 0.0).sum(2).mean(0).clamp_min(0.0),
        }
        result = {name: values.float() for name, values in scores.items()}
        if self._accepts is None:
            return result
        scores |= {
            "expected_entropy": scores["predictive_entropy"] - scores["mutual_information"],
            "least_confidence": 1 - mean.amax(1),
        }
        return result | {"accept": scores[self._accepts.score] <= self._accepts.threshold}


TOGETHER = 8  # more take longer for many points, since their values leave the cache, and fewer for a single one


@frozen
class LastLayerDraws:
    """Draws of a network's last linear layer: what each adds to its weight and, where it has one, its bias, (T, K,
    D + 1) or (T, K, D). `normalised` networks give the logarithms of probabilities."""

    weights: Tensor
    normalised: bool


class SamplePasses(nn.Module):
    """T passes by a plan: (points, …) → (T, points, …). Points are number 0, 1, … of their set.

    The draws are those of the executor, or T of its `bank` for each point; with an `augmentation` each is a pass of
    points that are augmented anew; with a `change` the draws are those of the last layer. Where draws can be stacked,
    `TOGETHER` samples pass at once: memory is that of as many times the points.
    """

    draws: Tensor
    change: Tensor

    def __init__(
        self,
        executor: PlanExecutor,
        samples: int,
        *,
        augmentation: Augmentation | None = None,
        bank: BankDraws | None = None,
        change: LastLayerDraws | None = None,
    ) -> None:
        super().__init__()
        plan, self.samples = executor.plan, samples
        self._plan, self._affine = plan, [*executor.affine]
        self.augmentation, self.bank, self._change = augmentation, bank, change
        self._together = min(samples, TOGETHER) if plan.stackable else 1
        self._masks: dict[int, MaskDraws] = {}
        self._noises: dict[int, NoiseSite] = {}
        self._constants = [number for number, value in enumerate(executor.fixed) if value is not None]
        # All tensors become buffers: an exported program stores nothing else, and moves them with the module.
        self._keep("draws", torch.arange(samples)[:, None])
        for number in self._constants:
            self._keep(f"constant_{number}", executor.fixed[number])
        for position, (scale, shift) in executor.affine.items():
            self._keep(f"scale_{position}", scale)
            self._keep(f"shift_{position}", shift)
        for position in plan.at(Level.SAMPLE):
            site = plan.operations[position].site
            if isinstance(site, DropoutSite) and site.stochastic and executor.dropout is not None:
                self._masks[position] = MaskDraws(executor.dropout, site)
                self.add_module(f"masks_{position}", self._masks[position])
            elif isinstance(site, NoiseSite) and executor.noise is not None:
                value = plan.trace.values[plan.operations[position].outputs[0]]
                options = (value.dtype, torch.device("cpu"))
                draws = [executor.noise.numbers(site, value.shape, draw, 0, *options) for draw in range(samples)]
                self._noises[position] = site
                self._keep(f"noise_{position}", torch.stack(draws))
        if change is not None:
            self._keep("change", change.weights.flatten(0, 1))
        if bank is not None and not plan.stackable:
            raise SamplingError(
                "the network cannot be exported with a bank of draws, as its samples do not pass together. Leave out "
                "--bank."
            )

    def _keep(self, name: str, tensor: Tensor) -> None:
        # A tensor of inference mode cannot be exported, and one in another layout is taken for a part of another.
        self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    @property
    def has_masks(self) -> bool:
        return bool(self._masks)

    def forward(self, inputs: Tensor) -> Tensor:
        """Raw outputs (T, points, …)."""
        rows = inputs.shape[0]
        numbers = self.draws if self.bank is None else self.bank(rows)
        inputs = inputs.clone()  # the network may write into its input
        shared = None if self.augmentation is not None else self.shared(inputs, rows)
        if self._change is not None and shared is not None:
            return self._last_layer(shared)
        outputs = []
        for first in range(0, self.samples, self._together):
            draws = range(first, min(self.samples, first + self._together))
            draw_numbers = numbers[draws.start : draws.stop]
            if shared is not None:
                output = self._sample_level(self._repeated(shared, len(draws)), rows, draws, draw_numbers)
            else:
                assert self.augmentation is not None
                augmented, flipped = self.augmentation(inputs, draw_numbers)
                chunk = self.shared(augmented, rows * len(draws))
                output = self._sample_level(chunk, rows, draws, draw_numbers)
                if flipped is not None and output.ndim == 4:  # pictures, flipped back
                    output = torch.where(flipped[:, None, None, None], output.flip(-1), output)
            outputs.append(output.unflatten(0, (len(draws), rows)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def last_linear(self, values: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Input and output of the last linear layer, which no draw touches, among the values that all draws share."""
        last = next(each for each in reversed(self._plan.operations) if each.function is aten.linear.default)
        return values[last.arguments[0].number], values[last.outputs[0]]

    def shared(self, inputs: Tensor, rows: int) -> list[Any]:
        """The values that all draws of these rows share."""
        plan = self._plan
        values: list[Any] = [None] * len(plan.trace.values)
        for number in self._constants:
            values[number] = getattr(self, f"constant_{number}")
        if plan.channels_last and inputs.ndim == 4:  # half the time on a CPU
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        values[plan.trace.input] = inputs
        for position in plan.at(Level.CHUNK):
            _run(plan.operations[position], values, rows)
        return values

    def _repeated(self, chunk: Sequence[Any], draws: int) -> list[Any]:
        values, plan = [*chunk], self._plan
        for number in plan.boundary:
            if draws > 1 and (axis := plan.trace.values[number].axis) is not None:
                values[number] = torch.cat([values[number]] * draws, axis)
        return values

    def _sample_level(self, values: list[Any], rows: int, draws: range, numbers: Numbers) -> Tensor:
        """Raw outputs (draw·point, …)."""
        plan = self._plan
        for position in plan.at(Level.SAMPLE):
            operation, layer = plan.operations[position], plan.folded.get(position)
            if layer is not None:
                _run(layer, values, rows * len(draws))
            if position in self._affine:
                source = values[operation.arguments[0].number]
                values[operation.outputs[0]] = self._normalized(position, source, rows, draws, numbers)
            elif position in self._masks:
                source, mask = values[operation.arguments[0].number], self._masks[position]
                values[operation.outputs[0]] = mask(source, rows, numbers, in_place=bool(operation.writes))
            elif position in self._noises:
                noise = getattr(self, f"noise_{position}")[draws[0]]
                _run(operation, values, rows, noise)
            else:
                _run(operation, values, rows * len(draws))
        return values[plan.trace.output]

    def _normalized(self, position: int, x: Tensor, rows: int, draws: range, numbers: Numbers) -> Tensor:
        tables = [getattr(self, f"{name}_{position}") for name in ("scale", "shift")]
        if self.bank is None:
            parts = (len(draws), -1)
            scale, shift = (table[draws.start : draws.stop, None] for table in tables)
        else:
            parts = (len(draws), rows, -1)
            scale, shift = (table[numbers][:, :, None] for table in tables)
        scale, shift = (values.unflatten(-1, (-1, *[1] * (x.ndim - 2))) for values in (scale, shift))
        return torch.addcmul(shift, x.unflatten(0, parts), scale).flatten(0, len(parts) - 1).to(x.dtype)

    def _last_layer(self, values: Sequence[Any]) -> Tensor:
        """Logits (T, points, K) under the draws of the last layer."""
        assert self._change is not None
        features, logits = self.last_linear(values)
        width = self._change.weights.shape[2]
        features = F.pad(features, (0, width - features.shape[1]), value=1.0)  # a bias is the weight of 1
        logits = logits + F.linear(features, self.change).unflatten(1, (self.samples, -1)).movedim(1, 0)
        if self._change.weights.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 2)
        return logits.log_softmax(2) if self._change.normalised else logits


class LastLayerScores(nn.Module):
    """Post-hoc scores of the last linear layer of a network that draws nothing, by name, float32 (points)."""

    def __init__(self, passes: SamplePasses, scores: Mapping[str, PointScore]) -> None:
        super().__init__()
        self.passes, self.scores = passes, scores

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        values = self.passes.shared(inputs.clone(), inputs.shape[0])
        layer = last_layer(*self.passes.last_linear(values))
        return {name: score(layer).float() for name, score in self.scores.items()}


def _run(operation: Operation, values: list[Any], rows: Any, noise: Tensor | None = None) -> None:
    """Run an operation as it was recorded; with `noise`, one that draws these numbers."""
    function, arguments = operation.function, filled(operation.arguments, rows)
    if function is aten.view.default:
        function = aten.reshape.default  # values may have another layout than in the recording

    def drawn(*args: Any, **named: Any) -> Tensor:
        call = noise_request(function, args, named)
        assert call is not None and noise is not None
        return answered(call, noise)

    plain_step(function, arguments, operation.result, None if noise is None else drawn)(values, _NOTHING)


_NOTHING = StepContext(range(0), 0, {})
