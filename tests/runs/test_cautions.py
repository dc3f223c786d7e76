"""What the user should know before trusting an estimate is said, and said only where it holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from findings_of import values_of, warned

from bnuq.config import Options, resolve
from bnuq.errors import ModelError
from bnuq.workflows.precise_bn import precise_bn

SOFTMAX = small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes),\n        nn.Softmax(1),")
UNTRACKED = small_run.NET.replace("nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, track_running_stats=False)")


def codes(folder: Path, **options: object) -> set[str]:
    return set(warned(small_run.evaluated(folder, **options)))


def test_a_network_that_ends_in_a_softmax_is_refused_and_its_population_statistics_are_not(tmp_path):
    small_run.write(tmp_path)
    (tmp_path / "net.py").write_text(SOFTMAX)
    with pytest.raises(ModelError, match="--outputs probabilities"):
        codes(tmp_path)
    assert not (tmp_path / "model.bnuq.h5").exists()
    done = precise_bn(resolve("run.toml", Options(out=tmp_path / "new.pt"), folder=tmp_path))
    assert done.test is None
    assert values_of(done, "no-comparison")["reason"].startswith("the network's outputs look")


def test_leaving_out_what_was_not_asked_for_is_no_cause_for_a_warning(tmp_path):
    small_run.write(tmp_path)
    assert codes(tmp_path, methods=("deterministic",)) <= {"reference-unchecked"}


def test_a_network_without_running_statistics_has_no_evaluation_mode_of_its_own_and_that_is_said(tmp_path):
    small_run.write(tmp_path)
    (tmp_path / "net.py").write_text(UNTRACKED)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    affine = {name: value for name, value in weights.items() if name.rpartition(".")[2] in ("weight", "bias")}
    torch.save(affine, tmp_path / "model.pt")
    assert "deterministic-from-reference" in codes(tmp_path, methods=("mcbn", "mcbn+mcdo"))


def test_one_point_or_one_group_is_too_few(tmp_path):
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "test.npz", **arrays, group=np.zeros(len(arrays["x"]), dtype=int))
    assert "too-few-points" in codes(tmp_path)


def test_the_first_chunk_alone_does_not_decide_whether_passes_differ(tmp_path):
    # the first point is dead to dropout: behind the ReLU nothing of it is left
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as file:
        arrays = {name: values.copy() for name, values in file.items()}
    arrays["x"][0] = -100.0
    np.savez(tmp_path / "test.npz", **arrays)
    whole, single = (small_run.evaluated(tmp_path, methods=("mcdo",), chunk_size=size) for size in (None, 1))
    values = [result.methods["mcdo"].sets["test"].estimates["pll"].value for result in (whole, single)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize(("name", "scale"), [("test", 255), ("train", 255), ("test", 3)])
def test_inputs_on_another_scale_than_the_references_are_a_warning(tmp_path, name, scale):
    small_run.write(tmp_path)
    with np.load(tmp_path / f"{name}.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / f"{name}.npz", x=arrays["x"] * np.float32(scale), y=arrays["y"])
    result = small_run.evaluated(tmp_path)
    assert ("inputs-of-another-scale" in warned(result)) == (scale == 255)
    if scale == 255:
        seen = values_of(result, "inputs-of-another-scale")
        assert (
            seen["set"] == "test"
            and 200 < max(seen["sd"], seen["reference_sd"]) / min(seen["sd"], seen["reference_sd"]) < 300
        )
