"""What is the same request, data and code is decided in one place: nothing that a figure depends on is forgotten."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from bnuq.gate.history import last_results
from bnuq.gate.settings import GateSettings
from bnuq.records import evaluation_file, identity
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.sweep import Sweep
from bnuq.report.comparison import compared
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.multirun import evaluate_several
from bnuq.workflows.sweep import sweep

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
    for address in sorted(addresses - {*identity.CANNOT_MATTER}):
        section, _, key = address.partition(".")
        record = {section: {key: "another"} if key else "another"}
        assert identity.differing({}, record)[address][1] == "another"


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


@pytest.mark.parametrize(("old", "new"), [('"bicubic"', '"nearest"'), ("resize = 8", "resize = 12")])
def test_each_network_of_a_sweep_gets_the_points_that_its_run_file_asks_for(pair: Path, old: str, new: str) -> None:
    change(pair / "second.toml", old, new)
    both, turned = swept(pair, "run.toml", "second.toml"), swept(pair, "second.toml", "run.toml")
    for name in ("model", "second"):
        assert of_network(both, name) == pytest.approx(of_network(turned, name), rel=1e-6)


def test_networks_with_classes_in_two_orders_are_not_compared_on_the_labels_of_one(pair: Path) -> None:
    with np.load(pair / "test.npz") as arrays:
        words = np.array(["a", "b", "c"])[arrays["y"]]
        np.savez(pair / "test.npz", x=arrays["x"], y=words)
    with np.load(pair / "train.npz") as arrays:
        np.savez(pair / "train.npz", x=arrays["x"], y=np.array(["a", "b", "c"])[arrays["y"]])
    for name, order in (("run.toml", '["a", "b", "c"]'), ("second.toml", '["c", "b", "a"]')):
        change(pair / name, "[data]\n", f"[data]\nclasses = {order}\n")
    with pytest.raises(DataError, match="networks are compared on the same points"):
        swept(pair, "run.toml", "second.toml")


@pytest.mark.parametrize(
    "changed",
    [{"interpolation": "nearest"}, {"resize": 12}, {"crop": (6, 6), "resize": 7}, {"channel_order": "bgr"}],
    ids=str,
)
def test_an_interrupted_sweep_does_not_go_on_with_units_of_other_points(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    coloured(folder)
    options = Options(samples=4, ood=(), out=Path("s.h5"), resize=8, crop=6, interpolation="bicubic")
    runs, settings = resolve_sweep(("run.toml",), options, {"draw_sets": 2, "batch_sizes": (8,)}, folder=folder)
    interrupted(monkeypatch, "bnuq.workflows.sweep._result", lambda: sweep(runs, settings))
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
