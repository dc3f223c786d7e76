"""Predictions that other software made: what their numbers are, and the outputs of a network that they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data.readers.columns import Columns, as_csv, one_reading, texts_of
from bnuq.data.readers.common import as_option, listed
from bnuq.errors import DataError, failures, raise_all
from bnuq.frozen import frozen
from bnuq.metrics.registry import own_score
from bnuq.shapes import Float
from bnuq.studies.score import roles as named
from bnuq.studies.score.roles import Names, UnclearError
from bnuq.tasks import Task

Kind = Literal[
    "logits", "probabilities", "percentages", "log_probabilities", "confidences", "means", "draws", "gaussian",
    "quantiles",
]  # percentages as they are asked for; they are probabilities of another scale; draws are of the target  # fmt: skip
TOLERANCE = 1e-3  # of the sum of a point's probabilities
_ROUNDING = 1e-6  # below 0, or above 1, of a single probability
_LOWEST = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, as where a network gives probabilities
LEAST_LOG = float(np.log(_LOWEST))  # and of its log-likelihood
_BLOCK = 2**18  # numbers of a block
_SAMPLED = 10_000  # points that tell the kind
_FEW = 10  # points, all of which may have the same class by chance
WITH_MARKS = re.compile(r"[-+]?\d*([ ,'’\u00a0\u202f.]\d+)*%?")  # with a decimal comma, or between thousands
_WITH_COMMAS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})*%?").fullmatch  # perhaps between thousands
_EUROPEAN = re.compile(r"[-+]?\d{1,3}(\.\d{3})*(,\d+)?%?").fullmatch
_WHOLE = re.compile(r"-?\d+").fullmatch
SPREADS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {  # of a Gaussian: σ by what a column holds
    "sigma": np.asarray,
    "variance": lambda values: np.sqrt(np.maximum(values, 0)),
    "log_variance": lambda values: np.exp(values / 2),
    "log_sigma": np.exp,
}
_OF_REGRESSION = ("mean", "hard", "array", "quantile", *SPREADS)
_SCALES = (1, 100, 255)  # of probabilities: as they are, in percent, in bytes
_Source = tuple[list[str], Kind | None, tuple[str, ...]]  # columns, what they are, and of which classes
_SCORED = {"mean", "array", "score", "confidence", "positive", "logits", "log_probabilities", *SPREADS}
_KINDS: dict[str, Kind] = {"positive": "probabilities", "logits": "logits", "log_probabilities": "log_probabilities"}


@frozen
class GivenSet:
    """The predictions of one set, (T, n, K); of a Gaussian beside its means the `sigma`, of quantiles (1, n, L) the
    `levels`. `classes` are the names that the file has for the K, and `found` says where in the file they stood.
    `scores` are OOD scores in columns of their own, `group` the groups of the points, `roles` the columns of the file
    by what they are, `hard` the hard predictions and `correct` whether they are right, as texts, and `right` that in
    numbers where it is scored. Probabilities sum to `scale` to within its `tolerance`-fold, and were `off` by it."""

    columns: Columns
    values: NDArray[Any]
    kind: Kind | None  # None: by the numbers
    found: str
    classes: tuple[str, ...] = ()
    sigma: NDArray[Any] | None = None
    levels: NDArray[Any] | None = None
    scores: Mapping[str, Float[np.ndarray, " point"]] = field(default_factory=dict)
    group: NDArray[Any] | None = None
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hard: NDArray[Any] | None = None
    scale: float = 1.0
    tolerance: float = TOLERANCE
    off: float = 0.0
    correct: NDArray[Any] | None = None
    right: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.values.shape[1]

    @property
    def is_of_samples(self) -> bool:
        """Whether the samples of a point were drawn, and not made of its predictive distribution."""
        return len(self.values) > 1

    @property
    def samples(self) -> int:
        """T of the blocks: a Gaussian is two samples, at one σ on both sides."""
        return 2 if self.kind == "gaussian" else len(self.values)

    def taken(self, rows: NDArray[np.int64]) -> GivenSet:
        """These rows, in this order."""
        sigma = None if self.sigma is None else self.sigma[:, rows]
        scores = {name: values[rows] for name, values in self.scores.items()}
        group = None if self.group is None else self.group[rows]
        beside = {name: of[rows] for name in ("hard", "correct", "right") if (of := getattr(self, name)) is not None}
        return replace(self, values=self.values[:, rows], sigma=sigma, scores=scores, group=group, **beside)

    def with_scores(self, names: Sequence[str]) -> GivenSet:
        """These predictions with the scores in the columns of these names; DataError where one is not a number of each
        point."""
        scores = {}
        for name in names:
            values, where = self.columns[name], f"{self.columns.source}: {name!r}"
            if values.dtype.kind not in "fiu" or values.shape != (len(self),):
                text = f"{where} holds {values.dtype} of shape {values.shape}; a score is a number for each of the"
                raise DataError(f"{text} {len(self)} points.")
            if len(rows := np.flatnonzero(~np.isfinite(values))):
                raise DataError(f"{where} has no finite number in {self.columns.place(rows.tolist())}.")
            scores[own_score(name)] = values.astype(np.float64)
        return replace(self, scores=scores)

    def blocks(self, task: Task) -> Iterator[Float[np.ndarray, "sample chunk output"]]:
        """Outputs of a network with this task, block by block in float64; DataError for numbers that are none."""
        step = max(1, _BLOCK // (self.samples * self.values.shape[2]))
        for start in range(0, len(self), step):
            rows = slice(start, start + step)
            values = self.values[:, rows].astype(np.float64)
            if self.kind in ("probabilities", "confidences"):
                values = values / self.scale
                values[(values < 0) & (values >= -_ROUNDING)] = 0
                values[(values > 1) & (values <= 1 + _ROUNDING)] = 1
            named = names if len(names := self.roles.get("predictions", ())) == values.shape[2] else ()
            if (wrong := wrong_values(values, self.kind, task, self.tolerance, self.scale, named)) is not None:
                sample, row, what, expected = wrong
                of_sample = f" of sample {sample}" if self.is_of_samples else ""
                raise DataError(
                    f"{self.columns.source}: {self.found}, {self.columns.place([start + row])}{of_sample} {what}; "
                    f"expected {expected}."
                )
            yield self._outputs(values, rows, task)

    def _outputs(self, values: NDArray[Any], rows: slice, task: Task) -> NDArray[Any]:
        if self.kind in ("probabilities", "confidences"):
            return as_logits(values, several_labels=not task.classifies_points)
        if self.sigma is not None:
            sigma = self.sigma[0, rows].astype(np.float64)
            if not (np.isfinite(sigma).all() and (sigma > 0).all()):
                row = int(np.flatnonzero(~((sigma > 0) & np.isfinite(sigma)).all(-1))[0])
                where = self.columns.place([rows.start + row])
                raise DataError(f"{self.columns.source}: σ in {where} is not a number above 0.")
            return np.stack([values[0] - sigma, values[0] + sigma])
        if self.levels is not None:
            return values[0].T[..., None]
        return values


@frozen
class Sought:
    """The predictions that are looked for: by the options, of this task, for so many `points`, whose labels are in the
    column `label`, `beside` the columns of another file; of the kind of those that they are `like`, where no name
    tells."""

    section: ScoreSection
    task: Task
    points: int | None = None
    label: str | None = None
    like: GivenSet | None = None
    beside: Columns | None = None


def as_logits(p: Float[np.ndarray, "sample point output"], *, several_labels: bool) -> NDArray[Any]:
    """Probabilities as logits: normalised log-probabilities of classes, or the log-odds of labels."""
    log_p = np.log(np.where(p > 0, p, _LOWEST))
    if several_labels:
        return log_p - np.log(np.where(p < 1, 1 - p, _LOWEST))
    return log_p - np.log(p.sum(-1, keepdims=True))


def wrong_values(
    values: Float[np.ndarray, "sample row output"],
    kind: Kind | None,
    task: Task,
    tolerance: float = TOLERANCE,
    scale: float = 1,
    names: Sequence[str] = (),
) -> tuple[int, int, str, str] | None:
    """The first row that is wrong: its sample, its number, what it has, and what is expected; None if there is none.
    The values were divided by `scale`, and are shown as they were, with the `names` of their columns."""
    allowed = ~np.isnan(values) & (values < np.inf) if kind in ("logits", "log_probabilities") else np.isfinite(values)
    checks: list[tuple[Any, str]] = [(~allowed, "finite numbers")]
    total = np.empty(0)
    if kind in ("probabilities", "confidences"):
        expected = f"probabilities, from 0 to {scale:g}; of percentages, --outputs percentages; of logits, logits"
        checks.append(((values < 0) | (values > 1 + tolerance), expected))
    if kind in ("probabilities", "log_probabilities") and task.classifies_points:
        with np.errstate(over="ignore"):
            total = (values if kind == "probabilities" else np.exp(values)).sum(-1)
        cure = "--outputs logits divides each row by its sum"
        cure = "divide each row by its sum, p / p.sum(-1, keepdims=True)" if kind == "probabilities" else cure
        of_sum = f"a sum of {scale:g} to within {tolerance * scale:.3g}: {cure}"
        checks.append((~(np.abs(total - 1) <= tolerance), of_sum))
    if kind == "quantiles":
        checks.append((np.diff(values, axis=-1) < 0, "quantiles that do not decrease with their level: sort each row"))
    for wrong, expected in checks:
        if wrong.any():
            sample, row, *output = np.argwhere(wrong)[0].tolist()
            what = f"sums to {total[sample, row] * scale:.6g}" if total.size else ""
            for k in output:
                of = f"in {names[k]!r}" if names else f"for output {k}"
                what = f"holds {values[sample, row, k] * scale:.6g} {of}"
            return sample, row, what, expected
    return None


# ── what is found in a file ──────────────────────────────────────────────────────────────────────────────────────────


def given_sets(columns: Columns, sought: Sought) -> dict[str, GivenSet]:
    """The predictions of the test set, or, where an array of the file is called "test", of every set by its array."""
    if not sought.section.columns and "test" in columns.values:
        arrays = [name for name, values in columns.values.items() if values.ndim > 1]
        unknown = replace(sought, points=None)
        return {name: _of_array(columns, [name], unknown, sought.section.outputs) for name in arrays}
    return {"test": given_set(columns, sought)}


def given_set(columns: Columns, sought: Sought) -> GivenSet:
    """The predictions of one set; DataError if there are none, or several, or a column that has no role."""
    section, task = sought.section, sought.task
    columns = columns if section.columns else one_reading(columns, sought.points)
    named.matching(columns, [of if of in columns.values else of.rpartition("=")[2] for of in section.columns])
    roles = named.roles_of(columns, section, sought.label)
    if asked := [name for name in roles if roles[name] == "predictions"]:
        given, names = _as_asked(columns, asked, roles, sought)
    else:
        given, names = (_of_regression if task.is_regression else _of_classes)(columns, roles, sought)
    _check_used(columns, roles, names, given, sought)
    used = {*roles, *names}
    rest = [name for name in columns.values if name not in used]
    if unknown := [name for name in rest if not section.columns or named.role_by_name(name) in ("kinds", "draws")]:
        raise _without_role(columns, unknown, sought)
    if given.kind == "confidences":
        roles |= {of: "correct" if roles[of] == "correct" else "hard" for of in names[1:]}
        names = names[:1]
    beside = {} if task.is_regression else _beside(columns, roles, names)
    if task.classifies_points and given.kind != "confidences":
        given = _of_one_class(given, names, beside.get("hard"), sought)
    if task.is_regression:
        roles = {of: "ignored" if role == "hard" else role for of, role in roles.items()}
    in_words = named.in_words(roles | dict.fromkeys([*rest, *columns.nested], "ignored"), names)
    return replace(given, roles=in_words, **beside)


def _without_role(columns: Columns, unknown: Names, sought: Sought) -> DataError:
    """The error for columns beside the predictions that have no role: they may be several targets, or ids."""
    true, said = named.true_and_pred(columns)
    true, said = (true, said) if len(true) > 1 and not {*true}.isdisjoint(unknown) else ((), ())
    ids = [name for name in unknown if sought.beside and _tells_rows_apart(name, columns, sought.beside)][:1]
    return named.without_role(columns, unknown, labels=[",".join(true)] * bool(true), said=said, ids=ids)


def _tells_rows_apart(name: str, columns: Columns, others: Columns) -> bool:
    """Whether a column of both files has the same different values in both."""
    if name not in others.values or columns[name].ndim > 1 or others[name].ndim > 1:
        return False
    texts, wanted = ({*of.texts(name).tolist()} for of in (columns, others))
    return texts == wanted and len(texts) == len(columns[name]) == len(others[name])


def _check_used(
    columns: Columns, roles: Mapping[str, str], names: Sequence[str], given: GivenSet, sought: Sought
) -> None:
    """DataError for an option of --columns that has no effect: a mean beside quantiles, a second prediction."""
    for pattern in sought.section.columns:
        column = pattern if pattern in columns.values else pattern.rpartition("=")[2]
        role = roles.get(column)
        if column not in names and (role in _SCORED or (role == "hard" and sought.task.is_regression)):
            cure = f" --ignore {as_option(column)} leaves it out; it is the median by {as_option(f'q0.5={column}')}."
            raise DataError(
                f"--columns {pattern} has no effect: what is scored of {columns.source} is {given.found}."
                + cure * (given.levels is not None)
            )


def _beside(columns: Columns, roles: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The hard predictions and their correctness, where one column beside the predictions holds them."""
    found = {role: [of for of in named.flat(columns, roles, role) if of not in names] for role in ("hard", "correct")}
    return {role: texts_of(columns[of[0]]) for role, of in found.items() if len(of) == 1}


