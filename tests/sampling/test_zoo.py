"""The checks of `make zoo` on small networks: they find nothing wrong with bnuq, and what is wrong they find."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import adversaries
import at_night
import pytest
import torch

from bnuq.sampling import engine, interception, plain_loop, statistics
from bnuq.sampling.exactness import Exactness

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of docs/ as `make zoo` does."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module


def spelled(docs: Callable[[str], ModuleType], name: str) -> Any:
    """What the checks find in a network that says dropout so."""
    checks, spellings = docs("zoo_checks"), docs("zoo_spellings")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.randn(2 * checks.BATCH, *spellings.SHAPE, dtype=torch.float64)
        network = spellings.SPELLINGS[name]().double()
    return checks.checked(checks.settled(network, images[: checks.BATCH]), images)


# dropout calls that are sampled, layers that are named
SPELLED = {
    "nn.Dropout, in place": (1, []),
    "nn.FeatureAlphaDropout": (1, []),
    "nn.Dropout1d on (points, channels, positions)": (1, []),
    "nn.Dropout called twice": (2, []),
    "nn.Dropout, p = 1": (1, []),
    "nn.RNN beside nn.Dropout": (1, ["rnn"]),
    "nn.MultiheadAttention without its weights": (0, ["attention"]),
    "nn.TransformerEncoderLayer": (3, ["layer.self_attn"]),
    "F.alpha_dropout(…, training=self.training)": (1, []),
    "F.dropout(…), always active": (1, []),
    "if self.training: F.dropout(…)": (0, ["dropout"]),
    "torch.native_dropout(…, self.training)": (0, ["the network"]),
    "numpy.random in training": (0, ["the network"]),
    "torch.bernoulli, always active": (0, []),
    "DropPath": (0, ["drop"]),
    "DropConnect": (1, []),
    "layers left out at random in training": (0, ["noise"]),
}


@pytest.mark.parametrize("name", at_night.every_third(SPELLED))
def test_dropout_is_sampled_or_named_in_every_spelling(docs, name):
    found = spelled(docs, name)
    assert found.faults == []
    assert (found.dropouts, [*found.named]) == SPELLED[name]


@pytest.mark.parametrize(
    "name",
    [
        "transposed_convolution_with_groups",
        "batchnorm_called_twice_on_one_convolution",
        "standardised_weights",
        "inactive_dropout_in_place",
        "points_that_know_one_another",
        "number_read",
    ],
)
def test_the_checks_pass_networks_that_a_plan_could_get_wrong(docs, name):
    assert docs("zoo_checks").checked(adversaries.made(name), adversaries.points(name, 12, seed=9)).faults == []


def larger(self: Any, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return torch.batch_norm(self.input, self.weight, self.bias, mean, 1.1 * var, False, 0.0, self.eps, False)


def with_other_variances(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interception.BatchNormCall, "normalized", larger)
    patch.setattr(statistics, "check_exact", lambda *_: Exactness(4, 0.0))  # which refuses them


def fewer_layers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statistics, "select_layers", lambda sites, _: sites[:1])


def a_shifted_mean(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statistics, "check_finite", lambda model, *_: model.bn.running_mean.add_(1))


WRONG = {
    "wrong: MCBN deviates from training": ("nn.Dropout", with_other_variances),
    "silent: drop does nothing in a pass with dropout": (
        "nn.Dropout called twice",
        lambda patch: patch.setattr(plain_loop, "dropped", lambda call, *_: call.input),
    ),
    "silent: rnn is random 1 times, 0 are sampled": (
        "nn.RNN beside nn.Dropout",
        lambda patch: patch.setattr(engine, "warn_of_unsampled", lambda *_: None),
    ),
    "silent: bn2 normalises 1 times, 0 are sampled": ("nn.BatchNorm2d, two of them", fewer_layers),
    "changed: bn.running_mean": ("nn.Dropout2d", a_shifted_mean),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_is_found(docs, monkeypatch, fault):
    name, damage = WRONG[fault]
    damage(monkeypatch)
    assert any(each.startswith(fault) for each in spelled(docs, name).faults)


@pytest.fixture
def make_zoo(docs):
    """docs/make_zoo.py, where the libraries are installed; torchvision fails where it is for another build of torch."""
    try:
        for library in ("torchvision", "timm"):
            importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"needs timm and torchvision ({error})")
    make = docs("make_zoo")
    make.start()
    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "name"), [("timm", "test_efficientnet"), ("timm", "test_vit"), ("torchvision", "mnasnet0_5")]
)
def test_published_networks_are_exact_or_named(make_zoo, library, name):
    record = make_zoo.checked_record(make_zoo.Network(library, name, name))
    assert not record.get("stopped") and record["faults"] == [] and json.dumps(record)
