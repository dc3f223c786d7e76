"""The report of `bnuq check`: the verdict, what got worse in words, and every estimate's change; worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from bnuq.catalogue import advised, noted
from bnuq.estimates import ARROWS
from bnuq.findings import warnings
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, EstimateComparison, Side
from bnuq.methods import DETERMINISTIC
from bnuq.metrics import METRICS, SCORES
from bnuq.report.check.check_findings import JUDGEMENTS, findings, headline, is_unchanged, judgement, unchanged
from bnuq.report.check.check_numbers import amount, before_and_now, chance, change_and_error, visible
from bnuq.report.check.check_sentences import (
    NOTHING_CHECKED,
    in_words,
    not_paired,
    paired,
    reasons,
    requirement,
    set_title,
)
from bnuq.report.document import (
    BulletList,
    Cell,
    Paragraph,
    Part,
    PathLine,
    Report,
    ReportSection,
    Row,
    Table,
    explanations,
    section,
)
from bnuq.report.numbers import count, named

_ROOMY = 60  # columns from which names are written out
_MANY = 12  # estimates that did not fail the check, from which a terminal shows their changes alone
_FAILED = ("worse", "moved")
_TITLES = {"same": "The same", "not gated": "Shown, not gated"}


def report(outcome: CheckVerdict | str, *, columns: int = 100) -> Report:
    """The report: the verdict and what it rests on, every estimate, and what was compared; or the error for which
    nothing was checked."""
    if isinstance(outcome, str):
        return Report("bnuq check", subject=NOTHING_CHECKED, verdict="failed", summary=tuple(reasons(outcome)))
    return Report(
        command="bnuq check",
        subject=in_words(headline(outcome)),
        verdict=_outcome(outcome),
        facts=tuple(_facts(outcome)),
        summary=tuple(map(in_words, findings(outcome))),
        sections=tuple(_sections(outcome, roomy=columns >= _ROOMY)),
        warnings=advised(outcome.findings),
        notes=noted(outcome.findings),
        other_paths=tuple(_paths(outcome)),
    )


def _outcome(verdict: CheckVerdict) -> Literal["passed", "accepted", "failed"]:
    if verdict.failed:
        return "failed"
    unexamined = verdict.accepted is not None and bool(warnings(verdict.findings))
    return "passed" if verdict.passed and not unexamined else "accepted"


def _sections(verdict: CheckVerdict, *, roomy: bool) -> Iterator[ReportSection]:
    if not is_unchanged(verdict.comparisons):
        for words in JUDGEMENTS:
            if group := tuple(comparison for comparison in verdict.comparisons if judgement(comparison) == words):
                yield _estimates(words, group, gated=verdict.gated, roomy=roomy)
    if len(verdict.broken) < len(verdict.floors):  # the summary names those that are not met
        yield ReportSection("Required", (BulletList(tuple(map(requirement, verdict.floors))),), folded=True)
    yield from section("", explanations(_legend(verdict)))


# ── what was compared ────────────────────────────────────────────────────────────────────────────────────────────────


def _facts(verdict: CheckVerdict) -> Iterator[tuple[str, str]]:
    current, baseline = verdict.current, verdict.baseline
    yield "current", _side(current, other=baseline)
    if baseline is None:
        yield "baseline", "none: the current result was not compared with another"
    elif verdict.history:
        yield "baseline", f"the mean of {count(len(verdict.history), 'result')}"
        for number, side in enumerate(verdict.history, start=1):
            yield f"  {number}", _side(side, other=current)
    else:
        yield "baseline", _side(baseline, other=current)
        if baseline.checkpoint_sha256 == current.checkpoint_sha256 != "":
            yield "same file", f"{Path(current.checkpoint).name} is the same in both, by its SHA-256"
    if verdict.pairing is not None:
        yield "paired", paired(verdict)
        if unpaired := not_paired(verdict):
            yield "not paired", unpaired
    yield "checked by", f"bnuq {verdict.bnuq}, in {verdict.seconds:.1f} s"


def _side(side: Side, *, other: Side | None) -> str:
    """The file by its name, or by its path where both have the same name; and what made it."""
    if side.path is None:
        file = "not saved to a file"
    else:
        alike = other is not None and other.path is not None and other.path.name == side.path.name
        file = str(side.path) if alike else side.path.name
    parts = [f"{file}: {Path(side.checkpoint).name}"]
    if side.time:
        parts.append(_time(side.time))
    if side.samples > 1:
        size = "" if side.batch_size is None else f", mini-batches of {side.batch_size}"
        parts.append(f"{side.samples} samples per point{size}, seed {side.seed}")
    return ", ".join(parts)


def _time(text: str) -> str:
    """To the minute, where it can be read."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return text


def _paths(verdict: CheckVerdict) -> Iterator[PathLine]:
    baseline = None if verdict.baseline is None or verdict.history else verdict.baseline.path
    paths = {
        "Current": verdict.current.path,
        "Baseline": baseline if baseline != verdict.accepted else None,
        "New baseline": verdict.accepted,
        "Previous baseline, kept": verdict.kept,
    }
    yield from (PathLine(path, name) for name, path in paths.items() if path is not None)


# ── the estimates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _estimates(words: str, group: tuple[EstimateComparison, ...], *, gated: int, roomy: bool) -> ReportSection:
    """The estimates of one judgement: with all numbers, or on a terminal, where many passed, their changes alone."""
    title = f"{_TITLES.get(words, words.capitalize())}: {count(len(group), 'estimate')}"
    failed = words in _FAILED
    brief: tuple[Part, ...] | None = None
    if is_unchanged(group):
        brief = (Paragraph(in_words(unchanged(group))),)
    elif not failed and (words in _TITLES or (len(group) > _MANY and words != "inconclusive")):
        brief = (_changes(group, roomy=roomy, seen=words != "not gated"),)
    table = _with_all_numbers(group, gated=gated, roomy=roomy, style="red" if failed else "")
    return ReportSection(title, (table,), folded=not failed, on_terminal=brief)


