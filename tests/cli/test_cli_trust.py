"""Whose code runs, from the command line to the network: what a found file names asks first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_run
import torch

TINY = ("--limit", "20", "-T", "2", "--method", "mcbn")


@pytest.fixture
def sidecar(small: Path) -> Path:
    """The run file beside model.pt, found with it."""
    return (small / "run.toml").rename(small / "model.toml")


def test_a_sidecars_code_is_asked_for_and_what_to_type_is_shown(cli, small, sidecar):
    done = cli("evaluate", "model.pt", *TINY)
    assert (done.code, done.out) == (2, "")
    for word in (str(sidecar), str(small / "net.py"), "net", "--trust-code"):
        assert word in done.message
    assert not (small / "model.bnuq.h5").exists()


def test_trust_is_remembered_until_the_code_changes(cli, small, sidecar):
    assert sidecar.exists()
    assert cli("evaluate", "model.pt", "--trust-code", *TINY).code == 0
    done = cli("evaluate", "model.pt", *TINY)
    assert done.code == 0
    assert "settings of model.toml" in " ".join(done.out.split())
    with (small / "net.py").open("a") as code:
        code.write("# changed\n")
    assert cli("evaluate", "model.pt", *TINY).code == 2


def test_bnuq_toml_in_the_working_folder_is_found_and_said_to_be_read(cli, small):
    (small / "run.toml").rename(small / "bnuq.toml")
    assert "--trust-code" in cli("evaluate").message
    done = cli("evaluate", "--trust-code", *TINY)
    assert "settings of bnuq.toml" in " ".join(done.out.split())


@pytest.mark.usefixtures("small")
def test_a_run_file_on_the_command_line_speaks_for_the_user(cli):
    done = cli("evaluate", "run.toml", *TINY)
    assert (done.code, done.err) == (0, "")
    assert "settings of" not in done.out


@pytest.mark.usefixtures("sidecar", "small")
def test_an_option_names_code_for_the_user_beside_a_sidecar(cli):
    assert cli("evaluate", "model.pt", "--arch", "net.py:net", *TINY).code == 0


def test_data_code_in_a_sidecar_is_asked_for_too(cli, small, sidecar):
    (small / "points.py").write_text("raise SystemExit('ran')")
    sidecar.write_text(sidecar.read_text().replace("test.npz", "points.py:test"))
    done = cli("evaluate", "model.pt", "--arch", "net.py:net", *TINY)
    assert done.code == 2
    assert "points.py" in done.message and "--trust-code" in done.message


def test_a_result_file_runs_again_to_the_same_estimates_once_its_code_is_trusted(cli, small, tmp_path, monkeypatch):
    assert cli("evaluate", "run.toml", "--out", "first.h5", *TINY, "--json").code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = small / "first.h5"
    assert "--trust-code" in cli("evaluate", "--from", result).message
    again = cli("evaluate", "--from", result, "--trust-code", "--json")
    assert again.code == 0
    assert json.loads(again.out)["methods"] == json.loads(cli("report", result, "--json").out)["methods"]
    assert (elsewhere / "model.bnuq.h5").exists()


def test_running_a_result_again_never_writes_over_it(cli, small):
    assert cli("evaluate", "run.toml", *TINY).code == 0
    before = (small / "model.bnuq.h5").read_bytes()
    done = cli("evaluate", "--from", "model.bnuq.h5", "--trust-code")
    assert "model.bnuq.h5 is a file that this run reads; name another file to write" in done.message
    assert (small / "model.bnuq.h5").read_bytes() == before


def test_a_result_file_and_a_model_contradict_each_other(cli, small):
    assert cli("evaluate", "run.toml", *TINY).code == 0
    assert "leave out the model (model.pt)" in cli("evaluate", "model.pt", "--from", "model.bnuq.h5").message
    assert cli("evaluate", "--from", small / "test.npz").code == 2


def test_nothing_is_unpickled_without_leave(cli, small):
    torch.save(small_run.network(), small / "whole.pt")
    arguments = ("--train", "train.npz", "--test", "test.npz", *TINY)
    done = cli("evaluate", "whole.pt", *arguments)
    assert done.code == 2
    assert "--trust-pickle" in done.message
    assert cli("evaluate", "whole.pt", "--trust-pickle", *arguments).code == 0


def test_a_folder_with_spaces_and_brackets_works(cli, small, tmp_path, monkeypatch):
    odd = tmp_path / "my [red]models[/red] (1)"
    shutil.copytree(small, odd)
    monkeypatch.chdir(odd)
    done = cli("evaluate", "run.toml", "--test", odd / "test.npz", *TINY)
    assert (done.code, done.err) == (0, "")
    assert "bnuq report model.bnuq.h5 --full" in done.out
    assert cli("report", "model.bnuq.h5").out == done.out
