"""A verdict of `bnuq check` as lines for the log of GitHub Actions, which shows them beside the change."""

from collections.abc import Iterator, Sequence
from typing import Literal

from bnuq.gate.records import Verdict
from bnuq.report.check.sentences import change_in_words, headline, requirement, subject
from bnuq.report.numbers import count
from bnuq.report.remedies import advised
from bnuq.report.sanitize import printable

_MOST_SHOWN = 10  # of one kind that GitHub shows for a step
_Kind = Literal["error", "warning", "notice"]

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
    broken = [(floor.address, requirement(floor)) for floor in verdict.broken]
    worse = [(subject(comparison), change_in_words(comparison, verdict)) for comparison in verdict.worse]
    warned = [(code, text) for text, code, _ in advised(verdict.findings)]
    yield from _lines("error", [*broken, *worse] if verdict.failed else [], noun="failure")
    yield from _lines("warning", warned if verdict.failed else [*worse, *warned], noun="warning")
    if not verdict.failed:
        yield line("notice", "bnuq check", f"{headline(verdict)}.")


def _lines(kind: _Kind, messages: Sequence[tuple[str, str]], *, noun: str) -> Iterator[str]:
    shown = messages if len(messages) <= _MOST_SHOWN else messages[: _MOST_SHOWN - 1]
    yield from (line(kind, f"bnuq check: {title}", message) for title, message in shown)
    if hidden := len(messages) - len(shown):
        yield line(
            kind, "bnuq check", f"And {count(hidden, f'more {noun}')}; see the report in the log for all of them."
        )


def line(kind: _Kind, title: str, message: str) -> str:
    """One workflow command."""
    title, message = (printable(text, lines=False) for text in (title, message))
    return f"::{kind} title={title.translate(_PROPERTY)}::{message.translate(_MESSAGE)}"
