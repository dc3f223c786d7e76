"""The pictures of a result: those that it has, of what its file holds, the same bytes every time."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from PIL import Image
from sklearn.metrics import auc as area_under
from sklearn.metrics import roc_curve as roc_by_scikit

from bnuq.errors import RequestError, ResultError
from bnuq.methods import METHOD_NAMES
from bnuq.metrics import auroc
from bnuq.metrics.registry import estimates_of_task
from bnuq.records import evaluation_file as result_file
from bnuq.records.evaluation import Result
from bnuq.report import calibration_plots, drawing, evaluation_plots, separation_plots
from bnuq.report.evaluation import report
from bnuq.report.numbers import named
from bnuq.report.ood import column_score
from bnuq.report.plotting import line_styles
from bnuq.report.render import draw_pictures
from bnuq.report.separation_plots import roc_curve


def draw(result: Result, folder: Path, form: drawing.Format = "svg") -> tuple[Path, ...]:
    return draw_pictures(report(result), folder, form)


def draw_one(result: Result, folder: Path, stem: str) -> None:
    """As `draw`, of one picture."""
    folder.mkdir(exist_ok=True)
    files = {drawing.file_name(*picture.kind, kind="svg"): picture for picture in report(result).pictures}
    files[f"{stem}.svg"].draw(folder / f"{stem}.svg")


def names(paths: tuple[Path, ...]) -> list[str]:
    return [path.stem for path in paths]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Axes]]:
    """The axes of every picture that is drawn, by its file's stem."""
    drawn: dict[str, list[Axes]] = {}

    @contextlib.contextmanager
    def keeping(path, **asked):
        with drawing.picture(path, **asked) as axes:
            yield axes
        drawn[path.stem] = axes

    for module in (calibration_plots, evaluation_plots, separation_plots):
        monkeypatch.setattr(module, "picture", keeping)
    return drawn


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    [curve] = [each for each in axes.get_lines() if each.get_label() == label]
    return np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())


# ── which ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "regression",
            [
                *("interval_calibration", "risk_coverage", "ood_far", "roc_far", "convergence"),
                *("uncertainty_error_mcbn", "uncertainty_error_mcdo", "uncertainty_error_mcbn+mcdo"),
            ],
        ),
        (
            "without_tau",
            ["risk_coverage", "ood_far", "roc_far", "convergence", "uncertainty_error_mcbn", "uncertainty_error_mcdo"],
        ),
        ("four_methods", ["reliability", "risk_coverage", "ood_other", "roc_other", "convergence"]),
        ("deterministic", ["reliability", "risk_coverage"]),
    ],
)
def test_a_result_has_the_pictures_that_its_estimates_allow(request, tmp_path, name, expected):
    result = result_file.read(request.getfixturevalue(name).path)
    assert [drawing.file_name(*picture.kind, kind="svg") for picture in report(result).pictures] == [
        f"{stem}.svg" for stem in expected
    ]
    if name == "deterministic":
        assert names(draw(result, tmp_path)) == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{stem}.svg" for stem in expected)


def test_png_is_drawn_where_it_is_asked_for(deterministic, tmp_path):
    for path in draw(deterministic, tmp_path, "png"):
        with Image.open(path) as picture:
            assert picture.format == "PNG" and picture.width > 700
            pixels = np.asarray(picture.convert("L"))
        assert (pixels == 255).mean() > 0.5 and (pixels < 128).sum() > 1000  # on white, and not empty


