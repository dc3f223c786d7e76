"""The test set under corruptions of rising severity: whole runs, and their analysis computed again by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import small_segmentation
from report_text import rendered

from bnuq.config import Options, resolve
from bnuq.errors import BnuqError
from bnuq.records import evaluation_file
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.shift_analysis import shift_of
from bnuq.report.document import Table
from bnuq.report.evaluation import report
from bnuq.report.shift import is_asked_for
from bnuq.workflows.evaluate import evaluate

OWN = """
import numpy as np


def veil(inputs, severity, random):
    inputs[:] = inputs * (1 - severity / 10) + severity / 10 * random.random()
    return inputs


def labels_too(inputs, severity, random):
    return inputs, np.zeros(len(inputs))


def smaller(inputs, severity, random):
    return inputs[:, :, 1:]


def infinite(inputs, severity, random):
    return np.full_like(inputs, np.inf)


def broken(inputs, severity, random):
    raise ValueError("no such lens")
"""
PERTURB = ("gaussian@1", "gaussian@3", "gaussian@5", "all@4", "own.py:veil@1", "own.py:veil@6.5", "jpeg:30", "jpeg:8")
METHODS = ("mcbn", "mcdo")
OTHERS = {"shift_window": 25, "shift_loss": 0.02}


def write(folder: Path) -> Path:
    """The small run with 8-bit pictures and functions of one's own."""
    place = small_run.write(folder / "run").parent
    for name in ("train", "test", "other"):
        arrays = dict(np.load(place / f"{name}.npz"))
        arrays["x"] = (255 * np.clip(arrays["x"], 0, 1)).astype(np.uint8)
        np.savez(place / f"{name}.npz", **arrays)
    (place / "own.py").write_text(OWN)
    return place


