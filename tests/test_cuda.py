"""On an accelerator: what the CPU gives, within its rounding. On a real GPU where torch has one; otherwise on the fake
one, which models neither rounding, nor memory of libraries, nor whether CUDA has a kernel: what needs those is skipped.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import adversaries
import h5py
import numpy as np
import pytest
import small_regression
import small_run
import small_segmentation
import torch
import zoo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass
from torch.testing import assert_close

import bnuq
from bnuq.arithmetic import arithmetic_named
from bnuq.config import Options, resolve, resolve_ensemble, resolve_sweep
from bnuq.evaluation.setup import threads
from bnuq.gate.pairing import pairing
from bnuq.records.evaluation import Result
from bnuq.sampling.dropout import dropped
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import DropoutSite
from bnuq.studies.export.compute import export
from bnuq.studies.inspect.compute import Settings, inspect
from bnuq.studies.precise_bn.compute import precise_bn
from bnuq.studies.sweep.compute import sweep
from bnuq.workflows.evaluate import evaluate
from experiments.layers import (
    AnalyticSequential,
    MeanFieldConv2d,
    MeanFieldLinear,
    Moments,
    NormalizedConv2d,
    NormalizedLinear,
)

REAL = torch.cuda.is_available()
TORCHS = arithmetic_named("auto", (True, False))  # as torch does by default on Ampere and later
DEVICE = "cuda:0" if REAL else "pretend:0"
on_a_gpu = pytest.mark.skipif(not REAL, reason="no GPU in $CUDA_VISIBLE_DEVICES")
nightly_on_a_cpu = on_a_gpu if REAL else pytest.mark.nightly
pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.held(False)]

OF_THE_CPU = {
    "slices_assigned", "points_repeated_before_the_first_draw", "points_that_know_their_place", "attention_over_tokens",
    "memory_of_numpy",
}  # fmt: skip  # networks that make tensors of the CPU in their forward
ALIKE = {
    "1d on (N, C, L)", "3d", "fused with an activation", "synchronised", "lazy", "without scale and shift", "nested",
    "without running statistics", "momentum None", "momentum 1", "momentum 0", "large eps", "shared by submodules",
    "recurrent_before_the_draw", "convolutions_of_sequences", "convolutions_of_volumes", "transposed_convolution",
    "points_along_the_second_axis", "several_rows_of_every_point", "inactive_dropout_before_a_skip", "many_branches",
    "storage_of_pictures_strided_by_hand", "expanded_memory_that_is_dead", "input_written_after_the_draw_has_read_it",
    "prefix_written_after_the_draw_has_read_it", "contiguous_that_is_an_alias_in_one_layout_only", "sum_with_itself",
    "linear_layers_over_sequences", "skips_that_leave_out_the_first_draw", "windows_that_overlap",
    "convolution_read_twice", "convolution_shared_by_two_batchnorms",
}  # fmt: skip  # each with a network like it below, whose operations are the same for a device
UNLIKE = [name for name in (*zoo.KINDS, *adversaries.ADVERSARIES) if name not in OF_THE_CPU | ALIKE]
NETWORKS = [  # the fake device has the kernels of the CPU: some of them tell whether tensors are where they belong
    *(pytest.param(name, marks=() if name in UNLIKE[::4] else nightly_on_a_cpu) for name in UNLIKE),
    *(pytest.param(name, marks=nightly_on_a_cpu) for name in sorted(ALIKE)),
]


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> None:
    """The fake accelerator, where there is no GPU."""
    if not REAL:
        request.getfixturevalue("accelerator")


# ── masks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

AXES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # the shape of two points, and where they lie in it
    "rows": ((2, 37), {"batch_axis": 0}),
    "pictures": ((2, 5, 7, 3), {"batch_axis": 0}),
    "large pictures": ((2, 16, 16, 8), {"batch_axis": 0}),
    "volumes": ((2, 3, 2, 3, 5), {"batch_axis": 0}),
    "several rows of a point": ((6, 4, 5), {"batch_axis": 0, "rows": 3}),
    "rows apart": ((6, 4), {"batch_axis": 0, "rows": 3, "interleaved": True}),
    "along the second axis": ((5, 2, 9), {"batch_axis": 1}),
    "no axis of points": ((3, 700, 2), {"batch_axis": None}),
}
VARIETIES = "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"
TIED = 43193.5 / 2**16, 12588.5 / 2**16  # 16 bits of an entry do not tell whether it is kept
RATES = st.sampled_from((0.5, 0.25, 0.1, 1 / 3, 2**-20, 1 - 2**-30, 1.0, *TIED)) | st.floats(0, 1, exclude_max=True)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@settings(max_examples=60, deadline=None)
@given(
    axes=st.sampled_from(list(AXES)), variety=st.sampled_from(VARIETIES), p=RATES, order=st.integers(0, 5),
    seed=st.integers(0, 2**63 - 1), draws=st.lists(st.integers(0, 2**40), min_size=1, max_size=3),
    start=st.sampled_from((0, 1, 13, 2**32)), in_place=st.booleans(), last=st.booleans(), learns=st.booleans(),
    dtype=st.sampled_from((torch.float32, torch.float16, torch.float64, torch.bfloat16)),
)  # fmt: skip
@example("rows", "dropout", TIED[0], 3, 1, [2, 7], 0, False, False, False, torch.float32)
@example("no axis of points", "alpha_dropout", TIED[1], 3, 1, [7], 0, False, False, False, torch.float32)
@example("large pictures", "dropout", 1 / 3, 0, 2**63 - 1, [0, 2**40], 2**32, True, True, False, torch.float32)
@example("large pictures", "dropout", 0.5, 1, 0, [3], 13, False, True, True, torch.float32)
def test_dropout_is_bitwise_that_of_the_cpu(axes, variety, p, order, seed, draws, start, in_place, last, learns, dtype):
    shape, where = AXES[axes]
    site, of_draws = DropoutSite("d", order=order, p=p, variety=variety, **where), len(draws)
    if site.batch_axis is None:
        of_draws, draws = 1, draws[:1]
    x = torch.arange(math.prod(shape) * of_draws).remainder(251).sub(120).div(64).to(dtype)
    x = x.view([size * (of_draws if axis == site.batch_axis else 1) for axis, size in enumerate(shape)])
    if last and x.ndim in LAST:
        x = x.contiguous(memory_format=LAST[x.ndim])
    calls = [DropoutCall(x.clone().to(on), p, variety, in_place and not learns, False) for on in ("cpu", DEVICE)]
    for call in calls:
        call.input.requires_grad_(learns)
    (expected, found) = (dropped(call, site, bnuq.Dropout(1, seed=seed), draws, start) for call in calls)
    assert torch.equal(found.detach().cpu(), expected.detach()) and found.stride() == expected.stride()
    assert (found is calls[1].input) == (in_place and not learns)


@pytest.mark.skipif(REAL, reason="a GPU does not count its waits")
def test_masks_are_drawn_where_a_kernel_is_and_otherwise_copied_without_a_wait(request):
    log = request.getfixturevalue("accelerator")
    site = DropoutSite("d", order=1, p=0.3, variety="dropout", batch_axis=0)
    call = DropoutCall(torch.ones(6, 5, 7, 11, device=DEVICE), 0.3, "dropout", False, False)
    for seed in (1, 2):  # the kernel is checked before its first use
        log.clear()
        dropped(call, site, bnuq.Dropout(3, seed=seed), [0, 2], 5)
    has_kernel = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
    assert log.kernels["_mask"] == has_kernel and log.copies == 1 and not log.waits  # of keys, or of a mask


# ── networks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sampled(net: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], str]:
    """The outputs of MCBN and MC dropout, and why there is no plan."""
    sites = find_sites(net, x[:3], compare_with_training=False)
    omega = bnuq.statistics_of(net, [x[:10], x[5:15], x[11:]], layers=sites.live_batchnorms)
    engines = {"mcbn": Stochastic(net, sites, omega=omega)}
    if sites.live_dropouts:
        engines["mcdo"] = Stochastic(net, sites, dropout=bnuq.Dropout(4, seed=1))
    return {name: engine.passes(x).cpu() for name, engine in engines.items()}, engines["mcbn"].why_plain


@pytest.mark.parametrize("name", NETWORKS)
def test_samples_are_those_of_the_cpu_and_planned_where_they_are(name):
    made = zoo if name in zoo.KINDS else adversaries
    net, x = made.made(name), made.points(name, 21)
    expected, why_plain = sampled(net, x)
    found, why = sampled(copy.deepcopy(net).to(DEVICE), x.to(DEVICE))
    assert why == why_plain
    for method, values in expected.items():
        # CUDA's convolutions of volumes in float64 differ from the CPU's by 1e-8 without bnuq, too.
        tolerance = 1e-7 if name == "convolutions_of_volumes" else 1e-9
        assert_close(found[method], values, rtol=0, atol=tolerance * float(values.abs().max()))


@on_a_gpu
def test_float32_is_exact_and_tf32_is_not_where_relus_are_computed_with_convolutions():
    net = zoo.settled(lambda: Stem(), (3, 16, 16))
    x = zoo.points((3, 16, 16), 40)
    expected = sampled(net, x)[0]["mcbn"]
    net, x = net.float().cuda(), x.float().cuda()
    sites = find_sites(net, x[:3], compare_with_training=False)
    omega = bnuq.statistics_of(net, [x[:10], x[5:15], x[11:]])
    largest = {}
    for arithmetic in (*map(arithmetic_named, ("float32", "tf32", "float16", "bfloat16")), TORCHS):
        found = Stochastic(net, sites, omega=omega, arithmetic=arithmetic).passes(x).cpu().double()
        largest[arithmetic.name] = float((found - expected).abs().max() / expected.abs().max())
    assert largest["float32"] < 1e-5 < largest["tf32"] < 1e-2
    assert 1e-5 < largest["float16"] < 1e-2 and 1e-5 < largest["tf32-convolutions"] < 1e-2
    assert largest["bfloat16"] < 0.1


class Stem(nn.Module):
    """Convolutions with BatchNorms, one inside a shortcut, wide enough for the matrix units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn_first = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.one, self.bn_one = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.two, self.bn_two = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64)
        self.short, self.bn_short = nn.Conv2d(32, 64, 1, stride=2, bias=False), nn.BatchNorm2d(64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn_first(self.first(x)).relu()
        out = self.bn_two(self.two(self.bn_one(self.one(x)).relu_()))
        out += self.bn_short(self.short(x))
        return self.last(out.relu().mean((2, 3)))


def normalised() -> nn.Module:
    layers = [
        NormalizedConv2d(3, 4, 3, normalization="analytic", noise="batch", effective_size=32), nn.ReLU(), nn.Flatten(),
        NormalizedLinear(144, 5, normalization="weight", noise="scale"),
    ]  # fmt: skip
    return AnalyticSequential(*layers, data=Moments(torch.zeros(3), torch.ones(3)))


def mean_field() -> nn.Module:
    return nn.Sequential(
        MeanFieldConv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), MeanFieldLinear(144, 5)
    )  # fmt: skip


