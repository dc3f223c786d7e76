"""`python -m experiments`: every experiment runs, its result is shown again, and nothing heavy is loaded for help."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import pytest
import small_run
from report_text import rendered

from bnuq.errors import ResultError
from bnuq.report.render import draw_pictures
from experiments import toy
from experiments.__main__ import _kind, main
from experiments.batch_size import experiment
from experiments.uci import protocol
from experiments.uci.protocol import Protocol

ROOT = Path(__file__).resolve().parents[2]
_LEARNED = ["--images", "32", "--epochs", "1", "--width", "4", "--limit", "10", "--samples", "2", "--workers", "1"]
EXPERIMENTS = {  # what each takes, whom it cites, and the kind of its result
    "uci": (["--sets", "smoke", "--workers", "1"], "Teye, Azizpour", "uci"),
    "toy": (["--samples", "20", "--figures", "pictures"], "Teye, Azizpour", "toy"),
    "batch-size": (
        [
            *("--images", "32", "--epochs", "1", "--batch-sizes", "8,16", "--limit", "10", "--samples", "2"),
            *("--workers", "1", "--figures", "pictures"),
        ],
        "Mukhoti et al. 2020",
        "batch-size",
    ),
    "pll-over-samples": (
        ["run.toml", "--samples", "8", "--figures", "pictures"],
        "Teye, Azizpour",
        "pll-over-samples",
    ),
    "bn-noise": (
        ["run.toml", "-b", "16", "--draws", "16", "--figures", "pictures"],
        "Shekhovtsov & Flach",
        "inspection",
    ),
    "stochastic-normalization": (
        [*_LEARNED, "--figures", "pictures"],
        "Shekhovtsov & Flach",
        "stochastic-normalization",
    ),
    "bn-in-vi": ([*_LEARNED, "--seeds", "2", "--figures", "pictures"], "Mukhoti et al. 2020", "bn-in-vi"),
}
_WITHOUT_DEVICE = ("toy", "stochastic-normalization", "bn-in-vi")


@dataclass(frozen=True)
class Finished:
    """An experiment that was run in `folder`: its name, the kind of its result, and what it printed."""

    name: str
    kind: str
    folder: Path
    printed: str

    @property
    def path(self) -> Path:
        return self.folder / f"reproduce-{self.name}.h5"


@pytest.fixture(
    scope="module",
    params=[  # bn-in-vi goes through the same code with four networks instead of thirteen
        pytest.param(name, marks=pytest.mark.slow) if name == "stochastic-normalization" else name
        for name in EXPERIMENTS
    ],
)
def finished(
    request: pytest.FixtureRequest, small_root: Path, tiny: Protocol, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    folder = tmp_path_factory.mktemp(request.param)
    small_run.write(folder, rate=0.0)
    arguments, _, kind = EXPERIMENTS[request.param]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(protocol, "SMOKE", tiny)
        patch.setattr(toy, "STEPS", 25)
        patch.setattr(experiment, "DRAW_SETS", 2)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("BNUQ_DATA", str(small_root))
        patch.delenv("COLUMNS", raising=False)
        patch.chdir(folder)
        with pytest.raises(SystemExit) as leave:
            main([request.param, *arguments, *([] if request.param in _WITHOUT_DEVICE else ["--device", "cpu"])])
        assert leave.value.code == 0
    return Finished(request.param, kind, folder, printed.getvalue())


def test_every_experiment_is_shown_again_as_it_was_printed(
    finished: Finished, called: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished.folder)
    assert called("report", finished.path.name) == (0, finished.printed, "")
    assert EXPERIMENTS[finished.name][1] in finished.printed
    kind = _kind(finished.kind)
    code, printed, _ = called("report", finished.path.name, "--json")
    assert code == 0
    assert json.loads(printed) == json.loads(json.dumps(kind.summary(kind.read(finished.path)), allow_nan=False))


def test_its_pictures_are_drawn_in_both_forms_and_are_the_same_bytes_again(finished: Finished, tmp_path: Path) -> None:
    kind = _kind(finished.kind)
    pictures = [
        path for form in ("svg", "png") for path in draw_pictures(kind.report(kind.read(finished.path)), tmp_path, form)
    ]
    expected = [] if finished.name == "uci" else [f"{finished.name}.svg", f"{finished.name}.png"]
    assert [path.name for path in pictures] == expected
    for path in pictures:
        assert path.read_bytes() == (finished.folder / "pictures" / path.name).read_bytes()
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_its_report_fits_every_width_in_either_encoding(finished: Finished, width: int, encoding: str) -> None:
    kind = _kind(finished.kind)
    record = kind.read(finished.path)
    lines = rendered(kind.report, record, width=width, encoding=encoding).splitlines()
    assert len(lines) > 20
    assert all(len(line) <= width and line == line.rstrip() for line in lines if line != str(finished.path))
    assert not {"?", "{", "}"} & set("".join(lines))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("format", 99, "in format 99"), ("kind", "predict", "is not a result file of bnuq"), ("record", None, "damaged")],
)
def test_a_newer_another_and_a_damaged_result_are_refused(
    finished: Finished, tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = tmp_path / "changed.h5"
    path.write_bytes(finished.path.read_bytes())
    with h5py.File(path, "r+") as file:
        if value is None:
            del file[key]
        else:
            file.attrs[key] = value
    with pytest.raises(ResultError, match=message):
        _kind(finished.kind).read(path)


def test_the_methods_whose_noise_is_learned_stand_beside_the_published_column(
    called: Callable[..., tuple[object, str, str]], small_root: Path, tiny: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zuko")
    monkeypatch.setattr(protocol, "SMOKE", replace(tiny, max_epochs=5, samples=8))
    arguments = ("--sets", "smoke", "--method", "mnf,vi", "--data-root", small_root, "--workers", "1")
    code, printed, errors = called("uci", *arguments, "--device", "cpu", "--markdown", "page.md")
    assert (code, errors) == (0, "")
    assert called("report", "reproduce-uci.h5") == (0, printed, "")
    assert "MNF, VI, VI with BN 2 splits × 1 seed; λ 0.001, 1e-05" in " ".join(printed.split())
    assert "(MCBN)" not in printed
    page = Path("page.md").read_text()
    assert page.count("\n| boston MNF |") == page.count("\n| yacht VI with BN |") == 5
    (crps,) = (line for line in page.splitlines() if line.startswith("| yacht MNF |") and "24.92" in line)
    assert any(f"| {verdict} |" in crps for verdict in ("agrees", "inconclusive", "same sign", "differs"))
    code, summary, _ = called("report", "reproduce-uci.h5", "--json")
    methods = json.loads(summary)["sets"]["boston"]["methods"]
    assert list(methods) == ["mnf", "vi", "vi-bn"]
    assert methods["mnf"]["crps"]["published"] == 5.88
    assert "published" not in methods["vi"]["crps"]


def test_help_does_not_import_torch() -> None:
    asked = [["--help"], ["report", "--help"], *([name, "--help"] for name in EXPERIMENTS)]
    script = (
        f"import sys\nfrom experiments.__main__ import main\nfor arguments in {asked!r}:\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.lower().count("usage: python -m experiments") == len(asked)
    assert not {"torch", "scipy.stats"} & set(done.stderr.split())


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"import os\nfrom experiments.__main__ import main\nos.mkdir({str(gone)!r})\nos.chdir({str(gone)!r})\n"
    script += f"os.rmdir({str(gone)!r})\nmain(['toy'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bnuq: the working folder no longer exists. Change to an existing folder.\n"