def evaluated(folder: Path, name: str = "whole", **options: Any) -> Result:
    given = {"perturb": PERTURB, "methods": METHODS, "samples": 8, "normalize": "0.5/0.25", "ood": ()}
    return small_run.evaluated(folder, out=folder / f"{name}.h5", **given | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("shift"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> Result:
    return evaluated(folder)


def test_all_families_of_pictures_are_there_once_and_in_order(whole: Result) -> None:
    shift = whole.shift
    assert shift is not None
    assert shift.families == (
        "gaussian", "shot", "impulse", "defocus", "motion", "contrast", "brightness", "haze", "pixelate", "jpeg",
        "occlusion", "rotation", "translation", "veil", "jpeg:q",
    )  # fmt: skip
    assert [shift.sets[place] for place in shift.places("gaussian")] == [f"test+gaussian@{s}" for s in (1, 3, 4, 5)]
    assert [shift.sets[place] for place in shift.places("jpeg:q")] == ["test+jpeg:30", "test+jpeg:8"]
    assert {"test", *shift.sets} == {*whole.sets}
    resolved = whole.run["data"]["perturb"]
    assert "all@4" not in resolved and "motion@4" in resolved and str(whole.path.parent / "own.py:veil@6.5") in resolved


def test_changes_have_the_paired_errors_of_points_and_of_draws(whole: Result) -> None:
    for method in whole.methods:
        of, sets = whole.shift.methods[method], whole.methods[method].sets
        for name in ("test+gaussian@3", "test+veil@6.5", "test+jpeg:8"):
            place = whole.shift.sets.index(name)
            for metric, column in (("accuracy", "accuracy"), ("pll", "pll")):
                row = of.metrics.index(metric)
                pair = sets[name].estimates[metric], sets["test"].estimates[metric]
                assert of.change[row, place] == pytest.approx(pair[0].value - pair[1].value)
                differences = sets[name].points[column] - sets["test"].points[column]
                assert of.se[row, place] == pytest.approx(np.std(differences, ddof=1) / len(differences) ** 0.5)
            row, estimates = of.metrics.index("pll"), [sets[each].estimates["pll"] for each in (name, "test")]
            if method in whole.sampled:
                moved = estimates[0].jackknife - estimates[1].jackknife
                assert of.mc_se[row, place] == pytest.approx(np.sqrt(7 / 8 * ((moved - moved.mean()) ** 2).sum()))
            else:
                assert of.mc_se[row, place] == 0


@pytest.mark.parametrize(("scoring", "window", "limit"), [({}, 100, 0.05), (OTHERS, 25, 0.02)])
def test_alarm_and_loss_are_where_straight_lines_cross_their_limits(whole, scoring, window, limit):
    whole = replace(whole, run=whole.run | {"scoring": scoring})
    shift, at = shift_of(whole), np.array([0, 1, 3, 4, 5.0])
    names = ["test", *(f"test+gaussian@{s}" for s in (1, 3, 4, 5))]
    for method in whole.methods:
        of, sets = shift.methods[method], whole.methods[method].sets
        for score in ("predictive_entropy", "least_confidence"):
            before, row = sets["test"].points[score], of.scores.index(score)
            half = 2.5758293 * before.std(ddof=1) * (1 / window + 1 / len(before)) ** 0.5
            np.testing.assert_allclose(of.band[row], [before.mean() - half, before.mean() + half], rtol=1e-6)
            fine = np.linspace(0, 5, 200_001)
            curve = np.interp(fine, at, [abs(sets[name].points[score].mean() - before.mean()) for name in names])
            beyond = fine[curve >= half]
            found = of.alarm[row, shift.families.index("gaussian")]
            assert np.isnan(found) if beyond.size == 0 else found == pytest.approx(beyond[0], abs=1e-4)
        accuracies = [sets[name].estimates["accuracy"].value for name in names]
        lost = fine[np.interp(fine, at, [accuracies[0] - a for a in accuracies]) >= limit]
        found = of.loss[shift.families.index("gaussian")]
        assert np.isnan(found) if lost.size == 0 else found == pytest.approx(lost[0], abs=1e-4)


def test_accuracy_without_labels_is_by_the_threshold_and_by_the_mean_of_confidences(whole: Result) -> None:
    for method in whole.methods:
        of, sets = whole.shift.methods[method], whole.methods[method].sets
        confidence, correct = (sets["test"].points[key] for key in ("max_probability", "accuracy"))
        thresholds = [t for t in np.sort(confidence) if (confidence > t).mean() <= correct.mean() + 1e-12]
        for place, name in enumerate(whole.shift.sets):
            after, truth = (sets[name].points[key] for key in ("max_probability", "accuracy"))
            assert of.predicted[0, place] == pytest.approx((after > thresholds[0]).mean())
            assert of.predicted[1, place] == pytest.approx(correct.mean() + after.mean() - confidence.mean())
            doc = after - confidence - truth  # the error is that of a mean over the resampled points
            assert of.error_se[1, place] == pytest.approx(np.std(correct + doc, ddof=1) / len(doc) ** 0.5, rel=0.25)
        for row in range(2):
            errors = of.predicted[row] - [sets[name].points["accuracy"].mean() for name in whole.shift.sets]
            broken = np.abs(errors) > 2.5758293 * of.error_se[row]
            for number, family in enumerate(whole.shift.families):
                first = [place for place in whole.shift.places(family) if broken[place]]
                expected = whole.shift.changes[whole.shift.sets[first[0]]].strength if first else np.nan
                np.testing.assert_equal(of.breaks[row, number], expected)


def test_of_severities_only_what_curves_and_alarms_need_is_kept(whole: Result) -> None:
    for method in whole.methods.values():
        assert set(method.ood["test+shot@4"]) <= {"predictive_entropy", "mutual_information"}
        assert method.sets["test+shot@4"].log_likelihood is None
        assert {"accuracy", "pll", "ece", "aurc"} <= method.sets["test+shot@4"].estimates.keys()
    assert "energy" in whole.shift.methods["deterministic"].scores
    assert "energy" in whole.methods["deterministic"].ood["test+jpeg:8"]


def test_ones_own_function_changes_each_block_by_its_own_numbers(folder: Path, whole: Result) -> None:
    x = np.load(folder / "test.npz")["x"] / np.float32(255)
    key, counter = np.array([0, 0], np.uint64), np.array([0, 3, 0, 25], np.uint64)
    drawn = np.random.Generator(np.random.Philox(key=key, counter=counter)).random()
    changed = np.clip(x * np.float32(0.35) + np.float32(0.65 * drawn), 0, 1)
    namespace: dict[str, Any] = {}
    exec(small_run.NET, namespace)
    import torch

    model = namespace["net"]()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    with torch.no_grad():
        p = model.eval()(torch.from_numpy((changed - 0.5) / 0.25).float()).softmax(1).numpy()
    found = whole.methods["deterministic"].sets["test+veil@6.5"].points["max_probability"]
    np.testing.assert_allclose(found, p.max(1), rtol=1e-4)


@pytest.mark.nightly
def test_the_report_tells_alarm_and_loss_and_draws_every_family(whole: Result, tmp_path: Path) -> None:
    made = report(whole)
    text = rendered(report, whole, full=True)
    assert "Alarm and loss" in text and "ATC breaks" in text and "those of ImageNet-C, or CIFAR-C" in text
    tables = [part for part in made.one_screen or () if isinstance(part, Table)]
    [short] = [table for table in tables if table.header[1:3] == ("loss at", "warned at")]
    assert len(short.rows) == len(whole.shift.families)
    kinds = [picture.kind for picture in made.pictures if picture.kind[0] == "shift"]
    assert kinds == [("shift", "gaussian"), ("shift", "veil"), ("shift", "jpeg:q")]
    for picture in made.pictures:
        if picture.kind[0] == "shift":
            picture.draw(tmp_path / "p.svg")
            assert "severity" in (tmp_path / "p.svg").read_text() or picture.kind[-1] == "jpeg:q"
    before = replace(whole, shift=None)  # as earlier versions wrote it
    assert rendered(report, before, full=True) == text
    other = rendered(report, replace(before, run=whole.run | {"scoring": OTHERS}), full=True)
    for one, limits in ((text, ("over 100 unlabelled", "by 5 points")), (other, ("over 25 unlabelled", "by 2 points"))):
        assert all(words in " ".join(one.split()) for words in limits)


@pytest.mark.parametrize(
    ("alarm", "loss", "words"),
    [
        (2.0, 4.0, "before accuracy has fallen by 5 points in 1 of 1 change."),
        (4.0, 2.0, "No score warns in time of gaussian."),
        (np.nan, 2.0, "No score warns in time of gaussian."),
        (2.0, np.nan, "No loss by gaussian."),
    ],
)
def test_the_report_says_first_which_family_is_seen_in_time(whole, alarm, loss, words):
    every = {
        name: replace(of, alarm=np.full_like(of.alarm, alarm), loss=np.full_like(of.loss, loss))
        for name, of in whole.shift.methods.items()
    }
    sets = tuple(name for name in whole.shift.sets if "gaussian" in name)
    made = report(replace(whole, shift=replace(whole.shift, sets=sets, families=("gaussian",), methods=every)))
    assert made.command == "bnuq shift" and made.summary[-1].endswith(words)
    [table] = [part for part in made.one_screen or () if isinstance(part, Table)]
    [(label, cells)] = table.rows
    shown = ["never" if np.isnan(value) else f"{value:.2f}" for value in (loss, alarm)]
    assert label == "gaussian@5" and [cell.value for cell in cells[1:3]] == shown


def test_only_the_command_says_what_a_report_of_single_severities_is_headed(whole: Result) -> None:
    """And not a folder that is called so, nor the lack of a command."""
    one = {name: of for name, of in whole.sets.items() if "@" not in name or name.endswith("gaussian@5")}
    commands = {
        "/a shift b/bin/bnuq shift net.pt": True,
        "/venv/bnuq/__main__.py shift net.pt": True,
        "/a shift b/bin/bnuq evaluate net.pt": False,
        "bnuq --debug shift net.pt": True,
        "bnuq evaluate bnuq shift net.pt": False,
        "": False,
    }
    for command, expected in commands.items():
        provenance = {"command": command} if command else {}
        assert is_asked_for(replace(whole, sets=one, provenance=provenance)) is expected, command


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("own.py:labels_too@1", r"labels_too returned a tuple; expected an array of shape .*leaves labels as they are"),
        ("own.py:smaller@1", r"smaller returned an array of shape \(60, 1, 5, 6\) at severity 1; expected"),
        ("own.py:infinite@2", "numbers that are not finite at severity 2"),
        ("own.py:broken@1", r"own.py:broken: calling it failed with ValueError.*no such lens"),
        ("own.py:absent@1", "has no function 'absent'"),
        ("missing@1", r"missing@1 is for rows of a table; the examples of .* are images"),
        ("dropped@1", "is for sequences"),
    ],
)
def test_what_does_not_fit_is_one_message_before_anything_is_computed(folder: Path, change: str, message: str) -> None:
    with pytest.raises(BnuqError, match=message):
        evaluated(folder, "refused", perturb=(change,))
    assert not (folder / "refused.h5").exists()


