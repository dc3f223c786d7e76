"""`bnuq demo` puts the network that ships into a folder, evaluates it there, and keeps what others have put there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import less_work
import pytest
from cut_sets import DEMO, write_set

import bnuq
from bnuq.cli import demo

SUPPLIES = {"README.md", "fashion_cnn.pt", "fashion_cnn.toml", "net.py"}
SUPPLIES |= {f"{name}.npz" for name in ("fashion_test", "fashion_train", "fashion_validation", "mnist")}


@pytest.fixture
def small_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; the demo has fewer points, and 4 samples."""
    supplies = dict(demo._supplies())
    for name in SUPPLIES:
        if name.endswith(".npz"):
            write_set(DEMO / name, tmp_path / "less.npz", 100 if "train" in name else 30)
            supplies[name] = (tmp_path / "less.npz").read_bytes()
    supplies["fashion_cnn.toml"] = supplies["fashion_cnn.toml"].replace(b"samples = 32", b"samples = 4")
    monkeypatch.setattr(demo, "_supplies", supplies.items)
    less_work.at_the_reference(monkeypatch, points=64)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def quick_demo(small_demo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With dropout alone, and no OOD set."""
    supplies = dict(demo._supplies())
    whole = supplies["fashion_cnn.toml"]
    less = whole.replace(b'["mcbn", "mcdo", "mcbn+mcdo"]', b'["mcdo"]').replace(b'["mnist.npz"]', b"[]")
    assert len(less) == len(whole) - 32
    monkeypatch.setattr(demo, "_supplies", (supplies | {"fashion_cnn.toml": less}).items)
    return small_demo


def test_the_demo_ships_whole_and_small() -> None:
    shipped = dict(demo._supplies())
    assert shipped.keys() == SUPPLIES
    assert sum(map(len, shipped.values())) < 1.55e6  # of the network, a wheel packs 405 kB into 371


def test_the_demo_evaluates_its_network_in_a_folder_and_says_what_to_type_next(cli, small_demo) -> None:
    done = cli("demo")
    assert done.code == 0 and "fashion_cnn.pt · 30 test examples" in done.out and "Next:\n  cd bnuq-demo " in done.out
    made = {path.name for path in (small_demo / "bnuq-demo").iterdir()}
    assert made == SUPPLIES | {"fashion_cnn.bnuq.h5", "fashion_cnn.html"}
    result = bnuq.open("bnuq-demo/fashion_cnn.bnuq.h5")
    assert {"mcbn", "mcdo", "mcbn+mcdo"} < set(result.methods) and result.sets["mnist"].n == 30
    text = Path("bnuq-demo/fashion_cnn.html").read_text(encoding="utf-8")
    assert "<title>bnuq evaluate" in text and re.search(r'alt="[a-zT]\S+, predicted [a-zT]\S+ \(', text)


@pytest.mark.nightly  # three whole runs
def test_what_the_demo_says_to_type_next_runs_in_its_folder(cli, small_demo, monkeypatch) -> None:
    first = cli("demo", "in here")
    lines = [line.strip().partition(" #")[0] for line in first.out.partition("Next:")[2].splitlines() if line.strip()]
    folder, *following, _, own = (shlex.split(line) for line in lines)
    assert folder == ["cd", "in here"] and own[:2] == ["bnuq", "init"]
    monkeypatch.chdir(small_demo / "in here")
    assert [words[1] for words in following] == ["evaluate"]
    assert [cli(*words[1:]).code for words in following] == [0]


@pytest.mark.nightly
def test_a_second_demo_replaces_its_own_result_and_nothing_that_was_changed(cli, quick_demo) -> None:
    assert cli("demo", "--quiet").code == 0
    second = cli("demo", "--quiet")
    assert (second.code, second.out) == (0, "")
    run_file = quick_demo / "bnuq-demo" / "fashion_cnn.toml"
    run_file.write_text(changed := run_file.read_text() + "# mine\n")
    refused = cli("demo")
    assert refused.code == 2 and "bnuq-demo has fashion_cnn.toml, which differ" in refused.message
    assert run_file.read_text() == changed


@pytest.mark.parametrize("name", ["net.py", "fashion_cnn.html", "mnist.npz"])
def test_files_of_others_are_kept_and_nothing_is_written_beside_them(cli, small_demo, name) -> None:
    (small_demo / "mine").mkdir()
    (small_demo / "mine" / name).write_text("mine")
    refused = cli("demo", "mine")
    assert refused.code == 2 and name in refused.message
    assert (small_demo / "mine" / name).read_text() == "mine"
    assert [path.name for path in (small_demo / "mine").iterdir()] == [name]


def test_a_file_is_no_folder_for_the_demo(cli, small_demo) -> None:
    (small_demo / "there").write_text("")
    refused = cli("demo", "there")
    assert refused.code == 2 and "there is a file" in refused.message
