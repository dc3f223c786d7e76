"""The report and the picture of a sweep over mini-batch sizes: nothing cut, and in words that its numbers bear out."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_sweep
from matplotlib.axes import Axes
from PIL import Image

from bnuq.cli.report import command
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.records.sweep import Decay, Repeated, Sweep, SweepPoint, write
from bnuq.report import drawing
from bnuq.report.sweep import print_sweep, save_figures

HERE = Path("/results/of/a/long/path/that/is/printed/whole/sweep.h5")
LONG = "even_stranger_things_seen_at_night_from_far"


def drawn(sweep: Sweep, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_sweep(sweep, stream, width)
    stream.flush()
    return raw.getvalue().decode(encoding)


def words(sweep: Sweep) -> str:
    """What is said in short, on one line."""
    text = drawn(sweep).partition("In short\n")[2].partition("\n\n")[0]
    return " ".join(text.split())


def changed(sweep: Sweep, change: Callable[[SweepPoint], SweepPoint]) -> Sweep:
    return replace(sweep, points=tuple(map(change, sweep.points)))


def long_names() -> Sweep:
    """Both protocols, with names too long for a column."""
    made = small_sweep.both()

    def renamed(point: SweepPoint) -> SweepPoint:
        estimates = {m: {LONG if n == "svhn" else n: f for n, f in by.items()} for m, by in point.estimates.items()}
        auroc = {s: {LONG if n == "svhn" else n: f for n, f in by.items()} for s, by in point.auroc.items()}
        return replace(point, estimates=estimates, auroc=auroc)

    sets = tuple(replace(one, name=LONG) if one.name == "svhn" else one for one in made.sets)
    models = tuple(replace(one, name=f"{'very_' * 12}{one.name}", decay={}) for one in made.models)
    return replace(changed(made, renamed), sets=sets, models=models)


SWEEPS = {**small_sweep.ALL, "long_names": long_names}


# ── how it is laid out ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(name, width, encoding):
    report = drawn(replace(SWEEPS[name](), path=HERE), width=width, encoding=encoding)
    long = {str(HERE), *(word for word in report.split() if len(word) > 40)}
    for line in report.splitlines():
        assert len(line) <= width or line.strip() in long, line
        assert line == line.rstrip()
    assert str(HERE) in report


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", small_sweep.ALL)
def test_every_estimate_of_the_tables_is_shown_at_every_width(name, width):
    sweep = small_sweep.ALL[name]()
    report = drawn(sweep, width=width)
    shown = ("accuracy", "pll", "ece") if sweep.task == "classification" else ("pll", "coverage95")
    for point in sweep.points:
        assert f"{point.batch_size:,}" in report
        for metric in shown:
            assert f"{point.estimates[metric]['test'].estimate.value:.4f}".replace("-", "−") in report
        for one in point.auroc.get("mutual_information", {}).values():
            assert f"{one.estimate.value:.3f}" in report
        if point.elbo is not None:
            assert f"{point.elbo.kl:.0f}" in report
            assert f"{point.elbo.elbo.value:.0f}".replace("-", "−") in report


def test_small_mutual_information_and_its_error_show_digits():
    report = drawn(small_sweep.single(), width=120)
    found = small_sweep.single().points[5].estimates["mutual_information"]["test"].estimate
    assert f"{found.value:.5f}" == "0.00113" and "0.00113" in report and "±0.00004" in report


def test_the_protocols_have_tables_of_their_own():
    report = drawn(small_sweep.both())
    single, matched = report.index("\nOne network: resnet.pt\n"), report.index("\nA network for each size\n")
    assert single < matched
    assert "m32.pt" not in report[single:matched] and "m32.pt" in report[matched:]
    rows = re.findall(r"^ +([\d,]+\*?) +0\.\d{4} ", report[single:matched], flags=re.MULTILINE)
    assert rows == ["32", "64", "128", "256", "512", "1,024", "4,096*"]
    assert re.findall(r"^ +([\d,]+) +m\d+\.pt ", report[matched:], flags=re.MULTILINE) == ["32", "128", "512"]


def test_where_a_network_was_trained_at_another_size_that_is_told():
    assert not re.search(r"network +M ", drawn(small_sweep.matched()))
    other = changed(small_sweep.matched(), lambda point: replace(point, train_batch_size=2048))
    report = drawn(other, width=120)
    assert re.search(r"network +M ", report) and "2,048" in report and "M: training batch size" in report


def test_a_size_with_nothing_random_is_marked_and_its_mutual_information_is_0():
    report = drawn(small_sweep.single(), width=120)
    assert "* nothing is random: no draw changes an output" in report
    assert re.search(r"^ 4,096\* .* 0 +0 +0 ", report, flags=re.MULTILINE)
    assert (
        "With b = 4,096, the whole reference, nothing is random, because no draw changes an output: MI is exactly 0."
        in words(small_sweep.single())
    )


def test_the_small_curves_fall_from_left_to_right():
    report = drawn(small_sweep.single())
    rows = [line.split("|", 1) for line in report.splitlines() if re.match(r"^ +[\d.]* \|", line)]
    assert len(rows) == 9
    where = [(row, at) for row, (_, text) in enumerate(rows) for at, c in enumerate(text) if c == "o"]
    assert len(where) == 6 and where == sorted(where)
    assert [at for _, at in where] == sorted(at for _, at in where)
    assert float(rows[0][0]) == pytest.approx(0.176, abs=1e-3)
    assert re.search(r"^ +b +32 +64 +128 +256 +512 +1,024$", report, flags=re.MULTILINE)
    assert "o test, x svhn, + pcbdigits32; where they coincide, the first is shown." in " ".join(report.split())
    two = small_sweep.single()
    assert "logarithmic" not in drawn(replace(two, points=two.points[:2], recommended=None))


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-1.1, -0.9, "MI on the test set falls as 1/b"),
        (-1.4, -1.1, "MI on the test set falls faster than 1/b"),
        (-0.9, -0.2, "MI on the test set falls, but more slowly than 1/b"),
        (-1.5, 0.2, "MI on the test set may fall as 1/b, but the rate is very uncertain"),
        (-1.5, -0.5, "MI on the test set may fall as 1/b, but the rate is very uncertain"),
        (-0.5, 0.2, "MI on the test set does not clearly fall"),
        (0.1, 0.4, "MI on the test set rises"),
    ],
)
def test_the_law_is_claimed_where_its_interval_holds_it(low, high, said):
    sweep = small_sweep.single()
    decay = Decay(Estimate((low + high) / 2, se=0.1, low=low, high=high), 0.1, small_sweep.SIZES[:-1])
    sweep = replace(sweep, models=(replace(sweep.models[0], decay={"test": decay}),))
    assert f"{said}: 0.0454 nats at b = 32, 0.00113 at 1,024" in words(sweep)


def ranked(sweep: Sweep, values: dict[int, float], *, se: float = 0.01, mc: float = 0.002) -> Sweep:
    """The sweep, with these AUROCs of svhn by MI, whose draw sets all move alike."""
    moves = math.sqrt(5) * mc * np.array([-1.5, -0.5, 0.0, 0.5, 1.5]) / math.sqrt(1.25)

    def change(point: SweepPoint) -> SweepPoint:
        value = values.get(point.batch_size, 0.5)
        reach = 1.96 * math.hypot(se, mc)
        one = Repeated(Estimate(value, se=se, mc_se=mc, low=value - reach, high=value + reach), value + moves)
        return replace(point, auroc={"mutual_information": {"svhn": one}})

    return changed(sweep, change)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.91, 0.91, 0.90, 0.91, 0.90, 0.90], "svhn is separated equally well as b grows: AUROC by MI 0.910 → 0.900"),
        ([0.91, 0.90, 0.88, 0.87, 0.86, 0.85], "svhn is separated less well as b grows: AUROC by MI 0.910 → 0.850"),
        ([0.81, 0.82, 0.83, 0.84, 0.85, 0.86], "svhn is separated better as b grows: AUROC by MI 0.810 → 0.860"),
        ([0.60, 0.58, 0.55, 0.51, 0.50, 0.51], "from b = 256 on, no better than chance"),
        ([0.60, 0.51, 0.55, 0.51, 0.56, 0.55], "svhn is separated less well as b grows"),
        ([0.51, 0.50, 0.51, 0.49, 0.50, 0.50], "svhn is at no size separated from the test set (AUROC by MI 0.510 →"),
        ([0.41, 0.42, 0.41, 0.43, 0.42, 0.40], "svhn appears more familiar than the test set (AUROC by MI 0.410"),
    ],
)
def test_whether_the_ranking_survives_is_decided_by_its_error(values, said):
    sweep = ranked(small_sweep.single(), dict(zip(small_sweep.SIZES, values, strict=False)))
    text = words(sweep)
    assert said in text
    assert ("no better than chance" in text) == ("no better than chance" in said)


def test_the_error_of_a_change_is_of_paired_draw_sets_and_the_larger_one_over_points():
    """Draw sets that move alike say nothing against a small change; the same estimates apart from each other do."""
    values = dict.fromkeys(small_sweep.SIZES, 0.90) | {1024: 0.88}
    together = ranked(small_sweep.single(), values, se=0.001, mc=0.02)
    assert "less well as b grows: AUROC by MI 0.900 → 0.880 from b = 32 to 1,024 (−0.020 ± 0.001)" in words(together)

    def shuffled(point: SweepPoint) -> SweepPoint:
        one = point.auroc["mutual_information"]["svhn"]
        turned = Repeated(one.estimate, one.of_sets[::-1].copy())
        return replace(point, auroc={"mutual_information": {"svhn": turned}}) if point.batch_size == 1024 else point

    apart = changed(together, shuffled)
    assert "equally well as b grows: AUROC by MI 0.900 → 0.880 from b = 32 to 1,024 (−0.020 ± 0.040)" in words(apart)
    wide = ranked(small_sweep.single(), values, se=0.011, mc=0.0)
    assert "equally well as b grows" in words(wide)


def test_where_an_ood_set_has_no_more_mutual_information_than_the_test_set_is_told():
    sweep = small_sweep.single()
    assert "pcbdigits32" in words(sweep)
    assert "its mean MI is at no size above that of the test set by more than two errors" in words(sweep)

    def apart(point: SweepPoint) -> SweepPoint:
        """A set that has ten times the mutual information up to b = 128, and the same beyond."""
        test = point.estimates["mutual_information"]["test"]
        factor = 10.0 if point.batch_size <= 128 else 1.0
        estimate = replace(test.estimate, value=factor * test.estimate.value)
        other = Repeated(estimate, factor * test.of_sets)
        held = {"test": test, "svhn": other, "pcbdigits32": other}
        return replace(point, estimates=point.estimates | {"mutual_information": held})

    assert "from b = 256 on its mean MI is not above that of the test set by more than two errors" in words(
        changed(sweep, apart)
    )


def test_a_recommendation_tells_its_size_its_criterion_and_how_flat_it_is():
    text = words(small_sweep.single())
    assert "Recommended: b = 64, where the ELBO is highest; within one standard error of it lie 32 and 64." in text
    behind = small_sweep.single().recommended.behind  # pyright: ignore[reportOptionalMemberAccess]
    assert f"(nats of the whole training set): b = 32 by {-behind[32].value:.0f} ± " in text
    assert f"b = 1,024 by {-behind[1024].value:,.0f} ± " in text
    assert "puts the optimum of the ELBO at 88.4 ± 2.9." in text
    for missing in ("prior decides", "sweep larger", "sweep smaller", "different weights"):
        assert missing not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decided_by": "prior"}, "the prior decides, through the KL"),
        ({"at_end": "largest"}, "It is the largest of the sizes that were compared, and the optimum lies at or beyond"),
        ({"at_end": "smallest"}, "the optimum lies at or below it: sweep smaller ones."),
        ({"within": (64,)}, "within one standard error of it lies no other size."),
        ({"criterion": "pll", "of": "validation"}, "where PLL on the validation set is highest"),
        (
            {"criterion": "auroc", "of": "test"},
            "where the mean AUROC by MI of svhn and pcbdigits32 against the test set is highest",
        ),
        ({"predicted_batch_size": Estimate(20_000.0, mc_se=300.0)}, "20,000 ± 300, outside the swept sizes"),
        ({"behind": {64: Estimate(0.0), 32: Estimate(3.0, mc_se=1.0)}}, "b = 32 by −3.0 ± 1.0."),
    ],
)
def test_what_a_recommendation_rests_on_is_told(changes, said):
    sweep = small_sweep.single()
    assert sweep.recommended is not None
    assert said in words(replace(sweep, recommended=replace(sweep.recommended, **changes)))


def test_networks_of_different_weights_are_named_as_such():
    text = words(small_sweep.matched())
    assert "networks have different weights" in text
    assert "b = 512, where PLL on the validation set is highest (the network m512.pt)" in text
    below = " ".join(drawn(small_sweep.both()).split())
    assert below.count("These networks have different weights: their likelihoods are not directly comparable") == 1


def test_without_a_recommendation_it_is_said_why():
    sweep = replace(small_sweep.single(), recommended=None)
    assert "No size is recommended: the criterion is not available; the notes say why." in words(sweep)
    few = replace(sweep, points=(sweep.points[0], sweep.points[-1]))
    assert "No size is recommended: fewer than two sizes could be compared." in words(few)
    alone = replace(sweep, points=sweep.points[-1:])
    assert "No size is recommended: nothing is random at any of them." in words(alone)


def test_the_elbo_is_shown_with_its_terms_and_what_it_assumes():
    report = drawn(small_sweep.single(), width=120)
    text = " ".join(report.split())
    table = report[report.index("ELBO, nats. One network") :]
    assert re.search(r"^ +64 +−\d{4} ±\d+ +2184 +−\d{4} ±\d+ +best$", table, flags=re.MULTILINE)
    assert "c = 0.610 ± 0.020 nats × b per example" in text and "b* = 2Nc/P + mean(1/ρ) = 88.4 ± 2.9" in text
    for assumption in (
        "q factorises over the means and deviations of 688 channels, each Gaussian",
        "where they are not, the KL is overestimated",
        "was measured: 0.0952 to 0.303 of its positions",
        "The prior is unit information",
        "Weights are fixed",
        "500 training points, times N = 50,000",
        "without replacement from a finite reference of 4,096",
    ):
        assert assumption in text
    other = " ".join(drawn(small_sweep.regression(), width=120).split())
    assert "Each position of a channel counts as an independent value." in other
    assert "Gaussian (mean = 0, variance = 4.00)" in other and "τ = 0.0500" in other
    assert "No asymptotic optimum b*: no size is too large for the law." in other
    flat = replace(
        small_sweep.single(), models=(small_sweep.network(elbo=small_sweep.terms(prior="flat", kl_weight=0.5)),)
    )
    text = " ".join(drawn(flat).split())
    assert "improper, so that only differences between sizes mean anything" in text and "weight 0.5" in text


def test_without_a_choice_by_elbo_its_error_is_that_over_draws_that_sizes_share():
    sweep = small_sweep.single()
    lines = {p.batch_size: p.elbo for p in sweep.points if p.elbo is not None}
    best = max(lines, key=lambda size: lines[size].elbo.value)
    away = lines[512].log_likelihood - lines[best].log_likelihood
    error = small_sweep.TRAIN * away.std(ddof=1) / math.sqrt(len(away))
    change = lines[512].elbo.value - lines[best].elbo.value
    report = drawn(replace(sweep, recommended=None), width=120)
    assert "From best: ± over draws only" in report and "From best" not in drawn(sweep)
    assert f"{change:.0f} ±{error:.0f}".replace("-", "−") in report


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of the picture that was drawn last."""
    kept: list[Axes] = []
    plain = drawing.picture

    @contextlib.contextmanager
    def keeping(path, **asked):
        with plain(path, **asked) as axes:
            yield axes
        kept[:] = axes

    monkeypatch.setattr(drawing, "picture", keeping)
    return kept


