"""The report of a check: its first line is the verdict, what got worse is said in words, and all of it is true."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import at_night
import pytest
import small_verdicts as made
from markdown_it import MarkdownIt
from report_text import one_line, rendered

from bnuq.gate.records import CheckVerdict
from bnuq.metrics import METRICS
from bnuq.report.render import markdown
from bnuq.report.sanitize import printable
from bnuq.studies.check.findings import change, findings, headline, judgement
from bnuq.studies.check.view import report

drawn = partial(rendered, report, width=80)
whole = partial(rendered, partial(report, full=True), width=80)


def in_short(verdict: CheckVerdict) -> tuple[str, ...]:
    """What the outcome rests on, a sentence each."""
    return report(verdict).summary


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 60, 80, 100]))
@pytest.mark.parametrize("name", made.ALL)
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(name: str, width: int, encoding: str) -> None:
    verdict = made.ALL[name]
    paths = [side.path for side in (verdict.current, verdict.baseline) if side is not None]
    paths_shown = {printable(str(path), lines=False) for path in (*paths, verdict.kept)}
    for line in drawn(verdict, width=width, encoding=encoding).splitlines():
        assert len(line) <= width or line in paths_shown
        assert line == line.rstrip()


@pytest.mark.parametrize("name", made.ALL)
def test_the_first_line_is_the_verdict_and_all_is_printable(name: str) -> None:
    verdict = made.ALL[name]
    text = drawn(verdict)
    assert one_line(text).startswith(one_line(printable(report(verdict).subject, lines=False)))
    assert all(line.isprintable() for line in text.splitlines())
    assert drawn(verdict, encoding="ascii").isascii()


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (made.verdict(*made.SVHN), "Worse: 4 of 4 gated estimates got worse beyond chance"),
        (made.verdict(made.WORSE[0], *made.REST), "Worse: 1 of 8 gated estimates got worse"),
        (made.verdict(made.WORSE[3], *made.REST), "Worse: 1 of 8 gated estimates moved"),
        (made.everything(), "Worse: 8 of 15 gated estimates got worse or moved"),
        (made.everything(), "; 1 of 2 requirements is not met"),
        (made.verdict(*made.REST), "No regression: none of 7 gated estimates got worse"),
        (made.verdict(*made.REST, floors=(made.KEPT, made.KEPT)), "; all 2 requirements are met"),
        (made.verdict(made.REST[1], floors=(made.BROKEN, made.BROKEN)), "Not met: 2 of 2 requirements; the only gated"),
        (made.verdict(floors=(made.BROKEN,)), "Not met: the only requirement"),
        (made.verdict(floors=(made.KEPT,)), "Passed: the only requirement is met"),
        (made.verdict(made.REST[-1], floors=(made.KEPT,)), "is met; no estimate was gated"),
        (made.verdict(made.REST[-1]), "Nothing was checked: no estimate was gated"),
        (made.verdict(made.WORSE[0], accepted=made.BASELINE.path), "; accepted as the new baseline"),
        (made.verdict(floors=(made.KEPT,), accepted=made.BASELINE.path), "Accepted as the new baseline: "),
    ],
)
def test_the_outcome_of_the_whole(verdict: CheckVerdict, text: str) -> None:
    assert text in headline(verdict)


def test_each_regression_is_said_with_what_its_estimate_means() -> None:
    pll, ece, _, moved = made.WORSE
    verdict = made.verdict(*made.WORSE, *made.REST)
    assert "moved beyond its tolerance" in in_short(verdict)[2]
    for text, comparison in zip(in_short(verdict), (pll, ece, moved), strict=False):
        before, now = (f"{value:.4f}".replace("-", "−") for value in (comparison.baseline, comparison.current))
        assert before in text and now in text and comparison.method in text
    assert "(−0.0410 ± 0.0090). So did that of mcdo." in in_short(verdict)[0]


def test_what_got_worse_is_said_once_for_all_methods_classes_and_groups() -> None:
    *alike, rest = findings(made.crowded())
    assert len(alike) == 3 and all(". So did that of " in text for text in alike)
    assert rest.startswith(f"{240 - 3 * 4} more estimates got worse")
    parts = [made.compared("accuracy", 0.9, 0.6, "worse", of_class=name) for name in "abcdefg"]
    (text,) = in_short(made.verdict(*parts))
    assert (
        "accuracy of class a fell" in text and "So did that of class b, class c, class d, class e and 2 more." in text
    )


def test_what_passed_is_summed_up_by_what_got_better() -> None:
    (improvements,) = findings(made.verdict(*made.REST))
    assert improvements.startswith("1 estimate got better: ")
    assert not [*findings(made.verdict(made.REST[3]))]


def test_every_metric_that_can_get_worse_has_words_for_it() -> None:
    of_two_sets = {"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"}
    for name, metric in METRICS.items():
        if metric.direction == "none":
            continue
        more = {"set": "svhn", "score": "variance"} if name in of_two_sets else {}
        for outcome, step in (("worse", 1), ("better", -1)):
            sign = step if metric.direction == "lower" else -step
            comparison = made.compared(name, 0.5, 0.5 + 0.1 * sign, outcome, **more)
            words, _, numbers = change(comparison, made.verdict(comparison)).partition(": ")
            assert "mcbn" in words and ("rose" if sign > 0 else "fell") in numbers, (name, words)
            compared = r"\b(less|more|further|fewer|better|closer|larger|smaller|wider|narrower)\b"
            assert re.search(compared, words, re.IGNORECASE), words


def test_what_is_held_of_a_change() -> None:
    assert [judgement(comparison) for comparison in (*made.WORSE[2:], *made.REST)] == [
        "worse", "moved", "worse, within tolerance", "inconclusive", "inconclusive", "same", "same", "same", "better",
        "not gated", "not gated", "not gated",
    ]  # fmt: skip


def test_estimates_that_print_alike_get_more_decimals_or_are_still() -> None:
    near = made.compared("accuracy", 0.91234, 0.91231, "same")
    assert "fell from 0.91234 to 0.91231 (−3.0e−05 ± 0.0040" in change(near, made.verdict(near))
    still = made.compared("accuracy", 0.9, 0.9, "same", se=0.0)
    assert "is still 0.9000 (0; tolerance" in change(still, made.verdict(still))
    lost = made.compared("pll", -0.3, float("nan"), "not gated", se=None)
    assert "is not a number, and was −0.3000 nats" in change(lost, made.verdict(lost))


def test_a_change_of_nothing_is_a_nought_and_nothing_but_noughts_is_a_sentence() -> None:
    for width in (40, 80, 100):
        text = one_line(whole(made.unchanged(), width=width))
        assert "All 4 gated estimates are exactly as before: every change is 0." in text
        assert "0.0000" not in text and "AUPR-in" not in text
    text = whole(made.verdict(*made.WORSE, *made.REST), width=100)
    assert re.search(r"^ +↑ accuracy +0\.9100 +0\.9100 +0 +0\.01 +0\.0153", text, flags=re.MULTILINE)
    assert re.search(r"^ +↓ Brier score +0\.1000 +0\.1000 +0 .*\n +±0\.0030", text, flags=re.MULTILINE)


def test_a_requirement_that_is_missed_by_little_does_not_look_met() -> None:
    (said, *_) = in_short(made.verdict(floors=(made.BROKEN,)))
    assert said == "mcbn.ood.svhn.mutual_information.auroc is 0.84999, required to be at least 0.85: not met."
    (said, *_) = in_short(made.verdict(floors=(replace(made.BROKEN, value=float("nan")),)))
    assert " is not a number, required" in said


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_estimate_is_somewhere_and_what_is_gated_has_all_its_numbers(width: int) -> None:
    text = whole(made.everything(), width=width)
    for words in ("Gated: 15 estimates", "Shown, not gated: 3 estimates", "10,200 examples"):
        assert words in text
    if width > 40:
        assert "PLL: worse" in text and "mutual info.: moved" in text.replace("mutual information", "mutual info.")
    for number in ("−0.3010", "−0.3420", "−0.0410", "±0.0090", "−inf", "0.004", "+13.00"):
        assert number in text
    assert one_line("Required · mcbn.sets.test.accuracy is 0.9100") in one_line(text)
    assert "the draws of mcdo: the seed differs" in one_line(text)
    assert "Baseline: /runs/base.h5" in text and "[older-than-baseline]" in one_line(text)


@pytest.mark.parametrize("name", sorted(set(made.ALL) - {"hostile"}))
def test_a_check_is_one_screen(name: str) -> None:
    verdict = made.ALL[name]
    text = drawn(verdict)
    assert len(text.splitlines()) <= (12 if verdict.passed and not verdict.worse else 36)
    assert len(markdown(report(verdict)).encode()) <= 10_000
    not_gated = sum(comparison.outcome == "not gated" for comparison in verdict.comparisons)
    assert not not_gated or f"{not_gated} estimates not gated" in one_line(text)


def test_an_accepted_result_says_where_the_old_baseline_is() -> None:
    lines = drawn(made.accepted()).splitlines()
    kept = ["New baseline: /runs/base.h5", "Previous baseline, kept: /runs/base.20260301T000000Z.h5"]
    assert lines[-2:] == kept and "Current: /runs/now.h5" in whole(made.accepted())


# ── as Markdown ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Page(HTMLParser):
    """The tags of what a Markdown reader makes of it, and the rows of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


