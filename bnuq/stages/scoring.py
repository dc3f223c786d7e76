"""From blocks of raw outputs to figures: the streaming reduction of a classification, and the errors of what it yields.

A replicate is a weighting of the T draws: all of them, each left out, bootstrap, the first k. Every figure is computed
for every replicate while the points stream past, so that its Monte Carlo error never needs the samples again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.special import softmax

from bnuq import metrics
from bnuq.errors import SamplingError
from bnuq.metrics import CalibrationBins, DrawWeights
from bnuq.records import Figure
from bnuq.sampling import keyed

RESAMPLES = 100  # bootstrap replicates over draws
MIN_SAMPLES = 8  # below this many draws no Monte Carlo error is given
RANKED = 10_000  # points of each set, picked at random, on which rank figures' Monte Carlo error is measured
RESAMPLED = 20_000  # points up to which OOD figures are resampled 1000 times; beyond, fewer, but at least 200

MEANS = ("mutual_information", "predictive_entropy", "expected_entropy", "variation_ratio", "max_probability")

_BY_BOOTSTRAP = {"accuracy", "ece", "variation_ratio", "max_probability", "aurc"} | {
    "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"
}  # fmt: skip
_RANGE = {"pll": (-math.inf, math.inf), "brier": (0.0, 2.0)} | dict.fromkeys(
    ("mutual_information", "predictive_entropy", "expected_entropy"), (0.0, math.inf)
)  # all others lie in [0, 1]
_BLOCK = 2**22  # replicates × points × classes held at once


def replicate_weights(samples: int) -> DrawWeights:
    """The weights of all replicates over T draws: the same for every run of T draws, so that runs can be paired."""
    return metrics.draw_weights(samples, resamples=RESAMPLES, seed=0)


@dataclass(frozen=True)
class SetScores:
    """What is known of one evaluated set under one method, once its points have passed.

    `points` maps a name to a per-point value of all draws together; `replicates` maps the name of a mean to its value
    under every replicate; `ranked` maps an OOD score to its per-point values under the leave-one-out and bootstrap
    replicates, for the points `ranked_rows`. With a single draw there is no mutual information and no variation ratio.
    """

    n: int
    points: dict[str, Float[np.ndarray, " point"]]
    predicted: Int64[np.ndarray, " point"]
    replicates: dict[str, Float[np.ndarray, " replicate"]]
    ranked: dict[str, Float[np.ndarray, "error_replicate kept"]]
    ranked_rows: Int64[np.ndarray, " kept"]
    log_likelihood: Float[np.ndarray, "sample point"] | None = None
    bins: CalibrationBins | None = None
    ranked_wrong: Bool[np.ndarray, "error_replicate kept"] | None = None
    group: Int64[np.ndarray, " point"] | None = None


class ClassificationReduction:
    """Takes blocks of logits (T, chunk, K) in the order of the points, and gives their SetScores."""

    def __init__(self, weights: DrawWeights, *, points: int, labels: Int64[np.ndarray, " point"] | None = None) -> None:
        self._draws = weights
        self._labels = labels
        self._ranked_rows = np.arange(points)
        if points > RANKED:  # at random, since sets come sorted by class
            rows = keyed.batch_indices(0, 0, population=points, batch_size=RANKED, purpose=keyed.RANKED)
            self._ranked_rows = np.sort(rows)
        self._n = 0
        self._points: dict[str, list[np.ndarray]] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._ranked: dict[str, list[np.ndarray]] = {}
        self._log_likelihood: list[np.ndarray] = []
        self._wrong: list[np.ndarray] = []
        self._predicted: list[np.ndarray] = []
        self._bins: CalibrationBins | None = None
        self._spread = self._size = 0.0
        self._rounding = 0.0

    def add(self, logits: Float[np.ndarray, "sample chunk class"]) -> None:
        """Take the next points; SamplingError where an output is not finite."""
        replicates, (_, points, classes) = len(self._draws.weights), logits.shape
        step = max(1, _BLOCK // (replicates * classes))
        self._rounding = 128 * float(np.finfo(logits.dtype).eps)
        for start in range(0, points, step):
            self._add(np.asarray(logits[:, start : start + step], dtype=np.float64))

    def _add(self, logits: np.ndarray) -> None:
        samples, points, classes = logits.shape
        if not np.isfinite(logits).all():
            bad = int(np.argwhere(~np.isfinite(logits).all(axis=(0, 2)))[0, 0])
            raise SamplingError(f"the network's output for point {self._n + bad} is not finite (NaN or inf).")
        self._spread = max(self._spread, float(np.abs(logits - logits[:1]).max()))
        self._size = max(self._size, float(np.abs(logits).max()))
        weights = self._draws.weights
        p = softmax(logits, axis=-1)
        p_mean = (weights @ p.reshape(samples, -1)).reshape(-1, points, classes)
        predictive = metrics.entropy(p_mean)
        expected = weights @ metrics.entropy(p)
        confidence = p_mean.max(-1)
        values = {"predictive_entropy": predictive, "expected_entropy": expected, "max_probability": confidence}
        if samples > 1:
            votes = np.eye(classes)[p.argmax(-1)]
            values["mutual_information"] = predictive - expected
            values["variation_ratio"] = 1 - (weights @ votes.reshape(samples, -1)).reshape(p_mean.shape).max(-1)
        if self._labels is not None:
            values |= self._labelled(logits, p_mean, confidence)
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.sum(axis=1)
            self._points.setdefault(name, []).append(value[self._draws.full][0])
        self._predicted.append(metrics.predicted(p_mean[self._draws.full][0]))
        unsure = metrics.least_confidence(p_mean)
        self._points.setdefault("least_confidence", []).append(unsure[self._draws.full][0])
        self._keep_ranked(values | {"least_confidence": unsure})
        self._n += points

    def _labelled(self, logits: np.ndarray, p_mean: np.ndarray, confidence: np.ndarray) -> dict[str, np.ndarray]:
        assert self._labels is not None
        y = self._labels[self._n : self._n + logits.shape[1]]
        log_likelihood = metrics.log_likelihood(logits, y)
        self._log_likelihood.append(log_likelihood)
        correct = metrics.correct(p_mean, y)
        bins = metrics.calibration_bins(confidence, correct)
        self._bins = bins if self._bins is None else self._bins + bins
        return {
            "accuracy": correct,
            "pll": metrics.pll_from_log_likelihood(log_likelihood, weights=self._draws.weights),
            "brier": metrics.brier(p_mean, y),
        }

    def _keep_ranked(self, values: Mapping[str, np.ndarray]) -> None:
        replicates = slice(self._draws.jackknife.start, self._draws.bootstrap.stop)
        if replicates.start == replicates.stop:
            return
        points = values["max_probability"].shape[1]
        first, last = np.searchsorted(self._ranked_rows, [self._n, self._n + points])
        rows = self._ranked_rows[first:last] - self._n
        for name in metrics.SCORES:
            self._ranked.setdefault(name, []).append(values[name][replicates][:, rows].astype(np.float32))
        if "accuracy" in values:
            self._wrong.append(values["accuracy"][replicates][:, rows] == 0)

    @property
    def passes_differ(self) -> bool:
        """Whether any output of any pass so far lies further from the first pass's than rounding explains."""
        return self._spread > self._rounding * self._size

    def scores(self, *, group: Int64[np.ndarray, " point"] | None = None) -> SetScores:
        """The scores of all points taken so far."""
        points = {name: np.concatenate(values) for name, values in self._points.items()}
        return SetScores(
            n=self._n,
            points=points,
            predicted=np.concatenate(self._predicted),
            replicates={name: total / self._n for name, total in self._sums.items()},
            ranked_rows=self._ranked_rows,
            ranked={name: np.concatenate(values, axis=1) for name, values in self._ranked.items()},
            log_likelihood=np.concatenate(self._log_likelihood, axis=1) if self._log_likelihood else None,
            bins=self._bins,
            ranked_wrong=np.concatenate(self._wrong, axis=1) if self._wrong else None,
            group=group,
        )


