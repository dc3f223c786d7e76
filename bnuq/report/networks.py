"""Names of deterministic networks in sentences, and which of them a method is compared with.

MCBN normalises by statistics of the reference. Where the running statistics do not fit it, that alone changes
estimates, without any gain from uncertainty: MCBN is then compared with the network under the population statistics of
its mini-batches.
"""

from __future__ import annotations

from bnuq.config import ANALYTIC, DETERMINISTIC, POPULATION
from bnuq.records.evaluation import Result
from bnuq.report.noise_models import labelled

_NETWORKS = {DETERMINISTIC: "the deterministic network", POPULATION: "the network with population statistics"}


def network_in_words(method: str) -> str:
    """A method within a sentence."""
    return _NETWORKS.get(method) or labelled(method)


def compared_with(method: str, result: Result) -> str:
    """The deterministic network that a sampled method is compared with."""
    return POPULATION if POPULATION in result.methods and samples_batches(method) else DETERMINISTIC


def samples_batches(method: str) -> bool:
    """Whether the method draws mini-batches of the reference."""
    return method.startswith("mcbn") and method not in ANALYTIC
