"""MCBN on the UCI sets by b and by T, as tables 6 to 9 of Teye, Azizpour & Smith 2018, with what tables 2 to 5 hold,
raw CRPS, PLL and RMSE; and bins of predicted deviation and error of every set, as Figure 2, also of MNF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays, work_folder
from bnuq.progress import Progress
from bnuq.report import drawing
from bnuq.report.document import Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import with_error
from bnuq.store import codec
from experiments.learned.record import Comparison, Network, UciSizes, reader, written
from experiments.learned.record import summary as summary
from experiments.summary import report_of
from experiments.uci.experiment import KINDS, Job, Request, work_off
from experiments.uci.protocol import Protocol
from experiments.uci.record import METHODS, cell
from experiments.uci.selection import Choice, estimates_of_run
from experiments.uci.sets import UciSet, read_set, split
from experiments.work import run_all, size_of

BATCH_SIZES, COUNTS, BINS, AT = (8, 16, 32, 64, 128), (10, 50, 100, 500), 10, 32
QUICK = Protocol(
    "quick", (1e-4,), BATCH_SIZES, (0.05,), seeds=1, folds=3, patience=5, max_epochs=300, race=None, paper_batches=True
)
_FEWER: dict[str, Any] = {"max_epochs": 40, "interval": 5, "most_rows": 5000, "large": True}
_ENOUGH = 0.01  # nats of PLL, up to which T = 50 does as well as 500
_SHOWN = {  # of each run, by the name of its estimate
    "crps": "CRPS", "pll_mixture": "PLL", "normalized_crps": "CRPS, %", "normalized_pll": "PLL, %", "rmse": "RMSE",
    "rmse_deterministic": "deterministic",
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "source": "Teye, Azizpour & Smith 2018, appendix, tables 2 to 9 (their numbers are not at hand), and Figure 2",
    "of_networks": {},
}
read = reader(UciSizes)


def scored(f: np.ndarray, plain: np.ndarray, y: np.ndarray, choice: Choice) -> dict[str, Any]:
    """What is kept of a run: its scores with the first T of its samples, and tenths of its points, sorted by predicted
    deviation, with the means of that and of the absolute error."""
    found = dict[str, Any]()
    for count in (count for count in COUNTS if count <= len(f)):
        found |= {f"{key}@{count}": estimates_of_run(f[:count], plain, y, choice)[key] for key in _SHOWN}
    sd, error = np.sqrt(f.var(0) + 1 / choice.tau), np.abs(y - f.mean(0))
    parts = np.array_split(np.argsort(sd, kind="stable"), BINS)
    return found | {name: [of[part].mean() for part in parts] for name, of in (("sd", sd), ("error", error))}


def _jobs(request: Request, data: UciSet, folder: Path) -> Iterator[tuple[str, Job]]:
    """A job for each method and, of MCBN, b: named as its networks are. Large sets have b = 32 and fewer epochs."""
    large = request.protocol.name == "quick" and request.protocol.of(data.name).large
    base = replace(request.protocol, **(_FEWER if large else {}))
    for method in request.methods:
        for size in request.batch_sizes or BATCH_SIZES if method == "mcbn" and not large else (AT,):
            protocol, name = replace(base, batch_sizes=(size,)), f"MCBN, b = {size}"
            if method != "mcbn":
                protocol, name = base.for_learned(), METHODS[method]
            yield name, Job(data, KINDS[method], protocol, request.seed, "cpu", folder, scored)


def reproduce(request: Request, *, progress: Progress) -> UciSizes:
    """Choose epochs and τ by cross-validation, train anew and score at every T; the record goes to `request.out`."""
    codec.check_replaceable(request.out)
    data = {name: read_set(name, request.data_root) for name in request.sets}
    splits, networks, differences = request.protocol.splits, list[Network](), dict[str, dict[str, Estimate]]()
    with work_folder(request.out, request.work) as folder:
        jobs = {name: dict(_jobs(request, of, folder.path)) for name, of in data.items()}
        everything = [job for of in jobs.values() for job in of.values()]
        size = f"kinds of networks on {len(data)} sets, each in {splits} splits with cross-validation"
        request.announce(size_of(everything, size, folder.path))
        with progress("training", sum(job.share for job in everything)) as advance:
            longest_first = sorted(everything, key=lambda job: -job.share)
            run_all(longest_first, work_off, workers=request.workers or torch.get_num_threads(), advance=advance)
        for name, of in jobs.items():
            train, test = split(len(data[name].y), 1)
            runs = {kind: job.runs(job.choices(lambda _: None), lambda _: None) for kind, job in of.items()}
            for kind, job in of.items():
                networks += _networks(name, kind, runs[kind], len(test) / len(train), job.cpu_seconds())
            differences |= _differences(name, runs, len(test) / len(train))
        record = written(
            UciSizes,
            request.out,
            experiment={
                "sets": list(request.sets), "methods": list(request.methods), "splits": splits, "seed": request.seed,
                "batch_sizes": list(request.batch_sizes or BATCH_SIZES), "samples": max(COUNTS),
                "epochs": {name: next(iter(of.values())).protocol.max_epochs for name, of in jobs.items()},
            },
            published=PUBLISHED,
            networks=networks,
            differences=differences,
            seconds={"training": sum(job.cpu_seconds() for job in everything)},
        )  # fmt: skip
        folder.opened.extend(job.journal for job in everything)
    return record


def _estimate(runs: np.ndarray, share: float) -> Estimate:
    found = cell(runs, test_share=share)
    return Estimate(found.value, se=found.se, low=found.low, high=found.high)


def _networks(of: str, kind: str, runs: Arrays, share: float, seconds: float) -> Iterator[Network]:
    for count in (count for count in COUNTS if f"crps@{count}" in runs):
        estimates = {key: _estimate(runs[f"{key}@{count}"], share) for key in _SHOWN}
        yield Network(of, f"{kind}, T = {count}", estimates, (), runs[f"crps@{count}"].shape[1], seconds)
    bins = {
        f"{part} {place + 1}": _estimate(runs[part][..., place], share)
        for part in ("sd", "error")
        for place in range(BINS)
    }
    yield Network(of, f"{kind}, bins", bins, (), runs["sd"].shape[1], 0.0)


def _differences(of: str, runs: dict[str, Arrays], share: float) -> Iterator[tuple[str, dict[str, Estimate]]]:
    """Of each b against 32, of T = 50 against 500, and of the mean of samples against the deterministic network, in %:
    runs are paired."""
    if (usual := runs.get(f"MCBN, b = {AT}")) is not None:
        for kind, arrays in runs.items():
            if kind.startswith("MCBN") and arrays is not usual:
                change = {key: _estimate(arrays[f"{key}@500"] - usual[f"{key}@500"], share) for key in _SHOWN}
                yield f"{of}: {kind.removeprefix('MCBN, ')} − {AT}", change
        change = {key: _estimate(usual[f"{key}@50"] - usual[f"{key}@500"], share) for key in _SHOWN}
        yield f"{of}: T = 50 − 500", change
        gain = 100 * (usual["rmse@500"] / usual["rmse_deterministic@500"] - 1)
        yield f"{of}: samples − deterministic", {"rmse": _estimate(gain, share)}


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: the pictures of uncertainty and error, and scores by b and T, set by set."""
    setup = record.experiment
    epochs = ", ".join(f"{name} {most}" for name, most in setup["epochs"].items())
    return report_of(
        record,
        facts=(
            ("source", f"{record.published['source']}."),
            ("trained", f"λ = 1e-4, in {setup['splits']} splits; epochs and τ by cross-validation, at most {epochs}"),
            ("samples", f"{setup['samples']}, seed {setup['seed']}"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=sentences(record),
        sections=_sections(record),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """What is found of the claims of the appendix, and of Figure 2."""
    for size in (size for size in record.experiment["batch_sizes"] if size < AT):
        lower, higher, count = _signs(record, f": b = {size} − {AT}", "pll_mixture")
        less, more, _ = _signs(record, f": b = {size} − {AT}", "crps")
        yield (
            f"b = {size} against {AT}, on {count} sets by the 95 % interval: PLL is worse on {_some(lower)}, better on "
            f"{_some(higher)}; CRPS is worse on {_some(more)}, better on {_some(less)}. That MCBN deteriorates at b "
            f"≤ 16 {_verdict(lower, higher)}."
        )
    near = [name for name, of in _of(record, ": T = 50 − 500", "pll_mixture") if (of.low or 0.0) > -_ENOUGH]
    lower, higher, count = _signs(record, ": samples − deterministic", "rmse")
    yield (
        f'T = 50 has the PLL of T = 500 to {_ENOUGH} nats on {_some(near)} of {count} sets: that 50 does well "in some '
        f'cases" {_verdict(near, ())}.'
    )
    yield (
        f"RMSE of the mean of samples is lower than the deterministic network's on {_some(lower)}, higher on "
        f'{_some(higher)} of {count} sets, b = {AT}: a "slight improvement" (table 5) {_verdict(lower, higher)}.'
    )
    pictures = [each for each in record.networks if each.name in _pictured(record)]
    rising = [each for each in pictures if each.estimates[f"error {BINS}"].value > each.estimates["error 1"].value]
    yield (
        f"In {len(rising)} of {len(pictures)} pictures of Figure 2 the tenth of the points with the largest predicted "
        "deviation has a larger error than the tenth with the smallest. Tables 2 to 9 are not at hand; epochs, grids "
        "and seeds are fewer than the paper's, which can explain a gap."
    )


def _of(record: Comparison, ending: str, metric: str) -> list[tuple[str, Estimate]]:
    """Sets and the difference of that name, of those that have it."""
    found = record.differences.items()
    return [(name.removesuffix(ending), of[metric]) for name, of in found if name.endswith(ending)]


def _signs(record: Comparison, ending: str, metric: str) -> tuple[list[str], list[str], int]:
    """Sets whose difference lies below 0 by its 95 % interval, those above it, and how many sets there are."""
    found = _of(record, ending, metric)
    below = [name for name, of in found if of.high is not None and of.high < 0]
    return below, [name for name, of in found if of.low is not None and of.low > 0], len(found)


def _verdict(for_it: Sequence[str], against: Sequence[str]) -> str:
    return "stays open" if bool(for_it) is bool(against) else "holds" if for_it else "fails here"


def _some(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def _pictured(record: Comparison) -> list[str]:
    return [f"MCBN, b = {AT}, bins", *(f"{METHODS[of]}, bins" for of in record.experiment["methods"] if of != "mcbn")]


def _sections(record: Comparison) -> Iterator[ReportSection]:
    about = "Predicted deviation, and the mean absolute error of tenths of the test points that are sorted by it."
    yield ReportSection("Uncertainty and error", (Picture((record.KIND,), partial(_draw, record), about),))
    for name in record.experiment["sets"]:
        scores = [each for each in record.networks if each.set == name and not each.name.endswith("bins")]
        rows = tuple((of.name, tuple(with_error(of.estimates[key], 3) for key in _SHOWN)) for of in scores)
        yield ReportSection(name, (Table(tuple(_SHOWN.values()), rows, stacks=True),))
    legend = (
        "± standard error over splits, corrected for the rows that they share. CRPS and RMSE in target units, PLL of "
        "the mixture in nats; in % between the best constant uncertainty and the optimum. τ is fitted with all samples."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _draw(record: Comparison, path: Path) -> None:
    """A panel for each set: mean error over predicted deviation, of MCBN at b = 32 and of the other methods."""
    sets, names = record.experiment["sets"], _pictured(record)
    lines = dict(zip(names, list(drawing.line_styles(["", *names]).values())[1:], strict=True))
    with drawing.picture(
        path, title="Uncertainty and error", about=f"test points of {record.experiment['splits']} splits, in tenths",
        columns=min(4, len(sets)), heights=(1.0,) * -(-len(sets) // 4), size=(2.7, 2.5),
    ) as panels:  # fmt: skip
        for axes, of in zip(panels, sets, strict=False):
            for network in filter(None, (record.network(of, name) for name in names)):
                sd, error = (
                    [network.estimates[f"{part} {at + 1}"].value for at in range(BINS)] for part in ("sd", "error")
                )
                axes.plot(sd, error, label=network.name.removesuffix(", bins"), **lines[network.name].plotted)
            axes.set(title=of, xlabel="predicted deviation", ylabel="absolute error")
        for axes in panels[len(sets) :]:
            axes.set_axis_off()
