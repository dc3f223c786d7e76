"""The first screen of an evaluation: what ran, what to do, what else is to be known, and one table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from bnuq.findings import Finding, all_of, listed
from bnuq.methods import method_named
from bnuq.metrics import METRICS, jackknife_error, standard_error
from bnuq.progress import in_words
from bnuq.records.comparisons import is_mismatched, on_another_scale
from bnuq.records.decisions import Undecided, decided
from bnuq.records.evaluation import FEWEST_POINTS, MethodResult, Result, Scored
from bnuq.records.words import plain
from bnuq.report import evaluation_tables, shift
from bnuq.report.document import Part
from bnuq.report.evaluation_tables import column_digits
from bnuq.report.method_names import network_in_words, plain_sampled
from bnuq.report.numbers import number, with_error

_FAR, _CHANCE = 0.25, 0.001  # below the mean accuracy, and the chance that any class is so far below it
_NAMED = 3  # classes in a sentence
_LISTED = 3  # files or methods in the first line
_AVERAGES = frozenset({"ema", "swa", "averaged", "shadow"})  # in the name of an entry of a checkpoint
_PARTLY = 0.2  # rank correlation from which σ marks large errors
OUTPUTS = {  # of files of predictions
    "logits": "logits",
    "probabilities": "probabilities",
    "log_probabilities": "log-probabilities",
    "confidences": "confidences of predictions that are right or wrong",
    "means": "means",
    "draws": "draws of the target",
    "gaussian": "mean and σ",
    "quantiles": "quantiles",
}
_SCORES = "crps", "pll"
_NEGLIGIBLE = 1e-6  # of a value: rounding in float32


def decisions(result: Result) -> Iterator[str]:
    """What to do."""
    return (each.text for each in decided(result))


def said(result: Result) -> tuple[str, ...]:
    """The codes of warnings that decisions say."""
    is_said = any(isinstance(each, Undecided) and each.why.get("reason") == "pipeline" for each in decided(result))
    return ("reference-mismatch", "reference-unchecked") if is_said else ()


def answer(methods: Mapping[str, MethodResult], of: Sequence[str], seconds: float) -> str:
    """What is known before samples are drawn, of the network as it is and with each recalibration, and about how long
    the samples of these methods will take."""
    texts: list[str] = []
    for name, method in methods.items():
        test = method.sets["test"]
        known = [(metric, test.estimates.get(metric)) for metric, each in METRICS.items() if "headline" in each.shown]
        figures = [f"{plain(m)} {with_error(each, column_digits(m, [each])).value}" for m, each in known if each]
        divided = np.unique(test.points.get("temperature", []))
        texts.append(f"{name}{f' (logits / {divided.mean():.3g})' if len(divided) else ''}: {', '.join(figures)}.")
    # Of a small network most time is not that of passes.
    about = f", about {in_words(seconds)} of passes" if seconds >= 60 else ""
    texts += [f"Next: samples of {all_of(of)}{about}."] if of else []
    return "\n".join(texts)


def parts(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A table of the methods and what its columns are, and one of perturbed sets."""
    yield from evaluation_tables.methods_table(result, roomy=roomy)
    yield from shift.short_table(result)


def line(result: Result) -> Iterator[str]:
    """What was evaluated, in a line."""
    files = [Path(file["path"]).name for file in result.model["files"].values()] if isinstance(result, Scored) else []
    yield listed(files, most=_LISTED) if files else Path(str(result.model["path"])).name
    yield f"{result.sets['test'].n:,} test examples"
    if sampled := plain_sampled(result):
        yield f"{listed(sampled, most=_LISTED)}: {result.sampling['samples']} samples"
    yield from (f"settings of {each.values['file']}" for each in result.findings if each.code == "run-file-read")
    yield f"{max(result.seconds['total'], 1):.0f} s"


