"""Whether two results may be compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bnuq.errors import ResultError
from bnuq.findings import listed
from bnuq.gate.pairing import difference_of_points, differing_keys, sampler_settings, settings_of_draws
from bnuq.gate.settings import GateSettings
from bnuq.methods import POPULATION, method_named
from bnuq.metrics.registry import is_known
from bnuq.records.addresses import address_of, estimates_of
from bnuq.records.evaluation import ERRORS, PARTS, EvaluatedSet, Result, Scored
from bnuq.records.identity import in_words, settings_of_record, settings_of_result
from bnuq.store.table import Row

_MOST_NAMED = 8  # missing estimates that a message names


def check_comparable(current: Result, baseline: Result, settings: GateSettings) -> None:
    """Raise ResultError, naming all obstacles, where the two results must not be compared."""
    if problems := [*_differences(current, baseline, settings), *_missing(current, baseline, settings)]:
        text = "\n".join(f"  - {problem}" for problem in problems)
        raise ResultError(f"{current.path} cannot be compared with {baseline.path}:\n{text}")


def similar_addresses(address: str, known: Iterable[str]) -> str:
    """A sentence that names estimates with all parts of this address, such as a metric's name, or else close to it."""
    names, parts = list(known), set(address.split("."))
    similar = [name for name in names if parts <= set(name.split("."))]
    similar = similar or difflib.get_close_matches(address, names, n=3, cutoff=0.4)
    return f" Near it are {listed(similar)}." if similar else ""


def _differences(current: Result, baseline: Result, settings: GateSettings) -> Iterator[str]:
    task, before = current.model["task"], baseline.model["task"]
    if task != before:
        yield f"task: {task} now, {before} in the baseline; their estimates are not comparable."
        return
    yield from _other_numbers(current.sampling, baseline.sampling, settings, of_files=isinstance(current, Scored))
    common = [method for method in current.methods if method in baseline.methods]
    yield from _other_samplers(sampler_settings(current.run), sampler_settings(baseline.run), common, settings)
    results = current, baseline
    new, old = (_as_scored(settings_of_result(each), baseline) | _calibrated(each, common) for each in results)
    if all("tau" in result.methods[result.first].sets["test"].estimates for result in (current, baseline)):
        for side, result in ((new, current), (old, baseline)):
            side["calibrate"] = "cross" if result.is_cross_fitted else "validation"
    yield from _other_scoring(new, old, settings)
    yield from _other_data(current.sets, baseline.sets, settings)


def _other_data(
    new: Mapping[str, EvaluatedSet], old: Mapping[str, EvaluatedSet], settings: GateSettings
) -> Iterator[str]:
    for name, points in new.items():
        difference = difference_of_points(points, old[name]) if name in old else None
        if difference and not settings.allows("data", name):
            advice = "Evaluate on the same examples (with --limit the seed picks them)"
            yield f"data: {name} holds {difference}. {advice}, or {_allowing(f'data:{name}')}."
        elif name in old and _names_other_classes(points, old[name]) and not settings.allows("data", name):
            now, before = (", ".join(evaluated.classes) or "no names" for evaluated in (points, old[name]))
            advice = f"Use the same class file (--palette), or {_allowing(f'data:{name}')}."
            yield f"data: the classes of the pixels of {name} are {now} now, {before} in the baseline. {advice}"


def _other_numbers(
    new: Mapping[str, Any], old: Mapping[str, Any], settings: GateSettings, *, of_files: bool = False
) -> Iterator[str]:
    """Differences in T and b, where both are known; T may be that of files."""
    for key, name in (("samples", "samples"), ("batch_size", "batch-size")):
        now, before = new[key], old[key]
        if now != before and None not in (now, before) and not settings.allows(name):
            do = f"Score a file that has {before} of each example" if of_files else f"Evaluate with --{name} {before}"
            yield f"{name}: {now} now, {before} in the baseline. {do}, or {_allowing(name)}."


def _other_samplers(
    new: Mapping[str, Any], old: Mapping[str, Any], methods: Iterable[str], settings: GateSettings
) -> Iterator[str]:
    """Differences in the mini-batches or noise models that some of these methods draw from."""
    if settings.allows("sampling"):
        return
    sampler_keys: dict[str, str] = {}
    for method in methods:
        now, before = (settings_of_draws(method_named(method), sampler) for sampler in (new, old))
        for key in differing_keys(now, before):
            a, b = (str(keys[key]).lower() if isinstance(keys[key], bool) else keys[key] for keys in (now, before))
            advice = f"Use the same sampling, or {_allowing('sampling')}."
            sampler_keys[key] = f"sampling: {key} is {a} now, {b} in the baseline. {advice}"
    yield from (sampler_keys[key] for key in sorted(sampler_keys))


def _as_scored(settings: Mapping[str, Any], baseline: Result) -> dict[str, Any]:
    """Those of all settings that estimates of the baseline's task are computed with: those that a regression is scored
    by, of a segmentation the value of the pixels that are not scored; and those of its promise, if it made one."""
    prefixes, others = baseline.task.scored_by, ("set_coverage", "shift_window", "shift_loss")  # no metric depends on
    used = {"sampling.mutual_information"}
    used |= {name for name in settings if name.startswith(prefixes) and not name.endswith(others)}
    if baseline.certification is not None:
        used |= {name for name in settings if name.startswith("certificate.")}
    return {name.partition(".")[2]: settings[name] for name in used}


