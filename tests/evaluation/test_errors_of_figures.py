"""The Monte Carlo error of every estimate against the spread of that estimate over many independent repeats."""

from __future__ import annotations

from functools import partial

import pytest
import repeats
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq import metrics
from bnuq.evaluation.estimates import detection_estimates, replicate_weights
from bnuq.evaluation.tasks import classification

T, BATCH, N, REPEATS = 32, 32, 1000, 120
CLASSES, FEATURES = 6, 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32, bias=False),
            nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def clusters(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Classes that are two overlapping clusters each."""
    centres = torch.randn(2 * CLASSES, FEATURES, generator=torch.Generator().manual_seed(5)) * 1.1
    which = torch.randint(2 * CLASSES, (n,), generator=generator)
    return centres[which] + torch.randn(n, FEATURES, generator=generator), which % CLASSES


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor]:
    x, y = clusters(4000, torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = F.cross_entropy(net(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return net.eval(), x


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["mcbn", "mcdo", "mcbn+mcdo"])
def test_the_monte_carlo_error_of_every_estimate_is_the_spread_over_repeats(trained, method, monkeypatch):
    # the errors over points are not looked at here: they need not cost anything
    for name in ("detection_bootstrap", "calibration_bootstrap", "selective_bootstrap"):
        monkeypatch.setattr(metrics, name, partial(repeats.few, getattr(metrics, name)))
    net, train = trained
    generator = torch.Generator().manual_seed(3)
    x, y = clusters(N, generator)
    outside = 0.8 * clusters(N, generator)[0].flip(1) + 0.5
    labels = y.numpy()
    draws = replicate_weights(T)
    omega = bnuq.draw(net, train, samples=T * REPEATS, batch_size=BATCH, seed=11) if "mcbn" in method else None
    values: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        scores = []
        for points, truth in ((x, labels), (outside, None)):
            logits = bnuq.predict(
                net,
                points,
                omega[T * repeat : T * (repeat + 1)] if omega is not None else None,
                dropout=bnuq.Dropout(T, seed=repeat) if "mcdo" in method else None,
                chunk_size=N,
            )
            reduction = classification.ClassReduction(draws, points=logits.shape[1], labels=truth)
            reduction.add(logits.numpy())
            scores.append(reduction.scores())
        test, ood = scores
        found = {f"test {name}": estimate for name, estimate in classification.set_estimates(test, draws).items()}
        found |= {f"ood {name}": estimate for name, estimate in classification.set_estimates(ood, draws).items()}
        for score, estimates in detection_estimates(test, ood, draws).items():
            found |= {f"{score} {name}": estimate for name, estimate in estimates.items()}
        for name, estimate in found.items():
            values.setdefault(name, []).append(estimate.value)
            errors.setdefault(name, []).append(estimate.mc_se)
    repeats.check(values, errors)
