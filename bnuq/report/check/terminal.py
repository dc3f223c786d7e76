"""The report of `bnuq check`: the verdict, what got worse in words, and every estimate's change; worst first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, TextIO

from bnuq.config import DETERMINISTIC
from bnuq.estimates import ARROWS
from bnuq.findings import warnings
from bnuq.gate.records import BOUNDS, NORMALIZED, Comparison, Side, Verdict
from bnuq.metrics import METRICS, SCORES
from bnuq.report.check.words import (
    amount,
    before_and_now,
    chance,
    changed,
    estimate_name,
    floor_in_words,
    headline,
    in_short,
    judged,
    not_paired,
    paired,
    place,
    unchanged,
)
from bnuq.report.markdown import markdown
from bnuq.report.numbers import count, named
from bnuq.report.parts import GAP, Cell, Facts, Items, Paragraph, Part, PathLine, Row, Table, columns_of, draw, title
from bnuq.report.remedies import advised, noted
from bnuq.report.sanitize import printable

_ROOMY = 60  # columns from which names are written out
_WHOLE = 12  # estimates that did not fail the check, up to which each has a row of its own in the terminal
_ORDER = ("worse", "moved", "worse, its error not known", "moved, its error not known", "worse, within chance",
          "moved, within chance", "worse, within tolerance", "moved, within tolerance", "better", "same",
          "not gated")  # fmt: skip
_FAILED = ("worse", "moved")
_COMPACT = ("same", "not gated")
_Kind = Literal["passed", "accepted", "failed"]
_STYLES: dict[_Kind, str] = {"passed": "bold green", "accepted": "bold yellow", "failed": "bold red"}
_MARKS: dict[_Kind, str] = {"passed": "✅", "accepted": "⚠", "failed": "❌"}


def print_verdict(verdict: Verdict, stream: TextIO, width: int | None = None) -> None:
    """Draw the verdict on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    draw(verdict_parts(verdict, roomy=columns >= _ROOMY), stream, columns)


def verdict_parts(verdict: Verdict, *, roomy: bool = True) -> Iterator[Part]:
    """What the report is made of; without room for names that are written out unless `roomy`."""
    yield title(headline(verdict), _STYLES[_kind(verdict)])
    yield from _summary(verdict)
    yield from (GAP, Facts(tuple(_facts(verdict))))
    if not _all_as_they_were(verdict):
        yield from _tables(verdict, roomy=roomy)
    if len(verdict.broken) < len(verdict.floors):  # those that are broken were told already
        yield from (GAP, title("Required"), Items(tuple(map(floor_in_words, verdict.floors))))
    if legend := tuple(_legend(verdict)):
        yield GAP
        yield from (Paragraph(text, "dim") for text in legend)
    yield from _ending(verdict)


def check_markdown(verdict: Verdict) -> str:
    """The verdict as Markdown for a pull request: its first line says it; what did not fail the check is folded."""
    failed = tuple(_flat(one) for one in verdict.worse)
    told: list[Part] = [title(f"{_MARKS[_kind(verdict)]} bnuq check: {headline(verdict)}"), *_summary(verdict)]
    if failed:
        told.append(_flat_table(failed))
    if warned := _warnings(verdict):
        told += [title("Warnings"), Items(warned)]
    rest = tuple(_flat(one) for one in verdict.comparisons if one.outcome != "worse")
    blocks = [markdown(told)]
    if rest and not _all_as_they_were(verdict):
        what = f"{'The other ' if failed else 'All '}{count(len(rest), 'estimate')}"
        blocks.append(_folded(what, [_flat_table(rest)]))
    if len(verdict.broken) < len(verdict.floors):
        blocks.append(_folded("Required", [Items(tuple(map(floor_in_words, verdict.floors)))]))
    more: list[Part] = [Facts(tuple(_facts(verdict)))]
    more += (Paragraph(text) for text in _legend(verdict))
    more += [Items(texts)] if (texts := noted(verdict.findings)) else []
    more += (PathLine(path, what) for what, path in _paths(verdict))
    return "\n".join([*blocks, _folded("What was compared, and how", more)])


