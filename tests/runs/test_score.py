"""Predictions of other software, scored without a network and without torch."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scoringrules
from scipy import special
from scipy.stats import norm
from sklearn import metrics as sklearn_metrics
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import bnuq
from bnuq.catalogue import text_of
from bnuq.cli import main
from bnuq.errors import BnuqError, DataError, RequestError
from bnuq.gate import GateSettings, check
from bnuq.gate.baseline import last_results
from bnuq.records.decisions import decided
from bnuq.studies.score.roles import NAMES, PREFIXES

N, K, T = 240, 4, 9
RNG = np.random.default_rng(0)
LABELS = RNG.integers(K, size=N)
LOGITS = RNG.normal(size=(N, K)) + 2.0 * np.eye(K)[LABELS]
SAMPLES = LOGITS + 0.7 * RNG.normal(size=(T, N, K))

softmax = partial(special.softmax, axis=-1)
P = softmax(LOGITS)


def estimates(result: Any, method: str | None = None) -> dict[str, float]:
    """Every estimate of the first method by its place below it."""
    first = method or result.first
    return {
        " ".join(value for key, value in row.coordinates.items() if key != "method"): row.estimate.value
        for row in result.rows
        if row["method"] == first
    }


def same(result: Any, other: Any, *, tolerance: float = 1e-12) -> bool:
    ours, theirs = estimates(result), estimates(other)
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 10
    return all(ours[key] == pytest.approx(theirs[key], rel=tolerance, abs=tolerance, nan_ok=True) for key in shared)


@pytest.mark.parametrize(("given", "labels"), [(P, LABELS), (SAMPLES, LABELS), (P, P > 0.3)])
def test_points_that_are_reduced_in_tiles_have_the_same_scores(monkeypatch, given, labels):
    whole = bnuq.score(given, labels)
    monkeypatch.setattr("bnuq.studies.score.compute._TILE", 50)
    monkeypatch.setattr("bnuq.studies.score.given._BLOCK", 20 * K * len(given) if given.ndim == 3 else 20 * K)
    assert same(bnuq.score(given, labels), whole)


# ── the same as other software, and as bnuq evaluate ─────────────────────────────────────────────────────────────────


def test_what_scikit_learn_computes_is_the_same() -> None:
    test = bnuq.score(P, LABELS, ood={"other": softmax(LOGITS[:50] / 3)}).summary()["methods"]["predictions"]
    ours = {name: test["sets"]["test"][name]["value"] for name in ("accuracy", "pll", "brier")}
    assert ours["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(LABELS, P.argmax(1)), abs=1e-12)
    assert ours["pll"] == pytest.approx(-sklearn_metrics.log_loss(LABELS, P), abs=1e-9)
    one_hot = np.eye(K)[LABELS]
    assert ours["brier"] == pytest.approx(
        sum(sklearn_metrics.brier_score_loss(one_hot[:, k], P[:, k]) for k in range(K))
    )
    uncertain = 1 - np.concatenate([P, softmax(LOGITS[:50] / 3)]).max(1)
    auroc = sklearn_metrics.roc_auc_score(np.arange(N + 50) >= N, uncertain)
    assert test["ood"]["other"]["least_confidence"]["auroc"]["value"] == pytest.approx(auroc, abs=1e-12)


@pytest.mark.nightly  # MAPIE is in no other test
def test_what_mapie_computes_is_the_same() -> None:
    """Coverage and size of the prediction sets of held-out points, and the calibration error."""
    mapie = pytest.importorskip("mapie.classification", reason="MAPIE is not installed")
    measures = pytest.importorskip("mapie.metrics.calibration")
    x, y = load_digits(return_X_y=True)
    model = LogisticRegression(C=1e-4, max_iter=200).fit(x[:500], y[:500])
    held_out, p = (model.predict_proba(x[rows]) for rows in (slice(500, 900), slice(900, None)))
    scored = bnuq.score(p, y[900:], validation={"p": held_out, "label": y[500:900]}, set_coverage=0.95)
    ours = scored.summary()["methods"]["predictions"]["sets"]["test"]
    conformal = mapie.SplitConformalClassifier(model, confidence_level=0.95, conformity_score="lac", prefit=True)
    sets = conformal.conformalize(x[500:900], y[500:900]).predict_set(x[900:])[1][..., 0]
    assert ours["set_coverage"]["value"] == pytest.approx(sets[np.arange(len(p)), y[900:]].mean(), abs=1e-12)
    assert ours["set_size"]["value"] == pytest.approx(sets.sum(1).mean(), abs=1e-12) and sets.sum(1).max() > 1
    ece = measures.expected_calibration_error((p.argmax(1) == y[900:]).astype(int), p.max(1), num_bins=15)
    assert ours["ece"]["value"] == pytest.approx(ece, abs=1e-12) and ece > 0.05


def test_what_scoringrules_computes_of_a_gaussian_is_the_same() -> None:
    mean, sigma = RNG.normal(size=N), RNG.uniform(0.5, 2, N)
    y = mean + sigma * RNG.normal(size=N)
    scored = bnuq.score({"model": {"mean": mean, "sigma": sigma}}, y, calibrate="cross")
    test = scored.summary()["methods"]["model"]["sets"]["test"]
    assert test["crps"]["value"] == pytest.approx(scoringrules.crps_normal(y, mean, sigma).mean(), rel=1e-9)
    assert test["pll"]["value"] == pytest.approx(-scoringrules.logs_normal(y, mean, sigma).mean(), rel=1e-9)
    assert test["coverage95"]["value"] == np.mean(abs(y - mean) <= 1.959963984540054 * sigma)
    assert "tau" not in test and "mc_se" not in test["crps"]
    text = " ".join(scored.text(full=True).split())
    assert "the Gaussian with the given mean and variance" in text and "τ" not in text and "samples alone" not in text


def test_quantiles_at_equal_steps_have_the_crps_of_an_ensemble_of_them() -> None:
    y, levels = RNG.normal(size=N), (np.arange(20) + 0.5) / 20
    quantiles = np.sort(RNG.normal(size=(N, 20)), axis=1)
    scored = bnuq.score({"model": {"quantiles": quantiles, "levels": levels}}, y, crps="ensemble")
    test = scored.summary()["methods"]["model"]["sets"]["test"]
    assert test["crps"]["value"] == pytest.approx(scoringrules.crps_ensemble(y, quantiles).mean(), rel=1e-9)


@pytest.mark.parametrize("crps", ["gaussian", "mixture", "ensemble", "fair"])
def test_a_gaussian_has_its_own_crps_whichever_is_asked_for(crps: str) -> None:
    mean, y = RNG.normal(size=N), RNG.normal(size=N)
    scored = bnuq.score({"model": {"mean": mean, "sigma": np.full(N, 0.5)}}, y, crps=crps)
    test = scored.summary()["methods"]["model"]["sets"]["test"]
    assert test["crps"]["value"] == pytest.approx(scoringrules.crps_normal(y, mean, 0.5).mean(), rel=1e-9)


def skewed_quantiles(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of log-normal distributions, and targets that are drawn from these."""
    middle = np.exp(RNG.normal(size=800))
    return middle[:, None] * np.exp(norm.ppf(levels)), middle * np.exp(RNG.normal(size=800))


def test_quantiles_have_their_own_coverage_and_crps() -> None:
    levels = np.array([0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975])
    q, y = skewed_quantiles(levels)
    scored = bnuq.score(
        {"model": {"quantiles": q, "levels": levels}},
        y,
        held_out=0.2,
        ood={"far": {"quantiles": 9 * q, "levels": levels}},
    )
    rows = scored.record.sets["test"].index
    q, y = q[rows], y[rows]
    test = scored.summary()["methods"]["model"]["sets"]["test"]
    loss = [sklearn_metrics.mean_pinball_loss(y, q[:, k], alpha=level) for k, level in enumerate(levels)]
    assert test["crps"]["value"] == pytest.approx(2 * np.mean(loss), rel=1e-9)
    for name, low, high in (("coverage95", 0, -1), ("coverage50", 2, -3)):
        assert test[name]["value"] == np.mean((q[:, low] <= y) & (y <= q[:, high]))
    curve = scored.record.methods["model"].calibration
    for level, low, high in ((0.5, 2, -3), (0.8, 1, -2), (0.95, 0, -1)):
        shown = curve["coverage"][np.isclose(curve["level"], level)]
        assert shown == pytest.approx(np.mean((q[:, low] <= y) & (y <= q[:, high])))
    text = " ".join(scored.text(full=True).split())
    assert "twice their mean pinball loss" in text and "coverage is of the quantiles themselves" in text
    assert "± 1.96" not in text


def test_the_coverage_of_intervals_beyond_the_quantiles_is_unknown() -> None:
    levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    q, y = skewed_quantiles(levels)
    scored = bnuq.score({"model": {"quantiles": q, "levels": levels}}, y)
    assert "coverage95" not in scored.summary()["methods"]["model"]["sets"]["test"]
    assert scored.record.methods["model"].calibration["level"].max() == pytest.approx(0.8)
    assert "of 80 %" in scored.text(full=True) and "of 95 %" not in scored.text(full=True)
    assert "twice their mean pinball loss" in " ".join(scored.text(full=True).split())


