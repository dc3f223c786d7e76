"""Exports a network and its draws as one program of torch, which gives predictions with their uncertainty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from bnuq import __version__
from bnuq.config import Run, data_without_effect
from bnuq.errors import ModelError, RequestError, ResultError, SamplingError, first_line
from bnuq.evaluation.augmentation import check_augmentation
from bnuq.evaluation.draws import omega_of
from bnuq.evaluation.methods import SamplerInputs, sampler_of
from bnuq.evaluation.planned import planned_evaluation
from bnuq.evaluation.setup import prepare
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.target_scale import target_scale
from bnuq.files.hdf5 import open_hdf5
from bnuq.files.writing import alone, replaced, within
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, Method, method_named
from bnuq.models.exported import check_target, encoded, loaded
from bnuq.models.loading import LoadedModel
from bnuq.progress import READING, Progress, silent, stage
from bnuq.records.decisions import Foreign, decided, temperature_of
from bnuq.records.evaluation import Result
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.inputs import Unpacked
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.plain_loop import BySet, Engine
from bnuq.sampling.predictor import SCORES, Acceptance, ExportedPredictor, Scoring
from bnuq.studies.export.predictor_modules import check_exportable, drift_module, ood_module, pass_modules
from bnuq.studies.export.request import check_export, exported_run, first_exported

_COMPARED = 64  # points on which the program is compared with the network
_COMPARED_BANK = 160  # with a bank, of which every 64 points use other draws
_TOLERANCE = 1e-4  # relative to the largest value
_UNDECIDED = 0.01  # of the points: their masks may differ in an entry, see `program_draws.Masks`


@frozen
class Exported:
    """A program that was written: what it holds, and its largest difference from the network's own samples, relative to
    the largest value of that output, over `points` points."""

    path: Path
    metadata: dict[str, Any]
    difference: float
    points: int
    bytes: int
    findings: tuple[Any, ...] = ()


@within(lambda _, path, **__: alone(path))
def export(
    run: Run,
    path: Path,
    *,
    method: str | None = None,
    result: Result | None = None,
    monitor: Path | None = None,
    scores: Sequence[str] = (),
    progress: Progress = silent,
) -> Exported:
    """Write the network of `run` with its draws under `method` to `path`, as a program of `torch.export`.

    With a `result`, of which `run` is the request, the draws, the temperature and the noise level τ are those that were
    evaluated; otherwise draws are those of the seed, and the others are not fitted. By default `method` is the first
    that draws. With a `monitor`, the file of a baseline, the program also says how far its points are from that; with
    `scores`, names of `POST_HOC_SCORES`, it gives these too, fitted to the reference as an evaluation fits them. The
    program is compared with the network's own samples. Raises BnuqError with one message where that network, or that
    method, cannot be exported; `path` is then not touched.
    """
    check_export(run, method=method, result=result, path=path, reading=False)
    check_target(path)
    made = assembled(run, method=method, result=result, monitor=monitor, scores=scores, progress=progress)
    with stage(progress, "Exporting"):
        data = encoded(_program(made.predictor, made.inputs), made.metadata)
    given = loaded(data)(made.inputs)
    difference = _compared(given, made)
    if made.predictor.drift is not None:
        own = made.predictor.drift(made.inputs)
        if not torch.allclose(given["drift"], own, rtol=1e-2, atol=0.1):  # rounding may move a coordinate by a step
            raise SamplingError("the program's drift differs from the monitor's own; nothing was written.")
    with replaced(path) as file:
        file.write(data)
    return Exported(path, made.metadata, difference, len(made.inputs), len(data), made.findings)


@frozen
class Assembled:
    """What is exported: the `predictor` of an `engine`, whose samples it takes; `inputs` are some of the test set, and
    `ood` the OOD scores that they must have: those of a result, else of the network itself."""

    predictor: ExportedPredictor
    engine: Engine
    inputs: Tensor
    ood: dict[str, Tensor]
    metadata: dict[str, Any]
    findings: tuple[Any, ...]


def assembled(
    run: Run,
    *,
    method: str | None = None,
    result: Result | None = None,
    monitor: Path | None = None,
    scores: Sequence[str] = (),
    progress: Progress = silent,
) -> Assembled:
    """The network of `run` with its draws as one module; see `export`."""
    check_export(run, method=method, result=result)
    evaluated = replace(run, perturb=(), device="cpu")
    base, run = exported_run(run, method, result)
    with stage(progress, READING):
        prepared = prepare(run)
        planned = planned_evaluation(run, prepared)
    if result is not None:
        _check_unchanged(result, planned.networks)
    subject = planned.subject
    if isinstance(unconverted(prepared.model), Unpacked):
        raise RequestError("a network of several inputs cannot be exported; its program would take packed rows.")
    base = base or first_exported(subject.methods, str(run.checkpoint))
    exported = base if method is None else method_named(method)
    subject = replace(subject, methods=(base,))
    if "augmentation" in base.differs_by:
        check_exportable(subject.pipeline.settings.test_time_augment)
        check_augmentation(subject)
    engine = _engine(subject, base, _bank(result), progress)
    points = min(_COMPARED if subject.bank is None else _COMPARED_BANK, len(subject.sets["test"]))
    inputs = prepared.pipeline.evaluated(subject.sets["test"], slice(0, points))
    accepts = _acceptance(result, exported)
    scoring = replace(_scoring(subject, exported, result), accepts=accepts)
    watched = None if monitor is None else drift_module(monitor, subject, prepared.loaded, inputs)
    ood, own = None, {}
    if scores:  # fitted to what all methods of an evaluation draw, not only the exported one
        ood, own = ood_module(planned_evaluation(evaluated, prepared).subject, scores, inputs, progress)
        if result is not None and result.sets["test"].sha256 == planned.sets["test"].sha256:
            known = result.methods[DETERMINISTIC].sets["test"].points
            own |= {name: torch.from_numpy(known[name][:points]) for name in own.keys() & known.keys()}
    predictor = ExportedPredictor(pass_modules(subject, engine, inputs), scoring, watched, ood).eval()
    metadata = _metadata(subject, exported, engine.samples, scoring, inputs, result)
    metadata["outputs"] += [*own]
    metadata["ood_scores"] = {name: _threshold(result, name) for name in own}
    if watched is not None:
        metadata["outputs"].append("drift")
        metadata["monitor"] = watched.summary()
    compared_engine = engine.of("test", subject.sets["test"]) if isinstance(engine, BySet) else engine
    idle = data_without_effect(run, subject.sets.values(), subject.task, ("names of classes",))
    return Assembled(predictor, compared_engine, inputs, own, metadata, tuple(idle))


def _check_unchanged(result: Result, networks: Iterable[LoadedModel]) -> None:
    """Raise ResultError where a result was evaluated with other weights than these."""
    recorded = result.model.get("members", [result.model])
    for network, known in zip(networks, recorded, strict=False):
        if network.checkpoint.sha256 != known["sha256"]:
            raise ResultError(
                f"{result.path}: {network.checkpoint.path} was changed since it was evaluated. Restore the file, or "
                "evaluate it again."
            )


def _threshold(result: Result | None, score: str) -> float | None:
    """Above which the report of a result calls points foreign by this score; None where it does not name that."""
    foreign = (each for each in (() if result is None else decided(result)) if isinstance(each, Foreign))
    return next((f.threshold for f in foreign if (f.best.method, f.best.score) == (DETERMINISTIC, score)), None)


def _bank(result: Result | None) -> BatchStatistics | None:
    """ω of the evaluation, which its file keeps."""
    if result is None or result.path is None:
        return None
    with open_hdf5(result.path, what="result") as file:
        return BatchStatistics.read_from(file["statistics"], str(result.path)) if "statistics" in file else None


def _engine(subject: Subject, method: Method, omega: BatchStatistics | None, progress: Progress) -> Engine:
    """The engine of an evaluation with this method."""
    draws = range(subject.samples_of(method, subject.max_samples))
    omegas, sampler = dict[str, BatchStatistics](), sampler_of(method)
    if method.is_sampled_batchnorm:
        noisy = "noise" in method.differs_by
        if omega is None or noisy:  # what a result keeps was drawn without noise
            omega = omega_of(subject, range(subject.bank or len(draws)), progress, noisy=noisy)
        omegas[method.omega_key] = omega
    return sampler.engine(subject, draws, SamplerInputs(omegas, sampler.fitted(subject, progress, None)[0]))


def _scoring(subject: Subject, method: Method, result: Result | None) -> Scoring:
    """How samples become outputs, with what the evaluation fitted; of what is cross-fitted, that of all points."""
    settings, kind = subject.settings, method.recalibration
    estimates: Mapping[str, Any] = {} if result is None else result.methods[method.name].sets["test"].estimates
    if (labels := subject.task.outputs) != "values":
        temperature = None if result is None else temperature_of(result, method.name)
        if kind == "temperature" and temperature is not None:
            return Scoring(labels, scale=(1 / temperature,))
        if kind == "vector":
            assert result is not None
            fits = [fit for finding in result.findings for fit in finding.values.get("maps", ())]
            scale, shift = next((*fit[1:],) for fit in fits if fit[0] == method.name)
            return Scoring(labels, scale=(*scale,), shift=(*shift,))
        return Scoring(labels)
    tau = settings.scoring.tau if "tau" not in estimates else estimates["tau"].value
    scale = target_scale(settings.normalize_targets, subject.train, subject.outputs)
    std, mean = ((1.0,), (0.0,)) if scale is None else (tuple(scale.std.tolist()), tuple(scale.mean.tolist()))
    found = () if result is None else result.findings
    units = [f.values["sizes"] for f in found if f.code == "outputs-of-other-sizes" and f.values["of"] == method.name]
    noise = tuple(0.0 if tau is None else unit**2 / tau for unit in (units[0] if units else (1.0,)))
    return Scoring("values", noise=noise, std=std, mean=mean)


def _acceptance(result: Result | None, method: Method) -> Acceptance | None:
    """What the certificate of a result lets the exported method accept; None where it says nothing of that method, or
    is by a score of the network's logits."""
    certification = None if result is None else result.certification
    certificate = None if certification is None else certification.methods.get(method.name)
    if certificate is None or not certificate.is_kept():
        return None
    if certificate.is_of_width:
        noise = () if certificate.noise is None else tuple(certificate.noise.tolist())
        return Acceptance(certificate.threshold, noise=noise)
    return Acceptance(certificate.threshold, certificate.score) if certificate.score in SCORES else None


