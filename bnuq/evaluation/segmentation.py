"""The estimates of a segmentation from blocks of logits: each pixel is classified, and the images are independent.

Of every image only sums over its pixels are kept: under every replicate those of all images together, and of all draws
those of each image. An estimate over pixels is that of the pixels of all images. Its error over images follows from
what each image contributes to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from bnuq import metrics
from bnuq.config import Run
from bnuq.data import Masks, Points
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates, failing_images
from bnuq.evaluation.classification import limits_of
from bnuq.evaluation.units import Blocks, merged
from bnuq.files.journal import Arrays
from bnuq.findings import Finding
from bnuq.metrics import COARSE_BINS, SCORE_BINS, CalibrationBins, DrawWeights, LogitMaps, SelectiveScores
from bnuq.metrics.arrays import as_numpy
from bnuq.records.evaluation import BAND, PIXEL_MEANS, PIXEL_SCORES, REACH, MethodResult, Samples, SetResult

PARTS, FEW_PARTS = 32, 8  # of the draws, each of which is left out once for the Monte Carlo error
_LARGE = 2**23  # probabilities of an image, above which there are few parts, in float32
_BLOCK = 2**21  # replicates × classes × pixels in memory at once
_GRID = 2048  # pixels of an image, on a regular grid, that a temperature is fitted to
_BINS = 15  # of confidence
_SIGNED = ("max_logit", "energy")
_TINY = float(np.finfo(np.float64).tiny)  # makes 0·ln 0 equal 0
_UNDERFLOW = -1000.0
_AT_BOUNDARIES = ("mutual_information", "predictive_entropy")
_PLACES = ("boundary", "interior")  # of pixels: up to BAND from a class boundary, and further away
_OF_IMAGES = ("class.", "bins.", "near.", "band.", "distance.")  # sums that are kept of each image
_COUNTS = ("histogram.", "replicates.", "class.")  # of pixels, as sums of whole numbers
_SUMS_OF_BINS = "count", "confidence", "correct"
_OF_TRUTH = {"accuracy", "pll", "brier"}
_ANOMALY = 1  # in the masks of an OOD set, where 0 is what the network knows


def parts_of_draws(samples: int, probabilities: int) -> tuple[range, ...]:
    """The draws in consecutive parts, for the Monte Carlo error: one draw each, or fewer parts where there are many
    draws, or many `probabilities` of an image."""
    count = min(samples, FEW_PARTS if probabilities > _LARGE else PARTS)
    ends = np.linspace(0, samples, count + 1).round().astype(int)
    return tuple(range(a, b) for a, b in pairwise(ends))


class Reduction:
    """Takes outputs (t, images, K, H, W), all draws of some images before those of the next ones, and gives the Scores.

    `weights` are those of the `parts` of the draws. Pixels where the mask is `ignore` are not scored. The masks of a
    set that is not `labelled` say what is an anomaly, 1, and what is not, 0. The logits of each image are divided by
    its `temperature`; with `fits_temperature` the PLL under many temperatures is kept, for pixels on a regular grid.
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
    ) -> None:
        self._weights, self._parts = weights, parts
        self._classes, self._ignore = classes, ignore
        self._masks, self._labelled = masks, labelled
        self._temperature, self._fits_temperature = temperature, fits_temperature
        self._n, self._where = first, where  # the number of the next image
        self._open: _Open | None = None
        self._blocks, self._counts = Blocks(), dict[str, np.ndarray]()
        self.maps: list[dict[str, np.ndarray]] | None = None  # of each image, where they are kept

    def add(self, outputs: Float[Tensor, "sample image class row column"]) -> None:
        """Add further draws of the images at hand; SamplingError where an output is not finite."""
        block = outputs.cpu() if outputs.device.type == "mps" else outputs
        with torch.inference_mode():
            for sample in block:
                self._add_draw(sample)
            opened = self._open
            if opened is not None and opened.draws == self._parts[-1].stop:
                self._close(opened)

    def _add_draw(self, sample: Float[Tensor, "image class row column"]) -> None:
        logits = sample.flatten(2).double()
        if self._temperature is not None:
            of_images = self._temperature[self._n : self._n + len(logits)]
            logits = logits / torch.tensor(of_images, device=logits.device)[:, None, None]
        if self._open is None:
            self._open = _Open.of(logits, sample, len(self._parts))
        opened = self._open
        apart = float((logits - opened.first).abs().max())
        if not math.isfinite(apart):
            image = int((~logits.isfinite().flatten(1).all(1)).nonzero()[0, 0])
            raise estimates.not_finite(self._n + image, self._where)
        opened.apart = max(opened.apart, apart)
        part = next(number for number, draws in enumerate(self._parts) if opened.draws in draws)
        log_total = logits.logsumexp(1)
        log_p = logits - log_total[:, None]
        p = log_p.exp()
        share = 1 / len(self._parts[part])
        opened.p[part] += share * p
        opened.entropy[part] -= share * log_p.clamp_min_(_UNDERFLOW).mul_(p).sum(1)
        opened.max_logit[part] -= share * logits.amax(1)
        opened.energy[part] -= share * log_total
        if self._fits_temperature:
            opened.grid.append(logits[:, :, _grid(logits.shape[2])])
        opened.draws += 1

    def _close(self, opened: _Open) -> None:
        """All draws of the images at hand were added."""
        images, device = opened.p.shape[1], opened.p.device
        masks = None
        if self._masks is not None:
            rows = np.arange(self._n, self._n + images)
            masks = torch.from_numpy(self._masks[rows]).flatten(1).to(device)
        for image in range(images):
            self._add_image(opened, image, None if masks is None else masks[image])
        if self._fits_temperature and masks is not None:
            columns = [self._by_temperature(opened, image, mask) for image, mask in enumerate(masks)]
            self._blocks.add("draw", {"by_temperature": np.stack(columns, axis=1)})
        values = {"apart": opened.apart, "size": opened.size, "rounding": opened.rounding}
        self._blocks.add("most", {name: np.array(value) for name, value in values.items()})
        self._n, self._open = self._n + images, None

    def _by_temperature(self, opened: _Open, image: int, mask: Tensor) -> Float[np.ndarray, " temperature"]:
        grid = _grid(len(mask))
        valid = mask[grid] != self._ignore
        if not bool(valid.any()):
            return np.zeros(len(metrics.TEMPERATURES))
        logits = torch.stack([draw[image][:, valid] for draw in opened.grid]).movedim(1, -1)
        return as_numpy(metrics.pll_by_temperature(logits, mask[grid][valid])).sum(1) / len(valid)

    def _add_image(self, opened: _Open, image: int, mask: Tensor | None) -> None:
        pixels, full, left_out = opened.p.shape[3], self._weights.full.start, self._weights.jackknife
        valid = torch.ones(pixels, dtype=torch.bool, device=opened.p.device)
        if mask is not None:
            valid = mask != self._ignore if self._labelled else (mask == 0) | (mask == _ANOMALY)
        count = int(valid.sum())
        distance = None
        if mask is not None and self._labelled:
            truth = as_numpy(mask).reshape(opened.shape)
            far = np.minimum(metrics.boundary_distance(truth, truth != self._ignore), REACH)
            distance = torch.from_numpy(far).flatten().to(valid.device)
        if not count:  # only the scores of such an image are used, of all its pixels
            valid, mask = torch.ones_like(valid), None if mask is None else mask.clamp(0, self._classes - 1)
        rows = valid.nonzero()[:, 0]
        step = max(1, _BLOCK // (len(self._weights.weights) * self._classes))
        total: dict[str, np.ndarray] = {}
        kept: list[tuple[Tensor, Tensor]] = []  # uncertainty and prediction under all draws
        for at in rows.split(step):
            values = self._of_pixels(opened, image, at, mask)
            kept.append((values[_uncertainty(values)][full], values["predicted"][full]))
            here = (None if of is None else of[at] for of in (mask, distance))
            for name, value in self._sums(values, *here).items():
                total[name] = total[name] + value if name in total else value
        of_image = {name: total[name][full] / len(rows) for name in PIXEL_MEANS if name in total}
        ranked = {n: (total[n][left_out] / len(rows))[:, None] for n in PIXEL_SCORES if n in total}
        if not count:
            total = {name: 0 * value for name, value in total.items()}
            of_image |= dict.fromkeys(_OF_TRUTH & of_image.keys(), 0.0)
        of_image |= {name: value[full] for name, value in total.items() if name.startswith(_OF_IMAGES)}
        for name in PIXEL_SCORES:
            if (histogram := total.get(f"histogram.{name}")) is not None:
                of_image[f"coarse.{name}"] = metrics.coarse_histogram(histogram).astype(np.uint32)
        if distance is not None:
            region = as_numpy(valid).reshape(opened.shape)
            planes = (np.zeros(opened.shape), np.zeros(opened.shape, np.int64))
            for plane, of_chunks in zip(planes, zip(*kept, strict=True), strict=True):
                plane[region] = as_numpy(torch.cat(of_chunks))
            found = failing_images.aggregated(*planes, region)
            of_image |= {f"map.{name}": np.float64(value) for name, value in found.items()}
        self._blocks.add("point", {name: np.asarray(value)[None] for name, value in of_image.items()})
        self._blocks.add("point", {"pixels": np.array([float(count)])})
        counts = {name for name in total if name.startswith(_COUNTS)}
        for name in counts:  # exact in any order, and too large to be kept of each image
            self._counts[name] = self._counts[name] + total[name] if name in self._counts else total[name]
        sums = {name: value for name, value in total.items() if name not in counts}
        self._blocks.add("sum", sums | {"pixels": np.array(float(count))})
        if left_out.start < left_out.stop:
            self._blocks.add("draw", {f"ranked.{name}": value.astype(np.float32) for name, value in ranked.items()})
        if self.maps is not None:
            self.maps.append(self._maps(opened, image, mask, step))

    def _maps(self, opened: _Open, image: int, mask: Tensor | None, step: int) -> dict[str, np.ndarray]:
        """The scores of all draws and the classes of an image, (H, W) each."""
        parts: dict[str, list[np.ndarray]] = {}
        for at in torch.arange(opened.p.shape[3], device=opened.p.device).split(step):
            values = self._of_pixels(opened, image, at, None)
            for name in ("predicted", *PIXEL_SCORES):
                if name in values:
                    parts.setdefault(name, []).append(as_numpy(values[name][self._weights.full.start]))
        maps = {name: np.concatenate(values).reshape(opened.shape) for name, values in parts.items()}
        return maps if mask is None else maps | {"truth": as_numpy(mask).reshape(opened.shape)}

    def _of_pixels(
        self, opened: _Open, image: int, at: Int64[Tensor, " pixel"], mask: Tensor | None
    ) -> dict[str, Tensor]:
        """The scores of these pixels under every replicate."""
        weights = torch.from_numpy(self._weights.weights).to(opened.p.device)
        p = opened.p[:, image][:, :, at].double()
        mean = (weights @ p.flatten(1)).view(len(weights), *p.shape[1:])
        confidence, predicted = mean.max(1)
        values = {
            "predicted": predicted,
            "max_probability": confidence,
            "least_confidence": 1 - confidence,
            "predictive_entropy": -(mean + _TINY).log_().mul_(mean).sum(1),
            "expected_entropy": weights @ opened.entropy[:, image, at].double(),
        }
        if self._parts[-1].stop > 1:
            values["mutual_information"] = values["predictive_entropy"] - values["expected_entropy"]
        if self._temperature is None:
            values["max_logit"] = weights @ opened.max_logit[:, image, at].double()
            values["energy"] = weights @ opened.energy[:, image, at].double()
        if mask is not None and self._labelled:
            y = mask[at]
            of_truth = mean.gather(1, y.expand(len(mean), 1, -1))[:, 0]
            values["pll"] = of_truth.log()
            values["accuracy"] = (predicted == y).double()
            values["brier"] = mean.square().sum(1) - 2 * of_truth + 1
        return values

    def _sums(
        self, values: Mapping[str, Tensor], mask: Tensor | None, distance: Tensor | None
    ) -> dict[str, np.ndarray]:
        """The sums over these pixels: of scores and classes under every replicate, and the histogram of each score, on
        one or on both sides of what it is to tell apart; `distance` is that from the nearest class boundary."""
        full, left_out = self._weights.full.start, self._weights.jackknife
        sums = {name: as_numpy(values[name].sum(1)) for name in PIXEL_MEANS if name in values}
        sums["class.predicted"] = _counted(values["predicted"], self._classes)
        side, sides = None, 1
        if mask is not None and self._labelled:
            right = values["accuracy"]
            side, sides = (right == 0).long(), 2
            truth = mask.expand(len(right), -1)
            sums["class.true"] = _counted(truth, self._classes)
            sums["class.common"] = _counted(truth, self._classes, right).astype(np.int64)
            edges = torch.arange(1, _BINS, device=mask.device, dtype=torch.float64) / _BINS
            confidence = values["max_probability"]
            cells = torch.bucketize(confidence, edges)
            near = torch.ones_like(mask, dtype=torch.bool) if distance is None else distance <= BAND
            for name, summed in (("count", None), ("confidence", confidence), ("correct", right)):
                sums[f"bins.{name}"] = _counted(cells, _BINS, summed)
                of_near = None if summed is None else summed[:, near]
                sums[f"near.{name}"] = _counted(cells[:, near], _BINS, of_near)
            if distance is not None:
                sums |= _by_distance({**values, "error_rate": 1 - right}, distance, full)
        elif mask is not None:
            side, sides = (mask == _ANOMALY).long().expand_as(values["predicted"]), 2
        for name in (name for name in PIXEL_SCORES if name in values):
            bins = metrics.score_bins(values[name], signed=name in _SIGNED).long()
            for kind, rows, found, size in (
                ("histogram", slice(full, full + 1), bins, SCORE_BINS),
                ("replicates", left_out, bins // (SCORE_BINS // COARSE_BINS), COARSE_BINS),
            ):
                if rows.start < rows.stop:
                    placed = found[rows] if side is None else found[rows] + size * side[rows]
                    counts = _counted(placed, sides * size).reshape(-1, sides, size)
                    sums[f"{kind}.{name}"] = counts[0] if kind == "histogram" else counts
        return sums

    def release(self) -> None:
        """There is no work memory to give back."""

    def arrays(self) -> Arrays:
        """What was added, for `scores` to merge."""
        return self._blocks.arrays() | {f"sum/{name}": value[None] for name, value in self._counts.items()}

    def scores(
        self, units: Iterable[Arrays] | None = None, *, group: Int64[np.ndarray, " image"] | None = None
    ) -> Scores:
        """The scores of all images added so far, or of those of `units`: the `arrays` of reductions like this one, in
        the order of the images."""
        arrays = merged([self.arrays()] if units is None else units)
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        of_images = {name: points.pop(name) for name in [*points] if "." in name}
        pixels = sums["pixels"]
        return Scores(
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
    apart: float = 0.0
    draws: int = 0
    grid: list[Tensor] = field(default_factory=list)

    @staticmethod
    def of(logits: Float[Tensor, "image class pixel"], sample: Tensor, parts: int) -> _Open:
        images, classes, pixels = logits.shape
        dtype = torch.float32 if classes * pixels > _LARGE else torch.float64
        shapes = (parts, images, classes, pixels), *[(parts, images, pixels)] * 3
        p, *sums = (torch.zeros(shape, dtype=dtype, device=logits.device) for shape in shapes)
        rounding = min(128 * torch.finfo(sample.dtype).eps, estimates.HALF_ROUNDING)
        size, shape = float(logits.abs().max()), (sample.shape[2], sample.shape[3])
        return _Open(p, *sums, first=logits, shape=shape, size=size, rounding=rounding)


def _uncertainty(names: Iterable[str]) -> str:
    """The score by which images are judged: MI where there are several draws."""
    return "mutual_information" if "mutual_information" in names else "predictive_entropy"


def _grid(pixels: int) -> slice:
    return slice(None, None, max(1, pixels // _GRID))


def _counted(
    numbers: Int64[Tensor, "row pixel"], bins: int, values: Tensor | None = None
) -> Num[np.ndarray, "row bin"]:
    """How often each of 0 … bins − 1 occurs in each row, or the sum of the values there."""
    rows = torch.arange(len(numbers), device=numbers.device)[:, None]
    weights = None if values is None else values.expand_as(numbers).flatten()
    total = torch.bincount((numbers + bins * rows).flatten(), weights, minlength=bins * len(numbers))
    return as_numpy(total).reshape(len(numbers), bins)


def _by_distance(values: Mapping[str, Tensor], distance: Tensor, full: int) -> dict[str, np.ndarray]:
    """The sums over pixels near class boundaries and over those inside, under every replicate, and of all draws those
    at each whole distance."""
    known: dict[str, Tensor] = {name: values[name] for name in _AT_BOUNDARIES if name in values}
    band = (distance > BAND).long().expand_as(values["predicted"])
    place = distance.long()[None]
    sums = {f"band.{name}": _counted(band, len(_PLACES), value) for name, value in known.items()}
    sums["band.count"] = _counted(band, len(_PLACES))
    for name, value in (known | {"error_rate": values["error_rate"]}).items():
        sums[f"distance.{name}"] = _counted(place, REACH + 1, value[full : full + 1])
    return sums | {"distance.count": _counted(place, REACH + 1)}


@dataclass(frozen=True)
class Scores(estimates.SetScores):
    """The scores of one set of images. `points` are means over the pixels of each image, and its number of `pixels`.

    `of_pixels` are the sums over all pixels that other estimates follow from, under every replicate: by class, by bin
    of confidence, and histograms of the scores; `of_images` are those of each image under all draws.
    """

    of_pixels: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    of_images: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    pll_by_temperature: Float[np.ndarray, "temperature image"] | None = field(default=None, kw_only=True)


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Estimated:
    """An estimate under every replicate, and what each image contributes to it: the mean of these is the estimate."""

    replicates: Float[np.ndarray, " replicate"]
    contributions: Float[np.ndarray, " image"]


def set_result(scores: Scores, draws: DrawWeights, names: Sequence[str]) -> SetResult:
    """The estimates over the pixels of one set, and those by class, whose `names` these are."""
    points, pixels = scores.points, scores.points["pixels"]
    found = {
        name: _Estimated(replicates, metrics.ratio_contributions(scores.points[name] * pixels, pixels))
        for name, replicates in scores.replicates.items()
    }
    by_class: dict[str, dict[str, Estimate]] = {}
    of_classes: dict[str, np.ndarray] = {}
    of_images: dict[str, tuple[float, np.ndarray]] = {}
    if "class.true" in scores.of_pixels:
        found |= {"ece": _ece(scores)} | _selective(scores, draws) | _at_boundaries(scores)
        found["mean_iou"], by_class, of_classes = _overlap(scores, draws, names)
        points = points | _overlap_of_images(scores)
        of_maps = _of_maps(scores, names)
        of_images = {
            f"image_aurc_{name}": (value, contributions)
            for name, value, contributions in failing_images.aurc_of_images(of_maps, points["dice"])
        }
        points |= {f"map_{name}": values for name, values in of_maps.items() if name != "mean"}
    ordered = {name: found[name] for name in metrics.METRICS if name in found}
    result = {name: _estimate(name, each, scores, draws) for name, each in ordered.items()}
    for name, (value, contributions) in of_images.items():
        error = metrics.standard_error(contributions, group=scores.group)
        result[name] = Estimate(value, se=estimates.error_over_points(error, scores))
        of_classes[name] = contributions
    if "temperature" in scores.points:
        result["temperature"] = Estimate(float(np.mean(scores.points["temperature"])))
    return SetResult(
        estimates=result,
        points=points,
        predicted=scores.of_images["class.predicted"].astype(np.int64),
        contributions={n: each.contributions for n, each in ordered.items() if n not in PIXEL_MEANS} | of_classes,
        by_class=by_class,
    )


def _estimate(name: str, each: _Estimated, scores: Scores, draws: DrawWeights) -> Estimate:
    se = estimates.error_over_points(metrics.standard_error(each.contributions, group=scores.group), scores)
    limits = limits_of(name.removesuffix("_boundary").removesuffix("_interior"), "plug-in")
    return estimates.of_replicates(name, each.replicates, draws, se=se, limits=limits)


def _ece(scores: Scores, kind: str = "bins") -> _Estimated:
    of_images = np.stack([scores.of_images[f"{kind}.{name}"] for name in _SUMS_OF_BINS], axis=1)
    return _Estimated(np.asarray(metrics.ece_of_bins(_bins(scores, kind))), metrics.ece_contributions(of_images))


def _bins(scores: Scores, kind: str = "bins") -> CalibrationBins:
    return CalibrationBins(*(scores.of_pixels[f"{kind}.{name}"] for name in _SUMS_OF_BINS))


def _at_boundaries(scores: Scores) -> dict[str, _Estimated]:
    """The mean uncertainty of the pixels near class boundaries and of those inside, and the ECE near boundaries, where
    there are such pixels."""
    count, of_images = scores.of_pixels["band.count"], scores.of_images["band.count"]
    found = {"ece_boundary": _ece(scores, "near")} if count[0, 0] else {}
    for name in (name for name in _AT_BOUNDARIES if f"band.{name}" in scores.of_pixels):
        for at, place in enumerate(_PLACES):
            if count[0, at]:
                found[f"{name}_{place}"] = _Estimated(
                    scores.of_pixels[f"band.{name}"][:, at] / count[:, at],
                    metrics.ratio_contributions(scores.of_images[f"band.{name}"][:, at], of_images[:, at]),
                )
    return found


def _selective(scores: Scores, draws: DrawWeights) -> dict[str, _Estimated]:
    """AURC, AUGRC, risk and coverage of the pixels, by predictive entropy."""
    score = "predictive_entropy"
    found = vars(metrics.selective_of_histograms(*scores.of_pixels[f"histogram.{score}"]))
    value = SelectiveScores(**{name: float(each) for name, each in found.items()})
    coarse = scores.of_images[f"coarse.{score}"].astype(np.int64)
    contributions = vars(metrics.selective_contributions(coarse[:, 0], coarse[:, 1], values=value))
    moved = dict.fromkeys(vars(value), np.zeros(0))
    if (left_out := scores.of_pixels.get(f"replicates.{score}")) is not None:
        before = vars(metrics.selective_of_histograms(*coarse.sum(0)))
        after = vars(metrics.selective_of_histograms(left_out[:, 0], left_out[:, 1]))
        moved = {name: after[name] - before[name] for name in after}
    result = {}
    for name, of_all in vars(value).items():
        replicates = np.full(len(draws.weights), float(of_all))
        replicates[draws.jackknife] = np.clip(replicates[draws.jackknife] + moved[name], 0, 1)
        result[name] = _Estimated(replicates, contributions[name])
    return result


def _overlap(
    scores: Scores, draws: DrawWeights, names: Sequence[str]
) -> tuple[_Estimated, dict[str, dict[str, Estimate]], dict[str, np.ndarray]]:
    """The mean IoU over the classes that occur; by class of the masks its pixels (count), IoU, Dice, and the share of
    its pixels that are found (accuracy); and what the images contribute to these."""
    kinds, full = ("true", "predicted", "common"), draws.full.start
    counts, of_images = ([of[f"class.{kind}"] for kind in kinds] for of in (scores.of_pixels, scores.of_images))
    true, _, common = counts
    with np.errstate(invalid="ignore"):  # of classes that do not occur
        found = {
            "iou": (metrics.iou_of_counts(*counts), metrics.iou_contributions(*of_images)),
            "dice": (metrics.dice_of_counts(*counts), metrics.dice_contributions(*of_images)),
            "accuracy": (common / true, metrics.ratio_contributions(of_images[2], of_images[0])),
        }
    mean = _Estimated(*map(metrics.mean_of_present, found["iou"]))
    by_class, of_classes = {}, {}
    for k in map(int, np.flatnonzero(true[full])):
        label = names[k] if k < len(names) else str(k)
        of_class = {"count": Estimate(float(true[full, k]))}
        of_classes[f"count.{label}"] = len(of_images[0]) * of_images[0][:, k].astype(np.float64)
        for name, (replicates, contributions) in found.items():
            each = _Estimated(replicates[:, k], contributions[:, k])
            of_class[name] = _estimate(name, each, scores, draws)
            of_classes[f"{name}.{label}"] = each.contributions
        by_class[label] = of_class
    return mean, by_class, of_classes


def _overlap_of_images(scores: Scores) -> dict[str, Float[np.ndarray, " image"]]:
    """IoU and Dice of each image: their means over the classes that occur in it; NaN without scored pixels."""
    counts = [scores.of_images[f"class.{kind}"] for kind in ("true", "predicted", "common")]
    of_counts = {"iou": metrics.iou_of_counts, "dice": metrics.dice_of_counts}
    return {name: metrics.mean_of_present(of(*counts)) for name, of in of_counts.items()}


def _of_maps(scores: Scores, names: Sequence[str]) -> dict[str, Float[np.ndarray, " image"]]:
    """The aggregations of the uncertainty of each image: those of its map, of its mean, and of its histogram."""
    score = _uncertainty(scores.points)
    counts = scores.of_images[f"coarse.{score}"].sum(1, dtype=np.int64)
    values = {n.partition(".")[2]: v for n, v in scores.of_images.items() if n.startswith("map.")}
    if not failing_images.has_background(scores.of_images["class.true"].shape[1], tuple(names)):
        values.pop("foreground")
    return {"mean": scores.points[score], "share_above": failing_images.share_above(counts), **values}


_Contributions = dict[str, Float[np.ndarray, " _"]]  # of the images of a set


def pixel_detection(
    test: Scores, ood: Scores, draws: DrawWeights
) -> tuple[dict[str, dict[str, Estimate]], _Contributions, _Contributions]:
    """How well each score of a pixel separates the pixels of an OOD set from those of the test set, or, where its masks
    say what is an anomaly, from its own other pixels; with errors over images.

    Then what the images of the test set contribute, 0 in the mean, and those of the OOD set, whose mean is the
    estimate: by metric and score, such as "pixel_auroc.energy".
    """
    found: dict[str, dict[str, Estimate]] = {}
    through_test: _Contributions = {}
    through_ood: _Contributions = {}
    for name in (name for name in PIXEL_SCORES if f"histogram.{name}" in ood.of_pixels):
        found[name], of_test, of_ood = _pixel_detection(name, test, ood, draws)
        through_test |= {f"{metric}.{name}": values for metric, values in of_test.items()}
        through_ood |= {f"{metric}.{name}": values for metric, values in of_ood.items()}
    return found, through_test, through_ood


def _pixel_detection(
    score: str, test: Scores, ood: Scores, draws: DrawWeights
) -> tuple[dict[str, Estimate], _Contributions, _Contributions]:
    has_anomalies = len(ood.of_pixels[f"histogram.{score}"]) == 2

    def sides(of: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
        outside = getattr(ood, of)[f"{kind}.{score}"].astype(np.int64)
        if has_anomalies:
            return outside[..., 0, :], outside[..., 1, :]
        return getattr(test, of)[f"{kind}.{score}"].astype(np.int64).sum(-2), outside[..., 0, :]

    value = vars(metrics.detection_of_histograms(*sides("of_pixels", "histogram")))
    inside, outside = sides("of_images", "coarse")
    errors = dict.fromkeys(value, math.nan)
    through_test: _Contributions = {}
    through_ood: _Contributions = {}
    if inside.any() and outside.any():
        for name, (of_inside, of_outside) in vars(metrics.detection_influence_of_images(inside, outside)).items():
            parts = [(of_inside + of_outside, ood)] if has_anomalies else [(of_inside, test), (of_outside, ood)]
            errors[name] = math.hypot(*(metrics.standard_error(each, group=of.group) for each, of in parts))
            through_ood[f"pixel_{name}"] = float(value[name]) + parts[-1][0]
            if not has_anomalies:
                through_test[f"pixel_{name}"] = of_inside
    moved = dict.fromkeys(value, np.zeros(0))
    if f"replicates.{score}" in ood.of_pixels:
        before = vars(metrics.detection_of_histograms(inside.sum(0), outside.sum(0)))
        after = vars(metrics.detection_of_histograms(*sides("of_pixels", "replicates")))
        moved = {name: after[name] - before[name] for name in after}
    found = {
        f"pixel_{name}": estimates.estimate(
            f"pixel_{name}",
            float(of_all),
            se=estimates.error_over_points(errors[name], *([ood] if has_anomalies else [test, ood])),
            jackknife=np.clip(float(of_all) + moved[name], 0, 1),
            bootstrap=np.empty(0),
            samples=draws.samples,
        )
        for name, of_all in value.items()
    }
    return found, through_test, through_ood


class Scorer:
    """Scores the samples of a segmentation of images of so many `pixels`. Its weights are those of parts of the
    draws."""

    def __init__(self, run: Run, classes: int, pixels: int, names: Sequence[str]) -> None:
        self._ignore, self._classes, self._names = run.ignore, classes, names
        self._probabilities = classes * pixels

    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        """The replicates: all draws, each part of them left out, and the first 1, 2, 4, … parts."""
        assert bank is None  # as the request is checked
        sizes = np.array([len(part) for part in parts_of_draws(samples, self._probabilities)], dtype=np.float64)
        count = len(sizes)
        first = sorted({*(2**k for k in range((count - 1).bit_length())), count})
        left_out = 1 - np.eye(count) if count > 1 else np.empty((0, count))
        rows = np.concatenate([np.ones((1, count)), left_out, [np.arange(count) < k for k in first]]) * sizes
        end = 1 + len(left_out)
        drawn = tuple(int(sizes[:k].sum()) for k in first)
        parts = slice(0, 1), slice(1, end), slice(end, end), slice(end, len(rows))
        return DrawWeights(rows / rows.sum(1, keepdims=True), *parts, drawn, count)

    def reduction(
        self,
        weights: DrawWeights,
        points: Points,
        *,
        fitted: Any,  # noqa: ARG002 - nothing is scored by it
        labelled: bool,
        first: int = 0,
        maps: LogitMaps | None = None,
        by_class: bool = False,  # noqa: ARG002 - of whole points
        calibrates: bool = False,
        second: Any = None,  # noqa: ARG002 - of whole points
    ) -> Any:
        return Reduction(
            weights,
            parts_of_draws(weights.prefix_sizes[-1], self._probabilities),
            classes=self._classes,
            ignore=self._ignore,
            masks=points.masks,
            labelled=labelled,
            first=first,
            where=points.reference,
            temperature=None if maps is None else maps.temperature,
            fits_temperature=calibrates and maps is None,
        )

    def fitted(self, validation: Scores | None, draws: DrawWeights) -> None:  # noqa: ARG002 - nothing is
        return None

    def headline_errors(self, scores: Mapping[str, Scores], draws: DrawWeights) -> dict[str, float]:
        return estimates.headline_errors("mutual_information", "MI", scores, draws)

    def findings(self, method: str, fitted: Any) -> Iterator[Finding]:  # noqa: ARG002 - there are none
        return iter(())

    def result(
        self,
        scores: Mapping[str, Scores],
        fitted: Any,  # noqa: ARG002
        draws: DrawWeights,
        raw_samples: Mapping[str, Samples],  # noqa: ARG002 - none are kept
    ) -> MethodResult:
        test = scores["test"]
        ood = {name: of_set for name, of_set in scores.items() if name != "test"}
        sets = {name: set_result(of_set, draws, self._names) for name, of_set in scores.items()}
        pixel_ood = {}
        for name, of_set in ood.items():
            pixel_ood[name], through_test, through_ood = pixel_detection(test, of_set, draws)
            through_test = {f"{key}.{name}": values for key, values in through_test.items()}
            for of, more in (("test", through_test), (name, through_ood)):
                sets[of] = replace(sets[of], contributions={**sets[of].contributions, **more})
        return MethodResult(
            sets=sets,
            ood={name: estimates.detection_estimates(test, of_set, draws) for name, of_set in ood.items()},
            pixel_ood=pixel_ood,
            convergence=estimates.convergence_of(test, ("pll", "accuracy", "mutual_information"), draws),
            calibration=_calibration_curve(test, draws),
            risk=_risk_curve(test),
            boundary=_boundary_curve(test),
        )


def _calibration_curve(scores: Scores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """The reliability diagram of the pixels: empty where there are no masks."""
    return estimates.reliability(_bins(scores), draws) if "bins.count" in scores.of_pixels else {}


def _boundary_curve(scores: Scores) -> dict[str, np.ndarray]:
    """Mean uncertainty and error rate of the pixels at each whole distance from the nearest class boundary, NaN where
    there are none; empty where there are no masks."""
    sums = {n.partition(".")[2]: v[0] for n, v in scores.of_pixels.items() if n.startswith("distance.")}
    if not sums:
        return {}
    count = sums.pop("count")
    with np.errstate(invalid="ignore"):
        means = {name: total / count for name, total in sums.items()}
    return {"distance": np.arange(len(count)), "count": count.astype(np.int64), **means}


def _risk_curve(scores: Scores) -> dict[str, np.ndarray]:
    """Error rate of the most certain pixels (by predictive entropy) by coverage; empty where there are no masks."""
    if "class.true" not in scores.of_pixels:
        return {}
    histogram = scores.of_pixels["histogram.predictive_entropy"]
    coverage, risk = metrics.risk_coverage_of_histograms(*histogram)
    return {"coverage": coverage, "risk": risk}
