"""`hf:owner/name@revision` and `timm:NAME` as the model: what is fetched, what is recorded, and what is refused."""

from __future__ import annotations

import fnmatch
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets import Cnn, trained_cnn
from safetensors.torch import save_file

import bnuq
from bnuq.cli.main import main
from bnuq.config import Options, resolve, resolve_again
from bnuq.errors import ModelError, RequestError

FIRST, SECOND = "a" * 40, "b" * 40
CONFIG = {
    "architecture": "cnn",
    "num_classes": 3,
    "pretrained_cfg": {"input_size": [3, 8, 8], "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.2] * 3},
}


class Hub:
    """Repositories and a cache, in the place of huggingface_hub; `asked` are the requests that went out."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked = place, list[str]()
        self.utils = types.SimpleNamespace(disable_progress_bars=lambda: None)
        self.constants = types.SimpleNamespace(HF_HUB_CACHE=str(place / "cache"))
        self.branches = {"main": SECOND, "v1": FIRST}

    def publish(self, repository: str, *, weights: str = "model.safetensors", config: Any = CONFIG) -> None:
        for commit in (FIRST, SECOND):
            folder = self.place / "hub" / repository / commit
            folder.mkdir(parents=True)
            (folder / "modeling.py").write_text("raise SystemExit('code of the hub ran')")
            (folder / "pytorch_model.bin").write_bytes(b"a pickle")
            save_file(trained_cnn().state_dict(), folder / weights)
            if config is not None:
                (folder / "config.json").write_text(json.dumps(config))

    def snapshot_download(
        self, repository: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool
    ) -> str:
        commit = self.branches.get(revision or "main", revision or "")
        folder = self.place / "cache" / f"models--{repository.replace('/', '--')}" / "snapshots" / commit
        if not local_files_only:
            self.asked.append(f"{repository}@{revision}")
            source = self.place / "hub" / repository / commit
            if not source.is_dir():
                raise LookupError(f"404: {repository} has no {revision}")
            folder.mkdir(parents=True, exist_ok=True)
            for file in source.iterdir():
                if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                    shutil.copy(file, folder)
        if not folder.is_dir():
            raise FileNotFoundError("no snapshot folder")
        return str(folder)


def untrained(_: str, *, pretrained: bool, **arguments: Any) -> Cnn:
    assert not pretrained
    return Cnn(**arguments)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub with two repositories, a timm without weights, and sets in the working folder."""
    hub = Hub(tmp_path / "huggingface")
    hub.publish("lab/cnn.8px")
    hub.publish("timm/cnn.a1", config=None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    timm = types.SimpleNamespace(list_models=lambda: ["cnn"], create_model=untrained)
    monkeypatch.setitem(sys.modules, "timm", timm)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    random = np.random.default_rng(0)
    for name, count in (("train", 64), ("test", 20)):
        np.savez(f"{name}.npz", x=random.random((count, 3, 8, 8), np.float32), y=np.arange(count) % 3)
    return hub


GIVEN = ("--train", "train.npz", "--test", "test.npz")
SETS = Options(train="train.npz", test="test.npz")


def test_a_network_of_the_hub_is_evaluated_by_its_name_recorded_with_its_commit_and_again(hub, capsys):
    with pytest.raises(SystemExit) as left:
        main(["evaluate", "hf:lab/cnn.8px", *GIVEN, "-T", "4", "--method", "mcbn", "--no-post-hoc"])
    assert left.value.code == 0, capsys.readouterr().err
    assert f"cnn.8px@{SECOND} · " in capsys.readouterr().out
    result = bnuq.open("cnn.8px.bnuq.h5")  # named after the repository, not after the commit
    assert result.model["path"] == f"hf:lab/cnn.8px@{SECOND}" and {*hub.asked} == {"lab/cnn.8px@None"}
    again = resolve_again(result.run, Path.cwd() / "cnn.8px.bnuq.h5", Options(), folder=Path.cwd())
    assert again.checkpoint == resolve(f"hf:lab/cnn.8px@{SECOND}", SETS, folder=Path.cwd()).checkpoint
    assert again.normalize is not None and again.normalize.mean == (0.5, 0.5, 0.5)  # of its config
    fetched = {path.name for path in (hub.place / "cache").rglob("*") if path.is_file()}
    assert fetched == {"config.json", "model.safetensors"}  # neither code nor pickles


@pytest.mark.usefixtures("hub")
def test_a_revision_is_resolved_to_its_commit():
    run = resolve("hf:lab/cnn.8px@v1", SETS, folder=Path.cwd())
    assert run.record()["model"]["checkpoint"] == f"hf:lab/cnn.8px@{FIRST}"
    assert run.out == Path.cwd() / "cnn.8px.bnuq.h5"


def test_nothing_is_fetched_for_a_file_that_was_only_found(hub):
    Path("bnuq.toml").write_text('[model]\ncheckpoint = "hf:lab/cnn.8px"\n')
    with pytest.raises(RequestError, match=r"fetched only if you name it: give hf:lab/cnn.8px as the model"):
        resolve(None, SETS, folder=Path.cwd())
    assert hub.asked == []
    named = resolve("bnuq.toml", SETS, folder=Path.cwd())
    assert resolve(None, SETS, folder=Path.cwd()).checkpoint == named.checkpoint and len(hub.asked) == 1


def test_timms_pretrained_weights_are_those_of_the_cache(hub):
    with pytest.raises(RequestError, match=r"has no pretrained weights of it. To fetch some, name them: hf:timm/cnn"):
        resolve("timm:cnn", SETS, folder=Path.cwd())
    fetched = resolve("hf:timm/cnn.a1", SETS, folder=Path.cwd())
    cached = resolve("timm:cnn", SETS, folder=Path.cwd())
    assert cached.checkpoint == fetched.checkpoint and hub.asked == ["timm/cnn.a1@None"]
    assert cached.arch is not None and cached.arch.text == "timm:cnn.a1"  # no config lies beside the weights
    assert cached.checkpoint.name == "model.safetensors" and cached.out.name == "cnn.a1.bnuq.h5"
    hub.publish("timm/cnn.a2", config=None)
    resolve("hf:timm/cnn.a2", SETS, folder=Path.cwd())
    with pytest.raises(RequestError, match=r"has several of: cnn.a1, cnn.a2"):
        resolve("timm:cnn", SETS, folder=Path.cwd())


def test_weights_that_may_be_pickles_are_not_fetched(hub):
    hub.publish("lab/pickled", weights="weights.bin")
    with pytest.raises(ModelError, match="other weights, which may be pickles, are not fetched"):
        resolve("hf:lab/pickled", SETS, folder=Path.cwd())


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:lab", "expected hf:owner/name"),
        ("hf:../../secrets", "expected hf:owner/name"),
        ("hf:lab/cnn@", "expected hf:owner/name"),
        ("timm:../cnn", "expected timm:NAME"),
        ("hf:lab/none", "could not be fetched .LookupError: 404: lab/none has no None.*hf auth login"),
        (f"hf:lab/cnn.8px@{'c' * 40}", "could not be fetched"),
    ],
)
def test_a_name_that_names_nothing_is_refused(name, said):
    with pytest.raises(RequestError, match=said):
        resolve(name, SETS, folder=Path.cwd())


@pytest.mark.usefixtures("hub")
def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RequestError, match=r'pip install "bnuq\[hub\]"'):
        resolve("hf:lab/cnn.8px", SETS, folder=Path.cwd())


@pytest.mark.usefixtures("hub")
def test_init_writes_the_run_file_of_a_network_of_the_hub_here(capsys):
    with pytest.raises(SystemExit) as left:
        main(["init", "hf:lab/cnn.8px", *GIVEN, "--augment", "none"])
    assert left.value.code == 0, capsys.readouterr().err
    assert f'checkpoint = "hf:lab/cnn.8px@{SECOND}"' in Path("cnn.8px.toml").read_text()
