"""A bank of more draws than passes: every 64 points use their own, and the errors over draws are those of the bank."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of
from scipy import special

import bnuq
from bnuq import metrics
from bnuq.errors import RequestError
from bnuq.estimates import Estimator
from bnuq.evaluation.estimates import RESAMPLES, replicate_weights
from bnuq.evaluation.tasks import classification
from bnuq.records import evaluation_file as result_file
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.render import print_record
from bnuq.sampling import counter_rng
from bnuq.sampling.bank_tiles import BankEngine, tiles
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.exactness import InexactError
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites

T, N, K = 9, 24, 4
softmax = partial(special.softmax, axis=-1)


def draws_of(points: int, *, seed: int = 0, samples: int = T, bank: int = N) -> list[tuple[range, np.ndarray]]:
    return [(r, counter_rng.draws_of_tile(seed, r.start // 64, bank=bank, samples=samples)) for r in tiles(0, points)]


def reduced(
    logits: np.ndarray, labels: np.ndarray | None, *, samples: int = T, seed: int = 0, estimator: Estimator = "plug-in"
) -> tuple[classification.ClassScores, metrics.DrawWeights]:
    """The scores where `logits` (N, n, K) are those of all draws of the bank, of which each tile sees its own T."""
    draws = replicate_weights(samples, len(logits))
    reduction = classification.ClassReduction(draws, points=logits.shape[1], labels=labels, estimator=estimator)
    for rows, own in draws_of(logits.shape[1], seed=seed, samples=samples, bank=len(logits)):
        reduction.add(logits[own, rows.start : rows.stop], own)
    return reduction.scores(), draws


# ── the reduction ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def found() -> tuple[np.ndarray, np.ndarray, classification.ClassScores, metrics.DrawWeights]:
    generator = np.random.default_rng(0)
    logits = 2 * generator.normal(size=(1, 150, K)) + generator.normal(size=(N, 150, K))
    labels = generator.integers(K, size=150)
    return logits, labels, *reduced(logits, labels)


def by_hand(logits: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Per-point values under one weighting of the bank: in every tile, that of its own draws made to sum to 1."""
    p = softmax(logits)
    values: dict[str, list[np.ndarray]] = {}
    for rows, own in draws_of(logits.shape[1]):
        w = weight[own]
        w = w / w.sum() if w.sum() > 0 else np.full(T, 1 / T)
        q, y = p[own, rows.start : rows.stop], labels[rows.start : rows.stop]
        mean = np.einsum("t,tnk->nk", w, q)
        expected = np.einsum("t,tnk->n", w, -q * np.log(q))
        entropy = -(mean * np.log(mean)).sum(-1)
        for name, value in {
            "accuracy": (mean.argmax(-1) == y).astype(float),
            "pll": np.log(mean[np.arange(len(y)), y]),
            "mutual_information": entropy - expected,
            "predictive_entropy": entropy,
            "max_probability": mean.max(-1),
        }.items():
            values.setdefault(name, []).append(value)
    return {name: np.concatenate(parts) for name, parts in values.items()}


def test_every_replicate_weighs_the_bank_and_in_each_tile_what_of_it_the_tile_uses(found):
    logits, labels, scores, draws = found
    rows = [*range(draws.full.start, draws.jackknife.stop), *range(draws.bootstrap.start, draws.bootstrap.stop, 10)]
    for row in rows:
        for name, values in by_hand(logits, labels, draws.weights[row]).items():
            assert scores.replicates[name][row] == pytest.approx(values.mean(), rel=1e-10), (row, name)
    for name, values in by_hand(logits, labels, draws.weights[draws.full.start]).items():
        assert scores.points[name] == pytest.approx(values, rel=1e-10), name


def test_rank_estimates_and_bins_follow_the_same_replicates(found):
    logits, labels, scores, draws = found
    for place, row in enumerate(range(draws.jackknife.start, draws.bootstrap.stop, 7)):
        values = by_hand(logits, labels, draws.weights[row])
        for score in ("mutual_information", "predictive_entropy"):
            assert scores.ranked[score][7 * place] == pytest.approx(values[score], rel=1e-5, abs=1e-6)
        assert scores.ranked_wrong is not None and scores.bins is not None
        assert np.array_equal(scores.ranked_wrong[7 * place], values["accuracy"] == 0)
        assert scores.bins.correct[row].sum() == values["accuracy"].sum()
        assert scores.bins.confidence[row].sum() == pytest.approx(values["max_probability"].sum())
    assert len(scores.ranked["mutual_information"]) == N + RESAMPLES