def _metadata(
    subject: Subject, method: Method, samples: int, scoring: Scoring, inputs: Tensor, result: Result | None
) -> dict[str, Any]:
    checkpoints = subject.checkpoints if "networks" in method.differs_by else subject.checkpoints[:1]
    outputs = ["mean", "variance"] if scoring.kind == "values" else ["mean", "predictive_entropy", "mutual_information"]
    accepts, noise = scoring.accepts, [*scoring.noise] if len(scoring.noise) > 1 else scoring.noise[0]
    if accepts is not None:
        outputs.append("accept" if accepts.score else "half_width")
    return {
        "bnuq": __version__,
        "torch": torch.__version__,
        "checkpoints": [checkpoint.name for checkpoint in checkpoints],
        "task": subject.task.name,
        "method": method.name,
        "samples": samples,
        "batch_size": subject.batch_size if method.is_sampled_batchnorm else None,
        "bank": subject.bank,
        "seed": subject.draws.seed,
        "inputs": {"shape": list(inputs.shape[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")},
        "normalize": msgspec.to_builtins(subject.pipeline.settings.normalize),
        "classes": list(subject.sets["test"].classes or ()),
        "outputs": outputs,
        "temperature": 1 / scoring.scale[0] if len(scoring.scale) == 1 else None,
        "vector": [scoring.scale, scoring.shift] if len(scoring.scale) > 1 else None,
        "cross_fitted": method.recalibration is not None and subject.settings.calibrate == "cross",
        "observation_variance": noise if scoring.kind == "values" else None,
        **({} if accepts is None else {"certificate": _promise(result, accepts)}),
    }


def _promise(result: Result | None, accepts: Acceptance) -> dict[str, Any]:
    """What the program promises of what it accepts."""
    assert result is not None and result.certification is not None
    threshold = "inf" if accepts.threshold == math.inf else accepts.threshold
    promise = {"risk": result.certification.risk, "confidence": result.certification.confidence}
    return promise | {"score": accepts.score or None, "threshold": threshold}


def _program(predictor: ExportedPredictor, inputs: Tensor) -> torch.export.ExportedProgram:
    """The program, for any number of points; ModelError where torch cannot trace the network."""
    few = inputs[: min(3, len(inputs))].clone()
    few = few if len(few) > 1 else torch.cat([few] * 3)
    points = {0: torch.export.Dim.DYNAMIC}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(predictor, (few,), dynamic_shapes=(points,), strict=False)
    except Exception as error:  # torch raises of many kinds here
        raise ModelError(f"torch.export cannot trace the network: {first_line(error)}.") from error
    for node in program.graph.nodes:  # lines of code and folders of this machine, most of the file
        for key in ("stack_trace", "from_node"):
            node.meta.pop(key, None)
    return program


def _compared(given: Mapping[str, Tensor], made: Assembled) -> float:
    """The largest difference between what a program gave and the outputs of the network's own samples, and its scores.
    SamplingError where it is more than rounding explains."""
    with torch.no_grad():
        expected = made.predictor.scored(made.engine.passes(made.inputs)) | made.ood
    largest = 0.0
    accepted = expected.pop("accept", None)  # differs only where rounding moves a score across the threshold
    if accepted is not None and (given["accept"] != accepted).double().mean() > _UNDECIDED:
        raise SamplingError("the program accepts other examples than the network's own samples; nothing was written.")
    for name, values in expected.items():
        apart = (given[name] - values).abs().flatten(1) if values.ndim > 1 else (given[name] - values).abs()[:, None]
        relative = apart.amax(1) / values.abs().max().clamp_min(1e-3)
        differ = float((relative > _TOLERANCE).double().mean())
        if not torch.isfinite(given[name]).all() or differ > (_UNDECIDED if made.predictor.has_masks else 0.0):
            cause = "which rounding does not explain" + ", but another training set would" * (name in made.ood)
            raise SamplingError(
                f"the program's {name} differs from the network's own by {float(relative.max()):.2g}, relative to the "
                f"largest, {cause}; nothing was written."
            )
        largest = max(largest, float(relative.max()))
    return largest
