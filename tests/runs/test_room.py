"""What does not fit into memory or on the disk is refused before anything is drawn, with the number that would fit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_run

from bnuq.config import Options, resolve_all, resolve_sweep
from bnuq.data import load_points
from bnuq.errors import BnuqError, DataError, RequestError
from bnuq.evaluation import draws, memory, resources
from bnuq.studies.sweep.compute import sweep

BILLION = 10**9


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The tiny network on a machine with 1 GB of memory and 10 GB of disk, where nothing is to be drawn."""
    small_run.write(tmp_path)
    monkeypatch.setattr(memory, "available", lambda _: BILLION)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * BILLION))
    monkeypatch.setattr(draws, "mini_batches", lambda *_, **__: pytest.fail("mini-batches were drawn"))
    return tmp_path


def refusal(folder: Path, **options: object) -> str:
    """Of a run without the reference check, which draws 24 mini-batches."""
    before = sorted(folder.iterdir())
    with pytest.raises(BnuqError) as caught:
        small_run.evaluated(folder, **options)
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before
    return str(caught.value)


def most(message: str) -> int:
    match = re.search(r"At most ([\d,]+)", message)
    assert match is not None, message
    return int(match[1].replace(",", ""))


@pytest.mark.parametrize(
    ("option", "limits"),
    [
        ("--samples", {"samples": BILLION}),
        ("--samples", {"samples": BILLION, "methods": ("mcdo",)}),
        ("--bank", {"bank": BILLION}),
        ("--max-samples", {"samples": "auto", "max_samples": BILLION}),
    ],
)
def test_draws_beyond_memory_are_refused_with_the_number_that_fits(folder, option, limits):
    message = refusal(folder, **limits)
    assert re.match(
        rf"{option} is 1000000000: draws and scores would take about .* GB of memory, and 1 GB are", message
    )
    key = option.removeprefix("--").replace("-", "_")
    fits = most(message)
    assert 1000 < fits < 10_000
    assert most(refusal(folder, **limits | {key: fits + 1})) == fits


def test_the_number_that_fits_is_evaluated(tmp_path, monkeypatch):
    small_run.write(tmp_path)
    monkeypatch.setattr(memory, "available", lambda _: 4_000_000)
    monkeypatch.setattr(resources, "_ALWAYS_ALLOWED_BYTES", 0)
    fits = most(refusal(tmp_path, samples=BILLION, methods=("mcdo",)))
    assert small_run.evaluated(tmp_path, samples=fits, methods=("mcdo",)).sampling["samples"] == fits


