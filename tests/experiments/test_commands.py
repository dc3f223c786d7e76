"""`python -m experiments`: every experiment runs, its result is shown again, and nothing heavy is loaded for help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.uci import protocol
from experiments.uci.protocol import Protocol

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = {  # what each takes, and whom it cites
    "uci": (["--sets", "smoke"], "Teye, Azizpour"),
    "toy": (["--samples", "50", "--figures", "pictures"], "Teye, Azizpour"),
    "batch-size": (
        [
            *("--images", "256", "--epochs", "1", "--batch-sizes", "32,64", "--limit", "50", "--samples", "2"),
            *("--workers", "1", "--figures", "pictures"),
        ],
        "Mukhoti et al. 2020",
    ),
    "pll-over-samples": (["cifar_resnet20.toml", "--samples", "8", "--limit", "20"], "Teye, Azizpour"),
    "bn-noise": (
        ["cifar_resnet20.toml", "--draws", "8", "--points", "256", "--figures", "pictures"],
        "Shekhovtsov & Flach 2018",
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_and_is_shown_again(
    name: str,
    data_pack: Path,
    tiny: Protocol,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(protocol, "SMOKE", tiny)
    shutil.copy(ROOT / "sample_configs" / "cifar_resnet20.toml", tmp_path)
    shutil.copytree(ROOT / "sample_configs" / "architectures", tmp_path / "architectures")
    (tmp_path / "data").symlink_to(data_pack)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BNUQ_DATA", str(data_pack))
    arguments, source = EXPERIMENTS[name]
    shown = []
    for given in ([name, *arguments], ["report", f"reproduce-{name}.h5"]):
        with pytest.raises(SystemExit) as left:
            main(given)
        assert left.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert source in shown[0]
    assert (tmp_path / "pictures" / f"{name}.svg").is_file() == ("pictures" in arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["report", "--help"], *([name, "--help"] for name in EXPERIMENTS)])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    script = (
        f"import sys\nfrom experiments.__main__ import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "usage: python -m experiments" in done.stdout.lower()
    assert not {"torch", "scipy.stats"} & set(done.stderr.split())


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = f"import os\nfrom experiments.__main__ import main\nos.mkdir({str(gone)!r})\nos.chdir({str(gone)!r})\n"
    script += f"os.rmdir({str(gone)!r})\nmain(['toy'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bnuq: the working folder no longer exists. Change to an existing folder.\n"
