"""The record: its verdicts mean what they say, and file, summary and page hold what was run."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from report_text import rendered

from bnuq.errors import ResultError
from bnuq.findings import note
from bnuq.store import codec
from experiments.uci.published import GAL_RMSE, TABLE_1
from experiments.uci.record import (
    VERDICTS,
    Choices,
    MethodOutcome,
    Published,
    Reproduction,
    Runs,
    SetOutcome,
    cell,
    read,
    verdict,
)
from experiments.uci.report import markdown, report


def outcome(seed: int, method: str, *, name: str = "energy", batch: int = 512) -> MethodOutcome:
    random = np.random.default_rng(seed)
    runs = {each.name: 5 + random.standard_normal((5, 5)) for each in fields(Runs)}
    runs["exact_hits"] = np.zeros((5, 5))
    choices = {
        "weight_decay": np.full(5, 1e-2), "batch_size": np.full(5, batch), "dropout": np.full(5, 0.01),
        "epochs": np.full(5, 340), "final_epochs": np.full(5, 340), "rmse": np.full(5, 0.6),
        "mc_sd": np.full(5, 0.01), "sigma": np.full(5, 0.5), "tau": np.full(5, 100.0),
        "tau_at_end": np.array(["high", "", "high", "", "high"]), "unfinished": np.array([True, *[False] * 4]),
    }  # fmt: skip
    published = {metric: TABLE_1[name, method, metric] for metric in ("crps", "pll")}
    return MethodOutcome(Runs(**runs), Choices(**choices), published)


@pytest.fixture
def made() -> Reproduction:
    protocol = {
        "name": "quick", "splits": 5, "seeds": 5, "folds": 5, "samples": 500, "selection_samples": 20, "race": 0.07,
        "race_from": 100, "weight_decays": [0.1, 0.01], "batch_sizes": [32, 512], "dropouts": [0.01],
        "max_epochs": 2000, "most_rows": None,
    }  # fmt: skip
    energy = SetOutcome(
        name="energy", rows=768, inputs=8, train=614, test=154, fold_rows=491, units=50, batch_sizes=(32, 512),
        protocol=protocol, tau_range=(0.01, 100.0), sha256="ab", gal_rmse=GAL_RMSE["energy"],
        methods={"mcbn": outcome(0, "mcbn"), "mcdo": outcome(1, "mcdo", batch=32)},
        mnf={metric: TABLE_1["energy", "mnf", metric] for metric in ("crps", "pll")},
    )  # fmt: skip
    capped = replace(
        energy, name="boston", batch_sizes=(32,), protocol=protocol | {"most_rows": 50, "max_epochs": 400},
        methods={"mcbn": outcome(2, "mcbn", name="boston", batch=32), "mcdo": outcome(3, "mcdo", name="boston")},
    )  # fmt: skip
    return Reproduction(
        experiment="uci", source="the paper", gal_source="Gal", protocol=protocol, seed=0, device="cpu", workers=2,
        sets={"energy": energy, "boston": capped}, seconds={"wall": 61.0, "cpu": 100.0, "cpu_before": 40.0},
        provenance={"bnuq": "0.1.0"}, findings=(note("result-replaced", file="old.h5"),),
    )  # fmt: skip


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "low", "high", "published", "expected"),
    [
        (8.8, 6.0, 11.6, 8.5, "agrees"),
        (8.8, -1.0, 18.6, 8.5, "inconclusive"),
        (8.8, -1.0, 9.0, 10.5, "same sign"),
        (3.5, 1.0, 6.0, -36.4, "differs"),
        (-62.0, -128.0, -1.0, -56.0, "agrees"),
        (-0.02, -0.1, 0.1, 0.24, "differs"),
        (8.8, 8.5, 9.1, 8.5, "agrees"),  # the ends belong to the interval
        (float("nan"), 1.0, 2.0, 1.5, "n/a"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_signs(value, low, high, published, expected) -> None:
    assert verdict(value, low, high, Published(published, "*")) == expected
    assert expected in VERDICTS


def test_without_a_published_value_or_a_second_split_there_is_no_verdict() -> None:
    assert verdict(1.0, 0.5, 1.5, None) == "n/a"
    single = cell(np.ones((1, 5)), test_share=0.25, published=Published(1.0, "*"))
    assert (single.verdict, single.se, single.low) == ("n/a", None, None)


def test_a_cell_has_the_mean_its_errors_and_both_tests() -> None:
    score = cell(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]), test_share=0.25, published=Published(3.0, "****"))
    means = np.array([1.5, 3.5, 7.0])
    assert score.value == 4.0
    assert score.se == pytest.approx(means.std(ddof=1) * np.sqrt(1 / 3 + 0.25))
    reach = 4.302652729911275 * means.std(ddof=1) * np.sqrt(1 / 3 + 0.25)  # t of two degrees at .975
    assert (score.low, score.high) == pytest.approx((4 - reach, 4 + reach))
    assert score.stars_naive == "*"
    assert score.stars == "ns"
    assert score.verdict == "inconclusive"


def test_the_published_estimates_are_those_of_the_paper() -> None:
    assert TABLE_1["boston", "mcbn", "crps"] == Published(8.50, "****")
    assert TABLE_1["concrete", "mcbn", "pll"] == Published(-36.36, "**")
    assert TABLE_1["concrete", "mcdo", "crps"] == Published(0.93, "*")
    assert TABLE_1["energy", "mnf", "pll"] == Published(-33.88, "ns")
    assert TABLE_1["kin8nm", "mcbn", "pll"] == Published(1.68, "***")
    assert TABLE_1["power", "mcdo", "crps"] == Published(-0.44, "****")
    assert TABLE_1["protein", "mcdo", "pll"] == Published(6.23, "****")
    assert TABLE_1["wine", "mcbn", "pll"] == Published(0.19, "*")
    assert TABLE_1["yacht", "mcbn", "crps"] == Published(-56.39, "***")
    assert TABLE_1["yacht", "mnf", "pll"] == Published(46.19, "****")
    assert len(TABLE_1) == 8 * 3 * 2
    assert GAL_RMSE["energy"] == (1.08, 0.54)


# ── file, summary, page ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_can_be_read_without_bnuq(made: Reproduction, tmp_path: Path) -> None:
    codec.write(made, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        runs = file["sets/energy/methods/mcbn/runs/normalized_crps"]
        assert runs.attrs["units"] == "percent"
        assert [axis.keys()[0] for axis in runs.dims] == ["split", "seed"]
        assert made.sets["energy"].cell("mcbn", "crps").value == runs[()].mean()
        assert file["sets/boston/methods/mcdo/choices/tau"].attrs["units"] == "1/target unit²"


def test_a_damaged_file_is_refused(made: Reproduction, tmp_path: Path) -> None:
    codec.write(made, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        del file["sets/energy/methods/mcbn/runs/normalized_pll"]
    with pytest.raises(ResultError, match="incomplete or damaged"):
        read(tmp_path / "out.h5")


def test_the_report_shows_every_score_beside_the_published_one(made: Reproduction) -> None:
    text = rendered(report, made)
    for _, _, _, score in made.cells():
        assert f"{score.value:.2f}" in text
        assert score.published is not None
        assert f"{score.published.value:.2f}".replace("-", "−") in text
    words = " ".join(text.split())
    assert "quick: 5 splits × 5 seeds, T = 500" in words
    assert "1 min 01 s, 1 min 40 s of CPU time, 40.0 s of that in an earlier run" in words
    assert "MC variance is next to zero in cross-validation" in words
    assert "cross-validation saw 50 of 614 training rows" in words
    assert "b 512 left out" in words
    assert "an earlier result was replaced: old.h5" in words


def test_the_page_has_a_table_row_for_each_set_and_method(made: Reproduction) -> None:
    page = markdown(made)
    assert page.count("\n| energy MCBN |") == 5
    assert page.count("\n| boston MCDO |") == 5
    head = next(line for line in page.splitlines() if line.startswith("|  | ours | 95 % interval"))
    rows = [line for line in page.splitlines() if line.startswith("| energy MCBN")]
    assert rows[0].count("|") == head.count("|")
    assert "\\*\\*\\*\\*" in rows[0]
