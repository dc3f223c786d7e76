"""Checks a request before anything is read or computed, and before torch is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from bnuq.config import Named, Run
from bnuq.data import check_found, missing_set, parse_reference
from bnuq.errors import RequestError, failures, raise_all
from bnuq.evaluation.completeness import Need, check_complete
from bnuq.files.content import kind_of
from bnuq.findings import Finding, note
from bnuq.methods import method_named
from bnuq.models.kinds import kind_of_weights
from bnuq.records import evaluation_file as result_file
from bnuq.trust import names_a_file, source_of


def check_readable(run: Run) -> None:
    """Raise ModelError where a checkpoint of `run` cannot be one, RequestError where the file of an architecture cannot
    be read."""
    for single in run.single:
        if single.network is None:
            kind_of_weights(single.checkpoint)
            if single.arch is not None and names_a_file(single.arch.text):
                source_of(single.arch.text, single.arch.base)


def check_files(run: Run) -> None:
    """Raise BnuqError for every file of `run` that cannot be what it is named for."""
    raise_all(failures(partial(check_readable, run), *_set_checks(run, None)))


def check_request(
    run: Run,
    *others: Callable[[], object],
    needs: Collection[Need],
    sets: Collection[Need | Literal["validation"]] | None = None,
    reading: bool = True,
) -> None:
    """Raise BnuqError for every error in `run` that can be found before anything is computed, also by the `others`: one
    message lists all that is wrong with its files and with its `sets` (None: all), and all that it lacks of its
    `needs`. Without `reading`, torch is imported only where something else is wrong, see `check_complete`."""
    errors = failures(partial(check_readable, run))
    complete = None if errors else partial(check_complete, run, needs=needs)
    errors += failures(*others, *_set_checks(run, sets))
    if complete is not None:
        errors += failures(partial(complete, reading=reading or bool(errors)))
    raise_all(errors)


def check_scoring(run: Run) -> None:
    """Raise RequestError for a bank that is too small, or settings of a regression's scoring that contradict it."""
    _check_bank(run)
    if (ends := run.scoring.tau_range) is not None and not ends[0] < ends[1] < float("inf"):
        raise RequestError(
            f"scoring.tau_range is {list(ends)}; expected two finite numbers, the lower first, in 1/(target unit)²."
        )
    if run.bank is not None and getattr(run.scoring, run.scoring.fit) == "mixture" and run.scoring.tau is None:
        raise RequestError(
            f'--bank and fit = "{run.scoring.fit}" of a mixture cannot be combined: with a bank, examples have other '
            "draws each, so only the CRPS or PLL of a Gaussian can be fitted. Leave one of them out."
        )


def check_out(run: Run) -> None:
    """Raise BnuqError where the result of `run` cannot be written to its place."""
    check_folder(run.out)
    result_file.check_replaceable(run.out)
    if run.run_file is not None and run.run_file.resolve() == run.out.resolve():
        raise RequestError(f"--out {run.out} is a file that this run reads; name another file to write.")


def check_folder(path: Path, option: str = "--out") -> None:
    """Raise RequestError where the folder of a file to be written does not exist."""
    if kind_of(path.parent) != "folder":
        raise RequestError(f"{option} {path}: the folder {path.parent} does not exist.")


def _set_checks(run: Run, only: Collection[Need | Literal["validation"]] | None) -> Iterator[Callable[[], object]]:
    """For each set of `run`, or each of `only` these, a check that raises DataError where it is nowhere, unless it will
    be downloaded."""
    named = {"test": (run.test,), "train": (run.train,), "ood": run.ood, "validation": (run.validation,)}
    files = [each for each in (run.train, run.test) if each is not None and each.data is None]
    beside = tuple(parse_reference(each.text, base=each.base)[1] for each in files)
    for split, sets in named.items():
        for ref in sets if only is None or split in only else ():
            if isinstance(ref, Named) and ref.data is None:
                yield partial(check_set, run, ref, "test" if split == "ood" else split, beside=beside)


def check_set(run: Run, ref: Named, split: str, *, beside: Collection[str] = ()) -> None:
    """Raise DataError where there is nothing that `ref` could name, unless `run` will download it."""
    _, text = parse_reference(ref.text, base=ref.base)
    if not (run.download and missing_set(text, split, base=ref.base, data_root=run.data_root)):
        check_found(text, split, base=ref.base, data_root=run.data_root, beside=beside)


def _check_bank(run: Run) -> None:
    """Raise RequestError for a bank of fewer than T draws, or where T is "auto"; ignored where no method samples
    BatchNorm."""
    if run.bank is None or (
        run.methods is not None and not any(method_named(name).is_sampled_batchnorm for name in run.methods)
    ):
        return
    if run.samples == "auto":
        raise RequestError(
            f'--bank {run.bank} needs a number of samples, and samples is "auto"; name one with --samples, or leave '
            "the bank out."
        )
    if run.bank < run.samples:
        raise RequestError(
            f"--bank is {run.bank}; expected at least the {run.samples} samples of an example, which are chosen "
            "from it."
        )


def notes_on_request(runs: Sequence[Run], *, replaces: Path | None) -> Iterator[Finding]:
    """Notes on run files that were found and not named, and on an earlier result that is replaced."""
    for run in runs:
        if run.run_file is not None and run.run_file_is_implicit:
            where = "in this folder" if run.run_file.name == "bnuq.toml" else "beside the checkpoint"
            yield note("run-file-read", file=run.run_file.name, where=where)
    if replaces is not None:
        yield note("result-replaced", file=replaces.name)
