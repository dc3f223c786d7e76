"""Signals that end the run: raised where they arrive, and remembered in case the exception is swallowed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: int | None = None


class Terminated(BaseException):
    """SIGTERM as an exception, so that unfinished work is cleaned up."""


def check() -> None:
    """Raise a received signal again: a bare `except`, a `__del__` or a C callback may have swallowed its exception."""
    if _received is not None:
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated


@contextlib.contextmanager
def on_signals() -> Iterator[None]:
    """Inside the block, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated. Where that exception was
    swallowed, the end of the block raises it again. An ignored signal stays ignored (nohup)."""
    global _received
    _received = None
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with contextlib.suppress(ValueError):  # outside the main thread signals cannot be handled
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _stop)
    try:
        yield
        check()
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        try:
            check()
        except (KeyboardInterrupt, Terminated) as stop:
            for note in getattr(error, "__notes__", ()):
                stop.add_note(note)
            raise
        raise
    finally:
        _received = None
        with contextlib.suppress(ValueError):
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    global _received
    _received = signum
    check()
