"""The points of a run: the reference whole, the evaluated sets limited where the run says so, each in its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from bnuq.data import Points, augmented, load_points, normalized, parse_reference
from bnuq.errors import DataError, RequestError
from bnuq.records import Caution
from bnuq.run import Named, Run
from bnuq.sampling import keyed


@dataclass(frozen=True)
class Material:
    """The sets of a run, and what was found out while reading them."""

    train: Points | None
    test: Points
    ood: dict[str, Points]
    notes: tuple[str, ...]
    cautions: tuple[Caution, ...]


def load_material(run: Run) -> Material:
    """Read every set that `run` names; DataError or RequestError for what cannot be evaluated together."""

    def load(ref: Named, split: str, *, ood: bool = False) -> Points:
        name, text = parse_reference(ref.text, base=ref.base)
        return load_points(
            text,
            name=name,
            split_default=split,
            ood=ood,
            data_root=run.data_root,
            base=ref.base,
            named_by=ref.named_by,
            trust_code=run.trust_code,
        )

    assert run.test is not None
    test = load(run.test, "test")
    if test.targets is None:
        raise DataError(f"test set {test.reference} has no labels; accuracy and likelihoods need them.")
    train = load(run.train, "train") if run.train else None
    ood: dict[str, Points] = {}
    for ref in run.ood:
        points = load(ref, "test", ood=True)
        if points.name in ood:
            raise RequestError(f"two OOD sets are called {points.name}; name them apart: --ood NAME={ref.text}.")
        ood[points.name] = points
    for what, points in {"train": train, **ood}.items():
        if points is not None and points.point_shape != test.point_shape:
            raise DataError(
                f"{what} ({points.reference}) has points of shape {points.point_shape}, the test set of "
                f"{test.point_shape}; expected the same."
            )
    everything = [points for points in (train, test, *ood.values()) if points is not None]
    notes = tuple(f"{points.name}: {note}" for points in everything for note in points.notes)
    cautions = tuple(_shared_points(train, test)) if train is not None else ()
    if run.limit is not None:
        notes += (f"at most {run.limit} points of each evaluated set, drawn at random with seed {run.seed} (--limit)",)
        test = _limited(test, run.limit, run.seed)
        ood = {name: _limited(points, run.limit, run.seed) for name, points in ood.items()}
    return Material(train, test, ood, notes, cautions)


def _limited(points: Points, limit: int, seed: int) -> Points:
    if len(points) <= limit:
        return points
    rows = keyed.batch_indices(seed, 0, population=len(points), batch_size=limit, purpose=keyed.SUBSET)
    return points.subset(np.sort(rows))


def _shared_points(train: Points, test: Points) -> Iterator[Caution]:
    """Whether test points lie in the reference, as far as both are arrays in memory."""
    if not (isinstance(train.inputs, np.ndarray) and isinstance(test.inputs, np.ndarray)):
        return
    seen = {hash(row.tobytes()) for row in train.inputs}
    shared = sum(hash(row.tobytes()) in seen for row in test.inputs)
    if shared:
        yield Caution(
            "test-in-reference",
            f"{shared} of the {len(test)} test points are also in the reference ({train.reference}): their figures are "
            "those of points that the network was trained on.",
        )


@dataclass(frozen=True)
class Pipeline:
    """From points to what the network is fed, on its device: as in evaluation, or as in training."""

    run: Run
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.run.precision == "float64" else torch.float32

    def evaluated(self, points: Points, indices: Any) -> Tensor:
        """Evaluated points: normalisation only."""
        return self._tensor(points.raw(indices))

    def trained(self, points: Points, indices: Int64[np.ndarray, " batch"], *, draw: int, purpose: int) -> Tensor:
        """A reference batch through the training pipeline: augmentation of raw pixels, then normalisation."""
        raw = points.raw(indices)
        if self.run.augment is not None:
            words = keyed.augmentation_words(self.run.seed, draw, len(indices), purpose=purpose)
            raw = augmented(raw, self.run.augment, words)
        return self._tensor(raw)

    def _tensor(self, raw: np.ndarray) -> Tensor:
        wide = raw.astype(np.float64) if self.run.precision == "float64" else raw
        inputs = np.require(normalized(wide, self.run.normalize), requirements="W")  # what was read may be read-only
        return torch.from_numpy(inputs).to(self.device, self.dtype)
