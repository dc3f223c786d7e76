"""Fetches the files of known sets: each whole and with the right checksum, or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from bnuq import stopping
from bnuq.data import uci
from bnuq.data.known import KnownSet, data_roots, location
from bnuq.data.readers.common import readable
from bnuq.data.remote import Remote, remotes_of, size_of
from bnuq.errors import DataError, RequestError
from bnuq.files.content import exists
from bnuq.files.writing import check_writable, continued, part_of
from bnuq.progress import Progress, silent

TIMEOUT = 30.0  # seconds without an answer, or without a byte
_ATTEMPTS = 2  # at one address, where the connection fails


def fetch(
    known: KnownSet,
    splits: Iterable[str],
    *,
    data_root: Path | None = None,
    announce: Callable[[str], object] = lambda _: None,
    progress: Progress = silent,
) -> tuple[Path, ...]:
    """Fetch the files of these splits that are nowhere below the data roots, and return their places below the first.
    `announce` receives size, terms and destination before anything is fetched. Raises RequestError without pooch,
    DataError where no address gives a file with the published checksum, and ResultError where it cannot be written.
    """
    roots = data_roots(data_root)
    files: dict[Remote, None] = {}
    for split in splits:
        remotes, place = remotes_of(known.name)[split], location(known, split, roots)
        if place is None or place in [roots[0] / remote.path for remote in remotes]:
            files |= {remote: None for remote in remotes if not exists(roots[0] / remote.path)}
    if files:
        try:
            import pooch  # noqa: F401 - whether it is there
        except ImportError:
            raise RequestError('sets are fetched by pooch, which is not installed: pip install "bnuq[data]"') from None
        announce(f"fetching {known.name}, {size_of(files)}, to {roots[0]}. Terms: {known.source}")
    for remote in files:
        _fetch(remote, roots[0] / remote.path, progress)
    return tuple(roots[0] / remote.path for remote in files)


def _fetch(remote: Remote, target: Path, progress: Progress) -> None:
    folder = target.parent.parent if remote.splits else target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror}). Name another --data-root.") from error
    if remote.splits:
        _fetch_table(remote, target.parent, progress)
        return
    if not remote.member:
        _download(remote, target, progress)
        return
    archive = target.with_name(PurePosixPath(remote.urls[0]).name)
    if not exists(archive):
        _download(remote, archive, progress)
    _unpack(archive, remote.member, target)
    archive.unlink()


def _fetch_table(remote: Remote, target: Path, progress: Progress) -> None:
    """Make the folder `target` of the text files of a UCI set, if their numbers are the known ones. The files received
    stay in a folder beside it until then, for the next attempt; where they are wrong, all are fetched once more."""
    texts, made = target.with_name(f".{target.name}.part"), target.with_name(f".{target.name}.tmp")
    if exists(target) and any(target.iterdir()):
        raise DataError(f"{target}: exists but holds no data.csv. Move that folder away, so that it can be downloaded.")
    names, failure = uci.published_names(remote.splits), ""
    for is_new in dict.fromkeys((not exists(texts), True)):
        texts.mkdir(exist_ok=True)
        with progress(f"{target.name}, files", len(names)) as advance:
            for name in names:
                if not exists(texts / name):
                    urls = tuple(url + name for url in remote.urls)
                    _download(replace(remote, urls=urls, checksum=""), texts / name, silent)
                advance(1)
        shutil.rmtree(made, ignore_errors=True)
        try:
            table = uci.read_published(texts, remote.splits)
            if f"sha256:{uci.digest_of(*table)}" == remote.checksum:
                uci.write_stored(made, table)
                made.replace(target)
                return
            failure = f"the numbers in its files do not have the known checksum ({remote.checksum})"
        except DataError as error:
            failure = str(error)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            shutil.rmtree(texts, ignore_errors=True)
        if is_new:
            break
    raise DataError(
        f"{target.name} could not be fetched, and nothing was written:\n  {', '.join(remote.urls)}: {failure}\n"
        f"Try again later, or put data.csv and splits/ there yourself: {target}"
    )


def _download(remote: Remote, target: Path, progress: Progress) -> None:
    """Put the file at `target` from the first address that gives what the checksum says. It begins with what earlier
    attempts, also those of other commands and at other addresses, have left beside it."""
    check_writable(target)  # removes what a killed process left
    failures: dict[str, None] = {}
    try:
        with continued(target) as file:
            if (remote.checksum and _size(file) and _matches(remote, file)) or any(
                _from(url, remote, file, progress, failures) for url in remote.urls
            ):
                return
            kept = f"{_size(file):,} bytes are kept for the next attempt" if _size(file) else "nothing was written"
            raise DataError(
                f"{target.name} could not be fetched, and {kept}:\n{''.join(failures)}"
                f"Try again later, or put the file there yourself: {target}"
            )
    except (KeyboardInterrupt, stopping.Terminated) as stop:
        if exists(part := part_of(target)):
            received = f"{part.stat().st_size:,} bytes of {target.name} are kept in {part}"
            stop.add_note(f"{received}, and the same command resumes from them.")
        raise


def _from(url: str, remote: Remote, file: BinaryIO, progress: Progress, failures: dict[str, None]) -> bool:
    """Whether this address completes `file`; if not, the reason is added to `failures`.

    Where the content is wrong, the bytes of earlier attempts may be at fault: all is then fetched once from here.
    """
    attempts = 0
    while attempts < _ATTEMPTS:
        started_at = _size(file)
        with progress(f"{PurePosixPath(remote.path).name}, kB", remote.size // 1000) as advance:
            failure, outcome = _attempt(url, remote, file, advance)
        if failure is None:
            return True
        if outcome == "wrong":
            file.truncate(0)
            if started_at:
                continue
        failures[f"  {url}: {failure}\n"] = None
        if outcome != "temporary":
            break
        attempts += 1
    return False


def _attempt(
    url: str, remote: Remote, file: BinaryIO, advance: Callable[[int], Any]
) -> tuple[str | None, Literal["complete", "temporary", "permanent", "wrong"]]:
    """Add what is missing in `file` from this address; why that failed, or None, and of what kind that is."""
    import pooch
    import requests

    start = _size(file)
    counted = _Counted(file, remote.size, advance)
    # Bytes are counted as they are stored: a compressed transfer could not be continued.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        fetch_from = pooch.HTTPDownloader(
            chunk_size=2**18, timeout=TIMEOUT, headers=headers, hooks={"response": counted.begin}
        )
        fetch_from(url, counted, None)
    except requests.RequestException as error:
        if isinstance(error, requests.HTTPError) and error.response is not None:
            code = error.response.status_code
            if not (start and code == requests.codes.requested_range_not_satisfiable):  # nothing is missing
                return f"the server answered {code}", "temporary" if code >= 500 else "permanent"
        elif "timed out" in str(error).lower():
            return f"no answer for {TIMEOUT:g} seconds", "temporary"
        else:
            broken = f"the connection broke off after {counted.received:,} bytes"
            return broken if counted.received else "no connection", "temporary"
    except OverflowError:
        return f"it sends more than {remote.size:,} bytes, the size of the file", "wrong"
    finally:
        counted.end()
    if not remote.at_most and _size(file) < remote.size and not counted.is_length_known:
        return f"the connection broke off after {counted.received:,} bytes", "temporary"
    if not _matches(remote, file):
        return f"the {_size(file):,} bytes do not have the published checksum ({remote.checksum})", "wrong"
    return None, "complete"


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _matches(remote: Remote, file: BinaryIO) -> bool:
    if not remote.checksum:
        return True
    kind, _, digest = remote.checksum.partition(":")
    file.seek(0)
    return hashlib.file_digest(file, kind).hexdigest() == digest  # pyrefly: ignore - it has readinto


class _Counted:
    """The file that pooch writes to, after the bytes that the server leaves out: counts what is received, and ends it
    at a signal and above the file's size."""

    def __init__(self, file: BinaryIO, most: int, advance: Callable[[int], Any]) -> None:
        self._file, self._most, self._advance, self.received = file, most, advance, 0
        self.is_length_known, self._response = True, None

    def begin(self, response: Any, **_: Any) -> None:
        self._response = response
        if response.status_code in (200, 206):  # others are redirections and errors
            part = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            start = int(part[1]) if part and response.status_code == 206 else 0
            self._file.truncate(self._file.seek(min(start, _size(self._file))))
            self._count(start)
            self.is_length_known = any(name in response.headers for name in ("Content-Length", "Transfer-Encoding"))

    def end(self) -> None:
        if self._response is not None:
            self._response.close()

    def write(self, data: bytes) -> None:
        self._count(len(data))
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()
        stopping.check()

    def _count(self, more: int) -> None:
        self._advance((self.received + more) // 1000 - self.received // 1000)
        self.received += more
        if self.received > self._most:
            raise OverflowError


def _unpack(archive: Path, member: str, target: Path) -> None:
    """Put the folder `member` of the archive at `target`, whole or not at all; links and the like are left out."""
    beside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with readable(archive, "a .tar.gz archive"), tarfile.open(archive) as files:
            for entry in files:
                stopping.check()
                path = PurePosixPath(entry.name)
                content = files.extractfile(entry) if entry.isfile() and path.is_relative_to(member) else None
                if content is not None and ".." not in path.parts:
                    place = beside / path.relative_to(member)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with content, place.open("wb") as file:
                        shutil.copyfileobj(content, file)
        beside.replace(target)
    except FileNotFoundError as error:
        raise DataError(f"{archive}: holds no folder {member}. Delete it and fetch it again.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
