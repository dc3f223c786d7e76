"""A network whose running statistics do not fit its reference: repairing them is no uncertainty gained, nor told so."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_run
import torch
from findings_of import values_of, warned
from table import streamed_scores

from bnuq.catalogue import text_of
from bnuq.cli.main import main
from bnuq.config import Options, resolve, resolve_again
from bnuq.config.runfile_writing import other_command
from bnuq.evaluation import draws
from bnuq.findings import Finding
from bnuq.methods import NETWORKS, POPULATION
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.records.summary import summary
from bnuq.records.verdict import is_mismatched, judged
from bnuq.workflows.evaluate import evaluate


def let_go_stale(folder: Path, layer: str) -> None:
    """Running averages of a network that has moved on: each mean by two standard deviations, each variance × 4."""
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights[f"{layer}.running_mean"] += 2 * weights[f"{layer}.running_var"].sqrt()
    weights[f"{layer}.running_var"] *= 4
    torch.save(weights, folder / "stale.pt")
    (folder / "stale.toml").write_text((folder / "run.toml").read_text().replace("model.pt", "stale.pt"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stale")
    small_run.write(place)
    let_go_stale(place, "1")
    return place


def evaluated(folder: Path, out: str, run_file: str = "stale.toml", **options: Any) -> Result:
    given = {"samples": 16, "post_hoc": False} | options
    return read(small_run.evaluated(folder, run_file=run_file, out=folder / out, **given).path)


@pytest.fixture(scope="module")
def stale(folder: Path) -> Result:
    return evaluated(folder, "stale.h5")


@pytest.fixture(scope="module")
def sound(folder: Path) -> Result:
    return evaluated(folder, "sound.h5", "run.toml")


def test_no_method_is_credited_while_statistics_were_never_trained(folder):
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights["1.running_mean"].zero_()
    weights["1.running_var"].fill_(1)
    torch.save(weights, folder / "untrained.pt")
    (folder / "untrained.toml").write_text((folder / "run.toml").read_text().replace("model.pt", "untrained.pt"))
    result = evaluated(folder, "untrained.h5", "untrained.toml", methods=("mcdo",))
    assert "never-trained" in {finding.code for finding in result.findings}
    assert is_mismatched(result) and judged(result).worth is not True


def test_without_a_reference_no_method_is_credited_beside_running_variances_of_0(folder):
    result = evaluated(folder, "zero.h5", broken(folder, "zero in a channel"), methods=("mcdo",), ood=())
    assert warned(result) == ["variance-zero"]
    assert values_of(result, "variance-zero") == {"layers": ["1"], "channels": 1}
    assert is_mismatched(result) and judged(result).worth is not True


def test_the_warning_leads_to_commands_that_run_as_they_stand(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(folder)
    place = folder / "my models"
    place.mkdir()
    (folder / "stale.pt").rename(place / "it.pt")
    (folder / "stale.pt").symlink_to(place / "it.pt")
    typed = Options(arch="net.py:net", train="train.npz", test="test.npz", arch_args=("classes=3",), normalize="0.5/2")
    run = resolve("my models/it.pt", typed, folder=folder)
    options = "--arch net.py:net --arch-arg classes=3 --train train.npz --normalize 0.5/2"
    command = f"bnuq inspect 'my models/it.pt' {options} --suggest-pipeline"
    assert other_command(run, "inspect", "--suggest-pipeline") == command
    assert command.partition(" --suggest")[0] in text_of(mismatch(evaluate(replace(run, samples=8, methods=("mcbn",)))))
    by_file = resolve("stale.toml", Options(), folder=folder)
    assert other_command(by_file, "precise-bn") == "bnuq precise-bn stale.toml"
    again = other_command(resolve_again(run.record(), folder / "it.bnuq.h5", Options(), folder=folder), "inspect")
    assert again is not None
    words = shlex.split(again)
    assert words[2] == "my models/it.pt" and words[words.index("--normalize") + 1] == "0.5/2.0"
    with pytest.raises(SystemExit) as leave:
        main([*shlex.split(command)[1:], "--out", str(tmp_path / "i.h5")])
    assert leave.value.code == 0
    assert other_command(replace(run, network=torch.nn.Identity()), "inspect") is None


def mismatch(record: Result) -> Finding:
    return next(finding for finding in record.findings if finding.code == "reference-mismatch")


def test_the_network_passes_with_population_statistics_where_the_reference_check_fails(stale, sound):
    assert stale.reference_check is not None and not stale.reference_check.passed
    assert tuple(stale.methods)[:2] == NETWORKS
    assert sound.reference_check is not None and sound.reference_check.passed
    assert POPULATION not in sound.methods
    plain, repaired, drawn = (stale.methods[name].sets["test"].estimates for name in (*NETWORKS, "mcbn"))
    whole = sound.methods["deterministic"].sets["test"].estimates
    assert plain["pll"].value < whole["pll"].value - 0.2
    assert repaired["pll"].value == pytest.approx(whole["pll"].value, abs=0.02)
    assert drawn["pll"].value - plain["pll"].value > 0.2 > 10 * abs(drawn["pll"].value - repaired["pll"].value)
    assert repaired["pll"].mc_se is None and "mutual_information" not in repaired


def broken(folder: Path, how: str) -> str:
    """A run file of the network with running statistics that the reference check cannot compare, or not all."""
    weights = torch.load(folder / "model.pt", weights_only=True)
    net = (folder / "net.py").read_text()
    if how == "zero in a channel":
        weights["1.running_var"][0] = 0
    if how == "never trained":
        weights["1.running_mean"], weights["1.running_var"] = torch.zeros(4), torch.ones(4)
    if how.endswith("cumulative"):
        net = net.replace("BatchNorm2d(4)", "BatchNorm2d(4, momentum=None)")
    if how == "stale and cumulative":
        weights["1.running_mean"] += 2 * weights["1.running_var"].sqrt()
        weights["1.running_var"] *= 4
    torch.save(weights, folder / "broken.pt")
    (folder / "broken.py").write_text(net)
    text = (folder / "run.toml").read_text().replace("model.pt", "broken.pt").replace("net.py", "broken.py")
    (folder / "broken.toml").write_text(text)
    return "broken.toml"


@pytest.mark.parametrize(
    ("how", "warning"),
    [
        ("zero in a channel", "reference-mismatch"),
        ("never trained", "never-trained"),
        ("stale and cumulative", "reference-unchecked"),
    ],
)
def test_samples_are_not_credited_with_statistics_that_no_check_compares(folder: Path, how: str, warning: str) -> None:
    record = evaluated(folder, "broken.h5", broken(folder, how), methods=("mcbn",), ood=())
    assert tuple(record.methods) == (*NETWORKS, "mcbn")
    assert judged(record).worth is not True
    checked = summary(record)["reference_check"]
    assert (checked is not None) == (how == "zero in a channel") and (not checked or checked["unfit"] == ["1"])
    assert warned(record) == [warning]


def test_right_statistics_that_no_check_compares_are_a_note_where_they_change_nothing(folder: Path) -> None:
    record = evaluated(folder, "cumulative.h5", broken(folder, "cumulative"), methods=("mcbn",), ood=())
    assert POPULATION in record.methods and record.reference_check is None and warned(record) == []
    effect = {name: times for name, _, _, times in values_of(record, "reference-uncompared")["effect"]}
    assert set(effect) == {"pll", "accuracy"} and max(effect.values()) < 2


@pytest.mark.parametrize("methods", [("mcdo",), ("deterministic",)])
def test_where_no_method_draws_from_the_reference_it_is_not_checked(folder: Path, methods, monkeypatch) -> None:
    monkeypatch.setattr(draws, "reference_check", lambda *_, **__: pytest.fail("it was checked"))
    record = evaluated(folder, "unneeded.h5", methods=methods)
    assert record.reference_check is None and POPULATION not in record.methods
    assert not [finding.code for finding in record.findings if "reference" in finding.code]


def test_a_repair_is_not_told_as_a_gain(stale: Result) -> None:
    assert judged(stale).worth is not True and not judged(stale).gains
    [(_, before, after, _), *_] = values_of(stale, "reference-mismatch")["effect"]
    assert after > before, "by the statistics of the training set, in one pass"


def test_it_is_in_the_file_and_in_the_json_like_any_method(stale: Result) -> None:
    content = json.loads(json.dumps(summary(stale)))["methods"][POPULATION]
    assert content["sets"]["test"]["pll"]["value"] == stale.methods[POPULATION].sets["test"].estimates["pll"].value
    assert set(content["ood"]["other"]) == streamed_scores(single_sample=True)
