"""Logs a result to an experiment tracker: its estimates as metrics, its origin as tags, its page and file as artifacts.

Where a tracker keeps its runs, and under which project, its own environment variables say, as anywhere else.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.errors import RequestError
from bnuq.frozen import frozen
from bnuq.records.addresses import address_of
from bnuq.records.evaluation import Result
from bnuq.store.table import rows_of

PROJECT = "bnuq"
_TAG = 500  # characters of a tag that every tracker takes


@frozen
class TrackedRun:
    """What a tracker gets: `metrics` by address, each with its standard errors beside it as ADDRESS.se and
    ADDRESS.mc_se; `tags`; and files."""

    name: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    page: Path
    files: tuple[Path, ...]


def check(tracker: str | None) -> None:
    """RequestError if the tracker's package is not installed."""
    if tracker is not None and find_spec(tracker) is None:
        raise RequestError(f'--log {tracker}: {tracker} is not installed. Install it: pip install "bnuq[{tracker}]"')


def log(record: Any, tracker: str) -> str:
    """Log a record, and return where it went; RequestError if the tracker refuses, whatever its reason."""
    from bnuq.report.kinds import kind_named
    from bnuq.report.render import write_page

    check(tracker)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_page(page, kind_named(record.KIND).report(record, columns=100))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the packages that a tracker uses
                return TRACKERS[tracker](tracked(record, page))
        except Exception as error:  # of another's package, and of its network
            reason = " ".join(str(error).split()) or type(error).__name__
            kept = f" The result is safe. To log it: bnuq report {record.path} --log {tracker}" if record.path else ""
            raise RequestError(f"--log {tracker}: {reason.rstrip('.')}.{kept}") from error


def tracked(record: Any, page: Path) -> TrackedRun:
    """The record as a tracker takes it. Numbers that are not finite are left out: not every tracker takes them."""
    metrics = {}
    for row in rows_of(record):
        address = address_of(row.coordinates) if isinstance(record, Result) else row.path.strip("/").replace("/", ".")
        for suffix, value in (("", row.estimate.value), (".se", row.estimate.se), (".mc_se", row.estimate.mc_se)):
            if value is not None and np.isfinite(value):
                metrics[address + suffix] = float(value)
    described = {name: getattr(record, name, {}) for name in ("model", "sampling")}
    tags = {f"{part}.{name}": value for part, values in described.items() for name, value in values.items()}
    tags = {name: str(value)[:_TAG] for name, value in (tags | dict(record.provenance)).items() if value is not None}
    path = record.path
    name = "bnuq" if path is None else path.name.removesuffix(".h5").removesuffix(".bnuq")
    return TrackedRun(name, metrics, tags, page, () if path is None else (path,))


def _mlflow(run: TrackedRun) -> str:
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=run.name, tags=dict(run.tags)) as started:
        allowed = {re.sub(r"[^/\w.\- :]", "_", name): value for name, value in run.metrics.items()}
        mlflow.log_metrics(allowed)
        for file in (run.page, *run.files):
            mlflow.log_artifact(str(file))
    return f"run {started.info.run_name} of experiment {experiment}, in {mlflow.get_tracking_uri()}"


def _wandb(run: TrackedRun) -> str:
    import wandb

    project = os.environ.get("WANDB_PROJECT", PROJECT)
    settings = wandb.Settings(silent=True, console="off")
    started = wandb.init(project=project, name=run.name, config=dict(run.tags), settings=settings)
    started.log({**run.metrics, "report": wandb.Html(run.page.read_text(encoding="utf-8"))})
    result = wandb.Artifact(re.sub(r"[^\w.-]", "-", run.name), type="result")
    for file in (run.page, *run.files):
        result.add_file(str(file))
    started.log_artifact(result)
    started.finish()
    return f"run {run.name} of project {project}, in {started.dir if started.offline else started.url}"


def _trackio(run: TrackedRun) -> str:
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    started = trackio.init(project=project, name=run.name, config=dict(run.tags), embed=False)
    trackio.log({**run.metrics, "report": trackio.Html(str(run.page))})
    for file in run.files:
        trackio.log_artifact(str(file), name=re.sub(r"[^\w.-]", "-", run.name), type="result")
    trackio.finish()
    return f"run {started.name} of project {project}, in {trackio.TRACKIO_DIR}"


TRACKERS: Mapping[str, Callable[[TrackedRun], str]] = {"mlflow": _mlflow, "wandb": _wandb, "trackio": _trackio}
