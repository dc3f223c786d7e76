"""The JSON of a check: what contract says, in numbers that JSON has, for every verdict there can be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import small_verdicts as made

from bnuq.gate.records import summary


@pytest.mark.parametrize("name", made.ALL)
def test_every_verdict_is_json_that_reads_back(name: str) -> None:
    verdict = made.ALL[name]
    told = json.loads(json.dumps(summary(verdict), allow_nan=False))
    assert told["command"] == "check" and told["schema"] == 2
    assert told["passed"] is verdict.passed
    assert told["gated"] == verdict.gated == sum(one["outcome"] != "not gated" for one in told["comparisons"])
    assert [one["outcome"] for one in told["comparisons"]] == [one.outcome for one in verdict.comparisons]
    assert [one["address"] for one in told["comparisons"]] == [one.address for one in verdict.comparisons]
    assert [one["passed"] for one in told["floors"]] == [one.passed for one in verdict.floors]
    assert (told["baseline"] is None) == (verdict.baseline is None) == (told["paired"] is None)


def test_a_comparison_holds_what_is_known_of_it_and_nothing_else() -> None:
    estimate, infinite, unknown = summary(made.verdict(made.WORSE[0], made.WORSE[2], made.REST[7]))["comparisons"]
    assert estimate == {
        "method": "mcbn", "set": "test", "metric": "pll", "address": "mcbn.sets.test.pll", "unit": "nats",
        "baseline": -0.301, "current": -0.342, "change": pytest.approx(-0.041), "se": 0.009, "se_points": 0.003,
        "p_value": 0.0002, "p_adjusted": 0.004, "tolerance": 0.01, "detectable": 0.0153, "outcome": "worse",
        "family": "main",
    }  # fmt: skip
    points, both = (summary(made.verdict(one))["comparisons"][0] for one in (made.REST[2], made.REST[1]))
    assert points["decisive"] == {"points": {"test": 3400, "svhn": 6800}}
    assert both["decisive"] == {"points": {"test": 3400}, "samples": 128} and both["outcome"] == "inconclusive"
    assert infinite["current"] == infinite["change"] == "-inf" and "se" not in infinite
    assert unknown["baseline"] == unknown["change"] == "nan"
    assert not {"p_value", "p_adjusted", "tolerance"} & unknown.keys()
    scored = summary(made.verdict(made.SVHN[0]))["comparisons"][0]
    assert (scored["score"], scored["address"]) == ("mutual_information", "mcbn.ood.svhn.mutual_information.aupr_in")


def test_an_error_that_is_not_a_number_is_absent() -> None:
    assert "se" not in summary(made.verdict(made.compared("pll", -0.3, -0.4, "worse", se=math.nan)))["comparisons"][0]


def test_the_sides_and_what_they_share_are_told() -> None:
    told = summary(made.accepted())
    assert told["current"] == {
        "path": "/runs/now.h5", "checkpoint": "/nets/resnet.pt", "sha256": "ab" * 32, "samples": 32, "batch_size": 64,
        "seed": 1, "time": "2026-03-02T10:11:12+00:00",
    }  # fmt: skip
    assert "time" not in told["baseline"]
    assert told["paired"] == {"points": ["test", "svhn"], "draws": ["mcbn"], "why_not": {"mcdo": "the seed differs"}}
    assert (told["accepted"], Path(told["kept"]).name) == ("/runs/base.h5", "base.20260301T000000Z.h5")
    told = summary(made.everything())
    assert told["accepted"] is told["kept"] is None
    assert told["floors"][1] == {
        "address": "mcbn.ood.svhn.mutual_information.auroc",
        "relation": ">=",
        "bound": 0.85,
        "value": 0.84999,
        "passed": False,
    }
    (older,) = told["warnings"]
    assert older["code"] == "older-than-baseline" and older["text"].startswith("now.h5 is older than base.h5")
    assert told["notes"] == ["tolerances and minimums are those of [check] in bnuq.toml"] and told["seconds"] == 0.25
