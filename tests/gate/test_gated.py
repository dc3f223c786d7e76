"""What is gated: the estimates that the baseline decided by, the thresholds that it decided on, or what is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bnuq.errors import RequestError, ResultError
from bnuq.gate import GateSettings, check
from bnuq.records.addresses import estimates_of
from bnuq.records.decisions import Best, Defer, Foreign, Promise, decided
from bnuq.records.evaluation import Result
from bnuq.records.gated import gated, rates

Evaluated = Callable[..., Result]


def of(result: Result, *patterns: str, tolerances: tuple[str, ...] = ()) -> set[str]:
    """The addresses that are gated when a result is checked against itself."""
    verdict = check(result, result, GateSettings.of(estimates=patterns, tolerances=tolerances))
    return {each.address for each in verdict.comparisons if each.outcome != "not gated"}


def test_the_baseline_alone_fixes_about_ten_estimates(evaluated: Evaluated) -> None:
    baseline, current = evaluated("seed"), evaluated("changed", run_file="changed.toml")
    chosen = gated(baseline)
    method = next((each.values["method"] for each in decided(baseline) if each.code == "use"), baseline.first)
    for name in {method, "deterministic"}:
        assert {f"{name}.sets.test.{metric}" for metric in ("pll", "ece", "aurc")} <= {*chosen}
    assert len(chosen) == len({*chosen}) <= 13 and sum(".ood." in address for address in chosen) == 1
    verdict = check(current, baseline)
    assert {each.address for each in verdict.comparisons if each.outcome != "not gated"} == {*chosen} == of(baseline)
    learned = [evaluated(f"learned{seed}", seed=seed, test="learned.npz") for seed in (1, 0)]
    drawn = [each for each in check(*learned).comparisons if "at_thr" in each.address]
    assert drawn and all(each.outcome == "not gated" for each in drawn if each.method != "deterministic")
    assert {each.family for each in verdict.comparisons if each.outcome != "not gated"} == {"main"}


def test_a_pattern_takes_their_place_and_classes_are_tested_apart(evaluated: Evaluated) -> None:
    result = evaluated("seed")
    assert of(result, "mcbn.sets.test.pll") == {"mcbn.sets.test.pll"}
    assert of(result, "brier") == {address for address in estimates_of(result) if address.endswith("sets.test.brier")}
    classes = of(result, "by-class") - {*gated(result)}
    assert classes and all(address.startswith("deterministic.sets.test.by_class.") for address in classes)
    verdict = check(result, result, GateSettings.of(estimates=["by-class"]))
    assert verdict.families == {"main": len(gated(result)), "by-class": len(classes)}
    undirected = "mcbn.sets.test.mutual_information"
    assert of(result, tolerances=(f"{undirected}=0.1",)) == {*gated(result), undirected}
    assert of(result, tolerances=("pll=off",)) == {each for each in gated(result) if not each.endswith(".pll")}
    for pattern in ("mcdo.sets.nothing.*", undirected, "by-group"):
        with pytest.raises(ResultError, match=rf"--gate {pattern.replace('*', '.')} gates no estimate"):
            of(result, pattern, "accuracy")
    with pytest.raises(RequestError, match=r"--gate by-clas: neither.*Did you mean by-class"):
        of(result, "by-clas")


def test_a_committed_threshold_is_applied_to_the_new_result(evaluated: Evaluated) -> None:
    """Scores that shrink rank the points as before, so that every AUROC stays; at the threshold nothing is detected."""
    result = evaluated("seed")
    scores = result.methods["mcbn"].ranked("predictive_entropy", "other")
    threshold = float(np.median(scores[0]))
    promise = Promise("mcbn", "mcbn", "predictive_entropy", 9, None, None)
    best = Best("mcbn", "predictive_entropy", 1, False, {"other": 0.9})
    made = Defer(promise, "points", threshold, None, None, None, None), Foreign(best, threshold, 0.05, {})
    before = {rate.metric: rate.value for rate in rates(result, made)}
    points = result.methods["mcbn"].sets["test"].points
    accepted, right = points["predictive_entropy"] <= threshold, points["accuracy"]
    assert before["accepted"] == accepted.mean() and before["error"] == pytest.approx(1 - right[accepted].mean())
    assert before["detected"] == (scores[1] > threshold).mean() and before["false_alarms"] == 1 - before["accepted"]

    def shrunk(name: str) -> object:
        method = result.methods["mcbn"]
        smaller = {
            **method.sets[name].points,
            "predictive_entropy": 1e-3 * method.sets[name].points["predictive_entropy"],
        }
        return replace(method.sets[name], points=smaller)

    sets = {name: shrunk(name) for name in ("test", "other")}
    method = replace(result.methods["mcbn"], sets={**result.methods["mcbn"].sets, **sets})
    after = replace(result, methods={**result.methods, "mcbn": method})
    now = {rate.metric: rate.value for rate in rates(after, made)}
    assert (now["accepted"], now["detected"], now["false_alarms"]) == (1.0, 0.0, 0.0)
    for rate in rates(result, made):
        assert rate.contributions.mean() == pytest.approx(rate.value)


def test_where_nothing_is_decided_sets_are_held_by_the_spread(evaluated, monkeypatch):
    monkeypatch.setattr("bnuq.records.gated.decided", lambda _: ())
    result = evaluated("seed")
    assert f"{result.sampled[0]}.ood.other.mutual_information.auroc" in gated(result)
    assert f"{result.first}.sets.test.pll" in gated(result) and not any(
        "at_threshold" in each for each in gated(result)
    )
