"""Runs a plan: each operation as rarely as possible, folded BatchNorms, stacked draws, tiles that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.errors import first_line, has_no_kernel
from bnuq.frozen import frozen
from bnuq.sampling import kernels
from bnuq.sampling.dropout import Dropout, bytes_of_mask
from bnuq.sampling.interception import aten
from bnuq.sampling.noise import Noise
from bnuq.sampling.plain_loop import Statistics
from bnuq.sampling.program import (
    LARGE_PRODUCT_SIZE,
    Program,
    Step,
    StepContext,
    affine_step,
    batchnorm_step,
    dropout_step,
    entries_at,
    folded_step,
    noise_step,
    plain_step,
    positions_of_convolutions,
    run_steps,
    split_evenly,
    stacked_affine_step,
)
from bnuq.sampling.schedule import Activation, Level, Plan, is_layer, multiply_adds, output_channels, peak_entries
from bnuq.sampling.sites import BatchNormSite, DropoutSite, NoiseSite
from bnuq.sampling.trace import Operation, filled, uneven_parts

FOLDED_ENTRIES = 2**18  # entries of folded weights that are computed at once, for as many draws as fit
BLOCK_ENTRIES = 2**25  # entries of the chunk-level values that are held for one block of rows
_COPIED_ENTRIES = 2**16  # entries that are brought into another layout at once
# Positions (rows × height × width, the mean over the convolutions) from which a single draw fills a GPU: 256 tiles of
# 128, two for each of an H100's 132 multiprocessors. With fewer, kernels end before the host has started the next, so
# draws are stacked, although only a single draw has its BatchNorms folded and its ReLUs computed with the convolutions.
# On an H100, stacking halved the time of ResNet-18 at 64 × 64 (341 points: 26,000 positions); ResNet-50 at 224 × 224
# has as many as this from 35 points on. The limit by the entries of a value bounds memory alone.
FILLING_POSITIONS = 2**15


@frozen
class PlanCost:
    """The cost of a plan: multiply-adds per point that are done `once` and those `per_draw`, the number of layers
    with a folded BatchNorm, and, for a given number of points, the stacked draws, the rows of a tile and the bytes."""

    once: int
    per_draw: int
    folded: int
    stacked: int
    tile: int
    bytes: int


class PlanExecutor(Program):
    """T samples by a plan. `statistics` hold ω of the sampled BatchNorms, `dropout` makes dropouts active, `noise`
    draws that of the network's layers.

    An exact `arithmetic` is that of the recording; outputs have the network's dtype.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        samples: int,
        statistics: Statistics,
        dropout: Dropout | None,
        noise: Noise | None = None,
        arithmetic: Arithmetic = FLOAT32,
        device: torch.device,
    ) -> None:
        super().__init__(plan, arithmetic=arithmetic, device=device)
        self.samples = samples
        self._statistics = statistics
        self.dropout, self.noise = dropout, noise
        self._folded = plan.folded if arithmetic.folds else {}
        self.affine = {
            i: self._scale_and_shift(i) for i in plan.at(Level.SAMPLE) if self._is_sampled(plan.operations[i])
        }
        self._widest = max(entries_at(plan, Level.SAMPLE), default=1)
        self._positions = positions_of_convolutions(plan)
        self._stacked = devices.traits(device).stacked_entries if plan.stackable else 0
        self._fuses = devices.fuses_activations(device) and self._itemsize <= 4
        self.why_unfused = ""
        """Why activations are no longer computed together with their convolution."""
        self._boundary_entries = sum(plan.trace.values[n].entries_per_row for n in plan.boundary)
        self._block = max(self.tile, BLOCK_ENTRIES // max(1, self._boundary_entries))
        self._without: PlanExecutor | None = None  # that leaves dropout out, while both are computed

    def in_arithmetic(self, arithmetic: Arithmetic) -> PlanExecutor:
        """The same samples, computed in another arithmetic."""
        executor = PlanExecutor(
            self.plan,
            samples=self.samples,
            statistics=self._statistics,
            dropout=self.dropout,
            noise=self.noise,
            arithmetic=arithmetic,
            device=self._device,
        )
        executor.tile, executor._stacked, executor._block = self.tile, self._stacked, self._block
        return executor

    def shrink(self) -> None:
        """Halve the tiles, the stacks of draws and the blocks, and so about half of the memory."""
        self.tile, self._stacked = max(1, self.tile // 2), self._stacked // 2
        self._block = max(1, self._block // 2)

    def fit(self, free: int) -> None:
        """Limit stacks of draws and tiles so that they take at most a quarter of the `free` bytes."""
        budget, itemsize = free // 4, self._itemsize
        pass_bytes = (peak_entries(self.plan, Level.SAMPLE) + self._boundary_entries) * itemsize + self._mask_bytes(1)
        row_bytes = max(pass_bytes, peak_entries(self.plan, Level.CHUNK) * itemsize)
        self.tile = max(1, min(self.tile, budget // max(1, row_bytes)))
        self._stacked = min(self._stacked, budget // max(1, pass_bytes) * self._widest)
        self._block = max(self.tile, min(self._block, budget // max(1, pass_bytes)))

    def work(self, points: int) -> PlanCost:
        """The arithmetic and the memory where `points` points are evaluated together."""
        rows = max(1, min(self.tile, points))
        draws = self._together(rows, self.samples)
        live = max(peak_entries(self.plan, Level.SAMPLE) * draws, peak_entries(self.plan, Level.CHUNK)) * rows
        boundary = self._boundary_entries * min(self._block, points) * draws
        return PlanCost(
            once=multiply_adds(self.plan, self.plan.at(Level.CHUNK)),
            per_draw=multiply_adds(self.plan, self.plan.at(Level.SAMPLE)),
            folded=len(self._folded),
            stacked=draws,
            tile=rows,
            bytes=(live + boundary) * self._itemsize + self._mask_bytes(rows * draws),
        )

    @property
    def _itemsize(self) -> int:
        return (self._dtype or _output_dtype(self.plan)).itemsize

    def _mask_bytes(self, rows: int) -> int:
        """The bytes of the largest mask of `rows` rows."""
        entries = 0
        for i in self.plan.at(Level.SAMPLE):
            operation = self.plan.operations[i]
            if self.dropout is not None and isinstance(operation.site, DropoutSite) and operation.site.stochastic:
                value = self.plan.trace.values[operation.arguments[0].number]
                masks_channels = operation.site.variety.startswith("feature")
                entries = max(entries, value.entries_per_row // (prod(value.shape[2:]) if masks_channels else 1))
        return bytes_of_mask(entries * rows, self._itemsize)

    def trial(self, inputs: Tensor, draws: Sequence[int], *, together: int) -> Tensor:
        """Samples in uneven tiles, with every replacement of an operation enabled, however small the work is, to verify
        them."""
        self._large_product = 0
        outputs = self.some_passes(inputs, 0, draws, tile=uneven_parts(len(inputs)), together=together)
        self._large_product = LARGE_PRODUCT_SIZE
        self._bound.clear()
        return outputs

    def _together(self, rows: int, draws: int) -> int:
        """How many of the draws are stacked, where tiles have so many rows: as many as memory allows, except where one
        draw is enough work and stacking would cost the fused kernels."""
        if self._fuses and self.plan.activated and rows * self._positions >= FILLING_POSITIONS:
            return 1
        return max(1, min(draws, self._stacked // (rows * self._widest)))

    def non_finite(self, inputs: Tensor, draws: Sequence[int]) -> list[int]:
        """The positions of the operations that compute a value that is not finite, in these passes."""
        self._finite = {}
        self._bound.clear()
        try:
            self.some_passes(inputs, 0, draws)
            found = devices.fetch({str(position): finite for position, finite in self._finite.items()})
        finally:
            self._finite = None
            self._bound.clear()
        return sorted(int(position) for position, finite in found.items() if not finite)

    def named(self, position: int, model: nn.Module) -> str:
        """The layer of the model that the operation at this position is of, or that it comes after."""
        names = {(parameter.data_ptr(), parameter.shape): name for name, parameter in model.named_parameters()}
        for i in range(position, -1, -1):
            layer = self.plan.folded.get(i, self.plan.operations[i])
            weight = self.plan.trace.constants.get(layer.arguments[1].number) if is_layer(layer) else None
            name = None if weight is None else names.get((weight.data_ptr(), weight.shape))
            name = layer.site.name if name is None and layer.site is not None else name
            if name is not None:
                what = self.plan.operations[position].function.overloadpacket.__name__
                return name.removesuffix(".weight") if i == position else f"{what} after {name.removesuffix('.weight')}"
        return self.plan.operations[position].function.overloadpacket.__name__

    @property
    def stacks(self) -> bool:
        """Whether draws are stacked for any number of points."""
        return self.samples > 1 and self._stacked >= 2 * self._widest

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        """Raw outputs (T, n, …) of `draws`, or of all; call it in inference mode."""
        numbers = range(self.samples) if draws is None else draws
        blocks = split_evenly(inputs, self._block)
        starts = accumulate((len(block) for block in blocks), initial=start)
        outputs = [self.some_passes(block, first, numbers) for block, first in zip(blocks, starts, strict=False)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    @cached_property
    def _until_dropout(self) -> tuple[int, ...]:
        """The positions of what a draw computes before its first dropout."""
        positions = self.plan.at(Level.SAMPLE)
        sites = [self.plan.operations[i].site for i in positions]
        live = (k for k, site in enumerate(sites) if isinstance(site, DropoutSite) and site.stochastic)
        return positions[: next(live, 0)]

    def shares(self, rows: int) -> bool:
        """Whether most of a draw comes before its first dropout, and draws of so many rows are not stacked."""
        most = 0.9 * multiply_adds(self.plan, self.plan.at(Level.SAMPLE))
        return (
            self._together(min(rows, self.tile), self.samples) == 1
            and multiply_adds(self.plan, self._until_dropout) >= most
        )

    def with_and_without(self, inputs: Tensor, start: int) -> Tensor:
        """Raw outputs (2T, n, …) of all draws, with dropout and without it, where `shares` is true of so many rows."""
        self._without = copy(self)
        self._without.dropout, self._without._bound = None, {}
        try:
            return self.passes(inputs, start)
        finally:
            self._without = None

    def tile_sizes(self, points: int) -> set[int]:
        """The sizes of the tiles that so many points are cut into."""
        blocks = split_evenly(torch.empty(points, device="meta"), self._block)
        return {len(tile) for block in blocks for tile in split_evenly(block, self.tile)}

    def some_passes(
        self,
        inputs: Tensor,
        start: int,
        draws: Sequence[int],
        *,
        tile: int | tuple[int, ...] | None = None,
        together: int | None = None,
    ) -> Tensor:
        """Raw outputs of `draws`, in tiles of at most `tile` rows, or of these sizes, and `together` draws at once."""
        try:
            return self._some_passes(inputs, start, draws, tile, together)
        except RuntimeError as error:
            if not self._fuses or not has_no_kernel(error):
                raise
            self._fuses, self.why_unfused = False, first_line(error)
            self._bound.clear()
        return self._some_passes(inputs, start, draws, tile, together)

    def _some_passes(
        self, inputs: Tensor, start: int, draws: Sequence[int], tile: int | tuple[int, ...] | None, together: int | None
    ) -> Tensor:
        # Draws are the outer loop and tiles the inner one, so that folded weights serve all the rows.
        tiles = split_evenly(inputs, tile or self.tile)
        counts = [len(tile_rows) for tile_rows in tiles]
        firsts = list(accumulate(counts, initial=0))[:-1]
        together = together or self._together(counts[0], len(draws))
        chunks = [self._chunk_level(tile_rows, start + first) for tile_rows, first in zip(tiles, firsts, strict=True)]
        outputs: Tensor | None = None
        stacked: list[dict[int, Tensor]] = []
        foldings = self._foldings(draws if together == 1 else draws[len(draws) - len(draws) % together :])
        for done in range(0, len(draws), together):
            group = draws[done : done + together]
            folded = next(foldings) if len(group) == 1 else {}
            index = self._index(group) if len(group) > 1 else None
            if done == 0 or len(group) < together:
                stacked = [self._repeated(chunk, len(group)) for chunk in chunks]
            for first, count, chunk in zip(firsts, counts, stacked, strict=True):
                context = StepContext(group, start + first, folded, index=index)
                for version, output in enumerate(self._outputs(chunk, count, context)):
                    output = output.unflatten(0, (len(group), count)) if len(group) > 1 else output[None]
                    if outputs is None:
                        shape = 1 if self._without is None else 2, len(draws), len(inputs), *output.shape[2:]
                        outputs = torch.empty(shape, dtype=_output_dtype(self.plan), device=output.device)
                    _put(outputs[version, done : done + len(group), first : first + count], output)
        assert outputs is not None
        return outputs.flatten(0, 1)

    def _outputs(self, tile: Mapping[int, Tensor], rows: int, context: StepContext) -> Iterator[Tensor]:
        """The output of one pass of these rows, or of several stacked draws; then also that without dropout, which goes
        on from copies of the values that the draw has at its first dropout."""
        values, copies, first, result = self._values(tile), [], 0, self.plan.trace.output
        steps = self._steps(Level.SAMPLE, rows, len(context.draws))
        if self._without is not None:
            first = len(self._until_dropout)
            run_steps(steps[:first], values, context)
            made = {number for i in self._until_dropout for number in self.plan.operations[i].outputs}
            copies = [
                value.clone() if number in made and isinstance(value, Tensor) else value
                for number, value in enumerate(values)
            ]
        run_steps(steps[first:], values, context)
        yield values[result]
        if self._without is not None:
            run_steps(self._without._steps(Level.SAMPLE, rows, len(context.draws))[first:], copies, context)
            yield copies[result]

    def _repeated(self, chunk: dict[int, Tensor], draws: int) -> dict[int, Tensor]:
        if draws == 1:
            return chunk
        axes = {number: self.plan.trace.values[number].axis for number in chunk}
        return {n: v if (axis := axes[n]) is None else torch.cat([v] * draws, dim=axis) for n, v in chunk.items()}

    def _is_sampled(self, operation: Operation) -> bool:
        site = operation.site
        return isinstance(site, BatchNormSite) and site.key in self._statistics

    def _scale_and_shift(self, position: int) -> tuple[Tensor, Tensor]:
        """Scale and shift, (T, C) each, of a sampled BatchNorm under every draw."""
        operation = self.plan.operations[position]
        site = operation.site
        assert isinstance(site, BatchNormSite)
        mean, var = (statistic.double() for statistic in self._statistics[site.key])
        weight, bias = (None if ref is None else self.fixed[ref.number].double() for ref in operation.arguments[1:3])
        scale = (var + site.eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        dtype = self.plan.trace.values[operation.outputs[0]].dtype
        return scale.to(self._device, dtype), shift.to(self._device, dtype)

    def _foldings(self, draws: Sequence[int]) -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
        """Weights and biases of the layers with a folded BatchNorm, draw by draw; small layers for several draws at
        once."""
        entries = sum(self.fixed[layer.arguments[1].number].numel() for layer in self._folded.values())
        step = max(1, FOLDED_ENTRIES // max(1, entries))
        for first in range(0, len(draws), step):
            block = draws[first : first + step]
            index = self._index(block)
            folded_layers = {i: self._folded_layer(i, layer, index) for i, layer in self._folded.items()}
            for k in range(len(block)):
                yield {i: (weights[k], biases[k]) for i, (weights, biases) in folded_layers.items()}

    def _index(self, draws: Sequence[int]) -> slice | Tensor:
        """The index that selects these draws from a table, made once for all layers; a slice copies nothing."""
        if isinstance(draws, range):
            return slice(draws.start, draws.stop)
        return torch.tensor(draws).to(self._device)

    def _folded_layer(
        self, position: int, layer: Operation, index: slice | Tensor
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        scale, shift = (table[index] for table in self.affine[position])
        weight = self.fixed[layer.arguments[1].number]
        bias = None if layer.arguments[2] is None else self.fixed[layer.arguments[2].number]
        sizes = [len(scale)] + [1] * weight.ndim
        sizes[1 + (output_channels(layer) or 0)] = -1
        # in a narrower type the products are rounded once
        if len(scale) == 1:
            weights: Sequence[Tensor] = [self._converted(weight * scale.view(sizes)[0])]
        else:
            weights = self._converted(weight * scale.view(sizes)).unbind()
        return weights, self._converted(shift if bias is None else shift + scale * bias).unbind()

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:
        if self._is_sampled(operation):
            layer = self.plan.folded.get(position)
            if layer is None:
                return self._affine_step(position, operation, draws)
            arguments, function = filled(layer.arguments, rows), self._product(layer.function, layer, rows)
            if draws == 1 and position in self._folded:
                return folded_step(position, operation, arguments, function)
            return self._layer_and_affine(position, operation, arguments, layer, function, draws)
        if isinstance(operation.site, DropoutSite) and operation.site.stochastic:
            return dropout_step(operation, self.dropout)
        if isinstance(operation.site, NoiseSite):
            assert self.noise is not None
            return noise_step(operation, self.noise)
        return None

    def _activated_steps(self, level: Level, draws: int) -> dict[int, Step]:
        if level is not Level.SAMPLE or devices.is_host(self._device):
            return {}
        steps = {}
        for i, activation in self.plan.activated.items():
            if i in self.plan.folded and (draws > 1 or i not in self._folded):
                steps[i] = self._layer_and_activation(i, activation, draws)
            elif self._fuses:
                steps[i] = self._activated_step(i, activation)
        return steps

    def _layer_and_activation(self, position: int, activation: Activation, draws: int) -> Step:
        """A layer; and then the BatchNorm, the addition and the ReLU after it in one kernel where there is one."""
        layer, (scale, shift) = self.plan.folded[position], self.affine[position]
        parameters = [ref if ref is None else self._converted(self.fixed[ref.number]) for ref in layer.arguments[1:3]]
        run_layer = plain_step(layer.function, (layer.arguments[0], *parameters, *layer.arguments[3:]), layer.result)
        between, other, result = layer.outputs[0], activation.other, activation.result

        def compute(values: list[Any], context: StepContext) -> None:
            run_layer(values, context)
            chosen = context.index if draws > 1 else slice(context.draws[0], context.draws[0] + 1)
            added = None if other is None else values[other]
            values[result] = kernels.activated(values[between], scale[chosen], shift[chosen], added)
            values[between] = None

        return compute

    def _activated_step(self, position: int, activation: Activation) -> Step:
        """A convolution, the addition after it and its ReLU in one kernel, which reads and writes memory once."""
        layer = self._folded.get(position, self.plan.operations[position])
        source, stride, padding, dilation = layer.arguments[0].number, *layer.arguments[3:6]
        fixed = [None if ref is None else self._converted(self.fixed[ref.number]) for ref in layer.arguments[1:3]]
        is_folded, other, result = position in self._folded, activation.other, activation.result

        def compute(values: list[Any], context: StepContext) -> None:
            x = values[source]
            weight, bias = context.folded[position] if is_folded else fixed
            if other is None:
                output = aten.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
            else:
                added = values[other]
                output = aten.cudnn_convolution_add_relu(x, weight, added, 1, bias, stride, padding, dilation, 1)
            values[result] = output

        return compute

    def _layer_and_affine(
        self, position: int, operation: Operation, arguments: tuple, layer: Operation, function: Any, draws: int
    ) -> Step:
        parameters = [ref if ref is None else self._converted(self.fixed[ref.number]) for ref in arguments[1:3]]
        run_layer = plain_step(layer.function, (arguments[0], *parameters, *arguments[3:]), layer.result, function)
        run_affine = self._affine_step(position, operation, draws)
        between = layer.outputs[0]

        def compute(values: list[Any], context: StepContext) -> None:
            run_layer(values, context)
            run_affine(values, context)
            values[between] = None

        return compute

    def _affine_step(self, position: int, operation: Operation, draws: int) -> Step:
        source, result, site = operation.arguments[0].number, operation.outputs[0], operation.site
        assert isinstance(site, BatchNormSite)
        scale, shift = self.affine[position]
        axes = len(self.plan.trace.values[source].shape)
        if draws > 1:
            return stacked_affine_step(source, result, scale, shift, (draws, 1, -1, *[1] * (axes - 2)))
        if axes == 2:
            return affine_step(source, result, scale, shift)
        parameters = [None if ref is None else self.fixed[ref.number] for ref in operation.arguments[1:3]]
        return batchnorm_step(source, result, site.eps, parameters, self._statistics[site.key])


def _put(room: Tensor, outputs: Tensor) -> None:
    """Copy outputs (t, n, …) into their room. On a CPU those of images, which lie channels last, in pieces that stay in
    the cache: in half the time."""
    if outputs.is_contiguous() or outputs.ndim != 5 or not devices.is_host(outputs.device):
        room.copy_(outputs)
        return
    step = max(1, _COPIED_ENTRIES // outputs.shape[2])
    for of_draw, images in zip(room, outputs, strict=True):
        for to, image in zip(of_draw, images, strict=True):  # `to` is contiguous, and so flattened in place
            for piece, pixels in zip(to.flatten(1).split(step, 1), image.flatten(1).split(step, 1), strict=True):
                piece.copy_(pixels)


def _output_dtype(plan: Plan) -> torch.dtype:
    return plan.trace.values[plan.trace.output].dtype
