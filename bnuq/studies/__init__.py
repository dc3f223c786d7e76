"""The list of studies: commands with a folder of their own, which nothing else names. It has `command` (the options),
`request` (what is refused before torch is imported), `compute`, `record`, `view` (the report), and what these need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Study(NamedTuple):
    """A folder of this package, the class of its results in `record`, and the kind that their files say they are of."""

    folder: str
    result: str | None = None
    kind: str | None = None

    def module(self, name: str) -> Any:
        """This module of the study."""
        return import_module(f"{__name__}.{self.folder}.{name}")

    def result_class(self) -> Any:
        """The class of its results."""
        return getattr(self.module("record"), str(self.result))


STUDIES = {
    "score": Study("score"),
    "init": Study("init"),
    "sweep-batch-size": Study("sweep", "Sweep", "sweep"),
    "shift": Study("shift"),
    "inspect": Study("inspect", "Inspection", "inspection"),
    "precise-bn": Study("precise_bn", "PreciseBN"),
    "export": Study("export"),
    "monitor": Study("monitor", "Monitored", "monitor"),
    "check": Study("check"),
}
