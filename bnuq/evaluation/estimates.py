"""What the estimates of all tasks share: replicates over the draws, errors, and OOD separation.

A replicate is a weighting of the T draws: all of them, each left out, bootstrap, the first k. Every estimate is
computed for every replicate while the points stream past, so that its Monte Carlo error never needs the samples again.
Where points use their own T draws of a bank, a replicate is a weighting of the bank.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from bnuq import metrics
from bnuq.errors import SamplingError
from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.files.mapped import unload
from bnuq.frozen import frozen
from bnuq.metrics import CalibrationBins, DrawWeights
from bnuq.metrics.arrays import Array, array_namespace
from bnuq.metrics.registry import metric_of, scores_among
from bnuq.metrics.replicates import independent_units
from bnuq.sampling import counter_rng
from bnuq.shapes import Float, Int64

RESAMPLES = 100  # bootstrap replicates over draws
MIN_SAMPLES = 8  # below this many draws no Monte Carlo error is given
RANKED = 10_000  # points of each set, chosen at random, on which the Monte Carlo error of rank estimates is measured
RESAMPLED = 20_000  # points up to which OOD estimates are resampled 1000 times; of more points, fewer times
LEAST_RESAMPLED = 200  # but at least so many

_ROUNDED = 1e-6  # by which rounding in float32 may take a mean of probabilities or nats out of its range
HALF_ROUNDING = 0.03  # relative difference of outputs in half precision that counts as rounding


def on_host(block: Array) -> bool:
    """Whether the values are in the memory of the process."""
    if isinstance(block, np.ndarray):
        return True
    from bnuq import devices

    return devices.is_host(block.device)


def as_block(values: Array, block: Array) -> Array:
    """The values as those of a block are: an array, or a tensor on its device."""
    if isinstance(block, np.ndarray):
        return values
    import torch

    from bnuq import devices

    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    return devices.upload(tensor, block.device)


def fetched(values: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """The values as arrays of the host, which waits for an accelerator once."""
    if all(isinstance(value, np.ndarray | np.generic) for value in values.values()):
        return {name: np.asarray(value) for name, value in values.items()}
    from bnuq import devices

    return devices.fetch(values)


def without_gradients(block: Array) -> AbstractContextManager[object]:
    """A context in which no operation on such a block is recorded."""
    if isinstance(block, np.ndarray):
        return nullcontext()
    import torch

    return torch.inference_mode()


def replicate_weights(samples: int, bank: int | None = None) -> DrawWeights:
    """The weights of all replicates over T draws, or over a bank of which points use T. Every run of as many draws has
    the same weights, so that runs can be paired."""
    return metrics.draw_weights(samples, resamples=RESAMPLES, seed=0, bank=bank)


@frozen
class SetScores:
    """The scores of one evaluated set under one method.

    `points` maps a name to a per-point value of all draws together; `replicates` maps the name of a mean to its value
    under every replicate; `ranked` maps an OOD score to its per-point values under the leave-one-out and bootstrap
    replicates, for the points `ranked_rows`.
    """

    n: int
    points: dict[str, Float[np.ndarray, " point"]]
    replicates: dict[str, Float[np.ndarray, " replicate"]]
    ranked: dict[str, Float[np.ndarray, "error_replicate kept"]]
    ranked_rows: Int64[np.ndarray, " kept"]
    log_likelihood: Float[np.ndarray, "sample point"] | None = field(default=None, kw_only=True)
    group: Int64[np.ndarray, " point"] | None = field(default=None, kw_only=True)
    samples_differ: bool = field(default=True, kw_only=True)

    @classmethod
    def among(cls, scores: SetScores) -> Self:
        """The same scores, which are of this kind where a scorer of this task made them."""
        assert isinstance(scores, cls)
        return scores

    def unload(self) -> None:
        """Take values of points that lie in files out of memory, until they are used again."""
        unload(self.points.values())


def ranked_rows(points: int, most: int | None = None) -> Int64[np.ndarray, " kept"]:
    """The points of a set whose replicates are stored: all, or RANKED of them at random, because sets may be sorted; at
    `most` so many."""
    count = RANKED if most is None else min(most, RANKED)
    return np.arange(points) if points <= count else _random_rows(points, count)


@lru_cache(maxsize=8)
def _random_rows(points: int, count: int) -> Int64[np.ndarray, " kept"]:
    return np.sort(counter_rng.batch_indices(0, 0, population=points, batch_size=count, purpose=counter_rng.RANKED))


def spread(outputs: Float[Array, "sample chunk output"], *, first: int, made_in: Any, where: str = "") -> Arrays:
    """How much the outputs of the samples differ, how large they are, and the relative difference that is rounding in
    the type `made_in` that they were computed in.

    SamplingError where an output is not finite, with the point's number, from `first` on, and its set `where`.
    """
    apart, size = (np.array(value.item()) for value in apart_and_size(outputs).values())
    if not np.isfinite(size):
        xp = array_namespace(outputs)
        is_finite = xp.all(xp.all(xp.isfinite(outputs), axis=-1), axis=0)
        raise not_finite(first + int(xp.argmin(xp.astype(is_finite, xp.int8))), where)
    return with_rounding(apart, size, made_in)


def apart_and_size(outputs: Float[Array, "sample chunk output"]) -> dict[str, Array]:
    """How much the outputs of the samples differ, and how large they are: NaN where any is. An output of a smaller
    scale counts as one of the largest."""
    xp = array_namespace(outputs)
    high, low = xp.max(outputs, axis=0), xp.min(outputs, axis=0)
    with np.errstate(invalid="ignore"):  # of infinite outputs
        moved = xp.max(xp.maximum(high - outputs[0], outputs[0] - low), axis=0)
        sizes = xp.max(xp.maximum(abs(high), abs(low)), axis=0)
        size = xp.max(sizes)
        return {"apart": xp.max(moved / xp.where(sizes == 0, xp.ones_like(sizes), sizes)) * size, "size": size}


def with_rounding(apart: np.ndarray, size: np.ndarray, made_in: Any) -> Arrays:
    """`spread`, from these parts."""
    return {"apart": apart, "size": size, "rounding": np.array(min(128 * _eps(made_in), HALF_ROUNDING))}


def _eps(made_in: Any) -> float:
    """The relative rounding of a floating-point type of numpy or torch."""
    if isinstance(made_in, np.dtype | type):
        return float(np.finfo(made_in).eps)
    import torch  # a type of its own, so it is there

    return torch.finfo(made_in).eps


def not_finite(point: int, where: str) -> SamplingError:
    """The error for an output that is not finite, of this point of those evaluated of the set `where`."""
    set_name = where and f" of {where}"
    return SamplingError(
        f"the network's output for example {point}{set_name} (counted from 0) is not finite (NaN or inf). Fix or leave "
        "out that example; where numbers overflow in the network, try --precision float64."
    )


def samples_differ(spread: Arrays) -> bool:
    """Whether any output of any sample differs from that of the first sample by more than rounding."""
    return bool(spread["apart"] > spread["rounding"] * spread["size"])


@frozen
class ReplicateWeights:
    """The weights over the draws that a batch of points uses, of its kind of array and on its device, and the row of
    each replicate in them."""

    draws: DrawWeights
    array: Float[Array, "row sample"]
    rows: Int64[np.ndarray, " replicate"] | None = None  # None: replicate i is row i
    numbers: Int64[np.ndarray, " sample"] | None = None  # of the draws in a bank

    @staticmethod
    def of(weights: DrawWeights, draws: Int64[np.ndarray, " sample"] | None = None) -> ReplicateWeights:
        """The weights over all draws, or over these `draws` of a bank."""
        subset, rows = (weights, None) if draws is None else weights.among(draws)
        return ReplicateWeights(subset, subset.weights, rows, draws)

    def like(self, block: Array) -> ReplicateWeights:
        """These weights as the samples of a block are: as an array, or as a tensor on its device."""
        if isinstance(self.array, np.ndarray) and isinstance(block, np.ndarray):
            return self
        return replace(self, array=as_block(self.array, block))

    def of_replicates(self, bins: CalibrationBins) -> CalibrationBins:
        """The bins of every replicate, from those of every row of weights."""
        if self.rows is None:
            return bins
        return CalibrationBins(*(values[self.rows] for values in (bins.count, bins.confidence, bins.correct)))


def headline_errors(
    name: str, scores: Mapping[str, SetScores], draws: DrawWeights, requested: float
) -> dict[str, float]:
    """Monte Carlo errors of the estimates that decide whether T draws suffice, by their names in words, in units of the
    error that each may have.

    The mean of the uncertainty `name` on every set may have the `requested` share of its value; PLL on the test set,
    where there is one, and AUROC of every OOD set by that uncertainty a tenth of it, in nats and absolute.
    """
    test, label, absolute, errors = scores["test"], metric_of(name).label, requested / 10, {}
    for set_name, set_scores in scores.items():
        replicates = set_scores.replicates[name]
        value = abs(float(replicates[draws.full][0]))
        error = float(metrics.jackknife_error(replicates[draws.jackknife]))
        errors[f"{label} on {set_name}"] = error / value / requested if value else math.inf
    if "pll" in test.replicates:
        error = float(metrics.jackknife_error(test.replicates["pll"][draws.jackknife]))
        errors[f"{metric_of('pll').label} on test"] = error / absolute
    left_out = slice(draws.jackknife.stop - draws.jackknife.start)
    for set_name, set_scores in scores.items():
        if set_name != "test":
            pairs = zip(test.ranked[name][left_out], set_scores.ranked[name][left_out], strict=True)
            error = metrics.jackknife_error(np.array([metrics.auroc(inside, outside) for inside, outside in pairs]))
            errors[f"{metric_of('auroc').label} of {set_name} by {label}"] = float(error) / absolute
    return errors


def convergence_of(scores: SetScores, names: Sequence[str], draws: DrawWeights) -> dict[str, np.ndarray]:
    """These means, where the set has them, of the first 1, 2, 4, … and T draws; empty for a single draw."""
    if draws.samples == 1:
        return {}
    present = {name: scores.replicates[name][draws.prefix] for name in names if name in scores.replicates}
    return {"samples": np.array(draws.prefix_sizes)} | present


def reliability(bins: CalibrationBins, draws: DrawWeights) -> dict[str, np.ndarray]:
    """Points, mean confidence and accuracy of each bin of confidence (NaN where empty), of all draws."""
    count, confidence, correct = (values[draws.full.start] for values in (bins.count, bins.confidence, bins.correct))
    with np.errstate(invalid="ignore"):
        shares = {"confidence": confidence / count, "accuracy": correct / count}
    return {"bin": np.arange(len(count)), "count": count, **shares}


def risk_by_coverage(uncertainty: np.ndarray, loss: np.ndarray) -> dict[str, np.ndarray]:
    """Mean loss of the most certain points by coverage, at up to 200 coverages."""
    coverage, risk = metrics.risk_coverage(uncertainty, loss)
    rows = np.unique(np.linspace(0, len(coverage) - 1, 200).round().astype(int))
    return {"coverage": coverage[rows], "risk": risk[rows]}


def detection_estimates(
    test: SetScores, ood: SetScores, draws: DrawWeights, among: Collection[str] | None = None
) -> dict[str, dict[str, Estimate]]:
    """How well each score, or each of those `among`, separates the OOD set from the test set: AUROC, both AUPR, FPR95
    in both conventions.

    AUROC's error over points is DeLong's, its interval on the logit scale; the others' are by the bootstrap. With a
    single draw, scores that need several draws are omitted.
    """
    named = [name for name in reported_scores(test.points, draws) if among is None or name in among]
    return {name: _detection_estimates(name, test, ood, draws) for name in named}


def reported_scores(points: Mapping[str, np.ndarray], draws: DrawWeights) -> list[str]:
    """The OOD scores among these values of points that are reported: with a single draw, none that needs several."""
    return [
        name
        for name in scores_among(points)
        if (score := metric_of(name).score) and (draws.samples > 1 or not score.needs_samples)
    ]


def _detection_estimates(score: str, test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, Estimate]:
    inside, outside = test.points[score], ood.points[score]
    value = vars(metrics.detection(inside, outside))
    resampled = vars(
        metrics.detection_bootstrap(
            inside,
            outside,
            resamples=resamples_of(test.n + ood.n, fully=RESAMPLED, least=LEAST_RESAMPLED),
            test_group=test.group,
            ood_group=ood.group,
        )
    )
    se = {name: float(np.std(values, ddof=1)) for name, values in resampled.items()}
    delong = math.sqrt(metrics.delong_variance(inside, outside, test_group=test.group, ood_group=ood.group))
    at_bound = value["auroc"] in (0.0, 1.0) or delong == 0
    if not at_bound:
        se["auroc"] = delong
    left_out = draws.jackknife.stop - draws.jackknife.start
    jackknife, bootstrap = _ranked_replicates(score, test, ood, value, left_out)
    result = {}
    for name in value:
        on_its_scale = name == "auroc" and not at_bound
        result[name] = estimate(
            name,
            value[name],
            se=error_over_points(se[name], test, ood),
            jackknife=jackknife[name],
            bootstrap=bootstrap[name],
            samples=draws.samples,
            resampled=None if on_its_scale else resampled[name],
        )
    return result


def _ranked_replicates(
    score: str, test: SetScores, ood: SetScores, value: Mapping[str, float], left_out: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The leave-one-out and the bootstrap replicates of every detection estimate.

    Where replicates are stored for only some points, their change there is added to the estimate of all points.
    """
    if score not in test.ranked:
        return dict.fromkeys(value, np.empty(0)), dict.fromkeys(value, np.empty(0))
    inside, outside = test.ranked[score], ood.ranked[score]
    ranked_value = vars(
        metrics.detection(
            test.points[score][test.ranked_rows].astype(np.float32),
            ood.points[score][ood.ranked_rows].astype(np.float32),
        )
    )
    replicates = vars(metrics.detection_of_replicates(inside, outside))
    moved = {name: value[name] + replicates[name] - ranked_value[name] for name in value}
    return {n: v[:left_out] for n, v in moved.items()}, {n: v[left_out:] for n, v in moved.items()}


