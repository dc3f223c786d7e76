"""`make shift`: how five networks follow a shift of their inputs; writes docs/measured/shift.md.

Reduced to few points, samples and severities: a quarter of an hour of CPU time. Results that lie in docs/shift-NAME.h5
are not computed again. Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from make_figures import DOCS, MEASURED, ROOT, made_by, put, run_files

from bnuq.cli.progress import Bars
from bnuq.config import Options, resolve
from bnuq.config.shorthand import read_families
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Result
from bnuq.records.shift import MethodShift
from bnuq.report.evaluation import report
from bnuq.report.numbers import named
from bnuq.report.shift import first_alarm
from bnuq.workflows.evaluate import evaluate

METHODS = "deterministic", "mcbn"
HEAD = "| family | accuracy, deterministic | mcbn | confidence | loss at | alarm at | first of all scores | ATC, mcbn |"

PAGE = """# Networks under a shift of their inputs

{made_by}

The run files of `sample_configs/`, reduced to the points, samples and severities stated; see
[docs/shift.md](../shift.md). Accuracies are those at severity 5, confidence is the mean of the deterministic network.
"Loss at" is the severity at which the accuracy of mcbn has fallen by five points (its RMSE risen by a tenth), "alarm
at" that at which its mean mutual information (variance) over 100 points leaves the 99 % band. The last columns are the
earliest alarm of all scores and methods, and the accuracy of mcbn that ATC estimates without labels.

![From alarm to loss, ResNet-20](shift-lead.svg)"""


@dataclass(frozen=True)
class Network:
    """A network whose test set is shifted, and what is changed in its run file."""

    title: str
    run_file: str
    families: tuple[str, ...]
    severities: tuple[str, ...]
    options: dict[str, Any]


ALL, SOME = ("1", "2", "3", "4", "5"), ("1", "3", "5")
PHOTOMETRIC = "gaussian", "defocus", "motion", "contrast", "brightness", "jpeg"
KINDS = "gaussian", "defocus", "brightness", "jpeg", "rotation"
PLAIN: dict[str, Any] = {"calibrate": "off", "ood": (), "methods": ("mcbn",)}
NETWORKS = {
    "resnet20": Network("ResNet-20 on CIFAR-10", "cifar_resnet20.toml", (), SOME, PLAIN | {"limit": 400, "samples": 8}),
    "resnet56": Network(
        "ResNet-56 on CIFAR-10",
        "cifar_resnet56.toml",
        KINDS,
        SOME,
        PLAIN | {"limit": 300, "samples": 8, "post_hoc": False},
    ),
    "cnn": Network("CNN on Fashion-MNIST", "quickstart.toml", (), ALL, PLAIN | {"samples": 32}),
    "camvid": Network(
        "Segmentation of CamVid",
        "camvid.toml",
        PHOTOMETRIC,
        SOME,
        PLAIN | {"limit": 24, "samples": 4, "images": False},
    ),
    "regression": Network("Regression, diabetes", "regression.toml", (), ALL, PLAIN | {"samples": 100}),
}


def main() -> None:
    """Shift, and write what came out; an argument names one network, which is only evaluated."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make shift needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    with run_files(Path(named).resolve()) as place:
        results = {name: shifted(name, place) for name in sys.argv[1:] or NETWORKS}
    if sys.argv[1:]:
        return
    first = report(next(iter(results.values())))
    next(picture for picture in first.pictures if picture.kind == ("lead",)).draw(MEASURED / "shift-lead.svg")
    sections = (section(NETWORKS[name], result) for name, result in results.items())
    put(MEASURED / "shift.md", "shift", "\n\n".join([PAGE.format(made_by=made_by("make shift")), *sections]))


def shifted(name: str, place: Path) -> Result:
    network, file = NETWORKS[name], DOCS / f"shift-{name}.h5"
    if not file.is_file():
        perturb = read_families(network.families, network.severities)
        options = Options({"perturb": perturb, "out": str(file), **network.options})
        evaluate(resolve(str(place / network.run_file), options, folder=ROOT), progress=Bars())
    return evaluation_file.read(file)


def section(network: Network, result: Result) -> str:
    """The table of one network: a row a family, at its strongest severity."""
    points = result.sets["test"].n
    unit = "images" if result.task.is_dense else "points"
    head = HEAD.replace("accuracy", "RMSE") if result.task.is_regression else HEAD
    *first, last = network.severities
    sampling = f"T = {result.sampling['samples']}, b = {result.sampling['batch_size']}"
    intro = f"{points:,} {unit}, {sampling}, severities {', '.join(first)} and {last}:"
    lines = [f"## {network.title}", "", intro, "", head, "|" + " --- |" * (head.count("|") - 1)]
    return "\n".join([*lines, *rows(result)])


def rows(result: Result) -> Iterator[str]:
    shift, metric = result.shift, "rmse" if result.task.is_regression else "accuracy"
    assert shift is not None
    of, single = shift.methods["mcbn"], result.methods["deterministic"].sets
    yield row("unchanged", *(value(result, method, "test", metric) for method in METHODS), confidence(single["test"]))
    for number, family in enumerate(shift.families):
        place = shift.places(family)[-1]
        name = shift.sets[place]
        score = first_alarm(of)
        alarm = math.nan if score is None else float(of.alarm[of.scores.index(score), number])
        yield row(
            name.removeprefix("test+"),
            *(value(result, method, name, metric) for method in METHODS),
            confidence(single[name]),
            at(float(of.loss[number])),
            at(alarm),
            first_of_all(shift.methods.values(), number),
            f"{of.predicted[0, place]:.3f}" if of.forecasts else "–",
        )


def row(*cells: str) -> str:
    return f"| {' | '.join([*cells, *[''] * (8 - len(cells))])} |"


def value(result: Result, method: str, name: str, metric: str) -> str:
    estimate = result.methods[method].sets[name].estimates[metric]
    return f"{estimate.value:.3f}" if metric == "accuracy" else f"{estimate.value:.1f}"


def confidence(of: Any) -> str:
    values = of.points.get("max_probability")
    return "–" if values is None else f"{values.mean():.3f}"


def at(severity: float) -> str:
    return "never" if math.isnan(severity) else f"{severity:.1f}"


def first_of_all(methods: Any, family: int) -> str:
    """The earliest alarm of any score of any method."""
    alarms: list[tuple[float, str]] = []
    of: MethodShift
    for of in methods:
        alarms += [
            (float(of.alarm[k, family]), score)
            for k, score in enumerate(of.scores)
            if not math.isnan(of.alarm[k, family])
        ]
    return "never" if not alarms else f"{named(min(alarms)[1], roomy=False)} {at(min(alarms)[0])}"


if __name__ == "__main__":
    main()
