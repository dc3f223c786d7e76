"""Several run files on one command line: a result for each, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bnuq.records.evaluation_file import read


@pytest.fixture
def three(small: Path) -> Path:
    """A folder with three run files, of which the second names points that are not there."""
    text = (small / "run.toml").read_text()
    (small / "a.toml").write_text(text)
    (small / "b.toml").write_text(text.replace("test.npz", "nowhere.npz"))
    (small / "c.toml").write_text(text)
    (small / "results").mkdir()
    return small


def test_each_run_file_has_its_result_and_one_that_fails_is_named(three: Path, cli: Callable) -> None:
    done = cli("evaluate", "a.toml", "b.toml", "c.toml", "-T", "2", "--limit", "20", "-o", "results", "--json")
    assert done.code == 2
    first, last = (line for line in done.err.splitlines() if line.startswith("bnuq: "))
    assert first.startswith("bnuq: b.toml: nowhere.npz: there is no such file")
    assert last == "bnuq: 1 of 3 runs failed: b.toml."
    made = [three / "results" / f"{name}.bnuq.h5" for name in "ac"]
    assert sorted((three / "results").iterdir()) == made
    assert [each["result"] for each in json.loads(done.out)] == [str(path) for path in made]
    assert read(made[0]).units == read(made[1]).units


def test_a_strict_run_fails_by_its_warnings_and_leaves_the_others(three: Path, cli: Callable) -> None:
    done = cli("evaluate", "a.toml", "c.toml", "-T", "2", "--limit", "20", "--strict", "--quiet")
    assert done.code == 2 and "bnuq: a.toml: --strict: there were warnings (few-samples" in done.err
    assert "bnuq: 2 of 2 runs failed: a.toml, c.toml." in done.err and (three / "c.bnuq.h5").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("a.toml", "c.toml", "-o", "x.h5"), "--out x.h5: 2 run files were named; expected a folder."),
        (("a.toml", "c.toml", "model.pt"), "model.pt is no run file, and a.toml is one"),
        (("model.pt", "a.toml"), "a.toml is a run file; expected checkpoints after the first"),
        (("a.toml", "./a.toml"), "would both write a.bnuq.h5. Rename one of them."),
        (("a.toml", "d.toml"), "d.toml: there is no such run file."),
        (("a.toml", "c.toml", "--from", "a.h5"), "--from a.h5 repeats the run of a result file"),
        (("a.toml", "c.toml", "-b", "0"), "a.toml: --batch-size is 0"),
    ],
)
def test_what_is_no_queue_is_refused_before_anything_is_computed(
    three: Path, cli: Callable, arguments: tuple[str, ...], complaint: str
) -> None:
    done = cli("evaluate", *arguments)
    assert done.code == 2 and complaint in done.message
    assert not [*three.rglob("*.h5")]
