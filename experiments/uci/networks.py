"""Many small regression networks of one shape, trained and passed through together as one stacked computation.

Two hidden layers of ReLU units and one linear output. Of kind "batchnorm" the hidden layers are linear without bias →
BatchNorm (biased statistics of the mini-batch) → ReLU; of kind "dropout" linear → ReLU → dropout, the inputs dropped
too. A network is one row of parameters; `Architecture.layout` says where each lies. The gradient is written out by
hand: autograd's bookkeeping costs more than the arithmetic here, and a test holds the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from bnuq.shapes import Float, Int64

Kind = Literal["batchnorm", "dropout"]

EPS = 1e-10  # the authors' BatchNorm: nearly nothing beside the variance
LEARNING_RATE = 1e-3
_BETAS = (0.9, 0.999)
_ADAM_EPS = 1e-8
_INIT_STD = 0.1  # of a normal that is cut at two standard deviations
_ROWS_AT_ONCE = 2048  # rows of all networks of a stack together: what stays in the cache of one core


@dataclass(frozen=True)
class Architecture:
    """The shape that all networks of a stack share."""

    kind: Kind
    inputs: int
    units: int

    @cached_property
    def layout(self) -> tuple[tuple[str, tuple[int, int], bool], ...]:
        """Name, shape and whether weight decay holds for it, of each block of a row of parameters, in order."""
        p, h = self.inputs, self.units
        if self.kind == "batchnorm":
            small = (("scale1", (1, h)), ("shift1", (1, h)), ("scale2", (1, h)), ("shift2", (1, h)))
        else:
            small = (("bias1", (1, h)), ("bias2", (1, h)))
        blocks = (("weight1", (p, h)), ("weight2", (h, h)), ("weight3", (h, 1)), *small, ("bias3", (1, 1)))
        return tuple((name, shape, name.startswith("weight")) for name, shape in blocks)

    @property
    def parameters(self) -> int:
        """How many a network has."""
        return sum(math.prod(shape) for _, shape, _ in self.layout)

    def initial(self, seeds: list[list[int]]) -> Float[Tensor, "net parameter"]:
        """Parameters at the start, one row for each seed: weights from a truncated normal, biases 0, scales 1."""
        rows = torch.zeros(len(seeds), self.parameters)
        for row, seed in zip(rows, seeds, strict=True):
            generator = torch.Generator().manual_seed(seed_number(seed))
            for (name, shape, decayed), block in zip(self.layout, row.split(self._sizes), strict=True):
                if decayed:
                    uniform = torch.rand(math.prod(shape), generator=generator, dtype=torch.float64)
                    block.copy_(_truncated_normal(uniform) * _INIT_STD)
                elif name.startswith("scale"):
                    block.fill_(1.0)
        return rows

    def blocks(self, rows: Float[Tensor, "net parameter"]) -> dict[str, Tensor]:
        """Each block of every row, contiguous: (net, *shape)."""
        return {
            name: part.reshape(len(rows), *shape).contiguous()
            for (name, shape, _), part in zip(self.layout, rows.split(self._sizes, 1), strict=True)
        }

    @cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for _, shape, _ in self.layout]


@dataclass
class State:
    """What training goes on from: parameters and Adam's two moments, a row for each network, and the steps taken."""

    parameters: Float[Tensor, "net parameter"]
    first: Float[Tensor, "net parameter"]
    second: Float[Tensor, "net parameter"]
    steps: int = 0

    @staticmethod
    def fresh(parameters: Float[Tensor, "net parameter"]) -> State:
        return State(parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))

    def of(self, nets: Int64[Tensor, " kept"] | slice) -> State:
        """That of these networks alone."""
        return State(self.parameters[nets], self.first[nets], self.second[nets], self.steps)


