"""What an evaluation shows: each verdict beyond twice its error alone, by its code; and every code has a sentence."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from made_up import changed, with_estimates, with_test
from verdicts import codes, said, verdict

from bnuq.estimates import Estimate
from bnuq.methods import DETERMINISTIC, POPULATION
from bnuq.metrics import delong_difference_variance, standard_error
from bnuq.records.approximation import Approximation
from bnuq.records.decisions import decided
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.reference import averages_lag, population_effect
from bnuq.records.verdict import is_mismatched, judged
from bnuq.report import evaluation_findings, metric_changes
from bnuq.report.evaluation_findings import findings


def with_points(result: Result, method: str, **points: np.ndarray) -> Result:
    return with_test(result, method, points=dict(result.methods[method].sets["test"].points) | points)


@pytest.mark.parametrize(("after", "verdict"), [(96.0, "better"), (96.74112577, "as-well"), (97.0, "worse")])
def test_a_change_of_rounding_is_neither_better_nor_worse_however_small_its_error(after, verdict):
    assert metric_changes.MetricChange("crps", 96.74112725, after, 1e-7).verdict == verdict


@pytest.mark.parametrize(
    "name",
    ["four_methods", "two_sets", "deterministic", "validated", "regression", "given_tau", "without_tau", "two_outputs"],
)
def test_every_finding_is_a_verdict_with_a_sentence(request, name):
    for finding in findings(request.getfixturevalue(name)):
        assert finding.severity == "verdict"
        assert said(finding).endswith(".") and "None" not in said(finding) and "nan" not in said(finding)


def test_a_network_without_anything_stochastic_is_described_alone(deterministic):
    assert codes(deterministic) == ["deterministic-classification"]


def test_a_test_set_without_labels_is_the_first_thing_said(four_methods):
    sets = {**four_methods.sets, "test": replace(four_methods.sets["test"], labels=None)}
    plain = four_methods.methods[DETERMINISTIC]
    estimates = {"predictive_entropy": plain.sets["test"].estimates["predictive_entropy"]}
    unlabelled = replace(plain, sets={"test": replace(plain.sets["test"], estimates=estimates)}, ood={})
    first = next(findings(replace(four_methods, sets=sets, methods={DETERMINISTIC: unlabelled})))
    assert first.code == "labels-missing" and said(first).startswith("The test set has no labels:")


@pytest.mark.parametrize(("passed", "place", "code"), [(False, 0, "reference-mismatch"), (True, -1, "reference-match")])
def test_a_failed_reference_check_is_the_first_thing_said_and_a_passed_one_the_last(four_methods, passed, place, code):
    check = ReferenceCheck(("bn", "bn2"), np.array([2.0, 1.0]), np.array([1.0, 3.0]), np.array([0.5, 0.5]), passed)
    result = replace(four_methods, reference_check=check)
    assert codes(result)[place] == code
    if passed:
        assert verdict(result, code).values == {"median": 4.0, "worst": 6.0}


@pytest.mark.parametrize(
    ("metric", "errors", "place", "code"),
    [
        ("pll", 1.9, 0, "reference-differs"), ("pll", -2.1, 0, "reference-mismatch"),
        ("accuracy", 2.1, 0, "reference-mismatch"), ("predictive_entropy", 40, 0, "reference-differs"),
    ],
)  # fmt: skip
def test_the_rank_of_a_failed_reference_check_follows_what_it_changes(four_methods, metric, errors, place, code):
    plain = four_methods.methods[DETERMINISTIC]
    old = plain.sets["test"].estimates[metric]
    new = replace(old, value=old.value + errors * old.se)
    repaired = replace(plain.sets["test"], estimates={**plain.sets["test"].estimates, metric: new})
    methods = {**four_methods.methods, POPULATION: replace(plain, sets={**plain.sets, "test": repaired})}
    ratios = np.array([1.0, 9.0])
    check = ReferenceCheck(("bn", "bn2"), ratios, ratios - 1, np.ones(2), passed=False)
    result = replace(four_methods, methods=methods, reference_check=check)
    assert codes(result)[place] == code
    assert is_mismatched(result) == (code == "reference-mismatch")
    assert population_effect(methods)["pll"][2] == pytest.approx(abs(errors) if metric == "pll" else 0)
    if code == "reference-differs":
        assert "`bnuq precise-bn` recomputes the averages" in said(verdict(result, code))
        in_first = replace(check, mean=ratios[::-1].copy(), log_variance=ratios[::-1].copy())  # as of another pipeline
        assert codes(replace(result, reference_check=in_first))[0] == "reference-differs"
    worse = metric == "pll" and errors < 0  # as the statistics of the right reference would not be
    assert averages_lag(check, methods) == (not worse)


@pytest.mark.parametrize(
    ("ratio", "code"),
    [(0.3, "noise-model-understates"), (1.0, "noise-model-compared"), (3.0, "noise-model-overstates")],
)
def test_a_noise_model_understates_or_overstates_what_mcbn_has_beyond_twice_the_error(
    four_methods, monkeypatch, ratio, code
):
    model = Approximation(
        "mcbn-chi2", "mutual_information", {"test": Estimate(ratio, mc_se=0.05)}, {"test": 0.9}, None, {}, 0.0
    )
    monkeypatch.setattr(evaluation_findings, "approximations", lambda _: (model,))
    finding = verdict(four_methods, "noise-model-")
    assert finding.code == code and f"{ratio:.2f} ± 0.05 times mcbn's" in said(finding)


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


@pytest.mark.parametrize(
    ("value", "half", "code"),
    [
        (0.95, 0.04, "ood-well-separated"),
        (0.8, 0.04, "ood-partly-separated"),
        (0.6, 0.04, "ood-hardly-separated"),
        (0.53, 0.04, "ood-not-separated"),
        (0.2, 0.04, "ood-more-familiar"),
        (0.95, None, "ood-unjudged"),
    ],
)
def test_the_separation_of_an_ood_set_goes_by_the_size_and_the_interval_of_its_auroc(four_methods, value, half, code):
    finding = verdict(with_auroc(four_methods, value, half), "ood-", name="other")
    scores = sum(len(method.ood["other"]) for method in four_methods.methods.values())
    assert finding.code == code and finding.values["tried"] == scores
    assert finding.values["auroc"].value == value and f"AUROC {value:.3f}" in said(finding)


def test_nothing_is_concluded_from_a_few_points_or_groups(four_methods):
    result = with_auroc(four_methods, 1.0)
    assert "foreign" in {each.code for each in decided(result)} and "auroc.other" in judged(result).best
    points = result.methods[DETERMINISTIC].sets
    groups = {n: replace(each, group=np.arange(points[n].predicted.size) % 9) for n, each in result.sets.items()}
    for few in (few_points(result, 9), replace(result, sets=groups)):
        finding = verdict(few, "ood-", name="other")
        assert finding.code == "ood-unjudged" and "too few points to judge" in said(finding)
        assert "foreign" not in {each.code for each in decided(few)}
        assert "auroc.other" not in judged(few).best and "auroc" not in {
            each.metric for each in judged(few).comparisons
        }


def test_an_ood_set_is_judged_by_the_best_of_all_scores_and_the_best_of_one_pass_stands_beside_it(four_methods):
    mcdo, plain = (four_methods.methods[name].ood["other"] for name in ("mcdo", DETERMINISTIC))
    scores = {score: dict(estimates) | {"auroc": Estimate(0.1)} for score, estimates in mcdo.items()}
    scores["mutual_information"]["auroc"] = Estimate(0.999, low=0.99, high=1.0)
    values = verdict(few_points(changed(four_methods, "mcdo", ood={"other": scores})), "ood-well-separated").values
    assert (values["method"], values["score"]) == ("mcdo", "mutual_information")
    single = max(plain, key=lambda score: plain[score]["auroc"].value)
    assert values["other"] == (DETERMINISTIC, single, plain[single]["auroc"].value)
    pairs = [
        tuple(four_methods.methods[name].sets[of].points[score] for of in ("test", "other"))
        for name, score in (("mcdo", "mutual_information"), (DETERMINISTIC, single))
    ]
    assert values["may_be_chance"] is True, "by its points, no score of several passes is better beyond chance"
    over_draws = plain[single]["auroc"].mc_se or 0.0
    assert values["error"] == pytest.approx(math.hypot(delong_difference_variance(*pairs) ** 0.5, over_draws))


# ── a classification ─────────────────────────────────────────────────────────────────────────────────────────────────


def with_pll(result: Result, change: float, spread: float) -> Result:
    """The result, with mcbn's PLL `change` above the deterministic one, and a paired error of about spread / √n."""
    plain = result.methods[DETERMINISTIC].sets["test"]
    noise = np.resize([-spread, spread], len(plain.points["pll"]))
    result = with_points(result, "mcbn", pll=plain.points["pll"] + change + noise)
    return with_estimates(result, "mcbn", pll=Estimate(plain.estimates["pll"].value + change, se=0.1, mc_se=1e-6))


