"""The report of `bnuq check`: the verdict, what got worse in words, and every estimate's change; worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from bnuq.catalogue import advised, noted
from bnuq.estimates import ARROWS
from bnuq.findings import all_of, warnings
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, EstimateComparison, Side
from bnuq.methods import DETERMINISTIC
from bnuq.metrics import METRICS, SCORES
from bnuq.records.addresses import AT_THRESHOLD
from bnuq.records.words import plain
from bnuq.report.document import (
    BulletList,
    Cell,
    Paragraph,
    PathLine,
    Report,
    ReportSection,
    Row,
    Table,
    explanations,
    section,
)
from bnuq.report.numbers import count, named
from bnuq.studies.check.findings import (
    NOTHING_CHECKED,
    findings,
    headline,
    is_unchanged,
    judgement,
    method_and_set,
    not_paired,
    paired,
    reasons,
    requirement,
    set_title,
)
from bnuq.studies.check.numbers import amount, before_and_now, chance, change_and_error, signed_loss, visible

_ROOMY = 60  # columns from which names are written out
_MOST_ROWS = 6  # gated estimates that the short report shows, worst first
_MOST_SAID = 5  # sentences of the short report
_MOST_WARNINGS, _LONGEST = 1, 150  # that the short report writes out, and the letters of each
_SEEN = "accuracy", "pll", "rmse", "crps", "mean_iou", "certified_coverage"  # whose power the short report states
_SHORT_LEGEND = (
    "can see: the smallest worsening that this check would have found; p: probability of such a change by chance."
)
_STYLES = {"worse": "red", "moved": "red", "inconclusive": "yellow"}
_FAILED, _MARKED = ("worse", "moved"), (*_STYLES, "better")


def report(outcome: CheckVerdict | str, *, columns: int = 100, full: bool = False) -> Report:
    """The report: the verdict, what got worse, and, where anything did, the gated estimates; in `full` all estimates,
    what was compared, and how to read it. Or the error for which nothing was checked."""
    if isinstance(outcome, str):
        return Report("bnuq check", subject=NOTHING_CHECKED, verdict="failed", summary=tuple(reasons(outcome)))
    roomy = columns >= _ROOMY
    return Report(
        command="bnuq check",
        subject=headline(outcome),
        verdict=_outcome(outcome),
        facts=tuple(_facts(outcome) if full else _in_short(outcome)),
        summary=_summary(outcome, full=full),
        sections=tuple(_sections(outcome, roomy=roomy) if full else _short_sections(outcome, roomy=roomy)),
        warnings=tuple(advised(outcome.findings) if full else _short_warnings(outcome)),
        notes=noted(outcome.findings) if full else (),
        other_paths=tuple(_paths(outcome, full=full)),
    )


def _summary(verdict: CheckVerdict, *, full: bool) -> tuple[str, ...]:
    said = tuple(findings(verdict))
    more = len(said) - _MOST_SAID
    return said if full or more <= 0 else (*said[:_MOST_SAID], f"And {count(more, 'more sentence')} of `--full`.")


def _outcome(verdict: CheckVerdict) -> Literal["passed", "accepted", "failed"]:
    if verdict.failed:
        return "failed"
    unexamined = verdict.accepted is not None and bool(warnings(verdict.findings))
    return "passed" if verdict.passed and not unexamined else "accepted"


def _sections(verdict: CheckVerdict, *, roomy: bool) -> Iterator[ReportSection]:
    gated, others = verdict.of_gated, [each for each in verdict.comparisons if not each.is_gated]
    if gated and not is_unchanged(gated):
        title = f"Gated: {count(len(gated), 'estimate')}"
        yield ReportSection(title, (_with_all_numbers(gated, verdict, roomy=roomy),))
    if others and not is_unchanged(others):
        title = f"Shown, not gated: {count(len(others), 'estimate')}"
        yield ReportSection(title, (_changes(others, roomy=roomy),), folded=True)
    if len(verdict.broken) < len(verdict.floors):  # the summary names those that are not met
        yield ReportSection("Required", (BulletList(tuple(map(requirement, verdict.floors))),), folded=True)
    yield from section("", explanations(_legend(verdict)))


def _short_sections(verdict: CheckVerdict, *, roomy: bool) -> Iterator[ReportSection]:
    gated, more = verdict.of_gated, 0
    if (verdict.failed or verdict.worse) and gated and not is_unchanged(gated):
        more = max(0, len(gated) - _MOST_ROWS)
        table = _with_all_numbers(gated[:_MOST_ROWS], verdict, roomy=roomy, short=True)
        yield ReportSection("", (table, *explanations([_SHORT_LEGEND])))
    shown = ["tolerances", *([f"{more} more gated"] if more else [])]
    others = len(verdict.comparisons) - len(gated)
    shown += [f"{count(others, 'estimate')} not gated"] if others else []
    shown += [count(len(noted(verdict.findings)), "note")] if noted(verdict.findings) else []
    if verdict.comparisons:
        yield ReportSection("", (Paragraph(f"`--full` shows all changes: {all_of(shown)}.", dim=True),))


def _short_warnings(verdict: CheckVerdict) -> Iterator[tuple[str, str, str]]:
    """Each in a few lines, those that are many by their names; the heading counts what is inconclusive."""
    counted = "" if verdict.inconclusive_fails else "inconclusive"
    warned = [each for each in advised(verdict.findings) if each[1] != counted]
    for text, code, todo in warned[:_MOST_WARNINGS]:
        yield (text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(' ')[0]} …", code, todo)
    if rest := [code for _, code, _ in warned[_MOST_WARNINGS:]]:
        yield (f"{count(len(rest), 'more warning')}: {all_of(rest)}.", "more", "")


# ── what was compared ────────────────────────────────────────────────────────────────────────────────────────────────


def _in_short(verdict: CheckVerdict) -> Iterator[tuple[str, str]]:
    """What was compared with what, and what a check of these points would have seen."""
    if verdict.baseline is None or verdict.pairing is None:
        return
    names = [each.path.name if each.path else "a result" for each in (verdict.current, verdict.baseline)]
    if len(set(names)) == 1:
        names = [str(each.path) for each in (verdict.current, verdict.baseline)]
    if verdict.history:
        names[1] = f"the mean of {count(len(verdict.history), 'result')}"
    gated = {method_and_set(each)[1] for each in verdict.of_gated}
    shared = [name for name in verdict.pairing.points if name in gated]
    yield (
        "compared",
        f"{names[0]} with {names[1]}, {f'example by example on {all_of(shared)}' if shared else 'on other examples'}",
    )
    known = sorted((each for each in verdict.comparisons if each.detectable), key=lambda each: each.detectable or 0.0)
    seen = {each.metric: each for each in known if (each.set, each.family, each.slope) == ("test", "main", False)}
    if texts := [f"{plain(name)} {signed_loss(seen[name])}" for name in _SEEN if name in seen]:
        yield "would have seen", ", ".join(texts)


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
        parts.append(f"{side.samples} samples per example{size}, seed {side.seed}")
    return ", ".join(parts)


def _time(text: str) -> str:
    """To the minute, where it can be read."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return text


