"""What each column or array of a file of predictions is: by an option, by a closed table of names, by the classes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bnuq.config import ScoreSection
from bnuq.data.readers.columns import Columns, texts_of
from bnuq.data.readers.common import GROUP, TARGETS, as_option, is_index, listed
from bnuq.errors import DataError

_SHOWN = 20  # columns in a message
_DRAWS = 5  # columns of one name and numbers, which may be draws
_PARTS = (100, 10, 4)  # which the numbers of quantiles may be of
_WORDS = 20  # of rows of several kinds; more are texts
INDEX = "(index)"  # an index without a name, as reports show it and options name it
UNCLEAR = ("bound", "spread", "standard_error")  # roles of which an option says what they are
Names = Sequence[str]
Role = str  # a key of NAMES, "own score" or "predictions"
_TABLE = """\
labels: truth true y_true ytrue true_label label_true true_class gold gold_label ground_truth actual actuals
    actual_label observed obs outcome label_ids references y_test test_labels
ids: id ids uid uuid guid key index idx filename file path image doc_id row rowindex row_index row_number
key: unique_id item_id ds date time timestamp cutoff
groups: groups
hard: prediction predictions pred preds predict predicted y_pred ypred y_hat forecast pred_label predicted_label
    prediction_label label_pred pred_class predicted_class class_pred response
correct: correct is_correct correctness right is_right hit acc
confidence: confidence conf prediction_score max_prob max_probability top_prob prediction_confidence pred_confidence
    msp
score: score
positive: probability probabilities prob probs proba p y_prob y_proba y_score pred_proba pred_prob y_pred_proba
    y_pred_prob predict_proba predicted_probability softmax sigmoid
logits: logits logit decision_function filtered_resps
log_probabilities: log_probabilities log_probability log_probs logprobs log_prob logprob log_proba predict_log_proba
mean: mean mu loc yhat y_mean point_forecast pred_mean mean_prediction predicted_mean fit fitted
sigma: sigma std sd stddev scale y_std pred_std y_pred_std
variance: variance var y_var pred_var
log_variance: log_var logvar log_variance
log_sigma: log_std logstd log_sigma
spread: uncertainty unc
standard_error: se sem std_err stderr std_error standard_error se_fit mean_se
bound: lower upper lwr upr lower_bound upper_bound yhat_lower yhat_upper pred_lower pred_upper y_lower y_upper
    y_pred_lower y_pred_upper ci_lower ci_upper pi_lower pi_upper mean_ci_lower mean_ci_upper obs_ci_lower obs_ci_upper
    conf_low conf_high
quantile: quantiles levels
array: samples outputs output scores arr_0 test
classes: classes
draws: draw chain iteration
kinds: split set subset usage dataset partition fold is_test is_train resample repeat algorithm model config
ignored: weight weights sample_weight loss seed epoch batch prediction_time text sentence prompt name url source comment
    comments note notes x inputs images features doc resps arguments acc_norm entropy metrics exact_match filter
    doc_hash prompt_hash target_hash ood_score rawprediction
