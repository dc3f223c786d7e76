"""Checks a request before anything is read or computed, and before torch is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

from bnuq.config import Named, Run
from bnuq.data import check_found, missing_set, parse_reference
from bnuq.errors import RequestError
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


def check_request(run: Run, *, needs: Collection[Need] = ("test",), reading: bool = True) -> None:
    """Raise BnuqError for every error in `run` that can be found before anything is computed; one message lists all
    that it lacks. Without `reading`, torch is not imported, see `check_complete`."""
    check_readable(run)
    check_complete(run, needs=needs, reading=reading)
    check_out(run)
    _check_bank(run)
    if (ends := run.scoring.tau_range) is not None and not ends[0] < ends[1] < float("inf"):
        raise RequestError(
            f"scoring.tau_range is {list(ends)}; expected two finite numbers, the lower first, in 1/(target unit)²."
        )
    if run.bank is not None and getattr(run.scoring, run.scoring.fit) == "mixture" and run.scoring.tau is None:
        raise RequestError(
            f'--bank and fit = "{run.scoring.fit}" of a mixture cannot be combined: with a bank, points have different '
            "draws, so only the CRPS or PLL of a Gaussian can be fitted. Leave one of them out."
        )
    check_sets(run)


def check_out(run: Run) -> None:
    """Raise BnuqError where the result of `run` cannot be written to its place."""
    if kind_of(run.out.parent) != "folder":
        raise RequestError(f"--out {run.out}: the folder {run.out.parent} does not exist.")
    result_file.check_replaceable(run.out)
    if run.run_file is not None and run.run_file.resolve() == run.out.resolve():
        raise RequestError(f"--out {run.out} is a file that this run reads; name another file to write.")


def check_sets(run: Run, *, only: Collection[Need | Literal["validation"]] | None = None) -> None:
    """Raise DataError for a set of `run` that is nowhere, or for one of `only` these, unless it will be downloaded."""
    named = {"test": (run.test,), "train": (run.train,), "ood": run.ood, "validation": (run.validation,)}
    files = [each for each in (run.train, run.test) if each is not None and each.data is None]
    beside = tuple(parse_reference(each.text, base=each.base)[1] for each in files)
    for split, sets in named.items():
        for ref in sets if only is None or split in only else ():
            if not isinstance(ref, Named) or ref.data is not None:
                continue
            _, text = parse_reference(ref.text, base=ref.base)
            default = "test" if split == "ood" else split
            if not (run.download and missing_set(text, default, base=ref.base, data_root=run.data_root)):
                check_found(text, default, base=ref.base, data_root=run.data_root, beside=beside)


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
            f"--bank is {run.bank}; expected at least as many draws as the {run.samples} samples of a point, which are "
            "chosen from it."
        )


def notes_on_request(runs: Sequence[Run], *, replaces: Path | None) -> Iterator[Finding]:
    """Notes on run files that were found and not named, and on an earlier result that is replaced."""
    for run in runs:
        if run.run_file is not None and run.run_file_is_implicit:
            where = "in this folder" if run.run_file.name == "bnuq.toml" else "beside the checkpoint"
            yield note("run-file-read", file=run.run_file.name, where=where)
    if replaces is not None:
        yield note("result-replaced", file=replaces.name)
