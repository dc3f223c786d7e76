"""A result as a run of an experiment tracker, in the tracker's own local store; a tracker that is not installed is
skipped."""

from __future__ import annotations

import json
import lzma
import math
import sqlite3
from pathlib import Path

import pytest

from bnuq.cli.main import main
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.report import trackers

FROZEN = Path(__file__).resolve().parent.parent / "frozen"


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result file in an empty working folder, where trackers find nothing of the user's."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_MODE", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "network.bnuq.h5"
    path.write_bytes(lzma.decompress((FROZEN / "classification.h5.xz").read_bytes()))
    return path


def logged(result: Path, tracker: str) -> None:
    """Log the result by `bnuq report`."""
    with pytest.raises(SystemExit) as left:
        main(["report", str(result), "--json", "--log", tracker])
    assert left.value.code == 0


def test_metrics_are_the_estimates_by_address_with_their_errors(result: Path) -> None:
    record = read(result)
    run = trackers.tracked(record, Path("page.html"))
    assert run.name == "network" and run.files == (result,)
    for address, row in estimates_of(record).items():
        if math.isfinite(row.estimate.value):
            assert run.metrics[address] == row.estimate.value
        else:
            assert address not in run.metrics
    assert sum(name.endswith(".se") for name in run.metrics) > 10
    assert run.tags["model.sha256"] == record.model["sha256"] and run.tags["bnuq"] == record.provenance["bnuq"]


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_computed(result, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "find_spec", {}.get)
    for arguments in (
        *(["report", str(result)], ["evaluate", "missing.pt"], ["sweep-batch-size", "missing.pt"]),
        *(["score", "missing.csv"], ["shift", "missing.pt"]),
    ):
        with pytest.raises(SystemExit) as left:
            main([*arguments, "--log", "wandb"])
        assert left.value.code == 2
        assert 'pip install "bnuq[wandb]"' in capsys.readouterr().err


@pytest.mark.nightly
def test_what_a_tracker_refuses_is_one_message_that_says_how_to_log_the_result_later(result, monkeypatch, capsys):
    def refuse(run: trackers.TrackedRun) -> str:
        raise ConnectionError(f"no route\nto host of {run.name}")

    monkeypatch.setattr(trackers, "find_spec", str)
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": refuse})
    with pytest.raises(SystemExit) as left:
        main(["report", str(result), "--json", "--log", "wandb"])
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert "--log wandb: no route to host of network." in message and f"bnuq report {result} --log wandb" in message


@pytest.mark.nightly
def test_mlflow_has_the_metrics_the_tags_and_the_page(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow = pytest.importorskip("mlflow")
    logged(result, "mlflow")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["command"] == "evaluate" and "experiment bnuq" in printed.err
    (run,) = mlflow.search_runs(experiment_names=["bnuq"], output_format="list")
    expected = _expected(read(result))
    assert {name: run.data.metrics[name] for name in expected} == expected
    assert run.data.tags["torch"] == read(result).provenance["torch"]
    kept = {artifact.path for artifact in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert kept == {"report.html", "network.bnuq.h5"}


@pytest.mark.nightly
def test_wandb_writes_the_run_offline(result, monkeypatch, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged(result, "wandb")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["command"] == "evaluate"
    (run,) = Path("wandb").glob("offline-run-*")
    assert str(run) in printed.err
    (stored,) = run.glob("*.wandb")
    content = stored.read_bytes()
    assert all(name.encode() in content for name in _expected(read(result)))


@pytest.mark.nightly
def test_trackio_has_the_metrics_in_its_local_database(result, tmp_path, monkeypatch, capsys):
    pytest.importorskip("trackio")
    import trackio.sqlite_storage

    monkeypatch.setattr(trackio.sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    logged(result, "trackio")
    assert json.loads(capsys.readouterr().out)["command"] == "evaluate"
    (database,) = (tmp_path / "trackio").glob("bnuq.db")
    with sqlite3.connect(database) as connection:
        (row,) = connection.execute("SELECT metrics FROM metrics").fetchall()
    metrics = json.loads(row[0])
    expected = _expected(read(result))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def _expected(record: Result) -> dict[str, float]:
    """Some metrics whose names no tracker changes."""
    rows = estimates_of(record)
    return {name: rows[name].estimate.value for name in ("deterministic.sets.test.accuracy", "mcbn.sets.test.pll")}