# ── of what ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uncertainty_and_error_holds_bands_running_mean_dots_and_the_constant(regression, tmp_path, drawn):
    draw_one(regression, tmp_path, "uncertainty_error_mcdo")
    [axes] = drawn["uncertainty_error_mcdo"]
    method = regression.methods["mcdo"]
    curve = method.uncertainty_error
    bands = {band.get_label(): band.get_paths()[0].vertices for band in axes.collections[:2]}
    for label, factor in (("95 % of errors expected", 1.959964), ("50 % of errors expected", 0.674490)):
        assert bands[label][:, 1].max() == pytest.approx(factor * curve["sigma"].max(), rel=1e-5)
    dots = np.asarray(axes.collections[2].get_offsets())
    np.testing.assert_allclose(dots[:, 1], curve["error"])
    np.testing.assert_allclose(dots[:, 0], np.arange(1, 61))
    np.testing.assert_allclose(line(axes, "running mean of |error|")[1], curve["running_error"])
    np.testing.assert_allclose(line(axes, "constant σ")[1], method.bounds["constant"]["sigma"].value)
    assert axes.get_xlabel() == "test examples, sorted by predicted σ"
    assert axes.get_ylabel() == "|error| (target unit)"
    title, about = (text.get_text() for text in axes.figure.texts)
    assert title == "Uncertainty and error, mcdo" and about == "model.pt, test set, 60 examples, 16 samples"


def test_bands_promise_no_shares_where_sigma_is_of_the_draws_alone_or_of_several_outputs(
    without_tau, two_outputs, tmp_path, drawn
):
    for result in (without_tau, two_outputs):
        draw_one(result, tmp_path, "uncertainty_error_mcdo")
        [axes] = drawn["uncertainty_error_mcdo"]
        labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
        assert {"0.67 σ", "1.96 σ"} <= set(labels) and not any("expected" in label for label in labels)


def test_curves_are_those_of_the_file(regression, four_methods, tmp_path, drawn):
    for stem in ("interval_calibration", "convergence"):
        draw_one(regression, tmp_path / "a", stem)
    for name, method in regression.methods.items():
        x, y = line(drawn["interval_calibration"][0], name)
        np.testing.assert_allclose((x, y), (method.calibration["level"], method.calibration["coverage"]))
    panels = dict(zip(estimates_of_task("regression", shown="curve"), drawn["convergence"], strict=True))
    for metric, axes in panels.items():
        convergence = regression.methods["mcbn"].convergence
        np.testing.assert_allclose(line(axes, "mcbn"), (convergence["samples"], convergence[metric]))
    assert panels["crps"].get_ylabel() == "CRPS (target unit)" and panels["pll"].get_ylabel() == "PLL (nats)"
    draw_one(four_methods, tmp_path / "b", "risk_coverage")
    for name, method in four_methods.methods.items():
        np.testing.assert_allclose(
            line(drawn["risk_coverage"][0], name), (method.risk["coverage"], method.risk["risk"])
        )


def test_reliability_is_drawn_of_every_bin_and_lines_join_those_of_enough_points(four_methods, tmp_path, drawn):
    method = four_methods.methods["mcbn"]
    count = np.zeros(15)
    count[[4, 7, 11]] = 1, 20, 39
    calibration = {"bin": np.arange(15), "count": count, "confidence": np.linspace(0.03, 0.97, 15)}
    calibration["accuracy"] = np.where(count > 0, 0.5, np.nan)
    changed = replace(method, calibration=calibration)
    draw_one(replace(four_methods, methods=dict(four_methods.methods) | {"mcbn": changed}), tmp_path, "reliability")
    upper, lower = drawn["reliability"]
    ece = method.sets["test"].estimates["ece"].value
    joined, _ = line(upper, f"mcbn, ECE {100 * ece:.1f} %")
    np.testing.assert_allclose(joined, calibration["confidence"][[7, 11]])
    hollow = [each for each in upper.get_lines() if each.get_markerfacecolor() == "none"]
    assert any(list(each.get_xdata()) == [calibration["confidence"][4]] for each in hollow)
    assert lower.get_ylabel() == "examples (%)"


