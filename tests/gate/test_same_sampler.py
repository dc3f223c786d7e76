"""Mini-batches, and the noise models that stand for them, of two results: what of them a method's draws depend on."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import made_up
import numpy as np
import pytest

from bnuq.errors import ResultError
from bnuq.gate import GateSettings
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.pairing import pairing
from bnuq.methods import OWN
from bnuq.records.evaluation import Result

MEASURED, NOMINAL = {"counts": "measured"}, {"counts": "nominal"}


def of_method(
    method: str, sampling: dict[str, Any], *, data: dict[str, Any] | None = None, **provenance: str
) -> Result:
    """A result of one method, with these keys in its record and its provenance."""
    one = made_up.result(mcbn={"pll": np.random.default_rng(0).normal(0, 1, (16, 20))})
    return replace(
        one,
        methods={"deterministic": one.methods["deterministic"], method: one.methods["mcbn"]},
        run={"data": {"train": "train.npz"} if data is None else data, "sampling": sampling},
        provenance={**one.provenance, **provenance},
    )


@pytest.mark.parametrize(
    ("method", "now", "before", "key"),
    [
        ("mcbn-empirical", {"noise_model_draws": 16}, {}, "noise_model_draws"),
        ("mcbn-empirical", {"covariance": "network"}, {}, "covariance"),
        ("mcbn-empirical", {"batches": "stratified"}, {}, "batches"),
        ("mcbn-empirical", NOMINAL, MEASURED, None),
        ("mcbn-chi2", NOMINAL, MEASURED, "counts"),
        ("mcbn-chi2", NOMINAL | {"noise_model_draws": 16}, MEASURED, "counts"),
        ("mcbn-chi2", MEASURED, {}, None),  # what it comes to with a reference
        ("mcbn-chi2", NOMINAL, {}, "counts"),
        ("mcbn-gaussian", MEASURED | {"noise_model_draws": 16}, MEASURED, "noise_model_draws"),
        ("mcbn-gaussian", MEASURED | {"batches": "stratified"}, MEASURED, "batches"),
        ("mcbn-gaussian", NOMINAL | {"noise_model_draws": 16}, NOMINAL, None),  # nothing was fitted
        ("mcbn-gaussian", NOMINAL | {"batches": "stratified"}, NOMINAL, None),
        ("mcbn-gaussian", NOMINAL | {"variance": "unbiased"}, NOMINAL, "variance"),
        ("mcbn-gaussian", MEASURED | {"covariance": "network"}, MEASURED, None),
        ("mcbn", {"covariance": "network", "counts": "nominal", "noise_model_draws": 16}, {}, None),
        ("mcbn", {"replacement": True}, {}, "replacement"),
        ("mcdo", {"replacement": True, "noise_model_draws": 16}, {}, None),
        ("laplace", {"laplace": "diag"}, {}, "laplace"),
        ("laplace", {"replacement": True}, {}, None),
        ("mcbn", {"laplace": "diag"}, {}, None),
    ],
)
def test_only_what_the_draws_of_a_method_depend_on_keeps_results_apart(method, now, before, key):
    current, baseline = of_method(method, now), of_method(method, before)
    found = pairing(current, baseline)
    if key is None:
        check_comparable(current, baseline, GateSettings())
        assert found.draws == (method,)
    else:
        with pytest.raises(ResultError, match=f"sampling: {key} is ") as refused:
            check_comparable(current, baseline, GateSettings())
        assert str(refused.value).count("sampling: ") == 1
        check_comparable(current, baseline, GateSettings.of(allow=["sampling"]))
        assert found.why_not == ((method, f"sampling.{key} differs"),)


def test_open_counts_are_nominal_without_a_reference() -> None:
    check_comparable(of_method("mcbn-chi2", {}, data={}), of_method("mcbn-chi2", NOMINAL, data={}), GateSettings())
    with pytest.raises(ResultError, match="counts is nominal now, measured in the baseline"):
        check_comparable(of_method("mcbn-chi2", {}, data={}), of_method("mcbn-chi2", {}), GateSettings())


def test_groups_that_are_not_named_are_those_called_group() -> None:
    by_group, data = {"batches": "group"}, {"train": "train.npz"}
    unset, named, other = (
        of_method("mcbn", by_group, data=data | group) for group in ({}, {"group": "group"}, {"group": "camera"})
    )
    check_comparable(named, unset, GateSettings())
    assert pairing(named, unset).draws == ("mcbn",)
    with pytest.raises(ResultError, match="sampling: group is camera now, group in the baseline"):
        check_comparable(other, unset, GateSettings())
    with pytest.raises(ResultError, match="batches is group now, random in the baseline") as refused:
        check_comparable(other, of_method("mcbn", {}, data=data), GateSettings())
    assert "camera" not in str(refused.value)  # beside other batches it says nothing


def test_batches_of_one_group_are_the_same_only_where_the_groups_are() -> None:
    one, other = (of_method("mcbn", {"batches": "group"}, reference_groups_sha256=digit * 64) for digit in "12")
    assert pairing(one, other).why_not == (("mcbn", "the grouping of the training set differs"),)
    assert pairing(one, one).draws == ("mcbn",)
    at_random = [replace(result, run={**result.run, "sampling": {}}) for result in (one, other)]
    assert pairing(*at_random).draws == ("mcbn",)


@pytest.mark.parametrize("name", ["seed", "batch size", "layers"])
def test_batches_of_evaluated_points_are_the_same_for_one_seed_size_and_choice_of_layers(name):
    one = of_method(OWN, {})
    other = replace(one, sampling={**one.sampling, name.replace(" ", "_"): "another"})
    assert pairing(one, one).draws == (OWN,)
    assert pairing(one, other).why_not == ((OWN, f"the {name} differs"),)


def test_masks_are_the_same_on_every_device_except_in_results_of_gpus_before_their_generator_was_recorded() -> None:
    one, masks = of_method("mcdo", {}), {"masks": "philox"}
    made = [
        replace(one, sampling={**one.sampling, "device": device}, provenance={**one.provenance, **recorded})
        for device, recorded in (("cpu", {}), ("mps", masks), ("cuda:0", masks), ("cuda:0", {}), ("xpu:1", {}))
    ]
    for one, other in combinations(made[:3], 2):
        assert pairing(one, other).draws == ("mcdo",)
    for one in made[:3]:
        assert pairing(one, made[3]).why_not == (("mcdo", "the generator of dropout masks differs"),)
    assert pairing(made[3], made[4]).draws == ("mcdo",)


def test_pictures_of_another_channel_order_are_not_the_same_mini_batches() -> None:
    rgb, said, bgr = (
        of_method("mcbn", {}, data={"train": "train.npz"} | order)
        for order in ({}, {"channel_order": "rgb"}, {"channel_order": "bgr"})
    )
    assert pairing(said, rgb).draws == ("mcbn",)
    (told,) = pairing(bgr, rgb).why_not
    assert told == ("mcbn", "the training pipeline (data.channel_order) differs")
