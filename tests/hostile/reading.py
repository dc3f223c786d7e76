"""How a file of each kind is read, for `runner`, which changes it: whole, as the commands do."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bnuq.data import load_points
from bnuq.models.checkpoint import read_checkpoint
from bnuq.records import evaluation_file as result_file
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.render import print_record


def _result(path: Path) -> None:
    result = result_file.read(path)
    print_record(report, result, io.StringIO(), full=True)
    json.dumps(summary(result), allow_nan=False)


def _points(path: Path) -> None:
    points = load_points(str(path))
    points.raw(slice(None))
    _ = points.sha256


READ: dict[str, Callable[[Path], Any]] = {
    "result": _result,
    "checkpoint": lambda path: read_checkpoint(path, only_finite=False),
    "points": _points,
}
