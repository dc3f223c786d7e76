"""The test set with changed inputs, computed when they are asked for; and what attacks go through."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bnuq import devices
from bnuq.config import Run
from bnuq.data import Points
from bnuq.data.decoded import ItemCache, MemoryBudget
from bnuq.errors import RequestError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import RunData
from bnuq.evaluation.passes import stochastic_of
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.subject import RunPlan
from bnuq.evaluation.target_scale import target_scale
from bnuq.findings import Finding, note
from bnuq.perturbations import BLOCK, Block, Perturbation
from bnuq.sampling import counter_rng
from bnuq.sampling.engine import default_chunk
from bnuq.sampling.gradients import Differentiable, Loss, agrees, check_finite
from bnuq.sampling.plain_loop import Engine, Ensemble

ATTACKED_DRAWS = 8  # draws whose mean prediction is attacked, of a method with more
_ROOM = 2**30  # bytes of perturbed inputs that are kept


@dataclass(frozen=True, eq=False)
class Perturbed:
    """The inputs of `clean` points after a perturbation, before normalisation; computed when they are asked for, and
    kept while the budget lasts. `through` is what an attack goes through: the network in evaluation mode, or others."""

    clean: Points
    perturbation: Perturbation
    pipeline: Pipeline
    loss_of: Callable[[Any], Loss]  # the targets of some points → the loss of their outputs
    through: Differentiable
    budget: MemoryBudget = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.clean.inputs.shape)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.clean.raw(slice(0, 1)).dtype

    @cached_property
    def sha256(self) -> str:
        """What the points are computed from, but for the network: two networks are each attacked on the same points."""
        digest = self.perturbation.kind.digest
        further = self.pipeline.run.seed if digest is None else digest
        return hashlib.sha256(
            f"{self.clean.sha256} {self.perturbation} {self._unit.tolist()} {further}".encode()
        ).hexdigest()

    @cached_property
    def _kept(self) -> ItemCache:
        return ItemCache(self.budget)

    @cached_property
    def _latest(self) -> dict[int, np.ndarray]:
        return {}

    def __getitem__(self, indices: Any) -> Shaped[np.ndarray, ...]:
        rows = np.arange(len(self.clean))[indices]
        result = np.empty((*rows.shape, *self.shape[1:]), dtype=self.dtype)
        numbers = rows // self._size
        for number in np.unique(numbers).tolist():
            result[numbers == number] = self._block(number)[rows[numbers == number] % self._size]
        return result

    def _block(self, number: int) -> Shaped[np.ndarray, "point ..."]:
        """The points of one block; the latest one is at hand even where the budget keeps none."""
        if number not in self._latest:
            block = self._kept.item((str(self.perturbation), number), lambda: self._made(number))
            self._latest.clear()
            self._latest[number] = block
        return self._latest[number]

    @cached_property
    def _size(self) -> int:
        """The points of a block: on an accelerator, which is idle with few, half of those that pass together without
        gradients. Their results differ by rounding alone, as those of two kinds of devices do."""
        device = self.pipeline.device
        if devices.is_host(device):
            return BLOCK
        return BLOCK * max(1, default_chunk(self.clean.point_shape, device) // (2 * BLOCK))

    def _made(self, number: int) -> Shaped[np.ndarray, "point ..."]:
        first = number * self._size
        make = self._attacked if self.perturbation.kind.is_attack else self._changed
        count = min(len(self.clean) - first, self._size)
        parts = memory.in_halves(lambda part: make(slice(first + part.start, first + part.stop)), count)
        return np.concatenate([*parts])

    def _changed(self, rows: slice) -> Shaped[np.ndarray, "point ..."]:
        """These points after a perturbation that needs no gradient."""
        raw = self.clean.raw(rows)

        def standard_noise() -> np.ndarray:
            return noise(self.pipeline.run.seed, self.clean.index[rows], raw.shape[1:])

        size = (self.perturbation.size * self._unit).astype(raw.dtype)
        block = Block(raw, noise=standard_noise, ascent=_no_gradient, valid=self._valid)
        return self._valid(self.perturbation.kind.apply(block, size)).astype(self.dtype)

    def _attacked(self, rows: slice) -> Shaped[np.ndarray, "point ..."]:
        """These points after an attack, which is computed on the device without waiting for it."""
        values = torch.from_numpy(np.require(self.clean.raw(rows), requirements="W"))
        device = self.pipeline.device
        place = device if devices.traits(device).float64 or values.dtype != torch.float64 else torch.device("cpu")
        size = torch.from_numpy(np.asarray(self.perturbation.size * self._unit)).to(values.dtype)
        raw, size = devices.upload(values, place), devices.upload(size, place)
        loss = self.loss_of(devices.upload(torch.as_tensor(self.clean.targets[rows]), place))
        finite: list[Tensor] = []

        def ascent(changed: Any) -> Any:
            inputs = self.pipeline.prepared_on_device(changed)
            gradient = self.through.unchecked_gradient(inputs, loss, start=rows.start)
            finite.append(gradient.isfinite().all())
            return self.pipeline.backwards(gradient).sign().to(raw)

        with torch.no_grad():
            block = Block(raw, noise=_no_gradient, ascent=ascent, valid=self._valid)
            changed = self._valid(self.perturbation.kind.apply(block, size))
            fetched = devices.fetch({"points": changed, "finite": torch.stack(finite).all()})
        check_finite(bool(fetched["finite"]))
        return fetched["points"]

    @cached_property
    def _unit(self) -> Float[np.ndarray, ...]:
        """The unit of sizes: for pictures, of the raw pixels; for rows, the deviation that normalisation divides each
        feature by, as each has its own unit."""
        normalize = self.pipeline.normalize
        return np.array(1.0 if normalize is None or len(self.shape) > 2 else normalize.std)

    def _valid(self, values: Any) -> Any:
        """The values inside the range of the inputs, where that is known: from 0 to 1 of 8-bit pictures."""
        is_picture = self.clean.inputs.dtype == np.uint8
        return values.clip(0, 1) if is_picture else values


def _no_gradient(*_: Any) -> Any:
    raise AssertionError("an attack asks for no noise, and noise for no gradient")


def noise(seed: int, numbers: Sequence[int] | np.ndarray, shape: tuple[int, ...]) -> Float[np.ndarray, "point ..."]:
    """Standard normal noise of this shape for each of these points, which depends on the seed and the point's number
    in its source alone: it is the same at every σ, and with --limit."""
    count = int(np.prod(shape))
    rows = [counter_rng.normal(seed, int(number), counter_rng.PERTURBATION, count) for number in numbers]
    return np.stack(rows).reshape(len(rows), *shape)


# ── the sets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def perturbed_sets(
    run: Run, plan: RunPlan, model: nn.Module, pipeline: Pipeline, data: RunData, test: Points
) -> dict[str, Points]:
    """The test set after each perturbation of the run, by its name; RequestError where one does not apply."""
    if not run.perturb:
        return {}
    _check(run, plan, pipeline, test)
    free = memory.available(torch.device("cpu"))
    budget = MemoryBudget(_ROOM if free is None else min(_ROOM, free // 8))
    loss_of, through = _loss_of(run, plan, data), Differentiable.of_networks([model])
    return {
        perturbation.set_name: replace(
            test,
            name=perturbation.set_name,
            reference=f"{test.reference} + {perturbation}",
            inputs=Perturbed(test, perturbation, pipeline, loss_of, through, budget),
            findings=(),
        )
        for perturbation in run.perturb
    }


def _check(run: Run, plan: RunPlan, pipeline: Pipeline, test: Points) -> None:
    """Raise RequestError for a perturbation that does not apply to this network and these points."""
    attacks = [perturbation for perturbation in run.perturb if perturbation.kind.is_attack]
    if plan.task.is_dense:
        why = "is for classification or regression, and this is a segmentation"
    elif test.layout is not None:
        why = f"changes one input, and the points of {test.reference} have several ({test.form})"
    elif pipeline.integers:
        why = f"changes floats, and the points of {test.reference} are integers, passed as they are"
    elif any("file" in method.differs_by for method in plan.methods):
        why = "needs predictions for changed points, which --predictions do not contain"
    elif attacks and test.targets is None:
        run_in = attacks[0]
        raise RequestError(f"--perturb {run_in} attacks the loss, and {test.reference} has no labels. Leave it out.")
    else:
        return
    raise RequestError(f"--perturb {run.perturb[0]} {why}. Leave it out.")


def _loss_of(run: Run, plan: RunPlan, data: RunData) -> Callable[[Any], Loss]:
    """For targets of some points the loss of their outputs (pass, n, K): the negative log-likelihood of the mean
    probability, or the squared error of the mean."""
    scale = target_scale(run, data.train, plan.outputs) if plan.task.is_regression else None

    def classification(outputs: Tensor, y: Tensor) -> Tensor:
        of_class = outputs.log_softmax(-1).gather(-1, y.expand(outputs.shape[:2])[..., None])
        return -of_class.logsumexp(0).sum()

    def multilabel(outputs: Tensor, y: Tensor) -> Tensor:
        return -nn.functional.logsigmoid(torch.where(y == 1, outputs, -outputs)).logsumexp(0).sum()

    def regression(outputs: Tensor, y: Tensor) -> Tensor:
        if scale is not None:
            std, mean = (
                devices.upload(torch.as_tensor(values.copy()), outputs.device, outputs.dtype)
                for values in (scale.std, scale.mean)
            )
            outputs = outputs * std + mean
        return (outputs.mean(0) - y).square().sum()

    loss = {"classes": classification, "labels": multilabel, "values": regression}[plan.task.outputs]
    return lambda targets: lambda outputs: loss(outputs, torch.as_tensor(targets).to(outputs.device))


# ── what is attacked ──────────────────────────────────────────────────────────────────────────────────────────────────


def attacked(points: Points, through: Differentiable | None) -> Points:
    """Points whose attack, where they are attacked, goes through these passes; None: as they are."""
    inputs = points.inputs
    if through is None or not isinstance(inputs, Perturbed) or not inputs.perturbation.kind.is_attack:
        return points
    return replace(points, inputs=replace(inputs, through=through))


def attack_of(engine: Engine, example: Tensor) -> Differentiable | None:
    """What the points of a method with this engine are attacked through: the mean of its first draws, or of the
    networks of an ensemble; None for the network in evaluation mode, also where draws cannot be differentiated."""
    if isinstance(engine, Ensemble):
        return Differentiable.of_networks(engine.networks)
    stochastic = stochastic_of(engine)
    if stochastic is None or not agrees(stochastic.plain, example):
        return None
    return Differentiable.of_draws(stochastic.plain, range(min(ATTACKED_DRAWS, stochastic.samples)))


def findings(run: Run, attacks: Mapping[str, Differentiable | None]) -> Iterator[Finding]:
    """A note on what each method was attacked through."""
    if any(perturbation.kind.is_attack for perturbation in run.perturb):
        passes = {method: 0 if attack is None else len(attack.passes) for method, attack in attacks.items()}
        yield note("attacked-through", methods=[[method, count] for method, count in passes.items()])
