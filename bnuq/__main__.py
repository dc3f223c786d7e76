"""`bnuq` and `python -m bnuq`: answers signals before the imports, which take a second or two."""

import contextlib
import faulthandler
import os
import signal
import sys
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def main() -> None:
    """Run the command line as a process of its own."""
    for number in _WORDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _quit)
    with contextlib.suppress(Exception):  # standard error is closed
        faulthandler.enable()  # os.abort and crashes in code that bnuq runs: at which line
    from bnuq.cli.main import main as run

    sys.exit(run(whole_process=True))


def _quit(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    """Leave at once, where nothing is to be cleaned up: before a command has begun, or after its end."""
    with contextlib.suppress(OSError):
        os.write(2, f"bnuq: {_WORDS[signal.Signals(signum)]}.\n".encode())
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