@pytest.mark.parametrize(
    ("change", "spread", "code"),
    [
        (0.2, 0.1, "explains-labels-better"),
        (-0.2, 0.1, "explains-labels-worse"),
        (0.2, 1.0, "explains-labels-as-well"),
        (0.0, 0.0, "explains-labels-as-well"),
        (-math.inf, 0.1, "explains-labels-unknown"),
    ],
)
def test_a_likelihood_is_better_or_worse_only_beyond_twice_its_paired_error(four_methods, change, spread, code):
    finding = verdict(with_pll(four_methods, change, spread), "explains-labels", method="mcbn")
    assert finding.code == code and finding.values["network"] == DETERMINISTIC
    pll = finding.values["pll"]
    assert pll.after - pll.before == pytest.approx(change)
    assert (pll.error is None) == math.isinf(change)


@pytest.mark.parametrize("passed", [False, True])
def test_no_gain_is_claimed_for_mcbn_where_the_reference_does_not_match(four_methods, passed):
    check = ReferenceCheck(("bn", "bn2"), np.array([2.0, 1.0]), np.array([1.0, 3.0]), np.array([0.5, 0.5]), passed)
    result = replace(with_pll(four_methods, 0.2, 0.1), reference_check=check)
    finding = verdict(result, "explains-labels", method="mcbn")
    assert finding.code == ("explains-labels-better" if passed else "explains-labels-unjudged")
    assert ("better" in said(finding)) == passed and ("not a reliable gain" in said(finding)) == (not passed)
    assert verdict(result, "explains-labels", method="mcdo").code != "explains-labels-unjudged"


