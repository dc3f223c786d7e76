"""benchmarks/: the contestants do the same job, ratios are what their README says, and the command runs anywhere."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
SAMPLES, POINTS, BATCH = 4, 40, 16


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The files of benchmarks/, imported as its commands import them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names = ("commands", "comparing", "contestants", "gpu", "gpu_parts", "measuring", "run", "start", "targets")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def tiny_job(contestants: Any, *, dropout: bool = False) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2),
            nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5 if dropout else 0.0), nn.Linear(54, 5),
        ).eval()  # fmt: skip
        for layer in model:
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.weight, 0.5, 1.5)
                nn.init.normal_(layer.bias)
        points = torch.randn(POINTS, 3, 9, 9)
        batches = None if dropout else torch.randn(SAMPLES, BATCH, 3, 9, 9) * 2 + 1
    return contestants.Job(model, points, samples=SAMPLES, batch=32, chunk=24, batches=batches)


def test_the_plain_loop_and_both_of_bnuqs_engines_give_the_same_outputs(benchmarks: SimpleNamespace) -> None:
    job = tiny_job(benchmarks.contestants)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    outputs = []
    for running in (
        benchmarks.contestants.SwapLoop(job),
        benchmarks.contestants.Bnuq(job),
        benchmarks.contestants.Bnuq(job, interception=True),
    ):
        running.draw()
        outputs.append(running.passes())
    loop, engine, interception = outputs
    assert loop.shape == (SAMPLES, POINTS, 5)
    assert (loop[0] - loop[1]).abs().max() > 0.01
    torch.testing.assert_close(engine, loop, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(interception, loop, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


def test_redone_statistics_are_those_of_the_same_mini_batches(benchmarks: SimpleNamespace) -> None:
    job = tiny_job(benchmarks.contestants)
    many = benchmarks.contestants.Job(
        job.model, job.points.repeat(16, 1, 1, 1), samples=SAMPLES, batch=32, chunk=64, batches=job.batches
    )
    loop, redone = benchmarks.contestants.SwapLoop(many), benchmarks.contestants.RedoneLoop(many)
    loop.draw()
    # the loop that people write keeps the unbiased variance: 1 in 16 · 3 · 3 values too much in the last layer
    torch.testing.assert_close(redone.passes(), loop.passes(), rtol=0.02, atol=0.05)


def test_dropout_contestants_pass_every_point_and_their_passes_differ(benchmarks: SimpleNamespace) -> None:
    job = tiny_job(benchmarks.contestants, dropout=True)
    with torch.no_grad():
        mean = job.model(job.points).mean()
    for running in (benchmarks.contestants.Bnuq(job), benchmarks.contestants.DropoutLoop(job)):
        outputs = running.passes()
        assert outputs.shape == (SAMPLES, POINTS, 5)
        assert (outputs[0] - outputs[1]).abs().max() > 0.01
        assert abs(outputs.mean() - mean) < 0.2


def test_a_round_opens_and_closes_with_the_reference_and_turns_its_order_round(benchmarks: SimpleNamespace) -> None:
    called: list[str] = []
    actions = {name: lambda name=name: called.append(name) for name in ("plain", "a", "b")}
    long = dict.fromkeys(actions, benchmarks.measuring.Seconds(1.0, 1.0))
    measured = benchmarks.measuring.rounds(
        actions, long, reference="plain", seconds=8.5, min_rounds=1, max_rounds=9, device="cpu"
    )
    assert called == ["plain", "a", "b", "plain", "plain", "b", "a", "plain"]
    assert [set(durations) for durations in measured] == [set(actions)] * 2


def test_a_total_is_the_passes_and_the_share_of_the_draws(benchmarks: SimpleNamespace) -> None:
    entry = benchmarks.comparing.Entry("x", {"cpu": [0.7, 0.8]}, {"cpu": [1.0, 2.0]}, first=0.0)
    assert entry.total("cpu", 32, 64) == pytest.approx([1.2, 1.8])
    assert benchmarks.comparing.Entry("x", {"cpu": [0.7, 0.8]}, None, first=0.0).total("cpu", 32, 64) == [0.7, 0.8]


def test_a_target_is_judged_by_the_median_and_memory_by_the_worst(benchmarks: SimpleNamespace) -> None:
    targets = benchmarks.targets
    entry = benchmarks.comparing.Entry("bnuq", {"cpu": [0.7, 0.74, 0.9]}, {"cpu": [1.0, 1.0, 1.0]}, first=0.0)
    row = SimpleNamespace(entries={"bnuq": entry}, batch_size=32, samples=4)
    measured = targets.verdicts({"resnet32": row}, targets.Extra(memory=(0.5, 0.6, 1.1)), "cpu")
    by_text = {target.text: target for target in measured}
    cost = by_text["ResNet-32, n = 10 000, b = 32, draws included"]
    assert cost.measured.median == pytest.approx(0.7432) and cost.reached is True
    memory = next(target for text, target in by_text.items() if text.startswith("Peak memory"))
    assert memory.measured.median == 0.6 and memory.reached is False
    assert by_text["ResNet-50 at 224"].reached is None
    assert by_text["ResNet-32, faster than TorchUncertainty"].measured is None


@pytest.mark.nightly  # many processes
def test_the_start_of_commands_is_measured_in_units_of_an_import_of_torch(benchmarks, tmp_path, capsys):
    out, row = tmp_path / "start.json", "check of another seed"
    benchmarks.start.main(["--rounds", "1", "--only", row, "--only", "a missing file", "--out", str(out)])
    written = json.loads(out.read_text(encoding="utf-8"))
    assert set(written) == {"machine", "rounds", "torch_seconds", "ratios"}
    assert set(written["ratios"]) == {"this"} and [*written["ratios"]["this"]] == [row, "a missing file"]
    assert written["torch_seconds"]["median"] > 0
    assert all(0 < spread["min"] <= spread["median"] <= spread["max"] for spread in written["ratios"]["this"].values())
    assert row in capsys.readouterr().out


def test_a_row_that_is_not_there_is_named_with_those_that_are(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--only resnet33: there is no such row; expected one of resnet20, resnet32"):
        benchmarks.run.main(["--only", "resnet33", "--threads", "1", "--out", str(tmp_path / "out.json")])
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly  # not installed, and long
def test_the_recipe_for_a_gpu_runs_without_one_and_writes_what_it_measured(benchmarks, tmp_path, monkeypatch):
    gpu, parts = benchmarks.gpu, benchmarks.gpu_parts
    monkeypatch.syspath_prepend(str(ROOT))  # restores what the command adds
    monkeypatch.setattr(parts.Bench, "seconds", lambda *given: _once(given[1]))

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: misaligned address")

    monkeypatch.setitem(parts.PARTS, "waits", fail)
    with pytest.raises(SystemExit) as leave:
        gpu.main(["--device", "cpu", "--tiny", "--only", "waits,about,fast,masks", "--out", str(tmp_path / "gpu.json")])
    assert leave.value.code == 1  # a part failed, and the others ran
    record = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert record["parts"]["waits"]["error"] == "RuntimeError: CUDA error: misaligned address"
    assert not any(record["parts"][name]["error"] for name in ("about", "fast", "masks"))
    lines = {line["what"]: line for line in record["parts"]["fast"]["lines"]}
    for precision in ("float32", "bfloat16"):
        assert lines[f"{precision}: plain forwards, NCHW"]["per_second"] > 0
        assert lines[f"{precision}: loop that swaps statistics"]["of_plain"] > 0
        (own,) = [line for what, line in lines.items() if what.startswith(f"{precision}: bnuq")]
        assert own["of_plain"] > 0
        peer = [line for what, line in lines.items() if what.startswith(f"{precision}: TorchUncertainty")]
        assert len(peer) == 1 and ("per_second" in peer[0] or "not installed" in peer[0]["why"])
    assert record["parts"]["masks"]["lines"][0]["as_on_the_cpu"] is True
    assert not record["parts"]["fast"]["failed"]
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "Tiny networks" in page and "stopped by RuntimeError" in page and "## masks" in page


def _once(action: Any) -> float:
    action()
    return 1.0


SEGNET = """
from torch import nn

