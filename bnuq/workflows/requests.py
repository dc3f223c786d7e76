"""What each command refuses before anything is read or computed; none of it imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bnuq.config import (
    DEFAULT_SAMPLER,
    InspectSection,
    MonitorSection,
    Named,
    PreciseBnSection,
    Run,
    Runs,
    SweepSection,
    section_from,
)
from bnuq.config.schema import settings_of
from bnuq.errors import BnuqError, RequestError
from bnuq.evaluation.completeness import Need
from bnuq.evaluation.request_checks import check_folder, check_out, check_request, check_scoring, check_set
from bnuq.files.content import exists, is_checkpoint, kind_of
from bnuq.files.folders import expanded
from bnuq.files.writing import check_writable
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, METHOD_NAMES, METHODS, Method, method_named
from bnuq.records.evaluation_file import check_replaceable
from bnuq.sweeping.settings import prior_of, samples_of

if TYPE_CHECKING:
    from bnuq.records.evaluation import Result

_NOT_FILES = {
    "folder": "it is a folder",
    "special": "it is a device, a pipe or a socket",
    "unreadable": "it cannot be opened",
}
_DRAWING = tuple(m for m in METHODS if m.differs_by and not m.approximates)
_EXPORTED = (*_DRAWING, method_named(DETERMINISTIC))
_DEFAULTS = InspectSection()


def check_evaluation(run: Run, work: Path | str | None, *, reading: bool = True) -> None:
    """Raise BnuqError for every error that can be found before anything is computed; without `reading` a checkpoint,
    for which torch is imported, only for those that can be seen without it."""
    check_request(run, partial(check_out, run), partial(check_scoring, run), needs=("test",), reading=reading)
    if run.on != "local":
        check_shareable([run], work, f"--on {run.on}")


def check_several(runs: Runs, *, reading: bool = True) -> None:
    """As `check_evaluation`, of every run and the place of their aggregate."""
    check_folder(runs.out)
    check_replaceable(runs.out)
    for run_of_series in runs.all:
        if run_of_series.run.run_file is not None and run_of_series.run.run_file.resolve() == runs.out.resolve():
            raise RequestError(f"--out {runs.out} is a file that these runs read; name another file to write.")
        try:
            check_evaluation(replace(run_of_series.run, on="local"), None, reading=reading)
        except BnuqError as error:
            raise type(error)(f"{run_of_series.words}: {error}") from error


def check_shareable(runs: Sequence[Run], work: Path | str | None, option: str) -> None:
    """Raise RequestError for runs whose units other processes cannot compute."""
    for run in runs:
        if run.network is not None or any(each.data is not None for each in run.named):
            raise RequestError(f"{option} is for networks and data in files, which other processes can read.")
    if str(work).startswith("memory:"):
        raise RequestError(f"--work {work} is memory of this process, which {option} cannot share. Name a folder.")


def check_sweep(
    runs: Sequence[Run], settings: SweepSection, *, out: Path, work: Path | str | None, reading: bool = True
) -> None:
    """As `check_evaluation`, of a sweep of these runs."""
    needs: tuple[Need, ...] = ("test", "train", "ood") if settings.criterion == "auroc" else ("test", "train")
    for run in runs:
        requested = replace(run, out=out, bank=None, samples=samples_of(run))
        others = (partial(check_out, requested), partial(check_scoring, requested))
        check_request(requested, *others, needs=needs, reading=reading)
    if any(run.outputs == "multilabel" for run in runs):
        raise RequestError('outputs is "multilabel", which a sweep does not score; `bnuq evaluate` does.')
    for run in runs:
        for key in ("variance", "batches", "replacement"):
            value, default = getattr(run.sampler, key), getattr(DEFAULT_SAMPLER, key)
            if value != default:
                shown = value if isinstance(value, str) else str(value).lower()
                raise RequestError(
                    f"{run.checkpoint.name}: sampling.{key} is {shown}; a sweep compares sizes of random mini-batches "
                    "of biased variance, drawn without replacement. Leave it out."
                )
    if any(run.mutual_information == "jackknife" for run in runs):
        raise RequestError("--mutual-information jackknife is not available in a sweep; expected plug-in or corrected.")
    prior_of(settings)
    fewest = settings.draw_sets == 2 and (settings.batch_sizes is not None or settings.criterion != "elbo")
    if settings.budget is not None and (settings.full_grid or len(runs) > 1 or fewest):
        raise RequestError(
            "--budget limits an adaptive sweep, which is of one network and has no --full-grid. It adds draw sets "
            "(--draw-sets above 2) or, by the ELBO and without --batch-sizes, sizes."
        )
    if runs[0].on != "local":
        check_shareable(runs, work, f"--on {runs[0].on}")


@frozen
class InspectSettings:
    """The settings of an inspection. `points` points of the reference are the population. The noise is measured on
    `draws` mini-batches of `batch_size` (the training batch size, where None), and its slope on `size_draws` (`draws`,
    where None) of each of several sizes, up to `beyond` times `batch_size`.

    `domains` are sets whose statistics are compared, with `samples` draws of MCBN from each; `suggest_pipeline` tries
    the common training pipelines. `noise_only` leaves the running averages out, and no noise to measure is then an
    error. `input_shape` is the shape of a point where none can be read. With `needs_reference`, a reference that cannot
    be read is an error.
    """

    points: int = _DEFAULTS.points
    draws: int = _DEFAULTS.draws
    batch_size: int | None = None
    beyond: int = 1
    size_draws: int | None = None
    domains: tuple[Named, ...] = ()
    samples: int = _DEFAULTS.samples
    suggest_pipeline: bool = False
    noise_only: bool = False
    input_shape: tuple[int, ...] | None = None
    needs_reference: bool = False

    @staticmethod
    def of(section: InspectSection, *, folder: Path, needs_reference: bool) -> InspectSettings:
        """The settings of the options; paths of domains are relative to `folder`."""
        settings = {key: getattr(section, key) for key in settings_of(InspectSection) if key != "domain"}
        domains = tuple(Named(text, folder) for text in section.domain)
        return InspectSettings(**settings, domains=domains, needs_reference=needs_reference)


def check_inspection(run: Run, settings: InspectSettings, *, reading: bool = True) -> None:
    """As `check_evaluation`, of an inspection."""
    on_data = bool(settings.domains) or settings.suggest_pipeline
    needs: tuple[Need, ...] = ("train",) if settings.needs_reference or on_data else ()
    given = {name: getattr(settings, name) for name in ("points", "draws", "samples", "batch_size")}
    others = (partial(check_out, run), partial(section_from, InspectSection, given))
    sets = (*needs, "test") if settings.domains else needs
    check_request(run, *others, needs=needs, sets=sets, reading=reading)


def check_precise_bn(run: Run, points: int, batch_size: int | None, *, reading: bool = True) -> None:
    """As `check_evaluation`, of a copy with other statistics."""
    given = {"points": points, "batch_size": batch_size}
    others = (partial(section_from, PreciseBnSection, given), partial(_check_copy, run))
    sets = ("train",) if run.task == "segmentation" else ("train", "test")
    check_request(run, *others, needs=("train",), sets=sets, reading=reading)


def _check_copy(run: Run) -> None:
    """Raise RequestError where `run.out` is a file that this run reads, or exists and is not a checkpoint."""
    out, kind = run.out, kind_of(run.out)
    if kind in ("folder", "special", "unreadable"):
        raise RequestError(f"--out {out} cannot be written: {_NOT_FILES[kind]}. Name a file to write.")
    check_folder(out)
    for source in (run.checkpoint, run.run_file):
        if source is not None and exists(out) and out.samefile(source):
            raise RequestError(
                f"--out {out} is a file that this run reads ({source.name}); name another file to write."
            )
    if kind not in ("missing", "empty") and not is_checkpoint(out):
        raise RequestError(f"--out {out} exists and is not a checkpoint; name another file to write.")
    suffix = run.checkpoint.suffix
    if ".safetensors" in (out.suffix, suffix) and out.suffix != suffix:
        raise RequestError(
            f"--out {out}: the file is written in the format that was read; name it {out.with_suffix(suffix).name}."
        )
    check_writable(out)


def check_monitor(run: Run, section: MonitorSection, *, folder: Path, reading: bool = True) -> None:
    """As `check_evaluation`, of a batch that is compared with a reference."""
    baseline = None if section.baseline is None else folder / expanded(section.baseline)
    has_baseline = baseline is not None and exists(baseline)
    checks = [partial(_check_files_of_monitor, run, section, folder)]
    if section.batch is not None:
        checks.append(partial(check_set, run, Named(section.batch, folder), "test"))
    lacks_reference = not has_baseline and run.test is None and run.train is None
    needs: tuple[Need, ...] = ("test",) if lacks_reference else ()
    sets: tuple[Need, ...] = () if has_baseline else ("train",) if run.test is None else ("test",)
    check_request(run, *checks, needs=needs, sets=sets, reading=reading)


def _check_files_of_monitor(run: Run, section: MonitorSection, folder: Path) -> None:
    """Raise BnuqError where no batch is named and there is nothing else to do, and for what cannot be written."""
    named = (("--baseline", section.baseline), ("--stream", section.stream))
    paths = {option: folder / expanded(name) for option, name in named if name is not None}
    if section.batch is None and ("--baseline" not in paths or exists(paths["--baseline"])):
        there = "there is nothing to do" if section.baseline is None else f"{section.baseline} is there already"
        raise RequestError(f"no batch is named, and {there}. Name the examples of today: bnuq monitor MODEL BATCH.")
    if run.out.exists() or section.batch is not None:
        check_out(run)
    for option, path in paths.items():
        check_folder(path, option)
        if path.resolve() == run.out.resolve():
            raise RequestError(f"{option} {path} is also the result file; name another.")


def check_export(
    run: Run, *, method: str | None, result: Result | None, path: Path | None = None, reading: bool = True
) -> None:
    """As `check_evaluation`, of a program, and of the `path` where it is to be."""
    if path is not None and path.suffix != ".pt2":
        raise RequestError(f"--out {path}: expected a name that ends in .pt2, a program of torch.export.")
    if path is not None:
        check_writable(path)
    _, run = exported_run(run, method, result)
    check_request(run, needs=("test",), reading=reading)


def exported_run(run: Run, method: str | None, result: Result | None) -> tuple[Method | None, Run]:
    """The method whose samples are exported, before recalibration, None where the network decides; and the request of
    these alone, on the CPU. RequestError where they cannot be."""
    base = _exported_method(method, result)
    methods = run.methods if base is None else () if base.is_single else (base.name,)
    samples = _exported_samples(run, result)
    return base, replace(run, methods=methods, samples=samples, perturb=(), device="cpu")


def first_exported(methods: Sequence[Method], where: str) -> Method:
    """The first method of several samples that can be exported; RequestError where there is none."""
    exportable = next((method for method in methods if method in _DRAWING), None)
    if exportable is None:
        raise RequestError(
            f"{where}: no method of {', '.join(map(str, methods))} draws samples that can be exported. The network as "
            "it is: --method deterministic."
        )
    return exportable


def _exported_method(name: str | None, result: Result | None) -> Method | None:
    """The method whose samples are exported, before recalibration; None where the network decides. RequestError for one
    that cannot be."""
    known = (*result.methods,) if result is not None else ()
    if name is None:
        return None if result is None else first_exported([*map(method_named, known)], str(result.path))
    if name not in METHOD_NAMES or method_named(name).plain not in _EXPORTED:
        expected = ", ".join((*map(str, _EXPORTED), "each with +temperature or +vector"))
        raise RequestError(f"--method {name} cannot be exported; expected one of {expected}.")
    if result is not None and name not in known:
        raise RequestError(f"--method {name}: {result.path} has only {', '.join(known)}; expected one of these.")
    method = method_named(name)
    if result is None and method.recalibration is not None:
        raise RequestError(f"--method {name} is fitted in an evaluation. Name its result: --from RESULT.")
    return method.plain


def _exported_samples(run: Run, result: Result | None) -> int:
    if result is not None:
        return int(result.sampling["samples"])
    if run.samples == "auto":
        raise RequestError("--samples auto needs labels; expected a number, or --from RESULT.")
    return run.samples
