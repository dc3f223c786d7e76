"""Hostile and odd files, through the command line: nothing in them runs, nothing hangs, eats the memory or ends in a
fault of bnuq, and each is one message. A part runs with the tests, all of it by `make hostile`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import small_run
from records_at_rest import without_digest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="each file is read by a fork, whose memory Linux tells")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny network, its data and a result of it."""
    folder = tmp_path_factory.mktemp("ground") / "work"
    small_run.write(folder)
    small_run.evaluated(folder, out=Path("good.h5"), methods=("mcbn",), limit=12)
    without_digest(folder / "good.h5")
    return folder


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    here = Path(__file__).parent
    paths = os.pathsep.join(
        [str(here), str(here.parent / "builders"), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(here / "runner.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(**asked: Any) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait()
    process.stdout.close()


def marked(names: list[str], quick: set[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.hostile) for name in names]


@pytest.mark.parametrize("name", marked(list(making.CASES), making.QUICK))
def test_a_hostile_file_is_one_message(ground: Path, run: Run, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(ground, tmp_path / "work"))
    arguments = making.CASES[name](folder)
    before = {path.relative_to(folder) for path in folder.rglob("*")}
    outcome = run(folder=str(folder), arguments=arguments)
    out, err = ((folder / name).read_text(errors="replace") for name in ("said.out", "said.err"))
    assert not outcome["hung"] and outcome["seconds"] < 10, outcome
    assert outcome["memory"] < 2**30 + making.NEEDS[name], outcome
    assert not (folder / making.CANARY).exists()
    if name in making.ODD and outcome["code"] == 0:
        return
    assert outcome["code"] == 2, (outcome, err[-3000:])
    assert out == ""
    assert err.startswith("bnuq: ") and err.count("bnuq: ") == 1 and "Traceback" not in err, err
    assert "\n\n" not in err.strip() and len(err) < 3000
    after = {path.relative_to(folder) for path in folder.rglob("*")}
    assert {str(path) for path in after - before} <= {"said.out", "said.err"}


# ── genuine files, changed at random ─────────────────────────────────────────────────────────────────────────────────


def _save_mat(path: Path) -> None:
    import scipy.io

    x = np.random.default_rng(0).integers(0, 256, (6, 6, 3, 20), dtype=np.uint8)
    scipy.io.savemat(path, {"X": x, "y": np.arange(20)[:, None]}, do_compression=path.stem.endswith("packed"))


def _save_hdf5(path: Path) -> None:
    import h5py

    x = np.random.default_rng(0).normal(size=(20, 3, 6, 6))
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=x, compression="gzip", shuffle=True)
        file["y"] = np.arange(20.0)
        file["group"] = [f"patient {number % 4}" for number in range(20)]


def _save_table(path: Path) -> None:
    making._parquet(path.parent, [f"patient {number % 4}" for number in range(20)])
    (path.parent / "d.parquet").rename(path)


def _save_pictures(path: Path) -> None:
    import io
    import zipfile

    from PIL import Image

    with zipfile.ZipFile(path, "w") as archive:
        for number, form in enumerate(("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm")):
            out = io.BytesIO()
            Image.fromarray(np.full((6, 6, 3), number, np.uint8)).save(out, form)
            archive.writestr(f"a/{number}.{'tif' if form == 'tiff' else form}", out.getvalue())


def _save_state(path: Path) -> None:
    making.save_checkpoint(path, dict(small_run.network().state_dict()), path.stem)


def _is_there(path: Path) -> None:
    assert path.exists()


GENUINE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "good.h5": ("result", _is_there),
    "points.h5": ("points", _save_hdf5),
    "new.mat": ("points", _save_hdf5),
    "plain.mat": ("points", _save_mat),
    "packed.mat": ("points", _save_mat),
    "test.npz": ("points", _is_there),
    "packed.npz": ("points", lambda path: np.savez_compressed(path, x=np.ones((9, 4)), y=np.arange(9))),
    "points.npy": ("points", lambda path: np.save(path, np.ones((9, 4)))),
    "points.csv": ("points", lambda path: path.write_text("a,group,y\n" + "1.5,x,3\n2,y,4\n" * 9)),
    "points.parquet": ("points", _save_table),
    "pictures.zip": ("points", _save_pictures),
    "zip.pt": ("checkpoint", _save_state),
    "legacy.pt": ("checkpoint", _save_state),
    "safetensors.pt": ("checkpoint", _save_state),
}
IN_CI = {"good.h5", "new.mat", "packed.mat", "zip.pt", "test.npz"}


def mutate(ground: Path, run: Run, folder: Path, name: str, seeds: range) -> None:
    kind, save = GENUINE[name]
    shutil.copytree(ground, folder)
    save(folder / name)
    outcome = run(folder=str(folder), mutate={"kind": kind, "name": name, "seeds": list(seeds)})
    err = (folder / "said.err").read_text(errors="replace")
    seed = (folder / "seed").read_text()
    assert outcome["code"] == 0, f"seed {seed}: {outcome}\n{err[-3000:]}"
    assert outcome["memory"] < 2**30, outcome
    assert outcome["seconds"] < 10 + 0.5 * len(seeds), outcome


@pytest.mark.parametrize("name", [name for name in GENUINE if name in IN_CI])
def test_a_genuine_file_changed_in_a_few_places_is_read_or_refused(ground, run, tmp_path, name):
    mutate(ground, run, tmp_path / "work", name, range(12))


@pytest.mark.hostile
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("name", GENUINE)
def test_a_genuine_file_changed_anywhere_is_read_or_refused(ground, run, tmp_path, name, part):
    mutate(ground, run, tmp_path / "work", name, range(1000 + 100 * part, 1100 + 100 * part))
