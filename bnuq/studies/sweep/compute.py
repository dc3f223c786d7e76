"""Sweeps the batch size, MCBN's variational parameter: the uncertainty of a network at every size, and the size to
use."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bnuq.catalogue import distinct
from bnuq.config import Run, SweepSection
from bnuq.data import Points, are_grey_files
from bnuq.errors import DataError, RequestError, SamplingError
from bnuq.evaluation.datasets import RunData, fetch_missing
from bnuq.evaluation.executors import UnitExecutor, UnitsLostError, Worker
from bnuq.evaluation.provenance import Stopwatch, provenance
from bnuq.evaluation.request_checks import notes_on_request
from bnuq.evaluation.setup import prepare
from bnuq.evaluation.subject import VALIDATION
from bnuq.files.fetching import stem_of
from bnuq.files.journal import Journal, WorkFolder, work_folder
from bnuq.files.places import Place
from bnuq.findings import Finding, about, notes, warning, warnings
from bnuq.progress import CHECKING, READING, Announce, Progress, silence, silent, stage
from bnuq.records.comparisons import on_another_scale
from bnuq.records.identity import in_words, settings_of_record
from bnuq.studies.sweep import record as sweep_file
from bnuq.studies.sweep.network import Swept, SweptNetwork, default_sizes
from bnuq.studies.sweep.recommendation import recommend
from bnuq.studies.sweep.record import Protocol, Recommended, Sweep, SweepPoint, SweptSet
from bnuq.studies.sweep.request import check_sweep, samples_of
from bnuq.studies.sweep.sizes import noise_points
from bnuq.workflows.workers import Job, helpers

__all__ = ["Settings", "default_sizes", "sweep"]

Settings = SweepSection
DEFAULT = Settings()


def sweep(
    runs: Sequence[Run],
    settings: Settings = DEFAULT,
    *,
    out: Path | None = None,
    work: Path | str | None = None,
    progress: Progress = silent,
    announce: Announce = silence,
) -> Sweep:
    """Sweep MCBN's mini-batch size, write the result to `out` (the first run's `out`, where None), and return it.

    One run: its network at every size (protocol "single"). Several: each at its training batch size ("matched"), and at
    every size of `settings.batch_sizes` too, where there are any. Finished parts are saved in `work` (by default beside
    `out`) and read after an interruption. Raises BnuqError where the request cannot be carried out; `out` is then not
    touched. Source: Mukhoti, Dokania, Torr & Gal 2020, On Batch Normalisation for Approximate Bayesian Inference.
    """
    watch = Stopwatch()
    out = runs[0].out if out is None else out
    check_sweep(runs, settings, out=out, work=work)
    for run in runs:
        fetch_missing(run, progress)
    replaces = out.exists()
    units = work_folder(out, work, request=["sweep", [run.record() for run in runs], msgspec.to_builtins(settings)])
    with units as folder, folder.forgotten_on(SamplingError):
        requests = [replace(run, on="local") for run in runs]
        job = Job(compute, (requests, settings, folder.secret), str(folder.place), runs[0].device)
        with helpers(runs[0].on, job) as others:
            with stage(progress, READING):
                networks = _networks(runs, settings)
            watch.lap("load")
            executors = [UnitExecutor(network.journal(folder)) for network in networks]
            with stage(progress, CHECKING):
                checks = [network.checked() for network in networks]
            others.wait(progress, sum(network.most_passes for network in networks))
            swept = [
                network.swept(check, executor, watch, progress, announce)
                for network, check, executor in zip(networks, checks, executors, strict=True)
            ]
        result = _result(runs, settings, networks[0], swept, watch, out=out, replaces=replaces)
        sweep_file.write(result, out)
    return result


def compute(
    runs: Sequence[Run],
    settings: Settings,
    secret: bytes,
    place: Place,
    make: Callable[[Journal], Worker],
    progress: Progress = silent,
) -> list[Worker]:
    """Compute the units of a sweep that fall to the executors made of its journals here, without a result."""
    executors = []
    for network in _networks(runs, settings):
        executors.append(make(network.journal(WorkFolder(place, secret))))
        with suppress(UnitsLostError):
            network.passed(executors[-1], Stopwatch(), progress)
    return executors


def _networks(runs: Sequence[Run], settings: Settings) -> list[SweptNetwork]:
    names = _names(runs)
    networks: list[SweptNetwork] = []
    for number, run in enumerate(runs):
        prepared = prepare(run, _shared_data(run, networks))
        networks.append(SweptNetwork(number, names[number], run, prepared, settings, several=len(runs) > 1))
        _check_alike(networks)
    return networks


def _order(point: SweepPoint) -> tuple[bool, int, int]:
    return point.protocol == "matched", point.model if point.protocol == "single" else 0, point.batch_size


def _result(
    runs: Sequence[Run],
    settings: Settings,
    first: SweptNetwork,
    networks: Sequence[Swept],
    watch: Stopwatch,
    *,
    out: Path,
    replaces: bool,
) -> Sweep:
    best, why_none = _recommended(first, networks, settings)
    points = [point for network in networks for point in network.points]
    return Sweep(
        task=first.subject.task.name,
        models=tuple(network.model for network in networks),
        points=tuple(sorted(points, key=_order)),
        sets=tuple(
            SweptSet(name, name if name in ("test", VALIDATION) else "ood", len(of_set), of_set.sha256)
            for name, of_set in first.sets.items()
        ),
        samples=samples_of(runs[0].samples),
        draw_sets=max(point.draw_sets for point in points),
        seed=runs[0].seed,
        score=first.subject.task.spread,
        recommended=best,
        findings=(
            *notes_on_request(runs, replaces=out if replaces else None),
            *distinct(finding for network in networks for finding in notes(network.findings)).values(),
            *_warnings_of(networks),
            *_findings_on_choice(best, first.sets, why_none),
        ),
        seconds=watch.seconds(),
        provenance=provenance(
            runs[0],
            device=first.prepared.pipeline.device,
            train=first.prepared.data.train,
            arithmetic=networks[0].arithmetic,
        )
        | {"arithmetic": networks[0].arithmetic.name},
        stopped=networks[0].stopped,
        skipped=tuple(sorted({*first.sizes} - {point.batch_size for point in points})),
        path=out,
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """The checkpoints' stems; with their folders where two stems are the same, and numbered where these are the same,
    too."""
    stems = [stem_of(run.checkpoint) for run in runs]
    long = [f"{run.checkpoint.parent.name}/{run.checkpoint.stem}" for run in runs]
    names = [stem if Counter(stems)[stem] == 1 else long_name for stem, long_name in zip(stems, long, strict=True)]
    return [name if Counter(names)[name] == 1 else f"{name}#{number}" for number, name in enumerate(names)]


def _shared_data(run: Run, networks: Sequence[SweptNetwork]) -> RunData | None:
    """The points of an earlier network, if any, whose request differs in its network alone. Whether grey pictures are
    read in colour is the network's choice, too."""
    for network in networks:
        settings, data = settings_of_record(network.run.record()), network.prepared.data
        grey = are_grey_files(data.test) or any(finding.code == "grey-as-rgb" for finding in data.findings)
        others = [name for name, value in settings_of_record(run.record()).items() if value != settings[name]]
        if not grey and all(name.startswith("model.") for name in others):
            return data
    return None


