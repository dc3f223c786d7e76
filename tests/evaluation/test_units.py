"""Units of work: an interrupted evaluation goes on from the finished ones, and the result is bitwise the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted

from bnuq.config import Options, ScoringSection, resolve
from bnuq.errors import ResultError
from bnuq.evaluation import scoring
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.executors import UnitExecutor, _agree
from bnuq.evaluation.tasks import class_reduction, classification, regression
from bnuq.evaluation.units import Gathered, WorkUnit
from bnuq.files import mapped
from bnuq.files.journal import Arrays, Journal, requests_at
from bnuq.files.places import Folder
from bnuq.progress import silent
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.sampling.engine import Stochastic
from bnuq.workflows.evaluate import evaluate

pytestmark = pytest.mark.held(False)
METHODS = ("mcbn", "mcdo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_run.write(tmp_path).parent


def evaluated(folder: Path, name: str = "out.h5", **options: Any) -> Result:
    given = {"methods": METHODS, "samples": 8, "chunk_size": 20} | options
    return small_run.evaluated(folder, out=folder / name, **given)


# ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def unit(number: int) -> WorkUnit:
    return WorkUnit("mcbn", "test", "0123456789", range(number, number + 1), range(8))


def test_units_that_are_finished_are_not_run_and_all_come_in_order(tmp_path: Path) -> None:
    ran: list[WorkUnit] = []

    def run(units: tuple[WorkUnit, ...]) -> list[Arrays]:
        ran.extend(units)
        return [{"points": np.array(each.points.start)} for each in units]

    executor = UnitExecutor(Journal(tmp_path, {}))
    list(executor.run([(unit(1),), (unit(2),)], run))
    ran.clear()
    groups = [(unit(0), unit(1)), (unit(2),), (unit(3), unit(4))]
    found = [tuple(int(arrays["points"]) for arrays in group) for group in executor.run(groups, run)]
    assert found == [(0, 1), (2,), (3, 4)]
    assert ran == [unit(0), unit(3), unit(4)]


def test_no_two_addresses_share_a_name() -> None:
    ranges = (range(1), range(11), range(1, 11), range(1, 1))
    units = [
        WorkUnit(method, name, sha256, points, draws, size)
        for method in ("mcbn", "mcbn+mcdo")
        for name, sha256 in (("test", "a" * 64), ("test", "b" * 64), ("other-set", "a" * 64))
        for points in ranges
        for draws in ranges
        for size in (None, 1, 16)
    ]
    assert len({each.name for each in units}) == len(units)


def reductions(kind: str) -> Callable[[int], Any]:
    weights, random = replicate_weights(8), np.random.default_rng(0)
    if kind == "classification":
        labels = random.integers(0, 3, 50)
        return lambda first: classification.ClassReduction(weights, points=50, labels=labels, first=first)
    targets = random.normal(size=(50, 3))
    fitted = regression.NoiseFit(np.full(len(weights.weights), 2.0), None)
    scoring = ScoringSection()
    return lambda first: regression.RegressionReduction(
        weights, points=50, scoring_by=scoring, targets=targets, fitted=fitted, first=first
    )


@pytest.mark.held
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_units_merge_bitwise_to_the_scores_of_all_points_wherever_they_are_cut(kind, monkeypatch):
    monkeypatch.setattr(class_reduction, "_BLOCK", 8 * 120 * 3)  # several blocks a unit
    make = reductions(kind)
    blocks = torch.randn(8, 50, 3, generator=torch.Generator().manual_seed(0)).split(10, dim=1)
    whole = make(0)
    for block in blocks:
        whole.add(block)
    expected = vars(whole.scores())
    for cuts, in_memory in (((1, 2, 3, 4), 2**20), ((2,), 0), ((1, 4), 2000)):
        monkeypatch.setattr(mapped, "_IN_MEMORY", in_memory)
        units = []
        for first, last in zip((0, *cuts), (*cuts, 5), strict=True):
            part = make(10 * first)
            for block in blocks[first:last]:
                part.add(block)
            units.append(part.arrays())
        assert_same(vars(make(0).scores(Gathered(units))), expected)


def assert_same(found: Any, expected: Any) -> None:
    """Bitwise, NaN included."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected))
    else:
        assert found == expected