@pytest.mark.parametrize("layers", [normalised, mean_field])
def test_noise_of_the_networks_own_layers_is_that_of_the_cpu(layers):
    net, x = layers().eval(), torch.randn(12, 3, 8, 8)
    expected = bnuq.predict(net, x, learned=bnuq.Learned(6, seed=1))
    assert expected.std(0).min() > 0
    found = bnuq.predict(copy.deepcopy(net).to(DEVICE), x, learned=bnuq.Learned(6, seed=1))
    assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


# ── whole evaluations ─────────────────────────────────────────────────────────────────────────────────────────────────


def classifier(folder: Path, text: str = small_run.RUN) -> None:
    small_run.write(folder, text=text)
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save({**state, "7.weight": state["7.weight"].flip(1)}, folder / "second.pt")


def augmented(folder: Path) -> None:
    classifier(folder, small_run.RUN + "\n[tta]\npad = 1\ncrop = 6\nflip = true\n")


def several_labels(folder: Path) -> None:
    outputs = 'outputs = "multilabel"\narch_args = { classes = 4 }\ntrain_batch_size'
    small_run.write(folder, text=small_run.RUN.replace("train_batch_size", outputs), classes=4)
    for name in ("train", "test"):
        x = np.load(folder / f"{name}.npz")["x"]
        np.savez(folder / f"{name}.npz", x=x, y=(x.reshape(len(x), -1)[:, :4] > 0.5).astype(np.int64))