def test_pictures_beyond_their_range_are_refused(tmp_path: Path) -> None:
    folder = small_run.write(tmp_path / "floats").parent
    with pytest.raises(BnuqError, match=r"shot@1 is for images with values from 0 to 1; the examples of .* are images"):
        evaluated(folder, perturb=("shot@1",), normalize=None)
    arrays = dict(np.load(folder / "test.npz"))
    x = np.clip(np.concatenate([arrays["x"]] * 18), 0, 1)
    x[-1, 0, 0, 0] = 2.5
    np.savez(folder / "test.npz", x=x, y=np.concatenate([arrays["y"]] * 18))
    with pytest.raises(BnuqError, match=r"the examples of .* are images"):
        evaluated(folder, perturb=("shot@1",), normalize=None, methods=("deterministic",))


@pytest.mark.nightly  # the longest of this file
def test_a_segmentation_keeps_its_masks_and_refuses_what_moves_them(tmp_path: Path) -> None:
    folder = small_segmentation.write(tmp_path / "run").parent
    options = {"methods": ("mcbn",), "samples": 4, "ood": (), "calibrate": "off"}
    run = resolve("run.toml", Options(perturb=("all@5", "gaussian:0.2"), out=folder / "r.h5", **options), folder=folder)
    result = evaluate(run)
    assert result.shift is not None and not {"rotation", "translation", "occlusion"} & {*result.shift.families}
    of = result.shift.methods["mcbn"]
    place = result.shift.sets.index("test+gaussian:0.2")
    sets = result.methods["mcbn"].sets
    change = sets["test+gaussian:0.2"].estimates["accuracy"].value - sets["test"].estimates["accuracy"].value
    assert of.change[of.metrics.index("accuracy"), place] == pytest.approx(change)
    assert of.se[of.metrics.index("mean_iou"), place] > 0 and of.forecasts == ()
    assert "Shift of the inputs" in rendered(report, result, full=True)
    assert estimates_of(evaluation_file.read(folder / "r.h5")).keys() == estimates_of(result).keys()
    with pytest.raises(BnuqError, match="rotation@1 moves or hides what the masks name"):
        evaluate(resolve("run.toml", Options(perturb=("rotation@1",), **options), folder=folder))