def _paths(verdict: CheckVerdict, *, full: bool) -> Iterator[PathLine]:
    baseline = None if verdict.baseline is None or verdict.history else verdict.baseline.path
    paths = {
        "Current": verdict.current.path if full else None,
        "Baseline": baseline if full and baseline != verdict.accepted else None,
        "New baseline": verdict.accepted,
        "Previous baseline, kept": verdict.kept,
    }
    yield from (PathLine(path, name) for name, path in paths.items() if path is not None)


# ── the estimates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_all_numbers(
    group: Sequence[EstimateComparison], verdict: CheckVerdict, *, roomy: bool, short: bool = False
) -> Table:
    """Those of one method and set below each other, worst first; in `short` without errors, tolerances and what would
    decide them."""
    groups: dict[str, list[Row]] = {}
    unclear = not short and any(comparison.decisive for comparison in group)
    for comparison in group:
        words = judgement(comparison)
        cells = (
            *map(Cell, before_and_now(comparison, distinct=not short)),
            _change(comparison, style=_STYLES.get(words, ""), with_error=not short),
            *([] if short else [Cell("–" if comparison.tolerance is None else amount(comparison.tolerance))]),
            Cell(visible(comparison)),
            Cell("–" if comparison.p_adjusted is None else chance(comparison.p_adjusted)),
            *([_decided_by(comparison)] if unclear else []),
        )
        rows = groups.setdefault(f"{comparison.method}, {_subtitle(comparison)}", [])
        marked = _MARKED if verdict.inconclusive_fails or not short else _FAILED
        mark = f": {words}" if words in marked and roomy else ""
        rows.append((f"{_label(comparison, roomy=roomy)}{mark}", cells))
    tested = verdict.families
    p = f"p of {verdict.gated}" if len(tested) == 1 and not short else "p"
    header = ("baseline", "current", "change", *([] if short else ["tolerance"]), "can see", p)
    return _table((*header, "decided by") if unclear else header, groups)


