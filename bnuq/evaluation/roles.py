"""What each column or array of a file of predictions is: by an option, by a closed table of names, by the classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data.readers.columns import Columns
from bnuq.data.readers.common import GROUP, TARGETS, is_index, listed
from bnuq.errors import DataError

INDEX = "(index)"  # an index without a name, as reports show it and options name it
Role = str  # a key of NAMES, "own score" or "predictions"
_TABLE = """\
labels: truth true y_true ytrue true_label label_true true_class gold gold_label ground_truth actual actuals
    actual_label observed obs outcome label_ids references
ids: id ids uid uuid guid key index idx filename file path image doc_id
key: unique_id item_id ds date time timestamp cutoff
groups: groups
hard: prediction predictions pred preds predict predicted y_pred ypred y_hat forecast pred_label predicted_label
    prediction_label label_pred pred_class predicted_class class_pred
correct: correct is_correct correctness right is_right hit acc
confidence: confidence conf prediction_score max_prob max_probability top_prob prediction_confidence pred_confidence
    msp
score: score
positive: probability probabilities prob probs proba p y_prob y_proba y_score pred_proba pred_prob y_pred_proba
    y_pred_prob predict_proba predicted_probability softmax sigmoid
logits: logits logit filtered_resps
log_probabilities: log_probabilities log_probs logprobs log_prob logprob
mean: mean mu loc yhat y_mean pred_mean mean_prediction
sigma: sigma std sd stddev scale y_std pred_std
variance: variance var y_var pred_var
spread: uncertainty unc se sem std_err stderr std_error standard_error log_var logvar log_variance log_std log_sigma
quantile: quantiles levels
array: samples outputs output scores arr_0 test
classes: classes
ignored: fold split weight weights sample_weight loss seed epoch batch prediction_time text sentence prompt name url
    source comment comments note notes x inputs images features doc resps arguments acc_norm entropy metrics
    exact_match filter doc_hash prompt_hash target_hash ood_score
