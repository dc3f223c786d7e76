"""PLL against the number of passes: what the curve is, its errors, its file, report and picture."""

from __future__ import annotations

import io
import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_run

from bnuq import metrics
from bnuq.config import Options, Run, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.report.render import draw_pictures, print_record
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.__main__ import main
from experiments.pll_over_samples import PllOverSamples, report, reproduce, summary

SAMPLES = 32


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    path = small_run.write(folder, rate=0.0)
    return resolve(str(path), Options(samples=SAMPLES, out=folder / "r.h5", device="cpu"), folder=folder)


@pytest.fixture(scope="module")
def found(run: Run) -> PllOverSamples:
    return reproduce(run)


def read(path: Path) -> PllOverSamples:
    return codec.read(PllOverSamples, path, summary=summary)


def made_up(draws: int, points: int, *, samples: tuple[int, ...], seed: int = 0, base: float = -1.0) -> PllOverSamples:
    """A record of log-likelihoods out of a generator, for laws of the curve."""
    random = np.random.default_rng(seed)
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
        log_likelihood=-np.abs(random.normal(0.8, 1.0, (draws, points))),
        deterministic=np.full(points, base),
        accuracies={0: 0.5, **dict.fromkeys(samples, 0.5)},
        findings=(),
        seconds={"total": 1.0},
        provenance={"bnuq": "0"},
    )  # fmt: skip


def drawn(found: PllOverSamples, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_record(report, found, stream, width=width)
    stream.flush()
    return raw.getvalue().decode(encoding)


# ── the curve ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_draws_are_those_of_an_evaluation(run, found):
    result = evaluate(run)
    curve = result.methods["mcbn"].convergence
    assert [row.samples for row in found.rows()] == curve["samples"].tolist() == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose([row.first.value for row in found.rows()], curve["pll"], rtol=1e-6)
    assert [row.accuracy for row in found.rows()] == curve["accuracy"].tolist()
    estimate = result.methods["mcbn"].sets["test"].estimates["pll"]
    last = found.rows()[-1]
    assert (last.first.se, last.first.mc_se) == pytest.approx((estimate.se, estimate.mc_se), rel=1e-4)
    alone = result.methods["deterministic"].sets["test"].estimates
    assert found.baseline.value == pytest.approx(alone["pll"].value, rel=1e-6)
    assert found.accuracies[0] == alone["accuracy"].value


def test_the_mean_over_groups_never_falls_as_draws_are_added(found):
    for one in (found, made_up(64, 20, samples=(1, 2, 4, 8, 16, 32, 64))):
        means = [row.mean.value for row in one.rows()]
        assert means == sorted(means)


def test_a_row_is_the_mean_over_disjoint_groups():
    found = made_up(8, 5, samples=(1, 2, 3, 8))
    by = {row.samples: row for row in found.rows()}
    of_groups = [metrics.pll_from_log_likelihood(found.log_likelihood[k : k + 3]).mean() for k in (0, 3)]
    assert by[3].groups == 2 and by[3].mean.value == pytest.approx(np.mean(of_groups))
    assert by[3].first.value == pytest.approx(of_groups[0])
    assert by[1].mean.value == pytest.approx(found.log_likelihood.mean())
    assert by[8].mean == by[8].first
    assert by[8].gain.value == pytest.approx(by[8].mean.value - found.baseline.value)


def test_errors_are_about_as_large_as_chance_makes_them():
    counts = (1, 2, 4, 8, 16, 32, 64)
    many = [made_up(64, 40, samples=counts, seed=seed).rows() for seed in range(60)]
    # All points share a draw, so that what a draw is worth is common to them.
    for place, count in enumerate(counts):
        rows = [rows[place] for rows in many]
        for pick in (lambda row: row.first, lambda row: row.mean):
            told = math.sqrt(np.mean([pick(row).mc_se ** 2 for row in rows]))
            spread = float(np.std([pick(row).value for row in rows], ddof=1))
            assert 0.6 < told / spread < 1.5, count


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
    found = made_up(8, 40, samples=(1, 8))
    paired = replace(
        found,
        log_likelihood=np.repeat(found.log_likelihood, 4, axis=1),
        deterministic=np.repeat(found.deterministic, 4),
        group=np.repeat(np.arange(40), 4),
    )
    assert paired.rows()[-1].first.se == pytest.approx(found.rows()[-1].first.se)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 1}, "--samples is 1; expected a whole number of at least 2"),
        ({"samples": "auto"}, "--samples is auto; expected a whole number"),
        ({"bank": 64}, "sampling.bank gives points different draws"),
    ],
)
def test_what_cannot_be_is_refused(run, changes, said):
    with pytest.raises(RequestError, match=said):
        reproduce(replace(run, **changes))


