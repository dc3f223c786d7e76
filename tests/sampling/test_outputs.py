"""The tensor that is scored is found in what networks return, and becomes logits; networks are not modified."""

from __future__ import annotations

import copy
import math
import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from findings_of import noted, values_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

import bnuq
from bnuq.errors import DataError, ModelError, SamplingError
from bnuq.sampling.digests import fingerprint
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.interception import forward
from bnuq.sampling.outputs import AsLogits, as_logits, scored_output, unconverted
from bnuq.sampling.plain_loop import Evaluation, PlainLoop
from bnuq.sampling.site_search import find_sites
from bnuq.store.table import rows_of

Z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
LOGITS = arrays(np.float64, (4, 3), elements=st.floats(-30, 30))


class Gives(nn.Module):
    """A small network whose last operation is `last`."""

    def __init__(self, last: Any, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, outputs))
        self.last = last

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body(x))


def network(last: Any, outputs: int = 3) -> Gives:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Gives(last, outputs).eval()


def converted(last: Any, outputs: str, count: int = 3) -> Tensor:
    return forward(as_logits(network(last, count), outputs), torch.ones(2, 4) * torch.tensor([[1.0], [-2.0]]))


# ── where the tensor is ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Classified:
    loss: Any
    logits: Tensor


class ModelOutput(OrderedDict):
    """As in transformers: a dict whose values are attributes, too."""


Named = namedtuple("Named", "logits aux_logits")


@pytest.mark.parametrize(
    ("output", "where"),
    [
        (Z, ""),
        ({"features": 2 * Z, "logits": Z}, '["logits"]'),
        ({"aux": 2 * Z, "out": Z}, '["out"]'),
        ({"out": 2 * Z, "logits": Z}, '["logits"]'),
        ({"prediction": Z, "loss": None}, '["prediction"]'),
        (ModelOutput(loss=None, logits=Z, hidden_states=(2 * Z,)), '["logits"]'),
        (Classified(None, Z), ".logits"),
        (Named(Z, 2 * Z), ".logits"),
        ((Z, 2 * Z), "[0]"),
        ([Z], "[0]"),
    ],
)
def test_the_tensor_to_be_scored_is_found_in_the_usual_forms(output, where):
    tensor, found_at = scored_output(output)
    assert tensor is Z and found_at == where


@pytest.mark.parametrize("output", [{"a": Z, "b": Z}, {}, {"a": None}])
def test_an_ambiguous_dict_is_an_error_that_lists_its_keys(output):
    keys = ", ".join(map(repr, output)) or "none"
    with pytest.raises(ModelError, match=rf"a dict with the keys {keys}; expected one tensor in it, or one under"):
        Evaluation(network(lambda _: output)).passes(torch.ones(2, 4))


@pytest.mark.parametrize("output", [None, (None, Z), "text"])
def test_outputs_without_a_tensor_name_their_type(output):
    with pytest.raises(SamplingError, match=f"the network's output is {type(output).__name__}; expected one tensor"):
        Evaluation(network(lambda _: output)).passes(torch.ones(2, 4))


def test_one_number_per_point_is_a_column_wherever_it_is_found():
    for last in (lambda z: z[:, 0], lambda z: {"logits": z[:, 0]}, lambda z: (z[:, 0], z)):
        assert forward(network(last), torch.ones(2, 4)).shape == (2, 1)


@pytest.mark.parametrize("shape", [(1, 1), (1,)])
def test_outputs_of_one_position_are_those_of_points(shape):
    x, dropout = torch.randn(6, 4), bnuq.Dropout(samples=3, seed=0)
    at_positions = network(lambda z: z.view(*z.shape, *shape))
    expected = bnuq.predict(network(lambda z: z), x, dropout=dropout)
    assert torch.equal(bnuq.predict(at_positions, x, dropout=dropout), expected)
    test = (x.numpy(), np.arange(6) % 3)
    result = bnuq.evaluate(at_positions, test=test, methods=["mcdo"], samples=3, threads=1)
    assert values_of(result, "output-squeezed") == {"shape": [3, 3, *shape]}
    with pytest.raises(DataError, match=r"gives \(3, 1, 3\) for 3 examples.*Reshape its output in the arch"):
        bnuq.evaluate(network(lambda z: z[:, None]), test=test)


def test_masked_classes_have_the_probability_0_at_every_temperature():
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    mask = torch.tensor([False, False, True])
    settings = {"test": (x, y), "methods": ["mcdo"], "samples": 4, "calibrate": "cross", "threads": 1}
    masking, without = network(lambda z: z.masked_fill(mask, -math.inf)), network(lambda z: z[:, :2])
    result, expected = bnuq.evaluate(masking, **settings), bnuq.evaluate(without, **settings)
    assert "classes-masked" in noted(result) and "classes-masked" not in noted(expected)
    estimates = {row.path: row.estimate.value for row in rows_of(expected.record)}
    of_pairs = {"ece_classwise", "set_size", "set_size_aps"}  # which depend on the number of classes
    for row in rows_of(result.record):
        if row.path in estimates and not set(re.split(r"[./]", row.path)) & of_pairs:
            assert row.estimate.value == pytest.approx(estimates[row.path], abs=1e-7), row.path
    for large in (-1e9, torch.finfo(torch.float32).min):  # a mask that hides the differences of the other outputs
        finite = bnuq.evaluate(network(lambda z, large=large: z.masked_fill(mask, large)), **settings)
        pll = finite.summary()["methods"]["mcdo"]["sets"]["test"]["pll"]["value"]
        assert pll == pytest.approx(expected.summary()["methods"]["mcdo"]["sets"]["test"]["pll"]["value"], abs=1e-7)
    masked = bnuq.evaluate(masking, **settings | {"test": (x, torch.full((40,), 2)), "methods": ["deterministic"]})
    pll = masked.summary()["methods"]["deterministic"]["sets"]["test"]["pll"]["value"]
    assert pll == pytest.approx(math.log(torch.finfo(torch.float32).tiny))
    with pytest.raises(SamplingError, match=r"for example 0 .* is not finite"):
        bnuq.evaluate(network(lambda z: z.masked_fill(mask, math.inf)), **settings)


