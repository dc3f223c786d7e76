"""Predictions that other software made: what their numbers are, and the outputs of a network that they stand for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data.readers.columns import Columns
from bnuq.data.readers.common import GROUP, TARGETS, is_index, listed
from bnuq.errors import DataError
from bnuq.frozen import frozen
from bnuq.metrics.registry import own_score
from bnuq.shapes import Float
from bnuq.tasks import Task

Kind = Literal["logits", "probabilities", "log_probabilities", "means", "gaussian", "quantiles"]
TOLERANCE = 1e-3  # of the sum of a point's probabilities
_LOWEST = float(np.finfo(np.float32).tiny)  # in place of a probability of 0, as where a network gives probabilities
LEAST_LOG = float(np.log(_LOWEST))  # and of its log-likelihood
_BLOCK = 2**18  # numbers of a block

# Names of arrays and columns, in any case and in this order
LABELS = (*TARGETS, "truth", "y_true", "true_label", "gold")
IDS = ("id", "ids", "uid", "sample_id", "example_id")
GROUPS = (GROUP, "groups")
SCORES = ("score", "ood_score", "uncertainty")
_NAMES: dict[Kind, tuple[str, ...]] = {
    "logits": ("logits", "logit"),
    "log_probabilities": ("log_probabilities", "log_probs", "logprobs", "log_prob", "logprob"),
    "probabilities": ("probabilities", "probability", "probs", "prob", "proba", "p", "y_prob", "y_proba", "softmax"),
}
_KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES.items() for name in names}
_MEANS = ("mean", "mu", "loc", "prediction", "predictions", "y_pred", "yhat", "y_hat")
_SIGMAS = ("sigma", "std", "sd", "stddev", "scale", "y_std")
_ANY = ("samples", "predictions", "prediction", "preds", "pred", "outputs", "output", "y_pred", "scores", "arr_0", "")
_CLASS = re.compile(rf"({'|'.join(sorted(_KINDS, key=len, reverse=True))})[_\-. (\[]+(.+?)[)\]]?", re.IGNORECASE)
_QUANTILE = re.compile(r"(?:q|quantile|pct|percentile)[_ ]?(0?\.\d+|\d{1,2}(?:\.\d+)?)", re.IGNORECASE)


@frozen
class GivenSet:
    """The predictions of one set, (T, n, K); of a Gaussian beside its means the `sigma`, of quantiles (1, n, L) the
    `levels`. `classes` are the names that the file has for the K, and `found` says where in the file they stood.
    `scores` are OOD scores in columns of their own, `group` the groups of the points that stand beside them."""

    columns: Columns
    values: NDArray[Any]
    kind: Kind | None  # None: by the numbers
    found: str
    classes: tuple[str, ...] = ()
    sigma: NDArray[Any] | None = None
    levels: NDArray[Any] | None = None
    scores: Mapping[str, Float[np.ndarray, " point"]] = field(default_factory=dict)
    group: NDArray[Any] | None = None

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
        return replace(self, values=self.values[:, rows], sigma=sigma, scores=scores, group=group)

    def with_scores(self, names: Sequence[str]) -> GivenSet:
        """These predictions with the scores in the columns of these names; DataError where one is not a number of each
        point."""
        scores = {}
        for name in names:
            values = self.columns[name]
            if values.dtype.kind not in "fiu" or values.shape != (len(self),):
                raise DataError(
                    f"{self.columns.source}: {name!r} holds {values.dtype} of shape {values.shape}; a score is a "
                    f"number for each of the {len(self)} points."
                )
            if not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values))[0])
                raise DataError(f"{self.columns.source}: {name!r} has no finite number in row {row} (counted from 0).")
            scores[own_score(name)] = values.astype(np.float64)
        return replace(self, scores=scores)

    def impossible(self, labels: NDArray[np.int64]) -> int:
        """The points whose class has a probability of 0."""
        if self.kind != "probabilities":
            return 0
        of_labels = self.values[:, np.arange(len(self)), labels]
        return int((of_labels <= 0).all(0).sum())

    def blocks(self, task: Task) -> Iterator[Float[np.ndarray, "sample chunk output"]]:
        """Outputs of a network with this task, block by block in float64; DataError for numbers that are none."""
        step = max(1, _BLOCK // (self.samples * self.values.shape[2]))
        for start in range(0, len(self), step):
            rows = slice(start, start + step)
            values = self.values[:, rows].astype(np.float64)
            if (wrong := wrong_values(values, self.kind, task)) is not None:
                sample, row, what, expected = wrong
                of_sample = f" of sample {sample}" if self.is_of_samples else ""
                raise DataError(
                    f"{self.columns.source}: {self.found}, row {start + row}{of_sample} (counted from 0) {what}; "
                    f"expected {expected}."
                )
            yield self._outputs(values, rows, task)

    def _outputs(self, values: NDArray[Any], rows: slice, task: Task) -> NDArray[Any]:
        if self.kind == "probabilities":
            return as_logits(values, several_labels=not task.classifies_points)
        if self.sigma is not None:
            sigma = self.sigma[0, rows].astype(np.float64)
            if not (np.isfinite(sigma).all() and (sigma > 0).all()):
                row = int(np.flatnonzero(~((sigma > 0) & np.isfinite(sigma)).all(-1))[0])
                raise DataError(f"{self.columns.source}: σ in row {rows.start + row} is not a number above 0.")
            return np.stack([values[0] - sigma, values[0] + sigma])
        if self.levels is not None:
            return values[0].T[..., None]
        return values


def as_logits(p: Float[np.ndarray, "sample point output"], *, several_labels: bool) -> NDArray[Any]:
    """Probabilities as logits: normalised log-probabilities of classes, or the log-odds of labels."""
    log_p = np.log(p.clip(_LOWEST))
    if several_labels:
        return log_p - np.log((1 - p).clip(_LOWEST))
    return log_p - np.log(p.sum(-1, keepdims=True))


def wrong_values(
    values: Float[np.ndarray, "sample row output"], kind: Kind | None, task: Task
) -> tuple[int, int, str, str] | None:
    """The first row that is wrong: its sample, its number, what it has, and what is expected; None if there is none."""
    allowed = ~np.isnan(values) & (values < np.inf) if kind in ("logits", "log_probabilities") else np.isfinite(values)
    checks: list[tuple[Any, str]] = [(~allowed, "finite numbers")]
    total = np.empty(0)
    if kind == "probabilities":
        checks.append(((values < 0) | (values > 1 + TOLERANCE), "probabilities, from 0 to 1"))
    if kind in ("probabilities", "log_probabilities") and task.classifies_points:
        with np.errstate(over="ignore"):
            total = (values if kind == "probabilities" else np.exp(values)).sum(-1)
        checks.append((~(np.abs(total - 1) <= TOLERANCE), f"a sum of 1 to within {TOLERANCE:g}"))
    if kind == "quantiles":
        checks.append((np.diff(values, axis=-1) < 0, "quantiles that do not decrease with their level"))
    for wrong, expected in checks:
        if wrong.any():
            sample, row, *output = np.argwhere(wrong)[0].tolist()
            if output:
                return sample, row, f"holds {values[sample, row, output[0]]:.6g} for output {output[0]}", expected
            return sample, row, f"sums to {total[sample, row]:.6g}", expected
    return None


# ── what is found in a file ──────────────────────────────────────────────────────────────────────────────────────────


def given_sets(columns: Columns, section: ScoreSection, task: Task, points: int) -> dict[str, GivenSet]:
    """The predictions in a file: those of the test set, or, where an array is called "test", of every set by the names
    of the arrays. The test set has so many `points`."""
    if not section.columns and "test" in columns.values:
        arrays = {name: values for name, values in columns.values.items() if values.ndim > 1}
        return {name: _of_array(columns, name, values, task, None) for name, values in arrays.items()}
    return {"test": given_set(columns, section, task, points)}


def given_set(columns: Columns, section: ScoreSection, task: Task, points: int | None = None) -> GivenSet:
    """The predictions of one set, in the columns that the request names or that have names that say so; DataError if
    there are none."""
    found = next(_found(columns, section, task, points), None)
    if found is None:
        what = "numbers of the predictive distribution" if task.is_regression else "logits or probabilities"
        raise DataError(
            f"{columns.source}: no array or column is known to hold {what}; it has {listed(list(columns.values))}. "
            "Name them: --columns NAME,NAME."
        )
    return found


def _found(columns: Columns, section: ScoreSection, task: Task, points: int | None) -> Iterator[GivenSet]:
    if chosen := section.columns:
        yield _joined(columns, chosen, task, points, kind=_KINDS.get(chosen[0].lower()))
        return
    if task.is_regression:
        yield from _distribution(columns)
    for name in _KINDS:
        if not task.is_regression and (exact := columns.named([name])) is not None:
            yield _of_array(columns, exact, columns[exact], task, points, kind=_KINDS[name])
    if not task.is_regression:
        yield from _of_classes(columns, task, points)
    if (name := columns.named((*_ANY, *_MEANS))) is not None:
        yield _of_array(columns, name, columns[name], task, points)
    known = {*LABELS, *IDS, *GROUPS, *SCORES, *map(str.lower, section.scores)}
    rest = [name for name, values in columns.values.items() if _is_column(values) and name.lower() not in known]
    rest = [name for at, name in enumerate(rest) if not is_index(name, at)]
    if rest:
        yield replace(_joined(columns, rest, task, points), classes=tuple(rest))


def _of_classes(columns: Columns, task: Task, points: int | None) -> Iterator[GivenSet]:
    """Columns of one class each, such as prob_cat, by what they hold; those of texts are left out unless these are
    meant to be numbers."""
    named = {name: match for name in columns.values if (match := _CLASS.fullmatch(name)) is not None}
    for kind in dict.fromkeys(match[1].lower() for match in named.values()):
        names = [name for name, match in named.items() if match[1].lower() == kind]
        all_texts = all(columns[name].dtype.kind == "U" for name in names)
        names = [name for name in names if all_texts or _is_column(columns[name]) or _has_numbers(columns[name])]
        if names:
            classes = tuple(named[name][2] for name in names)
            yield replace(_joined(columns, names, task, points, kind=_KINDS[kind]), classes=classes)


def _distribution(columns: Columns) -> Iterator[GivenSet]:
    """A Gaussian, or quantiles, of a regression."""
    mean, sigma = columns.named(_MEANS), columns.named(_SIGMAS)
    if mean is not None and sigma is not None:
        values, deviations = (_as_samples(_numbers(columns, name)) for name in (mean, sigma))
        if values.shape != deviations.shape or len(values) > 1:
            raise DataError(f"{columns.source}: {mean} and {sigma} have shapes that do not fit together.")
        yield GivenSet(columns, values, "gaussian", f"mean {mean!r} and σ {sigma!r}", sigma=deviations)
    levels = {name: float(match[1]) for name in columns.values if (match := _QUANTILE.fullmatch(name)) is not None}
    levels = {name: level / 100 if level >= 1 else level for name, level in levels.items()}
    if len(levels) > 1:
        names = sorted(levels, key=lambda name: levels[name])
        values = np.stack([_numbers(columns, name) for name in names], axis=-1)[None]
        yield _of_quantiles(columns, values, np.array([levels[name] for name in names]), f"quantiles {listed(names)}")
    if {"quantiles", "levels"} <= columns.values.keys():
        yield _of_quantiles(columns, columns["quantiles"][None], columns["levels"], "'quantiles'")


def _of_quantiles(columns: Columns, values: NDArray[Any], levels: NDArray[Any], found: str) -> GivenSet:
    rises = levels.ndim == 1 and levels.dtype.kind == "f" and bool((np.diff(levels, prepend=-1e-9) > 0).all())
    if not rises or not len(levels) or levels[-1] > 1 or values.shape[2:] != levels.shape or values.ndim != 3:
        raise DataError(
            f"{columns.source}: {found} has shape {values.shape[1:]}, with the levels "
            f"{listed([*map(str, levels.ravel())])}; expected (n, L), and L levels that rise from 0 to 1."
        )
    return GivenSet(columns, values, "quantiles", found, levels=levels.astype(np.float64))


def _joined(
    columns: Columns, names: Sequence[str], task: Task, points: int | None, *, kind: Kind | None = None
) -> GivenSet:
    """Several columns, or the one array of that name."""
    if len(names) == 1:
        return _of_array(columns, names[0], columns[names[0]], task, points, kind=kind)
    stacked = np.stack([_numbers(columns, name) for name in names], axis=-1)
    return _of_array(columns, f"{names[0]} … {names[-1]}", stacked, task, points, kind=kind)


def _of_array(
    columns: Columns, name: str, values: NDArray[Any], task: Task, points: int | None, *, kind: Kind | None = None
) -> GivenSet:
    found = f"{name!r}" if name else "its array"
    if values.dtype.kind not in "fiu":
        raise DataError(f"{columns.source}: {found} holds {values.dtype}; expected numbers.")
    if task.is_regression and values.ndim == 2 and points == values.shape[1] != values.shape[0]:
        values = values[..., None]  # (T, n)
    samples = _as_samples(values)
    if samples.ndim == 3 and 0 in samples.shape:
        raise DataError(f"{columns.source}: {found} is empty, of shape {values.shape}; expected at least one point.")
    if samples.ndim != 3:
        raise DataError(
            f"{columns.source}: {found} has shape {values.shape}; expected (n, K), or (T, n, K) of samples."
        )
    kind = "means" if task.is_regression else kind or _kind_by_numbers(samples, task)
    if samples.shape[2] == 1 and task.classifies_points:  # of class 1 alone
        with np.errstate(divide="ignore"):  # of a probability of 1
            log_of_other = np.log1p(-np.exp(np.minimum(samples, 0)))
        others = {"logits": np.zeros_like(samples), "log_probabilities": log_of_other}
        other = others.get(kind, 1 - samples)
        samples = np.concatenate([other, samples], axis=-1)
    classes = columns.keys.get(name, ())
    if (names := columns.values.get("classes")) is not None and names.ndim == 1 and len(names) == samples.shape[2]:
        classes = tuple(map(str, names.tolist()))
    return GivenSet(columns, samples, kind, f"{found}, {kind.replace('_', '-')}", classes)


def _as_samples(values: NDArray[Any]) -> NDArray[Any]:
    return values[None, :, None] if values.ndim == 1 else values[None] if values.ndim == 2 else values


def _numbers(columns: Columns, name: str) -> NDArray[Any]:
    """A column; DataError for texts, with the first that is no number."""
    values = columns[name]
    if values.dtype.kind != "U":
        return values
    row = next((row for row, text in enumerate(values.flat) if not _is_number(text)), 0)
    text = str(values.flat[row])
    comma = " Write numbers with a decimal point, not a comma." * _is_number(text.replace(",", ".", 1))
    raise DataError(
        f"{columns.source}: {name!r} holds text, first {text[:50]!r} in row {row} (counted from 0); expected "
        f"numbers.{comma}"
    )


def _has_numbers(values: NDArray[Any]) -> bool:
    """Whether there are numbers among the first texts of a column."""
    return values.dtype.kind == "U" and any(_is_number(text.replace(",", ".", 1)) for text in values.flat[:1000])


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(np.isfinite(float(text)))
    return False


def _is_column(values: NDArray[Any]) -> bool:
    return values.ndim == 1 and values.dtype.kind in "fiu"


def _kind_by_numbers(values: NDArray[Any], task: Task) -> Kind:
    """Probabilities where all numbers, and their sums, could be; log-probabilities likewise; else logits."""
    sampled = values[:, :: max(1, values.shape[1] // 10_000)].astype(np.float64)
    in_range = bool((sampled >= 0).all() and (sampled <= 1 + TOLERANCE).all())
    if sampled.shape[2] == 1 or not task.classifies_points:
        return "probabilities" if in_range else "logits"
    if in_range and _sum_to_one(sampled):
        return "probabilities"
    return "log_probabilities" if (sampled <= TOLERANCE).all() and _sum_to_one(np.exp(sampled)) else "logits"


def _sum_to_one(p: NDArray[Any]) -> bool:
    """Whether most rows do: of the others, an error then says where they stand."""
    return bool(np.median(abs(p.sum(-1) - 1)) <= TOLERANCE)


def column_of(columns: Columns, requested: str | None, names: Sequence[str]) -> NDArray[Any] | None:
    """The column that was requested, or that has one of these names; None where there is none."""
    name = requested if requested is not None else columns.named(names)
    return None if name is None else columns[name]
