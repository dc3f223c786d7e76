"""The last linear layer is found by its operation, or the network's end is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.sampling.head import NoHeadError, head

BODY = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
LAST = nn.Linear(5, 3)
INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Ending(nn.Module):
    """The body, the last layer, and what comes after it."""

    def __init__(self, after) -> None:
        super().__init__()
        self.body, self.last, self.after = BODY, LAST, after

    def forward(self, inputs: Tensor):
        return self.after(self.last(self.body(inputs)))


@pytest.mark.parametrize(
    "after",
    [
        lambda logits: logits,
        lambda logits: logits.softmax(-1),
        lambda logits: F.log_softmax(logits, 1),
        lambda logits: logits.sigmoid(),
        lambda logits: {"logits": logits.view(4, 3)},
    ],
    ids=["logits", "softmax", "log-softmax", "sigmoid", "nested"],
)
def test_features_and_logits_are_those_of_the_last_layer(after) -> None:
    found = head(Ending(after).eval(), INPUTS)
    with torch.inference_mode():
        features = BODY(INPUTS)
        torch.testing.assert_close(found.features, features)
        torch.testing.assert_close(found.logits, LAST(features))
    assert found.weight.data_ptr() == LAST.weight.data_ptr()


@pytest.mark.parametrize(
    ("after", "last"),
    [
        (lambda logits: (logits + LAST(torch.ones(4, 5))) / 2, "div"),
        (lambda logits: F.relu(logits), "relu"),
        (lambda logits: F.relu_(logits), "relu_"),
        (lambda logits: torch.cat([logits, logits], 1), "cat"),
    ],
    ids=["two heads", "relu", "in place", "twice"],
)
def test_another_end_is_named(after, last: str) -> None:
    with pytest.raises(NoHeadError, match=rf"not those of one linear layer; its last operation is {last}$"):
        head(Ending(after).eval(), INPUTS)


def test_networks_without_a_linear_layer_are_named() -> None:
    with pytest.raises(NoHeadError, match="no linear layer"):
        head(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).eval(), torch.ones(2, 1, 3, 3))


def test_a_linear_layer_over_tokens_is_no_head() -> None:
    with pytest.raises(NoHeadError, match=r"takes inputs of shape \(4, 2, 5\)"):
        head(nn.Sequential(nn.Unflatten(1, (2, 5)), nn.Linear(5, 3)).eval(), torch.ones(4, 10))


def test_one_logit_is_that_of_the_second_of_two_classes() -> None:
    binary = head(nn.Linear(6, 1, bias=False).eval(), INPUTS).two_class
    assert binary.logits.shape == (4, 2)
    torch.testing.assert_close(binary.features @ binary.weight.T + binary.bias, binary.logits)
    assert not binary.logits[:, 0].any()