def _folded(what: str, parts: Iterable[Part]) -> str:
    return f"<details><summary>{what}</summary>\n\n{markdown(parts)}\n</details>\n"


def _kind(verdict: Verdict) -> _Kind:
    if verdict.failed:
        return "failed"
    unseen = verdict.accepted is not None and bool(warnings(verdict.findings))
    return "passed" if verdict.passed and not unseen else "accepted"


def _summary(verdict: Verdict) -> Iterator[Part]:
    if texts := tuple(in_short(verdict)):
        yield Items(texts)


def _all_as_they_were(verdict: Verdict) -> bool:
    return all(one.change == 0 for one in verdict.comparisons)


# ── what was compared ────────────────────────────────────────────────────────────────────────────────────────────────


def _facts(verdict: Verdict) -> Iterator[tuple[str, str]]:
    sides = {"current": verdict.current} | ({"baseline": verdict.baseline} if verdict.baseline is not None else {})
    for name, side in sides.items():
        yield name, _side(side, among=list(sides.values()))
    if verdict.baseline is None:
        yield "baseline", "none: the current result was not compared with another"
    elif verdict.baseline.checkpoint_sha256 == verdict.current.checkpoint_sha256 != "":
        yield "network", "the same checkpoint in both"
    if verdict.pairing is not None:
        yield "paired", paired(verdict.pairing)
        if apart := not_paired(verdict.pairing, verdict.comparisons):
            yield "not paired", apart
    yield "checked by", f"bnuq {verdict.bnuq}, in {verdict.seconds:.1f} s"


def _side(side: Side, *, among: Sequence[Side]) -> str:
    """The file by its name, or whole where both have the same one; and what made it."""
    if side.path is None:
        file = "not saved to a file"
    else:
        same = [one for one in among if one.path is not None and one.path.name == side.path.name]
        file = side.path.name if len(same) == 1 else str(side.path)
    said = [f"{file}: {Path(side.checkpoint).name}"]
    if side.time:
        said.append(_time(side.time))
    if side.samples > 1:
        drawn = "" if side.batch_size is None else f", mini-batches of {side.batch_size}"
        said.append(f"{side.samples} samples per point{drawn}, seed {side.seed}")
    return ", ".join(said)


def _time(said: str) -> str:
    """To the minute, where it can be read."""
    try:
        return datetime.fromisoformat(said).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return said


def _warnings(verdict: Verdict) -> tuple[str, ...]:
    return tuple(f"{text} [{code}]" for text, code, _ in advised(verdict.findings))


def _paths(verdict: Verdict) -> Iterator[tuple[str, Path]]:
    baseline = None if verdict.baseline is None else verdict.baseline.path
    if verdict.current.path is not None:
        yield "Current", verdict.current.path
    if baseline is not None and baseline != verdict.accepted:
        yield "Baseline", baseline
    if verdict.accepted is not None:
        yield "New baseline", verdict.accepted
    if verdict.kept is not None:
        yield "Previous baseline, kept", verdict.kept


