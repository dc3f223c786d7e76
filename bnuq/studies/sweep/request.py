"""What a sweep refuses before anything is read or computed, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bnuq.config import DEFAULT_SAMPLER, Run, Samples, SweepSection
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import Need
from bnuq.evaluation.request_checks import check_out, check_request, check_scoring
from bnuq.metrics import Prior
from bnuq.workflows.requests import check_shareable


def check_sweep(
    runs: Sequence[Run], settings: SweepSection, *, out: Path, work: Path | str | None, reading: bool = True
) -> None:
    """As `check_evaluation`, of a sweep of these runs."""
    needs: tuple[Need, ...] = ("test", "train", "ood") if settings.criterion == "auroc" else ("test", "train")
    for run in runs:
        requested = replace(run, out=out, bank=None, samples=samples_of(run.samples))
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


def samples_of(requested: Samples) -> int:
    """T of a draw set; RequestError for "auto", or fewer than 2."""
    if requested == "auto":
        raise RequestError('samples is "auto", which a sweep does not support; give a number with --samples.')
    if requested < 2:
        raise RequestError(f"--samples is {requested}; expected at least 2, because one sample has no spread.")
    return requested


def prior_of(settings: SweepSection) -> Prior:
    """The requested prior; RequestError for missing or superfluous parameters."""
    keys_of_kinds = {"gaussian": ("prior_mean", "prior_deviation"), "weight_decay": ("prior_precision",)}
    keys = keys_of_kinds.get(settings.prior, ())
    for key in ("prior_mean", "prior_deviation", "prior_precision"):
        setting, option = getattr(settings, key), key.replace("_", "-")
        value = "NUMBER" if key == "prior_precision" else "MEAN,VARIANCE"
        if (setting is None) != (key not in keys):
            requirement = f"needs --{option} {value}" if key in keys else f"takes no --{option}"
            raise RequestError(f'the prior "{settings.prior}" {requirement} (sweep.{key} in the run file).')
    try:
        return Prior(settings.prior, settings.prior_mean, settings.prior_deviation, settings.prior_precision)
    except ValueError as error:
        raise RequestError(f"sweep.prior: {error}") from error
