"""The pictures of an evaluation's errors, pixels and convergence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from bnuq.metrics.registry import estimates_of_task
from bnuq.records.evaluation import MethodResult, Result
from bnuq.report.document import Picture
from bnuq.report.drawing import picture
from bnuq.report.method_names import plain_methods
from bnuq.report.plotting import about_test_set, evaluation_picture, label_of, line_styles
from bnuq.report.tasks import RETAINED


def risk_coverage(result: Result) -> Iterator[Picture]:
    """The error of the most certain points over how many they are."""
    if ranked := {name: each for name, each in plain_methods(result).items() if len(each.risk.get("risk", ())) > 1}:
        yield evaluation_picture("risk_coverage", draw=partial(_risk_coverage, result, ranked))


def convergence(result: Result) -> Iterator[Picture]:
    """Estimates over the number of samples, where any are finite."""
    metrics = [
        metric
        for metric in estimates_of_task(result.task.name, shown="curve")
        if any(np.isfinite(method.convergence.get(metric, [math.nan])).all() for method in result.methods.values())
    ]
    if metrics:
        yield evaluation_picture("convergence", draw=partial(_convergence, result, metrics))


def _risk_coverage(result: Result, ranked: Mapping[str, MethodResult], path: Path) -> None:
    lines = line_styles(result)
    order, risk = RETAINED[result.task.headline]
    with picture(path, title="Error of the retained examples", about=about_test_set(result)) as [axes]:
        for name, method in ranked.items():
            line = lines[name]
            curve = method.risk
            axes.plot(curve["coverage"], curve["risk"], **line.plotted, markevery=0.2, label=name)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"share of the test examples retained, lowest {order} first")
        axes.set_ylabel(risk)


def _convergence(result: Result, metrics: list[str], path: Path) -> None:
    """What more samples would change: estimates of the first 1, 2, 4, … samples, and of the deterministic network."""
    lines = line_styles(result)
    with picture(
        path, title="Estimates over the number of samples", about=about_test_set(result, sampled=False),
        columns=len(metrics), size=(4.2, 3.6), apart=True,
    ) as panels:  # fmt: skip
        for metric, axes in zip(metrics, panels, strict=True):
            for name, method in plain_methods(result).items():
                values = method.convergence.get(metric)
                plain = method.sets["test"].estimates.get(metric)
                if values is not None and np.isfinite(values).all():
                    axes.plot(method.convergence["samples"], values, **lines[name].plotted, label=name)
                elif result.is_single(name) and plain is not None and math.isfinite(plain.value):
                    axes.axhline(plain.value, color=lines[name].colour, linestyle=lines[name].dashes, label=name)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
            axes.set_xlabel("samples")
            axes.set_ylabel(label_of(metric))
