"""`bnuq inspect` as it is typed: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

FEW = ("--draws", "8")


def test_it_prints_a_report_and_writes_its_file_in_the_working_folder(cli, small):
    done = cli("inspect", "run.toml", *FEW)
    assert (done.code, done.err) == (0, "")
    assert "samples  off by" in done.out and "Noise of a batch" not in done.out
    assert (small / "model.inspect.h5").is_file() and not (small / "model.bnuq.h5").exists()
    again = cli("report", "model.inspect.h5")
    assert (again.code, again.err) == (0, "") and "samples  off by" in again.out


def test_json_tells_every_site(cli, small):
    done = cli("inspect", "run.toml", "--json", *FEW, "-o", "other.h5")
    assert (done.code, done.err) == (0, "")
    summary = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert summary["command"] == "inspect"
    sites = [(site["name"], site["kind"], site["order"], site["stochastic"]) for site in summary["sites"]]
    assert sites == [("1", "batchnorm", 0, True), ("6", "dropout", 1, True)]
    assert summary["sites"][0]["channels"] == 4 and summary["sites"][1]["p"] == 0.4
    assert summary["result"] == str(small / "other.h5")


@pytest.mark.usefixtures("small")
def test_options_of_domains_have_no_effect_without_one_and_that_is_said(cli):
    notes = json.loads(cli("inspect", "run.toml", "--json", *FEW, "-T", "8", "--limit", "20").out)["notes"]
    idle = [f"{name} has no effect: it needs --domain" for name in ("--samples", "--limit")]
    assert [each for each in notes if "no effect" in each] == idle  # not `test` of a run file that others share


def test_a_checkpoint_alone_needs_its_architecture_and_a_shape(cli, small, tmp_path):
    checkpoint = tmp_path / "alone.pt"
    checkpoint.write_bytes((small / "model.pt").read_bytes())
    assert "--arch file.py:factory" in cli("inspect", checkpoint).message
    refused = cli("inspect", checkpoint, "--arch", "net.py:net")
    assert refused.code == 2 and "--input-shape 3,32,32" in refused.message
    done = cli("inspect", checkpoint, "--arch", "net.py:net", "--input-shape", "1,6,6")
    assert (done.code, done.err) == (0, "") and Path("alone.inspect.h5").is_file()
    assert "lists 2 names, and the network has" in cli("inspect", "run.toml", "--classes", "a,b").message


@pytest.mark.parametrize("shape", ["3;32", "", "3,-1", "0", "a"])
def test_a_shape_that_is_none_is_refused(cli, small, shape):
    assert small.exists()
    refused = cli("inspect", "run.toml", "--input-shape", shape)
    assert refused.code == 2 and "expected whole numbers, such as 3,32,32" in refused.message


def test_a_named_reference_must_be_readable_and_that_of_the_run_file_need_not(cli, small):
    assert cli("inspect", "run.toml", "--train", "absent.npz").code == 2
    (small / "train.npz").unlink()
    done = cli("inspect", "run.toml")
    assert done.code == 0 and "[reference-unreadable]" in done.out
    strict = cli("inspect", "run.toml", "--strict")
    assert strict.code == 2 and "reference-unreadable" in strict.message


def test_a_diverged_checkpoint_is_shown_layer_by_layer(cli, small):
    state = torch.load(small / "model.pt")
    state["1.running_mean"][0] = float("nan")
    torch.save(state, small / "model.pt")
    done = cli("inspect", "run.toml")
    assert (done.code, done.err) == (0, "") and "not-finite" in done.out and "1.running_mean" in done.out


def test_quiet_prints_nothing(cli, small):
    done = cli("inspect", "run.toml", "--quiet", *FEW)
    assert (done.code, done.out, done.err) == (0, "", "") and (small / "model.inspect.h5").is_file()


@pytest.mark.usefixtures("small")
def test_samples_of_domains_beyond_memory_are_refused_before_they_are_drawn(cli):
    done = cli("inspect", "run.toml", "--domain", "lab=other.npz", "-T", "1000000000000", *FEW)
    assert (done.code, done.out) == (2, "")
    assert "1000000000000 samples of each domain: that takes about" in done.message


def test_domains_are_named_on_the_command_line(cli, small):
    done = cli("inspect", "run.toml", "--domain", "lab=other.npz", "-T", "4", "--limit", "20", *FEW)
    assert (done.code, done.err) == (0, "") and "lab" in done.out and small.exists()


def test_pictures_are_drawn_where_they_are_asked_for(cli, small, monkeypatch):
    import bnuq.report.render

    def draw(report, folder):
        (folder / "gap.svg").write_text(" ".join(picture.kind[0] for picture in report.pictures))
        return (folder / "gap.svg",)

    monkeypatch.setattr(bnuq.report.render, "draw_pictures", draw)
    done = cli("inspect", "run.toml", "--figures", "pictures", *FEW)
    assert (done.code, done.err) == (0, "") and "gap.svg" in done.out
    assert (small / "pictures" / "gap.svg").read_text() == "gap noise_by_layer noise_panels"
    assert cli("inspect", "run.toml", "--figures", "net.py", *FEW).code == 2


def test_a_file_of_the_users_is_not_written_over(cli, small):
    (small / "mine.txt").write_text("mine")
    refused = cli("inspect", "run.toml", "-o", "mine.txt", *FEW)
    assert refused.code == 2 and (small / "mine.txt").read_text() == "mine"