# ── the file and the report ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_gives_back_the_record(found, tmp_path):
    codec.write(found, tmp_path / "p.h5")
    again = read(tmp_path / "p.h5")
    assert again.rows() == found.rows() and again.accuracies == found.accuracies
    np.testing.assert_array_equal(again.log_likelihood, found.log_likelihood)
    told = json.loads(json.dumps(summary(again), allow_nan=False))
    assert told == json.loads(json.dumps(summary(replace(found, path=tmp_path / "p.h5"))))
    grouped = replace(found, group=np.arange(found.experiment["n"]) // 2)
    codec.write(grouped, tmp_path / "g.h5")
    assert read(tmp_path / "g.h5").rows() == grouped.rows()


def test_the_file_reads_without_bnuq(found, tmp_path):
    codec.write(found, tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["log_likelihood"].attrs["units"] == "nats"
        assert [axis.keys()[0] for axis in file["log_likelihood"].dims] == ["draw", "point"]
        last = np.logaddexp.reduce(file["log_likelihood"][()], axis=0) - math.log(SAMPLES)
        assert last.mean() == pytest.approx(found.rows()[-1].mean.value)


def changed(file: h5py.File, old: str, new: str) -> None:
    """The record's text with `new` in the place of `old`."""
    text = file["record"].asstr()[()]
    assert old in text
    del file["record"]
    file["record"] = text.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.attrs.__setitem__("format", 99), "in format 99"),
        (lambda file: file.attrs.__setitem__("kind", "toy"), "is not a result file of bnuq experiments pll-over"),
        (lambda file: file.__delitem__("deterministic"), "incomplete or damaged"),
        (lambda file: file.__delitem__("record"), "incomplete or damaged"),
        (lambda file: changed(file, "augment", "augmented"), "augment: Expected"),
        (lambda file: changed(file, f'"{SAMPLES}": ', '"5000": '), "its draws or accuracies are missing"),
    ],
)
def test_a_damaged_file_is_refused_in_one_message(found, tmp_path, damage, said):
    path = tmp_path / "p.h5"
    codec.write(found, path)
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=said):
        read(path)


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_report_fits_every_width_in_either_encoding(found, width, encoding):
    report = drawn(found, width=width, encoding=encoding)
    assert all(len(line) <= width and line == line.rstrip() for line in report.splitlines())
    assert "?" not in report
    last = f"{abs(found.rows()[-1].mean.value):.4f}"
    assert last in report


def test_words_follow_the_estimates():
    several = made_up(8, 500, samples=(1, 2, 4, 8))
    means = [row.mean.value for row in several.rows()]
    early = " ".join(drawn(replace(several, deterministic=np.full(500, means[0]))).split())
    assert "reaches the deterministic network" in early and "at T = 1; in the published row at T = 2." in early
    assert f"At T = 8 it lies {means[-1] - means[0]:.4f} nats" in early and "above the deterministic network" in early
    never = " ".join(drawn(replace(several, deterministic=np.full(500, 0.5))).split())
    assert "at no T up to 8" in never and "below the deterministic network" in never
    assert "training batch 8; the published text says 32, its code 128" in never
    assert "500 test images instead of 10,000" in never


def test_published_values_stand_beside_their_own_row(found):
    rows = [line.split() for line in drawn(found).splitlines() if line.startswith(" T = 16")]
    assert rows[-1][-2:] == ["−0.29", "−0.28"]


def test_the_picture_is_the_same_bytes_again(found, tmp_path):
    pytest.importorskip("matplotlib")
    [path] = draw_pictures(report(found), tmp_path)
    first = path.read_bytes()
    [path] = draw_pictures(report(found), tmp_path)
    assert first == path.read_bytes()
    assert b"<svg" in first


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., tuple[object, str, str]]]:
    """`bnuq` with these arguments, in a folder with a small run: exit code, standard output, standard error."""
    small_run.write(tmp_path, rate=0.0)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as leave:
            main([*arguments])
        said = capsys.readouterr()
        return leave.value.code, said.out, said.err

    yield call
    signal.signal(signal.SIGTERM, before)


def test_the_command_writes_what_it_prints_and_report_shows_it_again(called, tmp_path):
    pytest.importorskip("matplotlib")
    command = ("pll-over-samples", "run.toml", "-T", "16", "--device", "cpu", "--out", "p.h5")
    code, out, err = called(*command, "--json", "--figures", "pictures")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told == summary(read(tmp_path / "p.h5"))
    assert told["experiment"]["batch_size"] == 16  # that of training
    assert [row["samples"] for row in told["rows"]] == [1, 2, 4, 8, 16]
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"pll-over-samples.svg", "pll-over-samples.png"}
    assert not (tmp_path / "model.bnuq.h5").exists()
    code, out, err = called("report", "p.h5", "--figures", "again")
    assert (code, err) == (0, "") and "bnuq experiments pll-over-samples" in out
    assert (tmp_path / "again" / "pll-over-samples.svg").is_file()
    code, out, _ = called(*command, "-b", "8")
    assert code == 0 and "mini-batches of 8 from train.npz" in out and "an earlier result was replaced: p.h5" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run.toml", "-T", "1"], "--samples is 1; expected a whole number of at least 2."),
        (
            ["run.toml", "--out", "nowhere/p.h5"],
            "--out nowhere/p.h5: its folder does not exist. Make the folder first.",
        ),
        (["run.toml", "--out", "net.py"], "net.py is not a result of bnuq; name another file to write."),
        (["nothing.toml"], "nothing.toml: there is no such run file."),
    ],
)
def test_the_command_refuses_in_one_message(called, arguments, said):
    assert called("pll-over-samples", *arguments) == (2, "", f"bnuq: {said}\n")
