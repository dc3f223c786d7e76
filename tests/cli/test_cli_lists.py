"""What is known by name: data sets, metrics, methods; and help that is light."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from report_text import Terminal

from bnuq.cli.help import first_sentence
from bnuq.cli.main import app
from bnuq.methods import METHODS
from bnuq.metrics import METRICS


def test_data_tells_where_every_set_lies_or_is_looked_for(cli, tmp_path, monkeypatch):
    folder = tmp_path / "root" / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    done = cli("data", "--data-root", tmp_path / "root")
    assert (done.code, done.err) == (0, "")
    blocks = {block.split()[0]: block for block in done.out.split("\n\n")}
    assert f"train  {folder}" in blocks["cifar10"]
    assert "wanted" not in blocks["cifar10"]
    assert "train  not found" in blocks["svhn"] and "svhn/train_32x32.mat" in blocks["svhn"]
    assert "Netzer et al. 2011" in blocks["svhn"]
    assert "(regression)" in blocks["uci-boston"]
    assert f"{tmp_path / 'root'}  (--data-root)" in done.out
    assert "$BNUQ_DATA is not set" in done.out
    assert f"{tmp_path / 'cache' / 'bnuq'}  (cache)" in done.out
    monkeypatch.setenv("BNUQ_DATA", str(tmp_path / "root"))
    done = cli("data")
    assert f"{tmp_path / 'root'}  ($BNUQ_DATA)" in done.out
    assert f"train  {folder}" in done.out


def test_metrics_lists_every_metric_with_unit_direction_and_source(cli):
    done = cli("metrics")
    assert done.code == 0
    for metric in METRICS.values():
        assert metric.name in done.out and metric.unit in done.out and metric.source in done.out
    assert {"higher is better", "lower is better", "no direction"} <= set(done.out.replace("\n", ";").split("; "))


@pytest.mark.parametrize("command", ["methods", "metrics", "data"])
def test_lists_wrap_at_the_width_of_a_terminal_and_break_no_word(cli, monkeypatch, command):
    in_pipe = cli(command).out
    words = in_pipe.split()
    for columns in (20, 40, 72):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        assert cli(command).code == 0
        lines = terminal.getvalue().splitlines()
        assert [word for line in lines for word in line.split()] == words
        for line in lines:  # one that is longer is a single word
            assert len(line) <= columns or len(line.split()) == 1
    assert max(map(len, in_pipe.splitlines())) > 72


def test_methods_lists_every_method(cli):
    assert [line.split()[0] for line in cli("methods").out.splitlines()] == list(map(str, METHODS))


@pytest.mark.parametrize("command", [(), *((name,) for name, _ in app.commands.sentences())], ids=" ".join)
def test_every_help_fits_and_is_no_error(cli, command):
    done = cli(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: bnuq")


def test_the_list_of_commands_has_the_first_sentence_of_each(cli):
    """It stands in the list, too, so that nothing is imported to show it."""
    listed = dict(app.commands.sentences())
    assert listed == {name: first_sentence(command.help) for name, command in app.commands.items()}
    shown = " ".join(cli("--help").out.split())
    assert all(f"{name} {sentence}" in shown for name, sentence in listed.items()) and len(listed) > 10


def test_help_of_evaluate_names_every_option_of_the_contract(cli):
    shown = cli("evaluate", "-h", "all").out
    shown = set(shown.replace(",", " ").split())
    assert shown >= CONTRACT


CONTRACT = {
    "--train", "--test", "--ood", "--validation", "--arch", "--method", "--samples", "-T", "--batch-size", "-b",
    "--layers", "--seed", "--device", "--precision", "--chunk-size", "--limit", "--out", "-o", "--save-samples",
    "--json", "--quiet", "--strict", "--debug", "--trust-pickle", "--trust-code", "--from", "--data-root",
    "--download",
}  # fmt: skip


def test_a_known_set_is_found_below_a_data_root(cli, small, tmp_path):
    """A reference by name, its labels included: MNIST's files, tiny."""
    folder = tmp_path / "root" / "mnist"
    folder.mkdir(parents=True)
    images = np.arange(5 * 36, dtype=np.uint8).reshape(5, 6, 6)
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in images.shape)
    (folder / "t10k-images-idx3-ubyte").write_bytes(head + images.tobytes())
    (folder / "t10k-labels-idx1-ubyte").write_bytes(
        bytes([0, 0, 8, 1]) + (5).to_bytes(4, "big") + bytes([0, 1, 2, 0, 1])
    )
    done = cli("evaluate", small / "run.toml", "--ood", "mnist", "--data-root", tmp_path / "root", "-T", "2", "--json")
    assert done.code == 0, done
    assert '"mnist"' in done.out
