"""Checks the replicates over draws: recomputed if the file has the values they come from, bounded otherwise, so that no
changed Monte Carlo error goes unnoticed.

Recomputed exactly are the PLL (log-likelihoods of the draws, also with a bank), the mutual information (the difference
of two entropies), bounds and normalised scores (their parts), the bootstrap of an expected entropy (linear in the
draws), and for a regression rmse² + Q·variance (the mean squared distance of the draws). The leave-one-out replicates
of accuracy, Brier score, maximum probability, RMSE and MAE are bounded by the log-likelihood of the draw, those of
entropies and OOD separation by the largest possible effect of a draw. AUROC and FPR95 are counts of points, so that
replicates that were scaled show. A forged replicate that is a count within these bounds passes, as the file has no
draws of unlabelled points: the check warns where a larger Monte Carlo error hides a change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.methods import method_named
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import sets_of
from bnuq.records.evaluation import PARTS, EvaluatedSet, Result, SetResult
from bnuq.sampling import counter_rng
from bnuq.store.table import Row

_TEST = "test"
_LEAST_DRAWS = 8  # below which replicates give no error, and are not used
_RANKED = 10_000  # points above which ranks are replicated on some of them only, and may leave their range
_ROUNDING = 1e-6  # relative
_BLOCK = 2**20  # replicates × points held at once
_RESAMPLES = 1000  # more than any evaluation stores
_MOST_RECOMPUTED = 2**29  # likelihoods that are computed again for single replicates
_NEAR = 0.05  # in ln τ: the largest first-order step of a PLL in an evaluation
_SMOOTH = {  # whose jackknife and bootstrap over the draws estimate the same error
    *("brier", "mutual_information", "predictive_entropy", "expected_entropy", "max_probability"),
    *("rmse", "mae", "crps", "variance"),
}
_APART = 4.0  # times that two such errors may differ; genuine ones do by up to 2
_STEPS = 3.0  # steps of one point that a stepwise estimate may take from one draw to the next
_LEAPING = {"fpr95", "fpr95_id_positive"}  # from one tie to another, perhaps under the bootstrap alone
_BROKEN = {"mce", "ece_debiased", "risk_at_80", "coverage_at_5", "set_size", "set_size_aps"}  # a draw may make a leap
_STEPPED = {"auroc", "fpr95", "fpr95_id_positive"}
_OFF_STEP = 0.01  # of a step: rounding leaves less than 1e-5
_NEVER = 27.0  # −ln of the chance that integers have a common factor: once in 5e11
_STILL, _MOVING = 1e-9, 1e-4  # relative errors of estimates that no draw changes, and of others
_RANGES = {
    **dict.fromkeys(("rmse", "mae", "variance", "tau", "sigma"), (0.0, math.inf)),
    **dict.fromkeys(("predictive_entropy", "expected_entropy", "set_size", "set_size_aps"), (0.0, math.inf)),
    "brier": (0.0, 2.0),
    "spearman": (-1.0, 1.0),
}

Limits = tuple[np.ndarray | float, np.ndarray | float]


def contradictions(result: Result) -> Iterator[str]:
    """In words, each estimate whose Monte Carlo error or replicates an evaluation cannot have produced."""
    rows = estimates_of(result)
    for method in result.methods:
        yield from _OfMethod(result, method, rows).contradictions()


def agree(stated: np.ndarray | float, recomputed: np.ndarray | float, scale: float = 0.0) -> np.ndarray:
    """Whether they are equal up to rounding, relative to themselves or to `scale`; NaN equals NaN."""
    a, b = np.asarray(stated, dtype=np.float64), np.asarray(recomputed, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        if np.max(apart, initial=0.0) <= _ROUNDING * scale:  # the usual case, and no NaN
            return np.ones(apart.shape, dtype=bool)
        near = (apart <= _ROUNDING * np.maximum(np.abs(b), scale)) & np.isfinite(b)
    return near | (a == b) | (np.isnan(a) & np.isnan(b))


def rounded_at(metric: str) -> float:
    """The scale of rounding of an estimate that may be near 0; 0 if rounding is relative to the estimate itself."""
    unit = metrics.METRICS[metric].unit if metric in metrics.METRICS else "percent"
    return {"fraction": 1.0, "1": 1.0, "nats": 1.0, "percent": 100.0}.get(unit, 0.0)


class _OfMethod:
    """The estimates of one method, whose replicates determine each other; leave-one-out replicates come first, then the
    bootstrap's."""

    def __init__(self, result: Result, method: str, rows: Mapping[str, Row]) -> None:
        dense = result.model["task"] == "segmentation"  # whose classes are of pixels
        of_others = ("label", *(() if dense else PARTS))  # which are checked with that label, class or group
        self._rows = {
            a: row for a, row in rows.items() if row["method"] == method and not any(row[key] for key in of_others)
        }
        self._result, self._method = result, method
        self._samples = result.samples_of(method)
        self._bank = result.sampling.get("bank") if method_named(method).is_sampled_batchnorm else None
        self._draws = self._samples if self._bank is None else int(self._bank)
        if dense:  # each part of the draws is left out, of one or of several
            left_out = (len(r.estimate.jackknife) for r in self._rows.values() if r.estimate.jackknife is not None)
            self._draws = min(self._samples, max(left_out, default=self._samples))
        self._in_parts = self._bank is None and self._draws < self._samples
        drawn = (row.estimate.bootstrap for row in self._rows.values())
        self._resamples = max((len(values) for values in drawn if values is not None), default=0)
        self._separations: dict[tuple[str, str], tuple[metrics.DetectionScores[float], ...] | None] = {}

    def contradictions(self) -> Iterator[str]:
        for address, row in self._rows.items():
            if problem := self._of_error(row) or self._of_replicates(row):
                yield f"{address}{problem}"

    def _estimate(self, name: str) -> Estimate | None:
        """The estimate at an address without the method, such as sets.test.pll; None if there is none."""
        row = self._rows.get(f"{self._method}.{name}")
        return None if row is None else row.estimate

    def _of_error(self, row: Row) -> str | None:
        """The contradiction in the Monte Carlo error, given the replicates."""
        estimate = row.estimate
        if self._samples == 1:
            none = estimate.jackknife is None and estimate.bootstrap is None and estimate.mc_se is None
            return None if none else " has replicates over draws, of which there are none."
        if estimate.jackknife is not None and len(estimate.jackknife) != self._draws:
            return f" has {len(estimate.jackknife)} replicates without a draw, of {self._draws} draws."
        if estimate.bootstrap is not None and len(estimate.bootstrap) > _RESAMPLES:
            return f" has {len(estimate.bootstrap)} bootstrap replicates; an evaluation never has as many."
        computed_error = self._errors(estimate)[1 if _is_by_bootstrap(row, self._result) else 0]
        error = computed_error if self._samples >= _LEAST_DRAWS and math.isfinite(computed_error) else None
        size = max(rounded_at(row["metric"]), abs(estimate.value) if math.isfinite(estimate.value) else 0.0)
        if (error is None) != (estimate.mc_se is None) or not agree(estimate.mc_se or 0.0, error or 0.0, 1e-6 * size):
            stated, computed = ("none" if value is None else f"{value:.6g}" for value in (estimate.mc_se, error))
            return f": its Monte Carlo error is {stated}; recomputed from its replicates it is {computed}."
        return None

    def _errors(self, estimate: Estimate) -> tuple[float, float]:
        """The Monte Carlo errors by the jackknife and by the bootstrap; NaN if there is none."""
        left_out, drawn = estimate.jackknife, estimate.bootstrap
        return (
            math.nan if left_out is None else float(metrics.jackknife_error(left_out)),
            math.nan
            if drawn is None
            else float(metrics.bootstrap_error(drawn, samples=self._samples, bank=self._draws)),
        )

    def _of_replicates(self, row: Row) -> str | None:
        estimate = row.estimate
        left_out = estimate.jackknife
        if left_out is None or len(left_out) < _LEAST_DRAWS or not np.isfinite([*left_out, estimate.value]).all():
            return None
        size = max(rounded_at(row["metric"]), abs(estimate.value))
        error, mean = float(metrics.jackknife_error(left_out)), float(np.mean(left_out))
        stated = _rows(estimate)
        recomputed = self._recomputed(row)
        recomputed = None if recomputed is None else recomputed[: len(stated)]
        if recomputed is not None and not (agrees := agree(stated, recomputed, size))[np.isfinite(stated)].all():
            if agrees[: len(left_out)].all():
                return ": its bootstrap replicates are not those that the rest of the file gives."
            computed = float(metrics.jackknife_error(recomputed[: len(left_out)]))
            return (
                f": its replicates have a Monte Carlo error of {error:.6g}; recomputed from the rest of the file it is "
                f"{computed:.6g}."
            )
        # Leaving out a draw also changes an estimate by its bias over T, which exceeds its error with many points.
        if abs(mean - estimate.value) > 2 * (error + size / len(left_out)) and row["metric"] not in _BROKEN:
            return f" is {estimate.value:.6g}, and its replicates without a draw {mean:.6g} ± {error:.2g}."
        low, high = (np.broadcast_to(limit, stated.shape) for limit in self._limits(row))
        out = np.flatnonzero((stated < low - _ROUNDING * size) | (stated > high + _ROUNDING * size))
        if len(out):
            at = out[0]
            return f" has a replicate of {stated[at]:.6g}, where {low[at]:.6g} to {high[at]:.6g} is possible."
        return self._of_steps(row, stated - estimate.value) or self._of_spread(row)

    def _of_steps(self, row: Row, moved: np.ndarray) -> str | None:
        """The contradiction in how far replicates of a rank estimate have moved: by whole points, and an AUROC by pairs
        of points, where half a pair is a tie. Replicates that were scaled have a common factor, or are not whole."""
        set_name, score, metric = row["set"], row["score"], row["metric"]
        sets = self._result.methods[self._method].sets
        if metric not in _STEPPED or any(score not in sets[name].points for name in (_TEST, set_name)):
            return None
        sizes = [min(self._result.sets[name].n, _RANKED) for name in (_TEST, set_name)]
        pairs = moved * {"auroc": 2 * sizes[0] * sizes[1], "fpr95": sizes[0], "fpr95_id_positive": sizes[1]}[metric]
        pairs = pairs[np.isfinite(pairs)]
        steps = np.rint(pairs).astype(np.int64)
        if (np.abs(pairs - steps) > _OFF_STEP).any():
            return f" has replicates that are no shares of {sizes[0]} and {sizes[1]} points, as an AUROC or FPR95 is."
        if metric != "auroc" or not steps.any():
            return None
        alike = math.prod(_common_multiplicity(sets[name].points[score]) for name in (_TEST, set_name))
        factor = int(np.gcd.reduce(steps)) // alike
        factor //= 1 + (factor % 2 == 0)  # without ties, all are whole pairs
        different = len(np.unique(steps[steps != 0]))
        if factor > 1 and different * math.log(factor) > _NEVER:
            return (
                f": {different} different replicates all lie multiples of {factor} pairs of points away from it, and "
                "those of an evaluation have no common factor."
            )
        return None

    def _of_spread(self, row: Row) -> str | None:
        """The contradiction between the errors by the jackknife and by the bootstrap.

        Not checked for ratios, for estimates computed from other estimates, for densities, which a single draw may
        dominate, and where any draw may make a leap.
        """
        estimate, set_name, score, metric = row.estimate, row["set"], row["score"], row["metric"]
        jackknife, bootstrap = self._errors(estimate)
        if set_name not in self._result.sets or metric in ("pll", "tau", *_BROKEN):
            return None
        if estimate.bootstrap is None or not math.isfinite(bootstrap):
            return None
        size = max(rounded_at(metric), abs(estimate.value))
        step = 1 / min(self._result.sets[name].n for name in sets_of(row))
        slack = size * (_ROUNDING if metric in _SMOOTH else _STEPS * step * math.sqrt(self._draws))
        # A bias over T varies among resamples by √(2/T) of what resampling adds to it, alike for all points: with many
        # points that exceeds the error of a mutual information under dropout.
        added = abs(float(np.mean(estimate.bootstrap)) - estimate.value)
        biased = _APART / 2 * math.sqrt(2 / self._samples) * added
        if jackknife > _APART * bootstrap + slack or (
            bootstrap > _APART * jackknife + slack + biased and metric not in _LEAPING
        ):
            return f": its Monte Carlo error is {jackknife:.6g} by the jackknife, and {bootstrap:.6g} by the bootstrap."
        if not score and metric in _SMOOTH and jackknife < _STILL * size and self._is_moved(set_name):
            return " is the same without each of the draws, which move other estimates of that set."
        return None

    def _is_moved(self, set_name: str) -> bool:
        """Whether the draws change the predictions of a classifier, so that every smooth estimate varies."""
        estimates = [self._estimate(f"sets.{set_name}.{metric}") for metric in _SMOOTH]
        errors = [self._errors(estimate)[0] for estimate in estimates if estimate is not None]
        return self._result.model["task"] == "classification" and max(errors, default=0.0) > _MOVING

    # ── replicates computed again ────────────────────────────────────────────────────────────────────────────────────

    def _recomputed(self, row: Row) -> np.ndarray | None:
        """The replicates that follow from the rest of the file; None if they do not."""
        estimate, set_name, metric = row.estimate, row["set"], row["metric"]
        if row["score"]:
            return None
        if row["bound"]:
            return self._of_bound(row["bound"], metric)
        if not set_name:
            bare = metric.removeprefix("normalized_")
            parts = (f"{place}.{bare}" for place in ("sets.test", "bounds.constant", "bounds.optimum"))
            return self._from(lambda *values: np.asarray(metrics.normalized(*values)), *parts)
        of_labels = self._result.methods[self._method].sets[set_name].by_label.values()
        if rows := [_rows(estimates[metric]) for estimates in of_labels if metric in estimates]:
            alike = len({*map(len, rows)}) == 1
            return np.mean(rows, axis=0) if alike else np.full(self._draws + self._resamples, np.nan)
        if metric == "mutual_information":
            return self._mutual_information(set_name, estimate)
        likelihoods = self._likelihoods(set_name)
        if self._bank is not None:
            return None if likelihoods is None or metric != "pll" else self._of_tiles(likelihoods)
        if metric == "expected_entropy":
            return None if self._in_parts else self._linear(estimate)
        if likelihoods is None:
            return None
        weights = _weights(self._samples, self._resamples)
        if metric == "rmse" and (distance := self._squared_distance(set_name)) is not None:
            outputs = self._outputs(set_name)
            moved = weights @ distance.mean(1)
            return self._from(
                lambda variance: np.sqrt(np.maximum(moved - outputs * variance, 0)), f"sets.{set_name}.variance"
            )
        if metric == "pll":
            return self._pll(set_name, likelihoods, weights)
        return None

    def _from(self, of: Callable[..., np.ndarray], *parts: str) -> np.ndarray | None:
        """A function of the replicates of other estimates; None if one has no replicates, or another number of
        them."""
        values = []
        for part in parts:
            estimate = self._estimate(part)
            if estimate is None or len(rows := _rows(estimate)) != self._draws + self._resamples:
                return None
            values.append(rows)
        with np.errstate(all="ignore"):
            return of(*values)

    def _of_bound(self, bound: str, metric: str) -> np.ndarray | None:
        """The PLL of a bound of a classification, from accuracy and confidence."""
        classes = self._classes
        if self._result.model["task"] != "classification" or metric != "pll" or classes < 2:
            return None
        address = "sets.test.accuracy"
        if bound == "optimum":
            return self._from(lambda accuracy: -(1 - accuracy) * math.log(classes), address)

        def constant(accuracy: np.ndarray, confidence: np.ndarray) -> np.ndarray:
            pairs = zip(accuracy.tolist(), confidence.tolist(), strict=True)
            return np.array([metrics.constant_pll(*pair, classes) for pair in pairs])

        return self._from(constant, address, "bounds.constant.confidence")

    def _linear(self, estimate: Estimate) -> np.ndarray:
        """The replicates of a mean over draws, from its leave-one-out replicates, which determine the value of each
        draw."""
        assert estimate.jackknife is not None
        of_draws = self._samples * estimate.value - (self._samples - 1) * estimate.jackknife
        return _weights(self._samples, self._resamples) @ of_draws

    @property
    def _classes(self) -> int:
        return int(self._result.model.get("classes", 0))

    def _mutual_information(self, set_name: str, estimate: Estimate) -> np.ndarray | None:
        """The difference of two entropies, corrected for the number of draws of each replicate."""
        estimator = self._result.sampling.get("mutual_information", "plug-in")
        names = [f"sets.{set_name}.{kind}_entropy" for kind in ("predictive", "expected")]
        predictive, expected = map(self._estimate, names)
        if predictive is None or expected is None or (self._bank is not None and estimator != "plug-in"):
            return None
        counts = np.full(self._draws + self._resamples, float(self._samples))
        counts[: self._draws] -= 1
        factor, factor_of_all = (
            (1.0, 1.0) if estimator == "plug-in" else (counts / (counts - 1), self._samples / (self._samples - 1))
        )
        offset = estimate.value - factor_of_all * (predictive.value - expected.value)
        return self._from(lambda predictive, expected: factor * (predictive - expected) + offset, *names)

    def _likelihoods(self, set_name: str) -> np.ndarray | None:
        """Those of the draws; None if a point has several, one a label."""
        values = self._result.methods[self._method].sets[set_name].log_likelihood
        return None if values is None or values.ndim > 2 else values

    def _of_tiles(self, likelihoods: np.ndarray) -> np.ndarray | None:
        """The mean PLL where every tile of points uses its own draws of a bank; None if τ also varies."""
        scoring = self._result.run.get("scoring", {})
        if self._result.model["task"] == "regression" and scoring.get("tau") is None:
            return None
        bank, samples, seed = self._draws, self._samples, int(self._result.sampling["seed"])
        if bank < samples:
            return None
        draws = metrics.draw_weights(samples, resamples=self._resamples, seed=0, bank=bank)
        total = np.zeros(bank + self._resamples)
        for tile, start in enumerate(range(0, likelihoods.shape[1], counter_rng.TILE)):
            tile_draws, rows = draws.among(counter_rng.draws_of_tile(seed, tile, bank=bank, samples=samples))
            part = likelihoods[:, start : start + counter_rng.TILE]
            of_rows = metrics.pll_from_log_likelihood(part, weights=tile_draws.weights).sum(1)
            total += of_rows[rows[draws.jackknife.start : draws.bootstrap.stop]]
        return total / likelihoods.shape[1]

    def _pll(self, set_name: str, likelihoods: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        """The mean PLL of the mixture; for a regression with the τ that was fitted to each replicate."""
        tau = self._estimate(f"sets.{set_name}.tau")
        if self._result.model["task"] == "classification" or tau is None:
            return _over_points(lambda part: metrics.pll_from_log_likelihood(part, weights=weights), likelihoods)
        if not 0 < tau.value < math.inf or self._result.is_cross_fitted:  # where each half has its own
            return None
        taus = _rows(tau)
        if len(taus) != len(weights) or not (np.isfinite(taus) & (taus > 0)).all():
            return None
        return _with_tau(likelihoods, weights, tau.value, taus, self._outputs(set_name))

    def _outputs(self, set_name: str) -> int:
        return self._result.methods[self._method].sets[set_name].predicted.shape[-1]

    def _squared_distance(self, set_name: str) -> np.ndarray | None:
        """The squared distance of every draw from the target of every point (T, n), from its log-likelihood under τ."""
        likelihoods = self._likelihoods(set_name)
        tau = self._estimate(f"sets.{set_name}.tau")
        if likelihoods is None or tau is None or not 0 < tau.value < math.inf or self._result.is_cross_fitted:
            return None
        largest = self._outputs(set_name) / 2 * math.log(tau.value / (2 * math.pi))
        return np.maximum(largest - likelihoods, 0) * 2 / tau.value

    # ── bounds of replicates ─────────────────────────────────────────────────────────────────────────────────────────

    def _limits(self, row: Row) -> Limits:
        """The bounds of every replicate."""
        set_name, score, metric = row["set"], row["score"], row["metric"]
        if set_name not in self._result.sets:
            return -math.inf, math.inf
        low, high = _RANGES.get(metric, (-math.inf, math.inf))
        if metric in metrics.METRICS and metrics.METRICS[metric].unit == "fraction":
            low, high = 0.0, 1.0
        if "entropy" in metric and self._classes > 1:
            high = math.log(self._classes)
        test = self._result.sets[_TEST]
        if max(test.n, self._result.sets[set_name].n) > _RANKED and (
            score or metric in (*metrics.SELECTIVE, "spearman")
        ):
            return -math.inf, math.inf
        tighter = self._tighter(row, len(_rows(row.estimate)))
        if tighter is None:
            return low, high
        return np.maximum(low, tighter[0]), np.minimum(high, tighter[1])

    def _tighter(self, row: Row, rows: int) -> Limits | None:
        set_name, score, metric = row["set"], row["score"], row["metric"]
        set_result = self._result.methods[self._method].sets[set_name]
        if metric == "ece":
            return self._of_calibration(set_name)
        if self._in_parts or row["class"] or metric.startswith("pixel_"):
            return None
        if score:
            limits = self._of_separation(set_name, score, metric)
        elif self._bank is not None and metric not in ("accuracy", "max_probability", "brier"):
            return None
        elif metric == "predictive_entropy":
            limits = self._of_entropy(set_name)
        elif self._result.model["task"] == "regression":
            limits = self._of_distance(set_name, metric)
        else:
            likelihoods = self._likelihoods(set_name)
            evaluated = self._result.sets[set_name]
            limits = _without_a_draw(
                metric, set_result, evaluated, likelihoods, self._classes, bank=self._bank is not None
            )
        if limits is None:
            return None
        beyond = np.full(rows - self._draws, math.inf)  # the bootstrap is not bounded
        lower, upper = (
            np.concatenate([np.broadcast_to(limit, self._draws), sign * beyond])
            for limit, sign in zip(limits, (-1, 1), strict=True)
        )
        return lower, upper

    def _of_calibration(self, set_name: str) -> Limits | None:
        """At least the gap between mean confidence and accuracy, and at most the mean probability of other classes."""
        parts = f"sets.{set_name}.max_probability", f"sets.{set_name}.accuracy"
        gap = self._from(lambda confidence, accuracy: np.abs(confidence - accuracy), *parts)
        return None if gap is None else (gap, math.inf)

    def _of_entropy(self, set_name: str) -> Limits | None:
        """The bounds of the entropy of the mean prediction without a draw of entropy h: H is concave, and the entropy
        of a mixture of two exceeds their mean entropy by at most that of the weights."""
        predictive, expected = (
            self._estimate(f"sets.{set_name}.{kind}_entropy") for kind in ("predictive", "expected")
        )
        if predictive is None or expected is None or expected.jackknife is None:
            return None
        samples = self._samples
        of_draw = samples * expected.value - (samples - 1) * expected.jackknife
        high = (samples * predictive.value - of_draw) / (samples - 1)
        return high - samples * _entropy_of_one_draw(samples) / (samples - 1), high

    def _of_separation(self, set_name: str, score: str, metric: str) -> Limits | None:
        """The bounds where every score changes as far as any draw can change it, all towards better or all towards
        worse separation."""
        if (set_name, score) not in self._separations:  # all metrics of a score at once
            self._separations[set_name, score] = self._separated(set_name, score)
        both = self._separations[set_name, score]
        if both is None:
            return None
        ends = [getattr(one, metric) for one in both]
        return min(ends), max(ends)

    def _separated(self, set_name: str, score: str) -> tuple[metrics.DetectionScores[float], ...] | None:
        sets = self._result.methods[self._method].sets
        moved = [self._score_without_a_draw(sets[name], score) for name in (_TEST, set_name)]
        if moved[0] is None or moved[1] is None:
            return None
        (test_low, test_high), (ood_low, ood_high) = moved[0], moved[1]
        return metrics.detection(test_high, ood_low), metrics.detection(test_low, ood_high)

    def _score_without_a_draw(self, set_result: SetResult, score: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The bounds of the score of each point without any one draw."""
        samples, largest_entropy = self._samples, math.log(max(self._classes, 1))
        values, remaining = set_result.points[score], samples - 1
        high = samples * values / remaining
        if score == "least_confidence":
            low = (samples * values - 1) / remaining
        elif score == "expected_entropy":
            low = (samples * values - largest_entropy) / remaining
        elif score == "predictive_entropy" and "expected_entropy" in set_result.points:
            of_draw = np.minimum(largest_entropy, samples * set_result.points["expected_entropy"])
            low = (samples * (values - _entropy_of_one_draw(samples)) - of_draw) / remaining
        elif score == "variance":
            low = np.zeros(len(values))
        else:
            return None
        rounding = 1e-5 * np.abs(values)  # ranks are replicated in single precision
        return np.maximum(low, 0.0) - rounding, high + rounding

    def _of_distance(self, set_name: str, metric: str) -> Limits | None:
        """The bounds for a regression: the error of the mean, with the effect of a draw in either direction."""
        targets = self._result.sets[set_name].targets
        squared = self._squared_distance(set_name)
        if squared is None or targets is None or metric not in ("rmse", "mae"):
            return None
        error = targets - self._result.methods[self._method].sets[set_name].predicted
        if metric == "mae" and error.shape[1] > 1:
            return None
        total, of_draw = self._samples * np.sqrt((error**2).sum(-1)), np.sqrt(squared)
        low, high = (np.abs(end) / (self._samples - 1) for end in (total - of_draw, total + of_draw))
        if metric == "mae":
            return low.mean(1), high.mean(1)
        return np.sqrt((low**2).mean(1)), np.sqrt((high**2).mean(1))


def _is_by_bootstrap(row: Row, result: Result) -> bool:
    """Whether the Monte Carlo error of an estimate is by the bootstrap."""
    bound, metric = row["bound"], row["metric"]
    if result.model["task"] == "segmentation":  # which has none
        return False
    if bound:
        regression = result.model["task"] == "regression"
        return bound == "optimum" and metric == "pll" if regression else metric == "confidence"
    return metric_of(metric).mc_error == "bootstrap"


def _rows(estimate: Estimate) -> np.ndarray:
    """All replicates, leave-one-out first."""
    return np.concatenate(
        [part for part in (estimate.jackknife, estimate.bootstrap) if part is not None] or [np.empty(0)]
    )


def _common_multiplicity(values: np.ndarray) -> int:
    """What divides how often each value occurs: k where every point is there k times."""
    return int(np.gcd.reduce(np.unique(values, return_counts=True)[1]))


def _weights(samples: int, resamples: int) -> np.ndarray:
    """The weights over the draws of all replicates."""
    draws = metrics.draw_weights(samples, resamples=resamples, seed=0)
    return draws.weights[draws.jackknife.start : draws.bootstrap.stop]


def _entropy_of_one_draw(samples: int) -> float:
    """The entropy of the choice between one draw and all others, in nats."""
    share = 1 / samples
    return -share * math.log(share) - (1 - share) * math.log1p(-share)


def _over_points(of: Callable[[np.ndarray], np.ndarray], likelihoods: np.ndarray) -> np.ndarray:
    """The mean over points of a function computed for blocks of points."""
    points = likelihoods.shape[1]
    step = max(1, _BLOCK // (len(likelihoods) + _RESAMPLES))
    return sum(of(likelihoods[:, k : k + step]).sum(-1) for k in range(0, points, step)) / points


def _with_tau(likelihoods: np.ndarray, weights: np.ndarray, tau: float, taus: np.ndarray, outputs: int) -> np.ndarray:
    """The PLL under each replicate's own τ, as in an evaluation: to first order in ln τ if that is near."""
    step = np.log(taus / tau)
    largest = outputs / 2 * math.log(tau / (2 * math.pi))

    def first_order(part: np.ndarray) -> np.ndarray:
        distance = (largest - part) * 2 / tau
        share = np.exp(part - part.max(0))
        slope = outputs / 2 - tau / 2 * (weights @ (share * distance)) / (weights @ share)
        return metrics.pll_from_log_likelihood(part, weights=weights) + np.nan_to_num(slope) * step[:, None]

    replicates = _over_points(first_order, likelihoods)
    for row in np.flatnonzero(np.abs(step) > _NEAR)[: 1 + _MOST_RECOMPUTED // likelihoods.size]:
        scaled = outputs / 2 * math.log(taus[row] / (2 * math.pi)) + taus[row] / tau * (likelihoods - largest)
        row_weights = weights[row : row + 1]
        replicates[row] = _over_points(
            lambda part, row_weights=row_weights: metrics.pll_from_log_likelihood(part, weights=row_weights), scaled
        )[0]
    return replicates


def _without_a_draw(
    metric: str,
    set_result: SetResult,
    evaluated: EvaluatedSet,
    likelihoods: np.ndarray | None,
    classes: int,
    *,
    bank: bool,
) -> Limits | None:
    """The bounds of the leave-one-out replicates of an estimate of a labelled set, by the probability p_t(y) that draw
    t gives the true class; with a bank, for any draw that a point may lose."""
    needs = {"max_probability", "brier", metric}
    if metric not in ("accuracy", "max_probability", "brier") or likelihoods is None or evaluated.labels is None:
        return None
    if classes < 2 or not needs <= set_result.points.keys():
        return None
    low, high = np.zeros(len(likelihoods)), np.zeros(len(likelihoods))
    step = max(1, _BLOCK // len(likelihoods))
    for start in range(0, evaluated.n, step):
        rows = slice(start, start + step)
        draws = _Draws.of(set_result, evaluated.labels, np.exp(likelihoods[:, rows]), rows, classes)
        least, most = getattr(draws, metric)()
        if bank:
            least, most = (
                np.broadcast_to(end, least.shape)
                for end in (
                    np.minimum(least.min(0), set_result.points[metric][rows]),
                    np.maximum(most.max(0), set_result.points[metric][rows]),
                )
            )
        low, high = low + least.sum(1), high + most.sum(1)
    return (low.min() / evaluated.n, high.max() / evaluated.n) if bank else (low / evaluated.n, high / evaluated.n)


@dataclass(frozen=True)
class _Draws:
    """For some points: whether they are right, the probability of the true class by each draw and without it, and the
    largest probability of another class by all draws.

    Without draw t, p(c) is (T·p(c) − p_t(c))/(T − 1), and the p_t(c) of other classes sum to 1 − p_t(y).
    """

    samples: int
    classes: int
    correct: np.ndarray
    of_draw: np.ndarray
    true: np.ndarray
    largest_other: np.ndarray
    squares: np.ndarray  # Σ p(c)² of the other classes, by all draws

    @staticmethod
    def of(set_result: SetResult, labels: np.ndarray, of_draw: np.ndarray, rows: slice, classes: int) -> _Draws:
        samples, correct = len(of_draw), (set_result.predicted == labels)[rows]
        p, largest = of_draw.mean(0), set_result.points["max_probability"][rows]
        squares = np.maximum(set_result.points["brier"][rows] - (1 - p) ** 2, 0.0)
        largest_other = np.where(correct, np.minimum(1 - p, np.sqrt(squares)), largest)
        return _Draws(
            samples, classes, correct, of_draw, (samples * p - of_draw) / (samples - 1), largest_other, squares
        )

    def _largest_others(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds of the largest probability of another class without each draw."""
        remaining = 1 - self.true
        high = np.minimum(remaining, self.samples * self.largest_other / (self.samples - 1))
        low = (self.samples * self.largest_other - (1 - self.of_draw)) / (self.samples - 1)
        return np.maximum(low * ~self.correct, remaining / (self.classes - 1)), high

    def accuracy(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._largest_others()
        return self.true > high + _ROUNDING, self.true >= low - _ROUNDING

    def max_probability(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._largest_others()
        return np.maximum(self.true, low), np.maximum(self.true, high)

    def brier(self) -> tuple[np.ndarray, np.ndarray]:
        gap = (1 - self.true) ** 2
        other_share = 1 - self.of_draw
        total, evenly = self.samples**2 * self.squares, other_share**2 / (self.classes - 1)
        low = (total - 2 * other_share * self.samples * self.largest_other + evenly) / (self.samples - 1) ** 2
        high = (total - evenly) / (self.samples - 1) ** 2
        return gap + np.maximum(low, gap / (self.classes - 1)), gap + np.minimum(high, gap)
