"""Several runs of one request: every figure over the runs, the tests of whether they differ from 0, and their file.

    /                 attributes: format, bnuq, command, kind ("several"), and as JSON task, seconds, warnings, notes,
                      provenance
    /runs             one row a run: split and seed (−1 where there is none), path (beside this file) and sha256 of its
                      result, test_share, record (its request, JSON), and a column a figure, METHOD.SET.METRIC or
                      METHOD.SET.SCORE.METRIC
    /figures          one row a figure: method, set, score, metric, unit, mean and sd over the runs; se, low and high by
                      Nadeau & Bengio on split means; of normalised scores (set "normalized") the t-test as published,
                      t_test_t, t_test_p, t_test_stars, ours, nadeau_bengio_p, nadeau_bengio_stars, and ratio_of_means

/figures follows from /runs: it is there for readers without bnuq. Missing numbers are NaN, a missing mark is "n/a", and
every data set of numbers has units. A reader must refuse a `format` above its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Float64

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import METRICS, SCORES, TTest, nadeau_bengio, normalized, t_test
from bnuq.results.file import (
    BOUNDS,
    NORMALIZED,
    Address,
    add_scale,
    add_variable,
    check_replaceable,
    figures_of,
    unit_of,
)
from bnuq.results.reading import numbers, open_result
from bnuq.results.result import Result
from bnuq.results.summary import SCHEMA, json_number
from bnuq.run import POPULATION, Task

FORMAT = 1
KIND = "several"


@dataclass(frozen=True)
class OneRun:
    """One run: the split and the seed it is of, where its result lies, its request, and its figures.

    `test_share` is n_test/n_train, how many points it was tested on for each that its network was trained on; None
    where the training set is not known.
    """

    path: Path
    sha256: str
    record: Mapping[str, Any]
    figures: Mapping[Address, float]
    split: int | None = None
    seed: int | None = None
    test_share: float | None = None

    @property
    def words(self) -> str:
        """`split 0, seed 1`."""
        return ", ".join(f"{k} {v}" for k, v in (("split", self.split), ("seed", self.seed)) if v is not None)


@dataclass(frozen=True)
class SharedCaution:
    """A warning, with the number of runs that had it; the text is that of the first of them."""

    code: str
    text: str
    runs: int


@dataclass(frozen=True)
class Aggregate:
    """One figure over R runs: its values in their order, mean and sd (ddof 1; NaN for one run), in the figure's unit.

    `nadeau_bengio` is over split means, None for fewer than two splits or where no run knows its `test_share`. Of a
    normalised score, which is 0 where the uncertainty is worth a constant one: `t_test` over the runs as if they were
    independent, None for fewer than two, and `ratio_of_means`, the score of the mean scores and bounds.
    """

    values: Float64[np.ndarray, " run"]
    nadeau_bengio: TTest | None = None
    t_test: TTest | None = None
    ratio_of_means: float | None = None

    @property
    def mean(self) -> float:
        """Mean over runs; not finite where a run's value is not."""
        with np.errstate(invalid="ignore"):
            return float(np.mean(self.values))

    @property
    def sd(self) -> float:
        """Standard deviation over runs, ddof 1; NaN for one run."""
        if self.values.size < 2 or not np.isfinite(self.values).all():
            return math.nan
        return float(np.std(self.values, ddof=1))


