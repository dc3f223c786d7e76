"""Whole commands on an accelerator: the estimates of the CPU."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import fake_accelerator
import numpy as np
import pytest
import small_regression
import small_run
import torch
from fake_accelerator import NAME
from findings_of import values_of

from bnuq.config import Options, resolve, resolve_sweep
from bnuq.errors import RequestError
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Evaluation
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.inspect import Settings, inspect
from bnuq.workflows.precise_bn import precise_bn
from bnuq.workflows.sweep import sweep

pytestmark = pytest.mark.usefixtures("accelerator")

DEVICES = "cpu", "auto"  # the second is the accelerator


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


def estimates(folder: Path, device: str, method: str = "mcbn", **options) -> dict[tuple[str, str], float]:
    result = evaluate(resolve("run.toml", Options(device=device, methods=(method,), **options), folder=folder))
    sets = result.methods[method].sets
    assert result.sampling["device"] == {"auto": f"{NAME}:0"}.get(device, device)
    return {(of_set, name): method.value for of_set in sets for name, method in sets[of_set].estimates.items()}


@pytest.mark.parametrize("bank", [None, 12])
def test_an_evaluation_gives_the_estimates_of_the_cpu(classifier, accelerator, bank):
    accelerator.clear()
    expected = estimates(classifier, "cpu", bank=bank)
    assert not accelerator.kernels
    assert estimates(classifier, "auto", bank=bank) == pytest.approx(expected, rel=1e-5)
    assert accelerator.kernels["convolution"]


@pytest.mark.parametrize("method", ["learned", "mcbn+learned"])
def test_learned_noise_is_that_of_the_cpu(method, accelerator, tmp_path):
    small_run.write_noisy(tmp_path)
    expected = estimates(tmp_path, "cpu", method)
    accelerator.clear()
    assert estimates(tmp_path, "auto", method) == pytest.approx(expected, rel=1e-5)
    assert accelerator.kernels["convolution"]


def test_an_evaluation_of_a_regression_gives_the_estimates_of_the_cpu(regressor):
    expected, values = (estimates(regressor, device) for device in DEVICES)
    assert values == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "tf32", "float64"])
def test_every_precision_runs(classifier, precision):
    expected = estimates(classifier, "cpu", precision="float64")
    values = estimates(classifier, "auto", precision=precision)
    assert values == pytest.approx(expected, rel=0.2 if precision == "bfloat16" else 1e-4, abs=0.05)


def test_dropout_saved_samples_and_mini_batches_by_the_query_run(classifier, tmp_path):
    options = Options(device="auto", out=tmp_path / "r.h5", methods=("mcdo", "mcbn+mcdo"), save_samples=True)
    assert set(evaluate(resolve("run.toml", options, folder=classifier)).methods) >= {"mcdo", "mcbn+mcdo"}
    options = Options(device="auto", out=tmp_path / "q.h5", methods=("mcbn",), limit=6, per_query=True)
    result = evaluate(resolve("run.toml", options, folder=classifier))
    assert len(result.methods["mcbn"].sets["test"].predicted) == 6


def test_a_sweep_gives_the_estimates_of_the_cpu(classifier, tmp_path):
    values = []
    for device in DEVICES:
        options = Options(device=device, samples=8, out=tmp_path / f"{device}.h5")
        runs, settings = resolve_sweep(
            ("run.toml",), options, {"batch_sizes": (8, 16), "draw_sets": 2}, folder=classifier
        )
        points = sweep(runs, settings).points
        values.append({(p.batch_size, m): p.estimates[m]["test"].estimate.value for p in points for m in p.estimates})
    assert values[1] == pytest.approx(values[0], rel=1e-4)


def test_an_inspection_finds_what_it_finds_on_the_cpu(classifier, tmp_path):
    values = []
    for device in DEVICES:
        run = resolve("run.toml", Options(device=device), folder=classifier)
        values.append(inspect(replace(run, out=tmp_path / f"{device}.h5"), Settings(draws=12)))
    for of_cpu, of_device in zip(values[0].gap.layers, values[1].gap.layers, strict=True):
        np.testing.assert_allclose(of_device.shift, of_cpu.shift, rtol=1e-4, atol=1e-6)
    for of_cpu, of_device in zip(values[0].noise.layers, values[1].noise.layers, strict=True):
        np.testing.assert_allclose(of_device.spread, of_cpu.spread, rtol=1e-4, atol=1e-6)


def test_precise_bn_writes_the_statistics_of_the_cpu(classifier, tmp_path):
    for device in DEVICES:
        precise_bn(resolve("run.toml", Options(device=device, out=tmp_path / f"{device}.pt"), folder=classifier))
    of_cpu, of_device = (torch.load(tmp_path / f"{device}.pt", weights_only=True) for device in DEVICES)
    for name, tensor in of_cpu.items():
        torch.testing.assert_close(of_device[name], tensor, rtol=1e-5, atol=1e-6)


def test_auto_passes_over_a_gpu_that_cannot_run_a_kernel_and_says_so(classifier, monkeypatch):
    def refuse(*_):
        raise torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device\n…")

    monkeypatch.setattr(fake_accelerator, "_count", refuse)
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",))
    assert result.sampling["device"] == "cpu"
    assert values_of(result, "gpu-unusable")["reason"].startswith("CUDA error: no kernel image is")
    with pytest.raises(RequestError, match=f"--device is {NAME}; expected auto, cpu, cuda"):
        small_run.evaluated(classifier, device=NAME)


def test_peak_memory_and_provenance_are_of_this_run_on_the_device(classifier):
    waste = torch.zeros(10_000_000, device=NAME)
    del waste
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",))
    assert result.work.peak_bytes is not None and 0 < result.work.peak_bytes < 20_000_000
    assert result.provenance["device"] == "Fake accelerator"


@pytest.mark.parametrize(("precision", "rounded"), [("float32", "false"), ("tf32", "true")])
def test_whether_products_were_rounded_to_tf32_is_recorded_as_it_was_in_the_samples(classifier, precision, rounded):
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",), precision=precision)
    recorded = {name: result.provenance.get(name) for name in ("cuda_matmul_allow_tf32", "cudnn_allow_tf32")}
    assert recorded == dict.fromkeys(recorded, rounded)
    assert result.provenance["float32_matmul_precision"] == {"false": "highest", "true": "high"}[rounded]


@pytest.mark.parametrize("bank", [None, 12])
def test_what_a_gpu_does_once_at_its_first_passes_is_not_in_their_time(classifier, monkeypatch, bank):
    for engine in (Stochastic, Evaluation):
        monkeypatch.setattr(engine, "passes", _slow_at_first(engine.passes))
    work = small_run.evaluated(classifier, device="auto", methods=("mcbn",), bank=bank).work
    assert work is not None
    assert work.methods["deterministic"].seconds < _START
    assert work.methods["mcbn"].seconds < _START


_START = 2.0  # seconds that a cold start takes


def _slow_at_first(passes):
    started = set()

    def slow(engine, inputs, *args):
        if len(inputs) > 3 and id(engine) not in started:
            started.add(id(engine))
            time.sleep(_START)
        return passes(engine, inputs, *args)

    return slow
