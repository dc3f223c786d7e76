"""The report of a check: its first line is the verdict, what got worse is said in words, and all of it is true."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import small_verdicts as made
from markdown_it import MarkdownIt

from bnuq.gate.records import Verdict
from bnuq.metrics import METRICS
from bnuq.report.check import check_markdown, print_verdict
from bnuq.report.check.words import headline, in_short, judged, told
from bnuq.report.sanitize import printable


def drawn(verdict: Verdict, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_verdict(verdict, stream, width)
    stream.flush()
    return raw.getvalue().decode(encoding)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("name", made.ALL)
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(name: str, width: int, encoding: str) -> None:
    verdict = made.ALL[name]
    if name == "hostile":  # a method has a column, which is as wide as its name; and bnuq knows which there are
        verdict = replace(verdict, comparisons=tuple(replace(one, method="mcbn") for one in verdict.comparisons))
    paths = [side.path for side in (verdict.current, verdict.baseline) if side is not None]
    whole = {printable(str(path), lines=False) for path in (*paths, verdict.kept)}
    for line in drawn(verdict, width=width, encoding=encoding).splitlines():
        assert len(line) <= width or line in whole
        assert line == line.rstrip()


@pytest.mark.parametrize("name", made.ALL)
def test_the_first_line_is_the_verdict_and_all_is_printable(name: str) -> None:
    verdict = made.ALL[name]
    report = drawn(verdict)
    assert one_line(report).startswith(one_line(printable(headline(verdict), lines=False)))
    assert all(line.isprintable() for line in report.splitlines())
    assert drawn(verdict, encoding="ascii").isascii()


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (
            made.verdict(*made.SVHN),
            "Worse: 4 of 4 gated estimates got worse by more than their tolerance and chance",
        ),
        (
            made.verdict(made.WORSE[0], *made.REST),
            "Worse: 1 of 8 gated estimates got worse by more than its tolerance and chance",
        ),
        (
            made.verdict(made.WORSE[0]),
            "Worse: the only gated estimate got worse by more than its tolerance and chance",
        ),
        (
            made.verdict(made.WORSE[3], *made.REST),
            "Worse: 1 of 8 gated estimates moved by more than its tolerance and chance",
        ),
        (
            made.everything(),
            "Worse: 8 of 15 gated estimates got worse or moved by more than their tolerance and chance, "
            "and 1 of 2 requirements is not met",
        ),
        (
            made.verdict(*made.REST),
            "No regression: none of 7 gated estimates got worse by more than its tolerance and chance",
        ),
        (
            made.verdict(*made.REST, floors=(made.KEPT, made.KEPT)),
            "No regression: none of 7 gated estimates got worse by more than its tolerance and chance, "
            "and all 2 requirements are met",
        ),
        (
            made.verdict(made.REST[1], floors=(made.BROKEN, made.BROKEN)),
            "Not met: 2 of 2 requirements; the only gated estimate has not got worse by more than its tolerance and "
            "chance",
        ),
        (made.verdict(floors=(made.BROKEN,)), "Not met: the only requirement"),
        (made.verdict(floors=(made.KEPT,)), "Passed: the only requirement is met; nothing was compared"),
        (
            made.verdict(made.REST[-1], floors=(made.KEPT,)),
            "Passed: the only requirement is met; no estimate was gated",
        ),
        (made.verdict(made.REST[-1]), "Nothing was checked: no estimate was gated"),
        (
            made.verdict(made.WORSE[0], accepted=made.BASELINE.path),
            "Worse: the only gated estimate got worse by more than its tolerance and chance; accepted as the new "
            "baseline",
        ),
        (
            made.verdict(floors=(made.KEPT,), accepted=made.BASELINE.path),
            "Accepted as the new baseline: nothing was compared; the only requirement is met",
        ),
    ],
)
def test_the_verdict_in_a_line(verdict: Verdict, said: str) -> None:
    assert headline(verdict) == said


def test_what_got_worse_is_said_in_words_with_its_numbers() -> None:
    verdict = made.verdict(*made.WORSE, *made.REST)
    assert list(in_short(verdict))[:4] == [
        "mcbn explains the labels of the test set less well: PLL fell from −0.3010 to −0.3420 nats (−0.0410 ± 0.0090; "
        "tolerance 0.01 nats; p = 0.0002, 0.004 among 11).",
        "The confidence of mcbn on the test set is further from its accuracy: ECE rose from 0.0210 to 0.0630 "
        "(+0.0420 ± 0.0040; tolerance 0.01; p = 0.0002, 0.004 among 11).",
        "mcdo explains the labels of the test set less well: PLL fell from −0.3010 to −inf nats (tolerance 0.01 nats; "
        "p < 0.0001, < 0.0001 among 11).",
        "Mutual information of mcdo on the test set moved by more than its tolerance: it rose from 0.0500 to 0.0900 "
        "nats (+0.0400 ± 0.0040; tolerance 0.01 nats; p = 0.0002, 0.004 among 11).",
    ]


def test_many_estimates_of_one_set_are_one_sentence_that_names_the_auroc_first() -> None:
    (sentence,) = in_short(made.verdict(*made.SVHN))
    assert sentence.startswith(
        "mcbn separates svhn from the test set less well: AUROC by mutual information fell from 0.9200 to 0.8500"
    )
    assert sentence.endswith("; 3 more of its 4 gated estimates on that set got worse.")
    three = [replace(one, method="mcdo") for one in made.WORSE[:2]]
    (sentence,) = in_short(made.verdict(*three, made.compared("brier", 0.1, 0.2, "worse", method="mcdo")))
    assert "Also worse: ECE 0.0210 → 0.0630, Brier score 0.1000 → 0.2000." in sentence
    said = list(in_short(made.crowded()))
    assert len(said) == 12 and said[0].startswith("the deterministic network".capitalize())


def test_every_metric_that_can_get_worse_has_words_for_it() -> None:
    of_two_sets = {"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"}
    for name, metric in METRICS.items():
        if metric.direction == "none":
            continue
        more = {"set": "svhn", "score": "variance"} if name in of_two_sets else {}
        for outcome, step in (("worse", 1), ("better", -1)):
            sign = step if metric.direction == "lower" else -step
            one = made.compared(name, 0.5, 0.5 + 0.1 * sign, outcome, **more)
            words, _, numbers = told(one, made.verdict(one)).partition(": ")
            assert "mcbn" in words and ("rose" if sign > 0 else "fell") in numbers, (name, words)
            assert re.search(r"\b(less|more|further|fewer|better|closer|larger|smaller)\b", words), words


def test_what_is_held_of_a_change() -> None:
    assert [judged(one) for one in (*made.WORSE[2:], *made.REST)] == [
        "worse",
        "moved",
        "worse, within tolerance",
        "worse, within chance",
        "worse, its error not known",
        "same",
        "same",
        "same",
        "better",
        "not gated",
        "not gated",
        "not gated",
    ]


def test_estimates_that_print_alike_are_told_apart_or_said_to_be_still() -> None:
    near = made.compared("accuracy", 0.91234, 0.91231, "same")
    assert "fell from 0.91234 to 0.91231 (−3.0e−05 ± 0.0040" in told(near, made.verdict(near))
    still = made.compared("accuracy", 0.9, 0.9, "same", se=0.0)
    assert "is still 0.9000 (0; tolerance" in told(still, made.verdict(still))
    lost = made.compared("pll", -0.3, float("nan"), "not gated", se=None)
    assert "is not a number, and was −0.3000 nats" in told(lost, made.verdict(lost))


def test_a_change_of_nothing_is_a_nought_and_nothing_but_noughts_is_a_sentence() -> None:
    for width in (40, 80, 100):
        report = one_line(drawn(made.unchanged(), width=width))
        assert "All 4 estimates are exactly as before: every change is 0." in report
        assert "0.0000" not in report and "AUPR-in" not in report
    report = drawn(made.verdict(*made.WORSE, *made.REST), width=100)
    assert re.search(r"^ +↑ accuracy +0$", report, flags=re.MULTILINE)
    assert re.search(r"↓ Brier score +0 ±0\.0030", report)


def test_a_requirement_that_is_missed_by_little_does_not_look_met() -> None:
    (said, *_) = in_short(made.verdict(floors=(made.BROKEN,)))
    assert said == "mcbn.ood.svhn.mutual_information.auroc is 0.84999, required to be at least 0.85: not met."
    (said, *_) = in_short(made.verdict(floors=(replace(made.BROKEN, value=float("nan")),)))
    assert " is not a number, required" in said


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_estimate_is_somewhere_and_what_failed_has_all_its_numbers(width: int) -> None:
    report = drawn(made.everything(), width=width)
    for text in ("Worse: 7 estimates", "Moved: 1 estimate", "Better: 1 estimate", "The same: 3 estimates"):
        assert text in report
    for words in ("Worse, within tolerance: 1", "Worse, within chance: 1", "Shown, not gated: 3 estimates"):
        assert words in report
    for number in ("−0.3010", "−0.3420", "−0.0410", "±0.0090", "−inf", "0.004", "+13.00"):
        assert number in report
    assert one_line("Required · mcbn.sets.test.accuracy is 0.9100") in one_line(report)
    assert "the draws of mcdo: the seed differs" in one_line(report)
    assert "Baseline: /runs/base.h5" in report and "[older-than-baseline]" in one_line(report)


def test_an_accepted_result_says_where_the_old_baseline_is() -> None:
    lines = drawn(made.accepted()).splitlines()
    assert lines[-3:] == [
        "Current: /runs/now.h5",
        "New baseline: /runs/base.h5",
        "Previous baseline, kept: /runs/base.20260301T000000Z.h5",
    ]


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
    text = check_markdown(verdict)
    first = text.splitlines()[0]
    mark = "⚠" if verdict.worse and verdict.accepted else "✅" if verdict.passed else "❌"
    assert first.startswith(f"## {mark} bnuq check: {headline(verdict)[:5]}")
    page = Page(text)
    unchanged = all(one.change == 0 for one in verdict.comparisons)
    tables = page.tags.count("table")
    assert page.tags.count("tr") - tables == (0 if unchanged else len(verdict.comparisons))
    assert page.tags.count("details") == text.count("</details>") >= 1
    assert not page.links
    assert set(page.tags) <= {
        "h2", "h3", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "strong", "code"
    }  # fmt: skip


def test_markdown_shows_what_failed_and_folds_the_rest() -> None:
    text = check_markdown(made.everything())
    shown, folded = text.split("<details>", 1)
    assert shown.count("| worse |") == 7 and shown.count("| moved |") == 1
    assert "The other 10 estimates" in folded and "worse, within tolerance" in folded
    assert "now.h5 was made before base.h5" in shown and "tolerances and minimums are those" in folded