def test_quantiles_are_compared_at_the_same_levels_alone() -> None:
    levels = np.array([0.1, 0.5, 0.9])
    q, y = skewed_quantiles(levels)
    first = {"quantiles": q, "levels": levels}
    for other in ({"quantiles": q, "levels": levels + 0.01}, {"mean": q[:, 1], "sigma": np.ones(len(y))}):
        assert "quantiles at other levels" in refusal({"first": first, "other": other}, y)
    assert "levels that rise from 0 to 1" in refusal({"model": first | {"levels": levels[::-1]}}, y)
    assert "levels that rise from 0 to 1" in refusal({"model": first | {"levels": levels[:2]}}, y)


# ── forms of files ───────────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: Path, form: str) -> Path:
    path = folder / f"model.{form}"
    frame = pd.DataFrame(P, columns=[f"prob_{k}" for k in range(K)]).assign(label=LABELS)
    if form == "npz":
        np.savez(path, probabilities=P, label=LABELS)
    elif form == "csv":
        frame.to_csv(path, index=False)
    elif form == "parquet":
        frame.to_parquet(path)
    else:
        rows = ({"probabilities": row.tolist(), "label": int(y)} for row, y in zip(P, LABELS, strict=True))
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("form", ["npz", "csv", "parquet", "jsonl"])
def test_every_form_of_file_gives_the_same(form: str, tmp_path: Path) -> None:
    scored = bnuq.score(write(tmp_path, form))
    assert same(scored, bnuq.score(P, LABELS), tolerance=1e-9)
    notes = {finding.code: finding.values for finding in scored.findings}
    assert "prob" in notes["predictions-found"]["found"] and notes["labels-found"]["found"] == "'label'"


@pytest.mark.parametrize(
    ("values", "outputs"),
    [
        (P, "probabilities"),
        (np.log(P), "log_probabilities"),
        (LOGITS, "logits"),
        (P.astype(np.float32), "probabilities"),
    ],
)
def test_what_numbers_are_is_found_by_them(values: np.ndarray, outputs: str) -> None:
    scored = bnuq.score(values, LABELS)
    assert scored.model["files"]["predictions"]["outputs"] == outputs
    assert same(scored, bnuq.score(P, LABELS), tolerance=1e-5 if values.dtype == np.float32 else 1e-9)


def test_logits_of_samples_are_those_of_their_probabilities_and_have_monte_carlo_errors() -> None:
    scored = bnuq.score(SAMPLES, LABELS)
    assert same(scored, bnuq.score(softmax(SAMPLES), LABELS), tolerance=1e-9)
    test = scored.summary()["methods"]["predictions"]["sets"]["test"]
    assert test["pll"]["mc_se"] > 0 and test["mutual_information"]["value"] > 0


def test_classes_that_were_given_a_probability_of_zero_are_a_warning() -> None:
    hard = np.eye(K)[np.where(np.arange(N) % 10 == 0, (LABELS + 1) % K, LABELS)]
    [finding] = [each for each in bnuq.score(hard, LABELS).findings if each.severity == "warning"]
    assert (finding.code, finding.values["count"], finding.values["points"]) == ("probabilities-of-zero", N // 10, N)
    assert "counted as −87.3" in text_of(finding).replace("-", "−")
    assert not [each for each in bnuq.score(P, LABELS).findings if each.code == "probabilities-of-zero"]


def test_one_column_of_log_probabilities_is_that_of_class_1() -> None:
    p, y = RNG.uniform(size=N), RNG.integers(2, size=N)
    p[3] = 1.0
    found = bnuq.score({"model": {"log_probs": np.log(p)}}, y)
    assert same(found, bnuq.score({"model": {"probabilities": p}}, y), tolerance=1e-7)
    assert "sums to 1.64872; expected a sum of 1" in refusal(
        {"model": {"log_probs": np.where(p == 1, 0.5, np.log(p))}}, y
    )


def test_a_column_of_the_probability_of_yes_is_two_classes() -> None:
    y = (LABELS > 1).astype(int)
    p = 1 / (1 + np.exp(-LOGITS[:, 0]))
    assert same(bnuq.score(p, y), bnuq.score(np.stack([1 - p, p], 1), y))


def test_classes_are_matched_by_their_names_in_the_columns(tmp_path: Path) -> None:
    names = np.array(["yes", "no", "maybe", "never"])
    frame = pd.DataFrame(P, columns=[f"prob_{name}" for name in names]).assign(truth=names[LABELS])
    frame.to_csv(tmp_path / "words.csv", index=False)
    scored = bnuq.score(tmp_path / "words.csv")
    assert same(scored, bnuq.score(P, LABELS), tolerance=1e-9) and scored.sets["test"].classes == tuple(names)


def test_columns_are_in_one_order_by_the_names_of_their_classes() -> None:
    names, order = np.array(["cat", "dog", "emu", "owl"]), np.array([2, 0, 3, 1])
    table = {f"prob_{name}": P[:, k] for k, name in enumerate(names)}
    moved = {f"prob_{names[k]}": P[:, k] for k in order}
    words = {"label": names[LABELS]}
    expected = bnuq.score(P, LABELS, ood={"o": P})
    both = bnuq.score({"a": table, "b": moved}, words, ood={"o": [table, P]}, held_out=0.5)
    assert both.summary()["methods"]["a"] == both.summary()["methods"]["b"]
    assert {finding.code for finding in both.findings} >= {"columns-by-name", "columns-by-place"}
    validated = [bnuq.score({"a": table | words}, validation=[of | words]) for of in (table, moved)]
    assert validated[0].summary()["methods"] == validated[1].summary()["methods"]
    # Labels that are numbers: those of --classes; else those of the columns, unless sorted names are clearly right
    assert same(bnuq.score({"a": moved}, LABELS, classes=tuple(names), ood={"o": [moved]}), expected, tolerance=1e-9)
    assert same(bnuq.score({"a": moved}, np.argsort(order)[LABELS]), bnuq.score(P, LABELS))
    text = refusal({"a": moved}, LABELS)
    assert "0 = emu, 1 = cat" in text and "--classes cat,dog,emu,owl, or --classes emu,cat,owl,dog" in text
    numbers = {f"prob_{k}": P[:, k] for k in order}
    assert same(bnuq.score({"c": numbers}, LABELS), expected, tolerance=1e-9)
    noted = bnuq.score({"a": table | words}, ood={"o": [numbers]}).findings
    [finding] = [each for each in noted if each.code.startswith("columns-by")]
    assert "by their numbers: 0 = cat, 1 = dog" in text_of(finding)
    # Of one column, the other class is that of the labels
    yes = {"prob_cat": P[:, 0]}
    assert same(
        bnuq.score({"a": yes}, np.array(["cat", "dog"])[np.minimum(LABELS, 1)]), bnuq.score(P[:, 0], LABELS == 0)
    )
    other = {name.replace("emu", "ant"): values for name, values in table.items()}
    assert "'cat', 'dog', 'ant', 'owl'" in refusal({"a": table, "b": other}, words)
    assert "those of --classes" in refusal({"a": table}, LABELS, classes=("cat", "dog", "emu", "ant"))
    assert "those of the labels" in refusal({"a": table}, {"label": LABELS, "classes": np.array(["a", "b", "c", "d"])})


@pytest.mark.parametrize("name", ["y", "prob_"])
def test_numbered_columns_of_targets_without_names_stand_where_they_do(name: str) -> None:
    targets = LOGITS[:, :3] if name == "y" else (P[:, :3] > 0.2).astype(int)
    given = 0.9 * targets + 0.02 * (P[:, 1:] > 0.1)
    table = {f"{name}{k}": given[:, column] for column, k in enumerate((2, 0, 1))}
    expected = bnuq.score(given, targets, classes=("2", "0", "1") if name == "prob_" else None)
    assert estimates(bnuq.score({"a": table}, targets)) == pytest.approx(estimates(expected), nan_ok=True)
    both = bnuq.score({"a": table, "b": {f"{name}{k}": table[f"{name}{k}"] for k in range(3)}}, targets)
    assert estimates(both, "a") == estimates(both, "b") == pytest.approx(estimates(expected), nan_ok=True)
    [moved] = [text_of(finding) for finding in both.findings if finding.code == "columns-by-name"]
    assert "class" not in moved and moved.endswith("0 = y2, 1 = y0, 2 = y1" if name == "y" else "0 = 2, 1 = 0, 2 = 1")


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool, np.float64])
def test_labels_may_be_one_hot_rows(kind: type, tmp_path: Path) -> None:
    one_hot = np.eye(K)[LABELS].astype(kind)
    scored = bnuq.score(P, one_hot)
    assert same(scored, bnuq.score(P, LABELS))
    np.savez(tmp_path / "own.npz", probs=P, labels=one_hot)
    assert same(bnuq.score(tmp_path / "own.npz", LABELS), scored)


def test_several_labels_are_a_classification_of_each() -> None:
    truth = RNG.integers(2, size=(N, 3))
    truth[0] = 1
    p = 1 / (1 + np.exp(-RNG.normal(size=(N, 3)) - 2 * truth + 1))
    scored = bnuq.score(p, truth).summary()["methods"]["predictions"]["sets"]["test"]
    losses = [sklearn_metrics.log_loss(truth[:, k], p[:, k]) for k in range(3)]
    assert scored["pll"]["value"] == pytest.approx(-np.mean(losses), rel=1e-9)


