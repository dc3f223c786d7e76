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

import numpy as np
from jaxtyping import Float64

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import nadeau_bengio, t_test
from bnuq.results.file import add_scale, add_variable, check_replaceable
from bnuq.results.reading import open_result
from bnuq.results.summary import json_number

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

    `value` is the mean over runs, `se` its standard error over split means with Nadeau and Bengio's correction, `low`
    to `high` the 95 % interval by it, and `p` and `stars` are those of the test against 0. `p_naive` and `stars_naive`
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
    naive, ours = t_test(values), nadeau_bengio(values, split, test_share=test_share)
    if naive is None or ours is None or not math.isfinite(value):
        return Cell(value, None, None, None, None, "n/a", None, "n/a", published, "n/a")
    low, high = ours.interval()
    said = verdict(value, low, high, published)
    return Cell(value, ours.se, low, high, ours.p, ours.stars, naive.p, naive.stars, published, said)


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
    write_bytes(path, image_of(lambda file: _lay_out(file, result)))


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
            axes = (add_scale(group, "split", np.arange(1, splits + 1)), add_scale(group, "seed", np.arange(seeds)))
            for figure, values in found.runs.items():
                add_variable(group, figure, values, axes, unit=_unit(figure))
            choice = group.create_group("choice", track_order=True)
            axis = add_scale(choice, "split", np.arange(1, splits + 1))
            for key, values in found.choices.items():
                add_variable(
                    choice, key, values.tolist() if values.dtype.kind in "OU" else values, (axis,), unit=_unit(key)
                )
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
    axis = add_scale(room, "row", np.arange(len(rows)))
    for place, key in enumerate(("set", "method", "metric")):
        add_variable(room, key, [row[place] for row in rows], (axis,))
    for key in ("value", "se", "low", "high", "p", "p_naive"):
        values = [getattr(row[3], key) for row in rows]
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        add_variable(room, key, column, (axis,), unit="1" if key.startswith("p") else "percent")
    published = [row[3].published or Published(math.nan, "") for row in rows]
    add_variable(room, "published", np.array([each.value for each in published]), (axis,), unit="percent")
    for key, texts in (
        ("stars", [row[3].stars for row in rows]),
        ("stars_naive", [row[3].stars_naive for row in rows]),
        ("stars_published", [each.stars for each in published]),
        ("verdict", [row[3].verdict for row in rows]),
    ):
        add_variable(room, key, texts, (axis,))


def read(path: Path) -> Reproduction:
    """The reproduction in the file at `path`; ResultError where that is not one, is damaged, or of a later format."""
    with open_result(path, "reproduce uci", newest=FORMAT) as file:
        found = Reproduction(
            **json.loads(file.attrs["experiment"]),
            sets={name: _read_set(room) for name, room in file["sets"].items()},
            seconds=json.loads(file.attrs["seconds"]),
            provenance=json.loads(file.attrs["provenance"]),
            notes=tuple(map(str, json.loads(file.attrs["notes"]))),
            path=path.absolute(),
        )
        _check_complete(found)
    return found


_FIGURES = {
    "crps", "exact_hits", "mc_sd", "noise_sd", "normalized_crps", "normalized_pll", "normalized_pll_gaussian",
    "pll_constant", "pll_gaussian", "pll_mixture", "rmse", "rmse_deterministic", "sigma", "spearman",
}  # fmt: skip
_CHOSEN = {"batch_size", "dropout", "epochs", "rmse", "tau", "tau_at_end", "unfinished", "weight_decay"}


def _check_complete(found: Reproduction) -> None:
    """Raise ValueError where something is missing that a report or a summary tells."""
    if not found.sets or not {"wall", "cpu", "cpu_before"} <= set(found.seconds):
        raise ValueError("its sets or seconds are missing")
    for name, one in found.sets.items():
        if one.train < 1 or list(one.methods) != ["mcbn", "mcdo"]:
            raise ValueError(f"{name} was not run whole")
        for method, outcome in one.methods.items():
            if missing := _FIGURES - set(outcome.runs) or _CHOSEN - set(outcome.choices):
                raise ValueError(f"{min(missing)} of {method} on {name} is missing")
            if len({values.shape for values in outcome.runs.values()}) > 1 or outcome.runs["rmse"].ndim != 2:
                raise ValueError(f"the runs of {method} on {name} are not one a split and seed")
    json.dumps(summary(found), allow_nan=False)


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
    return np.array(data.asstr()[()]) if data.is_text else data[()]


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
                    name: json_number(float(np.mean(values)))
                    for name, values in found.runs.items()
                    if name != "spearman"
                }
                | {"spearman": json_number(found.rank_correlation())},
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
    return {key: json_number(value) if isinstance(value, float) else value for key, value in told.items()}
