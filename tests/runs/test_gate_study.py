"""docs/make_gate.py: what it measures of the gate is what it says, and what it makes is found again."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_run
from check_all import check
from written import folder_of

from bnuq import metrics
from bnuq.config import Options, resolve
from bnuq.gate import CheckVerdict
from bnuq.methods import DETERMINISTIC
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read

pytestmark = pytest.mark.nightly  # docs/make_gate.py is not installed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def docs() -> Iterator[SimpleNamespace]:
    """The two files, imported as `make gate` imports them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield SimpleNamespace(
            measures=importlib.import_module("gate_measures"), make=importlib.import_module("make_gate")
        )


folder = folder_of(small_run)


@pytest.fixture(scope="module")
def seeds(folder: Path) -> list[Result]:
    """Of one small network, with three seeds."""
    return [small_run.evaluated(folder, out=Path(f"{seed}.h5"), seed=seed, methods=("mcbn",)) for seed in range(3)]


@pytest.fixture(scope="module")
def by_chance(docs: SimpleNamespace, seeds: list[Result]) -> Any:
    return docs.measures.by_chance(seeds)


@pytest.fixture(scope="module")
def other(folder: Path) -> Result:
    """Another network of that form, on the same points: its weights are noisy."""
    import torch

    state = torch.load(folder / "model.pt", weights_only=True)
    random = torch.Generator().manual_seed(0)
    noisy = {key: value + 0.3 * torch.randn(value.shape, generator=random) for key, value in state.items()}
    torch.save({**state, **{key: noisy[key] for key in ("4.weight", "7.weight")}}, folder / "noisy.pt")
    (folder / "noisy.toml").write_text(small_run.RUN.replace("model.pt", "noisy.pt"))
    return small_run.evaluated(folder, run_file="noisy.toml", out=Path("noisy.h5"), methods=("mcbn",))


class Coin:
    """Random numbers that always fall on one side."""

    def __init__(self, side: float) -> None:
        self.side = side

    def random(self, n: int) -> np.ndarray:
        return np.full(n, self.side)


# ── exchanged networks ───────────────────────────────────────────────────────────────────────────────────────────────


def values(result: Result) -> dict[str, float]:
    known = estimates_of(result).items()
    return {address: row.estimate.value for address, row in known if row["method"] == DETERMINISTIC}


def test_exchanging_no_point_leaves_every_estimate_as_the_evaluation_had_it(docs, seeds, other):
    for same, mixed in zip((seeds[0], other), docs.measures.exchanged((seeds[0], other), Coin(1.0)), strict=True):
        expected = values(same)
        assert values(mixed).keys() == expected.keys()
        assert values(mixed) == pytest.approx(expected, abs=1e-12)


def test_exchanging_all_points_makes_the_one_network_the_other(docs, seeds, other):
    first, second = docs.measures.exchanged((seeds[0], other), Coin(0.0))
    assert values(first) == pytest.approx(values(other), abs=1e-12)
    assert values(second) == pytest.approx(values(seeds[0]), abs=1e-12)
    assert values(first)["deterministic.sets.test.pll"] != pytest.approx(values(second)["deterministic.sets.test.pll"])


def test_an_exchange_keeps_the_scores_of_a_point_together(docs, seeds, other):
    mixed, rest = docs.measures.exchanged((seeds[0], other), np.random.default_rng(0))
    points = [result.methods[DETERMINISTIC].sets["test"].points for result in (seeds[0], other, mixed, rest)]
    same = np.array([np.equal(points[2][name], points[0][name]) for name in points[0]])
    theirs = np.array([np.equal(points[2][name], points[1][name]) for name in points[0]])
    assert np.all(same.all(0) | theirs.all(0))
    assert 0.2 < same.all(0).mean() < 0.8
    for name in points[0]:
        assert points[2][name] + points[3][name] == pytest.approx(points[0][name] + points[1][name])


def test_exchanged_networks_rarely_alarm(docs: SimpleNamespace, seeds: list[Result], other: Result) -> None:
    measured = docs.measures.by_exchange((seeds[0], other), exchanges=40, seed=0)
    assert measured.gated == 56  # five of the test set, the accuracy of a class, and five by each of ten scores
    assert docs.measures.share_of_all(measured.strict).value < 0.1
    low, of = measured.low[DETERMINISTIC, "accuracy"], measured.of[DETERMINISTIC, "accuracy"]
    assert 0 < docs.measures.share_of_all(low, of).value < 0.12
    assert np.all(measured.least <= 1) and np.all((measured.least < 0.05) == measured.strict.astype(bool))


