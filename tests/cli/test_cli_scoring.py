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
    small_regression.write(folder, text=small_regression.RUN.replace('ood = ["far.npz"]\n', ""))
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


def test_every_choice_changes_the_score_that_it_is_of(estimates):
    given = ("--tau", "0.03")
    plain = estimates(*given)
    assert estimates("--pll", "mixture", "--crps", "gaussian", "--fit", "crps", *given) == plain
    moment = estimates("--pll", "moment", *given)
    full = estimates("--pll", "moment_full", "--crps", "mixture", *given)
    assert moment["pll"] != plain["pll"] and moment["crps"] == plain["crps"]
    assert full["pll"] == pytest.approx(moment["pll"])  # one output: the same
    ensemble, fair = (estimates("--crps", kind, *given)["crps"] for kind in ("ensemble", "fair"))
    assert len({plain["crps"], full["crps"], ensemble, fair}) == 4
    assert fair < ensemble  # it takes a positive bias off
    assert plain["tau"] == 0.03
    assert len({0.03, *(estimates("--fit", by)["tau"] for by in ("pll", "crps"))}) == 3


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
        ("--precision", "float8", "auto, float32, tf32, float16, bfloat16 or float64."),
        ("--mutual-information", "best", "plug-in, corrected or jackknife."),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_bad_value_is_refused_with_what_is_expected(cli, option, value, expected):
    outcome = cli("evaluate", "run.toml", option, value)
    assert outcome.code == 2 and outcome.message == f"{option} is {value}; expected {expected}"
