"""A signal that ends the run, raised where it arrives and remembered, in case somebody swallows what was raised."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: int | None = None


class Terminated(BaseException):
    """SIGTERM, as an exception, so that what was begun is cleaned up."""


def check() -> None:
    """Raise again what a signal raised earlier: a bare `except`, a `__del__` or a callback from C may have lost it."""
    if _received is not None:
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated


@contextlib.contextmanager
def on_signals() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt and SIGTERM raises Terminated; so does the end of the block after a
    signal, whatever became of what it raised. A signal that is ignored stays so (nohup)."""
    global _received
    _received = None
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with contextlib.suppress(ValueError):  # not in the main thread: the signals belong to somebody else
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
