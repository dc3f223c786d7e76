"""Less work at the reference and for the errors of OOD estimates, in runs that are not about them."""

from __future__ import annotations

import os

import pytest

from bnuq.config import Calibration
from bnuq.evaluation import draws, estimates, features, subject

_default_calibration = subject.default_calibration


def at_the_reference(patch: pytest.MonkeyPatch, *, batches: int = 4, points: int = 300) -> None:
    """So many mini-batches in the reference check, and points to which post-hoc scores are fitted."""
    patch.setattr(draws, "BATCHES", batches)
    patch.setattr(features, "_MOST_POINTS", points)


def everywhere(patch: pytest.MonkeyPatch) -> None:
    """Less at the reference, 50 resamples of the points of an OOD set in place of 1000, a cross-fit only where a test
    asks for it; and no waiting until files are on the disk."""
    at_the_reference(patch, batches=8)
    patch.setattr(estimates, "RESAMPLED", 0)
    patch.setattr(estimates, "LEAST_RESAMPLED", 50)
    patch.setattr(subject, "default_calibration", _without_cross_fit)
    patch.setattr(os, "fsync", lambda _: None)


def _without_cross_fit(of: subject.Subject) -> Calibration:
    chosen = _default_calibration(of)
    return "off" if chosen == "cross" else chosen
