"""The points that given predictions are of: their labels, ids and groups, matched with the predictions."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data import Points, check_label_matrix, check_labels, check_targets, load_points
from bnuq.data.common_layout import group_codes
from bnuq.data.readers.columns import UNNAMED, Columns, read_columns, texts_of
from bnuq.data.readers.common import as_option, is_index, listed
from bnuq.errors import DataError, RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.findings import Finding, joined, note, warning
from bnuq.frozen import frozen
from bnuq.shapes import Int64
from bnuq.studies.score import roles as named
from bnuq.studies.score.given import SPREADS, WITH_MARKS, GivenSet, numbers_of, wrong_values
from bnuq.studies.score.roles import INDEX, UnclearError, flat, is_numeric, role_by_name, roles_of
from bnuq.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, Task

Source = Path | str | Columns  # a file, a reference, or what is in memory
_EXACT = 1e-6  # sums of probabilities of float32
_FEW, _MANY = 20, 10_000  # points, all of which may be right; that tell what numbers are
_MOST_CLASSES = 1000  # texts that classes are numbered by, where the predictions name none


@frozen
class Truth:
    """Labels or targets with the ids and the groups that stand beside them."""

    source: str
    values: NDArray[Any]
    found: str
    ids: NDArray[Any] | None = None
    group: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    columns: Columns | None = None
    name: str | None = None
    is_right: bool = False  # whether predictions are right, and no labels

    def place(self, rows: Sequence[int]) -> str:
        """Where rows are in the file, see `Columns.place`."""
        return (self.columns or Columns(self.source, {})).place(rows)

    @property
    def of_classes(self) -> frozenset[str]:
        """The names of the classes that occur, whole numbers without a fraction; of a matrix those of its columns."""
        if self.values.ndim > 1 or self.is_right:
            return frozenset(self.classes)
        return frozenset(texts_of(np.unique(self.values) if is_numeric(self.values) else self.values).tolist())

    @property
    def single(self) -> int | None:
        """The number of points, where each has one label or target."""
        return len(self.values) if self.values.size == len(self.values) else None

    def label_in(self, columns: Columns) -> str | None:
        """The column of the labels, if it is of this file."""
        is_here = self.columns is not None and columns.source == self.columns.source and not self.is_right
        return self.name if is_here else None


def columns_at(source: Source) -> tuple[Columns, str | None]:
    """What a file holds, and the column that is named after a colon: FILE:COLUMN."""
    if isinstance(source, Columns):
        return source, None
    path = Path(expanded(str(source)))
    if exists(path):
        return read_columns(path), None
    file, colon, column = str(source).rpartition(":")
    if colon and exists(Path(expanded(file))):
        return read_columns(Path(expanded(file))), column
    return read_columns(path), None


def truth_of(labels: Source | None, first: Columns, section: ScoreSection) -> Truth:
    """The labels of a request, which may stand beside the first predictions; DataError if there are none."""
    if labels is None:
        if (name := _label_of(first, section)) is None:
            roles = roles_of(first, section)
            right = [name for name in roles if roles[name] == "correct"]
            if len(right) == 1 and {"confidence", "score", "log_probabilities"} & {*roles.values()}:
                truth = _truth(first, right[0], section)
                return replace(truth, values=_is_right(truth.values, first.source, right[0]), is_right=True)
            raise _no_labels(first, roles, right)
        return _truth(first, name, section)
    if isinstance(labels, str | Path) and not exists(Path(expanded(str(labels).partition(":")[0]))):
        points = load_points(str(labels), name="test", base=Path.cwd(), split_default="test")
        if points.targets is None:
            raise DataError(f"{labels}: has no labels.")
        group = None if points.group is None else points.group_of_point
        return Truth(f"{labels}", points.targets, "labels", None, group, tuple(points.classes or ()))
    columns, column = columns_at(labels)
    name = column or _label_of(columns, section) or _only_one(columns, first, section)
    roles, other = roles_of(columns, section, name), columns.source != first.source
    if kinds := [of for of in columns.values if of not in roles and role_by_name(of) == "kinds"] * other:
        if keys := _keys_of_both(columns, first, roles, kinds):
            text = f"{columns.source}: {listed(keys)} tell the rows of both files apart, together: --ids "
            raise UnclearError(f"{text}{as_option(*keys)}.", ids=",".join(keys))
        raise named.without_role(columns, kinds)
    if role_by_name(name) == "correct":
        raise DataError(
            f"{columns.source}: {name!r} says by its name whether predictions are right. Leave --labels out, and name "
            "the confidences beside it: --columns confidence=NAME. If it holds labels, give it another name."
        )
    return _truth(columns, name, section)


def _no_labels(first: Columns, roles: Mapping[str, str], right: Sequence[str]) -> DataError:
    """The error for predictions without labels, of which a column may say that they are `right`."""
    if right and (others := flat(first, roles, "positive")):
        text = f"{first.source}: {others[0]!r} may be the confidence in what {right[0]!r} says of predictions."
        return UnclearError(text, columns=(f"confidence={others[0]}",))
    if (unclear := _without_labels(first, roles)) is not None:
        return unclear
    if right:
        text = f"{first.source}: {right[0]!r} says which predictions are right; nothing says how sure they are"
        return DataError(f"{text}: write a column `confidence`, or name one: --columns confidence=NAME.")
    return DataError(
        f"{first.source}: has no array or column of labels; it has {listed(list(first.values))}. "
        + "Its first line names no columns: write one above it, such as prob_cat,prob_dog,label. "
        * ({*first.values} <= {"", "column 0"})
        + "Labels of another file, or of another column, are named by --labels FILE:COLUMN."
    )


def _keys_of_both(columns: Columns, first: Columns, roles: Mapping[str, str], kinds: Sequence[str]) -> list[str]:
    """Ids that repeat, and what tells kinds of rows apart, where both files have them and they differ together."""
    ids = [name for name in roles if roles[name] in ("ids", "key") and name in first.values]
    keys = [*(name for name in kinds if name in first.values), *ids]
    return keys if ids and len(keys) > len(ids) and not _differ(columns, ids) and _differ(columns, keys) else []


def _only_one(columns: Columns, first: Columns, section: ScoreSection) -> str:
    """The one column of a file of labels that is nothing else, or all of 0 and 1 that the predictions have, too."""
    others = {"ids", "key", "groups", "ignored", "kinds"}
    roles = roles_of(columns, section)
    names = [of for of in columns.values if (roles.get(of) or role_by_name(of)) not in others] or [*columns.values]
    if len(names) > 1 and {*names} <= {*first.values} and all(_is_binary(columns[name]) for name in names):
        return ",".join(names)
    if names == ["0", UNNAMED]:  # by the number of the predictions
        counts = {count for values in first.values.values() for count in values.shape}
        names = [of for of in names if len(columns[of]) in counts] or names
    if len(names) == 1:
        return names[0]
    names = named.likely_labels(columns, names, _words_of(first, [of for of in first.values if of not in names]))
    of_zero = " Its first line, 0, may be a name, as pandas gives it to a Series, or a label."
    text = f"{columns.source}: no array or column has a name of labels.{of_zero * (UNNAMED in names)}"
    raise _several_labels(columns, names, text)


def _several_labels(columns: Columns, names: Sequence[str], text: str) -> UnclearError:
    """The error where any of these columns, the likeliest first, may be the labels; those of 0 and 1 also together."""
    together = [",".join(names)] * all(_is_binary(columns[name]) for name in names)
    files = [f"{columns.source}:{name}" for name in (*names[:5], *together)]
    return UnclearError(f"{text} Name them: --labels {' or --labels '.join(map(shlex.quote, files))}.", labels=files[0])


def _words_of(columns: Columns, free: Sequence[str]) -> frozenset[str]:
    """The classes by columns of a class each, and by hard predictions."""
    families = [family for family in named.class_columns(columns, free).values() if len(family) > 1]
    words = frozenset(word for family in families for word in family.values())
    hard = [name for name in columns.values if role_by_name(name) == "hard" and columns[name].ndim == 1]
    return words.union(*(texts_of(columns[name]).tolist() for name in hard))


def _without_labels(columns: Columns, roles: Mapping[str, str]) -> DataError | None:
    """The error for a table of predictions without a column of labels, which one of the others may be."""
    free, hard = [name for name in columns.values if name not in roles], flat(columns, roles, "hard")
    families = [family for family in named.class_columns(columns, free).values() if len(family) > 1]
    unused = [of for of in free if columns[of].ndim == 1 and not any(of in family for family in families)]
    unused += [name for name in hard if len(hard) > 1 and "pred" not in name.lower()]  # such as response of H2O
    if not unused or (columns.exact is None and not isinstance(columns.values, dict)):  # arrays of a .npz may be large
        return None
    (true, said), words = named.true_and_pred(columns), _words_of(columns, free)
    labels = named.likely_labels(columns, [of for of in unused if role_by_name(of) not in ("kinds", "draws")], words)
    several = [of for of in unused if of in words and _is_binary(columns[of])]
    labels = [",".join(true)] * bool(true) or [",".join(several)] * (len(several) > 1) or labels
    of_kinds = {"confidence", "score", "positive", "logits", "log_probabilities", "quantile", "mean"}
    of_kinds |= {roles[name] for name in hard if is_numeric(columns[name]) and np.any(columns[name] % 1)}
    found = any((families, of_kinds & {*roles.values()}))
    unused = [*unused, *named.unclear(roles)]
    return named.without_role(columns, unused, labels=labels, said=said, found=found)


def _label_of(columns: Columns, section: ScoreSection) -> str | None:
    """The column with a name of labels; None without one, DataError for several."""
    roles = roles_of(columns, section)
    names, free = [of for of in roles if roles[of] == "labels"], [of for of in columns.values if of not in roles]
    classes = {name for family in named.class_columns(columns, free).values() for name in family.values()} | {*free}
    free = free if names and (columns.exact is not None or len(classes) > len(free)) else []  # arrays may be large
    names += [of for of in free if (v := columns[of]).ndim == 1 and not is_numeric(v) and {*v.tolist()} <= classes]
    if len(names) > 1:
        is_top = not {"score", "confidence"}.isdisjoint(roles.values())  # `label` of Hugging Face is the prediction
        texts = [columns[of] for of in names if columns[of].ndim == 1 and not is_numeric(columns[of])]
        words = {text for values in texts for text in values.tolist()}  # which name classes, perhaps columns of them
        by_word = sorted(
            names, key=lambda of: (of in words, of == "label" and is_top, "pred" in of, role_by_name(of) == "labels")
        )
        text = f"{columns.source}: {listed(names)} all have names of labels, or hold those of classes; expected one."
        raise _several_labels(columns, by_word, text)
    return names[0] if names else None


def _truth(columns: Columns, name: str, section: ScoreSection) -> Truth:
    of_names, several = columns.values.get("classes"), named.several(columns, name)
    names = () if of_names is None or is_numeric(of_names) else tuple(map(str, of_names.tolist()))
    values = np.stack([numbers_of(columns, of) for of in several], axis=-1) if several else columns[name]
    if several and _is_binary(values):
        names = tuple(of.removeprefix("true_").removesuffix("_true") for of in several)
    values = values[:, 0] if values.shape[1:] == (1,) else values
    if values.ndim == 1 and not is_numeric(values):
        if all(re.fullmatch(r"-?(0|[1-9]\d{0,8})", text) for text in values):
            values = values.astype(np.int64)  # numbers as texts
        elif all(map(WITH_MARKS.fullmatch, values)) and not all(re.fullmatch(r"[-+]?[\d.]*", of) for of in values):
            numbers_of(columns, name)  # an error, which says what stands between the digits
        else:
            _check_tags(values, columns.source, name)
    truth = Truth(columns.source, values, f"{name!r}" if name else "its array", classes=names, name=name)
    columns = replace(columns, classes=truth.of_classes)
    ids, group = _ids(columns, section, name), _groups(columns, section)
    return replace(truth, ids=ids, group=group, columns=columns)


def _check_tags(values: NDArray[Any], source: str, name: str) -> None:
    """DataError for several labels in a text, which are fewer than their combinations."""
    texts = {text for text in values.tolist() if text}
    for mark in (",", ";", "|"):
        parts = {part.strip() for text in texts for part in text.split(mark)}
        if len(parts) < len(texts) and any(mark in text for text in texts):
            one = next(text for text in values if mark in text)[:50]
            made = f"table[{name!r}].str.get_dummies({mark!r}).to_csv('labels_01.csv', index=False)"
            text = f"{source}: {name!r} holds several labels in a text, such as {one!r}. Write a column of 0 and 1 for"
            raise DataError(f"{text} each, in pandas: {made}. Then: --labels labels_01.csv:{','.join(sorted(parts))}.")


def _is_binary(values: NDArray[Any]) -> bool:
    return is_numeric(values) and bool(np.isin(values, (0, 1)).all())


def _groups(columns: Columns, section: ScoreSection) -> NDArray[Any] | None:
    """The column of groups; None where this file has none."""
    names = [name for name, role in roles_of(columns, section).items() if role == "groups"]
    return columns[names[0]] if names else None


def _ids(columns: Columns, section: ScoreSection, label: str | None = None) -> NDArray[Any] | None:
    """The ids of this file, as texts: those of --ids; the first that is no index; or keys that differ together."""
    roles = roles_of(columns, section, label)
    ids, keys = _id_names(roles), flat(columns, roles, "key")
    if section.ids is None:
        ids = [name for name in ids if not is_index(name, 0)][:1] or (keys if keys and _differ(columns, keys) else [])
    return columns.texts(*ids) if ids else None


def _differ(columns: Columns, names: Sequence[str]) -> bool:
    """Whether these columns tell all rows apart together."""
    return len(np.unique(texts := columns.texts(*names))) == len(texts)


def _id_names(roles: Mapping[str, str]) -> list[str]:
    """The columns of ids, an index last."""
    return sorted((name for name in roles if roles[name] == "ids"), key=_is_of_rows)


def _is_of_rows(name: str) -> bool:
    """Whether a column is called like the index of a DataFrame, which may only number the rows of a file."""
    return is_index(name, 0) or name.strip().lower() == "index"


def task_of(truth: Truth, first: Columns, section: ScoreSection) -> Task:
    """The task by the labels: a regression for fractions, several labels for columns of 0 and 1; and a regression
    beside quantiles, or a mean. DataError where numbers may be targets as well as classes."""
    if truth.is_right:
        return CLASSIFICATION
    if section.task is not None:
        return {"classification": CLASSIFICATION, "multilabel": MULTILABEL, "regression": REGRESSION}[section.task]
    values, roles = truth.values, roles_of(first, section, truth.label_in(first))
    if (section.outputs or "").startswith("draws"):
        return REGRESSION
    if not is_numeric(values):
        return CLASSIFICATION
    if values.ndim == 2 and values.shape[1] > 1 and _is_binary(values):
        return CLASSIFICATION if bool((values.sum(1) == 1).all()) else MULTILABEL
    finite = values[np.isfinite(values)]
    if values.ndim > 1 or not bool((finite == np.round(finite)).all()):
        return REGRESSION
    found = {role for name, role in roles.items() if role != "hard" or is_numeric(first[name])}
    is_spread = found & {"quantile", "mean"} or (found & SPREADS.keys() and "hard" in found)
    if section.outputs is None and is_spread:
        return REGRESSION
    return REGRESSION if section.outputs is None and _are_means(first, roles, found, finite) else CLASSIFICATION


def _are_means(first: Columns, roles: Mapping[str, str], found: set[str], targets: NDArray[Any]) -> bool:
    """Whether point predictions with fractions stand beside whole targets; DataError if they may be probabilities."""
    of_classes = found & {"positive", "score", "confidence", "logits", "log_probabilities", "array", "predictions"}
    of_classes |= named.class_columns(first, [name for name in first.values if name not in roles]).keys()
    hard = [name for name in roles if roles[name] == "hard" and is_numeric(first[name])]
    hard = [of for of in hard if first[of].ndim == 1 or (first[of].shape[1:] == (1,) and np.ptp(first[of]) > 1)]
    if of_classes or not any(np.any(first[name] % 1) for name in hard):
        return False
    if _is_binary(targets):
        raise UnclearError(
            f"{first.source}: {hard[0]!r} may be the probabilities of class 1, or predictions of the targets 0 and 1. "
            f"Say which: --columns {as_option(hard[0])} --outputs probabilities, or --task regression.",
            columns=(hard[0],),
            outputs="probabilities",
        )
    return True


def matched(given: GivenSet, truth: Truth, section: ScoreSection) -> tuple[GivenSet, tuple[Finding, ...]]:
    """The predictions in the order of the labels: by ids where both have them, else row by row; DataError where they
    are of other points."""
    columns, source = given.columns, given.columns.source
    of_one_file = truth.columns is None or source == truth.source
    pair = None if of_one_file else _pairing(given, truth, section)
    findings = list[Finding]()
    if pair is not None and truth.columns is not None:
        ids, wanted = columns.texts(*pair[0]), truth.columns.texts(*pair[1])
        by = joined([of or INDEX for of in pair[0]])
        rows = _rows_by_id(ids, wanted, source, truth.source, by)
        is_moved = bool((rows != np.arange(len(rows))).any())
        if is_moved and section.ids is None and _is_of_rows(pair[0][0]) and (_counts(ids) or _counts(wanted)):
            raise DataError(
                f"{source}: its {by} is in another order than that of {truth.source}, and may only number the rows of "
                f"one file. --ids {shlex.quote(by)} pairs rows by it; --ignore {shlex.quote(by)} by position."
            )
        findings.append(note("paired-by-ids", column=by, files=[source, truth.source], moved=is_moved))
        given = given.taken(rows)
    elif len(given) != len(truth.values):
        raise DataError(
            f"{source}: holds predictions of {len(given)} points ({given.found}), and {truth.source} "
            f"{len(truth.values)} labels; expected as many, in one order, or ids in both (--ids COLUMN)."
            + (" Samples are (T, n, K): transpose the array." if len(truth.values) in given.values.shape else "")
        )
    elif section.ids is not None and source != truth.source:
        raise DataError(f"--ids {section.ids}: no such column in both {source} and {truth.source}.")
    elif (_ids(columns, section) is None) != (truth.ids is None) and source != truth.source:
        file = Path(truth.source if truth.ids is not None else source).name
        findings.append(note("ids-in-one-file", file=file))
    for own in given.roles.get("labels", ()) if pair is None and source != truth.source else ():
        values = columns[own]
        if values.shape == truth.values.shape == (len(given),):  # and none of them one-hot rows
            for row in np.flatnonzero(texts_of(values) != texts_of(truth.values))[:1].tolist():
                raise DataError(
                    f"{source}: {columns.place([row])} has the label {values[row]}, and {truth.source} "
                    f"{truth.values[row]}; expected one order, or ids in both (--ids COLUMN). If {own!r} is no label: "
                    f"--ignore {as_option(own)}."
                )
    return given, tuple(findings)


def without_others(truth: Truth, given: GivenSet, section: ScoreSection) -> tuple[Truth, tuple[Finding, ...]]:
    """The labels of the points with predictions, where --ids names the ids of both, and a warning of the others."""
    columns = truth.columns
    if section.ids is None or truth.ids is None or columns is None or columns.source == given.columns.source:
        return truth, ()
    names = ["" if of == INDEX else of for of in named.ids_in(section, columns)]
    if not {*names} <= {*given.columns.values} & {*columns.values}:
        return truth, ()
    wanted = {*given.columns.texts(*names).tolist()}
    rows = np.array([row for row, of in enumerate(truth.ids.tolist()) if of in wanted], dtype=np.int64)
    if len(rows) == len(truth.values) or len({*truth.ids[rows].tolist()}) < len(wanted):
        return truth, ()
    values = {name: of[rows] for name, of in columns.values.items() if len(of) == len(truth.values)}
    exact = None if columns.exact is None else lambda name: columns.exact(name)[rows]
    group = None if truth.group is None else truth.group[rows]
    taken = replace(truth, values=truth.values[rows], ids=truth.ids[rows], group=group)
    found = warning("labels-left-out", file=Path(truth.source).name, count=len(truth.values) - len(rows))
    return replace(taken, columns=replace(columns, values=values, exact=exact, header=None)), (found,)


def _is_right(values: NDArray[Any], source: str, name: str) -> NDArray[np.int64]:
    """1 for a prediction that is right, 0 for one that is wrong; DataError for what says neither."""
    words = dict.fromkeys(("1", "true", "yes", "right", "correct"), 1)
    words |= dict.fromkeys(("0", "false", "no", "wrong", "incorrect"), 0)
    texts = [text.strip().lower() for text in texts_of(values).tolist()]
    if unknown := [text for text in texts if text not in words]:
        raise DataError(
            f"{source}: {name!r} holds {unknown[0][:50]!r}; expected whether each prediction is right, 0 or 1. Is it "
            f"something else? --ignore {as_option(name)}."
        )
    return np.array([words[text] for text in texts])


def judged(given: GivenSet, truth: Truth, classes: Sequence[str] = ()) -> GivenSet:
    """Confidences with whether each prediction is right; other predictions as they are. `classes` are the words for the
    labels 0, 1, …. DataError where that is not known, and where predictions without a name of their own are all
    right."""
    source, hard = given.columns.source, given.hard
    if given.kind != "confidences":
        return given
    if given.correct is not None and (hard is None or truth.is_right):
        return replace(given, right=_is_right(given.correct, source, *given.roles["correctness"]))
    if hard is None:
        raise DataError(f"{source}: holds confidences, and neither predictions nor whether they are right.")
    texts = texts_of(truth.values)
    hard = _in_words_of(hard, labels := {*texts.tolist()}, classes)
    right = (hard == texts) * 1
    if (words := {*hard.tolist()}).isdisjoint(labels) and not words <= {*map(str, range(len(classes)))}:
        are_numbers = all(re.fullmatch(r"\d+", label) for label in labels)
        cure = f"Say which word is 0, which is 1, …: --classes {as_option(*sorted(words))}, or another order."
        cure = cure if are_numbers else "Write the same words in both."
        raise UnclearError(
            f"{source}: predictions are {listed(sorted(words)[:5])}, and labels of {truth.source} "
            f"{listed(sorted(labels)[:5])}: they have no word in common. {cure}",
            **({"classes": (*sorted(words),)} if are_numbers else {}),
        )
    is_label = any(role_by_name(name) == "labels" for name in given.roles.get("hard predictions", ()))
    if right.all() and is_label and source != truth.source:
        raise DataError(
            f"{source}: its labels are those of {truth.source} throughout. If they are the predictions, call them "
            "prediction; if not, the file does not say of what its scores are."
        )
    return replace(given, right=right)


def _in_words_of(hard: NDArray[Any], labels: AbstractSet[str], classes: Sequence[str] = ()) -> NDArray[Any]:
    """Hard predictions, where labels are numbers, by the numbers of these `classes`, or behind one word: LABEL_1."""
    words = sorted({*hard.tolist()})
    bare = dict(zip(words, named.without_beginning(words), strict=True))
    bare |= {word: str(classes.index(word)) for word in words if word in classes}
    return np.array([bare[word] for word in hard.tolist()], object) if labels.isdisjoint(words) else hard


def unknown_words(given: GivenSet, truth: Truth, method: str, classes: Sequence[str] = ()) -> Iterator[Finding]:
    """Warnings where words of predictions are no labels, and the reverse, or differ in case and spaces alone."""
    if given.kind == "confidences" and given.hard is not None and not truth.is_right:
        labels = texts_of(truth.values)
        hard = _in_words_of(given.hard, {*labels.tolist()}, classes)
        folded = ([" ".join(text.casefold().split()) for text in of.tolist()] for of in (hard, labels))
        if alike := sum(map(str.__eq__, *folded)) - int((hard == labels).sum()):
            yield warning("words-differ-in-form", method=method, count=alike, points=len(hard))
        only = [sorted({*a.tolist()} - {*b.tolist()})[:5] for a, b in ((hard, labels), (labels, hard))]
        if all(only):
            yield warning("words-differ", method=method, predicted=only[0], labels=only[1])


def compared(given: GivenSet, points: Points, method: str) -> Iterator[Finding]:
    """What hard predictions, correctness and labels say of each other: a note where hard predictions are the largest
    probabilities, else warnings; DataError for labels that are one too high."""
    labels, right, count = points.targets, given.right, given.values.shape[2]
    if right is None and labels is not None and labels.ndim == 1:
        top = given.values.mean(0).argmax(-1)
        right = top == labels
        if right.all() and len(right) >= _FEW:
            yield warning("labels-are-predictions", method=method, points=len(right))
        if labels.min() == 1 and (top == labels - 1).sum() > max(_FEW, 2 * right.sum()):
            raise DataError(f"{points.reference}: no label is 0, and most are one above the prediction. Subtract 1.")
    if right is not None and given.correct is not None:
        said = _is_right(given.correct, given.columns.source, *given.roles["correctness"])
        if differing := int((said != right).sum()):
            yield warning("correctness-differs", method=method, points=len(right), count=differing)
    if given.hard is None or given.right is not None or given.is_of_samples:
        return
    numbers = {str(name): number for number, name in enumerate(points.classes or range(count))}
    hard = np.array([numbers.get(text, -1) for text in _in_words_of(given.hard, numbers.keys()).tolist()])
    if (unknown := np.flatnonzero(hard < 0)).size:
        word = str(given.hard[unknown[0]])[:50]
        yield warning("hard-predictions-unknown", method=method, word=word, classes=[*numbers][:20])
        return
    if count := int((np.take_along_axis(given.values[0], hard[:, None], axis=1)[:, 0] < given.values[0].max(-1)).sum()):
        yield warning("hard-predictions-differ", method=method, points=len(hard), count=count)


def _pairing(given: GivenSet, truth: Truth, section: ScoreSection) -> tuple[Sequence[str], Sequence[str]] | None:
    """The columns that pair the rows of two files: those of --ids; an id; shared keys; an index. None without any."""
    assert truth.columns is not None
    columns = given.columns
    roles = roles_of(columns, section)
    ours, theirs = _id_names(roles), _id_names(roles_of(truth.columns, section, truth.name))
    lower = {name.strip().lower(): name for name in theirs}
    pairs = [(name, lower[key]) for name in ours if (key := name.strip().lower()) in lower]
    if section.ids is not None:
        return (ours, [*dict(pairs).values()]) if len(pairs) == len(ours) == len(theirs) > 0 else None
    if not pairs and ours and theirs and not _is_of_rows(ours[0]) and not _is_of_rows(theirs[0]):
        pairs = [(ours[0], theirs[0])]
    if pairs and not _is_of_rows(pairs[0][0]):
        return pairs[0][:1], pairs[0][1:]
    used = {*named.matching(columns, section.ignore, needed=False), truth.name, *filter(_is_of_rows, ours)}
    used |= {*given.roles.get("predictions", ()), *given.roles.get("labels", ())}
    if names := _shared_keys(columns, truth.columns, used, {name for name in roles if roles[name] == "key"}):
        return names, names
    for of, names in ((columns, ours), (truth.columns, theirs)) if not pairs else ():
        if names and _is_of_rows(names[0]) and _is_shuffled(of[names[0]]):
            name = names[0] or INDEX
            raise DataError(
                f"{of.source}: its index {name!r} is not in order, and the other file has none to pair it with. Write "
                f"the rows of both in one order; if they are, leave it out: --ignore {as_option(name)}."
            )
    return (pairs[0][:1], pairs[0][1:]) if pairs else None


def _counts(texts: NDArray[Any]) -> bool:
    """Whether ids count the rows, from 0 or from 1."""
    return any(texts.tolist() == [*map(str, range(start, start + len(texts)))] for start in (0, 1))


def _is_shuffled(index: NDArray[Any]) -> bool:
    """Whether an index numbers all rows, in another order than theirs."""
    rows = np.arange(len(index))
    return is_numeric(index) and bool((np.sort(index) == rows).all()) and not bool((index == rows).all())


def _shared_keys(columns: Columns, others: Columns, used: set[str | None], keys: set[str]) -> list[str]:
    """The columns that have the same values in both files, or else keys of both, which differ together."""
    shared = [name for name in columns.values if name in others.values and name not in used]
    both = {name: (columns.texts(name), others.texts(name)) for name in shared if columns[name].ndim == 1}
    alike = [name for name, of in both.items() if of[1].ndim == 1 and Counter(of[0]) == Counter(of[1])]
    for names in (alike, [name for name in both if name in keys]):
        if names and _differ(columns, names) and _differ(others, names):
            return names
    if moved := [name for name in alike if (both[name][0] != both[name][1]).any()]:
        raise DataError(
            f"{columns.source} and {others.source} have the same values of {listed(moved)} in another order. Name the "
            "columns that tell rows apart together: --ids NAME,NAME; or leave these out, and rows are paired by "
            f"position: --ignore {as_option(*moved)}."
        )
    return []


def _rows_by_id(
    ids: NDArray[Any], wanted: NDArray[Any], source: str, labels: str, by: str = "it", *, all_of_them: bool = True
) -> Int64[np.ndarray, " point"]:
    """The row of each id that is wanted; DataError where ids occur twice, or are not the same, or only not there."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    found = order[np.minimum(np.searchsorted(in_order, wanted), len(ids) - 1)]
    is_single = (in_order[1:] != in_order[:-1]).all() and len(np.unique(found)) == len(found)
    if is_single and (ids[found] == wanted).all() and (len(found) == len(ids) or not all_of_them):
        return found
    rows, others = {*ids.tolist()}, {*wanted.tolist()}
    for name, texts in ((source, ids), (labels, wanted)):
        [(text, count)] = Counter(texts.tolist()).most_common(1)
        if count > 1:
            raise DataError(f"{name}: the id {text[:50]!r} occurs {count} times; expected once.")
    both = (source, labels, rows, others), (labels, source, others, rows)
    for name, other, there, needed in both if all_of_them else both[:1]:
        if missing := needed - there:
            text = f"{name}: {len(missing)} of the ids of {other} are not there, first {min(missing)[:50]!r}; expected "
            text += "the same ids in both. Take out the rows that one file has alone, or name the column that pairs "
            text += "the rows: --ids COLUMN."
            if _is_of_rows(by.replace(INDEX, "")) and _counts(ids) != _counts(wanted):
                text += f" If {by} counts the rows of one file, and those of both are in one order: --ignore "
                text += f"{as_option(by)}."
            if name == source and all_of_them and rows <= others:
                text += f" --ids {as_option(by)} leaves out the labels of these."
                raise UnclearError(text, ids=by.replace(", ", ","))
            raise DataError(text)
    return found