"""  # in any case; "." at the beginning and "-", "." or " " for "_" are the same
NAMES: dict[Role, tuple[str, ...]] = {
    role: tuple(names.split())
    for role, _, names in (row.partition(":") for row in re.split(r"\n(?! )", _TABLE.strip()))
}
NAMES |= {"labels": (*TARGETS, *NAMES["labels"]), "groups": (GROUP, *NAMES["groups"]), "array": ("", *NAMES["array"])}
_ROLES: dict[str, Role] = {name: role for role, names in NAMES.items() for name in names}
_ID = re.compile(r"(.*[_ .\-])?(id|ids|uid|uuid)|.*[a-z](Id|ID|UID)|.*_(ID|Id|UID)|ID|Id")
_OTHERS = "y_pred pred prediction class score scores prediction_score raw_score confidence output"
PREFIXES = (*NAMES["positive"], *NAMES["logits"], *NAMES["log_probabilities"], *_OTHERS.split())  # p0; cat_prob
_PREFIX = "|".join(sorted(PREFIXES, key=len, reverse=True))
_BEGINNING = re.compile(rf"\.?({_PREFIX})(?:[ _]?[(\[](?:\w+=)?(.+)[)\]]|[_ .\-](.+)|(\d+))", re.IGNORECASE)
_ENDING = re.compile(rf"(.+?)[_ .\-]({_PREFIX})()", re.IGNORECASE)
_LEVEL = re.compile(r"(q|quantile|p|pct|percentile)[_ \-]?(\d*\.\d+|\d+)|()(0?\.\d+)|\d+(?:\.\d+)?(%)", re.IGNORECASE)
_BOUND = re.compile(r"(?:(.+)[-.])?(lo|hi)[-. ](\d+(?:\.\d+)?)", re.IGNORECASE)
_SAID = re.compile(r"q?(0?\.\d+)")  # a level, before the column
DRAWN = re.compile(r"(.*[_ .\-])?(samples?|draws?)[_ .\-]?\d+\.?", re.IGNORECASE)
_ALIKE = ({"1", "yes", "true", "pos", "positive"}, {"0", "no", "false", "neg", "negative"})  # names of one class
_OPPOSITES = {"true": "false", "right": "wrong", "correct": "incorrect", "hit": "miss"}  # beside it, one of two classes
_IN_WORDS = {role: role for role in ("labels", "ids", "groups")}  # others are ignored
_IN_WORDS |= {"key": "keys", "hard": "hard predictions", "correct": "correctness", "own score": "scores"}


class UnclearError(DataError):
    """What options would say. The `cure` is what may be meant: settings of `bnuq score`, of which tuples are added."""

    def __init__(self, message: str, **cure: Any) -> None:
        super().__init__(message)
        self.cure = cure


def role_by_name(name: str) -> Role | None:
    """The role that the table has for this name; None if it has none."""
    normal = re.sub(r"[\s.\-]+", "_", name.strip().lstrip(".").lower())
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
    """The role of each column that has one by an option or by the table of names; `label` is that of the labels, or
    several with commas between."""
    single = {"ids": section.ids, "groups": section.groups, "labels": label}
    asked = _asked(columns, section) | {name: role for role, name in single.items() if name in columns.values}
    asked |= dict.fromkeys(several(columns, label), "labels")
    roles = {name: asked.get(name) or _by_name(columns, name, at) for at, name in enumerate(columns.values)}
    held = {*roles.values()}
    for name, role in roles.items():
        if name not in asked and role is not None and single.get(role) is not None:  # which another column has
            is_hard = role == "labels" and "hard" not in held and {"score", "confidence"} & held
            roles[name] = "hard" if is_hard else "ignored"  # as of a pipeline of Hugging Face
    beside = [name for name, role in roles.items() if role in ("labels", "hard") and columns[name].ndim == 1]
    free = [name for name, role in roles.items() if role is None]
    quantiles = levels_of(free, columns, section.columns, beside)
    stems = [match[1] for name in quantiles if (match := _BOUND.fullmatch(name))]
    roles |= {name: "mean" for name in stems if roles.get(name, "") is None}  # the point forecast
    return {name: role for name, role in (roles | dict.fromkeys(quantiles, "quantile")).items() if role is not None}


def several(columns: Columns, label: str | None) -> list[str]:
    """The columns of labels that are named together: a,b."""
    names = (label or "").split(",")
    return names if len(names) > 1 and label not in columns.values and {*names} <= {*columns.values} else []


def _called(columns: Columns, asked: Iterable[str]) -> dict[str, float]:
    """The level of each column that an option says: q0.05=lower."""
    parts = (of.partition("=") for of in asked)
    return {of: float(match[1]) for level, _, of in parts if of in columns.values and (match := _SAID.fullmatch(level))}


def _asked(columns: Columns, section: ScoreSection) -> dict[str, Role]:
    """What options say of one column or of several."""
    asked: dict[str, Role] = dict.fromkeys(matching(columns, section.ignore, needed=False), "ignored")
    for pattern in section.columns:  # or ROLE=COLUMN
        name, _, column = pattern.partition("=")
        role = role_by_name(name) if column and pattern not in columns.values else None
        role = "quantile" if role is None and column and _SAID.fullmatch(name) else role
        if role in ("sigma", "variance") and (of := role_by_name(column) or "").startswith("log_"):
            text = f"{columns.source}: {column} is a logarithm by its name, and no {role}"
            raise DataError(f"{text}: --columns {of}={column}. If it is none, give it another name.")
        if role in (None, "bound") and column and column in columns.values:
            raise DataError(
                f"--columns {pattern}: {name} is no role; expected ROLE=COLUMN with mean, sigma, variance, log_var, "
                "log_std, samples, confidence, correct, prediction, prob, logit, log_prob, score, or a level as q0.05."
            )
        asked |= dict.fromkeys(matching(columns, [column if role else pattern], needed=False), role or "predictions")
    asked |= dict.fromkeys(matching(columns, section.scores, needed=False), "own score")
    return asked | dict.fromkeys(matching(columns, ids_in(section, columns), needed=False), "ids")


def ids_in(section: ScoreSection, columns: Columns) -> list[str]:
    """The names of --ids: that of one column, which may hold a comma, or of several."""
    ids = section.ids or ""
    return [ids] if ids and ids in columns.values else [*filter(None, ids.split(","))]


def _by_name(columns: Columns, name: str, at: int) -> Role | None:
    """The role by the table; none of what is named like a class, or tells kinds of rows apart, a key of ids that
    repeat."""
    if _OPPOSITES.get(name.lower()) in {of.lower() for of in columns.values}:
        return None
    if name == "0" and all(of == name or is_index(of, 0) for of in columns.values):
        return "array"  # of a Series without a name
    if name.strip() in columns.classes and is_numeric(columns[name]):
        return None
    values, is_rows = columns[name], len(columns.values) > 1 and (name in columns.index or is_index(name, at))
    if is_rows and values.ndim == 1 and not (is_numeric(values) and np.any(values % 1)):
        role: Role | None = "ids"
    else:
        role = role_by_name(name)
    if role in ("kinds", "draws"):
        return None if values.ndim == 1 and _different(values) > 1 else "ignored"
    if role == "ids" and name.strip().lower() not in ("id", "ids", "uid"):  # which are an error where they repeat
        return "ids" if values.ndim == 1 and _different(values) == len(values) else "key"
    return role


def levels_of(names: Names, columns: Columns, asked: Names = (), beside: Names = ()) -> dict[str, float]:
    """The level of each quantile that its name states, or what is `asked` (q0.05=lower), in their order; none of names
    behind which all classes stand, of the labels or of the columns `beside`."""
    called = _called(columns, asked)
    names = [name for name in names if name not in called]
    bounds = {name: match for name in names if (match := _BOUND.fullmatch(name))}
    levels = {name: 0.5 + (match[2].lower() == "hi" or -1) * float(match[3]) / 200 for name, match in bounds.items()}
    levels |= called
    if len({match[1] for match in bounds.values()}) > 1:
        model = next(iter(bounds.values()))[1]
        text = f"{columns.source}: {listed([*bounds])} are of several models. Name those of one: --columns 'NAME-*'."
        raise UnclearError(text, columns=(f"{model}-*",))
    by_prefix: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _LEVEL.fullmatch(name.strip()):
            number = match[2] or match[4] or name.strip().rstrip("%")
            by_prefix.setdefault((match[1] or match[5] or "").lower(), {})[name] = number
    for prefix, numbers in by_prefix.items():
        if len(numbers) > 1 or levels or len(by_prefix) > 1:
            of = [columns.classes or {""}, *({*texts_of(columns[name])} for name in beside)]
            are_classes = any({*numbers.values()} >= each for each in of)  # of labels or hard predictions
            levels |= {} if are_classes else _stated(prefix, numbers)
    return dict(sorted(levels.items(), key=lambda item: item[1])) if len(levels) > 1 else {}


def _stated(prefix: str, numbers: Mapping[str, str]) -> dict[str, float]:
    """The levels that numbers behind this prefix state, by column; none where they may be classes (p0, p1), or
    quantiles in order (quartiles), or are not all between 0 and 1."""
    whole = [int(number) for number in numbers.values() if "." not in number]
    in_order = prefix == "p" and whole and max(whole) - min(whole) == len(whole) - 1
    if prefix in ("p", "q", "quantile") and (in_order or max(whole, default=10) < 10 or 0 < len(whole) < len(numbers)):
        return {}
    in_percent = prefix in ("pct", "percentile", "%")
    levels = {name: float(of) / (100 if in_percent or "." not in of else 1) for name, of in numbers.items()}
    return levels if all(0 < level < 1 for level in levels.values()) else {}


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


def without_beginning(names: Sequence[str]) -> tuple[str, ...]:
    """The names, without a beginning that all have before a number, with a letter: 0, 1 of class_0, class_1."""
    numbers = [re.fullmatch(r"((?:\D*[^\W\d_]\D*(?<![^\w]-))?)0*(\d+)", name) for name in names]
    matches = [match for match in numbers if match is not None]
    one_beginning = len(matches) == len(names) and len({match[1] for match in matches}) == 1
    return tuple(match[2] for match in matches) if one_beginning else (*names,)


def kind_of(prefix: str) -> Literal["logits", "probabilities", "log_probabilities"] | None:
    """What columns that begin so hold, where that says so."""
    role = _ROLES.get(prefix.lower())
    return "probabilities" if role == "positive" else role if role in ("logits", "log_probabilities") else None


def class_called(word: str, classes: AbstractSet[str]) -> str:
    """The class of two that a word names, in any case, also by another word for yes and no; else the word."""
    alike = next((of for of in _ALIKE if word.lower() in of), {word.lower()})
    found = [of for of in classes if of.lower() in alike] if len(classes) <= 2 else []
    return found[0] if len(found) == 1 and word not in classes else word


def numbered(columns: Columns, names: Sequence[str]) -> list[list[str]]:
    """The columns of several outputs, such as y0, y1."""
    families: dict[str, list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(y|y_pred|pred|mean|mu|output)_?\d+", name.lower()) or DRAWN.fullmatch(name)
        if match and is_numeric(columns[name]):
            families.setdefault(match[1] or "", []).append(name)
    return [*families.values()]


def flat(columns: Columns, roles: Mapping[str, Role], role: Role) -> list[str]:
    """The columns of this role that hold one value for each point."""
    return [name for name in roles if roles[name] == role and columns[name].ndim == 1]


def is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "fiub"


def _has_numbers(values: NDArray[Any]) -> bool:
    """Whether there are numbers among the first texts of a column, perhaps with a decimal comma."""
    is_number = re.compile(r"\s*[-+]?\d+([.,]\d+)?([eE][-+]?\d+)?\s*%?\s*").fullmatch
    return not is_numeric(values) and any(map(is_number, map(str, values.flat[:1000])))


def without_role(
    columns: Columns,
    names: Names,
    *,
    labels: Names = (),
    said: tuple[str, ...] = (),
    found: bool = True,
    ids: Names = (),
) -> UnclearError:
    """The error for columns that have no role: what each looks like. Its cure takes the first of what may be `labels`,
    and `ids`, which both files have; it ignores what looks like ids, texts or kinds of rows, and names predictions by
    what is `said` or by their looks; where these are `found`, it ignores other numbers, too."""
    shown = "".join(f"\n  {name!r}: {_look(columns[name])}" for name in names[:_SHOWN])
    shown += f"\n  … and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
    label, named = next(iter(labels), ""), {of.rpartition("=")[2] for of in said}
    of_natures: dict[str, list[str]] = {}
    for name in names:
        if name not in (label, *label.split(","), *named, *ids):
            of_natures.setdefault(_nature(columns, name), []).append(name)
    natures = "kinds", "draws", "numbers", "spread", "bound", "standard_error"
    kinds, draws, numbers, spreads, bounds, errors = (of_natures.pop(nature, []) for nature in natures)
    told = [f"The labels may be {' or '.join(map(repr, labels[:3]))}." * bool(label)]
    told += [f"Both files have {name!r}, with the same different values: it tells their rows apart." for name in ids]
    if kinds:
        text = max(columns[kinds[0]].tolist(), key=lambda of: of == "test")  # the first one where none is "test"
        told += [f"{listed(kinds)} may tell kinds of rows apart: --ignore scores all together; keep one, in pandas, by"]
        told[-1] += f" table[table[{kinds[0]!r}] == {text!r}]."
    if draws:
        told += ["Draws in rows are not read. Columns draw_1, draw_2, … are; in pandas: table.pivot(index=[ID, LABEL],"]
        told[-1] += f" columns={draws[0]!r}, values=PREDICTION).add_prefix('draw_')."
    if spreads:
        said = (f"sigma={spreads[0]}",)
        told += [f"{spreads[0]!r} may be the standard deviation, or by variance={spreads[0]} the variance."]
    if errors:
        told += [f"{errors[0]!r} is a standard error by its name: of the mean, and targets spread further around it."]
        told[-1] += f" Only if it is their standard deviation: --columns sigma={errors[0]}."
    if len(bounds) == 2:
        said, text = _interval(columns, bounds)
        told.append(text)
    if numbers and not (found or said):
        said, *others = _of_predictions(columns, numbers) or [()]
        options = [f"--columns {as_option(*each)}" for each in (said, *others)]
        told += [f"The predictions of one model: {' or '.join(options)}."] * bool(said)
    left = errors if said else [*errors, *itertools.chain(*of_natures.values()), *(numbers if found else ())]
    cure: dict[str, Any] = {"ignore": (*kinds, *left), "columns": said, "ids": "".join(ids)}
    cure["labels"] = label and f"{columns.source}:{label}"
    count = f"{len(names)} columns have" if len(names) > 1 else "1 column has"
    shown = f"{columns.source}: {count} no role (prediction, label, …):{shown}"
    return UnclearError(
        "\n".join(filter(None, (shown, *told))),
        **({} if draws else {key: value for key, value in cure.items() if value}),
    )


def _nature(columns: Columns, name: str) -> str:
    """Whether a column looks like an id, an index, a time, a free text or a hard prediction ("beside" predictions);
    like "kinds" of rows; or like "numbers"; or what it is by its name and an option has to say."""
    values, role = columns[name], role_by_name(name) or ""
    if role in (*UNCLEAR, "kinds", "draws"):
        return role
    if values.ndim != 1 or (np.any(values % 1) if is_numeric(values) else _has_numbers(values)):
        return "numbers"
    words = {*values.tolist()}
    is_text = not is_numeric(values) and (not 1 < len(words) <= _WORDS or words <= columns.classes)
    return "beside" if is_text or len(words) == len(values) else "kinds" if 1 < len(words) <= _WORDS else "numbers"


def _interval(columns: Columns, bounds: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """How --columns names the ends of an interval, and that its level is a guess: Prophet's have 80 % by default."""
    middle = [name for name in columns.values if role_by_name(name) in ("mean", "hard")][:1]
    low, other = (0.1, 0.025) if bounds[0].startswith("yhat") else (0.025, 0.1)
    level, other_level = (f"{100 - 200 * of:g} %" for of in (low, other))
    text = f"{listed(bounds)} may be the ends of an interval of {level}; of one of {other_level} they are "
    return _ends(bounds, middle, low), f"{text}--columns {as_option(*_ends(bounds, middle, other))}."


