"""Whole commands on networks that are easily sampled wrongly: right, named, or refused before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from findings_of import values_of

from bnuq.config import Options, resolve
from bnuq.errors import SamplingError
from bnuq.evaluation import exactness
from bnuq.studies.inspect.compute import inspect
from bnuq.studies.precise_bn.compute import precise_bn
from bnuq.studies.sweep.compute import sweep

FORWARDS = {
    "slices": "return torch.cat([super(Net, self).forward(part) for part in x.split(8)])",
    "slices alone": "return torch.cat([super(Net, self).forward(part) for part in x.split(8 + self.training * 99)])",
    "centred": "return super().forward(x - x.mean(0))",
    "shifted": "h = super().forward(x); return h - h.mean(0) if self.training else h",
    "random": "return super().forward(x) + random.random()",
    "clock": "return super().forward(x) * (1 + 1e-4 * (time.time() - START))",
    "counter": "CALLS.append(0); return super().forward(x) + 0.1 * (len(CALLS) > LIMIT) * x.new_ones(len(x), 1)",
}


def written(folder: Path, forward: str, *, limit: int = 0) -> None:
    """The small run, its network with this forward; `limit` is that of the counter."""
    small_run.write(folder)
    text = small_run.NET.replace("nn.Sequential(", "Net(").replace("-> nn.Module", "")
    (folder / "net.py").write_text(
        text.replace("from torch import nn", "import random\nimport time\n\nimport torch\nfrom torch import nn")
        + f"\n\nSTART, CALLS, LIMIT = time.time(), [], {limit}\n\n"
        + f"\n\nclass Net(nn.Sequential):\n    def forward(self, x):\n        {FORWARDS[forward]}\n"
    )


def of_mcbn(result) -> dict[str, float]:
    return {name: estimate.value for name, estimate in result.methods["mcbn"].sets["test"].estimates.items()}


def test_the_report_says_that_exactness_was_checked_and_how_closely_it_holds(tmp_path):
    small_run.write(tmp_path)
    verified = values_of(small_run.evaluated(tmp_path, methods=("mcbn",), ood=()), "mcbn-verified")
    assert verified["points"] == 16 and 0 <= verified["deviation"] < 1e-5


@pytest.mark.nightly
def test_a_network_that_normalises_slices_is_evaluated_slice_by_slice(tmp_path):
    written(tmp_path, "slices")
    result = small_run.evaluated(tmp_path, methods=("mcbn",), ood=())
    assert result.sampling["batch_size"] == 8
    assert values_of(result, "batch-size-of-slices") == {"batch_size": 8, "in_training": True}
    halved = [finding.values for finding in result.findings if finding.code == "chunk-halved"]
    assert any(v["points"] == 7 and "normalises larger chunks in slices" in v["reason"] for v in halved)
    again = small_run.evaluated(tmp_path, methods=("mcbn",), ood=(), chunk_size=5)
    assert of_mcbn(again) == pytest.approx(of_mcbn(result), rel=1e-5)


@pytest.mark.nightly
def test_a_network_that_slices_in_evaluation_mode_alone_is_said_to_do_so(tmp_path):
    written(tmp_path, "slices alone")
    result = small_run.evaluated(tmp_path, methods=("mcbn",), ood=())
    assert values_of(result, "batch-size-of-slices") == {"batch_size": 8, "in_training": False}


def test_a_mini_batch_beyond_a_slice_is_refused_with_the_size_that_works(tmp_path):
    written(tmp_path, "slices")
    with pytest.raises(SamplingError, match=r"of 16 examples|for 16 examples than for 8: .*--batch-size 8"):
        small_run.evaluated(tmp_path, batch_size=16)
    run = resolve("run.toml", Options(batch_size=16), folder=tmp_path)
    for estimator in ("population", "full"):
        with pytest.raises(SamplingError, match=r"than for 8: .*--batch-size 8"):
            precise_bn(run, estimator=estimator, batch_size=16)
    with pytest.raises(SamplingError, match=r"than for 8: .*--batch-size 8"):
        inspect(resolve("run.toml", Options(), folder=tmp_path))


@pytest.mark.nightly
def test_a_sweep_leaves_out_default_sizes_beyond_a_slice(tmp_path):
    written(tmp_path, "slices")
    result = sweep([resolve("run.toml", Options(samples=4, out=Path("sweep.h5")), folder=tmp_path)])
    assert {point.batch_size for point in result.points} == {8}


def test_points_that_depend_on_each_other_are_refused_by_set(tmp_path):
    written(tmp_path, "centred")
    with pytest.raises(SamplingError, match="the output for an example on test depends on which examples pass with it"):
        small_run.evaluated(tmp_path)


def test_what_training_does_beside_batchnorm_is_named(tmp_path):
    written(tmp_path, "shifted")
    unreachable = values_of(small_run.evaluated(tmp_path, methods=("mcbn",), ood=()), "unreachable")
    assert unreachable["layer"] == [""] and unreachable["reason"].startswith("Net computes something else in training")


BY_HAND = """from torch import nn