def shared_findings(
    test: Points, validation: Points, given: Sequence[GivenSet], risk: float | None
) -> Iterator[Finding]:
    """A warning about points in both sets: of one id, or, without ids, of one row of predictions, where rows tell
    points apart. RequestError where they shall carry a promise."""
    if test.names is not None and validation.names is not None:
        shared = len({*test.names} & {*validation.names})
    else:
        rows = [Counter(row.tobytes() for row in of.values[0]) for of in given]
        single = [{row for row, count in of.items() if count == 1} for of in rows]
        shared = len(single[0] & single[1])
        if min(map(len, single)) < 0.9 * min(len(test), len(validation)) or shared <= 0.01 * len(validation):
            return
    if shared and risk is not None:
        what = "ids" if test.names is not None and validation.names is not None else "rows of predictions"
        raise RequestError(
            f"--risk {risk:g}: there is no certificate by {validation.reference}: {shared} {what} of it are in the "
            "test set, too, and a promise is only kept by other points. Name others with --validation. (If its ids "
            "only number the rows of a file: --ignore COLUMN.)"
        )
    if shared:
        yield warning("validation-in-test", shared=shared, points=len(validation), test=test.reference)


def labelled_points(truth: Truth, given: GivenSet, task: Task, *, name: str, classes: Sequence[str]) -> Points:
    """The points with these labels, in the numbers of the classes; DataError for labels that do not fit."""
    outputs = given.values.shape[2]
    values = _labels_of(truth, classes, outputs) if task.classifies_points and truth.values.ndim == 1 else truth.values
    numbers = [str(number) for number in range(len(classes))]  # names that say which number each class is in the labels
    are_texts = bool(classes) and all(of.lstrip("-").isdigit() for of in classes) and [*classes] != numbers
    if not is_numeric(values) or (task.classifies_points and values.ndim == 1 and are_texts):
        values, classes = _numbered(values, classes, outputs, truth)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        where = truth.place(np.unique(np.argwhere(~np.isfinite(values))[:, 0]).tolist())
        raise DataError(f"{truth.source}: {truth.found} has no finite number in {where}.")
    numbers, names = _numbered_groups(truth.group, len(truth.values), truth.source)
    as_floats = values.dtype.kind == "f" or (task.classifies_points and values.ndim > 1)  # such as one-hot
    points = Points(
        name,
        truth.source,
        np.arange(len(values)) if truth.ids is None else _digests(truth.ids),
        np.atleast_2d(values.T).T.astype(np.float64) if as_floats else values.astype(np.int64),
        numbers,
        tuple(classes) or None,
        group_names=names,
        names=truth.ids,
    )
    if task.is_regression:
        return check_targets(points, 1 if given.levels is not None else outputs)
    return check_labels(points, outputs) if task.classifies_points else check_label_matrix(points, outputs)


