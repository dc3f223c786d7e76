"""Warnings and notes of an inspection."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.catalogue.words import counted, listed
from bnuq.findings import Catalogue, Entry


def _shape(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _random_points(shape: Sequence[int], requested: bool) -> str:
    why = (
        "as given by --input-shape"
        if requested
        else "the first that it accepts: positions, and numbers that depend on them, are for that shape; --input-shape "
        "sets another"
    )
    return f"the network was run on random points of shape {_shape(shape)}, {why}"


def _sampling_ignored(keys: Sequence[str]) -> str:
    return (
        f"sampling.{', '.join(keys)} {'is' if len(keys) == 1 else 'are'} ignored: an inspection draws random "
        "mini-batches without replacement, uses biased variance, and applies no analytic noise model"
    )


def _domain_batch_size(batch_size: int, requested: int, smallest: str, points: int, variance_left: float) -> str:
    hold = f"hold {batch_size} points" + (f", not {requested}" if batch_size < requested else "")
    return (
        f"mini-batches of domains {hold}: {smallest} has only {points} to draw them from, and drawing without "
        f"replacement leaves {100 * variance_left:.0f} % of the variance of their noise there"
    )


def _domain_points(sets: Sequence[tuple[str, int, int]]) -> str:
    selected = ", ".join(f"{points} of {of} ({name})" for name, points, of in sets)
    return f"of the points not used for statistics, a random selection was evaluated: {selected}"


def _not_finite(tensors: Sequence[str]) -> str:
    return (
        f"{counted(len(tensors), 'tensor')} of the checkpoint {'is' if len(tensors) == 1 else 'are'} not finite, or a "
        f"variance below 0: {listed(tensors)}. The network's outputs are meaningless, and only its sites are reported."
    )


def _frozen(layers: Sequence[str]) -> str:
    return (
        f"BatchNorm {listed(layers)} keeps its running statistics in training mode too: it has no batch noise, and "
        "MCBN does not sample it."
    )


def _vanishing(layers: Sequence[str], channels: int) -> str:
    return (
        f"{counted(channels, 'channel')} of BatchNorm {listed(layers)} {'has' if channels == 1 else 'have'} a running "
        "variance below 10 times eps: what differs there from the training data is scaled up as far as eps allows."
    )


def _dead_channels(layers: Sequence[tuple[str, int]]) -> str:
    channels = sum(channels for _, channels in layers)
    return (
        f"{counted(channels, 'channel')} {'is' if channels == 1 else 'are'} nearly constant in some mini-batch, with "
        f"the variance below 10 times eps ({listed([f'{name} {count}' for name, count in layers])}): under MCBN a "
        "point that differs there is scaled up as far as eps allows."
    )


def _biased_variance(layers: Sequence[str], values: int, batch_size: int, in_training: bool, scale: float) -> str:
    less = f"scales by up to {100 * (scale - 1):.1f} % less"
    where = (
        f"mini-batch of {batch_size} in training, which normalised by the biased variance; evaluation uses the "
        f"unbiased one, which {less}."
        if in_training
        else f"mini-batch of {batch_size}: at this mini-batch size training would normalise by the biased variance, "
        f"and evaluation by the unbiased one, which {less}."
    )
    return f"{listed(layers)} {'sees' if len(layers) == 1 else 'see'} down to {values} values per channel in a {where}"


INSPECTION: Catalogue = {
    # network and points
    "reference-unreadable": Entry(
        "The reference cannot be read, so only the checkpoint itself is reported on: {reason}"
    ),
    "test-unreadable": Entry("the test set cannot be read, and is left out: {reason}"),
    "random-points": Entry(_random_points),
    "sampling-ignored": Entry(_sampling_ignored),
    # sites
    "not-finite": Entry(_not_finite, "Use an earlier checkpoint: training diverged."),
    "frozen": Entry(
        _frozen, "Nothing, if intended; otherwise train with the layer in training mode, or sample the other layers."
    ),
    "vanishing": Entry(
        _vanishing,
        "Check whether the activations before these layers are constant (a dead ReLU, a pruned filter), and whether "
        "the running variances were stored with too little precision.",
    ),
    # running averages and noise
    "unmeasured": Entry("the lag of the running averages and the noise were not measured: {reason}"),
    "training-batch-size-assumed": Entry(
        "what batch noise explains assumes training batches of {batch_size}, as train_batch_size is not known"
    ),
    "noise-batch-size": Entry(
        "the noise is that of mini-batches of {batch_size}, {origin}, as the training batch size is not known; set "
        "train_batch_size under [model] if you know it"
    ),
    "noise-batch-size-halved": Entry(
        "the noise is that of mini-batches of {batch_size}, half the reference, which is below {preferred}"
    ),
    "noise-on-the-same-points": Entry(
        "the noise was measured on other mini-batches of the same points as the population: the reference is too small "
        "to be split"
    ),
    "population-of-all-points": Entry(
        "the population is that of all {points} points of the reference, fewer than {requested}"
    ),
    "dead-channels": Entry(
        _dead_channels,
        "If MCBN estimates depend on few points, leave these layers out (`--layers`) or use a larger mini-batch.",
    ),
    "biased-variance": Entry(
        _biased_variance,
        "MCBN estimates describe the network as it behaves in training; larger mini-batches in training reduce the "
        "difference.",
    ),
    # domains
    "domain-batch-size": Entry(_domain_batch_size),
    "domain-points-selected": Entry(_domain_points),
    "domain-spread-points": Entry(
        "the spread of MCBN under each domain's statistics is that of {points} points of each set"
    ),
    # pipelines
    "no-pipeline-suggested": Entry("no training pipeline is suggested: {reason}"),
    "no-pipeline-fits": Entry(
        "None of the {tried} training pipelines tried fits: the running statistics differ from the closest one's "
        "{worst:.1f} times as much as batch noise explains in the worst layer, {worst_layer}, and {median:.1f} times "
        "in the median layer. The network was trained with another pipeline or on other data, or its running "
        "statistics were not updated until the end of training.",
        "Look up `normalize` and `augment` in the training script. If the pipeline is known to be right, the running "
        "statistics are wrong: `bnuq precise-bn` recomputes them.",
    ),
}