def _of_one_class(given: GivenSet, names: Sequence[str], hard: NDArray[Any] | None, sought: Sought) -> GivenSet:
    """A single column with its class by the hard predictions; DataError where it may be of another class."""
    columns, classes, section = given.columns, given.columns.classes, sought.section
    if len(names) > 1 or columns[names[0]].shape[1:] not in ((), (1,)) or given.classes or section.classes:
        return given
    if sought.like is not None:
        return replace(given, classes=sought.like.classes)
    p = given.values[0, :, 1] / given.scale
    by_hard = None if hard is None else _class_of(p, hard, classes)
    if by_hard is not None:
        given = replace(given, classes=(by_hard,))
    elif (
        len(classes) == 2
        and max(classes) != named.class_called("1", classes)
        and not all(of.lstrip("-").isdigit() for of in classes)
    ):
        first, last = sorted(classes)
        cures = [f"Of {b}: --classes {as_option(a, b)}." for a, b in ((first, last), (last, first))]
        text = f"{columns.source}: {given.found}: of which class? {' '.join(cures)}"
        raise UnclearError(text, classes=(first, last))
    if given.kind == "probabilities" and not (by_hard or section.outputs) and len(p) >= _FEW and p.min() >= 0.5:
        text = (
            f"{columns.source}: {given.found}, are never below 0.5. Those of class 1: --outputs probabilities. Those "
            f"of the predicted class: --columns confidence={names[0] or 'NAME'}, beside a column of the predictions."
        )
        raise UnclearError(text, outputs="probabilities")
    return given


