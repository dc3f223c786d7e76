"""Fetches the files of known sets: each whole and with the published checksum, or not at all."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from bnuq import stopping
from bnuq.data.known import KnownSet, data_roots, location
from bnuq.data.readers.common import readable
from bnuq.data.remote import Remote, remotes_of, size_of
from bnuq.errors import DataError, RequestError
from bnuq.files.content import exists
from bnuq.files.writing import check_writable, replaced
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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target.parent}: cannot be made ({error.strerror}). Name another --data-root.") from error
    if not remote.member:
        _download(remote, target, progress)
        return
    archive = target.with_name(PurePosixPath(remote.urls[0]).name)
    if not exists(archive):
        _download(remote, archive, progress)
    _unpack(archive, remote.member, target)
    archive.unlink()


def _download(remote: Remote, target: Path, progress: Progress) -> None:
    """Put the file at `target` from the first address that gives what the checksum says."""
    check_writable(target)  # removes what a killed process left
    failures: dict[str, None] = {}
    with replaced(target) as file:
        for url in remote.urls:
            for _ in range(_ATTEMPTS):
                with progress(f"{target.name}, kB", remote.size // 1000) as advance:
                    failure, temporary = _attempt(url, remote, file, advance)
                if failure is None:
                    return
                failures[f"  {url}: {failure}\n"] = None
                if not temporary:
                    break
        raise DataError(
            f"{target.name} could not be fetched, and nothing was written:\n{''.join(failures)}"
            f"Try again later, or put the file there yourself: {target}"
        )


def _attempt(url: str, remote: Remote, file: BinaryIO, advance: Callable[[int], Any]) -> tuple[str | None, bool]:
    """Fill `file` from this address; why that failed, or None, and whether it may go well another time."""
    import pooch
    import requests

    file.seek(0)
    file.truncate()
    counted = _Counted(file, remote.size, advance)
    try:
        pooch.HTTPDownloader(chunk_size=2**18, timeout=TIMEOUT)(url, counted, None)
    except requests.RequestException as error:
        if isinstance(error, requests.HTTPError) and error.response is not None:
            return f"the server answered {error.response.status_code}", error.response.status_code >= 500
        if "timed out" in str(error).lower():
            return f"no answer for {TIMEOUT:g} seconds", True
        broken = f"the connection broke off after {counted.received:,} bytes"
        return broken if counted.received else "no connection", True
    except OverflowError:
        return f"it sends more than {remote.size:,} bytes, the size of the file", False
    file.flush()
    kind = remote.checksum.partition(":")[0]
    if f"{kind}:{pooch.file_hash(file.name, kind)}" != remote.checksum:
        return f"the {counted.received:,} bytes do not have the published checksum ({remote.checksum})", False
    return None, False


class _Counted:
    """The file that pooch writes to: counts what is received, and ends it at a signal and above the file's size."""

    def __init__(self, file: BinaryIO, most: int, advance: Callable[[int], Any]) -> None:
        self._file, self._most, self._advance, self.received = file, most, advance, 0

    def write(self, data: bytes) -> None:
        self._advance((self.received + len(data)) // 1000 - self.received // 1000)
        self.received += len(data)
        if self.received > self._most:
            raise OverflowError
        self._file.write(data)

    def flush(self) -> None:
        stopping.check()


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
