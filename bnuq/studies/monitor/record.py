"""The records of a monitor: a batch compared with the reference, the baseline that stands for the reference, and the
stream of batches so far."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from bnuq.config import Normalize
from bnuq.estimates import Coordinate, Count, Estimate, InRecord, MetricName, Size, Unit, require
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.records.as_json import json_of, shown
from bnuq.shapes import Float, Int8
from bnuq.store import codec
from bnuq.store.codec import write as write

BlockKind = Literal["layer", "outputs", "score"]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
STEPS = 16  # codes of a coordinate for each of its standard deviations


@frozen
class WatchedBlock:
    """What is watched of one layer, of the outputs, or of one score: columns of a point's features and the directions
    that its coordinates lie along, see `baseline`.

    A layer's columns are the means of its channels and their mean squares, about the running mean; those of which
    nothing varies have the `scale` 0. `mean` is that of the reference, `noise` the deviation that a single point has,
    of the means and of the variances. `law` is the share of resampled reference batches outside the 95 % region of the
    normal law that the directions come from; NaN where it could not be checked.
    """

    name: str
    kind: BlockKind
    centre: Annotated[Float[np.ndarray, " column"], Unit("1")]
    scale: Annotated[Float[np.ndarray, " column"], Unit("1")]
    directions: Annotated[Float[np.ndarray, "column direction"], Unit("1")]
    mean: Annotated[Float[np.ndarray, " column"], Unit("1")]
    noise: Annotated[Float[np.ndarray, " column"], Unit("1")]
    law: float

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.centre, self.scale, self.directions, self.mean, self.noise)}
        arrays = (self.centre, self.scale, self.directions, self.mean, self.noise)
        if len(lengths) != 1 or not self.directions.size or not all(np.isfinite(values).all() for values in arrays):
            raise ValueError(f"block {self.name} has columns that do not fit together")


@frozen
class Baseline:
    """What a monitor keeps of the reference: nothing of it can be shown, and no training data is needed afterwards.

    `bag` holds the coordinates of some reference points, in `STEPS` of a standard deviation, of block after block.
    `inputs` says how points become the network's inputs: their "shape", and the numbers of "normalize".
    """

    KIND: ClassVar[str] = "monitor-baseline"
    COMMAND: ClassVar[str] = "monitor"

    model: Mapping[str, Any]
    inputs: Mapping[str, Any]
    reference: Mapping[str, Any]
    blocks: tuple[WatchedBlock, ...]
    bag: Annotated[Int8[np.ndarray, "point coordinate"], Unit("1")]
    seed: Count
    findings: tuple[Finding, ...]
    provenance: Mapping[str, Any]
    path: Path | None = None

    def __post_init__(self) -> None:
        require(self.model, path=str, fingerprint=str, task=str, outputs=str, batchnorm_layers=Count)
        require(self.inputs, shape=list[Size], layout=str, normalize=Normalize | None)
        require(self.reference, reference=str, n=Size, fitted=Size, kept=Size)
        require(self.provenance, bnuq=str)
        if not self.blocks or self.bag.ndim != 2 or self.bag.shape[1] != self.starts[-1] + self.widths[-1]:
            raise ValueError("its examples do not have the coordinates of its blocks")

    @property
    def normalize(self) -> Normalize | None:
        """What inputs are normalised by."""
        values = self.inputs.get("normalize")
        return None if values is None else msgspec.convert(values, Normalize)

    @property
    def widths(self) -> list[int]:
        return [block.directions.shape[1] for block in self.blocks]

    @property
    def starts(self) -> list[int]:
        """The first coordinate of each block."""
        return [0, *np.cumsum(self.widths)[:-1].tolist()]

    @property
    def layers(self) -> list[int]:
        return [number for number, block in enumerate(self.blocks) if block.kind == "layer"]

    @property
    def digest(self) -> str:
        """What tells it from another."""
        parts = (self.bag, *(block.directions for block in self.blocks))
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


@frozen
class Stream:
    """The batches so far: their names, p-values and e-values; and what the next one needs: the `bag` that it is
    compared with, and the `bets` of the gambler. It stands still after an alarm."""

    KIND: ClassVar[str] = "monitor-stream"
    COMMAND: ClassVar[str] = "monitor"

    baseline: str  # its digest
    level: float
    bag: Annotated[Int8[np.ndarray, "point coordinate"], Unit("1")]
    bets: Annotated[Float[np.ndarray, " power"], InRecord(), Unit("1")]
    names: tuple[str, ...]
    p_values: Annotated[Float[np.ndarray, " batch"], InRecord(), Unit("1")]
    e_values: Annotated[Float[np.ndarray, " batch"], InRecord(), Unit("1")]
    findings: tuple[Finding, ...]
    provenance: Mapping[str, Any]
    path: Path | None = None

    def __post_init__(self) -> None:
        require(self.provenance, bnuq=str)
        lengths = {len(self.names), len(self.p_values), len(self.e_values)}
        values = (self.bets, self.p_values, self.e_values)
        if len(lengths) != 1 or any((part < 0).any() or not np.isfinite(part).all() for part in values):
            raise ValueError("its batches do not fit together")
        if (self.p_values <= 0).any() or (self.p_values > 1).any() or not 0 < self.level < 1:
            raise ValueError("a p-value or its level is not between 0 and 1")

    @property
    def alarm(self) -> int | None:
        """The number of the batch, from 1, with which there was enough evidence; None if there never was."""
        found = np.flatnonzero(self.e_values >= 1 / self.level)
        return int(found[0]) + 1 if len(found) else None


@frozen
class BlockTest:
    """A layer, the outputs or a score in a batch: its p-value, corrected for all of them.

    Of a layer, `mean_shift` and `variance_shift` are how far the batch's means and variances lie from the reference's:
    the root mean square over channels in units of the noise that a mini-batch of training has, less what chance
    explains. `law` is the baseline's. What is not known of a block is None, for which NaN may be given.
    """

    name: str
    kind: BlockKind
    p_value: Share
    law: float | None = None
    mean_shift: float | None = None
    variance_shift: float | None = None

    def __post_init__(self) -> None:
        for name in ("law", "mean_shift", "variance_shift"):
            if (value := getattr(self, name)) is not None and math.isnan(value):
                object.__setattr__(self, name, None)


@frozen
class Monitored:
    """A batch compared with the reference. `p_value` is against the reference alone, and `together` that of all layers
    together; `e_value` is the evidence of all `p_values` of the stream, `alarm` the batch of it with which the evidence
    reached 1/`level`. `points` are those of the batch, `unit` the size of a mini-batch that shifts are measured in, and
    `scores` the mean scores of the "reference" and of the "batch"."""

    KIND: ClassVar[str] = "monitor"
    COMMAND: ClassVar[str] = "monitor"

    run: Mapping[str, Any]
    model: Mapping[str, Any]
    reference: Mapping[str, Any]
    batch: str
    points: Size
    p_value: Share
    resamples: Size
    together: Share
    blocks: tuple[BlockTest, ...]
    scores: Mapping[Annotated[str, Coordinate("set")], Mapping[MetricName, Estimate]]
    unit: Size
    level: float
    names: tuple[str, ...]
    p_values: Annotated[Float[np.ndarray, " batch"], InRecord(), Unit("1")]
    e_values: Annotated[Float[np.ndarray, " batch"], InRecord(), Unit("1")]
    alarm: Size | None
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, Any]
    path: Path | None = None

    def __post_init__(self) -> None:
        require(self.model, path=str, task=str, batchnorm_layers=Count)
        require(self.reference, reference=str, n=Size, points=Size)
        require(self.seconds, total=float)
        require(self.scores, reference=dict, batch=dict)
        require(self.provenance, bnuq=str)
        if not len(self.names) == len(self.p_values) == len(self.e_values) or not self.names or not self.blocks:
            raise ValueError("its batches or blocks do not fit together")
        if not 0 < self.level < 1:
            raise ValueError("its level is not between 0 and 1")

    @shown
    def e_value(self) -> float:
        return float(self.e_values[-1])

    @property
    def floor(self) -> float:
        """The smallest p-value that so many resamples can give."""
        return 1 / (self.resamples + 1)

    @property
    def layers(self) -> tuple[BlockTest, ...]:
        return tuple(block for block in self.blocks if block.kind == "layer")


read = partial(codec.read, Monitored, summary=json_of)
read_baseline, read_stream = partial(codec.read, Baseline), partial(codec.read, Stream)