def _as_asked(columns: Columns, asked: Names, found: Mapping[str, str], sought: Sought) -> tuple[GivenSet, Names]:
    """What the request names: a distribution by the names of its columns, else classes or means in this order."""
    section = sought.section
    if sought.task.is_regression:
        said = {of.rpartition("=")[2] for of in section.columns}
        roles = {of: role for of, role in found.items() if of in said}
        roles |= {of: named.role_by_name(of) or "" for of in asked}
        roles = {of: role for of, role in roles.items() if role in (*_OF_REGRESSION, *named.UNCLEAR)}
        roles |= dict.fromkeys(named.levels_of(asked, columns, section.columns), "quantile")
        if unclear := named.unclear(roles):
            raise named.without_role(columns, unclear)
        if 1 < len(roles) >= len(asked):
            return _of_regression(columns, roles, sought)
        return _of_array(columns, asked, sought, classes=tuple(asked) if len(asked) > 1 else ()), asked
    of_labels = columns.classes
    families = named.class_columns(columns, asked)
    prefix, family = next(iter(families.items())) if len(families) == 1 else ("", {})
    kind, classes = section.outputs or named.kind_of(prefix if len(family) == len(asked) else asked[0]), tuple(asked)
    patterns = [pattern.split("*") for pattern in section.columns]
    if not {*asked} <= of_labels and len(family) == len(asked):
        classes = _called(family, of_labels)
    elif len(patterns) == 1 and len(patterns[0]) == 2:
        classes = tuple(name.removeprefix(patterns[0][0]).removesuffix(patterns[0][1]) for name in asked)
    return _of_array(columns, asked, sought, kind, classes if len(asked) > 1 or {*classes} <= of_labels else ()), asked


