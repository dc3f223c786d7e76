"""The record of the UCI experiment: its runs and its table beside the published one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from bnuq.catalogue import texts
from bnuq.estimates import Size, Unit, require
from bnuq.findings import Finding
from bnuq.metrics import nadeau_bengio, t_test
from bnuq.records.summary import json_number
from bnuq.shapes import Float64, Shaped
from bnuq.store import codec
from experiments.summary import summary_of

METHODS = {"mcbn": "MCBN", "mcdo": "MCDO", "mnf": "MNF", "vi": "VI", "vi-bn": "VI with BN"}  # as shown
LEARNED = ("mnf", "vi", "vi-bn")
METRICS = {"crps": "normalized_crps", "pll": "normalized_pll"}  # of the published table, and the estimate of ours

Verdict = Literal["agrees", "same sign", "differs", "inconclusive", "n/a"]
VERDICTS: dict[Verdict, str] = {
    "agrees": "the published value lies in our interval, and 0 does not",
    "inconclusive": "both the published value and 0 lie in our interval: the runs cannot tell an effect of the "
    "published size from none",
    "same sign": "the published value lies outside our interval, and our value has its sign",
    "differs": "the published value lies outside our interval, and our value has the other sign",
    "n/a": "nothing was published, there are too few splits for an interval, or a score has no value",
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
    naive, corrected = t_test(values), nadeau_bengio(values, split, test_share=test_share)
    if naive is None or corrected is None or not math.isfinite(value):
        return Cell(value, None, None, None, None, "n/a", None, "n/a", published, "n/a")
    low, high = corrected.interval()
    outcome = verdict(value, low, high, published)
    return Cell(value, corrected.se, low, high, corrected.p, corrected.stars, naive.p, naive.stars, published, outcome)


def verdict(value: float, low: float, high: float, published: Published | None) -> Verdict:
    """What our value and its interval say of the published one; VERDICTS has it in words."""
    if published is None or not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return "n/a"
    if low <= published.value <= high:
        return "inconclusive" if low <= 0 <= high else "agrees"
    return "same sign" if value * published.value > 0 else "differs"


OfRun = Float64[np.ndarray, "split seed"]
Percent = Annotated[OfRun, Unit("percent")]
Nats = Annotated[OfRun, Unit("nats")]
InTargetUnit = Annotated[OfRun, Unit("target unit")]


@dataclass(frozen=True, eq=False)
class Runs:
    """Every estimate of every run of a method, as `selection.estimates_of_run` gives them."""

    normalized_crps: Percent
    normalized_pll: Percent
    normalized_pll_gaussian: Percent
    crps: InTargetUnit
    crps_constant: InTargetUnit
    crps_optimum: InTargetUnit
    pll_mixture: Nats
    pll_gaussian: Nats
    pll_constant: Nats
    pll_optimum: Nats
    rmse: InTargetUnit
    rmse_deterministic: InTargetUnit
    mc_sd: InTargetUnit
    noise_sd: InTargetUnit
    sigma: InTargetUnit
    spearman: OfRun
    exact_hits: OfRun


OfSplit = Shaped[np.ndarray, " split"]


@dataclass(frozen=True, eq=False)
class Choices:
    """What cross-validation chose for each split (`selection.Choice`), and the epochs of the final training."""

    weight_decay: OfSplit
    batch_size: OfSplit
    dropout: OfSplit
    epochs: OfSplit
    final_epochs: OfSplit
    rmse: Annotated[OfSplit, Unit("target unit")]
    mc_sd: Annotated[OfSplit, Unit("target unit")]
    sigma: Annotated[OfSplit, Unit("target unit")]
    tau: Annotated[OfSplit, Unit("1/target unit²")]
    tau_at_end: OfSplit
    unfinished: OfSplit


@dataclass(frozen=True, eq=False)
class MethodOutcome:
    """The runs of one method, and what cross-validation chose."""

    runs: Runs
    choices: Choices
    published: Mapping[str, Published]

    def mean(self, estimate: str) -> float:
        """Over all runs."""
        return float(np.mean(getattr(self.runs, estimate)))

    def rank_correlation(self) -> float:
        """Mean Spearman correlation of predictive sd and absolute error, of the runs that have one; NaN for none."""
        known = self.runs.spearman[~np.isnan(self.runs.spearman)]
        return float(known.mean()) if known.size else math.nan

    @property
    def at_end(self) -> float:
        """The share of splits, and so of runs, whose τ lies at an end of its range, in [0, 1]."""
        return float(np.mean(self.choices.tau_at_end != ""))


@dataclass(frozen=True, eq=False)
class SetOutcome:
    """One data set: its sizes, the protocol that held for it, and its methods."""

    name: str
    rows: Size
    inputs: Size
    train: Size
    test: Size
    fold_rows: Size
    units: Size
    batch_sizes: tuple[Size, ...]
    protocol: Mapping[str, Any]
    tau_range: tuple[float, float]
    sha256: str
    methods: Mapping[str, MethodOutcome]
    gal_rmse: tuple[float, float]
    mnf: Mapping[str, Published]

    def __post_init__(self) -> None:
        if not self.methods or not METHODS.keys() >= self.methods.keys():
            raise ValueError(f"{self.name} has no methods, or an unknown one")
        _check_protocol(self.protocol)
        if self.learned:
            _check_protocol(self.protocol["learned"])
            require(self.protocol["learned"], batch=Size)

    @property
    def learned(self) -> tuple[str, ...]:
        """Its methods whose noise is learned."""
        return tuple(method for method in self.methods if method in LEARNED)

    def cell(self, method: str, metric: str) -> Cell:
        """The cell of "crps" or "pll"; with "pll_gaussian" that of the Gaussian PLL, beside the published mixture."""
        outcome = self.methods[method]
        estimate = METRICS.get(metric, f"normalized_{metric}")
        published = outcome.published.get(metric)
        return cell(getattr(outcome.runs, estimate), test_share=self.test / self.train, published=published)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A published experiment, run again. Of its seconds `cpu_before` are those of `cpu` that an earlier run took."""

    KIND: ClassVar[str] = "uci"
    COMMAND: ClassVar[str] = "experiments uci"
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
    findings: tuple[Finding, ...] = ()
    path: Path | None = None

    def __post_init__(self) -> None:
        if not self.sets:
            raise ValueError("it is of no set")
        _check_protocol(self.protocol)
        require(self.seconds, **dict.fromkeys(("wall", "cpu", "cpu_before"), float))
        require(self.provenance, bnuq=str)

    def cells(self) -> Iterator[tuple[str, str, str, Cell]]:
        """Every cell of the table with its set, method and metric."""
        for name, outcome in self.sets.items():
            for method in outcome.methods:
                for metric in METRICS:
                    yield name, method, metric, outcome.cell(method, metric)


