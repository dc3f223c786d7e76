"""The whole experiment: it learns, goes on after an interruption as if there had been none, and refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from findings_of import noted
from small_experiments import Finished

from bnuq.errors import BnuqError, RequestError
from bnuq.progress import silent
from experiments.uci import experiment, protocol, selection
from experiments.uci.experiment import Request, reproduce
from experiments.uci.protocol import PAPER, QUICK, SMOKE, Protocol, chosen_sets
from experiments.uci.record import read, summary
from experiments.uci.selection import Choice, estimates_of_run, evaluate, select
from experiments.uci.sets import cross_validation, final, read_set
from experiments.work import run_all

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

CPU = torch.device("cpu")


def chosen(data_root: Path, settings: Protocol, *, name: str = "boston", kind="batchnorm") -> tuple[Choice, ...]:
    material, of, _ = cross_validation(
        read_set(name, data_root),
        splits=range(1, settings.splits + 1),
        number=settings.folds,
        most_rows=settings.most_rows,
    )
    return select(
        kind, 50, material, of, protocol=settings, tau_range=(0.01, 10.0), seed=0, device=CPU, advance=lambda _: None
    )


# ── on the real data ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_boston_with_mini_batches_of_32_gains_by_its_uncertainty(data_pack: Path) -> None:
    settings = replace(
        QUICK, weight_decays=(1e-2,), batch_sizes=(32,), splits=1, seeds=1, folds=2, samples=100, max_epochs=250,
        patience=4,
    )  # fmt: skip
    data = read_set("boston", data_pack)
    choices = chosen(data_pack, settings)
    estimates = evaluate(
        "batchnorm", 50, final(data, splits=[1]), choices, epochs=[choice.epochs for choice in choices],
        protocol=settings, seed=0, device=CPU, advance=lambda _: None,
    )  # fmt: skip
    mean = {name: float(np.mean(values)) for name, values in estimates.items()}
    assert 2 < mean["normalized_crps"] < 20  # 8.5 published, over five splits
    assert 2 < mean["normalized_pll"] < 25
    assert 2.2 < mean["rmse"] < 3.6
    assert 1.2 < mean["mc_sd"] < 2.8
    assert 1.8 < mean["sigma"] < 3.2
    assert mean["spearman"] > 0.1


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_choice_is_of_the_grid_and_its_fits_within_their_ranges(made_up: Path, tiny: Protocol) -> None:
    for choice in chosen(made_up, tiny):
        assert choice.weight_decay in tiny.weight_decays
        assert choice.batch_size in tiny.batch_sizes
        assert choice.epochs in range(5, 21, 5)
        assert 0.01 <= choice.tau <= 10
        assert 0 < choice.rmse < 6
        assert choice.sigma > 0
        assert choice.mc_sd > 0


def test_a_race_that_gives_nobody_up_changes_nothing(made_up: Path, tiny: Protocol) -> None:
    free, wide = (chosen(made_up, replace(tiny, race=race)) for race in (None, 1e9))
    assert [asdict(choice) for choice in free] == [asdict(choice) for choice in wide]


def test_a_race_ends_what_falls_behind_and_patience_what_stands_still(made_up: Path, tiny: Protocol) -> None:
    def rows_trained(settings: Protocol, monkeypatch: pytest.MonkeyPatch) -> int:
        count = 0
        plain = selection.Group.trained

        def counting(self, state, stream, weight_decay, setting, epochs):
            nonlocal count
            count += len(stream) * len(epochs)
            return plain(self, state, stream, weight_decay, setting, epochs)

        monkeypatch.setattr(selection.Group, "trained", counting)
        chosen(made_up, settings)
        monkeypatch.undo()
        return count

    long = replace(tiny, max_epochs=30, interval=2, patience=2, race=None)
    with pytest.MonkeyPatch.context() as patch:
        whole = rows_trained(replace(long, patience=1000), patch)
    with pytest.MonkeyPatch.context() as patch:
        patient = rows_trained(long, patch)
    with pytest.MonkeyPatch.context() as patch:
        raced = rows_trained(replace(long, patience=1000, race=0.0, race_from=2), patch)
    networks = 2 * 2 * 2 * 2  # splits, folds, weight decays, batch sizes
    assert whole == networks * 30
    assert patient < whole
    assert raced < whole


def test_with_the_whole_fold_as_mini_batch_the_passes_agree_and_tau_is_that_of_the_constant(made_up, tiny):
    for choice in chosen(made_up, replace(tiny, batch_sizes=(512,), paper_batches=True)):
        assert choice.batch_size == 512
        assert choice.mc_sd < 0.02 * choice.rmse  # a row may be left over where folds differ by one
        assert abs(choice.tau**-0.5 - choice.sigma) < 0.02 * choice.sigma


def test_batch_sizes_that_are_asked_for_hold_for_every_set() -> None:
    assert (
        QUICK.of("kin8nm", batch_sizes=(128,)).batch_sizes == QUICK.of("wine", batch_sizes=(128,)).batch_sizes == (128,)
    )


def test_batch_sizes_are_held_to_half_a_fold_unless_the_papers_are_asked_for() -> None:
    assert QUICK.of("boston").batches_for(324) == (32, 64, 128)
    assert QUICK.of("boston", paper_batches=True).batches_for(324) == (32, 64, 128, 256, 512)
    assert QUICK.of("energy").batches_for(491)[-1] == 512
    assert QUICK.of("energy", paper_batches=False).batches_for(491)[-1] == 128
    assert PAPER.of("energy").batches_for(491)[-1] == 512  # the authors' own limit
    assert PAPER.of("boston").batches_for(324)[-1] == 1024


def test_a_draw_of_a_mini_batch_takes_no_row_twice_and_none_of_the_padding(made_up: Path) -> None:
    material, of, _ = cross_validation(read_set("boston", made_up), splits=[1], number=3)
    architecture = selection.Architecture("batchnorm", 3, 50)
    group = selection.Group(architecture, material, [(fold, (0, 0, fold)) for fold in range(len(of))], CPU)
    drawn = group.batches(40, 30)
    for fold, batches in enumerate(drawn):
        assert batches.max() < material.rows[fold]
        assert all(len(set(batch)) == 40 for batch in batches.tolist())
    assert len({tuple(batch) for batch in drawn[0].tolist()}) == 30


def test_estimates_of_a_run_agree_with_their_definitions() -> None:
    random = np.random.default_rng(0)
    f, y = random.standard_normal((200, 30)), random.standard_normal(30)
    choice = Choice(1e-3, 32, 0.0, 20, 1.0, 1.0, 0.8, 4.0, "", False)
    of_run = estimates_of_run(f, f[0], y, choice)
    e, sd = y - f.mean(0), np.sqrt(f.var(0) + 0.25)
    assert of_run["rmse"] == pytest.approx(np.sqrt(np.mean(e**2)))
    assert of_run["crps_optimum"] == pytest.approx(0.5949040335669752 * np.abs(e).mean())
    gaussian = -np.log(sd) - np.log(2 * np.pi) / 2 - (e / sd) ** 2 / 2
    constant = -np.log(0.8) - np.log(2 * np.pi) / 2 - (e / 0.8) ** 2 / 2
    optimum = -np.log(2 * np.pi * e**2) / 2 - 0.5
    share = 100 * (gaussian.mean() - constant.mean()) / (optimum.mean() - constant.mean())
    assert of_run["normalized_pll_gaussian"] == pytest.approx(share)
    assert of_run["mc_sd"] == pytest.approx(np.sqrt(f.var(0).mean()))
    assert of_run["noise_sd"] == 0.5
    assert of_run["exact_hits"] == 0
    hit = estimates_of_run(f, f[0], np.where(np.arange(30) == 3, f.mean(0), y), choice)
    assert hit["exact_hits"] == 1
    assert np.isfinite(hit["normalized_pll"])


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def request(made_up: Path, tiny: Protocol, out: Path, **changes) -> Request:
    given = {"protocol": tiny, "sets": ("boston", "yacht"), "out": out, "data_root": made_up, "workers": 1}
    return Request(**given | {"device": "cpu"} | changes)


def estimates(result) -> dict[tuple[str, str, str], list]:
    return {
        (name, method, estimate): values.tolist()
        for name, outcome in result.sets.items()
        for method, runs_of_method in outcome.methods.items()
        for estimate, values in vars(runs_of_method.runs).items()
    }


def test_an_interrupted_run_goes_on_bitwise_as_if_it_had_not_been(made_up, tiny, tmp_path, monkeypatch):
    whole = reproduce(request(made_up, tiny, tmp_path / "whole.h5", sets=("boston",)), progress=silent)
    cut = request(made_up, tiny, tmp_path / "cut.h5", sets=("boston",))
    plain, calls = experiment.evaluate, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(*args, **kwargs)

    monkeypatch.setattr(experiment, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        reproduce(cut, progress=silent)
    assert "the same command resumes" in " ".join(stopped.value.__notes__)
    assert len(list((tmp_path / "cut.h5.work").iterdir())) == 3  # both parts of one job, and the choice of the next
    assert not cut.out.exists()
    monkeypatch.undo()
    resumed = reproduce(cut, progress=silent)
    assert estimates(resumed) == estimates(whole)
    assert resumed.seconds["cpu_before"] > 0
    assert whole.seconds["cpu_before"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("cut")] == ["cut.h5"]


def test_a_part_of_another_seed_or_protocol_or_one_cut_short_does_not_count(made_up, tiny, tmp_path):
    job = experiment.Job(read_set("boston", made_up), "batchnorm", tiny, 0, "cpu", tmp_path)
    job.choices(lambda _: None)
    assert job.cpu_seconds() > 0
    assert replace(job, seed=1).cpu_seconds() == 0
    assert replace(job, protocol=replace(tiny, samples=21)).cpu_seconds() == 0
    path = job.journal.path("choice")
    path.write_bytes(path.read_bytes()[:-20])
    assert job.cpu_seconds() == 0
    again = job.choices(lambda _: None)
    assert job.cpu_seconds() > 0
    assert job.choices(lambda _: pytest.fail("computed")) == again


def test_final_networks_take_as_many_steps_as_capped_cross_validation_chose(made_up: Path, tiny: Protocol) -> None:
    job = experiment.Job(
        read_set("boston", made_up), "batchnorm", replace(tiny, most_rows=40), 0, "cpu", Path("nowhere")
    )
    choice = Choice(1e-3, 8, 0.0, 20, 1.0, 1.0, 1.0, 1.0, "", False)
    assert job.epochs((choice,)) == [5]  # 20 rows of 80
    assert replace(job, protocol=tiny).epochs((choice,)) == [20]


def test_progress_adds_up_to_what_it_promised(made_up: Path, tiny: Protocol, tmp_path: Path) -> None:
    job = experiment.Job(read_set("boston", made_up), "dropout", tiny, 0, "cpu", tmp_path)
    assert job.share >= 1
    steps: list[int] = []
    experiment.work_off(job, steps.append)
    assert sum(steps) == job.share
    again: list[int] = []
    experiment.work_off(job, again.append)  # from its files
    assert sum(again) == job.share


def killed(task: int, advance: Callable[[int], object]) -> None:
    import os
    import signal

    advance(1)
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def refused(task: int, advance: Callable[[int], object]) -> None:  # noqa: ARG001 - a Work
    raise RequestError(f"task {task} cannot be done.")


@pytest.mark.nightly  # two processes that import torch for each
@pytest.mark.parametrize(
    ("work", "error", "message"), [(killed, BnuqError, "exit code -9"), (refused, RequestError, "cannot be done")]
)
def test_a_process_that_is_killed_and_a_task_that_fails_are_told(work, error, message) -> None:
    with pytest.raises(error, match=message):
        run_all([0, 1], work, workers=2, advance=lambda _: None)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_writes_its_page_and_says_what_it_replaces(ran: Callable[[str], Finished]) -> None:
    finished = ran("uci")
    assert "| boston MCBN |" in (finished.folder / "page.md").read_text()
    record = read(finished.path)
    assert summary(record)["sets"]["boston"]["methods"]["mcbn"]["crps"]["published"] == 8.5
    assert noted(record) == ["result-replaced"]


def test_an_interrupted_command_says_that_it_goes_on(called, made_up, tiny, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(protocol, "SMOKE", tiny)
    monkeypatch.setattr(experiment, "evaluate", interrupted)
    out = tmp_path / "out.h5"
    code, printed, said = called(
        "uci", "--sets", "smoke", "--data-root", made_up, "--out", out, "--workers", "1", "--device", "cpu"
    )
    assert (code, printed) == (130, "")
    assert f"finished parts are kept in {out}.work: the same command resumes" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sets", "boston,mars"], "there is no set mars"),
        (["--sets", "smoke,boston"], "a small run of its own"),
        (["--sets", "smoke", "--protocol", "paper"], "a small run of its own"),
        (["--protocol", "slow"], "expected quick or paper"),
        (["--method", "mcbn,svi"], "there is no method svi; expected some of mcbn, mcdo, mnf, vi."),
        (["--workers", "0"], "--workers is 0"),
        (["--batch-sizes", "32,few"], "--batch-sizes is 32,few"),
        (["--batch-sizes", "1"], "--batch-sizes is 1"),
        (["--seed", "-1"], "--seed is -1"),
        (["--device", "mps"], "--device is mps; expected auto, cpu"),
        (["--sets", "wine", "--data-root", "nowhere"], "uci-wine: not found. Looked at"),
        (["--markdown", "nowhere/page.md"], "its folder does not exist"),
        (["--sets", "boston", "--out", "nowhere/out.h5"], "its folder does not exist"),
        (["--sets", "boston", "--work", "nowhere/else"], "cannot be made"),
        (["--protocol", "smoke"], "expected quick or paper"),
        (["--out", "a.h5", "--markdown", "a.h5"], "is the result file too; name another"),
        (["--markdown", "data/uci/boston/data.csv"], "is not a report written by bnuq"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(called, made_up, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, printed, message = called("uci", "--data-root", made_up, *arguments)
    assert (code, printed) == (2, "")
    assert message.startswith("bnuq: ")
    assert said in message


def test_the_default_sets_are_the_quick_five_and_names_may_have_their_prefix() -> None:
    assert chosen_sets([], "quick") == (QUICK, ("boston", "yacht", "energy", "concrete", "wine"))
    assert chosen_sets(["uci-boston", "Yacht", "boston"], "paper") == (PAPER, ("boston", "yacht"))
    assert chosen_sets(["smoke"], "quick") == (SMOKE, ("boston", "yacht"))
    assert len(chosen_sets(["all"], "quick")[1]) == 8
