"""A new metric is a formula and a line in each of two lists, a new OOD score a formula and a row of the table: added to
a copy of the package, they are found everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import small_run

import bnuq

CHANGES = {  # by file: what is put before which text
    "metrics/classification.py": (
        (
            "def predicted(",
            '''def true_probability(p_mean, y):
    """Probability of the true class of each point, from 0 to 1; higher is better.

    Source: this test.
    """
    return p_mean[list(range(len(y))), y]


''',
        ),
    ),
    "metrics/__init__.py": (("    pll_classification as", "    true_probability as true_probability,\n"),),
    "metrics/registry.py": (
        ("    pll_classification,\n", "    true_probability,\n"),
        (
            '    Estimand(\n        "aurc",',
            """    Estimand(
        "true_probability",
        "Mean probability of the true class",
        "true probability",
        "fraction",
        "higher",
        "this test",
        short="true prob.",
        tolerance="0.0123",
        worse="{who} gives the {truth} of {where} less",
        tasks=_CLASSIFICATION,
        needs_truth=True,
        of_mean=true_probability,
    ),
""",
        ),
    ),
}
SCORE_CHANGES = {
    "metrics/posthoc.py": (
        (
            "def by_neighbours(",
            '''def by_feature_norm(reference: Reference) -> PointScore:
    """Mean length of the reference's features minus that of a point's features."""
    typical = float(array_namespace(reference.features).mean(_length(_wide(reference.features))))
    return lambda last: typical - _length(_wide(last.features))


''',
        ),
    ),
    "metrics/registry.py": (
        ("    by_mahalanobis,\n", "    by_feature_norm,\n"),
        (
            '    Estimand(\n        "vim",',
            """    Estimand(
        "feature_norm",
        "Missing length of the features",
        "missing length of the features",
        "1",
        "none",
        "this test",
        short="feat. norm",
        limits=UNBOUNDED,
        score=Score("last layer", fit=by_feature_norm),
    ),
""",
        ),
    ),
}
COMMANDS = """
import sys
from bnuq.cli.main import main

terminal, codes = sys.stdout, []
for number, line in enumerate(sys.stdin.read().splitlines()):
    with open(f"{number}.txt", "w") as sys.stdout:
        try:
            main(line.split())
        except SystemExit as leave:
            codes.append(leave.code)
print(codes, file=terminal)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small network, evaluated twice by a copy of the package with the new metric."""
    folder = tmp_path_factory.mktemp("added")
    small_run.write(folder)
    package = folder / "copy" / "bnuq"
    shutil.copytree(Path(bnuq.__file__).parent, package)
    for name, changes in (*CHANGES.items(), *SCORE_CHANGES.items()):
        text = (package / name).read_text()
        for before, added in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, added + before)
        (package / name).write_text(text)
    lines = (
        "evaluate run.toml --method mcbn -T 8 --seed 0 -o a.h5 --quiet",
        "evaluate run.toml --method mcbn -T 8 --seed 1 -o b.h5 --quiet",
        "report a.h5 --json",
        "report a.h5 --full",
        "check b.h5 a.h5 --json --gate true_probability",
        "check b.h5 --require mcbn.sets.test.true_probability>=0.999",
        "metrics",
    )
    environment = os.environ | {"PYTHONPATH": str(package.parent), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], input="\n".join(lines), cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[0, 0, 0, 0, 0, 1, 0]\n"), done.stderr
    return folder


def printed(folder: Path, number: int) -> str:
    return (folder / f"{number}.txt").read_text()


def test_a_metric_touches_the_file_of_its_formula_and_two_lists() -> None:
    assert len(CHANGES) == 3


def test_an_ood_score_touches_the_file_of_its_formula_and_the_table() -> None:
    assert len(SCORE_CHANGES) == 2


def test_a_new_score_separates_ood_sets_in_the_json_the_report_and_the_gate(folder: Path) -> None:
    separation = json.loads(printed(folder, 2))["methods"]["deterministic"]["ood"]["other"]["feature_norm"]
    assert 0 <= separation["auroc"]["value"] <= 1 and separation["auroc"]["low"] is not None
    assert "feat. norm" in printed(folder, 3)
    addresses = {row["address"] for row in json.loads(printed(folder, 4))["comparisons"]}
    assert "deterministic.ood.other.feature_norm.auroc" in addresses


def test_a_new_metric_is_a_row_of_the_table_in_the_file(folder: Path) -> None:
    with h5py.File(folder / "a.h5") as file:
        columns = [file["estimates"][name].asstr()[()] for name in ("method", "set", "metric", "unit")]
        row = list(zip(*columns, strict=True)).index(("mcbn", "test", "true_probability", "1"))
        assert 0 < file["estimates/value"][row] < 1 and file["estimates/mc_se"][row] > 0


def test_a_new_metric_is_in_the_json_with_both_errors(folder: Path) -> None:
    estimate = json.loads(printed(folder, 2))["methods"]["mcbn"]["sets"]["test"]["true_probability"]
    assert estimate.keys() == {"value", "se", "mc_se", "low", "high"}


def test_a_new_metric_has_a_row_in_the_report(folder: Path) -> None:
    assert "↑ true prob." in printed(folder, 3)


def test_a_new_metric_is_gated_by_its_tolerance_and_may_be_required(folder: Path) -> None:
    comparisons = json.loads(printed(folder, 4))["comparisons"]
    (comparison,) = [row for row in comparisons if row["address"] == "mcbn.sets.test.true_probability"]
    assert comparison["tolerance"] == 0.0123 and 0 <= comparison["p_adjusted"] <= 1
    assert "mcbn.sets.test.true_probability is 0." in printed(folder, 5)


def test_bnuq_metrics_lists_a_new_metric(folder: Path) -> None:
    assert "Mean probability of the true class\n" in printed(folder, 6)
