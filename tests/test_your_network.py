"""Every case of docs/your-network.md runs as it stands there, with less work, and the notebook that it names."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import at_night
import pytest
from cut_sets import write_samples, write_set

import bnuq
from bnuq.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_, *CASES = re.split(r"^## (?=\d)", (DOCS / "your-network.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
RESNET, *MADE_HERE, NOTEBOOK = CASES
# accuracy; of 60 test points
AT_LEAST = {"clothes": 0.6, "shirts": 0.85, "attributes": 0.85, "patients": 0.6, "sentences": 0.7}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(case: str) -> list[str]:
    (block,) = blocks(case, "sh")
    return block.splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder: the Python files that the page names, and the samples that ship."""
    for source in (ROOT / "sample_configs" / "your_network").glob("*.py"):
        code = source.read_text(encoding="utf-8").replace('"test", 400', '"test", 60')
        (tmp_path / source.name).write_text(code, encoding="utf-8")
    shutil.copytree(write_samples(tmp_path / "sample_configs", train=1000) / "quickstart", tmp_path / "bnuq-demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fit", raising=False)
    return tmp_path


def run(command: str, *less: str) -> None:
    name, *arguments = shlex.split(command)
    if name == "python":
        runpy.run_path(arguments[0], run_name="__main__")
        return
    assert name == "bnuq"
    with pytest.raises(SystemExit) as left:
        main([*arguments, *less])
    assert left.value.code == 0, command


def test_a_case_needs_at_most_three_commands() -> None:
    assert [case[0] for case in CASES] == list("1234567")
    assert all(len(commands(case)) <= 3 for case in (RESNET, *MADE_HERE))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", at_night.but({MADE_HERE[-1]}, MADE_HERE), ids=lambda case: case[0])
def test_a_case_with_a_network_of_its_own_gives_a_right_figure(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, evaluate = commands(case)
    run(make)
    run(evaluate, "--limit", "60", "--samples", "8")
    assert "Warning" not in capsys.readouterr().out
    name = make.split()[1].removesuffix(".py")
    summary = bnuq.open(f"{name}.bnuq.h5").summary()
    assert AT_LEAST[name] < summary["methods"]["deterministic"]["sets"]["test"]["accuracy"]["value"] <= 1


@pytest.mark.nightly  # of the data pack; made-up cases above
def test_a_downloaded_network_passes_the_reference_check_with_the_settings_shown(data_pack, folder, capsys):
    shutil.copy(data_pack / "checkpoints/resnet20-12fca82f.th", "resnet20.th")
    shutil.copy(ROOT / "sample_configs/architectures/cifar_resnet.py", folder)
    for name in ("train", "test"):  # the reference check takes mini-batches of half the reference
        write_set(data_pack / f"cifar10/lossless_{name}.npz", Path(f"cifar_{name}.npz"), 40)
    inspect, evaluate = commands(RESNET)
    run(inspect.replace(" --suggest-pipeline", ""), "--points", "40", "--draws", "8")  # the search takes a minute
    assert "19 BatchNorm layers can be made stochastic" in capsys.readouterr().out
    run(evaluate, "--limit", "8", "--samples", "2", "--batch-size", "16", "--no-post-hoc")
    assert "Reference check passed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.nightly  # what it calls, tests of bnuq.api call
def test_the_notebook_runs(folder: Path) -> None:
    assert "(live-network.ipynb)" in NOTEBOOK
    cells = json.loads((DOCS / "live-network.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    code = [text.replace('"samples": 16', '"samples": 8').replace('"limit": 300', '"limit": 20') for text in code]
    write_samples(folder / "fewer", train=256, points=60)
    code = [text.replace('"sample_configs', '"fewer') for text in code]
    code.append("assert result._repr_html_() and len(table) > 50 and verdict.passed in (True, False)")
    exec(compile("\n".join(code), "live-network.ipynb", "exec"), {"__name__": "__main__"})
    assert (folder / "before.h5").exists()
