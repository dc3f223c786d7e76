"""Stochastic forward passes. A compiled plan is verified against the plain loop, which is the fallback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.errors import SamplingError, first_line, is_device_failure, is_out_of_memory
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.deviation import CLASSIFICATION, Deviation, Discrepancy, Task, deviation_of_samples, difference
from bnuq.sampling.digests import Weights
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.exactness import Narrow, check_repeatable, check_samples_independent, float64_copy
from bnuq.sampling.executor import PlanCost, PlanExecutor
from bnuq.sampling.inputs import Data, tensor_of
from bnuq.sampling.interception import fed, float32_as, is_exact_on_cpu, undisturbed
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Engine, PlainLoop
from bnuq.sampling.planning import plan
from bnuq.sampling.recorded_calls import OtherCallsError
from bnuq.sampling.recording import record
from bnuq.sampling.schedule import Plan
from bnuq.sampling.site_search import find_sites, listed, warn_of_unsampled
from bnuq.sampling.sites import BatchNormSite, NoiseSite, Sites
from bnuq.sampling.trace import (
    CHECKED_ROWS,
    NotTraceableError,
    Operation,
    OtherPathError,
    checked_rows,
    on_other_inputs,
    other_inputs,
    uneven_parts,
)

_OF_PLANS = {torch.float32: 1e-2, torch.float64: 1e-6}  # of the spread of an output over draws: what a plan may change
_LARGE = 0.5  # of it: what rounding does not explain
_COMPARED_POINTS = 64  # points of the first chunk on which another arithmetic is compared with float32
_COMPARED_DRAWS = 32  # and draws: the MI of fewer deviates by chance (64 points, 8 draws: by 2 %, 32 draws: by 1 %)
_LEAST_COMPARED_DRAWS = 8  # of a segmentation, whose points are many
_COMPARED_OUTPUTS = 2**26  # of all these draws together, where that leaves the least draws of one point


def default_chunk(point_shape: Sequence[int], device: torch.device | str = "cpu") -> int:
    """The default number of points that pass together: it bounds memory and changes results only by rounding. A GPU
    needs four times as many to be busy."""
    size = math.prod(point_shape)
    times = devices.traits(device).points
    return max(16, min(256, times * 2**23 // size), min(4096, times * 2**20 // size))


class Together(Protocol):
    """Two engines that compute samples together: `given_by` names the method whose passes gave those of an engine."""

    def outputs(self, engine: Stochastic, inputs: Tensor, start: int) -> Tensor | None: ...

    def given_by(self, engine: Stochastic) -> str | None: ...


@runtime_checkable
class Shrinking(Protocol):
    """An engine that can reduce its use of memory."""

    def shrink(self) -> None: ...


class Stochastic:
    """T stochastic passes: by a compiled plan of the network's operations where there is one, otherwise by the plain
    loop.

    The plan is made at the first passes, and verified against the plain loop on other inputs than it was made from.
    Nothing that is decided depends on the points that pass later: they have the same outputs in whatever order they do.
    `omega` replaces the statistics of the layers it holds; `dropout` makes dropouts active; `learned` draws the noise
    that the network asks for. An `arithmetic` that is not exact needs a float32 network with a plan; one that is there
    by default is given up where there is none. An exact one stands for the network's own type. What it changes is
    measured by what the `task` makes of outputs.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        *,
        omega: BatchStatistics | None = None,
        dropout: Dropout | None = None,
        learned: Learned | None = None,
        arithmetic: Arithmetic = FLOAT32,
        task: Task = CLASSIFICATION,
    ) -> None:
        self.plain = PlainLoop(model, sites, omega=omega, dropout=dropout, learned=learned)
        self.samples = self.plain.samples
        self._model, self._sites, self._dropout = model, sites, dropout
        self.arithmetic, self._task = arithmetic, task
        """What further passes are computed in."""
        self._executor: PlanExecutor | None = None
        self._exact: PlanExecutor | None = None  # the plan in the network's own arithmetic
        self._example: Tensor | None = None  # the points that it was made from
        self._agrees: dict[int, bool] = {}  # by the size of tiles, whether it does what the plain loop does
        self._independent: set[int] = set()  # numbers of points that are treated one by one
        self.why_plain = ""
        """Why there is no plan, once that is known."""
        self.together: Together | None = None
        """Gives the samples that are computed together with those of another engine, where they are."""
        self.deviation: Deviation | None = None
        """How far the first passes lay from the exact ones, where the arithmetic is another."""

    @property
    def executor(self) -> PlanExecutor | None:
        """The plan at work in the network's own arithmetic; None where there is none, or none yet."""
        return None if self._executor is None else self._exact

    @property
    def why_unfused(self) -> str:
        """Why the plan at work computes convolutions and their activations one after the other, where a device that
        has a kernel for both refused."""
        return "" if self._executor is None else self._executor.why_unfused

    def work(self, points: int) -> PlanCost | None:
        """What is computed once and what T times, where so many points pass together; None where there is no plan of
        so many, or none yet."""
        if self._executor is None or not all(
            self._agrees.get(rows, True) for rows in self._executor.tile_sizes(points)
        ):
            return None
        return self._executor.work(points)

    def fit(self, free: int | None) -> None:
        """Bound stacks of draws and tiles by the bytes that are free, where that is known."""
        if self._executor is not None and free is not None:
            self._executor.fit(free)

    def shrink(self) -> None:
        """Take about half the memory from now on."""
        self.together = None
        if self.plain.noise is not None:
            self.plain.noise.shrink()
        if self._executor is not None:
            self._executor.shrink()

    def compute_exactly(self) -> None:
        """Compute further passes in the network's own type."""
        self.arithmetic = self.arithmetic.exact
        self._executor = self._exact if self._executor is not None else None

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        """Raw outputs (T, n, …) for points number `start`, `start` + 1, … of their set, in the network's own type.

        Of all draws, or of those of these numbers, in their order.
        """
        if not self._is_planned(inputs):
            return self.plain.passes(inputs, start, draws)
        assert self._executor is not None
        outputs = None if self.together is None or draws is not None else self.together.outputs(self, inputs, start)
        return self._run(self._executor, inputs, start, draws) if outputs is None else outputs

    def with_and_without_dropout(self, inputs: Tensor, start: int) -> tuple[Tensor, Tensor] | None:
        """The samples of these points with dropout and without it, where a plan computes both at little more than the
        cost of one."""
        if not self._is_planned(inputs) or self._executor is None or not self._executor.shares(len(inputs)):
            return None
        with self._rounding(inputs.device):
            dropped, plain = self._executor.with_and_without(inputs, start).chunk(2)
            return dropped, plain

    def check_independent(self, inputs: Tensor, start: int = 0) -> None:
        """Raise SamplingError where these points, number `start` and following, have other outputs in smaller chunks,
        unless so many points were checked before: a plan when it was verified, the plain loop by its first draw."""
        if len(inputs) not in self._independent:
            if not self._is_planned(inputs):
                check_samples_independent(self.plain, inputs, start=start)
            self._independent.add(len(inputs))

    def _is_planned(self, inputs: Tensor) -> bool:
        """Whether there is a plan, which is made here, and it does what the plain loop does on tiles of all sizes that
        these points are cut into, with as many draws as pass together, and in parts: a network may treat that many
        points differently than when recorded, or see which pass together. Each size is compared once, on points that
        are made of those that the plan was made from."""
        if self._executor is None and not self.why_plain:
            self.prepare(inputs)
        while self._executor is not None:
            sizes = self._executor.tile_sizes(len(inputs))
            if not (unknown := sizes - self._agrees.keys()):
                return all(self._agrees[rows] for rows in sizes)
            rows = min(unknown)
            try:
                self._verify_tile(rows, range(self._executor.work(rows).stacked))
                self._agrees[rows] = True
            except NotTraceableError as error:
                self._accept_plain(error)
                self._agrees[rows] = False
        return False

    def _verify_tile(self, rows: int, stacked: range) -> None:
        assert self._exact is not None and self._example is not None
        tile, start, draws = other_inputs(self._example, rows), rows, sorted({0, stacked[-1]})

        def outputs(executor: PlanExecutor, tile: Tensor) -> Tensor:
            whole = executor.some_passes(tile, start, stacked, tile=rows, together=len(stacked))[draws]
            return torch.cat([whole, executor.some_passes(tile, start, draws[:1], tile=uneven_parts(rows), together=1)])

        def expected(loop: PlainLoop, tile: Tensor) -> Tensor:
            whole = loop.passes(tile, start, draws)
            return torch.cat([whole, whole[:1]])

        self._prove(self._exact, tile, expected, outputs, f"it treats {rows} examples unlike fewer")

    def prepare(self, inputs: Tensor, *, free: int | None = None) -> None:
        """Make the plan, if there is one, from a few points; `passes` does so by itself. For `free` see `fit`."""
        try:
            exact = self._checked(inputs)
        except NotTraceableError as error:
            if isinstance(error, OtherPathError):
                check_repeatable(self._model, inputs[:CHECKED_ROWS])
            self._accept_plain(error)
            self.arithmetic = self.arithmetic.exact
            return
        if free is not None:
            exact.fit(free)
        is_exact = self.arithmetic.is_exact
        self._executor = exact if is_exact else self._in_other_arithmetic(exact, inputs[:_COMPARED_POINTS])
        self._exact, self._example = exact, inputs[:_COMPARED_POINTS]

    def _accept_plain(self, why: NotTraceableError) -> None:
        """Note why there is no plan; SamplingError where an arithmetic was asked for that needs one."""
        if not (self.arithmetic.is_exact or self.arithmetic.by_default):
            raise SamplingError(
                f"precision {self.arithmetic} needs a plan of the network, and there is none: {why}. Use float32."
            )
        self.why_plain = str(why)

    def _run(
        self, executor: PlanExecutor, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None
    ) -> Tensor:
        with self._rounding(inputs.device):
            return executor.passes(inputs, start, draws)

    @contextmanager
    def _rounding(self, device: torch.device) -> Iterator[None]:
        """Run a plan in its arithmetic, without gradients."""
        convolutions, products = self.arithmetic.convolutions, self.arithmetic.products
        exact = devices.is_host(device) and is_exact_on_cpu()
        with torch.inference_mode(), nullcontext() if exact else float32_as(convolutions, products):
            yield

    def _checked(self, inputs: Tensor) -> PlanExecutor:
        schedule = self._planned(self.plain, inputs)
        other, draws = other_inputs(inputs), sorted({0, self.samples - 1})
        with on_other_inputs():
            known = self.plain.passes(other, 0, draws)

        def agreeing(schedule: Plan, *, together: int) -> PlanExecutor:
            """The plan at work; NotTraceableError where it differs from the plain loop on other inputs."""
            executor = self._executor_of(schedule, self.plain, inputs.device)
            self._prove(
                executor,
                other,
                lambda loop, inputs: known if loop is self.plain else loop.passes(inputs, 0, draws),
                lambda executor, inputs: executor.trial(inputs, draws, together=together),
                "its recorded operations give different outputs",
            )
            return executor

        executor = agreeing(schedule, together=1)
        if executor.stacks:
            try:
                return agreeing(schedule, together=2)
            except NotTraceableError:  # points that are on an axis in another order
                return agreeing(replace(schedule, stackable=False), together=1)
        return executor

    def _planned(self, loop: PlainLoop, inputs: Tensor) -> Plan:
        """The plan of the network of a plain loop, recorded on these inputs."""
        sites = replace(
            loop.sites,
            dropouts=() if self._dropout is None else loop.sites.dropouts,
            noises=() if loop.noise is None else loop.sites.noises,
        )
        with undisturbed(loop.model):
            trace = record(loop.model, sites, inputs)
        output = trace.values[trace.output]
        if (output.axis, output.rows) != (0, 1):
            raise NotTraceableError("its output has not one row for every example")

        def sampled(operation: Operation) -> bool:
            site = operation.site
            assert site is not None
            if isinstance(site, BatchNormSite):
                return site.key in loop.statistics
            return isinstance(site, NoiseSite) or (self._dropout is not None and site.stochastic)

        return plan(trace, sampled=sampled, rows=default_chunk(inputs.shape[1:], inputs.device))

    def _executor_of(self, schedule: Plan, loop: PlainLoop, device: torch.device) -> PlanExecutor:
        with _exactly(), on_other_inputs():
            return PlanExecutor(
                schedule,
                samples=self.samples,
                statistics=loop.statistics,
                dropout=self._dropout,
                noise=loop.noise,
                device=device,
            )

    def _prove(
        self,
        executor: PlanExecutor,
        inputs: Tensor,
        expected: Callable[[PlainLoop, Tensor], Tensor],
        outputs: Callable[[PlanExecutor, Tensor], Tensor],
        otherwise: str,
    ) -> None:
        """Raise NotTraceableError where the samples of a plan are not those of the plain loop: `outputs` and `expected`
        compute some of them. Where float32 is too coarse to tell, the same plan of a copy in float64 decides."""

        def compared(loop: PlainLoop, executor: PlanExecutor, inputs: Tensor, made_in: torch.dtype) -> Discrepancy:
            with on_other_inputs():
                wanted = expected(loop, inputs)
                with _exactly():
                    given = outputs(executor, inputs)
            if not bool(wanted.isfinite().any()):
                raise OtherPathError(otherwise)
            return difference(given, wanted, draws=True, made_in=made_in)

        is_float32 = any(value.dtype == torch.float32 for value in executor.plan.trace.values)
        made_in = torch.float32 if is_float32 else torch.float64
        change, tolerance = compared(self.plain, executor, inputs, made_in), _OF_PLANS[made_in]
        if change.proves(tolerance) or (made_in is torch.float64 and change.is_within(tolerance)):
            return
        if made_in is torch.float64 or (change.is_resolved(tolerance) and change.relative > _LARGE):
            raise OtherPathError(otherwise)
        narrow = Narrow()
        try:
            twin, wide = float64_copy(self._model, inputs)
            with narrow:
                loop = self.plain.in_float64(twin, find_sites(twin, wide[:3], compare_with_training=False))
                schedule = replace(self._planned(loop, wide), stackable=executor.plan.stackable)
                if not _alike(schedule, executor.plan):
                    raise NotTraceableError("in float64 its operations are others")
                change = compared(loop, self._executor_of(schedule, loop, inputs.device), wide, torch.float64)
        except Exception as error:  # networks of any make, of which there is no such copy
            if is_out_of_memory(error) or is_device_failure(error):
                raise
            raise NotTraceableError(f"float32 is too coarse to verify its plan ({first_line(error)})") from error
        if narrow.seen:
            raise NotTraceableError("it computes in float32 what is too coarse to verify its plan")
        if not change.is_within(_OF_PLANS[torch.float64]):
            raise OtherPathError(otherwise)

    def _in_other_arithmetic(self, exact: PlanExecutor, inputs: Tensor) -> PlanExecutor:
        # the last draws: of several batch sizes' draws those of the largest, which differ the least
        outputs_of_point = exact.plan.trace.values[exact.plan.trace.output].entries_per_row
        most = max(_LEAST_COMPARED_DRAWS, min(_COMPARED_DRAWS, _COMPARED_OUTPUTS // outputs_of_point))
        draws = range(max(0, self.samples - most), self.samples)
        inputs = inputs[: max(1, _COMPARED_OUTPUTS // (len(draws) * outputs_of_point))]
        with _exactly():
            expected = exact.passes(inputs, draws=draws)
        try:
            with torch.inference_mode():
                other = exact.in_arithmetic(self.arithmetic)
            if self.arithmetic.overflows:
                self._check_finite(exact, other, inputs, draws)
            outputs = self._run(other, inputs, draws=draws)
        except RuntimeError as error:
            if is_out_of_memory(error) or is_device_failure(error):
                raise
            raise SamplingError(
                f"the network cannot be computed in {self.arithmetic} ({str(error).splitlines()[0]}); use float32."
            ) from error
        self.deviation = deviation_of_samples(outputs, expected, self._task)
        return other

    def _check_finite(self, exact: PlanExecutor, other: PlanExecutor, inputs: Tensor, draws: range) -> None:
        """Raise SamplingError, naming the layer, where a value of these passes is finite in the exact arithmetic alone:
        also one that a later operation, such as a sigmoid, would make finite again."""
        with _exactly():
            expected = exact.non_finite(inputs, draws)
        with self._rounding(inputs.device):
            found = other.non_finite(inputs, draws)
        if overflowing := [position for position in found if position not in expected]:
            raise SamplingError(
                f"--precision {self.arithmetic}: {other.named(overflowing[0], self._model)} overflows in the first "
                f"examples, where {torch.finfo(torch.float16).max:,.0f} is the largest number; use bfloat16 or float32."
            )


def _alike(plan: Plan, other: Plan) -> bool:
    """Whether two plans run the same operations at the same levels."""
    functions = [[operation.function for operation in each.operations] for each in (plan, other)]
    return functions[0] == functions[1] and (plan.levels, [*plan.folded]) == (other.levels, [*other.folded])


@contextmanager
def _exactly() -> Iterator[None]:
    """Run a plan as it is verified: without gradients, and without TF32."""
    with torch.inference_mode(), float32_as("ieee"):
        yield


def chunks(
    engine: Engine,
    count: int,
    feed: Callable[[slice], Tensor],
    *,
    size: int,
    first: int = 0,
    on_halved: Callable[[str, int], object] = lambda _why, _size: None,
) -> Iterator[Tensor]:
    """The passes of an engine over the points from `first` to `count` that `feed` loads, `size` at a time:
    (T, chunk, …) each.

    Where memory runs out, or the network normalises slices of so many points, the size is halved and reported to
    `on_halved` with the reason; SamplingError where one point is too much.
    """
    start = first
    while start < count:
        try:
            inputs = feed(slice(start, min(count, start + size)))
            if isinstance(engine, Stochastic):
                engine.check_independent(inputs, start)
            outputs = engine.passes(inputs, start)
        except (MemoryError, RuntimeError, OtherCallsError) as error:
            scarce = is_out_of_memory(error)
            if not scarce and (size == 1 or not isinstance(error, OtherCallsError)):
                raise
            if size == 1:
                raise SamplingError(
                    f"memory is exhausted with a single example passing ({first_line(error)}); use a larger machine."
                ) from error
            size = max(1, min(size, count - start) // 2)
            if scarce and isinstance(engine, Shrinking):
                engine.shrink()
            on_halved("memory ran out" if scarce else "the network normalises larger chunks in slices", size)
            continue
        yield outputs
        start += outputs.shape[1]


class Predictor:
    """T stochastic passes over any inputs, planned once: `predict` for calls that follow each other.

    With `omega` the BatchNorm layers it holds use its draws, with `dropout` every dropout is active, with `learned` the
    noise of the network's own layers is drawn. `chunk_size` bounds memory and changes no output beyond rounding. The
    model is left as it was.

    Calling it with inputs (n, *input) gives what `predict` gives. The plan of the network's operations, made in the
    first call for each shape of a point, serves further calls as long as parameters and buffers stay the same; after
    other changes to the network, such as an attribute that its forward reads, make another Predictor.

    Raises SamplingError where none of the three is given, and when called, where ω is of another network, no dropout is
    alive, no layer has noise, there are no inputs, or a point's outputs depend on which points pass with it.
    """

    def __init__(
        self,
        model: nn.Module,
        omega: BatchStatistics | None = None,
        *,
        dropout: Dropout | None = None,
        learned: Learned | None = None,
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise SamplingError(f"chunk_size is {chunk_size}; expected a whole number of at least 1.")
        if omega is None and dropout is None and learned is None:
            raise SamplingError(
                "predict needs omega, dropout or learned, or several; for deterministic outputs, call model(inputs)."
            )
        self._model, self._omega, self._dropout, self._chunk_size = model, omega, dropout, chunk_size
        self._learned = learned
        self._engines: dict[tuple, Stochastic] = {}
        self._weights: Weights | None = None  # that they were made for

    def __call__(self, inputs: Data) -> Tensor:
        inputs = tensor_of(inputs)
        engine = self._engine(inputs)
        weights = chain(self._model.parameters(), self._model.buffers())
        device = next((tensor.device for tensor in weights), inputs.device)
        size = self._chunk_size or default_chunk(inputs.shape[1:], device)
        blocks = chunks(
            engine, len(inputs), lambda rows: fed(self._model, inputs[rows]), size=size, on_halved=self._on_halved
        )
        return torch.cat(list(blocks), dim=1)

    def _engine(self, inputs: Tensor) -> Stochastic:
        weights = Weights(self._model)
        if weights != self._weights:
            self._engines.clear()
            self._weights = weights
        example = fed(self._model, inputs[: checked_rows(inputs)] if len(inputs) else inputs)
        kind = (example.shape[1:], example.dtype)
        if kind not in self._engines or not len(example):
            sites = find_sites(self._model, example, compare_with_training=self._dropout is not None)
            if self._dropout is not None:
                if not sites.live_dropouts:
                    dead = [(site.name, site.reason) for site in sites.dropouts if site.p]
                    cause = f" that can be sampled ({named})" if (named := listed((*sites.hidden, *dead))) else ""
                    raise SamplingError(f"the network has no live dropout{cause}: all T passes would be the same.")
                warn_of_unsampled(self._model, sites.hidden)
            if self._learned is not None and not sites.live_noises:
                named = listed((site.name, site.reason) for site in sites.noises)
                cause = f" that can be sampled ({named})" if named else ""
                raise SamplingError(f"no layer of the network has noise{cause}: all T passes would be the same.")
            engine = Stochastic(self._model, sites, omega=self._omega, dropout=self._dropout, learned=self._learned)
            if self._chunk_size is not None and self._chunk_size < len(example):  # of which none would see the others
                engine.check_independent(example)
            self._engines[kind] = engine
        return self._engines[kind]

    def _on_halved(self, _why: str, size: int) -> None:
        self._chunk_size = size


def predict(
    model: nn.Module,
    inputs: Data,
    omega: BatchStatistics | None = None,
    *,
    dropout: Dropout | None = None,
    learned: Learned | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Raw outputs (T, n, K) of T stochastic passes over `inputs` (n, *input), on the model's device and in its dtype.
    A DataLoader or a Dataset gives its inputs in its order.

    The other arguments, and the errors, are those of `Predictor`, which plans once for several calls.
    """
    return Predictor(model, omega, dropout=dropout, learned=learned, chunk_size=chunk_size)(inputs)
