"""The UCI experiment from data to table: choose, train anew, evaluate; finished parts survive an interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.files.journal import Arrays, Journal, work_folder
from bnuq.findings import Finding
from bnuq.progress import Advance, Announce, Progress, silence
from bnuq.store import codec
from experiments.uci import variational
from experiments.uci.networks import Kind
from experiments.uci.protocol import TAU_RANGES, UNITS, Learned, Method, Protocol
from experiments.uci.published import GAL_RMSE, GAL_SOURCE, SOURCE, TABLE_1
from experiments.uci.record import METRICS, Choices, MethodOutcome, Reproduction, Runs, SetOutcome
from experiments.uci.selection import Choice, Score, evaluate, select
from experiments.uci.sets import UciSet, cross_validation, final, read_set, split
from experiments.work import code_of, machine, run_all, size_of, training_device

KINDS: dict[Method, Kind | Learned] = {  # of the networks, by method
    "mcbn": "batchnorm", "mcdo": "dropout", "mnf": "mnf", "vi": "vi", "vi-bn": "vi-bn"
}  # fmt: skip
_METHODS: dict[Kind | Learned, Method] = {kind: method for method, kind in KINDS.items()}
_WORK = {"mnf": 25, "vi": 6, "vi-bn": 6}  # of a row in training, about, beside that of MCBN and MCDO
_SECONDS = "cpu_seconds"  # that a unit took


@dataclass(frozen=True)
class Request:
    """What to run, and where. `work` holds finished parts until the table is written; beside `out` where None."""

    protocol: Protocol
    sets: tuple[str, ...]
    out: Path
    methods: tuple[Method, ...] = ("mcbn", "mcdo")
    paper_batches: bool | None = None
    batch_sizes: tuple[int, ...] | None = None
    device: str = "auto"
    seed: int = 0
    data_root: Path | None = None
    work: Path | None = None
    workers: int | None = None
    findings: tuple[Finding, ...] = ()
    announce: Announce = silence


def reproduce(request: Request, *, progress: Progress) -> Reproduction:
    """Run what is not finished yet, write the result to `request.out`, and remove the parts it was made from.

    Raises DataError for a set that is missing or cannot be used, RequestError for a device that cannot be, ResultError
    where files cannot be written.
    """
    started = time.perf_counter()
    device = training_device(request.device)
    codec.check_replaceable(request.out)
    data = {name: read_set(name, request.data_root) for name in request.sets}
    workers = 1 if device.type == "cuda" else request.workers or torch.get_num_threads()
    with work_folder(request.out, request.work) as folder:
        jobs = [
            Job(data[name], KINDS[method], _protocol_of(request, name, method), request.seed, str(device), folder.path)
            for name in request.sets
            for method in request.methods
        ]
        before = sum(job.cpu_seconds() for job in jobs)
        rows = sum(job.share for job in jobs) / 1000
        size = f"searches of settings, each with its final networks: about {rows:,.1f} million rows of training"
        request.announce(size_of(jobs, size, folder.path))
        with progress("training", sum(job.share for job in jobs)) as advance:
            longest_first = sorted(jobs, key=lambda job: -job.share)
            run_all(longest_first, work_off, workers=workers, advance=advance)
        cpu = sum(job.cpu_seconds() for job in jobs)
        result = Reproduction(
            experiment="uci",
            source=SOURCE,
            gal_source=GAL_SOURCE,
            protocol=_told(request.protocol, request.methods, _protocol_of(request, request.sets[0])),
            seed=request.seed,
            device=str(device),
            workers=min(workers, len(jobs)),
            sets={name: _outcome(request, data[name], [job for job in jobs if job.data.name == name]) for name in data},
            seconds={"wall": time.perf_counter() - started, "cpu": cpu, "cpu_before": before},
            provenance=machine(request.out, device),
            findings=request.findings,
            path=request.out.absolute(),
        )
        codec.write(result, request.out)
        folder.opened.extend(job.journal for job in jobs)  # their units are not needed any more
    return result


def _protocol_of(request: Request, name: str, method: Method = "mcbn") -> Protocol:
    of_set = request.protocol.of(name, paper_batches=request.paper_batches, batch_sizes=request.batch_sizes)
    return of_set.for_learned() if method in _WORK else of_set


def _told(protocol: Protocol, methods: Sequence[Method], of_set: Protocol | None = None) -> dict[str, Any]:
    """A protocol as the record has it; where noise is learned, with what holds for that, of a set."""
    learning = (of_set or protocol).for_learned()
    learned = {"learned": asdict(learning) | {"batch": variational.batch_of(learning)}}
    return asdict(protocol) | (learned if _WORK.keys() & set(methods) else {})


# ── jobs and their parts ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Job:
    """One kind of network on one set: the choice of its settings, then its runs, each a unit of a journal.
    A `score` of its own gives what is kept of a run."""

    data: UciSet
    kind: Kind | Learned
    protocol: Protocol
    seed: int
    device: str
    folder: Path
    score: Score | None = None

    @property
    def share(self) -> int:
        """About how much work this is, in thousands of training rows; what its progress adds up to."""
        protocol, rows = self.protocol, min(len(self.data.y), self.protocol.most_rows or len(self.data.y))
        if self.kind in _WORK:
            nets = protocol.splits * (len(protocol.weight_decays) + protocol.seeds)
            return 1 + int(nets * rows * protocol.max_epochs * _WORK[self.kind] / 1e6)
        kinds = len(protocol.batch_sizes) if self.kind == "batchnorm" else len(protocol.dropouts)
        nets = protocol.splits * (protocol.folds * kinds * len(protocol.weight_decays) + protocol.seeds)
        return 1 + int(nets * rows * protocol.max_epochs * UNITS[self.data.name] / 5e7)

    @property
    def journal(self) -> Journal:
        """The finished units: "choice" and "runs"."""
        facts = {
            "torch": torch.__version__,
            "code": code_of("layers", "uci"),
            "set": self.data.sha256,
            "kind": self.kind,
            "protocol": asdict(self.protocol),
            "tau_range": TAU_RANGES[self.data.name],
            "units": UNITS[self.data.name],
            "seed": self.seed,
            "device": torch.device(self.device).type,
        } | ({} if self.score is None else {"score": self.score.__name__})
        return Journal(self.folder, facts)

    def choices(self, advance: Advance) -> tuple[Choice, ...]:
        """The chosen setting of each split."""

        def compute() -> Arrays:
            material, of, _ = cross_validation(
                self.data, splits=self._splits, number=self.protocol.folds, most_rows=self.protocol.most_rows
            )
            choose: Any = variational.select if self.kind in _WORK else select
            choices = choose(
                self.kind,
                UNITS[self.data.name],
                material,
                of,
                protocol=self.protocol,
                tau_range=TAU_RANGES[self.data.name],
                seed=self.seed,
                device=torch.device(self.device),
                advance=advance,
            )
            return _columns(choices)

        columns = {name: values.tolist() for name, values in self._unit("choice", compute).items()}
        return tuple(Choice(*row) for row in zip(*(columns[column.name] for column in fields(Choice)), strict=True))

    def epochs(self, choices: tuple[Choice, ...]) -> list[int]:
        """Those of the final training of each split: as many as chosen; where cross-validation saw only some of the
        rows, as many as take the same number of steps."""
        if self.protocol.most_rows is None:
            return [choice.epochs for choice in choices]
        train = len(split(len(self.data.y), 1)[0])
        share = min(1.0, self.protocol.most_rows * (1 - 1 / self.protocol.folds) / train)
        return [max(1, round(choice.epochs * share)) for choice in choices]

    def runs(self, choices: tuple[Choice, ...], advance: Advance) -> Arrays:
        """Every estimate of every run: (split, seed)."""

        def compute() -> Arrays:
            evaluated: Any = variational.evaluate if self.kind in _WORK else evaluate
            estimates = evaluated(
                self.kind,
                UNITS[self.data.name],
                final(self.data, splits=self._splits),
                choices,
                epochs=self.epochs(choices),
                protocol=self.protocol,
                seed=self.seed,
                device=torch.device(self.device),
                advance=advance,
                score=self.score,
            )
            return {name: np.array(values, np.float64) for name, values in estimates.items()}

        return self._unit("runs", compute)

    @property
    def _splits(self) -> range:
        return range(1, self.protocol.splits + 1)

    def _unit(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """A unit of the journal, computed where it is not finished."""
        arrays = self.journal.load(name)
        if arrays is None:
            started = time.process_time()
            arrays = compute()
            self.journal.save(name, arrays | {_SECONDS: np.array(time.process_time() - started)})
        return {key: values for key, values in arrays.items() if key != _SECONDS}

    def cpu_seconds(self) -> float:
        """CPU seconds that the finished units of this job took, in whichever run."""
        units = filter(None, map(self.journal.load, ("choice", "runs")))
        return sum(float(unit[_SECONDS]) for unit in units)


def work_off(job: Job, advance: Advance) -> None:
    """Both parts of a job, its progress adding up to its share."""
    reported, done = 0, 0.0

    def tell(weight: float) -> None:
        nonlocal reported, done
        done = min(1.0, done + weight)
        if (now := int(job.share * done)) > reported:
            advance(now - reported)
            reported = now

    choosing = 0.5 if job.kind in _WORK else 0.9
    choices = job.choices(lambda steps: tell(choosing * steps / job.protocol.max_epochs))
    done = max(done, choosing)
    longest = max(job.epochs(choices))
    job.runs(choices, lambda steps: tell((1 - choosing) * steps / longest))
    tell(1.0)


# ── the outcome ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _outcome(request: Request, data: UciSet, jobs: list[Job]) -> SetOutcome:
    protocol = _protocol_of(request, data.name)
    train, test = split(len(data.y), 1)
    used = min(len(train), protocol.most_rows or len(train))
    fold_rows = used - -(-used // protocol.folds)
    methods: dict[str, MethodOutcome] = {}
    for job in jobs:
        name, choices = _METHODS[job.kind], job.choices(_nobody)
        methods[name] = MethodOutcome(
            runs=Runs(**job.runs(choices, _nobody)),
            choices=Choices(**_columns(choices), final_epochs=np.array(job.epochs(choices))),
            published={
                metric: TABLE_1[data.name, name, metric] for metric in METRICS if (data.name, name, metric) in TABLE_1
            },
        )
    return SetOutcome(
        name=data.name,
        rows=len(data.y),
        inputs=data.x.shape[1],
        train=len(train),
        test=len(test),
        fold_rows=fold_rows,
        units=UNITS[data.name],
        batch_sizes=protocol.batches_for(fold_rows),
        protocol=_told(protocol, request.methods),
        tau_range=TAU_RANGES[data.name],
        sha256=data.sha256,
        methods=methods,
        gal_rmse=GAL_RMSE[data.name],
        mnf={metric: TABLE_1[data.name, "mnf", metric] for metric in ("crps", "pll")},
    )


def _columns(choices: Sequence[Choice]) -> Arrays:
    return {column.name: np.array([getattr(choice, column.name) for choice in choices]) for column in fields(Choice)}


def _nobody(_: int) -> None:
    """Progress of a part that is there already."""
