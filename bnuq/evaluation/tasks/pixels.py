"""The pixels of a segmentation, from blocks of logits to sums: each pixel is classified, images are independent.

Of every image only sums over its pixels are kept: under every replicate those of all images together, and of all draws
those of each image. `segmentation` makes estimates of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from bnuq import devices, metrics
from bnuq.data import Masks
from bnuq.evaluation import estimates
from bnuq.evaluation.subject import RunPlan
from bnuq.evaluation.tasks import between_draws, failing_images
from bnuq.evaluation.tasks.pixel_counts import CONFIDENCE_BINS, class_bins, confidence_bins, counted, sums_by_distance
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.metrics import COARSE_BINS, SCORE_BINS, DrawWeights
from bnuq.metrics.arrays import as_numpy
from bnuq.records.evaluation import BAND, PIXEL_MEANS, PIXEL_SCORES, REACH

PARTS, FEW_PARTS = 32, 8  # of the draws, each of which is left out once for the Monte Carlo error
_LARGE = 2**23  # probabilities of an image, above which there are few parts, in float32
_BLOCK = 2**21  # replicates × classes × pixels in memory at once
_GRID = 2048  # pixels of an image, on a regular grid, that a temperature is fitted to
_EVERY = 8  # pixels, of which one counts in the Monte Carlo error of the classwise ECE
SIGNED = ("max_logit", "energy")
_TINY = float(np.finfo(np.float64).tiny)  # makes 0·ln 0 equal 0
_UNDERFLOW = -1000.0
_OF_IMAGES = ("class.", "classwise.", "bins.", "near.", "band.", "distance.")  # sums that are kept of each image
_COUNTS = ("histogram.", "replicates.", "class.")  # of pixels, as sums of whole numbers
_OF_TRUTH = {"accuracy", "pll", "brier"}
ANOMALY = 1  # in the masks of an OOD set, where 0 is what the network knows


def parts_of_draws(samples: int, probabilities: int) -> tuple[range, ...]:
    """The draws in consecutive parts, for the Monte Carlo error: one draw each, or fewer parts where there are many
    draws, or many `probabilities` of an image."""
    count = min(samples, FEW_PARTS if probabilities > _LARGE else PARTS)
    ends = np.linspace(0, samples, count + 1).round().astype(int)
    return tuple(range(a, b) for a, b in pairwise(ends))


class PixelReduction:
    """Takes outputs (t, images, K, H, W), all draws of some images before those of the next ones, and gives the Scores.

    `weights` are those of the `parts` of the draws. Pixels where the mask is `ignore` are not scored. The masks of a
    set that is not `labelled` say what is an anomaly, 1, and what is not, 0. The logits of each image are divided by
    its `temperature`; with `fits_temperature` the PLL under many temperatures is kept, for pixels on a regular grid.
    A `lean` one keeps means, classes, bins and the histograms of scores of probabilities alone.
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
        lean: bool = False,
        saves_maps: bool = False,
    ) -> None:
        self._weights, self._parts, self._full = weights, parts, weights.full.start
        self._step = _EVERY * max(1, _BLOCK // (len(weights.weights) * classes * _EVERY))  # pixels in memory at once
        self._classes, self._ignore = classes, ignore
        self._masks, self._labelled = masks, labelled
        self._temperature, self._fits_temperature, self._lean = temperature, fits_temperature, lean
        self._n, self._where = first, where  # the number of the next image
        self._open: _Open | None = None
        self._blocks, self._counts = Blocks(), dict[str, np.ndarray]()
        self.maps: list[dict[str, np.ndarray]] | None = None  # of each image, where they are kept
        self._saves_maps = saves_maps  # among its arrays, as those of the kind "map"

    def add(self, outputs: Float[Tensor, "sample image class row column"]) -> None:
        """Add further draws of the images at hand; SamplingError where an output is not finite."""
        block = devices.with_float64(outputs)
        with torch.inference_mode():
            for sample in block:
                self._add_draw(sample)
            opened = self._open
            if opened is not None and not math.isfinite(float(opened.apart)):
                image = int((~block.isfinite().flatten(2).all(2).all(0)).nonzero()[0, 0])
                raise estimates.not_finite(self._n + image, self._where)
            if opened is not None and opened.draws == self._parts[-1].stop:
                self._close(opened)

    def _add_draw(self, sample: Float[Tensor, "image class row column"]) -> None:
        logits = sample.flatten(2)
        if self._open is None:
            self._open = _Open.of(sample, len(self._parts))
        opened = self._open
        part = next(number for number, draws in enumerate(self._parts) if opened.draws in draws)
        share = 1 / len(self._parts[part])
        apart = [opened.apart]
        for image in range(len(logits)):
            tau = 1.0 if self._temperature is None else float(self._temperature[self._n + image])
            for start in range(0, logits.shape[2], max(1, _BLOCK // self._classes)):
                at = part, image, slice(start, start + max(1, _BLOCK // self._classes))
                apart.append(opened.add(at, logits[image, :, at[2]], tau, share))
        opened.apart = torch.stack(apart).amax()
        if self._labelled and self._masks is not None and self._parts[-1].stop > 1 and not self._lean:
            opened.predicted.append(logits.argmax(1).to(torch.uint8 if self._classes <= 256 else torch.int16))
        if self._fits_temperature:  # copies, as a view would keep all pixels
            opened.grid.append(logits[:, :, _grid(logits.shape[2])].double().clone())
        opened.draws += 1

    def _close(self, opened: _Open) -> None:
        """All draws of the images at hand were added."""
        images, device = opened.p.shape[1], opened.p.device
        masks = None
        if self._masks is not None:
            rows = np.arange(self._n, self._n + images)
            masks = self._masks[rows]
        for image in range(images):
            self._add_image(opened, image, None if masks is None else masks[image])
        if self._fits_temperature and masks is not None:
            classes = devices.upload(torch.from_numpy(masks), device).flatten(1)
            columns = [self._by_temperature(opened, image, mask) for image, mask in enumerate(classes)]
            self._blocks.add("draw", {"by_temperature": np.stack(columns, axis=1)})
        values = {"apart": float(opened.apart), "size": opened.size, "rounding": opened.rounding}
        self._blocks.add("most", {name: np.array(value) for name, value in values.items()})
        self._n, self._open = self._n + images, None

    def _by_temperature(self, opened: _Open, image: int, mask: Tensor) -> Float[np.ndarray, " temperature"]:
        grid = _grid(len(mask))
        valid = mask[grid] != self._ignore
        if not bool(valid.any()):
            return np.zeros(len(metrics.TEMPERATURES))
        logits = torch.stack([draw[image][:, valid] for draw in opened.grid]).movedim(1, -1)
        return as_numpy(metrics.pll_by_temperature(logits, mask[grid][valid])).sum(1) / len(valid)

    def _add_image(self, opened: _Open, image: int, mask: Int64[np.ndarray, "height width"] | None) -> None:
        region = self._region(opened, mask)
        sums, shown = self._image_sums(opened, image, region)
        means = {name: sums[name] / len(region.rows) for name in (*PIXEL_MEANS, *PIXEL_SCORES) if name in sums}
        if not region.count:  # an ignored image counts nowhere, and keeps its scores
            sums = {name: 0 * value for name, value in sums.items()}
            means |= {name: 0 * means[name] for name in _OF_TRUTH & means.keys()}
        image_values = self._image_values(sums, means)
        if region.distance is not None:
            image_values |= self._of_map(opened, image, region, shown)
        image_values["pixels"] = np.array(float(region.count))
        self._blocks.add("point", {name: np.asarray(value)[None] for name, value in image_values.items()})
        counts = {name for name in sums if name.startswith(_COUNTS)}
        for name in counts:  # exact in any order, and too large to be kept of each image
            self._counts[name] = self._counts[name] + sums[name] if name in self._counts else sums[name]
        inexact = {name: value for name, value in sums.items() if name not in counts}
        self._blocks.add("sum", inexact | {"pixels": np.array(float(region.count))})
        left_out = self._weights.jackknife
        if left_out.start < left_out.stop:
            ranked = {name: means[name][left_out][:, None] for name in PIXEL_SCORES if name in means}
            self._blocks.add("draw", {f"ranked.{name}": value.astype(np.float32) for name, value in ranked.items()})
        if self.maps is not None:
            self.maps.append(self._maps(opened, image, mask))
        if self._saves_maps:
            self._blocks.add("map", stored_maps(self._maps(opened, image, None), self._classes))

    def _image_sums(
        self, opened: _Open, image: int, region: _Region
    ) -> tuple[dict[str, np.ndarray], list[tuple[Tensor, Tensor]]]:
        """The sums over an image's pixels; and in pieces, its uncertainty and prediction under all draws."""
        sums: dict[str, Tensor] = {}
        shown: list[tuple[Tensor, Tensor]] = []
        for at in region.rows.split(self._step):
            values = self._of_pixels(opened, image, at, region.mask)
            shown.append((values[uncertainty_of(values)][self._full], values["predicted"][self._full]))
            for name, value in self._sums(values, region, at).items():
                sums[name] = sums[name] + value if name in sums else value
        return devices.fetch(sums), shown

    def _image_values(self, sums: Mapping[str, np.ndarray], means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The means and sums of all draws that are kept of each image, and coarse histograms of its scores."""
        values = {name: means[name][self._full] for name in PIXEL_MEANS if name in means}
        values |= {name: value[self._full] for name, value in sums.items() if name.startswith(_OF_IMAGES)}
        for name in PIXEL_SCORES:
            if (histogram := sums.get(f"histogram.{name}")) is not None:
                values[f"coarse.{name}"] = metrics.coarse_histogram(histogram).astype(np.uint32)
        return values

    def _of_map(
        self, opened: _Open, image: int, region: _Region, shown: Sequence[tuple[Tensor, Tensor]]
    ) -> dict[str, np.ndarray]:
        """What is computed from the maps of the uncertainty and the prediction of an image, given in pieces."""
        uncertainty, predicted = (torch.cat(pieces) for pieces in zip(*shown, strict=True))
        of_draws = (
            {"draws": torch.stack([prediction[image] for prediction in opened.predicted])} if opened.predicted else {}
        )
        fetched = devices.fetch({"uncertainty": uncertainty, "predicted": predicted, **of_draws})
        planes = np.zeros(opened.shape), np.zeros(opened.shape, np.int64)
        for plane, name in zip(planes, ("uncertainty", "predicted"), strict=True):
            plane[region.plane] = fetched[name]
        values = failing_images.aggregated(*planes, region.plane)
        component_sums: dict[str, np.ndarray] = {}
        if opened.predicted:
            draws = fetched["draws"].reshape(-1, *opened.shape)
            values["pairwise_dice"] = between_draws.disagreement(draws, region.plane, classes=self._classes)
            if self._temperature is None:  # which changes no draw's prediction
                sums = between_draws.components_of_image(draws, *planes, region.plane, classes=self._classes)
                component_sums = {f"component.{name}": value * bool(region.count) for name, value in sums.items()}
        return component_sums | {f"map.{name}": np.array(value) for name, value in values.items()}

    def _region(self, opened: _Open, mask: Int64[np.ndarray, "height width"] | None) -> _Region:
        valid, distance = np.ones(opened.shape, dtype=bool), None
        if mask is not None:
            valid = mask != self._ignore if self._labelled else (mask == 0) | (mask == ANOMALY)
        if mask is not None and self._labelled and not self._lean:
            distance = np.minimum(metrics.boundary_distance(mask, valid), REACH)
        count = int(valid.sum())
        if not count:  # only the scores of such an image are used, of all its pixels
            valid, mask = np.ones_like(valid), None if mask is None else mask.clip(0, self._classes - 1)
        rows, mask_here, distance_here = (
            None if values is None else devices.upload(torch.from_numpy(values).flatten(), opened.p.device)
            for values in (np.flatnonzero(valid), mask, distance)
        )
        assert rows is not None
        return _Region(count, rows, mask_here, distance_here, valid)

    def _maps(self, opened: _Open, image: int, mask: Int64[np.ndarray, "height width"] | None) -> dict[str, np.ndarray]:
        """The scores of all draws and the classes of an image, (H, W) each."""
        full = self._weights.full
        parts: dict[str, list[Tensor]] = {}
        for at in torch.arange(opened.p.shape[3], device=opened.p.device).split(self._step):
            values = self._of_pixels(opened, image, at, None, full)
            for name in ("predicted", "max_probability", *PIXEL_SCORES):
                if name in values:
                    parts.setdefault(name, []).append(values[name][0])
        maps = devices.fetch({name: torch.cat(values).view(opened.shape) for name, values in parts.items()})
        return maps if mask is None else maps | {"truth": mask}

    def _of_pixels(
        self,
        opened: _Open,
        image: int,
        at: Int64[Tensor, " pixel"],
        mask: Tensor | None,
        replicates: slice = slice(None),
    ) -> dict[str, Tensor]:
        """The scores of these pixels under every replicate, or under some."""
        weights = devices.upload(torch.from_numpy(self._weights.weights[replicates]), opened.p.device)
        p = opened.p[:, image][:, :, at].double()
        mean = (weights @ p.flatten(1)).view(len(weights), *p.shape[1:])
        confidence, predicted = mean.max(1)
        values = {
            "mean": mean,
            "predicted": predicted,
            "max_probability": confidence,
            "least_confidence": 1 - confidence,
            "predictive_entropy": -(mean + _TINY).log_().mul_(mean).sum(1),
            "expected_entropy": weights @ opened.entropy[:, image, at].double(),
        }
        if self._parts[-1].stop > 1:
            values["mutual_information"] = values["predictive_entropy"] - values["expected_entropy"]
        if self._temperature is None and not self._lean:
            values["max_logit"] = weights @ opened.max_logit[:, image, at].double()
            values["energy"] = weights @ opened.energy[:, image, at].double()
        if mask is not None and self._labelled:
            y = mask[at]
            of_truth = mean.gather(1, y.expand(len(mean), 1, -1))[:, 0]
            values["pll"] = of_truth.log()
            values["accuracy"] = (predicted == y).double()
            values["brier"] = mean.square().sum(1) - 2 * of_truth + 1
        return values

    def _sums(self, values: Mapping[str, Tensor], region: _Region, at: Int64[Tensor, " pixel"]) -> dict[str, Tensor]:
        """The sums over these pixels: of scores and classes under every replicate, and the histogram of each score, on
        one or on both sides of what it is to tell apart."""
        mask, distance = (None if of is None else of[at] for of in (region.mask, region.distance))
        sums = {name: values[name].sum(1) for name in PIXEL_MEANS if name in values}
        sums["class.predicted"] = counted(values["predicted"], self._classes)
        side, sides = None, 1
        if mask is not None and self._labelled:
            right = values["accuracy"]
            side, sides = (None, 1) if self._lean else ((right == 0).long(), 2)
            truth = mask.expand(len(right), -1)
            sums["class.true"] = counted(truth, self._classes)
            sums["class.common"] = counted(truth, self._classes, right).long()
            confidence = values["max_probability"]
            cells = confidence_bins(confidence)
            near = (
                cells if distance is None else torch.where(distance <= BAND, cells, CONFIDENCE_BINS)
            )  # the others lie beyond
            for name, summed in (("count", None), ("confidence", confidence), ("correct", right)):
                sums[f"bins.{name}"] = counted(cells, CONFIDENCE_BINS, summed)
                sums[f"near.{name}"] = counted(near, CONFIDENCE_BINS + 1, summed)[:, :-1]
            sums |= {} if self._lean else self._by_class(values["mean"], mask)
            if distance is not None:
                sums |= sums_by_distance({**values, "error_rate": 1 - right}, distance, self._full)
        elif mask is not None:
            side, sides = (mask == ANOMALY).long().expand_as(values["predicted"]), 2
        for name in (name for name in PIXEL_SCORES if name in values):
            bins = metrics.score_bins(values[name], signed=name in SIGNED).long()
            for kind, rows, score_cells, size in (
                ("histogram", self._weights.full, bins, SCORE_BINS),
                ("replicates", self._weights.jackknife, bins // (SCORE_BINS // COARSE_BINS), COARSE_BINS),
            ):
                if rows.start < rows.stop:
                    placed = score_cells[rows] if side is None else score_cells[rows] + size * side[rows]
                    counts = counted(placed, sides * size).reshape(-1, sides, size)
                    sums[f"{kind}.{name}"] = counts[0] if kind == "histogram" else counts
        return sums

    def _by_class(self, p: Float[Tensor, "replicate class pixel"], mask: Int64[Tensor, " pixel"]) -> dict[str, Tensor]:
        """Of each class the number of pixels, its probability and how often it is true, in bins of its probability:
        under all draws of all pixels, and of every few pixels also with each part of the draws left out."""
        sums = {"classwise.all": class_bins(p[self._weights.full], mask)}
        if (left_out := self._weights.jackknife).stop > left_out.start:
            some = slice(self._full, left_out.stop), slice(None), slice(None, None, _EVERY)
            sums["few.classwise"] = class_bins(p[some], mask[some[2]])
        return sums

    def release(self) -> None:
        """There is no work memory to give back."""

    def arrays(self) -> Arrays:
        """What was added, for `scores` to merge."""
        return self._blocks.arrays() | {f"sum/{name}": value[None] for name, value in self._counts.items()}

    def scores(self, units: Gathered | None = None, *, group: Int64[np.ndarray, " image"] | None = None) -> PixelScores:
        """The scores of all images added so far, or of those of `units`: the `arrays` of reductions like this one, in
        the order of the images."""
        arrays = (units or Gathered([self.arrays()])).by_kind()
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        of_images = {name: points.pop(name) for name in [*points] if "." in name}
        pixels = sums["pixels"]
        return PixelScores(
            n=len(points["pixels"]),
            points=points,
            replicates={name: sums[name] / max(1.0, float(pixels)) for name in PIXEL_MEANS if name in sums},
            ranked={name.partition(".")[2]: value for name, value in draws.items() if name.startswith("ranked.")},
            ranked_rows=np.arange(len(points["pixels"])),
            group=group,
            samples_differ=estimates.samples_differ(arrays["most"]),
            of_pixels={name: value for name, value in sums.items() if "." in name},
            of_images=of_images,
            pll_by_temperature=draws.get("by_temperature"),
        )


@dataclass
class _Open:
    """Images of which not all draws were added: means over the draws of each part, and what else is needed of them."""

    p: Float[Tensor, "part image class pixel"]
    entropy: Float[Tensor, "part image pixel"]
    max_logit: Float[Tensor, "part image pixel"]  # negative, as is the energy: larger is more uncertain
    energy: Float[Tensor, "part image pixel"]
    first: Float[Tensor, "image class pixel"]  # the logits of the first draw
    shape: tuple[int, int]
    size: float
    rounding: float
    apart: Float[Tensor, ""]
    draws: int = 0
    grid: list[Tensor] = field(default_factory=list)
    predicted: list[Tensor] = field(default_factory=list)  # the class of each pixel in each draw, where there are masks

    @staticmethod
    def of(sample: Float[Tensor, "image class row column"], parts: int) -> _Open:
        images, classes, height, width = sample.shape
        dtype = torch.float32 if classes * height * width > _LARGE else torch.float64
        shapes = (parts, images, classes, height * width), *[(parts, images, height * width)] * 3
        p, *sums = (torch.zeros(shape, dtype=dtype, device=sample.device) for shape in shapes)
        rounding = min(128 * torch.finfo(sample.dtype).eps, estimates.HALF_ROUNDING)
        size = float(torch.stack([sample.amax(), -sample.amin()]).max())
        apart = torch.zeros((), dtype=sample.dtype, device=sample.device)
        first = sample.flatten(2).clone()
        return _Open(p, *sums, first=first, shape=(height, width), size=size, rounding=rounding, apart=apart)

    def add(
        self, at: tuple[int, int, slice], sample: Float[Tensor, "class pixel"], tau: float, share: float
    ) -> Float[Tensor, ""]:
        """Add logits, divided by `tau`, to the mean of a part of the draws, an image and some pixels of it; how far
        they are from those of the first draw."""
        logits = sample.double() / tau
        log_total = logits.logsumexp(0)
        largest = logits.amax(0)
        log_p = logits.sub_(log_total)
        p = log_p.exp()
        entropy = log_p.clamp_min_(_UNDERFLOW).mul_(p).sum(0)
        part, image, pixels = at
        self.p[part, image, :, pixels].add_(p, alpha=share)
        for total, value in ((self.entropy, entropy), (self.max_logit, largest), (self.energy, log_total)):
            total[at].sub_(value, alpha=share)
        return (sample - self.first[image, :, pixels]).abs().amax()


@dataclass(frozen=True)
class _Region:
    """The pixels of an image: how many are scored, the numbers of those that pass, the class of each, its distance
    from the nearest class boundary, and what of the image passes."""

    count: int
    rows: Int64[Tensor, " row"]
    mask: Int64[Tensor, " pixel"] | None
    distance: Float[Tensor, " pixel"] | None
    plane: Bool[np.ndarray, "height width"]


def stored_maps(maps: Mapping[str, np.ndarray], classes: int) -> dict[str, np.ndarray]:
    """The maps of an image as a file has them: classes as the smallest numbers, and scores in float32. What follows
    from others is left out: least confidence, and without a second draw the expected entropy."""
    left_out = {"least_confidence"} | (set() if "mutual_information" in maps else {"expected_entropy"})
    kinds = {"predicted": np.min_scalar_type(classes - 1)}
    return {name: plane.astype(kinds.get(name, np.float32)) for name, plane in maps.items() if name not in left_out}


def bytes_of_maps(plan: RunPlan) -> int:
    """The bytes of the stored maps of an image by one method, at most: the class, all scores but one, and the largest
    probability."""
    return math.prod(plan.image or ()) * (2 + 4 * len(PIXEL_SCORES))


def uncertainty_of(names: Iterable[str]) -> str:
    """The score by which images are judged: MI where there are several draws."""
    return "mutual_information" if "mutual_information" in names else "predictive_entropy"


def _grid(pixels: int) -> slice:
    return slice(None, None, max(1, pixels // _GRID))


@dataclass(frozen=True)
class PixelScores(estimates.SetScores):
    """The scores of one set of images. `points` are means over the pixels of each image, and its number of `pixels`.

    `of_pixels` are the sums over all pixels that other estimates follow from, under every replicate: by class, by bin
    of confidence, and histograms of the scores; `of_images` are those of each image under all draws.
    """

    of_pixels: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    of_images: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    pll_by_temperature: Float[np.ndarray, "temperature image"] | None = field(default=None, kw_only=True)