@pytest.mark.parametrize("name", made.ALL)
def test_markdown_says_it_first_and_makes_a_row_of_every_estimate(name: str) -> None:
    verdict = made.ALL[name]
    text = markdown(report(verdict, full=True))
    first = text.splitlines()[0]
    mark = "⚠" if verdict.worse and verdict.accepted else "✅" if verdict.passed else "❌"
    assert first.startswith(f"## {mark} bnuq check: {report(verdict).subject[:5]}")
    page = Page(text)
    unchanged = all(comparison.change == 0 for comparison in verdict.comparisons)
    estimates = sum(line.startswith("| &emsp;") for line in text.splitlines())
    gated = [comparison for comparison in verdict.comparisons if comparison.outcome != "not gated"]
    none = unchanged or (gated and all(comparison.change == 0 for comparison in gated))
    assert estimates == (0 if none else len(verdict.comparisons)) and page.tags.count("tr") >= estimates
    assert page.tags.count("details") == text.count("</details>") >= 1
    assert not page.links
    assert set(page.tags) <= {
        "h2", "h3", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "strong", "code"
    }  # fmt: skip


def test_markdown_shows_what_is_gated_with_all_its_numbers_and_folds_the_rest() -> None:
    shown, folded = markdown(report(made.everything(), full=True)).split("<details>", 1)
    assert re.findall("^### (.*)$", shown, flags=re.MULTILINE) == ["Warnings", "Gated: 15 estimates"]
    assert "| &emsp;↑ PLL: worse | −0.3010 | −0.3420 | −0.0410 ±0.0090 | 0.01 | 0.0153 | 0.004 |" in shown
    assert "<summary>Shown, not gated: 3 estimates</summary>" in folded
    assert "now.h5 is older than base.h5" in shown and "tolerances and minimums are those" in folded
    assert "Current: `/runs/now.h5`" in folded and "Baseline: `/runs/base.h5`" in folded
