"""A network of several inputs on the command line, from files and factories, and in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from findings_of import noted
from several_inputs import TWO_INPUTS, OneInput, branches, pictures_and_numbers, sentences, tokens

import bnuq
from bnuq.errors import DataError

FACTORY = """import numpy as np


def make(name, points=40):
    with np.load(f"{name}.npz") as file:
        arrays = dict(file)
    labels = arrays.pop("labels")
    return [({key: values[i] for key, values in arrays.items()}, labels[i]) for i in range(points)]
"""
PARTS = ":image+numbers,labels"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "two_inputs.py").write_text(TWO_INPUTS)
    (tmp_path / "sets.py").write_text(FACTORY)
    torch.save(branches().state_dict(), tmp_path / "model.pt")
    for seed, (name, points) in enumerate((("train", 96), ("test", 40), ("shifted", 40))):
        inputs, labels = pictures_and_numbers(points, seed)
        np.savez(tmp_path / f"{name}.npz", **inputs, labels=labels)
    np.savez(tmp_path / "other.npz", picture=inputs["image"], numbers=inputs["numbers"], labels=labels)
    (tmp_path / "run.toml").write_text(
        '[model]\ncheckpoint = "model.pt"\narch = "two_inputs.py:Branches"\ntrain_batch_size = 16\n'
        f'[data]\ntrain = "train.npz{PARTS}"\ntest = "test.npz{PARTS}"\n[sampling]\nsamples = 4\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.nightly
def test_parts_of_a_file_and_a_factory_give_the_same_estimates_and_the_report_names_the_inputs(cli):
    done = cli("evaluate", "run.toml", "--ood", f"shifted.npz{PARTS},also=shifted.npz:image+numbers", "--full")
    assert done.code == 0, done.err
    assert "image (1, 5, 5) float32, numbers (3,) float32" in " ".join(done.out.split())
    first = bnuq.open("model.bnuq.h5").to_pandas()
    assert {"shifted", "also"} < {*first["set"]}
    done = cli("evaluate", "run.toml", "--test", 'sets.py:make("test")', "-o", "b.h5", "--trust-code")
    assert done.code == 0, done.err
    second = bnuq.open("b.h5").to_pandas()
    of_test = [frame.query("set == 'test' and metric == 'pll'")["value"].to_list() for frame in (first, second)]
    assert of_test[0] == of_test[1] and len(of_test[0]) > 1
    assert cli("report", "b.h5", "--points", "3").code == 0


def test_token_numbers_and_their_mask_give_what_one_input_of_both_gives():
    inputs, labels = sentences(40)
    rows = np.concatenate([*inputs.values()], 1)
    settings = {"samples": 8, "precision": "float64"}
    several = bnuq.evaluate(tokens(), test=(inputs, labels), **settings)
    one = bnuq.evaluate(OneInput(tokens()), test=(rows, labels), **settings)
    assert ("several-inputs" in noted(several), "integer-inputs" in noted(one)) == (True, True)
    values = [result.to_pandas()["value"].to_list() for result in (several, one)]
    assert values[0] == pytest.approx(values[1], rel=1e-9, nan_ok=True) and len(values[0]) > 5


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--normalize", "0.5/0.5"], "data.normalize changes one input, and the examples of"),
        (["--augment", "flip"], "data.augment changes one input"),
        (["--resize", "8"], "data.resize changes one input"),
        (
            ["--test", "test.npz:numbers+image,labels"],
            "has image (1, 5, 5) float32, where the others have numbers (3,)",
        ),
        (["--test", "test.npz:image,labels"], "has image (1, 5, 5) float32, where the others have none"),
        (
            ["--train", "other.npz:picture+numbers,labels", "--test", "other.npz:picture+numbers,labels"],
            "forward takes image, numbers, and the inputs are picture",
        ),
    ],
)
def test_what_does_not_go_with_several_inputs_is_one_error(cli, options, message):
    done = cli("evaluate", "run.toml", *options)
    assert done.code == 2 and message in done.message


def test_sets_of_other_inputs_are_one_error_that_names_the_first(folder):
    inputs, labels = pictures_and_numbers(40)
    other = {**inputs, "numbers": inputs["numbers"].astype(np.float64)}
    with pytest.raises(DataError, match=r"numbers \(3,\) float64, where the others have numbers \(3,\) float32"):
        bnuq.inspect(branches(), train=(inputs, labels), test=(other, labels), domain=(f"{folder}/test.npz",))
