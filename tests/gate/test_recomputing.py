"""Estimates, scores and replicates that the rest of a result file contradicts are refused, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch

import bnuq
from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.gate import Settings, check
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.recomputing import recomputed
from bnuq.records.addresses import coordinates_of, estimates_of
from bnuq.records.evaluation import MethodResult, Result

Evaluated = Callable[..., Result]


def moved(estimate: Estimate, by: float) -> Estimate:
    """An estimate forged with all that belongs to it."""
    parts = {key: None if (old := getattr(estimate, key)) is None else old + by for key in ("jackknife", "bootstrap")}
    return replace(estimate, value=estimate.value + by, **parts)


def off(estimate: Estimate) -> Estimate:
    return moved(estimate, 0.05 if estimate.value < 0.5 else -0.05)


def forged(result: Result, address: str, change: Callable[[Estimate], Estimate]) -> Result:
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


def rescored(result: Result, method: str, name: str, **changes: Any) -> Result:
    """`result` with the scores of points changed, or with other attributes of the set's results."""
    found = result.methods[method]
    one = found.sets[name]
    points = {**one.points, **{key: values for key, values in changes.items() if key in one.points}}
    others = {key: values for key, values in changes.items() if key not in one.points}
    sets = {**found.sets, name: replace(one, points=points, **others)}
    return replace(result, methods={**result.methods, method: replace(found, sets=sets)})


