"""The number of classes is the file's where the factory leaves it open; a rate of dropout left at 0 is said once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch
from findings_of import noted, values_of
from torch import nn

from bnuq.errors import ModelError
from bnuq.models.architecture import Built
from bnuq.models.loading import LoadedModel, load_model

NET = """
from torch import nn

def plain(num_classes=1000, width=4, drop_rate=0.0):
    layers = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(drop_rate)
    return nn.Sequential(*layers, nn.Linear(width, num_classes))

def needed(n_classes):
    return plain(n_classes)

class Net(nn.Module):
    def __init__(self, classes=1000, dropout=0.5):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(6, 4), nn.Linear(4, classes), nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.body(x))

def passing_on(**arguments):
    return Net(**arguments)

class Required(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.block, self.project = nn.Linear(6, 4), nn.Linear(4, 5)
        self.fc = nn.Linear(5, n_classes)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight

def other_name(outputs=1000):
    return plain(outputs)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    torch.save(network("plain", num_classes=7).state_dict(), tmp_path / "plain.pt")
    torch.save(network("Net", classes=7).state_dict(), tmp_path / "net.pt")
    return tmp_path


def network(factory: str, **arguments: int) -> nn.Module:
    names: dict = {}
    exec(NET, names)
    return names[factory](**arguments)


def loaded(folder: Path, arch: str, checkpoint: str, **arguments: object) -> LoadedModel:
    return load_model(folder / checkpoint, arch=arch, arch_args=arguments, base=folder)


@pytest.mark.parametrize(
    ("arch", "checkpoint", "argument"),
    [
        ("net.py:plain", "plain.pt", "num_classes"),
        ("net.py:needed", "plain.pt", "n_classes"),  # without a default
        ("net.py:Net", "net.pt", "classes"),  # a class, with two heads
        ("net.py:passing_on", "net.pt", "classes"),  # **arguments go on to the network's class
    ],
)
def test_classes_that_were_not_given_are_those_of_the_file_with_a_note(folder, arch, checkpoint, argument):
    model = loaded(folder, arch, checkpoint)
    assert values_of(model, "classes-from-file") == {"argument": argument, "classes": 7}
    assert model.module(torch.zeros(2, 6)).shape == (2, 7)


def test_classes_that_were_given_are_taken_as_given(folder: Path) -> None:
    assert "classes-from-file" not in noted(loaded(folder, "net.py:plain", "plain.pt", num_classes=7))
    with pytest.raises(ModelError, match=r"has 7 outputs there: give that number to the factory \(--arch-arg NAME=7"):
        loaded(folder, "net.py:plain", "plain.pt", num_classes=5)


def test_what_another_number_of_classes_does_not_mend_is_told_of_the_network_as_named(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"0\.weight is \(4, 6\) in the file, \(9, 6\)"):
        loaded(folder, "net.py:plain", "plain.pt", width=9)
    with pytest.raises(ModelError, match="has 7 outputs there"):
        loaded(folder, "net.py:other_name", "plain.pt")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_library_is_asked_for_the_classes_of_the_file(folder, monkeypatch, library):
    net = network("Net").__class__
    stand_in = ModuleType(library)

    def create_model(_name: str, **arguments: object) -> nn.Module:
        return net(**{"classes": 1000} | {k: v for k, v in arguments.items() if k not in ("pretrained", "weights")})

    stand_in.list_models, stand_in.create_model = lambda: ["resnet18"], create_model
    stand_in.get_model, stand_in.get_model_builder = create_model, lambda _name: create_model
    stand_in.models = stand_in
    monkeypatch.setitem(sys.modules, library, stand_in)
    assert values_of(loaded(folder, f"{library}:resnet18", "net.pt"), "classes-from-file")["classes"] == 7


@pytest.mark.parametrize("name", ["drop", "dropout", "p", "rate", "head_drop", "dropout_prob", "DropRate"])
def test_a_rate_of_dropout_left_at_0_is_known_by_its_parameter(folder: Path, name: str) -> None:
    code = NET.replace("drop_rate=0.0", f"drop_path=0.0, depth=0, {name}=0.0").replace("drop_rate", name)
    (folder / "other.py").write_text(code)
    assert loaded(folder, "other.py:plain", "plain.pt").dropout_arguments == (name,)
    assert loaded(folder, "other.py:plain", "plain.pt", **{name: 0.0}).dropout_arguments == ()
    assert loaded(folder, "other.py:Net", "net.pt").dropout_arguments == ()  # its default is 0.5


def test_the_likeliest_rates_of_dropout_come_first() -> None:
    built = Built(nn.Identity(), {"attn_drop": 0.0, "drop_path_rate": 0.0, "bias": False, "p": 0, "dropout": 0.0})
    assert built.dropout_left_at_0 == ("dropout", "p", "attn_drop")


def test_the_last_weight_by_name_need_not_be_that_of_the_classes(folder: Path) -> None:
    safetensors.torch.save_file(network("Required", n_classes=7).state_dict(), folder / "required.safetensors")
    found = loaded(folder, "net.py:Required", "required.safetensors")
    assert found.module.fc.out_features == 7
    assert values_of(found, "classes-from-file")["classes"] == 7


def test_two_values_of_one_tensor_are_refused(folder: Path) -> None:
    state = network("Tied").state_dict()
    torch.save({name: value.clone() for name, value in state.items()}, folder / "tied.pt")
    assert torch.equal(loaded(folder, "net.py:Tied", "tied.pt").module.b.weight, state["a.weight"])
    torch.save(state | {"b.weight": state["a.weight"] + 1}, folder / "untied.pt")
    with pytest.raises(ModelError, match=r"a\.weight and b\.weight differ, and are one tensor in net\.py:Tied"):
        loaded(folder, "net.py:Tied", "untied.pt")