class ByHand(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.var(0) + 1).sqrt() if self.training else x


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), ByHand(), nn.Linear(8, 3))
"""


def test_batch_normalization_by_hand_alone_is_named_where_nothing_can_be_sampled(tmp_path):
    small_run.write(tmp_path)
    (tmp_path / "net.py").write_text(BY_HAND)
    namespace = {"__name__": "net"}
    exec(BY_HAND, namespace)
    torch.save(namespace["net"]().state_dict(), tmp_path / "model.pt")
    with pytest.raises(SamplingError, match=r"no BatchNorm layer that could be sampled \(2: ByHand computes something"):
        small_run.evaluated(tmp_path, methods=("mcbn",), ood=())


def test_an_output_that_is_not_finite_is_named_with_its_set(tmp_path):
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as test:
        x, y = test["x"], test["y"]
    x[3] = 3e38
    np.savez(tmp_path / "test.npz", x=x, y=y)
    with pytest.raises(SamplingError, match=r"for example 3 of test.npz .*--precision float64"):
        small_run.evaluated(tmp_path)


def test_a_random_forward_is_refused_with_the_set_and_the_cause(tmp_path):
    written(tmp_path, "random")
    with pytest.raises(SamplingError, match=r"other outputs on test when .* Python's `random`"):
        small_run.evaluated(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".h5", ".work")]


@pytest.mark.nightly
def test_a_network_that_changes_during_the_run_is_refused_at_its_end(tmp_path):
    # A clock may have moved on by the second call of the start already.
    changed = "the network changed during the run: its outputs on test"
    by_clock = f"{changed}|gives other outputs on test when it is called again"
    for forward, limit, expected in (("clock", 0, by_clock), *(("counter", n, changed) for n in (30, 50))):
        written(tmp_path, forward, limit=limit)
        with pytest.raises(SamplingError, match=expected):
            small_run.evaluated(tmp_path)
    written(tmp_path, "clock")
    with pytest.raises(SamplingError, match=by_clock):
        sweep([resolve("run.toml", Options(samples=4, out=Path("sweep.h5")), folder=tmp_path)])
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".h5"]


@pytest.mark.nightly
def test_at_the_end_the_few_points_of_the_first_check_are_compared(tmp_path, monkeypatch):
    small_run.write(tmp_path)
    compared, check = [], exactness.check_unchanged
    monkeypatch.setattr(
        exactness, "check_unchanged", lambda *of, **how: compared.append(len(of[1])) or check(*of, **how)
    )
    for size in (4, None):
        small_run.evaluated(tmp_path, methods=("mcdo",), samples=2, chunk_size=size, ood=())
    assert compared == [8, 32]  # in chunks of fewer, eight small points see each other


def test_nothing_is_drawn_or_changed_by_the_checks(tmp_path):
    small_run.write(tmp_path)
    before = torch.get_rng_state()
    small_run.evaluated(tmp_path, methods=("mcbn+mcdo",), ood=())
    assert torch.equal(torch.get_rng_state(), before)
