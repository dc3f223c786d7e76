"""Table 2 of Teye, Azizpour & Smith 2018 on a network of the user's: PLL against the number of stochastic passes."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from bnuq.catalogue import texts
from bnuq.config import Run, Split
from bnuq.errors import RequestError
from bnuq.estimates import Count, Estimate, Size, Unit, require
from bnuq.files.journal import beside
from bnuq.findings import Finding, warnings
from bnuq.methods import DETERMINISTIC
from bnuq.metrics import jackknife_error, standard_error
from bnuq.progress import Progress, silent
from bnuq.records.summary import estimate_summary
from bnuq.report import drawing
from bnuq.report.document import Cell, Picture, Report, ReportSection, Row, Table, explanations
from bnuq.report.numbers import count, number, of_reference, signed, total
from bnuq.shapes import Float64, Int64
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.summary import report_of, summary_of

SOURCE = "Teye, Azizpour & Smith 2018, Table 2: ResNet-32 on CIFAR-10"
REPLICATION = "a third party's replication in PyTorch (Glutamat42/mcbn-pytorch)"

_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)
_PLL = (-0.36, -0.32, -0.30, -0.29, -0.29, -0.28, -0.28, -0.28)
_REPLICATED = (-0.37, -0.33, -0.30, -0.29, -0.28, -0.27, -0.27, -0.27)

FEW = 8  # draws of a group, below which its own jackknife says little; groups, below which their spread does
_PUBLISHED_POINTS = 10_000  # CIFAR-10's test images
_ENOUGH = 2  # standard errors, from which on a difference is reported as one


# ── the record ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Step:
    """PLL of so many draws, in nats per point; more is better.

    `first` is that of the first draws, as published; `mean` that of each of the `groups` disjoint groups of as many
    draws, averaged; `gain` how far `mean` lies above the deterministic network, its `se` over paired points. Monte
    Carlo errors are None where there are too few draws to tell. `published` and `replication` are None
    where there is none.
    """

    samples: int
    first: Estimate
    mean: Estimate
    gain: Estimate
    groups: int
    accuracy: float
    published: float | None
    replication: float | None

    @property
    def reaches(self) -> bool:
        """Whether `mean` is at least the PLL of the deterministic network."""
        return self.gain.value >= 0


@dataclass(frozen=True)
class PllOverSamples:
    """The whole experiment. `experiment` says what was evaluated: model, data, sizes; `accuracies` are those of the
    first draws, by how many, and 0 is the deterministic network. `published` holds the row ("samples", "pll",
    "replication"), both baselines, and their sources."""

    KIND: ClassVar[str] = "pll-over-samples"
    COMMAND: ClassVar[str] = "experiments pll-over-samples"
    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    log_likelihood: Annotated[Float64[np.ndarray, "draw point"], Unit("nats")]
    deterministic: Annotated[Float64[np.ndarray, " point"], Unit("nats")]
    accuracies: Mapping[Count, float]
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    group: Int64[np.ndarray, " point"] | None = None
    path: Path | None = None

    def __post_init__(self) -> None:
        draws, points = self.log_likelihood.shape
        if draws < 2 or points < 1 or not {0, 1, draws} <= set(self.accuracies) or max(self.accuracies) > draws:
            raise ValueError("its draws or accuracies are missing")
        texts = dict.fromkeys(("model", "sha256", "device", "test", "train"), str)
        counts = dict.fromkeys(
            ("parameters", "batchnorm_layers", "batch_size", "samples", "n", "test_points", "reference_points"), Count
        )
        known = dict.fromkeys(("train_batch_size", "train_size"), Size | None)
        require(self.experiment, seed=int, augment=bool, **texts, **counts, **known)
        numbers, rows = dict.fromkeys(("baseline", "replication_baseline"), float), ("samples", "pll", "replication")
        texts = dict.fromkeys(("source", "replication_source"), str)
        require(self.published, **texts, **numbers, **dict.fromkeys(rows, list[float]))
        if len({len(self.published[key]) for key in rows}) > 1:
            raise ValueError("the published row is of different lengths")
        require(self.seconds, total=float)
        require(self.provenance, bnuq=str)

    @property
    def baseline(self) -> Estimate:
        """PLL of the deterministic network, with its error over points."""
        return Estimate(float(self.deterministic.mean()), se=standard_error(self.deterministic, group=self.group))

    def rows(self) -> tuple[Step, ...]:
        """By ascending number of draws: 1, 2, 4, … and all of them."""
        return tuple(self._row(count) for count in sorted(self.accuracies) if count)

    def break_even(self) -> int | None:
        """The fewest draws, of those in the table, whose PLL reaches that of the deterministic network; None where none
        does."""
        return next((row.samples for row in self.rows() if row.reaches), None)

    def _row(self, count: int) -> Step:
        groups = len(self.log_likelihood) // count
        grouped = self.log_likelihood[: groups * count].reshape(groups, count, -1)
        of_groups = np.logaddexp.reduce(grouped, axis=1) - math.log(count)
        spread = _spread(grouped, of_groups)
        places = dict(zip(self.published["samples"], range(len(self.published["samples"])), strict=True))

        def estimate(points: Float64[np.ndarray, " point"], mc_se: float | None) -> Estimate:
            return Estimate(float(points.mean()), se=standard_error(points, group=self.group), mc_se=mc_se)

        mean, error = of_groups.mean(0), None if spread is None else spread / math.sqrt(groups)
        return Step(
            samples=count,
            first=estimate(of_groups[0], spread),
            mean=estimate(mean, error),
            gain=estimate(mean - self.deterministic, error),
            groups=groups,
            accuracy=self.accuracies[count],
            published=self.published["pll"][places[count]] if count in places else None,
            replication=self.published["replication"][places[count]] if count in places else None,
        )


def _spread(
    grouped: Float64[np.ndarray, "group draw point"], of_groups: Float64[np.ndarray, "group point"]
) -> float | None:
    """Monte Carlo standard error of one group's PLL: by the jackknife within groups, by the spread between them where
    they are small; None where there are few of those too."""
    groups, count, _ = grouped.shape
    if count < FEW:
        return float(of_groups.mean(1).std(ddof=1)) if groups >= FEW else None
    squares = []
    for group in grouped:
        without = [np.logaddexp.reduce(np.delete(group, draw, axis=0), axis=0).mean() for draw in range(count)]
        squares.append(float(jackknife_error(np.array(without))) ** 2)
    return math.sqrt(np.mean(squares))


def summary(record: PllOverSamples) -> dict[str, Any]:
    """What `--json` prints: everything but the points themselves."""
    return summary_of(
        record,
        experiment=dict(record.experiment),
        published=dict(record.published),
        deterministic={"pll": estimate_summary(record.baseline), "accuracy": record.accuracies[0]},
        rows=[
            {
                "samples": row.samples,
                "pll_first": estimate_summary(row.first),
                "pll": estimate_summary(row.mean),
                "gain": estimate_summary(row.gain),
                "groups": row.groups,
                "accuracy": row.accuracy,
                "published": row.published,
                "replication": row.replication,
            }
            for row in record.rows()
        ],
        break_even=record.break_even(),
        notes=list(texts(record.findings)),
        seconds=dict(record.seconds),
        provenance=dict(record.provenance),
    )


def read(path: Path) -> PllOverSamples:
    """The record in the file at `path`; ResultError where that is not one."""
    return codec.read(PllOverSamples, path, summary=summary)


# ── evaluating ────────────────────────────────────────────────────────────────────────────────────────────────────────


def reproduce(run: Run, *, progress: Progress = silent) -> PllOverSamples:
    """PLL on the test set of `run` by MCBN with 1, 2, 4, … and `run.samples` draws, beside the published row.

    Mini-batches have `run.batch_size` images, by default as many as in training. Draws are shared by all points; how
    far chance moves an estimate of k draws is told by disjoint groups of k. Nothing but the test set is evaluated, and
    no result is written; an interrupted run is resumed from its parts beside `run.out`.

    RequestError for fewer than 2 samples or a number that is not settled, and for a regression; what `evaluate` raises.
    """
    if not isinstance(run.samples, int) or run.samples < 2:
        raise RequestError(f"--samples is {run.samples}; expected a whole number of at least 2.")
    if run.bank is not None:
        raise RequestError("sampling.bank gives points different draws, and groups of draws are compared here.")
    with tempfile.TemporaryDirectory() as folder:
        held_out = run.validation if isinstance(run.validation, Split) else None  # which says what the test set is
        request = replace(run, methods=("mcbn",), ood=(), validation=held_out, save_samples=False, calibrate="off")
        result = evaluate(replace(request, out=Path(folder) / "result.h5"), work=beside(run.out), progress=progress)
    with contextlib.suppress(OSError):  # not empty: parts of another request
        beside(run.out).rmdir()
    if result.model["task"] != "classification":
        raise RequestError(f"{run.checkpoint} is a regression; this experiment needs a classification.")
    test, sets = result.sets["test"], {name: outcome.sets["test"] for name, outcome in result.methods.items()}
    drawn, alone = sets["mcbn"], sets[DETERMINISTIC]
    assert drawn.log_likelihood is not None
    convergence = result.methods["mcbn"].convergence
    accuracies = zip(convergence["samples"].tolist(), convergence["accuracy"].tolist(), strict=True)
    return PllOverSamples(
        experiment={
            "model": Path(result.model["path"]).name,
            "sha256": result.model["sha256"],
            "parameters": result.model["parameters"],
            "batchnorm_layers": result.model["batchnorm_layers"],
            "train_batch_size": run.train_batch_size,
            "batch_size": result.sampling["batch_size"],
            "samples": result.sampling["samples"],
            "seed": run.seed,
            "device": result.sampling["device"],
            "test": test.reference,
            "n": test.n,
            "test_points": result.sampling["test_points"],
            "train": "" if run.train is None else run.train.text,
            "reference_points": result.sampling["reference_points"],
            "train_size": run.train_size,
            "augment": run.augment is not None,
        },
        published={
            "source": SOURCE,
            "samples": list(_SAMPLES),
            "pll": list(_PLL),
            "baseline": -0.32,
            "replication_source": REPLICATION,
            "replication": list(_REPLICATED),
            "replication_baseline": -0.33,
        },
        log_likelihood=drawn.log_likelihood.astype("float64"),
        deterministic=alone.points["pll"].astype("float64"),
        accuracies={0: alone.estimates["accuracy"].value} | dict(accuracies),
        findings=warnings(result.findings),
        seconds={"total": result.seconds["total"]},
        provenance={k: str(v) for k, v in result.provenance.items() if k not in ("request", "network", "outputs")},
        group=test.group,
    )


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: PllOverSamples, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: PLL at every T, and beside the published values."""
    setup = record.experiment
    augmented = "through the training pipeline" if setup["augment"] else "without augmentation"
    size = f"{setup['parameters']:,} parameters, {count(setup['batchnorm_layers'], 'BatchNorm layer')}"
    drawn = f"mini-batches of {setup['batch_size']} from {of_reference(setup['train'])}, {augmented}"
    points = f"{count(setup['n'], 'point')}{_of(setup['n'], setup['test_points'])}"
    measured = Table(
        ("first T", "mean of groups", "above deterministic", "groups", "accuracy"), tuple(_measured(record)), True
    )
    return report_of(
        record,
        subject=setup["model"],
        facts=(
            ("source", f"{record.published['source']}: PLL of MCBN against the number of samples T"),
            ("model", f"{setup['model']}: {size}"),
            ("test", f"{of_reference(setup['test'])}, {points}"),
            ("samples", f"{setup['samples']}, {drawn}, seed {setup['seed']}"),
            ("took", f"{record.seconds['total']:.0f} s on {setup['device']}"),
        ),
        summary=_summary(record),
        sections=(
            ReportSection("PLL, nats", (Picture((record.KIND,), partial(_draw, record)), measured)),
            ReportSection("Beside the published values", (Table(_COLUMNS, tuple(_beside(record))),)),
            ReportSection("", tuple(explanations(_protocol_notes(record)))),
        ),
        notes=texts(record.findings),
    )


