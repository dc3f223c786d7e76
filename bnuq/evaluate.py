"""The main job: draw samples of a trained network, score them on the test set, tell the OOD sets apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnuq.code import BY_USER
from bnuq.data import Points, check_labels, check_targets
from bnuq.errors import ModelError, RequestError
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.models.loading import load_model
from bnuq.progress import Progress, silent
from bnuq.records import Caution
from bnuq.results import file as result_file
from bnuq.results.result import EvaluatedSet, ReferenceCheck, Result, Work
from bnuq.run import DETERMINISTIC, Run
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.passes import Evaluation
from bnuq.stages import classification, memory, regression, scoring
from bnuq.stages.drawing import check_reference, draw_bank
from bnuq.stages.material import Material, Pipeline, input_normalize, load_material, target_scale
from bnuq.stages.passing import FIRST_ROUND, VALIDATION, Passed, Scorer, check_precision, passed
from bnuq.stages.plan import Plan, device_named, plan
from bnuq.stages.provenance import Stopwatch, provenance, request_digest
from bnuq.stages.reference_check import cautions as reference_cautions

FEW = 20  # points, below which what is fitted to them is not to be trusted


def evaluate(run: Run, *, progress: Progress = silent) -> Result:
    """Evaluate `run`, write its result file, and give the result.

    Raises BnuqError with one message where the request cannot be carried out; the result file is then not touched.
    """
    watch = Stopwatch()
    check_request(run)
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
    pipeline = Pipeline(run, device_named(run.device), input_normalize(run, material.train))
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
    sets, scorer = _scored_sets(run, todo, material)
    check_precision(run, pipeline.device)
    check = None
    if material.train is not None:
        check = check_reference(run, todo, model, pipeline, material.train, progress)
    watch.lap("draw")

    def draw(draws: range) -> BatchStatistics | None:
        if material.train is None:
            return None
        watch.lap("evaluate")
        omega = draw_bank(draws, todo, model, pipeline, material.train, progress)
        watch.lap("draw")
        return omega

    with ExitStack() as spools:
        found = passed(run, todo, model, pipeline, sets, scorer, draw, progress, spools)
        watch.lap("evaluate")
        result = Result(
            run=replace(run, batch_size=todo.batch_size, methods=todo.methods).record(),
            model={
                "path": str(run.checkpoint),
                "sha256": loaded.checkpoint.sha256,
                "task": todo.task,
                ("classes" if todo.task == "classification" else "outputs"): todo.outputs,
                "batchnorm_layers": len(todo.sites.batchnorms),
                "dropout_layers": len(todo.sites.dropouts),
                "parameters": loaded.parameters,
            },
            sampling={
                "samples": found.samples,
                "bank": found.bank,
                "batch_size": todo.batch_size,
                "layers": [site.name for site in todo.layers],
                "seed": run.seed,
                "mutual_information": run.mutual_information,
                "device": str(pipeline.device),
                "precision": run.precision,
                "reference_points": None if material.train is None else len(material.train),
                "test_points": material.test_points,
            },
            sets={name: _described(name, points, todo.task) for name, points in sets.items()},
            methods=found.methods,
            cautions=(
                *(_output_cautions(Evaluation(model).passes(example)) if todo.task == "classification" else ()),
                *material.cautions,
                *todo.cautions,
                *_cautions(run, todo, check, found, material),
            ),
            notes=(
                *_how_asked(run, replaces=replaces),
                *_without_validation(material, run, todo),
                *loaded.notes,
                *material.notes,
                *todo.notes,
                *found.notes,
                *_dead_channels(found.omega),
            ),
            seconds=watch.seconds(),
            work=Work(found.work, memory.peak(pipeline.device)),
            provenance={
                **provenance(checkpoint=run.checkpoint, device=pipeline.device, train=material.train),
                "request": request_digest(run, checkpoint_sha256=loaded.checkpoint.sha256),
            },
            reference_check=check,
            bank=found.omega,
            path=run.out,
        )
        result_file.write(result, run.out)
    return result


def check_request(run: Run) -> None:
    """Raise BnuqError for what can be told to be wrong with `run` before anything is read or computed."""
    if wrong := what_is_wrong_with(kind_of(run.checkpoint)):
        raise ModelError(f"{run.checkpoint}: {wrong}")
    if run.task == "segmentation":
        raise RequestError('task is "segmentation"; this version evaluates classification and regression.')
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
    for name, least in {
        "samples": 1,
        "bank": 1,
        "max_samples": FIRST_ROUND,
        "batch_size": 2,
        "limit": 1,
        "chunk_size": 1,
        "seed": 0,
    }.items():
        value = getattr(run, name)
        if isinstance(value, int) and not least <= value <= 2**62:
            raise RequestError(f"--{name.replace('_', '-')} is {value}; expected a whole number of at least {least}.")
    _check_bank(run)
    if (ends := run.scoring.tau_range) is not None and not ends[0] < ends[1] < float("inf"):
        raise RequestError(
            f"scoring.tau_range is {list(ends)}; expected two finite numbers, the lower first, in 1/(target unit)²."
        )
    if run.bank is not None and (run.scoring.fit, run.scoring.pll) == ("pll", "mixture") and run.scoring.tau is None:
        raise RequestError(
            '--bank and fit = "pll" do not go together: with a bank, points have draws of their own, and only CRPS is '
            "fitted to. Leave one of them out."
        )
    if run.scoring.tau is not None and not 0 < run.scoring.tau < float("inf"):
        raise RequestError(f"--tau is {run.scoring.tau}; expected a precision above 0, in 1/(target unit)².")
    if not 0 < run.mc_error < 1:
        raise RequestError(f"--mc-error is {run.mc_error}; expected a number above 0 and below 1, such as 0.02.")


def _check_bank(run: Run) -> None:
    """A bank is of at least T draws, so T must be known; where nothing samples BatchNorm it is of no account."""
    if run.bank is None or (run.methods is not None and not any(name.startswith("mcbn") for name in run.methods)):
        return
    if run.samples == "auto":
        raise RequestError(
            f'--bank {run.bank} needs a number of samples, and samples is "auto"; name one with --samples, or leave '
            "the bank out."
        )
    if run.bank < run.samples:
        raise RequestError(
            f"--bank is {run.bank}; expected at least as many draws as the {run.samples} samples of a point, which are "
            "chosen from it."
        )


def _how_asked(run: Run, *, replaces: bool) -> Iterator[str]:
    if run.run_file is not None and run.run_file_was_found:
        where = "in this folder" if run.run_file.name == "bnuq.toml" else "beside the checkpoint"
        yield f"{run.run_file.name} {where} was read: what it says holds unless an option says otherwise"
    if replaces:
        yield f"an earlier result was replaced: {run.out.name}"


def _without_validation(material: Material, run: Run, todo: Plan) -> Iterator[str]:
    """Why there is no constant baseline, and what that leaves out."""
    if material.validation is not None:
        return
    absent = "the constant baseline and the normalised PLL are absent"
    if todo.task == "regression":
        absent = "the constant baseline and the normalised scores are absent"
        if run.scoring.tau is None:
            absent = "τ, PLL, CRPS and coverage, " + absent
    yield f"{absent}: {material.why_no_validation}; name some with --validation REF, or validation under [data]"


def _scored_sets(run: Run, todo: Plan, material: Material) -> tuple[dict[str, Points], Scorer]:
    """The sets in the order they pass, and what scores them."""
    scorer: Scorer = classification.Scorer(run, todo.outputs)
    check = check_labels
    if todo.task == "regression":
        scorer, check = regression.Scorer(run, target_scale(run, material.train, todo.outputs)), check_targets
    labelled = {VALIDATION: material.validation, "test": material.test}
    checked = {name: check(points, todo.outputs) for name, points in labelled.items() if points is not None}
    return checked | material.ood, scorer


def _cautions(
    run: Run,
    todo: Plan,
    check: ReferenceCheck | None,
    found: Passed,
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
    if todo.task == "regression":
        yield from _scale_cautions(material, found)
    fitted_to = material.validation
    if fitted_to is not None and len(fitted_to) < FEW:
        yield Caution(
            "few-validation-points",
            f"Only {len(fitted_to)} validation points: what is fitted to them (τ, the constant baseline) has an error "
            "of its own that no figure here counts.",
        )
    yield from found.cautions
    if len(found.methods) == 1 and run.methods is None:
        yield Caution("nothing-stochastic", "Only the network as it is was evaluated; the notes say what was left out.")
    elif found.samples < scoring.MIN_SAMPLES:
        text = f"With {found.samples} samples no Monte Carlo error can be told; use at least {scoring.MIN_SAMPLES}."
        yield Caution("few-samples", text)


def _scale_cautions(material: Material, found: Passed) -> Iterator[Caution]:
    """Whether the targets of the sets, and the network's errors, are of one size."""
    spread = {name: np.std(targets) for name, targets in _targets(material)}
    error = found.methods[DETERMINISTIC].sets["test"].figures["mae"].value
    if len(material.test) >= FEW and error > 1.5 * spread["test"] > 0:
        yield Caution(
            "worse-than-the-mean",
            f"The network's mean error, {error:.3g}, is far above the standard deviation of the test targets, "
            f"{spread['test']:.3g}: predicting their mean would do better. Are normalize and normalize_targets those "
            "of its training?",
        )
    for name, one in spread.items():
        if one == 0 and len(material.test) >= FEW:
            yield Caution("constant-targets", f"All targets of {name} are the same.")
        elif spread["test"] > 0 and not 0.1 < one / spread["test"] < 10:
            yield Caution(
                "targets-of-another-scale",
                f"The targets of {name} have a standard deviation of {one:.3g}, those of the test set of "
                f"{spread['test']:.3g}: are they in the same unit?",
            )


def _targets(material: Material) -> Iterator[tuple[str, np.ndarray]]:
    sets = {"test": material.test, "validation": material.validation, "the reference": material.train}
    for name, points in sets.items():
        if points is not None and points.targets is not None:
            yield name, np.asarray(points.targets, dtype=np.float64)


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


def _described(name: str, points: Points, task: str) -> EvaluatedSet:
    targets, labels = points.targets if name == "test" else None, task == "classification"
    return EvaluatedSet(
        name=name,
        kind=name if name in ("test", VALIDATION) else "ood",
        reference=points.reference,
        sha256=points.sha256,
        n=len(points),
        labels=targets if labels else None,
        targets=None if labels else targets,
        group=points.group,
        classes=tuple(points.classes or ()),
    )
