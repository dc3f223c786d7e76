"""Every option of every command changes what is said or written, or it is said that it does not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bnuq.cli.main import app

pytestmark = pytest.mark.nightly
BASES = {  # each command, with what it needs
    "evaluate": "evaluate run.toml --samples 4 --out o.h5",
    "score": "score predictions.csv --ignore lab --out o.h5",
    "init": "init model.pt --arch net.py:net --train train.npz --test test.npz --out new.toml",
    "sweep-batch-size": "sweep-batch-size run.toml --batch-sizes 8,16 --draw-sets 2 --samples 2 --out o.h5",
    "shift": "shift run.toml --samples 4 --family gaussian --severities 1,3 --out o.h5",
    "inspect": "inspect run.toml",
    "precise-bn": "precise-bn run.toml --out o.pt",
    "export": "export run.toml --samples 4 --out o.pt2",
    "monitor": "monitor run.toml --batch other.npz",
    "check": "check second.h5 first.h5",
    "report": "report first.h5",
    "verify": "verify first.h5 --trust-code --units 99",
    "data": "data",
}
VALUES = {
    "--work": "units", "--arch": "net.py:missing", "--arch-arg": "norm=false", "--train": "test.npz",
    "--test": "train.npz", "--ood": "x=other.npz", "--domain": "x=other.npz", "--batch": "test.npz",
    "--validation": "train.npz",
    "--perturb": "gaussian:0.1", "--group": "lab", "--target": "lab", "--palette": "names.txt", "--classes": "a,b",
    "--resize": "7", "--crop": "5", "--channel-order": "bgr", "--normalize": "0.4/0.2", "--augment": "flip",
    "--normalize-targets": "1/2", "--entry": "model", "--task": "regression", "--outputs": "probabilities",
    "--interpolation": "nearest", "--batches": "stratified", "--covariance": "channel", "--layers": "missing",
    "--method": "mcdo", "--samples": "6", "--mutual-information": "jackknife", "--calibrate": "cross",
    "--recalibration": "vector", "--pll": "moment", "--crps": "mixture", "--certificate-score": "energy",
    "--precision": "float64", "--images": "1,2", "--data-root": "root", "--out": "other.h5", "--on": "local:2",
    "--log": "mlflow", "--from": "first.h5", "--family": "brightness", "--severities": "2", "--figures": "drawn",
    "--prior": "flat", "--counts": "nominal", "--prior-mean": "0,2", "--prior-deviation": "0,2",
    "--batch-sizes": "8,24",
    "--estimator": "full",
    "--input-shape": "1,6,6", "--baseline": "first.h5", "--stream": "stream.h5", "--config": "run.toml",
    "--junit": "j.xml", "--markdown": "m.md", "--html": "r.html", "--maps": "maps", "--csv": "p.csv", "--by": "energy",
    "--set": "far", "--tolerance": "ece=0.5", "--require": "mcbn.sets.test.pll>=-9", "--allow": "draws", "--gate": "*",
    "--history": "past", "--labels": "labels.csv", "--groups": "labels.csv", "--ids": "lab", "--columns": "a,b",
    "--score": "lab", "--monitor": "baseline.h5", "--held-out": "0.4", "--level": "0.2", "--resamples": "300",
    "--ignore": "label", "--seed": "3", "--chunk-size": "7", "--bank": "32", "--budget": "5", "--train-size": "500",
    "--last": "1", "--power": "0.9", "--tau": "2.0", "--limit": "30", "--points": "40", "--draws": "12",
    "--units": "1", "--certificate-each": "class", "--inconclusive": "fail",
}  # fmt: skip
IDLE = {  # says how, where and how loud, and not what
    "--quiet", "--debug", "--json", "--full", "--strict", "--device", "--threads", "--chunk-size", "--work", "--on",
    "--post-hoc",  # as by default, but for tests: see conftest.py
    "--force", "--save-samples", "--download", "--trust-pickle", "--trust-code", "--data-root", "--out",
}  # fmt: skip
ECHOED = {"seconds", "provenance", "path", "seed", "bnuq", "result", "results", "settings", "run", "sha256", "work"}


def options(command: str) -> Iterator[tuple[str, list[str]]]:
    """Every option of a command, and the words that set it."""
    for given in app.commands[command].params:
        names = [*given.opts, *given.secondary_opts]
        if given.param_type_name != "option" or not IDLE.isdisjoint(names):
            continue
        name = max(given.secondary_opts if given.default is True else given.opts or names, key=len)
        choices = str(given.metavar or "").split("|")
        by_type = {"INTEGER": "12", "NUMBER": "0.3"}.get(choices[0], choices[-1])
        yield name, [name] if given.is_flag else [name, VALUES.get(name, by_type)]


def told(value: Any) -> Any:
    """The JSON without what repeats the request, or differs from run to run."""
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items() if key not in ECHOED}
    return [told(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def folder(small: Path, cli: Any) -> Path:
    for name in ("train", "test"):
        with np.load(small / f"{name}.npz") as file:
            arrays = dict(file)
        np.savez(small / f"{name}.npz", **arrays, lab=np.arange(len(arrays["y"])) % 4)
    random = np.random.default_rng(0)
    p, y = random.dirichlet([2, 1, 1], size=80), random.integers(3, size=80)
    rows = [",".join([*map(str, row), str(label), str(k % 9)]) for k, (row, label) in enumerate(zip(p, y, strict=True))]
    (small / "predictions.csv").write_text("\n".join(["a,b,c,label,lab", *rows]))
    (small / "labels.csv").write_text("\n".join(["label", *map(str, y[::-1])]))
    (small / "names.txt").write_text("a\nb\nc\n")
    state = torch.load(small / "model.pt")
    torch.save(state | {"7.bias": state["7.bias"] + 0.1}, small / "moved.pt")
    (small / "moved.toml").write_text((small / "run.toml").read_text().replace("model.pt", "moved.pt"))
    for name, run in (("first", "run"), ("second", "moved")):
        assert cli("evaluate", f"{run}.toml", "--ood", "far=other.npz", "-o", f"{name}.h5").code == 0
    assert cli("monitor", "run.toml", "--batch", "test.npz", "--out", "baseline.h5").code == 0
    return small


@pytest.mark.parametrize("command", [name for name in app.commands if name in BASES])
def test_an_option_changes_what_is_said_or_it_is_said_that_it_does_not(command: str, folder: Path, cli: Any) -> None:
    has_json = any("--json" in each.opts for each in app.commands[command].params)

    def outcome(words: list[str]) -> tuple[int, Any, str]:
        before = {*folder.iterdir()}
        found = cli(*BASES[command].split(), *(["--json"] if has_json else []), *words)
        text, new = found.out, sorted({*folder.iterdir()} - before)
        content: Any = told(json.loads(text)) if text.startswith("{") else re.sub(r"[\d.]+ s\b", "", text)
        written = [path.read_bytes() for path in new if path.suffix in (".pt", ".pt2", ".toml")]
        for path in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return found.code, (content, [path.name for path in new], written), found.out + found.err

    outcome([])  # which leaves what Python keeps of net.py
    plain, silent = outcome([]), []
    assert plain[0] in (0, 1), plain[2]
    assert outcome([])[1] == plain[1], "what differs from run to run hides what does not"
    for name, words in options(command):
        code, content, text = outcome(words)
        if code == plain[0] and content == plain[1] and name not in text:
            silent.append(" ".join(words))
    assert not silent


def test_every_command_is_walked() -> None:
    assert {*app.commands} - {*BASES} == {"metrics", "methods", "demo"}, "whose options are idle, if any"