def test_an_image_of_one_pixel_keeps_its_pixel():
    assert forward(nn.Conv2d(4, 3, 1), torch.randn(2, 4, 1, 1)).shape == (2, 3, 1, 1)


def test_predict_takes_the_tensor_from_a_dict():
    x = torch.randn(6, 4)
    dropout = bnuq.Dropout(samples=3, seed=0)
    expected = bnuq.predict(network(lambda z: z), x, dropout=dropout)
    assert torch.equal(bnuq.predict(network(lambda z: {"aux": -z, "out": z}), x, dropout=dropout), expected)


# ── the logits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(LOGITS)
def test_the_softmax_of_the_logits_are_the_probabilities(z):
    p = torch.from_numpy(z).softmax(1)
    for outputs, given_as in (("probabilities", p), ("log_probabilities", p.log())):
        logits = AsLogits(nn.Identity(), outputs)(given_as)
        assert torch.allclose(logits.softmax(1), p, atol=1e-12)
        assert torch.allclose(logits.logsumexp(1), torch.zeros(4, dtype=torch.float64), atol=1e-12)


@given(LOGITS)
def test_one_column_is_class_1_of_two(z):
    z = torch.from_numpy(z[:, :1])
    expected = torch.cat([(-z).sigmoid(), z.sigmoid()], 1)
    assert torch.allclose(AsLogits(nn.Identity(), "binary")(z).softmax(1), expected, atol=1e-12)
    for outputs, given_as in (("probabilities", z.sigmoid()), ("log_probabilities", nn.functional.logsigmoid(z))):
        assert torch.allclose(AsLogits(nn.Identity(), outputs)(given_as).softmax(1), expected, atol=1e-12), outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_probability_of_0_counts_as_the_smallest_normal_number(dtype):
    floor = math.log(torch.finfo(dtype).tiny)
    p = torch.tensor([[1.0, 0.0]], dtype=dtype)
    for outputs, given_as in (("probabilities", p), ("log_probabilities", p.log())):
        for columns in (given_as, given_as[:, 1:]):
            assert AsLogits(nn.Identity(), outputs)(columns).tolist() == [[0.0, pytest.approx(floor)]]
    assert floor == pytest.approx({torch.float32: -87.34, torch.float64: -708.4}[dtype], abs=0.01)


@pytest.mark.parametrize(("outputs", "bad"), [("probabilities", -0.1), ("probabilities", math.nan)])
def test_what_is_no_probability_has_no_logits(outputs, bad):
    assert AsLogits(nn.Identity(), outputs)(torch.tensor([[bad, 1.0 - bad]])).isnan().any()


def test_a_binary_network_has_one_output():
    with pytest.raises(ModelError, match=r'outputs is "binary", and the network gives \(2, 3\); expected one logit'):
        converted(lambda z: z, "binary")


# ── the network is not modified ──────────────────────────────────────────────────────────────────────────────────────


def test_a_network_of_logits_is_itself():
    model = network(lambda z: z)
    assert as_logits(model, "logits") is model and unconverted(model) is model


def test_layers_and_tensors_keep_their_names_and_the_network_its_attributes():
    model = network(lambda z: z.softmax(1))
    before = dict(vars(model))
    wrapped = as_logits(model, "probabilities")
    assert unconverted(wrapped) is model
    for names in ("named_modules", "named_parameters", "named_buffers"):
        assert [name for name, _ in getattr(wrapped, names)()] == [name for name, _ in getattr(model, names)()]
    assert wrapped.state_dict().keys() == model.state_dict().keys()
    assert wrapped.get_submodule("body.1") is model.body[1]
    assert fingerprint(wrapped) == fingerprint(model)
    assert copy.deepcopy(wrapped).train().get_submodule("body.3").training and not model.body.training
    forward(wrapped, torch.ones(2, 4))
    assert vars(model) == before


@pytest.mark.parametrize(
    ("outputs", "last", "count"),
    [
        ("probabilities", nn.Softmax(1), 3),
        ("log_probabilities", nn.LogSoftmax(1), 3),
        ("probabilities", nn.Sigmoid(), 1),
        ("binary", nn.Identity(), 1),
    ],
)
def test_the_plan_and_the_plain_loop_give_the_same_logits(outputs, last, count):
    model = as_logits(network(last, count), outputs)
    x = torch.randn(70, 4, generator=torch.Generator().manual_seed(1))
    omega = bnuq.draw(model, x, samples=3, batch_size=16, seed=0)
    dropout = bnuq.Dropout(samples=3, seed=0)
    sites = find_sites(model, x)
    assert [site.name for site in sites.batchnorms] == ["body.1"]
    engine = Stochastic(model, sites, omega=omega, dropout=dropout)
    compiled = engine.passes(x)
    assert not engine.why_plain
    plain = PlainLoop(model, sites, omega=omega, dropout=dropout).passes(x)
    assert compiled.shape == (3, 70, max(2, count)) and torch.allclose(compiled, plain, atol=1e-5)
    network_outputs = PlainLoop(unconverted(model), sites, omega=omega, dropout=dropout).passes(x)
    p = network_outputs.exp() if outputs == "log_probabilities" else network_outputs
    p = p.sigmoid() if outputs == "binary" else p
    assert torch.allclose(plain.softmax(2)[..., -1], p[..., -1], atol=1e-6)