_COLUMNS = ("this network", "published", "replication")


def _of(points: int, all_points: int) -> str:
    return "" if points == all_points else f" of {all_points}"


def _summary(record: PllOverSamples) -> Iterator[str]:
    rows, base, even = record.rows(), record.baseline, record.break_even()
    last = rows[-1]
    where = f"at T = {even}" if even else f"at no T up to {last.samples}"
    published = _break_even(record.published["samples"], record.published["pll"], record.published["baseline"])
    comparison = f"; in the published row at T = {published}" if published else ""
    reached = f"the deterministic network (PLL {number(base.value)}) {where}{comparison}"
    yield f"The mean of the samples reaches {reached}.{_surely(record)}"
    yield (
        f"From T = 1 to {last.samples}, PLL rises from {number(rows[0].mean.value)} to {number(last.mean.value)}"
        f"{_rise(record)}."
    )
    yield f"At T = {last.samples} it lies {_apart(last.gain)}{_published_gain(record)}."


def _surely(record: PllOverSamples) -> str:
    """From which T on it lies above by more than chance explains."""
    sure = [row.samples for row in record.rows() if row.gain.value >= _ENOUGH * (total(row.gain) or 0.0)]
    return f" From T = {sure[0]} on it lies above by more than chance explains." if sure else ""


