"""On a real GPU: what the CPU gives, within its rounding. Skipped where there is none; the fake accelerator of the
other tests models neither rounding, nor memory of libraries, nor whether CUDA has a kernel."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import adversaries
import numpy as np
import pytest
import small_regression
import small_run
import torch
import zoo
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq.config import Options, resolve, resolve_sweep
from bnuq.sampling import dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.sites import find_sites
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.inspect import Settings, inspect
from bnuq.workflows.precise_bn import precise_bn
from bnuq.workflows.sweep import sweep

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU in $CUDA_VISIBLE_DEVICES"),
    pytest.mark.usefixtures("same_masks"),
]

OF_THE_CPU = {
    "slices_assigned", "points_repeated_before_the_first_draw", "points_that_know_their_place", "attention_over_tokens",
    "memory_of_numpy",
}  # fmt: skip  # networks that make tensors of the CPU in their forward
NETWORKS = [*zoo.KINDS, *(name for name in adversaries.ADVERSARIES if name not in OF_THE_CPU)]


@pytest.fixture
def same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU draw its dropout masks as CUDA does: each has a generator of its own."""

    def by_squares(seed: int, draws: Sequence[int], site: int, p: float, first: int, count: int) -> np.ndarray:
        keys = torch.from_numpy(dropout._squares_keys(seed, draws, site))
        return dropout._keep_by_squares(keys, p, first, count).numpy()

    monkeypatch.setattr(dropout, "_keep_by_philox", by_squares)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    small_run.write(folder)
    return folder


@pytest.fixture(scope="module")
def regressor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("regressor")
    small_regression.write(folder)
    return folder


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
    found, why = sampled(copy.deepcopy(net).to("cuda"), x.to("cuda"))
    assert why == why_plain
    for method, values in expected.items():
        # CUDA's convolutions of volumes in float64 differ from the CPU's by 1e-8 without bnuq, too.
        tolerance = 1e-7 if name == "convolutions_of_volumes" else 1e-9
        assert_close(found[method], values, rtol=0, atol=tolerance * float(values.abs().max()))


def test_float32_is_exact_and_tf32_is_not_where_relus_are_computed_with_convolutions():
    net = zoo.settled(lambda: Stem(), (3, 16, 16))
    x = zoo.points((3, 16, 16), 40)
    expected = sampled(net, x)[0]["mcbn"]
    net, x = net.float().cuda(), x.float().cuda()
    sites = find_sites(net, x[:3], compare_with_training=False)
    omega = bnuq.statistics_of(net, [x[:10], x[5:15], x[11:]])
    largest = {}
    for precision in ("float32", "tf32", "bfloat16"):
        found = Stochastic(net, sites, omega=omega, precision=precision).passes(x).cpu().double()
        largest[precision] = float((found - expected).abs().max() / expected.abs().max())
    assert largest["float32"] < 1e-5 < largest["tf32"] < 1e-2
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


def estimates(folder: Path, device: str, **options) -> dict[tuple[str, str, str], float]:
    result = evaluate(resolve("run.toml", Options(device=device, **options), folder=folder))
    assert result.sampling["device"] == device
    return {
        (name, of_set, score): estimate.value
        for name, method in result.methods.items()
        for of_set, values in method.sets.items()
        for score, estimate in values.estimates.items()
    }


@pytest.mark.parametrize("options", [{}, {"bank": 12}, {"per_query": True, "limit": 20}])
def test_an_evaluation_gives_the_estimates_of_the_cpu(classifier, options):
    expected, found = (estimates(classifier, device, **options) for device in ("cpu", "cuda:0"))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_learned_noise_is_that_of_the_cpu(tmp_path):
    small_run.write_noisy(tmp_path)
    methods = ("learned", "mcbn+learned", "mcdo+learned")
    expected, found = (estimates(tmp_path, device, methods=methods) for device in ("cpu", "cuda:0"))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_evaluation_of_a_regression_gives_the_estimates_of_the_cpu(regressor):
    expected, found = (estimates(regressor, device) for device in ("cpu", "cuda:0"))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.2), ("tf32", 0.02), ("float64", 1e-4)])
def test_every_precision_runs(classifier, precision, tolerance):
    expected = estimates(classifier, "cpu", precision="float64", methods=("mcbn",))
    found = estimates(classifier, "cuda:0", precision=precision, methods=("mcbn",))
    assert found == pytest.approx(expected, rel=tolerance, abs=0.05)


def test_a_sweep_an_inspection_and_precise_bn_give_what_they_give_on_the_cpu(classifier, tmp_path):
    points, found, weights = [], [], []
    for device in ("cpu", "cuda"):
        runs, settings = resolve_sweep(
            ("run.toml",),
            Options(device=device, samples=8, out=tmp_path / f"{device}.h5"),
            {"batch_sizes": (8, 16), "draw_sets": 2},
            folder=classifier,
        )
        points.append({
            (point.batch_size, method): point.estimates[method]["test"].estimate.value
            for point in sweep(runs, settings).points
            for method in point.estimates
        })  # fmt: skip
        run = resolve("run.toml", Options(device=device), folder=classifier)
        found.append(inspect(replace(run, out=tmp_path / f"inspected-{device}.h5"), Settings(draws=12)))
        precise_bn(resolve("run.toml", Options(device=device, out=tmp_path / f"{device}.pt"), folder=classifier))
        weights.append(torch.load(tmp_path / f"{device}.pt", weights_only=True))
    assert points[1] == pytest.approx(points[0], rel=1e-4)
    for of_cpu, of_gpu in zip(found[0].gap.layers, found[1].gap.layers, strict=True):
        np.testing.assert_allclose(of_gpu.shift, of_cpu.shift, rtol=1e-3, atol=1e-5)
    for of_cpu, of_gpu in zip(found[0].noise.layers, found[1].noise.layers, strict=True):
        np.testing.assert_allclose(of_gpu.spread, of_cpu.spread, rtol=1e-3, atol=1e-5)
    for name, tensor in weights[0].items():
        assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)
        assert weights[1][name].device.type == "cpu"


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
    net = small_run.network().cuda().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.cuda.get_rng_state()
    x = torch.randn(60, 1, 6, 6)
    omega = bnuq.draw(net, x.cuda(), samples=4, batch_size=16)
    assert bnuq.predict(net, x.cuda(), omega, dropout=bnuq.Dropout(4)).shape == (4, 60, 3)
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) and value.is_cuda for name, value in net.state_dict().items())


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
            resolve(f"{name}.toml", Options(device=device, samples=8, limit=200, out=tmp_path / "r.h5"), folder=folder)
        )
        found.append({
            (method, of_set, score): estimate.value
            for method, of_method in result.methods.items()
            for of_set, values in of_method.sets.items()
            for score, estimate in values.estimates.items()
        })  # fmt: skip
        assert all("differ" not in finding.code for finding in result.findings)
    assert found[1] == pytest.approx(found[0], rel=2e-3, abs=2e-4)