def _labels_of(truth: Truth, classes: Sequence[str], outputs: int) -> NDArray[Any]:
    """The labels of points, booleans by the classes that are called so; DataError for numbers that are neither those of
    columns without names, from 0 or from 1, nor fewer than these."""
    values = truth.values
    if values.dtype.kind == "b" and {name.lower() for name in classes} == {"true", "false"}:
        return np.array(sorted(classes, key=str.lower), dtype=object)[values * 1]
    found = [] if classes or not is_numeric(values) else texts_of(np.unique(values)).tolist()
    numbered = [[*map(str, range(start, start + outputs))] for start in (0, 1)]
    if len(found) == outputs and found not in numbered and all(re.fullmatch(r"-?\d+", text) for text in found):
        text = f"{truth.source}: {truth.found} are {listed(found)}, and the predictions have no names. Say which class "
        text += f"each of their columns is: --classes {as_option(*found)}, in that order."
        raise UnclearError(text, classes=(*found,))
    return values


def _numbered(
    values: NDArray[Any], classes: Sequence[str], outputs: int, truth: Truth
) -> tuple[NDArray[Any], Sequence[str]]:
    """The class of each label by its name, in the order that the predictions name them, else sorted."""
    texts = texts_of(values)
    if (known := {*map(str, classes or truth.classes)}) and not {*texts.tolist()} <= known:
        texts = np.char.strip(texts.astype(str))  # as the names of an option are
    present, numbers = np.unique(texts, return_inverse=True)
    of_labels = present[:_MOST_CLASSES].tolist() if len(present) == outputs else ()
    names = [str(name) for name in classes or truth.classes or of_labels]
    forms = {" ".join(text.casefold().split()) for text in present.tolist()}
    if len(forms) < len(present) and (len(names) != outputs or not {*present.tolist()} <= {*names}):
        shown = ", ".join(map(repr, sorted(present.tolist(), key=str.casefold)[:4]))
        column = f"table[{truth.name!r}]"
        text = f"{truth.source}: {truth.found} has words that differ in case or spaces alone ({shown}); expected one"
        raise DataError(f"{text} form. In pandas: {column} = {column}.str.strip().str.lower()")
    _check_columns([text for text in present.tolist() if text], names, outputs, truth)
    if len(names) != outputs:
        raise DataError(
            f"{truth.source}: {truth.found} holds {len(present)} names, such as {str(present[0])!r}, and the "
            f"predictions have {outputs} columns without them. Name the classes in their order: --classes NAME,NAME."
        )
    number_of = {name: number for number, name in enumerate(names)}
    if "" in present and "" not in number_of:
        where = truth.place(np.flatnonzero(texts == "").tolist())
        raise DataError(f"{truth.source}: {truth.found} is empty in {where}: leave such rows out.")
    if unknown := [text for text in present.tolist() if text not in number_of]:
        raise DataError(
            f"{truth.source}: {truth.found} holds {unknown[0]!r}, which is no class of the predictions "
            f"({', '.join(names[:20])}). Does it call one of these so? --classes NAME,NAME, in that order."
        )
    return np.array([number_of[text] for text in present.tolist()])[numbers], names


