"""Warnings and notes of an inspection, a sweep, precise-bn, and a check against a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.arithmetic import in_words
from bnuq.findings import Catalogue, Entry, listed


def _random_points(shape: Sequence[int], requested: bool) -> str:
    why = (
        "given by --input-shape"
        if requested
        else "the first shape that it accepts: positions, and numbers that depend on them, hold for that shape; set "
        "another with --input-shape"
    )
    return f"the network was run on random examples of shape {','.join(map(str, shape))}, {why}"


def _domain_batch_size(batch_size: int, requested: int, smallest: str, points: int, variance_left: float) -> str:
    hold = f"hold {batch_size} examples" + (f", not {requested}" if batch_size < requested else "")
    return (
        f"mini-batches of domains {hold}: {smallest} has only {points} to draw them from, and drawing without "
        f"replacement leaves {100 * variance_left:.0f} % of the variance of their noise there"
    )


def _history(folder: str, used: int, asked: int) -> str:
    fewer = f", fewer than the {asked} requested" if used < asked else ""
    which = f"the mean of the last {used} results" if used > 1 else "the last result"
    slope = "" if used > 1 else "; no slope was tested, as that needs three results including the current one"
    return f"the baseline is {which} in {folder}{fewer}, by the times in their provenance{slope}"


def _dead_channels(layers: Sequence[tuple[str, int]]) -> str:
    channels = sum(channels for _, channels in layers)
    return (
        f"{channels} {'channel is' if channels == 1 else 'channels are'} nearly constant in some mini-batch, with "
        f"the variance below 10 times eps ({listed([f'{name} {count}' for name, count in layers])}): under MCBN a "
        "example that differs in them is scaled up as far as eps allows."
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


def _nothing_random(batch_sizes: Sequence[int]) -> str:
    sizes = ", ".join(f"b = {size}" for size in batch_sizes)
    return f"At {sizes} nothing is random: the spread of the draws is 0 and carries no information."


def _not_finite_before(tensors: Sequence[str]) -> str:
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return (
        f"{tensors[0]}{more} held NaN or infinite values, so there is nothing to compare with on a test set; evaluate "
        "the new file"
    )


COMMANDS: Catalogue = {
    # inspection: network and points
    "reference-unreadable": Entry(
        "The training set cannot be read, so only the checkpoint itself is reported on: {reason}"
    ),
    "test-unreadable": Entry("the test set cannot be read, and is left out: {reason}"),
    "random-points": Entry(_random_points),
    # inspection: sites
    "not-finite": Entry(
        "{tensors:number} {tensors:tensor|tensors} of the checkpoint {tensors:is|are} not finite, or a variance below "
        "0: {tensors:listed}. The network's outputs are meaningless, and only its sites are reported.",
        "Use an earlier checkpoint: training diverged.",
    ),
    "frozen": Entry(
        "BatchNorm {layers:listed} keeps its running statistics in training mode too: it has no batch noise, and MCBN "
        "does not sample it.",
        "Nothing, if intended; otherwise train with the layer in training mode, or sample the other layers.",
    ),
    "vanishing": Entry(
        "{channels} {channels:channel|channels} of BatchNorm {layers:listed} {channels:has|have} a running variance "
        "below 10 times eps: deviations from the training data in them are scaled up as far as eps allows.",
        "Check whether the activations before these layers are constant (a dead ReLU, a pruned filter), and whether "
        "the running variances were stored with too little precision.",
    ),
    # inspection: running averages and noise
    "unmeasured": Entry("the lag of the running averages and the noise were not measured: {reason}"),
    "training-batch-size-assumed": Entry(
        "the limits of batch noise assume training batches of {batch_size}, as train_batch_size is not known"
    ),
    "noise-batch-size": Entry(
        "the noise is that of mini-batches of {batch_size}, {origin}, as the training batch size is not known; set "
        "train_batch_size under [model] if you know it"
    ),
    "noise-batch-size-halved": Entry(
        "the noise is that of mini-batches of {batch_size}, half the training set, which is below {preferred}"
    ),
    "noise-on-the-same-points": Entry(
        "the noise was measured on other mini-batches of the same examples as the population: the training set is too "
        "small to be split"
    ),
    "dead-channels": Entry(
        _dead_channels,
        "If MCBN estimates depend on few examples, leave these layers out (`--layers`) or use a larger mini-batch.",
    ),
    "biased-variance": Entry(
        _biased_variance,
        "MCBN estimates describe the network as it behaves in training; larger mini-batches in training reduce the "
        "difference.",
    ),
    # inspection: domains
    "domain-batch-size": Entry(_domain_batch_size),
    # inspection: pipelines
    "no-pipeline-suggested": Entry("no training pipeline is suggested: {reason}"),
    "no-pipeline-fits": Entry(
        "None of the {tried} training pipelines tried fits: the running statistics differ from the closest one's "
        "{worst:.1f} times as much as batch noise explains in the worst layer, {worst_layer}, and {median:.1f} times "
        "in the median layer. The network was trained with another pipeline or on other data, or its running "
        "statistics were not updated until the end of training.",
        "Look up `normalize` and `augment` in the training script. If the pipeline is known to be right, the running "
        "statistics are wrong: `bnuq precise-bn` recomputes them.",
    ),
    # sweep over mini-batch sizes
    "sweep-continued": Entry("{network}: {parts} finished parts of an interrupted sweep were reused"),
    "bank-left-out": Entry("all examples of a sweep share their draws: the bank of {bank} was left out"),
    "methods-left-out": Entry("a sweep samples mcbn only; {methods:joined} of the run file was left out"),
    "few-values": Entry(
        "b = {batch_size}: layer {layer} takes its statistics from {values} values per channel; with so few, the "
        "variance is sometimes so small that outputs explode. Use a larger size."
    ),
    "nothing-random": Entry(_nothing_random, "Sweep sizes smaller than the training set."),
    "no-elbo": Entry("there is no ELBO: {reason}"),
    "elbo-of-reference-size": Entry(
        "N of the ELBO is the size of the training set, {points}; if the network was trained on more, set train_size "
        "under [data]: the size that the ELBO selects grows with it"
    ),
    "no-recommendation": Entry(
        "No size is recommended: {reason}; the notes say why.",
        "Sweep more sizes, or choose another criterion: `--criterion pll` with validation examples.",
    ),
    "chosen-on-test": Entry(
        "The size was chosen by {criterion} on the test examples: estimates at that size are too optimistic. Name "
        "validation examples for an unbiased choice."
    ),
    "chosen-on-ood": Entry(
        "The size was chosen on {sets:joined}: results on it are no longer an independent test.",
        "Confirm the size on an OOD set that was not used to choose it.",
    ),
    "elbo-of-several-networks": Entry(
        "The ELBO is compared across networks with different weights: their likelihoods are not directly comparable, "
        "and the prior of the weights is left out.",
        "Compare the networks by PLL on validation examples before choosing one of them.",
    ),
    # precise-bn
    "file-replaced": Entry("an earlier file was replaced: {file}"),
    "default-batch-size": Entry(
        "mini-batches of at most {batch_size}: the default, as the training batch size is not known; name it with "
        "--batch-size, or train_batch_size under [model]"
    ),
    "few-points": Entry(
        "the statistics are from only {points} examples, so they are noisy; use at least {minimum}, preferably a few "
        "thousand"
    ),
    "not-finite-before": Entry(_not_finite_before),
    "no-comparison": Entry("no estimates before and after: {reason}"),
    "variances-too-small": Entry(
        "{tensor}: {small} of {channels} variances are too small for the type they are stored in, and became 0; next "
        "to ε = {eps:.3g} this makes almost no difference"
    ),
    "statistics-unchanged": Entry("{layer} keeps its statistics: {reason}"),
    # files of other versions
    "made-by-another-version": Entry(
        "made by another version of bnuq ({version}); left out, as this one does not know {names:it|them}: "
        "{names:listed}"
    ),
    "without-digest": Entry(
        "The file has no digest of its estimates: an earlier version wrote it, or it was changed since bnuq wrote it.",
        "Evaluate again if you do not know which.",
    ),
    # check against a baseline
    "settings-of-run-file": Entry("tolerances and minimums are those of [check] in {file}"),
    "new-since-baseline": Entry("new since the baseline, and not compared with anything: {what} {names:joined}"),
    "not-compared": Entry("Not compared with the old baseline: {reason}"),
    "older-than-baseline": Entry(
        "{current} is older than {baseline}, its baseline: are the two swapped? CURRENT comes first."
    ),
    "compared-as-one-method": Entry(
        "{baselines:joined} and {current}, the one file of predictions on each side, are compared as the same method"
    ),
    "paired-by-position": Entry(
        "the examples of {sets:joined} have no ids: they are paired by their position and their labels, where they "
        "have any; with a column id they are known"
    ),
    "same-file": Entry("Both are the same file, which is never worse than itself."),
    "other-layers": Entry("layers of the sampling: {current} now, {baseline} in the baseline."),
    "other-bank": Entry("bank of the sampling: {current} now, {baseline} in the baseline."),
    "other-arithmetic": Entry(
        lambda current, baseline: (
            f"the samples were computed in {in_words(current)} now, in {in_words(baseline)} in the baseline; "
            "tolerances of their uncertainty are wider by its measured deviation"
        )
    ),
    "other-settings": Entry(lambda settings: f"settings that differ: {'; '.join(settings)}"),
    "inconclusive": Entry(
        "Inconclusive: {estimates:number} of {gated} gated {gated:estimate|estimates}, worse by more than tolerated, "
        "but not significantly: {estimates:listed}.",
        "The report says how many examples or samples would decide each; `--inconclusive fail` makes them fail the "
        "check.",
    ),
    "baseline-holds-images": Entry(
        "The baseline holds small copies of {count} {count:image|images} of the data.",
        "Evaluate with --no-images before you commit it where others can read it.",
    ),
    "history": Entry(_history),
    "left-out-of-history": Entry("{file} of the history is left out: {reason}"),
    "thresholds-not-gated": Entry(
        "the thresholds that the baseline decided on were applied to {methods:joined}, and are not gated: the draws "
        "are not those of the baseline, or a tolerance is off"
    ),
    "hidden-by-draws": Entry(
        "{estimates:joined}: worse by more than the tolerance, and clearly so over the examples. Only the Monte Carlo "
        "error explains it, and that has grown more than {growth}-fold since the baseline. Evaluate with more samples."
    ),
    "new-warnings": Entry(
        lambda warnings: (
            "The current result has warnings that the baseline does not have: "
            + " ".join(f"{text} [{code}]" for code, text in warnings)
        )
    ),
    "unused-tolerance": Entry("No estimate of these results matches the tolerance of {tolerances:joined}."),
    "tolerance-of-any-change": Entry(
        "No change can exceed the tolerance of {estimates:listed}: not gated, as if the tolerance were off."
    ),
    "not-a-number": Entry("{estimates:joined}: not a number in the baseline, and therefore not gated."),
    "promise-lost": Entry(
        "{methods:joined}: no threshold can be certified, as one was in the baseline.",
        "`bnuq report` of the current result says which risk could be promised.",
    ),
    "calibrated-as-by-chance": Entry(
        lambda methods: "; ".join(
            f"ECE of {name}, {value:.4f}, is what a calibrated network shows by chance: {mean:.4f} (95 %: {high:.4f})"
            for name, value, mean, high in methods
        )
    ),
    "infinite": Entry("{estimates:joined}: infinite in both; a change cannot be detected."),
    # monitor
    "reference-trained-on": Entry(
        "The network was trained on the reference, {reference}: it is more certain of these examples than of others "
        "like them, so new examples differ from them even if nothing has changed.",
        "Name examples that it was not trained on: --test REF.",
    ),
    "monitor-settings-ignored": Entry(
        "{keys:joined} {keys:is|are} ignored: a batch is normalised as the baseline was (by {normalize}) and compared "
        "with its reference, {reference}; for others make another baseline, with a new name for --baseline"
    ),
    "monitor-settings-taken": Entry("as for the baseline: {settings:joined}"),
    "monitor-without-batchnorm": Entry("the network has no BatchNorm layer: the {instead} are used instead"),
    "few-reference-points": Entry(
        "directions are fitted to {points} examples of the reference, fewer than the {statistics} statistics of the "
        "widest layer: at most {directions} of a layer are compared"
    ),
    "constant-statistics": Entry("statistics that do not vary over the reference are not compared: in {layers:listed}"),
    "stream-stopped": Entry(
        "the stream stopped at its alarm (batch {batch}, {name}), so this batch was compared only with the reference; "
        "name a new file for --stream to begin again"
    ),
    "shift-unit-assumed": Entry(
        "shifts are in units of the noise of training batches of {batch_size}, as train_batch_size is not known"
    ),
}