def test_raw_samples_beyond_the_disk_are_refused(folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    message = refusal(folder, samples=1000, save_samples=True, methods=("mcbn",))
    each = 2 * 4 * small_run.CLASSES * (small_run.TEST + small_run.OTHER)  # aside, and in the file; float32
    assert f"the raw samples would take about 2.6 MB of disk ({folder}), and 1 MB are free." in message
    assert most(message) == 1_000_000 // each
    assert "--max-samples is 4096: the raw samples" in refusal(folder, samples="auto", max_samples=4096)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    assert (
        small_run.evaluated(folder, samples="auto", mc_error=0.9, methods=("mcdo",), ood=()).sampling["samples"] == 16
    )  # 1024 were not needed


def test_sets_that_leave_no_room_for_two_draws_are_told_so(folder, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 100_000)
    monkeypatch.setattr(resources, "_ALWAYS_ALLOWED_BYTES", 0)
    assert "Not even 2 fit: take fewer sets" in refusal(folder, samples=64)


def test_the_replicates_of_every_ood_sets_estimates_are_counted(tmp_path, monkeypatch):
    small_run.write(tmp_path)
    names = [f"other{number}.npz" for number in range(8)]
    for name in names:
        np.savez(tmp_path / name, x=np.random.default_rng(0).normal(size=(3, 1, 6, 6)).astype(np.float32))
    (tmp_path / "many.toml").write_text(small_run.RUN.replace('["other.npz"]', str(names).replace("'", '"')))
    needs, count = [], resources._memory
    monkeypatch.setattr(resources, "_memory", lambda *of, **numbers: needs.append(count(*of, **numbers)) or needs[-1])
    few, many = (
        small_run.evaluated(
            tmp_path, run_file=name, samples=32, methods=("mcbn",), post_hoc=False, out=tmp_path / f"{name}.h5"
        )
        for name in ("run.toml", "many.toml")
    )

    def replicates(result) -> int:
        estimates = [
            estimate
            for method in result.methods.values()
            for of_set in (
                *(part.estimates for part in method.sets.values()),
                *(f for s in method.ood.values() for f in s.values()),
            )
            for estimate in of_set.values()
        ]
        return sum(f.jackknife.nbytes + f.bootstrap.nbytes for f in estimates if f.jackknife is not None)

    assert max(needs) - min(needs) > replicates(many) - replicates(few) > 50_000


@pytest.mark.parametrize("asked", ["samples", "draw_sets"])
def test_a_sweep_beyond_memory_is_refused_and_leaves_no_folder(folder, asked):
    options, settings = Options(samples=4), {"draw_sets": 2, "batch_sizes": (8, 16)}
    if asked == "samples":
        options = Options(samples=BILLION)
    else:
        settings["draw_sets"] = BILLION
    runs, section = resolve_sweep(["run.toml"], options, settings, folder=folder)
    with pytest.raises(RequestError, match=rf"--{asked.replace('_', '-')} is 1000000000: .* of 2 sizes would take"):
        sweep(runs, section)
    assert not list(folder.glob("*.work"))


def test_mini_batches_beyond_memory_are_refused_wherever_they_are_drawn(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: BILLION)
    resources.check_memory_of_draws(1000, (), 128, title="Drawing")
    with pytest.raises(
        BnuqError, match=r"Drawing: that takes about 2000 GB of memory, and 1 GB are free. At most 488,"
    ):
        resources.check_memory_of_draws(BILLION, (), 128, title="Drawing")


def test_a_million_runs_are_refused_before_one_is_resolved(tmp_path):
    small_run.write(tmp_path)
    numbers = list(range(1000))
    text = small_run.RUN.replace("test.npz", "test{split}.npz") + f"[runs]\nsplit = {numbers}\nseed = {numbers}\n"
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(RequestError, match="requests 1,000,000 runs; expected at most 100,000"):
        resolve_all(("run.toml",), Options(), folder=tmp_path)


ENDLESS = """import itertools
import numpy as np
def batches(): return itertools.repeat((np.zeros((100, 50)), np.zeros(100)))
def numbers():
    while True: yield np.zeros(3)
"""


@pytest.mark.parametrize("factory", ["batches", "numbers"])
def test_data_that_never_end_are_cut_off_with_the_points_that_were_read(tmp_path, factory):
    (tmp_path / "sets.py").write_text(ENDLESS)
    with pytest.raises(
        DataError, match=rf"sets.py:{factory}: has given [\d,]+ examples .* does not end within the free memory"
    ) as error:
        load_points(f"sets.py:{factory}", base=tmp_path, free_bytes=10_000_000)
    assert ("12,200 examples" in str(error.value)) == (factory == "batches")
    (tmp_path / "sets.py").write_text(ENDLESS.replace("while True", "for _ in range(50)"))
    assert len(load_points("sets.py:numbers", base=tmp_path, free_bytes=10_000_000)) == 150


def test_arrays_of_a_factory_are_not_bounded_by_their_number_of_pieces(tmp_path):
    (tmp_path / "sets.py").write_text("import numpy\ndef whole(): return numpy.zeros((1000, 50)), numpy.zeros(1000)\n")
    assert np.shape(load_points("sets.py:whole", base=tmp_path, free_bytes=1).inputs) == (1000, 50)