# ── alarms, and their shares ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_ordered_pair_of_seeds_is_checked_and_none_with_itself(seeds: list[Result], by_chance: Any) -> None:
    measured = by_chance
    for kind, of in measured.of.items():
        assert kind[0] != DETERMINISTIC, "the network as it is does not change"
        assert np.all(np.diag(of) == 0)
    assert np.all(measured.of["mcbn", "auroc"][~np.eye(3, dtype=bool)] == 6)
    for a, b in ((0, 1), (2, 0)):
        verdict = check(seeds[a], seeds[b])
        assert measured.tolerant[a, b] == (not verdict.passed)
        worst = min(comparison.p_adjusted for comparison in verdict.comparisons if comparison.p_adjusted is not None)
        assert measured.least[a, b] == worst


def test_no_tolerance_fails_what_the_gate_fails_with_tolerance_0(docs: SimpleNamespace, other: Result) -> None:
    from bnuq.gate import GateSettings

    zero = GateSettings.of(tolerances=["*.sets.test.*=0", "*.ood.*=0"])
    worse = replace(other, path=other.path)
    method = worse.methods[DETERMINISTIC]
    points = {name: scores + 0.0 for name, scores in method.sets["test"].points.items()}
    points["brier"] = points["brier"] + 0.1 + 0.01 * np.sin(np.arange(len(points["brier"])))
    estimates = dict(method.sets["test"].estimates)
    value, se = float(np.mean(points["brier"])), metrics.standard_error(points["brier"])
    estimates["brier"] = replace(estimates["brier"], value=value, se=se, low=value - 1.96 * se, high=value + 1.96 * se)
    changed = replace(
        method, sets={**method.sets, "test": replace(method.sets["test"], points=points, estimates=estimates)}
    )
    worse = replace(worse, methods={**worse.methods, DETERMINISTIC: changed})
    assert (
        {comparison.address for comparison in check(worse, other).comparisons if docs.measures.alarming(comparison)}
        == {comparison.address for comparison in check(worse, other, zero).worse}
        == {"deterministic.sets.test.brier"}
    )


def test_without_draws_the_error_over_points_is_all_there_is(docs: SimpleNamespace, seeds: list[Result]) -> None:
    pair = [docs.measures.without_draws(result) for result in seeds[:2]]
    known = {comparison.address: comparison for comparison in check(seeds[0], seeds[1]).comparisons}
    compared = [comparison for comparison in check(*pair).comparisons if comparison.method == "mcbn"]
    assert len(compared) > 20
    for comparison in compared:
        assert comparison.se_draws < 1e-12
        assert comparison.se == pytest.approx(known[comparison.address].se_points)
        assert comparison.change == known[comparison.address].change
    assert any(known[comparison.address].se_draws for comparison in compared)


def test_the_spread_is_that_of_the_estimate_and_what_is_stated_is_the_estimates(docs, seeds):
    estimates = [result.methods["mcbn"].sets["test"].estimates["pll"] for result in seeds]
    sd, rms, median = docs.measures.spread(seeds, "mcbn.sets.test.pll")
    assert sd == pytest.approx(np.std([estimate.value for estimate in estimates], ddof=1))
    stated = sorted(estimate.mc_se for estimate in estimates if estimate.mc_se is not None)
    assert (rms, median) == (pytest.approx(np.sqrt(np.mean(np.square(stated)))), stated[1])


def test_one_draw_that_differs_carries_all_of_the_variance(docs: SimpleNamespace, seeds: list[Result]) -> None:
    def changed(result: Result, left_out: np.ndarray) -> Result:
        method = result.methods["mcbn"]
        estimate = replace(method.sets["test"].estimates["pll"], jackknife=left_out)
        outcome = replace(method.sets["test"], estimates={**method.sets["test"].estimates, "pll": estimate})
        changed = replace(method, sets={**method.sets, "test": outcome})
        return replace(result, methods={**result.methods, "mcbn": changed})

    share, address = docs.measures.of_one_draw, "mcbn.sets.test.pll"
    assert share([changed(seeds[0], np.array([0.0, 1.0, 0.0, -1.0]))], address) == pytest.approx(0.5)
    assert share([changed(result, np.eye(8)[3]) for result in seeds], address) == pytest.approx(0.875)  # of 1 − 1/8
    assert 1 / 8 <= share(seeds, address) < 1


def test_the_error_of_a_share_of_pairs_takes_seeds_for_independent(docs: SimpleNamespace) -> None:
    share = docs.measures.share_of_pairs
    one_bad = np.zeros((10, 10))
    one_bad[3, :] = 1 - np.eye(10)[3]  # one seed alarms against all others
    measured = share(one_bad)
    assert measured.value == pytest.approx(0.1)
    assert measured.se == pytest.approx(0.1, rel=0.3)  # nearly all of it hangs on that seed, …
    assert measured.se > 2 * np.sqrt(0.1 * 0.9 / 90)  # … which pairs taken for independent would not show
    assert share(np.zeros((10, 10))).se == 0
    doubled = share(2 * one_bad, 2 * (1 - np.eye(10)))
    assert (doubled.value, doubled.se) == (pytest.approx(measured.value), pytest.approx(measured.se))


