"""The deviation of a batch from a baseline as a module that `torch.export` can trace, by the normal law alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.program import StepContext, plain_step
from bnuq.sampling.recording import record
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.trace import NotTraceableError, filled
from bnuq.shapes import Float64, Int8
from bnuq.studies.monitor.features import Watch, features_of_outputs, moments_of
from bnuq.studies.monitor.record import STEPS, Baseline
from bnuq.studies.monitor.testing import choices, random_rows

LEVELS = (0.05, 0.01, 0.001)
LEAST_POINTS = 10  # of a batch: of fewer, tails are heavier than thresholds allow for
_SIZES = (30, 100)  # points of resampled batches
_DIVISIONS, _BATCHES = 40, 100  # of the kept points, and batches of each size in each


@frozen
class Law:
    """The law of the distance of a batch's mean from the kept points', block by block: `spread`·(1/n + 1/N)/`freedom`
    times χ² with `freedom` degrees of freedom, which has the mean and the variance of such a distance of normal points
    (Satterthwaite 1946)."""

    mean: Float64[np.ndarray, " coordinate"]
    spread: Float64[np.ndarray, " block"]
    freedom: Float64[np.ndarray, " block"]
    points: int

    def scores(self, mean: Any, count: Any, starts: Sequence[int]) -> Any:
        """The nearly standard normal score of each block (Wilson & Hilferty 1931), of the mean coordinates of a
        batch, or of several; for numpy and torch alike."""
        ends = [*starts[1:], len(self.mean)]
        found = []
        for first, last, spread, freedom in zip(starts, ends, self.spread, self.freedom, strict=True):
            distance = ((mean[..., first:last] - self._like(mean, self.mean[first:last])) ** 2).sum(-1)
            ratio = distance / (float(spread) * (1 / count + 1 / self.points))
            found.append((ratio ** (1 / 3) - (1 - 2 / (9 * float(freedom)))) / (2 / (9 * float(freedom))) ** 0.5)
        return found

    def _like(self, mean: Any, values: np.ndarray) -> Any:
        return torch.from_numpy(values) if isinstance(mean, Tensor) else values


def law_of(bag: Int8[np.ndarray, "point coordinate"], starts: Sequence[int]) -> Law:
    """The law by the kept points themselves; a block along which nothing varies has a spread that nothing reaches."""
    rows = bag.astype(np.float64) / STEPS
    spread, freedom = [], []
    for part in np.split(rows, starts[1:], axis=1):
        covariance = np.atleast_2d(np.cov(part.T))
        trace, square = float(np.trace(covariance)), float((covariance**2).sum())
        spread.append(trace if trace > 0 else np.inf)
        freedom.append(trace**2 / square if trace > 0 else 1.0)
    return Law(rows.mean(axis=0), np.array(spread), np.array(freedom), len(rows))


def threshold(blocks: int, level: float) -> float:
    """The score that the largest of so many blocks exceeds with a probability of at most `level`, by Bonferroni."""
    from scipy.special import ndtri  # late: a sixth of a second

    return float(-ndtri(level / blocks))


def thresholds(bag: Int8[np.ndarray, "point coordinate"], starts: Sequence[int], seed: int) -> dict[float, float]:
    """The scores that at least `LEAST_POINTS` points exceed with at most these probabilities.

    The law is too light in its tails where points are few or far from normal. So `threshold` is raised to what batches
    of the kept points reach: the largest quantile of several sizes. The law that they are held against is that of the
    points which are in none of them.
    """
    found, part = {level: threshold(len(starts), level) for level in LEVELS}, max(LEAST_POINTS, len(bag) // 4)
    largest: dict[int, list[np.ndarray]] = {LEAST_POINTS: []} | {size: [] for size in _SIZES if size <= part // 2}
    for number in range(_DIVISIONS):
        taken = random_rows(len(bag), part, seed, number)
        rows, law = bag[taken].astype(np.float32), law_of(np.delete(bag, taken, axis=0), starts)
        for size, scores in largest.items():
            sums = np.concatenate([chosen @ rows for chosen in choices(part, size, _BATCHES, seed, step=number)])
            scores.append(np.max(law.scores(sums.astype(np.float64) / (STEPS * size), size, starts), axis=0))
    for scores in largest.values():
        for level in LEVELS:
            found[level] = max(found[level], float(np.quantile(np.concatenate(scores), 1 - level, method="higher")))
    return found


class Drift(nn.Module):
    """The largest score of a batch's blocks, repeated for each point: the deterministic network is passed once more.

    SamplingError where its operations cannot be recorded, or do not give the coordinates that the monitor takes.
    """

    def __init__(self, model: nn.Module, watch: Watch, baseline: Baseline, example: Tensor) -> None:
        super().__init__()
        self._watch, self._baseline = watch, baseline
        self._law = law_of(baseline.bag, baseline.starts)
        network = unconverted(model)
        if network is not model:
            raise SamplingError("the monitor of a network whose outputs are converted to logits cannot be exported.")
        sites = find_sites(network, example, compare_with_training=False)
        try:
            with undisturbed(network):
                self._trace = record(network, sites, example)
        except NotTraceableError as error:
            raise SamplingError(f"the monitor cannot be exported, as {error}.") from error
        for number, tensor in self._trace.constants.items():
            self._keep(f"constant_{number}", tensor)
        for number, block in enumerate(baseline.blocks):
            scale = np.where(block.scale > 0, block.scale, np.inf)  # what does not vary is left out
            self._keep(f"centre_{number}", torch.from_numpy(np.asarray(block.centre, np.float64)))
            weights = np.asarray(block.directions, np.float64) / scale[:, None]
            self._keep(f"weights_{number}", torch.from_numpy(weights))
        few = example[:3]
        mean = torch.cat(self._coordinates(few), 1)
        features = watch.passes(few)[0].numpy()
        columns = {block.name: block.columns for block in watch.blocks}
        for number, block in enumerate(baseline.blocks):
            weights = getattr(self, f"weights_{number}").numpy()
            expected = np.clip((features[:, columns[block.name]] - block.centre) @ weights, -127 / STEPS, 127 / STEPS)
            first = baseline.starts[number]
            found = mean[:, first : first + expected.shape[1]].numpy()
            if not np.allclose(found, expected, atol=0.05 + 0.5 / STEPS):
                raise SamplingError(f"the monitor cannot be exported: {block.name} differs in the recorded operations.")

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.detach().clone(memory_format=torch.contiguous_format))

    def summary(self) -> dict[str, Any]:
        """What "drift" is compared with: beyond the threshold at a level, a batch is not drawn like the reference."""
        of = self._baseline
        limits = {f"{level:g}": round(limit, 4) for level, limit in thresholds(of.bag, of.starts, of.seed).items()}
        return {
            "reference": of.reference["reference"],
            "points": len(of.bag),
            "thresholds": limits,
            "least_points": LEAST_POINTS,
        }

    def forward(self, inputs: Tensor) -> Tensor:
        """The score of these points as a batch (point), float32."""
        rows = torch.cat(self._coordinates(inputs), 1)
        scores = self._law.scores(rows.mean(0), rows.shape[0], self._baseline.starts)
        largest = torch.stack(scores).amax()
        return (largest + torch.zeros_like(rows[:, 0])).float()

    def _coordinates(self, inputs: Tensor) -> list[Tensor]:
        """Of each block the coordinates of the points, in whole steps like those of the kept ones, in float64."""
        values: list[Any] = [None] * len(self._trace.values)
        for number in self._trace.constants:
            values[number] = getattr(self, f"constant_{number}")
        values[self._trace.input] = inputs.clone()
        moments: dict[str, Tensor] = {}
        for operation in self._trace.operations:
            if operation.site is not None and operation.site.kind == "batchnorm":
                site: Any = operation.site
                chosen = self._watch.channels[site.key]
                running = None if site.running_mean is None else values[operation.arguments[3].number]
                moments[site.name] = moments_of(values[operation.arguments[0].number], inputs.shape[0], chosen, running)
            arguments = filled(operation.arguments, inputs.shape[0])
            plain_step(operation.function, arguments, operation.result)(values, _NOTHING)
        of_outputs = features_of_outputs(values[self._trace.output], self._watch.task)
        features = moments | {name: part for name, _, part in of_outputs}
        found = []
        for number, block in enumerate(self._baseline.blocks):
            if block.name not in features:
                raise SamplingError(f"the monitor cannot be exported: {block.name} is not recorded.")
            centred = features[block.name].double() - getattr(self, f"centre_{number}")
            steps = (STEPS * (centred @ getattr(self, f"weights_{number}"))).round().clamp(-127, 127)
            found.append(steps / STEPS)
        return found


_NOTHING = StepContext(range(0), 0, {})
