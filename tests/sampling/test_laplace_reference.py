"""The last-layer Laplace approximation against laplace-torch, where that is installed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bnuq.methods import Curvature
from bnuq.sampling.head import head
from bnuq.sampling.laplace import fitted, terms

POINTS, CLASSES, FEATURES = 200, 4, 6


def trained(*, bias: bool) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES, bias=bias)).double()
        x, y = torch.randn(POINTS, 5).double(), torch.randint(0, CLASSES, (POINTS,))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval(), x, y


# laplace-torch gives a bias a Kronecker product of its own, bnuq a row of the weights' one: they agree without a bias.
@pytest.mark.parametrize(("structure", "bias"), [("diag", True), ("diag", False), ("kron", False)])
def test_prior_precision_and_variance_of_logits_are_those_of_laplace_torch(structure: Curvature, bias: bool):
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    network, x, y = trained(bias=bias)
    theirs = laplace.Laplace(
        network, "classification", subset_of_weights="last_layer", hessian_structure=structure, prior_precision=1.0
    )
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=50))

    def loss(logarithm: float) -> float:
        return -float(
            theirs.log_marginal_likelihood(prior_precision=torch.tensor(math.exp(logarithm)).double()).detach()
        )

    precision = math.exp(minimize_scalar(loss, bracket=(-1.0, 1.0), tol=1e-12).x)
    posterior = fitted([terms([last := head(network, x)], structure)], last, structure, train_size=POINTS)
    assert posterior.prior_precision == pytest.approx(precision, rel=1e-5)
    theirs.prior_precision = torch.tensor(posterior.prior_precision).double()
    expected = theirs._glm_predictive_distribution(x[:7])[1].detach().numpy()
    with torch.no_grad():
        features = network[:2](x[:7]).numpy()  # type: ignore[index]
    features = np.pad(features, ((0, 0), (0, int(bias))), constant_values=1.0)
    shape = posterior.curvature.shape
    root = posterior.scaled(np.eye(math.prod(shape)).reshape(-1, *shape)).reshape(-1, math.prod(shape))
    found = np.einsum("nd,kdle,ne->nkl", features, (root.T @ root).reshape(*shape, *shape), features)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_without_a_bias_has_no_draws_of_one(bias: bool):
    network, x, _ = trained(bias=bias)
    posterior = fitted([terms([last := head(network, x)], "kron")], last, "kron", train_size=POINTS)
    assert posterior.curvature.shape == (CLASSES, FEATURES + bias)
