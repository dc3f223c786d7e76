"""Signals that end the run: raised where they arrive, and remembered in case the exception is swallowed."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: int | None = None
_deferring = False
_over = threading.Event()  # the deferral in which a signal came
_PATIENCE, _LONGEST = 1.0, 4.0  # seconds of a deferral that needs no message, and after which it ends


class Terminated(BaseException):
    """SIGTERM as an exception, so that unfinished work is cleaned up."""


def check() -> None:
    """Raise a received signal again: a bare `except`, a `__del__` or a C callback may have swallowed its exception."""
    if _received is not None and not _deferring:
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A block that a first signal does not interrupt: its exception is raised at the end, or after five seconds. A
    second one ends it at once."""
    global _deferring
    before, _deferring = _deferring, True
    try:
        yield
    finally:
        if not before:
            _over.set()
        _deferring = before
    check()


def _hurry(signum: int) -> None:
    """Say that a deferral goes on, and end it."""
    if not _over.wait(_PATIENCE):
        with contextlib.suppress(OSError):
            os.write(2, b"\nbnuq: ending soon, with the work in hand if possible; the same signal again ends it.\n")
        if not _over.wait(_LONGEST):
            _thread.interrupt_main(signal.Signals(signum))


@contextlib.contextmanager
def on_signals() -> Iterator[None]:
    """Inside the block, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated. Where that exception was
    swallowed, the end of the block raises it again. An ignored signal stays ignored (nohup)."""
    global _received, _deferring
    _received, _deferring = None, False
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
    global _received, _deferring
    if _received is not None:
        _deferring = False
    elif _deferring:
        _over.clear()
        threading.Thread(target=_hurry, args=[signum], daemon=True).start()
    _received = signum
    check()
