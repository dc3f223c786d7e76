"""The options that say how a regression is scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import small_regression

TINY = ("run.toml", "--json", "-T", "8", "--method", "mcdo", "--limit", "30")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored")
    small_regression.write(folder)
    return folder


@pytest.fixture
def estimates(made: Path, monkeypatch: pytest.MonkeyPatch, cli) -> Any:
    """The estimates of mcdo on the test set, with these options."""
    monkeypatch.chdir(made)

    def scores(*options: str) -> dict[str, float]:
        outcome = cli("evaluate", *TINY, *options)
        assert outcome.code == 0, outcome.err
        test = json.loads(outcome.out)["methods"]["mcdo"]["sets"]["test"]
        return {name: estimate["value"] for name, estimate in test.items()}

    return scores


def test_tau_is_as_given(estimates):
    assert estimates("--tau", "0.03")["tau"] == 0.03
    assert estimates()["tau"] != 0.03


def test_every_choice_changes_the_score_that_it_is_of(estimates):
    given = ("--tau", "0.03")
    plain = estimates(*given)
    assert estimates("--pll", "mixture", "--crps", "gaussian", "--fit", "crps", *given) == plain
    moment = estimates("--pll", "moment", *given)
    assert moment["pll"] != plain["pll"] and moment["crps"] == plain["crps"]
    assert estimates("--pll", "moment_full", *given)["pll"] == pytest.approx(moment["pll"])  # one output: the same
    crps = [estimates("--crps", kind, *given)["crps"] for kind in ("gaussian", "mixture", "ensemble", "fair")]
    assert len(set(crps)) == 4 and crps[3] < crps[2]  # the fair one takes a positive bias off
    assert estimates("--fit", "pll")["tau"] != estimates("--fit", "crps")["tau"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--pll", "gaussian", "mixture, moment or moment_full."),
        ("--crps", "moment", "gaussian, mixture, ensemble or fair."),
        ("--fit", "rmse", "crps or pll."),
        ("--tau", "0", "a number above 0."),
        ("--tau", "-1.5", "a number above 0."),
        ("--tau", "nan", "a number above 0."),
        ("--tau", "inf", "a number above 0."),
        ("--precision", "float8", "float32, tf32, bfloat16 or float64."),
        ("--mutual-information", "best", "plug-in, corrected or jackknife."),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_bad_value_is_refused_with_what_is_expected(cli, option, value, expected):
    outcome = cli("evaluate", "run.toml", option, value)
    assert outcome.code == 2 and outcome.message == f"{option} is {value}; expected {expected}"
