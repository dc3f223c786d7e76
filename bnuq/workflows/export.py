"""Exports a network and its draws as one program of torch, which gives predictions with their uncertainty."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bnuq import __version__
from bnuq.config import Run, draws_by, recalibration_of, without_recalibration
from bnuq.errors import ModelError, RequestError, SamplingError, first_line
from bnuq.evaluation.completeness import check_complete
from bnuq.evaluation.datasets import target_scale
from bnuq.evaluation.draws import omega_of
from bnuq.evaluation.setup import check_readable, prepare
from bnuq.evaluation.subject import Subject, is_mcbn
from bnuq.files.content import exists
from bnuq.files.hdf5 import open_hdf5
from bnuq.files.writing import check_writable, replaced
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import Result
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.inputs import Unpacked
from bnuq.sampling.noise import Learned
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.predictor import Predictor, Scoring
from bnuq.workflows.evaluate import planned_run

METADATA = "bnuq.json"  # in the program's file
_METHODS = ("mcbn", "mcdo", "mcbn+mcdo", "learned", "mcbn+learned", "mcdo+learned", "mcbn+mcdo+learned")
_COMPARED = 64  # points on which the program is compared with the network
_TOLERANCE = 1e-4  # relative to the largest value
_UNDECIDED = 0.01  # of the points: their masks may differ in an entry, see `predictor.Masks`


@dataclass(frozen=True)
class Exported:
    """A program that was written: what it holds, and its largest difference from the network's own samples, relative to
    the largest value of that output, over `points` points."""

    path: Path
    metadata: dict[str, Any]
    difference: float
    points: int
    bytes: int


def export(
    run: Run, path: Path, *, method: str | None = None, result: Result | None = None, progress: Progress = silent
) -> Exported:
    """Write the network of `run` with its draws under `method` to `path`, as a program of `torch.export`.

    With a `result`, of which `run` is the request, the draws, the temperature and the noise level τ are those that were
    evaluated; otherwise draws are those of the seed, and nothing is fitted. By default `method` is the first that
    draws. The program is compared with the network's own samples. Raises BnuqError with one message where that
    network, or that method, cannot be exported; `path` is then not touched.
    """
    _check_target(path)
    check_readable(run)
    check_complete(run, needs=("test",))
    base = _method(method, result)
    samples = _samples(run, result)
    methods = run.methods if base is None else (base,)  # on the CPU, whose masks the program has
    run = replace(run, methods=methods, samples=samples, bank=None, perturb=(), device="cpu")
    ready = prepare(run)
    subject = planned_run(run, ready).subject
    if isinstance(unconverted(ready.model), Unpacked):
        raise RequestError("a network of several inputs cannot be exported; its program would take packed rows.")
    base = base or _first(subject.todo.methods, str(run.checkpoint))
    engine = _engine(subject, base, samples, _bank(result), progress)
    points = min(_COMPARED, len(subject.sets["test"]))
    inputs = ready.pipeline.evaluated(subject.sets["test"], slice(0, points))
    engine.prepare(inputs)
    if engine.executor is None:
        raise SamplingError(
            f"the network cannot be exported, as its operations cannot be recorded: {engine.why_plain}."
        )
    scoring = _scoring(subject, ready.material.train, method or base, result)
    predictor = Predictor(engine.executor, scoring).eval()
    metadata = _metadata(subject, method or base, samples, scoring, inputs)
    with replaced(path) as file:
        with progress("Exporting", 1) as advance:
            program = _program(predictor, inputs)
            with _without_warnings():
                torch.export.save(program, file, extra_files=_extra_files(metadata))
            advance(1)
        size = file.seek(0, 2)
        difference = _compared(file, engine.passes(inputs), predictor, inputs)
    return Exported(path, metadata, difference, points, size)


def _check_target(path: Path) -> None:
    """Raise RequestError where `path` is not to be replaced: only programs of this command are."""
    if path.suffix != ".pt2":
        raise RequestError(f"--out {path}: expected a name that ends in .pt2, a program of torch.export.")
    if exists(path):
        try:
            with zipfile.ZipFile(path) as archive:
                ours = any(name.rpartition("/")[2] == METADATA for name in archive.namelist())
        except (OSError, zipfile.BadZipFile):
            ours = False
        if not ours:
            raise RequestError(f"--out {path}: there is a file, and it was not written by bnuq export. Name another.")
    check_writable(path)


def _first(methods: Iterable[str], where: str) -> str:
    """The first method that can be exported; RequestError where there is none."""
    found = next((name for name in methods if name in _METHODS), None)
    if found is None:
        raise RequestError(f"{where}: no method of {', '.join(methods)} can be exported.")
    return found


def _method(method: str | None, result: Result | None) -> str | None:
    """The method whose samples are exported, before recalibration; None where the network decides. RequestError for one
    that cannot be."""
    known = (*result.methods,) if result is not None else ()
    if method is None:
        return None if result is None else _first(known, str(result.path))
    base = without_recalibration(method)
    if base not in _METHODS or recalibration_of(method) == "vector":
        expected = ", ".join((*_METHODS, "each with +temperature"))
        raise RequestError(f"--method {method} cannot be exported; expected one of {expected}.")
    if result is not None and method not in known:
        raise RequestError(f"--method {method}: {result.path} has {', '.join(known)}.")
    if result is None and base != method:
        raise RequestError(f"--method {method} is fitted in an evaluation. Name its result: --from RESULT.")
    return base


def _samples(run: Run, result: Result | None) -> int:
    if result is not None:
        if result.sampling.get("bank"):
            raise RequestError(
                f"{result.path} was evaluated with a bank of draws, of which points use different ones. Evaluate "
                "without --bank."
            )
        return int(result.sampling["samples"])
    if run.samples == "auto":
        raise RequestError("--samples auto needs labels to stop by; expected a number, or --from RESULT.")
    if run.sampler.by_query:
        raise RequestError("per-query mini-batches cannot be exported. Leave out --per-query.")
    return run.samples


def _bank(result: Result | None) -> BatchStatistics | None:
    """ω of the evaluation, which its file keeps."""
    if result is None or result.path is None:
        return None
    with open_hdf5(result.path, what="result") as file:
        return BatchStatistics.read_from(file["statistics"], str(result.path)) if "statistics" in file else None


def _engine(
    subject: Subject, method: str, samples: int, omega: BatchStatistics | None, progress: Progress
) -> Stochastic:
    seed = subject.run.seed
    noisy = draws_by(method, "learned")
    if is_mcbn(method) and (omega is None or noisy):  # what a result keeps was drawn without noise
        omega = omega_of(subject, range(samples), progress, noisy=noisy)
    return Stochastic(
        subject.model,
        subject.todo.sites,
        omega=omega if is_mcbn(method) else None,
        dropout=Dropout(samples, seed) if draws_by(method, "mcdo") else None,
        learned=Learned(samples, seed) if draws_by(method, "learned") else None,
    )


def _scoring(subject: Subject, train: Any, method: str, result: Result | None) -> Scoring:
    """How samples become outputs, with what the evaluation fitted."""
    todo, run = subject.todo, subject.run
    estimates: Mapping[str, Any] = {} if result is None else result.methods[method].sets["test"].estimates
    if todo.task != "regression":
        recalibrated = recalibration_of(method) is not None
        temperature = float(estimates["temperature"].value) if recalibrated else 1.0  # the mean of cross-fitted ones
        return Scoring("labels" if run.outputs == "multilabel" else "classes", temperature)
    tau = run.scoring.tau if "tau" not in estimates else estimates["tau"].value
    scale = target_scale(run, train, todo.outputs)
    of_targets = {} if scale is None else {"std": tuple(scale.std.tolist()), "mean": tuple(scale.mean.tolist())}
    return Scoring("values", 1.0, noise=(0.0 if tau is None else 1 / tau,), **of_targets)


def _metadata(subject: Subject, method: str, samples: int, scoring: Scoring, inputs: Tensor) -> dict[str, Any]:
    run = subject.run
    record = run.record()
    outputs = ["mean", "variance"] if scoring.kind == "values" else ["mean", "predictive_entropy", "mutual_information"]
    return {
        "bnuq": __version__,
        "torch": torch.__version__,
        "checkpoint": run.checkpoint.name,
        "task": subject.todo.task,
        "method": method,
        "samples": samples,
        "batch_size": subject.todo.batch_size if is_mcbn(method) else None,
        "seed": run.seed,
        "inputs": {"shape": list(inputs.shape[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")},
        "normalize": record["data"].get("normalize"),
        "classes": list(subject.sets["test"].classes or ()),
        "outputs": outputs,
        "temperature": scoring.temperature,
        "observation_variance": scoring.noise[0] if scoring.kind == "values" else None,
    }


def _extra_files(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata, and the licence of bnuq."""
    files = {METADATA: json.dumps(metadata, indent=1)}
    try:
        licence = distribution("bnuq").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        licence = None
    return files | ({} if licence is None else {"LICENSE.bnuq": licence})


