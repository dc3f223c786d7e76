"""Several processes compute the units of a run, are killed, and the result is bitwise that of one process."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_regression
import small_run
import torch
from disturbed import SMALL, assert_same, computing_nothing, evaluated, figures, soak
from findings_of import noted
from making_units import FACTS, arrays_of, computed, unit

from bnuq import stopping
from bnuq.cli.main import main
from bnuq.config import Options, resolve, resolve_all, resolve_sweep
from bnuq.errors import DataError, RequestError, ResultError, SamplingError
from bnuq.evaluation.executors import Share, Worker
from bnuq.evaluation.setup import threads
from bnuq.evaluation.units import WorkUnit
from bnuq.files.journal import Journal, WorkFolder, beside, keeping, requests_at, secret_for, work_folder
from bnuq.files.places import place_of
from bnuq.progress import Advance, silent
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.sampling.engine import Stochastic
from bnuq.studies.sweep.compute import sweep
from bnuq.studies.sweep.sizes import _AllSizes
from bnuq.workflows import on_ray
from bnuq.workflows.evaluate import compute, evaluate
from bnuq.workflows.multirun import evaluate_several
from bnuq.workflows.processes import Job, Processes, forgive

pytestmark = [pytest.mark.held(False), pytest.mark.less(False)]  # other processes do all the work
# A unit holds something else in each task, whoever computes it.
KINDS = [pytest.param(kind, marks=pytest.mark.nightly) for kind in SMALL if kind != "classification"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the small network of a kind with its result one.h5, made once."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def of(kind: str) -> Path:
        make, options = SMALL[kind]
        make(folder / kind)
        with threads(1):
            evaluated(folder / kind, "one.h5", **options)
        return folder / kind

    return of


@pytest.mark.parametrize("kind", KINDS)  # classification as one of several runs, below
def test_two_processes_give_the_figures_of_one(made: Callable[[str], Path], kind: str) -> None:
    folder = made(kind)
    one = read(folder / "one.h5")
    with computing_nothing(), threads(2):
        two = evaluated(folder, "two.h5", on="local:2", **SMALL[kind][1])
    assert_same(figures(two), figures(one))
    assert one.provenance["threads"] == two.provenance["threads"] == "1"
    assert len(one.units) > 10 and not (folder / "two.h5.work").exists()


@pytest.mark.nightly  # the queue below computes units of any kind
def test_a_sweep_in_another_process_is_that_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run.write(tmp_path)
    found = []
    for name, on in (("one.h5", "local"), ("two.h5", "local:1")):
        options = Options(samples=4, out=tmp_path / name, chunk_size=20, on=on)
        asked = {"batch_sizes": (8, 16), "draw_sets": 2}
        runs, settings = resolve_sweep(("run.toml",), options, asked, folder=tmp_path)
        with monkeypatch.context() as patch:
            if on != "local":
                patch.setattr(_AllSizes, "_blocks", None)  # others have to compute
            found.append(sweep(runs, settings, out=tmp_path / name))
    one, two = ([vars(point) for point in record.points] for record in found)
    assert_same(dict(enumerate(two)), dict(enumerate(one)))


def bnuq(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    assert left.value.code == code


# ── what is lost ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly  # five jobs of processes that die; a worker takes what the dead have left below
def test_a_unit_that_ends_every_process_is_named_and_processes_go_on_to_all_others_and_to_the_next_job(tmp_path):
    kinds = ("good", "kill", "good", "raise", "good")
    all_kinds = kinds, ("good", "refuse"), ("good", "last", "good"), ("good", "long"), ("good", "good")
    places = [tmp_path / str(number) for number in range(len(all_kinds))]
    jobs = [Job(computed, (each,), str(place), "cpu") for each, place in zip(all_kinds, places, strict=True)]
    places[0].mkdir()
    journal = Journal(places[0], FACTS)
    for number in range(2):
        journal.begin(unit(1).name, number, {"by": "another", "machine": "another", "process": 1, "why": "lost"})
    with Processes(jobs, 1) as processes:
        with pytest.raises(ResultError) as refused, processes.turn(0) as turn:
            turn.wait(silent, 0)
        with pytest.raises(SamplingError, match="these samples cannot be"), processes.turn(1) as turn:
            turn.wait(silent, 0)
        gone = pytest.raises(ResultError, match=r"could not be written: its folder does not exist\. Make the folder")
        with gone, processes.turn(2) as turn:
            turn.wait(silent, 0)
        with pytest.raises(DataError), processes.turn(3):  # this process refuses what the other is at
            while not Journal(places[3], FACTS).attempts(unit(1).name):
                time.sleep(0.01)
            raise DataError
        with processes.turn(4) as turn:
            turn.wait(silent, 0)
    names = [{unit(number).name for number in range(2) if Journal(p, FACTS).has(unit(number).name)} for p in places]
    assert [len(of_place) for of_place in names[1:]] == [1, 0, 1, 2]
    message = str(refused.value)
    assert message.startswith("2 units of work could not be computed, after 3 attempts each:")
    assert "mcbn on examples 10 to 19 of test: tried 3 times" in message and "SIGKILL" in message
    assert "mcbn on examples 30 to 39 of test" in message and "ValueError: no such luck" in message
    for number, kind in enumerate(kinds):
        found = journal.load(unit(number).name, unit(number).sha256)
        assert (found is None) == (kind in ("kill", "raise"))
        if found is not None:
            assert_same(found["point/score"], arrays_of(unit(number))["point/score"])
    assert {len(journal.attempts(unit(number).name)) for number in (1, 3)} == {3}
    assert not any(journal.attempts(unit(number).name) for number in (0, 2, 4))
    journal.begin(unit(0).name, 0, {"by": "another", "machine": "another", "process": 1})
    forgive(journal.place)  # as the next command does
    assert not any(journal.attempts(unit(number).name) for number in (1, 3)) and journal.attempts(unit(0).name)


@pytest.mark.nightly
def test_several_runs_are_one_queue_and_each_is_that_of_its_own(made: Callable[[str], Path]) -> None:
    folder, (_, options) = made("classification"), SMALL["classification"]
    (folder / "runs.toml").write_text((folder / "run.toml").read_text() + "\n[runs]\nseed = [0, 1]\n")
    runs = resolve_all(("runs.toml",), Options(on="local:1", **options), folder=folder)
    assert runs is not None
    with computing_nothing(), threads(1):
        evaluate_several(runs)
    one, *others = (figures(read(each.run.out)) for each in runs.all)
    assert_same(one, figures(read(folder / "one.h5")))
    assert len(others) == 1 and not [*folder.glob("*.work")]


@pytest.mark.nightly  # a worker takes and leaves units of others below
def test_another_process_that_makes_the_same_result_meanwhile_changes_nothing(tmp_path: Path) -> None:
    small_run.write(tmp_path)
    # without a cross-fit, whose raw samples are read again
    options: dict[str, Any] = {"chunk_size": 10, "methods": ("mcbn",), "samples": 4, "ood": (), "calibrate": "off"}
    expected, titles = figures(evaluated(tmp_path, "one.h5", **options)), list[str]()

    def meddling(title: str, total: int) -> AbstractContextManager[Advance]:
        titles.append(title)
        if "deterministic" in title and len(titles) < 10:  # half of the units are finished
            titles.extend([""] * 10)
            assert_same(figures(evaluated(tmp_path, "same.h5", **options))["methods"], expected["methods"])
            assert not (tmp_path / "same.h5.work").exists()
        return silent(title, total)

    evaluate(resolve("run.toml", Options(out=tmp_path / "same.h5", **options), folder=tmp_path), progress=meddling)
    assert_same(figures(read(tmp_path / "same.h5")), expected)
    assert len(titles) > 10 and not (tmp_path / "same.h5.work").exists()


@pytest.mark.nightly  # sampling/test_engine.py
def test_memory_that_runs_out_in_a_worker_halves_the_chunk_inside_the_unit(tmp_path, monkeypatch):
    small_run.write(tmp_path)
    options: dict[str, Any] = {"methods": ("mcbn",), "samples": 4, "ood": ()}
    run = resolve("run.toml", Options(out=tmp_path / "one.h5", **options), folder=tmp_path)
    plain, sizes = Stochastic.passes, set[int]()

    def passes(self: Stochastic, inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(inputs) > 16:
            raise MemoryError
        sizes.add(len(inputs))
        return plain(self, inputs, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Stochastic, "passes", passes)
        make = partial(Worker, share=Share(0, 1, "alone"))
        [worker] = compute(run, secret_for(run.out, None)[0], place_of(beside(run.out)), make)
    assert not worker.lost and sizes and max(sizes) <= 16
    with computing_nothing():
        found = evaluate(run)
    expected = evaluated(tmp_path, "two.h5", **options).methods["mcbn"].sets["test"].estimates
    for name, value in found.methods["mcbn"].sets["test"].estimates.items():
        assert value.value == pytest.approx(expected[name].value, rel=1e-4, nan_ok=True)


def test_a_worker_takes_what_the_dead_have_left_and_in_the_end_what_nobody_finishes(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FACTS)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    others = {
        0: {"by": "a", "machine": platform.node(), "process": int(dead.stdout)},
        1: {"by": "b", "machine": "another", "process": 1},
        2: {"by": "me", "machine": "another", "process": 1},
    }
    for number, who in others.items():
        journal.begin(unit(number).name, 0, who)
    done: list[int] = []
    share = Share(0, 2, "me", patience=0.3)

    def worker(journal: Journal) -> Worker:
        return Worker(journal, share, on_unit=lambda unit: done.append(unit.points.start // 10))

    [first] = computed(("good",) * 4, journal.place, worker)
    assert done == [0, 2, 3] and not first.lost  # another machine may still be at it
    assert journal.attempts(unit(1).name) and not journal.attempts(unit(0).name)
    groups = [(unit(number),) for number in range(4)]
    found = list(worker(journal).run(groups, lambda group: map(arrays_of, group)))
    assert done == [0, 2, 3, 1] and len(found) == 4


def test_a_worker_waits_for_what_another_finishes(tmp_path: Path) -> None:
    journal, done = Journal(tmp_path, FACTS), list[int]()
    journal.begin(unit(1).name, 0, {"by": "b", "machine": "another", "process": 1})

    def on_unit(of: WorkUnit) -> None:
        done.append(of.points.start // 10)
        if len(done) == 2:  # all others
            threading.Timer(0.2, lambda: journal.save(unit(1).name, arrays_of(unit(1)), unit(1).sha256)).start()

    groups = [(unit(number),) for number in range(3)]
    worker = Worker(Journal(tmp_path, FACTS), Share(0, 2, "me"), on_unit)
    assert len(list(worker.run(groups, lambda group: map(arrays_of, group)))) == 3 and done == [0, 2]


def test_of_two_requests_for_one_result_that_start_at_once_one_is_refused(tmp_path: Path) -> None:
    about = {"out": "a.h5", "run": {"sampling": {"seed": 0}}}
    first, second = (WorkFolder(place_of(tmp_path)) for _ in range(2))
    kept = first.journal(FACTS, about)
    with pytest.raises(RequestError, match=r"another request for a.h5: its sampling.seed is 0, and here 1\."):
        second.journal({"other": 1}, about | {"run": {"sampling": {"seed": 1}}})
    assert [*requests_at(first.place)] == [kept.key]
    kept.retract()  # as a run that fails before any unit
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ResultError), work_folder(tmp_path / "a.h5", tmp_path / "work") as work:
        work.journal(FACTS, about)
        raise ResultError("no such network")
    assert not [*(tmp_path / "work").iterdir()]


def test_the_silence_of_ray_has_an_end_and_units_that_appear_are_a_sign_of_life(tmp_path, monkeypatch):
    """A Ray whose tasks never end, as after the death of its raylet, and a clock that jumps with each wait for them."""
    clock = 0.0

    def wait(tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:  # noqa: ARG001 - Ray's
        nonlocal clock
        clock += 600
        if clock <= 3000:
            Journal(tmp_path, FACTS).save(f"unit{clock}", {})
        return [], tasks

    remote = SimpleNamespace(remote=lambda *_: SimpleNamespace(work=SimpleNamespace(remote=lambda *_: object())))
    ray = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 2.0}, wait=wait, kill=lambda _: None,
        remote=lambda _: SimpleNamespace(options=lambda **_: remote),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray, "time", SimpleNamespace(monotonic=lambda: clock))
    job = Job(computed, ((),), str(tmp_path), "cpu")
    with (
        pytest.raises(ResultError, match=r"for 30 minutes; Ray, or a node .* repeat the command\.") as ended,
        keeping(place_of(tmp_path)),
        on_ray.Actors([job]) as actors,
    ):
        actors.wait(0, silent, 0)
    assert clock == 3000 + 1800 + 600
    assert "the same command resumes from them" in ended.value.__notes__[0]


@pytest.mark.nightly
def test_killed_processes_change_nothing(tmp_path: Path) -> None:
    _, killed = soak(tmp_path, 4, samples=8, most=2)
    assert killed


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_signal_waits_for_the_work_in_hand_but_not_long_and_a_second_does_not(monkeypatch) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), stopping.on_signals(), stopping.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        stopping.check()
        done.append("first")
    with pytest.raises(stopping.Terminated), stopping.on_signals(), stopping.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("second")
    monkeypatch.setattr(stopping, "_LONGEST", 0)  # beside a second of patience
    with pytest.raises(stopping.Terminated), stopping.on_signals(), stopping.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        done.append("long")
    assert done == ["first"]


STOPPED: dict[str, Any] = {"methods": ("mcdo",), "samples": 64, "chunk_size": 1, "limit": 24, "ood": ()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("undisturbed")
    small_regression.write(folder)
    with threads(1):
        return evaluated(folder, "one.h5", **STOPPED)


@pytest.mark.nightly  # cli/test_cli_processes.py holds a signal, and the queue above a process beside this one
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_ends_all_processes_and_the_run_goes_on_from_their_units(
    workers: int, undisturbed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(written_to_be_stopped(tmp_path))
    stopper = threading.Thread(target=lambda: after_three_units(tmp_path) or os.kill(os.getpid(), signal.SIGTERM))
    with threads(workers):
        stopper.start()
        bnuq(*STOPPED_COMMAND, "--on", f"local:{workers}", code=143)
    stopper.join()
    kept = f"finished parts are kept in {tmp_path / 'two.h5.work'}: the same command resumes from them."
    assert capfd.readouterr().err.endswith(f"bnuq: terminated; {kept}\n")
    assert [*tmp_path.glob("two.h5.work/*.part")] and not [*tmp_path.glob("two.h5.work/*.try*")]
    check_resumed(tmp_path, undisturbed)


@pytest.mark.nightly  # the signal above ends processes too, and the dead's units are taken below
def test_a_run_that_is_killed_goes_on_from_the_units_of_its_processes(undisturbed: Result, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bnuq", *STOPPED_COMMAND, "--on", "local:1"]
    child = subprocess.Popen(command, cwd=written_to_be_stopped(tmp_path), env=environment, stderr=subprocess.PIPE)
    after_three_units(tmp_path, child)
    child.kill()
    child.communicate(timeout=60)
    check_resumed(tmp_path, undisturbed)


STOPPED_OPTIONS = ["--method", "mcdo", "-T", "64", "--chunk-size", "1", "--limit", "24", "--quiet"]
STOPPED_COMMAND = ["evaluate", "run.toml", *STOPPED_OPTIONS, "--out", "two.h5"]


def written_to_be_stopped(folder: Path) -> Path:
    path = small_regression.write(folder)
    path.write_text(path.read_text().replace('["far.npz"]', "[]"))
    return folder


def after_three_units(folder: Path, child: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + 60
    while len([*folder.glob("two.h5.work/*mc*.part")]) < 3:
        assert (child is None or child.poll() is None) and time.monotonic() < deadline
        time.sleep(0.01)


def check_resumed(folder: Path, undisturbed: Result) -> None:
    assert not (folder / "two.h5").exists()
    with threads(1):
        two = evaluated(folder, "two.h5", **STOPPED)
    assert "evaluation-continued" in noted(two)
    assert_same(figures(two)["methods"], figures(undisturbed)["methods"])
