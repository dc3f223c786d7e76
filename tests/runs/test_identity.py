"""What is the same request, data and code is decided in one place: nothing that a figure depends on is forgotten."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of, warned
from torch import nn

import bnuq
from bnuq.config import Options, resolve, resolve_all, resolve_sweep
from bnuq.config.schema import Request, settings_of
from bnuq.errors import BnuqError, DataError, ResultError
from bnuq.gate import check
from bnuq.gate.baseline import last_results
from bnuq.gate.settings import GateSettings
from bnuq.records import evaluation_file, identity
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.report.comparison import compared
from bnuq.studies.sweep.compute import sweep
from bnuq.studies.sweep.record import Sweep
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.multirun import evaluate_several

RESIZED = '[data]\nresize = 8\ncrop = 6\ninterpolation = "bicubic"\n'
FUNCTION = "from shades import SIZE\n\n\ndef darker(x, severity, random):\n    return x - SIZE * severity\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_run.write(tmp_path / "run").parent


@pytest.fixture
def code(folder: Path) -> Path:
    """What the function of a perturbation imports, in a folder of its own."""
    (folder / "mine.py").write_text(FUNCTION)
    (folder / "shades.py").write_text("SIZE = 0.1\n")
    yield folder / "shades.py"
    for name in ("mine", "shades"):
        sys.modules.pop(name, None)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, (time.time() + 60,) * 2)  # bytecode of the same second and size would stand for it
    for name in ("mine", "shades"):  # a new process
        sys.modules.pop(name, None)


def figures(result: Result) -> dict[str, float]:
    return {address: row.estimate.value for address, row in estimates_of(result).items()}


def interrupted(monkeypatch: pytest.MonkeyPatch, where: str, start: Callable[[], Any]) -> None:
    """Start, and end before this function returns."""

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(where, end)
        start()


# ── the request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_setting_is_part_of_the_request_or_has_a_reason_why_it_cannot_matter():
    addresses = {*identity.settings_of_record({})}
    assert {name for name in addresses if name not in identity.CANNOT_MATTER} > {"data.resize", "certificate.score"}
    assert identity.CANNOT_MATTER.keys() <= addresses and all(identity.CANNOT_MATTER.values())
    assert len(addresses) == sum(
        len(settings_of(type(field.default))) if field.default is not None else 1
        for field in settings_of(Request).values()
    )
    for address in addresses:
        section, _, key = address.partition(".")
        assert identity.settings_of_record({section: {key: "another"} if key else "another"})[address] == "another"


# ── sweeps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def swept(folder: Path, *models: str, **options: Any) -> Sweep:
    given = Options(samples=4, ood=(), out=Path("s.h5"), **options)
    runs, settings = resolve_sweep(models, given, {"draw_sets": 2, "batch_sizes": (8,)}, folder=folder)
    return sweep(runs, settings)


def of_network(record: Sweep, name: str) -> dict[str, float]:
    [number] = [number for number, model in enumerate(record.models) if model.name == name]
    [point] = [point for point in record.points if point.model == number and point.protocol == "matched"]
    return {metric: of["test"].estimate.value for metric, of in point.estimates.items()} | {
        "elbo": point.elbo.elbo.value if point.elbo else 0.0
    }


@pytest.fixture
def pair(folder: Path) -> Path:
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save(state | {"7.bias": state["7.bias"] + 0.1}, folder / "second.pt")
    text = (folder / "run.toml").read_text().replace("[data]\n", RESIZED)
    (folder / "run.toml").write_text(text)
    (folder / "second.toml").write_text(text.replace("model.pt", "second.pt").replace("size = 16", "size = 32"))
    return folder


@pytest.mark.parametrize(
    ("old", "new"), at_night.every_third([('"bicubic"', '"nearest"'), ("resize = 8", "resize = 12")])
)
def test_each_network_of_a_sweep_gets_the_points_that_its_run_file_asks_for(pair: Path, old: str, new: str) -> None:
    change(pair / "second.toml", old, new)
    both, turned = swept(pair, "run.toml", "second.toml"), swept(pair, "second.toml", "run.toml")
    for name in ("model", "second"):
        assert of_network(both, name) == pytest.approx(of_network(turned, name), rel=1e-6)


def test_networks_with_classes_in_two_orders_are_not_compared_on_the_labels_of_one(pair: Path) -> None:
    with np.load(pair / "test.npz") as arrays:
        np.savez(pair / "test.npz", x=arrays["x"], y=np.array(["a", "b", "c"])[arrays["y"]])
    with np.load(pair / "train.npz") as arrays:
        np.savez(pair / "train.npz", x=arrays["x"], y=np.array(["a", "b", "c"])[arrays["y"]])
    for name, order in (("run.toml", '["a", "b", "c"]'), ("second.toml", '["c", "b", "a"]')):
        change(pair / name, "[data]\n", f"[data]\nclasses = {order}\n")
    with pytest.raises(DataError, match="networks are compared on the same examples"):
        swept(pair, "run.toml", "second.toml")


@pytest.mark.parametrize(
    "changed",
    at_night.every_third(
        [{"interpolation": "nearest"}, {"resize": 12}, {"crop": (6, 6), "resize": 7}, {"channel_order": "bgr"}]
    ),
    ids=str,
)
def test_an_interrupted_sweep_does_not_go_on_with_units_of_other_points(folder, monkeypatch, changed):
    coloured(folder)
    options = Options(samples=4, ood=(), out=Path("s.h5"), resize=8, crop=6, interpolation="bicubic")
    runs, settings = resolve_sweep(("run.toml",), options, {"draw_sets": 2, "batch_sizes": (8,)}, folder=folder)
    interrupted(monkeypatch, "bnuq.studies.sweep.compute._result", lambda: sweep(runs, settings))
    assert [*(folder / "s.h5.work").glob("*.part")]
    runs = [replace(run, **changed) for run in runs]
    resumed = sweep(runs, settings)
    assert "sweep-continued" not in noted(resumed)
    fresh = sweep([replace(run, out=folder / "fresh.h5") for run in runs], settings, out=folder / "fresh.h5")
    assert resumed.points[0].estimates["pll"]["test"].estimate == fresh.points[0].estimates["pll"]["test"].estimate


def coloured(folder: Path) -> None:
    """The same data and network with three channels."""
    change(folder / "net.py", "Conv2d(1,", "Conv2d(3,")
    state = torch.load(folder / "model.pt", weights_only=True)
    scale = torch.tensor([0.5, 0.3, 0.2])[None, :, None, None]
    torch.save(state | {"0.weight": state["0.weight"] * scale}, folder / "model.pt")
    shift = np.array([0, 0.2, -0.3], np.float32)[None, :, None, None]
    for name in ("train", "test", "other"):
        with np.load(folder / f"{name}.npz") as arrays:
            np.savez(folder / f"{name}.npz", **{**arrays, "x": np.repeat(arrays["x"], 3, 1) + shift})


# ── results and units that are there ─────────────────────────────────────────────────────────────────────────────────


def grouped(folder: Path, name: str, *, places: int) -> None:
    with np.load(folder / f"{name}.npz") as arrays:
        kept = {key: arrays[key] for key in arrays if key != "group"}
        np.savez(folder / f"{name}.npz", **kept, group=np.arange(len(kept["x"])) % places)


def worded(folder: Path, words: str) -> None:
    with np.load(folder / "train.npz") as train, np.load(folder / "test.npz") as test:
        np.savez(folder / "train.npz", x=train["x"])
        np.savez(folder / "test.npz", x=test["x"], y=np.array([*words])[test["y"]])


SEVERAL = 'perturb = ["mine:darker@1"]\n'


@pytest.mark.parametrize(
    ("data", "prepare", "changed", "again"),
    at_night.every_third(
        [
            (SEVERAL, None, lambda place: change(place / "shades.py", "0.1", "0.9"), True),
            (SEVERAL, None, lambda place: change(place / "mine.py", "x - SIZE", "x + SIZE"), True),
            ("", lambda place: grouped(place, "test", places=30), lambda place: grouped(place, "test", places=4), True),
            (
                "",
                lambda place: grouped(place, "train", places=9),
                lambda place: grouped(place, "train", places=4),
                True,
            ),
            ("", lambda place: worded(place, "abc"), lambda _: None, False),
            ('perturb = ["all@1"]\n', None, lambda _: None, False),
        ]
    ),
    ids=["imported code", "code", "groups", "groups of the training set", "words", "all"],
)
def test_a_result_is_used_again_where_nothing_that_its_figures_depend_on_has_changed(
    code: Path, data: str, prepare: Callable[[Path], None] | None, changed: Callable[[Path], None], again: bool
) -> None:
    place = code.parent
    if prepare is not None:
        prepare(place)
    batches = 'batches = "group"\nmethods = ["mcbn"]\n' if "reference" in str(prepare) else 'methods = ["mcbn"]\n'
    change(place / "run.toml", 'ood = ["other.npz"]\n', data)
    change(place / "run.toml", "samples = 8", f"samples = 4\n{batches}\n[runs]\nseed = [0]")
    runs = resolve_all(("run.toml",), Options(out=Path("all.h5")), folder=place)
    evaluate_several(runs)
    assert "runs-reused" in noted(evaluate_several(runs))
    changed(place)
    assert ("runs-reused" in noted(evaluate_several(runs))) != again


@pytest.mark.parametrize("form", at_night.but({"mine:darker@1"}, ["mine:darker@1", "mine.py:darker@1"]))
def test_an_interrupted_run_does_not_mix_the_old_code_of_a_perturbation_with_the_new(code, monkeypatch, form):
    options = Options(samples=4, perturb=(form,), methods=("mcbn",), ood=(), images=False)
    run = resolve("run.toml", options, folder=code.parent)
    before = evaluate(replace(run, out=code.parent / "before.h5"))
    interrupted(monkeypatch, "bnuq.workflows.evaluate.result_file.write", lambda: evaluate(run))
    change(code, "0.1", "0.9")
    resumed, fresh = evaluate(run), evaluate(replace(run, out=code.parent / "fresh.h5"))
    assert figures(resumed) == figures(fresh) != figures(before)
    with pytest.raises(ResultError, match=r"data: test\+darker@1 holds other data now"):
        check(resumed, before)
    assert "code" in identity.compared((resumed, before))


class Items:
    """A Dataset of a user's own, all of whose items but the first can be changed."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = torch.from_numpy(x), y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return self.x[at], int(self.y[at])


