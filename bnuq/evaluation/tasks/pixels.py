"""The pixels of a segmentation, from blocks of logits to sums: each pixel is classified, images are independent.

Of every image only sums over its pixels are kept: under every replicate those of all images together, and of all draws
those of each image. `segmentation` makes estimates of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.data import Masks
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import PixelScores
from bnuq.evaluation.tasks import failing_images, pixel_counts
from bnuq.evaluation.tasks.pixel_counts import CLASSWISE, FEW_CLASSWISE, Region, one_of
from bnuq.evaluation.tasks.pixel_values import KeptValues, PartMeans, PixelValues, of_draws, of_replicates, taken
from bnuq.evaluation.tasks.scorer import Groups, SampleReduction
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.files.keys import Key, of_kind, taken_out
from bnuq.metrics import SCORE_BINS, DrawWeights
from bnuq.metrics.arrays import as_numpy
from bnuq.records.evaluation import PIXEL_MEANS, PIXEL_SCORES
from bnuq.shapes import Float, Int64, Integer

PARTS, FEW_PARTS = 32, 8  # of the draws, each of which is left out once for the Monte Carlo error
_LARGE = 2**23  # probabilities of an image, above which there are few parts, in float32
_BUFFERS = 2  # values of all draws or replicates that are in a cache at once
_GRID = 2048  # pixels of an image, one of every so many, that a temperature is fitted to
_LEFT_OUT_PIXELS = 2**14  # of an image, about, at which parts of the draws are left out for the Monte Carlo error
_EVERY = 8  # pixels, of which one counts in the Monte Carlo error of the classwise ECE
_UNCOUNTED = 2**22  # bins of pixels that wait to be counted together
_OF_IMAGES = ("class", "classwise", "bins", "coarse")  # sums that are kept of each image
_COUNTS = ("replicates", "class")  # of pixels, as sums of whole numbers
_OF_TRUTH = {"accuracy", "pll", "brier"}
_ANOMALY = 1  # in the masks of an OOD set, where 0 is what the network knows


def parts_of_draws(samples: int, probabilities: int) -> tuple[range, ...]:
    """The draws in consecutive parts, for the Monte Carlo error: one draw each, or fewer parts where there are many
    draws, or many `probabilities` of an image."""
    count = min(samples, FEW_PARTS if probabilities > _LARGE else PARTS)
    ends = np.linspace(0, samples, count + 1).round().astype(int)
    return tuple(range(a, b) for a, b in pairwise(ends))


class PixelReduction(SampleReduction[PixelScores]):
    """Takes outputs (t, images, K, H, W), all draws of some images before those of the next ones, and gives the scores.

    `weights` are those of the `parts` of the draws. Pixels where the mask is `ignore` are not scored. The masks of a
    set that is not `labelled` say what is an anomaly, 1, and what is not, 0. The logits of each image are divided by
    its `temperature`; with `fits_temperature` the PLL under many temperatures is kept, for one of every so many pixels.
    One that `converges` has the means of the first draws, too; one that `ranks` has the scores of the pixels with a
    class, as an OOD set has them. A `lean` one keeps means, classes, bins and the histograms of scores of probabilities
    alone. In a large image parts of the draws are left out at few pixels, whose sums stand for those of all.
    """

    def __init__(
        self,
        weights: DrawWeights,
        parts: Sequence[range],
        *,
        classes: int,
        ignore: int,
        masks: Masks | None = None,
        labelled: bool = False,
        first: int = 0,
        where: str = "",
        temperature: Float[np.ndarray, " image"] | None = None,
        fits_temperature: bool = False,
        converges: bool = True,
        lean: bool = False,
        saves_maps: bool = False,
        ranks: bool = False,
    ) -> None:
        self._parts, self._draws = parts, parts[-1].stop
        self._full, self._left_out = weights.full.start, weights.jackknife
        self._counted = max(weights.full.stop, weights.jackknife.stop)  # replicates of what is not a mean
        replicates = len(weights.weights) if converges else self._counted
        # The last of the first 1, 2, 4, … and all parts is all of them again: its sums are copied.
        self._weights = weights.weights[: replicates - (converges and bool(weights.prefix_sizes))]
        self._replicates = np.arange(replicates) % len(self._weights)
        self._uploaded: dict[str | range, Tensor] = {}  # weights: of replicates, and of some draws in the parts
        self._classes, self._ignore = classes, ignore
        self._masks, self._labelled, self._ranks = masks, labelled, ranks
        self._temperature, self._fits_temperature, self._lean = temperature, fits_temperature, lean
        self._n, self._where = first, where  # the number of the next image
        self._open: list[_Image] = []
        self._blocks, self._counts = Blocks(), dict[str, np.ndarray]()
        self._bins: list[Tensor] = []  # of pixels that wait to be counted, by each of these scores on so many sides
        self._scores, self._sides = tuple[str, ...](), 1
        self.maps: list[dict[str, np.ndarray]] | None = None  # of each image, where nothing else is wanted
        self._saves_maps = saves_maps  # among its arrays, as those of the kind "map"

    def add(
        self, outputs: Float[Tensor, "sample image class row column"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> None:
        """Add further draws of the images at hand; SamplingError where an output is not finite."""
        assert draws is None  # of a bank, which images have none of
        with torch.inference_mode():
            self._open = self._open or self._opened(outputs)
            for number, image in enumerate(self._open):
                tiles = self._means_of_parts(image, outputs[:, number].flatten(2))
                if len(outputs) == self._draws:  # nothing of its pixels needs to be kept
                    self._close(image, tiles)
                    continue
                assert image.means is not None
                for pixels, parts, means in tiles:
                    image.means.add_(means, parts, pixels)
                self._check_finite(image, float(image.apart))
                image.draws += len(outputs)
                if image.draws == self._draws:
                    self._close(image, image.tiles(self._step(outputs)))
            if len(outputs) == self._draws or self._open[0].draws == self._draws:
                self._n, self._open = self._n + len(self._open), []

    def _opened(self, block: Float[Tensor, "sample image class row column"]) -> list[_Image]:
        """The images of a block, of which it has the first draws."""
        count, shape = block.shape[1], (block.shape[3], block.shape[4])
        masks = [None] * count if self._masks is None else self._masks[np.arange(self._n, self._n + count)]
        size = block[0].masked_fill(block[0] <= _masked(block), 0).abs_().amax()
        compares_draws = self._labelled and self._masks is not None and self._draws > 1 and not self._lean
        images = []
        for number, mask in enumerate(masks):
            first = block[0, number].flatten(1)
            apart = torch.zeros((), dtype=first.dtype, device=first.device)
            if mask is None:
                valid = np.ones(shape, dtype=bool)
            else:
                scored = self._labelled or self._ranks
                valid = mask != self._ignore if scored else (mask == 0) | (mask == _ANOMALY)
            region = Region.of(None if self._ranks else mask, valid, block.device)
            image = _Image(self._n + number, region, first, size, apart)
            if len(block) < self._draws:
                image.first = first.clone()
                image.means = PartMeans.zeros(first.to(self._dtype(first)), len(self._parts))
            if compares_draws and self.maps is None:
                image.drawn = torch.empty((self._draws, first.shape[1]), dtype=self._of_class, device=first.device)
            images.append(image)
        return images

    @property
    def _of_class(self) -> torch.dtype:
        return torch.uint8 if self._classes <= 256 else torch.int16

    def _dtype(self, logits: Float[Tensor, "*any class pixel"]) -> torch.dtype:
        large = logits.shape[-2] * logits.shape[-1] > _LARGE
        return torch.float64 if logits.dtype == torch.float64 and not large else torch.float32

    def _step(self, like: Tensor) -> int:
        """The pixels of which all draws and replicates fit in a cache, or in the memory of an accelerator."""
        rows = max(self._draws, len(self._weights_everywhere(like.shape[-1]))) * self._classes
        return max(1, devices.traits(like.device).tile_entries // (_BUFFERS * rows))

    def _weights_everywhere(self, pixels: int) -> Float[np.ndarray, "replicate part"]:
        """The weights of the replicates at all pixels of an image with so many: of a large one no part is left out."""
        if self.maps is not None:
            return self._weights[:1]
        return self._weights if _every(pixels) == 1 else np.delete(self._weights, self._left_out, axis=0)

    def _groups(self, region: Region, pixels: int, like: Tensor) -> list[_Group]:
        """The replicates at all pixels of an image with so many; of a large one also those with parts left out, at few
        pixels."""
        every, counted = _every(pixels), self._counted
        everywhere = self._on_device("everywhere", self._weights_everywhere(pixels), like)
        of_all: Mapping[str, tuple[int, int]] = {CLASSWISE: (1, 1)}
        of_few: Mapping[str, tuple[int, int]] = {FEW_CLASSWISE: (counted, math.ceil(_EVERY / every))}
        if region.truth is None or not self._labelled or self._lean:
            of_all, of_few = {}, {}
        if counted == 1 or self.maps is not None:
            return [_Group(region, everywhere, 1, of_all)]
        if every == 1:
            return [_Group(region, everywhere, counted, {**of_all, **of_few})]
        left_out = self._on_device("left out", self._weights[:counted], like)
        return [_Group(region, everywhere, 1, of_all), _Group(region.thinned(every), left_out, counted, of_few, every)]

    def _means_of_parts(
        self, image: _Image, logits: Float[Tensor, "draw class pixel"]
    ) -> Iterator[tuple[slice, slice, PartMeans]]:
        """Of some pixels at a time, the means over the draws of each part, or what these draws add to those."""
        draws = range(image.draws, image.draws + len(logits))
        touched = [
            number for number, part in enumerate(self._parts) if part.start < draws.stop and draws[0] < part.stop
        ]
        parts = slice(touched[0], touched[-1] + 1)
        shares = np.array([[(draw in part) / len(part) for draw in draws] for part in self._parts[parts]])
        tau = 1.0 if self._temperature is None else float(self._temperature[image.number])
        truth = image.region.truth if self._labelled else None
        if self._fits_temperature:
            image.grid.append(logits[..., _grid(logits.shape[2])].to(self._dtype(logits), copy=True))
        for pixels in _slices(logits.shape[2], self._step(logits)):
            here = logits[..., pixels]
            of_truth, drawn = None if truth is None else truth[pixels], image.drawn
            with_classes = drawn is not None
            means, classes = of_draws(here.to(self._dtype(logits)), of_truth, tau, with_classes=with_classes)
            if self._temperature is None:  # with one, the same logits are looked at
                least, largest = _masked(here), (0 * means.max_logit).amax()  # NaN where all classes are masked
                apart = (here.clamp_min(least) - image.first[:, pixels].clamp_min(least)).abs_().amax()
                image.apart = torch.maximum(torch.maximum(image.apart, apart), largest.to(apart.dtype))
            if drawn is not None and classes is not None:
                drawn[draws.start : draws.stop, pixels] = classes
            if max(map(len, self._parts[parts])) > 1:
                means = means.of_parts(self._on_device(draws, shares, means.entropy))
            yield pixels, parts, means

    def _on_device(self, key: str | range, weights: np.ndarray, like: Tensor) -> Tensor:
        """Weights on the device and in the dtype of other values, where they stay."""
        if key not in self._uploaded:
            self._uploaded[key] = devices.upload(torch.from_numpy(weights), like.device, like.dtype)
        return self._uploaded[key]

    def _check_finite(self, image: _Image, apart: float) -> None:
        if not math.isfinite(apart):
            raise estimates.not_finite(image.number, self._where)

    def _close(self, image: _Image, tiles: Iterable[tuple[slice, slice, PartMeans]]) -> None:
        """Reduce an image of which all draws are known, some pixels at a time."""
        region, shown, groups = image.region, list[PixelValues](), list[_Group]()
        for pixels, _, means in tiles:
            groups = groups or self._groups(region, image.first.shape[1], means.entropy)
            for group in groups:
                values = self._add_values(group, means, pixels)
                if group is groups[0]:
                    shown.append(values.of_first())
        every = PixelValues.joined(shown)
        if self.maps is not None:
            self._check_finite(image, float(image.apart))
            self.maps.append(self._maps(every, region) | ({} if region.mask is None else {"truth": region.mask}))
            return
        sums, bins = self._sums(groups[0])
        at_few = self._sums(groups[1])[0] if len(groups) > 1 else {}
        uncertainty = uncertainty_of(every.names)
        fetched = devices.fetch(
            {f"sum/{name}": value for name, value in sums.items()}
            | {f"few/{name}": value for name, value in at_few.items()}
            | {"apart": image.apart, "size": image.size, "uncertainty": every.of(uncertainty)[0]}
            | {"predicted": every.predicted[0].to(self._of_class)}
            | ({} if image.drawn is None else {"draws": image.drawn})
        )
        self._check_finite(image, float(fetched["apart"]))
        if region.count:
            self._bins.append(bins)
            if sum(map(torch.numel, self._bins)) > _UNCOUNTED:
                self._count()
        self._add_image(image, fetched)
        if self._saves_maps:
            self._blocks.add("map", stored_maps(self._maps(every, region), self._classes))

    def _add_image(self, image: _Image, fetched: Mapping[str, np.ndarray]) -> None:
        """Keep what is known of an image."""
        sums, means = self._sums_and_means(image.region, fetched)
        coarse = taken_out(sums, "coarse")
        values = self._image_values(image, fetched, sums | coarse, means)
        self._blocks.add("point", {name: np.asarray(value)[None] for name, value in values.items()})
        if (left_out := self._left_out).start < left_out.stop:
            counts = {name: fetched.get(f"few/{name}", value) for name, value in coarse.items()}
            sums |= {Key("replicates", Key(name).name): value for name, value in counts.items()}
            ranked = {name: means[name][left_out][:, None] for name in PIXEL_SCORES if name in means}
            self._blocks.add("draw", {Key("ranked", name): value.astype(np.float32) for name, value in ranked.items()})
        if self._fits_temperature and image.region.truth is not None:
            self._blocks.add("draw", {"by_temperature": self._by_temperature(image)[:, None]})
        for name, count in taken_out(sums, *_COUNTS).items():  # exact in any order; too large to be kept of each image
            self._counts[name] = self._counts[name] + count if name in self._counts else count
        self._blocks.add("sum", sums | {"pixels": np.array(float(image.region.count))})
        spread = {"apart": fetched["apart"], "size": fetched["size"], "rounding": image.rounding}
        self._blocks.add("most", {name: np.array(float(value)) for name, value in spread.items()})

    def _sums_and_means(
        self, region: Region, fetched: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The sums over an image's pixels, and their means where these are kept of it."""
        sums, at_few = (
            {name.removeprefix(kind): value for name, value in fetched.items() if name.startswith(kind)}
            for kind in ("sum/", "few/")
        )
        every = _every(region.plane.size)
        for name, few in at_few.items():
            if name not in sums:
                sums[name] = few
            elif Key(name).kind != "coarse":
                moved = every * (few[1:] - few[:1])  # where a part is left out, if these stand for all pixels
                sums[name] = np.concatenate([sums[name][:1], sums[name][:1] + moved, sums[name][1:]])
        sums = {name: value[self._replicates] if name in PIXEL_MEANS else value for name, value in sums.items()}
        means = {name: value / len(region.rows) for name, value in sums.items() if name in PIXEL_MEANS}
        if not region.count:  # an ignored image counts nowhere, and keeps its scores
            sums = {name: 0 * value for name, value in sums.items()}
            means |= {name: 0 * means[name] for name in _OF_TRUTH & means.keys()}
        return sums, means

    def _image_values(
        self,
        image: _Image,
        fetched: Mapping[str, np.ndarray],
        sums: Mapping[str, np.ndarray],
        means: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """What is kept of an image, under all draws: means, sums, coarse histograms, and what its maps are needed
        for."""
        values = {name: means[name][self._full] for name in PIXEL_MEANS if name in means}
        values |= {name: value[self._full] for name, value in sums.items() if Key(name).kind in _OF_IMAGES}
        values |= {name: value.astype(np.uint32) for name, value in values.items() if Key(name).kind == "coarse"}
        if self._labelled and not self._lean and image.region.mask is not None:
            values |= self._of_map(image, fetched)
        return values | {"pixels": np.array(float(image.region.count))}

    def _by_temperature(self, image: _Image) -> Float[np.ndarray, " likelihood"]:
        """As `TaskScorer.by_temperature`, sums over pixels: all count alike, in whatever image."""
        truth, every = image.region.truth, _grid(image.first.shape[1])
        valid = torch.from_numpy(image.region.plane.ravel()[every])
        if truth is None or not image.region.count or not bool(valid.any()):
            return np.zeros(2 * len(metrics.TEMPERATURES) + 2)
        chosen = devices.upload(valid.nonzero()[:, 0], truth.device)
        logits, truth = torch.cat(image.grid), truth[every]
        total = np.zeros(2 * len(metrics.TEMPERATURES) + 2)
        for pixels in chosen.split(max(1, self._step(logits) // 2)):  # in float64, in a cache
            # in float64: at its flat optimum a rounding error of 1e-8 moves the temperature by 1e-4
            given = taken(logits, pixels).movedim(1, -1).double(), truth[pixels]
            by_temperature = torch.as_tensor(metrics.likelihoods_by_temperature(*given))
            known = by_temperature[..., torch.isfinite(by_temperature).all(0).all(0)].sum(-1)
            total += np.concatenate([as_numpy(known).ravel(), metrics.errors_of_points(*given).sum(1)])
        return total

    def _maps(self, every: PixelValues, region: Region) -> dict[str, np.ndarray]:
        """The scores of all draws of an image, (H, W) each."""
        maps = {name: every.of(name)[0] for name in PIXEL_SCORES if name in every.names}
        fetched = devices.fetch(maps | {"predicted": every.predicted[0]})
        fetched["max_probability"] = 1 - fetched["least_confidence"]
        return {name: values.reshape(region.plane.shape) for name, values in fetched.items()}

    def _of_map(self, image: _Image, fetched: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is computed from the maps of the uncertainty and the prediction of an image."""
        plane, shape = image.region.plane, image.region.plane.shape
        uncertainty = np.where(plane, fetched["uncertainty"].reshape(shape).astype(np.float64), 0)
        predicted = np.where(plane, fetched["predicted"].reshape(shape).astype(np.int64), 0)
        values = failing_images.aggregated(uncertainty, predicted, plane)
        if image.drawn is not None:
            overlap = metrics.overlap_of_draws(fetched["draws"].reshape(-1, *shape), plane, classes=self._classes)
            values["pairwise_dice"] = 1 - metrics.pairwise_dice(overlap)
        return {Key("map", name): np.array(value) for name, value in values.items()}

    def _add_values(self, group: _Group, means: PartMeans, pixels: slice) -> PixelValues:
        """The scores of some pixels of an image under the replicates of a group. Those of scored pixels are kept, and
        their probabilities added to those that are counted by class."""
        region, rows = group.region, group.region.within(pixels)
        truth = None if region.truth is None or not self._labelled else region.truth[pixels]
        if group.every > 1:  # nothing is computed at the other pixels
            means, truth = means.at(rows), None if truth is None else truth[rows]
            rows = torch.arange(len(rows), device=rows.device)
        mean = (group.weights @ means.p.flatten(1)).view(len(group.weights), *means.p.shape[1:])
        for name, (replicates, every) in group.classwise.items():
            assert truth is not None
            some = rows[region.places(pixels, every)]
            group.by_class[name].add(taken(mean[:replicates], some), truth[some])
        with_logits = self._temperature is None and not self._lean
        values = of_replicates(means, mean, group.weights, truth, several=self._draws > 1, with_logits=with_logits)
        group.kept.add(values, None if len(rows) == values.predicted.shape[-1] else rows)
        return values

    def _sums(self, group: _Group) -> tuple[dict[str, Tensor], Tensor]:
        """All sums over the scored pixels of an image, under the replicates of a group; and the bins of these
        pixels."""
        region, first, values, totals = group.region, group.counted, group.kept.values, group.kept.totals
        sums = totals | {name: bins.total() for name, bins in group.by_class.items()}
        sums["max_probability"] = len(region.rows) - totals["least_confidence"]
        side, is_right = None, values.of("accuracy")[:first] if "accuracy" in values.names else None
        truth = None if region.truth is None else region.truth[region.numbers]
        sums |= pixel_counts.class_counts(values.predicted[:first], is_right, truth, self._classes)
        if is_right is not None:
            sums |= pixel_counts.sums_by_confidence(values.of("least_confidence")[:first], is_right)
            side = None if self._lean else 1 - is_right.to(torch.int32)
        elif truth is not None:
            side = truth.to(torch.int32).expand(first, -1)
        coarse, bins = pixel_counts.score_counts(values, side, replicates=first)
        self._scores, self._sides = tuple(coarse), 1 if side is None else 2
        return sums | {Key("coarse", name): count for name, count in coarse.items()}, bins

    def _count(self) -> None:
        """Count the bins of the pixels that wait, among those of all scores and sides."""
        shape = len(self._scores), self._sides, SCORE_BINS
        bins = torch.cat([bins.flatten() for bins in self._bins]) if self._bins else torch.zeros(0, dtype=torch.int32)
        counts = pixel_counts.counted(bins, shape).cpu().numpy()
        for name, count in zip(self._scores, counts, strict=True):
            key = Key("histogram", name)
            self._counts[key] = self._counts[key] + count if key in self._counts else count
        self._bins = []

    def arrays(self) -> Arrays:
        self._count()
        return super().arrays() | {f"sum/{name}": value[None] for name, value in self._counts.items()}

    def _merged(self, units: Gathered, group: Groups) -> PixelScores:
        arrays = units.by_kind()
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        of_images, pixels = taken_out(points), sums["pixels"]
        return PixelScores(
            n=len(points["pixels"]),
            points=points,
            replicates={name: sums[name] / max(1.0, float(pixels)) for name in PIXEL_MEANS if name in sums},
            ranked=of_kind(draws, "ranked"),
            ranked_rows=np.arange(len(points["pixels"])),
            group=group,
            samples_differ=self._temperature is not None or estimates.samples_differ(arrays["most"]),
            of_pixels=taken_out(sums),
            of_images=of_images,
            by_temperature=draws.get("by_temperature"),
        )


@dataclass
class _Group:
    """Replicates whose scores are computed together at pixels of a region, of which it has every so many: their
    weights, and of how many of them more is counted than means. By class probabilities are counted under the first so
    many replicates, at every so many of these pixels."""

    region: Region
    weights: Float[Tensor, "replicate part"]
    counted: int
    classwise: Mapping[str, tuple[int, int]]
    every: int = 1

    def __post_init__(self) -> None:
        self.kept = KeptValues(len(self.region.rows))
        self.by_class = {name: pixel_counts.ClassBins() for name in self.classwise}


@dataclass
class _Image:
    """An image of which not all draws were added: the logits of the first, and how far others are from these; means
    over the draws of each part, if these come in several blocks; and what else is needed of the draws."""

    number: int
    region: Region
    first: Float[Tensor, "class pixel"]
    size: Float[Tensor, ""]  # of the largest logit of the first draw
    apart: Float[Tensor, ""]
    draws: int = 0
    means: PartMeans | None = None
    grid: list[Tensor] = field(default_factory=list)
    drawn: Integer[Tensor, "draw pixel"] | None = None  # the class of each pixel in each draw, where there are masks

    @property
    def rounding(self) -> float:
        """The relative difference of outputs that is rounding."""
        return min(128 * torch.finfo(self.first.dtype).eps, estimates.HALF_ROUNDING)

    def tiles(self, step: int) -> Iterator[tuple[slice, slice, PartMeans]]:
        """The means over the draws of all parts, so many pixels at a time."""
        assert self.means is not None
        for pixels in _slices(self.first.shape[1], step):
            yield pixels, slice(None), self.means[pixels]


def _masked(like: Tensor) -> float:
    """The logit that one of −∞ counts as, where logits are compared: its class has probability 0."""
    return max(-1e9, torch.finfo(like.dtype).min)


def _every(pixels: int) -> int:
    """Of how many pixels of an image with so many the parts of the draws are left out at one."""
    return math.ceil(pixels / _LEFT_OUT_PIXELS)


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(count, start + step)) for start in range(0, count, step))


def stored_maps(maps: Mapping[str, np.ndarray], classes: int) -> dict[str, np.ndarray]:
    """The maps of an image as a file has them: classes as the smallest numbers, and scores in float32. What follows
    from others is left out: least confidence, and without a second draw the expected entropy."""
    left_out = {"least_confidence"} | (set() if "mutual_information" in maps else {"expected_entropy"})
    kinds = {"predicted": np.min_scalar_type(classes - 1)}
    return {name: plane.astype(kinds.get(name, np.float32)) for name, plane in maps.items() if name not in left_out}


def bytes_of_maps(image: Sequence[int] | None) -> int:
    """The bytes of the stored maps of an image by one method, at most: the class, all scores but one, and the largest
    probability."""
    return math.prod(image or ()) * (2 + 4 * len(PIXEL_SCORES))


def uncertainty_of(names: Iterable[str]) -> str:
    """The score by which images are judged: MI where there are several draws."""
    return "mutual_information" if "mutual_information" in names else "predictive_entropy"


def _grid(pixels: int) -> Int64[np.ndarray, " chosen"]:
    return one_of(max(1, pixels // _GRID), pixels)
