"""Last-layer Laplace approximation: a Gaussian posterior of the weights of a classifier's last linear layer, and passes
with weights drawn from it.

θ (K, D + 1) holds weights and, as its last column, biases; a feature vector φ ends in 1. A layer without a bias has
neither. The curvature H is the
generalised Gauss–Newton matrix of the cross-entropy, Σ φφᵀ ⊗ (diag(p) − ppᵀ), which needs no labels. Its eigenvectors
are those of a Kronecker product or, where H is diagonal, unit vectors, so that δ is added to each eigenvalue exactly.
Source: Daxberger et al. 2021, Laplace Redux; Kristiadi, Hein & Hennig 2020; Ritter, Botev & Barber 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.methods import Curvature
from bnuq.metrics.arrays import as_float64
from bnuq.sampling import counter_rng
from bnuq.sampling.head import Head, head
from bnuq.sampling.interception import float32_as
from bnuq.sampling.outputs import outputs_of, unconverted
from bnuq.shapes import Float, Float64


@frozen
class Posterior:
    """The posterior N(θ*, (H + δI)⁻¹). `curvature` holds the eigenvalues of H, `prior_precision` is δ. Eigenvector
    (k, d) is the product of column k of `of_outputs` and column d of `of_features`; None: of unit vectors."""

    curvature: Float64[np.ndarray, "output feature"]
    prior_precision: float
    of_outputs: Float64[np.ndarray, "output output"] | None = None
    of_features: Float64[np.ndarray, "feature feature"] | None = None

    @property
    def effective_parameters(self) -> float:
        """How many parameters the data determine: Σ λ/(λ + δ) over the eigenvalues λ of H (MacKay 1992)."""
        return _determined(self.curvature, self.prior_precision)

    def scaled(self, normal: Float[np.ndarray, "*draw output feature"]) -> Float[np.ndarray, "*draw output feature"]:
        """The symmetric square root (H + δI)^(−1/2) of the covariance, applied to normal numbers: deviations from θ*.

        No other root is the same whatever signs and bases a library chooses for eigenvectors.
        """
        deviation = np.sqrt(self.curvature + self.prior_precision)
        if self.of_outputs is None or self.of_features is None:
            return normal / deviation
        rotated = self.of_outputs.T @ normal @ self.of_features
        return self.of_outputs @ (rotated / deviation) @ self.of_features.T

    def drawn(self, draw: int, seed: int) -> Float64[np.ndarray, "output feature"]:
        """The deviation from θ* of draw number `draw`, which depends on (seed, draw) alone."""
        normal = counter_rng.normal(seed, draw, counter_rng.LAPLACE, self.curvature.size)
        return self.scaled(normal.reshape(self.curvature.shape))


def terms(heads: Iterable[Head], structure: Curvature) -> dict[str, np.ndarray]:
    """What reference points add to the curvature of the last layer, `heads` being its features and logits there:
    sums over them, and "points", their number; see `fitted`."""
    parts: dict[str, list[Tensor]] = {}
    for last in heads:
        features = F.pad(last.features.double(), (0, int(last.has_bias)), value=1.0)
        p = last.two_class.logits.double().softmax(-1)[:, -len(last.weight) :]
        if structure == "diag":
            parts.setdefault("outputs", []).append((p * (1 - p)).mT @ features.square())
        else:
            parts.setdefault("outputs", []).append(p.sum(0).diag() - p.mT @ p)
            parts.setdefault("features", []).append(features.mT @ features)
        parts.setdefault("points", []).append(torch.tensor(len(features)))
    return {name: sum(values[1:], values[0]).cpu().numpy() for name, values in parts.items()}


def fitted(
    parts: Sequence[Mapping[str, np.ndarray]], last: Head, structure: Curvature, *, train_size: int
) -> Posterior:
    """The posterior of the `last` layer, from the `terms` of parts of the reference.

    H is the sum over the points times `train_size` over their number. "kron": N·A ⊗ G for H, A the mean of φφᵀ and G
    that of diag(p) − ppᵀ, which is exact where the two are independent; "diag": the diagonal of H. SamplingError where
    H or θ* is zero, so that nothing says how wide the posterior is.
    """
    weights = [last.weight, last.bias[:, None]] if last.has_bias else [last.weight]
    theta = as_float64(torch.cat(weights, 1))
    sums = {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}
    means = {name: values / sums["points"] for name, values in sums.items()}
    if structure == "diag":
        curvature = train_size * means["outputs"]
        return Posterior(curvature, fitted_precision(curvature, theta))
    (g_values, g), (a_values, a) = np.linalg.eigh(means["outputs"]), np.linalg.eigh(means["features"])
    curvature = train_size * np.outer(np.maximum(g_values, 0), np.maximum(a_values, 0))
    return Posterior(curvature, fitted_precision(curvature, theta), g, a)


def fitted_precision(
    curvature: Float64[np.ndarray, "output feature"], theta: Float64[np.ndarray, "output feature"]
) -> float:
    """The prior precision δ of the largest marginal likelihood, the prior being N(0, I/δ).

    To a constant, ln p(data | δ) is ½(P ln δ − δ‖θ*‖² − Σ ln(λ + δ)), with P parameters and the eigenvalues λ of H. Its
    derivative by ln δ falls throughout, and is zero where Σ λ/(λ + δ) = δ‖θ*‖². Source: MacKay 1992, Bayesian
    Interpolation.
    """
    from scipy.optimize import root_scalar  # late: a fifth of a second, and rarely needed

    square, largest = float(np.square(theta).sum()), float(curvature.max())
    if not square > 0 or not largest > 0:
        why = (
            "the weights of its last layer are all zero"
            if not square > 0
            else "it is certain of every example of the training set, so the curvature of its likelihood is zero"
        )
        raise SamplingError(
            f"laplace: {why}, and nothing says how wide the posterior is. Use another method, or check the checkpoint "
            "and the normalisation of the inputs (bnuq inspect)."
        )
    ends = min(largest, 0.5 / square), 2 * curvature.size / square

    def slope(logarithm: float) -> float:
        precision = math.exp(logarithm)
        return _determined(curvature, precision) - precision * square

    return math.exp(root_scalar(slope, bracket=[math.log(end) for end in ends], xtol=1e-12).root)


def _determined(curvature: Float64[np.ndarray, "output feature"], precision: float) -> float:
    return float((curvature / (curvature + precision)).sum())


class LastLayerPasses:
    """T passes of a network with draws of the weights of its last linear layer, which all points share: everything
    below that layer is computed once. The outputs are logits, those of one logit z are 0 and z; of a network that gives
    probabilities, their logarithms."""

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        *,
        draws: range,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.samples = len(draws)
        self._network, self.normalised = unconverted(model), outputs_of(model).endswith("probabilities")
        drawn = [torch.from_numpy(posterior.drawn(draw, seed)).to(dtype) for draw in draws]
        self.change = torch.stack(drawn).flatten(0, 1).to(device)  # (T·K, D + 1)

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:  # noqa: ARG002 - the points' numbers do not matter here
        """Logits (T, n, K)."""
        last = head(self._network, inputs)
        with torch.inference_mode(), float32_as("ieee"):
            weight, bias = self.change.tensor_split([last.features.shape[1]], 1)
            change = F.linear(last.features, weight, bias[:, 0] if last.has_bias else None)
            logits = last.logits + change.unflatten(1, (self.samples, -1)).movedim(1, 0)
            if logits.shape[2] == 1:
                logits = torch.cat([torch.zeros_like(logits), logits], 2)
            return logits.log_softmax(2) if self.normalised else logits