def _check_protocol(protocol: Mapping[str, Any]) -> None:
    counts = dict.fromkeys(("splits", "seeds", "folds", "samples", "selection_samples", "max_epochs"), Size)
    lists = dict.fromkeys(("weight_decays", "batch_sizes", "dropouts"), list[float])
    require(protocol, name=str, race=float | None, race_from=int, most_rows=int | None, **counts, **lists)


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(result: Reproduction) -> dict[str, Any]:
    """The reproduction as JSON values; what has no value is absent or "nan"."""
    return summary_of(
        result,
        source=result.source,
        protocol=dict(result.protocol),
        seed=result.seed,
        device=result.device,
        sets={name: _set_summary(outcome) for name, outcome in result.sets.items()},
        seconds={name: round(value, 3) for name, value in result.seconds.items()},
        notes=list(texts(result.findings)),
    )


def read(path: Path) -> Reproduction:
    """The record in the file at `path`; ResultError where that is not one."""
    return codec.read(Reproduction, path, summary=summary)


def _set_summary(outcome: SetOutcome) -> dict[str, Any]:
    facts = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return facts | {
        "mnf": {metric: [score.value, score.stars] for metric, score in outcome.mnf.items()},
        "published": {
            method: {metric: [score.value, score.stars] for metric, score in result.published.items()}
            for method, result in outcome.methods.items()
        },
        "methods": {name: _method_summary(outcome, name) for name in outcome.methods},
    }


def _method_summary(outcome: SetOutcome, name: str) -> dict[str, Any]:
    method = outcome.methods[name]
    means = {column.name: method.mean(column.name) for column in fields(method.runs)}
    means["spearman"] = method.rank_correlation()
    return {
        "crps": _cell_summary(outcome.cell(name, "crps")),
        "pll": _cell_summary(outcome.cell(name, "pll")),
        "pll_gaussian": _cell_summary(replace(outcome.cell(name, "pll_gaussian"), published=None)),
        "figures": {key: json_number(value) for key, value in means.items()},
        "tau_at_end": method.at_end,
        "choices": {column.name: getattr(method.choices, column.name).tolist() for column in fields(method.choices)},
    }


def _cell_summary(cell: Cell) -> dict[str, Any]:
    keys = ("value", "se", "low", "high", "p", "stars", "p_naive", "stars_naive")
    summary = {key: getattr(cell, key) for key in keys if getattr(cell, key) is not None}
    if cell.published is not None:
        summary |= {"published": cell.published.value, "stars_published": cell.published.stars, "verdict": cell.verdict}
    return {key: json_number(value) if isinstance(value, float) else value for key, value in summary.items()}
