"""Noise models of ω: their moments are those of theory and records, and draw t depends on (seed, t) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from scipy import stats

import bnuq
from bnuq.sampling.analytic import LayerNoiseModel, draw_chi2, draw_empirical, draw_gaussian, noise_model_of
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.digests import fingerprint
from bnuq.sampling.site_search import find_sites

MANY = range(4000)
KEPT = {"fingerprint": "f", "batch_size": 8}


def noise_model(n: float = 8.0, *, of_deviation: float | None = None, channels: int = 3) -> LayerNoiseModel:
    mean, var = np.linspace(-1, 2, channels), np.linspace(0.5, 3, channels)
    return LayerNoiseModel("bn", 1e-5, mean, var, n, of_deviation or n, int(n))


def test_under_chi2_the_mean_is_gaussian_and_the_variance_chi_square_of_n_minus_one():
    layer = noise_model(8)
    drawn = draw_chi2([layer], MANY, seed=1, **KEPT).layers[0]
    for c in range(3):
        assert stats.kstest((drawn.mean[:, c] - layer.mean[c]) / np.sqrt(layer.var[c] / 8), "norm").pvalue > 1e-3
        assert stats.kstest(8 * drawn.var[:, c] / layer.var[c], stats.chi2(7).cdf).pvalue > 1e-3
        assert abs(np.corrcoef(drawn.mean[:, c], drawn.var[:, c])[0, 1]) < 0.06


def test_chi2_is_the_noise_model_of_mini_batches_of_independent_gaussian_values():
    batches = np.random.default_rng(0).normal(2, 1.5, (4000, 6))
    drawn = draw_chi2(
        [LayerNoiseModel("bn", 1e-5, np.array([2.0]), np.array([2.25]), 6, 6, 6)], MANY, seed=0, **KEPT
    ).layers[0]
    assert stats.ks_2samp(batches.mean(1), drawn.mean[:, 0]).pvalue > 1e-3
    assert stats.ks_2samp(batches.var(1), drawn.var[:, 0]).pvalue > 1e-3


@pytest.mark.parametrize(("of_deviation", "rel"), [(3, 0.2), (12, 0.12)])  # of few values, ν = n − 1 is far from n
def test_counts_of_mean_and_deviation_move_each_its_own_statistic(of_deviation, rel):
    drawn = draw_chi2([noise_model(100, of_deviation=of_deviation, channels=1)], MANY, seed=2, **KEPT).layers[0]
    assert drawn.mean.var() == pytest.approx(0.5 / 100, rel=0.1)
    assert drawn.var.mean() == pytest.approx(0.5 * (1 - 1 / 100), rel=rel / 4)
    assert drawn.var.var() / drawn.var.mean() ** 2 == pytest.approx(2 / (of_deviation - 1), rel=rel)


def test_under_gaussian_the_deviation_is_normal_around_sigma_and_never_negative():
    layer = noise_model(50, channels=1)
    drawn = np.sqrt(draw_gaussian([layer], MANY, seed=3, **KEPT).layers[0].var[:, 0] / layer.var[0])
    assert drawn.mean() == pytest.approx(1, abs=0.006)
    assert drawn.std() == pytest.approx(0.1, rel=0.05)
    few = draw_gaussian([noise_model(4, of_deviation=0.5, channels=1)], MANY, seed=3, **KEPT).layers[0]
    s = np.sqrt(few.var[:, 0] / 0.5)
    assert (s >= 0).all()
    assert stats.kstest(s, stats.truncnorm(-1, np.inf, loc=1, scale=1).cdf).pvalue > 1e-3  # drawn again below 0


def recorded(draws: int = 40, channels: int = 3, layers: int = 2) -> BatchStatistics:
    random = np.random.default_rng(5)
    mix = random.normal(size=(2 * channels * layers, 2 * channels * layers))
    parts = np.split(random.normal(size=(draws, 2 * channels * layers)) @ mix * 0.2, 2 * layers, axis=1)
    return BatchStatistics(
        tuple(
            LayerStatistics(f"bn{i}", 1e-5, parts[2 * i], np.exp(parts[2 * i + 1]), np.full(draws, 8))
            for i in range(layers)
        ),
        "f",
        8,
    )


def units(bank: BatchStatistics) -> np.ndarray:
    return np.concatenate([np.concatenate([m.mean, np.log(m.var + m.eps)], axis=1) for m in bank.layers], axis=1)


@pytest.mark.parametrize("covariance", ["channel", "layer", "layer:2", "network"])
def test_an_empirical_noise_model_has_the_means_and_variances_of_the_records(covariance):
    bank = recorded()
    drawn, kept = units(draw_empirical(bank, MANY, seed=0, covariance=covariance)), units(bank)
    assert drawn.std(0, ddof=1) == pytest.approx(kept.std(0, ddof=1), rel=0.06)
    assert drawn.mean(0) == pytest.approx(kept.mean(0), abs=0.06 * kept.std(0).max())


@pytest.mark.parametrize(
    ("covariance", "same"),
    [
        ("channel", lambda i, j: i % 3 == j % 3 and i // 6 == j // 6),
        ("layer", lambda i, j: i // 6 == j // 6),
        ("network", lambda i, j: True),  # noqa: ARG005
    ],
)
def test_what_is_joint_keeps_its_correlations_and_what_is_not_has_none(covariance, same):
    bank = recorded()
    drawn, kept = (np.corrcoef(units(b).T) for b in (draw_empirical(bank, MANY, seed=1, covariance=covariance), bank))
    for i in range(12):
        for j in range(12):
            assert drawn[i, j] == pytest.approx(kept[i, j] if same(i, j) else 0, abs=0.08)


def test_all_directions_of_a_layer_are_the_layer():
    bank = recorded()
    one = draw_empirical(bank, range(20), seed=0, covariance="layer:6")
    assert np.array_equal(units(one), units(draw_empirical(bank, range(20), seed=0, covariance="layer")))


def test_a_channel_that_never_varies_stays_as_it_is_under_every_empirical_noise_model():
    bank = recorded()
    dead = bank.layers[0]
    dead.mean[:, 1], dead.var[:, 1] = 0.0, 0.0
    for covariance in ("channel", "layer", "layer:1", "network"):
        drawn = draw_empirical(bank, range(5), seed=0, covariance=covariance).layers[0]
        assert drawn.mean[:, 1] == pytest.approx(0, abs=1e-12) and drawn.var[:, 1] == pytest.approx(0, abs=1e-12)
        assert np.isfinite(drawn.var).all()


@pytest.mark.parametrize("name", ["chi2", "gaussian", "layer", "layer:2", "network"])
def test_the_first_draws_of_more_are_the_draws_of_fewer_and_another_seed_gives_others(name):
    def draw(draws: range, seed: int) -> np.ndarray:
        if name in ("chi2", "gaussian"):
            return units(
                {"chi2": draw_chi2, "gaussian": draw_gaussian}[name]([noise_model()], draws, seed=seed, **KEPT)
            )
        return units(draw_empirical(recorded(), draws, seed=seed, covariance=name))

    assert draw(range(9), 0)[:4] == pytest.approx(draw(range(4), 0), rel=1e-12)
    assert draw(range(9), 0)[4:] == pytest.approx(draw(range(4, 9), 0), rel=1e-12)
    assert not np.isclose(draw(range(4), 0), draw(range(4), 1)).any()


def test_a_noise_model_is_drawn_from_running_statistics_alone_and_predicts_like_any_omega():
    net = zoo.made("2d", torch.float64)
    points = zoo.points("2d", 6, dtype=torch.float64)
    sites = find_sites(net, points).live_batchnorms
    models = [noise_model_of(site, batch_size=16, density=None, shrink=1.0) for site in sites]
    assert [one.count for one in models] == [16 * site.positions for site in sites]
    omega = draw_chi2(models, range(5), seed=0, fingerprint=fingerprint(net), batch_size=16)
    outputs = bnuq.predict(net, points, omega)
    assert outputs.shape[0] == 5 and outputs.std(0).max() > 0
    sharp = [noise_model_of(site, batch_size=10**12, density=None, shrink=1.0) for site in sites]
    fixed = bnuq.predict(net, points, draw_chi2(sharp, range(2), seed=0, fingerprint=fingerprint(net), batch_size=2))
    with torch.no_grad():
        assert torch.allclose(fixed, net.eval()(points).expand_as(fixed), rtol=1e-4, atol=1e-5)


def test_a_finite_population_sharpens_the_noise_model():
    site = find_sites(zoo.made("2d", torch.float64), zoo.points("2d", 6, dtype=torch.float64)).live_batchnorms[0]
    whole, part = (noise_model_of(site, batch_size=16, density=(2.0, 3.0), shrink=s) for s in (1.0, 0.5))
    assert (whole.values_mean, whole.values_deviation) == (32, 48)
    assert (part.values_mean, part.values_deviation) == (64, 96)
