"""A network that takes whole numbers only, such as one with an embedding of tokens, is given whole numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

TOKENS = '''"""An embedding, batch normalization and dropout."""

from torch import nn


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.drop = nn.Embedding(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.last = nn.Linear(8, 3)

    def forward(self, ids):
        return self.last(self.drop(self.norm(self.embedding(ids).mean(1)).relu()))
'''


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tokens.py").write_text(TOKENS)
    namespace: dict = {}
    exec(TOKENS, namespace)
    random = np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = namespace["Tokens"]()
        for _ in range(50):
            model(torch.from_numpy(random.integers(0, 20, (64, 6))))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for name, points in (("train", 96), ("test", 40)):
        np.savez(tmp_path / f"{name}.npz", x=random.integers(0, 20, (points, 6)), y=random.integers(0, 3, points))
    (tmp_path / "run.toml").write_text(
        '[model]\ncheckpoint = "model.pt"\narch = "tokens.py:Tokens"\ntrain_batch_size = 16\n'
        '[data]\ntrain = "train.npz"\ntest = "test.npz"\n[sampling]\nsamples = 6\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluated(cli, *options: str) -> dict:
    done = cli("evaluate", "run.toml", "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_token_numbers_reach_the_embedding_as_they_are_and_a_note_says_so(cli, tokens):
    found = evaluated(cli)
    assert list(found["methods"]) == ["deterministic", "mcbn", "mcdo", "mcbn+mcdo"]
    assert [text for text in found["notes"] if "takes only integers" in text]
    namespace: dict = {}
    exec(TOKENS, namespace)
    model = namespace["Tokens"]()
    model.load_state_dict(torch.load(tokens / "model.pt"))
    with np.load(tokens / "test.npz") as file:
        points = dict(file)
    logits = model.eval()(torch.from_numpy(points["x"])).detach().double().log_softmax(1).numpy()
    expected = logits[np.arange(40), points["y"]].mean()
    assert found["methods"]["deterministic"]["sets"]["test"]["pll"]["value"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.nightly
def test_the_type_of_whole_numbers_in_the_file_does_not_matter(cli, tokens):
    expected = evaluated(cli, "-o", "a.h5", "--method", "mcdo")["methods"]
    for dtype in (np.uint8, np.int32, np.float32):
        for name in ("train", "test"):
            with np.load(tokens / f"{name}.npz") as file:
                points = dict(file)
            np.savez(tokens / f"{name}.npz", x=points["x"].astype(dtype), y=points["y"])
        assert evaluated(cli, "-o", "b.h5", "--method", "mcdo")["methods"] == expected, dtype


@pytest.mark.parametrize(("changed", "message"), [(20, "index out of range"), (0.5, "scalar types: Long")])
def test_numbers_that_the_embedding_does_not_have_are_an_error(cli, tokens, changed, message):
    with np.load(tokens / "test.npz") as file:
        points = dict(file)
    np.savez(tokens / "test.npz", x=points["x"] + changed, y=points["y"])
    done = cli("evaluate", "run.toml")
    assert done.code == 2 and message in done.message


def test_an_inspection_passes_integers_too(cli, tokens):
    done = cli("inspect", "run.toml", "--json")
    assert done.code == 0 and tokens.exists() and len(json.loads(done.out)["sites"]) == 2