def test_the_error_of_a_share_of_pairs_is_its_spread(docs: SimpleNamespace) -> None:
    random = np.random.default_rng(0)
    measured = []
    for _ in range(300):
        x = random.normal(size=20)
        measured.append(docs.measures.share_of_pairs((x[:, None] - x > 1.5) * (1.0 - np.eye(20))))
    spread = np.std([estimate.value for estimate in measured])
    assert np.sqrt(np.mean([estimate.se**2 for estimate in measured])) == pytest.approx(spread, rel=0.15)


def test_the_error_of_a_share_of_independent_entries_is_the_binomials(docs: SimpleNamespace) -> None:
    low = (np.arange(400) % 20 == 0).astype(float)
    measured = docs.measures.share_of_all(low)
    assert measured.value == pytest.approx(0.05)
    assert measured.se == pytest.approx(np.sqrt(0.05 * 0.95 / 399))


# ── the smallest change ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_smallest_change_is_found_as_often_as_it_says(docs: SimpleNamespace) -> None:
    se, gated = 0.02, 40
    smallest = docs.measures.smallest(se, np.inf, tolerance=0.01, gated=gated)
    needed = 3.0233 * se  # the normal quantile at 1 − .05/40
    estimates = np.random.default_rng(0).normal(size=100_000) * se
    assert smallest.half == pytest.approx(needed, rel=1e-4)
    assert np.mean(smallest.half + estimates > needed) == pytest.approx(0.5, abs=0.01)
    assert np.mean(smallest.most + estimates > needed) == pytest.approx(0.8, abs=0.01)
    assert not smallest.tolerated


def test_few_degrees_of_freedom_take_a_larger_change(docs: SimpleNamespace) -> None:
    smallest = docs.measures.smallest
    assert smallest(1.0, 31.0, tolerance=0.0, gated=1).half == pytest.approx(
        1.6955, rel=1e-4
    )  # Student's t, 31 degrees
    assert smallest(1.0, 31.0, tolerance=0.0, gated=40).half > smallest(1.0, 1e6, tolerance=0.0, gated=40).half


def test_a_change_within_the_tolerance_is_never_found(docs: SimpleNamespace) -> None:
    smallest = docs.measures.smallest(0.001, np.inf, tolerance=0.01, gated=1)
    assert (smallest.half, smallest.tolerated) == (0.01, True)
    assert smallest.most == pytest.approx(0.01 + 0.8416 * 0.001, rel=1e-4)


def test_errors_of_changes_are_those_of_the_check(docs: SimpleNamespace, seeds: list[Result], other: Result) -> None:
    addresses = ("mcbn.sets.test.pll", "mcbn.ood.other.mutual_information.auroc")
    measured = docs.measures.errors_of_changes([(other, seeds[0]), (other, seeds[1])], addresses)
    for number, baseline in enumerate(seeds[:2]):
        known = {comparison.address: comparison for comparison in check(other, baseline).comparisons}
        for address in addresses:
            assert measured[address][number][0] == known[address].se


# ── what is made, and what is written ────────────────────────────────────────────────────────────────────────────────


def test_a_result_is_known_again_by_what_was_asked(docs: SimpleNamespace, folder: Path, tmp_path: Path) -> None:
    small_run.write(tmp_path)  # the same run elsewhere
    asked = {"methods": ("mcbn",), "batch_size": 16, "seed": 1}
    made = small_run.evaluated(folder, out=Path("asked.h5"), **asked)
    assert made.path is not None
    result = read(made.path)
    for place in (folder, tmp_path):
        assert docs.make.is_of(result, resolve("run.toml", Options(**asked), folder=place))
    for change in ({"seed": 0}, {"batch_size": 8}, {"limit": 10}, {"methods": ("mcbn", "mcdo")}, {"samples": 9}):
        other = resolve("run.toml", Options(**{**asked, **change}), folder=folder)
        assert not docs.make.is_of(result, other), change
    (tmp_path / "model.pt").write_bytes(b"another network")
    assert not docs.make.is_of(result, resolve("run.toml", Options(**asked), folder=tmp_path))