def test_without_an_error_over_samples_there_is_no_verdict(four_methods):
    pll = replace(four_methods.methods["mcbn"].sets["test"].estimates["pll"], mc_se=None)
    finding = verdict(with_estimates(four_methods, "mcbn", pll=pll), "explains-labels", method="mcbn")
    assert finding.code == "explains-labels-unknown"


def test_the_paired_error_of_a_likelihood_goes_by_group(four_methods):
    plain = four_methods.methods[DETERMINISTIC].sets["test"].points["pll"]
    steps = np.resize(np.repeat([-0.5, 0.5], 10), len(plain))
    result = with_points(with_pll(four_methods, 0.1, 0.5), "mcbn", pll=plain + 0.1 + steps)
    grouped = replace(result.sets["test"], group=np.arange(len(plain)) // 10)

    def error(result: Result) -> float:
        return verdict(result, "explains-labels", method="mcbn").values["pll"].error

    assert error(replace(result, sets=dict(result.sets) | {"test": grouped})) > 2 * error(result)


@pytest.mark.parametrize(
    ("change", "wrong", "accuracy", "words"),
    [
        (0.0, 20, "worse", ", but is less accurate: accuracy"),
        (0.2, 20, "worse", ", but is less accurate: accuracy"),
        (-0.2, 20, "worse", ", and is less accurate: accuracy"),
        (-math.inf, 20, "worse", ", and is less accurate: accuracy"),
        (0.0, 1, "as-well", "; ECE"),
    ],
)
def test_accuracy_is_spoken_of_where_it_differs_by_more_than_twice_its_error(
    four_methods, change, wrong, accuracy, words
):
    right = np.ones(60)
    fewer = np.concatenate([np.zeros(wrong), np.ones(60 - wrong)])
    result = with_pll(four_methods, change, 0.1)
    for name, points, mc_se in ((DETERMINISTIC, right, None), ("mcbn", fewer, 0.01)):
        result = with_points(result, name, accuracy=points)
        result = with_estimates(result, name, accuracy=Estimate(float(points.mean()), se=0.05, mc_se=mc_se))
    finding = verdict(result, "explains-labels", method="mcbn")
    assert finding.values["accuracy"].verdict == accuracy
    assert finding.values["accuracy"].error == pytest.approx(np.hypot(standard_error(fewer - right), 0.01))
    assert words in said(finding) and ("accuracy" in said(finding)) == (accuracy == "worse")


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
    ("crps", "pll", "code", "words"),
    [
        (0.5, 0.5, "better", "better than a constant σ: CRPS"),
        (-0.5, -0.5, "worse", "worse than a constant σ: CRPS"),
        (0.01, -0.01, "as-well", "about as well as a constant σ: CRPS"),
        (0.5, -0.5, "mixed", "better than a constant σ by CRPS, worse than it by PLL: CRPS"),
        (0.5, 0.01, "mixed", "better than a constant σ by CRPS, about as well as it by PLL: CRPS"),
    ],
)
def test_a_score_is_better_only_beyond_twice_the_paired_error(regression, crps, pll, code, words):
    result = against(regression, {"crps": crps, "pll": pll}, noise=0.5)  # ± 0.065 over 60 points
    finding = verdict(result, "explains-targets", method="mcdo")
    assert finding.code == f"explains-targets-{code}" and finding.values["network"] is None
    assert words in said(finding)


