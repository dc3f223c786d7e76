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
from report_text import rendered

from bnuq.gate.records import CheckVerdict
from bnuq.metrics import METRICS
from bnuq.report.check import report
from bnuq.report.check.check_findings import change, findings, headline, judgement
from bnuq.report.check.check_sentences import SENTENCES, in_words
from bnuq.report.render import markdown
from bnuq.report.sanitize import printable

drawn = partial(rendered, report, width=80)


def in_short(verdict: CheckVerdict) -> tuple[str, ...]:
    """What the outcome rests on, a sentence each."""
    return report(verdict).summary


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 60, 80, 100]))
@pytest.mark.parametrize("name", made.ALL)
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(name: str, width: int, encoding: str) -> None:
    verdict = made.ALL[name]
    paths = [side.path for side in (verdict.current, verdict.baseline) if side is not None]
    whole = {printable(str(path), lines=False) for path in (*paths, verdict.kept)}
    for line in drawn(verdict, width=width, encoding=encoding).splitlines():
        assert len(line) <= width or line in whole
        assert line == line.rstrip()


@pytest.mark.parametrize("name", made.ALL)
def test_the_first_line_is_the_verdict_and_all_is_printable(name: str) -> None:
    verdict = made.ALL[name]
    text = drawn(verdict)
    assert one_line(text).startswith(one_line(printable(report(verdict).subject, lines=False)))
    assert all(line.isprintable() for line in text.splitlines())
    assert drawn(verdict, encoding="ascii").isascii()


@pytest.mark.parametrize(
    ("verdict", "code", "values"),
    [
        (made.verdict(*made.SVHN), "regression", {"regressions": 4, "gated": 4, "movement": "got worse"}),
        (made.verdict(made.WORSE[0], *made.REST), "regression", {"regressions": 1, "gated": 8}),
        (made.verdict(made.WORSE[3], *made.REST), "regression", {"regressions": 1, "movement": "moved"}),
        (
            made.everything(),
            "regression",
            {"regressions": 8, "gated": 15, "movement": "got worse or moved", "broken": 1, "required": 2},
        ),
        (made.verdict(*made.REST), "no-regression", {"gated": 7, "required": 0}),
        (made.verdict(*made.REST, floors=(made.KEPT, made.KEPT)), "no-regression", {"required": 2, "broken": 0}),
        (
            made.verdict(made.REST[1], floors=(made.BROKEN, made.BROKEN)),
            "requirement-not-met",
            {"broken": 2, "required": 2, "gated": 1},
        ),
        (made.verdict(floors=(made.BROKEN,)), "requirement-not-met", {"broken": 1, "required": 1, "gated": 0}),
        (made.verdict(floors=(made.KEPT,)), "only-required", {"required": 1}),
        (made.verdict(made.REST[-1], floors=(made.KEPT,)), "only-required", {"required": 1, "compared": True}),
        (made.verdict(made.REST[-1]), "nothing-checked", {"compared": True}),
        (
            made.verdict(made.WORSE[0], accepted=made.BASELINE.path),
            "regression",
            {"regressions": 1, "gated": 1, "accepted": True},
        ),
        (
            made.verdict(floors=(made.KEPT,), accepted=made.BASELINE.path),
            "accepted-uncompared",
            {"required": 1, "broken": 0, "accepted": False},
        ),
    ],
)
def test_the_outcome_of_the_whole(verdict: CheckVerdict, code: str, values: dict[str, object]) -> None:
    finding = headline(verdict)
    assert finding.code == code and values.items() <= finding.values.items()