def _ends(bounds: Sequence[str], middle: Sequence[str], low: float) -> tuple[str, ...]:
    return (f"q{low}={bounds[0]}", *(f"q0.5={name}" for name in middle), f"q{1 - low}={bounds[1]}")


def _of_predictions(columns: Columns, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Which of the numbers with fractions may be the predictions: all that sum to one; draws, of one name and numbers;
    quantiles, whose numbers are parts of a hundred, of ten or of four; or one of them."""
    arrays = {of: columns[of] for of in names if is_numeric(columns[of]) and np.any(columns[of] % 1)}
    numbered = {name: int(match[2]) for name in arrays if (match := _LEVEL.fullmatch(name)) and f"{match[2]}".isdigit()}
    if 1 < len(numbered) == len(arrays) and min(numbered.values()) > 0 and max(numbered.values()) < _PARTS[0]:
        parts = [of for of in _PARTS if max(numbered.values()) < of]
        return [tuple(f"q{number / of:g}={name}" for name, number in numbered.items()) for of in reversed(parts)]
    arrays = {of: values for of, values in arrays.items() if np.abs(values - 0.5).max() <= 0.5} or arrays
    if len({values.shape for values in arrays.values()}) == 1 and np.allclose(sum(arrays.values()), 1, atol=0.02):
        return [(*arrays,)]
    stems = {name.rstrip("0123456789") for name in arrays} - {""}
    if len(arrays) >= _DRAWS and not numbered and len(stems) == 1:
        return [(f"samples={min(stems)}*",)]
    found: list[tuple[str, ...]] = [(name,) for name in arrays]
    return found[:5]


def true_and_pred(columns: Columns) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels that are called true, and how --columns names their predictions, which are called pred and the same."""
    known = columns.values
    both = {of: pred for of in known if "true" in of and (pred := of.replace("true", "pred")) in known}
    are_hard = len(both) == 1 and not all(is_numeric(known[of]) and np.any(known[of] % 1) for of in both.values())
    return (*both,), tuple(f"prediction={of}" if are_hard else of for of in both.values())


def likely_labels(columns: Columns, names: Sequence[str], words: AbstractSet[str]) -> list[str]:
    """These columns in the order in which they may be the labels: those of these words alone, by how often the hard
    predictions say the same; others with texts that repeat, or numbers, the last one first; ids last."""
    texts = {name: texts_of(columns[name]) for name in names if columns[name].ndim == 1}
    said = [texts_of(columns[of]) for of in columns.values if role_by_name(of) == "hard" and columns[of].ndim == 1]

    def likely(name: str) -> tuple[bool, float, bool, int]:
        alike = len({*texts[name].tolist()}) > 1 and {*texts[name].tolist()} <= words
        share = float((texts[name] == said[0]).mean()) if said and alike else 0.0
        return not alike, -share, _nature(columns, name) == "beside", -names.index(name)

    return sorted(texts, key=likely)


def unclear(roles: Mapping[str, Role]) -> list[str]:
    """The columns of a spread, or of an interval, of which no name says which."""
    return [name for role in UNCLEAR for name in roles if roles[name] == role]


def _different(values: NDArray[Any]) -> int:
    return len(np.unique(values) if is_numeric(values) else {*values.tolist()})


def _look(values: NDArray[Any]) -> str:
    if values.ndim != 1:
        return f"an array of shape {values.shape} of {values.dtype}"
    if not is_numeric(values):
        words = {*values.tolist()}
        if _has_numbers(values[:1]) and not str(values[0]).isdigit():
            return f"numbers as texts, such as {str(values[0])[:40]!r}"
        if len(words) == 1:
            return f"{str(values[0])[:40]!r} in every row"
        return f"{len(words)} different texts, such as {str(values[0])[:40]!r}{': ids?' * (len(words) == len(values))}"
    low, high = (f"{end(values):.6g}" for end in (np.nanmin, np.nanmax))
    if not bool((values == np.round(values)).all()):
        return f"numbers from {low} to {high}"
    return f"whole numbers {low}–{high}{', all different: an index?' * (_different(values) == len(values))}"


def in_words(roles: Mapping[str, Role], predictions: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each role, as a report names them."""
    found: dict[str, list[str]] = {"predictions": [*predictions]} if predictions else {}
    for name, role in roles.items():
        if name not in predictions:
            found.setdefault(_IN_WORDS.get(role, "ignored"), []).append(name)
    return found