def _program(predictor: Predictor, inputs: Tensor) -> torch.export.ExportedProgram:
    """The program, for any number of points; ModelError where torch cannot trace the network."""
    few = inputs[: min(3, len(inputs))].clone()
    few = few if len(few) > 1 else torch.cat([few] * 3)
    points = {0: torch.export.Dim.DYNAMIC}
    try:
        with torch.no_grad(), _without_warnings():
            return torch.export.export(predictor, (few,), dynamic_shapes=(points,), strict=False)
    except Exception as error:  # torch raises of many kinds here
        raise ModelError(f"torch.export cannot trace the network: {first_line(error)}.") from error


def _compared(file: Any, samples: Tensor, predictor: Predictor, inputs: Tensor) -> float:
    """The largest difference between the program's outputs and those of the network's own `samples`. SamplingError
    where it is more than rounding explains."""
    file.seek(0)
    with torch.no_grad(), _without_warnings():
        given = torch.export.load(file).module()(inputs)
        expected = predictor.scored(samples)
    largest = 0.0
    for name, values in expected.items():
        apart = (given[name] - values).abs().flatten(1) if values.ndim > 1 else (given[name] - values).abs()[:, None]
        relative = apart.amax(1) / values.abs().max().clamp_min(1e-3)
        differ = float((relative > _TOLERANCE).double().mean())
        if not torch.isfinite(given[name]).all() or differ > (_UNDECIDED if predictor.has_masks else 0.0):
            raise SamplingError(
                f"the program's {name} differs from the network's own by {float(relative.max()):.2g}, relative to the "
                "largest, which rounding does not explain; nothing was written."
            )
        largest = max(largest, float(relative.max()))
    return largest


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own archives
        yield
