"""`bnuq data`: lists the known data sets, and where they are searched."""

from __future__ import annotations

import os
from pathlib import Path

from bnuq.cli.options import DataRoot
from bnuq.cli.output import print_line


def command(
    data_root: DataRoot = None,
) -> None:
    """List the built-in data sets: their splits, location and source."""
    from bnuq.data.known import data_roots, known_sets, places
    from bnuq.files.content import exists
    from bnuq.files.folders import expanded

    roots = data_roots(data_root)
    print_line("Use NAME:SPLIT wherever a reference is expected, as in --test cifar10:test.")
    for known in known_sets():
        print_line(f"\n{known.name}  ({known.task})")
        for split in known.splits:
            location = next((path for _, path in places(known, split, roots) if exists(path)), None)
            print_line(f"  {split:6} {location if location is not None else 'not found'}")
        layouts = dict.fromkeys(path for split in known.splits for _, path in places(known, split, (Path(),)))
        if any(not any(exists(path) for _, path in places(known, split, roots)) for split in known.splits):
            print_line(f"  expected {', '.join(map(str, list(layouts)[:4]))}{', …' if len(layouts) > 4 else ''}")
        print_line(f"  source {known.source}")
    print_line("\nThese folders are searched, in this order:")
    named = [f"{data_root}  (--data-root)" if data_root else "--data-root FOLDER was not given"]
    chosen = os.environ.get("BNUQ_DATA")
    named.append(f"{expanded(chosen)}  ($BNUQ_DATA)" if chosen else "$BNUQ_DATA is not set")
    named.append(f"{roots[-1]}  (cache)")
    for place in named:
        print_line(f"  {place}")
