"""`bnuq shift` on the command line and from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
FEW = ("--samples", "4", "--method", "mcbn", "--no-post-hoc", "--limit", "20", "--calibrate", "off")


def test_it_tells_its_size_writes_a_file_of_its_own_and_prints_curves_and_leads(cli: Cli, small: Path) -> None:
    (small / "own.py").write_text("def darker(inputs, severity, random):\n    return inputs / (1 + severity)\n")
    given = ("--family", "gaussian,own.py:darker", "--severities", "1,4")
    outcome = cli("shift", small / "run.toml", *given, *FEW, "--json")
    assert outcome.code == 0
    size = "2 families of changes, 4 sets of 20 examples beside the test set; with 5 passes of each example 500"
    assert size in outcome.err
    told = json.loads(outcome.out)
    assert [each["severity"] for each in told["families"]["darker"]] == [1, 4]
    assert told["lead"].keys() == {"gaussian", "darker"} and told["result"].endswith("model.shift.h5")
    assert json.loads(cli("report", told["result"], "--json").out)["lead"] == told["lead"]
    assert (told["shift_window"], told["shift_loss"]) == (100, 0.05)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("--severities", "0,7"),
            '--severities is "0,7"; expected whole numbers from 1 to 5 with commas, such as 1,3,5; "0" is not one.',
        ),
        (("--severities", "6"), "expected whole numbers from 1 to 5"),
        (("--severities", "2,x"), "--severities is"),
        (("--severities", "2,2"), "all@2 is named twice"),
        (
            ("--family", "gausian"),
            '--family is "gausian"; expected the name of a family of corruptions, or file.py:function. Did you mean '
            "gaussian?",
        ),
        (("--family", "fgsm"), "Known are: gaussian, shot"),
        (("--family", "own.py:jpeg"), "another name than jpeg"),
        (("--family", "none.py:dark"), "none.py"),
        (("--family", "missing"), "is for rows of a table"),
        (("--perturb", "gaussian:1"), "--perturb"),
        (("--loss", "5"), "--loss is 5; expected a number above 0 and below 1"),
        (("--window", "1"), "--window is 1"),
    ],
)
def test_a_wrong_request_is_one_message(cli: Cli, small: Path, given: tuple[str, ...], message: str) -> None:
    outcome = cli("shift", small / "run.toml", *given, *FEW)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert not (small / "model.shift.h5").exists()
