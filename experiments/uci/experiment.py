"""The UCI experiment from data to table: choose, train anew, evaluate; finished parts survive an interruption."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.files.writing import write_bytes
from bnuq.progress import Advance, Progress
from bnuq.store import codec
from experiments.uci.networks import Kind
from experiments.uci.protocol import TAU_RANGES, UNITS, Protocol
from experiments.uci.published import GAL_RMSE, GAL_SOURCE, SOURCE, TABLE_1
from experiments.uci.record import Choices, MethodOutcome, Reproduction, Runs, SetOutcome
from experiments.uci.selection import Choice, evaluate, select
from experiments.uci.sets import UciSet, cross_validation, final, read_set, split
from experiments.work import machine, make_work_folder, run_all, training_device

KINDS: tuple[Kind, ...] = ("batchnorm", "dropout")
METHODS = {"batchnorm": "mcbn", "dropout": "mcdo"}
_TRAINER = (
    1  # raised whenever the code of training and evaluation gives other estimates: finished parts then do not count
)


@dataclass(frozen=True)
class Request:
    """What to run, and where. `work` holds finished parts until the table is written; beside `out` where None."""

    protocol: Protocol
    sets: tuple[str, ...]
    out: Path
    paper_batches: bool | None = None
    batch_sizes: tuple[int, ...] | None = None
    device: str = "auto"
    seed: int = 0
    data_root: Path | None = None
    work: Path | None = None
    workers: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The work folder."""
        return self.work or self.out.with_name(self.out.name + ".work")


def reproduce(request: Request, *, progress: Progress) -> Reproduction:
    """Run what is not finished yet, write the result to `request.out`, and remove the parts it was made from.

    Raises DataError for a set that is missing or cannot be used, RequestError for a device that cannot be, ResultError
    where files cannot be written.
    """
    started = time.perf_counter()
    device = training_device(request.device)
    codec.check_replaceable(request.out)
    data = {name: read_set(name, request.data_root) for name in request.sets}
    made = make_work_folder(request.folder, "*-*-choice.json")
    jobs = [
        _Job(data[name], kind, own, request.seed, str(device), request.folder)
        for name in request.sets
        for own in [_own(request, name)]
        for kind in KINDS
    ]
    before = sum(job.cpu_seconds() for job in jobs)
    workers = 1 if device.type == "cuda" else request.workers or torch.get_num_threads()
    try:
        with progress("training", sum(job.share for job in jobs)) as advance:
            longest_first = sorted(jobs, key=lambda job: -job.share)
            run_all(longest_first, _work_off, workers=workers, advance=advance)
    except BaseException as error:
        if not isinstance(error, Exception):
            error.add_note(f"finished parts are kept in {request.folder}: the same command goes on from them.")
        raise
    cpu = sum(job.cpu_seconds() for job in jobs)
    result = Reproduction(
        experiment="uci",
        source=SOURCE,
        gal_source=GAL_SOURCE,
        protocol=asdict(request.protocol),
        seed=request.seed,
        device=str(device),
        workers=min(workers, len(jobs)),
        sets={name: _outcome(data[name], [job for job in jobs if job.data.name == name]) for name in request.sets},
        seconds={"wall": time.perf_counter() - started, "cpu": cpu, "cpu_before": before},
        provenance=machine(request.out, device),
        notes=request.notes,
        path=request.out.absolute(),
    )
    codec.write(result, request.out)
    for job in jobs:
        job.forget()
    if made and not any(request.folder.iterdir()):
        request.folder.rmdir()
    return result


def _own(request: Request, name: str) -> Protocol:
    return request.protocol.of(name, paper_batches=request.paper_batches, batch_sizes=request.batch_sizes)


