"""Random networks, of which no stochastic pass is silently another than in float64: it is right, or it is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import hunted
import pytest

import bnuq
from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.sampling.engine import Stochastic

FEW, MANY, TOGETHER = 60, 2000, 20


def found(seeds: range, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[hunted.Traits, float], int]:
    """The networks whose passes differ, by how much, and how many were refused."""
    differing, refused = {}, 0
    traits_of_kind = dict(devices._TRAITS)
    for seed in seeds:
        of = hunted.traits(seed)
        entries = traits_of_kind[of.device].stacked_entries
        monkeypatch.setitem(devices._TRAITS, "cpu", replace(traits_of_kind["cpu"], stacked_entries=entries))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of layers that stay as in evaluation mode
                network, x, draws = hunted.made(of)
                outputs = bnuq.predict(network, x, **draws)
        except SamplingError:
            refused += 1
            continue
        deviation = hunted.deviation(outputs, hunted.reference_passes(network, x, draws))
        if deviation > 0.02:
            differing[of] = deviation
    return differing, refused


@pytest.mark.parametrize("first", range(0, FEW, TOGETHER))
def test_no_network_is_silently_sampled_otherwise(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    differing, refused = found(range(first, first + TOGETHER), monkeypatch)
    assert differing == {}
    assert refused < TOGETHER / 2


@pytest.mark.nightly
def test_no_network_of_many_is_silently_sampled_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    differing, refused = found(range(FEW, FEW + MANY), monkeypatch)
    assert differing == {}
    assert 0 < refused < MANY / 2


def test_the_hunt_finds_plans_that_nothing_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stochastic, "_prove", lambda *_: None)
    differing, _ = found(range(TOGETHER), monkeypatch)
    assert differing
