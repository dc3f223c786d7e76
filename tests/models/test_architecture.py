"""What `build` makes of the name of an architecture."""

import importlib
import random
import sys
import warnings
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from bnuq.errors import ModelError, RequestError, UntrustedCodeError
from bnuq.models.architecture import build
from bnuq.trust import NamedBy

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(2, width)

def make(width: int = 4) -> Net:
    return Net(width)

def makes_a_class():
    return Net

def makes_nothing():
    return {"a": 1}

def fails():
    return nn.Linear(2, -3)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize("factory", ["make", "Net", "makes_a_class"])
def test_a_factory_a_class_and_a_factory_of_a_class_give_a_network(folder, factory):
    assert isinstance(build(f"net.py:{factory}", base=folder).module, nn.Module)


def test_arch_args_reach_the_factory(folder):
    assert build("net.py:make", arch_args={"width": 9}, base=folder).module.layer.out_features == 9


def test_arch_args_that_do_not_fit_are_told_with_the_signature(folder):
    text = r"net\.py:make: model\.arch_args do not fit .*takes \(width: .?int.? = 4\).*depth=3 was given"
    with pytest.raises(RequestError, match=text):
        build("net.py:make", arch_args={"depth": 3}, base=folder)


def test_a_factory_that_gives_no_network_is_told_by_what_it_gave(folder):
    with pytest.raises(ModelError, match=r"makes_nothing: gave a dict; expected a torch\.nn\.Module"):
        build("net.py:makes_nothing", base=folder)


def test_a_factory_that_raises_is_one_message(folder):
    with pytest.raises(RequestError, match=r"net\.py:fails: calling it failed with RuntimeError at .*net\.py, line 20"):
        build("net.py:fails", base=folder)


@pytest.mark.parametrize("arch", ["resnet20", ":x", "net.py:", "", "timm:", "timm:hf-hub:someone/net", "timm:../x"])
def test_a_name_of_no_known_form_is_an_error(folder, arch):
    with pytest.raises(RequestError):
        build(arch, base=folder)


def test_code_that_a_found_file_names_does_not_run(folder):
    (folder / "net.py").write_text("raise SystemExit('ran')")
    (folder / "net.toml").write_text("")
    with pytest.raises(UntrustedCodeError, match="Nothing was run"):
        build("net.py:make", base=folder, named_by=NamedBy(folder / "net.toml"))


def test_building_leaves_the_global_generators_alone(folder):
    (folder / "net.py").write_text(
        CODE + "\nimport random, numpy\ndef greedy():\n    random.random(); numpy.random.rand(); return Net()\n"
    )
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    build("net.py:greedy", base=folder)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


@pytest.mark.parametrize(
    ("torch_version", "torchvision"),
    [  # https://github.com/pytorch/vision#installation
        ("2.6.0+cu124", "'torchvision==0.21.*' --extra-index-url https://download.pytorch.org/whl/cu124"),
        ("2.9.1+cpu", "'torchvision==0.24.*' --extra-index-url https://download.pytorch.org/whl/cpu"),
        ("2.10.0", "'torchvision==0.25.*'"),
        ("2.7.0a0+git1234", "'torchvision==0.22.*'"),
        ("3.0.0", "torchvision"),
    ],
)
def test_a_library_that_is_missing_is_told_with_the_command_that_leaves_torch_alone(
    monkeypatch, torch_version, torchvision
):
    monkeypatch.setattr(torch, "__version__", torch_version)
    for library in ("torchvision", "timm"):
        monkeypatch.setitem(sys.modules, library, None)
    commands = {
        "torchvision": f"pip install --no-deps {torchvision}",
        "timm": f"pip install huggingface_hub pyyaml && pip install --no-deps timm {torchvision}",
    }
    for library, command in commands.items():
        with pytest.raises(RequestError) as refusal:
            build(f"{library}:resnet18")
        assert str(refusal.value) == f"{library}:resnet18: {library} is not installed. Install it with: {command}"


@pytest.mark.parametrize(
    ("module", "command"),
    [("torchvision.transforms", "pip install --no-deps 'torchvision=="), ("yaml", "pip install pyyaml")],
)
def test_a_dependency_of_timm_that_is_missing_is_told_with_its_command(tmp_path, monkeypatch, module, command):
    (tmp_path / "timm.py").write_text(f"import {module}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torchvision", "yaml"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(RequestError) as refusal:
        build("timm:resnet18")
    # A torchvision that was imported before is itself what is missing.
    missing = {f"timm:resnet18: {name} is not installed. " for name in (module, module.partition(".")[0])}
    assert any(map(str(refusal.value).startswith, missing)) and f"Install it with: {command}" in str(refusal.value)


def test_a_torchvision_of_another_build_is_told_as_such(tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        RequestError,
        match=r"cannot be imported \(RuntimeError: operator .*with: pip install --force-reinstall --no-deps '",
    ):
        build("torchvision:resnet18")


@pytest.fixture
def stand_in_for_timm(monkeypatch):
    timm = ModuleType("timm")
    calls = []

    def create_model(name, **arguments):
        calls.append((name, arguments))
        return nn.Linear(1, arguments.get("num_classes", 1000))

    timm.create_model, timm.list_models, timm.calls = create_model, lambda: ["resnet18", "resnet50"], calls
    monkeypatch.setitem(sys.modules, "timm", timm)
    return timm


def test_timm_is_asked_for_an_untrained_network(stand_in_for_timm):
    assert build("timm:resnet18", arch_args={"num_classes": 10}).module.out_features == 10
    assert stand_in_for_timm.calls == [("resnet18", {"pretrained": False, "num_classes": 10})]


@pytest.mark.usefixtures("stand_in_for_timm")
def test_an_unknown_name_is_told_with_the_near_ones():
    with pytest.raises(RequestError, match="has no model 'resnet19'; it has resnet18"):
        build("timm:resnet19")


@pytest.mark.parametrize("argument", ["pretrained", "checkpoint_path", "pretrained_cfg"])
def test_arguments_that_would_fetch_or_read_weights_are_refused(stand_in_for_timm, argument):
    with pytest.raises(RequestError, match=f"arch_args has '{argument}'"):
        build("timm:resnet18", arch_args={argument: True})
    assert not stand_in_for_timm.calls


def test_arguments_that_timm_does_not_take_are_told(stand_in_for_timm, monkeypatch):
    monkeypatch.setattr(stand_in_for_timm, "create_model", lambda _name, *, pretrained: nn.Linear(1, int(pretrained)))
    with pytest.raises(RequestError, match=r"timm:resnet18: timm could not build it with depth=3 \(TypeError: "):
        build("timm:resnet18", arch_args={"depth": 3})


@pytest.mark.parametrize("arch", ["timm:resnet10t", "torchvision:resnet18", "torchvision:lraspp_mobilenet_v3_large"])
def test_the_libraries_themselves_give_networks(arch):
    library = arch.partition(":")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{library} cannot be imported here: {error}")
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in build(arch).module.modules())
