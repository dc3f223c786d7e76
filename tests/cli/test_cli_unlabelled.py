"""A test set without labels is evaluated by all that needs none, and a note says what is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from bnuq import metrics

LABELLED = {
    "accuracy", "pll", "brier", "ece", "ece_adaptive", "ece_classwise", "ece_debiased", "ece_floor", "mce",
    *metrics.SELECTIVE, *("auroc_errors", "by_class", "by_score"),
}  # fmt: skip


@pytest.fixture
def bare(small) -> Path:
    with np.load(small / "test.npz") as file:
        np.savez(small / "bare.npz", x=file["x"])
    return small


FEW = ("--method", "mcbn", "--no-post-hoc")


def evaluated(cli, *options: str) -> dict:
    done = cli("evaluate", "run.toml", "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)


def of_test(summary: dict, method: str) -> dict:
    return summary["methods"][method]["sets"]["test"]


def test_the_first_screen_of_nothing_but_unlabelled_points_has_no_table(cli, bare):
    done = cli("evaluate", "run.toml", "--test", bare / "bare.npz", "-T", "2", *FEW)
    assert done.code == 0 and "examples without labels" in done.out and "deterministic" not in done.out


@pytest.mark.nightly
def test_the_figures_that_need_no_labels_are_those_of_the_labelled_set_and_the_others_are_absent(cli, bare):
    few = ("--ood", "other.npz", *FEW)
    expected = evaluated(cli, "-o", "labelled.h5", *few)
    found = evaluated(cli, "--test", "bare.npz", "-o", "bare.h5", *few)
    assert set(of_test(expected, "mcbn")) >= LABELLED
    for method, result in found["methods"].items():
        assert of_test(found, method) == {k: v for k, v in of_test(expected, method).items() if k not in LABELLED}
        separations = {  # without what also depends on errors
            name: {score: {k: v for k, v in of.items() if k != "scod"} for score, of in scores.items()}
            for name, scores in expected["methods"][method]["ood"].items()
        }
        assert result["ood"] == separations and result["ood"]
    assert [text for text in found["notes"] if "bare.npz" in text and "has no labels" in text]

    assert cli("report", "bare.h5", "--html", "page.html").code == 0 and (bare / "page.html").exists()
    assert "has no labels" in cli("report", "bare.h5", "--full").out
    assert of_test(evaluated(cli, "--test", "bare.npz", "-o", "again.h5", *few), "mcbn") == of_test(found, "mcbn")
    assert cli("check", "again.h5", "bare.h5").code == 0
    refused = cli("check", "bare.h5", "labelled.h5")
    assert refused.code == 2 and "missing: deterministic.sets.test.accuracy" in refused.message


def test_the_validation_points_may_have_labels_where_the_test_set_has_none(cli, bare):
    found = evaluated(cli, "--test", "bare.npz", "--validation", "test.npz", *FEW)
    assert "bounds" not in found["methods"]["mcbn"] and "normalized" not in found["methods"]["mcbn"]
    assert bare.exists()


def test_samples_auto_stops_by_what_there_is(cli, bare):
    found = evaluated(cli, "--test", "bare.npz", "-T", "auto", "--max-samples", "32", "--method", "mcdo", FEW[-1])
    assert found["sampling"]["samples"] in (16, 32) and bare.exists()


def test_a_sweep_recommends_by_the_elbo_and_not_by_a_likelihood_that_needs_labels(cli, bare):
    options = ("run.toml", "--test", "bare.npz", "--batch-sizes", "8,16", "-T", "4", "--draw-sets", "2", "-o", "s.h5")
    done = cli("sweep-batch-size", *options, "--json")
    assert done.code == 0, done.err
    [first, _] = json.loads(done.out)["points"]
    assert (
        "elbo" in first and "test" in first["estimates"]["mutual_information"] and not LABELLED & {*first["estimates"]}
    )
    refused = cli("sweep-batch-size", *options, "--criterion", "pll")
    assert refused.code == 2
    assert re.search(r"--criterion pll: the test set bare\.npz has no labels; name --validation REF", refused.message)
    assert bare.exists()


def test_a_single_output_without_labels_is_not_taken_for_a_regression(cli, bare):
    (bare / "one.py").write_text(
        "from torch import nn\nfrom net import net\n\n\ndef one():\n    return nn.Sequential(*net(), nn.Linear(3, 1))\n"
    )
    state = torch.load(bare / "model.pt")
    torch.save(state | {"8.weight": torch.ones(1, 3), "8.bias": torch.zeros(1)}, bare / "model.pt")
    options = ("evaluate", "run.toml", "--arch", "one.py:one", "--test", "bare.npz", "--json", *FEW)
    with np.load(bare / "train.npz") as file:
        x = file["x"]
    np.savez(bare / "train.npz", x=x)
    refused = cli(*options)
    assert refused.code == 2 and "has no targets" in refused.message and "--outputs binary" in refused.message
    done = cli(*options, "--outputs", "binary")
    assert done.code == 0 and json.loads(done.out)["model"]["classes"] == 2


def test_a_file_without_labels_that_claims_an_accuracy_is_refused(cli, bare):
    evaluated(cli, "-o", "forged.h5", *FEW)
    with h5py.File(bare / "forged.h5", "r+") as file:
        names: list[str] = []
        file.visit(lambda name: names.append(name) if name.endswith("test/labels") else None)
        assert len(names) == 1, names
        del file[names[0]]
    assert cli("report", "forged.h5").code == 2