def meaning(result: Result) -> Iterator[str]:
    """What changes the meaning of every number."""
    if isinstance(result, Scored):
        read = [(OUTPUTS[file["outputs"]], roles(file.get("roles", {}))) for file in result.model["files"].values()]
        files = dict.fromkeys(f"{outputs} ({by})" if by else outputs for outputs, by in read)
        yield f"of {listed([*files], most=1)}"
    if result.model.get("labels"):
        yield f"means over the {result.model['labels']} labels"
    test, known = result.sets["test"], result.methods[result.first].sets["test"].estimates
    if test.labels is None and test.targets is None and "accuracy" not in known:  # of images labels are not kept
        yield "of examples without labels, so that nothing shows how good predictions are"
    yield from meaning_of(result.findings)


def meaning_of(findings: Iterable[Finding]) -> Iterator[str]:
    """The same by what was noted of any command's files: which weights, which order of classes, which points."""
    for each in findings:
        values = each.values
        if each.code == "weights-in-entry" and _AVERAGES & {*re.split(r"[._]", str(values["entry"]))}:
            yield f"of averaged weights (`{values['entry']}`)"
        elif each.code == "classes-by-order" and values["alphabet"]:
            yield f"with the columns as classes in the order of the alphabet ({', '.join(values['names'])}, …)"
        elif each.code == "noise-added":
            around = f"each {'draw' if values['draws'] else 'prediction'} of {values['method']}"
            yield f"with noise of standard deviation {values['sd']:.3g}, fitted to the targets, around {around}"
        elif each.code == "limited":
            yield f"of at most {values['limit']:,} examples of each set, drawn at random (`--limit`)"


def roles(given: Mapping[str, Sequence[str]]) -> str:
    """What each column of a file is; "" where there is one array alone."""
    shown = {role: [name or "(index)" for name in names if name or role == "ids"] for role, names in given.items()}
    return " · ".join(
        f"{role} {', '.join(names if len(names) <= _LISTED * 2 else [*names[:_LISTED], '…', names[-1]])}"
        for role, names in shown.items()
        if names
    )


def is_checked(result: Result) -> bool:
    return result.reference_check is not None and result.reference_check.passed


# ── beside decisions ─────────────────────────────────────────────────────────────────────────────────────────────────


def findings(result: Result) -> Iterator[str]:
    """What decisions do not say. Of inputs on another scale nothing is concluded, nor where validation inputs are so,
    because what was fitted to them enters the scores."""
    if on_another_scale(result.findings).keys() & {"test", "validation"}:
        return
    if not result.task.is_regression:
        yield from _collapsed(result)
    elif not isinstance(result, Scored):
        if "tau" not in result.methods[result.first].sets["test"].estimates:
            yield (
                "How far predictions are off is not known: no examples held out of training were named. `--calibrate "
                "cross` fits that to each half of the test set, for the other."
            )
        yield from _sigma(result)


def _collapsed(result: Result) -> Iterator[str]:
    """The classes of which far fewer points are right than of all, under the method where most are: more than a quarter
    of the points fewer, and more than chance gives to any of so many classes."""
    test = result.sets["test"]
    if test.labels is None or test.labels.ndim > 1:
        return
    classes, point_class, count = np.unique(test.labels, return_inverse=True, return_counts=True)
    candidates: dict[str, tuple[np.ndarray, np.ndarray, float]] = {}
    for name, method in result.methods.items():
        right = method.sets["test"].points["accuracy"]
        with np.errstate(over="ignore", invalid="ignore"):  # in a file that was spoiled
            mean, class_accuracy = float(right.mean()), np.bincount(point_class, weights=right) / count
            limit = NormalDist().inv_cdf(1 - _CHANCE / len(classes)) * np.sqrt(max(0.0, mean * (1 - mean)) / count)
            below = (mean - class_accuracy > np.maximum(limit, _FAR)) & (count >= FEWEST_POINTS)
        candidates[name] = np.flatnonzero(below), class_accuracy, mean
    name = max(candidates, key=lambda name: len(candidates[name][0]))
    collapsed, class_accuracy, mean = candidates[name]
    if not len(collapsed):
        return
    worst = collapsed[np.argsort(class_accuracy[collapsed], kind="stable")][:_NAMED]
    names = [test.classes[k] if k < len(test.classes) else str(k) for k in classes[worst].tolist()]
    some = "such as " if len(collapsed) > _NAMED else ""
    shares = zip(names, worst.tolist(), strict=True)
    shown = all_of([f"{each} ({100 * class_accuracy[at]:.0f} % of {count[at]})" for each, at in shares])
    # Mistakes of a network that is normalised by evaluated examples may be those of a batch.
    is_own = method_named(name).normalizes_jointly
    advice = "" if is_own else " Check their labels, and whether training had enough of them."
    yield (
        f"{len(collapsed)} of {len(classes)} classes {'is' if len(collapsed) == 1 else 'are'} right far less often "
        f"than all examples ({100 * mean:.0f} %) by {network_in_words(name)}: {some}{shown}.{advice}"
    )