def test_an_ood_set_is_drawn_by_the_score_of_largest_auroc(four_methods, tmp_path, drawn):
    best = max(
        (estimates["auroc"].value, method, score)
        for method, each in four_methods.methods.items()
        for score, estimates in each.ood["other"].items()
    )
    draw_one(four_methods, tmp_path, "ood_other")
    [axes] = drawn["ood_other"]
    title, about = (text.get_text() for text in axes.figure.texts)
    assert title.startswith("other against the test set: ")
    assert best[1] in title or "the deterministic network" in title
    assert f"AUROC {best[0]:.3f}" in about and "60 test and 50 other examples" in about


@pytest.mark.parametrize("spread", ["flat", "constant", "heavy"])
def test_every_point_is_in_the_histogram(four_methods, tmp_path, drawn, spread):
    random = np.random.default_rng(0)
    values = {"flat": random.random, "constant": np.ones, "heavy": lambda n: np.exp(5 * random.normal(size=n))}[spread]
    methods = {}
    for name, method in four_methods.methods.items():
        sets = {
            s: replace(each, points={score: values(len(points)) for score, points in each.points.items()})
            for s, each in method.sets.items()
        }
        methods[name] = replace(method, sets=sets)
    draw_one(replace(four_methods, methods=methods), tmp_path, "ood_other")
    [axes] = drawn["ood_other"]
    shares = [patch.get_data().values.sum() for patch in axes.patches if patch.get_label() in ("test set", "other")]
    assert shares == pytest.approx([100, 100])
    assert (axes.get_xscale() == "log") == (spread == "heavy")


def test_at_most_four_roc_curves_are_drawn_of_the_scores_in_the_table_of_methods(four_methods, tmp_path, drawn):
    fifth = replace(four_methods, methods={**four_methods.methods, "tta": four_methods.methods["mcbn"]})
    draw_one(fifth, tmp_path, "roc_other")
    [axes] = drawn["roc_other"]
    curves = [each for each in axes.get_lines() if len(each.get_xdata()) > 2]
    score = column_score(fifth)
    aurocs = {method: each.ood["other"][score]["auroc"].value for method, each in fifth.methods.items()}
    assert len(curves) == 4 < len(aurocs)
    areas = [area_under(curve.get_xdata(), curve.get_ydata()) for curve in curves]
    assert areas == pytest.approx(sorted(aurocs.values(), reverse=True)[:4], abs=1e-12)
    best = max(aurocs, key=lambda method: aurocs[method])
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels[0] == f"{best}, {named(score)}: {aurocs[best]:.3f}"
    assert "4 of 5 methods" in axes.figure.texts[1].get_text()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_the_area_under_a_roc_curve_is_the_auroc_with_ties_in_one_step(test, ood):
    false, true = roc_curve(np.array(test, float), np.array(ood, float))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all() and (np.diff(true) >= 0).all()
    assert area_under(false, true) == pytest.approx(auroc(np.array(test, float), np.array(ood, float)))


def test_a_roc_curve_of_many_points_is_thinned_and_keeps_its_area():
    random = np.random.default_rng(0)
    test, ood = random.normal(size=40_000), random.normal(1, 1, size=30_000)
    false, true = roc_curve(test, ood)
    assert len(false) <= 1001
    assert area_under(false, true) == pytest.approx(auroc(test, ood), abs=1e-5)
    thinned = np.interp(roc_by_scikit(np.r_[test * 0, ood * 0 + 1], np.r_[test, ood])[0], false, true)
    assert np.abs(thinned - roc_by_scikit(np.r_[test * 0, ood * 0 + 1], np.r_[test, ood])[1]).max() < 2e-3


# ── what may go wrong ────────────────────────────────────────────────────────────────────────────────────────────────


def renamed(result: Result, name: str) -> Result:
    """The result, with its OOD set under another name."""
    sets = {name if s == "other" else s: each for s, each in result.sets.items()}
    methods = {
        key: replace(
            method,
            sets={name if s == "other" else s: each for s, each in method.sets.items()},
            ood={name: method.ood["other"]},
        )
        for key, method in result.methods.items()
    }
    return replace(result, sets=sets, methods=methods)