@pytest.mark.parametrize(("copies", "part"), [(1, slice(50, 51)), (4, slice(1, None))])
def test_an_item_of_a_dataset_that_changes_after_an_interruption_is_seen(folder, monkeypatch, copies, part):
    model = small_run.network()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    with np.load(folder / "train.npz") as train, np.load(folder / "test.npz") as test:
        items, tested = Items(np.tile(train["x"], (copies, 1, 1, 1)), np.tile(train["y"], copies)), {**test}

    def run(name: str) -> bnuq.Result:
        settings = {"samples": 4, "methods": ["mcbn"], "train_batch_size": 16, "out": folder / name}
        return bnuq.evaluate(model.eval(), train=items, test=(tested["x"], tested["y"]), **settings)

    interrupted(monkeypatch, "bnuq.workflows.evaluate.result_file.write", lambda: run("r.h5"))
    items.x[part] += 1
    resumed, fresh = run("r.h5"), run("fresh.h5")
    assert figures(resumed.record) == figures(fresh.record)
    assert "evaluation-continued" not in noted(resumed)
    assert ("dataset-sampled" in warned(resumed)) == (copies > 1)


# ── a monitor ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_a_monitor_is_made_as_its_baseline_was(folder: Path) -> None:
    coloured(folder)
    random = np.random.default_rng(1)
    for name, count in (("calm", 500), ("batch", 60)):
        x = random.normal(0.5, 0.3, (count, 1, 6, 6)).astype(np.float32) + np.zeros((1, 3, 1, 1), np.float32)
        np.savez(folder / f"{name}.npz", x=x + np.array([0, 0.2, -0.3], np.float32)[None, :, None, None])
    model = nn.Sequential(*small_run.network())
    model[0] = nn.Conv2d(3, 4, 3, bias=False)
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    pipeline = {"channel_order": "bgr", "resize": 8, "crop": 6, "interpolation": "bicubic"}
    always = {"resamples": 199, "train_batch_size": 16}
    first = bnuq.Monitor(model.eval(), reference=str(folder / "calm.npz"), **pipeline, **always)
    first.save(folder / "base.h5")
    batch = str(folder / "batch.npz")
    expected = first.take(batch).p_value
    again = bnuq.Monitor(model, baseline=folder / "base.h5", **always).take(batch)
    assert again.p_value == expected
    assert 'data.interpolation = "bicubic"' in values_of(again, "monitor-settings-taken")["settings"]
    same = bnuq.Monitor(model, baseline=folder / "base.h5", **pipeline, **always).take(batch)
    assert same.p_value == expected and "monitor-settings-taken" not in noted(same)
    for other in ({"resize": 9}, {"interpolation": "nearest"}, {"outputs": "probabilities"}):
        [(key, value)] = other.items()
        with pytest.raises(BnuqError, match=rf"was made with \w+\.{key} = .*, and here it is .*{value}"):
            bnuq.Monitor(model, baseline=folder / "base.h5", **{**pipeline, **always, **other})


