"""From logits to estimates: every value and every replicate against naive loops over all samples."""

from __future__ import annotations

import math
from dataclasses import replace

import at_night
import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_curve
from table import streamed_scores

from bnuq import metrics
from bnuq.errors import SamplingError
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import RESAMPLES, detection_estimates, replicate_weights
from bnuq.evaluation.tasks import class_reduction, classification
from bnuq.evaluation.tasks.class_tensors import TensorKernel
from bnuq.metrics.registry import ESTIMANDS

T, N, K = 9, 40, 4
DETECTION = ("auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive")


def logits_of(n: int = N, *, samples: int = T, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return scale * generator.normal(size=(1, n, K)) + generator.normal(size=(samples, n, K))


LABELS = np.random.default_rng(5).integers(K, size=N)


def outside() -> np.ndarray:
    return logits_of(30, seed=1, scale=0.7)


def reduced(
    logits: np.ndarray | torch.Tensor, labels=None, *, chunk: int = 1000, group=None
) -> classification.ClassScores:
    reduction = classification.ClassReduction(replicate_weights(len(logits)), points=logits.shape[1], labels=labels)
    for start in range(0, logits.shape[1], chunk):
        reduction.add(logits[:, start : start + chunk])
    return reduction.scores(group=group)


def entropy(p) -> float:
    return -sum(v * math.log(v) for v in p if v > 0)


NAIVE = ("mutual_information", "predictive_entropy", "expected_entropy", "least_confidence")  # of the scores


def by_hand(logits: np.ndarray, weight: np.ndarray, labels=None) -> dict[str, list[float]]:
    """Per-point values under one weighting of the draws, point by point and draw by draw."""
    found: dict[str, list[float]] = {}
    for i in range(logits.shape[1]):
        ps = []
        for t in range(len(logits)):
            e = [math.exp(v - max(logits[t, i])) for v in logits[t, i]]
            ps.append([v / sum(e) for v in e])
        mean = [sum(w * p[k] for w, p in zip(weight, ps, strict=True)) for k in range(K)]
        expected = sum(w * entropy(p) for w, p in zip(weight, ps, strict=True))
        values = {
            "mutual_information": entropy(mean) - expected,
            "predictive_entropy": entropy(mean),
            "expected_entropy": expected,
            "max_probability": max(mean),
            "least_confidence": 1 - max(mean),
        }
        if labels is not None:
            y = labels[i]
            values |= {
                "accuracy": float(mean.index(max(mean)) == y),
                "pll": math.log(mean[y]),
                "brier": sum((m - (k == y)) ** 2 for k, m in enumerate(mean)),
            }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found


def ece_by_hand(values: dict[str, list[float]]) -> float:
    total = 0.0
    for k in range(15):
        inside = [i for i, c in enumerate(values["max_probability"]) if k / 15 < c <= (k + 1) / 15]
        total += abs(sum(values["accuracy"][i] - values["max_probability"][i] for i in inside))
    return total / len(values["accuracy"])


def aurc_by_hand(values: dict[str, list[float]]) -> float:
    order = sorted(range(len(values["accuracy"])), key=lambda i: values["predictive_entropy"][i])
    losses = [1 - values["accuracy"][i] for i in order]
    return sum(sum(losses[:k]) / k for k in range(1, len(losses) + 1)) / len(losses)


def calibration_by_hand(values: dict[str, list[float]]) -> dict[str, float]:
    stated, right = values["max_probability"], values["accuracy"]
    n, square, largest, total = len(stated), 0.0, 0.0, 0.0
    for k in range(15):
        inside = [i for i, c in enumerate(stated) if k / 15 < c <= (k + 1) / 15]
        if inside:
            accuracy = sum(right[i] for i in inside) / len(inside)
            gap = accuracy - sum(stated[i] for i in inside) / len(inside)
            if len(inside) > 1:
                square += len(inside) / n * (gap**2 - accuracy * (1 - accuracy) / (len(inside) - 1))
            largest = max(largest, abs(gap))
    order = sorted(range(n), key=lambda i: stated[i])
    for k in range(15):
        total += abs(sum(right[i] - stated[i] for i in order[k * n // 15 : (k + 1) * n // 15]))
    return {"ece_adaptive": total / n, "ece_debiased": math.sqrt(max(0.0, square)), "mce": largest}


def selective_by_hand(values: dict[str, list[float]]) -> dict[str, float]:
    order = sorted(range(len(values["accuracy"])), key=lambda i: values["predictive_entropy"][i])
    losses, n = [1 - values["accuracy"][i] for i in order], len(order)
    risks = [sum(losses[:k]) / k for k in range(1, n + 1)]
    return {
        "augrc": sum(sum(losses[:k]) + losses[k] / 2 for k in range(n)) / n**2,
        "risk_at_80": risks[math.ceil(0.8 * n - 1e-9) - 1],
        "coverage_at_5": max((k for k in range(1, n + 1) if risks[k - 1] <= 0.05 + 1e-12), default=0) / n,
    }


def auroc_by_hand(test: list[float], ood: list[float]) -> float:
    return sum((o > t) + (o == t) / 2 for o in ood for t in test) / len(test) / len(ood)


def detection_by_hand(test: list[float], ood: list[float], *, auroc_alone: bool) -> dict[str, float]:
    if auroc_alone:
        return {"auroc": auroc_by_hand(test, ood)}
    truth, score = [0] * len(test) + [1] * len(ood), np.array([*test, *ood])
    out = roc_curve(truth, score, drop_intermediate=False)
    inside = roc_curve([1 - t for t in truth], -score, drop_intermediate=False)
    return {
        "auroc": auroc_by_hand(test, ood),
        "aupr_out": average_precision_score(truth, score),
        "aupr_in": average_precision_score([1 - t for t in truth], -score),
        "fpr95": min(f for f, t in zip(*out[:2], strict=True) if t >= 0.95),
        "fpr95_id_positive": min(f for f, t in zip(*inside[:2], strict=True) if t >= 0.95),
    }


@pytest.fixture(scope="module")
def draws() -> metrics.DrawWeights:
    return replicate_weights(T)


@pytest.fixture(scope="module")
def inside_by_hand(draws) -> list[dict[str, list[float]]]:
    """Per-point values of the labelled set, under every replicate."""
    return [by_hand(logits_of(), weight, LABELS) for weight in draws.weights]


@pytest.fixture(scope="module")
def outside_by_hand(draws) -> list[dict[str, list[float]]]:
    """Those of an OOD set, under the replicates that its ranks have."""
    return [by_hand(outside(), weight) for weight in draws.weights[: draws.bootstrap.stop]]


@pytest.fixture(scope="module")
def recomputed(inside_by_hand) -> list[dict[str, float]]:
    """Every estimate of the labelled set, under every replicate."""
    return [
        {name: sum(v) / N for name, v in values.items()}
        | {"ece": ece_by_hand(values), "aurc": aurc_by_hand(values)}
        | calibration_by_hand(values)
        | selective_by_hand(values)
        for values in inside_by_hand
    ]


OF_UNLABELLED = ("mutual_information", "predictive_entropy", "expected_entropy", "max_probability")
CALIBRATION = ("ece", "ece_adaptive", "ece_debiased", "mce")
SELECTIVE = ("aurc", "augrc", "risk_at_80", "coverage_at_5")
ESTIMATES = ("accuracy", "pll", "brier", *CALIBRATION, *OF_UNLABELLED, *SELECTIVE)
SMOOTH = ("pll", "brier", "mutual_information", "predictive_entropy", "expected_entropy")


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_per_point_values_are_those_of_all_samples_at_once_whatever_the_chunks(chunk):
    scores = reduced(logits_of(), LABELS, chunk=chunk)
    p = np.exp(logits_of() - logits_of().max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    direct = {each.name: each.of_mean(p.mean(0), LABELS) for each in ESTIMANDS if each.of_mean}
    for each in (each for each in ESTIMANDS if each.of_samples):
        of_logits = each.score is not None and each.score.source == "logits"
        direct[each.name] = each.of_samples(logits_of() if of_logits else p, LABELS)
    assert scores.points.keys() == direct.keys()
    for name, values in direct.items():
        np.testing.assert_allclose(scores.points[name], values, rtol=1e-10, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(scores.predicted, p.mean(0).argmax(-1))
    np.testing.assert_allclose(scores.log_likelihood, np.log(p[:, np.arange(N), LABELS]), rtol=1e-10)
    assert scores.n == N


def test_a_block_cut_for_memory_gives_the_same(monkeypatch):
    whole = classification.set_estimates(reduced(logits_of(), LABELS), replicate_weights(T))
    monkeypatch.setattr(class_reduction, "_BLOCK", 3000)
    cut = classification.set_estimates(reduced(logits_of(), LABELS), replicate_weights(T))
    for name, estimate in whole.items():
        assert cut[name].value == pytest.approx(estimate.value, rel=1e-12)
        assert cut[name].mc_se == pytest.approx(estimate.mc_se, rel=1e-9)


@pytest.mark.parametrize("where", ["calibration_bins", "pll_from_log_likelihood", "sample_scores"])
def test_where_memory_runs_out_while_scoring_smaller_blocks_are_added_and_nothing_counts_twice(where, monkeypatch):
    logits = torch.from_numpy(logits_of())
    whole = classification.set_estimates(reduced(logits, LABELS), replicate_weights(T))
    home = TensorKernel if hasattr(TensorKernel, where) else metrics
    original, sizes = getattr(home, where), []

    def scarce(*args, **options):
        sizes.append(args[1].shape[1] if where == "sample_scores" else args[0].shape[-1])
        if sizes[-1] > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*args, **options)

    monkeypatch.setattr(home, where, scarce)
    found = classification.set_estimates(reduced(logits, LABELS, chunk=N), replicate_weights(T))
    assert max(sizes) > 12 and sizes[-1] <= 12
    for name, estimate in whole.items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-12)
        assert found[name].mc_se == pytest.approx(estimate.mc_se, rel=1e-9)


def test_memory_that_does_not_hold_one_point_while_scoring_is_no_endless_loop(monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TensorKernel, "sample_scores", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        reduced(torch.from_numpy(logits_of()), LABELS)


@pytest.fixture(scope="module", params=[(7, np.asarray), (40, np.asarray), (7, torch.from_numpy)])
def in_chunks(request, draws):
    chunk, kind = request.param
    return classification.set_estimates(reduced(kind(logits_of()), LABELS, chunk=chunk), draws)


@pytest.mark.parametrize("name", ESTIMATES)
def test_every_estimate_and_every_replicate_is_that_of_naive_loops(name, in_chunks, draws, recomputed):
    estimate = in_chunks[name]
    expected = np.array([one[name] for one in recomputed])
    tolerance = {"rtol": 1e-9, "atol": 1e-7 if name == "ece_adaptive" else 1e-11}  # whose replicates are of float32
    np.testing.assert_allclose(estimate.value, expected[draws.full][0], **tolerance)
    np.testing.assert_allclose(estimate.jackknife, expected[draws.jackknife], **tolerance)
    np.testing.assert_allclose(estimate.bootstrap, expected[draws.bootstrap], **tolerance)
    left_out, resampled = expected[draws.jackknife], expected[draws.bootstrap]
    jackknife = math.sqrt((T - 1) / T * ((left_out - left_out.mean()) ** 2).sum())
    bootstrap = resampled.std(ddof=1) * math.sqrt(T / (T - 1))
    assert estimate.mc_se == pytest.approx(jackknife if name in SMOOTH else bootstrap, rel=1e-6)


def test_the_estimates_come_in_the_order_of_the_table():
    labelled = [*classification.set_estimates(reduced(logits_of(), LABELS), replicate_weights(T))]
    unlabelled = [*classification.set_estimates(reduced(logits_of()), replicate_weights(T))]
    assert {*ESTIMATES} <= {*labelled} and labelled == [name for name in metrics.METRICS if name in labelled]
    assert unlabelled == [name for name in labelled if not metrics.METRICS[name].needs_truth]


@pytest.fixture(scope="module")
def separation(draws):
    return detection_estimates(reduced(logits_of(), LABELS, chunk=11), reduced(outside(), chunk=7), draws)


@pytest.mark.parametrize("score", at_night.but({"mutual_information"}, sorted(NAIVE)))
def test_every_detection_estimate_and_replicate_is_that_of_naive_loops(
    score, draws, separation, inside_by_hand, outside_by_hand
):
    found = separation[score]
    pairs = zip(inside_by_hand, outside_by_hand, strict=False)
    alone = score != "mutual_information"  # for the others is as much
    expected = [detection_by_hand(inner[score], outer[score], auroc_alone=alone) for inner, outer in pairs]
    assert tuple(found) == DETECTION
    for name in expected[0]:
        values = np.array([one[name] for one in expected])
        assert found[name].value == pytest.approx(values[0], abs=1e-12)
        np.testing.assert_allclose(found[name].jackknife, values[draws.jackknife], atol=1e-9)
        np.testing.assert_allclose(found[name].bootstrap, values[draws.bootstrap], atol=1e-9)
        left_out = values[draws.jackknife]
        jackknife = math.sqrt((T - 1) / T * ((left_out - left_out.mean()) ** 2).sum())
        bootstrap = values[draws.bootstrap].std(ddof=1) * math.sqrt(T / (T - 1))
        assert found[name].mc_se == pytest.approx(jackknife if name == "auroc" else bootstrap, abs=1e-9)
        assert found[name].low <= found[name].value <= found[name].high


@pytest.mark.parametrize("chunk", [6, 40])
def test_rank_estimates_take_their_monte_carlo_error_from_some_points_and_their_value_from_all(
    chunk, draws, inside_by_hand, outside_by_hand, monkeypatch
):
    monkeypatch.setattr(estimates, "RANKED", 25)
    test, ood = reduced(logits_of(), LABELS, chunk=chunk), reduced(outside(), chunk=chunk)
    assert {v.shape[1] for v in (*test.ranked.values(), test.ranked_wrong)} == {25}
    estimate = detection_estimates(test, ood, draws)["predictive_entropy"]["auroc"]
    entropies = [
        (np.array(inner["predictive_entropy"]), np.array(outer["predictive_entropy"]))
        for inner, outer in zip(inside_by_hand, outside_by_hand, strict=False)
    ]
    assert len(set(test.ranked_rows)) == len(set(ood.ranked_rows)) == 25
    some = [auroc_by_hand(inner[test.ranked_rows], outer[ood.ranked_rows]) for inner, outer in entropies]
    value = auroc_by_hand(*entropies[0])
    moved = value + np.array(some) - some[0]
    assert estimate.value == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(estimate.jackknife, moved[draws.jackknife], atol=1e-9)
    np.testing.assert_allclose(estimate.bootstrap, moved[draws.bootstrap], atol=1e-9)
    aurc = classification.set_estimates(test, draws)["aurc"]
    assert aurc.value == pytest.approx(aurc_by_hand(inside_by_hand[0]), rel=1e-9)
    kept = [
        aurc_by_hand({name: np.array(v)[test.ranked_rows] for name, v in values.items()})
        for values in inside_by_hand[: draws.bootstrap.stop]
    ]
    np.testing.assert_allclose(aurc.jackknife, aurc.value + np.array(kept)[draws.jackknife] - kept[0], atol=1e-9)


def test_errors_over_points_are_those_of_a_mean():
    scores = reduced(logits_of(), LABELS)
    for name, estimate in classification.set_estimates(scores, replicate_weights(T)).items():
        if name in scores.points:
            assert estimate.se == pytest.approx(scores.points[name].std(ddof=1) / math.sqrt(N), rel=1e-9)
        assert estimate.low <= estimate.value <= estimate.high


def test_errors_over_points_go_by_group_where_points_are_grouped():
    group = np.arange(N) // 4
    scores, draws = reduced(logits_of(), LABELS, group=group), replicate_weights(T)
    x = scores.points["pll"]
    assert classification.set_estimates(scores, draws)["pll"].se == pytest.approx(
        math.sqrt(10 / 9 * (np.array([(x[group == g] - x.mean()).sum() for g in range(10)]) ** 2).sum()) / N
    )
    alone = classification.set_estimates(reduced(logits_of(), LABELS), draws)
    assert classification.set_estimates(scores, draws)["ece"].se != alone["ece"].se
    ood = reduced(logits_of(30, seed=1))
    grouped = detection_estimates(scores, ood, draws)["mutual_information"]["auroc"].se
    value = metrics.delong_variance(
        scores.points["mutual_information"], ood.points["mutual_information"], test_group=group
    )
    assert grouped == pytest.approx(math.sqrt(value))


def test_copies_of_every_point_in_one_group_leave_the_error_of_a_mean_as_it_was():
    twice = np.repeat(logits_of(), 2, axis=1)
    draws = replicate_weights(T)
    one = classification.set_estimates(reduced(logits_of(), LABELS), draws)["pll"].se
    grouped = classification.set_estimates(
        reduced(twice, np.repeat(LABELS, 2), group=np.repeat(np.arange(N), 2)), draws
    )["pll"].se
    assert grouped == pytest.approx(one)


def test_one_draw_has_no_monte_carlo_error_no_replicates_and_no_epistemic_scores():
    draws = replicate_weights(1)
    test, ood = reduced(logits_of(samples=1), LABELS), reduced(logits_of(30, samples=1, seed=1))
    found = classification.set_estimates(test, draws)
    assert all((f.mc_se, f.jackknife, f.bootstrap) == (None, None, None) for f in found.values())
    assert not {"mutual_information"} & {*found, *test.points}
    detection = detection_estimates(test, ood, draws)
    assert set(detection) == streamed_scores(single_sample=True)
    assert all(f.mc_se is None and f.jackknife is None for d in detection.values() for f in d.values())
    assert classification.convergence(test, draws) == {}
    assert classification.calibration_curve(test, draws)["count"].sum() == N


@pytest.mark.parametrize(("samples", "given"), [(2, False), (7, False), (8, True)])
def test_below_eight_draws_no_monte_carlo_error_is_given_but_replicates_are_kept(samples, given):
    draws = replicate_weights(samples)
    test = reduced(logits_of(samples=samples), LABELS)
    detection = detection_estimates(test, reduced(logits_of(30, samples=samples, seed=1)), draws)
    for estimate in (
        *classification.set_estimates(test, draws).values(),
        *(f for d in detection.values() for f in d.values()),
    ):
        assert (estimate.mc_se is not None) is given
        assert len(estimate.jackknife) == samples and len(estimate.bootstrap) == RESAMPLES


def test_convergence_is_that_of_the_first_draws():
    found = classification.convergence(reduced(logits_of(), LABELS, chunk=7), replicate_weights(T))
    assert found["samples"].tolist() == [1, 2, 4, 8, 9]
    for k, pll, accuracy, mi in zip(
        *(found[n] for n in ("samples", "pll", "accuracy", "mutual_information")), strict=True
    ):
        first = by_hand(logits_of()[:k], np.full(k, 1 / k), LABELS)
        assert (pll, accuracy) == pytest.approx((np.mean(first["pll"]), np.mean(first["accuracy"])))
        assert mi == pytest.approx(np.mean(first["mutual_information"]), abs=1e-12)


def test_replicates_are_the_same_weights_for_every_run_of_as_many_draws():
    assert np.array_equal(replicate_weights(T).weights, replicate_weights(T).weights)


def test_the_reliability_diagram_adds_up_to_the_ece():
    scores, draws = reduced(logits_of(), LABELS, chunk=7), replicate_weights(T)
    curve = classification.calibration_curve(scores, draws)
    full = curve["count"] > 0
    gap = curve["count"][full] * abs(curve["accuracy"][full] - curve["confidence"][full])
    assert gap.sum() / N == pytest.approx(classification.set_estimates(scores, draws)["ece"].value)
    assert np.isnan(curve["accuracy"][~full]).all()


def test_the_risk_curve_ends_at_the_error_rate():
    curve = classification.risk_curve(reduced(logits_of(), LABELS))
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(1 - reduced(logits_of(), LABELS).points["accuracy"].mean())


def test_an_impossible_label_makes_the_estimate_minus_infinity_and_its_errors_unknown():
    scores, draws = reduced(logits_of(), LABELS), replicate_weights(T)
    pll = scores.points["pll"].copy()
    pll[3] = -np.inf
    below = replace(
        scores,
        points=scores.points | {"pll": pll},
        replicates=scores.replicates | {"pll": np.full_like(scores.replicates["pll"], -np.inf)},
    )
    found = classification.set_estimates(below, draws)
    assert found["pll"].value == -math.inf and (found["pll"].se, found["pll"].mc_se, found["pll"].low) == (
        None,
        None,
        None,
    )
    assert found["accuracy"].value == scores.points["accuracy"].mean()


def test_a_probability_that_underflows_is_no_impossible_one():
    logits = np.zeros((8, 2, K))
    logits[:, :, 0] = 5000.0
    estimate = classification.set_estimates(reduced(logits, np.array([1, 0])), replicate_weights(8))["pll"]
    assert estimate.value == pytest.approx(-2500)


@pytest.mark.parametrize(("bad", "classes"), [(np.nan, 1), (np.inf, 1), (-np.inf, slice(None))])
def test_an_output_that_is_not_finite_is_named_by_its_point(bad, classes):
    logits = logits_of()
    logits[4, 23, classes] = bad
    with pytest.raises(SamplingError, match=r"output for example 23 \(counted from 0\) is not finite"):
        reduced(logits, LABELS, chunk=10)


@pytest.mark.parametrize(
    ("noise", "dtype", "differ"),
    [
        (0, "float32", False),
        (1e-7, "float32", False),
        (1e-3, "float32", True),
        (0, "float64", False),
        (1e-7, "float64", True),
    ],
)
def test_passes_differ_only_beyond_rounding(noise, dtype, differ):
    logits = np.repeat(logits_of(samples=1), T, axis=0)
    logits = logits + noise * np.random.default_rng(0).normal(size=logits.shape)
    reduction = classification.ClassReduction(replicate_weights(T), points=N)
    reduction.add(logits.astype(dtype))
    assert reduction.scores().samples_differ is differ


def test_float32_logits_give_the_estimates_of_float64_ones():
    draws = replicate_weights(T)
    one = classification.set_estimates(reduced(logits_of().astype(np.float32), LABELS), draws)
    two = classification.set_estimates(reduced(logits_of(), LABELS), draws)
    assert all(one[name].value == pytest.approx(two[name].value, rel=1e-5) for name in two)


def test_one_point_and_one_outlier_are_enough():
    draws = replicate_weights(T)
    test, ood = reduced(logits_of(1), LABELS[:1]), reduced(logits_of(1, seed=1))
    assert classification.set_estimates(test, draws)["accuracy"].value in (0, 1)
    assert detection_estimates(test, ood, draws)["mutual_information"]["auroc"].value in (0, 1)


def test_perfectly_separated_sets_keep_a_sound_interval():
    draws = replicate_weights(T)
    test, ood = reduced(logits_of(scale=200.0), LABELS), reduced(logits_of(30, seed=1, scale=0.01))
    estimate = detection_estimates(test, ood, draws)["predictive_entropy"]["auroc"]
    assert estimate.value == 1 and estimate.high == 1 and 0 <= estimate.low <= 1


@pytest.mark.held(False)
@pytest.mark.nightly
def test_the_monte_carlo_error_of_rank_estimates_does_not_depend_on_the_order_of_the_points(monkeypatch):
    monkeypatch.setattr(estimates, "RANKED", 300)
    rng = np.random.default_rng(0)
    # half of the points are certain in every draw, half waver together: a set sorted by class
    logits = rng.normal(size=(1, 600, K)) + (np.arange(600) >= 300)[:, None] * rng.normal(size=(16, 1, K)) * 3
    draws, ood = replicate_weights(16), reduced(rng.normal(size=(16, 300, K)))
    errors = []
    for order in (np.arange(600), rng.permutation(600), np.arange(600)[::-1]):
        test = reduced(logits[:, order], np.zeros(600, dtype=np.int64))
        errors.append(detection_estimates(test, ood, draws)["predictive_entropy"]["auroc"].mc_se)
    assert max(errors) < 1.5 * min(errors)


@pytest.mark.parametrize("group", [None, np.zeros(N, dtype=np.int64)])
def test_fewer_than_two_points_or_groups_have_no_error(group):
    points = N if group is not None else 1
    test = reduced(logits_of()[:, :points], LABELS[:points], group=group)
    ood, draws = reduced(logits_of(30, seed=1)), replicate_weights(T)
    found = [*classification.set_estimates(test, draws).values()]
    found += [f for d in detection_estimates(test, ood, draws).values() for f in d.values()]
    assert {(f.se, f.low, f.high) for f in found} == {(None, None, None)}


def test_points_that_all_passes_are_sure_of_are_still_ranked_by_what_they_disagree_on():
    # one class is 40 nats ahead in every draw: all probabilities round to 0 and 1, and the disagreement to 1e-17
    logits = np.random.default_rng(0).normal(size=(T, 50, K))
    logits[:, :, 2] += 40
    found = reduced(logits).points["mutual_information"]
    small = np.exp(logits[:, :, [0, 1, 3]] - logits[:, :, [2]])  # p of the others, to first order in e⁻⁴⁰
    mean = small.mean(0)
    exact = (small * np.log(small)).mean(0).sum(-1) - (mean * np.log(mean)).sum(-1)
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def test_the_interval_is_over_points_and_draws_together():
    assert estimates.interval("pll", 1.0, 3.0, 4.0) == pytest.approx((1 - 5 * 1.959964, 1 + 5 * 1.959964))
    assert estimates.interval("pll", 1.0, None, 4.0) == (None, None)
