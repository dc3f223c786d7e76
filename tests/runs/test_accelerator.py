"""Whole runs on the fake accelerator: which device is chosen, what is recorded, and how often the host waits.

That their figures are those of the CPU is tested in tests/test_cuda.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import at_night
import fake_accelerator
import numpy as np
import pytest
import small_multilabel
import small_run
import small_segmentation
import torch
from fake_accelerator import NAME
from findings_of import values_of
from written import folder_of

from bnuq import devices, metrics
from bnuq.data.masks import masks_of_array
from bnuq.errors import RequestError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.tasks.pixels import PixelReduction, parts_of_draws
from bnuq.findings import Finding
from bnuq.records.evaluation import Result
from bnuq.sampling import counter_rng
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.interception import NoiseCall
from bnuq.sampling.noise import Learned, Noise
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.sites import NoiseSite

pytestmark = pytest.mark.usefixtures("accelerator")


classifier = folder_of(small_run)


def test_auto_passes_over_a_gpu_that_cannot_run_a_kernel_and_says_so(classifier, monkeypatch):
    def refuse(*_):
        error = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8
        raise error("CUDA error: no kernel image is available for execution on the device\n…")

    monkeypatch.setattr(fake_accelerator, "_count", refuse)
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",))
    assert result.sampling["device"] == "cpu"
    assert values_of(result, "gpu-unusable")["reason"].startswith("CUDA error: no kernel image is")
    with pytest.raises(RequestError, match=f"--device is {NAME}; expected auto, cpu, cuda"):
        small_run.evaluated(classifier, device=NAME)


@pytest.mark.nightly
def test_peak_memory_and_provenance_are_of_this_run_on_the_device(classifier):
    waste = torch.zeros(10_000_000, device=NAME)
    del waste
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",))
    assert result.work.peak_bytes is not None and 0 < result.work.peak_bytes < 20_000_000
    assert result.provenance["device"] == "Fake accelerator"


@pytest.mark.parametrize(
    ("precision", "convolutions", "products"),
    at_night.but(
        {("auto", "true", "false")},
        [("float32", "false", "false"), ("tf32", "true", "true"), ("auto", "true", "false")],
    ),
)
def test_whether_products_were_rounded_to_tf32_is_recorded_as_it_was_in_the_samples(
    classifier, precision, convolutions, products
):
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",), precision=precision, limit=20)
    recorded = {name: result.provenance.get(name) for name in ("cudnn_allow_tf32", "cuda_matmul_allow_tf32")}
    assert recorded == {"cudnn_allow_tf32": convolutions, "cuda_matmul_allow_tf32": products}
    assert result.provenance["float32_matmul_precision"] == {"false": "highest", "true": "high"}[products]


@pytest.fixture
def rounding() -> Iterator[None]:
    with fake_accelerator.rounding_to_tf32():
        yield


def figures(result: Result, method: str) -> dict[str, float]:
    estimates = result.methods[method].sets["test"].estimates
    return {name: estimate.value for name, estimate in estimates.items()}


def found(result: Any, code: str) -> Iterator[Finding]:
    return (finding for finding in result.findings if finding.code == code)


def test_mini_batches_and_points_are_copied_while_the_device_computes(classifier, accelerator):
    accelerator.clear()
    small_run.evaluated(classifier, device="auto", methods=("mcbn",), samples=16)
    assert accelerator.copies > 2 * 16  # the reference check has as many mini-batches
    assert not accelerator.races
    waits = [place for kind, _, place in accelerator.waits if kind == "to device"]
    assert not any("datasets.py" in place for place in waits), accelerator.report()


@pytest.mark.nightly  # it is speed alone
def test_the_host_waits_a_few_times_for_each_image_of_a_segmentation(tmp_path, accelerator):
    small_segmentation.write(tmp_path)
    counts = []
    for limit in (4, 8):
        accelerator.clear()
        small_segmentation.evaluated(tmp_path, device="auto", methods=("mcbn",), samples=4, limit=limit, ood=())
        counts.append(accelerator.waits.total())
    assert (counts[1] - counts[0]) / 4 <= 2 * 7, accelerator.report()  # two methods


@pytest.mark.nightly  # it is speed alone
@pytest.mark.parametrize(
    "method",
    at_night.but({"mcbn", "mcbn+tta"}, ["mcbn", "mcbn of labels", "laplace", "tta", "mcbn+tta", "mcbn attacked"]),
)
def test_the_host_waits_a_few_times_for_each_chunk(method, tmp_path, accelerator):
    (small_multilabel if method.endswith("labels") else small_run).write(tmp_path)
    run_file = tmp_path / "run.toml"
    run_file.write_text(run_file.read_text().replace('validation = "validation.npz"', ""))
    counts = []
    for limit in (8, 24):
        accelerator.clear()
        options = {"samples": 4, "limit": limit, "chunk_size": 8, "post_hoc": False, "ood": ()}
        options |= {"augment": "pad=1,crop=6,flip"} if method.endswith("tta") else {}
        options |= {"perturb": ("fgsm:0.1",)} if method.endswith("attacked") else {}
        result = small_run.evaluated(tmp_path, device="auto", methods=(method.split()[0],), **options)
        counts.append(accelerator.waits.total())
    # two waits of each method are for the time
    sets = 2 if method.endswith("attacked") else 1
    assert (counts[1] - counts[0]) / 2 <= sets * len(result.methods) * 4, accelerator.report()


def test_points_whose_features_are_fitted_to_are_loaded_while_others_pass(classifier, monkeypatch):
    threads, evaluated = [], Pipeline.evaluated

    def watched(pipeline, points, indices):
        threads.append((points.name, threading.current_thread() is threading.main_thread()))
        return evaluated(pipeline, points, indices)

    monkeypatch.setattr(Pipeline, "evaluated", watched)
    small_run.evaluated(classifier, device="auto", methods=("laplace",), chunk_size=16, post_hoc=False, ood=())
    assert threads.count(("train", False)) > threads.count(("train", True)) > 0


def test_noise_without_room_on_the_device_is_kept_on_the_host(monkeypatch):
    drawn, uniform = [], counter_rng.uniform

    def counting(*args, **rest):
        drawn.append(args)
        return uniform(*args, **rest)

    call = NoiseCall("normal", (5, 3), torch.float32, torch.device(f"{NAME}:0"), 0.0, 1.0, None, "normal")
    site = NoiseSite("weight", 0, family="normal", shape=(5, 3), batch_axis=None)
    monkeypatch.setattr(counter_rng, "uniform", counting)
    monkeypatch.setattr(devices, "free_bytes", lambda device: None if devices.is_host(device) else 0)
    noise = Noise(Learned(2, seed=0))
    rows = [[noise.drawn(call, site, draw, 0).cpu() for draw in range(2)] for _ in range(3)]
    assert len(drawn) == 2 and all(map(torch.equal, rows[0], rows[2])) and not torch.equal(*rows[0])


def test_values_of_several_types_are_fetched_in_one_wait(accelerator):
    values = {
        "kept": torch.tensor([True, False, True]), "single": torch.arange(7.0)[::2], "none": torch.zeros(0, 4),
        "double": torch.arange(6.0, dtype=torch.float64).view(2, 3).T, "whole": torch.tensor(5),
        "half": torch.ones(3).half(),
    }  # fmt: skip
    of_device = {name: value.to(NAME) for name, value in values.items()}
    accelerator.clear()
    found = devices.fetch(of_device)
    assert accelerator.waits.total() == 1 and [*found] == [*values]
    for name, value in values.items():
        assert found[name].dtype == value.numpy().dtype and found[name].tolist() == value.tolist()
        assert found[name].base is None  # and keeps no other alive


@pytest.mark.nightly
def test_a_larger_image_of_a_segmentation_takes_no_more_kernels_but_for_one_step(accelerator):
    parts = parts_of_draws(8, 0)
    weights = metrics.part_weights([len(part) for part in parts])
    counts = []
    for height in (16, 128, 320, 640):  # from 2¹⁴ pixels on, parts of the draws are left out at some of them
        masks = masks_of_array(np.arange(height * 64).reshape(1, height, 64) % 19, "made up")
        reduction = PixelReduction(weights, parts, classes=19, ignore=255, masks=masks, labelled=True)
        logits = torch.randn(8, 1, 19, height, 64).to("pretend:0")
        accelerator.clear()
        reduction.add(logits)
        counts.append(accelerator.kernels.total())
    assert counts[0] == counts[1] <= 260, accelerator.report()
    assert counts[2] == counts[3] <= 2 * counts[0], counts


@pytest.mark.nightly  # it is speed alone
@pytest.mark.parametrize("bank", at_night.but({None}, [None, 12]))
def test_what_a_gpu_does_once_at_its_first_passes_is_not_in_their_time(classifier, monkeypatch, bank):
    for engine in (Stochastic, Evaluation):
        monkeypatch.setattr(engine, "passes", _slow_at_first(engine.passes))
    work = small_run.evaluated(classifier, device="auto", methods=("mcbn",), bank=bank, limit=20).work
    assert work is not None
    assert work.methods["deterministic"].seconds < _START
    assert work.methods["mcbn"].seconds < _START


_START = 0.5  # seconds that a cold start takes


def _slow_at_first(passes):
    started = set()

    def slow(engine, inputs, *args):
        if len(inputs) > 3 and id(engine) not in started:
            started.add(id(engine))
            time.sleep(_START)
        return passes(engine, inputs, *args)

    return slow
