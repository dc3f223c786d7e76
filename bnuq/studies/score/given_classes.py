"""The classes of predictions that other software made: the columns of all files in one order, by the names that the
files have for the classes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data import Points
from bnuq.data.readers.columns import texts_of
from bnuq.data.readers.common import as_option, listed
from bnuq.errors import DataError
from bnuq.findings import Finding, note, warning
from bnuq.frozen import frozen
from bnuq.studies.score.given import GivenSet
from bnuq.studies.score.roles import UnclearError, without_beginning

_CERTAIN = 3.0  # standard errors by which another order of the classes has to be right more often
_ASSIGNED = 50  # classes, of which all orders are tried
_SHOWN = 20  # classes in a message


@frozen
class _Named:
    """Predictions, and the names that their file has for the classes."""

    of: GivenSet
    names: tuple[str, ...]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return without_beginning(self.names)

    @property
    def has_words(self) -> bool:
        """Whether these are names, and not the numbers of the classes from 0."""
        return bool(self.names) and {*self.keys} != {*map(str, range(len(self.names)))}

    @property
    def file(self) -> str:
        return Path(self.of.columns.source).name


def in_one_order(
    given: Mapping[str, Mapping[str, GivenSet]],
    labels: NDArray[Any],
    *,
    asked: Sequence[str],
    of_labels: Sequence[str],
    by_number: bool = True,
) -> tuple[dict[str, dict[str, GivenSet]], tuple[str, ...], tuple[Finding, ...]]:
    """The predictions, by file and set, with their columns in one order, the names of the classes in it, and notes.

    The order is that of the names that are `asked` for (which may be new ones for those of the first file), else of the
    labels, else of the first file that names its columns. Numbered columns stand by their numbers, or, where labels
    are no numbers of classes (not `by_number`), as in the first file; others stay where they are."""
    count = next(iter(given.values()))["test"].values.shape[2]
    named = {(file, name): _named(of, labels, count) for file, sets in given.items() for name, of in sets.items()}
    by_words = [each for each in named.values() if each.has_words]
    numbered = next((each for each in named.values() if each.names and not each.has_words), None)
    stands = not by_number and numbered is next(iter(named.values()))
    places = numbered.keys if numbered is not None and stands else tuple(map(str, range(count)))
    order, classes = _order(by_words, numbered, places, asked, of_labels)
    result, moved = {file: dict(sets) for file, sets in given.items()}, dict[tuple[str, str], _Named]()
    for (file, name), each in named.items():
        keys = _Named(each.of, order).keys if each.has_words else places[: len(each.names)]
        if {*each.keys} != {*keys}:
            raise DataError(_differing(each, order, by_words[0].of.columns.source))
        if each.keys != keys:
            places_of_keys = {key: at for at, key in enumerate(each.keys)}
            columns = [places_of_keys[key] for key in keys]
            result[file][name] = replace(each.of, values=each.of.values[..., columns])
            moved[file, name] = each
    others = [each for place, each in named.items() if place not in moved]
    return result, classes, tuple(_notes([*moved.values()], others if by_words else (), list(classes)))


def _notes(moved: Sequence[_Named], others: Sequence[_Named], classes: list[str]) -> Iterator[Finding]:
    """What was brought to the order of the classes, and by what; and which of the `others` has no names for them."""
    for by in ("names", "numbers"):
        if files := {each.file for each in moved if each.has_words == (by == "names")}:
            yield note("columns-by-name", files=sorted(files), by=by, names=classes)
    if files := {each.file for each in others if not each.has_words and each.of.levels is None}:
        yield note("columns-by-place", files=sorted(files), names=classes)


def _order(
    by_words: Sequence[_Named],
    numbered: _Named | None,
    places: Sequence[str],
    asked: Sequence[str],
    of_labels: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The order of named columns, and the names of the classes in it; numbered ones stand as `places`."""
    wanted, source = (asked, "--classes") if asked else (of_labels, "the labels")
    order = classes = tuple(wanted)
    if by_words and {*wanted} != {*by_words[0].names}:
        first = by_words[0]
        if wanted and not (asked and {*wanted}.isdisjoint(first.names)):
            raise DataError(_differing(first, wanted, source))
        order, classes = first.names, tuple(wanted) or first.names
    elif numbered is not None and not wanted:
        name_of = dict(zip(numbered.keys, numbered.names, strict=True))
        classes = tuple(name_of[key] for key in places)
    return order, classes