def _decided_by(comparison: EstimateComparison) -> Cell:
    """The points of all sets of an estimate, and below them the samples."""
    if comparison.decisive is None:
        return Cell("–")
    points = sum(n for _, n in comparison.decisive.points)
    samples = comparison.decisive.samples
    parts = [f"{n:,} {unit}" for n, unit in ((points, "examples"), (samples, "samples")) if n]
    return Cell(*parts)


def _changes(group: Sequence[EstimateComparison], *, roomy: bool) -> Table:
    """A column for each method."""
    methods = sorted(
        {comparison.method: None for comparison in group}, key=lambda name: (name != DETERMINISTIC, len(name), name)
    )
    groups: dict[str, dict[str, dict[str, Cell]]] = {}
    for comparison in sorted(group, key=_in_order):
        labels = groups.setdefault(_subtitle(comparison), {})
        labels.setdefault(_label(comparison, roomy=roomy), {})[comparison.method] = _change(comparison)
    rows: dict[str, list[Row]] = {
        name: [(label, tuple(cells.get(method, Cell("")) for method in methods)) for label, cells in labels.items()]
        for name, labels in groups.items()
    }
    return _table(tuple(methods), rows)


def _table(header: tuple[str, ...], groups: dict[str, list[Row]]) -> Table:
    return Table(header, tuple(row for name, rows in groups.items() for row in [(name, ()), *rows]), stacks=True)


def _change(comparison: EstimateComparison, *, style: str = "", with_error: bool = True) -> Cell:
    change, error = change_and_error(comparison)
    return Cell(change, f"±{error}" if error and with_error else "", style)


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
    if comparison.score == AT_THRESHOLD:
        return f"{title}, at the threshold decided on"
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
        "Change: current − baseline, ± its standard error over examples and samples together. ↑ higher, ↓ lower is "
        "better."
    )
    if verdict.gated:
        yield (
            "Worse: by more than the tolerance, and beyond chance. p is the probability of a "
            "change at least this bad by chance, Holm-adjusted for the gated estimates, and apart from these for "
            "classes and for groups; beyond chance means p below 0.05."
        )
        yield (
            "Can see: the smallest true worsening that fails the check with probability 0.8, with these examples and "
            "samples, by its share of the level of 0.05: what Holm's method asks for at first."
        )
    if verdict.inconclusive:
        yield (
            "Inconclusive: worse by more than the tolerance, which may be chance. Decided by: how many examples (of "
            "all its sets) or samples would show a change of this size, with probability 0.8, if it is real."
        )
    if verdict.history:
        yield (
            f"Baseline: the mean of {count(len(verdict.history), 'result')}. Line through the history: from the first "
            "of them to the current result, as many steps apart; its error includes how much results vary about it."
        )
