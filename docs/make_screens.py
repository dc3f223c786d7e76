"""Write docs/measured/screens.md: what a terminal of 80 columns shows first of small results of every kind.

python docs/make_screens.py
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import eight_results
import made_up_inspection
import made_up_monitor
import small_sweep
from report_text import rendered

from bnuq.report.evaluation import report
from bnuq.studies.inspect import view as inspection
from bnuq.studies.monitor import view as monitor
from bnuq.studies.sweep import view as sweep

PAGE = Path(__file__).resolve().parent / "measured" / "screens.md"
TITLES = {
    "quickstart": "Classification: samples add nothing",
    "gain": "Classification: samples help",
    "regression": "Regression",
    "multilabel": "Several labels a point",
    "segmentation": "Segmentation",
    "broken": "BatchNorm statistics of other data",
    "unlabelled": "No labels",
    "scored": "Predictions of two models (`bnuq score`)",
}
OTHERS = {
    "A sweep (`bnuq sweep-batch-size`)": (sweep.report, small_sweep.single),
    "An inspection (`bnuq inspect`)": (inspection.report, made_up_inspection.healthy),
    "A monitor (`bnuq monitor`)": (monitor.report, made_up_monitor.alarmed),
}


def page() -> str:
    """The page, of small networks that are made and evaluated for it."""
    text = [
        "# First screens",
        "",
        "What bnuq prints of small results of every kind, on 80 columns; everything else is in `--full`. The networks",
        "are tiny, and their numbers mean nothing. Written by `docs/make_screens.py`.",
    ]
    for title, screen in screens():
        text += ["", f"## {title}", "", "```", screen.rstrip(), "```"]
    return "\n".join([*text, ""])


def screens() -> Iterator[tuple[str, str]]:
    shown, path = partial(rendered, width=80), Path("result.h5")
    for make in eight_results.EIGHT:
        with tempfile.TemporaryDirectory() as folder:
            result = make(Path(folder))
            seconds, beside = dict(result.seconds) | {"total": 1.0}, f"{folder}/"
            findings = [replace(each, values=without(each.values, beside)) for each in result.findings]
            result = replace(result, path=path, seconds=seconds, findings=tuple(findings))
            yield TITLES[make.__name__], shown(report, result)
    for title, (of, make) in OTHERS.items():
        yield title, shown(of, replace(make(), path=path))


def without(values: Any, folder: str) -> Any:
    """The values of a finding, with paths below the folder as from there."""
    if isinstance(values, Mapping):
        return {name: without(value, folder) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [without(value, folder) for value in values]
    return values.replace(folder, "") if isinstance(values, str) else values


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
