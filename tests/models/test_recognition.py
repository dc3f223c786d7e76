"""Which networks of timm and torchvision a state dict is recognised as."""

import gzip
import json
import sys
import tomllib
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from findings_of import values_of
from torch import nn

from bnuq.config import Options, resolve
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import check_complete
from bnuq.models import loading, recognition
from bnuq.models.loading import load_model
from bnuq.models.recognition import (
    INDEX,
    Architecture,
    Index,
    digest_of,
    read_index,
    recognised,
    shapes_of,
    shipped_index,
    write_index,
)
from bnuq.models.suggestions import suggested_architectures
from bnuq.studies.init import compute as init

HEAD = (("fc.bias", 0), ("fc.weight", 0))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class ResNet18(nn.Module):
    """The names and shapes of ResNet-18 as both libraries have them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64)
        for number, (inputs, outputs) in enumerate(pairwise((64, 64, 128, 256, 512)), start=1):
            self.add_module(f"layer{number}", nn.Sequential(Block(inputs, outputs), Block(outputs, outputs)))
        self.fc = nn.Linear(512, classes)


class Small(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).mean((2, 3)))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(Small(7).state_dict(), path)
    return path


@pytest.fixture
def known_as(monkeypatch):
    """Makes the index one of a single digest, that of `Small`, with these groups of architectures."""

    def known(*groups):
        digest = digest_of(shapes_of(Small(3).state_dict()), HEAD)
        index = Index({"timm": "1.0", "torchvision": "0.9"}, [HEAD], {digest: groups})
        monkeypatch.setattr(recognition, "shipped_index", lambda: index)

    return known


@pytest.fixture
def library(monkeypatch):
    """A torchvision that is installed, and has one model."""
    module, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    module.__version__, module.models = "0.9", models
    models.list_models = lambda: ["small"]
    models.get_model_builder = lambda _: Small
    models.get_model = lambda _, weights, **arguments: Small(**arguments) if weights is None else None
    monkeypatch.setitem(sys.modules, "torchvision", module)
    monkeypatch.setattr(recognition, "is_installed", lambda library: library == "torchvision")


def test_the_shipped_index_knows_resnet18_with_any_number_of_classes():
    with torch.device("meta"):
        state = ResNet18(7).state_dict()
    network = recognised(state)
    assert network is not None and network.classes == 7
    assert {"timm:resnet18", "torchvision:resnet18"} <= {str(each) for group in network.groups for each in group}
    without_counters = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    assert recognised(without_counters) == network


@pytest.mark.parametrize("change", ["shape", "rank", "missing", "more", "two numbers of classes", "no head"])
def test_recognition_is_exact(change):
    with torch.device("meta"):
        state = ResNet18(7).state_dict()
        assert recognised(state) is not None
        name = "layer3.0.conv2.weight"
        changed = {
            "shape": {name: torch.empty(256, 256, 1, 1)},
            "rank": {name: torch.empty(256, 256, 3, 3, 1)},
            "more": {"layer3.0.conv2.bias": torch.empty(256)},
            "two numbers of classes": {"fc.bias": torch.empty(8)},
        }
        state |= changed.get(change, {})
        left_out = {"missing": [name], "no head": ["fc.weight", "fc.bias"]}.get(change, [])
        assert recognised({each: value for each, value in state.items() if each not in left_out}) is None


def test_the_shipped_index_is_small_and_well_formed():
    index = shipped_index()
    assert INDEX.stat().st_size < 200_000
    assert index.releases.keys() == {"timm", "torchvision"}
    assert 10 < len(index.heads) < 100
    named = [name for groups in index.architectures.values() for group in groups for name in group]
    assert len(named) == len({*named}) > 1000
    assert all(Architecture.of(name).package in index.releases for name in named)
    assert all(len(digest) == 16 and all(groups) for digest, groups in index.architectures.items())


def test_an_index_is_read_as_it_was_written(tmp_path):
    index = Index({"timm": "1.0"}, [HEAD], {"00": [["timm:a", 'torchvision:b aux=true name="x"']]})
    write_index(tmp_path / "index", index)
    assert read_index(tmp_path / "index") == index
    assert Architecture.of('torchvision:b aux=true name="x"').arguments == {"aux": True, "name": "x"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"no JSON"),
        gzip.compress(json.dumps([1]).encode()),
        gzip.compress(json.dumps({"heads": [[1]], "architectures": {}, "releases": {}}).encode()),
        gzip.compress(json.dumps({"heads": [], "architectures": {"0": 3}, "releases": {}}).encode()),
        gzip.compress(json.dumps({"heads": [], "architectures": {"0": [["x y"]]}, "releases": {}}).encode()),
        gzip.compress(b"[" * 100_000),
        INDEX.read_bytes()[:1000],
    ],
    ids=range(9),  # gzip's bytes hold the time
)
def test_by_a_damaged_index_nothing_is_recognised(tmp_path, content):
    (tmp_path / "index").write_bytes(content)
    assert read_index(tmp_path / "index") == Index()
    assert read_index(tmp_path / "missing") == Index()
    assert recognised(Small().state_dict(), Index()) is None


@pytest.mark.usefixtures("library")
def test_recognised_weights_need_no_architecture(weights, known_as):
    known_as(["timm:small", "torchvision:small"])
    loaded = load_model(weights)
    assert loaded.arch == "torchvision:small"  # the library that is installed
    assert loaded.module.fc.out_features == 7
    found = values_of(loaded, "architecture-recognised")
    assert (found["classes"], found["others"]) == (7, ["timm:small"])
    run = resolve(str(weights), Options(test="test.npz", train="train.npz"), folder=weights.parent)
    check_complete(run, needs=("train", "test"))


@pytest.mark.usefixtures("library")
def test_init_writes_the_recognised_architecture(weights, known_as, monkeypatch):
    monkeypatch.setattr(init, "is_installed", lambda library: library == "torchvision")
    known_as(["torchvision:small"])
    run, path = resolve(str(weights), Options(), folder=weights.parent), weights.with_suffix(".toml")
    assert "arch" not in init.init(run, path).todo
    model = tomllib.loads(path.read_text())["model"]
    assert (model["arch"], model["arch_args"]) == ("torchvision:small", {"num_classes": 7})


def test_without_the_library_the_error_names_architecture_and_installation(weights, known_as):
    known_as(["timm:small"])
    with pytest.raises(RequestError, match=r"(?s)names and shapes of timm:small with 7 classes.*pip install.*--arch"):
        load_model(weights)


@pytest.mark.usefixtures("library")
def test_candidates_that_compute_different_things_are_listed(weights, known_as):
    known_as(["timm:small"], ["torchvision:small"])
    with pytest.raises(RequestError, match=r"(?s)different things.*--arch timm:small or torchvision:small$"):
        load_model(weights)
    assert load_model(weights, arch="torchvision:small").module.fc.out_features == 7


def test_weights_of_no_known_network_are_asked_about_as_before(weights, known_as):
    known_as()
    with pytest.raises(RequestError, match=r"--arch file\.py:factory"):
        load_model(weights)
    assert suggested_architectures(loading.read_checkpoint(weights)) == ("file.py:factory",)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_whether_a_network_scales_its_inputs_is_asked(weights, known_as, name):
    known_as([f"torchvision:{name}"])
    for asked in ({}, {"arch": f"torchvision:{name}"}):
        with pytest.raises(RequestError, match=f"--arch torchvision:{name} --arch-arg transform_input=true"):
            load_model(weights, **asked)


@pytest.mark.usefixtures("library")
def test_a_head_replaced_by_a_sequence_is_answered_with_a_file_that_builds_the_network(weights, known_as, monkeypatch):
    known_as(["timm:small", "torchvision:small"])
    network = Small()
    network.fc = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5, bias=False))
    torch.save(network.state_dict(), weights)
    with pytest.raises(RequestError, match=r"(?s)All but those of fc .*--arch net\.py:net") as refused:
        check_complete(resolve(str(weights), Options(), folder=weights.parent), needs=("test",))
    code = str(refused.value).partition("Save this as net.py:\n\n")[2].partition("\n\nAdd to the command")[0]
    (weights.parent / "net.py").write_text(code)
    monkeypatch.setattr(sys.modules["torchvision"].models, "get_model", lambda _: Small())
    loaded = load_model(weights, arch="net.py:net", base=weights.parent).module
    assert str(loaded.fc) == str(network.fc)