def _check_columns(present: Sequence[str], names: Sequence[str], outputs: int, truth: Truth) -> None:
    if len(present) > outputs:
        of = listed([text for text in present if text not in names]) if names else "each other class"
        raise DataError(
            f"{truth.source}: {truth.found} holds {len(present)} classes ({listed(present)}), and the predictions have "
            f"{outputs} columns. Add the column of {of}, or leave the examples of such classes out."
        )


def _digests(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids in arrays of fixed length: long ones by their SHA-256."""
    if max(map(len, ids), default=0) > 64:
        ids = np.array([sha256(text.encode()).hexdigest() for text in ids])
    return ids.astype(str, copy=False)


def _numbered_groups(
    values: NDArray[Any] | None, points: int, source: str
) -> tuple[Int64[np.ndarray, " point"] | None, tuple[str, ...]]:
    """The number of the group of each point, and the names of the groups; DataError for a point without one."""
    if values is None:
        return None, ()
    if values.dtype.kind not in "fiubUS":
        values = np.array(["" if value is None or value != value else str(value) for value in values.flat])  # NaN
    return group_codes(values, points, source)


def groups_file(section: ScoreSection, first: Columns) -> Truth | None:
    """The groups in a file of their own, with the ids beside them; None where the request names no such file."""
    reference = section.groups or ""
    files = (Path(expanded(file)) for file in (reference, reference.rpartition(":")[0]) if file)
    if reference in first.values or not any(map(is_file, files)):
        return None
    columns, column = columns_at(reference)
    names = [name for name, role in roles_of(columns, section).items() if role == "groups"]
    return _truth(columns, column or next(iter([*names, *columns.values]), ""), section)


def with_groups(given: GivenSet, section: ScoreSection) -> GivenSet:
    """These predictions with the groups that stand beside them; DataError where these are not one for each point."""
    group = _groups(given.columns, section)
    if group is not None and group.shape != (len(given),):
        shape = f"the groups have shape {group.shape}; expected one for each of {len(given)} points"
        raise DataError(f"{given.columns.source}: {shape} ({given.found}).")
    return replace(given, group=group)


def grouped(
    truth: Truth, predictions: Sequence[GivenSet], elsewhere: Truth | None, section: ScoreSection, *, is_test: bool
) -> Truth:
    """The labels of a set with its groups: those `elsewhere`, by ids where both have them, else of the test set; those
    beside the labels; or beside the first predictions that have any. RequestError where the test set has none of the
    name that the request says."""
    group = next((group for group in (truth.group, *(each.group for each in predictions)) if group is not None), None)
    ids = _ids(predictions[0].columns, section) if truth.ids is None else truth.ids
    if elsewhere is not None and elsewhere.ids is not None and ids is not None:
        there, wanted = elsewhere.ids, ids
        if is_test or {*wanted.tolist()} <= {*there.tolist()}:
            group = elsewhere.values[_rows_by_id(there, wanted, elsewhere.source, truth.source, all_of_them=False)]
    elif elsewhere is not None and is_test:
        group = elsewhere.values
    if group is None and section.groups is not None and is_test:
        files = " and ".join(dict.fromkeys((truth.source, *(each.columns.source for each in predictions))))
        raise RequestError(f"--groups {section.groups}: is neither a file nor a column of {files}.")
    return replace(truth, group=group)


def unlabelled_points(given: GivenSet, name: str, section: ScoreSection) -> Points:
    """The points of a set that is to be separated from the test set."""
    ids = _ids(given.columns, section)
    names = None if ids is None or len(ids) != len(given) else ids
    inputs = np.arange(len(given)) if names is None else _digests(names)
    group, group_names = _numbered_groups(given.group, len(given), given.columns.source)
    return Points(name, given.columns.source, inputs, group=group, group_names=group_names, names=names)


def read_notes(sets: dict[str, GivenSet], truth: Truth) -> Iterator[Finding]:
    """Notes on what was taken for the predictions and the labels, and on what was done to the numbers."""
    for name, given in sets.items():
        file = Path(given.columns.source).name
        yield note("predictions-found", file=file, of=name, found=given.found, shape=list(given.values.shape))
        if given.kind == "means" and given.values.shape[2] > 1:
            yield note("outputs-together", file=file)
        if given.kind == "probabilities" and (given.scale != 1 or given.off > _EXACT):
            yield note("probabilities-rounded", file=file, scale=given.scale, off=given.off)
        if given.kind == "logits" and wrong_values(given.values[:, :_MANY], "probabilities", CLASSIFICATION) is None:
            yield warning("logits-sum-to-one", file=file)
        if empty := np.flatnonzero(~given.values.any((0, 1)))[:10].tolist() if given.kind == "probabilities" else []:
            yield note("class-without-probability", file=file, classes=empty)
    test, is_known = sets["test"], truth.ids is not None and len(np.unique(truth.ids)) == len(truth.ids)
    if truth.group is None and test.group is None and not is_known:
        for column in (*test.roles.get("ids", ()), *test.roles.get("keys", ())):
            if role_by_name(column) == "ids" and not _differ(test.columns, [column]):
                yield warning("ids-repeat", column=column, file=Path(test.columns.source).name)
    yield note("labels-found", file=Path(truth.source).name, found=truth.found)
