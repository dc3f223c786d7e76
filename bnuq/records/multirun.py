"""Several runs of one request: every estimate over the runs, and the tests of whether they differ from 0.

In their file, `/values` (estimate, run) holds the runs' estimates; what is computed over runs follows from them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from bnuq import catalogue
from bnuq.estimates import Axis, Unit, require
from bnuq.findings import Finding, warnings
from bnuq.frozen import frozen
from bnuq.methods import METHOD_NAMES, POPULATION, method_named
from bnuq.metrics import METRICS, SCORES, TTest, nadeau_bengio, normalized, t_test
from bnuq.metrics.registry import limits_of
from bnuq.records.addresses import WITHOUT_EXACT, coordinates_of, estimates_of, nested, path_of
from bnuq.records.as_json import SCHEMA, json_fields, json_number, json_value
from bnuq.records.evaluation import Result
from bnuq.shapes import Float64
from bnuq.store import codec
from bnuq.tasks import TaskName


@frozen
class OneRun:
    """One run: its split and seed, the path of its result, and its request.

    `test_share` is n_test/n_train, how many points it was tested on for each that its network was trained on; None
    where the training set is not known.
    """

    path: Path
    sha256: str
    record: Mapping[str, Any]
    split: int | None = None
    seed: int | None = None
    test_share: float | None = None

    def __post_init__(self) -> None:
        require(self.record, model=dict[str, Any])  # the rest is checked when it is run again
        require(self.record["model"], checkpoint=str)
        if self.test_share is not None and not 0 < self.test_share < math.inf:
            raise ValueError("test_share is not a fraction")

    @property
    def words(self) -> str:
        """`split 0, seed 1`."""
        return ", ".join(f"{k} {v}" for k, v in (("split", self.split), ("seed", self.seed)) if v is not None)


@frozen
class Aggregate:
    """One estimate over R runs: its coordinates, its values in the order of the runs, mean and sd (ddof 1; NaN for one
    run), in its unit.

    `nadeau_bengio` is over split means, None for fewer than two splits or where no run knows its `test_share`. Of a
    normalised score, which is 0 if the uncertainty is worth a constant one: `t_test` over the runs as if they were
    independent, None for fewer than two, and `ratio_of_means`, the score of the mean scores and bounds.
    """

    coordinates: Mapping[str, str]
    values: Float64[np.ndarray, " run"]
    nadeau_bengio: TTest | None = None
    t_test: TTest | None = None
    ratio_of_means: float | None = None

    def __getitem__(self, coordinate: str) -> str:
        """A coordinate; empty if the estimate has none of this name."""
        return self.coordinates.get(coordinate, "")

    @property
    def normalized(self) -> bool:
        """Whether it is a normalised score."""
        return not self["set"] and not self["bound"]

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


@frozen
class Several:
    """The record of several runs. `values` are their estimates, NaN if a run has one not, in the
    order of `estimates`, their addresses."""

    KIND: ClassVar[str] = "several"
    COMMAND: ClassVar[str] = "evaluate for a [runs] list"

    runs: tuple[OneRun, ...]
    estimates: Annotated[tuple[str, ...], Axis("estimate")]
    values: Annotated[Float64[np.ndarray, "estimate run"], Unit("that of the estimate")]
    task: TaskName
    findings: tuple[Finding, ...]
    seconds: float
    provenance: Mapping[str, str]
    path: Path | None = field(default=None)

    def __post_init__(self) -> None:
        require(self.provenance, bnuq=str)
        if not self.runs or self.values.shape[1] != len(self.runs):
            raise ValueError("it holds no run, or the values of other runs")
        for address in self.estimates:
            coordinates_of(address)

    @property
    def splits(self) -> list[int]:
        """The different splits; one if none are listed."""
        return list(dict.fromkeys(0 if run.split is None else run.split for run in self.runs))

    @property
    def test_share(self) -> float | None:
        """n_test/n_train, the mean over runs; None if a run does not know its own."""
        shares = [run.test_share for run in self.runs if run.test_share is not None]
        return sum(shares) / len(shares) if len(shares) == len(self.runs) else None

    @property
    def methods(self) -> list[str]:
        """In the order of the runs' own."""
        return list(dict.fromkeys(aggregate["method"] for aggregate in self.aggregates.values()))

    @cached_property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """Every estimate that any run has over all runs, by its address; NaN if a run does not have it.

        The mean over runs of a normalised score is that of the runs' own ratios.
        Source: Teye, Azizpour & Smith 2018, §4, and their code; Nadeau & Bengio 2003.
        """
        values = dict(zip(self.estimates, self.values, strict=True))
        return {address: self._aggregate(address, values) for address in values}

    def _aggregate(self, address: str, run_values: Mapping[str, np.ndarray]) -> Aggregate:
        share, split = self.test_share, np.array([0 if run.split is None else run.split for run in self.runs])
        values = run_values[address]
        corrected = None if share is None else nadeau_bengio(values, split, test_share=share)
        aggregate = Aggregate(coordinates_of(address), values, corrected)
        if not aggregate.normalized:
            return aggregate
        method, _, metric = address.split(".")
        parts = [run_values[part] for level in _BETWEEN if (part := f"{method}.{level}.{metric}") in run_values]
        ratio = None
        if len(parts) == len(_BETWEEN):
            with np.errstate(invalid="ignore"):
                ratio = float(normalized(*(float(part.mean()) for part in parts)))
        return replace(aggregate, t_test=t_test(values), ratio_of_means=ratio)


