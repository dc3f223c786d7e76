"""Runs user code such that whatever it raises becomes a single BnuqError that says where.

Networks, factories, data sets and their transforms may raise anything: SystemExit, GeneratorExit, exceptions that
cannot be printed. None of these may end the process with an exit code that means something else. Only what raises no
exception escapes: `os._exit`, a signal that cannot be caught, and a crash in native code end the process silently.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bnuq import stopping
from bnuq.errors import BnuqError, RequestError, device_failure_message, is_device_failure, is_out_of_memory

T = TypeVar("T")
U = TypeVar("U")

_OWN = f"{Path(__file__).parent}{os.sep}"
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())
)


@contextmanager
def user_code(
    doing: str, *, advice: str | Callable[[str], str], error: type[BnuqError] = RequestError, file: Path | None = None
) -> Iterator[None]:
    """Turn any exception of the block into an `error`: "`doing` ValueError at FILE, line N: its message. `advice`".

    Errors of bnuq, an exhausted memory and a signal that ends the run pass through. `advice` may depend on what
    was said; `file` counts as the user's own code wherever it lies.
    """
    try:
        yield
    except (BnuqError, KeyboardInterrupt, stopping.Terminated):
        raise
    except BaseException as raised:
        if _answer(is_out_of_memory, raised, or_else=False):
            raise
        if _answer(is_device_failure, raised, or_else=False):
            raise error(device_failure_message(raised)) from raised
        if isinstance(raised.__cause__, StopIteration):  # a generator in between made it another error
            raised = raised.__cause__
        if isinstance(raised, SystemExit):
            advice = "That code itself ends the process (sys.exit): remove the call."
        elif not is_failure(raised):
            advice = "That code itself raises this error, not an operation in it: fix it there."
        message = message_of(raised)
        place = place_of(raised, file)
        raise error(
            f"{doing} {type(raised).__name__}{place and f' at {place}'}{message and f': {message}'}"
            f"{'' if message.endswith('.') else '.'} {advice if isinstance(advice, str) else advice(message)}"
        ) from raised
    finally:
        stopping.check()


def is_failure(error: BaseException | None) -> bool:
    """Whether an operation may have raised this: an exception, and one that can be printed."""
    return isinstance(error, Exception) and _answer(str, error, or_else=None) is not None


def message_of(error: BaseException) -> str:
    """The message of an exception, on one line; empty if it has none, or cannot be printed."""
    return " ".join(_answer(str, error, or_else="").split())[:300]


def place_of(
    error: BaseException, file: Path | None = None, *, users_only: bool = False, program: Path | None = None
) -> str:
    """FILE, line N: the innermost line of the user's own code, else of a library other than torch; empty if there is
    none. With `users_only`, lines of libraries do not count; code in the folder `program` is as bnuq's own."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    never = (
        _OWN,
        "<",
        *([f"{program}{os.sep}"] if program else []),
        *([f"{Path(torch).parent}{os.sep}"] if torch else []),
    )
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    outside = [(name, line) for name, line in frames if name == str(file) or not name.startswith(never)]
    users = [(name, line) for name, line in outside if name == str(file) or not name.startswith(_LIBRARIES)]
    shown = users if users_only else users or outside
    return f"{shown[-1][0]}, line {shown[-1][1]}" if shown else ""


def _answer(question: Callable[[BaseException], T], error: BaseException, *, or_else: U) -> T | U:
    """What `question` says of an exception; `or_else` where the exception's own `__str__` fails."""
    try:
        return question(error)
    except (KeyboardInterrupt, stopping.Terminated):
        raise
    except BaseException:
        return or_else
