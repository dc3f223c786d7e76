"""`bnuq methods`: lists the methods that make a network stochastic."""

from __future__ import annotations

from bnuq.cli.output import print_line

METHODS = {
    "deterministic": "The deterministic network, in evaluation mode. Always included.",
    "mcbn": "Monte Carlo Batch Normalization: every sample normalises with the statistics of a random mini-batch of "
    "the reference (Teye, Azizpour & Smith 2018). Needs a BatchNorm layer and --train.",
    "mcdo": "Monte Carlo dropout: dropout stays active (Gal & Ghahramani 2016). Needs a dropout layer of rate above 0.",
    "mcbn+mcdo": "Both at once.",
    "learned": "Noise of the network's own layers, drawn once for each sample: weights, scales or flows with a learned "
    "deviation (Blundell et al. 2015; Shekhovtsov & Flach 2018). Runs if the network has such layers.",
    "mcbn+learned": "Both at once. Only on request.",
    "mcdo+learned": "Both at once. Only on request.",
    "mcbn+mcdo+learned": "All three at once. Only on request.",
    "mcbn-chi2": "An approximation of mcbn: statistics drawn around the running ones, means Gaussian and variances χ², "
    "each channel independently (Shekhovtsov & Flach 2018). Needs no reference; with one, it is compared with mcbn.",
    "mcbn-gaussian": "The same with Gaussian standard deviations (Teye, Azizpour & Smith 2018, footnotes 8 and 9).",
    "mcbn-empirical": "An approximation of mcbn: a Gaussian fitted to the statistics of recorded mini-batches, jointly "
    "over a channel, a layer or the network (covariance). Needs --train.",
    "tta": "Test-time augmentation: the deterministic network on randomly augmented points. Needs augment, or [tta]. "
    "Only on request.",
    "mcbn+tta": "Both at once: sample t uses mini-batch t and augmentation t. Only on request.",
    "laplace": "Last-layer Laplace approximation: the weights of the last linear layer are drawn from a Gaussian "
    "posterior (Daxberger et al. 2021). Needs a classifier that ends in one linear layer, and --train. "
    "Only on request.",
    "ensemble": "The deterministic networks of several checkpoints: bnuq evaluate a.pt b.pt c.pt (Lakshminarayanan, "
    "Pritzel & Blundell 2017). Runs if they are given.",
    "predictions": "Samples from another method or library, read from the file of --predictions.",
}


def command() -> None:
    """List the methods, and what each needs."""
    for name, text in METHODS.items():
        print_line(f"{name:17} {text}")