# ── a regression ─────────────────────────────────────────────────────────────────────────────────────────────────────


_WIDTHS = {  # by how a σ of each example compares with one σ for all
    "worse": "Use one σ for all examples: with a σ of each, samples predict targets worse.",
    "mixed": "With a σ of each example, samples predict targets better by one score than with one σ, worse by another.",
    "no better": "That a σ of each example predicts targets better than one σ for all could not be shown.",
}


def _sigma(result: Result) -> Iterator[str]:
    """For all methods of several samples at once: whether their σ of each point predicts the targets better than one
    that is the same for all, and whose σ marks large errors."""
    outcomes = {name: {against_constant(metric, name, result) for metric in _SCORES} - {""} for name in result.sampled}
    texts: list[str] = []
    if better := [name for name, of in outcomes.items() if "better" in of and "worse" not in of]:
        by = all_of(better)
        texts.append(f"Give each example an interval of its own σ, by {by}: that predicts targets better than one σ.")
    elif known := {outcome for of in outcomes.values() for outcome in of}:
        outcome = "mixed" if "better" in known else "worse" if "worse" in known else "no better"
        texts.append(_WIDTHS[outcome])
    ranks = {name: result.methods[name].sets["test"].estimates.get("spearman") for name in result.sampled}
    marks = {name: each.value for name, each in ranks.items() if each and each.value >= _PARTLY and (each.low or 0) > 0}
    if marks:
        ends = " to ".join(dict.fromkeys(number(end(marks.values()), 2) for end in (min, max)))
        texts.append(f"Look first where σ of {all_of(marks)} is large: errors are larger there (correlation {ends}).")
    if texts:
        yield " ".join(texts)


def against_constant(metric: str, name: str, result: Result) -> str:
    """Whether a method is better or worse by a score than a constant σ around the same means, beyond twice the error of
    the difference, paired over points and samples; the networks of an ensemble are given. "" where it is unknown, or
    better by statistics that may not be those of the data."""
    method = result.methods[name]
    test, before = method.sets["test"], method.bounds.get("constant", {}).get(metric)
    after, points = test.estimates.get(metric), test.points.get(f"{metric}_constant")
    given = "networks" in method_named(name).differs_by
    kind = result.given_distribution or result.run.get("scoring", {}).get("crps")
    if before is None or after is None or points is None or after.se is None or (after.mc_se is None and not given):
        return ""
    if metric == "crps" and kind in ("ensemble", "fair", "quantiles"):
        return ""
    over_samples = 0.0 if given else after.mc_se or 0.0
    if not given and after.jackknife is not None and METRICS[metric].mc_error == "jackknife":
        over_samples = float(jackknife_error(after.jackknife - (0 if before.jackknife is None else before.jackknife)))
    with np.errstate(invalid="ignore"):  # of two PLLs of −∞ it is NaN
        over_points = standard_error(test.points[metric] - points, group=result.sets["test"].group)
    error = math.hypot(over_points, over_samples)
    gain = (after.value - before.value) * (-1 if METRICS[metric].direction == "lower" else 1)
    if not (math.isfinite(error) and math.isfinite(gain)):
        return ""
    if abs(gain) < 2 * error or abs(gain) <= _NEGLIGIBLE * abs(before.value):
        return "no better"
    if gain > 0 and is_mismatched(result):
        return ""
    return "better" if gain > 0 else "worse"