# ── jobs and their parts ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Job:
    """One kind of network on one set: the choice of its settings, then its runs, each kept in a file when finished."""

    data: UciSet
    kind: Kind
    protocol: Protocol
    seed: int
    device: str
    folder: Path

    @property
    def share(self) -> int:
        """About how much work this is, in thousands of training rows; what its progress adds up to."""
        protocol, rows = self.protocol, min(len(self.data.y), self.protocol.most_rows or len(self.data.y))
        kinds = len(protocol.batch_sizes) if self.kind == "batchnorm" else len(protocol.dropouts)
        nets = protocol.splits * (protocol.folds * kinds * len(protocol.weight_decays) + protocol.seeds)
        return 1 + int(nets * rows * protocol.max_epochs * UNITS[self.data.name] / 5e7)

    def choices(self, advance: Advance) -> tuple[Choice, ...]:
        """The chosen setting of each split."""

        def compute() -> Any:
            material, of, _ = cross_validation(
                self.data, splits=self._splits, number=self.protocol.folds, most_rows=self.protocol.most_rows
            )
            found = select(
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
            return [asdict(choice) for choice in found]

        return tuple(Choice(**fields) for fields in self._part("choice", [], compute))

    def epochs(self, choices: tuple[Choice, ...]) -> list[int]:
        """Those of the final training of each split: as many as chosen; where cross-validation saw only some of the
        rows, as many as take the same number of steps."""
        if self.protocol.most_rows is None:
            return [choice.epochs for choice in choices]
        train = len(split(len(self.data.y), 1)[0])
        share = min(1.0, self.protocol.most_rows * (1 - 1 / self.protocol.folds) / train)
        return [max(1, round(choice.epochs * share)) for choice in choices]

    def runs(self, choices: tuple[Choice, ...], advance: Advance) -> dict[str, np.ndarray]:
        """Every estimate of every run: (split, seed)."""

        def compute() -> Any:
            return evaluate(
                self.kind,
                UNITS[self.data.name],
                final(self.data, splits=self._splits),
                choices,
                epochs=self.epochs(choices),
                protocol=self.protocol,
                seed=self.seed,
                device=torch.device(self.device),
                advance=advance,
            )

        found = self._part("runs", [asdict(choice) for choice in choices], compute)
        return {name: np.array(values, np.float64) for name, values in found.items()}

    @property
    def _splits(self) -> range:
        return range(1, self.protocol.splits + 1)

    def _file(self, stage: str) -> Path:
        return self.folder / f"{self.data.name}-{METHODS[self.kind]}-{stage}.json"

    def _part(self, stage: str, rests_on: Any, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, from the file of this part where that rests on the very same things."""
        path, key = self._file(stage), self._key(stage, rests_on)
        if (kept := _read(path)) is not None and kept["key"] == key:
            return kept["value"]
        started = time.process_time()
        value = compute()
        kept = {"key": key, "cpu_seconds": time.process_time() - started, "value": value}
        text = json.dumps(kept)
        write_bytes(path, text.encode())
        return json.loads(text)["value"]

    def _key(self, stage: str, rests_on: Any) -> str:
        """A digest of everything that determines a part."""
        facts = {
            "trainer": _TRAINER,
            "torch": torch.__version__,
            "set": self.data.sha256,
            "kind": self.kind,
            "stage": stage,
            "protocol": asdict(self.protocol),
            "tau_range": TAU_RANGES[self.data.name],
            "units": UNITS[self.data.name],
            "seed": self.seed,
            "device": torch.device(self.device).type,
            "rests_on": rests_on,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def cpu_seconds(self) -> float:
        """CPU seconds that the finished parts of this job took, in whichever run."""
        total, kept = 0.0, _read(self._file("choice"))
        if kept is not None and kept["key"] == self._key("choice", []):
            total += kept["cpu_seconds"]
            runs = _read(self._file("runs"))
            if runs is not None and runs["key"] == self._key("runs", kept["value"]):
                total += runs["cpu_seconds"]
        return total

    def forget(self) -> None:
        """Remove the files of the parts."""
        for stage in ("choice", "runs"):
            self._file(stage).unlink(missing_ok=True)


def _work_off(job: _Job, advance: Advance) -> None:
    """Both parts of a job, its progress adding up to its share."""
    told, done = 0, 0.0

    def tell(weight: float) -> None:
        nonlocal told, done
        done = min(1.0, done + weight)
        if (now := int(job.share * done)) > told:
            advance(now - told)
            told = now

    choices = job.choices(lambda steps: tell(0.9 * steps / job.protocol.max_epochs))
    done = max(done, 0.9)
    longest = max(job.epochs(choices))
    job.runs(choices, lambda steps: tell(0.1 * steps / longest))
    tell(1.0)


def _read(path: Path) -> dict[str, Any] | None:
    """What a part's file holds; None where there is none, or none that is whole."""
    try:
        kept = json.loads(path.read_bytes())
        whole = isinstance(kept, dict) and {"key", "cpu_seconds", "value"} <= set(kept)
        return kept if whole and isinstance(kept["cpu_seconds"], float) else None
    except (OSError, ValueError, TypeError):
        return None


# ── the outcome ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _outcome(data: UciSet, jobs: list[_Job]) -> SetOutcome:
    protocol = jobs[0].protocol
    train, test = split(len(data.y), 1)
    used = min(len(train), protocol.most_rows or len(train))
    fold_rows = used - -(-used // protocol.folds)
    methods = {}
    for job in jobs:
        name, choices = METHODS[job.kind], job.choices(_nobody)
        methods[name] = MethodOutcome(
            runs=Runs(**job.runs(choices, _nobody)),
            choices=Choices(
                **{key: np.array([asdict(choice)[key] for choice in choices]) for key in asdict(choices[0])},
                final_epochs=np.array(job.epochs(choices)),
            ),
            published={metric: TABLE_1[data.name, name, metric] for metric in ("crps", "pll")},
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
        protocol=asdict(protocol),
        tau_range=TAU_RANGES[data.name],
        sha256=data.sha256,
        methods=methods,
        gal_rmse=GAL_RMSE[data.name],
        mnf={metric: TABLE_1[data.name, "mnf", metric] for metric in ("crps", "pll")},
    )


def _nobody(_: int) -> None:
    """Progress of a part that is there already."""
