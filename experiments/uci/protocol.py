"""What is trained: the grids, the sizes and the stopping rules, as plain records; and what holds for each set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

from bnuq.errors import RequestError

Name = Literal["quick", "paper", "smoke"]
Learned = Literal["mnf", "vi", "vi-bn"]  # the methods whose noise is learned
Method = Literal["mcbn", "mcdo"] | Learned
SETS = ("boston", "concrete", "energy", "kin8nm", "power", "protein", "wine", "yacht")
QUICK_SETS = ("boston", "yacht", "energy", "concrete", "wine")
SMOKE_SETS = ("boston", "yacht")

UNITS = dict.fromkeys(SETS, 50) | {"protein": 100}
# The authors search τ within these, in 1/(target unit)². Where a network's passes are too wide already, as on Yacht,
# the upper end is what keeps the mixture from degenerating.
TAU_RANGES = {
    "boston": (0.01, 10.0),
    "concrete": (0.001, 10.0),
    "energy": (0.01, 100.0),
    "kin8nm": (10.0, 1000.0),
    "power": (0.01, 10.0),
    "protein": (0.01, 10.0),
    "wine": (0.01, 10.0),
    "yacht": (0.01, 100.0),
}


@dataclass(frozen=True)
class Protocol:
    """How networks are chosen, trained and evaluated; of a whole run, or of one set (`Protocol.of`).

    Every `interval` epochs the networks of all folds predict their held-out rows with `selection_samples` passes; a
    setting ends `patience` evaluations after its best, or at `max_epochs`. With `race`, from epoch `race_from` and
    step `race_from_step` on, a setting whose best is more than that share above the best one of its split (and batch
    size) is given up.
    `paper_batches` keeps batch sizes above half a fold. `most_rows` of a split take part in cross-validation. A `large`
    set has less of each where noise is learned.
    """

    name: Name
    weight_decays: tuple[float, ...]
    batch_sizes: tuple[int, ...]
    dropouts: tuple[float, ...]
    dropout_batch: int = 32
    splits: int = 5
    seeds: int = 5
    folds: int = 5
    samples: int = 500
    selection_samples: int = 20
    interval: int = 20
    patience: int = 10
    max_epochs: int = 2000
    race: float | None = 0.07
    race_from: int = 100
    race_from_step: int = 1000
    paper_batches: bool = False
    most_rows: int | None = None
    large: bool = False

    def of(
        self, name: str, *, paper_batches: bool | None = None, batch_sizes: tuple[int, ...] | None = None
    ) -> Protocol:
        """The protocol of one set; `paper_batches` and `batch_sizes` are what the user asked for, None for its own."""
        result = self
        if self.name == "quick":
            if name in ("kin8nm", "power", "protein"):
                result = replace(result, **_LARGE)
            if name == "kin8nm":  # at fewer, every split is cut off before its patience ends
                result = replace(result, max_epochs=1000)
            if name == "protein":
                result = replace(result, **_PROTEIN)
            if name == "wine":
                result = replace(result, dropouts=(0.2, 0.1, *result.dropouts))
            if name == "energy":  # the published estimates rest on them: see the note that goes with the table
                result = replace(result, paper_batches=True)
        if self.name == "paper" and name == "energy":
            result = replace(result, batch_sizes=tuple(b for b in result.batch_sizes if b <= 512))
        overrides = {"paper_batches": paper_batches, "batch_sizes": batch_sizes}
        return replace(result, **{key: value for key, value in overrides.items() if value is not None})

    def for_learned(self) -> Protocol:
        """That of the networks whose noise is learned, which cost more: fewer weight decays, seeds and epochs; on large
        sets one of each decay and seed, and T = 100, the default of the authors' code."""
        if self.name == "paper":
            return self
        quick, smoke = {"seeds": 2, "max_epochs": 500, "patience": 5}, {"splits": 3, "seeds": 1, "max_epochs": 40}
        large = {"seeds": 1, "max_epochs": 12, "interval": 4, "samples": 100}
        less = smoke if self.name == "smoke" else quick | (large if self.large else {})
        smaller = {key: min(value, getattr(self, key)) for key, value in less.items()}
        decays = self.weight_decays if self.name == "smoke" else (1e-4,) if self.large else (1e-2, 1e-4)
        return replace(self, race=None, weight_decays=decays, **smaller)

    def batches_for(self, fold_rows: int) -> tuple[int, ...]:
        """The batch sizes that are tried where a fold trains on so many rows; at least the smallest."""
        if self.paper_batches:
            return self.batch_sizes
        return tuple(b for b in self.batch_sizes if 2 * b <= fold_rows) or self.batch_sizes[:1]


