"""Features and logits of a classifier's last linear layer, streamed in chunks; and the reference points whose features
something is fitted to."""

from __future__ import annotations

from collections.abc import Iterator

from bnuq import devices
from bnuq.data import Points
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import limited
from bnuq.evaluation.draws import part_drawn
from bnuq.evaluation.subject import Subject
from bnuq.sampling.engine import default_chunk
from bnuq.sampling.head import Head, head
from bnuq.sampling.outputs import unconverted

_MOST_POINTS, _MOST_DECODED = 50_000, 5_000  # reference points, and those that are read as needed


def head_of(subject: Subject, points: Points, rows: slice) -> Head:
    """The last linear layer for these rows of a set, in evaluation mode; NoHeadError where there is none."""
    last = head(unconverted(subject.model), subject.pipeline.evaluated(points, rows))
    return last if devices.traits(last.features.device).float64 else last.on_cpu


def heads(subject: Subject, points: Points) -> Iterator[Head]:
    """The last linear layer for all points of a set, chunk by chunk."""
    size = subject.run.chunk_size or default_chunk(points.point_shape, subject.pipeline.device)
    return memory.in_halves(lambda rows: head_of(subject, points, rows), len(points), size)


def fitted_points(subject: Subject, *, most: int = _MOST_POINTS) -> Points:
    """The reference points to fit to: at most `most` and at most 50,000; of a reference that is read as needed at most
    5,000, those that mini-batches were drawn from. There must be a reference."""
    part = part_drawn(subject)
    assert part is not None
    return limited(part, min(most, _MOST_DECODED if part.listed else _MOST_POINTS), subject.run.seed)
