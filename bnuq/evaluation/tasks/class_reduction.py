"""The streaming reduction of a classification: scores of each point and sums over points, under every replicate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from bnuq import devices, metrics
from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.estimates import Estimator
from bnuq.evaluation import estimates
from bnuq.evaluation.tasks import class_probabilities
from bnuq.evaluation.tasks.class_probabilities import PredictionSets, Probabilities
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.metrics import CalibrationBins, DrawWeights, LogitMaps
from bnuq.metrics.registry import ESTIMANDS, estimates_of_task
from bnuq.sampling.outputs import PROBABILITY_TOLERANCE

_BLOCK = 2**17  # replicates × points × classes in memory at once: a few times this fits in a core's cache


_DEVICE_BLOCK = 2**24  # the same on an accelerator, which needs large blocks to be busy


_TINY = float(np.finfo(np.float64).tiny)  # changes no logarithm that matters, and makes 0·ln 0 equal 0


_UNDERFLOW = -1000.0  # whose exp is 0


_MASKED = -1e9  # the logit of a masked class, whose probability is 0 at every temperature


_HOPELESS = 1000.0  # below the largest logit, where exp gives 0 in float64


PART_SCORES = tuple(  # the scores that classes and groups have estimates of
    name for name, estimand in estimates_of_task("classification").items() if estimand.by_part and name != "count"
)


Parts = Mapping[str, Mapping[str, Int64[np.ndarray, " _"]]]  # the points of each, by "class" or "group" and its name


@dataclass(frozen=True)
class ClassScores(estimates.SetScores):
    """The scores of one set. A single draw has no mutual information and no variation ratio; `estimator` is the
    estimator of every mutual information here. `part_sums` are the sums of a score over the points of each of the
    `parts`, by "class.accuracy". `conformity` are the scores that thresholds of prediction sets are fitted to. Which of
    the points `covered_rows` sets cover under the replicates, is `covered`."""

    predicted: Int64[np.ndarray, " point"]
    bins: CalibrationBins | None = field(default=None, kw_only=True)
    ranked_wrong: Bool[np.ndarray, "error_replicate kept"] | None = field(default=None, kw_only=True)
    estimator: Estimator = field(default="plug-in", kw_only=True)
    conformity: dict[str, Float[np.ndarray, " point"]] = field(default_factory=dict, kw_only=True)
    parts: Parts = field(default_factory=dict, kw_only=True)
    part_sums: dict[str, Float[np.ndarray, "replicate _"]] = field(default_factory=dict, kw_only=True)
    covered: dict[str, Bool[np.ndarray, "some_replicate _"]] = field(default_factory=dict, kw_only=True)
    covered_rows: Int64[np.ndarray, " _"] = field(default_factory=lambda: np.arange(0), kw_only=True)


def bytes_of_scoring(samples: int, points: int, classes: int, device: torch.device) -> int:
    """About how many bytes a Reduction takes on an accelerator while it adds this many points; 0 on a CPU, where blocks
    are small."""
    if devices.is_host(device):
        return 0
    replicates = samples + estimates.RESAMPLES + samples.bit_length() + 1
    at_once = max(1, min(points, _DEVICE_BLOCK // (replicates * classes)))
    return 2 * 8 * (samples + replicates) * at_once * classes


class ClassReduction:
    """Takes blocks of logits (T, chunk, K) in the order of the points from `first` on, and gives their Scores.

    `estimator` is used for every mutual information: per point, in means, and where points are ranked by it. Logits
    that `are_log_probabilities` are checked to be. Those of each point are recalibrated by its entry of `maps`, and
    then scored like any others, but without scores of logits, which need the network's own. `parts` of labelled points
    get sums of their own. With `sets`, labelled points get them and a classwise ECE from the probabilities of all
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
        self._memory: Tensor | None = None
        self._block_limit = _DEVICE_BLOCK  # reduced once memory has run out
        self._ranked_rows = estimates.ranked_rows(points)
        self._where = where
        self._n = first  # the number of the next point
        self._blocks = Blocks()
        self._made_in = torch.float32
        self._names: tuple[str, ...] = ()  # of the values of points

    def add(
        self,
        logits: Float[np.ndarray | Tensor, "sample chunk class"],
        draws: Int64[np.ndarray, " sample"] | None = None,
    ) -> None:
        """Add the next points, on any device; SamplingError where an output is not finite.

        With a bank, `draws` are the draws that these points use. Computed in float64 on the points' device, or on the
        CPU where the device has no float64 (mps).
        """
        block = torch.from_numpy(np.array(logits)) if isinstance(logits, np.ndarray) else logits
        block = devices.with_float64(block)
        self._made_in = block.dtype
        weights = self._weights(block.device, draws)
        done = 0
        with torch.inference_mode():
            while done < block.shape[1]:
                most = min(_BLOCK if devices.is_host(block.device) else _DEVICE_BLOCK, self._block_limit)
                step = max(1, most // (len(weights.tensor) * block.shape[-1]))
                points = block[:, done : done + step]
                try:
                    self._add(points, weights)
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error) or points.shape[1] == 1:
                        raise
                    self._memory = None
                    self._block_limit = points.shape[1] * len(weights.tensor) * block.shape[-1] // 2
                else:
                    done += points.shape[1]

    def _add(self, block: Tensor, weights: estimates.ReplicateWeights) -> None:
        """Add these points. Those of an accelerator are first scored without a look at any number, for which the host
        would wait."""
        is_added = False
        if not devices.is_host(block.device):
            is_added = self._kept(devices.fetch(self._scored(block, weights)), weights)
        if not is_added:
            differences: Arrays = {}
            arrays = devices.fetch(self._scored(block, weights, differences))
            self._kept(arrays, weights, differences)

    def scored_at_once(
        self, block: Float[Tensor, "sample chunk class"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> dict[str, Tensor]:
        """Values of the next points on their accelerator, for `add_scored` once they are fetched."""
        with torch.inference_mode():
            return self._scored(block, self._weights(block.device, draws))

    def add_scored(
        self,
        arrays: Arrays,
        block: Float[Tensor, "sample chunk class"],
        draws: Int64[np.ndarray, " sample"] | None = None,
    ) -> None:
        """Add the points of this block, of which the arrays are `scored_at_once`."""
        if not self._kept(arrays, self._weights(block.device, draws)):
            self.add(block, draws)

    def _weights(self, device: torch.device, draws: Int64[np.ndarray, " sample"] | None) -> estimates.ReplicateWeights:
        if draws is not None:
            return estimates.ReplicateWeights.of(self._draws, draws).to(device)
        self._all = self._all.to(device)
        return self._all

    def _scored(
        self, block: Tensor, batch_weights: estimates.ReplicateWeights, differences: Arrays | None = None
    ) -> dict[str, Tensor]:
        """What `_kept` takes of these points, on their device.

        With `differences`, which take how much the samples differ, numbers are looked at: masked classes get a finite
        logit, what underflows is computed again, and what cannot be scored is an error. Without, the values whose names
        begin with "needs" tell `_kept` whether a look is needed.
        """
        samples, points, _ = block.shape
        weights, full = batch_weights.tensor, batch_weights.draws.full.start
        buffers = self._buffers(block, len(weights))
        logits = buffers.logits.copy_(block)
        if self._maps is not None:
            rows = self._maps.of_point[self._n : self._n + points]
            logits.mul_(devices.upload(torch.tensor(self._maps.scale[rows]), logits.device))
            logits.add_(devices.upload(torch.tensor(self._maps.shift[rows]), logits.device))
        y = None
        if self._labels is not None:
            y = devices.upload(torch.tensor(self._labels[self._n : self._n + points]), logits.device)
        kept: dict[str, Tensor] = {}
        if differences is None:
            kept |= {f"most.{name}": value for name, value in estimates.apart_and_size(logits).items()}
        else:
            differences |= self._spread(logits, y)
        sample_scores = _sample_scores(logits, y, buffers)
        if self._sum_to_one:
            wrong = sample_scores.log_total.expm1().abs() > PROBABILITY_TOLERANCE
            if differences is None:
                kept["needs.sum"] = wrong.any()
            else:
                self._check_sum_to_one(wrong, sample_scores.log_total)
        mean = torch.mm(weights, buffers.p.view(samples, -1), out=buffers.mean)
        kept |= self._probabilities(mean[full], buffers.p)
        further = _further_scores(mean.view(-1, *buffers.p.shape[1:]), y)
        values = _scores_of_means(mean, y, buffers) | further
        kept["predicted"] = values.pop("predicted")[full].clone()
        expected, impurity = weights @ sample_scores.entropy, values.pop("impurity")
        values["expected_entropy"] = expected
        if self._logit_scores:
            values["max_logit"] = -(weights @ sample_scores.largest)
            values["energy"] = -(weights @ sample_scores.log_total)
        if samples > 1:
            predictive = values["predictive_entropy"]
            values["mutual_information"] = self._mutual_information(
                predictive - expected, predictive, batch_weights.draws
            )
            values["zero_one_epistemic"] = values["least_confidence"] - weights @ sample_scores.least_confidence
            values["brier_epistemic"] = impurity - weights @ sample_scores.impurity
            values["variation_ratio"] = _variation_ratio(sample_scores.vote, weights, buffers)
        if y is not None:
            assert sample_scores.log_likelihood is not None
            kept["log_likelihood"] = sample_scores.log_likelihood
            if differences is None:
                values["pll"], underflowed = metrics.pll_of_product(sample_scores.log_likelihood, weights)
                kept["needs.pll"] = underflowed.any()
            else:
                values["pll"] = metrics.pll_from_log_likelihood(sample_scores.log_likelihood, weights=weights)
            of_replicates = "max_probability", "accuracy", *(PART_SCORES if self._parts else ())
            kept |= {f"replicates.{name}": values[name] for name in of_replicates}
        self._names = tuple(values)
        kept["sums"] = torch.stack([value.sum(1) for value in values.values()])
        kept["full"] = torch.stack([value[full] for value in values.values()])
        return kept | self._ranked_of(values, batch_weights)

    def _kept(
        self, arrays: Arrays, batch_weights: estimates.ReplicateWeights, differences: Arrays | None = None
    ) -> bool:
        """Whether the points of these `_scored` arrays are added; they are not where numbers have to be looked at."""
        if differences is None:
            differences = estimates.with_rounding(arrays["most.apart"], arrays["most.size"], self._made_in)
            unlike = len(batch_weights.draws.weights[0]) == 1 or estimates.samples_differ(differences)
            is_plain = bool(np.isfinite(differences["size"])) and unlike
            if not is_plain or any(bool(value) for name, value in arrays.items() if name.startswith("needs.")):
                return False
        sums = arrays["sums"] if batch_weights.rows is None else arrays["sums"][:, batch_weights.rows]
        means = {name: total for name, total in zip(self._names, sums, strict=True) if name in metrics.METRICS}
        of_points = dict(zip(self._names, arrays["full"], strict=True)) | {"predicted": arrays["predicted"]}
        of_draws = {name: array for name, array in arrays.items() if name.startswith("ranked.")}
        if "log_likelihood" in arrays:
            confidence, hits = (arrays[f"replicates.{name}"] for name in ("max_probability", "accuracy"))
            bins = batch_weights.of_replicates(metrics.calibration_bins(confidence, hits))
            means |= {f"bins.{name}": np.asarray(sums_of_bins) for name, sums_of_bins in vars(bins).items()}
            of_draws["log_likelihood"] = arrays["log_likelihood"]
            means |= self._sums_of_parts(arrays, batch_weights)
        if "probabilities" in arrays:
            of_points["probabilities"] = arrays["probabilities"]
            of_draws["probabilities"] = arrays["probabilities.of_draws"]
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

    def _spread(self, logits: Float[Tensor, "sample chunk class"], y: Int64[Tensor, " chunk"] | None) -> Arrays:
        """`estimates.spread`, after logits of -inf have become finite: their classes are masked, of probability 0, and
        a label among them has the smallest normal probability of float32, as where a network gives probabilities."""
        spread = partial(estimates.spread, first=self._n, made_in=self._made_in, where=self._where)
        try:
            differences = spread(logits)
            if estimates.samples_differ(differences):
                return differences
            # A class that is masked by a large number hides differences of the others: its probability is 0.
            masked = logits < logits.amax(-1, keepdim=True) - _HOPELESS
            return spread(logits.masked_fill(masked, 0)) if bool(masked.any()) else differences
        except SamplingError:
            masked = logits.isneginf()
            if not bool(masked.any()) or bool(masked.all(-1).any()):
                raise
        differences = spread(logits.masked_fill(masked, 0))
        logits.masked_fill_(masked, _MASKED)
        if y is not None:
            labels = y[None, :, None].expand(len(logits), -1, 1)
            lowest = logits.logsumexp(-1, keepdim=True) + math.log(torch.finfo(torch.float32).tiny)
            logits.scatter_(-1, labels, torch.where(masked.gather(-1, labels), lowest, logits.gather(-1, labels)))
        return differences

    def _probabilities(
        self, mean: Float[Tensor, " chunk_class"], p: Float[Tensor, "sample chunk class"]
    ) -> dict[str, Tensor]:
        """The mean probabilities of all classes, and those by each draw for some of the points, where they are kept."""
        _, points, classes = p.shape
        if self._labels is None or self._sets is None or not class_probabilities.are_kept(self._points, classes):
            return {}
        rows_of_draws = self._sets.rows_of_draws(self._points, classes, self._draws)
        first, last = np.searchsorted(rows_of_draws, [self._n, self._n + points])
        rows = devices.upload(torch.from_numpy(rows_of_draws[first:last] - self._n), p.device)
        of_draws = p[:, rows].to(torch.float32)
        return {"probabilities": mean.view(points, classes).to(torch.float32), "probabilities.of_draws": of_draws}

    def _sums_of_parts(self, arrays: Arrays, batch_weights: estimates.ReplicateWeights) -> Arrays:
        """The sums of scores over the points of each part, under every replicate."""
        sums = {}
        for name, points_values in ((name, arrays[f"replicates.{name}"]) for name in PART_SCORES if self._parts):
            of_replicates = points_values if batch_weights.rows is None else points_values[batch_weights.rows]
            for kind, of_point in self._part_of_point.items():
                numbers = of_point[self._n : self._n + points_values.shape[1]]
                order = np.argsort(numbers, kind="stable")
                present, start = np.unique(numbers[order], return_index=True)
                total = np.zeros((len(of_replicates), len(self._parts[kind]) + 1))
                total[:, present] = np.add.reduceat(of_replicates[:, order], start, axis=1)
                sums[f"{kind}.{name}"] = total[:, :-1]  # the last are the points of no part
        return sums

    def _check_sum_to_one(self, wrong: Bool[Tensor, "sample chunk"], log_total: Float[Tensor, "sample chunk"]) -> None:
        """Raise SamplingError where the probabilities of a point do not sum to 1 in every sample."""
        if bool(wrong.any()):
            sample, point = wrong.nonzero()[0].tolist()
            where = self._where and f" of those evaluated of {self._where}"
            raise SamplingError(
                f"the probabilities that the network gives for point {self._n + point}{where} (counted from 0) sum to "
                f"{float(log_total[sample, point].exp()):.4g}; expected 1. Check that the outputs are what --outputs "
                "says."
            )

    def _buffers(self, block: Float[Tensor, "sample chunk class"], replicates: int) -> _Buffers:
        samples, points, classes = block.shape
        need = 2 * (samples + replicates) * points * classes
        if self._memory is None or self._memory.numel() < need or self._memory.device != block.device:
            self._memory = torch.empty(need, dtype=torch.float64, device=block.device)
        sizes = [samples * points * classes] * 2 + [replicates * points * classes] * 2
        logits, p, mean, spare = self._memory[:need].split(sizes)
        return _Buffers(
            logits.view(samples, points, classes),
            p.view(samples, points, classes),
            mean.view(replicates, points * classes),
            spare,
        )

    def _mutual_information(
        self,
        plug_in: Float[Tensor, "replicate chunk"],
        predictive: Float[Tensor, "replicate chunk"],
        draws: DrawWeights,
    ) -> Float[Tensor, "replicate chunk"]:
        """Mutual information by the requested estimator, under every replicate.

        The bias of a replicate is that of its number of draws. Exact replicates of the jackknife would need every pair
        of draws left out. Here they change as the corrected estimate does, which agrees with the jackknife to first
        order in 1/T. The convergence curve uses the corrected estimate until all draws are in.
        """
        if self._estimator == "plug-in":
            return plug_in
        corrected = plug_in * devices.upload(torch.from_numpy(_corrections(draws)), plug_in.device)[:, None]
        if self._estimator == "corrected":
            return corrected
        full = draws.full.start
        jackknifed = metrics.jackknifed_mutual_information(plug_in[full], predictive[full], predictive[draws.jackknife])
        moved = corrected + (jackknifed - corrected[full])
        moved[draws.prefix] = corrected[draws.prefix]
        moved[[full, draws.prefix.stop - 1]] = jackknifed
        return moved

    def _ranked_of(self, values: Mapping[str, Tensor], batch_weights: estimates.ReplicateWeights) -> dict[str, Tensor]:
        """Per-point values under every replicate: the scores, and "wrong" where the set is labelled."""
        resampled = slice(self._draws.jackknife.start, self._draws.bootstrap.stop)
        if resampled.start == resampled.stop:
            return {}
        replicates: slice | Tensor = resampled
        device, points = batch_weights.tensor.device, values["max_probability"].shape[1]
        if batch_weights.rows is not None:
            replicates = devices.upload(torch.from_numpy(batch_weights.rows[resampled]), device)
        first, last = np.searchsorted(self._ranked_rows, [self._n, self._n + points])
        rows: slice | Tensor = slice(None)
        if last - first < points:
            rows = devices.upload(torch.from_numpy(self._ranked_rows[first:last] - self._n), device)
        ranked = {
            f"ranked.{name}": values[name][replicates].to(torch.float32)[:, rows]
            for name in (*metrics.CLASSIFICATION_SCORES, *metrics.LOGIT_SCORES)
            if name in values
        }
        if "accuracy" in values:
            ranked["ranked.wrong"] = values["accuracy"][replicates][:, rows] == 0
        return ranked

    def release(self) -> None:
        """Give back the work memory, which the next block takes again."""
        self._memory = None

    def arrays(self) -> Arrays:
        """What was added, for `scores` to merge."""
        return self._blocks.arrays()

    def scores(self, units: Gathered | None = None, *, group: Int64[np.ndarray, " point"] | None = None) -> ClassScores:
        """The scores of all points added so far, or of those of `units`: the `arrays` of reductions like this one, in
        the order of the points."""
        units = units or Gathered([self.arrays()])
        arrays = units.by_kind()
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        predicted = points.pop("predicted")
        bins = {name: sums.pop(f"bins.{name}") for name in ("count", "confidence", "correct") if f"bins.{name}" in sums}
        ranked = {name.partition(".")[2]: of for name, of in draws.items() if name.startswith("ranked.")}
        part_sums = {name: sums.pop(name) for name in [*sums] if name.partition(".")[0] in self._parts}
        replicates = {name: total / len(predicted) for name, total in sums.items()}
        conformity, covered, covered_rows = {}, {}, np.arange(0)
        if "probabilities" in points:
            assert self._labels is not None and self._sets is not None
            mean = points.pop("probabilities")
            covered_rows = self._sets.rows_of_draws(len(mean), mean.shape[1], self._draws)
            p = Probabilities(mean, draws["probabilities"], covered_rows, draws.get("numbers"))
            class_scores = class_probabilities.scored(p, self._labels, self._sets, self._draws, units.pool)
            points, replicates, conformity, covered = (
                points | class_scores.points,
                replicates | class_scores.replicates,
                class_scores.conformity,
                class_scores.covered,
            )
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


def _numbers(rows: Iterable[Int64[np.ndarray, " _"]], points: int) -> Int64[np.ndarray, " point"]:
    """The number of the part that each point is in; that after the last for the points of none."""
    parts = [*rows]
    numbers = np.full(points, len(parts))
    for number, of_part in enumerate(parts):
        numbers[of_part] = number
    return numbers


@dataclass(frozen=True)
class _Buffers:
    """Work memory shared by all blocks: allocating it for each step would cost more than the step."""

    logits: Float[Tensor, "sample chunk class"]
    p: Float[Tensor, "sample chunk class"]
    mean: Float[Tensor, "replicate chunk_class"]
    spare: Float[Tensor, " replicate_chunk_class"]


@dataclass(frozen=True)
class _SampleScores:
    """The scores of each sample alone: its entropy, 1 − its largest probability, 1 − the sum of the squares of all, the
    class it predicts, the log-likelihood of the true class, the logarithm of the sum of the exponentials of its logits
    (0 for log-probabilities), and its largest logit."""

    entropy: Float[Tensor, "sample chunk"]
    least_confidence: Float[Tensor, "sample chunk"]
    impurity: Float[Tensor, "sample chunk"]
    vote: Int64[Tensor, "sample chunk"]
    log_likelihood: Float[Tensor, "sample chunk"] | None
    log_total: Float[Tensor, "sample chunk"]
    largest: Float[Tensor, "sample chunk"]


def _sample_scores(
    logits: Float[Tensor, "sample chunk class"], y: Int64[Tensor, " chunk"] | None, buffers: _Buffers
) -> _SampleScores:
    """The scores of each sample; its softmax is left in `buffers.p`, and `logits` are overwritten.

    With e_k = exp(z_k − max z) and δ their sum without the largest, which is 1, the entropy is
    ln(1 + δ) − Σ p_k (z_k − max z): one logarithm per distribution, and no loss of precision where δ vanishes.
    """
    largest, vote = logits.max(-1, keepdim=True)
    below = logits.sub_(largest)
    p = torch.exp(below, out=buffers.p).scatter_(-1, vote, 0.0)
    rest = p.sum(-1, keepdim=True)
    log_sum = rest.log1p()
    least_confidence = (rest / (1 + rest))[..., 0]
    squares = (torch.linalg.vector_norm(p, dim=-1) / (1 + rest[..., 0])).square_()  # of all but the largest
    log_likelihood = None
    if y is not None:
        log_likelihood = below.gather(-1, y.expand(vote.shape[:2])[..., None])[..., 0] - log_sum[..., 0]
    p.scatter_(-1, vote, 1.0).div_(1 + rest)
    inner = below.clamp_min_(_UNDERFLOW).mul_(p).sum(-1)  # 0·(−∞) would be NaN
    log_total = (largest + log_sum)[..., 0]
    return _SampleScores(
        log_sum[..., 0] - inner,
        least_confidence,
        _impurity(least_confidence, squares),
        vote[..., 0],
        log_likelihood,
        log_total,
        largest[..., 0],
    )


def _impurity(rest: Float[Tensor, "*any"], squares: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """1 − Σ p², from the sum of all probabilities but the largest and the sum of their squares: no loss of precision
    where they vanish."""
    return rest * (2 - rest) - squares


def _scores_of_means(
    mean: Float[Tensor, "replicate chunk_class"], y: Int64[Tensor, " chunk"] | None, buffers: _Buffers
) -> dict[str, Tensor]:
    """The scores of the mean prediction under every replicate, equal to those of the functions of the same names in
    `metrics`.

    `mean` is overwritten.
    """
    p_mean = mean.view(-1, *buffers.p.shape[1:])
    spare = buffers.spare.view(p_mean.shape)
    largest, predicted = p_mean.max(-1, keepdim=True)
    true = None if y is None else p_mean.gather(-1, y.expand(predicted.shape[:2])[..., None])[..., 0]
    others = p_mean.scatter_(-1, predicted, 0.0)
    rest, largest, predicted = others.sum(-1), largest[..., 0], predicted[..., 0]
    inner = torch.add(others, _TINY, out=spare).log_().mul_(others).sum(-1)
    squares = torch.mul(others, others, out=spare).sum(-1)
    values = {
        "impurity": _impurity(rest, squares),
        "predictive_entropy": 0.0 - (1 - rest) * torch.log1p(-rest) - inner,
        "max_probability": largest,
        "least_confidence": rest,
        "predicted": predicted,
    }
    if y is not None and true is not None:
        hit = predicted == y
        values["accuracy"] = hit.to(mean.dtype)
        values["brier"] = squares + torch.where(hit, rest**2, largest**2 + 1 - 2 * true)
    return values


# What `_scores_of_means` computes, with one logarithm for all; any other value of points is by the formula of its row.
_FUSED = frozenset({"accuracy", "brier", "predictive_entropy", "max_probability", "least_confidence"})


def _further_scores(
    mean: Float[Tensor, "replicate chunk class"], y: Int64[Tensor, " chunk"] | None
) -> dict[str, Float[Tensor, "replicate chunk"]]:
    """The values of points that the table has beside those that are computed together."""
    replicates, points, classes = mean.shape
    labels = None if y is None else y.repeat(replicates)
    return {
        estimand.name: estimand.of_mean(mean.view(-1, classes), labels).view(replicates, points)
        for estimand in ESTIMANDS
        if estimand.of_mean and estimand.name not in _FUSED and (y is not None or not estimand.needs_truth)
    }


def _variation_ratio(
    vote: Int64[Tensor, "sample chunk"], weights: Float[Tensor, "replicate sample"], buffers: _Buffers
) -> Float[Tensor, "replicate chunk"]:
    """The variation ratio, from the votes for each class, or, where there are fewer samples than classes, for each
    sample's predicted class."""
    samples, points, classes = buffers.logits.shape
    candidates = torch.arange(classes, device=vote.device) if classes <= samples else vote.T
    width = min(samples, classes)
    votes = buffers.logits.view(-1)[: samples * points * width].view(samples, points, width)
    torch.eq(vote[..., None], candidates, out=votes)
    shares = buffers.spare[: len(weights) * points * width].view(-1, points * width)
    return 1 - torch.mm(weights, votes.view(samples, -1), out=shares).view(-1, points, width).amax(-1)


def _corrections(draws: DrawWeights) -> Float[np.ndarray, " replicate"]:
    """k/(k − 1) for a replicate of k draws; 1 for a single draw, which has no mutual information to correct."""
    replicates, samples = draws.weights.shape
    counts = np.full(replicates, samples)
    counts[draws.jackknife] = samples - 1
    counts[draws.prefix] = draws.prefix_sizes
    return np.where(counts > 1, counts / np.maximum(counts - 1, 1), 1.0)
