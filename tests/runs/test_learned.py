"""The method learned in whole evaluations: found, scored, gated, told; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from report_text import rendered
from scipy.special import logsumexp
from torch import nn

from bnuq.cli.main import main
from bnuq.errors import SamplingError
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report
from bnuq.sampling import counter_rng

SAMPLES, SEED = small_run.SAMPLES, 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose network has noise in its dense layers, and the weights of the small one."""
    return small_run.write_noisy(tmp_path_factory.mktemp("learned") / "run")


def run(place: Path, **options: Any) -> Result:
    return small_run.evaluated(place.parent, run_file=place.name, **options)


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return run(place, post_hoc=False, out="all.h5")


def samples_by_hand(place: Path, name: str) -> np.ndarray:
    """The logits of every sample, from the features of the network and drawn weights, in float64."""
    model = small_run.network()
    model.load_state_dict(torch.load(place.parent / "model.pt", weights_only=True))
    images = torch.from_numpy(np.load(place.parent / f"{name}.npz")["x"])
    with torch.no_grad():
        features = model.eval()[:4](images).double().numpy()
    first, last = (layer for layer in model if isinstance(layer, nn.Linear))
    samples = []
    for draw in range(SAMPLES):
        values = features
        for order, layer in enumerate((first, last)):
            weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
            noise = counter_rng.normal(SEED, draw, counter_rng.LEARNED, weight.size, site=order).reshape(weight.shape)
            values = values @ (weight + small_run.DEVIATION * noise).T + bias
            values = np.maximum(values, 0) if layer is first else values
        samples.append(values)
    return np.stack(samples)


def test_it_runs_where_the_network_has_noise_and_is_scored_as_by_hand(place, result):
    assert tuple(result.methods) == ("deterministic", "mcbn", "mcdo", "mcbn+mcdo", "learned")
    assert result.model["learned_layers"] == 2
    logits = samples_by_hand(place, "test")
    labels = np.load(place.parent / "test.npz")["y"]
    log_p = logits - logsumexp(logits, axis=2, keepdims=True)
    expected = logsumexp(log_p, axis=0) - np.log(SAMPLES)
    points = result.methods["learned"].sets["test"].points
    np.testing.assert_allclose(points["pll"], expected[np.arange(len(labels)), labels], rtol=0, atol=1e-5)
    p = np.exp(log_p)
    entropies = [-(each * np.log(each)).sum(-1) for each in (p.mean(0), p)]
    np.testing.assert_allclose(points["mutual_information"], entropies[0] - entropies[1].mean(0), rtol=0, atol=1e-5)


def test_the_other_methods_have_its_mean(result, tmp_path):
    without = small_run.evaluated(small_run.write(tmp_path / "run").parent, methods=("mcbn+mcdo",), post_hoc=False)
    for method in without.methods:
        for name in ("test", "other"):
            now, before = (each.methods[method].sets[name].points for each in (result, without))
            score = "predictive_entropy"
            np.testing.assert_allclose(now[score], before[score], rtol=0, atol=1e-5)


def test_sums_of_sources_are_drawn_on_request(place, result):
    names = ("mcbn+learned", "mcdo+learned", "mcbn+mcdo+learned")
    sums = run(place, methods=names, ood=())
    assert tuple(sums.methods) == ("deterministic", *names)
    information = {
        name: np.asarray(each.methods[name].sets["test"].points["mutual_information"]).mean()
        for each in (result, sums)
        for name in each.methods
        if name != "deterministic"
    }
    assert information["mcbn+learned"] > information["mcbn"] > 0
    assert information["mcdo+learned"] > information["mcdo"] > 0
    assert information["mcbn+mcdo+learned"] > information["mcbn+mcdo"] > 0


def test_the_report_names_it(result):
    text = rendered(report, result, full=True)
    assert "2 noise layers" in text and "learned" in text


def test_inspect_lists_it(place, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["inspect", str(place), "--draws", "8", "--json", "--out", str(tmp_path / "inspect.h5")])
    sites = [site for site in json.loads(capsys.readouterr().out)["sites"] if site["kind"] == "learned"]
    assert [(site["name"], site["numbers"], site["per_point"], site["stochastic"]) for site in sites] == [
        ("4", 64 * 8, False, True),
        ("7", 8 * 3, False, True),
    ]


def test_a_network_without_noise_refuses_it(tmp_path):
    small_run.write(tmp_path / "run")
    with pytest.raises(
        SamplingError, match="method learned cannot be drawn: no layer of the network asks torch for normal"
    ):
        small_run.evaluated(tmp_path / "run", methods=("learned",))
