"""HDF5 files: new ones built in memory; those that nobody vouched for opened only where they hold no surprises."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]

from bnuq.errors import BnuqError, ResultError
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.files.limits import declares_too_much

_PLAIN_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate … scale-offset, lzf; others load libraries by name


def image_of(lay_out: Callable[[Any], object]) -> bytes:
    """The bytes of the HDF5 file that `lay_out` fills, built in memory: the HDF5 library does not survive a full disk,
    and never sees one."""
    with h5py.File("image", "w", driver="core", backing_store=False) as file:
        lay_out(file)
        file.flush()
        return file.id.get_file_image()


@contextlib.contextmanager
def open_hdf5(path: Path, what: str = "result file", *, error: type[BnuqError] = ResultError) -> Iterator[h5py.File]:
    """The HDF5 file at `path`, open for reading, after every object in it was looked at.

    Raises `error` for what is missing, empty, a git-lfs pointer, not HDF5 or cut short; for links other than hard ones,
    external storage and virtual data sets, which would read other files without a word; for filters that load
    libraries; and for data sets that declare far more than the file can hold. Works in a read-only folder.
    """
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise error(f"{path}: {wrong}")
    if kind != "hdf5":
        raise error(f"{path}: is not an HDF5 file (it looks like {kind}); expected a {what}.")
    try:
        file = _opened(path)
    except (OSError, RuntimeError, ValueError) as fault:
        raise error(f"{path}: cannot be read as HDF5: it is cut short or damaged ({_short(fault)}).") from fault
    with file:
        try:
            complaint = _complaint(file, path.stat().st_size)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as fault:
            raise error(f"{path}: cannot be read as HDF5: it is damaged ({_short(fault)}).") from fault
        if complaint:
            raise error(f"{path}: {complaint} A {what} never does; get it from someone you trust.")
        yield file


def _opened(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking=False)  # a read-only folder has no room for a lock
    except OSError as fault:
        if "locking flag" not in str(fault):
            raise
        return h5py.File(path, "r")  # this process has it open already, with a lock


def _complaint(file: h5py.File, size: int) -> str | None:
    """What speaks against reading this file, or None. No link is followed before its class is known."""
    declared = 0
    seen: set[int] = set()
    groups = [(file["/"].id, "")]
    while groups:
        group, where = groups.pop()
        declared += _attribute_bytes(group)
        for key in group:
            name = f"{where}/{key.decode('utf-8', 'replace')}"
            kind = group.links.get_info(key).type
            if kind != h5l.TYPE_HARD:
                return f"{name} is {_LINKS.get(kind, 'a link of an unknown kind')} and would read something else."
            member = h5o.open(group, key)
            address = h5o.get_info(member).addr
            if address in seen:
                continue
            seen.add(address)
            if isinstance(member, h5g.GroupID):
                groups.append((member, name))
                continue
            if isinstance(member, h5d.DatasetID):
                if complaint := _storage_complaint(member, name):
                    return complaint
                declared += _bytes(member)
            declared += _attribute_bytes(member)
            if declares_too_much(declared, stored=size):
                return f"{name} makes it declare {declared:.3g} bytes of data in a file of {size} bytes."
    return None


def _storage_complaint(dataset: h5d.DatasetID, name: str) -> str | None:
    creation = dataset.get_create_plist()
    if creation.get_layout() == h5d.VIRTUAL:
        return f"{name} is a virtual data set and would read other files."
    if creation.get_external_count():
        return f"{name} keeps its data in an external file."
    filters = {creation.get_filter(index)[0] for index in range(creation.get_nfilters())}
    if unknown := filters - _PLAIN_FILTERS:
        return f"{name} needs the HDF5 filter {min(unknown)}, which would load a library."
    return None


def _bytes(thing: h5d.DatasetID | h5a.AttrID) -> int:
    # In Python's integers: HDF5's own product wraps around.
    return math.prod(thing.get_space().get_simple_extent_dims()) * thing.get_type().get_size()


def _attribute_bytes(thing: h5g.GroupID | h5d.DatasetID) -> int:
    return sum(_bytes(h5a.open(thing, index=i)) for i in range(h5a.get_num_attrs(thing)))


_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "a link to another file"}


def _short(fault: Exception) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0].strip("'\"")[:160]
