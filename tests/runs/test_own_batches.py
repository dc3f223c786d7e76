"""Prediction-time BatchNorm of whole evaluations, against a plain forward in training mode of the same batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_run
import small_segmentation
import torch
from findings_of import values_of
from report_text import rendered
from torch import nn
from written import folder_of

import bnuq
from bnuq.errors import BnuqError
from bnuq.evaluation.methods.layers import own_batches
from bnuq.methods import OWN
from bnuq.records.decisions import decided, judged
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report

B, SEED = 16, 3
PURPOSE = 28  # of these batches, never to be renumbered


def evaluated(folder: Path, name: str, **options: Any) -> Result:
    given = {"methods": (OWN,), "seed": SEED, "out": folder / f"{name}.h5", "post_hoc": False}
    return small_run.evaluated(folder, **given | options)


folder = folder_of(small_run)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Result:
    return evaluated(folder, "whole", methods=(OWN, "mcbn"), perturb=("gaussian:0.2",), samples=8)


def order(count: int) -> list[int]:
    """A permutation by random words from outside bnuq, a Fisher–Yates shuffle."""
    key, counter = np.array([SEED, 0], np.uint64), np.array([0, 0, 0, PURPOSE], np.uint64)
    rows = list(range(count))
    for i, word in enumerate(np.random.Philox(key=key, counter=counter).random_raw(count).tolist()):
        j = i + word % (count - i)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def in_training_mode(model: nn.Module, inputs: torch.Tensor, batches: Sequence[Sequence[int]]) -> np.ndarray:
    """The probabilities of a copy of the network in training mode but for its dropout, batch by batch."""
    twin = copy.deepcopy(model).train()
    for layer in twin.modules():
        layer.train(not isinstance(layer, nn.Dropout))
    result = torch.full((len(inputs), 3), torch.nan)
    with torch.no_grad():
        for rows in reversed(batches):
            result[rows] = twin(inputs[rows])
    return result.double().softmax(-1).numpy()


def test_every_set_is_the_network_in_training_mode_on_the_same_batches(folder: Path, whole: Result) -> None:
    for name, count in (("test", small_run.TEST), ("other", small_run.OTHER)):
        rows = order(count)
        assert count % B  # so that the last batch is filled up
        batches = [(rows + rows)[start : start + B] for start in range(0, count, B)]
        p = in_training_mode(small_run.stored(folder), torch.from_numpy(np.load(folder / f"{name}.npz")["x"]), batches)
        points = whole.methods[OWN].sets[name].points
        np.testing.assert_allclose(points["max_probability"], p.max(-1), atol=1e-5)
        np.testing.assert_allclose(points["predictive_entropy"], -(p * np.log(p)).sum(-1), atol=1e-5)
    y = np.load(folder / "test.npz")["y"]
    p = in_training_mode(
        small_run.stored(folder), torch.from_numpy(np.load(folder / "test.npz")["x"]), _batches(small_run.TEST)
    )
    pll = whole.methods[OWN].sets["test"].estimates["pll"].value
    assert pll == pytest.approx(np.log(p[np.arange(len(y)), y]).mean(), abs=1e-5)
    assert abs(pll - whole.methods["deterministic"].sets["test"].estimates["pll"].value) > 1e-3
    perturbed = next(name for name, each in whole.sets.items() if each.kind == "perturbed")
    assert whole.methods[OWN].sets[perturbed].estimates["pll"].value != pll


def _batches(count: int) -> list[list[int]]:
    return own_batches(count, B, seed=SEED).tolist()


def test_a_batch_has_b_points_and_every_point_a_batch() -> None:
    for count in (2, 15, 16, 17, 31, 32, 60):
        batches = own_batches(count, B, seed=SEED)
        assert {len(set(rows)) for rows in batches.tolist()} == {min(count, B)}
        assert [*dict.fromkeys(batches.ravel().tolist())] == order(count)
        assert len(batches) == -(-count // B)


@pytest.mark.parametrize(
    "options",
    at_night.but(
        [{"chunk_size": 7}, {"train": None}], [{"chunk_size": 7}, {"on": "local:2"}, {"ood": ()}, {"train": None}]
    ),
)
def test_no_estimate_depends_on_chunks_processes_other_sets_or_the_reference(folder, whole, options):
    for name, each in evaluated(folder, "apart", **options).methods[OWN].sets.items():
        for score, values in each.points.items():
            np.testing.assert_array_equal(values, whole.methods[OWN].sets[name].points[score])


def test_every_layer_is_normalised_by_the_batch_whatever_the_layers_that_mcbn_samples() -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
    given = {"test": (3 * x + 1, np.arange(60) % 2), "methods": [OWN], "batch_size": B, "post_hoc": False}
    results = [bnuq.evaluate(model, layers=layers, **given).record for layers in ("all", "first:1")]
    assert results[0].methods[OWN].sets["test"].estimates == results[1].methods[OWN].sets["test"].estimates


def test_the_network_is_left_as_it_was(folder: Path) -> None:
    model = small_run.stored(folder)
    before = copy.deepcopy(model.state_dict())
    x, y = np.load(folder / "test.npz")["x"], np.load(folder / "test.npz")["y"]
    result = bnuq.evaluate(model, test=(x, y), methods=[OWN], batch_size=B, seed=SEED)
    assert all(torch.equal(before[name], values) for name, values in model.state_dict().items())
    assert not model.training
    p = in_training_mode(model, torch.from_numpy(x), _batches(len(x)))
    np.testing.assert_allclose(result.methods[OWN].sets["test"].points["max_probability"], p.max(-1), atol=1e-5)


def test_a_set_with_fewer_points_is_one_batch(folder: Path) -> None:
    result = evaluated(folder, "few", batch_size=55)
    assert values_of(result, "own-batches") == {"batch_size": 55, "smaller": [("other", small_run.OTHER)]}
    inputs = torch.from_numpy(np.load(folder / "other.npz")["x"])
    p = in_training_mode(small_run.stored(folder), inputs, [range(len(inputs))])
    np.testing.assert_allclose(result.methods[OWN].sets["other"].points["max_probability"], p.max(-1), atol=1e-5)


def test_what_it_cannot_be_drawn_of_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BnuqError, match=r"deterministic\+own cannot be drawn: an example alone has no batch"):
        evaluated(folder, "alone", batch_size=1)
    text = small_run.RUN.replace("train_batch_size", "arch_args = { norm = false }\ntrain_batch_size")
    plain = small_run.write(tmp_path / "plain", text=text, norm=False).parent
    with pytest.raises(BnuqError, match=r"deterministic\+own cannot be drawn: the network has no BatchNorm layer"):
        evaluated(plain, "plain")
    dense = small_segmentation.write(tmp_path / "dense")
    with pytest.raises(BnuqError, match=r"deterministic\+own cannot be drawn: it is not offered for a segmentation"):
        small_segmentation.evaluated(dense if dense.is_dir() else dense.parent, methods=(OWN,))


def test_it_is_compared_and_marked_and_never_what_is_decided(whole: Result) -> None:
    verdict = judged(whole)
    assert OWN in {each.method for each in verdict.comparisons}
    assert not any(each.against.startswith(OWN) for each in verdict.comparisons)
    own = whole.methods[OWN]
    perfect = {
        score: {metric: replace(each, value=1.0, low=0.99, high=1.0) for metric, each in estimates.items()}
        for score, estimates in own.ood["other"].items()
    }
    better = replace(whole, methods=whole.methods | {OWN: replace(own, ood=own.ood | {"other": perfect})})
    for result in (whole, better):
        assert decided(result)
        assert not any(str(each.values.get("method")).startswith(OWN) for each in decided(result))
    text = rendered(report, whole, full=True)
    assert f"{OWN} †" in text and "never the single pass" in " ".join(text.split())