EVERY_METHOD = (
    "mcbn", "mcdo", "mcbn+mcdo", "mcbn-chi2", "mcbn-gaussian", "mcbn-empirical", "tta", "mcbn+tta", "laplace"
)  # fmt: skip
ATTACKS = ("gaussian:0.1", "fgsm:0.1")
FOLDERS = {
    "classes": classifier, "augmented": augmented, "labels": several_labels, "pictures": small_segmentation.write,
    "noisy": small_run.write_noisy, "numbers": small_regression.write,
}  # fmt: skip
LESS: dict[str, Any] = {} if REAL else {"samples": 4, "limit": 12, "post_hoc": False}
OF_PICTURES = {"samples": 4, "calibrate": "cross"} if REAL else {"methods": ("mcbn",), "samples": 2, "limit": 2}
HALVES = {"calibrate": "cross"} if REAL else {"calibrate": "cross", "limit": 20}  # of ten points or more
EVALUATIONS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "every method, post-hoc scores": ("augmented", (), {"methods": EVERY_METHOD, "post_hoc": True}),
    "an ensemble, temperatures": ("classes", ("second.pt",), {"methods": ("mcbn", "ensemble"), **HALVES}),
    "inputs under attack": ("classes", (), {"methods": ("mcbn",), "perturb": ATTACKS, "limit": 8}),
    "a bank": ("classes", (), {"methods": ("mcbn",), "bank": 12}),
    "draws until they suffice": ("classes", (), {"methods": ("mcbn",), "samples": "auto", "max_samples": 32}),
    "several labels": ("labels", (), {"methods": ("mcbn",)}),
    "learned noise": ("noisy", (), {"methods": ("learned", "mcbn+learned", "mcdo+learned")}),
    "a segmentation": ("pictures", (), {"save_maps": True, **OF_PICTURES}),
    "a regression": ("numbers", (), {"methods": ("mcbn",)}),
}

