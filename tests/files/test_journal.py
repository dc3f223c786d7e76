"""The journal: finished units are whole or absent, are seen only by who asks for the very same, and go in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnuq.errors import RequestError, ResultError
from bnuq.files.journal import Journal, work_folder

FACTS = {"network": "abc", "seed": 0}
UNIT = {"point/score": np.arange(4.0), "name": np.array("a"), "empty": np.empty((0, 3), np.float32)}


def test_a_unit_is_read_as_it_was_saved(tmp_path: Path) -> None:
    Journal(tmp_path, FACTS).save("unit", UNIT)
    found = Journal(tmp_path, FACTS).load("unit")
    assert found is not None and found.keys() == UNIT.keys()
    for name, values in UNIT.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


def test_units_of_other_facts_are_not_seen(tmp_path: Path) -> None:
    Journal(tmp_path, FACTS).save("unit", UNIT)
    assert Journal(tmp_path, FACTS | {"seed": 1}).load("unit") is None
    assert Journal(tmp_path, dict(reversed(FACTS.items()))).load("unit") is not None


@pytest.mark.parametrize("keep", [0, 10, 100, -30, -1])
def test_a_unit_that_was_cut_short_is_absent(tmp_path: Path, keep: int) -> None:
    journal = Journal(tmp_path, FACTS)
    journal.save("unit", UNIT)
    path = journal.path("unit")
    path.write_bytes(path.read_bytes()[:keep])
    assert journal.load("unit") is None


def test_a_unit_with_a_flipped_bit_is_absent(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FACTS)
    journal.save("unit", UNIT)
    content = bytearray(journal.path("unit").read_bytes())
    content[content.index(np.arange(4.0).tobytes()) + 3] ^= 1
    journal.path("unit").write_bytes(content)
    assert journal.load("unit") is None


def full(path: Path) -> None:
    raise ResultError(f"{path}: could not be written: the disk is full.")


def test_units_that_only_an_interruption_needs_leave_a_full_disk_to_the_result(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FACTS)
    journal.save("first", UNIT)
    journal.write("second", full)
    journal.save("third", UNIT, needed=False)
    assert not list(tmp_path.iterdir())
    journal.save("fourth", UNIT, needed=True)
    assert journal.load("fourth") is not None
    with pytest.raises(ResultError, match="the disk is full"):
        journal.write("fifth", full, needed=True)


def test_only_units_of_an_earlier_journal_count_as_reused(tmp_path: Path) -> None:
    Journal(tmp_path, FACTS).save("earlier", UNIT)
    journal = Journal(tmp_path, FACTS)
    journal.save("own", UNIT)
    for unit in ("own", "earlier", "earlier", "absent"):
        journal.load(unit)
    assert journal.reused == 1


def test_the_folder_beside_the_result_goes_with_all_that_killed_processes_left(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    with work_folder(out) as work:
        work.journal(FACTS).save("unit", UNIT)
        other = Journal(work.path, {"seed": 1})
        other.save("unit", UNIT)
        (work.path / f".{other.path('unit').name}.0a1b2c3d-1-00000000.tmp").touch()
        assert work.path == tmp_path / "out.h5.work"
    assert not work.path.exists()


def test_an_interruption_keeps_the_units_and_says_so_once(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt) as stopped,
        work_folder(tmp_path / "out.h5") as work,
        work_folder(work.path / "part.h5", work.path) as same,
    ):
        same.journal(FACTS).save("unit", UNIT)
        raise KeyboardInterrupt
    note = f"finished parts are kept in {work.path}: the same command goes on from them."
    assert stopped.value.__notes__ == [note]
    with work_folder(tmp_path / "out.h5") as again:
        assert again.journal(FACTS).load("unit") is not None


def test_an_interruption_before_any_unit_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "out.h5"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_in_a_named_folder_only_the_journals_own_units_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with work_folder(tmp_path / "out.h5", folder) as work:
        work.journal(FACTS).save("unit", UNIT)
        other = Journal(folder, {"seed": 1})
        other.save("unit", UNIT)
        (folder / "letter.txt").touch()
    assert {path.name for path in folder.iterdir()} == {"letter.txt", other.path("unit").name}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RequestError, match=r"file: the work folder cannot be made \(File exists\)"),
        work_folder(tmp_path / "out.h5", tmp_path / "file"),
    ):
        pass
