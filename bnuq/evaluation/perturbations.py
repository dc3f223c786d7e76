"""The test set with changed inputs, computed when they are asked for; and what attacks go through."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.data import Points
from bnuq.data.decoded import ItemCache, MemoryBudget
from bnuq.errors import RequestError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.corruptions import CORRUPTIONS, ColumnMoments, Random
from bnuq.evaluation.passes import stochastic_of
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.subject import Plan
from bnuq.evaluation.target_scale import TargetScale
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.perturbations import ALL, BLOCK, FAMILIES, KINDS, SMALL, Form, Perturbation, RawBlock
from bnuq.sampling import counter_rng
from bnuq.sampling.engine import default_chunk
from bnuq.sampling.gradients import Differentiable, Loss, agrees
from bnuq.sampling.plain_loop import Engine, Ensemble
from bnuq.shapes import Float, Shaped
from bnuq.tasks import Task
from bnuq.trust import code_of, resolve_factory

ATTACKED_DRAWS = 8  # draws whose mean prediction is attacked, of a method with more
_ROOM = 2**30  # bytes of perturbed inputs that are kept
_OWN_STREAM = 3  # of random numbers, for the user's functions


@frozen(eq=False)
class Perturbed:
    """The inputs of `clean` points after a perturbation, before normalisation; computed when they are asked for, and
    kept while the budget lasts. `through` is what an attack goes through: the network in evaluation mode, or others."""

    clean: Points
    perturbation: Perturbation
    pipeline: Pipeline
    loss_of: Callable[[Any], Loss]  # the targets of some points → the loss of their outputs
    through: Differentiable
    budget: MemoryBudget = field(repr=False)
    values: Values
    function: Callable[..., Any] | None = None  # the user's own

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
        further: Any = self.pipeline.settings.seed if digest is None else digest
        if self.perturbation.code:
            further = further, *code_of(self.perturbation.code, self.perturbation.source.base)
        content = f"{self.clean.sha256} {self.perturbation} {self._unit.tolist()} {further}"
        return hashlib.sha256(content.encode()).hexdigest()

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
        if devices.is_host(device) or self.function is not None:
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
        raw, kind, numbers = self.clean.raw(rows), self.perturbation.kind, self.clean.index[rows]
        constants = self.perturbation.constants(self.values.scale)

        def standard_noise() -> np.ndarray:
            return noise(self.pipeline.settings.seed, numbers, raw.shape[1:])

        if self.function is not None:
            changed = self._by_function(raw, constants[0], int(numbers[0]))
        elif kind.apply is None:
            random = Random(self.pipeline.settings.seed, numbers)
            changed = CORRUPTIONS[kind.name](raw, random, self.values.columns, *constants)
        else:
            size = (constants[0] * self._unit).astype(raw.dtype)
            block = RawBlock(raw, noise=standard_noise, ascent=_no_gradient)
            changed = kind.apply(block, size)
        return self._valid(changed).astype(self.dtype)

    def _by_function(self, raw: np.ndarray, severity: float, first: int) -> Shaped[np.ndarray, "point ..."]:
        """What the user's function makes of these points; RequestError where that is anything but as many points."""
        words = np.random.Philox(
            key=np.array([self.pipeline.settings.seed, first], np.uint64),
            counter=np.array([0, _OWN_STREAM, 0, counter_rng.PERTURBATION], np.uint64),
        )
        assert self.function is not None
        changed = self.function(raw.copy(), severity, np.random.Generator(words))
        code, expected = self.perturbation.code, f"an array of shape {raw.shape}, as it was given"
        if isinstance(changed, tuple | dict):
            raise RequestError(
                f"{code} returned a {type(changed).__name__}; expected {expected}: a change of inputs leaves labels as "
                "they are."
            )
        try:
            changed = np.asarray(changed, dtype=self.dtype)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{code} returned a {type(changed).__name__}; expected {expected}.") from error
        if changed.shape != raw.shape or not np.isfinite(changed).all():
            what = f"shape {changed.shape}" if changed.shape != raw.shape else "numbers that are not finite"
            raise RequestError(f"{code} returned an array of {what} at severity {severity:g}; expected {expected}.")
        return changed

    def _attacked(self, rows: slice) -> Shaped[np.ndarray, "point ..."]:
        """These points after an attack, which is computed on the device without waiting for it."""
        values = torch.from_numpy(np.require(self.clean.raw(rows), requirements="W"))
        place = self.pipeline.device
        size = torch.from_numpy(np.asarray(self.perturbation.size * self._unit)).to(values.dtype)
        raw, size = devices.upload(values, place), devices.upload(size, place)
        loss = self.loss_of(devices.upload(torch.as_tensor(self.clean.targets[rows]), place))
        finite: list[Tensor] = []

        def ascent(changed: Any) -> Any:
            inputs = self.pipeline.prepared_on_device(changed)
            gradient = self.through.gradient(inputs, loss, start=rows.start)
            finite.append(gradient.isfinite().flatten(1).all(1))
            return self.pipeline.backwards(gradient).sign().to(raw)

        with torch.no_grad():
            block = RawBlock(raw, noise=_no_gradient, ascent=ascent)
            apply = self.perturbation.kind.apply
            assert apply is not None
            changed = self._valid(apply(block, size))
            fetched = devices.fetch({"points": changed, "finite": torch.stack(finite).all(0)})
        if not (is_finite := fetched["finite"]).all():
            point = self.clean.index[rows][int(is_finite.argmin())]
            raise SamplingError(
                f"the gradient with respect to example {point} of {self.clean.reference} is not finite, so the "
                "example cannot be attacked. If a probability is 0 or 1 by rounding, let the network give logits."
            )
        return fetched["points"]

    @cached_property
    def _unit(self) -> Float[np.ndarray, ...]:
        """The unit of sizes: for pictures, of the raw pixels; for rows, the deviation that normalisation divides each
        feature by, as each has its own unit. Severities of anything but pictures are in deviations in any case."""
        normalize = self.pipeline.normalize
        if normalize is not None and len(self.shape) == 2:
            return np.array(normalize.std)
        of_deviations = self.perturbation.is_severity and self.values.form != "picture"
        return self.values.columns.deviation if of_deviations and self.values.columns else np.array(1.0)

    def _valid(self, values: Any) -> Any:
        """The values inside the range of the inputs, where that is known: from 0 to 1 of 8-bit pictures, and of others
        with such values by changes that are for pictures."""
        change = self.perturbation
        of_pictures = (change.is_severity and not change.code) or change.kind.forms == {"picture"}
        is_picture = self.clean.inputs.dtype == np.uint8 or (self.values.form == "picture" and of_pictures)
        return values.clip(0, 1) if is_picture else values