@pytest.mark.nightly
def test_a_name_out_of_a_file_is_drawn_as_it_is_and_leads_nowhere(four_methods, tmp_path):
    name = "../../etc/字$\\frac{\x1b[31m" + "x" * 300
    folder = tmp_path / "deep" / "er"
    plain = replace(four_methods, methods={"deterministic": four_methods.methods["deterministic"]})
    for path in draw(renamed(plain, name), folder):
        assert path.parent == folder and path.is_file()
        assert re.fullmatch(r"[\w+-]{1,80}\.svg", path.name)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["er"]
    assert len(list(folder.iterdir())) == 4


@pytest.mark.nightly
def test_a_result_gives_the_same_bytes_whatever_the_settings_of_matplotlib_which_stay(deterministic, tmp_path):
    plain = [path.read_bytes() for path in draw(deterministic, tmp_path / "a")]
    assert all(picture.startswith(b"<?xml") and b"dc:date" not in picture for picture in plain)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        before = dict(mpl.rcParams)
        assert [path.read_bytes() for path in draw(deterministic, tmp_path / "b")] == plain
        assert dict(mpl.rcParams) == before


def test_a_folder_that_is_a_file_is_refused(four_methods, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match=r"figures cannot be put there: it is a file\. Name a folder"):
        draw(four_methods, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.nightly
def test_an_old_picture_stays_where_the_new_one_cannot_be_written(deterministic, tmp_path):
    [first, *_] = draw(deterministic, tmp_path)
    old = first.read_bytes()
    with pytest.raises(ZeroDivisionError), drawing.picture(first, title="half") as [axes]:
        axes.plot([0, 1])
        raise ZeroDivisionError
    assert first.read_bytes() == old
    with (
        pytest.raises(ResultError, match="its folder does not exist"),
        drawing.picture(tmp_path / "gone" / "x.svg", title="x"),
    ):
        pass


def test_lines_are_told_apart_by_colour_dashes_and_marker():
    lines = list(drawing.line_styles(["deterministic", "mcbn", "mcdo", "mcbn+mcdo"]).values())
    for part in ("colour", "dashes", "marker"):
        assert len({getattr(each, part) for each in lines}) == 4
    for each in lines:
        red, green, blue = (int(each.colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        assert 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.3  # at least 3:1 against white


def test_every_method_has_its_own_look_which_is_the_same_beside_any_others(four_methods):
    def looks(names):
        return line_styles(replace(four_methods, methods=dict.fromkeys(names, four_methods.methods["mcbn"])))

    every = looks([name for name in METHOD_NAMES if not name.startswith("predictions")])
    assert len({(each.colour, each.dashes) for each in every.values()}) == len(every)
    assert every["mcbn"].colour == every["mcbn+temperature"].colour and every["mcbn+temperature"].hollow
    for names in (["deterministic", "mcdo", "mcdo+temperature"], ["mcbn+mcdo", "mcbn", "my file"]):
        assert all(look == every[name] for name, look in looks(names).items() if name in every)
    theirs = looks(["a", "deterministic", "b", "b+temperature"])
    assert len({(each.colour, each.dashes) for each in theirs.values()}) == 4


@pytest.mark.parametrize("stem", ["convergence", "reliability", "risk_coverage"])
def test_a_legend_hides_no_curve_and_no_label(four_methods, tmp_path, drawn, stem):
    draw_one(four_methods, tmp_path, stem)
    panels = drawn[stem]
    [legend] = panels[0].figure.legends
    told = {text.get_text().partition(",")[0] for text in legend.get_texts()}
    assert told >= set(four_methods.methods) and not any(axes.get_legend() for axes in panels)
    box = legend.get_window_extent()
    assert box.y0 >= 0 and all(box.y1 <= axes.get_tightbbox().y0 + 0.5 for axes in panels)
