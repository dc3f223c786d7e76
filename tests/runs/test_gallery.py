"""The pictures that say most: which they are, in the file, on the page, and left out on request."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import small_run
from PIL import Image
from records_at_rest import without_digest

from bnuq.cli.main import main
from bnuq.errors import ResultError
from bnuq.evaluation import gallery
from bnuq.evaluation.gallery import OF_EACH
from bnuq.records.evaluation_file import read, write
from bnuq.report.evaluation import report
from bnuq.report.render.html import page

TITLE = "Most informative images"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run whose points are grey pictures of 0–255, as small as the network takes them."""
    folder = tmp_path_factory.mktemp("pictures")
    small_run.write(folder)
    rng = np.random.default_rng(0)
    for name, count in (("train", 96), ("test", 60), ("other", 50)):
        with np.load(folder / f"{name}.npz") as file:
            rest = {key: values for key, values in file.items() if key != "x"}
        np.savez(folder / f"{name}.npz", x=rng.integers(0, 256, (count, 1, 6, 6), dtype=np.uint8), **rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bnuq.data.points._SMALLEST", 6)
        yield folder


@pytest.fixture(scope="module")
def plain(pictures):
    """The deterministic network alone, on the test set."""
    return small_run.evaluated(pictures, methods=("deterministic",), ood=(), out=pictures / "plain.h5")


@pytest.fixture(scope="module")
def result(pictures):
    return small_run.evaluated(pictures, samples=4, methods=("mcbn",), out=pictures / "result.h5")


def test_they_are_those_of_the_largest_scores_and_are_read_back(pictures, result):
    shown = {(each.kind, each.set): each for each in result.gallery}
    test = result.methods["deterministic"].sets["test"]
    labels = result.sets["test"].labels
    mi = result.methods["mcbn"].sets["test"].points["mutual_information"]
    uncertain = shown["uncertain", "test"]
    assert list(uncertain.points) == sorted(range(60), key=lambda at: -mi[at])[:OF_EACH]
    wrong = [at for at in range(60) if test.predicted[at] != labels[at]]
    expected = sorted(wrong, key=lambda at: -test.points["max_probability"][at])[:OF_EACH]
    assert expected
    assert list(shown["confidently-wrong", "test"].points) == expected
    familiar = result.methods["mcbn"].sets["other"].points["mutual_information"]
    assert list(shown["familiar", "other"].points) == sorted(range(50), key=lambda at: familiar[at])[:OF_EACH]
    with np.load(pictures / "test.npz") as file:
        np.testing.assert_array_equal(uncertain.pixels[..., 0], file["x"][uncertain.points, 0])
    for before, after in zip(result.gallery, read(result.path).gallery, strict=True):
        assert (before.kind, before.set, before.method) == (after.kind, after.set, after.method)
        np.testing.assert_array_equal(before.points, after.points)
        np.testing.assert_array_equal(before.pixels, after.pixels)


def test_the_page_shows_each_with_what_is_known_of_it(result):
    made = report(result)
    shown = page(replace(made, sections=tuple(each for each in made.sections if each.title == TITLE)))
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', shown)
    assert len(found) == sum(len(each.points) for each in result.gallery) <= 48
    first, at = result.gallery[0], result.gallery[0].points[0]
    with Image.open(io.BytesIO(base64.b64decode(found[0][0]))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), first.pixels[0, ..., 0])
    sets = result.methods[first.method].sets["test"]
    label, sure = result.sets["test"].labels[at], sets.points["max_probability"][at]
    assert found[0][1] == f"{label}, predicted {sets.predicted[at]} ({sure:.2f}), example {at}"
    assert shown.count("<summary>8 more</summary>") == sum(len(each.points) == OF_EACH for each in result.gallery) > 0
    assert TITLE not in {each.title for each in report(replace(result, gallery=())).sections}


def test_without_images_the_file_holds_none_and_larger_ones_become_small(pictures, monkeypatch):
    options = {"methods": ("deterministic",), "ood": ()}
    assert small_run.evaluated(pictures, images=False, out=pictures / "none.h5", **options).gallery == ()
    monkeypatch.setattr(gallery, "LARGEST", 4)
    large = small_run.evaluated(pictures, out=pictures / "large.h5", **options)
    assert large.gallery
    assert {each.pixels.shape[1:] for each in large.gallery} == {(4, 4, 1)}


def test_a_baseline_that_is_accepted_says_how_many_it_holds(result, capsys):
    current, baseline = str(result.path), str(result.path.with_name("baseline.h5"))
    count = len({(each.set, at) for each in result.gallery for at in each.points.tolist()})
    for options, said in ((["--update"], True), ([], False)):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["check", current, baseline, *options])
        assert (f"small copies of {count} images" in " ".join(capsys.readouterr().out.split())) == said


def test_points_that_are_no_pictures_have_none(tmp_path):
    small_run.write(tmp_path)
    with np.load(tmp_path / "test.npz") as file:
        assert file["x"].min() < 0, "no pixels"
    assert small_run.evaluated(tmp_path, methods=("deterministic",)).gallery == ()


@pytest.mark.parametrize("broken", ["points", "pixels"])
def test_a_file_with_pictures_of_no_point_is_refused(pictures, result, broken):
    first = result.gallery[0]
    bad = {"points": first.points + 60, "pixels": first.pixels[:-1]}[broken]
    path = pictures / "broken.h5"
    write(replace(result, gallery=(replace(first, **{broken: bad}),), path=path), path)
    with pytest.raises(ResultError, match=r"broken\.h5"):
        read(without_digest(path))  # the bytes of a file that another machine wrote


@pytest.mark.nightly  # as the page of a result without images
def test_a_page_without_images_is_written_on_request(pictures, plain, capsys):
    for options, shown in (((), True), (("--no-images",), False)):
        target = pictures / f"page{len(options)}.html"
        with pytest.raises(SystemExit, match="0"):
            main(["report", str(plain.path), "--html", str(target), *options])
        assert (TITLE in target.read_text(encoding="utf-8")) is shown
    assert TITLE not in capsys.readouterr().out