def _of_classes(columns: Columns, roles: Mapping[str, str], sought: Sought) -> tuple[GivenSet, Sequence[str]]:
    """Logits or probabilities: an array, or columns of a class each."""
    classes, like, outputs = columns.classes, sought.like, sought.section.outputs
    free = [of for of in columns.values if of not in roles and named.role_by_name(of) not in ("kinds", "draws")]
    of_right = not classes and "correct" in roles.values()  # log-probabilities are of the predictions
    sources = [] if of_right else _sources(columns, roles, free, classes)
    if not sources and (sought.task.classifies_points or classes):
        sources = _unnamed(columns, free, classes, sums=sought.task.classifies_points)
    if not sources and sought.task.classifies_points and (pair := _pair(columns, roles, sought)) is not None:
        scale, confidence = 100.0 if outputs == "percentages" else 1.0, numbers_of(columns, pair[0])
        confidence = np.exp(confidence) if roles[pair[0]] == "log_probabilities" else confidence
        _check_range(confidence / scale, f"{columns.source}: {pair[0]!r}")
        values = np.stack([scale - confidence, confidence], axis=-1)[None]
        return GivenSet(columns, values, "confidences", f"{pair[0]!r}, confidences", scale=scale), pair
    of_one = ("score",) if outputs is None else ("score", "confidence")  # roles of the probabilities of class 1
    sources = sources or [([name], None, ()) for name, role in roles.items() if role in of_one]
    if len(sources) > 1:
        raise _several_predictions(columns, [names for names, _, _ in sources])
    if not sources:
        raise _without_predictions(columns, roles, free, "logits or probabilities", sought.label)
    [(names, kind, of)] = sources
    kind = outputs or kind or (None if like is None else like.kind)
    return _of_array(columns, names, sought, kind, of), names


def _pair(columns: Columns, roles: Mapping[str, str], sought: Sought) -> list[str] | None:
    """A column of confidences, and that of the hard predictions, or of whether these are right; None where there is
    none, or where a score is the probability of one class. DataError where it may be either, or is called otherwise."""
    classes, like, label = columns.classes, sought.like, sought.label
    of_roles = ("confidence", "score", "log_probabilities", "hard", "correct", "labels")
    confidence, score, logs, hard, correct, labels = (named.flat(columns, roles, role) for role in of_roles)
    if len(either := confidence or score or logs) != 1:
        return None
    name, top = either[0], hard or [each for each in labels if each != label]
    if getattr(like, "kind", "") == "confidences" and not (hard or correct):
        return [name]
    if not classes or (correct and not hard and confidence):
        return [name, *correct] if correct else None
    if len(top) != 1:
        if sought.section.outputs is None and (
            confidence or (label in columns.values and not named.is_numeric(columns[label]))
        ):
            raise _of_which_class(columns, name, label, [each for each in columns.values if each not in roles])
        return None
    return [name, top[0]] if not hard or _is_confidence(columns, name, hard[0], score, sought) else None


def _is_confidence(columns: Columns, name: str, hard: str, score: Names, sought: Sought) -> bool:
    """Whether numbers beside hard predictions are confidences, not the probability of one class, which a score may be.
    DataError where they are neither, or are called confidences and are not."""
    if f"confidence={name}" in sought.section.columns:
        return True
    texts, values, where = texts_of(columns[hard]), numbers_of(columns, name), f"{columns.source}: {name!r}"
    of_class = _class_of(values, texts, columns.classes)
    if of_class is not None and not score:
        text = f"{where} is below 0.5 wherever {hard!r} is another class than {of_class!r}: it is the probability of"
        raise UnclearError(f"{text} this class, not a confidence.", columns=(f"score={name}", f"prediction={hard}"))
    if of_class is None and score and values.min() < 1 / len({*texts.tolist()} | columns.classes):
        raise DataError(
            f"{where} is neither the probability of a class, by the predictions beside it, nor their confidence. Name "
            "it by --columns NAME if it is that of class 1; or call it confidence."
        )
    return of_class is None


