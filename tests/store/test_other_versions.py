"""Results of other versions: frozen files of bnuq 0.1.0 and 0.2.0 are read as they were, and what only another version
knows is left out by name. They are of `small_run`, `small_regression` and a sweep of the first, cut by --limit.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from made_up import with_test

from bnuq.catalogue import advised, text_of
from bnuq.config import Options, SamplerSettings, resolve_again
from bnuq.errors import RequestError, ResultError
from bnuq.findings import Finding, warning
from bnuq.gate import check
from bnuq.metrics.registry import METRICS
from bnuq.records import evaluation_file, multirun
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report import evaluation as evaluation_report
from bnuq.report.render import print_record
from bnuq.store import codec
from bnuq.studies.sweep import record as sweep
from bnuq.studies.sweep import view as sweep_report

FROZEN = Path(__file__).parent.parent / "frozen"
KNOWN: dict[str, dict[str, float]] = {  # of the frozen files, as bnuq 0.1.0 wrote them
    "classification": {
        "mcbn.sets.test.pll": -0.878716109992,
        "mcbn.ood.other.mutual_information.auroc": 0.180555555556,
    },
    "regression": {"mcbn.sets.test.pll": -3.24884074498, "mcbn.normalized.crps": -25.8205505107},
    "predictions": {  # by bnuq 0.2.0, beside the network: the method left with it
        "predictions.sets.test.pll": -1.176276895671648,
        "predictions.ood.other.mutual_information.auroc": 0.635,
    },
}
LEFT_OUT: dict[str, tuple[str, ...]] = {  # estimates of 0.1 or 0.2 that are gone: a note names them
    "classification": ("variation_ratio",),
    "regression": (),
    "predictions": ("variation_ratio", "zero_one_epistemic", "brier_epistemic"),
}


@pytest.fixture
def frozen(tmp_path: Path) -> Callable[[str], Path]:
    def unpacked(name: str) -> Path:
        path = tmp_path / f"{name}.h5"
        path.write_bytes(lzma.decompress((FROZEN / f"{name}.h5.xz").read_bytes()))
        return path

    return unpacked


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The file, with a change in the JSON of its record."""
    with h5py.File(path, "r+") as file:
        tree = json.loads(file["record"].asstr()[()])
        edit(tree)
        del file["record"]
        file["record"] = json.dumps(tree)
    return path


def left_out(findings: tuple[Finding, ...]) -> list[str]:
    """The names in the one note of what was left out."""
    [names] = [finding.values["names"] for finding in findings if finding.code == "made-by-another-version"]
    return sorted(names)


def of_this_version(result: Result) -> Result:
    """The result without estimates of the sets that this version does not know."""
    for name, method in result.methods.items():
        known = {metric: each for metric, each in method.sets["test"].estimates.items() if metric in METRICS}
        result = with_test(result, name, estimates=known)
    return result


