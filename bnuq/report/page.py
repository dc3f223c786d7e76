"""The page of one evaluation: sections for a colleague, each with its pictures and how to read them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bnuq.records.evaluation import Result
from bnuq.report import classification, noise_models, ood, regression
from bnuq.report.drawing import for_page
from bnuq.report.html import SUB, Picture, picture_at
from bnuq.report.numbers import count
from bnuq.report.parts import GAP, Advice, Facts, Items, Listing, Paragraph, Part, PathLine, title
from bnuq.report.plots import Drawn, draw_all
from bnuq.report.remedies import advised, noted
from bnuq.report.terminal import curves, facts, in_words, of_errors, work_in_words

OnPage = Part | Picture
Shown = Mapping[tuple[str, ...], Picture]  # by kind, and of which method or set

_DIAGONAL = (
    "On the diagonal, confidence equals accuracy; below it the network is overconfident, above it underconfident."
)
HOW = {
    "reliability": f"{_DIAGONAL} The histogram below shows how many points have which confidence.",
    "calibration": _DIAGONAL,
    "interval_calibration": (
        "On the diagonal, a central interval covers as many targets as it should; below it the intervals are too "
        "narrow, above it too wide. Within the band, chance alone explains the difference."
    ),
    "risk_coverage": (
        "Error of the retained points when the most uncertain ones are deferred: the lower the curve, the better "
        "the uncertainty identifies errors. A flat curve means that uncertain points are wrong no more often "
        "than others."
    ),
    "ood": (
        "The less the two overlap, the better OOD points are separated from test points. Shown is the score with "
        "the largest AUROC."
    ),
    "roc": (
        "Up and to the left is better; the diagonal is chance. Each step is a threshold on the score, and the "
        "area under a curve is its AUROC."
    ),
    "convergence": (
        "The same estimates from the first samples alone: once a curve is flat, more samples would change little."
    ),
    "uncertainty_error": (
        "Points sorted by their predicted σ. Where the running mean of the errors rises with the bands, σ "
        "separates large errors from small ones; dots far above the bands are unexpected errors."
    ),
}


def shown_of(pictures: Iterable[tuple[tuple[str, ...], Drawn]], folder: Path) -> dict[tuple[str, ...], Picture]:
    """The pictures for a page, each with how to read it, drawn by way of `folder`; RequestError without matplotlib."""
    with for_page():
        return {parts: picture_at(path, HOW.get(parts[0], "")) for parts, path in draw_all(pictures, folder)}


def page_parts(result: Result, shown: Shown, *, without: str = "") -> Iterator[OnPage]:
    """What the page is made of, in reading order; `without` says why there are no pictures, where that is so."""
    task = regression if result.model.get("task") == "regression" else classification
    yield title(f"bnuq evaluate: {Path(str(result.model['path'])).name}")
    yield Facts(tuple(facts(result)))
    yield from (title("In short"), Items(tuple(_short(result, tuple(task.in_words(result))))))
    if without:
        yield Paragraph(f"Figures are left out: {without}", "dim")
    yield title("Methods side by side")
    yield from map(_under, task.test_tables(result, roomy=True))
    of_ood = tuple(ood.legend(result))
    yield Paragraph(of_errors(result), "dim")
    yield from (Paragraph(text, "dim") for text in task.legend(result) if text not in of_ood)
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


def run_file(run: Mapping[str, Any]) -> str:
    """The run as TOML that `bnuq evaluate` takes; what no run file holds stands in comments."""
    lines: list[str] = []
    for section, keys in run.items():
        if not isinstance(keys, Mapping) or not keys:
            continue
        mark = "# " if section == "options" else ""
        lines += [""] * bool(lines) + [f"{mark}[{_key(section)}]"]
        lines += [f"{mark}{_key(key)} = {_toml(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(lines)


def _key(key: str) -> str:
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
    return key if bare else _text(key)


def _toml(value: Any) -> str:
    """A JSON value as TOML, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_toml(v)}' for k, v in value.items() if v is not None)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    """A text in quotes, with everything that cannot be seen written out as TOML does."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 2**16 else f"\\U{ord(c):08x}" for c in quoted
    )
