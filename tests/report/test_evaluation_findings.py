"""What the first screen says beside decisions, each beyond twice its error alone, and what its numbers are of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_up import with_estimates, with_test

from bnuq.estimates import Estimate
from bnuq.findings import note
from bnuq.methods import DETERMINISTIC, POPULATION
from bnuq.records.comparisons import is_mismatched
from bnuq.records.decisions import decided, judged
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.reference import averages_lag, population_effect
from bnuq.report.evaluation import report
from bnuq.report.first_screen import against_constant, findings
from bnuq.report.ood import columns

LIMITED = note("limited", limit=200, seed=0)
AVERAGED = note("weights-in-entry", entry="model_ema")
ALPHABET = note("classes-by-order", names=["boot", "coat"], alphabet=True)


def test_what_all_numbers_are_of_is_one_line(four_methods):
    assert report(four_methods).meaning == ""
    assert report(replace(four_methods, findings=(note("weights-in-entry", entry="state_dict"),))).meaning == ""
    meaning = report(replace(four_methods, findings=(LIMITED, AVERAGED, ALPHABET))).meaning
    parts = ("at most 200 examples of each set", "averaged weights (`model_ema`)", "the alphabet (boot, coat, …)")
    assert all(part in meaning for part in parts)
    sets = {**four_methods.sets, "test": replace(four_methods.sets["test"], labels=None)}
    plain = four_methods.methods[DETERMINISTIC]
    estimates = {"predictive_entropy": plain.sets["test"].estimates["predictive_entropy"]}
    unlabelled = replace(plain, sets={"test": replace(plain.sets["test"], estimates=estimates)}, ood={})
    result = replace(four_methods, sets=sets, methods={DETERMINISTIC: unlabelled})
    assert report(result).meaning.startswith("of examples without labels")


@pytest.mark.parametrize("passed", [True, False])
def test_data_are_said_to_match_only_where_they_were_checked(four_methods, passed):
    check = ReferenceCheck(("bn", "bn2"), np.array([2.0, 1.0]), np.array([1.0, 3.0]), np.array([0.5, 0.5]), passed)
    made = report(replace(four_methods, reference_check=check))
    facts = dict(made.facts)
    assert bool(made.checked) == ("checked" in facts) == passed
    assert not passed or "4.0 × batch noise in the median layer, 6.0 × in the worst" in facts["checked"]
    assert report(replace(four_methods, reference_check=None)).checked == ""


@pytest.mark.parametrize(
    ("metric", "errors", "mismatched"),
    [("pll", 1.9, False), ("pll", -2.1, True), ("accuracy", 2.1, True), ("predictive_entropy", 40, False)],
)
def test_the_rank_of_a_failed_reference_check_follows_what_it_changes(four_methods, metric, errors, mismatched):
    plain = four_methods.methods[DETERMINISTIC]
    old = plain.sets["test"].estimates[metric]
    new = replace(old, value=old.value + errors * old.se)
    repaired = replace(plain.sets["test"], estimates={**plain.sets["test"].estimates, metric: new})
    methods = {**four_methods.methods, POPULATION: replace(plain, sets={**plain.sets, "test": repaired})}
    ratios = np.array([1.0, 9.0])
    check = ReferenceCheck(("bn", "bn2"), ratios, ratios - 1, np.ones(2), passed=False)
    result = replace(four_methods, methods=methods, reference_check=check)
    assert is_mismatched(result) == mismatched
    assert population_effect(methods)["pll"][2] == pytest.approx(abs(errors) if metric == "pll" else 0)
    worse = metric == "pll" and errors < 0  # as the statistics of the right reference would not be
    assert averages_lag(check, methods) == (not worse)


# ── OOD sets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_auroc(result: Result, value: float, half: float | None = 0.04) -> Result:
    """The result, with one AUROC everywhere, and an interval of `half` to both sides of it; with too few points to
    choose a score on some and judge it on others."""
    ends = {"low": None, "high": None, "se": None} if half is None else {"low": value - half, "high": value + half}
    methods = {}
    for name, method in result.methods.items():
        ood = {
            s: {score: {k: replace(f, value=value, **ends) for k, f in fs.items()} for score, fs in scores.items()}
            for s, scores in method.ood.items()
        }
        methods[name] = replace(method, ood=ood)
    return few_points(replace(result, methods=methods))


def few_points(result: Result, n: int = 10) -> Result:
    return replace(result, sets={name: replace(each, n=n) for name, each in result.sets.items()})


def test_nothing_is_concluded_from_a_few_points_or_groups(four_methods):
    result = with_auroc(four_methods, 1.0)
    assert "foreign" in {each.code for each in decided(result)} and "auroc.other" in judged(result).best
    points = result.methods[DETERMINISTIC].sets
    groups = {n: replace(each, group=np.arange(points[n].predicted.size) % 9) for n, each in result.sets.items()}
    for few in (few_points(result, 9), replace(result, sets=groups)):
        assert columns(few)[1].endswith("too few examples to judge other")
        assert "foreign" not in {each.code for each in decided(few)}
        assert "auroc.other" not in judged(few).best and "auroc" not in {
            each.metric for each in judged(few).comparisons
        }


# ── a regression, compared with a constant σ ─────────────────────────────────────────────────────────────────────────


def against(result: Result, gains: dict[str, float], noise: float, *, mc_error: float = 0.0) -> Result:
    """The result, with mcdo's scores better than the constant's by so much, ± `noise` a point, ± `mc_error`."""
    method = result.methods["mcdo"]
    test, bounds = method.sets["test"], method.bounds
    points, estimates = dict(test.points), dict(test.estimates)
    for metric, gain in gains.items():
        sign = -1 if metric == "crps" else 1
        each = np.resize([-noise, noise], len(points[metric]))
        points[metric] = points[f"{metric}_constant"] + sign * (gain + each)
        constant = bounds["constant"][metric]
        draws = np.asarray(constant.jackknife)
        moved = np.resize([-1.0, 1.0], len(draws)) * mc_error / math.sqrt(len(draws) - 1)
        estimates[metric] = replace(
            estimates[metric], value=constant.value + sign * gain, jackknife=draws + sign * (gain + moved)
        )
    return with_test(result, "mcdo", points=points, estimates=estimates)


@pytest.mark.parametrize(
    ("crps", "pll", "start"),
    [
        (0.5, 0.5, "Give each example an interval of its own σ, by mcdo: "),
        (-0.5, -0.5, "Use one σ for all examples"),
        (0.01, -0.01, "That a σ of each example predicts targets better than one σ for all could not be shown"),
        (0.5, -0.5, "With a σ of each example, samples predict targets better by one score"),
    ],
)
def test_intervals_of_their_own_width_are_advised_only_beyond_twice_the_paired_error(regression, crps, pll, start):
    result = against(regression, {"crps": crps, "pll": pll}, noise=0.5)  # ± 0.065 over 60 points
    methods = {name: result.methods[name] for name in (DETERMINISTIC, "mcdo")}
    (text,) = findings(replace(result, methods=methods))
    assert text.startswith(start)


def test_all_methods_are_in_one_sentence(regression):
    alike = dict.fromkeys(regression.sampled, regression.methods["mcdo"])
    (text,) = findings(replace(regression, methods={**regression.methods, **alike}))
    assert "where σ of mcbn, mcdo and mcbn+mcdo is large: errors are larger there (correlation " in text


def test_the_error_of_a_difference_is_paired_over_points_and_over_samples(regression):
    def outcome(gain: float, result: Result = regression, **errors: float) -> str:
        return against_constant("crps", "mcdo", against(result, {"crps": gain, "pll": gain}, noise=0.3, **errors))

    error = 0.3 / math.sqrt(59)
    assert [outcome(2 * each * error) for each in (0.9, 1.1, -1.1)] == ["no better", "better", "worse"]
    both = 2 * math.hypot(error, 0.2)
    assert [outcome(each * both, mc_error=0.2) for each in (0.9, 1.1)] == ["no better", "better"]
    alike = replace(regression.sets["test"], group=np.arange(60) // 4 * 2 + np.arange(60) % 2)  # pairs that err alike
    grouped = replace(regression, sets=dict(regression.sets) | {"test": alike})
    of_pairs = 2 * 0.3 / math.sqrt(29)
    assert [outcome(each * of_pairs, grouped) for each in (0.9, 1.1)] == ["no better", "better"]


def test_what_is_not_known_or_may_be_due_to_other_statistics_is_not_said(regression, given_tau, without_tau):
    test = regression.methods["mcdo"].sets["test"]
    few = {name: replace(test.estimates[name], mc_se=None) for name in ("crps", "pll")}
    assert against_constant("crps", "mcdo", with_estimates(regression, "mcdo", **few)) == ""
    failed = ReferenceCheck(("bn",), np.array([9.0]), np.array([9.0]), np.array([1.0]), passed=False)
    mismatched = replace(against(regression, {"crps": 0.5, "pll": 0.5}, noise=0.1), reference_check=failed)
    assert against_constant("crps", "mcdo", mismatched) == ""
    assert not any("width" in text for each in (given_tau, without_tau) for text in findings(each))


# ── σ and errors ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("estimate", "marks"),
    [
        (Estimate(0.7, low=0.5, high=0.9), True),
        (Estimate(0.1, low=0.05, high=0.15), False),
        (Estimate(0.3, low=-0.1, high=0.5), False),
        (Estimate(-0.5, low=-0.7, high=-0.3), False),
        (Estimate(0.5), False),
        (Estimate(math.nan), False),
    ],
)
def test_sigma_marks_large_errors_where_the_interval_of_the_rank_correlation_is_above_0(regression, estimate, marks):
    methods = {name: regression.methods[name] for name in (DETERMINISTIC, "mcdo")}
    (text,) = findings(with_estimates(replace(regression, methods=methods), "mcdo", spearman=estimate))
    assert ("Look first where σ of mcdo is large" in text) == marks