@pytest.mark.parametrize("name", KNOWN)
def test_a_frozen_result_is_read_checked_and_reported(frozen: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    result = evaluation_file.read(frozen(name))
    estimates = estimates_of(result)
    assert {address: estimates[address].estimate.value for address in KNOWN[name]} == pytest.approx(KNOWN[name])
    assert {*LEFT_OUT[name]} == {*(left_out(result.findings) if LEFT_OUT[name] else ())}
    assert check(result, result).passed
    assert check(of_this_version(result), result).passed  # a baseline may have estimates that left
    print_record(evaluation_report.report, result, stream := io.StringIO(), full=True)
    assert ("mcbn" if name != "predictions" else "samples.npz, from other software") in stream.getvalue()
    if name == "predictions":
        with pytest.raises(RequestError, match=r"sampling\.predictions is not known\. It is gone: score the file with"):
            resolve_again(dict(result.run), result.path, Options(), folder=tmp_path)


def test_a_frozen_sweep_is_read_and_reported(frozen: Callable[[str], Path]) -> None:
    result = sweep.read(frozen("sweep"))
    assert [point.batch_size for point in result.points] == [8, 16, 32]
    assert "made-by-another-version" not in {finding.code for finding in result.findings}
    information = result.points[0].estimates["mutual_information"]["test"].estimate
    assert information.value == pytest.approx(0.00273008062836)
    print_record(sweep_report.report, result, stream := io.StringIO())
    assert "mini-batch" in stream.getvalue()


def add_everything(tree: dict[str, Any]) -> None:
    """A metric, a score, a method, fields and a kind of curve that no bnuq of today has."""
    method = tree["methods"]["mcbn"]
    estimate = method["sets"]["test"]["estimates"]["pll"]
    method["sets"]["test"]["estimates"]["pll_of_tomorrow"] = estimate
    method["bounds"]["tomorrow"] = {"pll": estimate}
    method["normalized"]["tomorrows"] = estimate
    scores = next(iter(method["ood"].values()))
    score = next(iter(scores))
    scores["score_of_tomorrow"] = scores[score]
    scores[score]["fpr99"] = estimate
    tree["methods"]["method-of-tomorrow"] = {"another": "structure"}
    tree["methods"]["method-of-tomorrow+temperature"] = method
    tree["field_of_tomorrow"] = {"any": ["thing"]}
    tree["sets"]["test"]["also_of_tomorrow"] = 7
    tree["findings"].append({"code": "new", "severity": "note", "values": {"a": 1}, "subject": "", "runs": None})

    tree["findings"].append({"code": "grave", "severity": "alarm", "values": {}, "subject": "", "runs": None})


ADDED = [
    "also_of_tomorrow", "field_of_tomorrow", "fpr99", "grave (alarm)", "group_of_tomorrow", "method-of-tomorrow",
    "method-of-tomorrow+temperature", "pll_of_tomorrow", "score_of_tomorrow", "tomorrow", "tomorrows",
]  # fmt: skip


@pytest.mark.parametrize("name", ["classification", "regression"])
def test_what_this_version_does_not_know_is_left_out_by_name_and_the_rest_is_compared(frozen, tmp_path, name):
    old = evaluation_file.read(frozen(name))
    newer = edited(frozen(name).rename(tmp_path / "newer.h5"), add_everything)
    with h5py.File(newer, "r+") as file:
        file["group_of_tomorrow/values"] = np.arange(3)
    result = evaluation_file.read(newer)
    assert left_out(result.findings) == sorted((*ADDED, *LEFT_OUT[name]))
    assert estimates_of(result).keys() == estimates_of(old).keys()
    print_record(evaluation_report.report, result, stream := io.StringIO(), full=True)
    assert " ".join(stream.getvalue().split()).count("made by another version of bnuq (0.1.0); left out, as this") == 1
    assert json.dumps(summary(result), allow_nan=False)
    for verdict in (check(result, old), check(old, result)):
        assert verdict.passed and verdict.gated == check(old, old).gated
        [said] = [each for each in verdict.findings if each.subject == str(newer) and "names" in each.values]
        assert left_out((said,)) == sorted((*ADDED, *LEFT_OUT[name]))
        assert text_of(said).startswith(f"{newer}: made by another version of bnuq (0.1.0)")


def test_a_known_estimate_that_is_missing_or_was_changed_is_damage_beside_unknown_ones(frozen):
    def without_accuracy(tree: dict[str, Any]) -> None:
        add_everything(tree)
        estimates = tree["methods"]["mcbn"]["sets"]["test"]["estimates"]
        estimates["accuracy_of_tomorrow"] = estimates.pop("accuracy")

    with pytest.raises(ResultError, match="estimate accuracy of mcbn on test is missing"):
        evaluation_file.read(edited(frozen("classification"), without_accuracy))
    old = evaluation_file.read(frozen("classification"))
    path = edited(frozen("classification"), add_everything)
    with h5py.File(path, "r+") as file:
        rows = [text.decode() for text in file["estimates/path"][()]]
        file["estimates/value"][rows.index("/methods/mcbn/sets/test/estimates/pll")] += 0.5
    with pytest.raises(ResultError, match=r"damaged: mcbn\.sets\.test\.pll is"):
        check(evaluation_file.read(path), old)


def test_what_cannot_be_read_of_a_newer_file_is_an_advice_to_update(frozen: Callable[[str], Path]) -> None:
    def with_another_task(tree: dict[str, Any]) -> None:
        tree["model"]["task"] = "ranking"

    path = edited(frozen("classification"), with_another_task)
    with pytest.raises(ResultError, match=r"damaged \(.*task.*\)\. Fetch it again, or repeat the run\.$"):
        evaluation_file.read(path)
    with h5py.File(path, "r+") as file:
        file.attrs["bnuq"] = "0.10.2"
    with pytest.raises(ResultError, match=r"Or update bnuq: 0\.10\.2 wrote it, and this is "):
        evaluation_file.read(path)


def test_scoring_by_a_setting_of_a_newer_version_is_read_and_not_comparable(frozen: Callable[[str], Path]) -> None:
    old = evaluation_file.read(frozen("regression"))

    def scored_otherwise(tree: dict[str, Any]) -> None:
        tree["run"]["scoring"]["setting_of_tomorrow"] = "on"

    newer = evaluation_file.read(edited(frozen("regression"), scored_otherwise))
    with pytest.raises(ResultError, match="scoring: setting_of_tomorrow is on now, the default in the baseline"):
        check(newer, old)


def test_a_switch_that_is_gone_is_ignored_if_off_and_else_named_and_not_comparable(frozen, tmp_path):
    def switched(tree: dict[str, Any], *, on: bool) -> None:
        tree["run"]["sampling"] |= {"per_query": on}

    old = evaluation_file.read(frozen("classification"))
    off = evaluation_file.read(edited(frozen("classification"), partial(switched, on=False)))
    assert off.run == old.run and off.findings == old.findings and check(off, old).passed
    assert resolve_again(dict(off.run), off.path, Options(), folder=tmp_path).sampler == SamplerSettings()
    on = evaluation_file.read(edited(frozen("classification"), partial(switched, on=True)))
    codes = [finding.values.get("names") for finding in on.findings if finding.code == "made-by-another-version"]
    assert ["per_query"] in codes
    with pytest.raises(ResultError, match="sampling: per_query is false now, true in the baseline"):
        check(old, on)
    with pytest.raises(RequestError, match=r"sampling\.per_query is not known"):
        resolve_again(dict(on.run), on.path, Options(), folder=tmp_path)


def test_what_was_renamed_is_read_under_its_name_of_today(frozen: Callable[[str], Path], tmp_path: Path) -> None:
    def with_old_names(tree: dict[str, Any]) -> None:
        tree["run"]["sampling"]["law_draws"] = 16
        tree["findings"].append(
            {"code": "law-unchecked", "severity": "warning", "values": {"methods": ["mcbn-chi2"]}, "subject": ""}
        )

    old = evaluation_file.read(edited(frozen("classification"), with_old_names))
    assert old.run["sampling"]["noise_model_draws"] == 16 and "law_draws" not in old.run["sampling"]
    assert [finding.code for finding in old.findings[-2:]] == ["without-digest", "made-by-another-version"]
    assert text_of(old.findings[-3]).startswith("mcbn-chi2: without a training set, the noise model cannot be compared")
    assert resolve_again(dict(old.run), old.path, Options(), folder=tmp_path).sampler == SamplerSettings(
        noise_model_draws=16
    )


def test_runs_and_sweeps_leave_out_unknown_estimates_too(frozen: Callable[[str], Path], tmp_path: Path) -> None:
    def swept(tree: dict[str, Any]) -> None:
        for point in tree["points"]:
            point["estimates"]["metric_of_tomorrow"] = {"test": "of any form"}
            point["auroc"]["score_of_tomorrow"] = {}

    assert left_out(sweep.read(edited(frozen("sweep"), swept)).findings) == ["metric_of_tomorrow", "score_of_tomorrow"]
    one = evaluation_file.read(frozen("regression"))
    runs = tuple(multirun.one_run(one, sha256="0" * 64, split=split, seed=0)[0] for split in (0, 1))
    values = {"mcbn.sets.test.pll": -1.0, "mcbn.sets.test.metric_of_tomorrow": 2.0, "new.sets.test.rmse": 3.0}
    several = multirun.Several(
        runs=runs, **multirun.table_of([values, values]), task="regression", findings=(), seconds=1.0,
        provenance={"bnuq": "0.1.0"},
    )  # fmt: skip
    codec.write(several, tmp_path / "several.h5")
    read = multirun.read(tmp_path / "several.h5")
    assert read.estimates == ("mcbn.sets.test.pll",) and read.values.tolist() == [[-1.0, -1.0]]
    assert left_out(read.findings) == ["metric_of_tomorrow", "new"]


def test_a_warning_that_this_version_does_not_know_is_named_with_what_to_do() -> None:
    finding = warning("of-tomorrow", layers=["a", "b"])
    said = "of-tomorrow, which another version of bnuq found and this one does not know: layers: ['a', 'b']"
    assert advised([finding]) == ((said, "of-tomorrow", "Update bnuq: a newer version explains this finding."),)