@frozen
class Values:
    """What the points are that are changed: by their shape, and by the values of all of them."""

    form: Form
    scale: str  # of severities, see `PerturbationKind`
    columns: ColumnMoments | None  # None of 8-bit pictures, whose values are not read

    @staticmethod
    def of(points: Points) -> Values:
        shape = points.point_shape
        forms: dict[int, Form] = {1: "table", 2: "sequence", 3: "image"}
        form, is_within, columns = forms.get(len(shape), "array"), True, None
        if form != "image" or points.inputs.dtype != np.uint8:
            is_within, columns = _read_once(points)
        form = "picture" if form == "image" and is_within else form
        scale = "other" if form != "picture" else "small" if min(shape[1:]) <= SMALL else "large"
        return Values(form, scale, columns)


def _read_once(points: Points) -> tuple[bool, ColumnMoments]:
    """Whether all values lie from 0 to 1, and the moments of each column, which the order of points changes by rounding
    alone."""
    count, mean, squares, is_within = 0, np.zeros(()), np.zeros(()), True
    with np.errstate(all="ignore"):
        for raw in points.raw_blocks():
            axes = tuple(axis for axis in range(raw.ndim) if axis != 1)
            n, of_block = raw.size // raw.shape[1], raw.mean(axes, np.float64, keepdims=True)
            change, count = of_block - mean, count + n
            squares = squares + ((raw - of_block) ** 2).sum(axes, keepdims=True) + change**2 * (n - n**2 / count)
            mean = mean + change * (n / count)
            is_within &= bool(np.all((raw >= 0) & (raw <= 1)))
        return is_within, ColumnMoments(mean[0], np.sqrt(squares[0] / count))


def _no_gradient(*_: Any) -> Any:
    raise AssertionError("an attack asks for no noise, and noise for no gradient")


def noise(seed: int, numbers: Sequence[int] | np.ndarray, shape: tuple[int, ...]) -> Float[np.ndarray, "point ..."]:
    """Standard normal noise of this shape for each of these points, which depends on the seed and the point's number
    in its source alone: it is the same at every σ, and with --limit."""
    count = int(np.prod(shape))
    rows = [counter_rng.normal(seed, int(number), counter_rng.PERTURBATION, count) for number in numbers]
    return np.stack(rows).reshape(len(rows), *shape)


