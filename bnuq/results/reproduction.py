"""The record of a published experiment that was run again: its runs, its table beside the published one, and its file.

    /                        attributes: format, bnuq, command, and as JSON experiment, seconds, provenance,
                             notes
    /sets/SET                attribute facts (JSON)
    /sets/SET/METHOD         one variable a figure (split, seed)
    /sets/SET/METHOD/choice  what cross-validation chose (split)
    /table                   one row a cell: set, method, metric, value, se, low, high, p and stars of both tests, the
                             published value and stars, verdict

The table follows from the runs: it is there for readers without bnuq.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from jaxtyping import Float64

from bnuq.errors import ResultError
from bnuq.files.hdf5 import open_hdf5
from bnuq.files.writing import write_bytes
from bnuq.metrics import nadeau_bengio, t_test
from bnuq.results.file import check_replaceable

__all__ = [
    "VERDICTS", "Cell", "MethodOutcome", "Published", "Reproduction", "SetOutcome", "Verdict", "cell",
    "check_replaceable", "read", "verdict", "write",
]  # fmt: skip

FORMAT = 1
COMMAND = "reproduce uci"
METRICS = {"crps": "normalized_crps", "pll": "normalized_pll"}  # of the published table, and the figure of ours

Verdict = Literal["agrees", "same sign", "differs", "inconclusive", "n/a"]
VERDICTS: dict[Verdict, str] = {
    "agrees": "the published value lies in our interval, and 0 does not",
    "inconclusive": "both the published value and 0 lie in our interval: the runs cannot tell an effect of the "
    "published size from none",
    "same sign": "the published value lies outside our interval, and our value has its sign",
    "differs": "the published value lies outside our interval, and our value has the other sign",
    "n/a": "there are too few splits for an interval, or a score has no value",
}


@dataclass(frozen=True)
class Published:
    """A published score in percent, with the stars it was printed with."""

    value: float
    stars: str


@dataclass(frozen=True)
class Cell:
    """One score of the table, in percent.

    `value` is the mean over runs, `se` the standard error over split means; `low` to `high` the 95 % interval of the
    mean with Nadeau and Bengio's error, of which `p` and `stars` are the test against 0. `p_naive` and `stars_naive`
    are of the published kind, as if all runs were independent. None where there are too few splits.
    """

    value: float
    se: float | None
    low: float | None
    high: float | None
    p: float | None
    stars: str
    p_naive: float | None
    stars_naive: str
    published: Published | None
    verdict: Verdict


def cell(runs: Float64[np.ndarray, "split seed"], *, test_share: float, published: Published | None = None) -> Cell:
    """The cell of these runs' scores; `test_share` is test rows over training rows of a split."""
    values, split = runs.reshape(-1), np.repeat(np.arange(len(runs)), runs.shape[1])
    value = float(values.mean())
    means = runs.mean(1)
    naive, ours = t_test(values), nadeau_bengio(values, split, test_share=test_share)
    if naive is None or ours is None or not math.isfinite(value):
        return Cell(value, None, None, None, None, "n/a", None, "n/a", published, "n/a")
    low, high = ours.interval()
    se = float(means.std(ddof=1)) / math.sqrt(len(means))
    said = verdict(value, low, high, published)
    return Cell(value, se, low, high, ours.p, ours.stars, naive.p, naive.stars, published, said)


def verdict(value: float, low: float, high: float, published: Published | None) -> Verdict:
    """What our value and its interval say of the published one; VERDICTS has it in words."""
    if published is None or not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return "n/a"
    if low <= published.value <= high:
        return "inconclusive" if low <= 0 <= high else "agrees"
    return "same sign" if value * published.value > 0 else "differs"


@dataclass(frozen=True, eq=False)
class MethodOutcome:
    """The runs of one method: each figure by (split, seed), and what cross-validation chose by split."""

    runs: Mapping[str, Float64[np.ndarray, "split seed"]]
    choices: Mapping[str, np.ndarray]
    published: Mapping[str, Published]

    def mean(self, figure: str) -> float:
        """Over all runs."""
        return float(np.mean(self.runs[figure]))

    def rank_correlation(self) -> float:
        """Mean Spearman correlation of predictive sd and absolute error, of the runs that have one; NaN for none."""
        known = self.runs["spearman"][~np.isnan(self.runs["spearman"])]
        return float(known.mean()) if known.size else math.nan

    @property
    def at_end(self) -> float:
        """The share of splits, and so of runs, whose τ lies at an end of its range, in [0, 1]."""
        return float(np.mean(self.choices["tau_at_end"] != ""))


