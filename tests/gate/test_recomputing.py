"""Figures, scores and replicates that the rest of a result file contradicts are refused, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bnuq.errors import ResultError
from bnuq.gate import Settings, check
from bnuq.gate.comparability import figures_by_address
from bnuq.gate.recomputing import recomputed
from bnuq.records import Figure
from bnuq.results.result import MethodResult, Result

Evaluated = Callable[..., Result]


def moved(figure: Figure, by: float) -> Figure:
    """A figure forged with all that belongs to it."""
    parts = {key: None if (old := getattr(figure, key)) is None else old + by for key in ("jackknife", "bootstrap")}
    return replace(figure, value=figure.value + by, **parts)


def forged(result: Result, address: str, change: Callable[[Figure], Figure]) -> Result:
    """`result` with the figure at `address` changed."""
    (method, set_name, score, metric), _ = figures_by_address(result)[address]
    found = result.methods[method]

    def within(figures: Any) -> dict[str, Figure]:
        key = metric.removeprefix("normalized_") if set_name == "normalized" else metric
        return {**figures, key: change(figures[key])}

    changed: MethodResult
    if score:
        scores = {**found.ood[set_name], score: within(found.ood[set_name][score])}
        changed = replace(found, ood={**found.ood, set_name: scores})
    elif set_name == "normalized":
        changed = replace(found, normalized=within(found.normalized))
    elif set_name.startswith("bounds/"):
        bound = set_name.removeprefix("bounds/")
        changed = replace(found, bounds={**found.bounds, bound: within(found.bounds[bound])})
    else:
        one = replace(found.sets[set_name], figures=within(found.sets[set_name].figures))
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
    return evaluated("bounded", validation="other_test.npz")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_figure_that_is_moved_with_its_replicates_is_refused_by_name(
    evaluated: Evaluated, regression: Evaluated, task: str
) -> None:
    genuine = all_of_classification(evaluated) if task == "classification" else regression("seed")
    recomputed(genuine)
    figures = figures_by_address(genuine)
    assert len(figures) > 60
    for address, (_, figure) in figures.items():
        bad = forged(genuine, address, lambda figure: moved(figure, 0.05 if figure.value < 0.5 else -0.05))
        with pytest.raises(ResultError, match="contradicts itself") as refused:
            recomputed(bad)
        if not address.endswith(("constant.confidence", "constant.sigma")):  # whose bounds are named
            assert f"{address} is " in str(refused.value)
            assert f"it is {figure.value:.6g}" in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "mcbn.ood.other.mutual_information.auroc",
        "mcbn.ood.other.predictive_entropy.fpr95",
        "deterministic.ood.other.least_confidence.aupr_in",
        "mcbn.sets.test.ece",
        "mcbn.sets.test.aurc",
        "mcbn.sets.test.accuracy",
        "mcbn.sets.test.pll",
        "deterministic.sets.test.brier",
    ],
)
def test_a_forged_figure_is_refused_on_either_side_and_meets_no_floor(evaluated: Evaluated, address: str) -> None:
    genuine = evaluated("seed")
    bad = forged(genuine, address, lambda figure: moved(figure, 0.3 - figure.value))
    was = figures_by_address(genuine)[address][1].value
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


def test_a_score_that_a_figure_comes_from_cannot_be_left_out(evaluated: Evaluated) -> None:
    genuine = evaluated("seed")
    one = genuine.methods["mcbn"].sets["test"]
    for score, told in (("max_probability", "ece"), ("predictive_entropy", "aurc"), ("brier", "brier")):
        points = {key: values for key, values in one.points.items() if key != score}
        sets = {**genuine.methods["mcbn"].sets, "test": replace(one, points=points)}
        bad = replace(genuine, methods={**genuine.methods, "mcbn": replace(genuine.methods["mcbn"], sets=sets)})
        bad = replace(bad, methods={**bad.methods, "mcbn": replace(bad.methods["mcbn"], ood={})})
        with pytest.raises(ResultError, match=rf"mcbn\.sets\.test\.{told} .* missing"):
            recomputed(bad)


def test_replicates_of_a_pll_are_those_of_its_log_likelihoods(evaluated: Evaluated) -> None:
    def spread(figure: Figure) -> Figure:
        assert figure.jackknife is not None
        return replace(figure, jackknife=figure.value + 20 * (figure.jackknife - figure.value))

    bad = forged(evaluated("seed"), "mcbn.sets.test.pll", spread)
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll: its replicates have a Monte Carlo error of"):
        recomputed(bad)


def test_replicates_that_are_far_from_their_figure_are_refused(evaluated: Evaluated) -> None:
    def away(figure: Figure) -> Figure:
        assert figure.jackknife is not None
        return replace(figure, jackknife=figure.jackknife + 0.4)

    for address in ("mcbn.ood.other.mutual_information.auroc", "mcdo.sets.test.brier"):
        with pytest.raises(ResultError, match=rf"{address} is .*, and its replicates without a draw"):
            recomputed(forged(evaluated("seed"), address, away))


@pytest.mark.parametrize(
    "options",
    [
        {"bank": 24},
        {"mutual_information": "corrected"},
        {"mutual_information": "jackknife"},
        {"samples": 1},
        {"samples": 2},
        {"samples": 8, "limit": 5},
        {"samples": "auto", "max_samples": 32},
        {"validation": "other_test.npz", "bank": 40},
    ],
)
def test_what_evaluate_writes_never_contradicts_itself(evaluated: Evaluated, options: dict[str, Any]) -> None:
    recomputed(evaluated("_".join(f"{key}{value}" for key, value in options.items()), **options))


@pytest.mark.parametrize("change", [{}, {"pll": "moment"}, {"pll": "moment_full"}, {"crps": "fair"}, {"tau": 0.02}])
def test_nor_does_a_regression_however_it_is_scored(regression: Evaluated, change: dict[str, Any]) -> None:
    recomputed(regression("_".join(f"{k}{v}" for k, v in change.items()) or "seed", **change))


def test_a_tau_that_the_predictive_deviations_contradict_is_refused(regression: Evaluated) -> None:
    bad = forged(regression("seed"), "mcbn.sets.test.tau", lambda figure: moved(figure, figure.value))
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.tau is"):
        recomputed(bad)


def test_errors_over_points_are_computed_and_never_taken_from_the_file(evaluated: Evaluated) -> None:
    """Also where the points are others, so that nothing can be paired."""
    current, baseline = evaluated("other-seed", seed=1), evaluated("seed")
    other = replace(baseline.sets["test"], sha256="e" * 64)
    baseline = replace(baseline, sets={**baseline.sets, "test": other})
    allowed = Settings.of(allow=["data"])
    address = "mcbn.sets.test.brier"
    wide = forged(current, address, lambda figure: replace(figure, se=100.0))
    found, plain = (
        {one.address: one.se_points for one in check(result, baseline, allowed).comparisons}
        for result in (wide, current)
    )
    assert found == plain
    own = [figures_by_address(one)[address][1].se or 0 for one in (current, baseline)]
    assert found[address] == pytest.approx(np.hypot(*own))
