"""Keeps each finished unit of work in a file until the result is written, so that an interruption costs a single unit.

Several processes may share a journal: a unit is complete or absent, and is the same whichever process computed it. A
unit that was started has a file that names the process, until it is finished.

The file of a unit ends in a seal: an HMAC of its bytes, its name and all that determines it. In a folder beside a
result its key is a secret of this user, so that nobody else can put units there. A folder that the user names is the
user's word, and has none. Nothing is parsed before its seal was seen: a unit that was damaged in whatever way is
computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.errors import RequestError, ResultError
from bnuq.files.folders import user_secret
from bnuq.files.places import Folder, Place, place_of
from bnuq.files.writing import sole_request
from bnuq.findings import note
from bnuq.frozen import frozen

Arrays = dict[str, np.ndarray]
Facts = Mapping[str, Any]
Names = frozenset[str]

SECONDS = "seconds"  # the array that says what a unit took: no figure, so no part of its digest
MOST_ATTEMPTS = 3  # to finish a unit
_LATEST, _MOST_LATEST = 2**22, 64  # bytes and number of the units that are also kept in memory
_SEAL = hashlib.sha256().digest_size  # bytes of the seal at the end of a file
_KEY, _SUFFIX = 24, ".part"  # hexadecimal digits of a key, and how the name of a unit's file ends
_OF_ANY_KEY = re.compile(rf"[0-9a-f]{{{_KEY}}}-.*{re.escape(_SUFFIX)}")
_LEFT_OVER = re.compile(rf"[0-9a-f]{{{_KEY}}}(-.*\.(part|try\d)|\.json)|\.[0-9a-f]{{{_KEY}}}[-.].*\.tmp")


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the arrays that hold figures: their names, types, shapes and values."""
    sha256 = hashlib.sha256()
    for name in sorted({*arrays} - {SECONDS}):
        values = np.ascontiguousarray(arrays[name])
        sha256.update(json.dumps([name, values.dtype.str, arrays[name].shape]).encode())
        sha256.update(values.tobytes() if values.dtype.kind == "U" else values.reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def root_of(digests: Mapping[str, str]) -> str:
    """The root of the Merkle tree of units, whose leaves are their names and digests, in the order of the names."""
    level = [hashlib.sha256(f"{unit}\0{digests[unit]}".encode()).digest() for unit in sorted(digests)]
    while len(level) > 1:
        pairs = (level[at : at + 2] for at in range(0, len(level), 2))
        level = [hashlib.sha256(b"".join(pair)).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0].hex() if level else ""


def _bytes_of(units: Iterable[Mapping[str, np.ndarray]]) -> int:
    return sum(values.nbytes for arrays in units for values in arrays.values())


def _copied(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Copies of the arrays, with the order in memory that reading them from a file gives."""
    return {name: np.array(values, order="A") for name, values in arrays.items()}


class Journal:
    """Finished units, in a place that others may share: only those that the same `facts` determined are seen, and were
    sealed with the same `secret`; the names of their files begin with a key of both. What these facts are `about`, if
    it is given, stands beside the units as KEY.json. `before` are the files that were there before this run."""

    def __init__(
        self,
        place: Place | Path,
        facts: Facts,
        about: Facts | None = None,
        *,
        secret: bytes = b"",
        before: Names = frozenset(),
        doubt: str = "",
    ) -> None:
        text = json.dumps(facts, sort_keys=True)
        self.place: Place = Folder(place) if isinstance(place, Path) else place
        self._facts, self._secret, self._before = hashlib.sha256(text.encode()).hexdigest(), secret, before
        self.key = hmac.digest(secret, self._facts.encode(), "sha256").hex()[:_KEY]
        others = (name for name in before if _OF_ANY_KEY.fullmatch(name) and not name.startswith(self.key))
        self.doubts = (note("parts-repeated", why=doubt),) if doubt and any(others) else ()
        """A note if there were units before this run, and they are not believed."""
        self.reused = 0
        """The number of units that were finished before this run, and read."""
        self.digests: dict[str, str] = {}
        """The digest of each unit that was saved or read."""
        self._description = None if about is None else {"facts": json.loads(text), **about}  # until it is written
        self._given_up = False  # units could not be written
        self._latest: dict[bytes, tuple[str, Arrays]] = {}  # units that were saved and their digests, by their seals

    def path(self, unit: str) -> Any:
        """The file of a unit: a path, or a URL."""
        return self.place.of(self._name(unit))

    def _name(self, unit: str, suffix: str = _SUFFIX) -> str:
        return f"{self.key}-{unit}{suffix}"

    def has(self, unit: str) -> bool:
        """Whether a unit is finished; that it can be read is seen by `load`."""
        return self.place.exists(self._name(unit))

    def is_unproved(self, unit: str) -> bool:
        """Whether a unit was there before this run, and nothing but the user's word says that bnuq computed it."""
        return not self._secret and self._name(unit) in self._before

    def load(self, unit: str, sha256: str = "") -> Arrays | None:
        """The arrays of a finished unit by name, of the set of this digest; None if it does not exist, or is not what
        was saved."""
        content = self.place.read(self._name(unit)) or b""
        body, seal = content[:-_SEAL], content[-_SEAL:]
        if not hmac.compare_digest(self._seal(unit, sha256, body), seal):
            return None
        if seal in self._latest:
            self.digests[unit], latest = self._latest[seal]
            return _copied(latest)
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        self.reused += unit not in self.digests and self._name(unit) in self._before
        self.digests[unit] = digest_of(arrays)
        return arrays

    def _seal(self, unit: str, sha256: str, body: bytes) -> bytes:
        sealed = "\0".join((self._facts, unit, sha256, hashlib.sha256(body).hexdigest()))
        return hmac.digest(self._secret, sealed.encode(), "sha256")

    def save(self, unit: str, arrays: Mapping[str, np.ndarray], sha256: str = "", *, needed: bool = True) -> None:
        """Save a finished unit. If it cannot be written, that is a ResultError if it is `needed` again, in this run
        or by another process; otherwise the disk is left to the result, without any units."""
        self.digests[unit] = digest_of(arrays)
        if self._given_up and not needed:
            return
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # pyrefly: ignore - its stub
        seal = self._seal(unit, sha256, body := buffer.getvalue())
        try:
            self.announce()
            self._description = None
            self.place.write(self._name(unit), body + seal)
        except ResultError:
            if needed:
                raise
            self._given_up = True
            self.forget()
        else:
            if _bytes_of([arrays]) > _LATEST:
                return
            self._latest[seal] = self.digests[unit], _copied(arrays)
            while len(self._latest) > _MOST_LATEST or _bytes_of(kept for _, kept in self._latest.values()) > _LATEST:
                self._latest.pop(next(iter(self._latest)))

    def announce(self) -> None:
        """Say at the place what these units are about, before there are any, if it can be written."""
        name = f"{self.key}.json"
        with contextlib.suppress(ResultError):
            if self._description is not None and not self.place.exists(name):
                self.place.write(name, json.dumps(self._description, indent=1).encode())

    def retract(self) -> None:
        """Take that back, unless there are units."""
        with contextlib.suppress(ResultError):  # the store is gone
            if not any(name.startswith(f"{self.key}-") for name in self.place.names()):
                self.forget()

    def remove(self, *units: str) -> None:
        """Remove these units."""
        self.place.remove(map(self._name, units))

    def forget(self) -> None:
        """Remove every unit of these facts."""
        self.place.remove([name for name in self.place.names() if name.startswith((f"{self.key}-", f"{self.key}."))])

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def attempts(self, unit: str) -> list[dict[str, Any]]:
        """Who began the unit without having finished it so far, from the first to the last."""
        notes = []
        for number in range(MOST_ATTEMPTS):
            if (content := self.place.read(self._try(unit, number))) is None:
                break
            with contextlib.suppress(ValueError, RecursionError):
                notes += [attempt] if isinstance(attempt := json.loads(content), dict) else []
        return notes

    def begin(self, unit: str, number: int, who: Mapping[str, Any]) -> None:
        """Note who begins the unit, after so many attempts."""
        self.place.write(self._try(unit, number), json.dumps(who).encode())

    def end(self, unit: str, attempts: int) -> None:
        """Remove the notes of so many attempts."""
        self.place.remove([self._try(unit, number) for number in range(attempts)])

    def _try(self, unit: str, number: int) -> str:
        return self._name(unit, f".try{number}")


def requests_at(place: Place) -> dict[str, dict[str, Any]]:
    """What the journals at a place are about, by their keys."""
    requests = {}
    for name in place.names():
        if re.fullmatch(rf"[0-9a-f]{{{_KEY}}}\.json", name) and (content := place.read(name)) is not None:
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(about := json.loads(content), dict):
                    requests[name.removesuffix(".json")] = about
    return requests


@frozen
class WorkFolder:
    """A place of finished units, and the journals that were opened there. It is named by the user, or beside the
    result: its units are then sealed with a `secret`. `before` are the files that were there before this run, and
    `doubt` is why none of them is believed, if so."""

    place: Place
    secret: bytes = b""
    before: Names = frozenset()
    doubt: str = ""
    opened: list[Journal] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The place as a local folder; RequestError if it is a remote store."""
        if not isinstance(self.place, Folder):
            raise RequestError(f"--work {self.place}: expected a folder of this machine.")
        return self.place.path

    def journal(self, facts: Facts, about: Facts | None = None, before: Names | None = None) -> Journal:
        """The journal of the units that these facts determine, where the files `before` this run are given if other
        processes began earlier. RequestError if a named folder has units of another request for the same result."""
        before = self.before if before is None else before
        journal = Journal(self.place, facts, about, secret=self.secret, before=before, doubt=self.doubt)
        self.opened.append(journal)
        if not self.secret and about is not None:
            journal.announce()  # first: of two requests that start at once, one sees the other
            for key, other in requests_at(self.place).items():
                if key != journal.key and other.get("out") == about["out"]:
                    journal.retract()
                    raise RequestError(
                        f"--work {self.place} holds units of another request for {about['out']}: "
                        f"{_difference(other, {'facts': facts, **about})}. Name another folder, or remove {key}* there."
                    )
        return journal

    @contextlib.contextmanager
    def forgotten_on(self, kind: type[BaseException]) -> Iterator[None]:
        """A block after which the units of all its journals are removed where it raises this: they are wrong then, or
        of no use."""
        try:
            yield
        except kind:
            for journal in self.opened:
                journal.forget()
            raise


def _difference(other: Mapping[str, Any], this: Mapping[str, Any]) -> str:
    """The first setting, or else the first fact, in which two requests differ."""
    for part in ("run", "facts"):
        old, new = (dict(_settings(json.loads(json.dumps(facts.get(part, {}))))) for facts in (other, this))
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                return f"its {name} is {old.get(name)!s:.80}, and here {new.get(name)!s:.80}"
    return "its facts are others"


def _settings(table: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(table, dict):
        for key, value in table.items():
            yield from _settings(value, f"{name}.{key}" if name else key)
    else:
        yield name, table


def beside(out: Path) -> Path:
    """The folder of units beside a result."""
    return out.with_name(f"{out.name[:200]}.work")  # a name may have 255 bytes


def secret_for(out: Path, work: Path | str | None) -> tuple[bytes, str]:
    """What seals the units of a run that writes `out` with this `work`, and why none of before is believed, if so."""
    return (b"", "") if work is not None else user_secret(beside(out))


@contextlib.contextmanager
def work_folder(out: Path, work: Path | str | None = None, *, request: Any = None) -> Iterator[WorkFolder]:
    """The place of the units that work towards `out` resumes from: `work`, or a folder next to `out` if None.

    At the end of the block the units of its journals are removed, and a folder beside `out` altogether; after an
    interruption they stay, which the exception says. RequestError if it cannot be made or written to, or if a run of
    another `request` is at work on `out`.
    """
    with sole_request(out, request):
        place = place_of(work or beside(out))
        secret, doubt = secret_for(out, work)
        opened = WorkFolder(place, secret, frozenset(place.names()), doubt)
        with keeping(place, removes_empty=work is None):
            try:
                yield opened
            except BaseException:
                for journal in opened.opened:
                    journal.forget() if doubt else journal.retract()
                raise
            for journal in opened.opened:
                journal.forget()
        if work is None:
            _remove_all(place)


@contextlib.contextmanager
def keeping(place: Place, *, removes_empty: bool = False) -> Iterator[None]:
    """A block whose exceptions say that the finished units of a place are kept, if there are any."""
    try:
        yield
    except BaseException as error:
        names = []
        with contextlib.suppress(ResultError):  # the store is gone
            names = place.names()
        if any(_OF_ANY_KEY.fullmatch(name) for name in names):
            note = f"finished parts are kept in {place}: the same command resumes from them."
            if note not in getattr(error, "__notes__", ()):  # as an experiment's sweep has said before
                error.add_note(note)
        elif removes_empty:
            _remove_all(place)
        raise


def _remove_all(place: Place) -> None:
    """Remove the folder with all that finished and killed processes left there, unless something else is in it."""
    place.remove([name for name in place.names() if _LEFT_OVER.fullmatch(name)])
    if isinstance(place, Folder):
        place.remove_empty()