def test_convergence_is_over_the_first_of_each_points_own_draws(found):
    logits, _, scores, draws = found
    curve = classification.convergence(scores, draws)
    assert curve["samples"].tolist() == [1, 2, 4, 8, 9]
    for k, value in zip(curve["samples"], curve["mutual_information"], strict=True):
        of_first = [
            metrics.mutual_information(softmax(logits[own[:k], rows.start : rows.stop]))
            for rows, own in draws_of(logits.shape[1])
        ]
        assert value == pytest.approx(np.concatenate(of_first).mean(), abs=1e-12)


def test_log_likelihoods_are_by_position_among_a_points_own_draws(found):
    logits, labels, scores, _ = found
    assert scores.log_likelihood is not None and scores.log_likelihood.shape == (T, 150)
    (rows, own), *_ = draws_of(150)
    expected = np.log(softmax(logits[own, : rows.stop])[:, np.arange(rows.stop), labels[: rows.stop]])
    assert scores.log_likelihood[:, : rows.stop] == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["corrected", "jackknife"])
def test_estimators_of_mutual_information_know_that_a_point_has_t_draws(found, estimator):
    logits, labels, _, draws = found
    scores, _ = reduced(logits, labels, estimator=estimator)
    for rows, own in draws_of(150):
        expected = metrics.mutual_information(softmax(logits[own, rows.start : rows.stop]), estimator=estimator)
        assert scores.points["mutual_information"][rows.start : rows.stop] == pytest.approx(expected)
    if estimator == "corrected":  # without a draw, the tiles that used it have T − 1 and the others still T
        for draw in range(N):
            used = np.concatenate([np.full(len(rows), draw in own) for rows, own in draws_of(150)])
            one = by_hand(logits, labels, draws.weights[draws.jackknife][draw])["mutual_information"]
            expected = np.where(used, one * (T - 1) / (T - 2), one * T / (T - 1)).mean()
            assert scores.replicates["mutual_information"][draws.jackknife][draw] == pytest.approx(expected)


def test_a_single_pass_of_every_point_has_no_error_over_draws():
    generator = np.random.default_rng(1)
    scores, draws = reduced(generator.normal(size=(N, 130, K)), generator.integers(K, size=130), samples=1)
    assert len(draws.weights) == 2 and "mutual_information" not in scores.replicates
    assert classification.convergence(scores, draws) == {}
    assert classification.set_estimates(scores, draws)["pll"].mc_se is None


def test_with_few_passes_no_error_is_told_however_large_the_bank_is():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(64, 130, K)), generator.integers(K, size=130)
    few, enough = (classification.set_estimates(*reduced(logits, labels, samples=t))["pll"] for t in (7, 8))
    assert few.mc_se is None and enough.mc_se is not None
    assert enough.jackknife is not None and len(enough.jackknife) == 64


# ── the error that it tells ──────────────────────────────────────────────────────────────────────────────────────────

TILES, REPEATS = 10, 120


def repeated(samples: int, bank: int | None, *, own: float) -> dict[str, tuple[float, float]]:
    """Mean mc_se and spread over repeats of each figure, for a network of which 3 numbers are drawn.

    Of what a draw does to a point a share `own` is that of its tile alone, the rest is common to all points.
    """
    generator = np.random.default_rng(7)
    points = 64 * TILES
    at, labels = 1.5 * generator.normal(size=(points, K)), generator.integers(K, size=points)
    slope = 0.7 * generator.normal(size=(1, 3, K)) + 0.2 * generator.normal(size=(points, 3, K))
    slope = (1 - own) * slope + 0.7 * own * np.repeat(generator.normal(size=(TILES, 3, K)), 64, axis=0)
    values: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        logits = at + np.einsum("td,ndk->tnk", generator.normal(size=(bank or samples, 3)), slope)
        if bank is None:
            draws = replicate_weights(samples)
            reduction = classification.ClassReduction(draws, points=points, labels=labels)
            reduction.add(logits)
            scores = reduction.scores()
        else:
            scores, draws = reduced(logits, labels, samples=samples, seed=repeat)
        for name in ("mutual_information", "pll", "accuracy", "max_probability"):
            replicates = scores.replicates[name]
            error = (
                metrics.bootstrap_error(replicates[draws.bootstrap], samples=samples, bank=bank)
                if name in ("accuracy", "max_probability")
                else metrics.jackknife_error(replicates[draws.jackknife])
            )
            values.setdefault(name, []).append(float(replicates[draws.full][0]))
            errors.setdefault(name, []).append(float(error))
    return {name: (float(np.mean(errors[name])), float(np.std(values[name], ddof=1))) for name in values}