# ── the sets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _why_not(change: Perturbation, plan: Plan, pipeline: Pipeline, test: Points, values: Values) -> str:
    """Why a perturbation does not apply to this network and these points, or nothing."""
    kind = change.kind
    if test.layout is not None:
        return f"changes one input, and the examples of {test.reference} have several ({test.form})"
    if pipeline.integers:
        return f"changes floats, and the examples of {test.reference} are integers, passed as they are"
    if kind.is_attack and plan.image:
        return "attacks the label of an example, and this is a segmentation"
    if kind.is_attack and test.targets is None:
        return f"attacks the loss, and {test.reference} has no labels"
    if plan.image and not kind.keeps_masks:
        return "moves or hides what the masks name, so they would be wrong, and this is a segmentation"
    return kind.why_not(values.form, test.point_shape, test.reference)


def perturbed_sets(
    asked: Sequence[Perturbation],
    plan: Plan,
    model: nn.Module,
    pipeline: Pipeline,
    test: Points,
    scale: TargetScale | None,
    *,
    trust_code: bool,
) -> dict[Perturbation, Points]:
    """The test set after each of the perturbations that are asked for and apply to these points, of "all" after each
    family that does; RequestError for others, and for a function that changes more than the values of its inputs.
    Targets of a regression may have a `scale`."""
    if not asked:
        return {}
    values, changes = Values.of(test), dict[str, Perturbation]()
    for change in asked:
        of_all = [replace(change, kind=KINDS[name]) for name in FAMILIES] if change.kind.name == ALL else [change]
        why_not = {each: _why_not(each, plan, pipeline, test, values) for each in of_all}
        fitting = [each for each, why in why_not.items() if not why]
        if not fitting:
            raise RequestError(f"The perturbation {change} {why_not[of_all[0]]}. Leave it out.")
        changes |= {each.set_name: each for each in fitting}
    free = memory.available(torch.device("cpu"))
    budget = MemoryBudget(_ROOM if free is None else min(_ROOM, free // 8))
    through = Differentiable.of_networks([model])
    loss_of = _loss_of(plan.task, scale)
    sets = {}
    for change in changes.values():
        function = None
        if change.code:
            allowed = {"named_by": change.source.named_by, "trust": trust_code}
            function = resolve_factory(change.code, base=change.source.base, **allowed)
        inputs = Perturbed(test, change, pipeline, loss_of, through, budget, values, function)
        if function is not None:
            inputs[:1]  # its mistakes end the run before anything is computed
        reference = f"{test.reference} + {change}"
        sets[change] = replace(test, name=change.set_name, reference=reference, inputs=inputs, findings=())
    return sets


def _loss_of(task: Task, scale: TargetScale | None) -> Callable[[Any], Loss]:
    """For targets of some points the loss of their outputs (pass, n, K): the negative log-likelihood of the mean
    probability, or the squared error of the mean. That of a class depends on its logit above those of all others
    together, whose gradient does not vanish where the network is sure: 1 − p would be 0."""

    def classification(outputs: Tensor, y: Tensor) -> Tensor:
        label = y.expand(outputs.shape[:2])[..., None]
        outputs = outputs.clamp_min(torch.finfo(outputs.dtype).min / 4)  # masked classes are −∞
        margin = outputs.gather(-1, label)[..., 0] - outputs.scatter(-1, label, -math.inf).logsumexp(-1)
        return -nn.functional.logsigmoid(margin).logsumexp(0).sum()

    def multilabel(outputs: Tensor, y: Tensor) -> Tensor:
        return -nn.functional.logsigmoid(torch.where(y == 1, outputs, -outputs)).logsumexp(0).sum()

    def regression(outputs: Tensor, y: Tensor) -> Tensor:
        if scale is not None:
            units = (torch.as_tensor(values.copy()) for values in (scale.std, scale.mean))
            std, mean = (devices.upload(values, outputs.device, outputs.dtype) for values in units)
            outputs = outputs * std + mean
        return (outputs.mean(0) - y).square().sum()

    loss = {"classes": classification, "labels": multilabel, "values": regression}[task.outputs]
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


def findings(attacks: Mapping[str, Differentiable | None]) -> Iterator[Finding]:
    """A note on what each method was attacked through."""
    passes = {method: 0 if attack is None else len(attack.passes) for method, attack in attacks.items()}
    yield note("attacked-through", methods=[[method, count] for method, count in passes.items()])
