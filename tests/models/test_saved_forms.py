"""One network in every form that it is saved in gives the same figures; what cannot be sampled is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import torch
from findings_of import values_of
from nets import Cnn, trained_cnn
from safetensors.torch import save_file
from torch import Tensor, nn

import bnuq
from bnuq.config import Options, resolve, resolve_again
from bnuq.config.runfile_writing import other_command
from bnuq.errors import BnuqError, ModelError, RequestError
from bnuq.models.checkpoint import read_checkpoint
from bnuq.models.loading import LoadedModel, load_model
from bnuq.models.saving import with_statistics
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.provenance import run_file
from bnuq.sampling.site_search import find_sites

pytestmark = [
    pytest.mark.run,  # torch traces networks
    pytest.mark.filterwarnings("ignore:.*(torch.jit|LeafSpec|deprecated|quantize)"),
]

TRAIN = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
X = TRAIN[:9]
TIMM = {
    "architecture": "cnn",
    "num_classes": 3,
    "pretrained_cfg": {
        "input_size": [3, 8, 8],
        "interpolation": "bicubic",
        "crop_pct": 0.8,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.3, 0.4],
        "num_classes": 3,
    },
}


def scripted(path: Path) -> None:
    torch.jit.save(torch.jit.script(trained_cnn()), path)


def exported(path: Path, net: nn.Module | None = None, *, dynamic: bool = True, decomposed: bool = False) -> None:
    shapes = ({0: torch.export.Dim("points", max=2**31)},) if dynamic else None  # torch 2.6 needs a limit
    program = torch.export.export(net or trained_cnn(), (X,), dynamic_shapes=shapes)
    torch.export.save(program.run_decompositions() if decomposed else program, path)


def folder_of(path: Path, config: dict, **files: dict) -> None:
    path.mkdir()
    save_file(trained_cnn().state_dict(), path / "model.safetensors")
    for name, values in {"config": config, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(values))


def sharded(path: Path) -> None:
    path.mkdir(exist_ok=True)
    state = trained_cnn().state_dict()
    names = sorted(state)
    parts = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, inside in parts.items():
        save_file({name: state[name] for name in inside}, path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


FORMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "state dict": (lambda path: torch.save(trained_cnn().state_dict(), path), "state dict (zip)"),
    "scripted": (scripted, "TorchScript"),
    "traced": (lambda path: torch.jit.save(torch.jit.trace(trained_cnn(), X), path), "TorchScript"),
    "exported": (exported, "exported program"),
    "pickled": (lambda path: torch.save(trained_cnn(), path), "pickled module"),
    "timm folder": (lambda path: folder_of(path, TIMM), "timm folder"),
    "shards": (sharded, "sharded safetensors"),
}


@pytest.fixture(autouse=True)
def a_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of one network in the place of timm."""
    library = types.ModuleType("timm")
    library.list_models = lambda: ["cnn"]  # type: ignore[attr-defined]
    library.create_model = lambda _name, *, pretrained, **rest: Cnn(**rest) if not pretrained else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", library)


def read(path: Path, form: str) -> LoadedModel:
    needs_arch = form in ("state dict", "shards", "scripted", "traced")
    return load_model(path, arch="nets:Cnn" if needs_arch else None, trust_pickle=form in ("pickled", "exported"))


@cache
def expected_passes(dropout: bnuq.Dropout | None) -> Tensor:
    return passes(trained_cnn(), dropout)


def passes(net: nn.Module, dropout: bnuq.Dropout | None) -> Tensor:
    return bnuq.predict(net, X, bnuq.draw(net, TRAIN, samples=4, batch_size=16), dropout=dropout)


def test_a_class_of_the_script_that_was_run_is_found_in_the_file_of_arch(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Sequential): pass\n"
        "if __name__ == '__main__': torch.save(Net(nn.Linear(2, 1)), 'net.pt')\n"
    )
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    main = sys.modules["__main__"]
    for trusts in (False, True):
        with pytest.raises(BnuqError, match=r"--arch FILE\.py:Net"):
            read_checkpoint(tmp_path / "net.pt", trust_pickle=trusts)
    loaded = load_model(tmp_path / "net.pt", arch="train.py:Net", base=tmp_path, trust_pickle=True)
    assert type(loaded.module).__name__ == "Net" and sys.modules["__main__"] is main


