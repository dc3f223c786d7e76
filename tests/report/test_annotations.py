"""Annotations in the log of a CI: whole lines, few enough to be shown, which no name can make say something else."""

from __future__ import annotations

import re

import pytest
import small_verdicts as made

from bnuq.findings import warning
from bnuq.studies.check.ci import annotations

LINE = re.compile(r"::(error|warning|notice) title=([^:,\r\n]*)::([^\r\n]*)")


def told(verdict) -> list[tuple[str, str, str]]:
    """Kind, title and message of each line, as the runner reads them."""
    found = []
    for line in annotations(verdict):
        matched = LINE.fullmatch(line)
        assert matched, line
        heading = matched[2].replace("%3A", ":").replace("%2C", ",")
        found.append((matched[1], *(text.replace("%25", "%") for text in (heading, matched[3]))))
    return found


@pytest.mark.parametrize("name", made.ALL)
def test_every_line_is_one_command_and_there_are_no_more_than_are_shown(name: str) -> None:
    verdict = made.ALL[name]
    lines = told(verdict)
    failing = bool(verdict.broken) or (bool(verdict.failing) and verdict.accepted is None)
    kinds = [kind for kind, _, _ in lines]
    assert ("error" in kinds) == failing == ("notice" not in kinds)
    assert len(kinds) <= 10
    assert all(line.isprintable() for line in annotations(verdict))


def test_an_error_names_the_estimate_and_says_what_became_of_it() -> None:
    kind, heading, message = told(made.verdict(made.WORSE[0]))[0]
    assert (kind, heading) == ("error", "bnuq check: predictive log-likelihood of mcbn on the test set: worse")
    assert message.startswith(
        "mcbn explains the labels of the test set less well: predictive log-likelihood fell from −0.3010"
    )


def test_requirements_come_first_and_the_rest_is_counted() -> None:
    few = told(made.everything())
    assert [kind for kind, _, _ in few] == ["error"] * 9 + ["warning"]
    assert "required to be at least 0.85: not met" in few[0][2]
    many = told(made.crowded())
    assert len(many) == 9
    assert "232 more failures" in many[-1][2]
    exactly = made.verdict(*made.crowded().comparisons[:9])
    assert len(told(exactly)) == 9 and all("more failure" not in message for _, _, message in told(exactly))


def test_an_accepted_regression_is_a_warning() -> None:
    lines = told(made.accepted())
    assert [kind for kind, _, _ in lines] == ["warning"] * len(made.WORSE) + ["notice"]
    assert "accepted as the new baseline" in lines[-1][2]


def test_percents_and_breaks_are_escaped() -> None:
    odd = warning("a,b:c%d\ne", text="50 % of it\r\n::set-output name=x::y")
    (line,) = (
        line for line in annotations(made.verdict(made.REST[0], findings=(odd,))) if line.startswith("::warning")
    )
    assert line.startswith("::warning title=bnuq check%3A a%2Cb%3Ac%25d")
    assert "50 %25 of it" in line and not re.search(r"[\r\n]", line)
