"""Certified operating points: from the request to the file, the report, the gate and the exported program."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_multilabel
import small_regression
import small_run
import small_segmentation
import torch

from bnuq.config import Options, resolve_again
from bnuq.errors import BnuqError, RequestError, ResultError
from bnuq.evaluation.certification import candidates_of
from bnuq.gate import GateSettings, check
from bnuq.gate.checking import recomputed
from bnuq.metrics import certificates
from bnuq.records import decisions
from bnuq.records.certificate import Certificate, certified
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.records.promises import outcomes, resampled_values
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.render.markdown import markdown
from bnuq.studies.check.view import report as report_check
from bnuq.studies.export import compute as exporting

POINTS = 400
LESS: dict[str, Any] = {"methods": ("mcbn",), "samples": 8, "ood": (), "post_hoc": False}


def write(folder: Path) -> Path:
    """The small classification with 400 test and 400 validation points, of which the uncertain ones are often wrong;
    in crowded.npz and crowd.npz points come in groups of three that are of one label, and in sites.npz of three
    sites."""
    small_run.write(folder)
    model = small_run.network()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    random = np.random.default_rng(1)
    for name in ("test", "held_out"):
        x = random.normal(0.5, 0.3, (POINTS, 1, 6, 6)).astype(np.float32)
        with torch.no_grad():
            p = model.eval()(torch.from_numpy(x)).softmax(1).numpy()
        rank = np.argsort(np.argsort(-p.max(1))) / POINTS  # of its uncertainty
        y = np.where(random.random(POINTS) < 0.5 * rank**4, (p.argmax(1) + 1) % small_run.CLASSES, p.argmax(1))
        np.savez(folder / f"{name}.npz", x=x, y=y)
        np.savez(folder / f"{name}_crowd.npz", x=x, y=y, group=np.arange(POINTS) // 3)
        site = np.where(np.arange(POINTS) < 6, 2, np.arange(POINTS) % 2)
        sites = np.array(["east", "north", "rare"], dtype="U8")[site]
        np.savez(folder / f"{name}_sites.npz", x=x, y=y, group=sites)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("certificate") / "run")


def evaluated(folder: Path, name: str, **options: Any) -> Result:
    """As its file has it."""
    small_run.evaluated(folder, out=folder / f"{name}.h5", **(LESS | {"validation": "held_out.npz"} | options))
    return read(folder / f"{name}.h5")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return evaluated(place, "certified", risk=0.1, each="class")


def test_the_certificate_follows_from_validation_points_and_candidates_from_test_points(result: Result) -> None:
    certification = result.certification
    assert certification is not None and {*certification.methods} == {"deterministic", "mcbn"}
    for method, certificate in certification.methods.items():
        points = result.methods[method].sets["test"].points
        np.testing.assert_array_equal(certificate.candidates, candidates_of(points[certificate.score]))
        assert certificate.losses is not None
        expected = certificates.certified_threshold(
            certificate.scores, certificate.losses, certificate.candidates, risk=0.1, confidence=1 - 0.05 / 3
        )  # shared with the two classes that have enough points
        assert certificate.threshold == expected > -math.inf
        inside = points[certificate.score] <= expected
        estimate = result.methods[method].sets["test"].estimates["certified_coverage"]
        assert estimate.value == pytest.approx(inside.mean()) and 0.3 < estimate.value <= 1
        np.testing.assert_array_equal(points["certified_coverage"], inside)
        assert next(outcomes(result, method)).errors == int((1 - points["accuracy"])[inside].sum())


def test_the_file_says_it_as_json(result: Result) -> None:
    stated = json.loads(json.dumps(summary(result)))["certificate"]
    assert {"score", "threshold", "risk", "confidence", "coverage", "points", "by_group"} <= stated.keys()
    assert (stated["risk"], stated["confidence"], stated["points"], stated["each"]) == (0.1, 0.95, POINTS, "class")
    assert stated["coverage"].keys() >= {"value", "se"}
    assert stated["methods"][stated["method"]]["threshold"] == stated["threshold"]
    assert {*stated["by_group"]} <= {"0", "1", "2"}
    assert sum(each["points"] for each in stated["by_group"].values()) == POINTS


def promise(result: Result) -> str:
    """What is said of it."""
    method = result.certification.method
    return decisions.certified(result, method, method).text


def test_the_report_says_it_in_a_line_and_a_table(result: Result) -> None:
    text = markdown(report(result))
    assert re.match(
        r"Leave the [\d.]+ % least certain examples to a person \(.* above .*\): of the rest, [\d.]+ % are wrong\. "
        r"Promised: at most 10 % wrong with 95 % confidence; promised of 1 of 3 classes alone; `--full` says what ",
        promise(result),
    )
    of_tempered = promise(result).replace(" above", " of undivided logits above")
    assert of_tempered in text and "Certified operating point" in text and "class 0" in text
    [deferral] = (each for each in summary(result)["decisions"] if each["code"] == "defer")
    assert deferral["text"] in report(result).summary
    assert "at most 10 % wrong with 95 % confidence; promised of 1 of 3" in deferral["text"]
    values = deferral["values"]
    assert values["threshold"] == summary(result)["certificate"]["methods"][values["method"]]["threshold"]


def test_a_method_and_a_score_can_be_named_and_must_be_there(place: Path) -> None:
    certification = evaluated(place, "named", risk=0.1, score="mcbn.mutual_information").certification
    assert certification is not None and certification.method == "mcbn"
    assert certification.chosen.score == "mutual_information"
    assert certification.methods["deterministic"].score != "mutual_information"
    with pytest.raises(RequestError, match=r"certificate.score is mcdo.predictive_entropy; this run has determin"):
        evaluated(place, "absent", risk=0.1, score="mcdo.predictive_entropy")


@pytest.mark.nightly
def test_points_in_groups_are_units_and_a_known_group_has_a_promise_of_its_own(place: Path) -> None:
    crowd = evaluated(place, "crowd", risk=0.3, test="test_crowd.npz", validation="held_out_crowd.npz")
    alone = evaluated(place, "alone", risk=0.3)
    outcome, independent = (next(outcomes(each, "deterministic")) for each in (crowd, alone))
    assert outcome.points == math.ceil(POINTS / 3) and outcome.interval is None
    assert outcome.coverage is not None and independent.coverage is not None
    assert 0 < outcome.coverage.value <= independent.coverage.value

    sites = {"test": "test_sites.npz", "validation": "held_out_sites.npz"}
    by_site = evaluated(place, "sites", risk=0.15, each="group", **sites)
    whole, east, north, rare = outcomes(by_site, "deterministic")
    assert (whole.points, whole.is_kept, whole.needed) == (3, False, certificates.points_needed(0.15, 0.95))
    assert [each.name for each in (east, north, rare)] == ["east", "north", "rare"]
    assert east.is_kept and north.is_kept and east.points == 197
    assert not rare.is_kept and rare.points == 6 < rare.needed == certificates.points_needed(0.15, 0.975)
    text = markdown(report(by_site))
    assert f"needs {rare.needed} examples, has 6" in text
    assert "groups of validation examples; it needs at least 19; promised of 2 of 3 groups alone;" in text


def test_what_cannot_be_kept_is_said_with_what_could_be(place: Path) -> None:
    none = evaluated(place, "none", risk=0.001)
    assert "promise-not-earned" in {finding.code for finding in none.findings}
    assert none.methods["deterministic"].sets["test"].estimates["certified_coverage"].value == 0
    assert "cannot be promised on 400 validation examples; it needs at least 2,995." in promise(none)
    wrong = evaluated(place, "wrong", risk=0.01, validation="held_out.npz", confidence=0.9)
    assert not next(outcomes(wrong, "deterministic")).is_kept
    smallest = next(outcomes(wrong, "deterministic")).smallest_risk
    assert smallest is not None and f"the smallest that can is {100 * smallest:.3g} %." in promise(wrong)
    assert next(outcomes(evaluated(place, "kept", risk=smallest, confidence=0.9), "deterministic")).is_kept


REFUSED = {
    "without validation examples": {"validation": None},
    "shares examples with the test set": {"validation": "test.npz"},
    "expected one of mutual_information": {"score": "entropy"},
    "as the test set and the validation examples have no groups": {"each": "group"},
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_request_that_no_promise_can_be_made_of_is_refused(place: Path, text: str) -> None:
    with pytest.raises(BnuqError, match=f"--risk 0.1: there is no certificate .*{text}"):
        evaluated(place, "refused", risk=0.1, **REFUSED[text])
    assert not (place / "refused.h5").exists()


def test_points_of_the_reference_and_several_labels_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="shares examples with the test set or the training set"):
        evaluated(place, "refused", risk=0.1, validation="train.npz")
    small_multilabel.write(tmp_path / "labels")
    with pytest.raises(RequestError, match="for several labels per example"):
        small_run.evaluated(tmp_path / "labels", risk=0.1, out=tmp_path / "out.h5")


def test_ties_are_accepted_together() -> None:
    scores, losses = np.repeat([0.0, 1.0, 2.0], 100), np.repeat([0.0, 0.0, 1.0], 100)
    certificate = Certificate("predictive_entropy", ("",), np.zeros(1), candidates_of(scores), scores, losses)
    assert certificate.candidates.tolist() == [0.5, 1.5, math.inf]
    assert certified(certificate, 0.05, 0.95).thresholds.tolist() == [1.5]


def test_a_promise_for_a_class_counts_groups_and_one_for_a_known_group_its_points() -> None:
    """40 groups of 50 equal points, all of one class: its promise is that of all points, and not of 2,000 points."""
    made, group = [], np.repeat(np.arange(40), 50)
    for seed in range(200):
        wrong = (np.random.default_rng(seed).random(40) < 0.1).astype(float)  # more than the risk that is promised
        points = {"scores": np.full(2000, 0.5), "losses": wrong[group], "group": group, "part": np.ones(2000, int)}
        certificate = Certificate("least_confidence", ("", "cat"), np.zeros(1), np.array([math.inf]), **points)
        assert certificate.counts("class") == (40, 40) and certificate.counts("group") == (40, 2000)
        made.append(certified(certificate, 0.08, 0.9, "class").thresholds)
    of_all, of_class = np.array(made).T
    np.testing.assert_array_equal(of_all, of_class)
    assert np.mean(of_class > -math.inf) <= 0.1
    assert certified(certificate, 0.5, 0.9, "group").is_kept(1)


def test_the_promises_about_all_points_and_each_class_hold_together() -> None:
    """Two classes at error rates just above the risk, so that any promise that is kept by chance is broken."""
    part, broken = np.repeat([1, 2], 240), 0
    for seed in range(2000):
        losses = (np.random.default_rng(seed).random(480) < 0.1001).astype(float)
        points = {"scores": np.full(480, 0.5), "losses": losses, "part": part}
        certificate = Certificate("least_confidence", ("", "a", "b"), np.zeros(1), np.array([math.inf]), **points)
        broken += bool((certified(certificate, 0.1, 0.9, "class").thresholds > -math.inf).any())
    assert broken < 200  # with a level of its own for all points 260


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_that_no_longer_keeps_the_promise_fails_and_one_that_does_passes(place, result):
    assert check(result, result).passed
    weights = torch.load(place / "model.pt", weights_only=True)
    weights["7.weight"] = -weights["7.weight"]  # of the last layer: sure, and wrong
    torch.save(weights, place / "broken.pt")
    (place / "broken.toml").write_text(small_run.RUN.replace("model.pt", "broken.pt"))
    broken = evaluated(place, "broken", run_file="broken.toml", risk=0.1, each="class")
    verdict = check(broken, result, GateSettings.of(tolerances=("*=off", "certified_coverage=0.02")))
    assert {item.metric for item in verdict.worse} == {"certified_coverage"} and verdict.failed
    assert "promise-lost" in {finding.code for finding in verdict.findings}


def test_a_class_that_loses_its_promise_fails_alone(result: Result) -> None:
    """The validation points of one predicted class, all wrong now; the promise about all points is left as it was."""
    certification = result.certification
    assert certification is not None
    certificate, method = certification.chosen, certification.method
    kept = [number for number in range(1, len(certificate.names)) if certificate.is_kept(number)]
    lost, losses, part = kept[-1], certificate.losses, certificate.part
    assert losses is not None and part is not None
    certain = certificate.scores <= certificate.threshold
    again = replace(certificate, losses=np.where((part == lost) & certain, 1.0, losses), part=part)
    again = certified(again, certification.risk, certification.confidence)
    methods = {**certification.methods, method: again}
    current = replace(result, certification=replace(certification, methods=methods))
    verdict = check(current, result)
    assert [(item.method, item.of_class) for item in verdict.worse] == [(method, certificate.names[lost])]
    [comparison] = verdict.worse
    assert (comparison.current, comparison.degradation) == (0.0, comparison.baseline)
    assert comparison.baseline > 0.3 and verdict.failed
    said = {finding.code: finding.values for finding in verdict.findings}
    assert said["promise-lost"]["methods"] == [f"{method} ({certificate.names[lost]})"]
    text = markdown(report_check(verdict))
    assert f"class {certificate.names[lost]}" in text
    assert check(current, result, GateSettings.of(tolerances=("certified_coverage=off",))).passed
    assert current.certification is not None
    unasked = replace(current, certification=replace(current.certification, each=""))
    assert check(unasked, result).passed, "promises that were not asked for are not lost"


@pytest.mark.nightly  # a spread over resamples
def test_the_error_of_a_change_has_the_chance_of_other_validation_points(place: Path, result: Result) -> None:
    """The same network, certified by other validation points: what it accepts differs, and is no worse."""
    random = np.random.default_rng(3)
    with np.load(place / "held_out.npz") as held_out:
        rows = random.permutation(POINTS)[:250]
        np.savez(place / "fewer.npz", x=held_out["x"][rows], y=held_out["y"][rows])
    fewer = evaluated(place, "fewer", risk=0.1, validation="fewer.npz", each="class")
    [comparison] = [
        item
        for item in check(fewer, result, GateSettings(allow=("data:validation",))).comparisons
        if (item.method, item.metric) == ("deterministic", "certified_coverage")
    ]
    assert comparison.change < 0 and comparison.outcome == "same"
    spread = [np.std([*resampled_values(each, "deterministic", 50)], ddof=1) for each in (fewer, result)]
    assert comparison.se is not None and comparison.se >= math.hypot(*spread) > 0.01
    [unchanged] = [item for item in check(result, result).comparisons if item.address == comparison.address]
    assert unchanged.se == 0


def test_a_threshold_that_its_points_contradict_is_damage(result: Result) -> None:
    assert result.certification is not None
    chosen = replace(result.certification.chosen, thresholds=result.certification.chosen.thresholds + 0.5)
    methods = {**result.certification.methods, result.certification.method: chosen}
    damaged = replace(result, certification=replace(result.certification, methods=methods))
    with pytest.raises(ResultError, match="the thresholds certified of"):
        recomputed(damaged)


# ── other tasks, and exported programs ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outputs", at_night.but({2}, [1, 2]))
def test_a_regression_has_intervals_that_cover_at_the_risk_and_are_exported(tmp_path: Path, outputs: int) -> None:
    text = small_regression.RUN.replace('"regression"\n', f'"regression"\narch_args = {{ outputs = {outputs} }}\n')
    folder = small_regression.write(tmp_path / "run", text=text, outputs=outputs).parent
    options: dict[str, Any] = {"risk": 0.2, "confidence": 0.9, "methods": ("mcbn",), "ood": ()}
    small_regression.evaluated(folder, out=folder / "out.h5", score="mcbn.normalized_error", **options)
    result = read(folder / "out.h5")
    certification, test = result.certification, result.methods["mcbn"].sets["test"]
    assert certification is not None and certification.method == "mcbn"
    certificate, outcome = certification.chosen, next(outcomes(result, "mcbn"))
    assert certificate.score == "normalized_error" and certificate.noise is not None
    rank = certificates.conformal_rank(small_regression.VALIDATION, 0.2, 0.9)
    assert rank is not None and certificate.threshold == np.sort(certificate.scores)[rank - 1]
    assert outcome.law == certificates.coverage_law(rank, small_regression.VALIDATION)
    train, x = (np.load(folder / f"{name}.npz")["x"] for name in ("train", "test"))
    inputs = torch.from_numpy(((x - train.mean(0)) / train.std(0)).astype(np.float32))
    run = resolve_again(dict(result.run), folder / "out.h5", Options(trust_code=True), folder=folder)
    given = exporting.assembled(run, method="mcbn", result=result).predictor(inputs)
    half_width = given["half_width"].numpy().reshape(-1, outputs)
    np.testing.assert_allclose(half_width.mean(1), test.points["certified_width"], rtol=1e-4)
    targets = result.sets["test"].targets
    assert targets is not None
    missed = (np.abs(targets - test.predicted) > half_width).any(1)
    assert outcome.errors == missed.sum() and "of the targets lie outside" in promise(result)
    assert check(result, result).passed and "half-width" in markdown(report(result))


@pytest.mark.nightly
def test_pixels_are_accepted_with_a_loss_that_is_controlled_in_expectation(tmp_path: Path) -> None:
    folder = small_segmentation.write(tmp_path / "run").parent
    halves = {"split_of": "test", "fraction": 0.5}
    small_segmentation.evaluated(folder, out="out.h5", risk=0.25, methods=("mcdo",), samples=4, validation=halves)
    result = read(folder / "out.h5")
    certification, stated = result.certification, summary(result)["certificate"]
    assert certification is not None and stated["confidence"] is None
    for method, certificate in certification.methods.items():
        assert certificate.losses is not None
        index = certificates.risk_controlling_index(certificate.losses, 0.25)
        assert certificate.threshold == certificate.candidates[index]
        outcome = next(outcomes(result, method))
        assert outcome.coverage is not None and outcome.loss is not None and 0 < outcome.coverage.value <= 1
        wrong = 1 - result.methods[method].sets["test"].estimates["accuracy"].value
        assert 0 <= outcome.loss <= wrong + 0.1
    assert "at most 25 % on average over images" in promise(result) and check(result, result).passed
