"""`--ood openood:cifar10`: a published suite of OOD sets, near and far, read in its publisher's layout."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import openood_tree
import pytest
import small_run

from bnuq import metrics
from bnuq.data import load_points
from bnuq.errors import DataError, RequestError
from bnuq.files.suites import benchmark_of, members_of, references_in, suites
from bnuq.records.evaluation_file import read
from bnuq.records.suites import Part, parts_of_suites
from bnuq.report.evaluation import report
from bnuq.report.render import print_record

NEAR, FAR = ("cifar100", "tin"), ("mnist", "svhn", "texture", "places365")


def test_a_suite_stands_for_its_sets_near_and_far(tmp_path):
    assert [(m.distance, m.name) for m in suites()["openood:cifar10"]] == [
        *(("near", name) for name in NEAR),
        *(("far", name) for name in FAR),
    ]
    assert [m.name for m in members_of("openood:cifar100:near")] == ["cifar10", "tin"]
    large = ("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o")
    assert tuple(m.name for m in members_of("openood:imagenet200")) == large
    assert [m.pictures for m in members_of("openood:imagenet:far")] == [
        "images_largescale", "images_classic", "images_largescale",
    ]  # fmt: skip
    assert all(benchmark_of(suite) for suite in suites())
    assert references_in("svhn") == ("svhn",)
    assert references_in("x=openood:cifar10:near:tin") == ("x=openood:cifar10:near:tin",)
    for wrong in ("openood:cifar11", "openood:cifar10:tin", "x=openood:cifar10"):
        with pytest.raises(RequestError):
            references_in(wrong)
    with pytest.raises(RequestError, match="several sets, which only --ood takes"):
        load_points("openood:cifar10", data_root=tmp_path)


@pytest.mark.parametrize("below", ["", "openood"])
def test_a_set_is_read_from_its_list_without_labels(tmp_path, below):
    openood_tree.write(tmp_path / below)
    points = load_points("openood:cifar10:near:tin", data_root=tmp_path, ood=True)
    assert (points.name, points.reference, len(points)) == ("tin", "openood:cifar10:near:tin", 12)
    assert points.targets is None and points.point_shape == (1, 6, 6)
    assert points.names is not None and points.names[3] == "tin/class 1/3.png"
    (tmp_path / below / "images_classic" / points.names[3]).unlink()
    with pytest.raises(DataError, match=r"row 3 .* names 'tin/class 1/3.png'.*OpenOOD publishes lists and images"):
        load_points("openood:cifar10:near:tin", data_root=tmp_path, ood=True)


def test_what_is_missing_is_named_at_once_with_how_it_is_published(cli, small, tmp_path):
    openood_tree.write(tmp_path / "root")
    for name in ("tin", "svhn"):
        (tmp_path / "root" / "benchmark_imglist" / "cifar10" / f"test_{name}.txt").unlink()
    arguments = ("--data-root", tmp_path / "root")
    for command in (("evaluate", small / "run.toml", "--ood", "openood:cifar10"), ("data", "get", "openood:cifar10")):
        done = cli(*command, *arguments)
        lines = done.message.splitlines()
        assert done.code == 2 and lines[0] == "openood:cifar10: 2 of its 6 sets are missing:"
        assert lines[1:4] == [
            "  benchmark_imglist/cifar10/test_tin.txt, with its images in images_classic/",
            "  benchmark_imglist/cifar10/test_svhn.txt, with its images in images_classic/",
            "Looked in:",
        ]
        assert lines[4] == f"  {tmp_path / 'root'}" and "download.py" in lines[-1]
        assert "--datasets cifar-10, and name that folder" in lines[-1]
    done = cli("data", *arguments)
    assert done.code == 0
    assert "openood:cifar10  (OOD sets of OpenOOD v1.5, for --ood)\n  near   cifar100, tin\n  far    mnist" in done.out
    assert "found  not tin, svhn\n" in done.out


def test_the_result_records_near_and_far_and_reports_their_means(cli, small, tmp_path):
    openood_tree.write(tmp_path / "root")
    (small / "run.toml").write_text(small_run.RUN.replace('"other.npz"', '"openood:cifar10"'))
    few = ("--method", "mcbn", "--no-post-hoc")
    done = cli("evaluate", small / "run.toml", "--data-root", tmp_path / "root", "--out", "r.h5", "--json", *few)
    assert done.code == 0, done
    summary = json.loads(done.out)
    parts = summary["suites"]["openood:cifar10"]
    assert {distance: part["sets"] for distance, part in parts.items()} == {"near": [*NEAR], "far": [*FAR]}
    aurocs = [summary["methods"]["mcbn"]["ood"][name]["mutual_information"]["auroc"]["value"] for name in FAR]
    mean = parts["far"]["auroc"]["mcbn"]["mutual_information"]
    assert mean["value"] == pytest.approx(np.mean(aurocs)) and mean["se"] > 0 and mean["mc_se"] > 0
    assert read(Path("r.h5")).sets["svhn"].reference == "openood:cifar10:far:svhn"
    done = cli("report", "r.h5", "--full")
    assert "openood:cifar10, near and far" in done.out
    assert "near, 2 sets" in done.out and "far, 4 sets" in done.out
    assert "far, mean of 4" in cli("report", "r.h5").out
    assert cli("evaluate", "--from", "r.h5", "--trust-code", "-T", "2", "--limit", "5", "--out", "again.h5").code == 0


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    small = tmp_path_factory.mktemp("small")
    small_run.write(small)
    openood_tree.write(small / "root", count=40)
    return small_run.evaluated(
        small, data_root=str(small / "root"), ood=("openood:cifar10:near",), methods=("mcbn",), post_hoc=False
    )


def test_the_mean_of_one_set_has_its_error_and_of_two_that_of_a_bootstrap(result):
    method, score = "mcbn", "predictive_entropy"
    for name in NEAR:
        one = Part("near", (name,)).mean_aurocs(result, method)[score]
        own = result.methods[method].ood[name][score]["auroc"]
        assert (one.value, one.se, one.mc_se) == pytest.approx((own.value, own.se, own.mc_se))
    mean = Part("near", NEAR).mean_aurocs(result, method)[score]
    found = result.methods[method].sets
    inside, *outside = (found[name].points[score] for name in ("test", *NEAR))
    random, values = np.random.default_rng(0), []
    for _ in range(1000):
        again = random.choice(inside, len(inside))
        values.append(np.mean([metrics.auroc(again, random.choice(each, len(each))) for each in outside]))
    assert mean.se == pytest.approx(np.std(values), rel=0.1)
    assert parts_of_suites(result) == {"openood:cifar10": (Part("near", NEAR),)}
    others = {**result.sets, "tin": replace(result.sets["tin"], reference="tin.npz")}
    assert parts_of_suites(replace(result, sets=others)) == {"openood:cifar10": (Part("near", NEAR[:1]),)}


def test_the_report_of_a_suite_fits_a_narrow_terminal(result, capsys):
    for full in (True, False):
        print_record(report, result, sys.stdout, full=full, width=40)
        assert all(len(line) <= 40 or line == str(result.path) for line in capsys.readouterr().out.splitlines())