# By a device without float64 below; by the noise of the layers above; and, as the fake device computes as a CPU does,
# by the runs of a CPU.
HELD_ELSEWHERE = EVALUATIONS.keys() - {"a regression"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a kind of network, written once."""
    root = tmp_path_factory.mktemp("runs")

    def folder(kind: str) -> Path:
        if not (root / kind).exists():
            FOLDERS[kind](root / kind)
        return root / kind

    return folder


def evaluated(folder: Path, on: str, *members: str, **options: Any) -> Result:
    device = "cpu" if on == "cpu" else "auto"  # no option names the fake one
    given = Options(device=device, out=folder / f"{device}.h5", **{"precision": "float32", **LESS, **options})
    result = evaluate(resolve_ensemble(("run.toml", *members), given, folder=folder))
    assert result.sampling["device"] == on
    return result


def estimates(result: Result) -> dict[tuple[str, ...], float]:
    """Those of every method and set, also those that tell sets apart."""
    values = {
        (name, of_set, metric): estimate.value
        for name, method in result.methods.items()
        for of_set, scores in method.sets.items()
        for metric, estimate in scores.estimates.items()
    }
    return values | {
        (name, of_set, score, metric): estimate.value
        for name, method in result.methods.items()
        for of_set, scores in method.ood.items()
        for score, metrics in scores.items()
        for metric, estimate in metrics.items()
    }


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=nightly_on_a_cpu if case in HELD_ELSEWHERE else ()) for case in EVALUATIONS]
)
def test_an_evaluation_gives_the_estimates_of_the_cpu(case, folders):
    kind, members, options = EVALUATIONS[case]
    results = [evaluated(folders(kind), on, *members, **options) for on in ("cpu", DEVICE)]
    assert not pairing(*results).why_not  # each method has the same draws
    of_cpu, of_device = map(estimates, results)
    # Where a gradient is almost 0, its sign and so the attack is a matter of rounding.
    rough = 0.02 if REAL and case == "inputs under attack" else 0
    assert of_device == pytest.approx(of_cpu, rel=rough or 1e-4, abs=rough or 1e-5, nan_ok=True)
    if options.get("save_maps"):
        maps_of_cpu, maps_of_device = (maps(folders(kind) / f"{name}.h5") for name in ("cpu", "auto"))
        assert maps_of_cpu.keys() == maps_of_device.keys() and len(maps_of_cpu) > 10
        for name, values in maps_of_cpu.items():
            np.testing.assert_allclose(maps_of_device[name], values, rtol=1e-3, atol=1e-4)


def maps(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3 and item.dtype == np.float32:
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(look)
    return found


@pytest.mark.nightly
def test_every_precision_runs(folders):
    options = {"methods": ("mcbn",), "samples": 8, "limit": 30, "post_hoc": False, "ood": ()}
    expected = estimates(evaluated(folders("classes"), "cpu", precision="float64", **options))
    tolerances = {"bfloat16": 0.2, "float16": 0.03, "tf32": 0.02, "auto": 0.02, "float64": 1e-4}
    for precision, tolerance in tolerances.items():
        result = evaluated(folders("classes"), DEVICE, precision=precision, **options)
        assert estimates(result) == pytest.approx(expected, rel=tolerance, abs=0.05)
        assert result.run["options"]["precision"] == precision
        assert result.sampling["precision"] == {"auto": "tf32-convolutions"}.get(precision, precision)


# ── the other commands ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_gives_the_estimates_of_the_cpu(folders):
    found = []
    for on in ("cpu", "auto"):
        options = Options(device=on, out=folders("classes") / f"sweep-{on}.h5", samples=4, precision="float32")
        settings = {"batch_sizes": (4, 8), "draw_sets": 2}
        runs, section = resolve_sweep(("run.toml",), options, settings, folder=folders("classes"))
        found.append({
            (point.batch_size, metric): point.estimates[metric]["test"].estimate.value
            for point in sweep(runs, section).points
            for metric in point.estimates
        })  # fmt: skip
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@nightly_on_a_cpu
def test_an_inspection_finds_what_it_finds_on_the_cpu(folders):
    found = []
    for on in ("cpu", "auto"):
        options = Options(device=on, out=folders("classes") / f"inspected-{on}.h5")
        found.append(inspect(resolve("run.toml", options, folder=folders("classes")), Settings(draws=12)))
    for of_cpu, of_device in zip(found[0].gap.layers, found[1].gap.layers, strict=True):
        np.testing.assert_allclose(of_device.shift, of_cpu.shift, rtol=1e-3, atol=1e-5)
    for of_cpu, of_device in zip(found[0].noise.layers, found[1].noise.layers, strict=True):
        np.testing.assert_allclose(of_device.spread, of_cpu.spread, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["classes", pytest.param("pictures", marks=nightly_on_a_cpu)])
def test_precise_bn_writes_the_statistics_of_the_cpu(kind, folders):
    weights = []
    for on in ("cpu", "auto"):
        out = folders(kind) / f"precise-{on}.pt"
        precise_bn(resolve("run.toml", Options(device=on, out=out), folder=folders(kind)))
        weights.append(torch.load(out, weights_only=True))
    for name, tensor in weights[0].items():
        assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)
        assert weights[1][name].device.type == "cpu"


@nightly_on_a_cpu
def test_an_exported_program_gives_on_the_device_what_it_gives_on_the_cpu(folders, tmp_path):
    x = torch.from_numpy(np.load(folders("classes") / "test.npz")["x"])
    run = resolve("run.toml", Options(samples=4), folder=folders("classes"))  # which would choose the device
    export(run, tmp_path / "program.pt2", method="mcbn+mcdo")
    program = torch.export.load(tmp_path / "program.pt2")
    expected = program.module()(x)
    found = move_to_device_pass(program, DEVICE).module()(x.to(DEVICE))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].device == torch.device(DEVICE)
        assert_close(found[name].cpu(), values, rtol=1e-4, atol=1e-5)


@nightly_on_a_cpu
def test_two_processes_share_one_device_and_give_the_figures_of_one(folders):
    device = "cuda" if REAL else "cpu"  # other processes cannot have the fake one
    found = []
    for name, on in (("one", "local"), ("two", "local:2")):
        out = folders("classes") / f"{name}.h5"
        options = Options(device=device, on=on, methods=("mcbn", "mcdo"), out=out, precision="float32")
        with threads(2 if on == "local:2" else 1):
            found.append(estimates(evaluate(resolve("run.toml", options, folder=folders("classes")))))
    assert found[1] == pytest.approx(found[0], rel=1e-6, abs=1e-9)


# ── memory, and what is left behind ───────────────────────────────────────────────────────────────────────────────────


@on_a_gpu
def test_a_full_gpu_halves_the_chunk_and_changes_nothing():
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda().eval()  # fmt: skip
    x = torch.randn(1024, 3, 64, 64)
    omega = bnuq.draw(net, x[:64].cuda(), samples=4, batch_size=16)
    expected = bnuq.predict(net, x.cuda(), omega).cpu()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 0.6 * 2**30) / total)
    try:
        found = bnuq.predict(net, x.cuda(), omega).cpu()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_live_network_stays_where_and_as_it_was():
    module = getattr(torch, torch.device(DEVICE).type)
    net = small_run.network().to(DEVICE).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = module.get_rng_state()
    x = torch.randn(60, 1, 6, 6)
    omega = bnuq.draw(net, x.to(DEVICE), samples=4, batch_size=16)
    assert bnuq.predict(net, x.to(DEVICE), omega, dropout=bnuq.Dropout(4)).shape == (4, 60, 3)
    assert torch.equal(module.get_rng_state(), random)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]) and value.device == torch.device(DEVICE)


@on_a_gpu
@pytest.mark.parametrize("name", ["cifar_resnet20", "mnist_mlp"])
def test_published_networks_give_the_estimates_of_the_cpu(name, data_pack, sample_configs, tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    for entry in sample_configs.iterdir():
        (folder / entry.name).symlink_to(entry)
    (folder / "data").symlink_to(data_pack)
    found = []
    for device in ("cpu", "cuda:0"):
        result = evaluate(
            resolve(
                f"{name}.toml",
                Options(device=device, samples=8, limit=200, out=tmp_path / "r.h5", precision="float32"),
                folder=folder,
            )
        )
        found.append({
            (method, of_set, score): estimate.value
            for method, of_method in result.methods.items()
            for of_set, values in of_method.sets.items()
            for score, estimate in values.estimates.items()
        })  # fmt: skip
        assert all("differ" not in finding.code for finding in result.findings)
    assert found[1] == pytest.approx(found[0], rel=2e-3, abs=2e-4)
