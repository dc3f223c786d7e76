"""The numbers of every sample configuration and command, as they were: `make golden` writes them again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_multilabel
import small_run
import summary_schemas
import torch
from cut_sets import ROOT, write_samples, write_set

from bnuq import metrics
from bnuq.cli.main import main

GOLDEN = Path(__file__).resolve().parent
SWEPT = ["--limit", "20", "--samples", "2", "--draw-sets", "2", "--full-grid"]
LESS = ["--limit", "40", "--samples", "6"]
DIGITS, PICTURES = "data/ood/pcbdigits32.npz", "data/cifar10/lossless_test.npz"
CASES = {
    "quickstart": ["evaluate", "quickstart.toml", *LESS],
    "regression": ["evaluate", "regression.toml", *LESS],
    "camvid": ["evaluate", "camvid.toml", "--limit", "20", "--samples", "4", "--method", "mcbn"],
    "cifar_resnet20": ["evaluate", "cifar_resnet20.toml", *LESS],
    "cifar_resnet32": ["evaluate", "cifar_resnet32.toml", *LESS],
    "cifar_resnet56": ["evaluate", "cifar_resnet56.toml", "--limit", "20", "--samples", "4"],
    "fmnist_mlp": ["evaluate", "fmnist_mlp.toml", *LESS],
    "mnist_mlp": ["evaluate", "mnist_mlp.toml", *LESS],
    "svhn_cnn": ["evaluate", "svhn_cnn.toml", *LESS, "--train", DIGITS, "--test", DIGITS, "--ood", PICTURES],
    "multilabel": ["evaluate", "multilabel/run.toml"],
    "learned": ["evaluate", "learned/run.toml"],
    "sweep": ["sweep-batch-size", "fmnist_mlp.toml", *SWEPT],
    "inspect": ["inspect", "quickstart.toml"],
    "precise_bn": ["precise-bn", "quickstart.toml", "--test", "quickstart/fashion_test.npz", "--out", "precise.pt"],
    "check": ["check", "other.h5", "quickstart.h5"],
}
SELF_CONTAINED = {"quickstart", "regression", "multilabel", "learned", "inspect", "precise_bn", "check"}
TRAINED_HERE = {"multilabel", "learned"}
NIGHTLY = {"camvid", "check", "cifar_resnet20", "cifar_resnet32", "cifar_resnet56", "inspect", "learned", "mnist_mlp"}
NIGHTLY |= {"svhn_cnn", "sweep"}
NOT_ESTIMATES = {
    *("seconds", "work", "warnings", "notes", "result", "schema", "low", "high", "by_class", "convergence"),
    "points_needed",  # goes with the square of a small difference
}
RANKS = {*metrics.SEPARATIONS, *metrics.SELECTIVE, "auroc_errors", "scod"}


def test_there_are_numbers_for_every_sample_configuration() -> None:
    configurations = {path.stem for path in (ROOT / "sample_configs").glob("*.toml")}
    assert configurations <= CASES.keys() == {path.stem for path in GOLDEN.glob("*.json")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name for name in CASES]
)
def test_numbers_are_those_of_before(name, folder, monkeypatch, capsys, request):
    if name in TRAINED_HERE and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("torch 2.6 draws other random numbers, and so trains another network")
    if name not in SELF_CONTAINED:
        link_data(folder, request.getfixturevalue("data_pack"))
    monkeypatch.chdir(folder)
    if name == "check":
        for seed, out in (("0", "quickstart.h5"), ("1", "other.h5")):
            arguments = ["evaluate", "quickstart.toml", "--samples", "8", "--seed", seed, "--out", out, "--quiet"]
            assert main_code(arguments) == 0
    code = main_code([*CASES[name], "--json"])
    assert code in ((0, 1) if name == "check" else (0,))
    summary = json.loads(capsys.readouterr().out)
    assert summary_schemas.errors(summary, f"{summary['command']}-v2") == []
    numbers = dict(leaves(summary))
    path = GOLDEN / f"{name}.json"
    if request.config.getoption("--remake"):
        path.write_text(json.dumps(numbers, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8"))
    assert numbers.keys() == before.keys()
    # Another processor rounds float32 otherwise.
    assert {key: (value, before[key]) for key, value in numbers.items() if not near(key, value, before[key])} == {}


def main_code(arguments: list[str]) -> Any:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def near(key: str, value: Any, before: Any) -> bool:
    """Whether rounding in float32 explains the difference.

    It may swap neighbours in a ranking of n test and m OOD points, some 50 each here. Of the estimates by ranks, a swap
    moves AUROC by 1/(nm), and those that count the points above a threshold by up to 1/n; a Monte Carlo error is made
    of the small changes between replicates, and a swap in one of them is a few percent of it.
    """
    if not isinstance(value, float) or not isinstance(before, int | float):
        return value == before
    by_rank = bool(RANKS.intersection(key.split(".")))
    of_draws = by_rank and key.endswith(".mc_se")
    if key.startswith("comparisons."):  # of two results, by number: its errors may be those of ranks
        of_draws = key.endswith((".se", ".se_draws", ".detectable"))
    return math.isclose(value, before, rel_tol=0.05 if of_draws else 1e-3, abs_tol=1e-3 if by_rank else 1e-5)


def leaves(value: Any, address: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers, truths and outcomes of a summary by their addresses, floats to nine digits."""
    if isinstance(value, dict):
        for key in sorted(value.keys() - NOT_ESTIMATES):
            yield from leaves(value[key], f"{address}.{key}".lstrip("."))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from leaves(item, f"{address}.{position}")
    elif isinstance(value, float):
        yield address, float(f"{value:.9g}")
    elif isinstance(value, int | bool) or address.endswith("outcome"):
        yield address, value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sample_configs/ with fewer points of the quickstart, a network of several labels, and one with learned noise."""
    place = write_samples(tmp_path_factory.mktemp("golden") / "sample_configs", points=60)
    small_multilabel.write(place / "multilabel")
    small_run.write_noisy(place / "learned")
    return place


def link_data(folder: Path, data_pack: Path) -> None:
    """The data pack as the configurations expect it, with 500 points of the CIFAR sets."""
    if (folder / "data").exists():
        return
    (folder / "data").mkdir()
    for name in ("checkpoints", "fashion-mnist", "mnist", "camvid"):
        (folder / "data" / name).symlink_to(data_pack / name)
    for name in ("cifar10/lossless_train.npz", "cifar10/lossless_test.npz", "ood/pcbdigits32.npz"):
        (folder / "data" / name).parent.mkdir(exist_ok=True)
        write_set(data_pack / name, folder / "data" / name, 500)