def test_less_crps_is_better(regression):
    result = against(regression, {"crps": 1.0, "pll": 0.5}, noise=0.1)
    [crps, _] = verdict(result, "explains-targets-better", method="mcdo").values["changes"]
    assert crps.before - crps.after == pytest.approx(1.0)


def test_the_error_of_a_difference_is_paired_over_points_and_over_samples(regression):
    def error(result: Result) -> float:
        return verdict(result, "explains-targets", method="mcdo").values["changes"][0].error

    gains = {"crps": 0.5, "pll": 0.5}
    points = error(against(regression, gains, noise=0.3))
    assert points == pytest.approx(0.3 / math.sqrt(59))
    assert error(against(regression, gains, noise=0.3, mc_error=0.2)) == pytest.approx(math.hypot(points, 0.2))
    alike = replace(regression.sets["test"], group=np.arange(60) // 4 * 2 + np.arange(60) % 2)  # pairs that err alike
    grouped = replace(regression, sets=dict(regression.sets) | {"test": alike})
    assert error(against(grouped, gains, noise=0.3)) == pytest.approx(0.3 / math.sqrt(29))


def test_too_few_samples_get_no_verdict(regression):
    test = regression.methods["mcdo"].sets["test"]
    few = {name: replace(test.estimates[name], mc_se=None) for name in ("crps", "pll")}
    verdict(with_estimates(regression, "mcdo", **few), "explains-targets-unknown", method="mcdo")


def test_without_a_constant_baseline_the_deterministic_network_is_compared_with(given_tau):
    assert verdict(given_tau, "explains-targets", method="mcdo").values["network"] == DETERMINISTIC


def test_without_tau_no_score_is_judged_and_it_is_said_why(without_tau):
    assert verdict(without_tau, "tau-unknown").values == {"sampled": True}
    assert not any(code.startswith(("explains", "intervals")) for code in codes(without_tau))


def test_the_repair_by_population_statistics_is_told_by_itself_and_is_what_mcbn_is_compared_with(four_methods):
    plain = four_methods.methods[DETERMINISTIC]
    better = with_points(
        with_estimates(four_methods, DETERMINISTIC), DETERMINISTIC, pll=plain.sets["test"].points["pll"] + 0.25
    )
    methods = {DETERMINISTIC: plain, POPULATION: better.methods[DETERMINISTIC]} | dict(four_methods.methods)
    result = replace(four_methods, methods=methods)
    values = verdict(result, "population-statistics").values
    assert values["change"] == pytest.approx(0.25) and values["methods"] == ("mcbn", "mcbn+mcdo")
    compared = {name: verdict(result, "explains-labels", method=name).values["network"] for name in ("mcbn", "mcdo")}
    assert compared == {"mcbn": POPULATION, "mcdo": DETERMINISTIC}


def test_the_repair_of_a_regression_tells_both_errors_from_what_to_what(regression):
    test = regression.methods[DETERMINISTIC].sets["test"]
    halved = {name: replace(test.estimates[name], value=test.estimates[name].value / 2) for name in ("rmse", "mae")}
    better = with_points(
        with_estimates(regression, DETERMINISTIC, **halved), DETERMINISTIC, mae=test.points["mae"] / 2
    ).methods[DETERMINISTIC]
    methods = {DETERMINISTIC: regression.methods[DETERMINISTIC], POPULATION: better} | dict(regression.methods)
    sentence = said(verdict(replace(regression, methods=methods), "population-statistics"))
    number = r"([\d.]+) ± [\d.]+"
    match = re.search(rf"RMSE {number} → {number}, MAE {number} → {number} \(−", sentence)
    assert match, sentence
    assert [float(match[k]) / float(match[k + 1]) for k in (1, 3)] == pytest.approx([2, 2], rel=0.02)


# ── σ, errors and intervals ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("estimate", "code"),
    [
        (Estimate(0.7, low=0.5, high=0.9), "sigma-follows-errors"),
        (Estimate(0.3, low=0.1, high=0.5), "sigma-partly-follows-errors"),
        (Estimate(0.1, low=0.05, high=0.15), "sigma-hardly-follows-errors"),
        (Estimate(0.1, low=-0.1, high=0.3), "sigma-unjudged"),
        (Estimate(0.05, low=-0.05, high=0.15), "sigma-unrelated-to-errors"),
        (Estimate(-0.5, low=-0.7, high=-0.3), "sigma-opposes-errors"),
        (Estimate(0.5), "sigma-unjudged"),
        (Estimate(math.nan), "sigma-constant"),
    ],
)
def test_whether_errors_grow_with_sigma_goes_by_the_rank_correlation_and_its_interval(regression, estimate, code):
    assert verdict(with_estimates(regression, "mcdo", spearman=estimate), "sigma-", method="mcdo").code == code


@pytest.mark.parametrize(
    ("at50", "at95", "wrong"),
    [
        (0.50, 0.95, {}),
        (0.80, 0.97, {50: "wide"}),
        (0.20, 0.70, {50: "narrow", 95: "narrow"}),
        (0.55, 1.00, {}),
    ],
)
def test_intervals_are_wrong_only_beyond_what_chance_explains(regression, at50, at95, wrong):
    coverage = {
        f"coverage{level}": Estimate(value, se=math.sqrt(value * (1 - value) / 60), mc_se=0.0)
        for level, value in ((50, at50), (95, at95))
    }
    finding = verdict(with_estimates(regression, "mcdo", **coverage), "intervals-", method="mcdo")
    assert finding.code == ("intervals-miscalibrated" if wrong else "intervals-calibrated")
    assert finding.values["wrong"] == wrong
    assert f"cover {100 * at50:.0f} and {100 * at95:.0f} % of the targets" in said(finding)
