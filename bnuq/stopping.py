"""Signals that end the run: raised where they arrive, and remembered in case the exception is swallowed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: int | None = None
_deferring = False
_message: threading.Timer | None = None
_PATIENCE = 1.0  # seconds of a deferral that needs no message


class Terminated(BaseException):
    """SIGTERM as an exception, so that unfinished work is cleaned up."""


def check() -> None:
    """Raise a received signal again: a bare `except`, a `__del__` or a C callback may have swallowed its exception."""
    if _received is not None and not _deferring:
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A block that a first signal does not interrupt: its exception is raised at the end. A second one ends it at
    once."""
    global _deferring
    before, _deferring = _deferring, True
    try:
        yield
    finally:
        _deferring = before
        if _message is not None and not before:
            _message.cancel()
    check()


def _say_that_it_is_deferred() -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"\nbnuq: ending after the work in hand; the same signal again ends it at once.\n")


@contextlib.contextmanager
def on_signals() -> Iterator[None]:
    """Inside the block, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated. Where that exception was
    swallowed, the end of the block raises it again. An ignored signal stays ignored (nohup)."""
    global _received, _deferring, _message
    _received, _deferring, _message = None, False, None
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
    global _received, _deferring, _message
    if _received is not None:
        _deferring = False
    elif _deferring:
        _message = threading.Timer(_PATIENCE, _say_that_it_is_deferred)
        _message.daemon = True
        _message.start()
    _received = signum
    check()
