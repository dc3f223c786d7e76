"""The streaming reduction of a classification: scores of each point and sums over points, under every replicate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import device

from bnuq import metrics
from bnuq.arithmetic import PROBABILITY_TOLERANCE
from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.estimates import Estimator
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import as_block, fetched, on_host, without_gradients
from bnuq.evaluation.tasks import class_probabilities
from bnuq.evaluation.tasks.class_arrays import DEVICE_BLOCK, ArrayKernel
from bnuq.evaluation.tasks.class_probabilities import PredictionSets, Probabilities
from bnuq.evaluation.tasks.scorer import Groups, SampleReduction
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.files.keys import Key, of_kind, taken_out
from bnuq.frozen import frozen
from bnuq.metrics import CalibrationBins, DrawWeights, LogitMaps
from bnuq.metrics.arrays import Array, array_namespace, as_numpy
from bnuq.metrics.registry import estimates_of_task
from bnuq.shapes import Bool, Float, Int16, Int64

_BLOCK = 2**17  # replicates × points × classes in memory at once: a few times this fits in a core's cache
_MASKED = -1e9  # the logit of a masked class, whose probability is 0 at every temperature
_HOPELESS = 1000.0  # below the largest logit, where exp gives 0 in float64
PART_SCORES = tuple(  # the scores that classes and groups have estimates of
    name for name, estimand in estimates_of_task("classification").items() if estimand.by_part and name != "count"
)
Parts = Mapping[str, Mapping[str, Int64[np.ndarray, " _"]]]  # the points of each, by "class" or "group" and its name


@frozen
class ClassScores(estimates.SetScores):
    """The scores of one set. A single draw has no mutual information and no variation ratio; `estimator` is the
    estimator of every mutual information here. `part_sums` are the sums of a score over the points of each of the
    `parts`, by its kind and the score. `conformity` are the scores that thresholds of prediction sets are fitted to.
    Which of the points `covered_rows` sets cover under the replicates, is `covered`."""

    predicted: Int64[np.ndarray, " point"]
    bins: CalibrationBins | None = field(default=None, kw_only=True)
    ranked_wrong: Bool[np.ndarray, "error_replicate kept"] | None = field(default=None, kw_only=True)
    estimator: Estimator = field(default="plug-in", kw_only=True)
    conformity: dict[str, Float[np.ndarray, " point"]] = field(default_factory=dict, kw_only=True)
    parts: Parts = field(default_factory=dict, kw_only=True)
    part_sums: dict[str, Float[np.ndarray, "replicate _"]] = field(default_factory=dict, kw_only=True)
    covered: dict[str, Bool[np.ndarray, "some_replicate _"]] = field(default_factory=dict, kw_only=True)
    covered_rows: Int64[np.ndarray, " _"] = field(default_factory=lambda: np.arange(0), kw_only=True)


class ClassReduction(SampleReduction[ClassScores]):
    """Takes blocks of logits (T, chunk, K) in the order of the points from `first` on, and gives `ClassScores`.

    `estimator` is used for every mutual information: per point, in means, and where points are ranked by it. Logits
    that `are_log_probabilities` are checked to be. Those of each point are recalibrated by its entry of `maps`, and
    then scored like any others, but without scores of logits, which need the network's own. `parts` of labelled points
    get their own sums. With `sets`, labelled points get them and a classwise ECE from the probabilities of all
    classes.
    """

    def __init__(
        self,
        weights: DrawWeights,
        *,
        points: int,
        labels: Int64[np.ndarray, " point"] | None = None,
        estimator: Estimator = "plug-in",
        first: int = 0,
        where: str = "",
        are_log_probabilities: bool = False,
        maps: LogitMaps | None = None,
        parts: Parts | None = None,
        sets: PredictionSets | None = None,
    ) -> None:
        self._draws = weights
        self._parts: Parts = parts or {}
        self._part_of_point = {kind: _numbers(rows.values(), points) for kind, rows in self._parts.items()}
        self._maps = maps
        self._sum_to_one = are_log_probabilities and maps is None
        self._logit_scores = not are_log_probabilities and maps is None
        self._all = estimates.ReplicateWeights.of(weights)
        self._labels, self._sets, self._points = labels, sets, points
        self._estimator: Estimator = estimator
        self._kernel: Any = None  # an ArrayKernel or a TensorKernel, by the kind of the blocks
        self._block_limit = DEVICE_BLOCK  # reduced once memory has run out
        self._ranked_rows = estimates.ranked_rows(points)
        self._where = where
        self._n = first  # the number of the next point
        self._blocks = Blocks()
        self._made_in: Any = np.dtype(np.float32)
        self._names: tuple[str, ...] = ()  # of the values of points

    def add(
        self, logits: Float[Array, "sample chunk class"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> None:
        """Add the next points, on any device; SamplingError where an output is not finite.

        With a bank, `draws` are the draws that these points use. Computed in float64 on the points' device.
        """
        self._made_in = logits.dtype
        weights = self._weights(logits, draws)
        width, done = logits.shape[-1] * len(self._draws.weights if draws is None else weights.array), 0
        with without_gradients(logits):
            while done < logits.shape[1]:
                most = min(_BLOCK if on_host(logits) else DEVICE_BLOCK, self._block_limit)
                step = max(1, most // width)
                points = logits[:, done : done + step]
                try:
                    self._add(points, weights)
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error) or points.shape[1] == 1:
                        raise
                    self.release()
                    self._block_limit = points.shape[1] * width // 2
                else:
                    done += points.shape[1]

    def _add(self, block: Array, weights: estimates.ReplicateWeights) -> None:
        """Add these points. Those of an accelerator are first scored without a look at any number, for which the host
        would wait."""
        is_added = False
        if not on_host(block):
            is_added = self._kept(fetched(self._scored(block, weights)), weights)
        if not is_added:
            differences: Arrays = {}
            arrays = fetched(self._scored(block, weights, differences))
            self._kept(arrays, weights, differences)

    def scored_at_once(
        self, block: Float[Array, "sample chunk class"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> dict[str, Array]:
        """Values of the next points on their accelerator, for `add_scored` once they are fetched."""
        with without_gradients(block):
            return self._scored(block, self._weights(block, draws))

    def add_scored(
        self,
        arrays: Arrays,
        block: Float[Array, "sample chunk class"],
        draws: Int64[np.ndarray, " sample"] | None = None,
    ) -> None:
        """Add the points of this block, of which the arrays are `scored_at_once`."""
        if not self._kept(arrays, self._weights(block, draws)):
            self.add(block, draws)

    def _weights(self, block: Array, draws: Int64[np.ndarray, " sample"] | None) -> estimates.ReplicateWeights:
        """The weights of these draws, as the samples of the block are; and what scores these."""
        if self._kernel is None:
            if not isinstance(block, np.ndarray):
                from bnuq.evaluation.tasks.class_tensors import TensorKernel  # late: it imports torch

                self._kernel = TensorKernel()
            else:
                self._kernel = ArrayKernel()
                if len(block) == 1:  # all replicates are alike
                    rows = np.zeros(len(self._draws.weights), np.int64)
                    self._all = replace(estimates.ReplicateWeights.of(metrics.plain_weights(1)), rows=rows)
        if draws is not None:
            return estimates.ReplicateWeights.of(self._draws, draws).like(block)
        self._all = self._all.like(block)
        return self._all

    def _scored(
        self, block: Array, batch_weights: estimates.ReplicateWeights, differences: Arrays | None = None
    ) -> dict[str, Array]:
        """What `_kept` takes of these points, on their device.

        With `differences`, which take how much the samples differ, numbers are looked at: masked classes get a finite
        logit, what underflows is computed again, and what cannot be scored is an error. Without, the values whose names
        begin with "needs" tell `_kept` whether a look is needed.
        """
        xp, (samples, points, _) = array_namespace(block), block.shape
        weights, full, kernel = batch_weights.array, batch_weights.draws.full.start, self._kernel
        logits = kernel.logits(block, len(weights))
        if self._maps is not None:
            rows = self._maps.of_point[self._n : self._n + points]
            masked = logits == -math.inf if self._maps.scale.min() <= 0 else None
            logits *= as_block(self._maps.scale[rows], block)
            logits += as_block(self._maps.shift[rows], block)
            if masked is not None:
                logits[masked] = -math.inf
        y = None if self._labels is None else as_block(self._labels[self._n : self._n + points], block)
        kept: dict[str, Array] = {}
        if differences is None:
            kept |= {Key("most", name): value for name, value in estimates.apart_and_size(logits).items()}
        else:
            differences |= self._spread(logits, y)
        sample_scores = kernel.sample_scores(logits, y)
        if self._sum_to_one:
            wrong = abs(xp.expm1(sample_scores.log_total)) > PROBABILITY_TOLERANCE
            if differences is None:
                kept[Key("needs", "sum")] = xp.any(wrong)
            else:
                self._check_sum_to_one(wrong, sample_scores.log_total)
        mean = kernel.mean(weights)
        kept |= self._probabilities(mean[full], kernel.p)
        values = kernel.scores_of_means(mean, y)
        kept["predicted"] = xp.asarray(values.pop("predicted")[full], copy=True)
        values["expected_entropy"] = expected = weights @ sample_scores.entropy
        if self._logit_scores:
            values["max_logit"] = -(weights @ sample_scores.largest)
            values["energy"] = -(weights @ sample_scores.log_total)
        if samples > 1:
            predictive = values["predictive_entropy"]
            plug_in = predictive - expected
            values["mutual_information"] = self._mutual_information(plug_in, predictive, batch_weights.draws)
        if y is not None:
            assert sample_scores.log_likelihood is not None
            kept["log_likelihood"] = sample_scores.log_likelihood
            if differences is None:
                values["pll"], underflowed = metrics.pll_of_product(sample_scores.log_likelihood, weights)
                kept[Key("needs", "pll")] = xp.any(underflowed)
            else:
                values["pll"] = metrics.pll_from_log_likelihood(sample_scores.log_likelihood, weights=weights)
            of_replicates = "max_probability", "accuracy", *(PART_SCORES if self._parts else ())
            kept |= {Key("replicates", name): values[name] for name in of_replicates}
        self._names = tuple(values)
        kept["sums"] = xp.stack([value.sum(1) for value in values.values()])
        kept["full"] = xp.stack([value[full] for value in values.values()])
        return kept | self._ranked_of(values, batch_weights)

    def _kept(
        self, arrays: Arrays, batch_weights: estimates.ReplicateWeights, differences: Arrays | None = None
    ) -> bool:
        """Whether the points of these `_scored` arrays are added; they are not where numbers have to be looked at."""
        if differences is None:
            apart, size = (arrays[Key("most", name)] for name in ("apart", "size"))
            differences = estimates.with_rounding(apart, size, self._made_in)
            unlike = len(batch_weights.draws.weights[0]) == 1 or estimates.samples_differ(differences)
            is_plain = bool(np.isfinite(differences["size"])) and unlike
            if not is_plain or any(map(bool, of_kind(arrays, "needs").values())):
                return False
        sums = arrays["sums"] if batch_weights.rows is None else arrays["sums"][:, batch_weights.rows]
        means = {name: total for name, total in zip(self._names, sums, strict=True) if name in metrics.METRICS}
        of_points = dict(zip(self._names, arrays["full"], strict=True)) | {"predicted": arrays["predicted"]}
        of_draws = {name: array for name, array in arrays.items() if Key(name).kind == "ranked"}
        if "log_likelihood" in arrays:
            confidence, hits = (arrays[Key("replicates", name)] for name in ("max_probability", "accuracy"))
            bins = batch_weights.of_replicates(metrics.calibration_bins(confidence, hits))
            means |= {Key("bins", name): np.asarray(sums_of_bins) for name, sums_of_bins in vars(bins).items()}
            of_draws["log_likelihood"] = arrays["log_likelihood"]
            means |= self._sums_of_parts(arrays, batch_weights)
        if "probabilities" in arrays:
            of_points["probabilities"] = arrays["probabilities"]
            of_draws["probabilities"] = arrays[Key("probabilities", "of_draws")]
            if batch_weights.numbers is not None:
                rows = of_draws["probabilities"].shape[1]
                of_draws["numbers"] = np.repeat(batch_weights.numbers[:, None], rows, axis=1)
        # This object changes only from here on: where memory ran out above, the block can be added again.
        self._blocks.add("point", of_points)
        self._blocks.add("draw", of_draws)
        self._blocks.add("sum", means)
        self._blocks.add("most", differences)
        self._n += len(arrays["predicted"])
        return True

    def _spread(self, logits: Float[Array, "sample chunk class"], y: Int64[Array, " chunk"] | None) -> Arrays:
        """`estimates.spread`, after logits of -inf have become finite: their classes are masked, of probability 0, and
        a label among them has the smallest normal probability of float32, as where a network gives probabilities."""
        xp = array_namespace(logits)
        spread = partial(estimates.spread, first=self._n, made_in=self._made_in, where=self._where)
        try:
            differences = spread(logits)
            if estimates.samples_differ(differences):
                return differences
            # A class that is masked by a large number hides differences of the others: its probability is 0.
            masked = logits < xp.max(logits, axis=-1, keepdims=True) - _HOPELESS
            return spread(xp.where(masked, xp.zeros_like(logits), logits)) if bool(xp.any(masked)) else differences
        except SamplingError:
            masked = logits == -math.inf
            if not bool(xp.any(masked)) or bool(xp.any(xp.all(masked, axis=-1))):
                raise
        differences = spread(xp.where(masked, xp.zeros_like(logits), logits))
        logits[masked] = _MASKED
        if y is not None:
            largest, points = xp.max(logits, axis=-1), xp.arange(len(y), device=device(logits))
            log_total = largest + xp.log(xp.sum(xp.exp(logits - largest[..., None]), axis=-1))
            lowest = log_total + math.log(np.finfo(np.float32).tiny)
            logits[:, points, y] = xp.where(masked[:, points, y], lowest, logits[:, points, y])
        return differences

    def _probabilities(
        self, mean: Float[Array, "chunk class"], p: Float[Array, "sample chunk class"]
    ) -> dict[str, Array]:
        """The mean probabilities of all classes, and those by each draw for some of the points, where they are kept."""
        xp, (_, points, classes) = array_namespace(p), p.shape
        if self._labels is None or self._sets is None or not class_probabilities.are_kept(self._points, classes):
            return {}
        rows_of_draws = self._sets.rows_of_draws(self._points, classes, self._draws)
        first, last = np.searchsorted(rows_of_draws, [self._n, self._n + points])
        precision = xp.float64 if "float64" in str(self._made_in) else xp.float32  # as they were made
        of_draws = xp.astype(p[:, as_block(rows_of_draws[first:last] - self._n, p)], precision)
        return {"probabilities": xp.astype(mean, precision), Key("probabilities", "of_draws"): of_draws}

    def _sums_of_parts(self, arrays: Arrays, batch_weights: estimates.ReplicateWeights) -> Arrays:
        """The sums of scores over the points of each part, under every replicate."""
        sums: Arrays = {}
        for kind, of_point in self._part_of_point.items():
            numbers = of_point[self._n : self._n + len(arrays["predicted"])]
            order = np.argsort(numbers, kind="stable")
            present, start = np.unique(numbers[order], return_index=True)
            for name in PART_SCORES:
                values = arrays[Key("replicates", name)]
                of_replicates = values if batch_weights.rows is None else values[batch_weights.rows]
                total = np.zeros((len(of_replicates), len(self._parts[kind]) + 1))
                total[:, present] = np.add.reduceat(of_replicates[:, order], start, axis=1)
                sums[Key(kind, name)] = total[:, :-1]  # the last are the points of no part
        return sums

    def _check_sum_to_one(self, wrong: Bool[Array, "sample chunk"], log_total: Float[Array, "sample chunk"]) -> None:
        """Raise SamplingError where the probabilities of a point do not sum to 1 in every sample."""
        if (rows := np.argwhere(as_numpy(wrong))).size:
            sample, point = rows[0].tolist()
            where = self._where and f" of {self._where}"
            raise SamplingError(
                f"the network's probabilities for example {self._n + point}{where} (counted from 0) sum to "
                f"{math.exp(float(log_total[sample, point])):.4g}; expected 1. Check that the outputs are what "
                "--outputs says."
            )

    def _mutual_information(
        self, plug_in: Float[Array, "replicate chunk"], predictive: Float[Array, "replicate chunk"], draws: DrawWeights
    ) -> Float[Array, "replicate chunk"]:
        """Mutual information by the requested estimator, under every replicate.

        The bias of a replicate is that of its number of draws. Exact replicates of the jackknife would need every pair
        of draws left out. Here they change as the corrected estimate does, which agrees with the jackknife to first
        order in 1/T. The convergence curve uses the corrected estimate until all draws are in.
        """
        if self._estimator == "plug-in":
            return plug_in
        corrected = plug_in * as_block(_corrections(draws), plug_in)[:, None]
        if self._estimator == "corrected":
            return corrected
        full = draws.full.start
        jackknifed = metrics.jackknifed_mutual_information(plug_in[full], predictive[full], predictive[draws.jackknife])
        moved = corrected + (jackknifed - corrected[full])
        moved[draws.prefix] = corrected[draws.prefix]
        moved[[full, draws.prefix.stop - 1]] = jackknifed
        return moved

    def _ranked_of(self, values: Mapping[str, Array], batch_weights: estimates.ReplicateWeights) -> dict[str, Array]:
        """Per-point values under every replicate: the scores, and "wrong" where the set is labelled."""
        resampled = slice(self._draws.jackknife.start, self._draws.bootstrap.stop)
        if resampled.start == resampled.stop:
            return {}
        replicates: slice | Array = resampled
        example = values["max_probability"]
        xp, points = array_namespace(example), example.shape[1]
        if batch_weights.rows is not None:
            replicates = as_block(batch_weights.rows[resampled], example)
        first, last = np.searchsorted(self._ranked_rows, [self._n, self._n + points])
        rows: slice | Array = slice(None)
        if last - first < points:
            rows = as_block(self._ranked_rows[first:last] - self._n, example)
        ranked: dict[str, Array] = {
            Key("ranked", name): xp.astype(values[name][replicates], xp.float32)[:, rows]
            for name in (*metrics.CLASSIFICATION_SCORES, *metrics.LOGIT_SCORES)
            if name in values
        }
        if "accuracy" in values:
            ranked[Key("ranked", "wrong")] = values["accuracy"][replicates][:, rows] == 0
        return ranked

    def release(self) -> None:
        """Give back the work memory, which the next block takes again."""
        if self._kernel is not None:
            self._kernel.release()

    def _merged(self, units: Gathered, group: Groups) -> ClassScores:
        arrays = units.by_kind()
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        predicted = points.pop("predicted")
        bins, ranked = of_kind(taken_out(sums, "bins"), "bins"), of_kind(draws, "ranked")
        part_sums = taken_out(sums, *self._parts) if self._parts else {}
        replicates = {name: total / len(predicted) for name, total in sums.items()}
        conformity, covered, covered_rows = {}, {}, np.arange(0)
        if "probabilities" in points:
            assert self._labels is not None and self._sets is not None
            mean = points.pop("probabilities")
            covered_rows = self._sets.rows_of_draws(len(mean), mean.shape[1], self._draws)
            p = Probabilities(mean, draws["probabilities"], covered_rows, draws.get("numbers"))
            class_scores = class_probabilities.scored(p, self._labels, self._sets, self._draws, units.pool)
            points, replicates = points | class_scores.points, replicates | class_scores.replicates
            conformity, covered = class_scores.conformity, class_scores.covered
        return ClassScores(
            parts=self._parts,
            part_sums=part_sums,
            n=len(predicted),
            points=points,
            predicted=predicted,
            replicates=replicates,
            conformity=conformity,
            ranked_rows=self._ranked_rows,
            ranked_wrong=ranked.pop("wrong", None),
            ranked=ranked,
            log_likelihood=draws.get("log_likelihood"),
            bins=CalibrationBins(**bins) if bins else None,
            estimator=self._estimator,
            group=group,
            samples_differ=estimates.samples_differ(arrays["most"]),
            covered=covered,
            covered_rows=covered_rows,
        )


def _numbers(rows: Iterable[Int64[np.ndarray, " _"]], points: int) -> Int16[np.ndarray, " point"]:
    """The number of the part that each point is in; that after the last for the points of none."""
    parts = [*rows]
    numbers = np.full(points, len(parts), np.int16)  # small numbers are sorted in no time
    for number, of_part in enumerate(parts):
        numbers[of_part] = number
    return numbers


def _corrections(draws: DrawWeights) -> Float[np.ndarray, " replicate"]:
    """k/(k − 1) for a replicate of k draws; 1 for a single draw, which has no mutual information to correct."""
    replicates, samples = draws.weights.shape
    counts = np.full(replicates, samples)
    counts[draws.jackknife] = samples - 1
    counts[draws.prefix] = draws.prefix_sizes
    return np.where(counts > 1, counts / np.maximum(counts - 1, 1), 1.0)
