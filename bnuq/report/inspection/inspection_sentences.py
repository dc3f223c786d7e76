"""The sentences of an inspection's findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.words import percent
from bnuq.report.inspection.layer_tables import brief, listed, times
from bnuq.report.numbers import count, named, number, signed


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What the findings say."""
    return tuple(sentence(finding, SENTENCES, _FORMATS) for finding in findings)


def _kinds(kinds: Mapping[str, int]) -> str:
    names = {"batchnorm": "BatchNorm layer", "dropout": "dropout", "learned": "noise layer"}
    texts = [count(amount, names[kind]) for kind, amount in kinds.items() if amount]
    return all_of(texts) if texts else "Nothing"


def _slopes_between(slopes: Sequence[float]) -> str:
    low, high = number(min(slopes), 2), number(max(slopes), 2)
    return f"slope of ln variance on ln b {low if low == high else f'{low} to {high}'}"


def _ratios(layers: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{layer} ({times(ratio)} times the random error)" for layer, ratio in layers)


def _changes(changes: Mapping[str, tuple[float, float, bool | None]]) -> str:
    return "; ".join(
        f"{named(metric)} {number(before, 3)} → {number(after, 3)} ({signed(after - before, 3)})"
        + ("" if is_clear else ", of an unknown error" if is_clear is None else ", within two errors")
        for metric, (before, after, is_clear) in changes.items()
    )


def _limits(exceeded: Sequence[tuple[float, str, float]]) -> str:
    texts = (
        f"{times(r)} times the random error in {where} (up to {limit:.0f} is normal)" for r, where, limit in exceeded
    )
    return " and ".join(texts) or "by the check of the training set"


_FORMATS = {
    "times": times,
    "percent": percent,
    "brief": brief,
    "names": listed,
    "layers": lambda names: f"{listed(names)} ({count(len(names), 'layer')})" if len(names) > 1 else names[0],
    "len": lambda names: f"{len(names)}",
    "of": lambda amount: count(amount, "layer"),
    "channels": lambda amount: count(amount, "channel"),
    "kinds": _kinds,
    "slopes": _slopes_between,
    "ratios": _ratios,
    "changes": _changes,
    "limits": _limits,
}
_SIZE = (
    f"{{median:times}} times the random error in the median layer (up to {MEDIAN_LIMIT:.0f} is normal), and "
    f"{{worst:times}} times in the worst, `{{layer}}` (up to {WORST_LIMIT:.0f})"
)
_TEXTS = {
    "healthy": (
        f"Healthy: means and variances in the BatchNorm layers are those of the training data. They differ by {_SIZE}."
    ),
    "unhealthy-elsewhere": (
        f"Not healthy, see below; the other running statistics match the training set: they differ by {_SIZE}."
    ),
    "statistics-match-where-checked": (
        f"The running statistics that could be checked match the training set's: they differ by {_SIZE}."
    ),
    "statistics-mismatch": (
        f"Not healthy: the running statistics do not match this training set; they differ by {_SIZE}. The pipeline or "
        "the data differ from training, or the running statistics are stale."
    ),
    "pipeline-incomplete": "Neither a run file nor an option sets {keys}; if training used it, that may be the cause.",
    "search-pipeline": (
        "`--suggest-pipeline` searches for the pipeline that fits the running statistics; if the pipeline is right, "
        "`bnuq precise-bn` recomputes them."
    ),
    "recompute-statistics": "If the pipeline is right, `bnuq precise-bn` recomputes the running statistics.",
    "statistics-far": ("Not healthy: the running statistics are not those of the training set."),
    "statistics-unchecked": "Whether the running statistics fit the training set could not be checked.",
    "layers-unchecked": "Not checked: {layers:names} ({why}).",
    "layers-broken": "Not healthy: see {layers:names}.",
    "weights-not-finite": "Not healthy: weights contain NaN or infinity; see the warnings.",
    "nothing-unusual": "The running statistics by themselves show nothing unusual.",
    "fit-doubtful": (
        "Whether the running statistics fit the data is doubtful: none of the pipelines tried makes them fit."
    ),
    "fit-by-pipeline": (
        "Whether the running statistics fit the data is reported below; inspect again with the lines for the run file "
        "for a layer-by-layer comparison."
    ),
    "fit-unread": (
        "Whether the running statistics fit the data was not measured: the training set cannot be read; see the "
        "warnings."
    ),
    "fit-unmeasured": "Whether the running statistics fit the data was not measured: {why}.",
    "fit-without-reference": (
        "Whether the running statistics fit the data can only be measured on the training set: name it with `--train`."
    ),
    "not-finite": (
        "Not-finite: {layers:layers}. Its statistics or weights contain NaN or infinity, and so do the network's "
        "outputs."
    ),
    "never-trained": (
        "Never-trained: {layers:layers}. Its running statistics still have their initial values; `bnuq precise-bn` "
        "computes them."
    ),
    "vanishing": (
        "Vanishing: {layers:layers}. Running variances below 10 ε: those channels are dead, or their output depends "
        "on ε."
    ),
    "frozen": (
        "Frozen: {layers:layers}. It normalises by its running statistics in training too, so it has no batch noise."
    ),
    "untracked": (
        "Untracked: {layers:layers}. It keeps no running statistics and normalises by the batch at evaluation."
    ),
    "called-again": (
        "Called-again: {layers:layers}. It is called more than once per forward pass: its running statistics mix the "
        "calls."
    ),
    "dead-channels": (
        "Dead in some batch (variance below 10 ε): {channels:channels}, most in {layers:names}. Their output depends "
        "on ε."
    ),
    "nothing-stochastic": ("Nothing can draw samples: the network calls no BatchNorm or dropout, and draws no noise."),
    "sites": "{kinds:kinds} can draw samples: `bnuq evaluate --methods {methods}`.",
    "sites-fixed": "Not sampled: {sites:names} ({why}).",
    "unreachable": "Random in training, but out of reach for bnuq: {layers:names} ({why}).",
    "values-dependent": (
        "The values of a channel are not independent in {layers} of {of:of}: in {layer}, the effective sample size is "
        "{effective:brief} where b·z = {nominal:,}. An analytic noise model with nominal n makes its noise "
        "{factor:times} times too small: it needs measured counts."
    ),
    "values-fully-dependent": "The values of a channel are not independent: least of all in {layer}.",
    "values-independent": (
        "The values of a channel are nearly independent: the noise is {within} that of n = b·z independent values; at "
        "worst, in {layer}, the effective sample size is {share:percent} of n."
    ),
    "slopes-uncertain": (
        "The slopes are too uncertain to tell whether the noise falls as 1/b ({slopes:slopes}, −1 expected)."
    ),
    "slopes-expected": "The noise falls as 1/b, as expected: {slopes:slopes}.",
    "slopes-off": (
        "In {layers:len} of {of:of} the noise does not fall as 1/b ({slopes:slopes}, −1 expected): {layers:names}."
    ),
    "domain-distinguishable": "{name} is distinguishable from the training set, most in {layers:ratios}.",
    "domain-alike": (
        "No layer distinguishes {name} from the training set: at most {worst:times} times the random error "
        f"(up to {MEDIAN_LIMIT:.0f} is normal)."
    ),
    "domain-unmeasured": "No layer of {name} could be compared with the training set.",
    "own-statistics-no-effect": "With its own statistics, {name} changes little: {changes:changes}.",
    "own-statistics-unknown": (
        "Whether its own statistics change {name} cannot be told from so few examples: {changes:changes}."
    ),
    "own-statistics-better": "With its own statistics, {name} is better: {changes:changes}.",
    "own-statistics-worse": "With its own statistics, {name} is worse: {changes:changes}.",
    "own-statistics-mixed": "With its own statistics, {name} shows a mixed effect: {changes:changes}.",
    "no-pipeline-tried": "No pipeline could be tried.",
    "no-pipeline-fits": (
        "None of the pipelines tried fits the running statistics. The closest is {pipeline}: {exceeded:limits}."
    ),
    "closest-normalization": (
        "Of the normalisations, {normalize}{pixels} is by far the closest, though the running averages fit none."
    ),
    "pipeline-fits": (
        "The running statistics fit {pipeline} best: {worst:times} times the random error in the worst layer, "
        "`{layer}`."
    ),
    "pipeline-undetermined": "Undetermined by the statistics: {text}.",
    "pipelines-equivalent": "These pipelines fit equally well: {pipelines:names}.",
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}
