"""`bnuq.load`: weights and architecture together, or one message about why they do not fit."""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from findings_of import values_of
from nets import trained_small
from torch import nn

import bnuq
from bnuq.errors import ModelError, RequestError
from bnuq.models.loading import load, load_model, parameters_of

STATE = trained_small().state_dict()
NETS = Path(__file__).parent.parent / "builders"


def saved(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


def test_the_loaded_network_is_the_trained_one_in_evaluation_mode(tmp_path):
    model = bnuq.load(saved(tmp_path / "m.pt", STATE), arch="nets:small")
    assert not any(layer.training for layer in model.modules())
    x = torch.randn(5, 6)
    assert torch.equal(model(x), trained_small()(x))


def test_the_record_tells_how_the_file_was_read(tmp_path):
    holds = {"state_dict": {f"module.{name}": value for name, value in STATE.items()}, "epoch": 4}
    loaded = load_model(saved(tmp_path / "m.pt", holds), arch="nets.py:small", base=NETS)
    assert loaded.checkpoint.state is None
    assert loaded.checkpoint.metadata == {"epoch": 4}
    assert values_of(loaded, "weights-in-entry") == {"entry": "state_dict"}
    assert values_of(loaded, "prefix-removed") == {"prefix": "module."}
    assert loaded.parameters == 28 + 8 + 15


def test_a_state_dict_alone_asks_for_its_architecture_with_the_lines_to_add(tmp_path):
    with pytest.raises(RequestError) as caught:
        load(saved(tmp_path / "m.pt", STATE))
    message = str(caught.value)
    assert "m.pt: holds weights without the network they belong to: 9 tensors" in message
    assert "first.weight (4, 6) to last.bias (3,), probably 3 outputs" in message
    assert "Name the function that builds the network: --arch file.py:factory" in message


def test_names_that_do_not_fit_are_counted_and_the_first_five_named(tmp_path):
    state = {("x" + name if i < 7 else name): value for i, (name, value) in enumerate(STATE.items())}
    with pytest.raises(
        ModelError, match=r"does not fit nets:small; of the tensors, 6 that the network needs"
    ) as caught:
        load(saved(tmp_path / "m.pt", state), arch="nets:small")
    message = str(caught.value)
    assert "7 are unknown to the network: xfirst.weight, xfirst.bias" in message
    assert "and 2 more" in message


def test_another_depth_is_told_as_such(tmp_path):
    deeper = {f"{i}.weight": torch.ones(2, 2) for i in range(5)}
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(n=3): return nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(n)))"
    )
    path = saved(tmp_path / "m.pt", deeper)
    with pytest.raises(ModelError, match=r"2 are unknown to the network: 3\.weight, 4\.weight\. .*of a deeper network"):
        load(path, arch="net.py:net", base=tmp_path)
    with pytest.raises(ModelError, match="of a shallower network"):
        load(path, arch="net.py:net", arch_args={"n": 8}, base=tmp_path)


def test_another_number_of_classes_is_told_with_both_shapes(tmp_path):
    path = saved(tmp_path / "m.pt", STATE)
    text = r"2 of its tensors have another shape.*last\.weight is \(3, 4\) in the file, \(5, 4\).*has 3 outputs there"
    with pytest.raises(ModelError, match=text):
        load(path, arch="nets:small", arch_args={"classes": 5})


def test_another_network_is_told_by_its_names_before_its_shapes(tmp_path):
    path = saved(tmp_path / "m.pt", {"first.weight": torch.ones(9, 9), "head.weight": torch.ones(2, 2)})
    text = r"7 that the network needs are missing: .*1 are unknown .*head\.weight\..* 1 of those .*of another shape\."
    with pytest.raises(ModelError, match=text):
        load(path, arch="nets:small")


def test_missing_running_statistics_are_told_as_such(tmp_path):
    state = {name: value for name, value in STATE.items() if "running" not in name}
    with pytest.raises(ModelError, match=r"has no running statistics .*1 BatchNorm layers: bn\. .*track_running_stats"):
        load(saved(tmp_path / "m.pt", state), arch="nets:small")


def test_complex_weights_for_a_real_layer_are_refused_by_the_layers_name(tmp_path):
    state = STATE | {"last.weight": STATE["last.weight"].to(torch.complex64)}
    with pytest.raises(ModelError, match=r"is a complex network: last\.weight is complex64"):
        load(saved(tmp_path / "m.pt", state), arch="nets:small")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("last.weight", torch.ones(3, 4, dtype=torch.int8), "whole numbers"),
        ("last.weight", torch.ones(3, 4, dtype=torch.bool), "whole numbers"),
        ("bn.running_var", torch.ones(4, dtype=torch.int64), "whole numbers"),
        ("bn.running_var", torch.full((4,), 1e300, dtype=torch.float64), "numbers too large"),
    ],
)
def test_numbers_that_become_others_in_the_network_are_refused_by_the_layers_name(tmp_path, name, value, said):
    path = saved(tmp_path / "m.pt", STATE | {name: value})
    with pytest.raises(ModelError, match=f"{name} holds {said}"):
        load(path, arch="nets:small")


def test_a_counter_of_batches_may_be_an_average(tmp_path):
    assert load(saved(tmp_path / "m.pt", STATE | {"bn.num_batches_tracked": torch.tensor(1.5)}), arch="nets:small")