@pytest.mark.nightly
@pytest.mark.parametrize(("bank", "own"), [(16, 0.0), (64, 0.0), (64, 1.0), (160, 0.3)])
def test_the_error_over_the_bank_is_the_spread_over_repeats(bank, own):
    found = repeated(16, bank, own=own)
    ratios = {name: round(error / spread, 2) for name, (error, spread) in found.items()}
    print(bank, own, ratios, {name: spread for name, (_, spread) in found.items()})
    assert {name: ratio for name, ratio in ratios.items() if not 0.7 <= ratio <= 1.3} == {}


@pytest.mark.nightly
def test_a_bank_makes_the_error_of_means_smaller():
    without, with_bank = repeated(16, None, own=0.0), repeated(16, 128, own=0.0)
    for name in ("mutual_information", "pll"):
        assert with_bank[name][1] < 0.6 * without[name][1]
        assert with_bank[name][0] < 0.6 * without[name][0]


# ── the passes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tiles_are_cut_by_the_numbers_of_the_points():
    assert [*tiles(0, 130)] == [range(64), range(64, 128), range(128, 130)]
    assert [*tiles(50, 70)] == [range(50, 64), range(64, 70)]
    assert [*tiles(64, 128)] == [range(64, 128)]
    assert [*tiles(3, 4)] == [range(3, 4)]


@pytest.mark.held(False)
@pytest.mark.parametrize(("chunk", "with_dropout"), [(10, True), (64, False), (100, True)])
def test_every_tile_passes_under_its_own_draws_of_the_bank_whatever_passes_together(chunk, with_dropout):
    torch.manual_seed(0)
    net, x = small_run.network().eval(), torch.rand(150, 1, 6, 6)
    sites = find_sites(net, x[:3])
    omega = bnuq.draw(net, x, samples=N, batch_size=8, seed=1)
    dropout = bnuq.Dropout(N, seed=1) if with_dropout else None
    engine = Stochastic(net, sites, omega=omega, dropout=dropout)
    all_draws = PlainLoop(net, sites, omega=omega, dropout=dropout).passes(x)
    own = BankEngine(engine, samples=T, seed=5)
    outputs = torch.cat([own.passes(x[i : i + chunk], i) for i in range(0, 150, chunk)], dim=1)
    assert outputs.shape == (T, 150, 3) and not engine.why_plain
    for rows, numbers in draws_of(150, seed=5):
        assert torch.allclose(outputs[:, rows.start : rows.stop], all_draws[numbers, rows.start : rows.stop], atol=1e-5)
        plain, part = PlainLoop(net, sites, omega=omega, dropout=dropout), x[rows.start : rows.stop]
        assert torch.equal(plain.passes(part, rows.start, numbers.tolist()), plain.passes(part, rows.start)[numbers])


class Mixing(torch.nn.Sequential):
    """Subtracts the mean of the points that pass together, where these are more than 20."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x - x.mean(0) if len(x) > 20 and not self.training else x


def test_points_that_see_each_other_are_refused_with_a_bank_as_without():
    torch.manual_seed(0)
    net, x = Mixing(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).eval(), torch.randn(150, 4)
    engine = Stochastic(net, find_sites(net, x[:3]), omega=bnuq.draw(net, x, samples=N, batch_size=8, seed=1))
    with pytest.raises(InexactError):
        BankEngine(engine, samples=T, seed=5).passes(x)


# ── whole runs ───────────────────────────────────────────────────────────────────────────────────────────────────────

RUN = small_run.RUN + "bank = 40\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The small run with sets of three tiles, and a bank."""
    small_run.write(tmp_path, text=RUN)
    random = np.random.default_rng(3)
    np.savez(tmp_path / "test.npz", x=random.random((150, 1, 6, 6), np.float32), y=random.integers(0, 3, 150))
    np.savez(tmp_path / "other.npz", x=random.random((140, 1, 6, 6), np.float32) * 2)
    return tmp_path


