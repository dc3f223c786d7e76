"""Several processes compute the units of a run, are killed, and the result is bitwise that of one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import small_segmentation

from bnuq.config import Options, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.executors import Share
from bnuq.files.journal import Journal
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.shards import compute_shard, merge, share_of

pytestmark = pytest.mark.held(False)
SMALL: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "classification": (small_run.write, {"methods": ("mcbn", "mcdo"), "chunk_size": 10, "validation": "test.npz"}),
    "regression": (small_regression.write, {"chunk_size": 10}),
    "segmentation": (small_segmentation.write, {"chunk_size": 4, "save_maps": True}),
}


def evaluated(folder: Path, name: str, work: Path | str | None = None, **options: Any) -> Result:
    evaluate(resolve("run.toml", Options(out=folder / name, **options), folder=folder), work=work)
    return read(folder / name)


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Bitwise, NaN included; seconds and what it took aside."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for name, value in expected.items():
            assert_same(found[name], value, f"{place}.{name}")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, place
        np.testing.assert_array_equal(found, expected, err_msg=place)
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected), place)
    else:
        assert found == expected or (found != found and expected != expected), place


def figures(result: Result) -> dict[str, Any]:
    """All of a result but times, paths and the machine."""
    maps = {
        (method, name): list(each.maps)
        for method, of_method in result.methods.items()
        for name, each in of_method.sets.items()
        if each.maps is not None
    }
    estimates = {
        method: {
            name: value if name != "sets" else {key: vars(each) | {"maps": None} for key, each in value.items()}
            for name, value in vars(of_method).items()
        }
        for method, of_method in result.methods.items()
    }
    return {
        "methods": estimates,
        "maps": maps,
        "sets": {name: vars(each) | {"reference": None} for name, each in result.sets.items()},
        "bank": result.bank,
        "units": dict(result.units),
        "root": result.provenance["units"],
        "gallery": list(result.gallery),
        "findings": [finding.code for finding in result.findings],
    }


@pytest.mark.parametrize("kind", SMALL)
def test_two_processes_give_the_figures_of_one(tmp_path: Path, kind: str) -> None:
    write, options = SMALL[kind]
    write(tmp_path)
    one = evaluated(tmp_path, "one.h5", **options)
    two = evaluated(tmp_path, "two.h5", on="local:2", **options)
    assert_same(figures(two), figures(one))
    assert len(one.units) > 10 and not (tmp_path / "two.h5.work").exists()


# ── shards ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def shard(folder: Path, text: str, work: Path, **options: Any) -> None:
    run = resolve("run.toml", Options(shard=text, out=folder / "merged.h5", **options), folder=folder)
    compute_shard([run], str(work), say=str)


@pytest.mark.parametrize("kind", SMALL)
def test_shards_merge_to_the_result_of_one_process(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Share, "__init__", partialmethod(Share.__init__, patience=0.0))  # take over at once
    write, options = SMALL[kind]
    write(tmp_path)
    work = tmp_path / "units"
    shard(tmp_path, "1/3", work, **options)
    before = len([*work.glob("*.part")])
    with pytest.raises(ResultError, match=r"units are missing, and what depends on them:\n  - mc"):
        merge(str(work), Options(trust_code=True), folder=tmp_path)
    assert not (tmp_path / "merged.h5").exists() and len([*work.glob("*.part")]) == before
    for text in ("2/3", "0/3"):
        shard(tmp_path, text, work, **options)
    assert not [*work.glob("*.try*")]
    merge(str(work), Options(trust_code=True), folder=tmp_path)
    assert_same(figures(read(tmp_path / "merged.h5")), figures(evaluated(tmp_path, "one.h5", **options)))
    assert not [*work.iterdir()]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "3"}, (1, 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "6"}, (5, 6)),
        ({"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_COUNT": "6", "SLURM_ARRAY_TASK_MIN": "1"}, (5, 6)),
        ({"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "2"}, (0, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1)),
    ],
)
def test_a_launcher_says_which_shard_this_is(environment: dict[str, str], expected: tuple[int, int]) -> None:
    share = share_of("env", environment)
    assert (share.number, share.count) == expected
    assert {share.order([()] * 7)[0][0]} == {share.number} and share.fixed


@pytest.mark.parametrize(
    ("shard", "work", "complaint"),
    [
        ("3/3", "w", "parts are numbered from 0 to 2"),
        ("env", "w", "none of these is set: RANK and WORLD_SIZE"),
        ("0/2", None, "--shard 0/2 needs --work"),
        ("0/2", "memory://w", "is the memory of this process"),
    ],
)
def test_shards_that_cannot_be_are_refused(tmp_path: Path, shard: str, work: str | None, complaint: str) -> None:
    small_run.write(tmp_path)
    run = resolve("run.toml", Options(shard=shard), folder=tmp_path)
    with pytest.raises(RequestError, match=complaint):
        compute_shard([run], work)


def test_a_folder_of_nothing_or_of_several_requests_is_not_merged(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there are no units of an evaluation"):
        merge(str(tmp_path / "none"), Options(), folder=tmp_path)
    for seed in range(2):
        about = {"command": "evaluate", "out": f"{seed}.h5", "run": {}}
        Journal(tmp_path, {"seed": seed}, about).save("unit", {})
    with pytest.raises(RequestError, match=r"units of 2 requests \((0.h5, 1.h5|1.h5, 0.h5)\)"):
        merge(str(tmp_path), Options(), folder=tmp_path)
