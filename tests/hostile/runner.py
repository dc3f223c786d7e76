"""Runs `bnuq` on hostile files, each in a process of its own that has everything imported: a fork, watched.

Requests are lines of JSON on standard input, answers on standard output. A fork takes milliseconds where a start takes
seconds, and what it takes in time and memory beyond what this process has is its own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

_PATIENCE = 60  # seconds of the clock; the machine may be busy


def main() -> None:
    import torch  # noqa: F401

    from bnuq.cli.main import main as command

    for line in sys.stdin:
        print(json.dumps(_watched(json.loads(line), command)), flush=True)


def _watched(asked: dict[str, Any], command: Any) -> dict[str, Any]:
    folder = Path(asked["folder"])
    held = _held()
    pid = os.fork()
    if not pid:
        os._exit(_run(asked, folder, command))
    until = time.monotonic() + _PATIENCE
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        time.sleep(0.01)
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            until = float("inf")
    _, status, used = ended
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": used.ru_utime + used.ru_stime,
        "memory": 1024 * used.ru_maxrss - held,
        "hung": until == float("inf"),
    }


def _held() -> int:
    """What this process holds, and a fork of it begins with."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _run(asked: dict[str, Any], folder: Path, command: Any) -> int:
    os.setpgid(0, 0)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_CACHE_HOME": str(folder / "cache")}
    os.environ["PATH"] = f"{folder / 'programs'}{os.pathsep}{os.environ['PATH']}"
    for number, name in ((1, "said.out"), (2, "said.err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        if "mutate" in asked:
            return _mutated(folder, **asked["mutate"])
        command(asked["arguments"])
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 3
    except BaseException:
        import traceback

        traceback.print_exc()
        return 3
    finally:
        from bnuq.files.apart import stop

        stop()  # what it took is counted once it was waited for
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _mutated(folder: Path, kind: str, name: str, seeds: list[int]) -> int:
    """Read the file with something in it changed, once for every seed; 0 where each is read or refused."""
    from reading import READ

    from bnuq.errors import BnuqError

    whole, path = (folder / name).read_bytes(), folder / f"changed-{name}"
    for seed in seeds:
        path.write_bytes(changed(whole, seed))
        (folder / "seed").write_text(str(seed))
        try:
            READ[kind](path)
        except BnuqError as refusal:
            assert str(path) in str(refusal) and len(str(refusal)) < 3000, refusal
    return 0


def changed(whole: bytes, seed: int) -> bytes:
    """One byte, one bit or a few bytes of a file changed, or its end cut off."""
    import numpy as np

    random = np.random.default_rng(seed)
    content, at = bytearray(whole), int(random.integers(len(whole)))
    way = int(random.integers(8))
    if way < 4:
        content[at] = int(random.integers(256))
    elif way < 6:
        content[at] ^= 1 << int(random.integers(8))
    elif way < 7:
        content[at : at + 8] = random.bytes(8)
    else:
        del content[at:]
    return bytes(content)


if __name__ == "__main__":
    main()