def _of_which_class(columns: Columns, name: str, label: str | None, free: Sequence[str]) -> UnclearError:
    """The error for a confidence beside labels alone: another column, or that of the labels, may hold predictions."""
    text = f"{columns.source}: {name!r} is the probability of a class that no column names."
    answers = [of for of in free if columns[of].ndim == 1 and not columns.classes.isdisjoint(texts_of(columns[of]))]
    if answers:
        text += f" If {answers[0]!r} is the prediction, right where it equals {label!r} letter by letter, name it so."
        return UnclearError(text, columns=(f"prediction={answers[0]}", f"confidence={name}"))
    text += f" If {label!r} is the prediction, as of a pipeline of Hugging Face, name the true labels: --labels "
    text += f"{columns.source}:{[*free, 'COLUMN'][0]}, or another file; if it is that of class 1: --outputs "
    text += "probabilities; else call the columns of the classes by these, such as prob_cat."
    return UnclearError(text, **({"labels": f"{columns.source}:{free[0]}"} if free else {}))


def _several_predictions(columns: Columns, sources: Sequence[Sequence[str]]) -> UnclearError:
    sets = "; ".join(map(listed, sources))
    text = f"{columns.source}: has several predictions: {sets}. Name one, and the others are ignored: --columns NAME,…"
    return UnclearError(text, columns=(*sources[0],))


def _check_range(values: NDArray[Any], where: str) -> None:
    """DataError for confidences, or probabilities of one class, that are below 0 or above 1."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < -_ROUNDING or high > 1 + TOLERANCE:
        if low >= 0 and high <= 10:
            raise DataError(f"{where} holds numbers from {low:.6g} to {high:.6g}, a scale of its own: make it 0 to 1.")
        what = "--outputs percentages" if low >= 0 and high <= 100 else "--outputs logits"
        text = f"{where} holds numbers from {low:.6g} to {high:.6g}: no probabilities. Percentages or logits? {what}."
        raise UnclearError(text, outputs=what.split()[1])


def _class_of(p: NDArray[Any], hard: NDArray[Any], classes: AbstractSet[str]) -> str | None:
    """The class of two whose probabilities these are, by hard predictions; None where that is neither."""
    found = sorted({*hard.tolist()} | classes, reverse=True)
    fits = (of for of in found if bool((((p > 0.5) == (hard == of)) | (p == 0.5)).all()))
    return next(fits, None) if len(found) == 2 else None


def _sources(columns: Columns, roles: Mapping[str, str], free: Names, classes: AbstractSet[str]) -> list[_Source]:
    """The arrays, and the columns of a class each, that names say are predictions."""
    sources: list[_Source] = []
    for name, role in roles.items():
        is_wide = columns[name].ndim > 1 or (name in ("", "0") and named.is_numeric(columns[name]))
        if role in _KINDS or (role in ("hard", "array", "score", "confidence", "mean") and is_wide):
            sources.append(([name], _KINDS.get(role), ()))
    sources += [([name], None, ()) for name in free if classes and {*columns.keys.get(name, ())} >= classes]
    for prefix, family in named.class_columns(columns, free).items():
        whole = classes and ({*family} >= classes or {*family} <= classes)  # the labels are called like the columns
        of = tuple(family) if whole else _called(family, classes)
        if len(family) > 1 or {*of} <= (classes or {*of}):
            sources.append(([*family], named.kind_of(prefix), of))
    return sources


def _called(family: Mapping[str, str], classes: AbstractSet[str]) -> tuple[str, ...]:
    """The classes that columns are of: those of the labels, as far as all are."""
    of = tuple(named.class_called(word, classes) for word in family.values())
    return of if {*of} <= classes and len({*of}) == len(of) else tuple(family.values())


def _unnamed(columns: Columns, free: Sequence[str], classes: AbstractSet[str], *, sums: bool) -> list[_Source]:
    """The columns that are called like the labels, or all numbers that are left if each row `sums` to one."""
    numeric = [name for name in free if columns[name].ndim == 1 and named.is_numeric(columns[name])]
    if len(numeric) < 2:
        return [(numeric, None, (numeric[0],))] if {*numeric} & classes else []
    texts = [*map(_as_class, numeric)]
    numbered = texts == [*map(str, range(len(texts)))] and {*texts} >= classes
    values = _some(np.stack([columns[name] for name in numeric], axis=-1)[None])
    if not numbered and not (sums and _probabilities(values)):
        if not {*texts} >= classes or len(classes) < 2:
            return []
        kept = [at for at, text in enumerate(texts) if text in classes]
        numeric, texts = [numeric[at] for at in kept], [texts[at] for at in kept]
    return [(numeric, None, tuple(texts))]


def _as_class(name: str) -> str:
    """The name of a class: a whole number without its fraction."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", name.strip())


def _without_predictions(
    columns: Columns, roles: Mapping[str, str], free: Names, what: str, label: str | None
) -> DataError:
    if free:
        return named.without_role(columns, free, found=False)
    hard = [name for name, role in roles.items() if role == "hard"]
    own = [name for name, role in roles.items() if role == "labels" and name != label]
    for name in own or hard * (len(hard) > 1):
        if named.is_numeric(columns[name]) and np.any(columns[name] % 1):
            text, said = f"{columns.source}: {name!r} may be the prediction", name if own else f"confidence={name}"
            return UnclearError(f"{text}: --columns {as_option(said)}.", columns=(said,))
    if hard:
        said = f"{listed(hard)} is a hard prediction, which has no uncertainty"
        if label in columns.values and columns[hard[0]].shape == columns[label].shape:
            said += f" ({(texts_of(columns[hard[0]]) == texts_of(columns[label])).mean():.1%} are right, by {label!r})"
        cure = "Write what the model is unsure of, too: a column `confidence`, or one for each class, such as prob_cat."
        return DataError(f"{columns.source}: holds no {what}: {said}. {cure}")
    shown = listed(list(columns.values))
    shown += f", and lists that are not read: {listed(columns.nested)}" * bool(columns.nested)
    text = f"{columns.source}: holds no {what}: no column has a name of them. It has {shown}"
    return DataError(f"{text}. Name them: --columns NAME,NAME.")