def _ending(verdict: Verdict) -> Iterator[Part]:
    if warned := _warnings(verdict):
        yield from (GAP, title("Warnings", "bold yellow"), Items(warned))
    if texts := noted(verdict.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if paths := tuple(_paths(verdict)):
        yield GAP
        yield from (PathLine(path, what) for what, path in paths)


# ── the estimates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(verdict: Verdict, *, roomy: bool) -> Iterator[Part]:
    """A table for each way to be judged, worst first: whole rows where it matters, else changes side by side."""
    judged_so: dict[str, list[Comparison]] = {}
    for one in verdict.comparisons:
        judged_so.setdefault(judged(one), []).append(one)
    for words in sorted(judged_so, key=_ORDER.index):
        found = judged_so[words]
        heading = {"same": "The same", "not gated": "Shown, not gated"}.get(words, words.capitalize())
        yield from (GAP, title(f"{heading}: {count(len(found), 'estimate')}"))
        if all(one.change == 0 for one in found):
            yield Paragraph(unchanged(len(found)))
        elif words in _FAILED or (words not in _COMPACT and len(found) <= _WHOLE):
            yield _whole_table(found, gated=verdict.gated, roomy=roomy, style="red" if words in _FAILED else "")
        else:
            yield _side_by_side(found, roomy=roomy)


def _whole_table(found: Sequence[Comparison], *, gated: int, roomy: bool, style: str) -> Table:
    """Everything about each estimate, those of one method and set below each other."""
    homes: dict[str, list[Comparison]] = {}
    for one in found:
        homes.setdefault(f"{one.method}, {_place(one)}", []).append(one)
    rows: list[Row] = []
    for home, ones in homes.items():
        rows += _headings(home, roomy=roomy)
        rows += [(_label(one, roomy=roomy), _cells(one, style=style)) for one in ones]
    return Table(("baseline", "current", "change", "tolerance", f"p of {gated}"), tuple(rows), stacks=True)


def _cells(one: Comparison, *, style: str = "") -> tuple[Cell, ...]:
    return (
        *(Cell(text) for text in before_and_now(one)),
        _change(one, style=style),
        Cell("–" if one.tolerance is None else amount(one.tolerance)),
        Cell("–" if one.p_adjusted is None else chance(one.p_adjusted)),
    )


def _change(one: Comparison, *, style: str = "") -> Cell:
    change, error = changed(one)
    return Cell(change, f"±{error}" if error else "", style)


def _side_by_side(found: Sequence[Comparison], *, roomy: bool) -> Table:
    """How each estimate changed, a column a method: what fits on a screen where there are many."""
    methods = sorted({one.method: None for one in found}, key=lambda name: (name != DETERMINISTIC, len(name), name))
    places: dict[str, dict[str, dict[str, Comparison]]] = {}
    for one in sorted(found, key=_in_order):
        places.setdefault(_place(one), {}).setdefault(_label(one, roomy=roomy), {})[one.method] = one
    rows: list[Row] = []
    for home, labels in places.items():
        rows += _headings(home, roomy=roomy)
        for label, ones in labels.items():
            rows.append((label, tuple(_change(ones[name]) if name in ones else Cell("") for name in methods)))
    return Table(tuple(methods), tuple(rows), stacks=True)


def _in_order(one: Comparison) -> tuple[int, str, int, int]:
    """The test set first, then its normalised scores and their bounds, then the others; metrics as they are listed."""
    home = 0 if one.set == "test" else 1 if one.set == NORMALIZED else 2 if one.set.startswith(BOUNDS) else 3
    return home, one.set, _rank(one.score, list(SCORES)), _rank(one.metric, list(METRICS))


def _rank(name: str, listed: list[str]) -> int:
    return listed.index(name) if name in listed else len(listed)


def _place(one: Comparison) -> str:
    return f"{place(one.set)} by {named(one.score)}" if one.score else place(one.set)


def _headings(text: str, *, roomy: bool) -> list[Row]:
    """A heading among the rows, which takes several where it is long: a table does not wrap its headings."""
    width = (_ROOMY if roomy else 40) - 2
    return [(line, ()) for line in textwrap.wrap(printable(text, lines=False), width, break_on_hyphens=False)]


def _label(one: Comparison, *, roomy: bool) -> str:
    return f"  {ARROWS[one.direction]} {named(one.metric, roomy=roomy)}"


_FLAT = ("baseline", "current", "change", "tolerance", "p", "verdict")


def _flat(one: Comparison) -> Row:
    """Everything about an estimate in one row, with what is held of it."""
    where = "" if one.set.startswith(BOUNDS) else f", {place(one.set)}"
    label = f"{ARROWS[one.direction]} {estimate_name(one)}, {one.method}{where}".strip()
    return label, (*_cells(one), Cell(judged(one)))


def _flat_table(rows: tuple[Row, ...]) -> Table:
    return Table(_FLAT, rows)


def _legend(verdict: Verdict) -> Iterator[str]:
    if not verdict.comparisons or _all_as_they_were(verdict):
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
    if any("within chance" in judged(one) for one in verdict.comparisons):
        yield "Within chance: by more than the tolerance, but not significantly, given the number of estimates tested."
    if any(one.metric == "fpr95_id_positive" for one in verdict.comparisons):
        yield (
            "FPR95: share of test points classified as OOD at the threshold that detects 95 % of OOD points; FPR95*: "
            "with test and OOD points swapped."
        )
