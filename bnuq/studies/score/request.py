"""The request of `bnuq score`: its files, read and matched with the labels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bnuq.catalogue import distinct
from bnuq.config import CertificateSection, SamplingSection, ScoreSection, ScoringSection
from bnuq.config.schema import option_name, settings_of
from bnuq.data import Points, parse_reference, read_classes, set_name
from bnuq.data.readers.columns import Columns
from bnuq.data.readers.common import as_option
from bnuq.errors import BnuqError, DataError, RequestError
from bnuq.evaluation.subject import VALIDATION
from bnuq.files.content import exists, sha256_of_file
from bnuq.files.folders import expanded
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import method_named
from bnuq.sampling.counter_rng import held_out_rows
from bnuq.studies.score import given_points as matching
from bnuq.studies.score.given import SPREADS, GivenSet, Sought, given_set, given_sets
from bnuq.studies.score.given_classes import in_one_order, order_findings
from bnuq.studies.score.given_points import Source, Truth, columns_at
from bnuq.studies.score.roles import UnclearError, role_by_name
from bnuq.studies.score.roles import matching as columns_matching
from bnuq.tasks import Task

_MOST_UNCLEAR = 6  # questions about one request
_OTHERWISE = "Otherwise: --columns NAME,NAME or ROLE=NAME (mean, sigma, confidence, q0.05, …). All: bnuq score --help."


@frozen
class ScoreRequest:
    """The predictions to score, by the names that their methods get, with their labels and all settings. Predictions of
    OOD sets come by the name of the set, those of validation points alone: one of each file of predictions."""

    predictions: Mapping[str, Source]
    out: Path
    labels: Source | None = None
    ood: Mapping[str, Sequence[Source]] = field(default_factory=dict)
    validation: Sequence[Source] = ()
    section: ScoreSection = field(default_factory=ScoreSection)
    sampling: SamplingSection = field(default_factory=SamplingSection)
    scoring: ScoringSection = field(default_factory=ScoringSection)
    certificate: CertificateSection = field(default_factory=CertificateSection)

    def record(self) -> dict[str, Any]:
        """As JSON values, as a result holds it."""
        names = {name: name_of_source(source) for name, source in self.predictions.items()}
        sampling = {key: getattr(self.sampling, key) for key in ("seed", "calibrate")}
        return {
            "score": {"predictions": names} | msgspec.to_builtins(self.section, enc_hook=str),
            "data": {},
            "sampling": {key: value for key, value in sampling.items() if value is not None},
            "scoring": msgspec.to_builtins(self.scoring),
        } | ({} if self.certificate.risk is None else {"certificate": msgspec.to_builtins(self.certificate)})


def method_name(text: str) -> tuple[str, str]:
    """The name of the method, and the file, of `NAME=FILE` or of a file named by its stem; RequestError for a name that
    a result cannot have."""
    name, equals, file = text.partition("=")
    if not equals or exists(Path(expanded(text))):
        name, file = Path(text.removesuffix(".gz")).stem, text
    if "file" not in method_named(name).differs_by:
        raise RequestError(
            f"{text}: the method would be called {name}, which is a method of bnuq itself. Give it another name: "
            f"{name}_2={file}"
        )
    return set_name(name, reference=file), file


def in_memory(values: Any, name: str) -> Source:
    """What is in memory by names: an array, a dict of arrays, or the columns of a DataFrame; a file as it is."""
    if isinstance(values, str | Path | Columns):
        return values
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        return Columns(f"{name} (in memory)", {str(key): _array(values[key]) for key in values})
    return Columns(f"{name} (in memory)", {"": _array(values)})


def is_of_one_method(values: Mapping[str, Any]) -> bool:
    """Whether a dict is the columns of one method, by their names, and not the predictions of several."""
    of_columns = {*SPREADS, "quantile", "labels", "confidence", "correct"}
    return bool(of_columns & {role_by_name(str(name)) for name in values})


def _array(values: Any) -> NDArray[Any]:
    """Numbers, or texts as objects; a list of L arrays (n, 2), as scikit-learn has of L labels, is (n, L)."""
    if isinstance(values, list) and values and all(getattr(each, "shape", ())[1:] == (2,) for each in values):
        values = np.stack([each[:, 1] for each in values], axis=-1)
    array = np.asarray(values)
    if array.dtype.kind in "fiub":
        return array
    texts = ["" if each is None or each != each else str(each) for each in array.flat]
    return np.array(texts, object).reshape(array.shape)


def sets_named(texts: Sequence[str]) -> dict[str, list[str]]:
    """The files of each set, of `NAME=FILE` or of files that are named by their stems."""
    sets: dict[str, list[str]] = {}
    for text in texts:
        name, file = parse_reference(text)
        sets.setdefault(set_name(name or Path(file).stem, reference=file, reserved=True), []).append(file)
    return sets


def digest_of_source(source: Source) -> str:
    """The SHA-256 of a file, or of columns in memory."""
    if not isinstance(source, Columns):
        return sha256_of_file(Path(expanded(str(source))))
    digest = sha256()
    for name, values in source.values.items():
        digest.update(f"{name} {values.dtype.str}{values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def name_of_source(source: Source) -> str:
    return source.source if isinstance(source, Columns) else str(Path(expanded(str(source))).absolute())


@frozen
class Loaded:
    """What a request names, read and matched: the predictions of every set by method, and the points of the sets."""

    task: Task
    outputs: int
    given: Mapping[str, Mapping[str, GivenSet]]
    points: Mapping[str, Points]
    findings: tuple[Finding, ...]


def loaded_of(request: ScoreRequest) -> Loaded:
    """What a request names. UnclearError with everything that is unclear, and a command that is understood."""
    try:
        return _loaded(request)
    except UnclearError as error:
        texts, cure = [f"{error}"], error.cure
        while cure and len(texts) < _MOST_UNCLEAR:
            added = {of: (*getattr(request.section, of), *cure[of]) for of in cure.keys() & {"ignore", "columns"}}
            labels = cure.get("labels", request.labels)
            known = cure | added | {"labels": None if isinstance(labels, Columns | None) else f"{labels}"}
            request = replace(request, section=msgspec.structs.replace(request.section, **known), labels=labels)
            try:
                loaded = _loaded(request)
                for of in loaded.given.values():
                    for _ in of["test"].blocks(loaded.task):
                        pass
                texts.append(f"If that is what they are:\n  {_command(request)}")
                break
            except BnuqError as other:
                cure = {} if f"{other}" in texts else getattr(other, "cure", {})
                texts += [f"{other}"] * (f"{other}" not in texts)
        raise UnclearError("\n".join([*texts, _OTHERWISE])) from None


def _command(request: ScoreRequest) -> str:
    """The command of this request; of what is in memory its options alone."""
    words = ["bnuq", "score"]
    for name, source in request.predictions.items():
        if isinstance(source, Columns):
            words = []
            break
        file = f"./{source}" if f"{source}".startswith("-") else f"{source}"
        words.append(shlex.quote(file if method_name(file)[0] == name else f"{name}={file}"))
    for part in (request.section, request.sampling, request.scoring, request.certificate):
        for name, known in settings_of(type(part)).items():
            if (value := getattr(part, name)) != known.default:
                words.append(f"--{option_name(name, known.type)}")
                words.append(as_option(*map(str, value)) if isinstance(value, tuple) else shlex.quote(f"{value}"))
    return " ".join(words)


def _loaded(request: ScoreRequest) -> Loaded:
    section, findings = request.section, ()
    files = {name: columns_at(source)[0] for name, source in request.predictions.items()}
    first = next(iter(files.values()))
    if (other_groups := matching.groups_file(section, first)) is not None:
        column = str(section.groups).rpartition(":")[2]  # of other sets, what stands beside their predictions
        section = msgspec.structs.replace(section, groups=None, ignore=(*section.ignore, column))
    truth = matching.truth_of(request.labels, first, section)
    of_labels = truth.of_classes
    files = {name: replace(columns, classes=of_labels) for name, columns in files.items()}
    task = matching.task_of(truth, replace(first, classes=of_labels), section)
    given: dict[str, dict[str, GivenSet]] = {}
    for number, (name, columns) in enumerate(files.items()):
        beside = None if truth.source == columns.source else truth.columns
        sets = given_sets(columns, Sought(section, task, truth.single, truth.label_in(columns), beside=beside))
        _add_others(sets, request, section, (number, len(files)), task)
        given[name] = {set_: of if set_ == VALIDATION else of.with_scores(section.scores) for set_, of in sets.items()}
        _check_draws(sets["test"], request)
        if number == 0:
            truth, findings = matching.without_others(truth, given[name]["test"], section)
        given[name]["test"], found = matching.matched(given[name]["test"], truth, section)
        findings = (*findings, *found, *(matching.read_notes(given[name], truth) if number == 0 else ()))
    _check_ignored(request.section.ignore, given, (truth, other_groups))
    _check_alike(given, files)
    given, classes, found = _in_one_order(given, truth, section, by_number=task.classifies_points)
    words, outputs = _asked_classes(section), next(iter(given.values()))["test"].values.shape[2]
    sets, findings = next(iter(given.values())), [*findings, *found]
    truths, points = {"test": truth}, dict[str, Points]()
    if VALIDATION in sets:
        truths[VALIDATION] = matching.truth_of(None, sets[VALIDATION].columns, section)
    for name, labels in truths.items():
        of_set = [of_file[name] for of_file in given.values()]
        labels = matching.grouped(labels, of_set, other_groups, section, is_test=name == "test")
        for method, of_file in given.items():
            findings += matching.unknown_words(of_file[name], labels, method, words)
            of_file[name] = matching.judged(of_file[name], labels, words)
        if sets[name].kind == "confidences":
            labels = replace(labels, values=np.ones(len(labels.values), dtype=np.int64))  # "right"
        points[name] = matching.labelled_points(labels, sets[name], task, name=name, classes=classes)
        if not truth.classes:
            by = {"named": bool(classes), "asked": bool(section.classes)}
            findings += order_findings(points[name], labels.values, sets[name], **by)
        classes = points["test"].classes or ()
    findings += _compared(points, given, request, task)
    for name in sets.keys() - {"test", VALIDATION}:
        points[set_name(name, reference=name, reserved=True)] = matching.unlabelled_points(sets[name], name, section)
    if section.held_out is not None:
        _hold_out(points, given, section.held_out, request.sampling.seed)
    for of_file in given.values():
        for name, of in of_file.items():
            of_file[name] = replace(of, columns=replace(of.columns, values={}, exact=None))
    order = [name for name in (VALIDATION, "test") if name in points]
    points = {name: points[name] for name in [*order, *sorted(points.keys() - {*order})]}
    outputs = 1 if sets["test"].levels is not None else outputs
    return Loaded(task, outputs, given, points, tuple(distinct(findings).values()))


def _check_ignored(
    ignore: Sequence[str], given: Mapping[str, Mapping[str, GivenSet]], others: Sequence[Truth | None]
) -> None:
    """RequestError for a name that no column of any file has."""
    held = [each.columns for each in others if each is not None and each.columns is not None]
    held += [of.columns for sets in given.values() for of in sets.values()]
    for pattern in ignore:
        if not any(columns_matching(columns, [pattern], needed=False) for columns in held):
            raise RequestError(f"--ignore {pattern!r}: no file has such a column; leave it out, or correct its name.")


def _check_draws(given: GivenSet, request: ScoreRequest) -> None:
    """DataError for draws of a regression of which nothing says what they are of."""
    if given.kind == "means" and given.is_of_samples and not (request.section.outputs or request.scoring.tau):
        raise UnclearError(
            f"{given.columns.source}: {given.found}, {given.samples} a row: draws of the target, whose spread is all "
            "of the uncertainty, or of its mean, around which noise is fitted? Say which: --outputs draws_of_target or "
            "--outputs draws_of_mean.",
            outputs="draws_of_target",
        )


def _add_others(
    sets: dict[str, GivenSet], request: ScoreRequest, section: ScoreSection, of: tuple[int, int], task: Task
) -> None:
    """Adds the OOD and validation sets of file number … of so many to its test set."""
    (number, count), like = of, Sought(section, task, like=sets["test"])
    classes = sets["test"].columns.classes
    sets.pop(VALIDATION, None)  # whose labels the file cannot hold
    sets["test"] = matching.with_groups(sets["test"], section)  # groups of a file of several sets are the test set's
    for ood, sources in request.ood.items():
        if len(sources) != count:
            raise RequestError(
                f"--ood {ood} names {len(sources)} file{'s' * (len(sources) != 1)}, and the predictions are "
                f"{count}; expected one for each, in their order. Another set has another name."
            )
        other = given_set(replace(columns_at(sources[number])[0], classes=classes), like)
        sets[ood] = matching.with_groups(other, section)
    if request.validation and len(request.validation) != count:
        raise RequestError(f"--validation names {len(request.validation)} files; expected {count}, one for each.")
    if request.validation:
        other = replace(columns_at(request.validation[number])[0], classes=classes)
        sets[VALIDATION] = given_set(other, like)


def _compared(
    points: Mapping[str, Points], given: Mapping[str, Mapping[str, GivenSet]], request: ScoreRequest, task: Task
) -> Iterator[Finding]:
    """What test and validation points share, and how hard predictions agree with the others."""
    sets = next(iter(given.values()))
    if VALIDATION in points:
        both = sets["test"], sets[VALIDATION]
        yield from matching.shared_findings(points["test"], points[VALIDATION], both, request.certificate.risk)
    for method, of_file in given.items():
        if task.classifies_points:
            yield from matching.compared(of_file["test"], points["test"], method)


def _in_one_order(
    given: Mapping[str, Mapping[str, GivenSet]], truth: Truth, section: ScoreSection, *, by_number: bool
) -> tuple[dict[str, dict[str, GivenSet]], tuple[str, ...], tuple[Finding, ...]]:
    """The predictions with their columns in one order, and the names of the classes in it, where they are known."""
    first = next(iter(given.values()))["test"]
    asked, count = () if first.kind == "confidences" else _asked_classes(section), first.values.shape[2]
    if asked and len(asked) != count:
        raise RequestError(f"--classes names {len(asked)} classes, and the predictions have {count}.")
    of_labels = truth.classes if len(truth.classes) == count else ()
    by_number &= truth.values.size == len(truth.values)  # and not a matrix, whose columns have an order of their own
    return in_one_order(given, truth.values, asked=asked, of_labels=of_labels, by_number=by_number)


def _asked_classes(section: ScoreSection) -> Sequence[str]:
    """The names of the classes by --classes, which may be a file of them."""
    asked = section.classes or ()
    is_file = len(asked) == 1 and exists(Path(expanded(asked[0])))
    return read_classes(Path(expanded(asked[0]))).names if is_file else asked


def _check_alike(given: Mapping[str, Mapping[str, GivenSet]], files: Mapping[str, Columns]) -> None:
    """DataError for files with other sets, or sets with another number of classes, than the first; and for sets of one
    file with different numbers of samples."""
    first_file, first = next(iter(given.items()))
    for name, sets in given.items():
        if sets.keys() != first.keys():
            raise DataError(
                f"{files[name].source}: has predictions of {', '.join(sets)}; {first_file} of {', '.join(first)}."
            )
        for set_name_, of in sets.items():
            test, first_test = sets["test"], first["test"]
            outputs = "output" if of.kind == "means" else "column"
            _check_count(of, len(of), first[set_name_], len(first[set_name_]), "point")
            levels = [None if each.levels is None else each.levels.tolist() for each in (of, first_test)]
            if levels[0] != levels[1]:
                text = f"{of.columns.source} and {first_test.columns.source} have quantiles at other levels, or one has"
                raise DataError(f"{text} none. CRPS is a mean over the levels: expected the same in all files.")
            if of.levels is None:
                _check_count(of, of.values.shape[2], first_test, first_test.values.shape[2], outputs)
                _check_count(of, of.samples, test, test.samples, "sample", " of each point")


def _check_count(of: GivenSet, count: int, other: GivenSet, expected: int, noun: str, what: str = "") -> None:
    if count != expected:
        raise DataError(
            f"{of.columns.source}: {of.found}, has {count} {noun}{'s' * (count != 1)}{what}, and "
            f"{other.columns.source} {expected}; expected as many."
            + " The mean of samples is a single prediction."
            * (noun == "sample")
        )


def _hold_out(points: dict[str, Points], given: dict[str, dict[str, GivenSet]], share: float, seed: int) -> None:
    """Takes a share of the test points as validation points."""
    if VALIDATION in points:
        raise RequestError(
            "--held-out takes validation points of the labels, and --validation names others; leave one out."
        )
    test = points["test"]
    rows = held_out_rows(len(test), fraction=share, seed=seed, group=test.group)
    others = np.setdiff1d(np.arange(len(test)), rows)
    points |= {VALIDATION: test.subset(rows), "test": test.subset(others)}
    for sets in given.values():
        sets |= {VALIDATION: sets["test"].taken(rows), "test": sets["test"].taken(others)}