def _calibrated(result: Result, methods: Iterable[str]) -> dict[str, Any]:
    """What the recalibrations of these methods and the thresholds of their prediction sets were fitted to, and the
    nominal coverage; nothing if they have none."""
    if not any(method_named(name).recalibration for name in methods):
        return {}
    settings = settings_of_record(result.run)
    return {"calibrate": settings["sampling.calibrate"], "set_coverage": settings["scoring.set_coverage"]}


def _other_scoring(new: Mapping[str, Any], old: Mapping[str, Any], settings: GateSettings) -> Iterator[str]:
    for key in sorted(new.keys() | old.keys()):
        if new.get(key) != old.get(key) and not settings.allows("scoring"):
            now, before = (in_words(side.get(key, "the default")) for side in (new, old))
            advice = f"Use the same scoring, or {_allowing('scoring')}."
            yield f"scoring: {key} is {now} now, {before} in the baseline. {advice}"


def _names_other_classes(new: EvaluatedSet, old: EvaluatedSet) -> bool:
    """Whether the class files of the masks of a test set differ in their names; its digest has their colours."""
    has_masks = new.kind == "test" and new.labels is None and new.targets is None
    return has_masks and new.classes != old.classes


def _missing(current: Result, baseline: Result, settings: GateSettings) -> Iterator[str]:
    """Methods, sets and estimates that only the baseline has: whole methods and sets first."""
    old = estimates_of(baseline)
    missing = _not_there(current, baseline, old, settings)
    for kind, present, pattern in (("method", current.methods, "{}"), ("set", current.sets, "*.{}")):
        for name in dict.fromkeys(old[address][kind] for address in missing):
            if name and name not in present:
                missing = [address for address in missing if old[address][kind] != name]
                of_file = kind == "method" and isinstance(current, Scored)
                do = f"Score its file by {method_named(name).plain.name}=FILE" if of_file else "Evaluate it"
                yield _absent(f"the {kind} {name}", pattern.format(name), do=do)
    if missing:
        more = len(missing) - _MOST_NAMED
        shown = ", ".join(missing[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        metrics = dict.fromkeys(f"*.{old[address]['metric']}" for address in missing)
        yield _absent(shown, *(missing if len(missing) == 1 else metrics))


def _not_there(current: Result, baseline: Result, old: Mapping[str, Row], settings: GateSettings) -> list[str]:
    """The addresses that only the baseline has, without those that its points, sets, or this version do not let be."""
    new = estimates_of(current)
    missing = [address for address in old if address not in new and not settings.allows("missing", address)]
    missing = [address for address in missing if not _is_of_other_points(address, old[address], current)]
    missing = [address for address in missing if not _is_undefined(old[address], current)]
    missing = [address for address in missing if is_known(old[address]["metric"])]  # not those that left
    has_ood = any(of.kind == "ood" for of in current.sets.values())
    if not has_ood and current.sets.keys() < baseline.sets.keys() and not isinstance(current, Scored):
        # Scores that only OOD sets are ranked by are no estimates of their own: what is missing is the set.
        missing = [address for address in missing if not (old[address]["score"] and old[address]["metric"] == ERRORS)]
    if POPULATION not in current.methods:  # its reference check passes now
        missing = [address for address in missing if method_named(old[address]["method"]).plain.name != POPULATION]
    return missing


def _is_of_other_points(address: str, row: Row, current: Result) -> bool:
    """Whether an estimate is of a class or group that has no estimates for the points of the current result, or is
    only a number there or here."""
    kind = next((kind for kind in PARTS if row[kind]), None)
    if kind is None or row["set"] not in current.sets:
        return False
    test = current.sets[row["set"]]
    is_number = kind == "group" and (address != address_of(row.coordinates) or not test.group_names)
    return is_number or row[kind] not in test.parts.get(kind, {})


def _is_undefined(row: Row, current: Result) -> bool:
    """Whether the current result has the points of a rank estimate, which is then undefined for them: too few are wrong
    or right, or all have one value."""
    method = current.methods.get(row["method"])
    if method is None or row["set"] not in method.sets:
        return False
    ranked = {ERRORS: row["score"] or "predictive_entropy", "uncertainty_correlation": "mutual_information"}
    return ranked.get(row["metric"]) in method.sets[row["set"]].points


def _absent(label: str, *allowed: str, do: str = "Evaluate it") -> str:
    allowing = _allowing(*(f"missing:{pattern}" for pattern in allowed))
    return f"missing: {label}: in the baseline, but not in the current result. {do}, or {allowing}."


def _allowing(*names: str) -> str:
    """How to allow the difference: by an option of `bnuq check`, or in the run file."""
    quoted = [f'"{name}"' for name in names]
    options = " ".join(f"--allow {name}" for name in quoted)
    return f"allow it in [check], allow = [{', '.join(quoted)}], or by bnuq check {options}"