@pytest.mark.parametrize("form", at_night.but({*FORMS} - {"traced"}, FORMS))
def test_every_form_gives_the_same_figures(tmp_path, form):
    write, kind = FORMS[form]
    path = tmp_path / ("folder" if "folder" in form else "m.pt2")
    write(path)
    loaded = read(path, form)
    assert loaded.checkpoint.form == kind and loaded.parameters == 108 + 8 + 435
    (site,) = find_sites(loaded.module, TRAIN).batchnorms
    assert (site.name, site.stochastic, site.tracked) == ("bn", True, True)
    for dropout in (None, bnuq.Dropout(4, seed=1)):
        found, expected = passes(loaded.module, dropout), expected_passes(dropout)
        assert float(expected.std(0).min()) > 0
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["state dict", "scripted", "safetensors", "pickled"])
def test_weights_in_half_precision_are_computed_with_in_float32(tmp_path, form, dtype):
    net, path = trained_cnn().to(dtype), tmp_path / "m.pt"
    writers: dict[str, Callable[[], object]] = {
        "state dict": lambda: torch.save(net.state_dict(), path),
        "safetensors": lambda: save_file(net.state_dict(), path),
        "scripted": lambda: torch.jit.save(torch.jit.script(net), path),
        "pickled": lambda: torch.save(net, path),
    }
    writers[form]()
    loaded = load_model(path, arch=None if form == "pickled" else "nets:Cnn", trust_pickle=True)
    torch.testing.assert_close(passes(loaded.module.float(), None), passes(net.float(), None), rtol=1e-5, atol=1e-6)


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = trained_cnn()
        self.scale = torch.tensor([1.0, 2.0, 3.0])  # a constant of the program, and no weight
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"features": logits[:, :1], "logits": logits * self.scale.to(x.dtype) + self.shift}


def test_outputs_of_a_program_keep_their_names_and_its_constants_their_values(tmp_path):
    net = Outputs().eval()
    exported(tmp_path / "m.pt2", net)
    found = load_model(tmp_path / "m.pt2", trust_pickle=True).module.double()(X[:1].double())
    assert list(found) == ["features", "logits"]
    torch.testing.assert_close(found["logits"].float(), net(X[:1])["logits"])


