"""Whole runs on the fake accelerator: which device is chosen, what is recorded, and how often the host waits.

That their figures are those of the CPU is tested in tests/test_cuda.py.
"""

from __future__ import annotations

import time
from pathlib import Path

import fake_accelerator
import pytest
import small_run
import small_segmentation
import torch
from fake_accelerator import NAME
from findings_of import values_of

from bnuq.errors import RequestError
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Evaluation

pytestmark = pytest.mark.usefixtures("accelerator")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    small_run.write(folder)
    return folder


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
    result = small_run.evaluated(classifier, device="auto", methods=("mcbn",), precision=precision, limit=20)
    recorded = {name: result.provenance.get(name) for name in ("cuda_matmul_allow_tf32", "cudnn_allow_tf32")}
    assert recorded == dict.fromkeys(recorded, rounded)
    assert result.provenance["float32_matmul_precision"] == {"false": "highest", "true": "high"}[rounded]


def test_mini_batches_and_points_are_copied_while_the_device_computes(classifier, accelerator):
    accelerator.clear()
    small_run.evaluated(classifier, device="auto", methods=("mcbn",), samples=16)
    assert accelerator.copies > 2 * 16  # the reference check has as many mini-batches
    assert not accelerator.races
    waits = [place for kind, _, place in accelerator.waits if kind == "to device"]
    assert not any("datasets.py" in place for place in waits), accelerator.report()


def test_the_host_waits_a_few_times_for_each_image_of_a_segmentation(tmp_path, accelerator):
    small_segmentation.write(tmp_path)
    counts = []
    for limit in (4, 8):
        accelerator.clear()
        small_segmentation.evaluated(tmp_path, device="auto", methods=("mcbn",), samples=4, limit=limit, ood=())
        counts.append(accelerator.waits.total())
    assert (counts[1] - counts[0]) / 4 <= 2 * 7, accelerator.report()  # two methods


@pytest.mark.parametrize("bank", [None, 12])
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
