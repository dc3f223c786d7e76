"""Several runs of one request: every estimate over the runs, and the tests of whether they differ from 0.

In their file, `/values` (estimate, run) holds the runs' estimates; what is computed over runs follows from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float64

from bnuq.config import POPULATION, Task
from bnuq.estimates import Axis, Size, Unit, require
from bnuq.metrics import METRICS, SCORES, TTest, nadeau_bengio, normalized, t_test
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import BOUNDS, NORMALIZED, Address, estimates_of
from bnuq.records.summary import SCHEMA, json_number
from bnuq.store import codec


@dataclass(frozen=True)
class OneRun:
    """One run: the split and the seed it is of, where its result lies, and its request.

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
            raise ValueError("test_share is no share")

    @property
    def words(self) -> str:
        """`split 0, seed 1`."""
        return ", ".join(f"{k} {v}" for k, v in (("split", self.split), ("seed", self.seed)) if v is not None)


@dataclass(frozen=True)
class SharedCaution:
    """A warning, with the number of runs that had it; the text is that of the first of them."""

    code: str
    text: str
    runs: Size


@dataclass(frozen=True)
class Aggregate:
    """One estimate over R runs: its values in their order, mean and sd (ddof 1; NaN for one run), in its unit.

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
    """Everything that several runs found together. `values` are their estimates, NaN where a run has one not, in the
    order of `estimates`: METHOD.SET.SCORE.METRIC, without a score where there is none."""

    KIND: ClassVar[str] = "several"
    COMMAND: ClassVar[str] = "evaluate for a [runs] list"

    runs: tuple[OneRun, ...]
    estimates: Annotated[tuple[str, ...], Axis("estimate")]
    values: Annotated[Float64[np.ndarray, "estimate run"], Unit("that of the estimate")]
    task: Task
    cautions: tuple[SharedCaution, ...]
    notes: tuple[str, ...]
    seconds: float
    provenance: Mapping[str, str]
    path: Path | None = field(default=None)

    def __post_init__(self) -> None:
        require(self.provenance, bnuq=str)
        if not self.runs or self.values.shape[1] != len(self.runs):
            raise ValueError("it holds no run, or the values of other runs")
        for method, place, score, metric in self.addresses:
            of_place = {NORMALIZED: {"pll_without_exact"}, f"{BOUNDS}constant": {"confidence"}}.get(place, set())
            if metric not in METRICS.keys() | of_place:
                raise ValueError(f"the estimate {metric} of {method} is unknown")
            if score and score not in SCORES:
                raise ValueError(f"the score {score} of {method} is unknown")

    @cached_property
    def addresses(self) -> list[Address]:
        """Those of `estimates`, taken apart."""
        found = [tuple(name.split(".")) for name in self.estimates]
        if any(len(address) != 4 for address in found):
            raise ValueError("the name of an estimate has not four parts")
        return found  # type: ignore[return-value]

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
        """Every estimate that any run has, over all of them; NaN where a run has it not.

        The mean over runs of a normalised score is that of the runs' own ratios.
        Source: Teye, Azizpour & Smith 2018, §4, and their code; Nadeau & Bengio 2003.
        """
        values = dict(zip(self.addresses, self.values, strict=True))
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


def one_run(result: Result, *, sha256: str, split: int | None, seed: int | None) -> tuple[OneRun, dict[Address, float]]:
    """What is kept of a run's `result`, whose file has this SHA-256; its estimates."""
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
    return run, {address: estimate.value for address, estimate in estimates_of(result) if address[0] != POPULATION}


def table_of(estimates: Sequence[Mapping[Address, float]]) -> dict[str, Any]:
    """`estimates` and `values` of the runs with these estimates."""
    addresses = list(dict.fromkeys(address for of_run in estimates for address in of_run))
    values = [[_value(of_run, address) for of_run in estimates] for address in addresses]
    return {
        "estimates": tuple(".".join(address) for address in addresses),
        "values": np.array(values, np.float64).reshape(len(addresses), len(estimates)),
    }


def _value(estimates: Mapping[Address, float], address: Address) -> float:
    method, place, score, metric = address
    if place == NORMALIZED and metric == "pll_without_exact" and address not in estimates:
        metric = "pll"  # no point was met exactly, so that none was left out
    return estimates.get((method, place, score, metric), math.nan)


def write(several: Several, path: Path) -> None:
    """Write `several` to `path`, whole or not at all; ResultError where that cannot be done."""
    folder = path.absolute().parent
    beside = (run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path for run in several.runs)
    runs = tuple(replace(run, path=path) for run, path in zip(several.runs, beside, strict=True))
    codec.write(replace(several, runs=runs), path)


def read(path: Path) -> Several:
    """The runs in the file at `path`; ResultError where that is not one of several runs, is newer, or is damaged."""

    def with_paths(_: Any, several: Several) -> Several:
        return replace(several, runs=tuple(replace(run, path=path.parent / run.path) for run in several.runs))

    return codec.read(Several, path, by_hand=with_paths)


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