@dataclass(frozen=True)
class Several:
    """Everything that several runs found together."""

    runs: tuple[OneRun, ...]
    task: Task
    cautions: tuple[SharedCaution, ...]
    notes: tuple[str, ...]
    seconds: float
    provenance: Mapping[str, str]
    path: Path | None = field(default=None)

    @property
    def splits(self) -> list[int]:
        """The different splits; one where none are listed."""
        return list(dict.fromkeys(0 if run.split is None else run.split for run in self.runs))

    @property
    def test_share(self) -> float | None:
        """n_test/n_train, the mean over runs; None where a run does not know its own."""
        shares = [run.test_share for run in self.runs if run.test_share is not None]
        return sum(shares) / len(shares) if len(shares) == len(self.runs) else None

    @property
    def methods(self) -> list[str]:
        """In the order of the runs' own."""
        return list(dict.fromkeys(address[0] for address in self.aggregates))

    @cached_property
    def aggregates(self) -> Mapping[Address, Aggregate]:
        """Every figure that any run has, over all of them; NaN where a run has it not.

        The mean over runs of a normalised score is that of the runs' own ratios.
        Source: Teye, Azizpour & Smith 2018, §4, and their code; Nadeau & Bengio 2003.
        """
        values = {}
        for address in dict.fromkeys(address for run in self.runs for address in run.figures):
            values[address] = np.array([_value(run, address) for run in self.runs])
        return {address: self._aggregate(address, found, values) for address, found in values.items()}

    def _aggregate(
        self, address: Address, found: Float64[np.ndarray, " run"], values: Mapping[Address, np.ndarray]
    ) -> Aggregate:
        share, split = self.test_share, np.array([0 if run.split is None else run.split for run in self.runs])
        ours = None if share is None else nadeau_bengio(found, split, test_share=share)
        if address[1] != NORMALIZED:
            return Aggregate(found, ours)
        method, _, _, metric = address
        own, low, high = (
            values.get((method, place, "", metric)) for place in ("test", f"{BOUNDS}constant", f"{BOUNDS}optimum")
        )
        ratio = None
        if own is not None and low is not None and high is not None:
            with np.errstate(invalid="ignore"):
                ratio = float(normalized(float(own.mean()), float(low.mean()), float(high.mean())))
        return Aggregate(found, ours, t_test(found), ratio)


def _value(run: OneRun, address: Address) -> float:
    method, place, score, metric = address
    if place == NORMALIZED and metric == "pll_without_exact" and address not in run.figures:
        metric = "pll"  # no point was met exactly, so that none was left out
    return run.figures.get((method, place, score, metric), math.nan)


def one_run(result: Result, *, sha256: str, split: int | None, seed: int | None) -> OneRun:
    """What is kept of a run's `result`, whose file has this SHA-256."""
    assert result.path is not None
    # Before --limit: what counts is how much the splits overlap.
    trained = result.run.get("data", {}).get("train_size") or result.sampling.get("reference_points")
    return OneRun(
        path=result.path,
        sha256=sha256,
        record=result.run,
        figures={address: figure.value for address, figure in figures_of(result) if address[0] != POPULATION},
        split=split,
        seed=seed,
        test_share=result.sampling["test_points"] / trained if trained else None,
    )


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(several: Several, path: Path) -> None:
    """Write `several` to `path`, whole or not at all; ResultError where that cannot be done."""
    check_replaceable(path)
    write_bytes(path, image_of(lambda file: _lay_out(file, several, path.absolute().parent)))


def _lay_out(file: Any, several: Several, folder: Path) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(several.provenance["bnuq"])
    file.attrs["command"] = "evaluate"
    file.attrs["kind"] = KIND
    texts = {
        "task": several.task,
        "seconds": several.seconds,
        "warnings": [asdict(caution) for caution in several.cautions],
        "notes": several.notes,
        "provenance": dict(several.provenance),
    }
    for name, value in texts.items():
        file.attrs[name] = json.dumps(value)
    runs = several.runs
    room = file.create_group("runs", track_order=True)  # the figures in the order in which they were made
    run = add_scale(room, "run", np.arange(len(runs)))
    for key in ("split", "seed"):
        numbers = [getattr(one, key) for one in runs]
        add_variable(room, key, np.array([-1 if n is None else n for n in numbers], dtype=np.int64), (run,))
    paths = [one.path.relative_to(folder) if one.path.is_relative_to(folder) else one.path for one in runs]
    add_variable(room, "path", [_utf8(str(one)) for one in paths], (run,))
    add_variable(room, "sha256", [one.sha256 for one in runs], (run,))
    add_variable(room, "record", [json.dumps(one.record) for one in runs], (run,))
    add_variable(room, "test_share", _column(one.test_share for one in runs), (run,))
    for address, found in several.aggregates.items():
        add_variable(room, _column_name(address), found.values, (run,), unit=_unit(address))
    _lay_out_figures(file.create_group("figures"), several)


