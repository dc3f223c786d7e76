"""What one deterministic pass says of each point: its share of every BatchNorm's batch statistics, the network's
outputs, and the scores of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.data import Points
from bnuq.errors import DataError, SamplingError
from bnuq.evaluation.passes import loading
from bnuq.evaluation.pipeline import Pipeline
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.sampling.deviation import class_logits
from bnuq.sampling.engine import chunks, default_chunk
from bnuq.sampling.head import HeadRecorder, NoHeadError
from bnuq.sampling.interception import (
    BatchNormCall,
    Mode,
    forward,
    stochastic_call,
    undisturbed,
    with_autograd_if_needed,
)
from bnuq.sampling.plain_loop import tensor_output
from bnuq.sampling.recorded_calls import BatchNormCalls
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite
from bnuq.shapes import Float
from bnuq.studies.monitor.record import BlockKind
from bnuq.tasks import Task

MOST_CHANNELS = 128  # of a layer that are watched: of more, a random choice, so that a baseline stays small
MOST_OF_ALL = 4000  # of all layers together
MASKED = -1e9  # in place of a logit of −∞
OUTPUTS, LAST_LAYER = "outputs", "features of the last layer"


@frozen
class Block:
    """The columns of one layer, of the outputs, or of one score, among the features of a point."""

    name: str
    kind: BlockKind
    columns: slice


class Watch:
    """Passes points through the network as it evaluates, and gives the features of each.

    Of a BatchNorm and each of its channels these are the means over positions of a − r and of (a − r)², where a is the
    layer's input and r its running mean: their means over a batch are the batch's mean and variance, up to terms that
    are known, and positions of one point, which depend on each other, count as one. A network without BatchNorm has
    those of the input of its last linear layer instead.
    """

    samples = 1

    def __init__(self, model: nn.Module, task: Task, example: Tensor, *, seed: int = 0) -> None:
        self._model, self.task = model, task
        self._seed = seed
        self._sites = find_sites(model, example, compare_with_training=False).batchnorms
        most = max(1, min(MOST_CHANNELS, MOST_OF_ALL // max(1, len(self._sites))))
        self.channels = {
            site.key: _chosen(site.channels, most, seed, place, example.device)
            for place, site in enumerate(self._sites)
        }
        self.blocks: tuple[Block, ...] = ()
        self.passes(example)  # which finds the blocks

    @property
    def batchnorms(self) -> int:
        return len(self._sites)

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:  # noqa: ARG002 - the points' numbers do not matter
        """The features of these points, (1, point, column), in float64 where the device has it."""
        moments = _Moments(self._sites, self.channels, len(inputs))
        recorder = HeadRecorder()
        with undisturbed(self._model), moments, recorder:
            output = tensor_output(with_autograd_if_needed(lambda: forward(self._model, inputs.clone())))
        parts: list[tuple[str, BlockKind, Tensor]] = moments.blocks()
        if not self._sites:
            features = self._last_layer(recorder, output, inputs)
            parts.append((LAST_LAYER, "layer", torch.cat([features, features**2], 1)))
        parts += features_of_outputs(output, self.task)
        stop, blocks = 0, []
        for name, kind, values in parts:
            blocks.append(Block(name, kind, slice(stop, stop + values.shape[1])))
            stop += values.shape[1]
        self.blocks = tuple(blocks)
        return torch.cat([values.double() for _, _, values in parts], 1)[None]

    def _last_layer(self, recorder: HeadRecorder, output: Tensor, inputs: Tensor) -> Tensor:
        """The input of the last linear layer; the output where the network does not end in one."""
        try:
            features = recorder.head(output, len(inputs)).features
        except NoHeadError:
            features = output.flatten(1).clamp_min(MASKED)
        return features[:, _chosen(features.shape[1], MOST_CHANNELS, self._seed, 0, features.device)]


class _Moments(Mode):
    """Takes the moments of each point at the input of every BatchNorm of a pass."""

    def __init__(self, sites: Sequence[BatchNormSite], channels: dict[tuple[int, int], Tensor], points: int) -> None:
        super().__init__()
        self._sites = {site.key: site for site in sites}
        self._channels, self._points, self._calls = channels, points, BatchNormCalls(sites)
        self._moments: dict[tuple[int, int], Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if isinstance(call, BatchNormCall) and (key := self._calls.key(call)) in self._sites:
            if len(call.input) % self._points:
                raise SamplingError(
                    f"layer {self._sites[key].name} sees {len(call.input)} rows for {self._points} examples; expected "
                    "as many rows for each example."
                )
            moments = moments_of(call.input, self._points, self._channels[key], self._sites[key].running_mean)
            self._moments[key] = moments
        return func(*args, **(kwargs or {}))

    def blocks(self) -> list[tuple[str, BlockKind, Tensor]]:
        """Those of every layer, in execution order."""
        self._calls.check_complete()
        return [(site.name, "layer", self._moments[key]) for key, site in self._sites.items()]


def moments_of(values: Tensor, points: int, channels: Tensor, running_mean: Tensor | None) -> Tensor:
    """Mean and mean square of a − r over the positions of each point, (point, 2·channel), of the input of a BatchNorm
    of which these channels are watched."""
    values = values if len(channels) == values.shape[1] else values[:, channels]
    if values.shape[0] != points:  # several rows for each
        values = values.unflatten(0, (points, -1)).movedim(2, 1)
    rows = values.flatten(2) if values.ndim > 2 else values[:, :, None]  # (point, channel, position)
    if running_mean is not None:
        rows = rows - running_mean[channels, None]
    return torch.cat([rows.mean(2), rows.square().mean(2)], 1)


def _chosen(channels: int, most: int, seed: int, place: int, device: torch.device) -> Tensor:
    """The channels of layer number `place` that are watched, in order."""
    rows = np.arange(channels)
    if channels > most:
        key = {"population": channels, "batch_size": most, "purpose": counter_rng.MONITOR}
        rows = np.sort(counter_rng.batch_indices(seed, place, **key))
    return torch.from_numpy(rows).to(device)


def features_of_outputs(output: Tensor, task: Task) -> list[tuple[str, BlockKind, Tensor]]:
    """The outputs of each point, as probabilities where they are classes or labels, and their scores; of pixels the
    mean over them."""
    values = output.double().movedim(1, -1)
    if (logits := class_logits(values, task)) is None:
        return [(OUTPUTS, "outputs", _over_pixels(values))]
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    scores = {
        "predictive_entropy": -(p * log_p.clamp_min(MASKED)).sum(-1),
        "least_confidence": 1 - p.amax(-1),
        "energy": -logits.logsumexp(-1),
    }
    shown = p[..., 1] if p.ndim > values.ndim else p
    parts: list[tuple[str, BlockKind, Tensor]] = [(OUTPUTS, "outputs", _over_pixels(shown))]
    for name, score in scores.items():
        parts.append((name, "score", score.flatten(1).mean(1, keepdim=True) if score.ndim > 1 else score[:, None]))
    return parts


def _over_pixels(values: Tensor) -> Tensor:
    """The mean over all axes but the first and the last."""
    return values.flatten(1, -2).mean(1) if values.ndim > 2 else values


def features_of(watch: Watch, pipeline: Pipeline, points: Points) -> Float[np.ndarray, "point column"]:
    """The features of all of these points; DataError where some are not finite."""
    size = pipeline.settings.chunk_size or default_chunk(points.point_shape, pipeline.device)
    with loading(pipeline, points) as feed:
        parts = [block[0].cpu().numpy() for block in chunks(watch, len(points), feed, size=size)]
    features = np.concatenate(parts)
    wrong = ~np.isfinite(features).all(axis=1)
    if wrong.any():
        first = next(block for block in watch.blocks if not np.isfinite(features[wrong][:, block.columns]).all())
        raise DataError(
            f"{points.reference}: {int(wrong.sum())} of {len(points)} examples, the first of them number "
            f"{int(np.flatnonzero(wrong)[0])}, make {first.name} NaN or infinite. Leave out those with missing values."
        )
    return features
