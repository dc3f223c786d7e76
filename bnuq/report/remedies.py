"""What to do about each warning of a result, by its code; empty where the warning's own text says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

ADVICE: dict[str, str] = {
    "reference-mismatch": (
        "Copy `normalize` (and `augment` for images) from the training script to [data] in a run file, name the "
        "actual training set as `train`, and evaluate again: the warning disappears once they match. Until then, "
        "do not trust the mcbn estimates for this network."
    ),
    "reference-unchecked": (
        "Compare `train`, `normalize` and `augment` with the training script by hand; no automatic check was possible."
    ),
    "deterministic-from-reference": (
        "Its deterministic estimates do not describe a single forward pass in deployment. To have running "
        "statistics, train with `track_running_stats=True`."
    ),
    "law-understates": ('Use mcbn, or mcbn-empirical, if necessary with covariance = "network".'),
    "law-overstates": "Use mcbn; `bnuq inspect` shows whether the running statistics match the training data.",
    "law-unchecked": (
        'Name a reference (--train): bnuq then compares the noise model with MCBN, and counts = "measured" '
        "becomes possible."
    ),
    "too-few-points": "Evaluate on more points, or leave out `group` if the points are independent.",
    "few-validation-points": "Hold more points out of training and name them as `validation`; a few hundred will do.",
    "nothing-stochastic": (
        "See the notes for what was left out; a network without BatchNorm and dropout has nothing to sample."
    ),
    "few-samples": "",
    "mc-error-not-reached": "",
    "probability-outputs": "",
    "exactness-unchecked": ("Provide the network as a Python module that supports `copy.deepcopy` and `train()`."),
    "unreachable": (
        "The other layers are still sampled. To sample this one too, call it in the evaluation-mode forward pass as a "
        "torch BatchNorm or dropout, without a test of `self.training` around it."
    ),
    "never-trained": (
        "Check that the checkpoint holds `running_mean` and `running_var` of these layers under the names that the "
        "architecture gives them, and that it is the trained one."
    ),
    "not-finite": "Use an earlier checkpoint: training diverged.",
    "vanishing": (
        "Check whether the activations before these layers are constant (a dead ReLU, a pruned filter), and "
        "whether the running variances were stored with too little precision."
    ),
    "frozen": "Nothing, if intended; otherwise train with the layer in training mode, or sample the other layers.",
    "dead-channels": (
        "If MCBN estimates depend on few points, leave these layers out (`--layers`) or use a larger mini-batch."
    ),
    "biased-variance": (
        "MCBN estimates describe the network as it behaves in training; larger mini-batches in training reduce "
        "the difference."
    ),
    "no-pipeline-fits": (
        "Look up `normalize` and `augment` in the training script. If the pipeline is known to be right, the "
        "running statistics are wrong: `bnuq precise-bn` recomputes them."
    ),
    "reference-unreadable": "",
    "worse-than-the-mean": "Set `normalize` and `normalize_targets` to what training used, and evaluate again.",
    "constant-targets": "Check that the right column was used as the target.",
    "targets-of-another-scale": "Convert both to one unit, or set `normalize_targets`, and evaluate again.",
    "constant-is-zero": "Use CRPS, or name validation points that are not predicted exactly.",
    "tau-infinite": "",
    "tau-at-range-end": "Widen `tau_range` under [scoring]; check that the errors have the expected unit.",
    "validation-in-test": "Name validation points that are in no other set.",
    "test-in-reference": "Remove these points from the test set, or report that the estimates include training points.",
    "validation-in-reference": "Name validation points that the network never trained on.",
    "few-values": "",
    "nothing-random": "Sweep sizes smaller than the reference.",
    "no-recommendation": "Sweep more sizes, or choose another criterion: `--criterion pll` with validation points.",
    "chosen-on-test": "",
    "chosen-on-ood": "Confirm the size on an OOD set that was not used to choose it.",
    "elbo-of-several-networks": "Compare the networks by PLL on validation points before choosing one of them.",
    "splits-share-test-set": "Check that `{split}` occurs in the reference of the test set.",
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