def _utf8(text: str) -> str:
    """A path may hold bytes that are not UTF-8, which Python keeps as surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _column(values: Any) -> Float64[np.ndarray, " row"]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _column_name(address: Address) -> str:
    return ".".join(part.replace("/", "-") for part in address if part)


def _unit(address: Address) -> str:
    return "percent" if address[1] == NORMALIZED else unit_of(address[3])


def _lay_out_figures(room: Any, several: Several) -> None:
    rows = list(several.aggregates.items())
    figure = add_scale(room, "figure", np.arange(len(rows)))
    for place, key in enumerate(("method", "set", "score", "metric")):
        add_variable(room, key, [address[place] for address, _ in rows], (figure,))
    add_variable(room, "unit", [_unit(address) for address, _ in rows], (figure,))
    by_row = "that of the row, in unit"
    ours = [found.nadeau_bengio for _, found in rows]
    intervals = [None if test is None else test.interval() for test in ours]
    for key, values in {
        "mean": [found.mean for _, found in rows],
        "sd": [found.sd for _, found in rows],
        "se": [None if test is None else test.se for test in ours],
        "low": [None if ends is None else ends[0] for ends in intervals],
        "high": [None if ends is None else ends[1] for ends in intervals],
        "ratio_of_means": [found.ratio_of_means for _, found in rows],
    }.items():
        add_variable(room, key, _column(values), (figure,), unit=by_row)
    published = [found.t_test for _, found in rows]
    tested = [test if address[1] == NORMALIZED else None for test, (address, _) in zip(ours, rows, strict=True)]
    for key, values in {
        "t_test_t": [None if test is None else test.t for test in published],
        "t_test_p": [None if test is None else test.p for test in published],
        "nadeau_bengio_p": [None if test is None else test.p for test in tested],
    }.items():
        add_variable(room, key, _column(values), (figure,))
    for key, tests in (("t_test_stars", published), ("nadeau_bengio_stars", tested)):
        add_variable(room, key, ["n/a" if test is None else test.stars for test in tests], (figure,))


class _Caution(msgspec.Struct):
    code: str
    text: str
    runs: Annotated[int, msgspec.Meta(ge=1)]


class _Texts(msgspec.Struct):
    task: Task
    seconds: float
    warnings: list[_Caution]
    notes: tuple[str, ...]
    provenance: dict[str, str]


def read(path: Path) -> Several:
    """The runs in the file at `path`; ResultError where that is not one of several runs, is newer, or is damaged."""
    with open_result(path, "several", newest=FORMAT) as file:
        return _read(file, path.absolute())


def _read(file: Any, path: Path) -> Several:
    texts = msgspec.convert({key: json.loads(file.attrs[key]) for key in _Texts.__struct_fields__}, _Texts)
    if not isinstance(texts.provenance["bnuq"], str):
        raise ValueError("its version is missing")
    room, table = file["runs"], file["figures"]
    columns = [table[key].asstr()[()] for key in ("method", "set", "score", "metric")]
    addresses: list[Address] = list(zip(*(map(str, column) for column in columns), strict=True))
    count = room["split"].shape[0]
    shape = (count,)
    if not count:
        raise ValueError("it holds no run")
    values = {address: numbers(room, _column_name(address), "f", shape=shape) for address in addresses}
    for method, place, score, metric in addresses:
        of_place = {NORMALIZED: {"pll_without_exact"}, f"{BOUNDS}constant": {"confidence"}}.get(place, set())
        if metric not in METRICS.keys() | of_place:
            raise ValueError(f"the figure {metric} of {method} is unknown")
        if score and score not in SCORES:
            raise ValueError(f"the score {score} of {method} is unknown")
    split, seed = (numbers(room, key, "i", shape=shape) for key in ("split", "seed"))
    share = numbers(room, "test_share", "f", shape=shape)
    if np.isinf(share).any() or (share <= 0).any():
        raise ValueError("test_share is no share")
    paths, digests, records = (room[key].asstr()[()] for key in ("path", "sha256", "record"))
    runs = tuple(
        OneRun(
            path=path.parent / paths[row],
            sha256=str(digests[row]),
            record=_record(json.loads(records[row])),
            figures={address: float(column[row]) for address, column in values.items()},
            split=None if split[row] < 0 else int(split[row]),
            seed=None if seed[row] < 0 else int(seed[row]),
            test_share=None if math.isnan(share[row]) else float(share[row]),
        )
        for row in range(count)
    )
    cautions = tuple(SharedCaution(one.code, one.text, one.runs) for one in texts.warnings)
    return Several(runs, texts.task, cautions, texts.notes, texts.seconds, texts.provenance, path)


def _record(value: Any) -> dict[str, Any]:
    """The request of a run, of which a report tells the checkpoint; the rest is checked when it is run again."""
    msgspec.convert(value["model"]["checkpoint"], str)
    return msgspec.convert(value, dict[str, Any])


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(several: Several) -> dict[str, Any]:
    """The runs as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return {
        "bnuq": several.provenance["bnuq"],
        "schema": SCHEMA,
        "command": "evaluate",
        "kind": KIND,
        "task": several.task,
        "runs": [
            {key: value for key, value in (("split", run.split), ("seed", run.seed)) if value is not None}
            | {"result": str(run.path), "sha256": run.sha256}
            for run in several.runs
        ],
        "test_share": several.test_share,
        "aggregate": {method: _method(several, method) for method in several.methods},
        "seconds": {"total": round(several.seconds, 3)},
        "warnings": [asdict(caution) for caution in several.cautions],
        "notes": list(several.notes),
        "result": None if several.path is None else str(several.path),
    }


