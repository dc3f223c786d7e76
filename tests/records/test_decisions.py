"""The decisions: derived from comparisons, certificate and points, and silent where these are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import made_up
import numpy as np
import pytest

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.findings import Finding, warning
from bnuq.records.best_scores import FALSE_ALARMS
from bnuq.records.calibrated import calibration_of
from bnuq.records.comparisons import OTHER_SCALE, MethodComparison
from bnuq.records.decisions import (
    Decision,
    Defer,
    Loss,
    Prediction,
    Promise,
    Tried,
    Use,
    Verdict,
    concluded,
    decided,
    decisions,
)
from bnuq.records.evaluation import EvaluatedSet, ReferenceCheck, Result
from bnuq.records.words import SET, percent

POINTS = 400
RNG = np.random.default_rng(0)
ENTROPY = RNG.permutation(POINTS) / POINTS
RIGHT = np.where(ENTROPY > 0.9, RNG.random(POINTS) < 0.5, RNG.random(POINTS) < 0.95).astype(float)


def made(**points: np.ndarray) -> Result:
    result = made_up.result(plain={"pll": np.full(POINTS, -0.5)}, mcbn={"pll": np.full((32, POINTS), -0.5)})
    method = result.methods["deterministic"]
    test = replace(method.sets["test"], points={**method.sets["test"].points, **points})
    return replace(result, methods={**result.methods, "deterministic": replace(method, sets={"test": test})})


def compared(
    difference: float, se: float | None, p: float | None, metric: str = "pll", **more: Any
) -> MethodComparison:
    settings = {"method": "mcbn", "against": "deterministic", "set": "test", "score": "", "score_of_against": ""} | more
    return MethodComparison(
        **settings, metric=metric, difference=difference, se=se, p=p, passes=32, value=difference, value_of_against=0.0
    )


def judged(*comparisons: MethodComparison, lacks_temperature: bool = False, mismatched: bool = False) -> Verdict:
    return concluded(comparisons, mismatched=mismatched, lacks_temperature=lacks_temperature)


def texts(result: Result, judgement: Verdict) -> list[str]:
    return [each.text for each in decisions(result, judgement)]


@pytest.mark.parametrize(
    ("comparisons", "code", "text"),
    [
        ([(0.001, 0.002, 1.0)], "use", "Averaging 32 samples gives no gain that 400 examples could show."),
        ([(0.05, 0.01, 0.001)], "use", "Use mcbn with 32 samples: its predictive"),
        (
            [(-0.05, 0.01, 0.001), (-0.02, 0.001, 0.001, "ece")],
            "use",
            "expected calibration error, and worse by predictive log-likelihood.",
        ),
        ([(0.0, 0.01, 1.0), (-0.02, 0.001, 0.001, "ece")], "use", "Use mcbn with 32 samples: its expected"),
        ([(0.022, 0.01, 0.06), (0.0, 0.01, 1.0, "ece")], "undecided", "better by 0.0220 ± 0.0100, which may be chance"),
        ([(0.05, None, None)], "undecided", "there are too few examples for the error of a comparison."),
    ],
)
def test_the_prediction_is_that_of_the_verdict(comparisons: list[tuple[Any, ...]], code: str, text: str) -> None:
    judgement = judged(*(compared(*each) for each in comparisons))
    [decision] = decisions(made(), judgement)
    assert decision.code == code and text in decision.text
    assert (decision.values["method"] == "mcbn") is (code == "use" and "Use mcbn" in text)
    assert not (judgement.worth is None and code == "use")


def test_a_prediction_is_decided_where_only_foreign_inputs_are_not() -> None:
    judgement = judged(compared(0.0, 0.01, 1.0), compared(0.1, None, None, "auroc", set="far", score="variance"))
    assert judgement.worth is None
    assert texts(made(), judgement)[0].endswith("could show. By the separation of far that is undecided.")


def test_an_undecided_prediction_says_how_many_points_would_decide_it_and_what_to_use_until_then() -> None:
    [decision] = decisions(made(), judged(compared(0.022, 0.01, 0.06), compared(0.0, 0.01, 1.0, "ece")))
    assert decision.values["points_needed"] == pytest.approx(400 * (2.2414 / 2.2) ** 2, rel=1e-3)
    text = decision.text
    assert (
        "among 2 comparisons; about 420 examples in all would decide. Until then use the deterministic network." in text
    )


def test_a_temperature_that_was_not_fitted_leaves_a_gain_undecided() -> None:
    [text] = texts(made(), judged(compared(0.05, 0.01, 0.001), lacks_temperature=True))
    assert text.startswith("Undecided whether averaging 32 samples is worth it: no temperature was fitted")


@pytest.mark.parametrize(("fitted", "said"), [([1.22], "1.22"), ([1.2, 1.3], "1.25")])
@pytest.mark.parametrize(("errors", "is_gain"), [(3, True), (1.5, False), (-3, False)])
def test_a_temperature_is_advised_only_where_it_is_a_gain(
    fitted: list[float], said: str, errors: float, is_gain: bool
) -> None:
    """By more than two paired errors of the log-likelihood, whatever else was compared; of two halves their mean."""
    judgement = judged(compared(0.0, 0.01, 1.0, against="deterministic+temperature"))
    result, noise = made(), 0.1 * np.cos(np.arange(POINTS))
    pll = -0.5 + noise - noise.mean() + errors * noise.std(ddof=1) / np.sqrt(POINTS)
    scaled = made(temperature=np.resize(fitted, POINTS), pll=pll).methods["deterministic"]
    result = replace(result, methods={**result.methods, "deterministic+temperature": scaled})
    estimates = {"pll": made_up.plain_estimate(pll)}
    decision = decisions(made_up.with_estimates(result, "deterministic+temperature", **estimates), judgement)[0]
    if is_gain:
        start = f"Use the deterministic network and divide its logits by {said}. Averaging 32 samples gives no gain"
    else:
        start = "Use the deterministic network as it is. Neither averaging 32 samples nor dividing "
        start += f"logits by {said} gives a gain"
    assert decision.text == f"{start} that 400 examples could show."
    assert decision.values["method"] == f"deterministic{'+temperature' * is_gain}"


def test_a_temperature_that_costs_calibration_says_so_and_one_that_gains_it_alone_is_named() -> None:
    plain, divided = "deterministic", "deterministic+temperature"
    loss = Loss(divided, "ece", "test", 0.02, 0.005, plain)
    use = Use(Prediction(divided, 1, [1.1]), Tried(8, 400, "pll"), None, [], [], [], [loss])
    assert "for the sake of expected calibration error, use the logits as they are (better by 0.0200" in use.text
    loss, as_it_is = replace(loss, against=divided), Prediction(plain, 1, [], without={"temperature": 1.1})
    assert "error, use its logits / 1.1 (better by 0.0200" in replace(use, prediction=as_it_is, but=[loss]).text


@pytest.mark.parametrize(
    ("rank", "said"), [(0.5, "can be"), (0.93, "is off by"), (0.97, "is off by"), (0.995, "should not be read")]
)
def test_confidence_is_a_probability_is_none_or_is_undecided(rank: float, said: str) -> None:
    """By the share of calibrated networks whose error is smaller; near the bound that is shown, no digit decides."""
    count, confidence = np.full(15, 40), np.linspace(0.4, 0.95, 15)
    bound, value = metrics.ece_floor(count, confidence, levels=(0.95, rank))[1:]
    result = made_up.with_test(made(), "deterministic", estimates={"ece": Estimate(value)})
    result = made_up.changed(result, "deterministic", calibration={"count": count, "confidence": confidence})
    prediction = Prediction("deterministic", 1, [], **calibration_of(result, "deterministic"))
    assert prediction.calibration.startswith(f" Its confidence {said}")
    assert re.findall(r"\d\.\d+", prediction.calibration) == [f"{value:.3f}", f"{bound:.3f}"]


@pytest.mark.parametrize(
    ("kept", "text"), [(0, "0 of 3 classes alone; `--full` says what"), (3, "3 of 3 classes alone.")]
)
def test_a_promise_asked_for_each_class_says_of_how_many_it_is_kept(kept: int, text: str) -> None:
    promise = Promise("deterministic", "deterministic", "predictive_entropy", 500, 0.05, 0.95, parts=("class", kept, 3))
    assert text in Defer(promise, "points", 0.5, None, 0.4, 0.03, None).text


def test_of_one_file_it_is_said_that_nothing_is_gained_by_a_recalibration() -> None:
    without = Prediction("L", 1, [], without={"temperature": 1.1})
    assert Use(without, Tried(1, 400, "pll", files=1), None, [], [], [], []).text == (
        "Use L as it is: dividing logits by 1.1 gives no gain in predictive log-likelihood that 400 "
        "examples could show."
    )


def test_statistics_that_are_not_those_of_the_data_leave_everything_undecided() -> None:
    result = made(predictive_entropy=ENTROPY, accuracy=RIGHT)
    untrained = replace(result, findings=(Finding("never-trained", "warning", {}),))
    [decision] = decisions(untrained, judged(compared(0.05, 0.01, 0.001), mismatched=True))
    assert (decision.code, decision.values["reason"]) == ("undecided", "reference")


@pytest.mark.parametrize(
    ("se", "p", "text"),
    [(0.1, 1.0, "Use the deterministic network."), (0.01, 0.001, "correct the"), (0.024, 0.34, "correct the")],
)
def test_a_network_is_corrected_only_where_that_helps_beyond_chance(se: float, p: float, text: str) -> None:
    """Beyond that of this comparison, however many others there are that `p` is adjusted for."""
    population = "deterministic+population"
    result = made()
    result = replace(result, methods={**result.methods, population: result.methods["deterministic"]})
    check = ReferenceCheck(("bn",), np.array([1.0]), np.array([1.0]), np.array([1.0]), passed=True)
    comparisons = (
        compared(-0.05, se, p, method="deterministic", against=population),
        compared(-0.001, 0.01, 1.0, against=population),
    )
    judgement = judged(*(replace(each, passes=1 + 31 * (each.method == "mcbn")) for each in comparisons))
    assert text in texts(replace(result, reference_check=check), judgement)[0]


def test_in_place_of_a_corrected_network_the_best_of_the_others_is_used() -> None:
    population, result = "deterministic+population+temperature", made()
    others = dict.fromkeys((population, "deterministic+temperature"), result.methods["deterministic"])
    gains = {"deterministic": -0.063, "deterministic+temperature": -0.107, "deterministic+population": -0.009}
    single = [
        replace(compared(gain, 0.1, 1.0, method=name, against=population), passes=1) for name, gain in gains.items()
    ]
    judgement = judged(*single, compared(-0.2, 0.1, 1.0, against=population))
    text = texts(replace(result, methods={**result.methods, **others}), judgement)[0]
    assert text.startswith("Use the deterministic network as it is. Neither averaging 32 samples nor")


def test_a_decision_looks_at_every_metric_and_not_at_the_first_alone() -> None:
    """Running averages that lag: PLL, with a fitted τ, sees nothing of what CRPS and the errors see."""
    population, result = "deterministic+population", made()
    result = replace(result, methods={**result.methods, population: result.methods["deterministic"]})
    crps = compared(0.0315, 0.0038, 1e-9, "crps", method="deterministic", against=population)
    singles = (compared(-0.01, 0.02, 1.0, method=population), crps)
    judgement = judged(*(replace(each, passes=1) for each in singles), compared(-0.02, 0.02, 1.0))
    assert texts(result, judgement)[0].startswith("The BatchNorm statistics do not fit the data: correct the network")
    worse = replace(singles[0], passes=1, difference=-0.2, p=1e-9)  # by PLL
    text = texts(result, judged(worse, replace(crps, passes=1), compared(-0.02, 0.02, 1.0)))[0]
    assert text.startswith(
        "Use the deterministic network; for the sake of continuous ranked probability score, use the network with "
        "corrected BatchNorm statistics (better by 0.0315 ± 0.0038). Averaging"
    )


def test_metrics_beside_that_of_a_gain_are_named() -> None:
    of = (0.05, 0.01, 0.001), (0.02, 0.005, 0.02, "accuracy"), (0.011, 0.005, 0.2, "ece")
    text = texts(made(), judged(*(compared(*each) for each in of)))[0]
    assert text == (
        "Use mcbn with 32 samples: its predictive log-likelihood is better by 0.0500 ± 0.0100 than without "
        "samples, and so is accuracy; for the sake of expected calibration error, use the deterministic network "
        "(better by 0.0110 ± 0.0050)."
    )


def test_a_gain_by_one_metric_at_the_cost_of_others_is_not_worth_the_samples() -> None:
    """Beyond twice the error of the loss, however many comparisons `p` is adjusted for; of one method, not of all."""
    mcbn = compared(-0.05, 0.01, 1e-6, "ece"), compared(-0.03, 0.01, 0.1, "accuracy")
    mcdo = compared(0.04, 0.01, 0.01, "ece", method="mcdo"), compared(0.03, 0.01, 0.01, "accuracy", method="mcdo")
    for comparisons in (mcbn, (*mcbn, *mcdo)):
        text = texts(made(), judged(*comparisons))[0]
        assert text.startswith("Use the deterministic network. Averaging samples of mcbn is better only by expected")
        assert text.endswith("calibration error, and worse by accuracy.")


def test_the_pipeline_is_checked_before_a_network_is_corrected() -> None:
    values = {"settings": ["train", "normalize"], "suggest": "bnuq inspect run.toml --suggest-pipeline"}
    check = ReferenceCheck(("bn",), np.array([9.0]), np.array([9.0]), np.array([1.0]), passed=False)
    result = replace(made(), reference_check=check, findings=(Finding("reference-mismatch", "warning", values),))
    for judgement in (judged(compared(-0.05, 0.01, 1.0), mismatched=True), judged(compared(0.05, 0.01, 0.001))):
        [text] = texts(result, judgement)
        start = "First check the pipeline (`train` and `normalize`): the network's BatchNorm statistics are not those"
        assert (
            text.startswith(start)
            and "data. `bnuq inspect run.toml --suggest-pipeline` tries the usual ones. If" in text
        )


def test_a_pipeline_that_could_not_be_compared_is_not_called_wrong() -> None:
    unchecked = Finding("reference-unchecked", "warning", {"settings": ["train", "normalize"]})
    result = replace(made(), findings=(unchecked,))
    better = made_up.with_estimate(result, "deterministic", "pll", value=-0.4).methods["deterministic"]
    result = replace(result, methods={**result.methods, "deterministic+population": better})
    for found in (result, replace(result, findings=(Finding("reference-unchecked", "warning", {}),))):
        [text] = texts(found, judged(compared(-0.05, 0.01, 1.0), mismatched=True))
        assert text == (
            "First check the pipeline (`train` and `normalize`): it could not be compared with the network's BatchNorm "
            "statistics. If nothing is wrong there, correct the network (`bnuq precise-bn`). Then evaluate again."
        )


@pytest.mark.parametrize("name", ["test", "validation"])
def test_nothing_is_decided_on_inputs_of_another_scale(name: str) -> None:
    found = warning(OTHER_SCALE, set=name, sd=2.0, reference_sd=1.0)
    assert decisions(replace(made(), findings=(found,)), judged(compared(0.05, 0.01, 0.001))) == ()


def test_the_share_that_is_deferred_and_the_error_that_is_left_are_those_of_the_points() -> None:
    _, decision = decided(made(predictive_entropy=ENTROPY, accuracy=RIGHT))
    values = decision.values
    accepted = values["threshold"] >= ENTROPY
    assert values["deferred"] == pytest.approx(1 - accepted.mean()) and accepted.sum() == 360
    assert values["error"] == pytest.approx(1 - RIGHT[accepted].mean())
    assert values["before"] == pytest.approx(1 - RIGHT.mean()) and values["before"] > values["error"]
    assert "(entropy of softmax(logits) above 0.899)" in decision.text


@pytest.mark.parametrize(
    ("held_out", "shared", "offer"),
    [
        (59, 0, "`--risk 0.05` promises at most 5 % wrong."),
        (58, 0, "`--risk 0.05` promises at most 5 % wrong, given 59 or more held-out validation examples."),
        (59, 59, "`--risk 0.05` promises at most 5 % wrong, given 59 or more held-out validation examples."),
    ],
)
def test_a_promise_is_offered_with_what_it_lacks(held_out: int, shared: int, offer: str) -> None:
    result = made(predictive_entropy=ENTROPY, accuracy=RIGHT)
    validation = EvaluatedSet("validation", "validation", "v.npz", "4" * 64, held_out)
    found = warning("validation-in-reference", shared=shared, points=held_out, settings=[])
    result = replace(result, sets={**result.sets, "validation": validation}, findings=(found,))
    assert decided(result)[1].text.endswith(f"Measured on these examples; {offer}")


def test_a_deferral_that_lowers_no_error_is_called_so_and_ties_defer_nothing() -> None:
    result = made(predictive_entropy=ENTROPY, accuracy=(ENTROPY > 0.5).astype(float))
    assert "Leave nothing to a person: without the 10 % least certain examples" in decided(result)[1].text
    assert len(decided(made(predictive_entropy=np.ones(POINTS), accuracy=RIGHT))) == 1


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.0493, "4.9 %"),
        (0.05, "5 %"),
        (0.1449, "14 %"),
        (0.9951, "99.5 %"),
        (0.9999, "99.99 %"),
    ],
)
def test_a_measured_share_has_two_digits_and_is_all_or_nothing_only_where_it_is(share: float, text: str) -> None:
    assert percent(share) == text
    assert percent(share / 1000) != "0 %" or not share


def test_a_risk_that_was_set_is_said_in_full() -> None:
    assert [percent(risk, SET) for risk in (0.125, 0.05, 0.001, 0.975)] == ["12.5 %", "5 %", "0.1 %", "97.5 %"]


def foreign(shift: float, low: float) -> Decision:
    result = made(energy=RNG.normal(size=POINTS))
    method, scores = result.methods["deterministic"], RNG.normal(shift, 1, 200)
    auroc = 0.5 * (1 + math.erf(shift / 2))
    sets = {**method.sets, "far": replace(method.sets["test"], points={"energy": scores})}
    method = replace(method, sets=sets, ood={"far": {"energy": {"auroc": Estimate(auroc, low=low, high=1.0)}}})
    given = {**result.sets, "far": EvaluatedSet("far", "ood", "far.npz", "3" * 64, 200)}
    result = replace(result, sets=given, methods={"deterministic": method})
    return decisions(result, Verdict(None, {}, (), ()))[-1]


def test_foreign_inputs_are_those_above_what_few_test_points_exceed() -> None:
    decision = foreign(3.0, 0.9)
    assert decision.code == "foreign" and decision.values["false_alarms"] == FALSE_ALARMS
    assert 0.8 < decision.values["caught"]["far"] < 1
    text = decision.text
    assert text.startswith(
        "Flag an example as unfamiliar if its energy (`bnuq export --ood-score energy`) is above "
    ) and text.endswith("of far, and wrongly flags 5 % of the test examples.")


def test_a_score_that_may_be_chance_recognises_nothing() -> None:
    decision = foreign(0.02, 0.45)
    assert (decision.code, decision.about) == ("undecided", "foreign")
    assert "not clearly more than chance" in decision.text