def stack_size(batch: int, device: torch.device) -> int:
    """How many networks are trained together: on a CPU as many as keep their activations in its cache."""
    return 4096 if device.type == "cuda" else max(4, _ROWS_AT_ONCE // batch)


class Training:
    """Steps of Adam for a stack of networks, each on its own rows, all with one batch size and one dropout rate.

    `weight_decay` holds one factor λ for each network; the loss is ½ of the mean squared error + λ·Σ½W² over weights.
    Parameters are stored block by block, all networks of a block together: each operation is one batched product
    over contiguous memory; `state()` gives them back as rows. Buffers are made once and written over in every step.
    """

    def __init__(
        self,
        architecture: Architecture,
        state: State,
        *,
        weight_decay: Float[Tensor, " net"],
        batch: int,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self._shape, self._batch, self._dropout, self._generator = architecture, batch, dropout, generator
        self._nets, self._steps = len(state.parameters), state.steps
        self._flat, self._weight = self._laid_out(state.parameters)
        self._slope, self.gradient = self._laid_out(torch.zeros_like(state.parameters))
        self._first, self._second = self._laid_out(state.first)[0], self._laid_out(state.second)[0]
        factors = [
            (weight_decay.to(self._flat)[:, None] * decayed).expand(-1, math.prod(shape)).reshape(-1)
            for _, shape, decayed in architecture.layout
        ]
        self._decay = torch.cat(factors)
        self._count = torch.tensor(float(self._steps), device=self._flat.device)
        self._buffers: dict[str, Tensor] = {}
        self._mask: DropoutMasks | None = None
        if architecture.kind == "dropout":
            widths = (architecture.inputs, architecture.units, architecture.units)
            self._mask = DropoutMasks(self._nets, batch, widths, dropout, generator, self._flat.device)

    def step(self, x: Float[Tensor, "net row input"], y: Float[Tensor, "net row 1"]) -> None:
        """One step on one mini-batch a network."""
        self.differentiate(x, y)
        self._steps += 1
        self._adam()

    def differentiate(self, x: Float[Tensor, "net row input"], y: Float[Tensor, "net row 1"]) -> Float[Tensor, " net"]:
        """Fill `gradient`, weight decay included, and give each network's ½·MSE on this mini-batch."""
        error = self._through_batchnorm(x, y) if self._shape.kind == "batchnorm" else self._through_dropout(x, y)
        self._slope.addcmul_(self._decay, self._flat)
        return error

    def state(self) -> State:
        """The networks as they are now."""
        rows = [self._as_rows(flat) for flat in (self._flat, self._first, self._second)]
        return State(rows[0], rows[1], rows[2], self._steps)

    def _laid_out(self, rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        flat = torch.cat([block.reshape(-1) for block in self._shape.blocks(rows).values()])
        return flat, self._views(flat)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [self._nets * math.prod(shape) for _, shape, _ in self._shape.layout]
        parts = zip(self._shape.layout, flat.split(sizes), strict=True)
        return {name: part.view(self._nets, *shape) for (name, shape, _), part in parts}

    def _as_rows(self, flat: Tensor) -> Tensor:
        return torch.cat([block.reshape(self._nets, -1) for block in self._views(flat).values()], 1)

    def _buffer(self, name: str, *shape: int) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = self._flat.new_empty(self._nets, *shape)
        return self._buffers[name]

    def _through_batchnorm(self, x: Tensor, y: Tensor) -> Tensor:
        weight, gradient, b, h = self._weight, self.gradient, self._batch, self._shape.units
        hidden = x
        for layer in (1, 2):
            z = torch.bmm(hidden, weight[f"weight{layer}"], out=self._buffer(f"normal{layer}", b, h))
            z.sub_(torch.mean(z, 1, keepdim=True, out=self._buffer("mean", 1, h)))
            squares = torch.mul(z, z, out=self._buffer("work", b, h))
            inverse = torch.mean(squares, 1, keepdim=True, out=self._buffer(f"inverse{layer}", 1, h))
            z.mul_(inverse.add_(EPS).rsqrt_())
            a = torch.mul(z, weight[f"scale{layer}"], out=self._buffer(f"active{layer}", b, h))
            hidden = a.add_(weight[f"shift{layer}"]).clamp_min_(0.0)
        slope, error = self._at_the_output(hidden, y)
        for layer in (2, 1):
            normal, inverse = self._buffers[f"normal{layer}"], self._buffers[f"inverse{layer}"]
            active, work = self._buffers[f"active{layer}"], self._buffers["work"]
            torch.ops.aten.threshold_backward.grad_input(slope, active, 0.0, grad_input=slope)
            shift = torch.sum(slope, 1, keepdim=True, out=gradient[f"shift{layer}"])
            torch.mul(slope, normal, out=work)
            scale = torch.sum(work, 1, keepdim=True, out=gradient[f"scale{layer}"])
            slope.sub_(torch.div(shift, b, out=self._buffer("mean", 1, h)))
            normal.mul_(torch.div(scale, b, out=self._buffer("mean", 1, h)))
            slope.sub_(normal).mul_(inverse.mul_(weight[f"scale{layer}"]))
            below = x if layer == 1 else self._buffers["active1"]
            torch.bmm(below.mT, slope, out=gradient[f"weight{layer}"])
            if layer == 2:
                slope = torch.bmm(slope, weight["weight2"].mT, out=self._buffer("slope1", b, h))
        return error

    def _through_dropout(self, x: Tensor, y: Tensor) -> Tensor:
        assert self._mask is not None
        weight, gradient, b, h = self._weight, self.gradient, self._batch, self._shape.units
        masks = self._mask.draw()
        hidden = dropped = torch.mul(x, masks[0], out=self._buffer("dropped", b, self._shape.inputs))
        for layer in (1, 2):
            a = torch.bmm(hidden, weight[f"weight{layer}"], out=self._buffer(f"active{layer}", b, h))
            hidden = a.add_(weight[f"bias{layer}"]).clamp_min_(0.0).mul_(masks[layer])
        slope, error = self._at_the_output(hidden, y)
        for layer in (2, 1):
            # What was dropped or not active is 0 here, so one threshold is the slope of both.
            active = self._buffers[f"active{layer}"]
            torch.ops.aten.threshold_backward.grad_input(slope, active, 0.0, grad_input=slope)
            slope.mul_(1.0 / (1.0 - self._dropout))
            torch.sum(slope, 1, keepdim=True, out=gradient[f"bias{layer}"])
            below = dropped if layer == 1 else self._buffers["active1"]
            torch.bmm(below.mT, slope, out=gradient[f"weight{layer}"])
            if layer == 2:
                slope = torch.bmm(slope, weight["weight2"].mT, out=self._buffer("slope1", b, h))
        return error

    def _at_the_output(self, hidden: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The slope of the loss in the last hidden layer, and the loss."""
        weight, gradient, b = self._weight, self.gradient, self._batch
        e = torch.bmm(hidden, weight["weight3"], out=self._buffer("error", b, 1))
        e.add_(weight["bias3"]).sub_(y)
        loss = e.square().mean((1, 2)) / 2
        e.mul_(1.0 / b)
        torch.bmm(hidden.mT, e, out=gradient["weight3"])
        torch.sum(e, 1, keepdim=True, out=gradient["bias3"])
        slope = torch.mul(e, weight["weight3"].mT, out=self._buffer("slope2", b, self._shape.units))
        return slope, loss

    def _adam(self) -> None:
        adam(
            [self._flat], [self._slope], [self._first], [self._second], [], [self._count], fused=True,
            lr=LEARNING_RATE, beta1=_BETAS[0], beta2=_BETAS[1], weight_decay=0.0, eps=_ADAM_EPS, amsgrad=False,
            maximize=False,
        )  # fmt: skip


class DropoutMasks:
    """Masks of the inputs and both hidden layers, 0 with probability `rate`, else 1/(1 − rate): drawn as the gaps
    between the zeros, which are few, and so for a fraction of the random numbers."""

    def __init__(
        self,
        nets: int,
        rows: int,
        widths: tuple[int, ...],
        rate: float,
        generator: torch.Generator | None,
        device: torch.device,
    ) -> None:
        sizes = [nets * rows * width for width in widths]
        self._size, self._rate, self._generator = sum(sizes), rate, generator
        self._flat = torch.empty(self._size + 1, device=device)  # the last takes the zeros that fall behind the end
        parts = self._flat[:-1].split(sizes)
        self._masks = [part.view(nets, rows, width) for part, width in zip(parts, widths, strict=True)]
        expected = self._size * rate
        self._zeros = math.ceil(expected + 8 * math.sqrt(expected) + 16)  # falls short with probability below 1e-12
        self._gaps = torch.empty(self._zeros, device=device, dtype=torch.float64)

    def draw(self) -> list[Float[Tensor, "net row unit"]]:
        """New masks, in place of the last ones."""
        self._flat.fill_(1.0 / (1.0 - self._rate))
        if self._rate > 0:
            gaps = self._gaps.exponential_(generator=self._generator).div_(-math.log1p(-self._rate)).floor_().add_(1.0)
            at = gaps.cumsum_(0).sub_(1.0).clamp_max_(self._size)
            self._flat.index_fill_(0, at.long(), 0.0)
        return self._masks


def mcbn_passes(
    architecture: Architecture,
    parameters: Float[Tensor, "net parameter"],
    batches: Iterator[Float[Tensor, "net row input"]],
    x: Float[Tensor, "net point input"],
) -> Iterator[Float[Tensor, "net point"]]:
    """One pass for every mini-batch: BatchNorm normalises with that batch's own mean and biased variance.

    A batch of all training rows gives the deterministic outputs, as the authors have them.
    """
    w = architecture.blocks(parameters)
    first = torch.bmm(x, w["weight1"])
    for batch in batches:
        z, at = torch.bmm(batch, w["weight1"]), first
        for layer in (1, 2):
            mean = z.mean(1, keepdim=True)
            z = z.sub_(mean)
            factor = z.square().mean(1, keepdim=True).add_(EPS).rsqrt_().mul_(w[f"scale{layer}"])
            below = z.mul_(factor).add_(w[f"shift{layer}"]).clamp_min_(0.0)
            above = (at - mean).mul_(factor).add_(w[f"shift{layer}"]).clamp_min_(0.0)
            if layer == 1:
                z, at = torch.bmm(below, w["weight2"]), torch.bmm(above, w["weight2"])
            else:
                yield torch.bmm(above, w["weight3"]).add_(w["bias3"])[..., 0]


def mcdo_passes(
    architecture: Architecture,
    parameters: Float[Tensor, "net parameter"],
    x: Float[Tensor, "net point input"],
    *,
    dropout: float,
    samples: int,
    generator: torch.Generator | None,
) -> Iterator[Float[Tensor, "net point"]]:
    """`samples` passes with masks of their own for every point; with `dropout` 0 the deterministic outputs."""
    w = architecture.blocks(parameters)
    widths = (architecture.inputs, architecture.units, architecture.units)
    masks = DropoutMasks(len(x), x.shape[1], widths, dropout, generator, x.device)
    for _ in range(samples):
        drawn = masks.draw()
        hidden = x * drawn[0]
        for layer in (1, 2):
            hidden = torch.bmm(hidden, w[f"weight{layer}"]).add_(w[f"bias{layer}"]).clamp_min_(0.0).mul_(drawn[layer])
        yield torch.bmm(hidden, w["weight3"]).add_(w["bias3"])[..., 0]


def _truncated_normal(uniform: Tensor) -> Tensor:
    low, high = (0.5 * (1.0 + math.erf(end / math.sqrt(2.0))) for end in (-2.0, 2.0))
    return torch.special.ndtri(low + (high - low) * uniform)


def seed_number(key: list[int]) -> int:
    """One 63-bit number made from a list of whole numbers."""
    import numpy as np

    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