def _of_regression(columns: Columns, roles: Mapping[str, str], sought: Sought) -> tuple[GivenSet, Sequence[str]]:
    """Quantiles, a Gaussian, or means."""
    asked = sought.section.columns
    by_role: dict[str, list[str]] = {}
    for name, role in roles.items():
        by_role.setdefault(role, []).append(name)
    spread, of_levels = [of for role in SPREADS for of in by_role.get(role, ())], by_role.get("quantile", [])
    middle = next((by_role[role] for role in ("mean", "hard", "array") if role in by_role), [])
    free = [name for name in columns.values if name not in roles]
    families = named.numbered(columns, free)
    if asked and len(drawn := named.flat(columns, roles, "array")) > 1:  # samples=PATTERN
        return _of_array(columns, drawn, sought), drawn
    if (of_levels and spread) or max(len(spread), len(middle), len(families)) > 1:
        gaussian = [*middle[:1], *spread[:1]]
        raise _several_predictions(columns, [of for of in (of_levels, gaussian, *families) if of])
    if (unclear := named.unclear(roles)) and not (of_levels or spread or asked):
        raise named.without_role(columns, unclear)
    if of_levels:
        return _of_quantiles(columns, of_levels, middle, asked)
    if spread and middle:
        return _gaussian(columns, middle[0], spread[0], roles[spread[0]]), [*middle, *spread]
    if middle:
        return _of_array(columns, middle, sought), middle
    if families:
        return _of_array(columns, families[0], sought, classes=tuple(families[0])), families[0]
    raise _without_predictions(columns, roles, free, "numbers of the predictive distribution", sought.label)


def _gaussian(columns: Columns, middle: str, spread: str, role: str) -> GivenSet:
    values, deviations = (
        _as_samples(numbers_of(columns, name), "samples", f"{columns.source}: {name!r}") for name in (middle, spread)
    )
    if values.shape != deviations.shape or len(values) > 1:
        raise DataError(f"{columns.source}: {middle} and {spread} have shapes that do not fit together.")
    found = f"mean {middle!r} and {'σ' if role == 'sigma' else role.replace('_', ' ')} {spread!r}"
    return GivenSet(columns, values, "gaussian", found, sigma=SPREADS[role](deviations))


def _of_quantiles(columns: Columns, names: Names, beside: Names, asked: Names) -> tuple[GivenSet, Names]:
    if {*names} == {"quantiles", "levels"}:
        values, levels, found = columns["quantiles"][None], columns["levels"], "'quantiles'"
    else:
        by_name = named.levels_of(names, columns, asked)
        if not by_name:
            raise DataError(
                f"{columns.source}: {listed([*names])} has no levels beside it: an array `levels` of (L,), of "
                "quantiles (n, L); or columns that are named by their levels, such as q0.05."
            )
        names, levels, found = [*by_name], np.array([*by_name.values()]), f"quantiles {listed([*by_name])}"
        values = stacked(columns, names)[None]
    found += f", whose mean the RMSE and MAE are of, and not {listed(beside)}" if beside else ""
    found += f" (the median: --columns q0.5={beside[0]})" if beside and 0.5 not in levels else ""
    rises = levels.ndim == 1 and levels.dtype.kind == "f" and bool((np.diff(levels, prepend=0) > 0).all())
    if not rises or not len(levels) or levels[-1] >= 1 or values.shape[2:] != levels.shape or values.ndim != 3:
        raise DataError(
            f"{columns.source}: {found} has shape {values.shape[1:]}, with the levels "
            f"{listed([*map(str, levels.ravel())])}; expected (n, L), and L levels that rise from 0 to 1, inside."
        )
    return GivenSet(columns, values, "quantiles", found, levels=levels.astype(np.float64)), names