def bars(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, values and half the length of the error bars of a line."""
    [found] = [one for one in axes.containers if one.get_label() == label]
    line, _, [upright] = found.lines
    ends = np.array([segment[:, 1] for segment in upright.get_segments()])
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), (ends[:, 1] - ends[:, 0]) / 2


def test_the_protocols_are_side_by_side_and_never_joined(tmp_path, panels):
    sweep = small_sweep.both()
    assert save_figures(sweep, tmp_path / "new") == (tmp_path / "new" / "sweep.svg",)
    assert len(panels) == 6
    assert [axes.get_title("left") for axes in panels[:2]] == ["One network: resnet.pt", "A network for each size"]
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[2].get_ylim() == panels[3].get_ylim()
    for axes, points in ((panels[0], sweep.points[:6]), (panels[1], sweep.points[7:])):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        for name in ("test", *small_sweep.OOD):
            estimates = [point.estimates["mutual_information"][name].estimate for point in points]
            sizes, values, errors = bars(axes, name)
            assert list(sizes) == [point.batch_size for point in points]
            np.testing.assert_allclose(values, [estimate.value for estimate in estimates])
            np.testing.assert_allclose(errors, [math.hypot(f.se, f.mc_se) for f in estimates])
    for name in small_sweep.OOD:
        _, values, _ = bars(panels[3], name)
        found = [point.auroc["mutual_information"][name].estimate.value for point in sweep.points[7:]]
        np.testing.assert_allclose(values, found)


def test_a_size_with_nothing_random_is_a_mark_at_the_bottom(tmp_path, panels):
    save_figures(small_sweep.single(), tmp_path)
    [mark] = [one for one in panels[0].get_lines() if str(one.get_label()).startswith("exactly 0")]
    assert list(mark.get_xdata()) == [4096]
    assert mark.get_transform() is panels[0].get_xaxis_transform() and list(mark.get_ydata()) == [0.0]


def test_the_elbo_is_drawn_from_its_best_with_the_recommendation_and_the_rule(tmp_path, panels):
    sweep = small_sweep.single()
    assert sweep.recommended is not None
    save_figures(sweep, tmp_path)
    assert len(panels) == 3
    [line] = panels[2].containers
    np.testing.assert_allclose(line.lines[0].get_ydata(), [one.value for one in sweep.recommended.behind.values()])
    told = {str(one.get_label()): one for one in panels[2].get_lines()}
    assert list(told["recommended: b = 64"].get_xdata()) == [64, 64]
    assert list(told["b* = 88.4"].get_xdata()) == [88.4, 88.4]
    far = small_sweep.terms(predicted=Estimate(50_000.0))
    save_figures(replace(sweep, models=(small_sweep.network(elbo=far),)), tmp_path)
    assert "b* = 50,000, outside" in {str(one.get_label()) for one in panels[2].get_lines()}


def test_there_are_panels_for_what_there_is(tmp_path, panels):
    save_figures(small_sweep.regression(), tmp_path)
    assert [axes.get_ylabel() for axes in panels] == [
        "mean variance of samples (target unit²)", "ELBO − best ELBO (nats)",
    ]  # fmt: skip
    bare = changed(small_sweep.single(), lambda point: replace(point, elbo=None, auroc={}))
    save_figures(replace(bare, recommended=None), tmp_path)
    assert len(panels) == 1

    def none(point: SweepPoint) -> SweepPoint:
        zero = Repeated(Estimate(0.0), np.zeros(5))
        return replace(point, estimates={"mutual_information": dict.fromkeys(("test", *small_sweep.OOD), zero)})

    save_figures(changed(replace(bare, recommended=None), none), tmp_path)
    assert panels[0].get_yscale() == "linear"


def test_several_networks_of_one_protocol_are_told_apart(tmp_path, panels):
    one = small_sweep.single()
    second = tuple(small_sweep.classification_point(size, model=1, grows=2.0) for size in small_sweep.SIZES)
    two = replace(one, points=one.points + second, models=(*one.models, small_sweep.network("other.pt")))
    save_figures(two, tmp_path)
    looks = {
        str(found.get_label()): (found.lines[0].get_color(), found.lines[0].get_marker())
        for found in panels[0].containers
    }
    assert len(looks) == len(set(looks.values())) == 6
    assert looks["resnet.pt, test"][0] == looks["other.pt, test"][0]
    assert "other.pt: MI on the test set falls as 1/b" in words(two)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_gives_the_same_bytes_every_time(name, tmp_path):
    [first] = save_figures(SWEEPS[name](), tmp_path / "a")
    [again] = save_figures(SWEEPS[name](), tmp_path / "b")
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"<?xml")


def test_a_png_is_drawn_where_it_is_asked_for(tmp_path):
    [path] = save_figures(small_sweep.both(), tmp_path, "png")
    with Image.open(path) as picture:
        assert picture.format == "PNG" and picture.width > 1200
        assert (np.asarray(picture.convert("L")) < 128).sum() > 1000


def test_without_matplotlib_the_way_out_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match="not installed"):
        save_figures(small_sweep.single(), tmp_path / "none")
    assert not (tmp_path / "none").exists()


# ── shown again ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bnuq_report_shows_a_sweep_again_as_text_as_json_and_as_a_picture(tmp_path, capsys):
    path = tmp_path / "sweep.h5"
    write(small_sweep.both(), path)
    command([str(path)])
    assert capsys.readouterr().out == drawn(replace(small_sweep.both(), path=path))
    command([str(path)], figures=tmp_path / "pictures", form="png")
    assert "sweep.png" in capsys.readouterr().out
    assert [one.name for one in (tmp_path / "pictures").iterdir()] == ["sweep.png"]
    command([str(path)], as_json=True, figures=tmp_path / "pictures")
    assert json.loads(capsys.readouterr().out)["command"] == "sweep-batch-size"


def test_a_predicted_size_that_the_computed_ones_speak_against_is_told_as_such():
    sweep = small_sweep.single()
    assert sweep.recommended is not None
    sizes = sorted(sweep.recommended.behind)
    at = sizes.index(sweep.recommended.batch_size)
    assert 0 < at < len(sizes) - 1
    for value, speaks in ((float(sizes[at]), False), (sizes[at - 1] * 0.9, True), (sizes[at + 1] * 1.1, True)):
        chosen = replace(sweep.recommended, predicted_batch_size=Estimate(value, mc_se=1.0))
        assert ("contradict it" in words(replace(sweep, recommended=chosen))) == speaks