def _named(given: GivenSet, labels: NDArray[Any], count: int) -> _Named:
    """The names of all `count` classes; of two, the column of one names the other by the labels, where these do."""
    names = given.classes
    if len(names) == 1 and count == 2 and labels.ndim == 1:
        others = [text for text in {*texts_of(labels).tolist()} if text != names[0]]
        names = (others[0], names[0]) if len(others) == 1 else ()
    return _Named(given, names if 1 < count == len(names) == len({*names}) else ())


def _differing(named: _Named, expected: Sequence[str], source: str) -> str:
    return (
        f"{named.of.columns.source}: its columns are of the classes {listed(named.names)}, and those of {source} are "
        f"{listed(list(expected))}; expected the same names, in any order."
        + (" Name those of the columns, in their order: --classes NAME,NAME." if source == "the labels" else "")
    )


def order_findings(
    points: Points, values: NDArray[Any], given: GivenSet, *, named: bool, asked: bool
) -> Iterator[Finding]:
    """A note on what columns without names, or labels whose `values` are numbers beside `named` columns, are taken for.
    Where another order (reversed, sorted, or the best for few classes) makes clearly more predictions right, a warning
    if columns have no names or the order was `asked` for, and else DataError."""
    labels, count = points.targets, given.values.shape[2]
    if not isinstance(labels, np.ndarray) or labels.ndim > 1 or given.kind == "confidences":
        return
    names = [str(name) for name in points.classes or range(count)]
    are_numbers = all(re.fullmatch(r"-?\d+", name) for name in names)
    if named and (are_numbers or values.dtype.kind not in "fiub" or not _Named(given, tuple(names)).has_words):
        return
    by_order = note("classes-by-order", names=names[:3], alphabet=points.classes is not None and not asked)
    yield note("labels-numbered", names=names) if named else by_order
    in_order, top = np.arange(count), given.values[0].argmax(-1)
    tried = _other_orders(names, top, labels, are_numbers=are_numbers)
    right, best, share = top == labels, None, float((top == labels).mean())
    for order, errors in tried:
        other = order[top] == labels
        if int(other.sum()) - int(right.sum()) > errors * np.sqrt(np.count_nonzero(other != right)):
            right, best = other, order
    if given.columns.by_score and not asked:
        raise _of_scores(points, names, top, [tried[2], (in_order, _CERTAIN), *tried])
    if best is not None and (asked or not named):
        found = [names[k] for k in best[:_SHOWN]]
        better = float(right.mean())
        yield warning("classes-in-another-order", names=names[:_SHOWN], order=found, right=share, better=better)
    elif best is not None:
        others = [names[k] for k in np.argsort(best)]
        shown = [", ".join(f"{k} = {name}" for k, name in enumerate(of[:_SHOWN])) for of in (names, others)]
        raise UnclearError(
            f"{points.reference}: the labels are numbers. In the order of the columns ({shown[0]}) {share:.1%} of the "
            f"predictions are right; in another one ({shown[1]}) {right.mean():.1%} are. Say which class each number "
            f"is: --classes {as_option(*others)}, or --classes {as_option(*names)}.",
            classes=(*others,),
        )


def _other_orders(
    names: Sequence[str], top: NDArray[Any], labels: NDArray[Any], *, are_numbers: bool
) -> list[tuple[NDArray[Any], float]]:
    """Orders of classes to try, each with the standard errors by which it has to be right more often."""
    count, in_order = len(names), np.arange(len(names))
    by_text = np.array(sorted(range(count), key=lambda k: names[k]))
    by_number = np.array(sorted(range(count), key=lambda k: float(names[k]))) if are_numbers else in_order
    tried = [(order, _CERTAIN) for order in (in_order[::-1], by_text, np.argsort(by_text), by_number)]
    if count <= _ASSIGNED:
        from scipy.optimize import linear_sum_assignment  # late: for few requests

        table = np.zeros((count, count))
        np.add.at(table, (top, labels), 1)  # the best of K! orders is better by chance
        tried += [(linear_sum_assignment(table, maximize=True)[1], (_CERTAIN**2 + 2 * math.lgamma(count + 1)) ** 0.5)]
    return tried


def _of_scores(
    points: Points, names: Sequence[str], top: NDArray[Any], tried: Sequence[tuple[NDArray[Any], float]]
) -> UnclearError:
    """The error for labels that are numbers beside scores by words; its cure is the likeliest of these orders."""
    right = [float((order[top] == points.targets).mean()) for order, _ in tried]
    others = [names[k] for k in np.argsort(tried[int(np.argmax(right))][0])]
    text = f"{points.reference}: the labels are numbers. Say which class each number is, from 0: --classes "
    text += f"{as_option(*others)}, by which {max(right):.1%} are right, or another order."
    return UnclearError(text, classes=(*others,))
