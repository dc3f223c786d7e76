"""Figures by class and by group: against loops over the points, in every view, and gated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from sklearn.metrics import roc_auc_score

from bnuq.errors import ResultError
from bnuq.gate import check
from bnuq.gate.checking import recomputed
from bnuq.gate.settings import GateSettings
from bnuq.records.addresses import address_of, coordinates_of, estimates_of
from bnuq.records.evaluation import Result, parts_of
from bnuq.records.evaluation_file import read
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.first_screen import findings

N, T, NAMES = 150, 8, ("coat", "shirt.v2", "boot")
RUN = small_run.RUN.replace("samples = 8", f'samples = {T}\nmethods = ["mcbn", "mcdo"]').replace(
    'ood = ["other.npz"]\n', ""
)
Evaluated = Callable[..., Result]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """The tiny network on points that it predicts, and one in which class "boot" has collapsed."""
    folder = tmp_path_factory.mktemp("classes") / "work"
    small_run.write(folder, text=RUN)
    state = torch.load(folder / "model.pt", weights_only=True)
    model = small_run.network().eval()
    model.load_state_dict(state)
    x = np.random.default_rng(3).normal(0.5, 0.3, (N, 1, 6, 6)).astype(np.float32)
    with torch.no_grad():
        z = model(torch.from_numpy(x))
    state["7.bias"] = state["7.bias"] - z.median(0).values  # all classes are predicted
    torch.save(state, folder / "model.pt")
    y = (z - z.median(0).values).argmax(1).numpy()
    y[::9] = (y[::9] + 1) % 3
    np.savez(folder / "test.npz", x=x, y=y, group=np.arange(N) // 30, classes=np.array(NAMES))
    state["7.bias"] = state["7.bias"] - torch.tensor([0.0, 0.0, 50.0])
    torch.save(state, folder / "collapsed.pt")
    (folder / "collapsed.toml").write_text(RUN.replace("model.pt", "collapsed.pt"))

    def once(name: str, **options: Any) -> Result:
        path = folder / f"{name}.h5"
        if not path.exists():
            small_run.evaluated(folder, out=path, **options)
        return read(path)

    return once


@pytest.fixture(scope="module")
def result(evaluated: Evaluated) -> Result:
    return evaluated("result")


def test_figures_by_class_and_group_are_those_of_loops_over_the_points(result: Result) -> None:
    test = result.sets["test"]
    for name, method in result.methods.items():
        found = method.sets["test"]
        for place, parts, values in (("by_class", range(3), test.labels), ("by_group", range(5), test.group)):
            names = NAMES if place == "by_class" else tuple("01234")
            assert tuple(getattr(found, place)) == names
            for k in parts:
                mine = [i for i in range(N) if values[i] == k]
                estimates = getattr(found, place)[names[k]]
                assert estimates["count"].value == len(mine) >= 20
                assert estimates["accuracy"].value == pytest.approx(
                    sum(found.predicted[i] == test.labels[i] for i in mine) / len(mine)
                )
                assert estimates["pll"].value == pytest.approx(sum(found.points["pll"][i] for i in mine) / len(mine))
                assert (estimates["pll"].mc_se is not None) == (name in result.sampled)
        for k in range(5):  # within a group points are independent
            mine = [found.points["pll"][i] for i in range(N) if test.group[i] == k]
            assert found.by_group[str(k)]["pll"].se == pytest.approx(np.std(mine, ddof=1) / np.sqrt(len(mine)))


def test_replicates_by_class_are_those_of_the_likelihoods_of_the_draws(result: Result) -> None:
    found, labels = result.methods["mcdo"].sets["test"], result.sets["test"].labels
    likelihood = np.exp(found.log_likelihood[:, labels == 1])
    expected = [np.mean(np.log(np.delete(likelihood, t, axis=0).mean(0))) for t in range(T)]
    np.testing.assert_allclose(found.by_class["shirt.v2"]["pll"].jackknife, expected, rtol=1e-9)


def test_the_error_of_a_class_goes_by_the_groups_of_its_points(result: Result) -> None:
    test, points = result.sets["test"], result.methods["mcbn"].sets["test"].points["pll"]
    mine = np.flatnonzero(test.labels == 0)
    away = points[mine] - points[mine].mean()
    totals = [sum(away[test.group[mine] == g]) for g in range(5)]
    expected = np.sqrt(5 / 4 * sum(total**2 for total in totals)) / len(mine)
    assert result.methods["mcbn"].sets["test"].by_class["coat"]["pll"].se == pytest.approx(expected)


def test_errors_and_coverage_by_class_and_group_are_those_of_their_points(evaluated: Evaluated) -> None:
    result = evaluated("validated", validation="train.npz", calibrate="validation")
    test = result.sets["test"]
    for method in result.methods.values():
        found = method.sets["test"]
        for parts, values in ((found.by_class, np.array(NAMES)[test.labels]), (found.by_group, test.group.astype(str))):
            for name, estimates in parts.items():
                mine = values == name
                wrong = found.points["accuracy"][mine] == 0
                if 1 < wrong.sum() < mine.sum() - 1:
                    expected = roc_auc_score(wrong, found.points["predictive_entropy"][mine])
                    assert estimates["auroc_errors"].value == pytest.approx(expected)
                for sets in ("set_coverage", "set_coverage_aps"):
                    assert estimates[sets].value == pytest.approx(found.points[sets][mine].mean())
                    assert estimates[sets].se is not None
    assert any("auroc_errors" in estimates for estimates in found.by_class.values())
    recomputed(result)


def test_a_class_has_an_address_whatever_its_name(result: Result) -> None:
    for kind, place, name in (("class", "by_class", "shirt.v2"), ("group", "by_group", "3")):
        address = f"mcbn.sets.test.{place}.{name}.accuracy"
        assert address in estimates_of(result)
        assert coordinates_of(address) == {"method": "mcbn", "set": "test", kind: name, "metric": "accuracy"}
        assert address_of(coordinates_of(address)) == address
    by_class = summary(result)["methods"]["mcbn"]["sets"]["test"]["by_class"]
    assert by_class.keys() == {*NAMES} and by_class["boot"].keys() == {*("count", "accuracy", "pll", "auroc_errors")}
    assert by_class["boot"]["accuracy"].keys() == {"value", "se", "mc_se", "low", "high"}


def test_a_collapsed_class_is_gated_and_the_same_network_passes(result: Result, evaluated: Evaluated) -> None:
    every = GateSettings.of(estimates=["*", "by-class"])
    again = check(evaluated("again", seed=1), result, every)
    assert again.passed
    gated = {one.metric for one in again.comparisons if one.of_class and one.outcome != "not gated"}
    assert gated == {"accuracy"} and "count" not in {one.metric for one in again.comparisons}
    verdict = check(evaluated("collapsed", run_file="collapsed.toml"), result, every)
    worse = {one.address for one in verdict.worse if one.of_class}
    assert {"deterministic.sets.test.by_class.boot.accuracy", "mcbn.sets.test.by_class.boot.accuracy"} <= worse
    assert {one.of_class for one in verdict.worse} <= {"", "boot"}
    settings = GateSettings.of(estimates=["*"], tolerances=["pll=0.5", "mcbn.sets.test.by_class.coat.pll=0"])
    gated = {
        one.address
        for one in check(evaluated("again", seed=1), result, settings).comparisons
        if one.outcome != "not gated" and one.metric == "pll"
    }
    assert gated >= {"mcbn.sets.test.pll", "mcbn.sets.test.by_class.coat.pll"}
    assert not {address for address in gated if "by_" in address} - {"mcbn.sets.test.by_class.coat.pll"}


def test_a_collapsed_class_is_a_sentence_of_the_report_and_all_are_tables_of_the_full_one(
    result: Result, evaluated: Evaluated
) -> None:
    assert [*findings(result)] == []
    collapsed = evaluated("collapsed", run_file="collapsed.toml")
    shown = report(collapsed)
    assert any("boot (0 % of" in text for text in shown.summary)
    titles = [section.title for section in shown.sections]
    section = shown.sections[titles.index("By class")]
    assert [row[0] for row in section.parts[1].rows] == [*NAMES] and "By group" in titles


@pytest.mark.parametrize("metric", ["accuracy", "pll", "count", "auroc_errors"])
def test_damaged_estimates_of_a_class_are_refused(result: Result, metric: str) -> None:
    method = result.methods["mcbn"]
    test = method.sets["test"]
    estimate = test.by_class["boot"][metric]
    bad = replace(estimate, value=estimate.value - 0.02)
    by_class = {**test.by_class, "boot": {**test.by_class["boot"], metric: bad}}
    method = replace(method, sets={**method.sets, "test": replace(test, by_class=by_class)})
    with pytest.raises(ResultError, match="boot"):
        recomputed(replace(result, methods={**result.methods, "mcbn": method}))


def test_the_report_says_that_small_classes_are_left_out(result: Result) -> None:
    def texts(shown: Result) -> str:
        return str([section.parts for section in report(shown).sections if section.title == "By class"])

    test = result.sets["test"]
    few = np.r_[test.labels[:-1], 99]
    assert "of fewer than 20 examples is left out" not in texts(result)
    assert "A class of fewer than 20 examples is left out." in texts(
        replace(result, sets={**result.sets, "test": replace(test, labels=few)})
    )


def test_few_points_have_no_figures_and_of_many_classes_those_with_the_most_points_have() -> None:
    counts = np.r_[np.full(700, 19), np.arange(20, 320)]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(1000), counts))
    by_class = parts_of(labels, (), None)["class"]
    assert [*by_class] == [str(k) for k in range(900, 1000)]
    assert all((labels[rows] == int(name)).all() and len(rows) == counts[int(name)] for name, rows in by_class.items())
    assert parts_of(np.zeros(19, np.int64), ("a",), None) == {"class": {}}
    assert {kind: [*of] for kind, of in parts_of(np.zeros(30, np.int64), ("a",), np.full(30, 7)).items()} == {
        "class": ["a"],
        "group": ["7"],
    }
    assert parts_of(None, (), None) == parts_of(np.zeros((30, 2), np.int64), (), None) == {}
    assert [*parts_of(np.full(30, 1), ("same", "same"), None)["class"]] == ["1"]
