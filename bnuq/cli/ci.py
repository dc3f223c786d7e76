"""Protection of CI logs against injected commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def workflow_commands_disabled(stream: TextIO | None) -> Iterator[None]:
    """Text printed on `stream` inside the block is never interpreted as a workflow command by GitHub's runners."""
    if stream is None or not on_github():
        yield
        return
    import secrets

    word = secrets.token_hex(8)
    print(f"::stop-commands::{word}", file=stream)
    try:
        yield
    finally:
        print(f"::{word}::", file=stream)


def on_github() -> bool:
    """Whether a runner of GitHub reads the log."""
    return os.environ.get("GITHUB_ACTIONS") == "true"
