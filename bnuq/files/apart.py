"""Runs parsers in a separate process, because a forged file can crash them or keep them busy forever.

HDF5 and MATLAB files are opened and parsed in a child process, which runs `bnuq.files.parsing`; this process receives
only names, strings and numbers. If the child crashes, or takes more time or memory than the size of the file explains,
that becomes an OSError. The child is started with the first such file, serves all of them, and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bnuq.files.folders import state_folder, user_secret
from bnuq.files.mapped import Pool, Space

_SERVE = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from bnuq.files.parsing import serve; serve()"
_lock = threading.RLock()
_child: _ReadingProcess | None = None


class _ReadingProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    owner: int  # a fork of this process must not speak to it
    requests: IO[bytes]
    answers: IO[bytes]


def start(*paths: Path) -> None:
    """Start the child early, so that it starts up while the caller is still importing; not where only these files
    are read, and none by it."""
    if paths and all(noted_bytes(path) is not None for path in paths):
        return
    with _lock:
        _running()


def ask(operation: str, *arguments: Any, pool: Pool | None = None) -> Any:
    """The answer of the child: JSON, or an array of numbers, made by the `pool` where there is one.

    Raises KeyError for what is not in the file, ValueError for what is in it and cannot be read, OSError for a file
    that cannot be opened, or that the parser did not survive.
    """
    with _lock:
        if operation in _OF_AN_OPEN_FILE and (dead := _dead()):
            raise OSError(_end_of(dead))
        child = _running()
        try:
            child.requests.write(json.dumps([operation, *arguments]).encode() + b"\n")
            child.requests.flush()
            answer = _line(child)
            value = answer.get("value")
            if "array" in answer:
                dtype, shape = answer["array"]
                value, answer = _array(child, dtype, shape, pool)
        except (BrokenPipeError, EOFError) as error:
            raise OSError(_end_of(child)) from error
        except BaseException:  # the rest of the answer is still to come
            stop()
            raise
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS[kind](text)
    return value


_OF_AN_OPEN_FILE = {"read", "texts", "close"}  # which no child but the one that opened it can answer
_ERRORS = {"KeyError": KeyError, "ValueError": ValueError, "OSError": OSError}


def _line(child: _ReadingProcess) -> dict[str, Any]:
    line = child.answers.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)


def _array(
    child: _ReadingProcess, dtype: str, shape: Sequence[int], pool: Pool | None
) -> tuple[np.ndarray, dict[str, Any]]:
    """An array that follows in pieces, each behind its length, and the line that ends them. A large one is mapped."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with Space(size, pool) as space:
        while length := (line := _line(child)).get("piece", 0):
            if length > size:
                raise EOFError
            size -= length
            while length:
                count = child.answers.readinto(space.next[:length])  # type: ignore[attr-defined]
                if not count:
                    raise EOFError
                space.filled(count)
                length -= count
        if size and "error" not in line:
            raise EOFError
        if "error" in line or not math.prod(shape):
            return np.empty(tuple(shape) if "error" not in line else 0, dtype), line
        return space.bytes().view(dtype).reshape(tuple(shape)), line


def _dead() -> _ReadingProcess | None:
    """The child, if it died since its last answer."""
    if _child is None or _child.owner != os.getpid() or _child.process.poll() is None:
        return None
    return _child


def _running() -> _ReadingProcess:
    global _child
    if _dead():
        stop()
    if _child is not None and _child.owner == os.getpid():
        return _child
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _SERVE, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what a C library says while it dies
    )
    assert process.stdin is not None and process.stdout is not None
    if _child is None or _child.owner != os.getpid():
        atexit.register(stop)
    _child = _ReadingProcess(process, os.getpid(), process.stdin, process.stdout)
    return _child


def _end_of(child: _ReadingProcess) -> str:
    stop()
    code = child.process.returncode
    if code == -getattr(signal, "SIGXCPU", 0):
        return "reading it would take longer than its size can explain"
    name = signal.Signals(-code).name if -code in set(map(int, signal.Signals)) else f"exit code {code}"
    return f"its parser crashed ({name})"


def stop() -> None:
    """End the child, if there is one."""
    global _child
    child, _child = _child, None
    if child is None or child.owner != os.getpid():
        return
    with contextlib.suppress(OSError):
        child.requests.close()
    try:
        child.process.wait(0.2)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
    child.answers.close()


_LARGEST = 2**25  # bytes of a file that is read into memory
_MOST = 512  # notes


def note(data: bytes) -> None:
    """Note a file of these bytes, if it is not large; where there are too many notes the older half is dropped."""
    if len(data) > _LARGEST:
        return
    with contextlib.suppress(OSError):
        (folder := state_folder() / "written").mkdir(exist_ok=True)
        (folder / _name_of(data)).touch(mode=0o600)  # or noted again
        notes = sorted(folder.iterdir(), key=lambda each: each.lstat().st_mtime_ns)
        for old in notes[: -_MOST // 2] if len(notes) > _MOST else ():
            old.unlink()


def noted_bytes(path: Path) -> bytes | None:
    """What the file holds, if that is noted: it is these bytes that can be relied on, whatever the file becomes."""
    with contextlib.suppress(OSError):
        about = path.stat()
        if os.name != "posix" or about.st_size > _LARGEST or not stat.S_ISREG(about.st_mode):
            return None  # elsewhere an owner cannot be asked for, and a pipe would be waited for
        folder, data = state_folder() / "written", path.read_bytes()
        about = (folder / _name_of(data)).lstat()
        if stat.S_ISREG(about.st_mode) and about.st_size == 0:
            return data
    return None


def _name_of(data: bytes) -> str:
    return hmac.new(user_secret()[0], hashlib.sha256(data).digest(), hashlib.sha256).hexdigest()