def all_of_classification(evaluated: Evaluated) -> Result:
    return evaluated("bounded", validation="other_test.npz", post_hoc=True)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_estimate_that_is_moved_with_its_replicates_is_refused_by_name(
    evaluated: Evaluated, regression: Evaluated, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = all_of_classification(evaluated) if task == "classification" else regression("seed")
    recomputed(genuine)
    estimates = {address: row.estimate for address, row in estimates_of(genuine).items()}
    assert len(estimates) > 30
    fitted = [address for address in estimates if address.endswith(("constant.confidence", "constant.sigma"))]
    assert fitted
    for address in fitted:  # whose bounds are named
        with pytest.raises(ResultError, match="contradicts itself"):
            recomputed(forged(genuine, address, off))
    others = [address for address in estimates if address not in fitted]
    bad = genuine
    for address in others:  # each is recomputed from points alone
        bad = forged(bad, address, off)
    monkeypatch.setattr("bnuq.gate.recomputing._SHOWN", 10_000)
    with pytest.raises(ResultError, match="contradicts itself") as refused:
        recomputed(bad)
    told = str(refused.value).splitlines()
    for address in others:
        end = f"it is {estimates[address].value:.6g}."
        assert any(f" {address} is " in line and line.endswith(end) for line in told), address


@pytest.mark.parametrize("address", ["mcbn.ood.other.mutual_information.auroc", "deterministic.sets.test.brier"])
def test_a_forged_estimate_is_refused_on_either_side_and_meets_no_floor(evaluated: Evaluated, address: str) -> None:
    genuine = evaluated("seed")
    bad = forged(genuine, address, lambda estimate: moved(estimate, 0.3 - estimate.value))
    was = estimates_of(genuine)[address].estimate.value
    told = rf"{address} is 0\.3; recomputed from its points it is {was:.6g}"
    for current, baseline in ((bad, genuine), (genuine, bad)):
        with pytest.raises(ResultError, match=told):
            check(current, baseline)
    for floor in (f"{address}>=0", "mcbn.sets.test.accuracy>=0"):
        with pytest.raises(ResultError, match=told):
            check(bad, None, Settings.of(floors=[floor]))


def test_scores_of_points_that_their_sources_contradict_are_refused(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    test = genuine.methods["mcbn"].sets["test"]
    for score, factor in (("accuracy", 0.0), ("least_confidence", 0.5), ("mutual_information", 2.0), ("pll", 0.5)):
        bad = rescored(genuine, "mcbn", "test", **{score: factor * test.points[score]})
        with pytest.raises(ResultError, match=rf"{score} of a point of test under mcbn is .*; recomputed it is"):
            recomputed(bad)
    plain = genuine.methods["deterministic"].sets["test"]
    with pytest.raises(ResultError, match="pll of a point of test under deterministic"):
        recomputed(rescored(genuine, "deterministic", "test", pll=0.5 * plain.points["pll"]))
    assert test.log_likelihood is not None
    with pytest.raises(ResultError, match="pll of a point of test under mcbn"):
        recomputed(rescored(genuine, "mcbn", "test", log_likelihood=0.5 * test.log_likelihood))


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


def test_replicates_of_a_pll_are_those_of_its_log_likelihoods(evaluated: Evaluated) -> None:
    def spread(estimate: Estimate) -> Estimate:
        assert estimate.jackknife is not None and estimate.mc_se is not None
        jackknife = estimate.value + 20 * (estimate.jackknife - estimate.value)
        return replace(estimate, jackknife=jackknife, mc_se=20 * estimate.mc_se)

    bad = forged(evaluated("seed"), "mcbn.sets.test.pll", spread)
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll: its replicates have a Monte Carlo error of"):
        recomputed(bad)


def test_replicates_that_are_far_from_their_estimate_are_refused(evaluated: Evaluated) -> None:
    def away(estimate: Estimate) -> Estimate:
        assert estimate.jackknife is not None
        return replace(estimate, jackknife=estimate.jackknife + 0.4)

    for address in ("mcbn.ood.other.mutual_information.auroc", "mcdo.sets.test.brier"):
        with pytest.raises(ResultError, match=rf"{address} is .*, and its replicates without a draw"):
            recomputed(forged(evaluated("seed"), address, away))


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
    scores = result.methods["deterministic"].sets["test"].points["least_confidence"]
    assert 0 < np.median(scores) < 1e-9
    assert check(result, result, Settings.of()).passed


def test_a_tau_that_the_predictive_deviations_contradict_is_refused(regression: Evaluated) -> None:
    bad = forged(regression("seed"), "mcbn.sets.test.tau", lambda estimate: moved(estimate, estimate.value))
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.tau is"):
        recomputed(bad)


def test_an_error_over_points_that_they_do_not_have_is_refused(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    for address in ("mcbn.sets.test.brier", "deterministic.sets.test.pll", "mcbn.ood.other.least_confidence.auroc"):
        wide = forged(genuine, address, lambda estimate: replace(estimate, se=100.0))
        with pytest.raises(
            ResultError, match=rf"{address}: its standard error is 100; recomputed from its points it is"
        ):
            recomputed(wide)


def test_an_interval_that_its_estimate_is_outside_of_is_refused(evaluated: Evaluated) -> None:
    bad = forged(evaluated("seed"), "mcbn.sets.test.ece", lambda estimate: replace(estimate, low=0.9, high=0.95))
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.ece is .*, and its interval goes from 0\.9 to 0\.95"):
        recomputed(bad)


def spread(estimate: Estimate, by: float) -> Estimate:
    """The estimate with all its replicates moved from it, and the Monte Carlo error with them."""
    assert estimate.jackknife is not None and estimate.bootstrap is not None and estimate.mc_se is not None
    jackknife, bootstrap = (
        estimate.value + by * (each - estimate.value) for each in (estimate.jackknife, estimate.bootstrap)
    )
    return replace(estimate, jackknife=jackknife, bootstrap=bootstrap, mc_se=by * estimate.mc_se)


@pytest.mark.parametrize(
    ("address", "by", "complaint"),
    [
        ("mcbn.sets.test.pll", 1.5, "recomputed from the rest of the file"),
        ("mcbn.sets.test.pll", 0.0, "recomputed from the rest of the file"),
        ("mcdo.sets.test.mutual_information", 1.5, "recomputed from the rest of the file"),
        ("mcbn.normalized.pll", 1.5, "recomputed from the rest of the file"),
        ("mcbn.bounds.constant.pll", 0.5, "recomputed from the rest of the file"),
        ("mcbn.sets.test.brier", 40, "is possible"),
        ("mcbn.sets.test.max_probability", 8, "is possible"),
        ("mcbn.sets.test.accuracy", 20, "is possible"),
        ("mcbn.sets.test.ece", 20, "is possible"),
        ("mcbn.sets.test.aurc", 200, "is possible"),
        ("mcbn.ood.other.predictive_entropy.auroc", 50, "is possible"),
        ("mcbn.ood.other.expected_entropy.auroc", 50, "is possible"),
        ("mcbn.ood.other.mutual_information.auroc", 50, "is possible"),
        ("mcbn.sets.test.brier", 0.0, "is the same without each of the draws"),
    ],
)
def test_a_consistently_forged_spread_of_a_classification_is_refused(
    evaluated: Evaluated, address: str, by: float, complaint: str
) -> None:
    bad = forged(all_of_classification(evaluated), address, lambda estimate: spread(estimate, by))
    with pytest.raises(ResultError, match=rf"- damaged: {address.replace('.', '[.]')}(\W.*)? .*{complaint}"):
        recomputed(bad)


@pytest.mark.parametrize(
    ("address", "by", "complaint"),
    [
        ("mcdo.ood.other.mutual_information.auroc", 1.3, "has replicates that are no shares of 60 and 50 points"),
        ("mcdo.ood.other.mutual_information.auroc", 1.5, "all lie multiples of 3 pairs of points away"),
        ("mcdo.ood.other.mutual_information.auroc", 5, "all lie multiples of 5 pairs of points away"),
        ("mcbn.ood.other.expected_entropy.auroc", 8, "all lie multiples of 8 pairs of points away"),
        ("mcdo.ood.other.mutual_information.fpr95", 0.7, "has replicates that are no shares of 60 and 50 points"),
    ],
)
def test_a_scaled_spread_of_ranks_is_refused_within_its_bounds(
    evaluated: Evaluated, address: str, by: float, complaint: str
) -> None:
    bad = forged(evaluated("seed"), address, lambda estimate: spread(estimate, by))
    with pytest.raises(ResultError, match=rf"- damaged: {address.replace('.', '[.]')}.*{complaint}"):
        recomputed(bad)


def test_points_that_are_there_twice_are_no_reason_to_refuse(evaluated: Evaluated) -> None:
    path = evaluated("seed").path
    assert path is not None
    for name in ("test", "other"):
        with np.load(path.with_name(f"{name}.npz")) as points:
            twice = {key: np.repeat(values, 2, 0) for key, values in points.items()}
        np.savez(path.with_name(f"{name}_twice.npz"), **twice)  # type: ignore
    doubled = evaluated("twice", methods=("mcbn",), test="test_twice.npz", ood=("other=other_twice.npz",))
    recomputed(doubled)
    bad = forged(doubled, "mcbn.ood.other.mutual_information.auroc", lambda estimate: spread(estimate, 3))
    with pytest.raises(ResultError, match=r"(multiples of 3 pairs of points away|is possible)"):
        recomputed(bad)


def test_ranks_of_some_points_move_by_pairs_of_these(evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bnuq.evaluation.estimates.RANKED", 25)
    monkeypatch.setattr("bnuq.gate.replicates._RANKED", 25)
    some = evaluated("ranked")
    recomputed(some)
    bad = forged(some, "mcdo.ood.other.mutual_information.auroc", lambda estimate: spread(estimate, 3))
    with pytest.raises(ResultError, match="multiples of 3 pairs of points away"):
        recomputed(bad)


@pytest.mark.parametrize("address", ["rmse", "mae", "pll"])
@pytest.mark.parametrize("by", [0.0, 3.0])
def test_a_consistently_forged_spread_of_a_regression_is_refused(
    regression: Evaluated, address: str, by: float
) -> None:
    if (address, by) == ("mae", 0.0):
        pytest.skip("bounded from above alone")
    bad = forged(regression("seed"), f"mcbn.sets.test.{address}", lambda estimate: spread(estimate, by))
    with pytest.raises(ResultError, match=rf"- damaged: mcbn\.sets\.test\.{address}\W.*(possible|rest of the file)"):
        recomputed(bad)


@pytest.mark.parametrize("part", ["jackknife", "bootstrap"])
def test_replicates_of_one_kind_alone_are_held_against_the_other(evaluated: Evaluated, part: str) -> None:
    def change(estimate: Estimate) -> Estimate:
        wide = spread(estimate, 6)
        changed = replace(estimate, **{part: getattr(wide, part)})
        return replace(changed, mc_se=wide.mc_se) if part == "jackknife" else changed

    bad = forged(evaluated("seed"), "mcbn.sets.other.predictive_entropy", change)
    with pytest.raises(ResultError, match=r"mcbn\.sets\.other\.predictive_entropy(:| ).*(by the bootstrap|possible)"):
        recomputed(bad)


def test_a_monte_carlo_error_is_that_of_its_replicates_and_there_where_they_are(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    for change in ({"mc_se": 0.5}, {"mc_se": None}, {"jackknife": None, "bootstrap": None}):
        bad = forged(genuine, "mcbn.ood.other.mutual_information.auroc", lambda f, c=change: replace(f, **c))
        with pytest.raises(
            ResultError, match=r"mutual_information\.auroc: its Monte Carlo error is .*; recomputed from"
        ):
            recomputed(bad)


def test_a_network_without_draws_has_no_replicates(evaluated: Evaluated) -> None:
    bad = forged(
        evaluated("seed"),
        "deterministic.sets.test.pll",
        lambda estimate: replace(estimate, jackknife=np.full(16, estimate.value), mc_se=0.0),
    )
    with pytest.raises(ResultError, match=r"deterministic\.sets\.test\.pll has replicates over draws, of which there"):
        recomputed(bad)


def test_labels_that_are_others_than_the_baseline_s_are_other_data(evaluated: Evaluated) -> None:
    """As many points, of one digest: but it was only written down, and the labels are there."""
    genuine = evaluated("seed")
    test = genuine.sets["test"]
    assert test.labels is not None
    swapped = replace(test, labels=np.roll(test.labels, 1))
    with pytest.raises(ResultError, match=r"data: test holds points with other labels or targets"):
        check_comparable(replace(genuine, sets={**genuine.sets, "test": swapped}), genuine, Settings())


def test_infinite_log_likelihoods_are_none_of_a_finite_pll(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    found = genuine.methods["mcbn"].sets["test"].log_likelihood
    assert found is not None
    with pytest.raises(ResultError, match="pll of a point of test under mcbn"):
        recomputed(rescored(genuine, "mcbn", "test", log_likelihood=np.full_like(found, -np.inf)))
    one = found.copy()
    one[0, 0] = -np.inf  # of which the estimates may be bounded all the same
    with pytest.raises(ResultError, match="contradicts itself"):
        recomputed(rescored(genuine, "mcbn", "test", log_likelihood=one))


def test_a_bank_hides_no_forged_spread(evaluated: Evaluated) -> None:
    banked = evaluated("banked", methods=("mcbn",), bank=24)
    bad = forged(banked, "mcbn.sets.test.pll", lambda estimate: spread(estimate, 2.0))
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll: its replicates have a Monte Carlo error of"):
        recomputed(bad)
    plain = forged(evaluated("seed"), "mcbn.sets.test.pll", lambda estimate: spread(estimate, 2.0))
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll: its replicates have a Monte Carlo error of"):
        recomputed(replace(plain, sampling={**plain.sampling, "bank": 16}))


def test_more_draws_or_replicates_than_memory_is_for_are_refused(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    with pytest.raises(ResultError, match="has 100000 samples; at most 8192 can be checked"):
        recomputed(replace(genuine, sampling={**genuine.sampling, "bank": 100_000}))
    address = "mcbn.sets.test.brier"
    many = forged(genuine, address, lambda estimate: replace(estimate, bootstrap=np.full(1001, estimate.value)))
    with pytest.raises(ResultError, match=rf"{address} has 1001 bootstrap replicates"):
        recomputed(many)
