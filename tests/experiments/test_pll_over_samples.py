"""PLL against the number of passes: what the curve is, its errors, its file, report and picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
import small_run
from findings_of import noted
from records_at_rest import replace_in_record
from report_text import rendered

from bnuq import metrics, stopping
from bnuq.config import Options, Run, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.files.journal import beside
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.pll_over_samples import PllOverSamples, read, report, reproduce

SAMPLES = 32


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    path = small_run.write(folder, rate=0.0)
    return resolve(str(path), Options(samples=SAMPLES, out=folder / "r.h5", device="cpu"), folder=folder)


@pytest.fixture(scope="module")
def record(run: Run) -> PllOverSamples:
    return reproduce(run)


def made_up(draws: int, points: int, *, samples: tuple[int, ...], seed: int = 0, base: float = -1.0) -> PllOverSamples:
    """A record of log-likelihoods out of a generator, for laws of the curve."""
    return PllOverSamples(
        experiment={
            "model": "net.pt", "sha256": "", "parameters": 3, "batchnorm_layers": 1, "train_batch_size": 8,
            "batch_size": 8, "samples": draws, "seed": 0, "device": "cpu", "test": "t.npz", "n": points,
            "test_points": points, "train": "train.npz", "reference_points": 96, "train_size": None, "augment": False,
        },
        published={
            "source": "S", "samples": [1, 2, 4], "pll": [-0.4, -0.3, -0.2], "baseline": -0.3,
            "replication_source": "R", "replication": [-0.5, -0.4, -0.3], "replication_baseline": -0.4,
        },
        log_likelihood=-np.abs(np.random.default_rng(seed).normal(0.8, 1.0, (draws, points))),
        deterministic=np.full(points, base),
        accuracies={0: 0.5, **dict.fromkeys(samples, 0.5)},
        findings=(),
        seconds={"total": 1.0},
        provenance={"bnuq": "0"},
    )  # fmt: skip


# ── the curve ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_draws_are_those_of_an_evaluation(run, record):
    result = evaluate(run)
    curve = result.methods["mcbn"].convergence
    assert [row.samples for row in record.rows()] == curve["samples"].tolist() == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose([row.first.value for row in record.rows()], curve["pll"], rtol=1e-6)
    assert [row.accuracy for row in record.rows()] == curve["accuracy"].tolist()
    estimate = result.methods["mcbn"].sets["test"].estimates["pll"]
    last = record.rows()[-1]
    assert (last.first.se, last.first.mc_se) == pytest.approx((estimate.se, estimate.mc_se), rel=1e-4)
    alone = result.methods["deterministic"].sets["test"].estimates
    assert record.baseline.value == pytest.approx(alone["pll"].value, rel=1e-6)
    assert record.accuracies[0] == alone["accuracy"].value


def test_an_interrupted_run_keeps_its_parts_where_it_says(run, record, monkeypatch):
    def stop(*_: object) -> None:
        raise stopping.Terminated

    with monkeypatch.context() as patch, pytest.raises(stopping.Terminated) as stopped:
        patch.setattr("bnuq.records.evaluation_file.write", stop)
        reproduce(run)
    assert f"finished parts are kept in {beside(run.out)}:" in stopped.value.__notes__[0] and any(
        beside(run.out).iterdir()
    )
    np.testing.assert_array_equal(reproduce(run).log_likelihood, record.log_likelihood)
    assert not beside(run.out).exists()


def test_the_mean_over_groups_never_falls_as_draws_are_added(record):
    for each in (record, made_up(64, 20, samples=(1, 2, 4, 8, 16, 32, 64))):
        means = [row.mean.value for row in each.rows()]
        assert means == sorted(means)


def test_a_row_is_the_mean_over_disjoint_groups():
    record = made_up(8, 5, samples=(1, 2, 3, 8))
    by = {row.samples: row for row in record.rows()}
    of_groups = [metrics.pll_from_log_likelihood(record.log_likelihood[k : k + 3]).mean() for k in (0, 3)]
    assert by[3].groups == 2 and by[3].mean.value == pytest.approx(np.mean(of_groups))
    assert by[3].first.value == pytest.approx(of_groups[0])
    assert by[1].mean.value == pytest.approx(record.log_likelihood.mean())
    assert by[8].mean == by[8].first
    assert by[8].gain.value == pytest.approx(by[8].mean.value - record.baseline.value)


def test_errors_are_about_as_large_as_chance_makes_them():
    counts = (1, 2, 4, 8, 16, 32, 64)
    many = [made_up(64, 40, samples=counts, seed=seed).rows() for seed in range(60)]
    # All points share a draw, so that what a draw is worth is common to them.
    for place, count in enumerate(counts):
        rows = [rows[place] for rows in many]
        for pick in (lambda row: row.first, lambda row: row.mean):
            stated = math.sqrt(np.mean([pick(row).mc_se ** 2 for row in rows]))
            assert 0.6 < stated / float(np.std([pick(row).value for row in rows], ddof=1)) < 1.5, count


def test_too_few_draws_and_groups_tell_no_error():
    rows = {row.samples: row for row in made_up(16, 5, samples=(1, 2, 4, 8, 16)).rows()}
    assert rows[4].first.mc_se is None and rows[4].mean.mc_se is None
    assert all(rows[count].first.mc_se is not None for count in (1, 2, 8, 16))


def test_break_even_is_the_first_row_that_reaches_the_network_as_it_is():
    means = [row.mean.value for row in made_up(8, 50, samples=(1, 2, 4, 8)).rows()]
    assert made_up(8, 50, samples=(1, 2, 4, 8), base=means[1]).break_even() == 2
    assert made_up(8, 50, samples=(1, 2, 4, 8), base=means[1] + 1e-9).break_even() == 4
    assert made_up(8, 50, samples=(1, 2, 4, 8), base=0.1).break_even() is None


def test_points_that_belong_together_count_once():
    record = made_up(8, 40, samples=(1, 8))
    paired = replace(
        record,
        log_likelihood=np.repeat(record.log_likelihood, 4, axis=1),
        deterministic=np.repeat(record.deterministic, 4),
        group=np.repeat(np.arange(40), 4),
    )
    assert paired.rows()[-1].first.se == pytest.approx(record.rows()[-1].first.se)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 1}, "--samples is 1; expected a whole number of at least 2"),
        ({"samples": "auto"}, "--samples is auto; expected a whole number"),
        ({"bank": 64}, "sampling.bank gives points different draws"),
    ],
)
def test_what_cannot_be_is_refused(run, changes, message):
    with pytest.raises(RequestError, match=message):
        reproduce(replace(run, **changes))


# ── the file and the report ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_gives_back_the_groups_of_points(record, tmp_path):
    grouped = replace(record, group=np.arange(record.experiment["n"]) // 2)
    codec.write(grouped, tmp_path / "g.h5")
    read_back = read(tmp_path / "g.h5")
    assert read_back.rows() == grouped.rows() and read_back.accuracies == grouped.accuracies


def test_the_file_reads_without_bnuq(record, tmp_path):
    codec.write(record, tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["log_likelihood"].attrs["units"] == "nats"
        assert [axis.keys()[0] for axis in file["log_likelihood"].dims] == ["draw", "point"]
        last = np.logaddexp.reduce(file["log_likelihood"][()], axis=0) - math.log(SAMPLES)
        assert last.mean() == pytest.approx(record.rows()[-1].mean.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.__delitem__("deterministic"), "incomplete or damaged"),
        (lambda file: replace_in_record(file, "augment", "augmented"), "augment: Expected"),
        (lambda file: replace_in_record(file, f'"{SAMPLES}": ', '"5000": '), "its draws or accuracies are missing"),
    ],
)
def test_a_damaged_file_is_refused_in_one_message(record, tmp_path, damage, message):
    path = tmp_path / "p.h5"
    codec.write(record, path)
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=message):
        read(path)


def test_words_follow_the_estimates():
    several = made_up(8, 500, samples=(1, 2, 4, 8))
    means = [row.mean.value for row in several.rows()]
    early = " ".join(rendered(report, replace(several, deterministic=np.full(500, means[0]))).split())
    assert "reaches the deterministic network" in early and "at T = 1; in the published row at T = 2." in early
    assert f"At T = 8 it lies {means[-1] - means[0]:.4f} nats" in early and "above the deterministic network" in early
    never = " ".join(rendered(report, replace(several, deterministic=np.full(500, 0.5))).split())
    assert "at no T up to 8" in never and "below the deterministic network" in never
    assert "training batch 8; the published text says 32, its code 128" in never
    assert "500 test images instead of 10,000" in never


def test_published_values_stand_beside_their_own_row(record):
    rows = [line.split() for line in rendered(report, record).splitlines() if line.startswith(" T = 16")]
    assert rows[-1][-2:] == ["−0.29", "−0.28"]


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_passes_are_of_the_batch_size_of_training_unless_another_is_given(called, tmp_path):
    small_run.write(tmp_path, rate=0.0)
    command = ("pll-over-samples", "run.toml", "-T", "8", "--device", "cpu", "--out", "p.h5")
    code, printed, errors = called(*command, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(printed)["experiment"]["batch_size"] == 16  # that of training
    assert not (tmp_path / "model.bnuq.h5").exists()
    code, printed, _ = called(*command, "-b", "8", "--json")
    assert json.loads(printed)["experiment"]["batch_size"] == 8
    assert noted(read(tmp_path / "p.h5"))[-1] == "result-replaced"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run.toml", "-T", "1"], "--samples is 1; expected a whole number of at least 2."),
        (["run.toml", "-T", "auto"], "--samples is auto; expected a whole number of at least 2."),
        (
            ["run.toml", "--out", "nowhere/p.h5"],
            "--out nowhere/p.h5: its folder does not exist. Make the folder first.",
        ),
        (["run.toml", "--out", "net.py"], "net.py is not a result of bnuq; name another file to write."),
        (["nothing.toml"], "nothing.toml: there is no such run file."),
    ],
)
def test_the_command_refuses_in_one_message(called, tmp_path, arguments, message):
    small_run.write(tmp_path)
    assert called("pll-over-samples", *arguments) == (2, "", f"bnuq: {message}\n")
