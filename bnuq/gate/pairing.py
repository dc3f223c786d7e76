"""What two results share: the points of sets, and the draws of methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bnuq.config import DEFAULT_SAMPLER
from bnuq.findings import all_of
from bnuq.gate.records import Pairing
from bnuq.methods import DETERMINISTIC, METHODS, Method, method_named
from bnuq.records.evaluation import EvaluatedSet, Result, Scored
from bnuq.records.identity import of_mini_batches

_USUAL: dict[str, Any] = {key: getattr(DEFAULT_SAMPLER, key) for key in DEFAULT_SAMPLER.__struct_fields__}
_USUAL |= {"query_in_batch": False, "per_query": False}  # of results of earlier versions
_OF_MINI_BATCHES = tuple(key for key in (*_USUAL, "group") if not any(key in method.settings for method in METHODS))


def pairing(current: Result, baseline: Result) -> Pairing:
    """The sets whose points the two results share, and the methods whose draws are the same."""
    sets = current.sets.keys() & baseline.sets.keys()
    points = [n for n in current.sets if n in sets and not difference_of_points(current.sets[n], baseline.sets[n])]
    shared: list[str] = []
    unpaired: list[tuple[str, str]] = []
    codes = {finding.code for result in (current, baseline) for finding in result.findings}
    # Without running statistics the deterministic network uses those of the drawn mini-batches.
    fixed = () if "deterministic-from-reference" in codes else (DETERMINISTIC,)
    for method in (m for m in current.methods if m in baseline.methods and method_named(m).plain.name not in fixed):
        given = "file" in method_named(method).differs_by
        if given and all(result.is_single(method) for result in (current, baseline)):  # nothing is drawn
            continue
        if differing := list(_draw_differences(method_named(method), current, baseline)):
            unpaired.append((method, f"{all_of(differing)} {'differs' if len(differing) == 1 else 'differ'}"))
        else:
            shared.append(method)
    return Pairing(tuple(points), tuple(shared), tuple(unpaired))


def under_one_name(current: Result, baseline: Result) -> Result:
    """The baseline with its method under the name that it has in the current result, where each is of one file of
    predictions: files of two versions have other names."""
    if not (isinstance(current, Scored) and isinstance(baseline, Scored)):
        return baseline
    new, old = ([*result.model["files"]] for result in (current, baseline))
    return baseline.renamed(new[0]) if len(new) == len(old) == 1 and new != old else baseline


def pairing_of(current: Result, baselines: Sequence[Result]) -> Pairing:
    """What a result shares with all of several others."""
    first, *others = (pairing(current, baseline) for baseline in baselines)
    for other in others:
        why_not = dict(first.why_not) | {name: why for name, why in other.why_not if name not in dict(first.why_not)}
        points = tuple(name for name in first.points if name in other.points)
        first = Pairing(points, tuple(name for name in first.draws if name in other.draws), tuple(why_not.items()))
    return first


def _draw_differences(method: Method, current: Result, baseline: Result) -> Iterator[str]:
    """Why draw t of one result is not draw t of the other."""
    if "file" in method.differs_by:
        yield from _differences_of_files(method.plain.name, current, baseline)
    elif "networks" in method.differs_by:  # they are given, like the deterministic one
        now, before = ([member["sha256"] for member in result.model["members"]] for result in (current, baseline))
        if now != before:
            yield "the networks"
    elif method.normalizes_jointly:
        for key, name in (("seed", "the seed"), ("batch_size", "the batch size"), ("layers", "the layers")):
            if current.sampling.get(key) != baseline.sampling.get(key):
                yield name
    else:
        for key, name in (("seed", "the seed"), ("samples", "T"), ("bank", "the bank")):
            if current.sampling.get(key) != baseline.sampling.get(key):
                yield name
        if method.is_single or method.is_sampled_batchnorm:
            yield from _differences_of_mini_batches(current, baseline)
        if "augmentation" in method.differs_by and _augmentation(current.run) != _augmentation(baseline.run):
            yield "the augmentation of evaluated examples"
        # A single pass that moves with the draws uses the statistics that mcbn draws.
        yield from _differences_of_samplers(method_named("mcbn") if method.is_single else method, current, baseline)
        if "masks" in method.differs_by and current.mask_generator != baseline.mask_generator:
            yield "the generator of dropout masks"


def _differences_of_files(method: str, current: Result, baseline: Result) -> Iterator[str]:
    if current.file_sha256(method) != baseline.file_sha256(method):
        yield "the file of predictions"
    if current.sampling["samples"] != baseline.sampling["samples"]:
        yield "T"


def _differences_of_mini_batches(current: Result, baseline: Result) -> Iterator[str]:
    if current.sampling["batch_size"] != baseline.sampling["batch_size"]:
        yield "the mini-batch size"
    if current.provenance.get("reference_sha256") != baseline.provenance.get("reference_sha256"):
        yield "the training set"
    now, before = (of_mini_batches(result.run) for result in (current, baseline))
    if differing := [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]:
        yield f"the training pipeline ({', '.join(sorted(differing))})"


def _differences_of_samplers(method: Method, current: Result, baseline: Result) -> Iterator[str]:
    now, before = (settings_of_draws(method, sampler_settings(result.run)) for result in (current, baseline))
    yield from (f"sampling.{key}" for key in differing_keys(now, before))
    groups = [result.provenance.get("reference_groups_sha256") for result in (current, baseline)]
    if now.get("batches") == before.get("batches") == "group" and groups[0] != groups[1]:
        yield "the grouping of the training set"


def _augmentation(run: Mapping[str, Any]) -> Any:
    return run.get("tta", run.get("data", {}).get("augment"))


def difference_of_points(new: EvaluatedSet, old: EvaluatedSet) -> str | None:
    """The difference between the points of a set, in words; None if they are the same."""
    if new.n != old.n:
        return f"{new.n} examples now, {old.n} in the baseline"
    if new.sha256 != old.sha256:
        return f"other data now (SHA-256 {new.sha256[:12]}…, {old.sha256[:12]}… in the baseline)"
    if not _is_same(new.labels, old.labels) or not _is_same(new.targets, old.targets):
        return "examples with other labels or targets"
    return None if _is_same(*_groups(new, old)) else "examples with other groups"


def _groups(*sets: EvaluatedSet) -> list[np.ndarray | None]:
    """The groups of the points of sets: by their names, or, where one has none, by the first point of each."""
    if all(each.group_names for each in sets):
        return [None if each.group is None else np.array(each.group_names)[each.group] for each in sets]
    numbered = (each.group if each.group is None else np.unique(each.group, True, True) for each in sets)
    return [None if each is None else each[1][each[2]] for each in numbered]


def _is_same(new: np.ndarray | None, old: np.ndarray | None) -> bool:
    return new is old if new is None or old is None else np.array_equal(new, old)


def sampler_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The composition of a run's mini-batches and its noise models: the keys of `Sampler`, with `counts` resolved, and
    a digest of the groups where mini-batches are drawn by group."""
    data = run.get("data", {})
    written = {key: value for key, value in run.get("sampling", {}).items() if key in _USUAL}
    group = {"group": data.get("group", "group")} if written.get("batches") == "group" else {}
    return _USUAL | {"counts": "measured" if data.get("train") else "nominal"} | written | group


def settings_of_draws(method: Method, sampler: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the draws of a method depend on."""
    keys = method.settings
    if "counts" in keys and sampler["counts"] != "measured":  # the method draws no mini-batch
        keys = ("variance", "replacement", "counts")
    elif method.is_sampled_batchnorm:
        keys = (*_OF_MINI_BATCHES, *keys)
    return {key: sampler[key] for key in keys if key in sampler}


def differing_keys(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, among those that both have: a key that only one has depends on a shared key."""
    return sorted(key for key in new.keys() & old.keys() if new[key] != old[key])