@pytest.mark.held(False)
def test_a_run_with_a_bank_says_so_everywhere_and_can_be_run_again(small):
    result = small_run.evaluated(small, ood=())
    assert result.sampling["samples"] == 8 and result.sampling["bank"] == 40
    with h5py.File(small / "model.bnuq.h5") as file:
        assert file["statistics/draw"].shape == (40,)  # type: ignore
    widths = {m: one.sets["test"].estimates["pll"].jackknife for m, one in result.methods.items()}
    expected = {"deterministic": None, "mcbn": 40, "mcdo": 8, "mcbn+mcdo": 40}
    expected |= {f"{method}+temperature": width for method, width in expected.items()}
    assert {m: None if v is None else len(v) for m, v in widths.items()} == expected
    assert values_of(result, "bank-of-draws") == {"tile": 64, "samples": 8, "bank": 40}

    read = result_file.read(small / "model.bnuq.h5")
    for method, one in result.methods.items():
        for name, estimate in one.sets["test"].estimates.items():
            kept = read.methods[method].sets["test"].estimates[name]
            assert (kept.value, kept.mc_se) == (estimate.value, estimate.mc_se)
            for replicates in ("jackknife", "bootstrap"):
                one_read, one_written = (np.array(getattr(f, replicates), float) for f in (kept, estimate))  # None: NaN
                assert np.array_equal(one_read, one_written, equal_nan=True)
    assert read.methods["mcbn"].sets["test"].log_likelihood.shape == (8, 150)  # type: ignore
    assert summary(read)["sampling"]["bank"] == 40
    stream = io.StringIO()
    print_record(report, read, stream, full=True)
    assert re.search(r"samples +8 of a bank of 40 per example", stream.getvalue())


@pytest.mark.nightly
@pytest.mark.held(False)
def test_a_bank_of_as_many_draws_as_passes_is_none(small):
    same = small_run.evaluated(small, out=Path("same.h5"), bank=8, methods=("mcbn",), ood=())
    (small / "run.toml").write_text(small_run.RUN)
    off = small_run.evaluated(small, out=Path("off.h5"), methods=("mcbn",), ood=())
    assert same.sampling["bank"] is None and off.sampling["bank"] is None
    assert "bank-of-draws" not in noted(same)
    for name, estimate in off.methods["mcbn"].sets["test"].estimates.items():
        assert same.methods["mcbn"].sets["test"].estimates[name].value == estimate.value


@pytest.mark.held(False)
@pytest.mark.parametrize("methods", [("deterministic",), ("mcdo",)])
def test_a_bank_is_of_no_account_where_no_method_samples_batchnorm(small, methods):
    result = small_run.evaluated(small, methods=methods, bank=3, ood=())
    assert result.sampling["bank"] is None and "bank-of-draws" not in noted(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": "auto"}, '--bank 40 needs a number of samples, and samples is "auto"; name one with --samples, or '
                              "leave the bank out."),
        ({"bank": 7}, "--bank is 7; expected at least the 8 samples of an example, which are chosen from it."),
        ({"bank": 0}, "--bank is 0; expected a whole number of at least 1."),
    ],
)  # fmt: skip
def test_a_bank_that_cannot_be_is_refused(small, options, said):
    with pytest.raises(RequestError, match=f"^{re.escape(said)}$"):
        small_run.evaluated(small, **options)
    assert not (small / "model.bnuq.h5").exists()


@pytest.mark.held(False)
def test_raw_samples_are_those_of_each_points_own_draws(small):
    kept = small_run.evaluated(small, methods=("mcbn",), save_samples=True, ood=()).methods["mcbn"].sets["test"]
    assert kept.samples is not None and kept.samples.shape == (8, 150, 3)
