"""Plans at work: T passes with each operation run as rarely as it may be, and the statistics of mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from bnuq.errors import SamplingError
from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.interception import DropoutCall, aten
from bnuq.sampling.moments import merged, moments
from bnuq.sampling.passes import Statistics
from bnuq.sampling.planning import Level, Plan, multiply_adds, output_channels, peak_entries
from bnuq.sampling.sites import Site
from bnuq.sampling.tape import Operation, Ref, filled

# entries of the largest value, by device: over all the draws that pass together, and in one tile of rows
STACKED = {"cpu": 2**16, "cuda": 2**28, "mps": 2**24}
TILE = {"cpu": 2**19, "cuda": 2**28, "mps": 2**24}
SMALLEST_TILE = 16
LARGE_PRODUCT = 2**21  # multiply-adds from which oneDNN's start-up is worth its while
FOLDED = 2**18  # entries of folded weights that are made in one go, for as many draws as that comes to
BLOCK = 2**25  # entries of the chunk-level values that are kept for the rows in work


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@dataclass(frozen=True)
class _Now:
    """What the steps of one pass need to know: the draws that pass together, the first point, the folded weights."""

    draws: Sequence[int]
    start: int
    folded: Mapping[int, tuple[Tensor, Tensor]]
    measured: tuple[Tensor, Tensor] | None = None  # mean and variance of the batch, at the BatchNorm that runs next


@dataclass(frozen=True)
class Work:
    """How a plan does its passes: multiply-adds of one point that are done once and those done for every draw, layers
    that a BatchNorm was folded into, and, for as many points as it was made for, the draws that pass together, the rows
    of a tile, and the bytes that all of it takes."""

    once: int
    each: int
    folded: int
    stacked: int
    tile: int
    bytes: int


Step = Callable[[list[Any], _Now], None]


class _Program:
    """A plan made ready to run: parameters in the layout and type of the arithmetic, and steps for any number of rows.

    What a sampled BatchNorm does is the subclass's.
    """

    def __init__(self, plan: Plan, *, dtype: torch.dtype | None, device: torch.device) -> None:
        self.plan = plan
        self._dtype, self._device = dtype, device
        self._large_product = LARGE_PRODUCT
        tape = plan.tape
        exact = _kept_exact(plan)
        own = {n: tensor if n in exact else self._converted(tensor) for n, tensor in tape.constants.items()}
        if plan.channels_last:
            for number in _picture_weights(plan) & own.keys():
                own[number] = own[number].contiguous(memory_format=torch.channels_last)
        self._fixed: list[Any] = [own.get(number) for number in range(len(tape.values))]
        self._bound: dict[tuple[Level, int, int], list[Step]] = {}
        for step in self._steps(Level.ONCE, 0, 1):
            step(self._fixed, _Now(range(0), 0, {}))

    def _chunk_level(self, inputs: Tensor, start: int) -> dict[int, Tensor]:
        """What the sample level needs of these rows."""
        inputs = self._converted(inputs)
        if self.plan.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        values = self._fixed.copy()
        values[self.plan.tape.input] = inputs
        for step in self._steps(Level.CHUNK, len(inputs), 1):
            step(values, _Now(range(0), start, {}))
        return {number: values[number] for number in self.plan.boundary}

    def _sample_level(self, tile: Mapping[int, Tensor], rows: int, now: _Now) -> list[Any]:
        """The values after one pass of these rows, or of several draws stacked."""
        values = self._fixed.copy()
        for number, value in tile.items():
            values[number] = value
        for step in self._steps(Level.SAMPLE, rows, len(now.draws)):
            step(values, now)
        return values

    def _steps(self, level: Level, rows: int, draws: int) -> list[Step]:
        key = level, rows, draws
        if key not in self._bound:
            dead: dict[int, list[int]] = {}
            if level is not Level.ONCE:
                for number, i in self.plan.last_reads(level).items():
                    if level is Level.SAMPLE or number not in self.plan.boundary:
                        dead.setdefault(i, []).append(number)
            self._bound[key] = [
                _then_free(self._step(i, level, rows * draws, draws), dead.get(i)) for i in self.plan.at(level)
            ]
        return self._bound[key]

    def _step(self, position: int, level: Level, rows: int, draws: int) -> Step:
        operation = self.plan.operations[position]
        if level is Level.SAMPLE and operation.site is not None:
            step = self._site_step(position, operation, rows, draws)
            if step is not None:
                return step
        arguments, function = filled(operation.arguments, rows), operation.function
        if position in self.plan.in_place:
            function, place = self.plan.in_place[position]
            if place == 1:
                arguments = (arguments[1], arguments[0], *arguments[2:])
        elif self.plan.channels_last and function is aten.view.default:
            function = aten.reshape.default  # what lies channels last cannot always be viewed
        run = self._product(function, operation, rows)
        if function is aten.relu_.default and self._dtype is torch.bfloat16 and self._device.type == "cpu":
            run = _relu_of_bfloat16_
        return _plain_step(function, arguments, operation.result, run)

    def _product(self, function: Any, layer: Operation, rows: int) -> Any:
        """What computes a layer: for large float32 products on a CPU oneDNN, as compiled networks do.

        On processors that are not Intel's it is twice as fast as the library that torch takes otherwise.
        """
        if function is not aten.linear.default or not _HAS_ONEDNN or self._device.type != "cpu":
            return function
        output, weight = (self.plan.tape.values[n] for n in (layer.gives[0], layer.arguments[1].number))
        float32 = output.dtype == weight.dtype == torch.float32 and self._dtype is None
        if not float32 or output.entries_per_row * weight.shape[1] * rows < self._large_product:
            return function
        return lambda x, w, b=None: torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:
        """The step of a stochastic site; None where it is not live."""
        raise NotImplementedError

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)


class Planned(_Program):
    """T passes by a plan. `statistics` hold ω of the sampled BatchNorms, `dropout` what makes dropouts live.

    `dtype` is that of the arithmetic, None for that of the recording; outputs have the network's own.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        samples: int,
        statistics: Statistics,
        dropout: Dropout | None,
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        super().__init__(plan, dtype=dtype, device=device)
        self.samples = samples
        self._statistics = statistics
        self._dropout = dropout
        self._affine = {
            i: self._scale_and_shift(i) for i in plan.at(Level.SAMPLE) if self._is_sampled(plan.operations[i])
        }
        self._widest = max(_entries_at_sample_level(plan), default=1)
        self.tile = _tile_rows(plan, device)
        self._stacked = STACKED.get(device.type, STACKED["cpu"]) if plan.stackable else 0
        kept = sum(plan.tape.values[n].entries_per_row for n in plan.boundary)
        self._block = max(self.tile, BLOCK // max(1, kept))

    def in_arithmetic(self, dtype: torch.dtype) -> Planned:
        """The same passes, computed in another type."""
        return Planned(
            self.plan,
            samples=self.samples,
            statistics=self._statistics,
            dropout=self._dropout,
            dtype=dtype,
            device=self._device,
        )

    def shrink(self) -> None:
        """Take half the memory from now on, as far as tiles and stacks decide it."""
        self.tile, self._stacked = max(1, self.tile // 2), self._stacked // 2
        self._block = max(1, self._block // 2)

    def work(self, points: int) -> Work:
        """What is computed how often, and in what memory, where so many points pass together."""
        arithmetic = multiply_adds(self.plan)
        rows = max(1, min(self.tile, points))
        draws = max(1, min(self.samples, self._stacked // (rows * self._widest)))
        live = peak_entries(self.plan, Level.SAMPLE) * rows * draws
        kept = sum(self.plan.tape.values[n].entries_per_row for n in self.plan.boundary)
        kept *= min(self._block, points) * (draws if draws > 1 else 1)
        return Work(
            once=arithmetic[Level.CHUNK],
            each=arithmetic[Level.SAMPLE],
            folded=len(self.plan.folded),
            stacked=draws,
            tile=rows,
            bytes=(live + kept) * (self._dtype or _output_dtype(self.plan)).itemsize,
        )

    def trial(self, inputs: Tensor, draws: Sequence[int], *, tile: int, together: int) -> Tensor:
        """Some passes with every replacement of an operation at work, however small the work is."""
        self._large_product = 0
        outputs = self.some_passes(inputs, 0, draws, tile=tile, together=together)
        self._large_product = LARGE_PRODUCT
        self._bound.clear()
        return outputs

    @property
    def stacks(self) -> bool:
        """Whether there are passes in which draws are stacked."""
        return self.samples > 1 and self._stacked >= 2 * self._widest

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        """Raw outputs (T, n, …), of all draws or of these; call it in inference mode."""
        numbers = range(self.samples) if draws is None else draws
        blocks = _alike(inputs, self._block)
        starts = accumulate((len(block) for block in blocks), initial=start)
        outputs = [self.some_passes(block, first, numbers) for block, first in zip(blocks, starts, strict=False)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def some_passes(
        self, inputs: Tensor, start: int, draws: Sequence[int], *, tile: int | None = None, together: int | None = None
    ) -> Tensor:
        """Those of some draws, in tiles of no more rows than that and so many draws at once: draws outside, tiles
        inside, so that a folding serves all the rows."""
        tiles = _alike(inputs, tile or self.tile)
        counts = [len(one) for one in tiles]
        firsts = list(accumulate(counts, initial=0))[:-1]
        together = together or max(1, min(len(draws), self._stacked // (counts[0] * self._widest)))
        chunks = [self._chunk_level(one, start + first) for one, first in zip(tiles, firsts, strict=True)]
        outputs: Tensor | None = None
        stacked: list[dict[int, Tensor]] = []
        foldings = self._foldings(draws if together == 1 else draws[len(draws) - len(draws) % together :])
        for done in range(0, len(draws), together):
            group = draws[done : done + together]
            folded = next(foldings) if len(group) == 1 else {}
            if done == 0 or len(group) < together:
                stacked = [self._repeated(chunk, len(group)) for chunk in chunks]
            for first, count, chunk in zip(firsts, counts, stacked, strict=True):
                values = self._sample_level(chunk, count, _Now(group, start + first, folded))
                output = values[self.plan.tape.output]
                output = output.unflatten(0, (len(group), count)) if len(group) > 1 else output[None]
                if outputs is None:
                    shape = len(draws), len(inputs), *output.shape[2:]
                    outputs = torch.empty(shape, dtype=_output_dtype(self.plan), device=output.device)
                outputs[done : done + len(group), first : first + count] = output
        assert outputs is not None
        return outputs

    def _repeated(self, chunk: dict[int, Tensor], draws: int) -> dict[int, Tensor]:
        if draws == 1:
            return chunk
        axes = {number: self.plan.tape.values[number].axis for number in chunk}
        return {n: v if (axis := axes[n]) is None else torch.cat([v] * draws, dim=axis) for n, v in chunk.items()}

    def _is_sampled(self, operation: Operation) -> bool:
        site = operation.site
        return site is not None and site.kind == "batchnorm" and (site.address, site.occurrence) in self._statistics

    def _scale_and_shift(self, position: int) -> tuple[Tensor, Tensor]:
        """The affine (T, C) each that a sampled BatchNorm is under every draw."""
        operation = self.plan.operations[position]
        site = operation.site
        assert site is not None
        mean, var = (one.cpu().double() for one in self._statistics[site.address, site.occurrence])
        weight, bias = (
            None if ref is None else self._fixed[ref.number].cpu().double() for ref in operation.arguments[1:3]
        )
        scale = (var + site.eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        own = self.plan.tape.values[operation.gives[0]].dtype
        return scale.to(self._device, own), shift.to(self._device, own)

    def _foldings(self, draws: Sequence[int]) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
        """Weights and biases of the layers that took up a BatchNorm, draw by draw; those of small layers in one go."""
        entries = sum(self._fixed[layer.arguments[1].number].numel() for layer in self.plan.folded.values())
        step = max(1, FOLDED // max(1, entries))
        for first in range(0, len(draws), step):
            some = list(draws[first : first + step])
            made = {i: self._folded_layer(i, layer, some) for i, layer in self.plan.folded.items()}
            for k in range(len(some)):
                yield {i: (weights[k], biases[k]) for i, (weights, biases) in made.items()}

    def _folded_layer(
        self, position: int, layer: Operation, draws: list[int]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        scale, shift = (one[draws] for one in self._affine[position])
        weight = self._fixed[layer.arguments[1].number]
        bias = None if layer.arguments[2] is None else self._fixed[layer.arguments[2].number]
        sizes = [len(draws)] + [1] * weight.ndim
        sizes[1 + (output_channels(layer) or 0)] = -1
        weights = [weight * scale.view(sizes)[0]] if len(draws) == 1 else (weight * scale.view(sizes)).unbind()
        biases = self._converted(shift if bias is None else shift + scale * bias).unbind()
        return [self._converted(one) for one in weights], biases

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:
        if self._is_sampled(operation):
            layer = self.plan.folded.get(position)
            if layer is None:
                return self._affine_step(position, operation, draws)
            arguments = filled(layer.arguments, rows)
            if draws == 1:
                function = self._product(layer.function, layer, rows)
                return self._folded_step(position, operation, arguments, function)
            return self._layer_and_affine(position, operation, arguments, layer, draws)
        if operation.site is not None and operation.site.kind == "dropout" and operation.site.stochastic:
            return self._dropout_step(operation)
        return None

    def _folded_step(self, position: int, operation: Operation, arguments: tuple, function: Any) -> Step:
        source, rest, result = arguments[0].number, arguments[3:], operation.gives[0]

        def compute(values: list[Any], now: _Now) -> None:
            values[result] = function(values[source], *now.folded[position], *rest)

        return compute

    def _layer_and_affine(
        self, position: int, operation: Operation, arguments: tuple, layer: Operation, draws: int
    ) -> Step:
        own = [one if one is None else self._converted(self._fixed[one.number]) for one in arguments[1:3]]
        run_layer = _plain_step(layer.function, (arguments[0], *own, *arguments[3:]), layer.result)
        run_affine = self._affine_step(position, operation, draws)
        between = layer.gives[0]

        def compute(values: list[Any], now: _Now) -> None:
            run_layer(values, now)
            run_affine(values, now)
            values[between] = None

        return compute

    def _affine_step(self, position: int, operation: Operation, draws: int) -> Step:
        source, result, site = operation.arguments[0].number, operation.gives[0], operation.site
        assert site is not None
        scale, shift = (self._converted(one) for one in self._affine[position])
        if draws == 1 and len(self.plan.tape.values[source].shape) == 2:
            scales, shifts = scale.unbind(), shift.unbind()

            def compute_table(values: list[Any], now: _Now) -> None:
                t = now.draws[0]
                values[result] = torch.addcmul(shifts[t], values[source], scales[t])

            return compute_table
        if draws == 1:
            mean, var = self._statistics[site.address, site.occurrence]
            weight, bias = (None if ref is None else self._fixed[ref.number] for ref in operation.arguments[1:3])

            def compute(values: list[Any], now: _Now) -> None:
                t = now.draws[0]
                values[result] = torch.batch_norm(
                    values[source], weight, bias, mean[t], var[t], False, 0.0, site.eps, torch.backends.cudnn.enabled
                )

            return compute
        spread = (draws, 1, -1, *[1] * (len(self.plan.tape.values[source].shape) - 2))

        def compute_stacked(values: list[Any], now: _Now) -> None:
            # a range is taken as a slice, which copies nothing
            chosen = slice(now.draws.start, now.draws.stop) if isinstance(now.draws, range) else list(now.draws)
            x = values[source].unflatten(0, (draws, -1))
            values[result] = torch.addcmul(shift[chosen].view(spread), x, scale[chosen].view(spread)).flatten(0, 1)

        return compute_stacked

    def _dropout_step(self, operation: Operation) -> Step | None:
        source, result, site = operation.arguments[0].number, operation.gives[0], operation.site
        dropout = self._dropout
        if dropout is None:
            return None
        assert site is not None
        in_place = bool(operation.writes)

        def compute(values: list[Any], now: _Now) -> None:
            call = DropoutCall(values[source], site.p, site.variety, in_place, training=False)
            values[result] = dropped(call, site, dropout, now.draws, now.start)

        return compute


class Measured(_Program):
    """The statistics of mini-batches: every BatchNorm at `sites` normalises by those of the batch that passes.

    A batch passes in tiles that stay in the cache, which wait for one another at every BatchNorm.
    """

    def __init__(self, plan: Plan, sites: Sequence[Site], *, device: torch.device) -> None:
        super().__init__(plan, dtype=None, device=device)
        self._wanted = {(site.address, site.occurrence) for site in sites}
        self._tile = _tile_rows(plan, device)

    def statistics(
        self, batch: Tensor, *, tile: int | None = None
    ) -> dict[tuple[int, int], tuple[Tensor, Tensor, int]]:
        """Mean, biased variance and values a channel of every sampled BatchNorm, by address and occurrence."""
        parts_of_batch = _alike(batch, tile or self._tile)
        tiles = [self._fixed.copy() for _ in parts_of_batch]
        for rows, values in zip(parts_of_batch, tiles, strict=True):
            for number, value in self._chunk_level(rows, 0).items():
                values[number] = value
        programs = [self._steps(Level.SAMPLE, len(rows), 1) for rows in parts_of_batch]
        found = {}
        begin = 0
        now = _Now(range(1), 0, {})
        for end, i in enumerate((*self.plan.at(Level.SAMPLE), None)):
            operation = None if i is None else self.plan.operations[i]
            if operation is not None and not self._is_measured(operation):
                continue
            parts = []
            for program, values in zip(programs, tiles, strict=True):
                for step in program[begin:end]:
                    step(values, now)
                if operation is not None:
                    x = values[operation.arguments[0].number]
                    parts.append((x.numel() // x.shape[1], *moments(x)))
            if operation is not None:
                assert operation.site is not None
                count = sum(part[0] for part in parts)
                check_count(count, operation.site, len(batch))
                mean, var = merged(parts)
                found[operation.site.address, operation.site.occurrence] = mean, var, count
                now = _Now(range(1), 0, {}, (mean, var))
                begin = end
        return found

    @property
    def bytes_per_point(self) -> int:
        """About what one point of a mini-batch takes, all of which pass together."""
        values, plan = self.plan.tape.values, self.plan
        entries = peak_entries(plan, Level.SAMPLE) + sum(values[n].entries_per_row for n in plan.boundary)
        return entries * values[plan.tape.input].dtype.itemsize

    def _is_measured(self, operation: Operation) -> bool:
        site = operation.site
        return site is not None and site.kind == "batchnorm" and (site.address, site.occurrence) in self._wanted

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:  # noqa: ARG002
        """Normalises by what was just measured."""
        if not self._is_measured(operation):
            return None
        source, result, site = operation.arguments[0].number, operation.gives[0], operation.site
        assert site is not None
        weight, bias = (None if ref is None else self._fixed[ref.number] for ref in operation.arguments[1:3])

        def compute(values: list[Any], now: _Now) -> None:
            assert now.measured is not None
            mean, var = now.measured
            values[result] = torch.batch_norm(values[source], weight, bias, mean, var, False, 0.0, site.eps, False)

        return compute


def check_count(count: int, site: Site, points: int) -> None:
    """Raise SamplingError unless there are values enough for a variance."""
    if count < 2:
        raise SamplingError(
            f"layer {site.name} sees {count} value per channel in a mini-batch of {points}; a variance needs at least "
            "2: raise the batch size."
        )


def _tile_rows(plan: Plan, device: torch.device) -> int:
    """How many rows pass together: few enough that the largest value stays in the cache, enough for the weights that
    are read with every tile to be a small part of what is read."""
    given = _entries_at_sample_level(plan)
    weights = sum(tensor.numel() for tensor in plan.tape.constants.values())
    largest = TILE.get(device.type, TILE["cpu"]) // max(given, default=1)
    return max(SMALLEST_TILE, largest, 2 * weights // max(1, sum(given)))


def _entries_at_sample_level(plan: Plan) -> list[int]:
    values = plan.tape.values
    return [values[n].entries_per_row for i in plan.at(Level.SAMPLE) for n in plan.operations[i].gives]


def _alike(rows: Tensor, largest: int) -> tuple[Tensor, ...]:
    """The rows in parts of no more than that, of which none is much smaller than the others: a single row is no part,
    for networks that drop axes of length 1."""
    return rows.tensor_split(max(1, -(-len(rows) // largest)))


def _relu_of_bfloat16_(x: Tensor) -> Tensor:
    """ReLU in place, by the sign bit: what is negative in bfloat16 is so as a 16-bit integer; six times torch's speed.

    It would hide a negative NaN; but the same points also pass in float32, where outputs must be finite.
    """
    if x.dtype is not torch.bfloat16:
        return x.relu_()
    x.view(torch.int16).clamp_min_(0)
    return x


def _then_free(compute: Step, dead: Sequence[int] | None) -> Step:
    """The step, after which these values are not needed any more."""
    if not dead:
        return compute

    def step(values: list[Any], now: _Now) -> None:
        compute(values, now)
        for number in dead:
            values[number] = None

    return step


def _plain_step(function: Any, arguments: tuple, result: Any, run: Any = None) -> Step:
    """A step that runs an operation as the tape has it, or something in its place."""
    run = run or function
    schema = function._schema.arguments
    count = sum(not one.kwarg_only for one in schema)
    named = {one.name: value for one, value in zip(schema[count:], arguments[count:], strict=True) if value is not None}
    template = list(arguments[:count])
    slots = [(place, value.number) for place, value in enumerate(template) if isinstance(value, Ref)]
    nested = [
        (place, value) for place, value in enumerate(template) if isinstance(value, (tuple, list)) and _has_refs(value)
    ]
    deep = any(_has_refs(value) for value in named.values())
    number = result.number if isinstance(result, Ref) else None

    def compute(values: list[Any], now: _Now) -> None:  # noqa: ARG001 - every step is called so
        given = template.copy()
        for place, one in slots:
            given[place] = values[one]
        for place, tree in nested:
            given[place] = _resolved(tree, values)
        made = run(*given, **(_resolved_map(named, values) if deep else named))
        if number is not None:
            values[number] = made
        else:
            _assign(result, made, values)

    return compute


def _has_refs(tree: Any) -> bool:
    return isinstance(tree, Ref) or (isinstance(tree, (tuple, list)) and any(map(_has_refs, tree)))


def _resolved(tree: Any, values: Sequence[Any]) -> Any:
    if isinstance(tree, Ref):
        return values[tree.number]
    return [_resolved(one, values) for one in tree] if isinstance(tree, (tuple, list)) else tree


def _resolved_map(named: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    return {name: _resolved(value, values) for name, value in named.items()}


def _assign(result: Any, made: Any, values: list[Any]) -> None:
    if isinstance(result, Ref):
        values[result.number] = made
    elif isinstance(result, tuple):
        for one, value in zip(result, made, strict=True):
            _assign(one, value, values)


def _kept_exact(plan: Plan) -> set[int]:
    """Parameters that only BatchNorms and folded layers read: they stay in the network's own type."""
    exact, other = set(), set()
    for position, operation in enumerate(plan.operations):
        numbers = plan.reads(position)
        of_batchnorm = operation.function.overloadpacket is aten.batch_norm
        exact |= set(numbers) if of_batchnorm else set()
        other |= set() if of_batchnorm else set(numbers)
    return exact - other


def _picture_weights(plan: Plan) -> set[int]:
    """The weights of two-dimensional convolutions."""
    layers = [*plan.operations, *plan.folded.values()]
    weights = {
        operation.arguments[1].number
        for operation in layers
        if "conv" in operation.function.overloadpacket.__name__ and isinstance(operation.arguments[1], Ref)
    }
    return {number for number in weights if len(plan.tape.values[number].shape) == 4}


def _output_dtype(plan: Plan) -> torch.dtype:
    return plan.tape.values[plan.tape.output].dtype