# ── comparisons ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("scoring", {"set_coverage": 0.8}),
        ("certificate", {"risk": 0.2, "score": "mutual_information"}),
        ("model", {"entry": "ema"}),
        ("data", {"interpolation": "nearest"}),
        ("sampling", {"noise_model_draws": 16}),
        ("options", {"limit": 7}),
        ("tta", {"flip": True}),
    ],
)
def test_the_report_and_the_check_list_the_same_settings_that_differ(four_results, section, changed):
    other = replace(four_results, run={**four_results.run, section: {**four_results.run.get(section, {}), **changed}})
    shown = {row.what: row.values for row in compared({"new": other, "old": four_results}) if row.differs}
    assert shown.keys() == ({section} if section == "tta" else {f"{section}.{key}" for key in changed})
    told = values_of(check(other, four_results), "other-settings")["settings"]
    assert told == [f"{name} {both['new']} now, {both['old']} in the baseline" for name, both in shown.items()]
    assert not any("not given" in text for text in told)


@pytest.fixture(scope="module")
def four_results(tmp_path_factory: pytest.TempPathFactory) -> Result:
    place = small_run.write(tmp_path_factory.mktemp("compared")).parent
    return small_run.evaluated(place, out=place / "one.h5", samples=4, methods=("mcbn",), ood=())


