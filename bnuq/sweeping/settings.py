"""The settings of a sweep that can be wrong, checked before torch is imported."""

from __future__ import annotations

from bnuq.config import Samples, SweepSection
from bnuq.errors import RequestError
from bnuq.metrics import Prior


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
