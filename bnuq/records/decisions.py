"""What to do by a result: which prediction to use, which points to defer, how to flag unfamiliar data, and why.

One ladder: comparisons, certificate and scores measure; `judged` says by which metrics samples are worth their passes;
`decided` what follows, each a type with its sentence, for readers who know no statistics. JSON has their fields.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from bnuq.findings import all_of
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, POPULATION, method_named
from bnuq.metrics import POST_HOC_SCORES, standard_error
from bnuq.metrics.certificates import exact_interval, points_needed
from bnuq.metrics.registry import metric_of
from bnuq.metrics.replicates import independent_units
from bnuq.records.best_scores import FALSE_ALARMS, aurocs_of, best_score, can_be_judged, caught, scores_of
from bnuq.records.calibrated import calibration_of
from bnuq.records.certificate import is_unfit
from bnuq.records.comparisons import (
    LEVEL,
    REACH,
    MethodComparison,
    compared,
    is_mismatched,
    is_of_another_pipeline,
    on_another_scale,
    passes_of,
    simplest,
    uncorrected,
)
from bnuq.records.evaluation import FEWEST_POINTS, Result, Scored
from bnuq.records.promises import outcomes
from bnuq.records.words import SET, percent, plain, three
from bnuq.shapes import Float

ACCEPTED = 0.9  # share of test points that are accepted without a certificate
NOMINAL = 0.95  # of intervals that nothing certifies
_OFFERED = 0.05  # a risk that could be promised
_PROPER = "pll", "crps"  # by which a prediction is chosen; other metrics only where these do not object
_LEAST_SAMPLES = 8  # for an error over them
_SAME = 1e-9  # nats, by which the entropies of equal outputs differ at most
_BY_TEMPERATURE = "pll", "ece"  # may gain as much by a fitted temperature
_ALONE = "constant", "at-chance"  # reasons beside which nothing is decided
_SHOWN = 2  # OOD sets by name
_NETWORKS = {DETERMINISTIC: "the deterministic network", POPULATION: "the network with corrected BatchNorm statistics"}
_CALIBRATED = {  # what an ECE says, and what a calibrated network shows by chance
    "indistinguishable": "can be read as a probability: it is off by {} on average, and chance alone gives up to {}.",
    "not": "should not be read as a probability: it is off by {} on average, and chance alone gives only up to {}.",
    "undecided": "is off by {} on average, and chance alone gives up to {}: too few examples to tell what it means.",
    "close": "is off by {} on average, hardly more than by chance ({}): too few examples to tell what it means.",
}
_REASONS = {  # why gains are undecided, the first that holds
    "reference": "the network's BatchNorm statistics are not those of its data; put that right first (see the warning)",
    "temperature": "no temperature was fitted, which may gain as much; fit one (`--calibrate cross`)",
    "errors": "there are too few examples for the error of a comparison",
}


# ── are samples worth their passes? ──────────────────────────────────────────────────────────────────────────────────


@frozen
class Verdict:
    """What a result says of its methods. `worth`: whether some method of several passes is better than the best of a
    single one by some metric; None if there is none, or that is undecidable. `best` is the method with the best
    estimate by metric, an AUROC by "auroc.SET". `gains` are the comparisons in which a method of several passes is
    better, by metrics by which that is decided; `undecided` has the other metrics, with their sets, by the reason."""

    worth: bool | None
    best: Mapping[str, str]
    comparisons: tuple[MethodComparison, ...]
    gains: tuple[MethodComparison, ...] = ()
    undecided: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)


def judged(result: Result) -> Verdict:
    """The verdict on a result, computed from its points, once while the record lives."""
    if "verdict" not in result.computed:
        is_recalibrated = any(method_named(name).recalibration for name in result.methods)
        lacks_temperature = "temperature" in result.task.recalibrations and not is_recalibrated
        comparisons, best = compared(result)
        result.computed["verdict"] = concluded(
            comparisons, best, mismatched=is_mismatched(result), lacks_temperature=lacks_temperature
        )
    return result.computed["verdict"]


def concluded(
    comparisons: Sequence[MethodComparison],
    best: Mapping[str, str] | None = None,
    *,
    mismatched: bool,
    lacks_temperature: bool,
) -> Verdict:
    """Whether samples are worth their passes, by metric. It is undecided by those whose errors are not known, and by
    those with a gain that may be due to other statistics where the reference is `mismatched`, or that a temperature may
    also give where the best single pass `lacks_temperature`."""
    groups: dict[tuple[str, str], list[MethodComparison]] = {}
    for comparison in comparisons:
        if comparison.passes > 1:
            groups.setdefault((comparison.metric, comparison.set), []).append(comparison)
    outcomes: dict[str, list[tuple[str, str]]] = {}
    for key, group in groups.items():
        outcome = "errors" if any(each.p is None for each in group) else "none"
        if any(each.is_better for each in group):
            may_be_scale = lacks_temperature and key[0] in _BY_TEMPERATURE
            outcome = "reference" if mismatched else "temperature" if may_be_scale else "gain"
        outcomes.setdefault(outcome, []).append(key)
    gains = tuple(each for key in outcomes.get("gain", ()) for each in groups[key] if each.is_better)
    undecided = {reason: outcomes[reason] for reason in _REASONS if reason in outcomes}
    worth = True if gains else None if undecided or not groups else False
    return Verdict(worth, best or {}, tuple(comparisons), gains, undecided)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Valued:
    """What JSON has of a decision: its fields, and those of its parts among them; but none that is None where it does
    not apply."""

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, Valued):
                values |= value.values
            elif value is not None or each.default is MISSING:
                values[each.name] = value
        return values


@frozen
class Undecided:
    """That the prediction ("use"), deferral ("defer") or the recognition of unfamiliar data ("foreign") is open, and
    why: as a sentence and as values. The parts are those that a decision would have."""

    code: ClassVar[str] = "undecided"

    about: str
    text: str
    why: Mapping[str, Any]
    parts: tuple[Valued, ...]

    @property
    def values(self) -> dict[str, Any]:
        return {"about": self.about, **self.why} | {key: of for part in self.parts for key, of in part.values.items()}


def decided(result: Result) -> tuple[Decision, ...]:
    """The decisions of a result by its own verdict."""
    return decisions(result, judged(result))


def decisions(result: Result, verdict: Verdict) -> tuple[Decision, ...]:
    """At most one decision each of the prediction, of deferral and of unfamiliar data, those that the result allows.

    None where test or validation inputs are on another scale; no more than that of the prediction where the network's
    BatchNorm statistics may not be those of its data, because scores change with them."""
    rescaled = on_another_scale(result.findings)
    if rescaled.keys() & {"test", "validation"}:
        return ()
    use = _use(result, verdict)
    reason = use.why["reason"] if isinstance(use, Undecided) else ""
    if is_mismatched(result) or reason in _ALONE:
        return () if use is None else (use,)
    method = result.first if use is None else str(use.values["method"])
    defer = None if reason == "few-points" else _measured(result, method)
    if (certification := result.certification) is not None:
        unscaled = method_named(method).plain.name  # a temperature promises nothing else
        defer = certified(result, unscaled if unscaled in certification.methods else certification.method, method)
    ood = [name for name, each in result.sets.items() if each.kind == "ood" and name not in rescaled]
    foreign = _foreign(result, verdict, [name for name in ood if can_be_judged(result, name)])
    return tuple(each for each in (use, defer, foreign) if each is not None)


# ── which prediction ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Prediction(Valued):
    """A method, its passes, its temperature, if it has one, and whether it is calibrated; `without` recalibrations of
    its logits that were not shown to be a gain, with their temperature, if they have one."""

    method: str
    passes: int
    temperatures: Sequence[float]
    calibrated: str | None = None
    ece: Sequence[float] | None = None
    without: Mapping[str, float | None] | None = None

    @property
    def name(self) -> str:
        plain_name = method_named(self.method).plain.name
        return _NETWORKS.get(plain_name, plain_name)

    def named(self, beside: str = "") -> str:
        """The method, what is said `beside` it, and what is to be done with its outputs."""
        samples = f" with {self.passes} samples" if self.passes > 1 else ""
        return f"{self.name}{samples}{beside}{self.scaled}"

    @property
    def scaled(self) -> str:
        recalibration = method_named(self.method).recalibration
        if recalibration == "vector":
            return " and scale and shift the logit of each class"
        known = self.temperatures
        by = three(sum(known) / len(known)) if known else "a temperature"
        return f" and divide its logits by {by}" if recalibration else " as it is" * bool(self.without)

    @property
    def rescaled(self) -> str:
        """What `without` would do."""
        divided = (self.without or {}).get("temperature")
        return f"dividing logits by {three(divided)}" if divided else "rescaling logits"

    @property
    def calibration(self) -> str:
        if self.calibrated is None or self.ece is None:
            return ""
        value, _, high = self.ece
        known = "close" if self.calibrated == "undecided" and value > high else self.calibrated
        return f" Its confidence {_CALIBRATED[known].format(f'{value:.3f}', f'{high:.3f}')}"


@frozen
class Tried(Valued):
    """What was tried: the most passes of a method, the points, the metric that decides first; of files of predictions
    how many, and which may be as good."""

    most_passes: int
    points: int
    metric: str
    files: int | None = None
    alike: Sequence[str] | None = None


@frozen
class Gain:
    """By how much a method differs from the best single pass."""

    method: str
    metric: str
    set: str
    difference: float
    se: float | None

    @property
    def size(self) -> str:
        digits, values = metric_of(self.metric).digits, (abs(self.difference), self.se)
        return " ± ".join(f"{value:.3g}" if digits is None else f"{value:.{digits}f}" for value in values)

    @property
    def better(self) -> str:
        return f"{plain(self.metric)} is better by {self.size}"


@frozen
class Loss(Gain):
    """By how much `against` is better than a method."""

    against: str


def lost(losses: Iterable[Loss]) -> str:
    """What else to use for the sake of which metrics."""
    by_other: dict[str, list[Loss]] = {}
    for each in losses:
        by_other.setdefault(each.against, []).append(each)
    return "".join(
        f"; for the sake of {all_of(plain(each.metric) for each in of)}, use {name} "
        f"(better by {all_of(each.size for each in of)})"
        for name, of in by_other.items()
    )


@frozen
class Use(Valued):
    """A prediction: by its gain if it is one of several passes; else beside the metrics and sets that such a one, the
    method `averaged`, is better by, those that it is `worse_by`, and those by which that is open. Of what is in the
    table, it is `also` better by some metrics, or one of several passes may be; `but` others are better by some."""

    code: ClassVar[str] = "use"
    about: ClassVar[str] = "use"

    prediction: Prediction
    tried: Tried
    gain: Gain | None
    only_by: Sequence[tuple[str, str]]
    open_by: Sequence[tuple[str, str]]
    also: Sequence[str]
    but: Sequence[Loss]
    worse_by: Sequence[str] = ()
    averaged: str | None = None

    @property
    def text(self) -> str:
        return f"{self._used}{self.prediction.calibration}"

    @property
    def _used(self) -> str:
        prediction, tried = self.prediction, self.tried
        but = lost(replace(each, against=self._other(each.against)) for each in self.but)
        text = f"Use {prediction.named()}"
        if method_named(prediction.method).plain.name == POPULATION:
            text = (
                "The BatchNorm statistics do not fit the data: correct the network (`bnuq precise-bn`) and evaluate it "
                f"again. Then use it{prediction.scaled}"
            )
        if self.gain is not None:
            also = all_of(map(plain, self.also)) if self.also else ""
            so = f", and so {'is' if len(self.also) == 1 else 'are'} {also}" if also else ""
            return f"{text}: its {self.gain.better} than without samples{so}{but}."
        averaged = f"Averaging {tried.most_passes} samples"
        if self.only_by:
            worse = f", and worse by {all_of(map(plain, self.worse_by))}" if self.worse_by else ""
            sampled = f"Averaging samples of {self.averaged}" if self.averaged else averaged
            return f"{text}{but}. {sampled} is better only by {_joined(self.only_by)}{worse}."
        if tried.files == 1:
            if but or not prediction.without:
                return f"{text}{but}."
            shown = f"gives no gain in {plain(tried.metric)} that {tried.points:,} examples could show"
            return f"{text}: {prediction.rescaled} {shown}."
        if tried.files:
            same = f" {all_of(tried.alike)} may be as good." if tried.alike else ""
            best = f", the best of {tried.files} files by {plain(tried.metric)},"
            return f"Use {prediction.named(best)}".removesuffix(",") + f"{but}.{same}"
        if tried.most_passes == 1:
            return f"{text}{but}. No method of several samples was tried."
        undecided = f" By {_joined(self.open_by)} that is undecided." if self.open_by else ""
        gives = f"{averaged} gives no"
        if prediction.without and "its logits" not in but:
            gives = f"Neither {averaged[:1].lower()}{averaged[1:]} nor {prediction.rescaled} gives a"
        return f"{text}{but}. {gives} gain that {tried.points:,} examples could show.{undecided}"

    def _other(self, method: str) -> str:
        """Another method; the same one with or without a temperature by what is done with its logits."""
        prediction, plain_name = self.prediction, method_named(method).plain.name
        if plain_name != method_named(prediction.method).plain.name:
            return _NETWORKS.get(method, method)
        by = method_named(method).recalibration
        divided = (prediction.without or {}).get(by or "")
        if by is None:
            return "the logits as they are"
        return f"its logits with a fitted {by}" if divided is None else f"its logits / {three(divided)}"


def _joined(by: Sequence[tuple[str, str]]) -> str:
    """Metrics, with those of sets as their separation."""
    names = [plain(metric) for metric, _ in by if metric != "auroc"]
    sets = [name for metric, name in by if metric == "auroc"]
    if sets:
        names.append(f"the separation of {sets[0] if len(sets) == 1 else f'{len(sets)} sets of unfamiliar data'}")
    return all_of(names)


def _use(result: Result, verdict: Verdict) -> Use | Undecided | None:
    """The prediction: as the verdict has it, or that it has none."""
    of_labels = [each for each in verdict.comparisons if each.metric != "auroc"]
    metric = of_labels[0].metric if of_labels else "pll"
    best = _single(of_labels, verdict.comparisons) if of_labels else result.first
    single = _prediction(result, simplest(result, best))
    tried = _tried(result, verdict, metric)

    def undecided(reason: str, text: str, **why: Any) -> Undecided:
        return Undecided("use", text, {"reason": reason, **why}, (single, tried))

    if first := _checked_first(result, single.method, bool(of_labels)):
        reason, text, why = first
        return undecided(reason, text, **why)
    if not of_labels:
        return None
    reasons = [reason for reason, by in verdict.undecided.items() if any(metric != "auroc" for metric, _ in by)]
    whether = f"Undecided whether averaging {tried.most_passes} samples is worth it:"
    until = f"Until then use {single.named()}."
    if tried.most_passes > 1 and verdict.worth is None and (reasons or is_mismatched(result)):
        reason, samples = "reference" if is_mismatched(result) else reasons[0], int(result.sampling["samples"])
        if reason != "errors" or samples >= _LEAST_SAMPLES:
            return undecided(reason, f"{whether} {_REASONS[reason]}.")
        text = f"{whether} {samples} are too few to tell; take at least {_LEAST_SAMPLES}. {until}"
        return undecided(reason, text, samples=[samples, _LEAST_SAMPLES])
    if gain := _chosen(result, verdict.gains, of_labels):
        also, but = _beside(of_labels, gain.method, [gain.metric])
        return Use(_prediction(result, gain.method), tried, _gain(gain), [], [], also, but)
    if likely := None if verdict.gains or is_mismatched(result) else _likely(of_labels):
        among, gained = len(verdict.comparisons), _gain(likely)
        needed = _points_needed(likely, tried.points, among)
        about = round(needed, 1 - math.floor(math.log10(needed)))
        text = (
            f"{whether} with {gained.method} the {gained.better}, which may be chance among {among} comparisons; about "
            f"{about:,.0f} examples in all would decide. {until}"
        )
        return undecided("chance", text, gain=gained, comparisons=among, points_needed=needed)
    open_by = [key for by in verdict.undecided.values() for key in by]
    only_by, worse_by, averaged = _only_by(of_labels, verdict.gains)
    beside = _beside(of_labels, single.method, dict(only_by))
    return Use(single, tried, None, only_by, open_by, *beside, worse_by, averaged)


def _single(of_labels: Sequence[MethodComparison], comparisons: Sequence[MethodComparison]) -> str:
    """The best single pass by the first metric; where another is better beyond chance by a later one, and not worse by
    the first, that one; and the network without corrected statistics where these may help by chance."""
    first = of_labels[0]
    best, worse = first.against, {each.method for each in of_labels if each.metric == first.metric and each.is_worse}
    for loss in (each for each in of_labels if each.method == best and each.is_worse):
        if loss.against not in worse and method_named(loss.against).plain != method_named(best).plain:
            best = loss.against  # but no temperature that lowers the PLL
            break
    as_it_is = uncorrected(comparisons, best, first.metric)
    return best if as_it_is is None else as_it_is.method


def _only_by(
    of_labels: Sequence[MethodComparison], gains: Sequence[MethodComparison]
) -> tuple[list[tuple[str, str]], list[str], str | None]:
    """The gains of the method with the clearest one by a metric of labels, its losses, and which it is, as gains of one
    method are no reason beside losses of another; else all gains, by the separation of sets."""
    clearest = _clearest(each for each in gains if each.metric != "auroc")
    name = None if clearest is None else clearest.method
    only_by = dict.fromkeys((each.metric, each.set) for each in gains if name in (None, each.method))
    worse = [each.metric for each in _of_table(of_labels) if each.method == name and each.is_likely_worse]
    return [*only_by], worse, name


def _of_table(comparisons: Iterable[MethodComparison]) -> list[MethodComparison]:
    """Those by metrics that have a column on the first screen."""
    return [each for each in comparisons if "headline" in metric_of(each.metric).shown]


def _beside(of_labels: Sequence[MethodComparison], method: str, said: Collection[str]) -> tuple[list[str], list[Loss]]:
    """The metrics of the table that are not `said` of this method, beyond twice their paired errors: by which it is
    better in its several passes, or others are where it is a single one; and by which another single pass is."""
    shown = _of_table(of_labels)
    sampled = [each for each in shown if each.passes > 1 and each.is_likely]
    sampled = [each for each in sampled if each.method == method] or sampled
    also = [metric for metric in dict.fromkeys(each.metric for each in sampled) if metric not in said]
    worse = (each for each in shown if each.method == method and each.is_likely_worse)
    return also, [Loss(c.method, c.metric, c.set, c.difference, c.se, c.against) for c in worse]


def _tried(result: Result, verdict: Verdict, metric: str) -> Tried:
    passes, points = max((each.passes for each in verdict.comparisons), default=1), result.sets["test"].n
    if not isinstance(result, Scored):
        return Tried(passes, points, metric)
    same = [each for each in verdict.comparisons if each.metric == metric]
    names = dict.fromkeys(method_named(each.method).plain.name for each in same if not each.is_worse)
    best = {method_named(each.against).plain.name for each in same}
    return Tried(passes, points, metric, len(result.model["files"]), [name for name in names if name not in best])


def _checked_first(result: Result, method: str, is_compared: bool) -> tuple[str, str, dict[str, Any]] | None:
    """Why no prediction is used, whatever is compared, as a reason, a sentence and values: the pipeline may be wrong,
    all outputs are the same, points are too few, or neither accuracy nor PLL, with a temperature or without, is above
    chance beyond twice its error. Chance states the frequencies of the classes, or that all are alike for pixels."""
    if is_compared and is_of_another_pipeline(result):
        return "pipeline", *_pipeline(result)
    test, evaluated = result.methods[method].sets["test"], result.sets["test"]
    accuracy, is_dense, labels = test.estimates.get("accuracy"), result.task.is_dense, evaluated.labels
    if accuracy is None or result.model.get("labels"):
        return None
    spread = np.ptp(test.points.get("predictive_entropy", (0, 1)))
    if not is_dense and spread < _SAME and not np.ptp(test.predicted, axis=0).any():
        return "constant", "First check the outputs: they are the same for all examples.", {}
    right, count = f"{percent(accuracy.value)} of", f"{evaluated.n:,} examples are"
    if not is_dense and (units := independent_units(evaluated.n, evaluated.group)) < FEWEST_POINTS:
        interval = exact_interval(round(units * accuracy.value), units)
        low, high = map(percent, interval)
        text = (
            f"Undecided whether the predictions are good: {count} too few to tell. {right} them are right; of all it "
            f"may be {low} to {high}."
        )
        return "few-points", text, {"accuracy": accuracy.value, "interval": interval}
    unscaled = method_named(method).plain.name
    if is_dense:
        chance, base = 1 / int(result.model["classes"]), -math.log(int(result.model["classes"]))
    elif labels is None or _kind(result, unscaled) == "confidences":  # of no classes
        return None
    else:
        counts = np.bincount(labels)
        chance, base = labels == counts.argmax(), np.log(counts[labels] / len(labels))
    scaled = [name for name in (unscaled, f"{unscaled}+temperature") if name in result.methods]
    plls = [result.methods[name].sets["test"].points["pll"] - base for name in scaled]
    gains = [test.points["accuracy"] - chance, *plls]
    with np.errstate(invalid="ignore"):
        if any(np.mean(gain) > REACH * standard_error(gain, group=evaluated.group) for gain in gains):
            return None
    of_network = ["`--outputs`"] if isinstance(result, Scored) else ["`arch`", "`normalize`", "the weights"]
    text = (
        f"First check {all_of(['the labels', 'the order of the classes', *of_network])}: {right} {count} right, no "
        f"better than chance ({percent(float(np.mean(chance)))} are of the most frequent class). Nor is the "
        "log-likelihood, whatever temperature was tried."
    )
    return "at-chance", text, {"accuracy": accuracy.value, "chance": float(np.mean(chance))}


def _pipeline(result: Result) -> tuple[str, dict[str, Any]]:
    """That the pipeline is to be checked: its settings, the command that tries others, where there is one, and whether
    it was compared with the network at all."""
    codes = "reference-mismatch", "reference-unchecked"
    known = next((each.values for each in result.findings if each.code in codes), {})
    settings = list(known.get("settings", ["train", "normalize"]))  # earlier files have them of a mismatch alone
    suggest, is_compared = known.get("suggest"), result.reference_check is not None
    tries = "" if suggest is None else f" `{suggest}` tries the usual ones."
    of = "the network's BatchNorm statistics"
    why = f"{of} are not those of these data" if is_compared else f"it could not be compared with {of}"
    right = [
        result.methods[name].sets["test"].estimates.get("accuracy") for name in _NETWORKS if name in result.methods
    ]
    shares = [percent(each.value) for each in right if each is not None]
    gain = f" ({shares[0]} are right, {shares[1]} with those of the training set)" if len(shares) == 2 else ""
    text = (
        f"First check the pipeline ({all_of(f'`{name}`' for name in settings)}): {why}{gain}.{tries} If "
        "nothing is wrong there, correct the network (`bnuq precise-bn`). Then evaluate again."
    )
    return text, {"settings": settings, "suggest": suggest, "is_compared": is_compared}


def _kind(result: Result, method: str) -> str:
    """What the numbers are that predictions are made of: those of a file, or the logits of a network."""
    return result.model["files"][method]["outputs"] if isinstance(result, Scored) else "logits"


def _chosen(
    result: Result, gains: Sequence[MethodComparison], of_labels: Sequence[MethodComparison]
) -> MethodComparison | None:
    """The clearest gain of a prediction: by a proper score, else by a metric of a method that no other calls worse; of
    the simplest form of its logits that gains so, too. A loss counts as if it were the only one compared: samples cost
    passes, so that the doubt is theirs, and other comparisons, such as of further OOD sets, must not excuse it."""
    proper = [each for each in gains if each.metric in _PROPER]
    worse = {each.method for each in _of_table(of_labels) if each.is_likely_worse}
    others = [each for each in gains if each.metric != "auroc" and each.method not in worse]
    if proper:  # by one metric, in which gains compare
        others = [each for each in proper if each.metric == proper[0].metric]
    best = max(others, key=lambda each: each.gain) if proper else _clearest(others)
    simpler = "" if best is None else simplest(result, best.method)
    return next((each for each in others if best and (each.method, each.metric) == (simpler, best.metric)), best)


def _clearest(gains: Iterable[MethodComparison]) -> MethodComparison | None:
    return max(gains, key=lambda each: each.gain / each.se if each.se else math.inf, default=None)


def _likely(of_labels: Sequence[MethodComparison]) -> MethodComparison | None:
    """The best method of several passes by the first metric, if it would be better beyond chance were it compared
    alone."""
    sampled = [each for each in of_labels if each.passes > 1 and each.metric == of_labels[0].metric]
    best = max(sampled, key=lambda each: each.gain, default=None)
    return best if best is not None and best.is_likely else None


def _points_needed(comparison: MethodComparison, points: int, comparisons: int) -> float:
    """How many points would show this difference among so many comparisons: its error goes with their square root."""
    assert comparison.se
    needed = NormalDist().inv_cdf(1 - LEVEL / 2 / comparisons)
    return points * (needed * comparison.se / comparison.gain) ** 2


def _prediction(result: Result, method: str) -> Prediction:
    temperature = temperature_of(result, method)
    temperatures = [] if temperature is None else [temperature]
    kinds = {name: str(method_named(name).recalibration) for name in result.methods}
    forms = [name for name in kinds if method_named(name).plain.name == method != name]
    without = {kinds[name]: temperature_of(result, name) for name in forms} or None
    calibration = calibration_of(result, method)
    return Prediction(method, passes_of(method, result), temperatures, **calibration, without=without)


def temperature_of(result: Result, method: str) -> float | None:
    """The temperature of a method that new points are given: that fitted to all points, or of results of earlier
    versions the mean of those of the halves that they were cross-fitted to."""
    for found in result.findings:
        fits = zip(found.values.get("temperatures", ()), found.values.get("whole", ()), strict=False)
        if fitted := next((float(whole) for (name, *_), whole in fits if name == method), None):
            return fitted
    temperatures = np.unique(result.methods[method].sets["test"].points.get("temperature", []))
    return float(np.mean(temperatures)) if len(temperatures) else None


def _gain(comparison: MethodComparison) -> Gain:
    return Gain(comparison.method, comparison.metric, comparison.set, comparison.difference, comparison.se)


# ── which points to defer ────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Promise(Valued):
    """Whose score it is, of the predictions of which method, and what is promised of how many points: a risk with a
    confidence, None where it is one on average; whether the test set refutes it, and of which classes or groups alone
    it was asked, and how many of them have it. Nothing is promised where there is no risk; `needed` are the validation
    points that a promise of 5 % would need, where there are fewer that are held out."""

    method: str
    used: str
    score: str
    points: int
    risk: float | None
    confidence: float | None
    refuted: bool | None = None
    parts: tuple[str, int, int] | None = None
    needed: int | None = None

    def text(self, what: str, *, is_offered: bool = True) -> str:
        """What is promised; where nothing is, the option that promises 5 %, or what that needs."""
        if self.risk is None:
            offer = f"`--risk {_OFFERED}` promises at most {percent(_OFFERED)} {what}"
            offer += f", given {self.needed} or more held-out validation examples" if self.needed else ""
            return f"Measured on these examples{f'; {offer}' * is_offered}."
        sure = "on average over examples"
        if self.confidence is not None:
            sure = f"with {percent(self.confidence, SET)} confidence"
        refutes = ", which the test set refutes (see the warning)" if self.refuted else ""
        return f"Promised: at most {percent(self.risk, SET)} {what} {sure}{refutes}{self.of_parts}."

    @property
    def of_parts(self) -> str:
        if self.parts is None:
            return ""
        each, kept, of = self.parts
        rest = "" if kept == of else "; `--full` says what the others need"
        return f"; promised of {kept} of {of} {'classes' if each == 'class' else 'groups'} alone{rest}"


@frozen
class Entropy(Valued):
    """What an entropy is `of`: logits or ln p, divided by a temperature, of the mean of several samples or of one."""

    of: str
    temperature: float | None
    several: bool


@frozen
class Defer(Valued):
    """Above which threshold of a score points are left to a person, or which intervals are stated; the share of errors
    that is left, that `before` it, and what is deferred, None where that is not known. `entropy` where the score is
    one; of measured intervals whether σ is too large or small: `off`."""

    code: ClassVar[str] = "defer"
    about: ClassVar[str] = "defer"

    promise: Promise
    what: str
    threshold: float
    width: float | None
    deferred: float | None
    error: float | None
    before: float | None
    entropy: Entropy | None = None
    off: str | None = None

    @property
    def text(self) -> str:
        return self._of_intervals if self.what == "intervals" else self._of_classes

    @property
    def _of_intervals(self) -> str:
        promise = self.promise
        expected = f", not 5 %: σ is too {self.off}" if self.off else ""
        missed = "" if self.error is None else f": {percent(self.error)} of the targets lie outside{expected}"
        average = "" if promise.score == "absolute_error" and promise.risk is not None else " on average"
        sigmas = "" if promise.score == "absolute_error" else f" ({three(self.threshold)} σ)"
        whose = "" if promise.method == promise.used else f"of {promise.method} "
        reach = f"± {three(self.width)}{average}{sigmas}"
        return f"State predictions {whose}with an interval of {reach}{missed}. {promise.text('outside')}"

    @property
    def _of_classes(self) -> str:
        what, error, before, share = self.what, self.error, self.before, self.deferred
        promise = self.promise.text("wrong", is_offered=what != "labels" and (before is None or before > _OFFERED))
        every = what if what in ("pixels", "labels") else "examples"
        if before == 0:
            return f"Leave nothing to a person: none of {self.promise.points:,} examples was wrong. {promise}"
        least = f"the {'' if share is None else f'{percent(share)} '}least certain"
        subject = f"{least} {'examples' if what == 'labels' else every}"
        rule = f"({self._score} above {three(self.threshold)})"
        if before is not None and error is not None and (error >= before or percent(error) == percent(before)):
            more = "as large" if percent(error) == percent(before) else "larger"
            instead = "" if more == "as large" else f" instead of {percent(before)}"
            return (
                f"Leave nothing to a person: without {subject} {rule}, the share that is wrong is {more}, "
                f"{percent(error)}{instead}. {self.promise.text('wrong', is_offered=False)}"
            )
        rest = {"images": "pixels in the rest", "labels": "labels of the rest"}.get(what, "rest")
        leave, of = f"Leave {subject} to a person {rule}", f"of the {rest}"
        if share == 0 or math.isinf(self.threshold):
            leave, of = "Leave nothing to a person", f"of all {every}"
        if error is None:
            return f"{leave}. {promise}"
        instead = "" if before is None else f", instead of {percent(before)}"
        if error == 0 and share is not None:  # the rule of three
            most = percent(3 / (self.promise.points * (1 - share)))
            return f"{leave}: {of}, none was wrong (up to {most} may be){instead}. {promise}"
        return f"{leave}: {of}, {percent(error)} are wrong{instead}. {promise}"

    @property
    def _score(self) -> str:
        """The score, and whose it is where that is not clear: of other outputs than those that are used."""
        method, used = self.promise.method, self.promise.used
        is_raw = method != used and method == method_named(used).plain.name
        text = metric_of(self.promise.score).label + ("" if is_raw or method == used else f" of {method}")
        is_simple = self.what == "points" and self.entropy and self.entropy.of == "logits"
        if self.entropy and (is_raw or is_simple or self.entropy.temperature is not None):
            by = "" if self.entropy.temperature is None else f" / {three(self.entropy.temperature)}"
            of = f"{'undivided ' * is_raw}{self.entropy.of}{by}"
            text = f"entropy of {'the mean of ' * self.entropy.several}softmax({of})"
        return f"{text} of undivided logits" if is_raw and not self.entropy else text


def certified(result: Result, method: str, used: str) -> Defer | Undecided:
    """By the certificate of a method: what is promised, and what the test set shows of it; `used` is the method of
    predictions."""
    certification = result.certification
    assert certification is not None
    outcome, *parts = outcomes(result, method)
    chosen, is_dense = certification.methods[method], result.task.is_dense
    promise = Promise(
        method,
        used,
        chosen.score,
        outcome.points,
        certification.risk,
        None if chosen.is_expected else certification.confidence,
        any((f.code, f.values.get("method")) == ("promise-refuted", method) for f in result.findings),
        (certification.each, sum(part.is_kept for part in parts), len(parts)) if certification.each else None,
    )
    if not outcome.is_kept:
        of_groups = "groups of " * (chosen.group is not None)
        by = "" if method == DETERMINISTIC else f"by {method} "
        smallest = outcome.smallest_risk
        least = "" if smallest is None else f"; the smallest that can is {percent(smallest, SET)}"
        least = f"; it needs at least {outcome.needed:,}" if outcome.points < outcome.needed else least
        text = (
            f"Undecided what to defer: a risk of {percent(certification.risk, SET)} cannot be promised {by}on "
            f"{outcome.points:,} {of_groups}validation examples{least}{promise.of_parts}."
        )
        units = f"{of_groups}validation {'images' if is_dense else 'points'}"
        why = {"points_needed": outcome.needed, "smallest_risk": smallest, "units": units}
        return Undecided("defer", text, why, (promise,))
    error = outcome.loss if chosen.is_expected else None
    if outcome.errors is not None and outcome.accepted:
        error = outcome.errors / outcome.accepted
    width = outcome.threshold if outcome.width is None else outcome.width.value
    entropy = _entropy(result, method, None) if chosen.score == "predictive_entropy" else None
    if chosen.is_of_width:
        return Defer(promise, "intervals", outcome.threshold, width, None, error, None)
    deferred = None if outcome.coverage is None else 1 - outcome.coverage.value
    what = "pixels" if is_dense else "points"
    return Defer(promise, what, outcome.threshold, width, deferred, error, None, entropy)


def _entropy(result: Result, method: str, temperature: float | None) -> Entropy:
    of = "logits" if _kind(result, method_named(method).plain.name) == "logits" else "ln p"
    return Entropy(of, temperature, not result.is_single(method))


def _measured(result: Result, method: str) -> Defer | None:
    """Without a certificate: what the evaluated points show, and nothing is promised."""
    task, fitted = result.task, method_named(method)
    whose = fitted.plain.name if fitted.recalibration and result.is_cross_fitted else method  # not two scales at once
    test = result.methods[whose].sets["test"]
    if task.is_regression:
        covered = test.estimates.get("coverage95")
        if covered is None or test.sigma is None or result.given_distribution == "quantiles":
            return None
        units = independent_units(len(test.sigma), result.sets["test"].group)
        low, high = exact_interval(round(units * (1 - covered.value)), units)
        off = "small" if low > 1 - NOMINAL else "large" if high < 1 - NOMINAL else ""
        promise = Promise(whose, method, "sigma", len(test.sigma), None, None, needed=_lacking(result, "intervals"))
        width = REACH * float(np.mean(test.sigma))
        return Defer(promise, "intervals", REACH, width, None, 1 - covered.value, None, off=off)
    uncertainty = test.points.get("predictive_entropy")
    right = result.methods[method].sets["test"].points.get("accuracy")  # which a scale for each class changes
    if uncertainty is None or right is None or not np.isfinite(uncertainty).all():
        return None
    weights = np.asarray(test.points.get("pixels", np.ones(len(right))), dtype=np.float64) * np.isfinite(right)
    wrong = 1 - np.nan_to_num(right)
    threshold = printed(uncertainty, ACCEPTED)
    accepted = uncertainty <= threshold
    if accepted.all() or not weights[accepted].sum():
        return None
    before, error = (float(np.average(wrong[rows], weights=weights[rows])) for rows in (slice(None), accepted))
    what = "images" if task.is_dense else "labels" if result.model.get("labels") else "points"
    promise = Promise(whose, method, "predictive_entropy", len(right), None, None, needed=_lacking(result, what))
    entropy = _entropy(result, whose, temperature_of(result, whose))
    return Defer(promise, what, threshold, None, 1 - float(accepted.mean()), error, before, entropy)


def _lacking(result: Result, what: str) -> int | None:
    """How many validation points a promise of 5 % needs, where fewer are held out of training and test."""
    validation = result.sets.get("validation")
    if what == "labels" or (validation is not None and validation.group is not None):  # of which groups are needed
        return None
    is_held_out = validation is not None and not any(map(is_unfit, result.findings))
    needed = math.ceil(1 / _OFFERED) - 1 if what == "images" else points_needed(_OFFERED, 1 - LEVEL)
    return None if validation is not None and is_held_out and validation.n >= needed else needed


def printed(values: Float[np.ndarray, " point"], share: float) -> float:
    """The threshold that this share of values does not exceed, in three digits, or as few more as leave what is said of
    the others: it is printed as it is used."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    low = ordered[math.ceil(share * len(ordered)) - 1]
    above = ordered[np.searchsorted(ordered, low, "right") :]
    middle = (low + above[0]) / 2 if len(above) else low
    for digits in range(3, 17):
        threshold = float(f"{middle:.{digits}g}")
        said = percent(float(np.mean(ordered > threshold)))
        if said == percent(len(above) / len(ordered)):
            return threshold
    return float(low)