def _of_array(
    columns: Columns, names: Sequence[str], sought: Sought, kind: str | None = None, classes: tuple[str, ...] = ()
) -> GivenSet:
    """Several columns, or the one array of that name."""
    task = sought.task
    if len(names) > 1:
        name, values = f"{names[0]} … {names[-1]}", stacked(columns, names)
    else:
        name, values = names[0], columns[names[0]]
    found = f"{name!r}" if name else "its array"
    if values.dtype.kind not in "fiu":
        raise DataError(f"{columns.source}: {found} holds {values.dtype}; expected numbers.")
    if task.is_regression and values.ndim == 2 and len(names) == 1:
        is_said = names[0].lower() == "samples" or f"samples={names[0]}" in sought.section.columns
        values = _as_drawn(values, sought, f"{columns.source}: {found}", is_said=is_said)
    elif task.is_regression and len(names) > 1 and (not classes or all(map(named.DRAWN.fullmatch, names))):
        values, classes = values.T[..., None], ()
    samples = _as_samples(values, names[0], f"{columns.source}: {found}")
    of_target = sought.section.outputs == "draws_of_target" and len(samples) > 1
    known: dict[str, Any] = {"kind": "draws" if of_target else "means"}
    if not task.is_regression:
        known = _known(columns, found, samples, kind, task)
    if samples.shape[2] == 1 and task.classifies_points:  # of class 1 alone
        if known["kind"] == "probabilities":
            _check_range(samples / known.get("scale", 1), f"{columns.source}: {found}")
        with np.errstate(divide="ignore"):  # of a probability of 1
            log_of_other = np.log1p(-np.exp(np.minimum(samples, 0)))
        others = {"logits": np.zeros_like(samples), "log_probabilities": log_of_other}
        other = others.get(known["kind"], known.get("scale", 1) - samples)
        samples = np.concatenate([other, samples], axis=-1)
    classes = columns.keys.get(name, ()) or classes
    if (texts := columns.values.get("classes")) is not None and texts.ndim == 1 and len(texts) == samples.shape[2]:
        classes = tuple(map(str, texts.tolist()))
    found = f"{found}, {known['kind'].replace('_', '-')}"
    return GivenSet(columns, samples, found=found, classes=tuple(map(_as_class, classes)), **known)


def _as_drawn(values: NDArray[Any], sought: Sought, where: str, *, is_said: bool) -> NDArray[Any]:
    """An array of the samples of a regression as (T, n, 1): (T, n) by the number of points, and (n, T) where its name
    says that it holds samples, or by the number of the samples that they are like. DataError where it may be either."""
    (rows, width), like = values.shape, sought.like
    count = sought.points if like is None else 0 if like.values.shape[2] > 1 else len(like.values)
    first, last = (width == count, rows == count) if like is None else (rows == count, width == count)
    if 1 in (rows, width, count) or not (first or last):
        return values
    cure = "Save samples as (T, n, 1); quantiles beside an array `levels`; a Gaussian as arrays `mean` and `sigma`."
    if first and last:
        raise DataError(f"{where} has shape {values.shape}, and either axis may be that of the samples. {cure}")
    if last and like is None and not is_said:
        what = "samples, quantiles, or mean and σ? Samples are (T, n), or called `samples`"
        raise DataError(f"{where} holds {width} numbers of each point: {what}. {cure}")
    return (values if first else values.T)[..., None]