def resamples_of(points: int, *, fully: int, least: int) -> int:
    """How often so many points are resampled: 1000 times up to `fully` of them, of more fewer times, but `least`."""
    return int(np.clip(1000 * fully // points, least, 1000))


def estimate(
    name: str,
    value: float,
    *,
    se: float | None,
    jackknife: np.ndarray,
    bootstrap: np.ndarray,
    samples: int,
    resampled: np.ndarray | None = None,
    limits: tuple[float, float] | None = None,
) -> Estimate:
    """An estimate with its errors; `resampled` are its bootstrap values over points, where its interval uses them.

    The replicates are empty where the estimate uses no sampling; otherwise it uses `samples` draws per point. A value
    that rounding puts beyond `limits`, by default those of the metric, is the limit.
    """
    sampled = len(jackknife) > 0
    mc_se = None
    by_bootstrap = metric_of(name).mc_error == "bootstrap"
    if sampled and samples >= MIN_SAMPLES and by_bootstrap and len(bootstrap):
        mc_se = float(metrics.bootstrap_error(bootstrap, samples=samples, bank=len(jackknife)))
    elif sampled and samples >= MIN_SAMPLES:
        mc_se = float(metrics.jackknife_error(jackknife))
    if mc_se is not None and not math.isfinite(mc_se):
        mc_se = None
    limits = metric_of(name).limits if limits is None else limits
    value, nearest = float(value), float(np.clip(value, *limits))
    value = nearest if abs(value - nearest) < _ROUNDED else value
    low, high = interval(name, value, se, mc_se, resampled=resampled, limits=limits)
    return Estimate(
        value=value,
        se=se,
        mc_se=mc_se,
        low=low,
        high=high,
        jackknife=jackknife if sampled else None,
        bootstrap=bootstrap if sampled and len(bootstrap) else None,
    )


def of_replicates(
    name: str,
    replicates: Float[np.ndarray, " replicate"],
    draws: DrawWeights,
    *,
    se: float | None = None,
    limits: tuple[float, float] | None = None,
) -> Estimate:
    """The estimate whose value under every replicate is known."""
    return estimate(
        name,
        float(replicates[draws.full.start]),
        se=se,
        jackknife=replicates[draws.jackknife],
        bootstrap=replicates[draws.bootstrap],
        samples=draws.samples,
        limits=limits,
    )


def mean_estimate(
    name: str, scores: SetScores, draws: DrawWeights, *, limits: tuple[float, float] | None = None
) -> Estimate:
    """The estimate of a mean over the points of a set."""
    se = error_over_points(metrics.standard_error(scores.points[name], group=scores.group), scores)
    found = of_replicates(name, scores.replicates[name], draws, se=se, limits=limits)
    return with_exact_interval(name, found, scores.n, scores.group)


def with_exact_interval(name: str, found: Estimate, points: int, group: Int64[np.ndarray, " point"] | None) -> Estimate:
    """The mean of so many points, or their groups; a share of 0 or 1, whose error is 0, with its binomial interval."""
    metric = metric_of(name)
    if found.se != 0 or found.value not in (0, 1) or metric.limits != (0, 1) or not metric.needs_truth:
        return found
    units = independent_units(points, group)
    low, high = metrics.exact_interval(round(units * found.value), units)
    return replace(found, low=min(low, 1 if found.low is None else found.low), high=max(high, found.high or 0))


def normalized_estimate(
    name: str,
    scores: SetScores,
    bounds: Mapping[str, Float[np.ndarray, " point"]],
    bound_replicates: Mapping[str, Float[np.ndarray, " replicate"]],
    draws: DrawWeights,
) -> Estimate:
    """The score `name` between its bounds "constant" and "optimum", in percent; its error over points to first order.

    Source: Teye, Azizpour & Smith 2018, §4.1: the ratio of means over the test set.
    """
    bound_names = "constant", "optimum"
    replicates = metrics.normalized(scores.replicates[name], *(bound_replicates[bound] for bound in bound_names))
    replicates = np.asarray(replicates, dtype=np.float64)
    influence = metrics.normalized_influence(scores.points[name], *(bounds[bound] for bound in bound_names))
    se = metrics.standard_error(influence, group=scores.group)
    return of_replicates(f"normalized_{name}", replicates, draws, se=error_over_points(se, scores))


def error_over_points(error: float, *sets: SetScores) -> float | None:
    """The error over points, None where it is undefined: fewer than two points or groups, or an infinite value."""
    independent = min(independent_units(scores.n, scores.group) for scores in sets)
    return error if independent >= 2 and math.isfinite(error) else None


def interval(
    name: str,
    value: float,
    se: float | None,
    mc_se: float | None,
    *,
    resampled: np.ndarray | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float] | tuple[None, None]:
    """95 % over points and draws together, whose error √(se² + mc_se²) is an upper bound, on the scale of the estimate.

    Bootstrap percentiles are taken from their median, not from the value: resampling points shifts some estimates as a
    whole (ECE and AUPR upwards), which is bias and not error.
    """
    if se is None or not math.isfinite(value):
        return None, None
    total = math.hypot(se, mc_se or 0.0)
    if name == "auroc" and resampled is None:
        return metrics.auroc_interval(value, total)
    if resampled is None or not se > 0:
        low, high = value - 1.959964 * total, value + 1.959964 * total
    else:
        lower, middle, upper = np.percentile(resampled, [2.5, 50, 97.5])
        low, high = (value + float(end - middle) * total / se for end in (lower, upper))
    return max(low, limits[0]), min(high, limits[1])


@frozen
class PixelScores(SetScores):
    """The scores of one set of images. `points` are means over the pixels of each image, and its number of `pixels`.

    `of_pixels` are the sums over all pixels that other estimates follow from, under every replicate: by class, by bin
    of confidence, and histograms of the scores; `of_images` are those of each image under all draws.
    """

    of_pixels: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    of_images: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    by_temperature: Float[np.ndarray, "likelihood image"] | None = field(default=None, kw_only=True)
