"""A network of several inputs takes packed rows, and everything else sees a network of one input."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from several_inputs import branches, pictures_and_numbers, sentences, tokens
from torch import Tensor, nn

import bnuq
from bnuq.errors import DataError, RequestError
from bnuq.packing import pack
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.inputs import Unpacked, tensor_of
from bnuq.sampling.outputs import as_logits
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites


def packed(network: nn.Module, inputs) -> tuple[nn.Module, Tensor]:
    rows, layout = pack(inputs, "set")
    return Unpacked(network, layout), torch.from_numpy(rows)


def test_with_the_statistics_of_a_mini_batch_the_outputs_are_those_of_its_training_mode_forward():
    network = branches().double()
    inputs, _ = pictures_and_numbers(40)
    model, rows = packed(network, inputs)
    omega = bnuq.draw(model, rows, samples=3, batch_size=16)
    assert omega.indices is not None
    for draw, members in enumerate(omega.indices):
        batch = [torch.from_numpy(values[members]).double() for values in inputs.values()]
        with torch.no_grad():
            expected = copy.deepcopy(network).train()(*batch)
        outputs = bnuq.predict(model, rows[members], omega)[draw]
        assert outputs.dtype == torch.float64
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("network", "points"), [(branches(), pictures_and_numbers), (tokens(), sentences)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plan_is_made_of_it_and_equals_the_plain_loop(network, points, dtype):
    model, rows = packed(network.to(dtype), points(40)[0])
    sites = find_sites(model, rows[:8])
    omega = bnuq.draw(model, rows, samples=4, batch_size=16) if sites.live_batchnorms else None
    dropout = bnuq.Dropout(samples=4, seed=1) if sites.live_dropouts else None
    engine = Stochastic(model, sites, omega=omega, dropout=dropout)
    outputs = engine.passes(rows)
    assert (engine.why_plain, engine.work(40) is None) == ("", False)
    expected = PlainLoop(model, sites, omega=omega, dropout=dropout).passes(rows)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)
    assert not torch.equal(outputs[0], outputs[1])


class Recorded(nn.Module):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, inputs) -> Tensor:
        self.given = inputs
        return self.weight.expand(2, 2)


_EVERY_TYPE = {
    str(np.dtype(kind)): np.array([[[1, 0, 3]], [[0, 1, 7]]]).astype(kind)
    for kind in ("bool", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f4", "g")
}


def test_every_type_and_a_number_for_each_point_arrive_as_they_are_and_floats_in_the_network_s_type():
    for inputs in (_EVERY_TYPE | {"age": np.array([3, 4])}, [*_EVERY_TYPE.values(), np.array([3, 4])]):
        model, rows = packed(network := Recorded(), inputs)
        model(rows)
        tensors, arrays = (each.values() if isinstance(each, dict) else each for each in (network.given, inputs))
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.is_contiguous()
            assert tensor.is_floating_point() == (array.dtype.kind == "f")
            assert tensor.dtype == torch.float64 or array.dtype.kind in "biu"
            np.testing.assert_array_equal(tensor.numpy(), array.astype("f8"))


def test_names_and_tensors_of_the_network_are_its_own_also_below_a_conversion_of_its_outputs():
    network = branches()
    model = as_logits(packed(network, pictures_and_numbers(4)[0])[0], "probabilities")
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in network.named_parameters()]
    assert model.state_dict().keys() == network.state_dict().keys()


def test_inputs_that_the_forward_does_not_take_are_one_error_with_its_parameters():
    inputs, _ = sentences(4)
    for wrong in ({"input_ids": inputs["input_ids"], "mask": inputs["attention_mask"]}, [*inputs.values()] * 2):
        with pytest.raises(RequestError, match="forward takes input_ids, attention_mask, and the inputs are"):
            packed(tokens(), wrong)


def test_draw_and_predict_take_one_input_and_say_so():
    ids, mask = (torch.from_numpy(values) for values in sentences(4)[0].values())
    labels = torch.zeros(4)
    for batch in ((ids, mask, labels), ({"input_ids": ids}, labels), ([ids, mask], labels)):
        with pytest.raises(DataError, match=r"several inputs.*bnuq\.evaluate"):
            tensor_of([batch])
    assert tensor_of([(ids, labels, torch.arange(4))]) is not None  # a number for each point is no input