def test_each_regression_is_a_finding_with_what_its_estimate_means() -> None:
    verdict = made.verdict(*made.WORSE, *made.REST)
    groups = [(finding.code, finding.values["comparison"]) for finding in list(findings(verdict))[:4]]
    assert groups == list(zip(("worse", "worse", "worse", "moved"), made.WORSE, strict=True))
    for text, comparison in zip(in_short(verdict), made.WORSE, strict=False):
        before, now = (f"{value:.4f}".replace("-", "−") for value in (comparison.baseline, comparison.current))
        assert before in text and now in text and comparison.method in text
    assert "(−0.0410 ± 0.0090; tolerance 0.01 nats; p = 0.0002, 0.004 among 11)" in in_short(verdict)[0]


def test_many_regressions_of_one_set_are_one_finding_that_leads_with_the_auroc() -> None:
    (finding,) = findings(made.verdict(*made.SVHN))
    assert finding.code == "separation-regressions" and finding.values["gated_on_set"] == 4
    assert finding.values["lead"].values["comparison"].metric == "auroc" and len(finding.values["others"]) == 3
    others = [replace(comparison, method="mcdo") for comparison in made.WORSE[:2]]
    (finding,) = findings(made.verdict(*others, made.compared("brier", 0.1, 0.2, "worse", method="mcdo")))
    assert finding.code == "set-regressions"
    assert [comparison.metric for comparison in finding.values["others"]] == ["ece", "brier"]
    codes = [finding.code for finding in findings(made.crowded())]
    assert len(codes) == 12 and set(codes) <= {"separation-regressions", "set-regressions"}


def test_what_passed_is_summed_up_by_its_clearest_worsening_and_what_got_better() -> None:
    clearest, improvements = findings(made.verdict(*made.REST))
    assert clearest.code == "clearest-worsening" and clearest.values["comparison"] is made.REST[0]
    assert improvements.values == {"comparisons": (made.REST[6],)}
    (finding,) = findings(made.verdict(replace(made.REST[3], degradation=0.0)))
    assert finding.code == "no-worsening"
    assert [finding.code for finding in findings(made.unchanged())] == ["unchanged"]


@pytest.mark.parametrize("name", made.ALL)
def test_every_finding_has_its_sentence(name: str) -> None:
    verdict = made.ALL[name]
    codes = [finding.code for finding in findings(verdict)]
    texts = [*in_short(verdict), *(in_words(change(comparison, verdict)) for comparison in verdict.comparisons)]
    assert set(codes) <= SENTENCES.keys() and len(texts) == len(codes) + len(verdict.comparisons)
    assert all(text.endswith(".") for text in texts)


def test_every_metric_that_can_get_worse_has_words_for_it() -> None:
    of_two_sets = {"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"}
    for name, metric in METRICS.items():
        if metric.direction == "none":
            continue
        more = {"set": "svhn", "score": "variance"} if name in of_two_sets else {}
        for outcome, step in (("worse", 1), ("better", -1)):
            sign = step if metric.direction == "lower" else -step
            comparison = made.compared(name, 0.5, 0.5 + 0.1 * sign, outcome, **more)
            verdict = made.verdict(comparison)
            assert change(comparison, verdict).code == outcome
            words, _, numbers = in_words(change(comparison, verdict)).partition(": ")
            assert "mcbn" in words and ("rose" if sign > 0 else "fell") in numbers, (name, words)
            compared = r"\b(less|more|further|fewer|better|closer|larger|smaller|wider|narrower)\b"
            assert re.search(compared, words, re.IGNORECASE), words


def test_what_is_held_of_a_change() -> None:
    assert [judgement(comparison) for comparison in (*made.WORSE[2:], *made.REST)] == [
        "worse",
        "moved",
        "worse, within tolerance",
        "inconclusive",
        "inconclusive",
        "same",
        "same",
        "same",
        "better",
        "not gated",
        "not gated",
        "not gated",
    ]


def test_estimates_that_print_alike_get_more_decimals_or_are_still() -> None:
    near = made.compared("accuracy", 0.91234, 0.91231, "same")
    assert "fell from 0.91234 to 0.91231 (−3.0e−05 ± 0.0040" in in_words(change(near, made.verdict(near)))
    still = made.compared("accuracy", 0.9, 0.9, "same", se=0.0)
    assert "is still 0.9000 (0; tolerance" in in_words(change(still, made.verdict(still)))
    lost = made.compared("pll", -0.3, float("nan"), "not gated", se=None)
    assert "is not a number, and was −0.3000 nats" in in_words(change(lost, made.verdict(lost)))


