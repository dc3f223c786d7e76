"""`bnuq precise-bn`: what it prints, what it exits with, and that it writes nothing where it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch


def never_trained(folder: Path) -> Path:
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights["0.weight"] *= 20
    weights["1.running_mean"].zero_()
    weights["1.running_var"].fill_(1)
    torch.save(weights, folder / "model.pt")
    return folder


def test_a_mended_checkpoint_is_written_and_evaluates(small: Path, cli: Any) -> None:
    never_trained(small)
    done = cli("precise-bn", "run.toml", "-o", "new.pt")
    assert (done.code, done.err) == (0, "")
    assert "Use new.pt: accuracy" in done.out and f"Checkpoint: {small / 'new.pt'}" in " ".join(done.out.split())
    asked = ("--arch", "net.py:net", "--train", "train.npz", "--test", "test.npz", "-T", "8", "--json")
    again = cli("evaluate", "new.pt", *asked)
    assert again.code == 0
    assert "never-trained" not in [warning["code"] for warning in json.loads(again.out)["warnings"]]


def test_options_win_over_the_run_file_and_json_is_all_that_is_printed(small: Path, cli: Any) -> None:
    asked = ("--estimator", "full", "--points", "60", "--batch-size", "20", "--seed", "3", "--train", "other.npz")
    done = cli("precise-bn", "run.toml", "--out", "new.pt", *asked, "--json")
    assert (done.code, done.err) == (0, "")
    summary = json.loads(done.out)
    assert (summary["command"], summary["estimator"], summary["seed"]) == ("precise-bn", "full", 3)
    assert (summary["points"], summary["batch_size"], summary["batches"]) == (50, 17, 3)
    assert (summary["reference"], summary["reference_points"]) == ("other.npz", 50)
    assert summary["result"] == str(small / "new.pt")


def test_quiet_prints_nothing(small: Path, cli: Any) -> None:
    done = cli("precise-bn", "run.toml", "-o", "new.pt", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (small / "new.pt").exists()


@pytest.mark.usefixtures("small")
def test_with_strict_a_warning_is_exit_code_2_and_says_what_was_written(cli: Any) -> None:
    done = cli("precise-bn", "run.toml", "-o", "new.pt", "--test", "train.npz", "--strict", "--json")
    assert (done.code, done.out) == (2, "")
    assert "test-in-reference" in done.message and "new.pt was written" in done.message


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--estimator", "ema"), "--estimator is ema; expected population, mean_of_var or full"),
        (("--points", "0"), "--points is 0"),
        (("-b", "1"), "--batch-size is 1"),
        (("--train", "absent.npz"), "absent.npz"),
        (("--device", "tpu"), "expected auto, cpu, cuda or cuda:N"),
        (("-o", "model.pt"), "is a file that this run reads"),
        (("-o", "train.npz"), "exists and is not a checkpoint"),
        (("-o", "."), "it is a folder"),
    ],
)
def test_a_refusal_is_one_message_and_leaves_nothing(small: Path, cli: Any, arguments: tuple, text: str) -> None:
    before = sorted(small.iterdir())
    done = cli("precise-bn", "run.toml", "-o", "new.pt", *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.message
    assert sorted(small.iterdir()) == before


@pytest.mark.usefixtures("small")
def test_where_the_checkpoint_goes_must_be_said(cli: Any) -> None:
    done = cli("precise-bn", "run.toml")
    assert done.code == 2 and "--out" in done.err


def test_a_pickled_network_needs_trust_and_stays_one(small: Path, cli: Any) -> None:
    namespace: dict[str, Any] = {}
    exec((small / "net.py").read_text(), namespace)
    torch.save({"model": namespace["net"]().eval(), "epoch": 3}, small / "whole.pt")
    asked = ("precise-bn", "whole.pt", "--train", "train.npz", "-o", "new.pt")
    assert "--trust-pickle" in cli(*asked).message
    assert not (small / "new.pt").exists()
    done = cli(*asked, "--trust-pickle", "--json")
    assert done.code == 0
    assert json.loads(done.out)["model"]["form"] == "pickled module"
    arrays = torch.load(small / "new.pt", weights_only=False)
    assert arrays["epoch"] == 3
    assert not torch.equal(arrays["model"][1].running_var, torch.ones(4))
