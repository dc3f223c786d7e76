"""Warnings and notes of a sweep over mini-batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.findings import Catalogue, Entry


def _nothing_random(batch_sizes: Sequence[int]) -> str:
    sizes = ", ".join(f"b = {size}" for size in batch_sizes)
    return f"At {sizes} nothing is random: the spread of the draws is 0 and carries no information."


SWEEPING: Catalogue = {
    "batch-sizes-sorted": Entry("batch sizes were sorted and duplicates removed"),
    "sweep-continued": Entry("{network}: {parts} finished parts of an interrupted sweep were reused"),
    "bank-left-out": Entry("all points of a sweep share their draws: the bank of {bank} was left out"),
    "methods-left-out": Entry(
        lambda methods: f"a sweep samples mcbn only; {', '.join(methods)} of the run file was left out"
    ),
    "few-values": Entry(
        "b = {batch_size}: layer {layer} takes its statistics from {values} values per channel; with so few, the "
        "variance is sometimes so small that outputs explode. Use a larger size."
    ),
    "nothing-random": Entry(_nothing_random, "Sweep sizes smaller than the reference."),
    "no-elbo": Entry("there is no ELBO: {reason}"),
    "elbo-of-reference-size": Entry(
        "N of the ELBO is the size of the reference, {points}; if the network was trained on more, set train_size "
        "under [data]: the size that the ELBO selects grows with it"
    ),
    "no-recommendation": Entry(
        "No size is recommended: {reason}; the notes say why.",
        "Sweep more sizes, or choose another criterion: `--criterion pll` with validation points.",
    ),
    "chosen-on-test": Entry(
        "The size was chosen by {criterion} on the test points: estimates at that size are too optimistic. Name "
        "validation points for an unbiased choice."
    ),
    "chosen-on-ood": Entry(
        lambda sets: f"The size was chosen on {', '.join(sets)}: results on it are no longer an independent test.",
        "Confirm the size on an OOD set that was not used to choose it.",
    ),
    "elbo-of-several-networks": Entry(
        "The ELBO is compared across networks with different weights: their likelihoods are not directly comparable, "
        "and the prior of the weights is left out.",
        "Compare the networks by PLL on validation points before choosing one of them.",
    ),
}