def _check_alike(networks: Sequence[SweptNetwork]) -> None:
    """Raise RequestError or DataError where the last network cannot be compared with those before it."""
    first, last = networks[0], networks[-1]
    shared = _shared(first)
    for subject, other in _shared(last).items():
        if other != shared[subject]:
            raise RequestError(
                f"{last.name}: {subject} is {in_words(other)}, but {in_words(shared[subject])} in {first.name}; "
                "expected the same, as networks are compared draw by draw."
            )
    for name in sorted({*first.sets, *last.sets, "train"}):
        pair = [None if (points := value.points_of(name)) is None else points.identity for value in (first, last)]
        if pair[0] != pair[1]:
            subject = "the training set" if name == "train" else f"set {name}"
            raise DataError(
                f"{subject} of {last.name} is not that of {first.name}; networks are compared on the same examples."
            )
    for other in networks[:-1]:
        if other.prepared.loaded.checkpoint.sha256 == last.prepared.loaded.checkpoint.sha256:
            raise RequestError(
                f"{other.name} and {last.name} are the same network: their checkpoints are identical. To sweep one "
                "network, name it once, with --batch-sizes."
            )
        if other.trained_with == last.trained_with:
            raise RequestError(
                f"{other.name} and {last.name} were both trained with batches of {last.trained_with}; expected "
                "one network per size."
            )


