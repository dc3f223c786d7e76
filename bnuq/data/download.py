"""Fetches the files of known sets: each whole and with the right checksum, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from bnuq import stopping
from bnuq.data.known import KnownSet, data_roots, location
from bnuq.data.readers.common import readable
from bnuq.data.remote import Remote, remotes_of, size_of
from bnuq.errors import DataError, RequestError
from bnuq.files.content import exists
from bnuq.files.writing import check_writable, replaced
from bnuq.progress import Progress, silent
from bnuq.shapes import Float, Int64

TIMEOUT = 30.0  # seconds without an answer, or without a byte


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
        remotes, destination = remotes_of(known.name)[split], location(known, split, roots)
        if destination is None or destination in [roots[0] / remote.path for remote in remotes]:
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
    """Make the folder `target` of the text files of a UCI set, if their numbers are the known ones."""
    if exists(target) and any(target.iterdir()):
        raise DataError(f"{target}: exists but holds no data.csv. Move that folder away, so that it can be downloaded.")
    names = published_names(remote.splits)
    try:
        with _made_beside(target) as made, tempfile.TemporaryDirectory() as texts:
            with progress(f"{target.name}, files", len(names)) as advance:
                for name in names:
                    urls = tuple(url + name for url in remote.urls)
                    _download(replace(remote, urls=urls, checksum=""), Path(texts) / name, silent)
                    advance(1)
            table = read_published(Path(texts), remote.splits)
            if f"sha256:{digest_of(*table)}" != remote.checksum:
                raise DataError(f"the numbers in its files do not have the known checksum ({remote.checksum})")
            write_stored(made, table)
    except DataError as error:
        raise DataError(
            f"{target.name} could not be fetched, and nothing was written:\n  {', '.join(remote.urls)}: {error}\n"
            f"Try again later, or put data.csv and splits/ there yourself: {target}"
        ) from error


@contextlib.contextmanager
def _made_beside(target: Path) -> Iterator[Path]:
    """The name of a folder, not there yet and where nobody else can write, which becomes `target` where the block ends
    well; DataError where another process has made that meanwhile."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
        yield (made := Path(beside) / "made")
        try:
            made.replace(target)
        except OSError as error:
            raise DataError(f"{target}: cannot be put there ({error.strerror}). Is it there by now?") from error


