"""The verdict: methods of several passes against the best of a single one, with paired errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import made_up
import numpy as np
import pytest
import small_run
from report_text import rendered

from bnuq.estimates import Estimate
from bnuq.findings import sentence
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.summary import summary
from bnuq.records.verdict import Comparison, judged, passes_of
from bnuq.records.verdict_sentences import VERDICT
from bnuq.report.evaluation import report

POINTS, SAMPLES = 400, 32
RNG = np.random.default_rng(3)
PLAIN = RNG.normal(-0.5, 0.4, POINTS)
NOISE = RNG.normal(0, 0.3, (SAMPLES, POINTS)) + RNG.normal(0, 0.02, (SAMPLES, 1))


def made(gain: float, **more: object) -> Result:
    """A result whose mcbn has a PLL that is better than the deterministic network's by `gain` on average."""
    return made_up.result(plain={"pll": PLAIN}, mcbn={"pll": PLAIN + gain + NOISE}, **more)


def only(result: Result) -> Comparison:
    [comparison] = judged(result).comparisons
    return comparison


def codes(result: Result) -> list[str]:
    return [finding.code for finding in judged(result).findings]


def test_the_error_is_paired_over_points_and_draws():
    comparison = only(made(0.1))
    difference = (0.1 + NOISE).mean(0)
    left_out = [np.delete(0.1 + NOISE, t, 0).mean() for t in range(SAMPLES)]
    over_draws = math.sqrt((SAMPLES - 1) / SAMPLES * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    over_points = np.std(difference, ddof=1) / math.sqrt(POINTS)
    assert comparison.difference == pytest.approx(difference.mean(), abs=1e-12)
    assert comparison.se == pytest.approx(math.hypot(over_points, over_draws), rel=1e-9)
    z = difference.mean() / comparison.se
    assert comparison.p == pytest.approx(2 * (1 - 0.5 * (1 + math.erf(z / math.sqrt(2)))), abs=1e-12)
    assert (comparison.method, comparison.against, comparison.passes) == ("mcbn", "deterministic", SAMPLES)


@pytest.mark.parametrize(
    ("gain", "worth", "code"),
    [
        (0.1, True, "samples-worth-their-passes"),
        (0.0, False, "one-pass-is-enough"),
        (-0.1, False, "one-pass-is-enough"),
    ],
)
def test_samples_are_worth_their_passes_only_where_they_are_better_beyond_chance(gain, worth, code):
    result = made(gain)
    verdict = judged(result)
    assert verdict.worth is worth
    assert codes(result)[0] == code
    assert verdict.best == {"pll": "mcbn" if result.methods["mcbn"].sets["test"].estimates["pll"].value
                            > PLAIN.mean() else "deterministic"}  # fmt: skip
    assert ("no-temperature-to-compare" in codes(result)) is worth


@pytest.mark.parametrize(("gain", "others", "worse"), [(0.0, [("pll", "test")], []), (-0.1, [], [("pll", "test")])])
def test_a_metric_is_named_once(gain, others, worse):
    [finding] = judged(made(gain)).findings
    assert (finding.values["others"], finding.values["worse"]) == (others, worse)
    text = sentence(finding, VERDICT)
    assert ("all methods are worse than the best single pass" in text) is bool(worse)
    assert ("no method beats the best single pass" in text) is bool(others)


def test_a_gain_from_a_reference_that_does_not_match_is_none():
    failed = ReferenceCheck(("bn",), np.array([9.0]), np.array([9.0]), np.array([1.0]), passed=False)
    result = replace(made(0.1), reference_check=failed)
    assert judged(result).worth is None
    assert codes(result) == ["worth-unknown-mismatched"]


def test_too_few_samples_leave_it_open():
    result = made_up.result(plain={"pll": PLAIN}, mcbn={"pll": PLAIN + 0.1 + NOISE[:4]})
    assert only(result).se is None
    assert only(result).p is None
    assert judged(result).worth is None
    assert codes(result) == ["worth-unknown-few"]


def with_temperature(result: Result, gain: float) -> Result:
    """The same beside a deterministic network with a temperature that is better by `gain` at every point."""
    plain = result.methods["deterministic"]
    of_test = plain.sets["test"]
    points = {"pll": PLAIN + gain}
    fitted = replace(of_test, points=points, estimates={"pll": made_up.plain_estimate(points["pll"])})
    methods = {**result.methods, "deterministic+temperature": replace(plain, sets={"test": fitted})}
    return replace(result, methods=methods)


def test_the_best_of_a_single_pass_is_what_others_are_compared_with():
    result = with_temperature(made(0.1), 0.3)
    verdict = judged(result)
    assert verdict.worth is False
    assert {each.against for each in verdict.comparisons} == {"deterministic+temperature"}
    assert [each.method for each in verdict.comparisons] == ["mcbn", "deterministic"], "the better one first"
    assert "no-temperature-to-compare" not in codes(with_temperature(made(0.5), 0.3))
    p = [each.p for each in verdict.comparisons]
    assert p == pytest.approx([0.0, 0.0], abs=1e-6)


def test_p_values_are_adjusted_for_all_comparisons():
    weak = with_temperature(made(0.01), 0.001)
    values = [each for each in judged(weak).comparisons if each.p is not None]
    alone = {
        each.method: math.erfc(abs(each.difference) / each.se / math.sqrt(2)) if each.se else 1.0 for each in values
    }
    smallest = min(alone, key=alone.__getitem__)
    assert {each.method: each.p for each in values}[smallest] == pytest.approx(min(1.0, 2 * alone[smallest]))


def with_draws(result: Result) -> Result:
    of_test = result.methods["mcbn"].sets["test"]
    gains = np.linspace(-3, 3, SAMPLES)[:, None]  # the first draws are bad, the last ones good
    draws = PLAIN + gains + 0.001 * NOISE
    points = {"pll": np.log(np.exp(draws).mean(0))}
    estimate = Estimate(points["pll"].mean(), se=0.01, mc_se=0.001)
    of_test = replace(of_test, log_likelihood=draws, points=points, estimates={"pll": estimate})
    return replace(result, methods={**result.methods, "mcbn": replace(result.methods["mcbn"], sets={"test": of_test})})


def test_the_best_choice_at_fewer_passes_is_of_the_first_draws():
    result = with_draws(made(0.0))
    [choice] = [finding for finding in judged(result).findings if finding.code == "best-choice"]
    assert [(passes, method) for passes, method, _ in choice.values["choices"]] == [
        (1, "deterministic"),
        (8, "deterministic"),
        (32, "mcbn"),
    ]
    last = choice.values["choices"][-1][2]
    assert last == pytest.approx(np.log(np.exp(PLAIN + np.linspace(-3, 3, SAMPLES)[:, None]).mean(0)).mean(), abs=1e-3)


def test_of_single_passes_alone_the_best_is_named():
    result = with_temperature(made(0.1), 0.3)
    singles = {name: method for name, method in result.methods.items() if name != "mcbn"}
    verdict = judged(replace(result, methods=singles))
    assert verdict.worth is None
    [finding] = verdict.findings
    assert (finding.code, finding.values["method"]) == ("only-single-passes", "deterministic+temperature")
    assert f"{PLAIN.mean() + 0.3:.4f}".replace("-", "−") in sentence(finding, VERDICT)


def test_nothing_is_said_of_one_method():
    result = made(0.1)
    alone = replace(result, methods={"deterministic": result.methods["deterministic"]})
    assert judged(alone) == replace(judged(alone), worth=None, comparisons=(), findings=())
    assert passes_of("deterministic", alone) == 1


def test_a_run_is_compared_by_every_metric_and_score(tmp_path):
    small_run.write(tmp_path)
    result = small_run.evaluated(tmp_path, samples=8, calibrate="cross")
    content = json.loads(json.dumps(summary(result)["verdict"]))
    assert set(content["best"]) == {"pll", "ece", "aurc", "auroc.other"}
    of_ood = [each for each in content["comparisons"] if each["set"] == "other"]
    sampled = {(each["method"], each["score"]) for each in of_ood if each["passes"] == 8}
    expected = {(m, score) for m in result.sampled for score in result.methods[m].ood["other"]}
    assert sampled == expected
    against = {(each["against"], each["score_of_against"]) for each in of_ood}
    assert len(against) == 1
    method, score = against.pop()
    singles = {
        (name, s): float(e["auroc"].value)
        for name, each in result.methods.items()
        if name not in result.sampled
        for s, e in each.ood["other"].items()
    }
    assert singles[method, score] == max(singles.values())
    for each in content["comparisons"]:
        estimates = result.methods[each["method"]]
        found = (
            estimates.ood["other"][each["score"]]["auroc"]
            if each["score"]
            else estimates.sets["test"].estimates[each["metric"]]
        )
        assert each["value"] == found.value
    assert content["text"][0] in " ".join(rendered(report, result).split())
    assert "Compared with the best single pass" in rendered(report, result, full=True)
