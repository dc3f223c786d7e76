"""Sanitizes untrusted text for a terminal or a log."""

from __future__ import annotations


def printable(text: str, *, lines: bool = True) -> str:
    """`text` with every control, format and unassigned character written out (`\\x1b`), so that none of them acts.

    Names and messages may come from an untrusted file. `lines` keeps line breaks.
    """
    if text.isprintable():  # as nearly every one is
        return text
    return "".join(
        c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape").decode("ascii") for c in text
    )