@dataclass(frozen=True, eq=False)
class SetOutcome:
    """One data set: its sizes, the protocol that held for it, and its methods."""

    name: str
    rows: int
    inputs: int
    train: int
    test: int
    fold_rows: int
    units: int
    batch_sizes: tuple[int, ...]
    protocol: Mapping[str, Any]
    tau_range: tuple[float, float]
    sha256: str
    methods: Mapping[str, MethodOutcome]
    gal_rmse: tuple[float, float]
    mnf: Mapping[str, Published]

    def cell(self, method: str, metric: str) -> Cell:
        """The cell of "crps" or "pll"; with "pll_gaussian" that of the Gaussian PLL, beside the published mixture."""
        found = self.methods[method]
        figure = METRICS.get(metric, f"normalized_{metric}")
        published = found.published.get(metric)
        return cell(found.runs[figure], test_share=self.test / self.train, published=published)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A published experiment, run again. Of its seconds `cpu_before` are those of `cpu` that an earlier run took."""

    experiment: str
    source: str
    gal_source: str
    protocol: Mapping[str, Any]
    seed: int
    device: str
    workers: int
    sets: Mapping[str, SetOutcome]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    notes: tuple[str, ...] = ()
    path: Path | None = None

    def cells(self) -> Iterator[tuple[str, str, str, Cell]]:
        """Every cell of the table with its set, method and metric."""
        for name, one in self.sets.items():
            for method in one.methods:
                for metric in METRICS:
                    yield name, method, metric, one.cell(method, metric)


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_PERCENT = ("normalized_crps", "normalized_pll", "normalized_pll_gaussian")
_NATS = ("pll_mixture", "pll_gaussian", "pll_constant", "pll_optimum")
_ONES = ("spearman", "exact_hits", "weight_decay", "batch_size", "dropout", "epochs", "final_epochs", "unfinished")


def _unit(figure: str) -> str:
    if figure in _PERCENT:
        return "percent"
    if figure in _NATS:
        return "nats"
    return "1" if figure in _ONES else "1/target unit²" if figure == "tau" else "target unit"


def write(result: Reproduction, path: Path) -> None:
    """Write `result` to `path`, whole or not at all; ResultError where that cannot be done."""
    check_replaceable(path)
    with h5py.File("reproduction", "w", driver="core", backing_store=False) as file:
        _lay_out(file, result)
        file.flush()
        image = file.id.get_file_image()
    write_bytes(path, image)


def _lay_out(file: Any, result: Reproduction) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(result.provenance.get("bnuq", ""))
    file.attrs["command"] = COMMAND
    told = ("experiment", "source", "gal_source", "protocol", "seed", "device", "workers")
    for name, value in (
        ("experiment", {key: getattr(result, key) for key in told}),
        ("seconds", dict(result.seconds)),
        ("provenance", dict(result.provenance)),
        ("notes", list(result.notes)),
    ):
        file.attrs[name] = json.dumps(value)
    sets = file.create_group("sets", track_order=True)  # so that a reader finds everything in the order it was run
    for name, one in result.sets.items():
        room = sets.create_group(name, track_order=True)
        room.attrs["facts"] = json.dumps(_facts(one))
        for method, found in one.methods.items():
            group = room.create_group(method, track_order=True)
            splits, seeds = next(iter(found.runs.values())).shape
            axes = (_scale(group, "split", splits, start=1), _scale(group, "seed", seeds))
            for figure, values in found.runs.items():
                _variable(group, figure, values, axes, _unit(figure))
            choice = group.create_group("choice", track_order=True)
            axis = _scale(choice, "split", splits, start=1)
            for key, values in found.choices.items():
                _variable(choice, key, values, (axis,), _unit(key))
    _lay_out_table(file.create_group("table"), result)


def _facts(one: SetOutcome) -> dict[str, Any]:
    keys = (
        "name", "rows", "inputs", "train", "test", "fold_rows", "units", "batch_sizes", "protocol", "tau_range",
        "sha256", "gal_rmse",
    )  # fmt: skip
    return {key: getattr(one, key) for key in keys} | {
        "methods": list(one.methods),
        "mnf": {metric: [p.value, p.stars] for metric, p in one.mnf.items()},
        "published": {
            method: {metric: [p.value, p.stars] for metric, p in found.published.items()}
            for method, found in one.methods.items()
        },
    }


def _lay_out_table(room: Any, result: Reproduction) -> None:
    rows = list(result.cells())
    axis = _scale(room, "row", len(rows))
    for place, key in enumerate(("set", "method", "metric")):
        _variable(room, key, np.array([row[place] for row in rows], dtype=object), (axis,), "")
    for key in ("value", "se", "low", "high", "p", "p_naive"):
        values = [getattr(row[3], key) for row in rows]
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        _variable(room, key, column, (axis,), "1" if key.startswith("p") else "percent")
    published = [row[3].published or Published(math.nan, "") for row in rows]
    _variable(room, "published", np.array([each.value for each in published]), (axis,), "percent")
    for key, texts in (
        ("stars", [row[3].stars for row in rows]),
        ("stars_naive", [row[3].stars_naive for row in rows]),
        ("stars_published", [each.stars for each in published]),
        ("verdict", [row[3].verdict for row in rows]),
    ):
        _variable(room, key, np.array(texts, dtype=object), (axis,), "")


def _scale(room: Any, name: str, length: int, *, start: int = 0) -> Any:
    data = room.create_dataset(name, data=np.arange(start, start + length))
    data.make_scale(name)
    data.attrs["units"] = "1"
    return data


def _variable(room: Any, name: str, values: np.ndarray, axes: tuple[Any, ...], unit: str) -> None:
    text = values.dtype.kind in "OU"
    data = room.create_dataset(name, data=values.astype(object) if text else values, dtype=_TEXT if text else None)
    for axis, scale in enumerate(axes):
        data.dims[axis].attach_scale(scale)
    if not text:
        data.attrs["units"] = unit


_TEXT = h5py.string_dtype()


def read(path: Path) -> Reproduction:
    """The reproduction in the file at `path`; ResultError where that is not one, is damaged, or of a later format."""
    with open_hdf5(path) as opened:
        file: Any = opened
        if file.attrs.get("command") != COMMAND:
            raise ResultError(f"{path} holds no reproduction; expected a file written by `bnuq reproduce`.")
        if int(file.attrs.get("format", 0)) > FORMAT:
            raise ResultError(f"{path} is of a later format than {FORMAT}, which is known here. Please update bnuq.")
        try:
            told = json.loads(file.attrs["experiment"])
            found = Reproduction(
                **told,
                sets={name: _read_set(room) for name, room in file["sets"].items()},
                seconds=json.loads(file.attrs["seconds"]),
                provenance=json.loads(file.attrs["provenance"]),
                notes=tuple(map(str, json.loads(file.attrs["notes"]))),
                path=path.absolute(),
            )
            for _ in found.cells():  # all that a report needs is there
                pass
        except (KeyError, ValueError, TypeError, OSError, AttributeError, RuntimeError) as error:
            said = " ".join(str(error).split())[:300].strip("'\"")
            raise ResultError(f"{path}: the file is incomplete or damaged ({said}).") from error
    return found


def _read_set(room: Any) -> SetOutcome:
    facts = json.loads(room.attrs["facts"])
    published, mnf = facts.pop("published"), facts.pop("mnf")
    methods = {}
    for method in facts.pop("methods"):
        group = room[method]
        runs = {key: group[key][()] for key in group if key not in ("split", "seed", "choice")}
        choices = {key: _column(group["choice"][key]) for key in group["choice"] if key != "split"}
        pairs = {metric: Published(*pair) for metric, pair in published[method].items()}
        methods[method] = MethodOutcome(runs, choices, pairs)
    tuples = {key: tuple(facts[key]) for key in ("batch_sizes", "tau_range", "gal_rmse")}
    facts = facts | tuples | {"mnf": {metric: Published(*pair) for metric, pair in mnf.items()}}
    return SetOutcome(**facts, methods=methods)


def _column(data: Any) -> np.ndarray:
    return np.array(data.asstr()[()]) if h5py.check_string_dtype(data.dtype) else data[()]


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(result: Reproduction) -> dict[str, Any]:
    """The reproduction as JSON values; what has no value is absent or "nan"."""
    return {
        "bnuq": result.provenance.get("bnuq", ""),
        "schema": 1,
        "command": COMMAND,
        "source": result.source,
        "protocol": dict(result.protocol),
        "seed": result.seed,
        "device": result.device,
        "sets": {name: _set_summary(one) for name, one in result.sets.items()},
        "seconds": {name: round(value, 3) for name, value in result.seconds.items()},
        "notes": list(result.notes),
        "result": None if result.path is None else str(result.path),
    }


def _set_summary(one: SetOutcome) -> dict[str, Any]:
    return _facts(one) | {
        "methods": {
            method: {
                "crps": _cell_summary(one.cell(method, "crps")),
                "pll": _cell_summary(one.cell(method, "pll")),
                "pll_gaussian": _cell_summary(replace(one.cell(method, "pll_gaussian"), published=None)),
                "figures": {
                    name: _number(float(np.mean(values))) for name, values in found.runs.items() if name != "spearman"
                }
                | {"spearman": _number(found.rank_correlation())},
                "tau_at_end": found.at_end,
                "choices": {key: values.tolist() for key, values in found.choices.items()},
            }
            for method, found in one.methods.items()
        }
    }


def _cell_summary(found: Cell) -> dict[str, Any]:
    keys = ("value", "se", "low", "high", "p", "stars", "p_naive", "stars_naive")
    told = {key: getattr(found, key) for key in keys if getattr(found, key) is not None}
    if found.published is not None:
        told |= {"published": found.published.value, "stars_published": found.published.stars, "verdict": found.verdict}
    return {key: _number(value) if isinstance(value, float) else value for key, value in told.items()}


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"
