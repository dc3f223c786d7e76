"""The evaluated points of a result as tables: the source of each, its prediction and its scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bnuq.errors import RequestError
from bnuq.metrics.registry import metric_of
from bnuq.records.evaluation import Result
from bnuq.shapes import Int64, Shaped

Columns = Mapping[str, Shaped[np.ndarray, " point"]]
_ROWS = 4096  # of one piece of a CSV file
_PREFERRED = ("mutual_information", "variance", "predictive_entropy", "squared_error")


def points_table(result: Result, *, set: str = "test", method: str | None = None) -> Columns:  # noqa: A002
    """The points of a set by column, in their order: index, name, label, prediction and every score.

    Of a classification label and prediction, by name where the data name their classes, and of several labels those
    that the point has; of a regression target, mean, sd and error (mean − target), numbered from 0 if there are
    several outputs. A column is left out where nothing is known of it. Without a `method` it is `default_method`.
    RequestError for a set or a method that the result lacks.
    """
    scored = result.methods[chosen_method(result, method)].sets
    if set not in scored:
        raise RequestError(f"the examples of {set!r} are not in the result; expected one of {', '.join(scored)}.")
    evaluated, values = result.sets[set], scored[set]
    columns: dict[str, np.ndarray] = {
        "index": np.arange(evaluated.n) if evaluated.index is None else evaluated.index,
        **({} if evaluated.names is None else {"name": evaluated.names}),
    }
    if result.task.is_regression:
        moments = {"target": evaluated.targets, "mean": values.predicted, "sd": values.sigma}
        if evaluated.targets is not None:
            moments["error"] = values.predicted - evaluated.targets
        columns |= {key: part for name, array in moments.items() for key, part in _by_output(name, array)}
    else:
        classes = result.sets["test"].classes
        columns |= {} if evaluated.labels is None else {"label": _class_names(evaluated.labels, classes)}
        is_dense = result.task.is_dense  # of which the most frequent class is shown
        predicted = values.predicted.argmax(1) if is_dense else values.predicted
        columns["prediction"] = _class_names(predicted, classes)
    return columns | dict(values.points)


def scores_of(result: Result, *, set: str = "test", method: str | None = None) -> tuple[str, ...]:  # noqa: A002
    """The names of the scores that the result has for each point of a set."""
    return tuple(result.methods[chosen_method(result, method)].sets[set].points)


def chosen_method(result: Result, method: str | None) -> str:
    """`method`, or without one the first sampled method (or the deterministic one); RequestError for a method that
    the result lacks."""
    if method is None:
        return next(iter(result.sampled or result.methods))
    if method not in result.methods:
        raise RequestError(f"the method {method!r} is not in the result; expected one of {', '.join(result.methods)}.")
    return method


def chosen_score(scores: Iterable[str], by: str | None, *, methods: Sequence[str] = ()) -> str:
    """`by`, or without one the score that points are ordered by; RequestError for one that is not among `scores`, with
    the other `methods` that have it."""
    known = tuple(scores)
    if by is None:
        return next((name for name in _PREFERRED if name in known), known[0])
    if by not in known:
        elsewhere = f" It is a score of {', '.join(methods)}: --method {methods[0]}." if methods else ""
        expected = f"expected one of {', '.join(known)}.{elsewhere}"
        raise RequestError(f"the score {by!r} is not known of these examples; {expected}")
    return by


def methods_with(result: Result, score: str | None, *, set: str = "test") -> list[str]:  # noqa: A002
    """The methods that have this score for each point of a set."""
    return [name for name, method in result.methods.items() if set in method.sets and score in method.sets[set].points]


def worst_first(name: str, scores: Shaped[np.ndarray, " point"]) -> Int64[np.ndarray, " point"]:
    """The points by this score, from the worst to the best where one direction is better, else the largest first."""
    return largest_first(-scores if lowest_is_worst(name) else scores)


def lowest_is_worst(name: str) -> bool:
    """Of a single point also where it is least confident; of a whole set no mean confidence is best."""
    return metric_of(name).direction == "higher" or name == "max_probability"


def largest_first(scores: Shaped[np.ndarray, " point"]) -> Int64[np.ndarray, " point"]:
    """The points by descending score; those of equal score in their order, those without one (NaN) last."""
    return np.argsort(-scores, kind="stable")


def points_csv(result: Result) -> Iterator[bytes]:
    """All points of all sets under all methods as CSV (UTF-8), a row each, in pieces; a field is empty if nothing is
    known."""
    tables = {
        (name, method): points_table(result, set=name, method=method)
        for method, method_result in result.methods.items()
        for name in method_result.sets
    }
    header = list(dict.fromkeys(column for table in tables.values() for column in table))
    if "name" in header:  # it may be of a later set alone
        header = ["index", "name", *(column for column in header if column not in ("index", "name"))]
    yield _csv([("set", "method", *header)])
    for (name, method), table in tables.items():
        for start in range(0, n := len(table["index"]), _ROWS):
            rows = slice(start, min(start + _ROWS, n))
            empty = [""] * (rows.stop - start)
            columns = [table[column][rows].astype(str) if column in table else empty for column in header]
            yield _csv((name, method, *values) for values in zip(*columns, strict=True))


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _by_output(name: str, values: np.ndarray | None) -> Iterable[tuple[str, np.ndarray]]:
    if values is None:
        return
    for output, column in enumerate(values.T):
        yield (name if len(values.T) == 1 else f"{name}_{output}"), column


def _class_names(labels: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    named = dict(enumerate(classes))
    if labels.ndim == 2:  # several labels per point
        rows = (", ".join(named.get(label, str(label)) for label in np.flatnonzero(row).tolist()) for row in labels)
        return np.array([*rows], dtype=np.object_)
    if not classes:
        return labels
    return np.array([named.get(label, str(label)) for label in labels.tolist()], dtype=np.object_)
