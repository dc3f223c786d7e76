"""The report of one evaluation: the request, the conclusions, and every estimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bnuq.arithmetic import in_words
from bnuq.catalogue import advised, noted
from bnuq.config import DEFAULT_SAMPLER
from bnuq.findings import listed
from bnuq.methods import DETERMINISTIC
from bnuq.perturbations import change_of
from bnuq.records.evaluation import Result, Scored
from bnuq.report import (
    calibration_plots,
    certificate,
    evaluation_plots,
    evaluation_tables,
    first_screen,
    gallery,
    image_maps,
    noise_models,
    numbers,
    ood,
    separation_plots,
    shift,
    tasks,
    verdict,
)
from bnuq.report.document import PathLine, Report, ReportSection, explanations, section
from bnuq.report.provenance import evaluation_provenance

_TIMED = 0.02  # seconds of the deterministic passes, below which mostly their overhead is measured
_NAMED = 3  # families of changes that the facts name
_ROOMY, _WIDE = 60, 100  # columns from which names are written out, those of methods, and those of metrics


def report(result: Result, *, columns: int = 100) -> Report:
    """The report: verdicts, then the test set, each OOD set, noise models, convergence, and where it comes from."""
    shifted = tuple(shift.in_short(result))
    roomy, warned = columns >= _ROOMY, advised(result.findings)
    return Report(
        command=f"bnuq {'shift' if shifted else result.COMMAND}",
        version=str(result.provenance["bnuq"]),
        subject=Path(str(result.model["path"])).name,
        facts=tuple(_facts(result)),
        summary=shifted or (*first_screen.decisions(result), *first_screen.findings(result)),
        sections=tuple(_sections(result, columns=columns)),
        warnings=warned,
        notes=noted(result.findings),
        path=None if result.path is None else PathLine(result.path),
        line=" · ".join(first_screen.line(result)),
        meaning=", ".join(first_screen.meaning(result)),
        one_screen=tuple(shift.short_table(result) if shifted else first_screen.parts(result, roomy=roomy)),
        said=first_screen.said(result),
        checked="Data and preprocessing match the training." if first_screen.is_checked(result) and not warned else "",
    )


def _sections(result: Result, *, columns: int) -> Iterator[ReportSection]:
    roomy = columns >= _ROOMY
    ood_legend = tuple(ood.legend(result))
    legend = [
        _error_legend(result),
        tasks.recalibration_in_words(result),
        *(text for text in tasks.legend(result) if text not in ood_legend),
    ]
    yield from section(
        f"Compared with the best{'' if isinstance(result, Scored) else ' single pass'}",
        verdict.parts(result, roomy=roomy),
    )
    parts = (
        *evaluation_tables.estimates_tables(result, roomy=columns >= _WIDE),
        *evaluation_tables.bounds_table(result),
        *tasks.intervals(result),
    )
    parts = (*parts, *explanations(legend))
    yield ReportSection(f"Test set, {_counted(result, 'test')}", parts)
    yield from evaluation_tables.part_sections(result, roomy=roomy)
    yield from section(
        "Calibration", (*calibration_plots.calibration(result), *calibration_plots.class_calibration(result))
    )
    yield from section("Error against coverage", evaluation_plots.risk_coverage(result))
    yield from section(
        "Failure detection", evaluation_tables.failure_detection(result, roomy=columns >= _WIDE), folded=True
    )
    yield from section("Certified operating point", certificate.parts(result, roomy=roomy))
    yield from section("Finding failing images", tasks.failing_images(result, roomy=roomy))
    yield from section("Images and their maps", image_maps.parts(result))
    for name in ood.names(result):
        parts = (
            *separation_plots.separation(result, name),
            *ood.tables(result, name, roomy=columns >= _WIDE),
            *explanations(ood_legend),
        )
        parts = (*ood.pixel_tables(result, name, roomy=roomy), *parts)
        yield ReportSection(f"{name}, {_counted(result, name)}, against the test set", parts)
        ood_legend = ()  # shown once
    yield from section("Shift of the inputs", shift.parts(result, roomy=roomy))
    yield from section("Analytic noise models compared with mcbn", noise_models.parts(result))
    yield from section("Over the number of samples", evaluation_plots.convergence(result))
    yield from section("Uncertainty and error", calibration_plots.uncertainty_error(result))
    if pictures := tuple(gallery.parts(result)):
        yield ReportSection("Most informative images", pictures, only_on_page=True)
    yield evaluation_provenance(result)


def _error_legend(result: Result) -> str:
    sampled = bool(result.sampled)
    over = "examples and samples together" if sampled else "examples"
    if sampled and int(result.sampling["samples"]) < 8:
        over = "examples only; too few samples for a Monte Carlo error"
    return f"± standard error over {over}. ↑ higher, ↓ lower is better."


# ── what was evaluated ───────────────────────────────────────────────────────────────────────────────────────────────


def _outputs(result: Result) -> str:
    axis = result.task.axis
    if axis == "class":
        return f"{result.model['classes']} classes"
    return numbers.count(result.model[f"{axis}s"], axis)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    model, sampling = result.model, result.sampling
    if isinstance(result, Scored):
        for name, file in model["files"].items():
            sampled = f", {file['samples']} samples" if file["samples"] > 1 else ""
            counted = "" if file["outputs"] == "confidences" else f", {_outputs(result)}{sampled}"
            yield name, f"{Path(file['path']).name}: {first_screen.OUTPUTS[file['outputs']]}{counted}"
            yield from [("columns", text)] if (text := first_screen.roles(file.get("roles", {}))) else ()
        yield from _sets(result)
        yield "time", f"{result.seconds['total']:.1f} s"
        return
    parts = (
        f"{model['parameters']:,} parameters",
        numbers.count(model["batchnorm_layers"], "BatchNorm layer"),
        numbers.count(model["dropout_layers"], "dropout layer"),
        _outputs(result),
    )
    if model["learned_layers"]:
        parts = (*parts[:3], numbers.count(model["learned_layers"], "noise layer"), *parts[3:])
    yield "model", f"{Path(model['path']).name}: {', '.join(parts)}"
    if members := model.get("members"):
        yield "ensemble", f"{len(members)} networks: {', '.join(Path(member['path']).name for member in members)}"
    yield from _sets(result)
    if changed := [change_of(name) for name, each in result.sets.items() if each.kind == "perturbed"]:
        yield "perturbed", _changes(changed)
    if result.sampled:
        yield "samples", _samples(result)
        if made := result.run.get("sampling", {}).get("predictions"):
            yield "predictions", f"{Path(made).name}, from other software"
        rows = {"layers": _layers(result), "settings": _settings(result)}
        yield from ((name, text) for name, text in rows.items() if text)
    if first_screen.is_checked(result) and (check := result.reference_check) is not None:
        median, worst = (float(statistic(check.ratios, axis=0).max()) for statistic in (np.median, np.max))
        yield (
            "checked",
            f"the training set: its batch statistics differ from the running ones by {median:.1f} × batch noise in the "
            f"median layer, {worst:.1f} × in the worst (limits 3 and 6)",
        )
    if cost := ", ".join(_cost(result)):
        yield "cost", f"of a sample, in deterministic passes: {cost}"
    memory = f", {result.work.peak_bytes / 1e9:.1f} GB" if result.work.peak_bytes else ""
    yield "device", f"{sampling['device']}, {in_words(sampling['precision'])}, {result.seconds['total']:.1f} s{memory}"


def _sets(result: Result) -> Iterator[tuple[str, str]]:
    for kind in ("test", "validation", "ood"):
        sets = [_set_in_words(result, name) for name, evaluated in result.sets.items() if evaluated.kind == kind]
        yield from [(kind, "; ".join(sets))] if sets else ()


def _changes(changes: Sequence[str]) -> str:
    """Changes of the inputs: the sizes of a kind together, and the families that have the same severities."""
    sizes: dict[str, list[str]] = {}
    for change in changes:
        sign = "@" if "@" in change else ":"
        kind, _, size = change.rpartition(sign)
        sizes.setdefault(f"{kind}{sign}", []).append(size)
    kinds: dict[str, list[str]] = {}
    for name, of_kind in sizes.items():
        kinds.setdefault(f"{name[-1]}{','.join(of_kind)}", []).append(name[:-1])
    return "; ".join(
        f"{', '.join(names) if len(names) <= _NAMED else f'{len(names)} families '}{ending}"
        for ending, names in kinds.items()
    )


def _set_in_words(result: Result, name: str) -> str:
    evaluated = result.sets[name]
    file = numbers.of_reference(evaluated.reference)
    source = file if evaluated.kind != "ood" or Path(file).stem == name else f"{name} ({file})"
    return f"{source}, {_counted(result, name)}"


def _counted(result: Result, name: str) -> str:
    return numbers.count(result.sets[name].n, "example")


def _samples(result: Result) -> str:
    sampling, reference = result.sampling, result.run.get("data", {}).get("train")
    bank = f" of a bank of {sampling['bank']}" if sampling.get("bank") is not None else ""
    batches = ""
    if sampling["batch_size"] is not None:
        source = f" from {numbers.of_reference(reference)}" if reference else ""
        batches = f", mini-batches of {sampling['batch_size']}{source}"
    return f"{sampling['samples']}{bank} per example{batches}, seed {sampling['seed']}"


def _settings(result: Result) -> str:
    """Settings of the sampler, and of test-time augmentation, that are not the default."""
    sampling = result.run.get("sampling", {})
    usual = {key: getattr(DEFAULT_SAMPLER, key) for key in DEFAULT_SAMPLER.__struct_fields__}
    changed = {key: sampling[key] for key, default in usual.items() if sampling.get(key, default) != default}
    return ", ".join(f"{key} {value}" for key, value in (changed | dict(result.run.get("tta", {}))).items())


def _layers(result: Result) -> str:
    """Which BatchNorms were sampled, if that is not all."""
    layers, total = result.sampling.get("layers"), int(result.model["batchnorm_layers"])
    names = list(map(str, layers)) if isinstance(layers, list | tuple) else []
    return "" if not names or len(names) >= total else f"{len(names)} of {total} BatchNorm layers: {listed(names)}"


def _cost(result: Result) -> Iterator[str]:
    """Of each sampled method, the cost in as many deterministic passes, where these were long enough to be timed."""
    deterministic = result.work.methods.get(DETERMINISTIC)
    if deterministic is None or deterministic.seconds < _TIMED:
        return
    for name, work in result.work.methods.items():
        if name in result.sampled and work.ratio:
            given = [other for other, each in result.work.methods.items() if each.given_by == name]
            yield f"{' and '.join([name, *given])} {work.ratio:.{2 if work.ratio < 10 else 0}f}"
