"""A verdict of `bnuq check` as lines for the log of GitHub Actions, which shows them beside the change."""

from collections.abc import Iterator
from typing import Literal

from bnuq.gate.records import Verdict
from bnuq.report.check.words import floor_in_words, headline, subject, told
from bnuq.report.numbers import count
from bnuq.report.remedies import advised
from bnuq.report.sanitize import printable

_MOST = 10  # of one kind that GitHub shows for a step
_Kind = Literal["error", "warning", "notice"]
_Told = tuple[str, str]  # a title and a message

# Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions, and the escapes of
# @actions/core, which the runner takes back.
_IN_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_MESSAGE = str.maketrans(_IN_MESSAGE)
_PROPERTY = str.maketrans(_IN_MESSAGE | {":": "%3A", ",": "%2C"})


def annotations(verdict: Verdict) -> Iterator[str]:
    """Workflow commands, one a line: an error for each broken requirement and each regression, worst first, a warning
    for each warning, and a notice where the check passed. A regression that was accepted is a warning.

    Where there are more of a kind than GitHub shows, the last one counts the rest. No text ends its line or starts a
    command of its own.
    """
    floors = [(f"bnuq check: {floor.address}", floor_in_words(floor)) for floor in verdict.broken]
    worse = [(f"bnuq check: {subject(one)}", f"{told(one, verdict)}.") for one in verdict.worse]
    warned = [(f"bnuq check: {code}", text) for text, code, _ in advised(verdict.findings)]
    yield from _lines("error", [*floors, *worse] if verdict.failed else [], rest="failure")
    yield from _lines("warning", warned if verdict.failed else [*worse, *warned], rest="warning")
    if not verdict.failed:
        yield line("notice", ("bnuq check", f"{headline(verdict)}."))


def _lines(kind: _Kind, all_told: list[_Told], *, rest: str) -> Iterator[str]:
    shown = all_told if len(all_told) <= _MOST else all_told[: _MOST - 1]
    yield from (line(kind, one) for one in shown)
    if left := len(all_told) - len(shown):
        yield line(
            kind, ("bnuq check", f"And {count(left, f'more {rest}')}; see the report in the log for all of them.")
        )


def line(kind: _Kind, told: _Told) -> str:
    """One workflow command, of a title and a message."""
    heading, message = (printable(text, lines=False) for text in told)
    return f"::{kind} title={heading.translate(_PROPERTY)}::{message.translate(_MESSAGE)}"