def test_a_change_of_nothing_is_a_nought_and_nothing_but_noughts_is_a_sentence() -> None:
    for width in (40, 80, 100):
        text = one_line(drawn(made.unchanged(), width=width))
        assert "All 4 estimates are exactly as before: every change is 0." in text
        assert "0.0000" not in text and "AUPR-in" not in text
    text = drawn(made.verdict(*made.WORSE, *made.REST), width=100)
    assert re.search(r"^ +↑ accuracy +0 +0.0153$", text, flags=re.MULTILINE)
    assert re.search(r"↓ Brier score +0 ±0\.0030", text)


def test_a_requirement_that_is_missed_by_little_does_not_look_met() -> None:
    (said, *_) = in_short(made.verdict(floors=(made.BROKEN,)))
    assert said == "mcbn.ood.svhn.mutual_information.auroc is 0.84999, required to be at least 0.85: not met."
    (said, *_) = in_short(made.verdict(floors=(replace(made.BROKEN, value=float("nan")),)))
    assert " is not a number, required" in said


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_estimate_is_somewhere_and_what_failed_has_all_its_numbers(width: int) -> None:
    text = drawn(made.everything(), width=width)
    for title in ("Worse: 7 estimates", "Moved: 1 estimate", "Better: 1 estimate", "The same: 3 estimates"):
        assert title in text
    for words in (
        "Worse, within tolerance: 1",
        "Inconclusive: 2 estimates",
        "10,200 points",
        "Shown, not gated: 3 estimates",
    ):
        assert words in text
    for number in ("−0.3010", "−0.3420", "−0.0410", "±0.0090", "−inf", "0.004", "+13.00"):
        assert number in text
    assert one_line("Required · mcbn.sets.test.accuracy is 0.9100") in one_line(text)
    assert "the draws of mcdo: the seed differs" in one_line(text)
    assert "Baseline: /runs/base.h5" in text and "[older-than-baseline]" in one_line(text)


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
    text = markdown(report(verdict))
    first = text.splitlines()[0]
    mark = "⚠" if verdict.worse and verdict.accepted else "✅" if verdict.passed else "❌"
    assert first.startswith(f"## {mark} bnuq check: {report(verdict).subject[:5]}")
    page = Page(text)
    unchanged = all(comparison.change == 0 for comparison in verdict.comparisons)
    estimates = sum(line.startswith("| &emsp;") for line in text.splitlines())
    assert estimates == (0 if unchanged else len(verdict.comparisons)) and page.tags.count("tr") >= estimates
    assert page.tags.count("details") == text.count("</details>") >= 1
    assert not page.links
    assert set(page.tags) <= {
        "h2", "h3", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "strong", "code"
    }  # fmt: skip


def test_markdown_shows_what_failed_with_all_its_numbers_and_folds_the_rest() -> None:
    text = markdown(report(made.everything()))
    shown, folded = text.split("<details>", 1)
    titles = re.findall("^### (.*)$", shown, flags=re.MULTILINE)
    assert titles == ["Warnings", "Worse: 7 estimates", "Moved: 1 estimate"]
    assert "| &emsp;↑ PLL | −0.3010 | −0.3420 | −0.0410 ±0.0090 | 0.01 | 0.0153 | 0.004 |" in shown
    assert "<summary>Worse, within tolerance: 1 estimate</summary>" in folded and "| &emsp;↑ AUPR-out |" in folded
    assert "now.h5 is older than base.h5" in shown and "tolerances and minimums are those" in folded
    assert "Current: `/runs/now.h5`" in folded and "Baseline: `/runs/base.h5`" in folded
