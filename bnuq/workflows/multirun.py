"""Several runs of one request, over splits and seeds: each evaluated, or read where it is there already."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import bnuq
from bnuq.config import POPULATION, OneOf, Run, Runs, Task
from bnuq.errors import BnuqError, RequestError
from bnuq.evaluation.provenance import behaviour, request_digest, same_behaviour
from bnuq.evaluation.setup import check_request, prepare
from bnuq.files.content import is_file, kind_of, sha256_of_file
from bnuq.progress import Forecast, Foresight, Progress, silent
from bnuq.results import file as result_file
from bnuq.results import multirun as several_file
from bnuq.results.file import NORMALIZED
from bnuq.results.multirun import Several, SharedCaution, one_run, shared_cautions, table_of
from bnuq.results.result import Result
from bnuq.workflows.evaluate import evaluate

OF_ONE_RUN = (
    "reference_sha256",
    "reference_groups_sha256",
    "request",
    "network",
    "outputs",
)  # provenance that runs do not share


def evaluate_several(runs: Runs, *, progress: Progress = silent, foresight: Foresight | None = None) -> Several:
    """Evaluate every run, each into a file of its own, write the aggregate to `runs.out`, and give it.

    A run whose file is there already, made by this version from the same request, network and data, is read instead:
    an interrupted series goes on. `foresight` is told before the first is drawn how long those that are left will take
    if each takes as long, where that is long. Raises BnuqError, naming the run, where one cannot be carried out; the
    results of those before it are kept, and no aggregate is written.
    """
    start = time.perf_counter()
    replaces = runs.out.exists()
    _check(runs)
    found, first, kept = [], None, 0
    of_runs: list[_Told] = []
    with progress("runs", len(runs.all)) as advance:
        for one in runs.all:
            try:
                result = _kept(one.run)
                kept += result is not None
                if result is None:
                    result = evaluate(one.run, foresight=_of_all(foresight, len(runs.all) - len(found)))
                    foresight = None  # which has heard of all
                first = first or (one, _form(result))
                _check_alike(*first, _form(result))
            except BnuqError as error:
                raise type(error)(f"{one.words}: {error}{_what_is_kept(len(found))}") from error
            found.append(one_run(result, sha256=sha256_of_file(one.run.out), split=one.split, seed=one.seed))
            of_runs.append(_told(one, result))
            advance(1)
    several = Several(
        runs=tuple(run for run, _ in found),
        **table_of([figures for _, figures in found]),
        task=of_runs[0].task,
        cautions=tuple(shared_cautions([told.cautions for told in of_runs])),
        notes=(*runs.notes, *_notes(of_runs, kept=kept, replaces=runs.out if replaces else None)),
        seconds=time.perf_counter() - start,
        provenance=of_runs[-1].provenance,
        path=runs.out,
    )
    cautions = (*_same_tests(of_runs), *_undefined(several), *several.cautions)
    several = replace(several, cautions=cautions, notes=(*several.notes, *_without_errors(several)))
    several_file.write(several, runs.out)
    return several


def _of_all(foresight: Foresight | None, left: int) -> Foresight | None:
    """What hears the forecast of one run, and says that of all that are left."""
    if foresight is None:
        return None

    def say(forecast: Forecast) -> None:
        work = f"{left:,} runs, each of {forecast.work}," if left > 1 else forecast.work
        foresight.say(replace(forecast, work=work, seconds=left * forecast.seconds))

    return Foresight(say, foresight.limit / left)


@dataclass(frozen=True)
class _Told:
    """What is kept in memory of a run, besides its figures."""

    one: OneOf
    task: Task
    test_sha256: str
    cautions: list[tuple[str, str]]
    notes: tuple[str, ...]
    provenance: dict[str, str]


def _told(one: OneOf, result: Result) -> _Told:
    return _Told(
        one,
        task=result.model["task"],
        test_sha256=result.sets["test"].sha256,
        cautions=[(caution.code, caution.text) for caution in result.cautions],
        notes=result.notes,
        provenance={k: v for k, v in result.provenance.items() if k not in OF_ONE_RUN},
    )


def _check(runs: Runs) -> None:
    """Before hours are spent: what is wrong with any run, and whether the aggregate can be put where it is to go."""
    if kind_of(runs.out.parent) != "folder":
        raise RequestError(f"--out {runs.out}: the folder {runs.out.parent} does not exist.")
    result_file.check_replaceable(runs.out)
    for one in runs.all:
        if one.run.run_file is not None and one.run.run_file.resolve() == runs.out.resolve():
            raise RequestError(f"--out {runs.out} is a file that these runs read; name another file to write.")
        try:
            check_request(one.run)
        except BnuqError as error:
            raise type(error)(f"{one.words}: {error}") from error


def _what_is_kept(finished: int) -> str:
    if not finished:
        return ""
    several = f"The {finished} runs before it are" if finished > 1 else "The run before it is"
    return f"\n{several} kept: the same command goes on from here."


def _kept(run: Run) -> Result | None:
    """The result that lies where that of `run` belongs, where it is what `run` would give; else None."""
    if not is_file(run.out):
        return None
    try:
        result = result_file.read(run.out)
        asked = request_digest(run, checkpoint_sha256=sha256_of_file(run.checkpoint))
        if result.provenance["bnuq"] != bnuq.__version__ or result.provenance.get("request") != asked:
            return None
        ready = prepare(run)
        material = ready.material
        if not same_behaviour(result.provenance, behaviour(ready.model, ready.example)):
            return None
    except (BnuqError, OSError):  # what is wrong will show when it is evaluated
        return None
    sets = {"test": material.test, **material.ood}
    if material.validation is not None:
        sets["validation"] = material.validation
    reference = None if material.train is None else material.train.sha256
    same = result.provenance.get("reference_sha256") == reference
    same = same and {name: one.sha256 for name, one in result.sets.items()} == {k: v.sha256 for k, v in sets.items()}
    return result if same else None


_Form = tuple[str, tuple[str, ...], tuple[str, ...]]


def _form(result: Result) -> _Form:
    """What must be the same for figures to be put together: task, methods, sets."""
    methods = tuple(name for name in result.methods if name != POPULATION)  # which runs by the reference check
    return result.model["task"], methods, tuple(sorted(result.sets))


def _check_alike(first: OneOf, form: _Form, other: _Form) -> None:
    for what, one, two in zip(("task", "methods", "sets"), form, other, strict=True):
        if one != two:
            ours, theirs = (value if isinstance(value, str) else ", ".join(value) for value in (two, one))
            raise RequestError(
                f"its {what} are {ours}, and those of {first.words} are {theirs}; expected the same in every run. A "
                "set of another file in every run needs one name: NAME=REF."
            )


def _same_tests(of_runs: Sequence[_Told]) -> Iterator[SharedCaution]:
    tests = {told.one.split: told.test_sha256 for told in of_runs}
    if twice := [number for number, sha in tests.items() if Counter(tests.values())[sha] > 1]:
        yield SharedCaution(
            "splits-share-test-set",
            f"Splits {', '.join(map(str, twice))} have the same test points: they are not splits of the data, and "
            "the spread over them says nothing about other test points.",
            sum(told.one.split in twice for told in of_runs),
        )


def _undefined(several: Several) -> Iterator[SharedCaution]:
    """Figures that only some runs have, and normalised scores that are not defined: there is no mean of them."""
    missing: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (method, place, _, metric), found in several.aggregates.items():
        without = tuple(int(row) for row in np.flatnonzero(np.isnan(found.values)))
        if without and (place == NORMALIZED or (place == "test" and len(without) < len(several.runs))):
            name = metric if place == "test" else f"normalised {metric}"
            missing.setdefault((method, without), []).append(name)
    for (method, without), names in missing.items():
        where = "; ".join(several.runs[row].words for row in without[:4])
        where += f" and {len(without) - 4} more" if len(without) > 4 else ""
        yield SharedCaution(
            "undefined-in-some-runs",
            f"{method}: {', '.join(names)} not defined in {where}, and so not over all runs. The reports of those runs "
            "say why.",
            len(without),
        )


def _notes(of_runs: Sequence[_Told], *, kept: int, replaces: Path | None) -> Iterator[str]:
    if kept:
        yield (
            f"{kept} of {len(of_runs)} runs already had a result of the same request, checkpoint and data, which "
            "was reused"
        )
    if replaces:
        yield f"an earlier result was replaced: {replaces.name}"
    counts = Counter(itertools.chain.from_iterable(dict.fromkeys(told.notes) for told in of_runs))
    everywhere = [note for note, count in counts.items() if count == len(of_runs)]
    yield from everywhere
    if more := len(counts) - len(everywhere):
        yield f"{more} more notes hold for some runs only: bnuq report shows them with their results"


def _without_errors(several: Several) -> Iterator[str]:
    """Why there is no Nadeau–Bengio error."""
    if len(several.splits) < 2:
        yield "no errors over splits (Nadeau–Bengio): there is one split only"
    elif several.test_share is None:
        yield (
            "no errors over splits (Nadeau–Bengio): the number of training points is not known; name train, or "
            "train_size, under [data]"
        )