def segnet():
    return nn.Sequential(nn.Conv2d(3, 11, 3, padding=1), nn.BatchNorm2d(11))
"""


@pytest.mark.nightly
def test_the_loop_of_a_segmentation_takes_what_the_comparison_of_commands_gives_it(benchmarks, tmp_path):
    data, random = tmp_path / "data", np.random.default_rng(0)
    for name in ("camvid/train", "camvid/test", "camvid/testannot", "checkpoints", "cifar10", "../architectures"):
        (data / name).mkdir(parents=True)
    (tmp_path / "architectures" / "camvid_segnet.py").write_text(SEGNET, encoding="utf-8")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = runpy.run_path(str(tmp_path / "architectures" / "camvid_segnet.py"))["segnet"]()
    torch.save(model.state_dict(), data / "checkpoints" / "camvid_seg_bn_dropout.pt")
    for number in range(12):
        for name in ("train", "test"):
            picture = random.integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(picture).save(data / "camvid" / name / f"{number}.png")
        mask = random.integers(12, size=(8, 8), dtype=np.uint8)
        Image.fromarray(mask).save(data / "camvid" / "testannot" / f"{number}.png")
    np.savez(data / "cifar10" / "lossless_test.npz", x=np.full((12, 4, 4, 3), 255, np.uint8))
    task = benchmarks.commands.tasks(tmp_path, data)["camvid"]()
    assert task.loop is not None
    command = [sys.executable, str(benchmarks.commands.LOOPS / task.loop[0]), *task.loop[1:]]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0 < printed["accuracy"] < 0.3 and 0 < printed["mean_iou"] < printed["accuracy"]  # of random masks
    assert printed["mutual_information"] > 1e-4  # the draws differ
    assert not 0.3 < printed["pixel_auroc"] < 0.7  # white pictures are far from noise


def test_the_recipe_names_its_parts_and_needs_a_gpu_unless_told_otherwise(benchmarks, monkeypatch):
    gpu = benchmarks.gpu
    with pytest.raises(SystemExit, match="--only speed: there is no such part; expected some of about, right"):
        gpu.main(["--only", "speed"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU here"):
        gpu.main(["--device", "cuda"])


@pytest.mark.nightly  # not installed
@pytest.mark.usefixtures("accelerator")
def test_launches_and_waits_of_a_run_are_counted_and_tabulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    launches: Any = importlib.import_module("launches")
    found = launches.counted("tta")
    assert found["run"]["kernels"] > 2 * found["chunk"]["kernels"] > 0
    assert found["run"]["waits"] > 2 * found["chunk"]["waits"] > 0
    before = {"run": {"kernels": 9000, "waits": 70}, "chunk": {"kernels": 99.5, "waits": 7}}
    after = {"run": {"kernels": 80, "waits": 6}, "chunk": {"kernels": 9, "waits": 2}}
    rows = launches.table({"before": {"a": before, "b": "no"}, "after": {"a": after, "b": after}}).splitlines()
    assert rows[0] == "| run | kernels a run | waits a run | kernels a chunk | waits a chunk |"
    assert rows[2:] == ["| a | 9,000 → 80 | 70 → 6 | 99.5 → 9 | 7 → 2 |", "| b | – → 80 | – → 6 | – → 9 | – → 2 |"]
