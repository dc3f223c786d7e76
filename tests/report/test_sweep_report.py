"""The report and the picture of a sweep over mini-batch sizes: nothing cut, and in words that its numbers bear out."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import at_night
import numpy as np
import pytest
import small_sweep
from matplotlib.axes import Axes
from PIL import Image
from report_text import rendered

from bnuq.cli.main import main
from bnuq.estimates import Estimate
from bnuq.findings import Finding, warning
from bnuq.records.as_json import json_of
from bnuq.report import drawing
from bnuq.report.document import ReportSection, Table
from bnuq.report.render import draw_pictures, page
from bnuq.studies.sweep.findings import change_of, conclusions, sentences
from bnuq.studies.sweep.record import BestOther, Decay, Repeated, Sweep, SweepPoint, write
from bnuq.studies.sweep.view import report

HERE = Path("/results/of/a/long/path/that/is/printed/whole/sweep.h5")
LONG = "even_stranger_things_seen_at_night_from_far"


drawn = partial(rendered, report, width=80, full=True)


def verdicts(sweep: Sweep, name: str = "") -> dict[str, str]:
    """The findings by code, those of an OOD set where it is named; each has a sentence."""
    assert all(text.endswith(".") for text in sentences(sweep))
    return {each.code: each.text for _, each in conclusions(sweep) if each.about in ("", name)}


def section_of(sweep: Sweep, title: str) -> ReportSection:
    [section] = [section for section in report(sweep).sections if section.title == title]
    return section


def save(sweep: Sweep, folder: Path, form: drawing.Format = "svg") -> Path:
    [path] = draw_pictures(report(sweep), folder, form)
    return path


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


@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 60, 80, 120]))
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_requested_and_none_ends_in_blanks(name, width, encoding):
    text = drawn(replace(SWEEPS[name](), path=HERE), width=width, encoding=encoding)
    long = {str(HERE), *(word for word in text.split() if len(word) > 40)}
    for line in text.splitlines():
        assert len(line) <= min(width, 100) or line.strip() in long, line
        assert not {"{", "}"} & set(line), "a template was not filled in"
        assert line == line.rstrip()
    assert str(HERE) in text


@pytest.mark.parametrize("name", small_sweep.ALL)
def test_the_first_screen_has_36_lines_and_its_table_begins_with_what_a_size_is_recommended_by(name):
    lines = drawn(replace(SWEEPS[name](), path=HERE), full=False).splitlines()
    assert len(lines) <= 36, "\n".join(lines)
    assert re.search(r"\n +(from )?best +\S.*\n(.*\n)*? +→ [\d,]+ +0 ", "\n".join(lines))


@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 60, 80, 120]))
@pytest.mark.parametrize("name", small_sweep.ALL)
def test_every_estimate_of_the_tables_is_shown_at_every_width(name, width):
    sweep = small_sweep.ALL[name]()
    text = drawn(sweep, width=width)
    shown = ("pll", "coverage95") if sweep.task == "regression" else ("accuracy", "pll", "ece")
    for point in sweep.points:
        assert f"{point.batch_size:,}" in text
        for metric in shown:
            assert f"{point.estimates[metric]['test'].estimate.value:.4f}".replace("-", "−") in text
        for one in point.auroc.get("mutual_information", {}).values():
            assert f"{one.estimate.value:.3f}" in text
        if point.elbo is not None:
            assert f"{point.elbo.kl:.0f}" in text
            assert f"{point.elbo.elbo.value:.0f}".replace("-", "−") in text


def test_small_mutual_information_and_its_error_show_digits():
    text = drawn(small_sweep.single(), width=120)
    found = small_sweep.single().points[5].estimates["mutual_information"]["test"].estimate
    assert f"{found.value:.5f}" == "0.00113" and "0.00113" in text and "±0.00004" in text


def test_the_protocols_have_tables_of_their_own():
    text = drawn(small_sweep.both())
    single, matched = text.index("\nOne network: resnet.pt\n"), text.index("\nA network for each size\n")
    assert single < matched
    assert "m32.pt" not in text[single:matched] and "m32.pt" in text[matched:]
    rows = re.findall(r"^ +((?:→ )?[\d,]+\*?) +(\S+)(?: ± \d+)? +0\.\d{4} ", text[single:matched], flags=re.MULTILINE)
    assert [size for size, _ in rows] == ["32", "→ 64", "128", "256", "512", "1,024", "4,096*"]
    assert [behind for _, behind in rows] == ["−2", "0", "−237", "−606", "−1,014", "−1,456", "–"]
    assert re.findall(r"^ +([\d,]+) +m\d+\.pt ", text[matched:], flags=re.MULTILINE) == ["32", "128", "512"]


def test_where_a_network_was_trained_at_another_size_that_is_told():
    assert not re.search(r"network +M ", drawn(small_sweep.matched()))
    text = drawn(changed(small_sweep.matched(), lambda point: replace(point, train_batch_size=2048)), width=120)
    assert re.search(r"network +M ", text) and "2,048" in text and "M: training batch size" in text


def test_a_size_with_nothing_random_is_marked_and_its_mutual_information_is_0():
    sweep = small_sweep.single()
    assert "*: nothing is random, no draw changes an output" in " ".join(drawn(sweep).split())
    [table] = [part for part in section_of(sweep, "One network: resnet.pt").parts if isinstance(part, Table)]
    cells = dict(zip(table.header, dict(table.rows)["4,096*"], strict=True))
    assert [cells[f"MI {name}"].value for name in ("test", *small_sweep.OOD)] == ["0", "0", "0"]
    assert verdicts(sweep)["whole-reference"].startswith("at size 4,096, the whole training set, no draw")
    unknown = replace(sweep, models=(replace(sweep.models[0], elbo=None),))
    assert "nothing-random" in verdicts(unknown) and "whole-reference" not in verdicts(unknown)


# ── what it finds ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [
        (-1.1, -0.9, "falls-as-inverse"),
        (-1.4, -1.1, "falls-faster"),
        (-0.9, -0.2, "falls-slower"),
        (-1.5, 0.2, "may-fall-as-inverse"),
        (-1.5, -0.5, "may-fall-as-inverse"),
        (-0.5, 0.2, "not-clearly-falling"),
        (0.1, 0.4, "rises"),
    ],
)
def test_a_fall_as_one_over_b_is_claimed_where_its_interval_holds_it(low, high, code):
    sweep = small_sweep.single()
    decay = Decay(Estimate((low + high) / 2, se=0.1, low=low, high=high), 0.1, small_sweep.SIZES[:-1])
    sweep = replace(sweep, models=(replace(sweep.models[0], decay={"test": decay}),))
    assert verdicts(sweep)[f"spread-{code}"].endswith(": 0.0454 at size 32, 0.00113 at 1,024.")


@pytest.mark.parametrize(
    ("values", "code"), [((1.0, 2.0), "rises"), ((2.0, 1.0), "falls"), ((1.0, 1.0), "unchanged"), (None, "unknown")]
)
def test_without_a_slope_only_the_ends_are_compared(values, code):
    sweep = small_sweep.single()
    sweep = replace(sweep, models=(replace(sweep.models[0], decay={}),))
    first, *_, last = [point.batch_size for point in sweep.points if not point.degenerate]

    def change(point: SweepPoint) -> SweepPoint:
        estimates = dict(point.estimates)
        if values is None:
            del estimates["mutual_information"]
        elif point.batch_size in (first, last):
            repeated = Repeated(Estimate(values[point.batch_size == last]), np.zeros(5))
            estimates["mutual_information"] = {"test": repeated}
        return replace(point, estimates=estimates)

    assert f"spread-{code}" in verdicts(changed(sweep, change))


def test_a_separation_without_known_errors_is_called_so():
    def change(point: SweepPoint) -> SweepPoint:
        auroc = Repeated(Estimate(0.9, low=0.8, high=0.95), np.array([0.9]))
        return replace(point, auroc={"mutual_information": {"svhn": auroc}})

    found = verdicts(changed(small_sweep.single(), change), "svhn")
    assert "separated from the test set, with an unknown error: 90 %" in found["ood-separated"]


def ranked(sweep: Sweep, values: dict[int, float], *, se: float = 0.01, mc: float = 0.002) -> Sweep:
    """The sweep, with these AUROCs of svhn by MI, whose draw sets all move alike."""
    moves = math.sqrt(5) * mc * np.array([-1.5, -0.5, 0.0, 0.5, 1.5]) / math.sqrt(1.25)

    def change(point: SweepPoint) -> SweepPoint:
        value = values.get(point.batch_size, 0.5)
        reach = 1.96 * math.hypot(se, mc)
        auroc = Repeated(Estimate(value, se=se, mc_se=mc, low=value - reach, high=value + reach), value + moves)
        return replace(point, auroc={"mutual_information": {"svhn": auroc}})

    return changed(sweep, change)


@pytest.mark.parametrize(
    ("values", "code", "chance_from"),
    [
        ([0.91, 0.91, 0.90, 0.91, 0.90, 0.90], "ood-separated-equally", None),
        ([0.91, 0.90, 0.88, 0.87, 0.86, 0.85], "ood-separated-less", None),
        ([0.81, 0.82, 0.83, 0.84, 0.85, 0.86], "ood-separated-better", None),
        ([0.60, 0.58, 0.55, 0.51, 0.50, 0.51], "ood-separated-less", 256),
        ([0.60, 0.51, 0.55, 0.51, 0.56, 0.55], "ood-separated-less", None),
        ([0.51, 0.50, 0.51, 0.49, 0.50, 0.50], "ood-not-separated", None),
        ([0.41, 0.42, 0.41, 0.43, 0.42, 0.40], "ood-familiar", None),
    ],
)
def test_whether_the_ranking_survives_is_decided_by_its_error(values, code, chance_from):
    found = verdicts(ranked(small_sweep.single(), dict(zip(small_sweep.SIZES, values, strict=False))), "svhn")
    assert (
        f"{100 * values[0]:.0f} % of all pairs" in found[code] and f" {100 * values[-1]:.0f} % at 1,024" in found[code]
    )
    assert found.get("ood-chance", "").startswith(f"From size {chance_from} on") is (chance_from is not None)


def change_between_ends(sweep: Sweep) -> Estimate:
    first, *_, last = (point.auroc["mutual_information"]["svhn"] for point in sweep.points if not point.degenerate)
    return change_of(first, last)


def test_the_error_of_a_change_is_of_paired_draw_sets_and_the_larger_one_over_points():
    """Draw sets that move alike say nothing against a small change; the same estimates apart from each other do."""
    values = dict.fromkeys(small_sweep.SIZES, 0.90) | {1024: 0.88}
    together = ranked(small_sweep.single(), values, se=0.001, mc=0.02)
    assert "ood-separated-less" in verdicts(together, "svhn")
    change = change_between_ends(together)
    assert change.value == pytest.approx(-0.02) and math.hypot(change.se, change.mc_se) == pytest.approx(
        0.001, abs=5e-4
    )

    def shuffled(point: SweepPoint) -> SweepPoint:
        auroc = point.auroc["mutual_information"]["svhn"]
        turned = Repeated(auroc.estimate, auroc.of_sets[::-1].copy())
        return replace(point, auroc={"mutual_information": {"svhn": turned}}) if point.batch_size == 1024 else point

    assert "ood-separated-equally" in verdicts(changed(together, shuffled), "svhn")
    change = change_between_ends(changed(together, shuffled))
    assert math.hypot(change.se, change.mc_se) == pytest.approx(0.040, abs=5e-4)
    assert "ood-separated-equally" in verdicts(ranked(small_sweep.single(), values, se=0.011, mc=0.0), "svhn")


def test_a_recommendation_has_its_size_its_criterion_and_how_flat_it_is():
    sweep = small_sweep.single()
    found = verdicts(sweep)
    assert found["recommended-by-elbo"].startswith("Use mini-batches of 64 (`--batch-size 64`)")
    assert found["recommended-among"] == "By a 95 % interval, 32 may be as good: 2 ± 14 nats behind."
    others = {"prior-decides", "recommended-is-largest", "recommended-is-smallest", "different-weights"}
    assert not others & set(found)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"decided_by": "prior"}, "prior-decides", "the prior decides"),
        ({"at_end": "largest"}, "recommended-is-largest", "No larger size was compared; one may be better (`--batch-"),
        ({"at_end": "largest", "batch_size": 1024}, "recommended-is-largest", "(`--batch-sizes 1024,2048`)"),
        ({"at_end": "smallest"}, "recommended-is-smallest", "(`--batch-sizes 16,32,64`)"),
        (
            {"behind": {64: Estimate(0.0), 32: Estimate(-30.0, se=9.0, mc_se=12.0)}},
            "recommended-alone",
            "32, is 30 ± 15",
        ),
        (
            {"behind": {64: Estimate(0.0), 32: Estimate(-29.0, se=9.0, mc_se=12.0)}},
            "recommended-among",
            "good: 29 ± 15",
        ),
        ({"criterion": "pll", "of": "validation"}, "recommended-by-pll", "they explain the validation set best"),
        (
            {"criterion": "auroc", "of": "test"},
            "recommended-by-auroc",
            "svhn and pcbdigits32 are separated from the test set",
        ),
        ({"behind": {64: Estimate(0.0), 32: Estimate(3.0, mc_se=math.nan)}}, "recommended-without-errors", "unknown"),
    ],
)
def test_what_a_recommendation_rests_on_is_reported(changes, code, text):
    sweep = small_sweep.single()
    assert sweep.recommended is not None
    assert text in verdicts(replace(sweep, recommended=replace(sweep.recommended, **changes)))[code]


@pytest.mark.parametrize("name", SWEEPS)
def test_sizes_that_may_be_as_good_are_those_of_the_summary_whose_interval_holds_0(name):
    sweep = SWEEPS[name]()
    chosen, found = json_of(sweep)["recommended"], verdicts(sweep)
    text = found.get("recommended-among", "").partition(" may be as good")[0].removeprefix("By a 95 % interval, ")
    others = {int(size.replace(",", "")) for size in re.findall(r"[\d,]*\d", text)}
    near = {int(size) for size, one in chosen["behind"].items() if -one["value"] <= 1.96 * one.get("mc_se", 0.0)}
    assert others | {chosen["batch_size"]} == {*chosen["within"]} == near
    assert report(sweep).summary == sentences(sweep) and all(found)


def test_sizes_that_were_left_out_are_named_whether_or_not_one_is_recommended():
    sweep = replace(small_sweep.single(), stopped="decided", skipped=(16, 2048))
    text = "Left out by the search: 16 and 2,048 (`--full-grid`)."
    assert all(text in sentences(each)[0] for each in (sweep, replace(sweep, recommended=None)))


@pytest.mark.parametrize(
    ("on_test", "criterion", "said"),
    [
        ({"accuracy": (128, 0.02, 0.011), "pll": (128, 0.02, None)}, "elbo", "no other size is clearly better by accu"),
        ({"accuracy": (128, 0.03, 0.01), "ece": (128, -0.01, 0.004)}, "elbo", "64 is the best size by accuracy and "),
        ({"accuracy": (512, -0.0117, 0.004)}, "elbo", "difference 0.0117 ± 0.0040). 64 explains the training set; for"),
        ({"accuracy": (512, -0.0117, 0.004)}, "auroc", "512 is better by accuracy (0.9122, 0.9005 at 64; difference"),
        ({"pll": (512, -0.03, 0.01), "ece": (128, 0.01, 0.004)}, "pll", "512 is better by predictive log-likelihood ("),
    ],
)
def test_by_which_metrics_of_the_test_set_another_size_is_better_is_said_with_what_to_do(on_test, criterion, said):
    beside = {metric: BestOther(*each) for metric, each in on_test.items()}
    chosen = replace(small_sweep.single().recommended, on_test=beside, criterion=criterion, of="validation")
    text = sentences(replace(small_sweep.single(), recommended=chosen))[1]
    assert said in text and ("choose by" in text) == ("is better" in text and criterion != "pll")


def test_networks_of_different_weights_are_named_as_such():
    found = verdicts(small_sweep.matched())
    assert "different-weights" in found
    assert "best, by its log-likelihood (the network m512.pt)" in found["recommended-by-pll"]
    below = " ".join(drawn(small_sweep.both()).split())
    assert below.count("These networks have different weights: their likelihoods are not directly comparable") == 1


def test_without_a_recommendation_it_is_said_why():
    sweep = replace(small_sweep.single(), recommended=None)
    assert "not-recommended-criterion" in verdicts(sweep)
    assert "not-recommended-few" in verdicts(replace(sweep, points=(sweep.points[0], sweep.points[-1])))
    assert "not-recommended-none" in verdicts(replace(sweep, points=sweep.points[-1:]))


def test_the_elbo_is_shown_with_its_terms_and_its_assumptions():
    title = "ELBO, in nats of the training set"
    [table] = [part for part in section_of(small_sweep.single(), title).parts if isinstance(part, Table)]
    rows = {label.strip(): cells for label, cells in table.rows}
    assert (rows["64"][1].value, rows["64"][-1].value) == ("2184", "best") and rows["64"][2].error.startswith("±")
    text = " ".join(drawn(small_sweep.single(), width=100).split())
    assert "c = 0.610 ± 0.020 nats × b per example" in text and "b* = 2Nc/P + mean(1/ρ) = 88.4 ± 2.9" in text
    for assumption in ("688 channels", "measured effective sample size", "N = 50,000", "training set of 4,096"):
        assert assumption in text
    other = " ".join(drawn(small_sweep.regression(), width=100).split())
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
    text = drawn(replace(sweep, recommended=None), width=100)
    assert "From best: ± over draws only" in text and "From best" not in drawn(sweep)
    assert f"{change:.0f} ±{error:.0f}".replace("-", "−") in text


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


@pytest.mark.nightly
def test_the_protocols_are_side_by_side_and_never_joined(tmp_path, panels):
    sweep = small_sweep.both()
    assert save(sweep, tmp_path / "new") == tmp_path / "new" / "sweep.svg"
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


@pytest.mark.nightly
def test_the_elbo_is_drawn_from_its_best_with_the_recommendation_and_the_rule(tmp_path, panels):
    sweep = small_sweep.single()
    assert sweep.recommended is not None
    save(sweep, tmp_path)
    assert len(panels) == 3
    # A size with nothing random is a mark at the bottom.
    [mark] = [one for one in panels[0].get_lines() if str(one.get_label()).startswith("exactly 0")]
    assert list(mark.get_xdata()) == [4096]
    assert mark.get_transform() is panels[0].get_xaxis_transform() and list(mark.get_ydata()) == [0.0]
    [line] = panels[2].containers
    np.testing.assert_allclose(line.lines[0].get_ydata(), [one.value for one in sweep.recommended.behind.values()])
    told = {str(one.get_label()): one for one in panels[2].get_lines()}
    assert list(told["recommended: b = 64"].get_xdata()) == [64, 64]
    assert list(told["b* = 88.4"].get_xdata()) == [88.4, 88.4]
    far = small_sweep.terms(predicted=Estimate(50_000.0))
    save(replace(sweep, models=(small_sweep.network(elbo=far),)), tmp_path)
    assert "b* = 50,000, outside" in {str(one.get_label()) for one in panels[2].get_lines()}


def test_there_are_panels_for_what_there_is(tmp_path, panels):
    save(small_sweep.regression(), tmp_path)
    assert [axes.get_ylabel() for axes in panels] == [
        "mean variance of samples (target unit²)", "ELBO − best ELBO (nats)",
    ]  # fmt: skip
    bare = changed(small_sweep.single(), lambda point: replace(point, elbo=None, auroc={}))
    save(replace(bare, recommended=None), tmp_path)
    assert len(panels) == 1

    def none(point: SweepPoint) -> SweepPoint:
        zero = Repeated(Estimate(0.0), np.zeros(5))
        return replace(point, estimates={"mutual_information": dict.fromkeys(("test", *small_sweep.OOD), zero)})

    save(changed(replace(bare, recommended=None), none), tmp_path)
    assert panels[0].get_yscale() == "linear"


def test_several_networks_of_one_protocol_are_told_apart(tmp_path, panels):
    one = small_sweep.single()
    second = tuple(small_sweep.classification_point(size, model=1, grows=2.0) for size in small_sweep.SIZES)
    two = replace(one, points=one.points + second, models=(*one.models, small_sweep.network("other.pt")))
    save(two, tmp_path)
    looks = {
        str(found.get_label()): (found.lines[0].get_color(), found.lines[0].get_marker())
        for found in panels[0].containers
    }
    assert len(looks) == len(set(looks.values())) == 6
    assert looks["resnet.pt, test"][0] == looks["other.pt, test"][0]
    assert "other.pt" in {line.model.name for line, each in conclusions(two) if "spread" in each.code}


def test_a_sweep_gives_the_same_bytes_every_time(tmp_path):
    first, again = (save(small_sweep.regression(), tmp_path / name) for name in "ab")
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"<?xml")


# ── shown again ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bnuq_report_shows_a_sweep_again_as_text_as_json_and_as_a_picture(tmp_path, capsys):
    path = tmp_path / "sweep.h5"
    write(small_sweep.both(), path)
    shown(path)
    assert capsys.readouterr().out == drawn(replace(small_sweep.both(), path=path), full=False)
    shown(path, "--figures", tmp_path / "pictures", "--format", "png")
    assert "sweep.png" in capsys.readouterr().out
    [drawn_there] = (tmp_path / "pictures").iterdir()
    with Image.open(drawn_there) as picture:
        assert (drawn_there.name, picture.format) == ("sweep.png", "PNG") and picture.width > 1200
        assert (np.asarray(picture.convert("L")) < 128).sum() > 1000
    shown(path, "--json")
    assert json.loads(capsys.readouterr().out)["command"] == "sweep-batch-size"


def shown(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    assert ended.value.code == 0


def test_a_page_has_the_picture_and_where_the_sweep_comes_from():
    text = page(report(replace(small_sweep.single(), path=HERE)))
    assert text.count("<figure") == 1 and "Provenance" in text and small_sweep.single().models[0].sha256 in text
    assert "Provenance" not in drawn(small_sweep.single())


# ── what is not concluded ────────────────────────────────────────────────────────────────────────────────────────────


def scaled(name: str) -> Finding:
    spread = {"low": 0.0, "high": 255.0, "sd": 64.0, "reference_low": 0.0, "reference_high": 1.0, "reference_sd": 0.25}
    return warning("inputs-of-another-scale", set=name, source=f"{name}.npz", reference="train.npz", **spread)


def mismatch() -> Finding:
    limits = {"median": 4.0, "median_limit": 3.0, "worst": 9.0, "worst_limit": 6.0, "worst_layer": "bn1"}
    commands = {"suggest": "bnuq inspect", "precise": "bnuq precise-bn"}
    return warning("reference-mismatch", **limits, settings=["train"], missing=[], run_file=None, **commands)


def test_nothing_is_said_of_a_set_on_another_scale_and_of_none_where_that_is_the_test_set() -> None:
    sweep = small_sweep.single()
    assert "ood-separated-less" in verdicts(sweep, "svhn")
    of_one = replace(sweep, findings=(scaled("svhn"),))
    assert not [each for _, each in conclusions(of_one) if each.about == "svhn"]
    assert "the inputs of svhn are scaled differently" in verdicts(of_one)["inputs-of-another-scale"]
    assert verdicts(of_one, "pcbdigits32").keys() == verdicts(sweep, "pcbdigits32").keys() | {"inputs-of-another-scale"}
    of_test = {each.code for _, each in conclusions(replace(sweep, findings=(scaled("test"),)))}
    assert not [code for code in of_test if code.startswith(("ood-", "spread-"))]
    assert "recommended-by-elbo" in of_test  # of training points


def test_no_size_is_recommended_while_a_reference_check_fails() -> None:
    sweep = replace(small_sweep.single(), findings=(mismatch(),))
    assert sweep.recommended is not None  # as in a file of an earlier version
    found = verdicts(sweep)
    assert {"reference-mismatch", "not-recommended-mismatched"} <= {*found}
    assert not [code for code in found if code.startswith("recommended")]
    assert "No size is recommended while the check of the training set fails" in drawn(sweep, width=100)