"""  # in any case; "." at the beginning and "-" or " " for "_" are the same
NAMES: dict[Role, tuple[str, ...]] = {
    role: tuple(names.split())
    for role, _, names in (row.partition(":") for row in re.split(r"\n(?! )", _TABLE.strip()))
}
NAMES |= {"labels": (*TARGETS, *NAMES["labels"]), "groups": (GROUP, *NAMES["groups"]), "array": ("", *NAMES["array"])}
_ROLES: dict[str, Role] = {name: role for role, names in NAMES.items() for name in names}
_ID = re.compile(r"(.*[_ .\-])?(id|ids|uid|uuid)|.*[a-z](Id|ID|UID)|.*_(ID|Id|UID)|ID|Id")
_OTHERS = "y_pred pred prediction class score scores prediction_score raw_score confidence output log_probability"
PREFIXES = (*NAMES["positive"], *NAMES["logits"], *NAMES["log_probabilities"], *_OTHERS.split())  # p0; cat_prob
_PREFIX = "|".join(sorted(PREFIXES, key=len, reverse=True))
_BEGINNING = re.compile(rf"\.?({_PREFIX})(?:[_ .\-](.+)|[ _]?[(\[](.+)[)\]]|(\d+))", re.IGNORECASE)
_ENDING = re.compile(rf"(.+?)[_ .\-]({_PREFIX})()", re.IGNORECASE)
_LEVEL = re.compile(r"(q|quantile|p|pct|percentile)[_ \-]?(\d*\.\d+|\d+)|()(0?\.\d+)", re.IGNORECASE)
_BOUND = re.compile(r"(.+)-(lo|hi)-(\d+(?:\.\d+)?)")
_OPPOSITES = {"true": "false", "right": "wrong", "correct": "incorrect", "hit": "miss"}  # beside it, one of two classes
_IN_WORDS = {role: role for role in ("labels", "ids", "groups")}  # others are ignored
_IN_WORDS |= {"key": "keys", "hard": "hard predictions", "correct": "correctness", "own score": "scores"}


def role_by_name(name: str) -> Role | None:
    """The role that the table has for this name; None if it has none."""
    normal = re.sub(r"[\s\-]+", "_", name.strip().lstrip(".").lower())
    return _ROLES.get(normal) or ("ids" if _ID.fullmatch(name.strip()) else None)


def matching(columns: Columns, patterns: Iterable[str], *, needed: bool = True) -> list[str]:
    """The columns of these names or patterns (class_*); DataError where one that is `needed` is not there."""
    names: list[str] = []
    for pattern in patterns:
        rows = pattern == INDEX
        alike = (of for at, of in enumerate(columns.values) if fnmatchcase(of, pattern) or (rows and is_index(of, at)))
        found = [pattern] if pattern in columns.values else [*alike]
        if needed and not found:
            columns[pattern]
        names += found
    return [*dict.fromkeys(names)]


def roles_of(columns: Columns, section: ScoreSection, label: str | None = None) -> dict[str, Role]:
    """The role of each column that has one by an option or by the table of names; `label` is that of the labels."""
    single = {"ids": section.ids, "groups": section.groups, "labels": label}
    asked = _asked(columns, section) | {name: role for role, name in single.items() if name in columns.values}
    roles = {name: asked.get(name) or _by_name(columns, name, at) for at, name in enumerate(columns.values)}
    held = {*roles.values()}
    for name, role in roles.items():
        if name not in asked and role is not None and single.get(role) is not None:  # which another column has
            is_hard = role == "labels" and "hard" not in held and {"score", "confidence"} & held
            roles[name] = "hard" if is_hard else "ignored"  # as of a pipeline of Hugging Face
    quantiles = _levels([name for name, role in roles.items() if role is None], columns)
    stems = [match[1] for name in quantiles if (match := _BOUND.fullmatch(name))]
    roles |= {name: "mean" for name in stems if roles.get(name, "") is None}  # the point forecast
    return {name: role for name, role in (roles | dict.fromkeys(quantiles, "quantile")).items() if role is not None}


def _asked(columns: Columns, section: ScoreSection) -> dict[str, Role]:
    """What options say of one column or of several."""
    asked: dict[str, Role] = dict.fromkeys(matching(columns, section.ignore, needed=False), "ignored")
    for pattern in section.columns:  # or ROLE=COLUMN
        name, _, column = pattern.partition("=")
        role = role_by_name(name) if column and pattern not in columns.values else None
        if role is None and column and column in columns.values:
            raise DataError(
                f"--columns {pattern}: {name} is no role; expected ROLE=COLUMN with mean, sigma, variance, confidence "
                "or another name of the table in docs/score.md. Quantiles are named by their levels, such as q0.05."
            )
        asked |= dict.fromkeys(matching(columns, [column if role else pattern], needed=False), role or "predictions")
    asked |= dict.fromkeys(matching(columns, section.scores, needed=False), "own score")
    return asked | dict.fromkeys(matching(columns, filter(None, (section.ids or "").split(",")), needed=False), "ids")


def _by_name(columns: Columns, name: str, at: int) -> Role | None:
    """The role by the table; none of what is named like one of two classes, a key of ids that repeat."""
    if (other := _OPPOSITES.get(name.lower())) is not None and columns.named([other]) is not None:
        return None
    role = "ids" if _is_index(columns, name, at) else role_by_name(name)
    return "key" if role == "ids" and _repeats(columns, name) else role


def _is_index(columns: Columns, name: str, at: int) -> bool:
    """Whether a column is the index beside others: of texts or whole numbers."""
    if not is_index(name, at) or len(columns.values) == 1:
        return False
    values = columns[name]
    return values.ndim == 1 and not (is_numeric(values) and np.any(values % 1))


def _repeats(columns: Columns, name: str) -> bool:
    """Whether a column with a name of ids holds the same one twice, as that of patients may: `id` itself is an error
    where points are paired."""
    if name.strip().lower() in ("id", "ids", "uid"):
        return False
    values = columns[name]
    return values.ndim != 1 or len({*values.tolist()}) < len(values)


def levels_of(names: Sequence[str], columns: Columns) -> dict[str, float]:
    """The level of each quantile that its name states, in their order; DataError for one that occurs twice."""
    levels = dict(sorted(_levels(names, columns).items(), key=lambda item: item[1]))
    if len({*levels.values()}) < len(levels):
        raise DataError(
            f"{columns.source}: two of {listed([*levels])} are quantiles at one level. Leave one out: --ignore."
        )
    return levels


def _levels(names: Sequence[str], columns: Columns) -> dict[str, float]:
    bounds = {name: match for name in names if (match := _BOUND.fullmatch(name))}
    levels = {name: 0.5 + (0.5 if match[2] == "hi" else -0.5) * float(match[3]) / 100 for name, match in bounds.items()}
    if len({match[1] for match in bounds.values()}) > 1:
        raise DataError(
            f"{columns.source}: {listed([*bounds])} are of several models. Name those of one: --columns 'NAME-*'."
        )
    by_prefix: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _LEVEL.fullmatch(name.strip()):
            by_prefix.setdefault((match[1] or "").lower(), {})[name] = match[2] or match[4]
    for prefix, numbers in by_prefix.items():
        if len(numbers) > 1 or levels or len(by_prefix) > 1:
            levels |= _stated(prefix, numbers, columns)
    return levels if len(levels) > 1 else {}


def _stated(prefix: str, numbers: Mapping[str, str], columns: Columns) -> dict[str, float]:
    """The levels that numbers behind this prefix state, by column; none where they are classes. DataError where they
    may be positions."""
    whole = [int(number) for number in numbers.values() if "." not in number]
    if prefix == "p" and whole and max(whole) - min(whole) == len(whole) - 1:
        return {}  # of classes: p0, p1
    if whole and prefix in ("q", "quantile") and (max(whole) < 10 or len(whole) < len(numbers)):
        raise DataError(
            f"{columns.source}: {listed([*numbers])} may be quantiles in order (quartiles, deciles, extremes) or "
            "percentiles. Name them by their levels above 0 and below 1, such as q0.25, or leave them out: --ignore "
            f"{','.join([*numbers][:5])}."
        )
    in_percent = prefix in ("pct", "percentile")
    levels = {name: float(of) / (100 if in_percent or "." not in of else 1) for name, of in numbers.items()}
    if not all(0 < level < 1 for level in levels.values()):
        raise DataError(f"{columns.source}: {listed([*numbers])} are not all quantiles at levels above 0 and below 1.")
    return levels


def class_columns(columns: Columns, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """By what their names begin or end with: the columns of one class each, with the name of the class. Columns of
    texts are left out where others hold numbers."""
    families: dict[str, dict[str, str]] = {}
    for name in names:
        for form, prefix, rest in ((_BEGINNING, 1, (2, 3, 4)), (_ENDING, 2, (1,))):
            if match := form.fullmatch(name):
                families.setdefault(match[prefix].lower(), {})[name] = next(match[at] for at in rest if match[at])
                break
    found = {}
    for prefix, family in families.items():
        flat = {name: of for name, of in family.items() if columns[name].ndim == 1}
        numeric = {name: of for name, of in flat.items() if is_numeric(columns[name]) or _has_numbers(columns[name])}
        if numeric:  # of texts, such as one with a decimal comma, an error says so
            found[prefix] = numeric
    return found


def kind_of(prefix: str) -> Literal["logits", "probabilities", "log_probabilities"] | None:
    """What columns that begin so hold, where that says so."""
    prefix = prefix.lower()
    if prefix.startswith("log"):
        return "logits" if prefix.startswith("logit") else "log_probabilities"
    return "probabilities" if "prob" in prefix or prefix in ("p", "softmax") else None


def numbered(columns: Columns, names: Sequence[str]) -> list[list[str]]:
    """The columns of several outputs, such as y0, y1."""
    families: dict[str, list[str]] = {}
    for name in names:
        if (match := re.fullmatch(r"(y|y_pred|pred|mean|mu|output)_?\d+", name.lower())) and is_numeric(columns[name]):
            families.setdefault(match[1], []).append(name)
    return [*families.values()]


def flat(columns: Columns, roles: Mapping[str, Role], role: Role) -> list[str]:
    """The columns of this role that hold one value for each point."""
    return [name for name in roles if roles[name] == role and columns[name].ndim == 1]


def is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "fiub"


def _has_numbers(values: NDArray[Any]) -> bool:
    """Whether there are numbers among the first texts of a column, perhaps with a decimal comma."""
    return not is_numeric(values) and any(
        re.fullmatch(r"\s*[-+]?\d+([.,]\d+)?([eE][-+]?\d+)?\s*", str(text)) for text in values.flat[:1000]
    )


def without_role(columns: Columns, names: Sequence[str], advice: str = "") -> DataError:
    """The error for columns that have no role: what each looks like, and the options that give it one."""
    shown = "".join(f"\n  {name!r}: {_look(columns[name])}" for name in names[:20])
    alike = [name for name in names if columns[name].ndim == 1 and _all_differ(columns[name])]
    options = [f"--ignore {','.join(names[:20])}{',…' * (len(names) > 20)} leaves them out"]
    options += [f"--ids {name} pairs the rows of two files by it" for name in alike[:1]]
    options += [
        "--columns NAME,NAME or 'PATTERN_*' names the predictions",
        f"--labels {columns.source}:NAME the labels",
    ]
    count = f"{len(names)} columns have" if len(names) > 1 else "1 column has"
    return DataError(
        f"{columns.source}: {count} no role (prediction, label, id, …):{shown}\n{advice}Say what they are: "
        f"{'; '.join(options)}. docs/score.md has the table of names."
    )


def _all_differ(values: NDArray[Any]) -> bool:
    are_whole = not is_numeric(values) or bool((values == np.round(values)).all())
    return are_whole and len({*values.tolist()}) == len(values)


def _look(values: NDArray[Any]) -> str:
    if values.ndim != 1:
        return f"an array of shape {values.shape} of {values.dtype}"
    if not is_numeric(values):
        words = {*values.tolist()}
        return f"{len(words)} different texts, such as {str(values[0])[:40]!r}{': ids?' * (len(words) == len(values))}"
    low, high = (f"{end(values):.6g}" for end in (np.nanmin, np.nanmax))
    if not bool((values == np.round(values)).all()):
        return f"numbers from {low} to {high}"
    return f"whole numbers {low}–{high}{', all different: an index?' * _all_differ(values)}"


def in_words(roles: Mapping[str, Role], predictions: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each role, as a report names them."""
    found: dict[str, list[str]] = {"predictions": [*predictions]} if predictions else {}
    for name, role in roles.items():
        if name not in predictions:
            found.setdefault(_IN_WORDS.get(role, "ignored"), []).append(name)
    return found
