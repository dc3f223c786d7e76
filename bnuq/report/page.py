"""The page of one evaluation: sections for a colleague, each with its pictures and how to read them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnuq.records.evaluation import Result
from bnuq.report import classification, noise_models, ood, regression
from bnuq.report.drawing import for_page
from bnuq.report.html import SUB, Picture, picture_at
from bnuq.report.parts import Facts, Paragraph, Part, PathLine, title
from bnuq.report.plots import HOW, Drawn, draw_all
from bnuq.report.provenance import run_file  # noqa: F401 - for the page of an inspection

OnPage = Part | Picture
Shown = Mapping[tuple[str, ...], Picture]  # by kind, and of which method or set


def shown_of(pictures: Iterable[tuple[tuple[str, ...], Drawn]], folder: Path) -> dict[tuple[str, ...], Picture]:
    """The pictures for a page, each with how to read it, drawn by way of `folder`; RequestError without matplotlib."""
    with for_page():
        return {parts: picture_at(path, HOW.get(parts[0], "")) for parts, path in draw_all(pictures, folder)}


def _section(heading: str, shown: Shown, *kinds: str) -> Iterator[OnPage]:
    """The pictures of these kinds under a heading; nothing where there are none."""
    if found := [picture for (kind, *_), picture in shown.items() if kind in kinds]:
        yield from (title(heading), found[0], *_explained_once(found))


def _explained_once(pictures: list[Picture]) -> Iterator[Picture]:
    """All but the first picture, without a sentence that another has said."""
    for before, picture in itertools.pairwise(pictures):
        yield replace(picture, how="" if picture.how == before.how else picture.how)


def beside_parts(results: comparison.Results, shown: Shown, *, without: str = "") -> Iterator[OnPage]:
    """What the page of several results is made of, in reading order."""
    yield from comparison.head(results)
    if without:
        yield Paragraph(f"Figures are left out: {without}", "dim")
    yield from (title("Test sets"), comparison.test_table(results))
    yield from comparison.legend(results)
    yield from _section("Calibration", shown, "calibration", "interval_calibration")
    yield from _section("Error against coverage", shown, "risk_coverage")
    for name in comparison.ood_names(results):
        yield title(f"{name} against the test sets")
        yield from (picture for (kind, *of), picture in shown.items() if kind in ("ood", "roc") and of == [name])
        yield from comparison.ood_tables(results, name)
    yield from _section("Over the number of samples", shown, "convergence")
    yield from comparison.tail(results)
    yield title("Provenance")
    for name, result in results.items():
        yield title(name, f"bold {SUB}")
        yield Facts(tuple((what, text) for what, text in _origins(result) if text))
        if result.path is not None:
            yield PathLine(result.path)


# ── where it comes from (Paragraph(text, "dim") for text in task.legend(result) if text not in of_ood)
    yield from _section("Calibration", shown, "reliability", "interval_calibration")
    yield from _section("Error against coverage", shown, "risk_coverage")
    for name in ood.names(result):
        yield title(f"{name} against the test set")
        pictures = [picture for (kind, *of), picture in shown.items() if kind in ("ood", "roc") and of == [name]]
        yield from (picture if name == ood.names(result)[0] else replace(picture, how="") for picture in pictures)
        yield ood.table(result, name, roomy=True)
        yield from map(_under, task.ood_tables(result, name))
        yield from (Paragraph(text, "dim") for text in of_ood)
        of_ood = ()  # said once
    yield from (part for part in noise_models.parts(result) if part != GAP)
    if any(kind == "convergence" for kind, *_ in shown):
        yield from _section("Over the number of samples", shown, "convergence")
    else:
        yield from (part for metric in task.CONVERGING for part in curves(result, metric))
    yield from _section("Uncertainty and error", shown, "uncertainty_error")
    if advice := advised(result.findings):
        yield from (title("Warnings", "bold yellow"), Advice(advice))
    if texts := noted(result.findings):
        yield from (title("Notes"), Items(texts))
    yield from provenance(result)


def _short(result: Result, of_task: tuple[str, ...]) -> Iterator[str]:
    yield from in_words(result, of_task)
    if advice := advised(result.findings):
        codes = ", ".join(dict.fromkeys(code for _, code, _ in advice))
        yield f"{count(len(advice), 'warning')} below, with what to do: {codes}."


def _section(heading: str, shown: Shown, *kinds: str) -> Iterator[OnPage]:
    """The pictures of these kinds under a heading; nothing where there are none."""
    if found := [picture for (kind, *_), picture in shown.items() if kind in kinds]:
        yield from (title(heading), found[0], *_explained_once(found))


def _explained_once(pictures: list[Picture]) -> Iterator[Picture]:
    """All but the first picture, without a sentence that another has said."""
    for before, picture in itertools.pairwise(pictures):
        yield replace(picture, how="" if picture.how == before.how else picture.how)


def _under(part: Part) -> Part:
    """The part, as one of the section before it."""
    bold = isinstance(part, Paragraph) and part.style == "bold"
    return replace(part, style=f"bold {SUB}") if bold else part


# ── where it comes from ──────────────────────────────────────────────────────────────────────────────────────────────


def provenance(result: Result) -> Iterator[OnPage]:
    """Everything that tells how the estimates came about, and the request itself, to be copied."""
    yield title("Provenance")
    yield Facts(tuple((name, text) for name, text in _origins(result) if text))
    if work := tuple(work_in_words(result)):
        yield from (title("Computational cost", f"bold {SUB}"), Items(work))
    yield title("The run, as resolved", f"bold {SUB}")
    yield Paragraph(
        "All options, whether from the command line, the run file, the checkpoint or the defaults. To repeat the "
        "run, save this as a run file, or use `bnuq evaluate --from` with the result file."
    )
    yield Listing("As a run file", run_file(result.run))
    if result.path is not None:
        yield PathLine(result.path)


def _origins(result: Result) -> Iterator[tuple[str, str]]:
    made, model, sampling = result.provenance, result.model, result.sampling
    versions = (f"{name} {made[name]}" for name in ("bnuq", "python", "torch", "numpy", "h5py") if name in made)
    yield "versions", ", ".join(versions)
    yield (
        "device",
        ", ".join(
            str(one)
            for one in (sampling["device"], made.get("device"), made.get("platform"), sampling["precision"])
            if one
        ),
    )
    yield "time", str(made.get("time", ""))
    yield "command", f"`{made['command']}`" if made.get("command") else ""
    yield "git revision", f"`{made['git']}`" if made.get("git") else ""
    yield "checkpoint", f"{model['path']}, SHA-256 `{model.get('sha256', 'unknown')}`"
    reference = result.run.get("data", {}).get("train")
    if reference and made.get("reference_sha256"):
        yield "reference", f"{reference}, {_points(sampling)}SHA-256 `{made['reference_sha256']}`"
    for name, one in result.sets.items():
        label = name if one.kind == name else f"{one.kind} {name}"
        yield label, f"{one.reference}, {one.n} points, SHA-256 `{one.sha256}`"
    parts = (f"{name} {seconds:.1f}" for name, seconds in result.seconds.items() if math.isfinite(seconds))
    yield "seconds", ", ".join(parts)


def _points(sampling: Mapping[str, Any]) -> str:
    points = sampling.get("reference_points")
    return f"{points} points, " if points else ""


def _origins(result: Result) -> Iterator[tuple[str, str]]:
    made, model, sampling = result.provenance, result.model, result.sampling
    versions = (f"{name} {made[name]}" for name in ("bnuq", "python", "torch", "numpy", "h5py") if name in made)
    yield "versions", ", ".join(versions)
    yield (
        "device",
        ", ".join(
            str(one)
            for one in (sampling["device"], made.get("device"), made.get("platform"), sampling["precision"])
            if one
        ),
    )
    yield "time", str(made.get("time", ""))
    yield "command", f"`{made['command']}`" if made.get("command") else ""
    yield "git revision", f"`{made['git']}`" if made.get("git") else ""
    yield "checkpoint", f"{model['path']}, SHA-256 `{model.get('sha256', 'unknown')}`"
    reference = result.run.get("data", {}).get("train")
    if reference and made.get("reference_sha256"):
        yield "reference", f"{reference}, {_points(sampling)}SHA-256 `{made['reference_sha256']}`"
    for name, one in result.sets.items():
        label = name if one.kind == name else f"{one.kind} {name}"
        yield label, f"{one.reference}, {one.n} points, SHA-256 `{one.sha256}`"
    parts = (f"{name} {seconds:.1f}" for name, seconds in result.seconds.items() if math.isfinite(seconds))
    yield "seconds", ", ".join(parts)


def _points(sampling: Mapping[str, Any]) -> str:
    points = sampling.get("reference_points")
    return f"{points} points, " if points else ""
