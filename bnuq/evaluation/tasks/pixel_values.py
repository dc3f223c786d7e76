"""From the logits of pixels to their scores: the means over the draws of each part, then the scores under every
replicate.

Both steps keep the dtype of the outputs. In float32 small numbers keep their digits: 1 minus the largest probability is
the sum of the others, and no probability is so small that a processor computes it slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from bnuq.frozen import frozen
from bnuq.records.evaluation import PIXEL_SCORES
from bnuq.shapes import Float, Float64, Int64, Integer, Shaped

_LOWEST = -80.0  # logits below the largest: e^−80 is nothing in a sum, and a normal number in float32
_SMALLEST = 2.0**-62  # probability, whose square is a normal number in float32: underflow takes a hundred times as long
_OF_LOGITS = ("max_logit", "energy")  # which a temperature would change


def taken(values: Shaped[Tensor, "*any pixel"], pixels: Integer[Tensor, " kept"]) -> Shaped[Tensor, "*any kept"]:
    """The values at these pixels: `gather` copies rows several times as fast on a CPU as `index_select`."""
    return values.gather(-1, pixels.expand(*values.shape[:-1], -1))


@frozen
class PartMeans:
    """Pixels of an image: the means over the draws of each part. The largest logit and the energy are negative, so that
    larger is more uncertain; `true` is the probability of the true class, in float64 as it may be tiny."""

    p: Float[Tensor, "part class pixel"]
    entropy: Float[Tensor, "part pixel"]
    max_logit: Float[Tensor, "part pixel"]
    energy: Float[Tensor, "part pixel"]
    true: Float[Tensor, "part pixel"]

    @staticmethod
    def zeros(like: Float[Tensor, "class pixel"], parts: int) -> PartMeans:
        """Of no draws yet, for pixels with such logits."""
        p = torch.zeros((parts, *like.shape), dtype=like.dtype, device=like.device)
        entropy, max_logit, energy = (torch.zeros_like(p[:, 0]) for _ in range(3))
        return PartMeans(p, entropy, max_logit, energy, torch.zeros_like(entropy, dtype=torch.float64))

    def of_parts(self, shares: Float[Tensor, "part draw"]) -> PartMeans:
        """The means over parts of what is given of single draws."""
        means = {}
        for name, values in vars(self).items():
            means[name] = (shares.to(values.dtype) @ values.flatten(1)).view(len(shares), *values.shape[1:])
        return PartMeans(**means)

    def __getitem__(self, pixels: slice) -> PartMeans:
        return PartMeans(*(getattr(self, field.name)[..., pixels] for field in fields(self)))

    def at(self, pixels: Integer[Tensor, " kept"]) -> PartMeans:
        """Those of these pixels."""
        return PartMeans(*(taken(getattr(self, field.name), pixels) for field in fields(self)))

    def add_(self, other: PartMeans, parts: slice, pixels: slice) -> None:
        """Add what some draws contribute to these parts, at these pixels."""
        for name, values in vars(self).items():
            values[parts, ..., pixels] += getattr(other, name)


def of_draws(
    logits: Float[Tensor, "draw class pixel"],
    truth: Int64[Tensor, " pixel"] | None,
    temperature: float,
    *,
    with_classes: bool,
) -> tuple[PartMeans, Int64[Tensor, "draw pixel"] | None]:
    """The values of each draw as if it were a part, from logits that are divided by a temperature; and the class that
    each predicts, where it is needed."""
    largest = logits.amax(1, keepdim=True)
    below = logits - largest
    classes = classes_of(below, out=torch.empty_like(below)) if with_classes else None
    if temperature != 1:
        below /= temperature
        largest = largest / temperature
    true = None if truth is None else below.gather(1, truth.expand(len(below), 1, -1))[:, 0]
    weight = below.clamp_min_(_LOWEST).exp()
    # Without the rounding of 1 + a small number: weights of 1, of which the largest is one, have no fractional part.
    others = weight.frac().sum(1)
    others += (weight.sum(1) - others).round_() - 1
    log_total = others.log1p()
    p = weight.mul_((1 + others).reciprocal_()[:, None])
    entropy = log_total - below.mul_(p).sum(1)
    true_p = torch.zeros_like(log_total, dtype=torch.float64) if true is None else (true - log_total).double().exp_()
    return PartMeans(p, entropy, -largest[:, 0], -(log_total + largest[:, 0]), true_p), classes


def classes_of(
    below: Float[Tensor, "row class pixel"], *, out: Float[Tensor, "row class pixel"]
) -> Int64[Tensor, "row pixel"]:
    """The first class of each pixel that is 0 below the largest, computed in work memory; values that differ by less
    than 1e-36 are alike, and of a pixel with a NaN any class."""
    classes = below.shape[1]
    order = torch.arange(classes, 0, -1, dtype=below.dtype, device=below.device)[:, None]
    # of the largest its place in this order, of all others a large negative number: comparisons are slow on a CPU
    places = torch.add(order, below, alpha=torch.finfo(below.dtype).max, out=out)
    return (classes - places.amax(1)).long().clamp_(0, classes - 1)


@frozen
class PixelValues:
    """Scores of pixels under every replicate: those of these `names`, in one tensor, and the predicted class."""

    names: tuple[str, ...]
    values: Float[Tensor, "name replicate pixel"]
    predicted: Int64[Tensor, "replicate pixel"]

    def of(self, name: str) -> Float[Tensor, "replicate pixel"]:
        return self.values[self.names.index(name)]

    def of_first(self) -> PixelValues:
        """Under the first replicate alone, in memory of its own."""
        return PixelValues(self.names, self.values[:, :1].clone(), self.predicted[:1].clone())

    @staticmethod
    def joined(pieces: Sequence[PixelValues]) -> PixelValues:
        """Of the pixels of all pieces."""
        if len(pieces) == 1:
            return pieces[0]
        values = torch.cat([piece.values for piece in pieces], dim=-1)
        predicted = torch.cat([piece.predicted for piece in pieces], dim=-1)
        return PixelValues(pieces[0].names, values, predicted)


class KeptValues:
    """The scores of so many pixels of an image, which come in pieces, and their sums."""

    def __init__(self, pixels: int) -> None:
        self._pixels, self._done = pixels, 0
        self._values: PixelValues | None = None
        self.totals: dict[str, Float64[Tensor, " replicate"]] = {}

    @property
    def values(self) -> PixelValues:
        assert self._values is not None and self._done == self._pixels
        return self._values

    def add(self, piece: PixelValues, pixels: Integer[Tensor, " kept"] | None) -> None:
        """Keep these pixels of a piece, or all."""
        if self._values is None:
            rooms = [each.new_empty((*each.shape[:-1], self._pixels)) for each in (piece.values, piece.predicted)]
            self._values = PixelValues(piece.names, *rooms)
        count = piece.predicted.shape[-1] if pixels is None else len(pixels)
        here = slice(self._done, self._done + count)
        for room, each in ((self._values.values, piece.values), (self._values.predicted, piece.predicted)):
            if pixels is None:
                room[..., here].copy_(each)
            else:
                torch.gather(each, -1, pixels.expand(*each.shape[:-1], -1), out=room[..., here])
        self._done += count
        sums = self._values.values[..., here].sum(2).double()  # of few pixels, which may be added in their own dtype
        for name, value in zip(piece.names, sums, strict=True):
            self.totals[name] = self.totals[name] + value if name in self.totals else value


def of_replicates(
    means: PartMeans,
    mean: Float[Tensor, "replicate class pixel"],
    weights: Float[Tensor, "replicate part"],
    truth: Int64[Tensor, " pixel"] | None,
    *,
    several: bool,
    with_logits: bool,
) -> PixelValues:
    """The scores under every replicate, from the `mean` probabilities under each, which are overwritten. Mutual
    information needs `several` draws; scores of logits are left out where these are recalibrated."""
    left_out = (() if several else ("mutual_information",)) + (() if with_logits else _OF_LOGITS)
    names = tuple(name for name in PIXEL_SCORES if name not in left_out)
    names += () if truth is None else ("accuracy", "pll", "brier")
    values = mean.new_empty((len(names), len(mean), mean.shape[2]))
    room = dict(zip(names, values, strict=True))  # which scores are written into
    work = torch.sub(mean, mean.amax(1, keepdim=True))
    predicted = classes_of(work, out=work)
    others = mean.scatter_(1, predicted[:, None], math.exp(_LOWEST))  # not 0, whose logarithm is not finite
    least = torch.sum(others, 1, out=room["least_confidence"])
    largest = 1 - least
    logs = torch.log(others, out=work)
    entropy = torch.sum(logs.mul_(others), 1, out=room["predictive_entropy"])
    entropy.add_(torch.log1p(-least).mul_(largest)).neg_()
    expected = torch.mm(weights, means.entropy, out=room["expected_entropy"])
    if several:
        torch.sub(entropy, expected, out=room["mutual_information"])
    for name in _OF_LOGITS if with_logits else ():
        torch.mm(weights, getattr(means, name), out=room[name])
    if truth is not None:
        p_true = weights.double() @ means.true
        is_right = torch.eq(predicted, truth, out=room["accuracy"])
        # Σ p² − 2 p_y + 1 is, with the largest p as 1 − the others, Σ of the others p² + (1 − p)² + 2 (p − p_y).
        squares = torch.sum(torch.clamp_min(others, _SMALLEST, out=work).square_(), 1, out=room["brier"])
        squares.addcmul_(least, least).addcmul_(largest.sub_(p_true), 1 - is_right, value=2)
        room["pll"].copy_(p_true.log_())
    return PixelValues(names, values, predicted)
