"""--perturb on the command line, and what `--json` and `bnuq check` make of perturbed sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
FEW = ("--samples", "4", "--method", "mcbn", "--no-post-hoc", "--json")


@pytest.mark.nightly
def test_the_test_set_with_noise_and_under_an_attack(cli: Cli, small: Path, tmp_path: Path) -> None:
    given = ("--perturb", "gaussian:0.1", "--perturb", "fgsm:0.01", "--out", tmp_path / "q.h5")
    outcome = cli("evaluate", small / "run.toml", *given, *FEW)
    assert outcome.code == 0
    summary = json.loads(outcome.out)
    for name in ("test+gaussian:0.1", "test+fgsm:0.01"):
        assert summary["sets"][name]["n"] == 60
        assert {"accuracy", "pll", "ece"} <= summary["methods"]["mcbn"]["sets"][name].keys()
        assert 0 < summary["methods"]["mcbn"]["ood"][name]["mutual_information"]["auroc"]["value"] < 1
    address = "mcbn.ood.test+fgsm:0.01.mutual_information.auroc"
    assert cli("check", tmp_path / "q.h5", "--require", f"{address}>=0.01").code == 0
    outcome = cli("check", tmp_path / "q.h5", "--require", f"{address}>=0.999")
    assert outcome.code == 1
    assert address in outcome.out


def test_a_run_file_may_name_perturbations(cli: Cli, small: Path) -> None:
    run_file = small / "run.toml"
    run_file.write_text(run_file.read_text().replace("[data]", '[data]\nperturb = ["gaussian:0.1"]'))
    outcome = cli("evaluate", run_file, *FEW)
    assert outcome.code == 0
    assert "test+gaussian:0.1" in json.loads(outcome.out)["sets"]


@pytest.mark.parametrize("texts", [("salt:0.1",), ("fgsm:-1",), ("fgsm:inf",), ("fgsm:0.1", "fgsm:0.10")])
def test_a_wrong_perturbation_is_one_message(cli: Cli, small: Path, texts: tuple[str, ...]) -> None:
    outcome = cli("evaluate", small / "run.toml", *(word for text in texts for word in ("--perturb", text)))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.message.startswith("--perturb ")


@pytest.mark.parametrize("command", ["sweep-batch-size", "inspect", "precise-bn", "init"])
def test_other_commands_have_no_such_option(cli: Cli, small: Path, command: str) -> None:
    outcome = cli(command, "run.toml", "--perturb", "gaussian:0.1")
    assert outcome.code == 2
    assert "--perturb" in outcome.err
    assert small.exists()