class Always(Cnn):
    """A network with another dropout, which is always active."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.load_state_dict(trained_cnn().state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), self.rate, training=True)


def partly_training() -> nn.Module:
    net = trained_cnn()
    net.bn.train()
    return net


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (partial(exported, net=partly_training()), "exported with batch_norm in training mode"),
        (partial(exported, net=Always().eval()), r"exported with dropout_1 in training mode.*without dropout\("),
        (partial(exported, dynamic=False), r"a fixed number of examples.*dynamic_shapes="),
        (partial(exported, decomposed=True), "was decomposed: its BatchNorms are in parts"),
    ],
    ids=["BatchNorm", "dropout", "9 points", "decomposed"],
)
def test_a_program_that_cannot_be_sampled_is_refused_with_the_remedy(tmp_path, write, told):
    write(tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=rf"m\.pt2: .*{told}") as caught:
        load_model(tmp_path / "m.pt2", trust_pickle=True)
    assert "Export the network anew, after .eval()" in str(caught.value)


def test_a_dropout_of_rate_0_and_a_batchnorm_without_statistics_may_be_in_training_mode(tmp_path):
    exported(tmp_path / "m.pt2", nn.Sequential(Always(0.0), nn.BatchNorm1d(3, track_running_stats=False)).eval())
    expected = nn.functional.batch_norm(trained_cnn()(X), None, None, training=True)
    torch.testing.assert_close(load_model(tmp_path / "m.pt2", trust_pickle=True).module(X), expected)


def test_the_weights_of_a_script_need_the_network_and_no_tables_that_it_makes(tmp_path):
    net = Outputs().eval()
    torch.jit.save(torch.jit.script(net), tmp_path / "m.pt")
    with pytest.raises(
        RequestError, match=r"m\.pt: is TorchScript, and only its weights are read: 10 tensors, (?s:.*)--arch file\."
    ):
        load_model(tmp_path / "m.pt")
    loaded = load_model(tmp_path / "m.pt", arch=f"{__name__}:Outputs")
    assert torch.equal(loaded.module(X)["logits"], net(X)["logits"])


def test_a_timm_folder_needs_no_run_file(tmp_path):
    folder_of(tmp_path / "net", TIMM)
    run = resolve("net", Options(test="t.npz"), folder=tmp_path)
    assert (run.arch, run.resize, run.crop, run.interpolation) == (None, 10, (8, 8), "bicubic")
    assert run.normalize is not None and run.normalize.std == (0.2, 0.3, 0.4)  # type: ignore[union-attr]
    loaded = load_model(tmp_path / "net")
    assert loaded.arch == "timm:cnn"
    assert values_of(loaded, "hub-config")["settings"] == [
        "architecture", "normalize", "resize", "crop", "interpolation",
    ]  # fmt: skip


def write_pictures(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for name, count in (("train", 64), ("test", 24)):
        pictures = generator.integers(0, 256, (count, 12, 12, 3), np.uint8)
        np.savez(folder / f"{name}.npz", x=pictures, y=generator.integers(0, 3, count))


def estimates(result: Result) -> dict[str, Any]:
    return {name: method["sets"]["test"] for name, method in summary(result)["methods"].items()}


def test_an_interpolation_that_is_not_known_is_of_the_config_and_can_be_overridden(tmp_path):
    folder_of(tmp_path / "net", TIMM | {"pretrained_cfg": TIMM["pretrained_cfg"] | {"interpolation": "lanczos"}})
    with pytest.raises(ModelError, match=r"net/config\.json: interpolation is lanczos; expected bilinear, bicubic"):
        resolve("net", Options(), folder=tmp_path)
    assert resolve("net", Options(interpolation="bicubic"), folder=tmp_path).interpolation == "bicubic"
    assert resolve("net", Options(resize=9), folder=tmp_path).interpolation == "bilinear"


def test_options_and_the_run_file_override_the_config(tmp_path):
    folder_of(tmp_path / "net", TIMM)
    run = resolve("net", Options(resize=9, normalize="none"), folder=tmp_path)
    assert (run.resize, run.crop, run.interpolation, run.normalize) == (9, None, "bilinear", None)
    (tmp_path / "net.toml").write_text("[data]\ncrop = 6\n")
    run = resolve("net", Options(), folder=tmp_path)
    assert (run.resize, run.crop) == (None, (6, 6)) and run.normalize is not None


WRITTEN = '[data]\ninterpolation = "bilinear"\nnormalize = "none"\n'


@pytest.mark.parametrize("lines", ["", WRITTEN])
def test_what_is_written_is_present_though_it_is_the_default_or_none_also_in_a_record(tmp_path, lines):
    folder_of(tmp_path / "net", TIMM)
    (tmp_path / "net.toml").write_text(lines)
    options = {} if lines else {"interpolation": "bilinear", "normalize": "none"}
    run = resolve("net", Options(**options), folder=tmp_path)
    (tmp_path / "copy.toml").write_text(run_file(run.record()))
    again = resolve_again(run.record(), tmp_path / "r.h5", Options(), folder=tmp_path)
    earlier = {**run.record(), "data": {"resize": 10, "crop": [8, 8]}}  # as it was recorded
    for repeated in (run, again, resolve("copy.toml", Options(), folder=tmp_path)):
        assert (repeated.interpolation, repeated.normalize, repeated.resize) == ("bilinear", None, 10)
        assert repeated.record() == run.record()
    assert other_command(again, "inspect").endswith("--interpolation bilinear --normalize none")
    again = resolve_again(earlier, tmp_path / "r.h5", Options(), folder=tmp_path)
    assert (again.interpolation, again.normalize) == ("bilinear", None)


PREPROCESSING = {
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 127.5, "rescale_offset": True,
    "size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3,
}  # fmt: skip
RESNET = {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "num_labels": 3}


def test_a_folder_of_transformers_gives_its_network_and_pipeline(tmp_path, monkeypatch):
    library = types.ModuleType("transformers")
    given = {}

    def for_model(**config):
        given.update(config)
        return config

    library.AutoConfig = types.SimpleNamespace(for_model=for_model)  # type: ignore[attr-defined]
    maker = types.SimpleNamespace(
        from_config=lambda config, *, trust_remote_code: None if trust_remote_code else Cnn(config["num_labels"])
    )
    library.AutoModelForImageClassification = maker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", library)
    config = RESNET | {"_attn_implementation": "somebody/kernel", "attn_implementation": "somebody/kernel"}
    folder_of(tmp_path / "net", config, preprocessor_config=PREPROCESSING)
    loaded = load_model(tmp_path / "net")
    assert given == {"model_type": "resnet", "num_labels": 3}
    torch.testing.assert_close(passes(loaded.module, None), passes(trained_cnn(), None))
    run = resolve("net", Options(), folder=tmp_path)
    assert (run.resize, run.crop, run.interpolation) == (256, (224, 224), "bicubic")
    pixels = torch.tensor([0.0, 0.4, 1.0])
    mean, std = run.normalize.mean[0], run.normalize.std[0]  # type: ignore[union-attr]
    torch.testing.assert_close((pixels - mean) / std, (pixels * 255 / 127.5 - 1 - 0.5) / 0.5)


def test_transformers_that_is_not_installed_is_told_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder_of(tmp_path / "net", RESNET)
    with pytest.raises(
        RequestError, match=r"transformers is not installed\. Install it with: pip install transformers"
    ):
        load_model(tmp_path / "net")


def test_an_index_and_its_folder_are_the_same_checkpoint(tmp_path):
    sharded(tmp_path / "net")
    folder, index = (read_checkpoint(tmp_path / "net" / name) for name in ("", "model.safetensors.index.json"))
    assert folder.sha256 == index.sha256
    (tmp_path / "net" / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors, which holds a part of the weights, is missing"):
        read_checkpoint(tmp_path / "net")


def test_a_distributed_checkpoint_is_refused_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / ".metadata").write_bytes(b"")
    with pytest.raises(ModelError, match=r"is a distributed checkpoint.* Convert it: .* dcp_to_torch FOLDER model\.pt"):
        read_checkpoint(tmp_path / "net")


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, 0, 0] * self.wave).abs()


def quantized() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)


def test_quantized_and_complex_networks_are_named_as_such(tmp_path):
    path = tmp_path / "m.pt"
    torch.save(Complex(), path)
    with pytest.raises(ModelError, match="is a complex network: wave is complex64"):
        load_model(path, trust_pickle=True)
    torch.save(Complex().state_dict(), path)
    for arch in (None, "nets:Cnn"):
        with pytest.raises(ModelError, match=r"is a complex network: wave is complex64.*Write them as two real ones"):
            load_model(path, arch=arch)
    torch.save(quantized(), path)
    with pytest.raises(ModelError, match=r"is a quantized network: 1 is a Linear of torch\.ao\.nn.quantized.dynamic"):
        load_model(path, trust_pickle=True)
    torch.jit.save(torch.jit.script(quantized()), path)
    with pytest.raises(ModelError, match="is a quantized network, as TorchScript"):
        load_model(path)
    torch.save(quantized().state_dict(), path)
    with pytest.raises(
        ModelError, match=r"is a quantized network: 1\._packed_params\._packed_params holds whole numbers"
    ):
        load_model(path, trust_pickle=True)
    torch.save(nn.Sequential(torch.ao.nn.intrinsic.quantized.ConvReLU2d(1, 2, 1)), path)
    with pytest.raises(ModelError, match="is a quantized network: 0 is a ConvReLU2d"):
        load_model(path, trust_pickle=True)


def test_a_frozen_script_is_named(tmp_path):
    torch.jit.save(torch.jit.freeze(torch.jit.script(trained_cnn())), tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"m\.pt: is TorchScript without weights: torch\.jit\.freeze"):
        load_model(tmp_path / "m.pt")


def test_forms_that_are_read_only_are_not_written(tmp_path):
    scripted(tmp_path / "m.pt")
    loaded = load_model(tmp_path / "m.pt", arch="nets:Cnn")
    with pytest.raises(ModelError, match=r"its form \(TorchScript\) is read-only here"):
        with_statistics(loaded.checkpoint, {})