def _break_even(samples: list[int], values: list[float], baseline: float) -> int | None:
    return next((count for count, value in zip(samples, values, strict=True) if value >= baseline), None)


def _rise(record: PllOverSamples) -> str:
    published = record.published
    first, last = number(published["pll"][0], 2), number(published["pll"][-1], 2)
    return f"; published {first} to {last}, from T = 1 to {published['samples'][-1]}"


def _apart(gain: Estimate) -> str:
    error = total(gain)
    size = f"{number(abs(gain.value))} nats" + (f" ± {number(error)}" if error is not None else "")
    side = f"{size} {'above' if gain.value > 0 else 'below'} the deterministic network"
    if error is None or abs(gain.value) >= _ENOUGH * error:
        return side
    return f"{side}, no more than chance explains"


def _published_gain(record: PllOverSamples) -> str:
    published = record.published
    gain = published["pll"][-1] - published["baseline"]
    return f" (published: {number(abs(gain), 2)} {'above' if gain > 0 else 'below'})"


def _measured(record: PllOverSamples) -> Iterator[Row]:
    base = record.baseline
    blank = Cell("–")
    yield "deterministic", (_cell(base), blank, blank, blank, Cell(f"{record.accuracies[0]:.4f}"))
    for row in record.rows():
        yield (
            f"T = {row.samples}",
            (
                _monte_carlo(row.first),
                _monte_carlo(row.mean),
                Cell(signed(row.gain.value), _error(total(row.gain))),
                Cell(str(row.groups)),
                Cell(f"{row.accuracy:.4f}"),
            ),
        )


