"""Decisions on predictions whose truth is known, read as users read them and held against the estimates beside them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import bnuq
from bnuq.metrics.registry import metric_of
from bnuq.records.decisions import judged
from bnuq.records.words import plain

KINDS = "calibrated", "useless", "overconfident", "underconfident", "tiny", "all right", "all wrong", "imbalanced"
DEFERRED = re.compile(
    r"Leave the ([\d.]+) % least certain examples to a person \((?:entropy of softmax\((?:undivided )?logits(?: / "
    r"([\d.e−]+))?\)|predictive entropy) above ([\d.e−]+)\): of the rest, (?:([\d.]+) %|none) \w+ wrong"
)


def made(kind: str, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a kind: drawn from their own softmax before something is done to one of both."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 19)) if kind == "tiny" else 1000
    logits = random.normal(size=(n, classes)) * (5 if classes > 9 else 3)
    logits[:, 0] += 3 * (kind == "imbalanced")
    y = (logits + random.gumbel(size=logits.shape)).argmax(1)
    if kind == "useless":
        y = random.integers(classes, size=n)
    elif kind == "all right":
        y, logits = logits.argmax(1), logits * random.choice([0.1, 1, 10])
    elif kind == "all wrong":
        y = (logits.argmax(1) + random.integers(1, classes, size=n)) % classes
    return logits * {"overconfident": 4, "underconfident": 0.2}.get(kind, 1), y


def contradictions(kind: str, logits: np.ndarray, y: np.ndarray, said: dict[str, Any]) -> list[str]:
    """What decisions say that the estimates of the same JSON, or the predictions themselves, deny."""
    use, *others = said["decisions"]
    test = {name: each["sets"]["test"] for name, each in said["methods"].items()}
    values, found = use["values"], []
    expected = {"tiny": "few-points", "useless": "at-chance", "all wrong": "at-chance"}.get(kind)
    if values.get("reason") != expected:
        found.append(f"{kind}: {use['text']}")
    if use["code"] == "use":
        chosen, is_divided = test[values["method"]], bool(values["temperatures"])
        floor = chosen["ece_floor"]
        undivided = {each["metric"]: each for each in said["verdict"]["comparisons"] if each["method"] == "m"}
        pll, ece = (undivided.get(metric, {"difference": 0, "se": None}) for metric in ("pll", "ece"))
        is_shown = pll["difference"] < -1.96 * (pll["se"] or math.inf)
        if (is_shown or pll["difference"] < 0 < ece["difference"]) is not is_divided:
            found.append("a temperature is advised that is no gain, or none that is one")
        is_below = chosen["ece"]["value"] <= floor["high"]
        said_of = "can be read as a probability", "is off by", "should not be read as a probability"
        [verdict] = [number for number, text in enumerate(said_of) if f"Its confidence {text}" in use["text"]]
        if verdict == (2 if is_below else 0) or re.search(r"0\.\d{4}", use["text"]):
            found.append("calibration")
        for each in said["verdict"]["comparisons"]:
            gain = each["difference"] * (-1 if metric_of(each["metric"]).direction == "lower" else 1)
            is_worse = each["method"] == values["method"] and each["se"] and gain < -1.97 * each["se"]
            if is_worse and "headline" in metric_of(each["metric"]).shown and plain(each["metric"]) not in use["text"]:
                found.append(f"{each['against']} is better by {each['metric']}, which is not said")
        if kind in ("overconfident", "underconfident") and not values["temperatures"]:
            found.append("no temperature")
    for text in (each["text"] for each in others if each["code"] == "defer"):
        if (match := DEFERRED.match(text)) is None:
            if kind != "all right" or not text.startswith("Leave nothing to a person: none of 1,000 examples was"):
                found.append(f"not understood: {text}")
            continue
        if values.get("temperatures") and "predictive entropy" in text:
            found.append(f"of which logits? {text}")
        of = dict(zip(("share", "theta", "threshold", "error"), match.groups(), strict=True))
        theta, error = (float(of[key] or default) for key, default in (("theta", 1.0), ("error", 0.0)))
        share, threshold = float(of["share"]), float(of["threshold"].replace("−", "-"))
        p, logs = softmax(logits / theta, axis=1), log_softmax(logits / theta, axis=1)
        accepted = -(p * logs).sum(1) <= threshold
        wrong = (p.argmax(1) != y)[accepted].mean()
        if abs(100 * (1 - accepted.mean()) - share) > 0.6 or abs(100 * wrong - error) > 0.6:
            found.append(f"{text}: in truth {1 - accepted.mean():.3f} and {wrong:.3f}")
    return found


@pytest.mark.parametrize(
    ("seeds", "kinds"),
    [(range(1), KINDS), pytest.param(range(1, 20), KINDS, marks=pytest.mark.nightly)],
    ids=["one of each", "three hundred"],
)
def test_no_decision_contradicts_its_estimates(seeds: range, kinds: tuple[str, ...], tmp_path: Path) -> None:
    for seed in seeds:
        for kind in kinds:
            for classes in (2, 100):
                logits, y = made(kind, classes, seed)
                how = "cross" if len(y) > 20 else "off"
                said = bnuq.score({"m": logits}, y, outputs="logits", calibrate=how, out=tmp_path / "o.h5").summary()
                assert contradictions(kind, logits, y, said) == [], (kind, classes, seed)


def test_a_temperature_that_few_errors_decide_stays_near_1_and_underconfidence_is_corrected(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    y = random.integers(10, size=1000)
    logits = random.normal(size=(1000, 10)) + 9 * np.eye(10)[y]
    logits[0, y[0]] -= 18  # the one error, of one half
    scored = bnuq.score({"m": logits}, y, outputs="logits", calibrate="cross", out=tmp_path / "o.h5").summary()
    plain, tempered = (each["sets"]["test"]["pll"]["value"] for each in scored["methods"].values())
    assert abs(tempered - plain) < 0.01, "−0.54 by the temperature of the half without an error"
    p = np.full((100, 4), 0.679 / 3)
    p[np.arange(100), y[:100] % 4] = 0.321
    said = bnuq.score({"m": p}, y[:100] % 4, calibrate="cross", out=tmp_path / "o.h5").summary()["decisions"][0]
    assert said["text"].startswith("Use m and divide its logits by 0.07")


def test_a_check_says_that_an_error_of_calibration_is_within_chance() -> None:
    logits, y = made("calibrated", 2, 0)
    of = [bnuq.score({"m": logits}, y, outputs="logits", calibrate="off") for _ in range(2)]
    assert "is what a calibrated network shows by chance" in " ".join(bnuq.check(*of).summary()["notes"])


def test_of_one_point_or_of_equal_differences_it_cannot_be_told_which_file_is_better(tmp_path: Path) -> None:
    y = np.arange(40) % 2
    files = {name: np.where(np.eye(2)[y] > 0, right, 1 - right) for name, right in (("a", 0.8), ("b", 0.7))}
    text = bnuq.score(files, y, calibrate="off", out=tmp_path / "o.h5").summary()["verdict"]["text"][0]
    assert "b may be as good." in text
    few = {name: p[:7] for name, p in files.items()}
    said = bnuq.score(few, y[:7], calibrate="off", out=tmp_path / "o.h5").summary()["decisions"][0]["text"]
    assert said.endswith("7 examples are too few to tell. 100 % of them are right; of all it may be 59 % to 100 %.")


def test_a_promise_that_the_test_set_refutes_is_a_warning_and_intervals_that_miss_are_too_narrow() -> None:
    random = np.random.default_rng(0)
    y = random.integers(3, size=1200)
    logits = random.normal(size=(1200, 3)) + 4 * np.eye(3)[y]
    for shift, refuted in ((0, False), (1, True)):
        labels = np.where(np.arange(600) % 5 < 2 * shift, (y[600:] + 1) % 3, y[600:])  # 40 % are of another law
        held_out = softmax(logits[:600], axis=1), y[:600]
        scored = bnuq.score(softmax(logits[600:], axis=1), labels, validation=held_out, risk=0.05)
        assert ("promise-refuted" in {each["code"] for each in scored.summary()["warnings"]}) is refuted
        assert ("the test set refutes" in scored.summary()["decisions"][1]["text"]) is refuted
    far = {"mean": np.zeros(500), "sigma": np.full(500, 0.01)}
    text = bnuq.score(far, 5 + random.normal(size=500), calibrate="off").text()
    assert "100 % of the targets lie outside, not 5 %: σ is too small" in " ".join(text.split())
    assert len(repr(scored.methods)) < 5000, "of 600 points"


def test_a_temperature_that_lowers_the_likelihood_is_said_to_and_neither_recommended_nor_drawn(tmp_path: Path) -> None:
    logits, y = made("calibrated", 3, 0)
    held_out = softmax(5 * logits[:500], axis=1), y[:500]  # of another scale than the test set's
    scored = bnuq.score(softmax(logits[500:], axis=1), y[500:], validation=held_out, recalibration=("temperature",))
    assert "PLL is lower than without it: predictions+temperature." in " ".join(scored.text(full=True).split())
    assert scored.summary()["decisions"][0]["text"].startswith("Use predictions as it is")
    scored.figure("reliability").save(tmp_path / "r.svg")
    drawn = (tmp_path / "r.svg").read_text()
    assert "predictions, ECE" in drawn and "+temperature" not in drawn


@pytest.mark.parametrize("points", [2, 5])
def test_two_files_that_are_alike_seldom_differ_beyond_chance_on_few_points(points: int, tmp_path: Path) -> None:
    random, differ, tried = np.random.default_rng(0), 0, 60
    for _ in range(tried):
        files = dict(zip("ab", random.normal(size=(2, points, 3)), strict=True))
        scores = bnuq.score(
            files, random.integers(0, 3, points), outputs="logits", calibrate="off", out=tmp_path / "a.h5"
        )
        differ += any((each.p or 1) < 0.05 for each in judged(scores.record).comparisons)
    assert differ <= 9  # 3 are expected; by the normal distribution 36 and 16