def _method(several: Several, method: str) -> dict[str, Any]:
    found: dict[str, Any] = {"sets": {}, "ood": {}}
    for (name, place, score, metric), aggregate in several.aggregates.items():
        if name != method:
            continue
        if place == NORMALIZED:
            home = found.setdefault("normalized", {})
        elif place.startswith(BOUNDS):
            home = found.setdefault("bounds", {}).setdefault(place.removeprefix(BOUNDS), {})
        elif score:
            home = found["ood"].setdefault(place, {}).setdefault(score, {})
        else:
            home = found["sets"].setdefault(place, {})
        home[metric] = _told(aggregate, tested=place == NORMALIZED)
    return found


def _told(found: Aggregate, *, tested: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "mean": json_number(found.mean),
        "sd": json_number(found.sd),
        "values": [*map(json_number, found.values)],
    }
    if tested:
        told["ratio_of_means"] = None if found.ratio_of_means is None else json_number(found.ratio_of_means)
        test = found.t_test
        told["t_test"] = None if test is None else {**_test(test), "stars": test.stars}
    ours = found.nadeau_bengio
    if ours is None:
        return told | {"nadeau_bengio": None}
    low, high = map(json_number, ours.interval())
    test = {**_test(ours), "stars": ours.stars} if tested else {"df": ours.df}
    return told | {"nadeau_bengio": {"se": json_number(ours.se), "low": low, "high": high, **test}}


def _test(test: TTest) -> dict[str, Any]:
    return {"t": json_number(test.t), "df": test.df, "p": json_number(test.p)}


def shared_cautions(of_runs: Sequence[Sequence[tuple[str, str]]]) -> Iterator[SharedCaution]:
    """The warnings (code, text) of every run, those of one code once: texts differ from run to run in their numbers."""
    found: dict[tuple[str, int], list[str]] = {}
    for of_run in of_runs:
        seen: dict[str, int] = {}
        for code, text in of_run:
            found.setdefault((code, seen.setdefault(code, 0)), []).append(text)
            seen[code] += 1
    for (code, _), texts in found.items():
        yield SharedCaution(code, texts[0], len(texts))