# ── interrupted evaluations ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The units that are computed; "stop" is after how many of them the run is interrupted."""
    log: dict[str, Any] = {"units": [], "passes": 0, "stop": None}
    plain, passes = scoring.run_unit, Stochastic.passes

    def logged(context: scoring.UnitScoring, unit: WorkUnit) -> Arrays:
        if len(log["units"]) == log["stop"]:
            raise KeyboardInterrupt
        log["units"].append(unit.name)
        return plain(context, unit)

    def counted(self: Stochastic, inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
        log["passes"] += len(inputs)
        return passes(self, inputs, *rest)

    monkeypatch.setattr(scoring, "run_unit", logged)
    monkeypatch.setattr(Stochastic, "passes", counted)
    return log


def estimates(result: Result) -> dict[str, Any]:
    return {name: vars(method) for name, method in result.methods.items()}


AUTO = {"samples": "auto", "mc_error": 0.3, "max_samples": 32, "ood": (), "limit": 40}


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 4},
        pytest.param({"bank": 24, "methods": ("mcbn+mcdo",), "ood": ()}, marks=pytest.mark.nightly),
        pytest.param(AUTO | {"methods": ("mcbn",), "save_samples": True}, marks=pytest.mark.nightly),
        pytest.param(AUTO | {"methods": ("tta", "mcbn+tta"), "augment": "flip"}, marks=pytest.mark.nightly),
    ],
    ids=["samples", "bank", "auto", "augmentation"],
)
def test_an_interrupted_evaluation_goes_on_and_equals_an_undisturbed_one(folder, ran, options):
    evaluated(folder, "whole.h5", **options)
    units, passes = list(ran["units"]), ran["passes"]
    ran |= {"units": [], "passes": 0, "stop": len(units) // 2}
    with pytest.raises(KeyboardInterrupt) as stopped:
        evaluated(folder, **options)
    assert "out.h5.work: the same command resumes" in stopped.value.__notes__[0]
    assert not (folder / "out.h5").exists()
    before, ran["stop"], ran["units"] = list(ran["units"]), None, []
    result = evaluated(folder, **options)
    assert before + ran["units"] == units  # each once
    assert ran["passes"] == passes
    assert "evaluation-continued" in noted(result)
    assert not (folder / "out.h5.work").exists()
    whole, again = (read(folder / name) for name in ("whole.h5", "out.h5"))
    assert_same(estimates(again), estimates(whole))
    assert_same(again.bank, whole.bank)
    assert {name: work.passes for name, work in again.work.methods.items()} == {
        name: work.passes for name, work in whole.work.methods.items()
    }


@pytest.mark.nightly
def test_the_draws_of_the_mini_batches_are_not_repeated(folder: Path, ran: dict[str, Any]) -> None:
    ran["stop"] = 7  # the sixth unit is the last of the deterministic network
    with pytest.raises(KeyboardInterrupt):
        evaluated(folder)
    ran["stop"] = None
    titles: list[str] = []

    def progress(title: str, total: int) -> Any:
        titles.append(title)
        return silent(title, total)

    options = Options(methods=METHODS, samples=8, chunk_size=20, out=folder / "out.h5")
    evaluate(resolve("run.toml", options, folder=folder), progress=progress)
    assert titles and not any(title.startswith("Drawing") for title in titles)


def changed_points(folder: Path, name: str = "test") -> dict[str, Any]:
    with np.load(folder / f"{name}.npz") as file:
        np.savez(folder / f"{name}.npz", x=file["x"] + 0.01, y=file["y"])
    return {}


def changed_reference(folder: Path) -> dict[str, Any]:
    return changed_points(folder, "train")


def changed_code(folder: Path) -> dict[str, Any]:
    (folder / "net.py").write_text(small_run.NET.replace("nn.ReLU(),\n        nn.Drop", "nn.GELU(),\n        nn.Drop"))
    return {}


@pytest.mark.parametrize("change", at_night.but({changed_code}, [changed_points, changed_reference, changed_code]))
def test_units_of_anything_else_are_not_taken(folder, ran, change):
    ran["stop"] = 2  # the deterministic network comes last: these are of MCBN
    options: dict[str, Any] = {"methods": ("mcbn",), "ood": ()}
    with pytest.raises(KeyboardInterrupt):
        evaluated(folder, **options)
    ran |= {"stop": None, "units": []}
    options |= change(folder)
    found = evaluated(folder, **options)
    assert_same(estimates(read(found.path)), estimates(read(evaluated(folder, "whole.h5", **options).path)))
    assert "evaluation-continued" not in noted(found) or change is changed_points  # ω is that of the reference


# ── units that somebody else put there ───────────────────────────────────────────────────────────────────────────────


def interrupted(folder: Path, ran: dict[str, Any], stop: int, work: Path | None = None) -> Path:
    """The folder of the units of the run, which was interrupted after so many."""
    ran |= {"units": [], "stop": stop}
    with pytest.raises(KeyboardInterrupt):
        resumed(folder, work)
    ran |= {"stop": None, "finished": ran["units"], "units": []}
    return work or folder / "out.h5.work"


def resumed(folder: Path, work: Path | None = None) -> Result:
    options = Options(methods=METHODS, samples=8, chunk_size=20, ood=(), out=folder / "out.h5")
    return evaluate(resolve("run.toml", options, folder=folder), work=work)


@pytest.mark.parametrize("named", at_night.but({False}, [False, True]))  # what is named, the next holds
def test_units_of_good_weights_under_the_names_of_bad_ones_are_computed_again(folder, ran, named):
    work = folder / "mine" if named else None
    place = interrupted(folder, ran, 8, work)
    [good] = requests_at(Folder(place))
    units = {path.name.removeprefix(good): path.read_bytes() for path in place.glob("*.part")}
    shutil.rmtree(place)
    torch.save({name: 0.5 * value for name, value in torch.load(folder / "model.pt").items()}, folder / "model.pt")
    interrupted(folder, ran, 1, work)
    [bad] = requests_at(Folder(place))
    for name, content in units.items():
        (place / f"{bad}{name}").write_bytes(content)
    found = resumed(folder, work)
    assert len(units) > 8 and len(ran["units"]) == 12  # all of them, three with population statistics
    assert_same(estimates(read(found.path)), estimates(read(evaluated(folder, "honest.h5", ood=()).path)))


def test_units_that_were_damaged_anywhere_are_computed_again(folder: Path, ran: dict[str, Any]) -> None:
    place = interrupted(folder, ran, 8)
    chance = np.random.default_rng(0)
    for number, path in enumerate(sorted(place.iterdir())):  # units, and what they are about
        content = bytearray(path.read_bytes())
        entry = content.find(b"PK\1\2")  # its compression and its flags, which parsers refuse in their own ways
        at = entry + 8 + 2 * (number % 2) if number < 4 and entry > 0 else int(chance.integers(len(content)))
        content[at] ^= 1
        path.write_bytes(content[:at] if number == 5 else content)
    found = resumed(folder)
    assert len(ran["finished"] + ran["units"]) > 12  # some of them again
    assert_same(estimates(read(found.path)), estimates(read(evaluated(folder, "honest.h5", ood=()).path)))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.nightly
def test_forged_units_of_another_user_are_not_taken_and_named_ones_are_refused(folder, ran, monkeypatch, named):
    work, honest = folder / "mine" if named else None, scoring.run_unit

    def forged(context: scoring.UnitScoring, unit: WorkUnit) -> Arrays:
        arrays = honest(context, unit)
        return {name: values[::-1].copy() if values.ndim else values for name, values in arrays.items()}

    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent / "forger"))
    monkeypatch.setattr(scoring, "run_unit", forged)
    interrupted(folder, ran, 8, work)
    monkeypatch.setattr(scoring, "run_unit", honest)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent / "runner"))
    if named:
        with pytest.raises(
            ResultError, match=r"mine/\w+-deterministic-test-.* differs from .* computes for examples 0 to 19"
        ):
            resumed(folder, work)
        return
    found = resumed(folder)
    assert "evaluation-continued" not in noted(found)
    assert_same(estimates(read(found.path)), estimates(read(evaluated(folder, "honest.h5", ood=()).path)))


@pytest.mark.nightly
def test_of_named_units_one_of_each_method_is_computed_again(folder: Path, ran: dict[str, Any]) -> None:
    work = folder / "mine"
    interrupted(folder, ran, 5, work)
    finished = ran["finished"]
    found = resumed(folder, work)
    assert noted(found).count("evaluation-continued") == 1
    again = [name for name in ran["units"] if name in finished]
    assert len(again) == len({name.partition("-")[0] for name in finished}) < len(finished)
    assert_same(estimates(read(found.path)), estimates(read(evaluated(folder, "whole.h5", ood=()).path)))


def test_units_without_points_are_the_same_when_computed_again() -> None:
    assert _agree({"score": np.empty((0, 3))}, {"score": np.empty((0, 3)), "seconds": np.array(1.0)})
