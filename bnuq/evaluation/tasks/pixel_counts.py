"""Which pixels of an image are scored, and their counts: by class, by bin of confidence, and by score.

What is counted together has one number, so that one pass over the pixels serves all replicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.evaluation.tasks.pixel_values import PixelValues
from bnuq.files.keys import Key
from bnuq.frozen import frozen
from bnuq.metrics import COARSE_BINS, SCORE_BINS
from bnuq.records.evaluation import PIXEL_SCORES
from bnuq.shapes import Bool, Float, Int64, Integer, Num

CONFIDENCE_BINS = 15
_TOGETHER = 2**20  # probabilities that wait to be counted
_SIGNED = ("max_logit", "energy")
_SHIFT = (SCORE_BINS // COARSE_BINS).bit_length() - 1
_BUFFERS = 4  # values of some scores that are in a cache at once
_KINDS = ("count", "confidence", "correct")
CLASSWISE, FEW_CLASSWISE = Key("classwise", "all"), Key("few", "classwise")  # of all pixels, and of a few


def counted(codes: Integer[Tensor, "*any"], shape: Sequence[int], weights: Tensor | None = None) -> Num[Tensor, ...]:
    """How often each number below the size of this shape occurs, or the sum of the weights there, in this shape."""
    flat = None if weights is None else weights.double().flatten()
    counts = devices.counted(codes.flatten(), math.prod(shape), flat).view(*shape)
    return counts.long() if weights is None else counts


def _rows(count: int, size: int, like: Tensor) -> Integer[Tensor, " row"]:
    """Where the numbers of each row begin, `size` apart."""
    return torch.arange(0, count * size, size, dtype=torch.int32, device=like.device)


def confidence_bins(p: Float[Tensor, "*any"]) -> Integer[Tensor, "*any"]:
    """The bin of each probability, of equal width and with its upper end."""
    return (p * CONFIDENCE_BINS).ceil_().to(torch.int32).sub_(1).clamp_(0, CONFIDENCE_BINS - 1)


def class_bins(
    p: Float[Tensor, "replicate class pixel"], truth: Int64[Tensor, " pixel"]
) -> Float[Tensor, "replicate class 3 bin"]:
    """For each class, in bins of its probability: the pixels, their probability, and how many are of the class."""
    rows, classes, _ = p.shape
    codes = confidence_bins(p) + _rows(rows * classes, CONFIDENCE_BINS, p).view(rows, classes, 1)
    shape = rows, classes, CONFIDENCE_BINS
    true = codes.gather(1, truth.expand(rows, 1, -1))
    sums = [counted(codes, shape), counted(codes, shape, p), counted(true, shape)]
    return torch.stack([each.double() for each in sums], dim=2)


class ClassBins:
    """The `class_bins` of pixels that come in pieces, of which many are counted together."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, Tensor]] = []
        self._total: Tensor | None = None

    def add(self, p: Float[Tensor, "replicate class pixel"], truth: Int64[Tensor, " pixel"]) -> None:
        """Add some pixels, whose probabilities stay as they are."""
        self._pieces.append((p, truth))
        if sum(piece.numel() for piece, _ in self._pieces) > _TOGETHER:
            self.total()

    def total(self) -> Float[Tensor, "replicate class 3 bin"]:
        """Those of all pixels so far."""
        if self._pieces:
            p, truth = (torch.cat(parts, dim=-1) for parts in zip(*self._pieces, strict=True))
            bins = class_bins(p, truth)
            self._total, self._pieces = bins if self._total is None else self._total + bins, []
        assert self._total is not None
        return self._total


def sums_by_confidence(
    least: Float[Tensor, "replicate pixel"], is_right: Float[Tensor, "replicate pixel"]
) -> dict[str, Tensor]:
    """In bins of the confidence, 1 − the `least`: pixels, their confidence, and how many are right."""
    shape = len(least), CONFIDENCE_BINS
    confidence = 1 - least
    codes = confidence_bins(confidence).add_(_rows(*shape, least)[:, None])
    total = counted(codes, shape, confidence)
    count = counted(codes.mul_(2).add_(is_right.to(torch.int32)), (*shape, 2))
    sums = zip(_KINDS, (count.sum(-1), total, count[..., 1].double()), strict=True)
    return {Key("bins", name): values for name, values in sums}


def class_counts(
    predicted: Int64[Tensor, "replicate pixel"],
    is_right: Float[Tensor, "replicate pixel"] | None,
    truth: Int64[Tensor, " pixel"] | None,
    classes: int,
) -> dict[str, Int64[Tensor, "replicate class"]]:
    """Of each class the pixels that are predicted to be of it; with a truth also those that are, and both."""
    rows = len(predicted)
    codes = predicted.to(torch.int32).add_(_rows(rows, 2 * classes, predicted)[:, None])
    if is_right is None or truth is None:
        return {Key("class", "predicted"): counted(codes, (rows, 2, classes))[:, 0].contiguous()}
    counts = counted(codes.add_(is_right.to(torch.int32), alpha=classes), (rows, 2, classes))
    return {
        Key("class", "predicted"): counts.sum(1),
        Key("class", "true"): counted(truth, (1, classes)).expand(rows, -1),
        Key("class", "common"): counts[:, 1].contiguous(),
    }