def _download(remote: Remote, target: Path, progress: Progress) -> None:
    """Put the file at `target` from the first address that gives what the checksum says."""
    check_writable(target, named=False)  # removes what a killed process left
    failures = ""
    for url in remote.urls:
        try:
            title = f"{PurePosixPath(remote.path).name}, kB"
            with replaced(target, named=False) as file, progress(title, remote.size // 1000) as advance:
                _receive(url, remote, file, advance)
            return
        except _TransferError as failure:
            failures += f"  {url}: {failure}\n"
    raise DataError(
        f"{target.name} could not be fetched, and nothing was written:\n{failures}"
        f"Try again later, or put the file there yourself: {target}"
    )


class _TransferError(Exception):
    """Why an address did not give the file."""


def _receive(url: str, remote: Remote, file: BinaryIO, advance: Callable[[int], Any]) -> None:
    """Write what this address sends to `file`; _TransferError unless it is what the checksum says."""
    import pooch
    import requests

    # Bytes are counted as they are stored, so the transfer must not be compressed.
    download = pooch.HTTPDownloader(
        chunk_size=2**18,
        timeout=TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        progressbar=_Counter(file, remote.size, advance),
    )
    try:
        download(url, file, None)
    except requests.HTTPError as error:
        code = "an error" if error.response is None else error.response.status_code
        raise _TransferError(f"the server answered {code}") from error
    except requests.RequestException as error:
        received = file.tell()
        if "timed out" in str(error).lower():
            raise _TransferError(f"no answer for {TIMEOUT:g} seconds") from error
        broken = f"the connection broke off after {received:,} bytes" if received else "no connection"
        raise _TransferError(broken) from error
    kind, _, digest = remote.checksum.partition(":")
    size = file.tell()
    file.seek(0)
    if digest and hashlib.file_digest(file, kind).hexdigest() != digest:  # pyrefly: ignore - it has readinto
        raise _TransferError(f"the {size:,} bytes do not have the published checksum ({remote.checksum})")
    file.seek(size)


class _Counter:
    """The progress bar of a transfer, as pooch calls it: ends it at a signal, and above the size of the file."""

    def __init__(self, file: BinaryIO, size: int, advance: Callable[[int], Any]) -> None:
        self._file, self._size, self._advance, self._kilobytes = file, size, advance, 0
        self.total = 0

    def update(self, _: int) -> None:
        stopping.check()
        if (received := self._file.tell()) > self._size:
            raise _TransferError(f"it sends more than {self._size:,} bytes, the size of the file")
        self._advance(received // 1000 - self._kilobytes)
        self._kilobytes = received // 1000

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


def _unpack(archive: Path, member: str, target: Path) -> None:
    """Put the folder `member` of the archive at `target`, whole or not at all; links and the like are left out."""
    with readable(archive, "a .tar.gz archive"), tarfile.open(archive) as files, _made_beside(target) as made:
        for entry in files:
            stopping.check()
            path = PurePosixPath(entry.name)
            content = files.extractfile(entry) if entry.isfile() and path.is_relative_to(member) else None
            if content is not None and ".." not in path.parts:
                member_path = made / path.relative_to(member)
                member_path.parent.mkdir(parents=True, exist_ok=True)
                with content, member_path.open("wb") as file:
                    shutil.copyfileobj(content, file)
        if not made.exists():
            raise DataError(f"{archive}: holds no folder {member}. Delete it and fetch it again.")


Table = tuple[Float[np.ndarray, "row input"], Float[np.ndarray, " row"], list[Int64[np.ndarray, " test_row"]]]


def digest_of(inputs: np.ndarray, targets: np.ndarray, splits: Sequence[np.ndarray]) -> str:
    """The SHA-256 of the numbers: shape, inputs and targets in float64, and the test rows of each split in int64."""
    rows, columns = inputs.shape
    digest = hashlib.sha256(f"{rows} rows, {columns} inputs, {[len(split) for split in splits]}".encode())
    for values, kind in ((inputs, "<f8"), (targets, "<f8"), *((split, "<i8") for split in splits)):
        digest.update(np.ascontiguousarray(values, kind).tobytes())
    return digest.hexdigest()


def published_names(splits: int) -> tuple[str, ...]:
    """The text files of a set with so many splits."""
    return ("data.txt", "index_features.txt", "index_target.txt", *(f"index_test_{k}.txt" for k in range(splits)))


def read_published(folder: Path, splits: int) -> Table:
    """Inputs, targets and the test rows of each split in the text files of `folder`; DataError where they cannot be
    read."""
    table, features, target, *rows = (_numbers(folder / name) for name in published_names(splits))
    with readable(folder / "data.txt", "a table"):
        return table[:, _whole(features)], table[:, _whole(target)[0]], list(map(_whole, rows))


def write_stored(folder: Path, table: Table) -> None:
    """Write a table and its splits as they are stored here, every number exactly."""
    inputs, targets, splits = table
    (folder / "splits").mkdir(parents=True)
    lines = [",".join([*(f"x{column}" for column in range(inputs.shape[1])), "y"])]
    lines += [",".join(map(repr, row)) for row in np.column_stack((inputs, targets)).tolist()]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    for number, rows in enumerate(splits):
        text = "".join(f"{row}\n" for row in rows)
        (folder / "splits" / f"test_{number:02d}.txt").write_text(text)


def _numbers(file: Path) -> np.ndarray:
    with readable(file, "numbers"):
        return np.loadtxt(file, dtype=np.float64, ndmin=2 if file.name == "data.txt" else 1)


def _whole(numbers: np.ndarray) -> np.ndarray:
    whole = numbers.astype(np.int64)
    if not np.array_equal(whole, numbers):
        raise ValueError("expected whole numbers")
    return whole