_LARGE = {
    "weight_decays": (1e-2, 1e-4, 1e-6),
    "batch_sizes": (32, 128, 512),
    "max_epochs": 400,
    "race": 0.04,
    "race_from": 40,
    "large": True,
}
_PROTEIN = {"weight_decays": (1e-4, 1e-6), "max_epochs": 200, "most_rows": 5000, "dropouts": (0.05, 0.01, 0.005)}

QUICK = Protocol("quick", (1e-1, 1e-2, 1e-4, 1e-6), (32, 64, 128, 256, 512), (0.05, 0.01, 0.005, 0.001))
PAPER = Protocol(
    "paper",
    tuple(10.0**-k for k in range(1, 16)),
    (32, 64, 128, 256, 512, 1024),
    (0.2, 0.1, 0.05, 0.01, 0.005, 0.001),
    selection_samples=500,
    race=None,
    paper_batches=True,
)
SMOKE = Protocol(
    "smoke", (1e-2, 1e-4), (32, 64), (0.01, 0.005), seeds=2, folds=3, samples=200, patience=5, max_epochs=600
)


def chosen_sets(words: Sequence[str], name: Literal["quick", "paper"]) -> tuple[Protocol, tuple[str, ...]]:
    """The protocol and the sets that `--protocol` and `--sets` stand for; the quick five where no set is named.

    "smoke" is a protocol of its own, "all" every set. Raises RequestError for an unknown set.
    """
    requested = [word.strip().lower().removeprefix("uci-").removeprefix("uci/") for word in words if word.strip()]
    if "smoke" in requested:
        if requested != ["smoke"] or name != "quick":
            raise RequestError("--sets smoke is a small run of its own; it takes no other set and no --protocol.")
        return SMOKE, SMOKE_SETS
    protocol = PAPER if name == "paper" else QUICK
    if "all" in requested:
        return protocol, (*QUICK_SETS, *(key for key in SETS if key not in QUICK_SETS))
    for word in requested:
        if word not in SETS:
            raise RequestError(f"--sets: there is no set {word}; expected some of {', '.join(SETS)}, or smoke, or all.")
    return protocol, tuple(dict.fromkeys(requested)) or QUICK_SETS


_OF_METHOD: dict[str, tuple[Method, ...]] = {
    "mcbn": ("mcbn",),
    "mcdo": ("mcdo",),
    "mnf": ("mnf",),
    "vi": ("vi", "vi-bn"),
}


def chosen_methods(words: Sequence[str]) -> tuple[Method, ...]:
    """What `--method` stands for, in the order of the tables; MCBN and MCDO where none is named, and VI with and
    without BatchNorm for vi. Raises RequestError for an unknown method, and where MNF's flows are not installed."""
    requested = [word.strip().lower() for word in words if word.strip()] or ["mcbn", "mcdo"]
    for word in requested:
        if word not in _OF_METHOD:
            raise RequestError(f"--method: there is no method {word}; expected some of {', '.join(_OF_METHOD)}.")
    if "mnf" in requested and find_spec("zuko") is None:
        raise RequestError("--method mnf needs zuko, which is not installed: pip install zuko")
    return tuple(method for word, methods in _OF_METHOD.items() if word in requested for method in methods)
