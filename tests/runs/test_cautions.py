"""What the user should know before trusting an estimate is said, and said only where it holds."""

from __future__ import annotations

from pathlib import Path

import at_night
import numpy as np
import pytest
import small_run
import torch
from findings_of import values_of, warned

from bnuq.config import Options, resolve
from bnuq.errors import DataError, ModelError
from bnuq.report.evaluation import report
from bnuq.studies.precise_bn.compute import precise_bn

SOFTMAX = small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes),\n        nn.Softmax(1),")
UNTRACKED = small_run.NET.replace("nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, track_running_stats=False)")


def codes(folder: Path, **options: object) -> set[str]:
    return set(warned(small_run.evaluated(folder, **{"methods": ("mcbn",), "ood": ()} | options)))


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
    assert codes(tmp_path, methods=("deterministic",)) == set()


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
        arrays = {name: values[:6].copy() for name, values in file.items()}
    arrays["x"][0] = -100.0
    np.savez(tmp_path / "test.npz", **arrays)
    whole, single = (small_run.evaluated(tmp_path, methods=("mcdo",), ood=(), chunk_size=size) for size in (None, 1))
    values = [result.methods["mcdo"].sets["test"].estimates["pll"].value for result in (whole, single)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize(("name", "scale"), [("train", 255), ("test", 3)])
def test_inputs_on_another_scale_than_the_references_are_a_warning(tmp_path, name, scale):
    small_run.write(tmp_path)
    with np.load(tmp_path / f"{name}.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / f"{name}.npz", x=arrays["x"] * np.float32(scale), y=arrays["y"])
    result = small_run.evaluated(tmp_path, methods=("mcbn",), ood=())
    assert ("inputs-of-another-scale" in warned(result)) == (scale == 255)
    if scale == 255:
        seen = values_of(result, "inputs-of-another-scale")
        assert (
            seen["set"] == "test"
            and 200 < max(seen["sd"], seen["reference_sd"]) / min(seen["sd"], seen["reference_sd"]) < 300
        )


def pixels(folder: Path, name: str, *, scale: float) -> None:
    """Make the inputs of a set floats from 0 to `scale`."""
    with np.load(folder / f"{name}.npz") as file:
        arrays = dict(file)
    arrays["x"] = np.clip(arrays["x"], 0, 1) * np.float32(scale)
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize("name", at_night.but({"other"}, ["test", "other", "validation"]))
def test_nothing_is_concluded_from_a_set_on_another_scale_than_the_references(tmp_path, name):
    run_file = small_run.write(tmp_path)
    (tmp_path / "validation.npz").write_bytes((tmp_path / "test.npz").read_bytes())
    run_file.write_text(small_run.RUN.replace("ood =", 'validation = "validation.npz"\nood ='))
    for each in ("train", "test", "other", "validation"):
        pixels(tmp_path, each, scale=255 if each == name else 1)
    result = small_run.evaluated(tmp_path, methods=("mcbn",), post_hoc=False)
    shown = report(result)
    assert bool(shown.summary) == (name == "other") and not any(" other" in text for text in shown.summary)
    [(text, remedy)] = [(text, remedy) for text, code, remedy in shown.warnings if code == "inputs-of-another-scale"]
    assert f"{name}.npz) lie between 0 and 255" in text and "divide them by 255" in remedy and "as uint8" in remedy


@pytest.mark.parametrize(("name", "code"), [("test", "ood-in-test"), ("train", "ood-in-reference")])
def test_ood_points_of_the_test_set_or_the_reference_are_a_warning(tmp_path, name, code):
    small_run.write(tmp_path)
    with np.load(tmp_path / f"{name}.npz") as points, np.load(tmp_path / "other.npz") as others:
        np.savez(tmp_path / "mixed.npz", x=np.concatenate([points["x"][:7], others["x"][:5]]))
    result = small_run.evaluated(tmp_path, methods=("deterministic",), ood=("mixed.npz", "other.npz"), limit=6)
    shared = [finding.values for finding in result.findings if finding.code.startswith("ood-in")]
    assert [(values["set"], values["shared"], values["points"]) for values in shared] == [("mixed", 7, 12)]
    assert code in warned(result)


@pytest.mark.parametrize(
    "methods",
    [("mcdo",), ("mcbn",), *(pytest.param(each, marks=pytest.mark.nightly) for each in [("deterministic",), None])],
)
def test_a_reference_of_another_size_is_left_out_where_nothing_is_drawn_from_it(tmp_path, methods):
    small_run.write(tmp_path)
    alone = small_run.evaluated(tmp_path, methods=methods or ("mcdo",), ood=(), post_hoc=False)
    np.savez(tmp_path / "train.npz", x=np.zeros((20, 1, 9, 9), np.float32))
    if methods not in (("deterministic",), ("mcdo",)):
        with pytest.raises(DataError, match=r"train .* has examples of shape \(1, 9, 9\), the test set"):
            small_run.evaluated(tmp_path, methods=methods, ood=())
        return
    result = small_run.evaluated(tmp_path, methods=methods, ood=())
    assert values_of(result, "reference-unused")["shape"] == "(1, 9, 9)"
    estimates = result.methods[methods[0]].sets["test"].estimates
    expected = alone.methods[methods[0]].sets["test"].estimates
    assert {name: each.value for name, each in estimates.items()} == {n: each.value for n, each in expected.items()}
    normalize = {"methods": methods, "ood": (), "normalize": "train"}
    with pytest.raises(DataError, match=r"train .* has examples of shape \(1, 9, 9\), the test set"):
        small_run.evaluated(tmp_path, **normalize)


def test_an_ood_set_may_vary_more_than_the_reference(tmp_path):
    small_run.write(tmp_path)
    with np.load(tmp_path / "other.npz") as file:
        np.savez(tmp_path / "other.npz", x=100 * file["x"])
    assert "inputs-of-another-scale" not in codes(tmp_path, ood=("other.npz",))


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda x: np.repeat(x, 3, axis=1), r'image.convert\("RGB"\)'),
        (lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), "--resize 256 --crop 224"),
        (lambda x: x.reshape(len(x), -1), "Give both sets the same inputs"),
    ],
)
def test_sets_of_different_shapes_are_told_how_to_be_made_alike(tmp_path, change, remedy):
    small_run.write(tmp_path)
    with np.load(tmp_path / "train.npz") as file:
        np.savez(tmp_path / "train.npz", x=change(file["x"]), y=file["y"])
    with pytest.raises(DataError, match=rf"train \(.*\) has examples of shape .*; expected the same. .*{remedy}"):
        small_run.evaluated(tmp_path)


def test_labels_out_of_range_are_refused_wherever_a_limit_leaves_them_out(tmp_path):
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as file:
        arrays = {name: values.copy() for name, values in file.items()}
    for row in (0, 30, 59):
        arrays["y"][:] = 0
        arrays["y"][row] = 7
        np.savez(tmp_path / "test.npz", **arrays)
        with pytest.raises(DataError, match="run from 0 to 7; expected 0 to 2 for 3 classes"):
            small_run.evaluated(tmp_path, limit=5)
