"""Every command of README.md and every file of sample_configs runs: in a copy of the folder, with less work."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bnuq.cli.main import main
from bnuq.run import read_run_file

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "sample_configs" / "quickstart"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder as the README describes it: run files, which their first lines name, checkpoints, data and
    architectures."""
    names = {
        "model.pt": "fashion_cnn.pt",
        "net.py": "net.py",
        "train.npz": "fashion_train.npz",
        "test.npz": "fashion_test.npz",
        "mnist.npz": "mnist.npz",
    }
    for name, source in names.items():
        shutil.copy(QUICKSTART / source, tmp_path / name)
    for file in (ROOT / "sample_configs" / "regression").iterdir():
        shutil.copy(file, tmp_path / file.name)
    for block in blocks("toml"):
        (tmp_path / block.split()[1]).write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_every_command_of_the_readme_runs(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = 0
    for command in commands():
        words, _, target = command.partition(" > ")
        name, *arguments = shlex.split(words)
        if name == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            continue
        assert name == "bnuq"
        if arguments[0] == "reproduce":  # below
            continue
        less = {
            "evaluate": ["--limit", "60", *(["--max-samples", "16"] if "auto" in arguments else ["--samples", "8"])],
            "sweep-batch-size": ["--limit", "60", "--samples", "2", "--draw-sets", "2", "--train-points", "60"],
            "check": ["--allow", "data"],  # another seed takes another 60 points
            "inspect": ["--limit", "60", "--points", "200", "--draws", "8", "--samples", "2"],
            "precise-bn": ["--points", "200"],
        }.get(arguments[0], [])
        assert run([*arguments, *less]) == 0, command
        printed = capsys.readouterr().out
        assert printed.strip(), command
        if target:
            (own_folder / target.strip()).write_text(printed, encoding="utf-8")
        ran += 1
    assert ran >= 20
    assert (own_folder / "precise.pt").is_file()
    assert (own_folder / "pictures" / "sweep.svg").is_file()
    (kept,) = own_folder.glob("baseline.*Z.h5")
    assert {path.name for path in own_folder.glob("*.h5")} == {
        "model.inspect.h5", "pipeline.inspect.h5", "domains.inspect.h5", "laws.h5",
        "model.sweep.h5", "pll.sweep.h5", "baseline.h5", "current.h5", kept.name,
        "model.bnuq.h5", "b16.h5", "b16_seed1.h5", "auto.h5", "bf16.h5", "diabetes_mlp.bnuq.h5", "moment.h5",
    }  # fmt: skip


EXPERIMENTS = ("uci", "toy", "batch-size", "pll-over-samples", "bn-noise")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_published_experiments_of_the_readme_run(
    experiment: str, own_folder: Path, data_pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "sample_configs" / "cifar_resnet32.toml", own_folder)
    shutil.copytree(ROOT / "sample_configs" / "architectures", own_folder / "architectures")
    (own_folder / "data").symlink_to(data_pack)
    less = {
        "uci": ["--data-root", str(data_pack)],
        "toy": ["--samples", "50"],
        "batch-size": [
            *("--images", "256", "--epochs", "1", "--batch-sizes", "32,64", "--limit", "50", "--samples", "2"),
            *("--workers", "1", "--data-root", str(data_pack)),
        ],
        "pll-over-samples": ["--samples", "8", "--limit", "20"],
        "bn-noise": ["--draws", "8", "--points", "256"],
    }
    told = {line.split()[2]: shlex.split(line)[1:] for line in commands() if line.startswith("bnuq reproduce")}
    assert tuple(told) == tuple(less) == EXPERIMENTS
    assert run([*told[experiment], *less[experiment]]) == 0
    sources = {"batch-size": "Mukhoti et al. 2020", "bn-noise": "Shekhovtsov & Flach 2018"}
    assert sources.get(experiment, "Teye, Azizpour") in capsys.readouterr().out
    assert (own_folder / "pictures" / f"{experiment}.svg").is_file() == (
        experiment in ("toy", "batch-size", "bn-noise")
    )


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "sample_configs").symlink_to(ROOT / "sample_configs")
    (code,) = blocks("python")
    code += "\nassert outputs.shape == both.shape == (32, 200, 10) and test.shape == digits.shape == (200,)"
    code += "\nassert omega.samples == 32"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bank.h5").is_file()


def test_the_demo_is_the_quickstart_and_its_output_is_in_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "bnuq evaluate sample_configs/quickstart.toml" in makefile
    (report,) = (block for block in blocks("text") if "In short" in block)
    for name in ("deterministic", "mcbn", "mcdo", "mcbn+mcdo", "mnist, 1000 points"):
        assert name in report


@pytest.mark.parametrize("path", sorted((ROOT / "sample_configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_sample_config_is_a_run_file_whose_own_files_exist(path: Path) -> None:
    spoken = read_run_file(path)
    assert spoken.model.arch is not None
    file, _, function = spoken.model.arch.rpartition(":")
    assert f"def {function}(" in (path.parent / file).read_text()
    assert tomllib.loads(path.read_text())["data"]["test"]


@pytest.mark.parametrize("path", sorted((ROOT / "sample_configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_sample_config_runs(
    path: Path, data_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "sample_configs"
    shutil.copytree(ROOT / "sample_configs", place)
    (place / "data").symlink_to(data_pack)
    monkeypatch.chdir(tmp_path)
    arguments = ["evaluate", str(place / path.name), "--limit", "20", "--samples", "2", "--batch-size", "16"]
    if path.name == "svhn_cnn.toml":  # SVHN itself does not lie in the data pack
        digits, pictures = data_pack / "ood/pcbdigits32.npz", data_pack / "cifar10/lossless_test.npz"
        arguments += ["--train", str(digits), "--test", str(digits), "--ood", str(pictures)]
    assert run(arguments) == 0
    assert "In short" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fmnist_mlp"])
def test_a_sample_config_that_says_how_to_sweep_is_swept(
    name: str, data_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = {path.stem for path in (ROOT / "sample_configs").glob("*.toml") if "\n[sweep]" in path.read_text()}
    assert swept == {"fmnist_mlp"}
    place = tmp_path / "sample_configs"
    shutil.copytree(ROOT / "sample_configs", place)
    (place / "data").symlink_to(data_pack)
    monkeypatch.chdir(tmp_path)
    less = ["--limit", "50", "--samples", "2", "--draw-sets", "2", "--train-points", "50"]
    assert run(["sweep-batch-size", str(place / f"{name}.toml"), *less]) == 0
    printed = capsys.readouterr().out
    assert all(f" {size} " in printed for size in ("32", "128", "512", "2,048"))


def test_the_quickstart_can_be_made_again() -> None:
    done = subprocess.run(
        [sys.executable, str(QUICKSTART / "make.py"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "--data-root" in done.stdout
