"""`bnuq check --history`, and `bnuq report --trend`: a history is a folder of result files, by the times in them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up_monitor
import pytest
import small_run
import torch
from records_at_rest import edited

from bnuq.records.evaluation_file import read
from bnuq.store import codec

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the tiny network and of one that lost its mind."""
    folder = tmp_path_factory.mktemp("nights")
    text = f'{small_run.RUN}methods = ["mcbn"]\npost_hoc = false\n'
    small_run.write(folder, text=text)
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights["7.weight"] = -weights["7.weight"]
    torch.save(weights, folder / "broken.pt")
    (folder / "broken.toml").write_text(text.replace("model.pt", "broken.pt"))
    small_run.evaluated(folder, out=folder / "base.h5")
    small_run.evaluated(folder, out=folder / "worse.h5", run_file="broken.toml")
    return folder


@pytest.fixture
def there(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a history of four nights, a result as good after them, and one that is worse."""
    (tmp_path / "history").mkdir()
    for day in range(1, 5):
        dated(made / "base.h5", tmp_path / f"history/night{day}.h5", day)
    dated(made / "base.h5", tmp_path / "new.h5", 9)
    dated(made / "worse.h5", tmp_path / "worse.h5", 9)
    monkeypatch.chdir(tmp_path)
    for variable in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def dated(source: Path, target: Path, day: int) -> None:
    target.write_bytes(source.read_bytes())
    with edited(target) as record:
        record["provenance"]["time"] = f"2026-01-{day:02}T00:00:00+00:00"


@pytest.mark.usefixtures("there")
def test_a_result_is_compared_with_the_last_of_its_history_and_is_none_of_it_itself(cli: Cli) -> None:
    Path("history/tonight.h5").write_bytes(Path("new.h5").read_bytes())
    dated(Path("new.h5"), Path("history/later.h5"), 10)
    codec.write(made_up_monitor.baseline(), Path("history/base.h5"))
    outcome = cli("check", "new.h5", "--history", "history", "--last", "3", "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert [Path(side["path"]).name for side in told["history"]] == ["night2.h5", "night3.h5", "night4.h5"]
    assert any("later.h5 of the history is left out: it was not made before" in note for note in told["notes"])
    assert any("base.h5 of the history is left out: it is of another kind" in note for note in told["notes"])
    assert any("the mean of the last 3 results in history" in note for note in told["notes"])
    assert {one.get("test") for one in told["comparisons"]} == {None, "slope"}
    worse = cli("check", "worse.h5", "--history", "history", "--junit", "junit.xml")
    assert worse.code == 1 and worse.out.startswith("Worse: ") and "the mean of 4 results" in worse.out
    assert 'name="accuracy (slope)"' in Path("junit.xml").read_text()


@pytest.mark.usefixtures("there")
@pytest.mark.nightly
def test_results_on_other_points_and_of_other_kinds_are_left_out_and_refused_where_none_is_left(cli: Cli) -> None:
    with edited(Path("history/night4.h5")) as record:
        record["sets"]["test"]["sha256"] = "f" * 64
    outcome = cli("check", "new.h5", "--history", "history")
    assert outcome.code == 0 and "the mean of 3 results" in outcome.out
    assert "night4.h5 of the history is left out: its test set is not the same" in " ".join(outcome.out.split())
    for day in range(1, 4):
        Path(f"history/night{day}.h5").unlink()
    refused = cli("check", "new.h5", "--history", "history")
    assert refused.code == 2 and "history has no result that" in refused.message
    assert "night4.h5: its test set" in refused.message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--history", "history", "--last", "0"], "--last is 0; expected a whole number of at least 1"),
        (["--last", "3"], "name its folder by --history DIR"),
        (["--history", "nowhere"], "nowhere is not there"),
        (["--history", "new.h5"], "new.h5 is a file; expected a folder"),
        (["--history", "empty"], "empty has no result file"),
        (["--history", "damaged"], "night1.h5: cannot be read as HDF5"),
        (["--history", "history", "--update"], "takes the place of a BASELINE"),
        (["worse.h5", "--history", "history"], "takes the place of a BASELINE"),
        (["worse.h5", "--power", "80"], "--power is 80; expected"),
        (["worse.h5", "--inconclusive", "pass"], "--inconclusive is pass; expected"),
    ],
)
def test_what_is_no_history_is_exit_code_2_and_one_message(there, cli, arguments, complaint):
    for name in ("empty", "damaged"):
        (there / name).mkdir()
    (there / "damaged/night1.h5").write_bytes((there / "new.h5").read_bytes()[:20000])
    outcome = cli("check", "new.h5", *arguments)
    assert outcome.code == 2 and complaint in outcome.message and outcome.out == ""


@pytest.mark.usefixtures("there")
def test_a_trend_is_a_table_a_page_and_a_file_of_every_value(cli: Cli) -> None:
    nights = [str(path) for path in sorted(Path("history").iterdir(), reverse=True)]
    outcome = cli("report", *nights, "worse.h5", "--trend", "--by", "pll", "--csv", "pll.csv", "--html", "page.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("5 results, 2026-01-01 to 01-09")
    rows = list(csv.DictReader(Path("pll.csv").read_text().splitlines()))
    (last,) = [r for r in rows if (r["result"], r["address"]) == ("worse.h5", "mcbn.sets.test.pll")]
    assert float(last["value"]) == read(Path("worse.h5")).methods["mcbn"].sets["test"].estimates["pll"].value
    assert float(last["se_of_change"]) > 0 and {row["result"] for row in rows[:5]} == {*map(_name, nights), "worse.h5"}
    page = Path("page.html").read_text()
    assert page.count("<svg") == 1 and "1 standard error of the change since the first result" in page
    assert cli("report", *nights, "worse.h5", "--trend", "--csv", "pll.csv").code == 0  # replaces a file of its kind


def _name(path: str) -> str:
    return Path(path).name


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["history/night1.h5", "--method", "mcbn"], "--method is for one result, and --trend shows several"),
        (["history/night1.h5", "history/night2.h5"], "a trend needs three results"),
        (["history/night1.h5", "history/night2.h5", "new.h5", "--by", "crps"], "have no estimate of that in common"),
        (["history/night1.h5", "history/night2.h5", "model.pt"], "model.pt: there is no such file"),
        (["history/night1.h5", "history/night2.h5", "new.h5", "--csv", "new.h5"], "is not a table of examples"),
    ],
)
@pytest.mark.usefixtures("there")
def test_what_has_no_trend_is_exit_code_2_and_one_message(cli: Cli, arguments: list[str], complaint: str) -> None:
    outcome = cli("report", "--trend", *arguments)
    assert outcome.code == 2 and complaint in outcome.message and outcome.out == ""