def score_counts(
    values: PixelValues, side: Integer[Tensor, "replicate pixel"] | None, *, replicates: int
) -> tuple[dict[str, Int64[Tensor, "replicate side bin"]], Integer[Tensor, "score pixel"]]:
    """Coarse histograms of each score under the first replicates, on one side or both of what it is to tell apart; and
    the number of each pixel's bin among the fine ones of all scores and sides, under the first."""
    sides = 1 if side is None else 2
    names = [name for name in PIXEL_SCORES if name in values.names]
    coarse: dict[str, Tensor] = {}
    fine = []
    for signed in (False, True):
        group = [name for name in names if (name in _SIGNED) == signed]
        if not group:
            continue
        first = values.names.index(group[0])  # scores of a group are neighbours
        scores = values.values[first : first + len(group), :replicates]
        places = _rows(len(names), sides * SCORE_BINS, scores)[len(coarse) :][: len(group), None]
        rows = _rows(len(group) * replicates, sides * COARSE_BINS, scores).view(len(group), replicates, 1)
        codes = torch.empty(scores.shape, dtype=torch.int32, device=scores.device)
        fine_of_group = torch.empty_like(codes[:, 0])
        step = max(1, devices.traits(scores.device).tile_entries // (_BUFFERS * len(group) * replicates))
        for here in (slice(start, start + step) for start in range(0, scores.shape[-1], step)):  # in a cache
            bins = metrics.score_bins(scores[..., here], signed=signed)
            torch.add(bins[:, 0], places, out=fine_of_group[:, here])
            torch.add(bins.bitwise_right_shift_(_SHIFT), rows, out=codes[..., here])
        if side is not None:
            fine_of_group.add_(side[0], alpha=SCORE_BINS)
            codes.add_(side, alpha=COARSE_BINS)
        fine.append(fine_of_group)
        coarse |= zip(group, counted(codes, (len(group), replicates, sides, COARSE_BINS)), strict=True)
    return coarse, torch.cat(fine)


@lru_cache(maxsize=16)
def one_of(every: int, count: int) -> Int64[np.ndarray, " chosen"]:
    """One of every so many numbers below `count`, in order, each at random and always the same: every so many of them
    would be one column of a periodic image."""
    first = np.arange(0, count, every)
    return first + (np.random.default_rng(0).random(len(first)) * np.minimum(every, count - first)).astype(np.int64)


@frozen
class Region:
    """The pixels of an image: how many are scored; which pass, in the plane and by their numbers; the mask. On the
    device the numbers of those that pass, and the class of each pixel."""

    count: int
    plane: Bool[np.ndarray, "height width"]
    rows: Int64[np.ndarray, " row"]
    mask: Int64[np.ndarray, "height width"] | None
    numbers: Int64[Tensor, " row"]
    truth: Int64[Tensor, " pixel"] | None

    @staticmethod
    def of(
        mask: Int64[np.ndarray, "height width"] | None, valid: Bool[np.ndarray, "height width"], device: torch.device
    ) -> Region:
        """The pixels of an image with this mask, where there is one, of which the `valid` ones are scored."""
        count = int(valid.sum())
        plane = valid if count else np.ones_like(valid)  # only the scores of an ignored image are used
        rows = np.flatnonzero(plane)
        truth = None
        if mask is not None:
            truth = devices.upload(torch.from_numpy(np.where(valid, mask, 0)).flatten(), device)
        return Region(count, plane, rows, mask, devices.upload(torch.from_numpy(rows), device), truth)

    def thinned(self, every: int) -> Region:
        """One of every so many of the pixels that pass."""
        chosen = one_of(every, len(self.rows))
        return replace(self, rows=self.rows[chosen], numbers=self.numbers[torch.from_numpy(chosen)])

    def within(self, pixels: slice) -> Int64[Tensor, " kept"]:
        """Which of these pixels pass."""
        return self.numbers[self._numbers(pixels)] - pixels.start

    def places(self, pixels: slice, every: int) -> Int64[Tensor, " chosen"]:
        """Which of those `within` these pixels are the one of every so many of all that pass."""
        chosen, here = one_of(every, len(self.rows)), self._numbers(pixels)
        return torch.from_numpy(chosen[slice(*np.searchsorted(chosen, [here.start, here.stop]))] - here.start)

    def _numbers(self, pixels: slice) -> slice:
        return slice(*np.searchsorted(self.rows, [pixels.start, pixels.stop]).tolist())