def _as_samples(values: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    """An array as (T, n, K); DataError where it has no point or no such shape, or where T and n may be exchanged."""
    samples = values[None, :, None] if values.ndim == 1 else values[None] if values.ndim == 2 else values
    if samples.ndim != 3:
        raise DataError(f"{where} has shape {values.shape}; expected (n, K), or (T, n, K) of samples.")
    if 0 in samples.shape:
        raise DataError(f"{where} is empty, of shape {values.shape}; expected at least one point.")
    if values.ndim == 3 and values.shape[0] == values.shape[1] > 1 and name.lower() != "samples":
        raise DataError(
            f"{where} has shape {values.shape}, whose first or second axis may be of samples. Save it as (T, n, K), in "
            "an array called `samples`."
        )
    return samples


def stacked(columns: Columns, names: Sequence[str]) -> NDArray[Any]:
    """Several columns of numbers on the last axis; what is wrong with any of them is one error, or what mends all."""
    errors = failures(*(partial(numbers_of, columns, name) for name in names))
    gaps = {name: np.isnan(columns[name]) for name in names if columns[name].dtype.kind in "fiu"}
    if without := [name for name, missing in gaps.items() if missing.any()]:
        rows = np.unique(np.concatenate([np.argwhere(gaps[name])[:, 0] for name in without]))
        have = f"{listed(without)} {'has' if len(without) == 1 else 'have'}"
        where = columns.place(rows.tolist())
        errors.append(DataError(f"{columns.source}: {have} no value in {where}. Fill it in, or leave such rows out."))
    raise_all([error for error in errors if "\n" in str(error)][:1] or errors)
    return np.stack([columns[name] for name in names], axis=-1)


def numbers_of(columns: Columns, name: str) -> NDArray[Any]:
    """A column; DataError for texts, with the first that is no number."""
    values = columns[name]
    if values.dtype.kind in "fiu":
        return values
    texts = [str(text) for text in values.flat]
    is_number = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*").fullmatch
    rows = [row for row, text in enumerate(texts) if not is_number(text)] or [0]
    row = rows[0]
    cure, mark = "", (re.search(r"\d([ ,'’\u00a0\u202f])\d", texts[row]) or [""] * 2)[1]
    if mark and all(map(WITH_MARKS.fullmatch, texts)):
        if any("." in text and "," in text for text in texts) and all(map(_EUROPEAN, texts)):
            what, options = "as the decimal point and '.' between thousands", "thousands='.', decimal=','"
        else:
            in_groups = all(map(_WITH_COMMAS, texts))
            grouped = mark != "," or in_groups or any("." in text or text.count(",") > 1 for text in texts)
            point = "as the decimal point; if it stands between thousands, thousands=','"
            what = "between thousands" if grouped else point
            what += "; if it is the decimal point, decimal=','" * (mark == "," and in_groups)
            options = f"{'thousands' if grouped else 'decimal'}={mark!r}"
        cure = f" With {mark!r} {what}"
        sep = f"sep={columns.separator!r}, "
        cure += "." if columns.separator is None else f":\n  {as_csv(columns.source, sep + options)}"
    raise DataError(
        f"{columns.source}: {name!r} holds text, first {texts[row][:50]!r}, in {columns.place(rows)}; expected "
        f"numbers.{cure}"
    )


def _known(columns: Columns, found: str, values: NDArray[Any], kind: str | None, task: Task) -> dict[str, Any]:
    """What the numbers are, by their name or by themselves: probabilities where most rows sum to 1, 100 or 255, to
    within their rounding; log-probabilities likewise; logits where they are negative and nothing else. DataError where
    they may be several of these."""
    if kind in ("logits", "log_probabilities"):
        return {"kind": kind}
    sampled = _some(values)
    if kind == "percentages":
        _check_percentages(sampled, f"{columns.source}: {found}")
        return {"kind": "probabilities", "scale": 100.0, "tolerance": _tolerance(sampled, 100)}
    if task.classifies_points and sampled.shape[2] > 1:
        if (probabilities := _probabilities(sampled)) is not None:
            return probabilities
        with np.errstate(over="ignore"):
            if (sampled <= TOLERANCE).all() and np.median(abs(np.exp(sampled).sum(-1) - 1)) <= TOLERANCE:
                return {"kind": kind or "log_probabilities"}
    elif bool(((sampled >= -_ROUNDING) & (sampled <= 1 + _ROUNDING)).all()):
        if task.classifies_points and not np.any(sampled % 1) and kind is None:
            raise DataError(
                f"{columns.source}: {found} holds whole numbers: hard predictions, which have no uncertainty."
            )
        return {"kind": "probabilities"}
    total = sampled.sum(-1)
    votes = bool(sampled.shape[2] > 1 and (sampled >= 0).all() and not np.any(sampled % 1) and np.ptp(total) == 0)
    if kind == "probabilities":
        return {"kind": kind} | ({"scale": float(total[0, 0])} if votes else {})
    if bool((sampled < -_ROUNDING).any()) and not (task.classifies_points and sampled.shape[2] == 1):
        return {"kind": "logits"}
    raise _of_which_kind(sampled, f"{columns.source}: {found}", votes=votes)


def _of_which_kind(values: NDArray[np.float64], where: str, *, votes: bool) -> UnclearError:
    """The error for numbers that are neither probabilities nor clearly logits."""
    several = values.shape[2] > 1
    what = f"numbers from {np.nanmin(values):.6g} to {np.nanmax(values):.6g}"
    what += f", which sum to {np.median(values.sum(-1)):.6g} in the middle row" * several
    outputs = "probabilities" if votes else None if several or values.max() > 100 else "percentages"
    return UnclearError(
        f"{where} holds {what}: neither probabilities of classes, which sum to 1, 100 or 255, nor clearly logits. Say "
        "what they are: counts of votes are --outputs probabilities; else --outputs percentages, logits, probabilities "
        "or log_probabilities; numbers, --task regression.",
        **({"outputs": outputs} if outputs else {}),
    )


def _check_percentages(values: NDArray[Any], where: str) -> None:
    """DataError for fractions, or fractions among percentages, which leave a gap above 1."""
    near = int(((values > 0.5) & (values <= 1)).sum()) - 4 * int(((values > 1) & (values <= 2)).sum())
    if values.max() <= 1 or (values.shape[2] == 1 and near > _FEW):
        text = f"{where} holds many numbers from 0.5 to 1, and few from 1 to 2: fractions among percentages?"
        raise DataError(f"{text} Make all of them fractions, and leave --outputs out.")


def _tolerance(values: NDArray[Any], scale: float) -> float:
    """How far sums may be from `scale`, relatively, by the decimals or the bits to which the numbers are rounded."""
    classes, tolerance = values.shape[-1], TOLERANCE
    short = values.astype(np.float32)
    if bool((short == values).all()):
        if not np.any(np.ascontiguousarray(short).view(np.uint32) & 0xFFFF):
            tolerance = 2.0**-8  # bfloat16
        elif bool((values.astype(np.float16) == values).all()):
            tolerance = 2.0**-10
    for digits in range(scale == 1, 7):  # whole numbers are no rounded probabilities
        if bool((abs(values * 10**digits - np.round(values * 10**digits)) < _ROUNDING).all()):
            is_whole = scale == 1 and not np.any(values % 1)
            return tolerance if is_whole else max(tolerance, (classes * 0.5 * 10**-digits + _ROUNDING) / scale)
    return tolerance


def _probabilities(values: NDArray[np.float64]) -> dict[str, Any] | None:
    """What they sum to, how closely, and how closely they were seen to; None where most rows sum to nothing of that."""
    for scale in _SCALES:
        tolerance, off = _tolerance(values, scale), abs(values.sum(-1) / scale - 1)
        fits = (values >= -_ROUNDING * scale).all(-1) & (off <= tolerance)
        if np.mean(fits) > 0.5:  # of the others, an error says where they stand
            seen = max(float(off[fits].max()), -float(values[fits].min()) / scale)
            return {"kind": "probabilities", "scale": scale, "tolerance": tolerance, "off": seen}
    return None


def _some(values: NDArray[Any]) -> NDArray[np.float64]:
    """Points enough to tell what the numbers are."""
    return values[:, :: max(1, values.shape[1] // _SAMPLED)].astype(np.float64)
