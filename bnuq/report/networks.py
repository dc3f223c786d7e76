"""The networks of a single pass in sentences, and which of them a method is compared with.

MCBN normalises by statistics of the reference. Where the running ones do not fit it, that alone changes estimates: no
uncertainty is gained: MCBN is then compared with the network under the population statistics of its mini-batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bnuq.config import ANALYTIC, DETERMINISTIC, POPULATION
from bnuq.metrics import standard_error
from bnuq.records.evaluation import Result
from bnuq.report.noise_models import labelled
from bnuq.report.numbers import signed

_NETWORKS = {DETERMINISTIC: "the deterministic network", POPULATION: "the network with population statistics"}


def of_whom(method: str) -> str:
    """A method within a sentence."""
    return _NETWORKS.get(method) or labelled(method)


def compared_with(method: str, result: Result) -> str:
    """The network of a single pass that a sampled method is compared with."""
    return POPULATION if POPULATION in result.methods and _samples_batches(method) else DETERMINISTIC


def _samples_batches(method: str) -> bool:
    return method.startswith("mcbn") and method not in ANALYTIC


def repair_in_words(result: Result, metric: str, told: str) -> Iterator[str]:
    """What population statistics change by themselves, `told` from what to what, where the reference check failed."""
    if POPULATION not in result.methods:
        return
    sampled = [method for method in result.methods if _samples_batches(method)]
    ours, theirs = (result.methods[name].sets["test"].points[metric] for name in (POPULATION, DETERMINISTIC))
    with np.errstate(invalid="ignore"):
        change, error = float(np.mean(ours - theirs)), standard_error(ours - theirs, group=result.sets["test"].group)
    yield (
        f"Network with population statistics of the reference in place of its running statistics: {told} "
        f"({signed(change)} ± {error:.4f}). This is a repair, not a gain from uncertainty: {' and '.join(sampled)} "
        f"{'is' if len(sampled) == 1 else 'are'} compared with this network."
    )