def test_a_promise_by_another_score_is_refused_and_a_default_is_called_by_its_value(four_results: Result) -> None:
    def promising(**certificate: Any) -> Result:
        result = replace(four_results, run={**four_results.run, "certificate": {"risk": 0.1} | certificate})
        object.__setattr__(result, "certification", object())
        return result

    from bnuq.gate.compatibility import _as_scored, _other_scoring

    new, old = promising(score="mcbn.mutual_information", confidence=0.9), promising()
    both = (_as_scored(identity.settings_of_result(each), old) for each in (new, old))
    assert [text.partition(" Use")[0] for text in _other_scoring(*both, GateSettings())] == [
        "scoring: confidence is 0.9 now, 0.95 in the baseline.",
        "scoring: score is mcbn.mutual_information now, none in the baseline.",
    ]


def test_a_copy_of_a_result_counts_once_in_a_history(folder: Path) -> None:
    options = {"samples": 4, "methods": ("mcbn",), "ood": (), "images": False}
    place = folder / "nights"
    place.mkdir()
    for night in (1, 2, 3):
        dated(small_run.evaluated(folder, out=place / f"{night}.h5", seed=night, **options), night)
    shutil.copy(place / "1.h5", place / "copy.h5")
    shutil.move(place / "3.h5", folder / "3.h5")
    found, findings = last_results(place, evaluation_file.read(folder / "3.h5"), GateSettings())
    assert len(found) == 2
    assert any("it is a copy of" in str(finding.values.get("reason")) for finding in findings)


def dated(result: Result, night: int) -> None:
    """The result as of this night."""
    at = replace(result, provenance={**result.provenance, "time": f"2026-01-0{night}T00:00:00+00:00"})
    assert result.path is not None
    evaluation_file.write(at, result.path)
