"""A sweep of a network whose running statistics are stale: MCBN is compared with the repaired network at every size."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_run
import small_sweep
from records_at_rest import edited, read_text
from report_text import rendered
from test_stale_statistics import let_go_stale

from bnuq.config import Options, resolve_sweep
from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.methods import NETWORKS, POPULATION
from bnuq.records.as_json import json_of as summary
from bnuq.studies.sweep.compute import sweep
from bnuq.studies.sweep.record import Sweep, SweepComparison, read, write
from bnuq.studies.sweep.view import report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stale")
    small_run.write(place)
    let_go_stale(place, "1")
    return place


def swept(
    folder: Path, *run_files: str, sizes: tuple[int, ...] | None = (16, 48, small_run.TRAIN), **said: Any
) -> Sweep:
    settings = {"draw_sets": said.pop("draw_sets", 3)} | ({} if sizes is None else {"batch_sizes": sizes})
    runs, chosen = resolve_sweep(
        run_files or ("stale.toml",), Options(**{"samples": 8, "out": Path("s.h5")} | said), settings, folder=folder
    )
    return read(sweep(runs, chosen, work=folder / "work").path)


@pytest.fixture(scope="module")
def stale(folder: Path) -> Sweep:
    return swept(folder)


def words_of(record: Sweep) -> str:
    return " ".join(rendered(report, record, full=True).split())


def error(estimate: Estimate) -> float:
    assert estimate.se is not None and estimate.mc_se is not None
    return math.hypot(estimate.se, estimate.mc_se)


def test_the_gain_is_repair_at_every_size(stale: Sweep) -> None:
    for point in stale.points[:2]:
        assert tuple(point.compared_with) == NETWORKS
        gained, left = (point.compared_with[name]["pll"] for name in NETWORKS)
        assert gained.difference.value > 4 * error(gained.difference)
        assert abs(left.difference.value) < 2 * error(left.difference)
        pll = point.estimates["pll"]["test"].estimate.value
        for entry in (gained, left):
            assert entry.difference.value == pytest.approx(pll - entry.estimate.value)
    whole = stale.points[2]
    assert whole.degenerate and whole.compared_with[POPULATION]["pll"].difference.value == 0


def test_both_networks_are_those_of_an_evaluation(folder: Path) -> None:
    [point] = swept(folder, sizes=(16,), draw_sets=2).points
    record = small_run.evaluated(folder, run_file="stale.toml", samples=16, batch_size=16, methods=("mcbn",), ood=())
    for name, metrics in point.compared_with.items():
        assert list(metrics) == ["accuracy", "pll", "brier"]
        for metric, entry in metrics.items():
            estimate = record.methods[name].sets["test"].estimates[metric]
            assert entry.estimate.value == pytest.approx(estimate.value, rel=1e-5)
            assert entry.estimate.se == pytest.approx(estimate.se, rel=1e-4)
            assert entry.estimate.mc_se is None


def test_where_the_check_passes_nothing_is_compared(folder: Path) -> None:
    sound = swept(folder, "run.toml")
    assert not any(point.compared_with for point in sound.points)
    assert not any(point["compared_with"] for point in summary(sound)["points"])
    assert "single deterministic pass" not in words_of(sound) and "repair" not in words_of(sound)
    assert sound.path is not None
    assert not any(point["compared_with"] for point in read_text(sound.path)["points"])


def test_report_and_json_tell_what_is_repair(stale: Sweep) -> None:
    assert "of MCBN minus that of the deterministic network: 0.2" in words_of(stale)
    assert "The rest is a repair, not a gain from uncertainty." in words_of(stale)
    assert "deterministic population statistics MCBN − deterministic MCBN − population" in words_of(stale)
    for point, of_file in zip(json.loads(json.dumps(summary(stale)))["points"], stale.points, strict=True):
        for name in NETWORKS:
            entry = of_file.compared_with[name]["pll"]
            assert point["compared_with"][name]["pll"]["estimate"]["value"] == entry.estimate.value
            assert point["compared_with"][name]["pll"]["difference"].get("mc_se") == entry.difference.mc_se


def test_what_was_kept_for_it_is_forgotten_with_the_rest(folder: Path, stale: Sweep) -> None:
    assert stale.points and not list((folder / "work").iterdir())


def test_a_file_gives_it_back_and_is_refused_where_it_holds_half_of_it(tmp_path: Path) -> None:
    odd = SweepComparison(Estimate(-math.inf), Estimate(math.nan, se=0.1, mc_se=None, low=-1.0, high=math.inf))
    both = {
        name: {"pll": SweepComparison(Estimate(-0.3, se=0.1), Estimate(0.1, se=0.02, mc_se=0.01)), "brier": odd}
        for name in NETWORKS
    }
    made = small_sweep.both()
    points = tuple(replace(point, compared_with=both if point.model != 1 else {}) for point in made.points)
    write(replace(made, points=points), tmp_path / "s.h5")
    record = read(tmp_path / "s.h5")
    assert repr([point.compared_with for point in record.points]) == repr([point.compared_with for point in points])
    assert words_of(record).count("compared with a single deterministic pass") == 2
    with edited(tmp_path / "s.h5") as record:
        compared = next(point["compared_with"] for point in record["points"] if point["compared_with"])
        del compared[POPULATION]
    with pytest.raises(ResultError, match="damaged"):
        read(tmp_path / "s.h5")


def test_no_size_is_recommended(folder: Path, stale: Sweep) -> None:
    assert stale.recommended is None and summary(stale)["recommended"] is None
    assert "No size is recommended while the check of the training set fails" in words_of(stale)
    assert swept(folder, "run.toml").recommended is not None