_MAY_DIFFER = (  # beginnings of addresses: the networks' own, of which the points count; and what no sweep does
    *("model.", "data.", "options.", "check", "gate", "runs", "sampling.batch_size", "sampling.methods"),
    *("sampling.bank", "sampling.mc_error", "sampling.max_samples", "sampling.counts", "sampling.covariance"),
    *("sampling.laplace", "sampling.noise_model_draws", "certificate.", "tta"),
)


def _shared(network: SweptNetwork) -> dict[str, Any]:
    """What the networks of a sweep must have in common, by its address."""
    asked = settings_of_record(network.run.record())
    settings = {name: asked[name] for name in asked if not name.startswith(_MAY_DIFFER)}
    return {"task": network.subject.task, "train_size": network.train_size} | settings


def _recommended(first: SweptNetwork, networks: Sequence[Swept], settings: Settings) -> tuple[Recommended | None, str]:
    """The recommended size; or None, and why, where there are sizes to compare. None is recommended while a reference
    check fails, nor by sets whose inputs are on another scale: each has a warning."""
    protocol: Protocol = "single" if len(networks) == 1 else "matched"
    candidates = sorted(
        (candidate for network in networks for candidate in network.candidates),
        key=lambda candidate: candidate.at_size.batch_size,
    )
    all_findings = [finding for network in networks for finding in network.findings]
    name = first.criterion.name
    of_elbo = {VALIDATION} if noise_points(first.subject) else set()
    judged_by = {"elbo": of_elbo, "pll": {name}, "auroc": {name, *first.subject.ood}}[settings.criterion]
    if any(finding.code == "reference-mismatch" for finding in all_findings) or judged_by & {
        *on_another_scale(all_findings)
    }:
        return None, ""
    data = first.criterion
    test = replace(data, name="test", points=first.sets["test"])
    is_judged = "test" not in on_another_scale(all_findings)
    result = recommend(candidates, settings.criterion, protocol, data, test if is_judged else None)
    not_degenerate = [candidate for candidate in candidates if not candidate.at_size.degenerate]
    return result, f"none has {settings.criterion.upper()}" if result is None and len(not_degenerate) > 1 else ""


def _warnings_of(networks: Sequence[Swept]) -> Iterator[Finding]:
    """Warnings of all networks once, and warnings of some networks with the network's name."""
    of_networks = [distinct(warnings(network.findings)) for network in networks]
    counts = Counter(itertools.chain.from_iterable(of_networks))
    yield from (finding for by_text, finding in of_networks[0].items() if counts[by_text] == len(networks))
    for network, of_network in zip(networks, of_networks, strict=True):
        unshared = (finding for by_text, finding in of_network.items() if counts[by_text] < len(networks))
        yield from about(network.model.name, unshared)


def _findings_on_choice(best: Recommended | None, sets: Mapping[str, Points], why_none: str) -> Iterator[Finding]:
    if best is None:
        if why_none:
            yield warning("no-recommendation", reason=why_none)
        return
    if best.of == "test":
        yield warning("chosen-on-test", criterion=best.criterion.upper())
    if best.criterion == "auroc":
        yield warning("chosen-on-ood", sets=[name for name in sets if name not in ("test", VALIDATION)])
    if best.criterion == "elbo" and best.protocol == "matched":
        yield warning("elbo-of-several-networks")