def test_a_counter_of_batches_may_be_missing(tmp_path):
    state = {name: value for name, value in STATE.items() if not name.endswith("num_batches_tracked")}
    assert load_model(saved(tmp_path / "m.pt", state), arch="nets:small")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_converted(tmp_path, dtype):
    state = {name: value.to(dtype) if value.is_floating_point() else value for name, value in STATE.items()}
    loaded = load_model(saved(tmp_path / "m.pt", state), arch="nets:small")
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}


LAZY = """
from torch import nn
def net():
    convolutions = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.LazyConvTranspose2d(3, 2)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(2))
"""


def test_lazy_layers_are_finished_and_never_change_again(tmp_path):
    (tmp_path / "net.py").write_text(LAZY)
    whole = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 3, 2), nn.Flatten(), nn.Linear(75, 2)
    ).eval()
    model = load(saved(tmp_path / "m.pt", whole.state_dict()), arch="net.py:net", base=tmp_path)
    classes = [type(layer) for layer in model]
    assert classes == [type(layer) for layer in whole]
    assert repr(model) == repr(whole)
    assert not any(layer._forward_pre_hooks or layer._load_state_dict_pre_hooks for layer in model.modules())
    x = torch.randn(3, 2, 6, 6)
    assert torch.equal(model(x), whole(x))
    assert [type(layer) for layer in model] == classes


def test_a_lazy_layer_that_the_weights_do_not_settle_is_an_error(tmp_path):
    (tmp_path / "net.py").write_text(LAZY)
    with pytest.raises(ModelError, match=r"does not fit net\.py:net.*1\.weight"):
        load(saved(tmp_path / "m.pt", {"0.weight": torch.ones(4, 2, 3, 3)}), arch="net.py:net", base=tmp_path)


def test_a_pickled_network_needs_no_architecture(tmp_path):
    path = saved(tmp_path / "whole.pt", nn.DataParallel(trained_small().train()))
    loaded = load_model(path, trust_pickle=True, arch="nets:small")
    assert type(loaded.module).__name__ == "Small"
    assert not loaded.module.training
    assert values_of(loaded, "architecture-unused") == {"architecture": "nets:small"}


def test_a_network_that_calls_its_layers_model_keeps_that_name(tmp_path):
    (tmp_path / "net.py").write_text(
        "import nets\nfrom torch import nn\nclass Wrapper(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.model = nets.small()\n"
    )
    state = {f"module.model.{name}": value for name, value in STATE.items()}
    model = load(saved(tmp_path / "m.pt", state), arch="net.py:Wrapper", base=tmp_path)
    assert torch.equal(model.model.first.weight, STATE["first.weight"])


def test_loading_does_not_touch_the_global_generator(tmp_path):
    path = saved(tmp_path / "m.pt", STATE)
    before = torch.get_rng_state()
    load(path, arch="nets:small")
    assert torch.equal(before, torch.get_rng_state())


def test_the_description_counts_shared_parameters_once():
    layer = nn.Linear(3, 3)
    assert parameters_of(nn.Sequential(layer, nn.BatchNorm1d(3), layer)) == 12 + 6


published = pytest.mark.skipif("BNUQ_TEST_DATA" not in os.environ, reason="BNUQ_TEST_DATA does not name the data")


@published
@pytest.mark.nightly
def test_resnet20_as_published_is_right_on_776_of_846_images():
    data = Path(os.environ["BNUQ_TEST_DATA"])
    model = load(data / "checkpoints" / "resnet20-12fca82f.th", arch="nets:resnet20")
    arrays = np.load(data / "cifar10" / "lossless_test.npz")
    x = torch.from_numpy(arrays["x"]).permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.inference_mode():
        right = (model(x).argmax(1).numpy() == arrays["y"]).sum()
    assert abs(int(right) - 776) <= 1  # 91.73 %; one for another CPU's rounding


@published
@pytest.mark.parametrize("name", ["fmnist_mlp_bn.pt", "mnist_mlp_bn.pt"])
def test_the_published_mlps_load(name):
    loaded = load_model(Path(os.environ["BNUQ_TEST_DATA"]) / "checkpoints" / name, arch="nets:MLP")
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in loaded.module.modules()) == 4


@published
def test_a_deeper_published_resnet_is_told_from_resnet20():
    path = Path(os.environ["BNUQ_TEST_DATA"]) / "checkpoints" / "resnet32-d509ac18.th"
    with pytest.raises(ModelError, match=r"unknown to the network: layer1\.3\.conv1\.weight.*of a deeper network"):
        load(path, arch="nets:resnet20")


def test_compiled_layers_are_taken_for_what_they_were_made_of(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def plain():\n    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))\n\n"
        "def compiled():\n    net = plain()\n"
        "    net[1][0] = torch.compile(net[1][0], backend='eager')\n    return net\n"
    )
    factories = runpy.run_path(str(tmp_path / "net.py"))
    for file in ("plain", "compiled"):
        torch.save(factories[file]().state_dict(), tmp_path / f"{file}.pt")
        for factory in ("plain", "compiled"):
            net = load(tmp_path / f"{file}.pt", arch=f"net.py:{factory}", base=tmp_path)
            assert [name for name, _ in net.named_modules()] == ["", "0", "1", "1.0"]
