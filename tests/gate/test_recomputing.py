"""Estimates that the points of a result contradict are refused, wherever they stand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from check_all import check

import bnuq
from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.gate import GateSettings, checking
from bnuq.gate.checking import recomputed
from bnuq.gate.compatibility import check_comparable
from bnuq.records.addresses import coordinates_of, estimates_of
from bnuq.records.evaluation import MethodResult, Result
from bnuq.records.evaluation_file import read

Evaluated = Callable[..., Result]


def off(estimate: Estimate) -> Estimate:
    return replace(estimate, value=estimate.value + (0.05 if estimate.value < 0.5 else -0.05))


def damaged(result: Result, address: str, change: Callable[[Estimate], Estimate]) -> Result:
    """`result` with the estimate at `address` changed."""
    at = dict.fromkeys(("method", "set", "score", "bound", "class"), "") | coordinates_of(address)
    method, set_name, score, bound = (at[name] for name in ("method", "set", "score", "bound"))
    key, found = address.rpartition(".")[2], result.methods[method]

    def within(estimates: Any) -> dict[str, Estimate]:
        return {**estimates, key: change(estimates[key])}

    changed: MethodResult
    if at["class"]:
        test = found.sets[set_name]
        by_class = {**test.by_class, at["class"]: within(test.by_class[at["class"]])}
        changed = replace(found, sets={**found.sets, set_name: replace(test, by_class=by_class)})
    elif key == "auroc_errors" and score:
        test = found.sets[set_name]
        by_score = {**test.by_score, score: within(test.by_score[score])}
        changed = replace(found, sets={**found.sets, set_name: replace(test, by_score=by_score)})
    elif score:
        scores = {**found.ood[set_name], score: within(found.ood[set_name][score])}
        changed = replace(found, ood={**found.ood, set_name: scores})
    elif bound:
        changed = replace(found, bounds={**found.bounds, bound: within(found.bounds[bound])})
    elif not set_name:
        changed = replace(found, normalized=within(found.normalized))
    else:
        one = replace(found.sets[set_name], estimates=within(found.sets[set_name].estimates))
        changed = replace(found, sets={**found.sets, set_name: one})
    return replace(result, methods={**result.methods, method: changed})


def all_of_classification(evaluated: Evaluated) -> Result:
    return evaluated("bounded", validation="other_test.npz", post_hoc=True)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_estimate_that_is_another_than_that_of_its_points_is_refused_by_name(
    evaluated: Evaluated, regression: Evaluated, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = all_of_classification(evaluated) if task == "classification" else regression("seed")
    recomputed(genuine)
    estimates = {address: row.estimate for address, row in estimates_of(genuine).items()}
    assert len(estimates) > 30
    fitted = [address for address in estimates if address.endswith((".confidence", ".sigma", ".tau"))]
    assert fitted
    for address in fitted:
        if address.endswith(".confidence"):  # whose bounds are named
            with pytest.raises(ResultError, match="contradicts itself"):
                recomputed(damaged(genuine, address, off))
    others = [address for address in estimates if address not in fitted]
    bad = genuine
    for address in others:  # each is recomputed from points alone
        bad = damaged(bad, address, off)
    monkeypatch.setattr("bnuq.gate.checking._SHOWN", 10_000)
    with pytest.raises(ResultError, match="contradicts itself") as refused:
        recomputed(bad)
    told = dict(re.findall(r"damaged: (\S+) is .* it is (\S+)\.$", str(refused.value), re.MULTILINE))
    for address in others:  # as recomputed, in another order of summation
        assert float(told[address]) == pytest.approx(estimates[address].value, rel=1e-5, abs=1e-12, nan_ok=True), (
            address
        )


@pytest.mark.parametrize("address", ["mcbn.ood.other.mutual_information.auroc", "deterministic.sets.test.brier"])
def test_a_damaged_estimate_is_refused_on_either_side_and_meets_no_floor(evaluated: Evaluated, address: str) -> None:
    genuine = evaluated("seed")
    bad = damaged(genuine, address, lambda estimate: replace(estimate, value=0.3))
    was = estimates_of(genuine)[address].estimate.value
    told = rf"{address} is 0\.3; recomputed from its examples it is {was:.6g}"
    for current, baseline in ((bad, genuine), (genuine, bad)):
        with pytest.raises(ResultError, match=told):
            check(current, baseline)
    for floor in (f"{address}>=0", "mcbn.sets.test.accuracy>=0"):
        with pytest.raises(ResultError, match=told):
            check(bad, None, GateSettings.of(floors=[floor]))


def test_a_score_that_a_estimate_comes_from_cannot_be_left_out(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    one = genuine.methods["mcbn"].sets["test"]
    for score, told in (
        ("max_probability", "ece"),
        ("max_probability", "ece_adaptive"),
        ("max_probability", "mce"),
        ("predictive_entropy", "aurc"),
        ("brier", "brier"),
    ):
        points = {key: values for key, values in one.points.items() if key != score}
        sets = {**genuine.methods["mcbn"].sets, "test": replace(one, points=points)}
        bad = replace(genuine, methods={**genuine.methods, "mcbn": replace(genuine.methods["mcbn"], sets=sets)})
        bad = replace(bad, methods={**bad.methods, "mcbn": replace(bad.methods["mcbn"], ood={})})
        with pytest.raises(ResultError, match=rf"mcbn\.sets\.test\.{told} .* missing"):
            recomputed(bad)


@pytest.mark.parametrize(
    "options",
    [
        {"mutual_information": "corrected", "samples": 8, "limit": 5},
        {"mutual_information": "jackknife", "samples": 2},
        {"samples": 1},
        {"samples": "auto", "max_samples": 32},
        {"validation": "other_test.npz", "bank": 24},
    ],
)
def test_what_evaluate_writes_never_contradicts_itself(evaluated: Evaluated, options: dict[str, Any]) -> None:
    recomputed(evaluated("_".join(f"{key}{value}" for key, value in options.items()), methods=("mcbn",), **options))


@pytest.mark.parametrize("change", [{}, {"pll": "moment", "crps": "fair"}, {"pll": "moment_full", "tau": 0.02}])
def test_nor_does_a_regression_however_it_is_scored(regression: Evaluated, change: dict[str, Any]) -> None:
    recomputed(regression(change.get("pll", "seed"), **change))


def test_nor_does_a_mutual_information_of_many_points_and_few_draws() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2000, 64)).astype(np.float32), random.integers(0, 2, 2000)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(64, 2))
    assert recomputed(bnuq.evaluate(network, test=(x, y), samples=8).record)


def test_nor_does_a_network_that_is_all_but_certain(tmp_path: Path) -> None:
    small_run.write(tmp_path)
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    for name in ("7.weight", "7.bias"):
        state[name] *= 60.0  # probabilities differ from 1 by about rounding
    torch.save(state, tmp_path / "model.pt")
    result = small_run.evaluated(tmp_path, methods=("mcbn",))
    assert 0 < np.median(result.methods["deterministic"].sets["test"].points["least_confidence"]) < 1e-9
    assert check(result, result, GateSettings.of()).passed


def test_labels_that_are_others_than_the_baseline_s_are_other_data(evaluated: Evaluated) -> None:
    """As many points, of one digest: but it was only written down, and the labels are there."""
    genuine = evaluated("seed")
    test = genuine.sets["test"]
    assert test.labels is not None
    swapped = replace(test, labels=np.roll(test.labels, 1))
    with pytest.raises(ResultError, match=r"data: test holds examples with other labels or targets"):
        check_comparable(replace(genuine, sets={**genuine.sets, "test": swapped}), genuine, GateSettings())


@pytest.mark.skipif(os.name != "posix", reason="files that were written here are known on POSIX alone")
def test_a_file_is_recomputed_unless_bnuq_wrote_it_here_as_it_is(evaluated, tmp_path, monkeypatch):
    path, asked = evaluated("seed").path, []
    assert path is not None
    contradictions = checking._contradictions
    monkeypatch.setattr(checking, "_contradictions", lambda points: asked.append(points) or contradictions(points))
    own = read(path)
    recomputed(own)
    assert asked == []
    recomputed(replace(own))  # of which anything may have been replaced
    assert len(asked) == 1
    changed = tmp_path / "changed.h5"
    changed.write_bytes(path.read_bytes() + b"\0")
    recomputed(read(changed))
    assert len(asked) == 2
