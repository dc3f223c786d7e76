"""The best of many scores: chosen on one half of the points, judged on the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import made_up
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bnuq.estimates import Estimate
from bnuq.metrics import auroc
from bnuq.records.best_scores import CrossFit, aurocs_of, best_score, first_half
from bnuq.records.decisions import Verdict, decided, decisions
from bnuq.records.evaluation import EvaluatedSet, Result
from bnuq.report.ood import columns

NAMES = "energy", "max_logit", "knn", "vim", "react", "gen", "mahalanobis", "predictive_entropy"
DIGESTS = {"test": "1" * 64, "far": "3" * 64}


def made(
    make: Callable[[int, int], np.ndarray], *, scores: int = len(NAMES), n: int = 60, group: np.ndarray | None = None
) -> Result:
    """A result with these scores of so many test and OOD points: `make(number of the score, 0 or 1 if OOD)`."""
    result = made_up.result(mcbn={"pll": np.zeros((2, n))})
    method = result.methods["deterministic"]
    test, far = ({name: make(i, is_ood) for i, name in enumerate(NAMES[:scores])} for is_ood in (0, 1))
    ood = {
        name: {"auroc": Estimate(value := auroc(test[name], far[name]), low=value - 0.05, high=value + 0.05)}
        for name in test
    }
    sets = {name: replace(method.sets["test"], points=points) for name, points in (("test", test), ("far", far))}
    method = replace(method, sets=sets, ood={"far": ood})
    given = {
        name: EvaluatedSet(name, "test" if name == "test" else "ood", name, DIGESTS[name], n, group=group)
        for name in DIGESTS
    }
    return replace(result, sets=given, methods={"deterministic": method})


def expected_half(name: str, n: int) -> np.ndarray:
    """The half of ungrouped points, by random words from outside bnuq."""
    key = int.from_bytes(hashlib.sha256(DIGESTS[name].encode()).digest()[:8], "little")
    words = np.random.Philox(key=key).random_raw(n).tolist()
    return np.isin(np.arange(n), sorted(range(n), key=words.__getitem__)[: n // 2])


def crossfit(result: Result) -> CrossFit:
    fit = best_score(result, ["far"], aurocs_of(result, ["far"])).crossfitted
    assert fit is not None
    return fit


def noise(seed: int, shift: float = 0.0, n: int = 60) -> Callable[[int, int], np.ndarray]:
    rng = np.random.default_rng(seed)
    return lambda _, is_ood: rng.normal(shift * is_ood, 1, n)


def test_a_score_is_chosen_on_one_half_and_judged_on_the_other() -> None:
    result = made(noise(1, 1.0))
    points = result.methods["deterministic"].sets
    halves = {name: expected_half(name, 60) for name in DIGESTS}
    labels, aurocs, alarms, caught = np.repeat([0, 1], 30), [], [], []
    for judged in (True, False):
        on, off = ({name: halves[name] == side for name in halves} for side in (judged, not judged))

        def area(score: str, rows: dict[str, np.ndarray]) -> float:
            both = [points[name].points[score][rows[name]] for name in DIGESTS]
            return float(roc_auc_score(labels, np.concatenate(both)))

        best = max(NAMES, key=lambda score: area(score, off))
        aurocs.append(area(best, on))
        threshold = np.sort(points["test"].points[best][off["test"]])[-2]  # 1 of 30 lies above it
        alarms.append(np.mean(points["test"].points[best][on["test"]] > threshold))
        caught.append(np.mean(points["far"].points[best][on["far"]] > threshold))
    fit = crossfit(result)
    assert fit.aurocs["far"] == pytest.approx(np.mean(aurocs))
    assert (fit.false_alarms, fit.caught["far"]) == (pytest.approx(np.mean(alarms)), pytest.approx(np.mean(caught)))


def test_the_best_of_useless_scores_is_chance_if_cross_fitted_and_above_it_if_not() -> None:
    results = [made(noise(seed)) for seed in range(150)]
    chosen = [max(each["far"].value for each in aurocs_of(result, ["far"]).values()) for result in results]
    fitted = [crossfit(result).aurocs["far"] for result in results]
    assert np.mean(chosen) > 0.56
    assert abs(np.mean(fitted) - 0.5) < 3 * np.std(fitted) / np.sqrt(len(fitted)) < 0.02


def test_groups_stay_together_and_count_as_one() -> None:
    assert crossfit(made(noise(2), group=np.repeat(np.arange(20), 3))).aurocs
    few = made(noise(2), group=np.repeat(np.arange(19), [*[3] * 18, 6]))
    assert best_score(few, ["far"], aurocs_of(few, ["far"])).crossfitted is None
    half = first_half(few.sets["test"])
    whole = [set(few.sets["test"].group[rows]) for rows in (half, ~half)]  # pyrefly: ignore - it has groups
    assert not whole[0] & whole[1] and [len(each) for each in whole] == [9, 10]


def test_a_single_score_and_few_points_are_not_cross_fitted() -> None:
    single = made(noise(3), scores=1)
    assert best_score(single, ["far"], aurocs_of(single, ["far"])).crossfitted is None
    few = made(noise(3, 2.0, 19), n=19)
    best = best_score(few, ["far"], aurocs_of(few, ["far"]))
    assert best.crossfitted is None and best.tried == len(NAMES)
    assert best.auroc(few, "far").value == max(each["far"].value for each in aurocs_of(few, ["far"]).values())


def test_sentences_and_data_say_how_many_were_tried_and_give_what_is_cross_fitted() -> None:
    result = made(noise(5, 2.0))
    decision = decisions(result, Verdict(None, {}, (), ()))[-1]
    fit = crossfit(result)
    assert decision.code == "foreign"
    assert (decision.values["tried"], decision.values["crossfitted"]) == (len(NAMES), True)
    assert decision.values["caught"] == fit.caught and decision.values["aurocs"] == fit.aurocs
    assert decision.text.endswith("% of the test examples.")
    best = best_score(result, ["far"], aurocs_of(result, ["far"]))
    estimate = best.auroc(result, "far")
    assert estimate.value == pytest.approx(fit.aurocs["far"])
    assert estimate.low is not None and estimate.value - estimate.low == pytest.approx(0.05)


def test_a_column_of_an_ood_set_is_of_the_decision_s_score_and_its_legend_has_the_decision_s_value() -> None:
    result = made(noise(5, 2.0))
    method = result.methods["deterministic"]
    other = {"predictive_entropy": method.ood["far"]["predictive_entropy"]}
    result = replace(result, methods={"deterministic": method, "mcbn": replace(method, ood={"far": other})})
    values = next(each.values for each in decided(result) if each.about == "foreign")
    assert values["score"] != "predictive_entropy" and values["method"] == "deterministic"
    cells, words = columns(result)
    shown = f"{method.ood['far'][values['score']]['auroc'].value:.3f}"
    assert [each.value for each in cells["far"]] == [shown, "–"]
    assert words.endswith(f"; {values['aurocs']['far']:.3f} if it is chosen on other examples")


def test_a_choice_that_only_chance_makes_recognises_nothing() -> None:
    lucky = next(
        result
        for result in (made(noise(seed)) for seed in range(100))
        if max(each["far"].value for each in aurocs_of(result, ["far"]).values()) > 0.6
        and crossfit(result).aurocs["far"] < 0.54
    )  # whose interval lies above chance if the choice is not counted
    decision = decisions(lucky, Verdict(None, {}, (), ()))[-1]
    assert (decision.code, decision.values["about"]) == ("undecided", "foreign")
    text = decision.text
    assert f"the best of {len(NAMES)} scores, ranks such an example above a test example in" in text