def _cell(estimate: Estimate) -> Cell:
    return Cell(number(estimate.value), _error(estimate.se))


def _monte_carlo(estimate: Estimate) -> Cell:
    return Cell(number(estimate.value), _error(estimate.mc_se))


def _error(value: float | None) -> str:
    return "" if value is None else f"±{number(value)}"


def _beside(record: PllOverSamples) -> Iterator[Row]:
    published = record.published
    yield "deterministic", _three(record.baseline.value, published["baseline"], published["replication_baseline"])
    for row in record.rows():
        yield f"T = {row.samples}", _three(row.mean.value, row.published, row.replication)


def _three(*values: float | None) -> tuple[Cell, ...]:
    return tuple(Cell("–" if value is None else number(value, 2)) for value in values)


def _protocol_notes(record: PllOverSamples) -> Iterator[str]:
    facts, published = record.experiment, record.published
    yield (
        "± of the first T and of the mean of groups is the Monte Carlo error, of the deterministic network the "
        "standard error over points, of a difference both, points paired. The mean is over disjoint groups of T draws "
        f"out of all of them; chance is measured by the jackknife within groups, by their spread for T below {FEW}."
    )
    yield f"Replication: {published['replication_source']}."
    batch = "not known" if facts["train_batch_size"] is None else str(facts["train_batch_size"])
    size, n = facts["batch_size"], facts["n"]
    out_of = "" if facts["train_size"] in (None, facts["reference_points"]) else f" of {facts['train_size']}"
    fewer = "" if n == _PUBLISHED_POINTS else f"; {count(n, 'test image')} instead of {_PUBLISHED_POINTS:,}"
    yield (
        f"What differs from the published protocol: the network is another one (training batch {batch}; the published "
        f"text says 32, its code 128); passes use mini-batches of {size} out of {facts['reference_points']} reference "
        f"images{out_of}, shared by all points, where the published code draws anew for every point and has b − 1 "
        f"images beside it{fewer}."
    )


def _draw(record: PllOverSamples, path: Path) -> None:
    """PLL against T, the deterministic network, and the published rows."""
    facts, published, rows = record.experiment, record.published, record.rows()
    about = f"{facts['model']}, {facts['n']} test points, b = {facts['batch_size']}, seed {facts['seed']}"
    names = ("ours", "published", "replication")
    lines: dict[str, drawing.LineStyle] = dict(
        zip(names, list(drawing.line_styles(["", *names]).values())[1:], strict=True)
    )
    with drawing.picture(path, title="PLL against the number of passes", about=about) as (axes,):
        counts = [row.samples for row in rows]
        means, errors = [row.mean.value for row in rows], [row.mean.mc_se or 0.0 for row in rows]
        axes.errorbar(counts, means, yerr=errors, capsize=2.5, label="this network", **lines["ours"].plotted)
        axes.plot(counts, [row.first.value for row in rows], "x", color=lines["ours"].colour, label="its first T draws")
        for name in names[1:]:
            values = published["pll" if name == "published" else name]
            axes.plot(published["samples"], values, label=name, **lines[name].plotted)
        for name, level in (
            ("ours", record.baseline.value),
            ("published", published["baseline"]),
            ("replication", published["replication_baseline"]),
        ):
            axes.axhline(level, color=lines[name].colour, linestyle=":", linewidth=1.1)
        axes.set_xscale("log", base=2)
        marks = sorted({*counts, *published["samples"]})
        axes.set_xticks(marks, [str(mark) for mark in marks])
        axes.minorticks_off()
        axes.set_xlabel("passes T")
        axes.set_ylabel("PLL (nats)")
        axes.legend(loc="lower right", title="dotted: deterministic", title_fontsize=8)