def test_groups_widen_the_errors_over_points(tmp_path: Path) -> None:
    twice = {"logits": np.repeat(LOGITS, 2, 0), "labels": np.repeat(LABELS, 2), "group": np.repeat(np.arange(N), 2)}
    np.savez(tmp_path / "twice.npz", **twice)
    errors = [
        bnuq.score(of, labels).summary()["methods"][name]["sets"]["test"]["pll"]["se"]
        for of, labels, name in ((tmp_path / "twice.npz", None, "twice"), (LOGITS, LABELS, "predictions"))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


SITE = np.array(["siteC", "siteA", "siteB"])[np.repeat(np.arange(3), N // 3)]
GROUP = np.repeat(np.arange(N // 6), 6)
ORDER = np.random.default_rng(5).permutation(N)


def accuracies(scored: Any, method: str = "predictions") -> dict[str, float]:
    by_group = scored.methods[method].sets["test"].by_group
    return {name: estimates["accuracy"].value for name, estimates in by_group.items()}


def test_estimates_by_group_have_the_names_of_the_data_in_file_json_and_requirements(tmp_path: Path) -> None:
    """Numbers are named as they are written, in their order: the tenth group of 0, 1, 10, … is not group 10."""
    number = np.repeat([10, 2, 100], N // 3)
    bnuq.score(P, LABELS, groups=number, out=tmp_path / "n.h5")
    scored, right = bnuq.open(tmp_path / "n.h5"), P.argmax(1) == LABELS
    assert [*accuracies(scored)] == ["2", "10", "100"]
    for name, value in accuracies(scored).items():
        assert value == pytest.approx(right[number == int(name)].mean())
    assert [*scored.summary()["methods"]["predictions"]["sets"]["test"]["by_group"]] == ["2", "10", "100"]
    threshold = (accuracies(scored)["10"] + accuracies(scored)["2"]) / 2
    place = "predictions.sets.test.by_group"
    met = [check(scored, scored, GateSettings.of(floors=[f"{place}.{k}.accuracy>={threshold}"])) for k in (2, 10)]
    assert [verdict.passed for verdict in met] == [accuracies(scored)[k] >= threshold for k in ("2", "10")]
    assert "no group" in refusal(P, {"label": LABELS, "group": np.where(np.arange(N) == 3, "", SITE)})


def test_groups_are_compared_by_their_names_where_a_result_lacks_one() -> None:
    rows = SITE != "siteB"
    baseline = bnuq.score(P, LABELS, groups=SITE)
    current = bnuq.score(P[rows], LABELS[rows], groups=SITE[rows])
    compared = {item.group: item for item in check(current, baseline, GateSettings.of(allow=["data"])).comparisons}
    assert compared.keys() == {"", "siteA", "siteC"}
    for name in ("siteA", "siteC"):
        assert compared[name].change == 0


def test_groups_that_an_earlier_version_numbered_are_not_compared_with_named_ones() -> None:
    now = bnuq.score(P, LABELS, groups=np.repeat([2, 0, 1], N // 3)).record  # names that are also numbers
    methods = {}
    for name, method in now.methods.items():
        test = method.sets["test"]
        numbered = replace(test, by_group={str(2 - k): of for k, of in enumerate(test.by_group.values())})
        numbered = replace(numbered, by_group=dict(sorted(numbered.by_group.items())))
        methods[name] = replace(method, sets={**method.sets, "test": numbered})
    before = replace(now.sets["test"], group=2 - now.sets["test"].group, group_names=())
    verdict = check(now, replace(now, methods=methods, sets={**now.sets, "test": before}))
    assert verdict.pairing.points == ("test",), "the groups are the same, whatever their numbers"
    assert not any(item.group for item in verdict.comparisons)


@pytest.mark.parametrize("named", [None, "group", "file"])
def test_rows_matched_by_ids_keep_their_groups_and_scores(named: str | None, tmp_path: Path) -> None:
    ids, mine = np.arange(N), np.random.default_rng(6).normal(size=N)
    np.savez(tmp_path / "p.npz", probs=P[ORDER], id=ids[ORDER], group=SITE[ORDER], mine=mine[ORDER])
    np.savez(tmp_path / "y.npz", y=LABELS, id=ids)
    np.savez(tmp_path / "far.npz", probs=P[:50], mine=mine[:50])
    groups = f"{tmp_path / 'p.npz'}:group" if named == "file" else named
    far = {"far": tmp_path / "far.npz"}
    scored = bnuq.score(tmp_path / "p.npz", tmp_path / "y.npz", groups=groups, ood=far, scores=["mine"])
    assert accuracies(scored, "p") == pytest.approx(
        {name: np.mean((P.argmax(1) == LABELS)[name == SITE]) for name in ("siteA", "siteB", "siteC")}
    )
    np.testing.assert_array_equal(scored.methods["p"].sets["test"].points["score:mine"], mine)
    assert "is neither a file nor a column" in refusal(
        tmp_path / "p.npz", tmp_path / "y.npz", groups="ward", scores=["mine"]
    )


def test_ood_sets_have_the_groups_of_their_files() -> None:
    far = {"probs": P[:60], "group": np.repeat(["a", "b", "c"], 20)}
    scored = bnuq.score(P, LABELS, groups=GROUP, ood={"far": far})
    separation = scored.methods["predictions"].ood["far"]["predictive_entropy"]["auroc"]
    inside, outside = (
        scored.methods["predictions"].sets[name].points["predictive_entropy"] for name in ("test", "far")
    )
    variance = bnuq.metrics.delong_variance(inside, outside, test_group=GROUP, ood_group=far["group"])
    assert separation.se == pytest.approx(np.sqrt(variance), rel=1e-6)
    assert scored.sets["far"].group_names == ("a", "b", "c")
    short = {"probs": P[:60], "group": ["a", "b"]}
    assert "expected one for each of 60 points" in refusal(P, LABELS, ood={"far": short})


def test_groups_beside_validation_points_are_those_of_both(tmp_path: Path) -> None:
    half, ids = N // 2, np.arange(N)
    np.savez(tmp_path / "test.npz", probs=P[:half], y=LABELS[:half], id=ids[:half], ward=GROUP[:half])
    np.savez(tmp_path / "held.npz", probs=P[half:], y=LABELS[half:], id=ids[half:], ward=GROUP[half:])
    np.savez(tmp_path / "wards.npz", id=ids[ORDER], ward=GROUP[ORDER])
    np.savez(tmp_path / "none.npz", probs=P[half:], y=LABELS[half:], id=ids[half:])
    for groups, held in (("ward", "held"), (f"{tmp_path / 'wards.npz'}:ward", "none")):
        options: dict[str, Any] = {"groups": groups, "validation": tmp_path / f"{held}.npz"}
        scored = bnuq.score(tmp_path / "test.npz", **options, risk=0.3)
        certificate = scored.certification.chosen
        assert scored.sets["validation"].group_names == tuple(map(str, range(half // 6, N // 6)))
        np.testing.assert_array_equal(certificate.group, GROUP[half:] - half // 6)
    alone = bnuq.score(tmp_path / "test.npz", groups="ward", validation=tmp_path / "none.npz", risk=0.3)
    assert alone.sets["validation"].group is None and alone.certification.chosen.group is None


# ── rows and labels ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_matched_by_ids_in_any_order(tmp_path: Path) -> None:
    order = np.random.default_rng(2).permutation(N)
    ids = np.array([f"p{number}" for number in range(N)])
    frame = pd.DataFrame(P[order], columns=[f"prob_{k}" for k in range(K)]).assign(id=ids[order])
    frame.to_csv(tmp_path / "shuffled.csv", index=False)
    pd.DataFrame({"id": ids, "label": LABELS}).to_csv(tmp_path / "labels.csv", index=False)
    scored = bnuq.score(tmp_path / "shuffled.csv", tmp_path / "labels.csv")
    assert same(scored, bnuq.score(P, LABELS), tolerance=1e-9)
    assert scored.points().name.tolist() == ids.tolist()


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(BnuqError) as error:
        bnuq.score(*arguments, **settings)
    assert isinstance(error.value, DataError | RequestError)
    return str(error.value)


def test_rows_that_do_not_match_are_refused(tmp_path: Path) -> None:
    assert f"predictions of {N - 1} points" in refusal(P[1:], LABELS) and "ids in both" in refusal(P[1:], LABELS)
    frame = pd.DataFrame(P, columns=[f"prob_{k}" for k in range(K)])
    frame.assign(id=np.arange(N) + 1).to_csv(tmp_path / "p.csv", index=False)
    pd.DataFrame({"id": np.arange(N), "label": LABELS}).to_csv(tmp_path / "l.csv", index=False)
    assert "1 of the ids of" in (text := refusal(tmp_path / "p.csv", tmp_path / "l.csv")) and "'0'" in text
    frame.assign(id=0).to_csv(tmp_path / "p.csv", index=False)
    assert f"'0' occurs {N} times" in refusal(tmp_path / "p.csv", tmp_path / "l.csv")
    frame.assign(label=LABELS[::-1]).to_csv(tmp_path / "p.csv", index=False)
    assert "expected one order" in refusal(tmp_path / "p.csv", LABELS)


def test_a_masked_class_is_scored_like_one_of_a_very_low_logit(tmp_path: Path) -> None:
    logits, other = LOGITS.copy(), (LABELS + 1) % K
    logits[np.arange(0, N, 3), other[::3]] = -np.inf
    options = {"recalibration": ("temperature", "vector"), "calibrate": "cross"}
    found, low = (bnuq.score(each, LABELS, outputs="logits", **options) for each in (logits, logits.clip(-1e9)))
    for method in found.methods:
        expected = estimates(low, method)
        for place, value in estimates(found, method).items():
            assert value == pytest.approx(expected[place], rel=1e-6, nan_ok=True), (method, place)
    pd.DataFrame(logits, columns=[f"logit_{k}" for k in range(K)]).to_csv(tmp_path / "p.csv", index=False)
    assert same(bnuq.score(tmp_path / "p.csv", LABELS), bnuq.score(logits, LABELS, outputs="logits"), tolerance=1e-9)


@pytest.mark.parametrize(
    ("row", "outputs", "text"),
    [
        ([0.5, 0.1, 0.1, 0.1], None, "row 7 (counted from 0) sums to 0.8; expected a sum of 1"),
        ([np.nan, 0.5, 0.5, 0.0], "probabilities", "row 7 (counted from 0) holds nan for output 0; expected finite"),
        ([1.5, -0.5, 0.0, 0.0], "probabilities", "holds 1.5 for output 0; expected probabilities, from 0 to 1"),
        ([0.0, 0.0, np.inf, 0.0], "logits", "holds inf for output 2; expected finite numbers"),
    ],
)
def test_numbers_that_are_no_predictions_are_refused_with_their_row(row: list[float], outputs: str, text: str) -> None:
    values = (LOGITS if outputs == "logits" else P).copy()
    values[7] = row
    assert text in refusal(values, LABELS, outputs=outputs)


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    assert "has 1 sample of each point, and predictions (in memory) 9" in refusal(SAMPLES, LABELS, ood={"o": LOGITS})
    assert "has 5 columns, and" in refusal(LOGITS, LABELS, ood={"o": np.zeros((3, 5))})
    assert "--held-out 0.5. Halves" in refusal(LOGITS, LABELS, risk=0.1)
    assert "is empty, of shape (0, 4); expected at least one point" in refusal(LOGITS[:0], LABELS[:0])
    for text, expected in (
        ("prob_a;prob_b;label\n0,5;0,5;a\n", "'prob_a' holds text, first '0,5', in line 2"),
        ("prob_a,prob_b,label\n0.5,0.5,c\n0.5,0.5,a\n0.5,0.5,b\n", "2 columns. Add the column of 'c'"),
        ("prob_a,prob_b,label\nx,0.3,a\n0.5,,b\n", "'prob_b' has no value in line 3"),
        ("prob_a,prob_b,label\nx,0.3,a\n0.5,0.5,b\n", "'prob_a' holds text, first 'x', in line 2"),
        ("mean;sigma;label\n0,5;0,5;1\n", "'mean' holds text, first '0,5', in line 2"),
        ("0.5,0.5,1\n0.5,0.5,0\n", "Its first line names no columns"),
        ("mean;sigma;y\n987;2;1.213\n1.102;2;987\n", "between thousands, or a decimal one"),
    ):
        (tmp_path / "table.csv").write_text(text)
        told = refusal(tmp_path / "table.csv")
        assert expected in told and ("decimal=','" in told) == (";" in text and "1.213" not in text)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    assert "look one-based" in refusal(P, LABELS + 1)
    assert "no array or column of labels" in refusal(P)
    assert "without them" in refusal(P[:, :3] / P[:, :3].sum(1, keepdims=True), np.array(["a", "b"])[LABELS % 2])
    assert "'c', which is no class" in refusal(P, np.array(["a", "b", "c", "d"])[LABELS], classes=("a", "b", "d", "e"))
    targets = np.full(N, np.nan)
    assert "no finite number in row" in refusal({"m": {"mean": P[:, 0], "sigma": P[:, 1]}}, targets)
    assert "is a method of bnuq itself" in refusal({"ensemble": P}, LABELS)
    assert "not an option of bnuq score" in refusal(P, LABELS, samples=3)
    (tmp_path / "t.jsonl").write_text('{"p": [0.5, 0.5], "label": 0}\n{"p": [0.5], "label": 0}\n')
    assert "in line 2 has shape (1,); expected (2,), as in the first" in refusal(tmp_path / "t.jsonl")


def layout(seed: int) -> tuple[pd.DataFrame, list[str]]:
    """A table in a layout that people write: a column of most roles, in any order; and the columns of the classes."""
    random = np.random.default_rng(seed)
    words = np.array(["cat", "dog", "emu", "owl"])
    forms = [f"{random.choice(PREFIXES)}_{{}}", f"{{}}_{random.choice(PREFIXES)}", "{}", ".pred_{}", "p{}", "Pet {}"]
    form, named = str(random.choice(forms)), bool(random.integers(2))
    names = [form.format(word if named or form in ("{}",) else k) for k, word in enumerate(words)]
    is_log = "log" in form
    values = np.log(P) if is_log else P.round(int(random.integers(2, 17))) * (100 if random.integers(4) == 0 else 1)
    columns = dict(zip(names, values.T, strict=True))
    columns[str(random.choice(NAMES["labels"]))] = words[LABELS] if random.integers(3) else LABELS
    others = {"hard": P.argmax(1), "ids": np.arange(N) + 7, "ignored": random.integers(5, size=N), "bound": P[:, 0]}
    for role, of in others.items():
        if random.integers(2):
            columns[str(random.choice([name for name in NAMES[role] if name]))] = of
    columns |= {"Unnamed: 0": np.arange(N)} if random.integers(3) == 0 else {}
    columns |= {"age": random.normal(40, 9, N)} if random.integers(6) == 0 else {}
    return pd.DataFrame({name: columns[name] for name in random.permutation([*columns])}), names


def test_any_layout_of_known_names_has_the_right_figures_or_is_refused(tmp_path: Path) -> None:
    right = 0
    for seed in range(60):
        frame, names = layout(seed)
        frame.to_csv(tmp_path / "p.csv", index=False)
        try:
            scored = bnuq.score(tmp_path / "p.csv", calibrate="off")
        except BnuqError as error:
            assert isinstance(error, DataError | RequestError), [*frame]
            continue
        right += 1
        p = np.exp(frame[names].to_numpy()) if "log" in names[0] else frame[names].to_numpy()
        p = p / p.sum(1, keepdims=True)
        test = scored.summary()["methods"]["p"]["sets"]["test"]
        assert test["accuracy"]["value"] == pytest.approx(np.mean(p.argmax(1) == LABELS), abs=1e-12), [*frame]
        one_hot = np.eye(K)[LABELS]
        assert test["brier"]["value"] == pytest.approx(((p - one_hot) ** 2).sum(1).mean(), abs=1e-9), [*frame]
        roles = scored.model["files"]["p"]["roles"]
        assert {*roles["predictions"]} == {*names} and sorted(itertools.chain(*roles.values())) == sorted(frame.columns)
        assert "age" not in frame
    assert right >= 10


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"y_pred": P[:, 0], "y": LABELS % 2}, "--outputs probabilities, or --task regression"),
        ({"q1": P[:, 0], "q2": P[:, 0] + 1, "q3": P[:, 0] + 2, "y": LOGITS[:, 0]}, "q0.75=q3 or --columns q0.1=q1"),
        (
            {"label": LABELS, "p0": P[:, 0], "p1": P[:, 1], "p2": P[:, 2], "p3": P[:, 3], "age": P[:, 0]},
            "'age': numbers",
        ),
        ({"label": LABELS, "pred": LABELS}, "no uncertainty (100.0% are right"),
        ({"label": ["a,b", "b", "a", ""] * (N // 4), "prob_a": P[:, 0], "prob_b": P[:, 1]}, ".str.get_dummies(',')"),
        ({"y": ["1,204.5"] * N, "mean": P[:, 0], "sigma": P[:, 0]}, "thousands=','"),
        ({"y": ["1,204", "987"] * (N // 2), "mean": P[:, 0], "sigma": P[:, 0]}, "thousands=','"),
        ({"y": ["1.204,5"] * N, "mean": P[:, 0], "sigma": P[:, 0]}, "thousands='.', decimal=','"),
        ({"label": ["Yes", "yes ", "no", "NO"] * (N // 4), "p_yes": P[:, 0], "p_no": 1 - P[:, 0]}, "in case or spaces"),
        ({"label": np.array(["a", "b"])[LABELS % 2], "score": P[:, 0]}, "pipeline of Hugging Face"),
        ({"label": LABELS % 2, "a": P[:, 0], "b": P[:, 1]}, "2 columns have no role"),
        ({"y": LABELS, "label": LABELS, "p": P[:, 0]}, "names of labels"),
        ({"x": P[:, 0], "y": 1 - P[:, 0], "label": [*"xy"] * (N // 2)}, ":label or"),
        (
            {"label": LABELS, "probs_0": P[:, 0], "probs_1": 1 - P[:, 0], "logit_0": P[:, 0], "logit_1": P[:, 0]},
            "several",
        ),
        ({"label": LABELS % 2, "probability": 0.5 + P[:, 0] / 2}, "--columns confidence=probability"),
        ({"y": LABELS, "mean": P[:, 0], "unc": P[:, 1]}, "--columns sigma=unc"),
        ({"y": P[:, 0], "species": np.array(["a", "b"])[LABELS % 2], "p_a": P[:, 0], "p_b": P[:, 1]}, ":species or"),
        ({"label": LABELS + 1} | {f"p{k}": np.eye(5)[LABELS][:, k] for k in range(5)}, "Subtract 1"),
        ({"y": ["0,5"] * N, "mean": P[:, 0], "sigma": P[:, 0]}, "decimal=','"),
        ({"label": ["no"] * N, "pred": ["LABEL_0"] * N, "confidence": P[:, 0]}, "no word in common"),
        ({"fit": P[:, 0], "lwr": P[:, 1], "upr": P[:, 2], "y": P[:, 3]}, "--columns q0.1=lwr,q0.5=fit,q0.9=upr"),
        ({"p": 90.75 + 0 * LABELS, "label": LABELS % 2}, "numbers from 90.75"),
        ({"p0": -90.75 + 0 * LABELS, "p1": 190.75 + 0 * LABELS, "label": LABELS % 2}, "holds -90.75"),
        ({"p": P[:, 0], "label": LABELS % 2 * 2 - 1}, "--classes -1,1"),
        ({"label": LABELS % 2, "p": P[:, 0], "fold": LABELS}, "table[table['fold'] == "),
        ({"label": np.array(["normal", "odd"])[LABELS % 2], "prob": P[:, 0]}, "--classes normal,odd. Of normal"),
        ({"y": P[:, 0], "y_pred": P[:, 1], "y_spread": P[:, 2]}, "\nOtherwise: --columns NAME"),
        ({"label": LABELS % 2, "rf": P[:, 0], "gbm": P[:, 1]}, "--columns rf or --columns gbm."),
        ({"label": ["a", ""] * (N // 2), "p_a": P[:, 0], "p_b": 1 - P[:, 0]}, "is empty in lines 3, 5, 7 and 117 more"),
        ({"p1": P[:, 0], "p5": P[:, 1], "p9": P[:, 2], "y": P[:, 3]}, "q0.9=p9 or --columns q0.01=p1"),
        ({"a_0": P[:, 0], "b_0": P[:, 1], "y": LABELS % 2, "confidence": P[:, 0]}, "--outputs probabilities"),
        (
            {"age": 9 * P[:, 0], "pclass": LABELS, "won": LABELS % 2, "pred": LABELS % 2, "conf": P[:, 0]},
            "p.csv:won --ignore",
        ),
    ],
)
def test_what_cannot_be_known_is_asked(columns: dict[str, np.ndarray], text: str, tmp_path: Path) -> None:
    pd.DataFrame(columns).to_csv(tmp_path / "p.csv", index=False)
    assert text in refusal(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"label": P.argmax(1), "p": P}, "labels-are-predictions"),
        ({"label": LABELS, "p": P, "correct": P.argmax(1) != LABELS}, "correctness-differs"),
        ({"label": LABELS, "pred": LABELS, "conf": P[:, 0], "correct": LABELS == 0}, "correctness-differs"),
        ({"label": LABELS, "logits": P}, "logits-sum-to-one"),
        ({"label": LABELS, "p": P, "sample_id": np.arange(N) // 2}, "ids-repeat"),
        ({"label": LABELS, "p": np.c_[P, 0 * LABELS]}, "class-without-probability"),
        ({"label": LABELS, "p": P[:, [2, 0, 3, 1]]}, "classes-in-another-order"),
        ({"label": [*"ab"] * (N // 2), "pred": [*"Ab", *"ba"] * (N // 4), "conf": P[:, 0]}, "words-differ-in-form"),
        ({"label": np.array([*"abcd"])[LABELS], "pred": np.array([*"abce"])[LABELS], "conf": P[:, 0]}, "words-differ"),
    ],
)
def test_what_looks_wrong_is_said(columns: dict[str, np.ndarray], code: str) -> None:
    assert code in [finding.code for finding in bnuq.score(columns, calibrate="off").findings]


def test_rows_are_paired_by_keys_together_and_by_an_index_where_that_is_asked(tmp_path: Path) -> None:
    files, keys = (tmp_path / "p.csv", tmp_path / "l.csv"), {"unique_id": np.arange(N) % 4, "ds": np.arange(N) // 4}
    p = pd.DataFrame(P, columns=[f"p{k}" for k in range(K)])
    for name, other, options in (("unique_id", "ds", {}), ("site", "day", {"ids": "site,day"})):
        both = pd.DataFrame({name: keys["unique_id"], other: keys["ds"]})
        both.join(p).to_csv(files[0], index=False)
        both.assign(label=LABELS).iloc[ORDER].to_csv(files[1], index=False)
        found = bnuq.score(*files, calibrate="off", **options)
        assert same(found, bnuq.score(P, LABELS, calibrate="off"), tolerance=1e-9)
        assert found.points().name[0] == ", ".join(map(str, both.iloc[ORDER[0]]))
        assert ("no role" if options else "another order") in refusal(*files, ignore=(other,))
    for name in ("", "index"):
        p.to_csv(files[0], index_label=name)
        pd.DataFrame({"label": LABELS}, index=ORDER).to_csv(files[1], index_label=name)
        assert f"--ignore {shlex.quote(name or '(index)')}" in refusal(*files)
        assert same(bnuq.score(*files, ignore=(name or "(index)",)), bnuq.score(P, LABELS), tolerance=1e-9)
        asked = bnuq.score(*files, ids=name or "(index)", columns=("p?",))
        assert same(asked, bnuq.score(P[ORDER], LABELS), tolerance=1e-9)


def test_the_index_of_pandas_pairs_rows(tmp_path: Path) -> None:
    p, y = pd.DataFrame(P, columns=[f"p{k}" for k in range(K)]), pd.DataFrame({"label": LABELS})
    files, keys = (tmp_path / "p.parquet", tmp_path / "l.parquet"), pd.DataFrame({"a": LABELS, "b": np.arange(N)})
    for index in (np.arange(N) + 3, pd.Index(np.arange(N), name="patient"), pd.MultiIndex.from_frame(keys)):
        p.set_axis(index).iloc[ORDER].to_parquet(files[0])
        y.set_axis(index).to_parquet(files[1])
        assert same(bnuq.score(*files, calibrate="off"), bnuq.score(P, LABELS, calibrate="off"))


def test_the_name_0_of_a_series_is_no_value(tmp_path: Path) -> None:
    p, y, files = pd.Series(P[:, 0]), pd.Series(LABELS % 2), (tmp_path / "p.csv", tmp_path / "l.csv")
    expected = bnuq.score(P[:, 0], LABELS % 2, calibrate="off")
    for index, header in ((True, True), (False, True), (False, False)):
        for of, file in zip((p, y), files, strict=True):
            of.to_csv(file, index=index, header=header)
        labels = f"{files[1]}:0" if header and not index else files[1]  # else 0 may be a value of both
        assert same(bnuq.score(files[0], labels, calibrate="off"), expected, tolerance=1e-9)
    for values, file in zip((np.r_[0, P[:, 0]], np.r_[0, P[:, 1]]), files, strict=True):
        np.savetxt(file, values, fmt="%g")
    assert f"--labels '{files[1]}:column 0'" in refusal(*files)
    assert len(bnuq.score(files[0], f"{files[1]}:column 0", task="regression", calibrate="off").points()) == N + 1


def test_samples_of_a_regression_are_along_either_axis() -> None:
    y, samples = RNG.normal(size=N), RNG.normal(size=(T, N))
    of_mean = partial(bnuq.score, outputs="draws_of_mean")
    expected = of_mean(samples[..., None], y, ood={"far": samples[:, :50, None]})
    said, far = {"samples": samples.T}, {"samples": samples[:, :50].T}
    columns = pd.DataFrame(samples.T, columns=[f"draw.{k}." for k in range(T)])
    for given, other in ((samples, samples[:, :50]), (said, far), (columns, columns[:50])):
        scored = of_mean({"predictions": given}, y, ood={"far": other})
        assert "--outputs draws_of_mean" in refusal({"predictions": given}, y)
        assert scored.summary()["methods"] == expected.summary()["methods"]
    assert "either axis" in refusal(np.zeros((N, N)), y)
    assert "or mean and σ" in refusal(samples.T, y)
    assert of_mean(np.sort(samples[:2], 0), y).model["files"]["predictions"]["outputs"] == "means"


def test_files_as_tools_write_them_are_read(tmp_path: Path) -> None:
    y, p = LABELS % 2, P[:, :2] / P[:, :2].sum(1, keepdims=True)
    expected, words = bnuq.score(p, y, calibrate="off"), np.array(["no", "yes"])
    assert same(bnuq.score({"predictions": p[:, 1:], "labels": y[:, None]}, calibrate="off"), expected)
    pd.DataFrame(p, columns=["False", "True"]).assign(label=y > 0, **{"": ""}).to_csv(tmp_path / "p.csv", index=False)
    assert same(bnuq.score(tmp_path / "p.csv", calibrate="off"), expected)
    hard, right = np.array(["LABEL_0", "LABEL_1"])[p.argmax(1)], float((p.argmax(1) == y).mean())
    for columns in (
        {"truth": np.array(["Class2", "Class1"])[y], "Class1": p[:, 1]},
        {"label": np.array(["fit", "row"])[y], "row": p[:, 1], "fit": p[:, 0]},
        {"label": np.array(["spam", "ham"])[y], "pred": np.array(["spam", "ham"])[p.argmax(1)], "prob": p[:, 1]},
        {"label": y, "prob_neg": p[:, 0]},
        {"p3": p[:, 0], "p8": p[:, 1], "label": np.array([3, 8])[y]},
        {"True": p[:, 1], "False": p[:, 0], "label": y > 0},
        {"p": p, "pred": hard, "label": y},
        {"conf": p.max(1), "pred": hard, "label": y},
    ):
        scored = bnuq.score(columns, calibrate="off")
        assert scored.summary()["methods"]["predictions"]["sets"]["test"]["accuracy"]["value"] == pytest.approx(right)
        assert not any(finding.severity == "warning" for finding in scored.findings)
    top = {"label": words[p.argmax(1)], "score": p.max(1), "truth": words[y]}
    pd.DataFrame(top).to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    assert f"--labels {tmp_path / 'p.jsonl'}:truth" in refusal(tmp_path / "p.jsonl")
    assert (
        bnuq.score(tmp_path / "p.jsonl", f"{tmp_path / 'p.jsonl'}:truth").model["files"]["p"]["outputs"]
        == "confidences"
    )


def test_confidences_are_scored_by_whether_predictions_are_right() -> None:
    """Also small ones; and in two versions of a file, which a gate compares."""
    confidence = np.linspace(0.02, 1, N)
    right = np.random.default_rng(4).uniform(size=N) < confidence
    model = {"confidence": confidence, "correct": right}
    far = {"far": {"confidence": confidence[:50]}}
    scored = bnuq.score(model, ood=far, calibrate="off")
    test = scored.summary()["methods"]["predictions"]["sets"]["test"]
    assert test["accuracy"]["value"] == pytest.approx(right.mean())
    assert test["brier"]["value"] == pytest.approx(sklearn_metrics.brier_score_loss(right, confidence), abs=1e-12)
    assert test["auroc_errors"]["value"] == pytest.approx(sklearn_metrics.roc_auc_score(right, confidence), abs=1e-12)
    labels = {"label": LABELS, "prediction": np.where(right, LABELS, (LABELS + 1) % K), "confidence": confidence}
    assert same(bnuq.score(labels, calibrate="off"), scored)
    worse = bnuq.score(model | {"correct": right & (np.arange(N) % 3 > 0)}, ood=far, calibrate="off")
    assert bnuq.check(scored, scored).passed and not bnuq.check(worse, scored).passed


def test_points_of_both_sets_carry_no_promise() -> None:
    order = np.argsort(LABELS, kind="stable")
    test, other = {"p": P[order], "label": LABELS[order]}, {"p": softmax(2 * LOGITS[order]), "label": LABELS[order]}
    for shared in ({"p": test["p"][::-1], "label": test["label"][::-1]}, other | {"id": np.arange(N) + N - 1}):
        mine = test | ({"id": np.arange(N)} if "id" in shared else {})
        assert "are in the test set" in refusal({"m": mine}, validation=shared, risk=0.3)
    assert bnuq.score({"m": test}, validation=other, risk=0.3).certification is not None


def test_equal_predictions_are_ties_whichever_class_is_predicted() -> None:
    p = np.full((N, K), 0.1)
    p[np.arange(N), np.where(np.arange(N) % 5, LABELS, (LABELS + 1) % K)] = 0.7
    test = bnuq.score(p, LABELS, calibrate="off").summary()["methods"]["predictions"]["sets"]["test"]
    assert test["auroc_errors"]["value"] == pytest.approx(0.5) and test["aurc"]["value"] == pytest.approx(0.2)


# ── several files, and what is done with a result ────────────────────────────────────────────────────────────────────


def test_several_files_are_compared_and_the_best_is_named() -> None:
    worse = softmax(LOGITS + 3 * np.random.default_rng(3).normal(size=LOGITS.shape))
    scored = bnuq.score({"good": P, "bad": worse}, LABELS, calibrate="off")
    verdict = scored.summary()["verdict"]
    assert verdict["best"]["pll"] == "good"
    assert verdict["text"][0].startswith(
        "Use good, the best of 2 files by predictive log-likelihood. Its confidence should not be read"
    )
    assert {each["method"] for each in verdict["comparisons"]} == {"bad"}
    words = scored.text(full=True)
    assert "good" in scored.text() and "Compared with the best" in words
    assert not re.search("deterministic|network|checkpoint|passes|single", words)


def test_a_result_is_read_shown_and_checked_like_any_other(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", LABELS)
    results = []
    for number, shift in enumerate((0.0, 4.0)):
        logits = LOGITS - shift * np.eye(K)[2] * (np.arange(N)[:, None] % 2)
        results.append(bnuq.score({"model": logits}, tmp_path / "labels.npy", out=tmp_path / f"{number}.h5"))
    again = bnuq.open(tmp_path / "0.h5")
    assert estimates(again) == estimates(results[0]) and again.summary()["command"] == "score"
    assert bnuq.check(results[0], again).passed
    verdict = bnuq.check(results[1], again, gate=["by-class"])
    assert not verdict.passed and "test" in verdict.pairing.points
    assert any(each.outcome == "worse" and "class" in each.address for each in verdict.comparisons)


@pytest.mark.nightly
def test_files_of_other_names_are_compared_as_one_method(tmp_path: Path) -> None:
    """One of each side is; of several, each needs its name. A history, too, is of files of other names."""
    for number, weight in enumerate((1.0, 1.01, 0.0)):
        np.savez(tmp_path / f"v{number}.npz", logits=LOGITS - (1 - weight) * 4 * np.eye(K)[1], label=LABELS)
    ood = softmax(LOGITS[:50] / 3)
    old, new, worse = (
        bnuq.score(tmp_path / f"v{n}.npz", ood={"far": ood}, held_out=0.5, risk=0.4, out=tmp_path / f"v{n}.h5")
        for n in range(3)
    )
    verdict = bnuq.check(new, old)
    assert verdict.passed and {each.method for each in verdict.comparisons} == {"v1", "v1+temperature"}
    assert {*verdict.pairing.points} == {"validation", "test", "far"}
    notes = {finding.code: finding.values for finding in verdict.findings}
    assert notes["compared-as-one-method"]["baselines"] == ["v0"]
    assert {*notes["paired-by-position"]["sets"]} == {*verdict.pairing.points}
    assert not bnuq.check(worse, old).passed
    (tmp_path / "past").mkdir()
    for name in ("v0", "v1"):
        shutil.copy(tmp_path / f"{name}.h5", tmp_path / "past")
    late = replace(worse.record, provenance={**worse.provenance, "time": "2100-01-01T00:00:00+00:00"})
    history, _ = last_results(tmp_path / "past", late, GateSettings())
    assert len(history) == 2 and check(late, history=history).failed
    both = bnuq.score({"a": P, "b": P}, LABELS)
    with pytest.raises(BnuqError, match=r"the method a: in the baseline.* Score its file by a=FILE"):
        bnuq.check(bnuq.score({"c": P}, LABELS), both)
    with pytest.raises(BnuqError, match="test holds other data"):
        bnuq.check(bnuq.score(P, np.roll(LABELS, 1)), bnuq.score({"other": P}, LABELS))


def test_columns_are_ood_scores_of_ones_own(tmp_path: Path) -> None:
    """In any order of the points, as scikit-learn ranks them, and in the file as in memory."""
    order = RNG.permutation(N)
    test, other = RNG.normal(size=N), RNG.normal(size=50) + 1
    frame = pd.DataFrame(P[order], columns=[f"{k}" for k in range(K)]).assign(**{"my score": test[order], "id": order})
    frame.to_csv(tmp_path / "p.csv", index=False)
    labels = {"label": LABELS, "id": np.arange(N)}
    ood = pd.DataFrame(P[:50], columns=[f"{k}" for k in range(K)]).assign(**{"my score": other})
    pd.DataFrame(labels).to_csv(tmp_path / "l.csv", index=False)
    scored = bnuq.score(
        tmp_path / "p.csv", tmp_path / "l.csv", ood={"far": ood}, scores=("my score",), out=tmp_path / "r.h5"
    )
    method = bnuq.open(scored.path).summary()["methods"]["p"]
    own = method["ood"]["far"]["score:my_score"]
    expected = sklearn_metrics.roc_auc_score(np.arange(N + 50) >= N, np.concatenate([test, other]))
    assert own["auroc"]["value"] == pytest.approx(expected, abs=1e-12)
    assert 0 < own["auroc"]["se"] < 0.1 and {"scod", "fpr95"} <= own.keys()
    errors = sklearn_metrics.roc_auc_score(P.argmax(1) != LABELS, test)
    assert method["sets"]["test"]["by_score"]["score:my_score"]["auroc_errors"]["value"] == pytest.approx(errors)
    assert "column my_score" in scored.text(full=True)
    changed = bnuq.score(
        tmp_path / "p.csv", tmp_path / "l.csv", ood={"far": ood.assign(**{"my score": other - 2})}, scores=("my score",)
    )
    verdict = bnuq.check(changed, scored, gate=["*"])
    assert [each.score for each in verdict.comparisons if each.outcome == "worse"].count("score:my_score") >= 3
    assert "1 column has no role" in refusal(tmp_path / "p.csv", tmp_path / "l.csv", scores=("mine",))
    left = {"scores": ("mine",), "ignore": ("my *",)}
    assert "has no array or column 'mine'" in refusal(tmp_path / "p.csv", tmp_path / "l.csv", **left)
    mine = np.full(N, np.nan)
    assert "no finite number in row" in refusal({"m": {"p": P, "mine": mine}}, LABELS, scores=("mine",))
    assert "of shape (3,)" in refusal({"m": {"p": P, "mine": np.zeros(3)}}, LABELS, scores=("mine",))


def test_a_regression_has_the_scores_of_columns() -> None:
    mean, sigma = RNG.normal(size=N), RNG.uniform(0.5, 2, N)
    model = {"mean": mean, "sigma": sigma, "mine": sigma}
    ood = {"mean": mean[:50], "sigma": 9 * sigma[:50], "mine": 9 * sigma[:50]}
    scored = bnuq.score({"model": model}, mean + sigma * RNG.normal(size=N), ood={"far": ood}, scores=("mine",))
    assert scored.summary()["methods"]["model"]["ood"]["far"]["score:mine"]["auroc"]["value"] > 0.9


def test_held_out_points_carry_a_promise() -> None:
    n = 3000
    labels = RNG.integers(K, size=n)
    scored = bnuq.score(RNG.normal(size=(n, K)) + 3 * np.eye(K)[labels], labels, held_out=0.5, risk=0.05).summary()
    assert scored["sets"]["validation"]["n"] == n // 2 and scored["certificate"]["is_kept"]
    assert scored["certificate"]["errors"] <= 0.07 * scored["certificate"]["accepted"]


def test_nothing_imports_torch(tmp_path: Path) -> None:
    path = write(tmp_path, "csv")
    words = ["score", f"{path}", "--out", f"{tmp_path / 'r.h5'}", "--held-out", "0.5", "--risk", "0.3"]
    script = (
        f"import sys\nfrom bnuq.cli import main\ntry:\n    main({words})\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 False" and "--full" in done.stdout


@pytest.mark.parametrize(
    ("logits", "text"),
    [
        (8.0 * np.eye(K)[LABELS] + LOGITS / 50, "Use predictions and divide its logits by 0.99"),
        (
            -8.0 * np.eye(K)[LABELS],
            "First check the labels, the order of the classes and `--outputs`: 0 % of 240 examples are right",
        ),
        (np.zeros((N, K)), "First check the outputs: they are the same for all examples."),
    ],
    ids=["all right", "all wrong", "constant"],
)
def test_a_temperature_at_a_limit_of_the_search_is_not_recommended(logits: np.ndarray, text: str) -> None:
    [decision, *others] = decided(bnuq.score(logits, LABELS, outputs="logits", calibrate="cross").record)
    assert decision.text.startswith(text)
    said = "Leave nothing to a person: none of 240 examples was wrong. Measured on these examples."
    assert [each.text for each in others] == [said] * (decision.code == "use")


def test_zero_shot_labels_indexes_out_of_order_and_numbered_headers_are_what_they_say(tmp_path: Path) -> None:
    path, right = tmp_path / "z.jsonl", float((P.argmax(1) == LABELS).mean())
    path.write_text(
        "\n".join(
            json.dumps({"labels": [f"k{k}" for k in order], "scores": p[order].tolist(), "gold": f"k{y}"})
            for p, order, y in zip(P, (-P).argsort(1), LABELS, strict=True)
        )
    )
    assert bnuq.score(path).summary()["methods"]["z"]["sets"]["test"]["accuracy"]["value"] == pytest.approx(right)
    order = RNG.permutation(N)
    pd.DataFrame(P[order], index=order).to_csv(shuffled := tmp_path / "s.csv")
    pd.DataFrame({"x": RNG.normal(size=N), "label": LABELS}).to_csv(tmp_path / "l.csv", index=False)
    assert "index '(index)' is not in order" in refusal(shuffled, f"{tmp_path / 'l.csv'}:label")
    names = [f"tile {number}" for number in range(N)]
    pd.DataFrame(P, columns=[f"p{k}" for k in range(K)]).assign(tile=names).to_csv(tmp_path / "p.csv", index=False)
    pd.DataFrame({"label": LABELS, "tile": names}).iloc[order].to_csv(tmp_path / "l.csv", index=False)
    assert "--ids tile\n" in refusal(tmp_path / "p.csv", f"{tmp_path / 'l.csv'}:label")
    pd.DataFrame(LOGITS, columns=[*range(1, K + 1)]).to_csv(tmp_path / "n.csv", index=False)
    assert f"{K} columns have no role" in refusal(tmp_path / "n.csv", LABELS, outputs="logits")
    assert "has no levels beside it" in refusal({"m": {"quantiles": np.ones((N, 3))}}, np.zeros(N))
    bands = pd.DataFrame({"fit": P[:, 0], "lwr": P[:, 1], "y": P[:, 2]})
    bands.to_csv(tmp_path / "b.csv", index=False)
    assert "lower is no role" in refusal(tmp_path / "b.csv", columns=("mean=fit", "lower=lwr"))
    wide = bands.assign(fit=P[:, 1] + 0.3)
    ends = bnuq.score(wide, columns=("q0.05=lwr", "q0.95=fit"), calibrate="off")
    [noted] = [finding.values for finding in ends.findings if finding.code == "quantiles-scored"]
    assert noted["inside"] == np.mean((P[:, 1] <= P[:, 2]) & (P[:, 2] <= wide["fit"]))
    assert (noted["low"], noted["high"], noted["share"]) == (0.05, 0.95, pytest.approx(0.9))
    assert "coverage50" not in ends.summary()["methods"]["predictions"]["sets"]["test"]
    assert "no file has such a column" in refusal({"m": {"p": P}}, LABELS, ignore=("",))
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as book:
        book.writestr("xl/workbook.xml", "<workbook/>")
    assert "workbook of a spreadsheet" in refusal(tmp_path / "book.xlsx", LABELS)
    np.savez(tmp_path / "c.npz", confidences=P.max(1), correctness=P.argmax(1) == LABELS)
    assert "columns confidence=NAME" in refusal(f"{tmp_path / 'c.npz'}", f"{tmp_path / 'c.npz'}:correctness")


def test_labels_in_several_columns_are_read_together(tmp_path: Path) -> None:
    """One-hot rows, several labels, and several targets; votes of an ensemble are divided by their sum."""
    p, y, names = tmp_path / "p.csv", tmp_path / "y.csv", ["cat", "dog", "emu", "owl"]
    pd.DataFrame(P, columns=names).assign(image_id=np.arange(N)).to_csv(p, index=False)
    truth = pd.DataFrame(np.eye(K, dtype=int)[LABELS], columns=names).assign(image_id=np.arange(N))
    truth.iloc[ORDER][[*names[::-1], "image_id"]].to_csv(y, index=False)
    right = float((P.argmax(1) == LABELS).mean())
    assert estimates(bnuq.score(p, y, calibrate="off"))["test accuracy"] == pytest.approx(right)
    both = {f"{name}_true": LOGITS[:, k] for k, name in enumerate("xy")}
    both |= {f"{name}_pred": LOGITS[:, k] + 1 for k, name in enumerate("xy")}
    pd.DataFrame(both).to_csv(p, index=False)
    assert f"--labels {p}:x_true,y_true --columns x_pred,y_pred\n" in refusal(p)
    scored = bnuq.score(p, f"{p}:x_true,y_true", columns=("x_pred", "y_pred"), calibrate="off")
    assert estimates(scored)["test rmse"] == pytest.approx(2**0.5)
    votes = (P * 50).astype(int)
    votes[:, 0] += 50 - votes.sum(1)
    table = {name: votes[:, k] for k, name in enumerate(names)} | {"label": np.array(names)[LABELS]}
    assert "votes are --outputs probabilities" in refusal(pd.DataFrame(table))
    scored = bnuq.score(pd.DataFrame(table), outputs="probabilities", calibrate="off")
    assert same(scored, bnuq.score(votes / 50, LABELS, calibrate="off"))


def test_what_an_option_names_is_what_is_scored() -> None:
    y, p = LABELS % 2, P[:, :2] / P[:, :2].sum(1, keepdims=True)
    ends = {"y": LOGITS[:, 0], "yhat": LOGITS[:, 1], "yhat_lower": LOGITS[:, 1] - 1, "yhat_upper": LOGITS[:, 1] + 1}
    assert "q0.1=yhat_lower" in refusal({"m": ends}, columns=("yhat", "yhat_lower", "yhat_upper"))
    for name in ("technology", "p_log"):
        scored = bnuq.score({"m": {name: p[:, 0], "other": p[:, 1], "label": y}}, columns=(name, "other"))
        assert scored.model["files"]["m"]["outputs"] == "probabilities"
    hard = {"label": 1 + y, "pred": -1 - y, "conf": p[:, 0]}
    assert "no word in common" in refusal(hard)


def test_samples_whose_axes_are_alike_are_asked_about_and_the_screen_says_what_scores_of_quantiles_are(
    tmp_path,
) -> None:
    p, y = np.full((4, 4, 2), 0.5), np.arange(4) % 2
    with pytest.raises(DataError, match=r"first or second axis may be of samples\. Save it as \(T, n, K\)"):
        bnuq.score({"m": p}, y, calibrate="off", out=tmp_path / "a.h5")
    assert bnuq.score({"m": {"samples": p}}, y, calibrate="off", out=tmp_path / "a.h5").record.model["classes"] == 2
    y = np.random.default_rng(0).normal(size=50)
    np.savetxt(tmp_path / "q.csv", np.stack([y, y - 1, y + 1], 1), delimiter=",", header="y,q0.1,q0.9", comments="")
    of_levels = bnuq.score(tmp_path / "q.csv", calibrate="off", out=tmp_path / "b.h5").text()
    assert "CRPS: twice the mean pinball loss of 2 quantiles" in " ".join(of_levels.split())
    (tmp_path / "l.csv").write_text("p0,p1,target\n.2,.8, True\n.7,.3, False\n.6,.4, True\n")
    classes = bnuq.score(tmp_path / "l.csv", classes=("False", "True"), calibrate="off", out=tmp_path / "c.h5")
    assert classes.summary()["methods"]["l"]["sets"]["test"]["accuracy"]["value"] == pytest.approx(2 / 3)


YES, WORDS = P[:, :2] / P[:, :2].sum(1, keepdims=True), np.array(["NEG", "POS"])
Y, TOP, DRAWS = LABELS % 2, YES.argmax(1), LOGITS[:, :1] + np.random.default_rng(8).normal(size=(N, 30))
BESIDE = {"age": 40 * P[:, 2], "sex": LABELS // 2, "city": np.array([*"abcd"])[LABELS]}
BOTH, SURE, ROWS = {"p0": YES[:, 0], "p1": YES[:, 1]}, YES.max(1), {"Id": np.arange(N)}
LLM = {"question": [f"q{k}" for k in range(N)], "gold": WORDS[Y], "answer": WORDS[TOP]}
KEYS = {"fold": np.arange(N) % 4, "id": np.arange(N) // 4}


@pytest.mark.parametrize(
    ("table", "labels", "added"),
    [
        (BESIDE | {"won": Y, "prediction_label": TOP, "prediction_score": SURE}, {}, "won --ignore sex,city,age"),
        (ROWS | {"target": YES[:, 1]}, ROWS | {"target": Y, "Usage": WORDS[Y]}, "--columns target --ignore Usage"),
        (KEYS | BOTH, KEYS | {"label": Y}, "--ids fold,id"),
        (LLM | {"confidence": 100 * SURE}, {}, "prediction=answer,confidence=confidence --outputs percentages"),
        ({"inst": range(N), "actual": WORDS[Y], "predicted": WORDS[TOP], "prediction": SURE}, {}, "=prediction --ig"),
        ({"true_x": WORDS[Y], "pred_x": WORDS[TOP], "p_NEG": YES[:, 0], "p_POS": YES[:, 1]}, {}, "=pred_x"),
        ({"row": range(N), "age": 9 * SURE} | BOTH, {"row": range(N), "won": Y, "cabin": WORDS[Y]}, "won --ignore"),
        ({"id": range(N)} | BOTH, {"id": range(N + 9), "label": [*Y, *[0] * 9]}, "--ids id"),
        ({"id": range(N), "label": WORDS[TOP], "score": SURE}, {"id": range(N), "label": Y}, "--classes NEG,POS"),
        ({"y": LOGITS[:, 0]} | {f"V{k}": DRAWS[:, k] for k in range(30)}, {}, "V*' --outputs draws_of_target"),
        (BOTH | {"label": Y, "n,o": LLM["question"]}, {}, "--ignore '\"n,o\"'"),
        ({"y": LOGITS[:, 0], "mean": DRAWS.mean(1), "mean_se": DRAWS.std(1)}, {}, "--ignore mean_se"),
    ],
)
def test_all_that_is_unclear_is_asked_at_once_with_a_command_that_works(
    table: Any, labels: Any, added: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(table).to_csv("p.csv", index=False)
    pd.DataFrame(labels).sample(frac=1, random_state=1).to_csv("l.csv", index=False)
    text = refusal("p.csv", "l.csv" if labels else None)
    command = shlex.split(text.partition("\n  bnuq ")[2].partition("\n")[0])
    assert added in shlex.join(command)
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    test = json.loads(capsys.readouterr().out)["methods"]["p"]["sets"]["test"]
    rmse = np.sqrt(((DRAWS.mean(1) - LOGITS[:, 0]) ** 2).mean())
    name, value = ("rmse", rmse) if "y" in table else ("accuracy", (TOP == Y).mean())
    assert test[name]["value"] == pytest.approx(value)


def test_lists_percentages_and_scores_by_label_are_probabilities(tmp_path: Path) -> None:
    expected, file = bnuq.score(YES, Y, calibrate="off"), tmp_path / "p.csv"
    pd.DataFrame({"probability": [f"[{a},{b}]" for a, b in YES], "label": Y}).to_csv(file, index=False)
    assert same(bnuq.score(file, calibrate="off"), expected, tolerance=1e-9)
    pd.DataFrame({"label": Y, "p": [*YES]}).to_parquet(tmp_path / "p.parquet")
    assert same(bnuq.score(tmp_path / "p.parquet", calibrate="off"), expected, tolerance=1e-9)
    percents = {name: [f"{100 * p}%" for p in YES[:, k]] for k, name in enumerate(WORDS)}
    pd.DataFrame(percents | {"label": WORDS[Y]}).to_csv(file)
    assert same(bnuq.score(file, calibrate="off"), expected, tolerance=1e-9)
    scores = [[{"label": WORDS[k], "score": p[k]} for k in (-p).argsort()] for p in YES]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, scores)))
    assert "--classes NEG,POS" in refusal(tmp_path / "h.jsonl", Y)
    assert same(bnuq.score(tmp_path / "h.jsonl", Y, classes=("NEG", "POS"), calibrate="off"), expected)
    with zipfile.ZipFile(tmp_path / "t.pt", "w") as saved:
        saved.writestr("t/data.pkl", "")
    assert "torch.load('t.pt')" in refusal(tmp_path / "t.pt", Y)


def test_quantiles_in_percent_logarithms_of_a_variance_and_draws_of_targets_are_what_they_say() -> None:
    mean, y = LOGITS[:, 0], LOGITS[:, 1]
    ends = {"5%": mean - 1, "95%": mean + 1, "y": y, "forecast": mean}
    assert bnuq.score({"m": ends}, calibrate="off").model["files"]["m"]["roles"]["ignored"] == ["forecast"]
    assert "mean=forecast has no effect" in refusal({"m": ends}, columns=("mean=forecast",))
    normal, sigma = {"y": y, "mean": mean, "log_var": np.log(P[:, 0])}, {"y": y, "mean": mean, "sigma": P[:, 0] ** 0.5}
    found = estimates(bnuq.score({"m": normal}))
    assert found == pytest.approx(estimates(bnuq.score({"m": sigma})), nan_ok=True)
    assert "log_variance=log_var" in refusal({"m": normal}, columns=("mean", "variance=log_var"))
    targets = LOGITS[:, 0] + RNG.normal(size=N)
    pll, wide = norm.logpdf(targets, DRAWS.mean(1), DRAWS.std(1)).mean(), 2 * DRAWS - DRAWS.mean(1)[:, None]
    for of, tolerance in (("mean", 0.1), ("target", 0.03)):
        drawn = bnuq.score({"m": {"samples": DRAWS, "y": targets}}, calibrate="cross", outputs=f"draws_of_{of}")
        test = drawn.summary()["methods"]["m"]["sets"]["test"]
        assert test["pll"]["value"] == pytest.approx(pll, abs=tolerance) and ("tau" in test) == (of == "mean")
    wide = bnuq.score({"m": {"samples": wide, "y": targets}}, calibrate="cross", outputs="draws_of_mean")
    assert {"draws-hold-noise", "tau-infinite"} & {each.code for each in wide.findings} == {"draws-hold-noise"}


def test_a_confidence_that_is_the_probability_of_a_class_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p = np.array([0.9, 0.2, 0.7, 0.4, 0.95, 0.1])
    pd.DataFrame({"y_true": [1, 0, 1, 1, 1, 0], "y_pred": (p > 0.5).astype(int), "confidence": p}).to_csv("p.csv")
    with pytest.raises(DataError, match=r"--columns score=confidence,prediction=y_pred"):
        bnuq.score("p.csv")
    found = bnuq.score("p.csv", columns=["score=confidence", "prediction=y_pred"])
    assert found.methods["p"].sets["test"].estimates["accuracy"].value == pytest.approx(5 / 6)


def test_a_scale_of_its_own_is_no_probability_and_an_index_leaves_out_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"correct": [1, 0, 1, 1], "confidence": [9, 2, 7, 10]}).to_csv("scale.csv", index=False)
    with pytest.raises(DataError, match="from 2 to 10, a scale of its own: make it 0 to 1"):
        bnuq.score("scale.csv")
    pd.DataFrame({"cat": [0.9, 0.2], "dog": [0.1, 0.8]}, index=[2, 0]).to_csv("p.csv")
    pd.DataFrame({"label": ["dog", "cat", "cat"]}).to_csv("l.csv")
    found = bnuq.score("p.csv", labels="l.csv", ids="(index)")
    assert found.methods["p"].sets["test"].estimates["accuracy"].value == 1.0
    assert "labels-left-out" in {each.code for each in found.findings}
