"""`bnuq data`: the data sets that are known by name, and where they are looked for."""

from __future__ import annotations

import os
from pathlib import Path

from bnuq.cli.options import DataRoot
from bnuq.cli.output import say


def command(
    data_root: DataRoot = None,
) -> None:
    """List the data sets that are known by name: their splits, where each lies or would be looked for, and source."""
    from bnuq.data.known import data_roots, known_sets, places
    from bnuq.files.content import exists
    from bnuq.files.folders import expanded

    roots = data_roots(data_root)
    say("NAME:SPLIT names a set wherever a reference is expected, as in --test cifar10:test.")
    for known in known_sets():
        say(f"\n{known.name}  ({known.task})")
        for split in known.splits:
            there = next((path for _, path in places(known, split, roots) if exists(path)), None)
            say(f"  {split:6} {there if there is not None else 'not found'}")
        layouts = dict.fromkeys(path for split in known.splits for _, path in places(known, split, (Path(),)))
        if any(not any(exists(path) for _, path in places(known, split, roots)) for split in known.splits):
            say(f"  wanted {', '.join(map(str, list(layouts)[:4]))}{', …' if len(layouts) > 4 else ''}")
        say(f"  source {known.source}")
    say("\nLooked for below these folders, in this order:")
    named = [f"{data_root}  (--data-root)" if data_root else "--data-root FOLDER was not given"]
    chosen = os.environ.get("BNUQ_DATA")
    named.append(f"{expanded(chosen)}  ($BNUQ_DATA)" if chosen else "$BNUQ_DATA is not set")
    named.append(f"{roots[-1]}  (cache)")
    for place in named:
        say(f"  {place}")
