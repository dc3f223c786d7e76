"""Warnings and notes of an evaluation, and of several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from bnuq.arithmetic import in_words
from bnuq.findings import Catalogue, Entry, joined, listed
from bnuq.perturbations import ATTACKS


def _own_batches(batch_size: int, smaller: Sequence[tuple[str, int]]) -> str:
    few = f"; all in one batch: {', '.join(f'{name} ({points})' for name, points in smaller)}" if smaller else ""
    return (
        f"deterministic+own (†) normalises evaluated examples by a random batch of {batch_size} of their own set: "
        "predictions depend on the other examples of the batch, which are all OOD in an OOD set, and errors over "
        f"examples ignore this{few}"
    )


def _batch_size_chosen(batch_size: int, preferred: int, known: bool) -> str:
    why = "the training batch size" if known else "the default, as the training batch size is not known"
    if batch_size < preferred:
        why = f"half the training set, which is below {preferred}, {why}"
    advice = "" if known else "; MCBN's uncertainty depends mostly on it, so set batch_size if you know it"
    return f"mini-batches of {batch_size}: {why}{advice}"


def _no_validation(task: str, tau: bool, reason: str) -> str:
    absent = "the constant baseline and the normalised PLL are not available"
    if task == "regression":
        absent = "the constant baseline and the normalised scores are not available"
        if not tau:
            absent = "τ, PLL, CRPS and coverage, " + absent
    cross = ", or fit to halves of the test set with --calibrate cross" if task == "regression" else ""
    return f"{absent}: {reason}; name them with --validation REF, or validation under [data]{cross}"


def _tau_cross_fitted(of: str, tau: Sequence[float], points: int, given: bool) -> str:
    sds = " and ".join(f"{value**-0.5:.4g}" if value > 0 else "inf" for value in tau)
    what = "the constant σ is" if given else "τ and the constant σ are"
    noise = "" if given else f" (τ stands for noise of sd {sds}, which all intervals have; --tau for a known one)"
    return f"{of}: without validation examples, {what} cross-fitted on halves of the {points:,} test examples{noise}"


def _attacked_through(methods: Sequence[tuple[str, int]]) -> str:
    through: dict[str, list[str]] = {}
    for method, passes in methods:
        what = "the network in evaluation mode" if passes == 0 else f"the mean prediction of its first {passes} samples"
        through.setdefault(what if passes != 1 else "its single pass", []).append(method)
    texts = (f"{listed(names)} through {what}" for what, names in through.items())
    return f"{' and '.join(ATTACKS)} computes separate examples for each method: {'; '.join(texts)}"


def _laplace_fitted(
    curvature: str, points: int, train_size: int, prior_precision: float, effective: float, parameters: int
) -> str:
    kept = "Kronecker-factored curvature" if curvature == "kron" else "the diagonal of the curvature"
    stands = "" if train_size == points else f", counted as {train_size:,}"
    return (
        f"laplace: the last layer's posterior has {kept}, from {points:,} examples of the training set{stands}; its "
        f"prior precision is {prior_precision:.3g}, by the marginal likelihood, and the data determine "
        f"{effective:,.0f} of its {parameters:,} parameters"
    )


def _never_trained(layers: Sequence[str], evaluated: bool) -> str:
    names = _begun(layers) if evaluated else listed(layers)
    rest = ", and the deterministic estimates are not meaningful" if evaluated else ""
    return (
        f"BatchNorm {names} still has its initial running statistics (mean 0, variance 1): the network was never "
        f"trained or not loaded completely{rest}."
    )


def _begun(names: Sequence[object]) -> str:
    """The first names, and an ellipsis if there are more."""
    return joined(names[:5]) + (" …" if len(names) > 5 else "")


def _reference_mismatch(
    median: float,
    median_limit: float,
    worst: float,
    worst_limit: float,
    worst_layer: str,
    settings: Sequence[str],
    missing: Sequence[str],
    run_file: str | None,
    suggest: str | None = None,
    precise: str | None = None,
    lags: bool = False,
    unfit: Sequence[str] = (),
    effect: _Effect = (),
) -> str:
    sizes = (
        f"Batch statistics of the training set differ from the checkpoint's running statistics {median:.1f} times as "
        f"much as batch noise explains in the median layer (up to {median_limit:.0f} is normal), and {worst:.1f} times "
        f"in the worst, BatchNorm `{worst_layer}` (up to {worst_limit:.0f} is normal)."
    )
    if unfit:
        sizes = (
            f"BatchNorm {_begun(unfit)} normalises by running statistics that are not those of the training set: they "
            "differ by more than a standard deviation, or are 0."
        )
    measured = _changes(effect) or " How much that matters, `bnuq evaluate` measures on labelled test examples."
    recompute = "" if precise is None else f" `{precise}` recomputes the running statistics."
    if lags:  # MCBN is unaffected, and no other pipeline would help
        return (
            "The checkpoint's running averages probably lag behind its weights: they match the training set better in "
            f"the first BatchNorm than behind it, or differ in means alone, as another pipeline would not.{recompute} "
            f"{sizes}{measured} MCBN does not use running averages. If the pipeline is not that of the "
            f"training, check {', '.join(f'`{key}`' for key in settings)}."
        )
    given = "No {} was given." if run_file is None else f"{run_file} has no {{}}."
    advice = f" {given.format(' and no '.join(f'`{key}`' for key in missing))}" if missing else ""
    leads = "" if suggest is None else f" `{suggest}` shows which of the common pipelines fits."
    leads += recompute and f" If the pipeline is right,{recompute}"
    return (
        "The training set (`train`) or its pipeline does not match what the network was trained on, or the running "
        f"statistics were not updated until the end of training. {sizes}{measured} With another pipeline MCBN does not "
        f"describe the trained network. Check {', '.join(f'`{key}`' for key in settings)}.{advice}{leads}"
    )


def _all_of(names: str | Sequence[str], one: str, several: str) -> str:
    """What is said of one name, as which earlier files have it, or of several."""
    names = [names] if isinstance(names, str) else names
    return f"{listed([name or 'the network' for name in names])} {one if len(names) == 1 else several}"


_Effect = Sequence[tuple[str, float, float, float]]  # metric, before and after, and the change in standard errors
_NAMES = {"pll": "PLL", "accuracy": "accuracy", "mae": "MAE", "predictive_entropy": "predictive entropy"}


def _changes(effect: _Effect) -> str:
    """What one pass gains or loses by the statistics of the reference; empty where that is not known."""
    if not effect:
        return ""
    units = {"predictive_entropy": " relative errors of MI", effect[0][0]: " of its own standard errors"}  # of 0.2
    changes = (
        f"{_NAMES[name]} {before:.4g} → {after:.4g} ({times:.1f}{units.get(name, '')})"
        for name, before, after, times in effect
    )
    return f" With the statistics of the training set, one pass has {', '.join(changes)}.".replace("-", "−")


def _unchecked(why: str = "", effect: _Effect = (), settings: Sequence[str] = ()) -> str:
    names = f" ({', '.join(f'`{key}`' for key in settings)})" if settings else ""
    text = f"The training set{names} could not be checked against the checkpoint{why and f': {why}'}."
    return text + _changes(effect)


def _temperatures(
    how: str,
    temperatures: Sequence[Sequence[Any]],
    points: int,
    whole: Sequence[float] = (),
    errors: float | None = None,
) -> str:
    of_methods = [f"{method} {' and '.join(map(_theta, values))}" for method, *values in temperatures]
    if "halves" in how and whole:
        of_methods = [f"{text} (all examples: {_theta(of)})" for text, of in zip(of_methods, whole, strict=True)]
    least = 0.0 if errors is None else float(f"{errors:.2g}")
    held = f". Each is drawn to 1 as by 3 errors beside the {least:,g} or more of its fit" if errors is not None else ""
    return f"temperatures {how.format(points=points)}: {', '.join(of_methods)}{held}"


def _by_output(sizes: Sequence[float], covered: Sequence[float]) -> str:
    """The outputs of the smallest and of the largest errors."""
    order = sorted(range(len(sizes)), key=lambda output: sizes[output])
    shown = order if len(order) <= 6 else [*order[:3], *order[-3:]]
    texts = (f"output {k} has an RMSE of {sizes[k]:.3g}, and {covered[k]:.1%} in its 95 % interval" for k in shown)
    return "Of the examples fitted to, " + "; ".join(texts) + " (counted from 0)."


def _theta(temperature: float) -> str:
    return f"{temperature:.3g}" if temperature < 999.5 else f"{temperature:.0f}"


def _vectors(how: str, maps: Sequence[Sequence[Any]], points: int) -> str:
    of_methods = (
        f"{method} {min(scales):.3g} to {max(scales):.3g} and {min(shifts):.3g} to {max(shifts):.3g}"
        for method, scales, shifts in maps
    )
    return f"scales and shifts of the classes {how.format(points=points)}: {', '.join(of_methods)}".replace(" -", " −")


def _precision(
    method: str,
    precision: str,
    points: int,
    samples: int,
    measure: str,
    shift: float,
    shift_error: float,
    mean: float,
    largest: float,
) -> str:
    outputs, shifted = "probabilities" if measure == "mutual information" else "outputs", ""
    if math.isfinite(shift):
        error = f" ± {100 * shift_error:.1f}" if math.isfinite(shift_error) else ""
        shifted = f"{measure} is {100 * shift:+.1f}{error} % from that of float32, "
    return (
        f"{method} was computed in {in_words(precision)}: over the first {points} examples and {samples} samples, "
        f"{shifted}{outputs} differ by {mean:.2g} on average, {largest:.2g} at most (sets of smaller {measure} may "
        "deviate more); mini-batch statistics, deterministic estimates and scores use the usual precision"
    )


def _exact_samples(method: str, arithmetic: str, exact: str, reason: str) -> str:
    default = in_words(arithmetic)
    return f"the samples were computed in {exact}, not in {default} as torch would on this device; {method}: {reason}"


def _undefined_in_some_runs(method: str, estimates: Sequence[str], without: Sequence[str]) -> str:
    where = "; ".join(without[:4]) + (f" and {len(without) - 4} more" if len(without) > 4 else "")
    return (
        f"{method}: {', '.join(estimates)} not defined in {where}, and therefore not over all runs. The reports of "
        "those runs say why."
    )


def _output_taken_from(where: str) -> str:
    name = where.strip('[]."')
    part = "the first of them" if name == "0" else f"its `{name}` entry"
    return f"the network returns several outputs; {part} is scored"


def _dropout_rate_unset(arguments: Sequence[str]) -> str:
    were = "was not given and is" if len(arguments) == 1 else "were not given and are"
    return (
        f"no dropout is active: the factory's {' and '.join(arguments)} {were} 0, and a state dict holds no rate; if "
        f"the network was trained with dropout, set its rate, for example --arch-arg {arguments[0]}=0.1"
    )


EVALUATION: Catalogue = {
    # what was requested
    "run-file-read": Entry("{file} {where} was read; options override it"),
    "result-replaced": Entry("an earlier result was replaced: {file}"),
    "evaluation-continued": Entry("{parts} finished parts of an interrupted evaluation were reused"),
    "parts-repeated": Entry("finished parts of an earlier run were computed again: {why}"),
    "no-validation": Entry(_no_validation),
    "tau-cross-fitted": Entry(_tau_cross_fitted),
    "dropout-rate-unset": Entry(_dropout_rate_unset),
    "not-stochastic": Entry(
        lambda kind, layer, reason: f"{kind} {_all_of(layer, 'cannot', 'cannot')} be sampled: {reason}"
    ),
    "method-left-out": Entry(lambda method, reason: f"{_all_of(method, 'was left out', 'were left out')}: {reason}"),
    "mcbn-added": Entry("mcbn runs too, as there is a training set: an analytic noise model only approximates it"),
    "setting-ignored": Entry("sampling.{key} is ignored: no method here uses it"),
    "without-effect": Entry("{key} has no effect: it needs {needs}"),
    "batch-size-chosen": Entry(_batch_size_chosen),
    "batch-size-of-slices": Entry(
        "mini-batches of {batch_size}: {in_training:|in evaluation mode only, }the network normalises slices of its "
        "batch of that size"
    ),
    "own-batches": Entry(_own_batches),
    "bank-of-draws": Entry(
        "every {tile} examples use their own {samples} of a bank of {bank} mini-batches: the Monte Carlo error of "
        "means is smaller, but different examples see different sampled networks"
    ),
    "promise-not-earned": Entry(
        "No threshold of {method} can be certified for a risk of {risk:g} with these validation examples; nothing is "
        "promised.",
        "The section on the certificate says which risk could be promised. Use more validation examples, a larger "
        "--risk or a lower --confidence.",
    ),
    "promise-refuted": Entry(
        lambda risk, method, refuted: (
            f"The test set refutes the promise of {method}, an error of at most {100 * risk:g} %: "
            + "; ".join(f"{100 * e:.3g} %{f' of {name}' if name else ''} of {n:,} examples" for name, e, n in refuted)
            + ". Validation and test examples are not drawn alike."
        ),
        "Name validation examples from the same source as the data that the promise is about.",
    ),
    "few-samples": Entry(
        "With {samples} {samples:sample|samples} no Monte Carlo error can be estimated; use at least {minimum}."
    ),
    "nothing-stochastic": Entry(
        "Only the deterministic network was evaluated; the notes say what was left out.",
        "The notes say what was left out; a network without BatchNorm and dropout has nothing to sample.",
    ),
    # the network and its reference
    "mcbn-verified": Entry(
        "MCBN was verified on this network: with the statistics of a mini-batch of {points} examples, its outputs "
        "equal those of the training-mode forward pass to within {deviation:.1g} of their spread over these "
        "examples{with_exceptions:, with the modules named in the warnings in evaluation mode|}"
    ),
    "exactness-unchecked": Entry(
        "MCBN on this network could not be compared with its training-mode forward pass: {reason}.",
        "Provide the network as a Python module that supports `copy.deepcopy` and `train()`.",
    ),
    "unreachable": Entry(
        lambda layer, reason: f"{_all_of(layer, 'is not sampled', 'are not sampled')}: {reason}.",
        "The other layers are still sampled. To sample this one too, call it in the evaluation-mode forward pass as a "
        "torch BatchNorm or dropout, without a test of `self.training` around it.",
    ),
    "never-trained": Entry(
        _never_trained,
        "Check that the checkpoint holds `running_mean` and `running_var` of these layers under the names that the "
        "architecture gives them, and that it is the trained one.",
    ),
    "variance-zero": Entry(
        "{channels} {channels:channel|channels} of BatchNorm {layers:listed} {channels:has|have} the running variance "
        "0 and an input that varies: it is multiplied by 1/√ε, and the deterministic estimates, and those of every "
        "method that keeps the running statistics, are not meaningful.",
        "Check that the checkpoint holds `running_var` of these layers as it was trained, and in enough precision; "
        "otherwise `bnuq precise-bn` computes it from the training data.",
    ),
    "several-inputs": Entry("the network takes several inputs, which are passed unchanged: {inputs}"),
    "integer-inputs": Entry("the network takes only integers: inputs are passed as integers"),
    "test-unlabelled": Entry(
        "the test set ({test}) has no labels: accuracy, likelihoods, calibration and everything else that needs labels "
        "are left out; entropies, mutual information and the separation of OOD sets are computed"
    ),
    "output-taken-from": Entry(_output_taken_from),
    "classes-masked": Entry("logits of -inf are masked classes: their probability is 0"),
    "output-squeezed": Entry(
        lambda shape: f"the network gives {tuple(shape)} for {shape[0]} examples: read as {tuple(shape[:2])}"
    ),
    "labels-without-auroc": Entry(
        "labels without an AUROC, as fewer than 2 test examples have the label or fewer than 2 do not: {labels:listed}"
    ),
    "probability-outputs": Entry(
        "The network's outputs {range}, like those of a sigmoid. bnuq treats outputs as logits and applies the softmax "
        "itself. If the architecture ends in a sigmoid or another map to probabilities, remove it."
    ),
    "deterministic-from-reference": Entry(
        "Some BatchNorm layers keep no running statistics, so the network has no true evaluation mode: its "
        "deterministic estimates use the pooled statistics of all drawn mini-batches, and nothing in the checkpoint "
        "shows whether `train` is the data that it was trained on.",
        "The deterministic estimates do not describe a single forward pass in deployment. To get running statistics, "
        "train with `track_running_stats=True`.",
    ),
    "reference-uncompared": Entry(
        lambda why, effect: (
            f"the training set could not be checked against the checkpoint: {why}. But using its statistics changes "
            f"little.{_changes(effect).removesuffix('.')}"
        )
    ),
    "reference-differs": Entry(
        lambda median, worst, effect, precise, lags=True: (
            "the checkpoint's running averages probably lag a little behind its weights"
            + ("" if lags else ", or `train` or its pipeline is not quite that of the training")
            + f": batch statistics of the training set differ from them {median:.1f} times as much as batch noise "
            f"explains in the median layer, {worst:.1f} times in the worst.{_changes(effect)}"
            + ("" if precise is None else f" `{precise}` recomputes the averages")
        )
    ),
    "reference-unchecked": Entry(
        _unchecked,
        "Compare `train` and `normalize` (and `augment` for images) with the training script by hand; no automatic "
        "check was possible. If they are right, `bnuq precise-bn` writes a checkpoint with the statistics of the "
        "training set.",
    ),
    "reference-mismatch": Entry(
        _reference_mismatch,
        "If the pipeline is that of the training, write a checkpoint with new running statistics by `bnuq precise-bn`, "
        "and evaluate that. If not, set `normalize` (and `augment` for images) as in the script, with options of these "
        "names or "
        "under [data] of a run file, name the actual training set as `train`, and evaluate again: the warning "
        "disappears once they match. If the script is lost, `bnuq inspect --suggest-pipeline` tries the usual "
        "pipelines. Until then, do not trust the mcbn estimates for this network.",
    ),
    "no-post-hoc-scores": Entry("post-hoc OOD scores need a network that ends in one linear layer: {reason}"),
    "no-fitted-scores": Entry(
        "post-hoc OOD scores that are fitted to features of the training set are left out: name that with --train REF"
    ),
    "fitted-to-a-part": Entry("post-hoc OOD scores are fitted to {points:,} random examples of the training set"),
    "score-not-fitted": Entry("{score} is left out: {reason}"),
    "no-labels-of-reference": Entry("Mahalanobis distances are left out: the training set has no classes"),
    "attacked-through": Entry(_attacked_through),
    "laplace-fitted": Entry(_laplace_fitted),
    "temperature-fitted": Entry(partial(_temperatures, "fitted to {points:,} validation examples")),
    "temperature-cross-fitted": Entry(partial(_temperatures, "cross-fitted on halves of the {points:,} test examples")),
    "vector-fitted": Entry(partial(_vectors, "fitted to {points:,} validation examples")),
    "vector-cross-fitted": Entry(
        partial(
            _vectors,
            "cross-fitted on halves of the {points:,} test examples (shown: those of all test examples, for OOD sets)",
        )
    ),
    "temperature-at-end": Entry(
        lambda temperatures: (
            f"the best temperature lies at a limit of the search, 0.001 or 1000: "
            f"{', '.join(f'{method} {_theta(value)}' for method, value in temperatures)}. The examples that it is "
            "fitted to may be classified no better than by chance, so that --outputs, the labels or the order of the "
            "classes may not match the network; or the logits of each example are all equal"
        ),
    ),
    "probabilities-not-kept": Entry(
        "{set}: the probabilities of {classes:,} classes for {points:,} examples are too many to store, so classwise "
        "ECE and the prediction sets that need them are left out; `--limit` evaluates fewer examples"
    ),
    "noise-model-understates": Entry(
        "{method} is a poor approximation of MCBN on this network: its mean uncertainty on the test set is {ratio:.2g} "
        "times that of mcbn, whose mini-batches change the statistics of all channels and layers jointly.",
        'Use mcbn, or mcbn-empirical, if necessary with covariance = "network".',
    ),
    "noise-model-overstates": Entry(
        "{method} is a poor approximation of MCBN on this network: its mean uncertainty on the test set is {ratio:.2g} "
        "times that of mcbn.",
        "Use mcbn; `bnuq inspect` shows whether the running statistics match the training data.",
    ),
    "noise-model-unchecked": Entry(
        "{methods:joined}: without a training set, the noise model cannot be compared with MCBN. Nominal counts treat "
        "all values of a feature map as independent, which they are not: such a model tends to understate the "
        "uncertainty of convolutional networks considerably.",
        'Name a training set (--train): bnuq then compares the noise model with MCBN, and counts = "measured" becomes '
        "possible.",
    ),
    # passes
    "chunk-reduced": Entry(
        "{points} examples are processed at once, because {free} of memory are free and these examples need about "
        "{needed} with {samples} samples"
    ),
    "chunk-halved": Entry("{reason}, so {points} examples are processed at once from there on (--chunk-size {points})"),
    "reduced-precision": Entry(_precision),
    "exact-samples": Entry(_exact_samples),
    "unfused": Entry(
        "cuDNN has no kernel for a convolution with its ReLU here ({reason}), so the two are computed separately: "
        "slower, and the same up to rounding"
    ),
    "mc-error-not-reached": Entry(
        "{method}: with {samples} samples, the maximum allowed, the Monte Carlo error of {estimate} is {ratio:.2g} "
        "times the requested one. Raise --max-samples or --mc-error."
    ),
    # points and what is fitted to them
    "too-few-points": Entry(
        "{sets:joined}: fewer than two examples, or groups of examples; no error over examples can be estimated.",
        "Evaluate on more examples, or leave out `group` if the examples are independent.",
    ),
    "few-validation-points": Entry(
        "Only {points} validation examples: the values fitted to them (τ, the constant baseline) have an error that "
        "the stated errors do not include.",
        "Hold more examples out of training and name them as `validation`; a few hundred are enough.",
    ),
    "member-below": Entry(
        "{network}: its PLL on the test set is {pll:.3f}, and that of the others {others:.3f}. It looks {looks}.",
        "Leave it out, or give it its own --arch that changes its inputs or outputs to what they are elsewhere.",
    ),
    "worse-than-the-mean": Entry(
        "The network's mean error, {error:.3g}, is far above the standard deviation of the test targets, {sd:.3g}: "
        "predicting their mean would do better. Do normalize and normalize_targets match training?",
        "Set `normalize` and `normalize_targets` as in training, and evaluate again.",
    ),
    "constant-targets": Entry(
        "All targets of {set} are the same.", "Check that the right column was used as the target."
    ),
    "targets-of-another-scale": Entry(
        "The targets of {set} have a standard deviation of {sd:.3g}, those of the test set of {test_sd:.3g}: are they "
        "in the same unit?",
        "Convert both to one unit, or set `normalize_targets`, and evaluate again.",
    ),
    "constant-is-zero": Entry(
        "{of}: so many of the examples that it is fitted to are predicted exactly that the best constant uncertainty "
        "is 0; the PLL of the constant baseline and the normalised PLL are undefined.",
        "Use CRPS, or name validation examples that are not predicted exactly.",
    ),
    "tau-infinite": Entry(
        "{of}: zero observation noise fits best, because the samples alone spread more than the errors, or all errors "
        "are 0: τ is infinite{mixture:, and the PLL of a mixture is not defined|}. Set tau_range under [scoring] to "
        "bound it; a larger batch_size or smaller dropout rates reduce the spread."
    ),
    "noise-added": Entry(
        "{method}: noise of standard deviation {sd:.3g}, fitted to the targets, is assumed around each "
        "{draws:draw|prediction}"
    ),
    "draws-hold-noise": Entry(
        "{method}: no noise of the targets is added to the draws, which spread as much as the errors, or more. That is "
        "right where they are draws of the target, and not of its mean"
    ),
    "outputs-of-other-sizes": Entry(
        lambda of, sizes, covered: (
            f"{of}: the outputs have errors of very different sizes: each has its own τ and constant σ; the reported "
            f"ones are in units of its RMSE. The largest decide CRPS, RMSE and MAE. {_by_output(sizes, covered)}"
        ),
    ),
    "output-poorly-covered": Entry(
        "{of}: the 95 % intervals of output {output} (counted from 0) hold {covered:.1%} of the targets fitted to: it "
        "shares τ with other outputs, whose errors are smaller beside the spread of the samples.",
        "Divide targets and predictions of each output by the standard deviation of its targets.",
    ),
    "tau-at-range-end": Entry(
        "{of}: the best τ lies at the {end} end of its range, {tau:.3g}.",
        "Widen `tau_range` under [scoring]; check that the errors have the expected unit.",
    ),
    # several runs
    "seeds-of-sampling": Entry(
        "the run file does not contain {{seed}}: the seeds of [runs] are sampling seeds of the same network"
    ),
    "runs-reused": Entry(
        "{reused} of {all_runs} runs already had a result of the same request, checkpoint and data, which was reused"
    ),
    "notes-of-some-runs": Entry(
        "{count} more notes hold for some runs only: bnuq report shows them with their results"
    ),
    "no-splits": Entry("no errors over splits (Nadeau–Bengio): there is one split only"),
    "no-training-size": Entry(
        "no errors over splits (Nadeau–Bengio): the number of training examples is not known; name train, or "
        "train_size, under [data]"
    ),
    "splits-share-test-set": Entry(
        "Splits {splits:joined} have the same test examples: they are not splits of the data, and the spread over them "
        "says nothing about other test examples.",
        "Check that `{split}` occurs in the reference of the test set.",
    ),
    "undefined-in-some-runs": Entry(_undefined_in_some_runs),
}
