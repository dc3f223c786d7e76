"""What is worse, what is not, and what must not be compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import made_up
import numpy as np
import pytest
from check_all import check
from findings_of import values_of, warned
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bnuq.catalogue import text_of
from bnuq.errors import RequestError, ResultError
from bnuq.estimates import Estimate
from bnuq.findings import note, warning
from bnuq.gate import CheckVerdict, EstimateComparison, GateSettings
from bnuq.gate.compatibility import check_comparable
from bnuq.metrics import holm
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import EvaluatedSet, Result

SAMPLES, POINTS = 16, 100
NO_ERROR = {"se": None, "mc_se": None, "jackknife": None, "bootstrap": None}


def values(seed: int = 0, samples: int = SAMPLES) -> np.ndarray:
    return np.random.default_rng(seed).normal(-0.5, 0.1, (samples, POINTS))


def pair(
    change: np.ndarray | float = 0.0, *, metric: str = "pll", current: dict[str, Any] | None = None
) -> tuple[Result, Result]:
    """Two results of which the current one has `change` added to every value."""
    before = values() + (metric == "brier")
    return (
        made_up.result(mcbn={metric: before + change}, **(current or {})),
        made_up.result(mcbn={metric: before}, path="baseline.h5"),
    )


def only(verdict: CheckVerdict, metric: str = "pll", method: str = "mcbn") -> EstimateComparison:
    (found,) = [one for one in verdict.comparisons if (one.metric, one.method) == (metric, method)]
    return found


def test_a_result_is_not_worse_than_itself_and_every_change_is_exactly_0() -> None:
    current, baseline = pair()
    verdict = check(current, baseline)
    assert verdict.passed
    assert [one.change for one in verdict.comparisons] == [0.0] * len(verdict.comparisons)
    assert only(verdict).p_value == 1
    assert verdict.pairing is not None
    assert (verdict.pairing.points, verdict.pairing.draws) == (("test",), ("mcbn",))


def test_sums_in_another_order_change_nothing() -> None:
    found = only(check(*pair(1e-14)))
    assert found.change == 0.0
    assert 0 < abs(found.current - found.baseline) < 1e-12
    assert only(check(*pair(1e-9))).change != 0


@pytest.mark.parametrize(
    ("metric", "change", "outcome"),
    [
        ("pll", -0.02, "worse"),
        ("pll", +0.02, "better"),
        ("pll", -0.009, "same"),  # sure, but within its tolerance
        ("brier", +0.02, "worse"),
        ("brier", -0.02, "better"),
        ("mutual_information", +0.5, "not gated"),
    ],
)
def test_each_metric_knows_which_way_is_worse(metric: str, change: float, outcome: str) -> None:
    found = only(check(*pair(change, metric=metric)), metric)
    assert found.outcome == outcome
    assert found.change == pytest.approx(change)
    if found.direction != "none":
        assert np.sign(found.degradation) == (1 if outcome == "worse" or change == -0.009 else -1)


def test_a_change_that_its_error_explains_is_not_worse() -> None:
    noise = np.random.default_rng(1).normal(0, 2.0, (SAMPLES, POINTS))
    found = only(check(*pair(noise - noise.mean() - 0.02)))
    assert found.degradation == pytest.approx(0.02)
    assert found.outcome == "inconclusive"
    assert found.p_value is not None
    assert found.p_value > 0.2


def test_a_metric_without_a_direction_is_tested_on_both_sides() -> None:
    noise = np.random.default_rng(1).normal(0, 2.0, (SAMPLES, POINTS))
    change, gated = noise - noise.mean() + 0.05, GateSettings.of(tolerances=["mutual_information=0.01"])
    either_way = only(check(*pair(change, metric="mutual_information"), gated), "mutual_information")
    worse = only(check(*pair(-change)))
    assert worse.p_value is not None and 0 < worse.p_value < 0.5
    assert either_way.p_value == pytest.approx(2 * worse.p_value)


@settings(max_examples=60, deadline=None)
@given(shift=st.floats(-0.05, 0.05), tolerance=st.floats(0, 0.05), spread=st.floats(0.01, 1.0))
def test_worse_means_harm_above_tolerance_and_refuted_at_5_percent(shift, tolerance, spread):
    noise = np.random.default_rng(2).normal(0, spread, (SAMPLES, POINTS))
    verdict = check(*pair(shift + noise), GateSettings.of(tolerances=[f"pll={tolerance!r}"]))
    found = only(verdict)
    assert found.p_adjusted is not None
    assert (found.outcome == "worse") == (found.degradation > tolerance and found.p_adjusted < 0.05)
    assert verdict.passed == (found.outcome != "worse")


@example([0.01, 0.02, 0.04])  # all rejected; by the first step's factor for every p, only the first
@example([0.04, 0.045])  # none rejected; by each step on its own, the second
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_its_step_down_rule_rejects(p: list[float]) -> None:
    adjusted = holm(np.array(p))
    rejected, still = set(), True
    for step, place in enumerate(sorted(range(len(p)), key=lambda k: p[k])):
        still = still and p[place] * (len(p) - step) < 0.05  # Holm 1979: go on until one is not rejected
        if still:
            rejected.add(place)
    assert {place for place, one in enumerate(adjusted) if one < 0.05} == rejected
    assert all(one >= raw for one, raw in zip(adjusted, p, strict=True))


def test_one_of_many_estimates_needs_a_smaller_p_value_to_fail_the_check() -> None:
    noise = np.random.default_rng(3).normal(0, 1.0, (SAMPLES, POINTS))
    noise -= noise.mean()
    shift = next(-s for s in np.linspace(0.01, 1, 400) if (only(check(*pair(noise - s))).p_value or 1) < 0.02)
    alone = only(check(*pair(noise + shift)))
    before, steady = values(), {"brier": values() + 1}
    among = check(
        made_up.result(mcbn={"pll": before + noise + shift, **steady}, mcdo={"pll": before, **steady}),
        made_up.result(mcbn={"pll": before, **steady}, mcdo={"pll": before, **steady}, path="baseline.h5"),
    )
    found = only(among)
    assert (alone.outcome, found.outcome) == ("worse", "inconclusive") and found.p_value == pytest.approx(alone.p_value)
    assert found.p_adjusted == pytest.approx(among.gated * found.p_value)


def test_an_undirected_estimate_is_gated_where_a_tolerance_is_given_and_both_ways_are_worse() -> None:
    said = GateSettings.of(tolerances=["mutual_information=0.1"])
    for change in (-0.2, 0.2):
        current, baseline = pair(change, metric="mutual_information")
        assert only(check(current, baseline, said), "mutual_information").outcome == "worse"
    current, baseline = pair(0.05, metric="mutual_information")
    assert only(check(current, baseline, said), "mutual_information").outcome == "same"


@pytest.mark.parametrize(
    ("said", "degradation", "outcome"),
    [
        (["mcbn.*=off"], 9.0, "not gated"),
        (["pll=5%"], 0.02, "same"),  # of 0.5
        (["pll=5%"], 0.03, "worse"),
        (["pll=0.1", "mcbn.sets.*.pll=0.001"], 0.002, "worse"),  # what is said last wins
        (["mcbn.sets.*.pll=0.001", "pll=0.1"], 0.002, "same"),
        (["mcdo.*=0.5"], 0.02, "worse"),  # meant for another
    ],
)
def test_tolerances_are_absolute_relative_or_off_and_the_last_that_fits_wins(said, degradation, outcome):
    assert only(check(*pair(-degradation), GateSettings.of(tolerances=said))).outcome == outcome


def test_a_tolerance_in_standard_errors_is_of_the_change() -> None:
    noise = np.random.default_rng(3).normal(0, 1.0, (SAMPLES, POINTS))
    found = only(check(*pair(noise), GateSettings.of(tolerances=["pll=2se"])))
    assert found.tolerance == pytest.approx(2 * (found.se or 0))


def test_a_tolerance_that_nothing_is_meant_by_is_said() -> None:
    verdict = check(*pair(), GateSettings.of(tolerances=["crps=0.1", "pll=0.1", "mcdo.*=0.5"]))
    assert warned(verdict) == ["unused-tolerance"]
    assert values_of(verdict, "unused-tolerance")["tolerances"] == ["crps", "mcdo.*"]


def test_a_tolerance_that_no_change_exceeds_is_off_and_said_to_be() -> None:
    for of_all in ("*=1e9", "*=off"):
        with pytest.raises(ResultError, match="no gated estimate in common"):
            check(*pair(-5.0), GateSettings.of(tolerances=[of_all]))
    verdict = check(*pair(-5.0), GateSettings.of(tolerances=["mcbn.*=1000"]))
    assert only(verdict).outcome == "not gated" and warned(verdict) == ["tolerance-of-any-change"]
    assert values_of(verdict, "tolerance-of-any-change")["estimates"] == ["mcbn.sets.test.pll"]
    for large in ("mcbn.*=999", "mcbn.*=100%"):
        verdict = check(*pair(-5.0), GateSettings.of(tolerances=[large]))
        assert only(verdict).outcome != "not gated" and not warned(verdict)


def with_bound(result: Result, value: float) -> Result:
    found = result.methods["mcbn"]
    points = np.full(POINTS, value)
    test = replace(found.sets["test"], points={**found.sets["test"].points, "pll_optimum": points})
    method = replace(found, sets={"test": test}, bounds={"optimum": {"pll": made_up.plain_estimate(points)}})
    return replace(result, methods={**result.methods, "mcbn": method})


@pytest.mark.parametrize(
    ("said", "gated"),
    [
        ("pll=0.01", {"mcbn.sets.test.pll", "deterministic.sets.test.pll"}),  # not the bound of the same name
        ("mcbn.*=0.01", {"mcbn.sets.test.pll", "deterministic.sets.test.pll"}),  # nor what has no direction
        ("*.mutual_information=0.01", {"mcbn.sets.test.mutual_information"}),
        ("mcbn.bounds.*.pll=1", {"mcbn.bounds.optimum.pll"}),
    ],
)
def test_a_tolerance_gates_no_yardstick_and_nothing_undirected_that_it_does_not_name(said, gated):
    both = {"pll": values(), "mutual_information": values(1) + 1}
    current = with_bound(made_up.result(mcbn=both), -0.1)
    baseline = with_bound(made_up.result(mcbn=both, path="baseline.h5"), -0.2)
    verdict = check(current, baseline, GateSettings.of(tolerances=[said]))
    found = {one.address for one in verdict.comparisons if one.outcome != "not gated"}
    assert found == gated | {"mcbn.sets.test.pll", "deterministic.sets.test.pll"}


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"tolerances": ["pll"]}, "--tolerance pll: expected METRIC=AMOUNT"),
        ({"tolerances": ["pll=-1"]}, "--tolerance pll is -1; expected a number"),
        ({"tolerances": ["pll=nan"]}, "--tolerance pll is nan; expected a number"),
        ({"tolerances": ["pll=1e999"]}, "--tolerance pll is 1e999; expected a number"),
        (
            {"tolerances": ["pl=0.1"]},
            r"--tolerance pl: neither a known metric nor a pattern of addresses\. Did you mean pll\?",
        ),
        ({"floors": ["pll"]}, "--require pll: expected ADDRESS>=NUMBER"),
        ({"floors": ["mcbn.sets.test.pll>0.1"]}, "expected ADDRESS>=NUMBER"),
        ({"floors": ["mcbn.sets.test.pll<=1e999"]}, "expected ADDRESS>=NUMBER"),
        ({"allow": ["everything"]}, "--allow everything: expected samples"),
        ({"allow": ["missing"]}, "--allow missing: expected samples"),
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        GateSettings.of(**said)


def other_data(result: Result) -> Result:
    return replace(result, sets={"test": replace(result.sets["test"], sha256="f" * 64)})


def without_method(result: Result) -> Result:
    return replace(result, methods={"deterministic": result.methods["deterministic"]})


INCOMPARABLE: list[tuple[str, Callable[[Result], Result], str]] = [
    (
        "samples",
        lambda _: made_up.result(mcbn={"pll": values(samples=8), "brier": values(1, samples=8) + 1}),
        "samples: 8 now, 16 in",
    ),
    ("batch-size", lambda one: replace(one, sampling={**one.sampling, "batch_size": 32}), "batch-size: 32 now, 16 in"),
    ("data:test", other_data, "data: test holds other data now"),
    ("data", other_data, "data: test holds other data now"),
    ("missing:mcbn", without_method, "missing: the method mcbn: in the baseline, but not in the current result"),
    (
        "missing:mcbn.sets.test.brier",
        lambda one: made_up.with_estimate(one, "mcbn", "brier", value=None),
        "missing: mcbn.sets.test.brier: in the baseline",
    ),
    (
        "scoring",
        lambda one: replace(one, sampling={**one.sampling, "mutual_information": "jackknife"}),
        "scoring: mutual_information is jackknife now, plug-in in the baseline",
    ),
]


@pytest.mark.parametrize(("name", "change", "complaint"), INCOMPARABLE, ids=[name for name, _, _ in INCOMPARABLE])
def test_what_was_not_looked_at_alike_is_an_error_unless_it_is_allowed_by_name(name, change, complaint):
    both = {"pll": values(), "brier": values(1) + 1}
    baseline = made_up.result(mcbn=both, path="baseline.h5")
    current = change(made_up.result(mcbn=both))
    with pytest.raises(ResultError, match=re.escape(complaint)) as refused:
        check(current, baseline)
    assert "--allow" in str(refused.value)
    others = [other for other, _, _ in INCOMPARABLE if not other.startswith(name.partition(":")[0])]
    with pytest.raises(ResultError, match=re.escape(complaint)):
        check(current, baseline, GateSettings.of(allow=others))
    assert check(current, baseline, GateSettings.of(allow=[name])).passed


def test_scores_that_only_a_missing_ood_set_is_ranked_by_are_missing_with_it() -> None:
    current, baseline = (made_up.result(mcbn={"pll": values()}, path=name) for name in ("new.h5", "old.h5"))
    mcbn = baseline.methods["mcbn"]
    test = replace(mcbn.sets["test"], by_score={"gen": {"auroc_errors": Estimate(0.8, se=0.1)}})
    baseline = replace(baseline, methods=baseline.methods | {"mcbn": replace(mcbn, sets={"test": test})})
    with pytest.raises(ResultError, match=r"missing: mcbn\.sets\.test\.by_score\.gen\.auroc_errors: in the"):
        check_comparable(current, baseline, GateSettings())
    other = EvaluatedSet("o", "ood", "o.npz", "0" * 64, 5)
    check_comparable(current, replace(baseline, sets=baseline.sets | {"o": other}), GateSettings())


def test_several_missing_estimates_are_allowed_by_their_metrics() -> None:
    baseline = made_up.result(mcbn={"pll": values(), "brier": values(1) + 1, "accuracy": values(2)}, path="old.h5")
    current = baseline
    for metric in ("brier", "accuracy"):
        current = made_up.with_estimate(current, "mcbn", metric, value=None)
    with pytest.raises(ResultError) as refused:
        check(current, baseline)
    patterns = re.findall(r'--allow "([^"]+)"', str(refused.value))
    assert sorted(patterns) == ["missing:*.accuracy", "missing:*.brier"]
    assert check(current, baseline, GateSettings.of(allow=patterns)).passed


def test_all_that_stands_in_the_way_is_told_at_once() -> None:
    baseline = made_up.result(mcbn={"pll": values()}, path="baseline.h5")
    current = other_data(without_method(made_up.result(mcbn={"pll": values()}, batch_size=64)))
    with pytest.raises(ResultError, match=r"(?s)batch-size: 64.*data: test.*missing: the method mcbn"):
        check(current, baseline)


def test_another_task_cannot_be_allowed() -> None:
    current, baseline = pair()
    current = replace(current, model={**current.model, "task": "regression"})
    with pytest.raises(ResultError, match="task: regression now, classification in the baseline"):
        check(current, baseline, GateSettings.of(allow=["samples", "batch-size", "scoring", "data"]))


def test_other_points_are_not_paired_even_where_they_are_allowed() -> None:
    current, baseline = pair(-0.2)
    found = only(check(other_data(current), baseline, GateSettings.of(allow=["data:test"])))
    errors = [one.methods["mcbn"].sets["test"].estimates["pll"].se for one in (current, baseline)]
    assert found.se_points == pytest.approx(math.hypot(*(error or 0 for error in errors)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: replace(one, sampling={**one.sampling, "seed": 1}), "the seed differs"),
        (
            lambda one: replace(one, provenance={**one.provenance, "reference_sha256": "9" * 64}),
            "the training set differs",
        ),
        (
            lambda one: replace(one, run={**one.run, "data": {"augment": {"flip": True}}}),
            "the training pipeline (data.augment) differs",
        ),
        (lambda one: replace(one, sampling={**one.sampling, "bank": SAMPLES}), "the bank differs"),
    ],
)
def test_draws_are_paired_only_where_they_are_the_same(change: Callable[[Result], Result], why: str) -> None:
    current, baseline = pair()
    verdict = check(change(current), baseline)
    assert verdict.pairing is not None
    assert verdict.pairing.draws == ()
    assert verdict.pairing.why_not == (("mcbn", why),)


def test_what_is_new_is_told_and_held_against_nothing() -> None:
    current, baseline = pair()
    current = replace(
        current,
        methods={**current.methods, "mcdo": current.methods["mcbn"]},
        sets={**current.sets, "svhn": replace(current.sets["test"], name="svhn", kind="ood")},
    )
    verdict = check(current, baseline)
    assert {one.method for one in verdict.comparisons} == {"deterministic", "mcbn"}
    new = [finding.values for finding in verdict.findings if finding.code == "new-since-baseline"]
    assert new == [{"what": "method", "names": ["mcdo"]}, {"what": "set", "names": ["svhn"]}]


def test_a_floor_is_kept_or_broken_with_or_without_a_baseline() -> None:
    current, baseline = pair()
    value = current.methods["mcbn"].sets["test"].estimates["pll"].value
    kept, broken = f"mcbn.sets.test.pll>={value!r}", f"mcbn.sets.test.pll>={value + 1e-9!r}"
    for beside in (None, baseline):
        assert check(current, beside, GateSettings.of(floors=[kept])).passed
        verdict = check(current, beside, GateSettings.of(floors=[kept, broken, "mcbn.sets.test.pll<=0"]))
        assert not verdict.passed
        assert [floor.passed for floor in verdict.floors] == [True, False, True]
        assert verdict.floors[0].value == value


def test_a_floor_by_a_metric_alone_lists_the_addresses_that_would_do() -> None:
    current = pair()[0]
    names = [name for name in estimates_of(current) if name.endswith(".pll")]
    with pytest.raises(ResultError, match=r"no estimate pll, which --require names\. Near it are ") as refused:
        check(current, None, GateSettings.of(floors=["pll>=0"]))
    assert [name in str(refused.value) for name in names] == [True] * len(names)
    assert len(names) > 1


def test_a_floor_of_a_separation_without_an_ood_set_says_so() -> None:
    current = pair()[0]
    methods = {name: replace(method, ood={}) for name, method in current.methods.items()}
    with pytest.raises(ResultError, match=r"no estimate auroc, .* evaluated without an OOD set: --ood REF\.$"):
        check(replace(current, methods=methods), None, GateSettings.of(floors=["auroc>=0.9"]))


def test_a_floor_of_a_estimate_that_is_not_there_is_an_error_that_names_its_neighbours() -> None:
    with pytest.raises(ResultError, match=r"no estimate mcbn\.sets\.test\.plll,.*Near it are mcbn\.sets\.test\.pll,"):
        check(pair()[0], None, GateSettings.of(floors=["mcbn.sets.test.plll>=0"]))


def test_a_floor_is_never_kept_by_nan() -> None:
    current = made_up.with_estimate(pair()[0], "mcbn", "pll", value=math.nan)
    assert not check(current, None, GateSettings.of(floors=["mcbn.sets.test.pll>=-9"])).passed


def test_neither_baseline_nor_floor_is_nothing_to_check() -> None:
    with pytest.raises(ResultError, match="nothing to check it against"):
        check(pair()[0])


def test_no_gated_estimate_in_common_is_an_error() -> None:
    with pytest.raises(ResultError, match="no gated estimate in common"):
        check(*pair(), GateSettings.of(tolerances=["pll=off"]))


def test_a_probability_of_0_for_a_true_label_is_worse_and_its_return_is_better() -> None:
    current, baseline = pair()
    gone = made_up.with_estimate(current, "mcbn", "pll", value=-math.inf, **NO_ERROR)
    assert only(check(gone, baseline)).outcome == "worse"
    assert only(check(baseline, gone)).outcome == "better"
    both = check(gone, made_up.with_estimate(baseline, "mcbn", "pll", value=-math.inf, **NO_ERROR))
    assert only(both).outcome == "same"
    assert warned(both) == ["infinite"]


def test_a_estimate_that_became_nan_is_an_error() -> None:
    current, baseline = pair()
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll"):
        check(made_up.with_estimate(current, "mcbn", "pll", value=math.nan), baseline)


def test_what_was_not_a_number_is_said_and_not_gated() -> None:
    current, baseline = pair()
    verdict = check(current, made_up.with_estimate(baseline, "mcbn", "pll", value=math.nan))
    assert verdict.passed
    assert warned(verdict) == ["not-a-number"]


def test_an_estimate_whose_monte_carlo_error_is_infinite_is_not_judged() -> None:
    current, baseline = pair(-0.2, current={"seed": 1})
    unknown = made_up.with_estimate(current, "mcbn", "pll", mc_se=math.inf)
    said = GateSettings.of(allow=["data"])
    assert not check(other_data(current), baseline, said).passed
    with pytest.raises(ResultError, match=r"whether mcbn\.sets\.test\.pll got worse .* cannot be determined"):
        check(other_data(unknown), baseline, said)


def test_a_network_without_statistics_of_its_own_is_not_judged_by_its_points_alone_under_another_seed() -> None:
    moving = warning("deterministic-from-reference")
    current, baseline = (replace(one, findings=(moving,)) for one in pair(current={"seed": 1}))
    worse = made_up.with_estimate(current, "deterministic", "pll", value=-0.1)
    with pytest.raises(
        ResultError, match=r"deterministic\.sets\.test\.pll.*network without running statistics under another seed"
    ):
        check(worse, baseline)
    same_seed = replace(worse, sampling={**worse.sampling, "seed": 0})
    assert only(check(same_seed, baseline), method="deterministic").se_draws == 0


def test_too_few_passes_to_tell_an_error_are_refused_where_that_matters() -> None:
    few = values(samples=4)
    baseline = made_up.result(mcbn={"pll": few}, path="baseline.h5")
    assert check(made_up.result(mcbn={"pll": few - 0.009}), baseline).passed  # within its tolerance, error or none
    with pytest.raises(ResultError, match=r"mcbn\.sets\.test\.pll.*too few samples \(fewer than 8\)"):
        check(made_up.result(mcbn={"pll": few - 0.011}), baseline)


def test_estimates_that_are_not_the_means_of_their_points_are_damage() -> None:
    current, baseline = pair(-0.2)
    own = current.methods["mcbn"].sets["test"]
    damaged = made_up.with_estimate(current, "mcbn", "pll", value=-0.5)
    test = replace(damaged.methods["mcbn"].sets["test"], points=own.points)
    method = replace(damaged.methods["mcbn"], sets={"test": test})
    assert not check(current, baseline).passed
    with pytest.raises(
        ResultError, match=r"current\.h5 contradicts itself(?s:.*)mcbn\.sets\.test\.pll is -0\.5; recomp"
    ):
        check(replace(damaged, methods={**damaged.methods, "mcbn": method}), baseline)


@pytest.mark.parametrize("missing", [{"jackknife": None}, {"bootstrap": None, "mc_se": None}])
@pytest.mark.parametrize("seed", [0, 1])
def test_without_replicates_there_is_no_error(missing: dict[str, None], seed: int) -> None:
    hits = (values(2) > -0.45).astype(float)
    current = made_up.result(mcbn={"accuracy": 0 * hits}, seed=seed)
    baseline = made_up.result(mcbn={"accuracy": hits}, path="baseline.h5")
    assert not check(current, baseline).passed
    with pytest.raises(ResultError, match=r"whether mcbn\.sets\.test\.accuracy got worse .* cannot be determined"):
        check(made_up.with_estimate(current, "mcbn", "accuracy", **missing), baseline)


def test_a_regression_that_a_grown_error_over_the_draws_hides_is_said() -> None:
    before = values()
    apart = np.random.default_rng(7).normal(size=SAMPLES)
    apart -= apart.mean()
    baseline = made_up.result(mcbn={"pll": before}, path="baseline.h5")
    current, wide = (
        made_up.result(mcbn={"pll": before - 0.05 + spread * apart[:, None]}, seed=1) for spread in (0.0, 0.5)
    )
    assert not check(current, baseline).passed
    verdict = check(wide, baseline)
    assert warned(verdict) == ["inconclusive", "hidden-by-draws"]
    assert values_of(verdict, "hidden-by-draws")["estimates"] == ["mcbn.sets.test.pll"]
    assert warned(check(wide, wide)) == ["same-file"]


def test_swapped_files_and_new_warnings_are_said() -> None:
    current, baseline = pair()
    later = replace(baseline, provenance={**baseline.provenance, "time": "2026-01-02T00:00:00+00:00"})
    careful = replace(current, findings=(warning("reference-unchecked"), note("mcbn-added")))
    assert warned(check(careful, later)) == ["older-than-baseline", "new-warnings"]
    assert check(current, baseline).findings == ()


def in_arithmetic(result: Result, name: str, **deviation: Any) -> Result:
    """The result with samples in this arithmetic, and a note on their deviation from float32."""
    told = {"method": "mcbn", "precision": name, "measure": "mutual information", "shift_error": 0.01} | deviation
    sampling = {**result.sampling, "precision": name}
    return replace(result, sampling=sampling, findings=(note("reduced-precision", **told),))


@pytest.mark.parametrize("side", [0, 1])
def test_another_arithmetic_is_said_and_widens_the_tolerance_of_what_was_measured_of_it(side: int) -> None:
    said = GateSettings.of(tolerances=["mutual_information=0.1", "pll=0.1"])
    for change, outcome in ((0.15, "same"), (-0.15, "same"), (0.3, "worse"), (-0.3, "worse")):
        exact = list(pair(change, metric="mutual_information"))
        assert only(check(*exact, said), "mutual_information").outcome == "worse"
        other, value = [*exact], exact[side].methods["mcbn"].sets["test"].estimates["mutual_information"].value
        other[side] = in_arithmetic(exact[side], "tf32-convolutions", shift=-0.2)
        found = only(verdict := check(*other, said), "mutual_information")
        assert found.outcome == outcome and found.tolerance == pytest.approx(0.1 + 0.22 * abs(value))
        names = ["tf32-convolutions", "float32"]
        assert values_of(verdict, "other-arithmetic") == dict(
            zip(("current", "baseline"), names if side == 0 else names[::-1], strict=True)
        )
        assert "TF32 convolutions" in text_of(verdict.findings[0])
    exact = list(pair(-0.15))
    exact[side] = in_arithmetic(exact[side], "bfloat16", shift=0.2)
    assert only(check(*exact, said)).outcome == "worse"  # of a PLL nothing was measured


@pytest.mark.parametrize("shift", [float("nan"), "nan", None])
def test_an_arithmetic_whose_deviation_is_not_known_is_said_and_widens_nothing(shift: Any) -> None:
    said = GateSettings.of(tolerances=["mutual_information=0.1"])
    current, baseline = pair(0.15, metric="mutual_information")
    verdict = check(in_arithmetic(current, "float16", shift=shift), baseline, said)
    assert only(verdict, "mutual_information").outcome == "worse"
    assert values_of(verdict, "other-arithmetic")["current"] == "float16"


def test_the_same_arithmetic_widens_nothing() -> None:
    said = GateSettings.of(tolerances=["mutual_information=0.1"])
    sides = [in_arithmetic(side, "tf32", shift=0.2) for side in pair(0.15, metric="mutual_information")]
    assert only(check(*sides, said), "mutual_information").outcome == "worse"
    assert check(*sides, said).findings == ()


def test_the_worst_comes_first() -> None:
    base = {"pll": values(), "brier": values(1) + 1, "accuracy": (values(2) > -0.5).astype(float)}
    changed = {"pll": base["pll"] - 0.02, "brier": base["brier"] - 0.02, "accuracy": base["accuracy"]}
    verdict = check(made_up.result(mcbn=changed), made_up.result(mcbn=base, path="baseline.h5"))
    assert [one.metric for one in verdict.comparisons if one.method == "mcbn"] == ["pll", "accuracy", "brier"]
    assert verdict.gated == 4  # with the PLL of the network as it is
