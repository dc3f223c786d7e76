"""The summary of an inspection: what `--json` prints."""

from __future__ import annotations

import json
import math
from typing import Any

import made_up_inspection
import pytest

from bnuq.records.as_json import json_of
from bnuq.studies.inspect.record import Inspection


def told(made: Inspection) -> dict[str, Any]:
    return json.loads(json.dumps(json_of(made), allow_nan=False))


def test_the_summary_has_every_site_with_what_its_kind_has():
    found = told(made_up_inspection.ill())
    assert (found["command"], found["kind"], found["schema"]) == ("inspect", "inspection", 2)
    frozen, drop = ({k: v for k, v in found["sites"][i].items() if v is not None} for i in (1, -2))
    assert frozen == {
        "name": "layer1.0.bn1", "kind": "batchnorm", "order": 1, "channels": 8, "positions": 1024, "eps": 1e-5,
        "momentum": 0.0, "vanishing": 0, "stochastic": False,
        "reason": "it is frozen: it normalises by its running statistics in training", "flags": ["frozen"],
    }  # fmt: skip
    assert drop == {
        "name": "drop", "kind": "dropout", "order": 20, "p": 0.5, "variety": "dropout", "stochastic": True,
        "reason": "", "flags": [],
    }  # fmt: skip
    assert found["unreachable"] == [["rnn", "dropout inside an LSTM cannot be reached"]]
    assert [one["code"] for one in found["warnings"]] == ["reference-unchecked", "never-trained"]
    assert len(told(made_up_inspection.long())["sites"]) == 58  # none is left out


def test_the_summary_has_layers_domains_and_pipelines():
    made = made_up_inspection.whole()
    assert made.gap is not None and made.noise is not None
    found = told(made)
    layer, noise = found["gap"]["layers"][0], found["noise"]["layers"][-1]
    assert layer["rms_shift"] == made.gap.layers[0].rms_shift and layer["channels"] == 8
    assert (noise["name"], noise["nominal"], len(noise["variances"])) == ("head.bn", 128, 4)
    assert noise["slope"]["mc_se"] == 0.012 and found["noise"]["spatial_slope"]["value"] == -0.41
    crossing = next(one for one in found["domains"]["crossings"] if one["statistics"] == "digits")
    assert (crossing["domain"], crossing["estimates"]["accuracy"]["value"]) == ("jpeg", pytest.approx(0.83))
    best, *_ = found["pipelines"]["candidates"]
    assert (best["normalize"], best["augment"], best["tied"]) == ("imagenet", "pad 4, crop 32", True)
    assert found["pipelines"]["lines"] == made_up_inspection.LINES
    assert found["pipelines"]["first_round"][0]["normalize"] is None
    bare = told(made_up_inspection.bare())
    assert bare["gap"] is bare["noise"] is bare["domains"] is bare["pipelines"] is None


def test_what_is_not_finite_is_told_in_words():
    found = told(made_up_inspection.unfinite())
    assert found["gap"]["layers"][0]["ratio_log_variance"] == "inf"
    assert found["noise"]["layers"][0]["sigma_u"] == "nan"
    assert math.isnan(float(found["pipelines"]["candidates"][0]["median"]))
