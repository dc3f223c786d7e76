"""`bnuq` and `python -m bnuq`: answers signals before the imports, which take a second or two."""

# ruff: noqa: E402 - signals are answered before anything else is imported

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # not that of typing, which takes milliseconds
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def _quit(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    """Leave at once, where nothing is to be cleaned up: before a command has begun, or after its end."""
    try:  # noqa: SIM105 - contextlib is not yet there
        os.write(2, f"bnuq: {_WORDS[signal.Signals(signum)]}.\n".encode())
    except OSError:
        pass
    os._exit(128 + signum)


for _number in _WORDS:
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, _quit)

import contextlib
import faulthandler
import gc
import sys
import warnings

from bnuq import surroundings


def main() -> None:
    """Run the command line as its own process."""
    with contextlib.suppress(Exception):  # standard error is closed
        faulthandler.enable()  # os.abort and crashes in code that bnuq runs: at which line
    for module in ("bnuq", "numpy", "scipy"):  # overflow and NaN are handled, and named where they matter
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=rf"{module}(\.|$)")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: threads that wait do not spin
    gc.set_threshold(20_000)  # what imports make is no garbage: a tenth of their time is spent looking for it
    if surroundings.too_small():
        _refuse(f"out of memory. {surroundings.limited_address_space()}")
    try:
        from bnuq.cli.main import main as run
    except (ImportError, MemoryError, OSError) as error:
        if (why := surroundings.environment_problem(error)) is None:
            raise
        _refuse(why)
    run()


def _refuse(message: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"bnuq: {message}\n".encode())
    sys.exit(2)


if __name__ == "__main__":
    main()