# ── unfamiliar data ──────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Best(Valued):
    """The score of a method that is the best of those `tried`, and the AUROC of each set by it; `crossfitted` where it
    is chosen on points that it is not judged on."""

    method: str
    score: str
    tried: int
    crossfitted: bool
    aurocs: Mapping[str, float]

    @property
    def name(self) -> str:
        label = metric_of(self.score).label
        samples = "" if method_named(self.method).is_single or "samples" in label else " samples"
        return label + ("" if self.method == DETERMINISTIC else f" of {self.method}{samples}")


@frozen
class Foreign(Valued):
    """Above which threshold of a score an example is unfamiliar, the share of false alarms, and of each set found."""

    code: ClassVar[str] = "foreign"
    about: ClassVar[str] = "foreign"

    best: Best
    threshold: float
    false_alarms: float
    caught: Mapping[str, float]

    @property
    def text(self) -> str:
        shares = [f"{percent(share)} of {name}" for name, share in self.caught.items()]
        if len(shares) > _SHOWN:
            ends = " to ".join(percent(end(self.caught.values())) for end in (min, max))
            shares = [f"{ends} of the examples of {len(shares)} sets of unfamiliar data"]
        tried, name = self.best.tried, self.best.name
        is_chosen = tried > 1 and not self.best.crossfitted
        chosen = f" Chosen among {tried} scores on the same data: expect less elsewhere." if is_chosen else ""
        score = self.best.score
        program = f" (`bnuq export --ood-score {score}`)" if score in POST_HOC_SCORES else ""
        return (
            f"Flag an example as unfamiliar if its {name}{program} is above {three(self.threshold)}: that finds "
            f"{all_of(shares)}, and wrongly flags {percent(self.false_alarms)} of the test examples.{chosen}"
        )


