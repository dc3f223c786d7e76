"""Estimates of many independent repeats: is the Monte Carlo error that each states the spread that they have?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

LOW, HIGH = 0.7, 1.4  # the error of an error from 32 draws, and of a spread from 120 repeats
LEAST = 1e-3  # of a share


def check(values: Mapping[str, Sequence[float]], errors: Mapping[str, Sequence[float]]) -> None:
    """Print the ratio of the mean stated error to the spread, estimate by figure, and hold each to LOW … HIGH; what is
    the same in all repeats has next to no error."""
    same = {name for name, of_repeats in values.items() if np.ptp(of_repeats) == 0}
    assert {name: np.mean(errors[name]) for name in same if np.mean(errors[name]) > LEAST} == {}
    ratios = {name: np.mean(errors[name]) / np.std(values[name], ddof=1) for name in values.keys() - same}
    for name, ratio in ratios.items():
        mark = "" if LOW <= ratio <= HIGH else "   <<<"
        print(f"{name:40s} {np.mean(values[name]):8.4f} ± {np.std(values[name], ddof=1):.5f}   {ratio:5.2f}{mark}")
    assert {name: round(r, 2) for name, r in ratios.items() if not LOW <= r <= HIGH} == {}


def few(bootstrap, *args, resamples=None, **kwargs):  # noqa: ARG001
    """The bootstrap over points with as few resamples as it takes: errors over points are not looked at."""
    return bootstrap(*args, resamples=2, **kwargs)