_BETWEEN = ("sets.test", "bounds.constant", "bounds.optimum")  # what a normalised score is computed from


def one_run(result: Result, *, sha256: str, split: int | None, seed: int | None) -> tuple[OneRun, dict[str, float]]:
    """What is kept of a run's `result`, whose file has this SHA-256; the values of its estimates by address."""
    assert result.path is not None
    # Before --limit: what counts is how much the splits overlap.
    trained = result.run.get("data", {}).get("train_size") or result.sampling.get("reference_points")
    run = OneRun(
        path=result.path,
        sha256=sha256,
        record=result.run,
        split=split,
        seed=seed,
        test_share=result.sampling["test_points"] / trained if trained else None,
    )
    rows = {a: row for a, row in estimates_of(result).items() if method_named(row["method"]).plain.name != POPULATION}
    return run, {a: row.estimate.value for a, row in rows.items() if not (row["class"] or row["group"])}


def table_of(estimates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """`estimates` and `values` of the runs with these estimates."""
    addresses = list(dict.fromkeys(address for run_estimates in estimates for address in run_estimates))
    table = np.full((len(addresses), len(estimates)), np.nan)
    for row, address in zip(table, addresses, strict=True):
        replacement = address.replace(".normalized.pll_without_exact", ".normalized.pll")
        for run, values in enumerate(estimates):  # where no point is predicted exactly, none is left out
            row[run] = values.get(address, values.get(replacement, math.nan))
    return {"estimates": tuple(addresses), "values": table}


def write(several: Several, path: Path) -> None:
    """Write `several` to `path`, completely or not at all; ResultError if that cannot be done."""
    folder = path.absolute().parent
    beside = (run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path for run in several.runs)
    runs = tuple(replace(run, path=path) for run, path in zip(several.runs, beside, strict=True))
    codec.write(replace(several, runs=runs), path)


def read(path: Path) -> Several:
    """The runs in the file at `path`; ResultError if that is not one of several runs, is newer, or is damaged."""

    def complete(_: Any, several: Several) -> Several:
        unknown = {address: name for address in several.estimates for name in _unknown(coordinates_of(address))}
        known = [address not in unknown for address in several.estimates]
        return replace(
            codec.with_unknown(several, dict.fromkeys(unknown.values())),
            runs=tuple(replace(run, path=path.parent / run.path) for run in several.runs),
            estimates=tuple(itertools.compress(several.estimates, known)),
            values=several.values[known],
        )

    return codec.read(Several, path, by_hand=complete)


def _unknown(coordinates: Mapping[str, str]) -> Iterator[str]:
    """The metric, the score or the method of an estimate that this version does not know."""
    if coordinates["metric"] not in METRICS.keys() | {WITHOUT_EXACT} | (
        {"confidence"} if "bound" in coordinates else set()
    ):
        yield coordinates["metric"]
    if coordinates.get("score", "") not in SCORES.keys() | {""}:
        yield coordinates["score"]
    if coordinates["method"] not in METHOD_NAMES:
        yield coordinates["method"]


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(several: Several) -> dict[str, Any]:
    """The runs as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return {
        "bnuq": several.provenance["bnuq"],
        "schema": SCHEMA,
        "command": "evaluate",
        "kind": several.KIND,
        "task": several.task,
        "runs": [
            {key: value for key, value in json_fields(run, "split", "seed").items() if value is not None}
            | {"result": str(run.path), "sha256": run.sha256}
            for run in several.runs
        ],
        "test_share": several.test_share,
        "aggregate": nested(
            ((method, group) for method in several.methods for group in ("sets", "ood")),
            {path_of(each.coordinates): _aggregate(each, several.task) for each in several.aggregates.values()},
        ),
        "seconds": {"total": round(several.seconds, 3)},
        **catalogue.summary(several.findings),
        "result": json_value(several.path),
    }


def _aggregate(aggregate: Aggregate, task: TaskName) -> dict[str, Any]:
    values = json_fields(aggregate, "mean", "sd", "values")
    if aggregate.normalized:
        test = aggregate.t_test
        values |= json_fields(aggregate, "ratio_of_means")
        values["t_test"] = None if test is None else json_fields(test, *_OF_TEST)
    corrected = aggregate.nadeau_bengio
    if corrected is None:
        return values | {"nadeau_bengio": None}
    limits = (-math.inf, math.inf) if aggregate.normalized else limits_of(aggregate["metric"], task)
    low, high = (json_number(float(np.clip(end, *limits))) for end in corrected.interval())
    interval = {**json_fields(corrected, "se"), "low": low, "high": high}
    test = json_fields(corrected, *(_OF_TEST if aggregate.normalized else ("df",)))
    return values | {"nadeau_bengio": interval | test}


_OF_TEST = ("t", "df", "p", "stars")


def shared_warnings(run_findings: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    """The warnings among the findings of every run, those of one code once, with the number of runs that had them:
    values differ from run to run, and are those of the first."""
    shared: dict[tuple[str, int], list[Finding]] = {}
    for findings in run_findings:
        counts = Counter[str]()
        for finding in warnings(findings):
            shared.setdefault((finding.code, counts[finding.code]), []).append(finding)
            counts[finding.code] += 1
    for findings_of_code in shared.values():
        yield replace(findings_of_code[0], runs=len(findings_of_code))
