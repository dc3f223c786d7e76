"""`bnuq data`: lists the known data sets and where they are searched; `bnuq data get NAME` fetches one."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnuq.cli.options import DataRoot, Quiet
from bnuq.cli.streams import print_entry, print_line
from bnuq.errors import RequestError

if TYPE_CHECKING:
    from bnuq.data.known import KnownSet


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="get and the names of known sets (NAME, or NAME:SPLIT for a part), to download them into the first of "
            "the searched folders. Default: list the sets.",
            metavar="get NAME",
            show_default=False,
        ),
    ] = None,
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """List the known data sets: their splits, location, source and size; or fetch some with
    `bnuq data get NAME`."""
    if not words:
        _list(data_root)
    elif words[0] != "get" or not words[1:]:
        raise RequestError(f"bnuq data {' '.join(words)}: expected bnuq data, or bnuq data get NAME.")
    else:
        _get([_requested(name) for name in words[1:]], data_root, quiet=quiet)


def _list(data_root: Path | None) -> None:
    from bnuq.data.known import data_roots, known_sets, location, places
    from bnuq.data.remote import default_splits, remotes_of, size_of_splits
    from bnuq.files.folders import expanded

    roots = data_roots(data_root)
    print_entry("", "Use NAME:SPLIT wherever REF is expected, as in --test cifar10:test.")
    for known in known_sets():
        print_line("")
        print_entry("", f"{known.name}  ({known.task})")
        paths = {split: location(known, split, roots) for split in known.splits}
        for split, path in paths.items():
            print_entry(f"  {split:6} ", "not found" if path is None else str(path))
        if None in paths.values():
            layouts = dict.fromkeys(path for split in known.splits for _, path in places(known, split, (Path(),)))
            print_entry("  expected ", f"{', '.join(map(str, list(layouts)[:4]))}{', …' if len(layouts) > 4 else ''}")
        usual = default_splits(known.name)
        others = [split for split in remotes_of(known.name) if split not in usual]
        sizes = [f"{size_of_splits(known.name, usual)} (bnuq data get {known.name})"]
        sizes += [f"{split} {size_of_splits(known.name, [split])}" for split in others]
        print_entry("  get    ", ", ".join(sizes))
        print_entry("  source ", known.source)
    print_line("")
    print_entry("", "These folders are searched, in this order:")
    named = [f"{data_root}  (--data-root)" if data_root else "--data-root FOLDER was not given"]
    chosen = os.environ.get("BNUQ_DATA")
    named.append(f"{expanded(chosen)}  ($BNUQ_DATA)" if chosen else "$BNUQ_DATA is not set")
    named.append(f"{roots[-1]}  (cache)")
    for folder_text in named:
        print_entry("  ", folder_text)


def _requested(name: str) -> tuple[KnownSet, tuple[str, ...]]:
    """The set, and the splits to fetch."""
    from bnuq.data.known import known_set, known_sets
    from bnuq.data.remote import default_splits, remotes_of

    known = known_set(name)
    if known is None:
        names = [known.name for known in known_sets()]
        close = difflib.get_close_matches(name.lower().partition(":")[0], names, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Can be fetched: {', '.join(names)}."
        raise RequestError(f"{name}: no data set is known by that name. {hint}")
    _, colon, split = name.partition(":")
    if colon and split not in remotes_of(known.name):
        forms = ", ".join(f"{known.name}:{option}" for option in remotes_of(known.name))
        raise RequestError(f"{name}: there is no such split; expected {known.name}, {forms}.")
    return known, (split,) if colon else default_splits(known.name)


def _get(requested: list[tuple[KnownSet, tuple[str, ...]]], data_root: Path | None, *, quiet: bool) -> None:
    from bnuq.cli.progress import Bars
    from bnuq.data.download import fetch
    from bnuq.data.known import data_roots, location
    from bnuq.progress import silent

    def announce(text: str) -> None:
        if not quiet:
            sys.stderr.write(f"bnuq: {text}\n")

    for known, splits in requested:
        fetch(known, splits, data_root=data_root, announce=announce, progress=silent if quiet else Bars())
        for split in () if quiet else splits:
            print_line(f"{known.name}:{split}  {location(known, split, data_roots(data_root))}")
