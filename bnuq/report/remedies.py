"""What to do about each warning of a result, by its code; empty where the warning's own text says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

ADVICE: dict[str, str] = {
    "reference-mismatch": (
        "Write `normalize` (and of pictures `augment`) of the training script under [data] of a run file, name the "
        "very training set as `train`, and evaluate again: the warning goes where they fit. Until then take no figure "
        "of mcbn for one of this network."
    ),
    "reference-unchecked": (
        "Compare `train`, `normalize` and `augment` with the training script yourself: nothing here could."
    ),
    "deterministic-from-reference": (
        "Do not take its deterministic figures for those of a single pass in use; for running statistics of its own, "
        "train with `track_running_stats=True`."
    ),
    "law-understates": (
        'Use mcbn, whose draws the law leaves behind; or mcbn-empirical, with covariance = "network" if need be.'
    ),
    "law-overstates": "Use mcbn; see `bnuq inspect` for whether the running statistics are those of the training.",
    "law-unchecked": (
        'Name a reference (--train): bnuq then holds the law against MCBN, and counts = "measured" becomes possible.'
    ),
    "too-few-points": "Evaluate on more points, or leave `group` out where points are independent.",
    "few-validation-points": "Hold more points out of training and name them as `validation`; a few hundred will do.",
    "nothing-stochastic": (
        "Look into the notes for what was left out; a network without BatchNorm and dropout has no passes to draw."
    ),
    "few-samples": "",
    "mc-error-not-reached": "",
    "probability-outputs": "",
    "exactness-unchecked": (
        "Give the network as a Python module that `copy.deepcopy` copies and that `train()` puts into training mode."
    ),
    "unreachable": (
        "The other layers are sampled all the same. Where this one's randomness should count, see that the evaluation-"
        "mode forward calls it as a BatchNorm or dropout of torch, without a test of `self.training` around it."
    ),
    "never-trained": (
        "See whether the checkpoint holds `running_mean` and `running_var` of these layers under the names that the "
        "architecture gives them, and whether it is the trained one."
    ),
    "not-finite": "Take an earlier checkpoint: these weights went astray in training.",
    "vanishing": (
        "See whether the activations in front of these layers are constant (a dead ReLU, a pruned filter), and whether "
        "the running variances were stored in too few digits."
    ),
    "frozen": "Nothing, where that was meant; else train with the layer in training mode, or sample the other layers.",
    "dead-channels": (
        "Leave these layers out (`--layers`), or take a larger mini-batch, where figures of MCBN hang on few points."
    ),
    "biased-variance": (
        "Take the figures of MCBN for those of the network in training, which it imitates; larger mini-batches in "
        "training make the two alike."
    ),
    "no-pipeline-fits": (
        "Look into the training script for `normalize` and `augment`. Where the pipeline is known to be right, the "
        "running statistics are what is wrong: `bnuq precise-bn` computes them anew."
    ),
    "reference-unreadable": "",
    "worse-than-the-mean": "Set `normalize` and `normalize_targets` to what training used, and evaluate again.",
    "constant-targets": "See whether the right column was taken for the target.",
    "targets-of-another-scale": "Bring both into one unit, or name `normalize_targets`, and evaluate again.",
    "constant-is-zero": "Judge by CRPS, or name other validation points than those that are met exactly.",
    "tau-infinite": "",
    "tau-at-range-end": "Widen `tau_range` under [scoring]; see whether the errors have the unit that you expect.",
    "validation-in-test": "Name validation points that are in no other set.",
    "test-in-reference": "Take these points out of the test set, or say that the figures are those of training points.",
    "validation-in-reference": "Name validation points that the network never trained on.",
    "few-values": "",
    "nothing-random": "Sweep sizes below that of the reference.",
    "no-recommendation": "Sweep more sizes, or choose another criterion: `--criterion pll` with validation points.",
    "chosen-on-test": "",
    "chosen-on-ood": "Confirm the size on an OOD set that was not used to choose it.",
    "elbo-of-several-networks": "Compare the networks by PLL on validation points before one of them is chosen.",
    "splits-share-test-set": "See whether `{split}` stands in the reference of the test set.",
    "undefined-in-some-runs": "",
}


class _Warned(Protocol):
    """A warning of one run or of several."""

    @property
    def code(self) -> str: ...

    @property
    def text(self) -> str: ...


def advised(cautions: Iterable[_Warned]) -> tuple[tuple[str, str, str], ...]:
    """Text, code and what to do of each, in their order; what to do is empty where it is not known."""
    return tuple((one.text, one.code, ADVICE.get(one.code, "")) for one in cautions)
