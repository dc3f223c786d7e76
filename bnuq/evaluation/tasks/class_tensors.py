"""The scores of the points of a block of samples in torch tensors, under every replicate: fused, with one logarithm for
all scores of a distribution, in memory that all blocks share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.evaluation import estimates
from bnuq.evaluation.tasks.class_arrays import DEVICE_BLOCK, SampleScores, further_scores
from bnuq.shapes import Float, Int64

_TINY = float(np.finfo(np.float64).tiny)  # changes no logarithm that matters, and makes 0·ln 0 equal 0
_UNDERFLOW = -1000.0  # whose exp is 0
# What `scores_of_means` computes together; any other value of points is by the formula of its row.
_FUSED = frozenset({"accuracy", "brier", "predictive_entropy", "max_probability", "least_confidence"})


def bytes_of_scoring(samples: int, points: int, classes: int, device: torch.device) -> int:
    """About how many bytes a reduction takes on an accelerator while it adds this many points; 0 on a CPU, where blocks
    are small."""
    if devices.is_host(device):
        return 0
    replicates = samples + estimates.RESAMPLES + samples.bit_length() + 1
    at_once = max(1, min(points, DEVICE_BLOCK // (replicates * classes)))
    return 2 * 8 * (samples + replicates) * at_once * classes


class TensorKernel:
    """Scores blocks of logits (T, chunk, K), one after the other; `p` are the probabilities of the latest. Work memory
    is shared by all blocks: allocating it for each would cost more than the block."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self.p = torch.empty(0)

    def logits(self, block: Float[Tensor, "sample chunk class"], replicates: int) -> Tensor:
        """The block in float64, as a copy that may be changed; memory for everything else is taken, too."""
        samples, points, classes = block.shape
        need = 2 * (samples + replicates) * points * classes
        if self._memory is None or self._memory.numel() < need or self._memory.device != block.device:
            self._memory = torch.empty(need, dtype=torch.float64, device=block.device)
        sizes = [samples * points * classes] * 2 + [replicates * points * classes] * 2
        logits, p, self._mean, self._spare = self._memory[:need].split(sizes)
        self._logits, self.p = (values.view(samples, points, classes) for values in (logits, p))
        return self._logits.copy_(block)

    def sample_scores(
        self, logits: Float[Tensor, "sample chunk class"], y: Int64[Tensor, " chunk"] | None
    ) -> SampleScores:
        """The scores of each sample; its softmax is left in `self.p`, and `logits` are overwritten.

        With e_k = exp(z_k − max z) and δ their sum without the largest, which is 1, the entropy is
        ln(1 + δ) − Σ p_k (z_k − max z): one logarithm per distribution, and no loss of precision where δ vanishes.
        """
        largest, vote = logits.max(-1, keepdim=True)
        below = logits.sub_(largest)
        p = torch.exp(below, out=self.p).scatter_(-1, vote, 0.0)
        rest = p.sum(-1, keepdim=True)
        log_sum = rest.log1p()
        log_likelihood = None
        if y is not None:
            log_likelihood = below.gather(-1, y.expand(vote.shape[:2])[..., None])[..., 0] - log_sum[..., 0]
        p.scatter_(-1, vote, 1.0).div_(1 + rest)
        inner = below.clamp_min_(_UNDERFLOW).mul_(p).sum(-1)  # 0·(−∞) would be NaN
        log_total = (largest + log_sum)[..., 0]
        return SampleScores(log_sum[..., 0] - inner, log_likelihood, log_total, largest[..., 0])

    def mean(self, weights: Float[Tensor, "replicate sample"]) -> Float[Tensor, "replicate chunk class"]:
        """The mean prediction under every replicate."""
        samples, points, classes = self.p.shape
        mean = torch.mm(weights, self.p.view(samples, -1), out=self._mean.view(len(weights), -1))
        return mean.view(-1, points, classes)

    def scores_of_means(
        self, mean: Float[Tensor, "replicate chunk class"], y: Int64[Tensor, " chunk"] | None
    ) -> dict[str, Tensor]:
        """The scores of the mean prediction under every replicate, equal to those of the functions of the same names in
        `metrics`.

        `mean` is overwritten.
        """
        further = further_scores(mean, y, _FUSED)
        p_mean, spare = mean, self._spare.view(mean.shape)
        largest, predicted = p_mean.max(-1, keepdim=True)
        true = None if y is None else p_mean.gather(-1, y.expand(predicted.shape[:2])[..., None])[..., 0]
        others = p_mean.scatter_(-1, predicted, 0.0)
        rest, largest, predicted = others.sum(-1), largest[..., 0], predicted[..., 0]
        inner = torch.add(others, _TINY, out=spare).log_().mul_(others).sum(-1)
        values = {
            "predictive_entropy": 0.0 - (1 - rest) * torch.log1p(-rest) - inner,
            "max_probability": largest,
            "least_confidence": rest,
            "predicted": predicted,
        }
        if y is not None and true is not None:
            hit = predicted == y
            values["accuracy"] = hit.to(mean.dtype)
            squares = torch.mul(others, others, out=spare).sum(-1)
            values["brier"] = squares + torch.where(hit, rest**2, largest**2 + 1 - 2 * true)
        return values | further

    def release(self) -> None:
        """Give back the work memory, which the next block takes again."""
        self._memory, self.p = None, torch.empty(0)
        self._logits = self._mean = self._spare = self.p