def _with_all_numbers(group: Sequence[EstimateComparison], *, gated: int, roomy: bool, style: str) -> Table:
    """Those of one method and set below each other."""
    groups: dict[str, list[Row]] = {}
    unclear = any(comparison.decisive for comparison in group)
    for comparison in group:
        cells = (
            *map(Cell, before_and_now(comparison)),
            _change(comparison, style=style),
            Cell("–" if comparison.tolerance is None else amount(comparison.tolerance)),
            Cell(visible(comparison)),
            Cell("–" if comparison.p_adjusted is None else chance(comparison.p_adjusted)),
            *([_decided_by(comparison)] if unclear else []),
        )
        rows = groups.setdefault(f"{comparison.method}, {_subtitle(comparison)}", [])
        rows.append((_label(comparison, roomy=roomy), cells))
    header = ("baseline", "current", "change", "tolerance", "can see", f"p of {gated}")
    return _table((*header, "decided by") if unclear else header, groups)


def _decided_by(comparison: EstimateComparison) -> Cell:
    """The points of all sets of an estimate, and below them the samples."""
    if comparison.decisive is None:
        return Cell("–")
    points = sum(n for _, n in comparison.decisive.points)
    samples = comparison.decisive.samples
    parts = [f"{n:,} {unit}" for n, unit in ((points, "points"), (samples, "samples")) if n]
    return Cell(*parts)


def _changes(group: Sequence[EstimateComparison], *, roomy: bool, seen: bool) -> Table:
    """A column for each method, and what it can see, if that is `seen`."""
    methods = sorted(
        {comparison.method: None for comparison in group}, key=lambda name: (name != DETERMINISTIC, len(name), name)
    )
    groups: dict[str, dict[str, dict[str, tuple[Cell, ...]]]] = {}
    for comparison in sorted(group, key=_in_order):
        labels = groups.setdefault(_subtitle(comparison), {})
        cells = (_change(comparison), *([Cell(visible(comparison))] if seen else []))
        labels.setdefault(_label(comparison, roomy=roomy), {})[comparison.method] = cells
    columns = ("can see",) if seen else ()
    none = (Cell(""),) * (1 + len(columns))
    rows = {
        name: [
            (label, tuple(cell for method in methods for cell in cells.get(method, none)))
            for label, cells in labels.items()
        ]
        for name, labels in groups.items()
    }
    return _table(tuple(name for method in methods for name in (method, *columns)), rows)


def _table(header: tuple[str, ...], groups: dict[str, list[Row]]) -> Table:
    return Table(header, tuple(row for name, rows in groups.items() for row in [(name, ()), *rows]), stacks=True)


def _change(comparison: EstimateComparison, *, style: str = "") -> Cell:
    change, error = change_and_error(comparison)
    return Cell(change, f"±{error}" if error else "", style)


def _in_order(comparison: EstimateComparison) -> tuple[int, str, int, int]:
    """The test set first, then its normalised scores and their bounds, then the others; metrics as they are listed."""
    bounds = comparison.set.startswith(BOUNDS)
    first = 2 if bounds else {"test": 0, NORMALIZED: 1}.get(comparison.set, 3)
    return (
        first + 10 * comparison.slope,
        comparison.set,
        _rank(comparison.score, list(SCORES)),
        _rank(comparison.metric, list(METRICS)),
    )


def _rank(name: str, names: list[str]) -> int:
    return names.index(name) if name in names else len(names)


def _subtitle(comparison: EstimateComparison) -> str:
    title = set_title(comparison.set)
    if comparison.slope:
        title = f"{title}, line through the history"
    if comparison.of_class or comparison.group:
        return f"{title}, by {'class' if comparison.of_class else 'group'}"
    if comparison.label:
        return f"{title}, label {comparison.label}"
    return f"{title} by {named(comparison.score)}" if comparison.score else title


def _label(comparison: EstimateComparison, *, roomy: bool) -> str:
    suffix = f", {part}" if (part := comparison.of_class or comparison.group) else ""
    return f"  {ARROWS[comparison.direction]} {named(comparison.metric, roomy=roomy)}{suffix}"


def _legend(verdict: CheckVerdict) -> Iterator[str]:
    if is_unchanged(verdict.comparisons):
        return
    yield (
        "Change: current − baseline, ± its standard error over points and samples together. ↑ higher, ↓ lower is "
        "better."
    )
    if verdict.gated:
        yield (
            "Worse: by more than the tolerance and by more than chance explains. p is the probability of a "
            f"change at least this bad by chance, Holm-adjusted for {count(verdict.gated, 'gated estimate')} "
            "tested together; worse means p below 0.05."
        )
        yield (
            "Can see: the smallest true worsening that fails the check with probability 0.8, with these points and "
            f"samples, by p below 0.05/{verdict.gated}, the strictest that Holm's method asks for."
        )
    if verdict.inconclusive:
        yield (
            "Inconclusive: worse by more than the tolerance, but not significantly. Decided by: how many points (of "
            "all its sets) or samples would show a change of this size, with probability 0.8, if it is real."
        )
    if verdict.history:
        yield (
            f"Baseline: the mean of {count(len(verdict.history), 'result')}. Line through the history: from the first "
            "of them to the current result, as many steps apart; its error includes how much results vary about it."
        )
    if any(comparison.metric == "fpr95_id_positive" for comparison in verdict.comparisons):
        yield (
            "FPR95: share of test points classified as OOD at the threshold that detects 95 % of OOD points; FPR95*: "
            "with test and OOD points swapped."
        )
