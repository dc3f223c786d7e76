"""Classwise ECE and prediction sets of samples, against loops over points, classes and replicates in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of
from scipy.special import softmax

from bnuq.config import Options, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.tasks import class_probabilities, classification
from bnuq.evaluation.tasks.class_probabilities import PredictionSets
from bnuq.evaluation.units import Gathered
from bnuq.gate import check
from bnuq.gate.settings import GateSettings
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report import tasks

pytestmark = pytest.mark.less
T, N, K = 9, 40, 4
NAMES = ("ece_classwise", "set_size", "set_coverage", "set_size_aps", "set_coverage_aps")
LABELS = np.random.default_rng(5).integers(K, size=N)
SECOND = np.random.default_rng(6).permutation(N) < N // 2


def logits_of(samples: int = T, points: int = N) -> np.ndarray:
    random = np.random.default_rng(0)
    return 2 * random.normal(size=(1, points, K)) + random.normal(size=(samples, points, K))


def scores_by_hand(p: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of all classes of each point, by the kind of set."""
    aps = [[sum(q for q in row if q > row[k]) for k in range(len(row))] for row in p]
    return {"": 1 - p, "_aps": np.array(aps)}


def threshold_by_hand(scores: np.ndarray, coverage: float) -> float:
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def sets_by_hand(p: np.ndarray, y: np.ndarray, thresholds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for kind, scores in scores_by_hand(p).items():
        inside = scores <= thresholds[kind][:, None] + 1e-6  # where the threshold is that of a point itself
        found |= {f"set_size{kind}": inside.sum(1), f"set_coverage{kind}": inside[np.arange(len(y)), y]}
    return found


def crossed_by_hand(p: np.ndarray, y: np.ndarray, second: np.ndarray, coverage: float) -> dict[str, np.ndarray]:
    """The threshold of every point, that of the half without it."""
    true = {kind: scores[np.arange(len(y)), y] for kind, scores in scores_by_hand(p).items()}
    return {
        kind: np.where(second, *(threshold_by_hand(scores[half], coverage) for half in (~second, second)))
        for kind, scores in true.items()
    }


def signs_by_hand(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    signs = np.zeros(p.shape)
    for k in range(p.shape[1]):
        for b in range(15):
            inside = (p[:, k] > b / 15) & (p[:, k] <= (b + 1) / 15)
            signs[inside, k] = np.sign(((y[inside] == k) - p[inside, k]).sum())
    return signs


def classwise_by_hand(p: np.ndarray, y: np.ndarray, signs: np.ndarray) -> np.ndarray:
    return (signs * ((y[:, None] == np.arange(p.shape[1])) - p)).sum(1) / p.shape[1]


def reduced(logits: np.ndarray, sets: PredictionSets, *, labels: np.ndarray = LABELS, chunk: int = 1000) -> Any:
    reduction = classification.ClassReduction(
        replicate_weights(len(logits)), points=logits.shape[1], labels=labels, sets=sets
    )
    for start in range(0, logits.shape[1], chunk):
        reduction.add(logits[:, start : start + chunk])
    return reduction.scores()


@pytest.mark.parametrize(("chunk", "kept"), at_night.but({(1000, N), (7, 25)}, [(1000, N), (7, N), (7, 25)]))
@pytest.mark.parametrize("cross", [True, False])
def test_every_value_and_every_replicate_is_that_of_loops(chunk, kept, cross, monkeypatch):
    draws, p_draws = replicate_weights(T), softmax(logits_of(), axis=-1)
    p = p_draws.mean(0)
    fixed = {"": 0.7001, "_aps": 0.8001}
    thresholds = {kind: np.full(N, value) for kind, value in fixed.items()}
    sets = PredictionSets(0.8, {"": fixed[""] - 1, "_aps": fixed["_aps"]})
    if cross:
        thresholds, sets = crossed_by_hand(p, LABELS, SECOND, 0.8), PredictionSets(0.8, second=SECOND)
    replicates = draws.bootstrap.stop - draws.jackknife.start
    monkeypatch.setattr(class_probabilities, "_REPLICATED", kept * replicates * K)
    monkeypatch.setattr(class_probabilities, "_BLOCK", 50)
    rows = sets.rows_of_draws(N, K, draws)
    assert len(set(rows)) == kept
    signs = signs_by_hand(p, LABELS)

    def by_hand(weight: np.ndarray) -> dict[str, np.ndarray]:
        mean = np.tensordot(weight, p_draws, 1)
        return {"ece_classwise": classwise_by_hand(mean, LABELS, signs)} | sets_by_hand(mean, LABELS, thresholds)

    scores = reduced(logits_of(), sets, chunk=chunk)
    found, full = classification.set_estimates(scores, draws), by_hand(draws.weights[0])
    assert set(found) >= {*NAMES}
    for name in NAMES:
        np.testing.assert_allclose(scores.points[name], full[name], atol=1e-6, err_msg=name)
        moved = [by_hand(weight)[name][rows].mean() for weight in draws.weights[: draws.bootstrap.stop]]
        expected = (full[name].mean() + np.array(moved) - moved[0]).clip(0, 1 if "size" not in name else K)
        for part in (draws.full, draws.jackknife, draws.bootstrap):
            np.testing.assert_allclose(scores.replicates[name][part], expected[part], atol=1e-6, err_msg=name)
        assert found[name].value == pytest.approx(full[name].mean(), abs=1e-6)
        assert found[name].se == pytest.approx(np.std(full[name], ddof=1) / math.sqrt(N), rel=1e-5)


def test_a_single_sample_has_the_values_and_no_monte_carlo_error() -> None:
    logits = logits_of(1)
    found = classification.set_estimates(reduced(logits, PredictionSets(0.8, second=SECOND)), replicate_weights(1))
    p = softmax(logits[0], axis=-1)
    expected = sets_by_hand(p, LABELS, crossed_by_hand(p, LABELS, SECOND, 0.8))
    assert {name: found[name].value for name in expected} == pytest.approx({k: v.mean() for k, v in expected.items()})
    assert all(found[name].mc_se is None for name in NAMES)


def test_replicates_of_a_bank_are_those_of_each_tiles_own_draws() -> None:
    bank, samples, points, tile = 12, 8, 40, 10
    draws, p_bank = replicate_weights(samples, bank), softmax(logits_of(bank, points), axis=-1)
    labels, random = LABELS[:points], np.random.default_rng(1)
    sets = PredictionSets(0.8, {"": -0.3001, "_aps": 0.8001})
    thresholds = {"": np.full(points, 0.6999), "_aps": np.full(points, 0.8001)}
    reduction = classification.ClassReduction(draws, points=points, labels=labels, sets=sets)
    numbers = [np.sort(random.permutation(bank)[:samples]) for _ in range(points // tile)]
    for at, of_tile in enumerate(numbers):
        reduction.add(np.log(p_bank[of_tile, at * tile : (at + 1) * tile]), of_tile)
    scores = reduction.scores()

    def mean_by(weight: np.ndarray) -> np.ndarray:
        parts = []
        for at, of_tile in enumerate(numbers):
            restricted = weight[of_tile] if weight[of_tile].sum() else np.ones(samples)
            part = p_bank[of_tile, at * tile : (at + 1) * tile]
            parts.append(np.tensordot(restricted / restricted.sum(), part, 1))
        return np.concatenate(parts)

    signs = signs_by_hand(mean_by(draws.weights[0]), labels)
    for row in range(draws.bootstrap.stop):
        p = mean_by(draws.weights[row])
        expected = {"ece_classwise": classwise_by_hand(p, labels, signs)} | sets_by_hand(p, labels, thresholds)
        for name in NAMES:
            assert scores.replicates[name][row] == pytest.approx(expected[name].mean(), abs=1e-6), (name, row)


def test_units_merge_to_the_same_wherever_they_are_cut() -> None:
    sets, weights, logits = PredictionSets(0.8, second=SECOND), replicate_weights(T), torch.from_numpy(logits_of())

    def scores(cuts: tuple[int, ...]) -> dict[str, Any]:
        units = []
        for first, last in zip((0, *cuts), (*cuts, N), strict=True):
            part = classification.ClassReduction(weights, points=N, labels=LABELS, first=first, sets=sets)
            for start in range(first, last, 10):
                part.add(logits[:, start : start + 10])
            units.append(part.arrays())
        whole = classification.ClassReduction(weights, points=N, labels=LABELS, sets=sets).scores(Gathered(units))
        return whole.replicates | {f"points.{name}": values for name, values in whole.points.items()}

    expected = scores(())
    for name, values in scores((10, 30)).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


# ── whole evaluations ────────────────────────────────────────────────────────────────────────────────────────────────


HELD_OUT = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("sets") / "run").parent
    x = np.random.default_rng(4).normal(0.5, 0.3, (HELD_OUT, 1, 6, 6)).astype(np.float32)
    np.savez(folder / "held_out.npz", x=x, y=np.zeros(HELD_OUT, dtype=int))
    y = small_run.logits_of(folder, "held_out").argmax(1)
    y[::6] = (y[::6] + 1) % small_run.CLASSES
    np.savez(folder / "held_out.npz", x=x, y=y)
    return folder


@pytest.fixture(scope="module")
def validated(folder: Path) -> Result:
    return small_run.evaluated(folder, validation="held_out.npz", methods=("mcbn",), out="validated.h5")


@pytest.fixture(scope="module")
def crossed(folder: Path) -> Result:
    return small_run.evaluated(
        folder, calibrate="cross", methods=("mcbn",), ood=(), save_samples=True, out="crossed.h5"
    )


def check_points(result: Result, method: str, expected: dict[str, np.ndarray]) -> None:
    test = result.methods[method].sets["test"]
    for name, values in expected.items():
        np.testing.assert_allclose(test.points[name], values, err_msg=f"{method} {name}")
        assert test.estimates[name].value == pytest.approx(values.mean())


def test_thresholds_of_validation_points_make_the_sets_of_the_test_points(folder: Path, validated: Result) -> None:
    y, y_test = (np.load(folder / f"{name}.npz")["y"] for name in ("held_out", "test"))
    for method, temperature in (
        ("deterministic", 1.0),
        *values_of(validated, "temperature-fitted")["temperatures"][:1],
    ):
        p, p_test = (softmax(small_run.logits_of(folder, name) / temperature, axis=-1) for name in ("held_out", "test"))
        thresholds = {
            kind: np.full(small_run.TEST, threshold_by_hand(scores[np.arange(HELD_OUT), y], 0.9))
            for kind, scores in scores_by_hand(p).items()
        }
        check_points(validated, method, sets_by_hand(p_test, y_test, thresholds))
    assert not any("set_size" in name for name in validated.methods["mcbn"].sets["other"].estimates)


def test_each_half_of_the_test_set_has_the_thresholds_of_the_other(folder: Path, crossed: Result) -> None:
    import h5py

    y, test = np.load(folder / "test.npz")["y"], crossed.sets["test"]

    halves = {method: pair for method, *pair in values_of(crossed, "temperature-cross-fitted")["temperatures"]}
    fitted_to_first = halves["deterministic+temperature"][0]
    second = crossed.methods["deterministic+temperature"].sets["test"].points["temperature"] == fitted_to_first
    with h5py.File(folder / "crossed.h5") as file:
        samples = file["posterior_predictive/mcbn_test"][0].astype(np.float64)
    for method, logits in (("deterministic", small_run.logits_of(folder, "test")[None]), ("mcbn", samples)):
        for name in (method, f"{method}+temperature"):
            temperature = crossed.methods[name].sets["test"].points.get("temperature", np.ones(test.n))
            p = softmax(logits / temperature[:, None], axis=-1).mean(0)
            check_points(crossed, name, sets_by_hand(p, y, crossed_by_hand(p, y, second, 0.9)))
            classwise = classwise_by_hand(p, y, signs_by_hand(p, y)).mean()
            value = crossed.methods[name].sets["test"].estimates["ece_classwise"].value
            assert value == pytest.approx(classwise, abs=1e-6)


def test_points_of_a_group_are_judged_by_the_same_threshold(folder: Path) -> None:
    data = np.load(folder / "test.npz")
    group = np.arange(small_run.TEST) // 2
    np.savez(folder / "pairs.npz", x=data["x"][group], y=data["y"][group], group=group)  # both points are the same
    given = {"methods": ("deterministic",), "ood": (), "out": "g.h5"}
    result = small_run.evaluated(folder, test="pairs.npz", calibrate="cross", **given)
    for name in NAMES[1:]:
        values = result.methods["deterministic"].sets["test"].points[name]
        np.testing.assert_array_equal(values[::2], values[1::2], err_msg=name)


@pytest.mark.held(False)
def test_the_nominal_coverage_is_a_setting(folder: Path, crossed: Result) -> None:
    tight = small_run.evaluated(folder, calibrate="cross", methods=("mcbn",), ood=(), set_coverage=0.6, out="tight.h5")
    for name in NAMES[1:]:
        values = (each.methods["mcbn"].sets["test"].estimates[name].value for each in (tight, crossed))
        assert next(values) < next(values), name
    assert any("nominal coverage of 60 %" in text for text in tasks.legend(tight))
    with pytest.raises(ResultError, match=r"scoring: set_coverage is 0\.6 now, 0\.9 in the baseline"):
        check(tight, crossed)
    assert check(tight, crossed, GateSettings.of(allow=["scoring"])).comparisons
    for wrong in (0, 1, "much"):
        with pytest.raises(RequestError, match=r"set.coverage.*a number above 0 and below 1, such as 0\.9"):
            resolve("run.toml", Options(set_coverage=wrong), folder=folder)


@pytest.mark.held(False)
def test_nothing_fitted_leaves_no_sets_and_too_few_points_leave_all_classes(folder: Path) -> None:
    given = {"methods": ("deterministic",), "ood": ()}
    off = small_run.evaluated(folder, validation="held_out.npz", calibrate="off", out="off.h5", **given)
    for method in off.methods.values():
        assert {name for name in NAMES if name in method.sets["test"].estimates} == {"ece_classwise"}
    data = np.load(folder / "held_out.npz")
    np.savez(folder / "few.npz", x=data["x"][:5], y=data["y"][:5])
    for method in small_run.evaluated(folder, validation="few.npz", out="few.h5", **given).methods.values():
        values = [method.sets["test"].estimates[name].value for name in NAMES[1:]]
        assert values == [small_run.CLASSES, 1, small_run.CLASSES, 1]


@pytest.mark.held(False)
def test_the_file_holds_it_and_the_gate_compares_it(folder: Path, validated: Result, crossed: Result) -> None:
    for result, path in ((validated, "validated.h5"), (crossed, "crossed.h5")):
        read = evaluation_file.read(folder / path)
        assert summary(read)["methods"] == summary(result)["methods"]
        assert "probabilities" not in read.methods["mcbn"].sets["test"].points
    other = small_run.evaluated(folder, calibrate="cross", methods=("mcbn",), ood=(), seed=1, out="seed1.h5")
    settings = GateSettings.of(tolerances=[f"{name}=0.9" for name in NAMES])
    compared = {one.address: one for one in check(other, crossed, settings).comparisons}
    for name in NAMES:
        for method in ("mcbn", "mcbn+temperature"):
            one = compared[f"{method}.sets.test.{name}"]
            assert one.outcome != "not gated"


@pytest.mark.held(False)
def test_more_probabilities_than_are_kept_leave_both_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_probabilities, "MOST_BYTES", 4 * small_run.TEST * small_run.CLASSES - 1)
    result = small_run.evaluated(folder, calibrate="cross", methods=("mcbn",), ood=(), out="many.h5")
    values = {"set": "test", "points": small_run.TEST, "classes": small_run.CLASSES}
    assert values_of(result, "probabilities-not-kept") == values
    for method in result.methods.values():
        assert not {*NAMES} & {*method.sets["test"].estimates}
    assert "mcbn+temperature" in result.methods and "temperature-cross-fitted" in noted(result)
