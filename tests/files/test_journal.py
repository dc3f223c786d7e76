"""The journal: finished units are whole or absent, are seen only by who asks for the very same, and go in the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bnuq.errors import RequestError, ResultError
from bnuq.files.folders import _secret_in, user_secret
from bnuq.files.journal import Journal, digest_of, requests_at, root_of, work_folder
from bnuq.files.places import Folder, Store, place_of
from bnuq.files.writing import sole_request

FACTS = {"network": "abc", "seed": 0}
UNIT = {"point/score": np.arange(4.0), "name": np.array("a"), "empty": np.empty((0, 3), np.float32)}


def test_a_unit_is_read_as_it_was_saved_and_under_no_other_facts(tmp_path: Path) -> None:
    Journal(tmp_path, FACTS).save("unit", UNIT)
    assert Journal(tmp_path, FACTS | {"seed": 1}).load("unit") is None
    found = Journal(tmp_path, dict(reversed(FACTS.items()))).load("unit")
    assert found is not None and found.keys() == UNIT.keys()
    for name, values in UNIT.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


def test_a_unit_that_is_cut_short_anywhere_or_has_any_bit_flipped_is_absent(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FACTS, secret=b"mine")
    journal.save("unit", UNIT)
    path = journal.path("unit")
    content = path.read_bytes()
    flipped = (content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in range(len(content)))
    for damaged in (*(content[:at] for at in range(len(content))), *flipped, content + b"x"):
        path.write_bytes(damaged)
        assert journal.load("unit") is None
    path.write_bytes(content)
    assert journal.load("unit") is not None


def test_a_unit_of_another_request_name_set_or_secret_is_absent_wherever_it_is_put(tmp_path: Path) -> None:
    good, bad = Journal(tmp_path, FACTS, secret=b"mine"), Journal(tmp_path, FACTS | {"network": "bad"}, secret=b"mine")
    good.save("unit", UNIT, "set")
    assert good.load("unit", "set") is not None and good.load("unit", "other set") is None
    for journal, unit in ((bad, "unit"), (good, "another unit")):
        journal.path(unit).write_bytes(good.path("unit").read_bytes())
        assert journal.has(unit) and journal.load(unit, "set") is None
    for secret in (b"", b"another"):
        (forger := Journal(tmp_path, FACTS, secret=secret)).save("forged", UNIT, "set")
        good.path("forged").write_bytes(forger.path("forged").read_bytes())
        assert good.load("forged", "set") is None


def test_units_beside_a_result_are_seen_by_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def units_seen(work: Path | None = None) -> int:
        with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "out.h5", work) as folder:
            journal = folder.journal(FACTS)
            journal.load("unit")
            raise KeyboardInterrupt
        return journal.reused

    for user in ("one", "other"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "out.h5") as folder:
            folder.journal(FACTS).save("unit", UNIT)
            raise KeyboardInterrupt
        assert units_seen() == 1
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    assert units_seen() == 1
    monkeypatch.setenv("CI", "true")
    with pytest.raises(KeyboardInterrupt) as stopped, work_folder(tmp_path / "out.h5") as folder:
        journal = folder.journal(FACTS)
        assert journal.load("unit") is None and journal.doubts[0].values == {"why": "CI is set"}
        journal.save("unit", UNIT)
        raise KeyboardInterrupt
    assert not journal.has("unit")  # nothing could go on with it
    assert "finished parts are kept" in stopped.value.__notes__[0]  # those of before
    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "out.h5", tmp_path / "named") as folder:
        folder.journal(FACTS).save("unit", UNIT)
        raise KeyboardInterrupt
    assert units_seen(tmp_path / "named") == 1  # the user's word


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_a_secret_is_kept_for_its_user_alone_and_one_that_others_can_read_is_replaced(tmp_path, monkeypatch):
    def secret_of(name: str) -> bytes:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        _secret_in.cache_clear()  # as another process
        return user_secret()[0]

    kept = tmp_path / "one" / "bnuq" / "units.key"
    first = secret_of("one")
    assert len(first) == 32 and first == secret_of("one") != secret_of("other")
    assert kept.read_bytes() == first and kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o644)
    assert secret_of("one") != first and kept.stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").touch()
    assert len(secret_of("file")) == 32 and secret_of("file") != first  # of this process


def test_the_digest_is_of_figures_alone_and_the_root_of_all_of_them() -> None:
    digest = digest_of(UNIT)
    assert digest == digest_of(dict(reversed(UNIT.items()))) == digest_of(UNIT | {"seconds": np.array(3.0)})
    score = UNIT["point/score"]
    changed = [UNIT | {"point/score": score.astype(np.float32)}, UNIT | {"name": np.array("b")}]
    changed.append(UNIT | {"point/score": score.reshape(2, 2)})  # the same bytes
    assert len({digest, *map(digest_of, changed)}) == 4
    units = {f"unit{number}": str(number) for number in range(5)}
    assert root_of(units) == root_of(dict(reversed(units.items())))
    assert len({root_of(units), root_of(units | {"unit4": "x"}), root_of({**units, "unit5": "5"})}) == 3


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_place_holds_units_and_attempts_of_whoever_shares_it(tmp_path: Path, kind: str) -> None:
    url = str(tmp_path / "units") if kind == "folder" else f"memory://{tmp_path.name}"
    journal, other = (Journal(place_of(url), FACTS, {"out": "a.h5", "run": {}}) for _ in range(2))
    assert journal.load("unit") is None and not journal.attempts("unit")
    for number in range(2):
        journal.begin("unit", number, {"by": f"worker {number}"})
    assert [attempt["by"] for attempt in other.attempts("unit")] == ["worker 0", "worker 1"]
    journal.save("unit", UNIT)
    journal.end("unit", 2)
    assert other.has("unit") and other.load("unit") is not None and not other.attempts("unit")
    assert [about["facts"] for about in requests_at(other.place).values()] == [FACTS]
    other.remove("unit")
    assert not journal.has("unit")
    journal.forget()
    assert not journal.place.names()


def test_another_request_for_the_same_result_is_named(tmp_path: Path) -> None:
    about = {"out": "a.h5", "run": {"sampling": {"seed": 0}}}
    with pytest.raises(KeyboardInterrupt), work_folder(tmp_path / "a.h5", tmp_path / "work") as work:
        work.journal(FACTS, about).save("unit", UNIT)
        raise KeyboardInterrupt
    with (
        pytest.raises(RequestError, match=r"another request for a.h5: its sampling.seed is 0, and here 1\."),
        work_folder(tmp_path / "a.h5", tmp_path / "work") as work,
    ):
        work.journal(FACTS | {"seed": 1}, about | {"run": {"sampling": {"seed": 1}}})
    with work_folder(tmp_path / "a.h5", tmp_path / "work") as work:
        assert work.journal(FACTS, about).load("unit") is not None
        assert work.journal(FACTS | {"seed": 1}, about | {"out": "b.h5"}).load("unit") is None


@pytest.mark.parametrize(("url", "complaint"), [("s3://bucket/folder", "s3fs"), ("nowhere://bucket", "nowhere")])
def test_a_store_that_cannot_be_opened_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=rf"--work {url}: .*{complaint}"):
        place_of(url)


def test_a_store_is_tried_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bnuq.files.places._PAUSE", 0)
    store, answers = Store("memory://tried"), [OSError("slow down"), None]

    def answering(*_: object) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(store._fs, "pipe_file", answering)
    store.write("name", b"")
    assert not answers
    answers += [OSError("out of space")] * 3
    with pytest.raises(ResultError, match=r"memory://tried could not be written: out of space\."):
        store.write("name", b"")


def full(*_: object) -> None:
    raise ResultError("could not be written: the disk is full.")


def test_units_that_only_an_interruption_needs_leave_a_full_disk_to_the_result(tmp_path, monkeypatch):
    journal = Journal(tmp_path, FACTS, {"out": "a.h5"})
    journal.save("first", UNIT)
    with monkeypatch.context() as patch:
        patch.setattr(journal.place, "write", full)
        with pytest.raises(ResultError, match="the disk is full"):
            journal.save("second", UNIT, needed=True)
        journal.save("third", UNIT, needed=False)
    journal.save("fourth", UNIT, needed=False)
    assert not list(tmp_path.iterdir())
    journal.save("fifth", UNIT, needed=True)
    assert journal.load("fifth") is not None


def test_only_units_of_an_earlier_journal_count_as_reused(tmp_path: Path) -> None:
    Journal(tmp_path, FACTS).save("earlier", UNIT)
    journal = Journal(tmp_path, FACTS, before=frozenset(Folder(tmp_path).names()))
    journal.save("own", UNIT)
    for unit in ("own", "earlier", "earlier", "absent"):
        journal.load(unit)
    assert journal.reused == 1


def test_the_folder_beside_the_result_goes_with_all_that_killed_processes_left(tmp_path: Path) -> None:
    with work_folder(tmp_path / "out.h5") as work:
        work.journal(FACTS).save("unit", UNIT)
        other = Journal(work.path, {"seed": 1})
        other.save("unit", UNIT)
        (work.path / f".{other.path('unit').name}.0a1b2c3d-1-00000000.tmp").touch()
        other.begin("killed", 0, {"by": "nobody"})
        work.journal({"seed": 2}, {"out": "other.h5"}).save("unit", UNIT)
        assert work.path == tmp_path / "out.h5.work"
    assert not work.path.exists()


def test_an_interruption_keeps_the_units_and_says_so_once(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt) as stopped,
        work_folder(tmp_path / "out.h5") as work,
        work_folder(work.path / "part.h5", work.path),
    ):
        work.journal(FACTS).save("unit", UNIT)
        raise KeyboardInterrupt
    note = f"finished parts are kept in {work.path}: the same command resumes from them."
    assert stopped.value.__notes__ == [note]
    with work_folder(tmp_path / "out.h5") as again:
        assert again.journal(FACTS).load("unit") is not None


@pytest.mark.skipif(os.name != "posix", reason="locks of files")
@pytest.mark.parametrize("work", [None, "mine"])
def test_of_two_requests_for_one_result_the_second_is_refused_and_the_first_keeps_its_units(tmp_path, work):
    out, folder = tmp_path / "out.h5", None if work is None else tmp_path / work
    with work_folder(out, request={"seed": 0}) as first:
        (journal := first.journal(FACTS)).save("unit", UNIT)
        with (
            pytest.raises(RequestError, match=r"out.h5: a run with other settings is at work on this result"),
            work_folder(out, folder, request={"seed": 1}),
        ):
            raise AssertionError
        assert journal.load("unit") is not None
        with work_folder(tmp_path / "other.h5", request={"seed": 1}), sole_request(out, {"seed": 0}):
            pass
    with work_folder(out, folder, request={"seed": 1}):
        pass
    assert [*tmp_path.iterdir()] == ([] if folder is None else [folder])


@pytest.mark.skipif(os.name != "posix", reason="locks of files")
def test_a_killed_run_keeps_nobody_from_its_result(tmp_path: Path) -> None:
    code = "import sys; from bnuq.files.writing import sole_request\n"
    code += "with sole_request(__import__('pathlib').Path(sys.argv[1]), 1): print('in', flush=True); sys.stdin.read()"
    out = tmp_path / "out.h5"
    with subprocess.Popen([sys.executable, "-c", code, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"in\n"
        with pytest.raises(RequestError, match="other settings"), sole_request(out, 2):
            raise AssertionError
        run.kill()
    with sole_request(out, 2):
        assert [path.name for path in tmp_path.iterdir()] == [".out.h5.lock"]
    assert not [*tmp_path.iterdir()]


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


def test_a_work_folder_with_a_nul_in_its_name_is_refused():
    with pytest.raises(RequestError, match="no folder has a NUL character in its name"):
        place_of("a\0b")
