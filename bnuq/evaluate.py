"""The main job: draw samples of a trained network, score them on the test set, tell the OOD sets apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.code import BY_USER
from bnuq.data import Points, check_labels
from bnuq.errors import ModelError, RequestError, SamplingError
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.metrics import DrawWeights
from bnuq.models.loading import load_model
from bnuq.progress import Progress, silent
from bnuq.records import Caution
from bnuq.results import file as result_file
from bnuq.results.result import EvaluatedSet, MethodResult, ReferenceCheck, Result, SetResult
from bnuq.results.spool import Spool
from bnuq.run import DETERMINISTIC, Run
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.passes import Engine, Evaluation, Interception, default_chunk
from bnuq.stages import scoring
from bnuq.stages.drawing import check_reference, draw_bank
from bnuq.stages.material import Material, Pipeline, load_material
from bnuq.stages.plan import Plan, device_named, plan
from bnuq.stages.provenance import Stopwatch, provenance
from bnuq.stages.reference_check import cautions as reference_cautions


def evaluate(run: Run, *, progress: Progress = silent) -> Result:
    """Evaluate `run`, write its result file, and give the result.

    Raises BnuqError with one message where the request cannot be carried out; the result file is then not touched.
    """
    watch = Stopwatch()
    _check_request(run)
    replaces = run.out.exists()
    loaded = load_model(
        run.checkpoint,
        arch=run.arch.text if run.arch else None,
        arch_args=run.arch_args,
        base=run.arch.base if run.arch else None,
        named_by=run.arch.named_by if run.arch else BY_USER,
        trust_code=run.trust_code,
        trust_pickle=run.trust_pickle,
    )
    material = load_material(run)
    pipeline = Pipeline(run, device_named(run.device))
    model = loaded.module.to(pipeline.device, pipeline.dtype)
    watch.lap("load")

    example = pipeline.evaluated(material.test, slice(0, 3))
    todo = plan(
        run,
        model,
        example,
        test=material.test,
        train=material.train,
        trained_with=loaded.checkpoint.train_batch_size,
    )
    sets = {"test": check_labels(material.test, todo.classes)} | material.ood
    omega = check = None
    if material.train is not None:
        check = check_reference(run, todo, model, pipeline, material.train, progress)
        omega = draw_bank(run, todo, model, pipeline, material.train, progress)
    watch.lap("draw")

    engines = _engines(run, todo, model, omega)
    with ExitStack() as spools:
        methods = _scored(run, todo, pipeline, engines, sets, progress, spools)
        watch.lap("evaluate")
        result = Result(
            run=replace(run, batch_size=todo.batch_size, methods=todo.methods).record(),
            model={
                "path": str(run.checkpoint),
                "sha256": loaded.checkpoint.sha256,
                "task": "classification",
                "classes": todo.classes,
                "batchnorm_layers": len(todo.sites.batchnorms),
                "dropout_layers": len(todo.sites.dropouts),
                "parameters": loaded.parameters,
            },
            sampling={
                "samples": run.samples,
                "batch_size": todo.batch_size,
                "layers": [site.name for site in todo.layers],
                "seed": run.seed,
                "device": str(pipeline.device),
                "precision": run.precision,
            },
            sets={name: _described(name, points) for name, points in sets.items()},
            methods=methods,
            cautions=(
                *_output_cautions(Evaluation(model).passes(example)),
                *material.cautions,
                *todo.cautions,
                *_cautions(run, todo, check, methods, material),
            ),
            notes=(
                *_how_asked(run, replaces=replaces),
                *loaded.notes,
                *material.notes,
                *todo.notes,
                *_dead_channels(omega),
            ),
            seconds=watch.seconds(),
            provenance=provenance(checkpoint=run.checkpoint, device=pipeline.device, train=material.train),
            reference_check=check,
            bank=omega,
            path=run.out,
        )
        result_file.write(result, run.out)
    return result


def _check_request(run: Run) -> None:
    if wrong := what_is_wrong_with(kind_of(run.checkpoint)):
        raise ModelError(f"{run.checkpoint}: {wrong}")
    if run.task not in (None, "classification"):
        raise RequestError(f"task is {run.task!r}; this version evaluates classification.")
    if run.test is None:
        file = (run.run_file or run.checkpoint.with_suffix(".toml")).name
        raise RequestError(
            f'there is no test set to evaluate on. Add --test REF, or to {file}:\n\n[data]\ntest = "cifar10:test"'
        )
    if kind_of(run.out.parent) != "folder":
        raise RequestError(f"--out {run.out}: the folder {run.out.parent} does not exist.")
    result_file.check_replaceable(run.out)
    if run.run_file is not None and run.run_file.resolve() == run.out.resolve():
        raise RequestError(f"--out {run.out} is a file that this run reads; name another file to write.")
    for name, least in {"samples": 1, "batch_size": 2, "limit": 1, "chunk_size": 1, "seed": 0}.items():
        value = getattr(run, name)
        if value is not None and not least <= value <= 2**62:
            raise RequestError(f"--{name.replace('_', '-')} is {value}; expected a whole number of at least {least}.")


def _how_asked(run: Run, *, replaces: bool) -> Iterator[str]:
    if run.run_file is not None and run.run_file_was_found:
        where = "in this folder" if run.run_file.name == "bnuq.toml" else "beside the checkpoint"
        yield f"{run.run_file.name} {where} was read: what it says holds unless an option says otherwise"
    if run.validation is not None:
        yield "the validation set was not read: no figure of this version is fitted to points"
    if replaces:
        yield f"an earlier result was replaced: {run.out.name}"


def _engines(run: Run, todo: Plan, model: nn.Module, omega: BatchStatistics | None) -> dict[str, Engine]:
    """What makes the passes of each method, the deterministic one first."""
    untracked = {site.name for site in todo.sites.live_batchnorms if not site.tracked}
    engines: dict[str, Engine] = {DETERMINISTIC: Evaluation(model)}
    if untracked:  # the network has no evaluation mode of its own; the plan saw to it that omega holds these layers
        assert omega is not None
        drawn = tuple(layer for layer in omega.layers if layer.name in untracked)
        engines[DETERMINISTIC] = Interception(model, todo.sites, omega=replace(omega, layers=drawn).pooled())
    for method in todo.methods:
        engines[method] = Interception(
            model,
            todo.sites,
            omega=omega if method.startswith("mcbn") else None,
            dropout=Dropout(run.samples, seed=run.seed) if method.endswith("mcdo") else None,
        )
    return engines


def _scored(
    run: Run,
    todo: Plan,
    pipeline: Pipeline,
    engines: Mapping[str, Engine],
    sets: Mapping[str, Points],
    progress: Progress,
    spools: ExitStack,
) -> dict[str, MethodResult]:
    """Every method on every set: the points pass in chunks, and are reduced as they pass."""
    points = sum(len(one) for one in sets.values())
    found: dict[str, MethodResult] = {}
    with progress(f"Evaluating {points} points", points * sum(e.samples for e in engines.values())) as advance:
        for method, engine in engines.items():
            draws = scoring.replicate_weights(engine.samples)
            scores: dict[str, scoring.SetScores] = {}
            kept: dict[str, Spool] = {}
            for name, one in sets.items():
                if run.save_samples and method != DETERMINISTIC:
                    kept[name] = spools.enter_context(Spool(run.out.parent))
                labels = one.targets if name == "test" else None
                reduction = scoring.ClassificationReduction(draws, points=len(one), labels=labels)
                for logits in _passes(run, pipeline, engine, one):
                    reduction.add(logits)
                    if name in kept:
                        kept[name].append(logits)
                    advance(engine.samples * logits.shape[1])
                if name == "test" and engine.samples > 1 and not reduction.passes_differ:
                    raise SamplingError(_why_passes_agree(method, todo))
                scores[name] = reduction.scores(group=one.group)
            found[method] = _method_result(scores, draws, kept)
    return found


def _passes(run: Run, pipeline: Pipeline, engine: Engine, points: Points) -> Iterator[np.ndarray]:
    size = run.chunk_size or default_chunk(points.point_shape)
    for start in range(0, len(points), size):
        chunk = pipeline.evaluated(points, slice(start, start + size))
        yield engine.passes(chunk, start).cpu().numpy()


def _why_passes_agree(method: str, todo: Plan) -> str:
    """Passes that do not differ would give a table of zeros; say why instead."""
    if method.startswith("mcbn"):
        why = f"mini-batches of {todo.batch_size} all have the same statistics; is the reference one point repeated?"
    else:
        rates = ", ".join(f"{site.name} {site.p:g}" for site in todo.sites.live_dropouts)
        why = f"dropout at these rates changes no output: {rates}."
    return f"the passes of {method} do not differ, so they hold no uncertainty: {why}"


def _method_result(
    scores: Mapping[str, scoring.SetScores], draws: DrawWeights, kept: Mapping[str, Spool]
) -> MethodResult:
    test = scores["test"]
    return MethodResult(
        sets={
            name: SetResult(
                figures=scoring.figures(one, draws),
                points=one.points,
                predicted=one.predicted,
                log_likelihood=one.log_likelihood,
                samples=kept.get(name),
            )
            for name, one in scores.items()
        },
        ood={name: scoring.detection_figures(test, one, draws) for name, one in scores.items() if name != "test"},
        convergence=scoring.convergence(test, draws),
        calibration=scoring.calibration_curve(test, draws),
        risk=scoring.risk_curve(test),
    )


def _cautions(
    run: Run,
    todo: Plan,
    check: ReferenceCheck | None,
    methods: Mapping[str, MethodResult],
    material: Material,
) -> Iterator[Caution]:
    if material.train is not None and todo.sites.live_batchnorms:
        yield from reference_cautions(check, {"normalize": run.normalize, "augment": run.augment})
    if any(not site.tracked for site in todo.sites.live_batchnorms):
        yield Caution(
            "deterministic-from-reference",
            "Some BatchNorm layers keep no running statistics, so the network has no evaluation mode of its own: "
            "its deterministic figures use the statistics of all drawn mini-batches together.",
        )
    sizes = {"test": material.test} | material.ood
    few = [name for name, one in sizes.items() if len(one if one.group is None else np.unique(one.group)) < 2]
    if few:
        text = f"{', '.join(few)}: fewer than two points, or groups of points; no error over points can be told."
        yield Caution("too-few-points", text)
    if len(methods) == 1 and run.methods is None:
        yield Caution("nothing-stochastic", "Only the network as it is was evaluated; the notes say what was left out.")
    elif run.samples < scoring.MIN_SAMPLES:
        text = f"With {run.samples} samples no Monte Carlo error can be told; use at least {scoring.MIN_SAMPLES}."
        yield Caution("few-samples", text)


def _output_cautions(outputs: Tensor) -> Iterator[Caution]:
    if bool((outputs >= 0).all()) and torch.allclose(outputs.sum(-1), torch.ones_like(outputs[..., 0]), atol=1e-4):
        yield Caution(
            "softmax-outputs",
            "The network's outputs look like probabilities: each row is positive and sums to 1. bnuq takes outputs for "
            "logits and applies the softmax itself, so every figure is one of a softmax of a softmax. Take the last "
            "softmax out of the architecture.",
        )


def _dead_channels(omega: BatchStatistics | None) -> Iterator[str]:
    dead = {layer.name: layer.dead_channels for layer in omega.layers if layer.dead_channels} if omega else {}
    if dead:
        layers = ", ".join(f"{name} {count}" for name, count in list(dead.items())[:5])
        yield (
            f"{sum(dead.values())} channels are all but constant in some mini-batch, their variance below 10 times eps "
            f"({layers}{' …' if len(dead) > 5 else ''}): a point that differs there is scaled up as far as eps allows"
        )


def _described(name: str, points: Points) -> EvaluatedSet:
    return EvaluatedSet(
        name=name,
        kind="test" if name == "test" else "ood",
        reference=points.reference,
        sha256=points.sha256,
        n=len(points),
        labels=points.targets if name == "test" else None,
        group=points.group,
        classes=tuple(points.classes or ()),
    )
