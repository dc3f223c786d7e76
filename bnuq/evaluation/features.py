"""Features and logits of a classifier's last linear layer, streamed in chunks; and the reference points whose features
something is fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.data import Points
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import limited
from bnuq.evaluation.draws import part_drawn
from bnuq.evaluation.passes import loading
from bnuq.evaluation.subject import Subject
from bnuq.sampling.engine import default_chunk
from bnuq.sampling.head import Head, HeadRecorder, NoHeadError, head
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.plain_loop import Evaluation

_MOST_POINTS, _MOST_DECODED = 50_000, 5_000  # reference points, and those that are read as needed
_MOST_KEPT = 2**24  # numbers of features and logits, 64 MiB
_CACHED = 2**17  # numbers of points


def _rows_in_cache(point_shape: Sequence[int], device: torch.device) -> int:
    """The most points of a forward: on a CPU the values of many more leave the cache, which takes twice as long."""
    return max(16, _CACHED // math.prod(point_shape)) if devices.is_host(device) else 2**62


@dataclass
class Kept:
    """The last linear layer by set and first row, for points that the deterministic network has passed; of no set where
    they would be too many, or the network has no such layer."""

    sets: dict[str, dict[int, Head]] = field(default_factory=dict)
    numbers: int = 0

    def add(self, name: str, first: int, last: Head) -> None:
        self.numbers += last.features.numel() + last.logits.numel()
        copied = Head(last.features.clone(), last.logits.clone(), last.weight, last.bias, last.has_bias)
        self.sets.setdefault(name, {})[first] = copied  # not views, which would keep what they are views of
        if self.numbers > _MOST_KEPT:
            self.sets.clear()

    def of(self, name: str, count: int) -> list[Head]:
        """The parts of a set, in order; none unless they are all of its points."""
        parts, stop = [], 0
        for first, last in sorted(self.sets.get(name, {}).items()):
            if first != stop:
                return []
            parts.append(last)
            stop += len(last.features)
        return parts if stop == count else []


class KeepingEvaluation(Evaluation):
    """The deterministic network, whose last linear layer is `kept` for scores of features."""

    def __init__(self, model: nn.Module, kept: Kept, name: str = "") -> None:
        super().__init__(model)
        self.kept, self._name = kept, name

    def of_set(self, name: str) -> KeepingEvaluation:
        """The same for the points of a set."""
        return KeepingEvaluation(self._model, self.kept, name)

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        size = _rows_in_cache(inputs.shape[1:], inputs.device)
        parts = [self._pass(part, start + size * i) for i, part in enumerate(inputs.split(size))]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _pass(self, inputs: Tensor, start: int) -> Tensor:
        if not self._name or self.kept.numbers > _MOST_KEPT:
            return super().passes(inputs, start)
        with HeadRecorder() as recorder:
            outputs = super().passes(inputs, start)
        try:
            self.kept.add(self._name, start, recorder.head(outputs, len(inputs)))
        except NoHeadError:
            self.kept.numbers = _MOST_KEPT + 1
            self.kept.sets.clear()
        return outputs


def evaluation_of(subject: Subject) -> Evaluation:
    """The deterministic network; where scores of its features are asked for, it keeps them as it passes."""
    model = subject.model
    is_wanted = subject.has_post_hoc and subject.pipeline.settings.on == "local"
    if is_wanted and devices.is_host(subject.pipeline.device) and unconverted(model) is model:
        return KeepingEvaluation(model, Kept())
    return Evaluation(model)


def head_of(subject: Subject, points: Points, rows: slice) -> Head:
    """The last linear layer for these rows of a set, in evaluation mode; NoHeadError where there is none."""
    return _head(subject, subject.pipeline.evaluated(points, rows))


def _head(subject: Subject, inputs: Tensor) -> Head:
    return head(unconverted(subject.model), inputs)


def heads(subject: Subject, points: Points) -> Iterator[Head]:
    """The last linear layer for all of these points, chunk by chunk."""
    size = subject.pipeline.settings.chunk_size or default_chunk(points.point_shape, subject.pipeline.device)
    size = min(size, _rows_in_cache(points.point_shape, subject.pipeline.device))
    with loading(subject.pipeline, points) as feed:
        yield from memory.in_halves(lambda rows: _head(subject, feed(rows)), len(points), size)


def fitted_points(subject: Subject, *, most: int = _MOST_POINTS) -> Points:
    """The reference points to fit to: at most `most` and at most 50,000; of a reference that is read as needed at most
    5,000, those that mini-batches were drawn from. There must be a reference."""
    part = part_drawn(subject)
    assert part is not None
    return limited(part, min(most, _MOST_DECODED if part.listed else _MOST_POINTS), subject.draws.seed)
