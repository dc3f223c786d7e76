"""`bnuq monitor` as it is typed: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BNUQ = (sys.executable, "-m", "bnuq")
FEW = ("--resamples", "199")


def pictures(path: Path, count: int, mean: float = 0.5) -> Path:
    np.savez(path, x=np.random.default_rng(count).normal(mean, 0.3, (count, 1, 6, 6)).astype(np.float32))
    return path


@pytest.fixture
def batches(small: Path) -> Path:
    pictures(small / "monday.npz", 40)
    pictures(small / "tuesday.npz", 41, mean=0.9)
    return small


def test_a_baseline_is_made_once_and_then_needs_no_data(cli, batches):
    made = cli("monitor", "run.toml", "--baseline", "base.h5")
    assert (made.code, made.err) == (0, "") and made.out.startswith("base.h5 was written (")
    before = (batches / "base.h5").read_bytes()
    for name in ("train.npz", "test.npz"):
        (batches / name).unlink()
    done = cli("monitor", "run.toml", "--baseline", "base.h5", "--batch", "tuesday.npz", *FEW)
    assert (done.code, done.err) == (0, "")
    assert "This batch differs from the reference: a difference of this size occurs" in done.out
    assert (batches / "base.h5").read_bytes() == before
    assert (batches / "model.monitor.h5").is_file() and not (batches / "model.bnuq.h5").exists()
    assert cli("report", "model.monitor.h5").out.splitlines()[1:] == done.out.splitlines()[1:]
    assert "ignored" not in done.out
    other = ("--test", "other.npz", "--normalize", "0.5/0.3")
    assert cli("monitor", "run.toml", "--baseline", "base.h5", "--batch", "tuesday.npz", *FEW, *other).code == 0
    told = cli("report", "model.monitor.h5", "--full").out
    assert "test are ignored: a batch is normalised as the baseline was" in " ".join(told.split())
    refused = cli("evaluate", "--from", "base.h5").message
    assert "is a result of bnuq monitor (monitor-baseline); expected one of a kind that is read here (eval" in refused


@pytest.mark.usefixtures("batches")
def test_json_has_the_p_value_the_layers_and_the_e_value_and_an_alarm_is_no_failure(cli):
    alarms = []
    for name in ("monday", "tuesday", "tuesday", "tuesday"):
        done = cli("monitor", "run.toml", "--batch", f"{name}.npz", "--stream", "s.h5", "--json", *FEW)
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        alarms.append(found["alarm"])
    assert alarms[0] is None and alarms[-1] is not None
    assert found["p_value"] == 1 / 200 and found["e_value"] >= 100
    assert [block["name"] for block in found["blocks"] if block["kind"] == "layer"] == ["1"]
    assert [*found["scores"]["batch"]] == ["predictive_entropy", "least_confidence", "energy"]
    assert found["scores"]["batch"]["energy"].keys() == {"value", "se"}
    assert found["names"][:2] == ["monday", "tuesday"] and len(found["e_values"]) == len(alarms)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no batch is named"),
        (("monday.npz", "--batch", "monday.npz"), "the batch was named twice"),
        (("--batch", "absent.npz"), "absent.npz"),
        (("--batch", "monday.npz", "--stream", "nowhere/s.h5"), "nowhere does not exist"),
        (("--batch", "monday.npz", "--baseline", "monday.npz"), "monday.npz"),
        (("--batch", "monday.npz", "--level", "2"), "expected a number between 0 and 1"),
        (("--batch", "monday.npz", "--resamples", "5"), "resamples"),
    ],
)
def test_what_cannot_be_done_is_one_message(cli, batches, words, message):
    refused = cli("monitor", "run.toml", *words)
    assert refused.code == 2 and message in refused.message
    assert {path.name for path in batches.glob("*.h5")} == set()


def test_pictures_are_drawn(cli, batches):
    cli("monitor", "run.toml", "--batch", "monday.npz", "--stream", "s.h5", *FEW)
    done = cli("monitor", "run.toml", "--batch", "tuesday.npz", "--stream", "s.h5", "--figures", "drawn", *FEW)
    assert done.code == 0 and [path.name for path in (batches / "drawn").iterdir()] == ["stream.svg"]


@pytest.mark.nightly
def test_of_batches_that_come_at_once_a_stream_keeps_every_one(batches):
    pictures(batches / "wednesday.npz", 42)
    names = ["monday", "tuesday", "wednesday"]
    words = ("--baseline", "base.h5", "--stream", "s.h5", "--json", *FEW)
    at_once = [
        subprocess.Popen([*BNUQ, "monitor", "run.toml", "--batch", f"{name}.npz", *words], stdout=-1, stderr=-1)
        for name in names
    ]
    streams = []
    for process in at_once:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        streams.append(json.loads(out)["names"])
    assert sorted(map(len, streams)) == [1, 2, 3] and sorted(max(streams, key=len)) == names
    assert not list(batches.glob(".*"))