def figures(scores: SetScores, draws: DrawWeights) -> dict[str, Figure]:
    """The figures of one set: the means, and where it is labelled ECE and AURC, each with both errors."""
    found = {
        name: _figure(
            name,
            replicates[draws.full][0],
            se=_se(metrics.standard_error(scores.points[name], group=scores.group), scores),
            jackknife=replicates[draws.jackknife],
            bootstrap=replicates[draws.bootstrap],
        )
        for name, replicates in scores.replicates.items()
    }
    if scores.bins is not None:
        found["ece"] = _calibration_figure(scores, draws)
        found["aurc"] = _selective_figure(scores, draws)
    order = ("accuracy", "pll", "brier", "ece", *MEANS, "aurc")
    return {name: found[name] for name in order if name in found}


def convergence(scores: SetScores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """PLL, accuracy and MI of the first 1, 2, 4, … and T draws, as far as the set is labelled; empty for one draw."""
    if draws.weights.shape[1] == 1:
        return {}
    names = [name for name in ("pll", "accuracy", "mutual_information") if name in scores.replicates]
    return {"samples": np.array(draws.prefix_sizes)} | {n: scores.replicates[n][draws.prefix] for n in names}


def calibration_curve(scores: SetScores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """The reliability diagram: points, mean confidence and accuracy of each bin of confidence (NaN where empty)."""
    assert scores.bins is not None
    row = draws.full.start
    count = scores.bins.count[row]
    with np.errstate(invalid="ignore"):
        confidence, accuracy = scores.bins.confidence[row] / count, scores.bins.correct[row] / count
    return {"bin": np.arange(len(count)), "count": count, "confidence": confidence, "accuracy": accuracy}


def risk_curve(scores: SetScores) -> dict[str, np.ndarray]:
    """Error rate of the most certain points (by predictive entropy) against their share, at up to 200 coverages."""
    coverage, risk = metrics.risk_coverage(scores.points["predictive_entropy"], 1 - scores.points["accuracy"])
    rows = np.unique(np.linspace(0, len(coverage) - 1, 200).round().astype(int))
    return {"coverage": coverage[rows], "risk": risk[rows]}


def detection_figures(test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, dict[str, Figure]]:
    """How well each score tells the OOD set from the test set: AUROC, both AUPR, FPR95 in both conventions.

    AUROC's error over points is DeLong's, its interval on the logit scale; the others' are by the bootstrap. With a
    single draw, scores that need several are left out.
    """
    names = list(metrics.SCORES)
    if len(draws.weights[0]) == 1:
        names = [name for name in names if name not in ("mutual_information", "expected_entropy")]
    return {name: _detection_figures(name, test, ood, draws) for name in names}


def _detection_figures(score: str, test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, Figure]:
    inside, outside = test.points[score], ood.points[score]
    value = vars(metrics.detection(inside, outside))
    resampled = vars(
        metrics.detection_bootstrap(
            inside,
            outside,
            resamples=int(np.clip(1000 * RESAMPLED // (test.n + ood.n), 200, 1000)),
            test_group=test.group,
            ood_group=ood.group,
        )
    )
    se = {name: float(np.std(values, ddof=1)) for name, values in resampled.items()}
    delong = math.sqrt(metrics.delong_variance(inside, outside, test_group=test.group, ood_group=ood.group))
    at_the_end = value["auroc"] in (0.0, 1.0) or delong == 0
    if not at_the_end:
        se["auroc"] = delong
    left_out = draws.jackknife.stop - draws.jackknife.start
    jackknife, bootstrap = _ranked_replicates(score, test, ood, value, left_out)
    found = {}
    for name in value:
        on_its_scale = name == "auroc" and not at_the_end
        found[name] = _figure(
            name,
            value[name],
            se=_se(se[name], test, ood),
            jackknife=jackknife[name],
            bootstrap=bootstrap[name],
            resampled=None if on_its_scale else resampled[name],
        )
    return found


def _ranked_replicates(
    score: str, test: SetScores, ood: SetScores, value: Mapping[str, float], left_out: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The leave-one-out and the bootstrap replicates of every detection figure.

    Where only some points were kept for it, what a replicate changes there is added to the figure of all points.
    """
    if score not in test.ranked:
        return dict.fromkeys(value, np.empty(0)), dict.fromkeys(value, np.empty(0))
    inside, outside = test.ranked[score], ood.ranked[score]
    kept = vars(
        metrics.detection(
            test.points[score][test.ranked_rows].astype(np.float32),
            ood.points[score][ood.ranked_rows].astype(np.float32),
        )
    )
    each = [vars(metrics.detection(a, b)) for a, b in zip(inside, outside, strict=True)]
    moved = {name: value[name] + np.array([one[name] for one in each]) - kept[name] for name in value}
    return {n: v[:left_out] for n, v in moved.items()}, {n: v[left_out:] for n, v in moved.items()}


def _calibration_figure(scores: SetScores, draws: DrawWeights) -> Figure:
    assert scores.bins is not None
    replicates = metrics.ece_of_bins(scores.bins)
    resampled = metrics.ece_bootstrap(scores.points["max_probability"], scores.points["accuracy"], group=scores.group)
    return _figure(
        "ece",
        replicates[draws.full][0],
        se=_se(float(np.std(resampled, ddof=1)), scores),
        jackknife=replicates[draws.jackknife],
        bootstrap=replicates[draws.bootstrap],
        resampled=resampled,
    )


def _selective_figure(scores: SetScores, draws: DrawWeights) -> Figure:
    uncertainty, loss = scores.points["predictive_entropy"], 1 - scores.points["accuracy"]
    value = metrics.aurc(uncertainty, loss)
    resampled = metrics.aurc_bootstrap(uncertainty, loss, group=scores.group)
    left_out = draws.jackknife.stop - draws.jackknife.start
    replicates = np.empty(0)
    if scores.ranked_wrong is not None:
        kept = scores.ranked_rows
        whole = metrics.aurc(uncertainty[kept].astype(np.float32), loss[kept])
        pairs = zip(scores.ranked["predictive_entropy"], scores.ranked_wrong, strict=True)
        replicates = value + np.array([metrics.aurc(u, w.astype(np.float64)) for u, w in pairs]) - whole
    return _figure(
        "aurc",
        value,
        se=_se(float(np.std(resampled, ddof=1)), scores),
        jackknife=replicates[:left_out],
        bootstrap=replicates[left_out:],
        resampled=resampled,
    )


def _figure(
    name: str,
    value: float,
    *,
    se: float | None,
    jackknife: np.ndarray,
    bootstrap: np.ndarray,
    resampled: np.ndarray | None = None,
) -> Figure:
    """A figure with its errors; `resampled` are its bootstrap values over points, where its interval rests on them."""
    samples = len(jackknife)
    mc_se = None
    if samples >= MIN_SAMPLES and name in _BY_BOOTSTRAP:
        mc_se = float(metrics.bootstrap_error(bootstrap, samples=samples))
    elif samples >= MIN_SAMPLES:
        mc_se = float(metrics.jackknife_error(jackknife))
    if mc_se is not None and not math.isfinite(mc_se):
        mc_se = None
    low, high = _interval(name, float(value), se, mc_se, resampled)
    return Figure(
        value=float(value),
        se=se,
        mc_se=mc_se,
        low=low,
        high=high,
        jackknife=jackknife if samples else None,
        bootstrap=bootstrap if samples else None,
    )


def _se(error: float, *sets: SetScores) -> float | None:
    """The error over points, None where it is undefined: fewer than two points or groups, or an infinite value."""
    independent = (one.n if one.group is None else len(np.unique(one.group)) for one in sets)
    return error if min(independent) >= 2 and math.isfinite(error) else None


def _interval(
    name: str, value: float, se: float | None, mc_se: float | None, resampled: np.ndarray | None
) -> tuple[float, float] | tuple[None, None]:
    """95 % over points and draws together, whose error √(se² + mc_se²) is an upper bound, on the figure's own scale.

    Bootstrap percentiles are taken from their median, not from the value: resampling points moves some figures as a
    whole (ECE and AUPR upwards), and that is no news of the value.
    """
    if se is None or not math.isfinite(value):
        return None, None
    total = math.hypot(se, mc_se or 0.0)
    if name == "auroc" and resampled is None:
        return metrics.auroc_interval(value, total)
    if resampled is None or not se > 0:
        low, high = value - 1.959964 * total, value + 1.959964 * total
    else:
        below, middle, above = np.percentile(resampled, [2.5, 50, 97.5])
        low, high = (value + float(end - middle) * total / se for end in (below, above))
    least, most = _RANGE.get(name, (0.0, 1.0))
    return max(low, least), min(high, most)