def _foreign(result: Result, verdict: Verdict, names: Sequence[str]) -> Foreign | Undecided | None:
    """The score with the largest mean AUROC over the sets; how many points it catches of each, where few test points
    are taken for foreign ones. Both cross-fitted: the score is chosen on points that it is not judged on. Those of
    several passes that are allowed were compared beyond chance, among all comparisons."""
    aurocs = aurocs_of(result, names)
    better = {(each.method, each.score) for each in verdict.comparisons if each.metric == "auroc" and each.is_better}
    single = [key for key in aurocs if passes_of(key[0], result) == 1]
    allowed = [key for key in aurocs if key in single or key in better] if single else [*aurocs]
    if not allowed:
        return None
    chosen = best_score(result, names, allowed)
    estimates = {name: chosen.auroc(result, name) for name in names}
    values = {name: each.value for name, each in estimates.items()}
    best = Best(chosen.method, chosen.score, len(aurocs), chosen.crossfitted is not None, values)
    if not any(each.low is not None and each.low > 0.5 for each in estimates.values()):
        sets = all_of(names, "or") if len(names) <= _SHOWN else f"any of the {len(names)} sets of unfamiliar data"
        of_several = f", the best of {best.tried} scores," if best.tried > 1 else ""
        text = (
            f"Undecided how to recognise {sets}: the {best.name}{of_several} ranks such an example above a test "
            f"example in {percent(max(values.values()))} of all pairs, which is not clearly more than chance (50 %)."
        )
        return Undecided("foreign", text, {}, (best,))
    scores = scores_of(result, (best.method, best.score), names)
    threshold = printed(scores["test"], 1 - FALSE_ALARMS)
    alarms, shares = caught(scores, threshold)
    if chosen.crossfitted is not None:
        alarms, shares = chosen.crossfitted.false_alarms, chosen.crossfitted.caught
    return Foreign(best, threshold, alarms, dict(shares))


Decision = Use | Defer | Foreign | Undecided