def test_a_noisy_copy_differs_by_its_level_and_in_no_batchnorm(docs: SimpleNamespace, tmp_path: Path) -> None:
    import torch

    random = torch.Generator().manual_seed(1)
    state = {"conv.weight": 3 * torch.randn(64, 64, generator=random), "bn.running_mean": torch.ones(64)}
    torch.save({"state_dict": state}, tmp_path / "net-1a2b.pt")
    path = docs.make.noisy(tmp_path / "net-1a2b.pt", tmp_path, level=0.1, seed=0)
    made = torch.load(path, weights_only=True)["state_dict"]
    assert float((made["conv.weight"] - state["conv.weight"]).std()) == pytest.approx(0.3, rel=0.05)
    assert torch.equal(made["bn.running_mean"], state["bn.running_mean"])
    again = docs.make.noisy(tmp_path / "net-1a2b.pt", tmp_path, level=0.1, seed=1)
    assert not torch.equal(torch.load(again, weights_only=True)["state_dict"]["conv.weight"], made["conv.weight"])


def test_a_change_is_written_with_its_error_and_bold_where_it_fails(docs: SimpleNamespace, seeds: list[Result]) -> None:
    comparison = next(
        comparison for comparison in check(seeds[0], seeds[1]).comparisons if comparison.address == "mcbn.sets.test.pll"
    )
    moved = replace(comparison, change=-0.0723, se=0.0124, p_adjusted=0.004, outcome="worse")
    assert docs.make.moved(moved) == "**−0.0723 ± 0.0124, 0.004**"
    assert docs.make.shortly(replace(moved, outcome="same")) == "−0.072 ± 0.012"
    assert docs.make.moved(replace(moved, se=0.0, change=0.0)) == "0"


def test_what_fails_is_named_by_method_and_what_never_does_too(docs, seeds, other):
    verdicts = [check(other, result) for result in seeds]

    def judged(verdict: CheckVerdict, *worse: str) -> CheckVerdict:
        return replace(
            verdict,
            comparisons=tuple(
                replace(comparison, outcome="worse" if comparison.address in worse else "same")
                if comparison.outcome != "not gated"
                else comparison
                for comparison in verdict.comparisons
            ),
        )

    pll, auroc = "mcbn.sets.test.pll", "mcbn.ood.other.mutual_information.auroc"
    lines = [judged(verdicts[0], pll, auroc), judged(verdicts[1], pll), judged(verdicts[2])]
    first, second = docs.make.what_fails({"noise": lines, "nothing": lines[2:]}).splitlines()
    assert first.startswith(
        "- **noise**, of 3 checks. Deterministic: none. MCBN: PLL 2, AUROC by MI 1; never the other "
    )
    assert second == "- **nothing**, of 1 check. None."
    assert docs.make.failed(lines) == "1 of 1 paired, 1 of 2"  # the other network has the draws of the first seed


def test_tables_tell_what_was_counted(docs, seeds, other, by_chance):
    make, measures = docs.make, docs.measures
    pairs = {"small": (by_chance, measures.by_chance([measures.without_draws(result) for result in seeds[:2]]))}
    head, _, row = make.of_chance(pairs).splitlines()
    assert head.count("|") == row.count("|")
    assert row.startswith(f"| small | 3 | {check(seeds[0], seeds[1]).gated} | 0 of 6 | 0 of 6, 0.0 % | ")
    metrics = [line.split(" | ")[0] for line in make.by_metric(pairs).splitlines()[2:]]
    assert metrics[:4] == ["| accuracy", "| PLL", "| Brier score", "| ECE"]
    assert len(metrics) == 10

    verdicts = {"noise": [check(other, result) for result in seeds]}
    errors = measures.errors_of_changes([(other, seeds[0])], ["mcbn.sets.test.pll"])["mcbn.sets.test.pll"]
    half, most = make.found_from(errors, "mcbn.sets.test.pll", gated=1).split(" / ")
    assert 0.01 <= float(half) < float(most)
    wanted = measures.smallest(*errors[0], tolerance=0.01, gated=1)
    assert (float(half), float(most)) == (pytest.approx(wanted.half, abs=1e-4), pytest.approx(wanted.most, abs=1e-4))
    assert make.failed(verdicts["noise"]).endswith(" of 2")


def test_the_page_says_when_and_where_it_was_made() -> None:
    text = (ROOT / "docs" / "measured" / "gate.md").read_text(encoding="utf-8")
    assert re.search(r"Written by `make gate` on \d{4}-\d{2}-\d{2} with bnuq \S+ \(.+ cores, torch .+\)", text)
    assert "nan" not in text


def test_every_table_of_the_page_is_whole() -> None:
    lines = (ROOT / "docs" / "measured" / "gate.md").read_text(encoding="utf-8").splitlines()
    tables = [list(some) for is_row, some in groupby(lines, lambda line: line.startswith("|")) if is_row]
    assert len(tables) == 11
    for rows in tables:
        assert len(rows) > 3
        assert len({row.count("|") for row in rows}) == 1, rows[0]
