"""The report, the page and the pictures of an inspection: nothing cut, and in words that its numbers bear out."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up_inspection
import numpy as np
import pytest
import small_run
from matplotlib.axes import Axes
from scipy import stats

from bnuq.cli.main import main
from bnuq.config import Options, resolve
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.findings import note, warning, warnings
from bnuq.records.inspection import Candidate, Inspection, Pipelines, write
from bnuq.report import drawing
from bnuq.report.html import page
from bnuq.report.inspection import noise_panels, page_parts, print_inspection, report_parts, save_figures
from bnuq.report.inspection.plots import chi2_density, pictures_of
from bnuq.report.inspection.tables import nominal_deviations
from bnuq.report.inspection.terminal import SITES
from bnuq.report.inspection.words import of_space
from bnuq.report.markdown import markdown
from bnuq.report.parts import Listing, Table
from bnuq.workflows.inspect import inspect

HERE = Path("/results/of/a/long/path/that/is/printed/whole/model.inspect.h5")


def drawn(found: Inspection, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_inspection(found, stream, width)
    stream.flush()
    return raw.getvalue().decode(encoding)


def words(found: Inspection) -> str:
    """What is said in short, on one line."""
    return " ".join(drawn(found).partition("In short\n")[2].partition("\n\n")[0].split())


def section(found: Inspection, heading: str, *, width: int = 100) -> str:
    return drawn(found, width=width).partition(f"\n{heading}\n")[2].partition("\n\n")[0]


def changed_layers(found: Inspection, part: str, change: Callable[[Any], Any]) -> Inspection:
    held = getattr(found, part)
    return replace(found, **{part: replace(held, layers=tuple(map(change, held.layers)))})


# ── how it is laid out ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", made_up_inspection.ALL)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(name, width, encoding):
    found = replace(made_up_inspection.ALL[name](), path=HERE)
    report = drawn(found, width=width, encoding=encoding)
    verbatim = set() if found.pipelines is None else set(found.pipelines.lines.splitlines())
    for line in report.splitlines():
        assert len(line) <= width or line in {str(HERE), *verbatim}, line
        assert line == line.rstrip()
    assert str(HERE) in report and "?" not in report


@pytest.mark.parametrize("width", [40, 100])
def test_the_lines_for_the_run_file_can_be_copied_from_any_terminal_and_from_markdown(width):
    found = made_up_inspection.whole()
    assert made_up_inspection.LINES in drawn(found, width=width)
    assert f"```toml\n{made_up_inspection.LINES}```" in markdown(report_parts(found))
    listings = [part for part in page_parts(found, None) if isinstance(part, Listing)]
    assert listings[0].text == made_up_inspection.LINES.rstrip()


def test_few_sites_are_all_shown_and_many_in_groups_that_keep_what_is_noteworthy_apart():
    shown = section(made_up_inspection.bare(), "Sites, in execution order")
    assert [line.split()[0] for line in shown.splitlines()[1:23]] == [
        site.name for site in made_up_inspection.bare().sites
    ]
    long = replace(made_up_inspection.long(), sites=made_up_inspection.sites(9, flagged=True))
    shown = section(long, "Sites, in execution order")
    rows = shown.partition("\n")[2].partition("58 sites, in groups")[0].splitlines()
    assert len(rows) <= 12
    assert re.search(r"layer1\.0\.bn1 +1 +BatchNorm +no +frozen", shown)
    assert re.search(r"layer1\.0\.bn2 +1 +BatchNorm +yes +never-trained", shown)
    assert re.search(r"bn1 … layer1\.8\.bn2 +16 +BatchNorm +yes +8 +1,024$", shown, flags=re.MULTILINE)
    assert sum(int(row.partition(" … ")[2].split()[1] if " … " in row else row.split()[1]) for row in rows) == 58


def test_a_network_of_many_different_layers_is_folded_all_the_same():
    sites = tuple(
        replace(site, channels=32 + order) if site.kind == "batchnorm" else site
        for order, site in enumerate(made_up_inspection.sites(20))
    )
    shown = section(replace(made_up_inspection.bare(), sites=sites), "Sites, in execution order")
    assert "32–" in shown and len(shown.splitlines()) < 16


def test_the_gap_table_has_the_worst_layers_first_and_of_many_the_worst_alone():
    for made, rows in ((made_up_inspection.healthy(), 20), (made_up_inspection.long(), 12)):
        shown = section(made, "Running statistics compared with the population")
        found = re.findall(r"^ (\S+) +\d+\.\d+ +(\d+\.\d+) ", shown, flags=re.MULTILINE)
        assert len(found) == rows and found[0][0] == "layer1.1.bn1"
        ratios = [float(ratio) for _, ratio in found]
        assert ratios == sorted(ratios, reverse=True)
    assert "… and 44 layers more, at most 8.8 times batch noise" in " ".join(shown.split())
    assert "Effective sample size of the running statistics: 2,432" in shown


def test_layers_of_which_nothing_is_known_come_last():
    made = changed_layers(
        made_up_inspection.healthy(),
        "gap",
        lambda one: replace(one, ratio_mean=math.nan, ratio_log_variance=math.nan) if one.name == "bn1" else one,
    )
    shown = section(made, "Running statistics compared with the population")
    assert re.findall(r"^ (\S+) +[\d–]", shown, flags=re.MULTILINE)[-1] == "bn1"
    assert "0.44 times what batch noise explains in the median layer" in words(made)


def kept_axes(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of the pictures that are saved from now on."""
    seen: list[Axes] = []
    held = drawing._save

    def kept(estimate: Any, *rest: Any) -> None:
        seen.extend(estimate.axes)
        held(estimate, *rest)

    monkeypatch.setattr(drawing, "_save", kept)
    return seen


def styles(found: Inspection) -> dict[str, str]:
    tables = [part for part in report_parts(found) if isinstance(part, Table)]
    return {cell.value: cell.style for table in tables for _, cells in table.rows for cell in cells}


def test_ratios_are_coloured_by_what_they_say():
    ill = styles(made_up_inspection.ill())
    assert ill["17.6"] == ill["8.0"] == ill["never-trained"] == "bold red"
    assert styles(made_up_inspection.healthy())["0.88"] == "green"


def test_candidates_of_long_names_are_numbered_where_there_is_little_room():
    shown = drawn(made_up_inspection.whole(), width=60)
    assert re.search(r"^ 1 +0\.35 +0\.58 +layer1\.0\.bn1 +best$", shown, flags=re.MULTILINE)
    assert re.search(r"^ · 1: imagenet, pad 4, crop 32$", shown, flags=re.MULTILINE)


def test_the_crossing_has_a_row_a_domain_and_a_column_for_whose_statistics():
    shown = section(made_up_inspection.whole(), "Domains")
    told = drawn(made_up_inspection.whole(), width=100)
    assert re.search(r"digits +900 +no +[\d.]+ +40\.0 +bn1", shown)
    assert re.search(r"running +train +jpeg +digits +mixed\n", told)
    accuracy = told.partition("↑ accuracy\n")[2].partition("↑ PLL")[0]
    assert re.search(r"jpeg +0\.8800 ±0\.0060 +0\.8800 ±0\.0060 +0\.9100 ±0\.0060 +0\.8300", accuracy)
    assert "digits" not in accuracy  # it has no labels


def test_candidates_are_ranked_and_those_that_cannot_be_told_apart_are_marked():
    shown = section(made_up_inspection.whole(), "Training pipelines tried")
    rows = re.findall(r"^ (\S.*?)  +[\d.,]+ +([\d.,]+) +\S+ +(best|as good|yes|no)$", shown, flags=re.MULTILINE)
    assert [(name, fits) for name, _, fits in rows[:5]] == [
        ("imagenet, pad 4, crop 32", "best"),
        ("imagenet, pad 4, crop 32, flip", "as good"),
        ("cifar10, pad 4, crop 32", "yes"),
        ("imagenet, no augmentation", "no"),
        ("imagenet, BGR, pad 4, crop 32", "no"),
    ]
    assert "no normalisation, pixels 0–255, no augmentation" in shown.partition("eliminated on fewer batches")[2]


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_network_is_called_so_with_its_worst_layer():
    said = words(made_up_inspection.healthy())
    assert said.startswith(
        "· Healthy: the running statistics match the reference's population; they differ by 0.44 times what "
        "batch noise explains in the median layer, 0.88 times in the worst, layer1.1.bn1 (up to 3 and 6 is normal)."
    )
    assert "20 BatchNorm layers and 1 dropout can be made stochastic; not drop2: its rate is 0." in said


def test_an_ill_network_is_told_which_layers_and_what_to_do():
    said = words(made_up_inspection.ill())
    assert said.startswith("· Not healthy: the running statistics do not match this reference")
    assert "17.6 times in the worst, layer1.1.bn1" in said and "`bnuq precise-bn` recomputes the statistics" in said
    assert "None of the pipelines tried makes them fit" in said
    assert "Never-trained: layer1.0.bn2." in said and "Frozen: layer1.0.bn1." in said
    assert (
        "Not-finite: layer1.1.bn1. Its statistics or weights contain NaN" in said and "Vanishing: layer1.1.bn1." in said
    )
    assert "2 channels are dead in some batch (variance below 10 ε), most in layer1.2.bn1" in said
    assert "out of reach here: rnn (dropout inside an LSTM cannot be reached)" in said
    rootless = replace(made_up_inspection.ill(), unreachable=(("", "random numbers in training only"),))
    assert "out of reach here: the network (random numbers in training only)" in words(rootless)
    assert "None of the pipelines tried fits the running statistics" in said and "It is not recommended." in said
    assert "8.5 times batch noise in the worst layer, layer1.0.bn1 (up to 6 is normal)." in said
    found = replace(made_up_inspection.ill(), pipelines=None)
    assert "`--suggest-pipeline` searches for the pipeline" in words(found)
    assert "They fit another pipeline: imagenet, pad 4, crop 32" in words(
        replace(found, pipelines=made_up_inspection.pipelines())
    )


def test_a_layer_that_is_broken_is_not_healed_by_others_that_agree():
    broken = replace(made_up_inspection.healthy(), sites=made_up_inspection.sites(flagged=True))
    assert words(broken).startswith("· Not healthy, see below; the other running statistics match")
    alone = replace(made_up_inspection.bare(), sites=made_up_inspection.sites(flagged=True))
    assert words(alone).startswith("· Not healthy: see layer1.1.bn1 and layer1.0.bn2.")


def test_without_a_reference_it_is_said_what_one_would_add():
    assert "name the training set with `--train`" in words(made_up_inspection.bare())
    nothing = replace(made_up_inspection.bare(), sites=())
    assert "Nothing here can be made stochastic: the network calls no BatchNorm or dropout." in words(nothing)
    held = made_up_inspection.healthy()
    assert held.gap is not None
    unchecked = replace(held, gap=replace(held.gap, passed=None))
    assert "could not be checked" in words(unchecked)


def unchecked(found: Inspection, *, off: float, names: tuple[str, ...] = ("bn1",), **other: Any) -> Inspection:
    """Some layers without ratios, so many standard deviations off."""
    return changed_layers(
        found,
        "gap",
        lambda one: (
            replace(one, shift=np.full_like(one.shift, off), ratio_mean=math.nan, ratio_log_variance=math.nan, **other)
            if one.name in names
            else one
        ),
    )


@pytest.mark.parametrize("passed", [True, None])
@pytest.mark.parametrize("explained", [0.01, math.nan])
def test_what_is_far_off_and_could_not_be_checked_is_not_called_healthy(passed, explained):
    made = unchecked(made_up_inspection.healthy(), off=431.0, explained_shift=explained)
    assert made.gap is not None
    said = words(replace(made, gap=replace(made.gap, passed=passed)))
    assert said.startswith("· Not healthy") and "· Healthy" not in said
    assert "Not checked: bn1 (too few distinct mini-batches" in said
    assert "Largest differences: 431 standard deviations in the mean (bn1)" in said


def test_layers_that_could_not_be_checked_and_are_near_are_named_alone():
    said = words(unchecked(made_up_inspection.healthy(), off=0.0))
    assert said.startswith("· Healthy") and "· Not checked: bn1 (" in said and "Largest differences:" not in said


def test_averages_of_several_calls_are_not_held_against_batch_noise():
    made = unchecked(made_up_inspection.healthy(), off=1.5)
    sites = tuple(replace(one, flags=("called-again",)) if one.name == "bn1" else one for one in made.sites)
    said = words(replace(made, sites=sites))
    assert said.startswith("· The running statistics that could be checked match the reference's")
    assert "bn1 (running statistics shared by several calls). Largest differences: 1.5" in said


def test_the_median_is_that_which_the_verdict_goes_by():
    """That of mean and of log variance is 2.25, that of the larger of both, 3.5, would be too much."""
    made = changed_layers(made_up_inspection.healthy(), "gap", alternating())
    assert "Healthy" in words(made) and "differ by 2.2 times what batch noise explains in the median layer" in words(
        made
    )


def alternating() -> Callable[[Any], Any]:
    """The one layer is off in the mean, the next in the variance."""
    pairs = itertools.cycle([(3.5, 1.0), (1.0, 3.5)])

    def changed(one: Any) -> Any:
        mean, log_variance = next(pairs)
        return replace(one, ratio_mean=mean, ratio_log_variance=log_variance)

    return changed


def test_a_reference_that_was_given_is_not_asked_for():
    bare = made_up_inspection.bare()
    assert words(bare).startswith("· The running statistics by themselves show nothing unusual. Whether they fit")
    given = {"run": made_up_inspection.inspection().run}
    small = note("unmeasured", reason="the reference has 4 points, fewer than 8")
    said = words(replace(bare, findings=(note("noise-on-the-same-points"), small), **given))
    assert "was not measured: the reference has 4 points, fewer than 8." in said and "--train" not in said
    none = note("unmeasured", reason="the network has no BatchNorm layer that could be sampled")
    frozen = tuple(replace(one, flags=("frozen",)) for one in bare.sites[:1])
    said = words(replace(bare, sites=frozen, findings=(none,)))
    assert said.startswith("· Whether the running statistics fit the data was not measured: the network has no Batch")
    unread = warning("reference-unreadable", reason="absent")
    assert "the reference cannot be read; see the warnings." in words(replace(bare, findings=(unread,), **given))
    weights = warning("not-finite", tensors=["head.weight"])
    assert words(replace(bare, findings=(weights,))).startswith("· Not healthy: weights contain NaN or infinity")


def test_the_reason_is_the_one_that_an_inspection_notes(tmp_path):
    small_run.write(tmp_path)
    np.savez(tmp_path / "train.npz", x=np.random.default_rng(0).random((4, 1, 6, 6), np.float32))
    run = resolve("run.toml", Options(device="cpu", out=tmp_path / "x.inspect.h5"), folder=tmp_path)
    assert "was not measured: the reference has 4 points, fewer than 8." in words(inspect(run))


@pytest.mark.parametrize("flag", ["vanishing", "frozen", "called-again", "untracked"])
def test_nothing_stands_out_only_where_nothing_does(flag):
    bare = made_up_inspection.bare()
    assert "nothing unusual" not in words(replace(bare, sites=(replace(bare.sites[0], flags=(flag,)), *bare.sites[1:])))
    said = words(replace(bare, pipelines=made_up_inspection.ill().pipelines))
    assert (
        "nothing unusual" not in said
        and "Whether the running statistics fit the data is doubtful: none of the pipelines" in said
    )
    assert "is reported below" in words(replace(bare, pipelines=made_up_inspection.pipelines()))


def unfit(*candidates: Candidate) -> Inspection:
    return replace(made_up_inspection.bare(), pipelines=Pipelines(candidates, (), (), ""))


def test_the_limit_that_the_closest_pipeline_fails_by_is_named_and_what_is_sure_of_it():
    made = made_up_inspection.candidate
    best = made("mnist", "", 5.9, median=4.5, passed=False, tied=True)
    near, rival = made("fashion", "", 9.0, passed=False, tied=False), made("fashion", "", 60.0, tied=False)
    said = words(unfit(best, near, rival))
    assert (
        "The closest is mnist, no augmentation: 4.5 times batch noise in the median layer (up to 3 is normal)." in said
    )
    assert "worst layer" not in said and "It is not recommended." in said
    said = words(unfit(best, rival))
    assert "Of the normalisations, mnist is by far the closest, though the running averages fit none." in said
    assert "not recommended" not in said
    both = words(unfit(replace(best, worst=17.0), rival))
    assert "(up to 3 is normal) and 17.0 times batch noise in the worst layer, layer1.0.bn1 (up to 6" in both


def test_where_none_fits_the_best_is_the_closest_in_table_and_picture(tmp_path, monkeypatch):
    made = made_up_inspection.candidate
    found = unfit(
        made("mnist", "", 8.5, tied=True), made("mnist", "flip", 8.6, tied=True), made("fashion", "", 60.0, tied=False)
    )
    shown = section(found, "Training pipelines tried")
    assert [row.split()[-1] for row in shown.splitlines()[1:3]] == ["closest", "close"]
    assert "as good" not in shown and "closest: none fits" in shown
    seen = kept_axes(monkeypatch)
    save_figures(found, tmp_path)
    labels = seen[0].get_legend_handles_labels()[1]
    assert "worst layer of the closest" in labels and not any("as good" in label for label in labels)


def test_the_gap_by_noise_is_of_the_same_kind_as_the_gap():
    """A mean of absolute values beside √(2/π) of the root mean square."""
    found = changed_layers(
        made_up_inspection.healthy(),
        "gap",
        lambda one: replace(one, log_ratio=np.full_like(one.log_ratio, 0.5), explained_log_ratio=0.5),
    )
    table = section(found, "Running statistics compared with the population")
    assert re.search(r" 0\.50 +0\.40$", table, flags=re.MULTILINE)


def test_mixed_batches_of_one_domain_hold_the_reference_too():
    whole = made_up_inspection.whole()
    assert whole.domains is not None
    assert "mixed: batches of all domains in equal parts" in " ".join(drawn(whole).split())
    alone = replace(whole, domains=replace(whole.domains, domains=whole.domains.domains[:1]))
    assert "mixed: batches of jpeg and the reference in equal parts" in " ".join(drawn(alone).split())


def test_a_cumulative_average_is_called_so():
    bare = made_up_inspection.bare()
    norms = tuple(replace(one, momentum=None) for one in bare.sites if one.kind == "batchnorm")
    assert "and the running averages are cumulative." in " ".join(drawn(replace(bare, sites=norms)).split())
    assert re.search(r" cumulative$", section(replace(bare, sites=(norms[0], *bare.sites[1:20])), SITES), re.MULTILINE)
    still = tuple(replace(one, momentum=0.0) for one in norms)  # of which nothing is updated
    assert "and momentum is 0." in " ".join(drawn(replace(bare, sites=still)).split())


def test_why_there_is_no_slope_over_positions():
    noise = made_up_inspection.noise()
    assert "to the power −0.41" in of_space(noise)
    for value, told in ((-0.04, "this disagrees with Shekhovtsov"), (-0.9, "this agrees with Shekhovtsov")):
        assert told in of_space(replace(noise, spatial_slope=Estimate(value, se=0.2)))
    two = replace(noise, layers=noise.layers[:2], spatial_slope=None)
    assert "at least 3 layers with a known variance, and the network has 2." in of_space(two)
    alike = tuple(replace(one, positions=64) for one in noise.layers)
    assert "the same number of positions, 64." in of_space(replace(noise, layers=alike, spatial_slope=None))
    unknown = tuple(replace(one, sigma_v=math.nan) for one in noise.layers[2:])
    two = replace(two, layers=(*noise.layers[:2], *unknown))
    assert "and the network has 2." in of_space(two)


def test_dependent_values_are_told_with_what_the_law_gets_wrong():
    said = words(made_up_inspection.healthy())
    assert "not independent in 19 of 20 layers: in bn1, the effective sample size is 1,229" in said
    assert "10.3 times too small" in said  # √(131072/1229)
    free = changed_layers(
        made_up_inspection.healthy(),
        "noise",
        lambda one: replace(one, values_mean=0.9 * one.nominal, values_deviation=1.1 * one.nominal),
    )
    assert "the noise is within a factor √2 of that of n = b·z independent values; at worst, in bn1" in words(free)
    assert "the effective sample size is 90 % of n." in words(free)
    unknown = changed_layers(
        made_up_inspection.healthy(), "noise", lambda one: replace(one, values_mean=math.nan, values_deviation=math.nan)
    )
    assert "independent" not in words(unknown)
    less = changed_layers(free, "noise", lambda one: replace(one, values_mean=9.0 * one.nominal))
    assert "in 20 of 20 layers the mean varies less" in words(less) and "bn1, 3.0 times less" in words(less)


def test_a_slope_is_held_against_minus_one_and_at_few_values_against_what_few_give():
    made = made_up_inspection.healthy()
    assert "The noise falls as 1/b, as it should: slope of ln variance on ln b −1.01 to −0.98" in words(made)
    flat = changed_layers(
        made, "noise", lambda one: replace(one, slope=Estimate(-0.6, mc_se=0.01, low=-0.65, high=-0.55))
    )
    assert "In 20 of 20 layers the noise does not fall as 1/b" in words(flat)
    vague = changed_layers(made, "noise", lambda one: replace(one, slope=Estimate(-0.6, mc_se=0.3, low=-1.5, high=0.3)))
    assert "The slopes are too uncertain to say whether the noise falls as 1/b" in words(vague)
    part = changed_layers(
        made,
        "noise",
        lambda one: replace(one, slope=Estimate(-0.6, mc_se=0.3, low=-1.5, high=0.3)) if one.name == "bn1" else one,
    )
    assert "The noise falls as 1/b, as it should" in words(part)
    assert "In 1 of 20 layers the slope is too uncertain to say: bn1." in words(part)
    # 1/(n − 3) at n = 8 … 64 falls with a slope of about −1.2
    steep = changed_layers(
        replace(made, noise=replace(made.noise, sizes=(64, 32, 16, 8))),  # type: ignore[type-var]
        "noise",
        lambda one: replace(one, positions=1, slope=Estimate(-1.17, mc_se=0.001, low=-1.18, high=-1.16)),
    )
    assert "The noise falls as 1/b, as it should" in words(steep)


def test_biased_or_unbiased_is_told_where_it_matters_and_where_not():
    made = made_up_inspection.healthy()
    assert "makes no difference here: at most 0.39 % in scale (head.bn, n = 128)" in words(made)
    few = changed_layers(
        made,
        "noise",
        lambda one: replace(one, nominal=32, unbiased_scale=math.sqrt(32 / 31)) if one.name == "head.bn" else one,
    )
    assert "matters in head.bn: at n = 32 values per channel they differ by 1.6 % in scale" in words(few)


def test_domains_are_told_by_the_layers_that_tell_them_apart():
    said = words(made_up_inspection.whole())
    assert "No layer distinguishes jpeg from the reference: at most 2.5 times batch noise" in said
    assert "digits is distinguishable from the reference, most in bn1 (40.0 times batch noise), layer1.0.bn1" in said
    changes = "accuracy 0.880 → 0.910 (+0.030); PLL −0.400 → −0.370 (+0.030)."
    assert f"jpeg with its own statistics, better: {changes}" in said


def test_what_the_statistics_leave_open_is_said():
    said = words(made_up_inspection.whole())
    assert "The running statistics fit imagenet, pad 4, crop 32 best: 0.58 times batch noise" in said
    assert "Undetermined by the statistics: flip: with and without it the statistics agree equally well." in said


# ── the laws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [5, 32, 900, 1001, 32768])
def test_the_laws_deviations_are_those_of_an_inverse_chi(count):
    exact = stats.chi2(count - 1)
    moments = [exact.expect(lambda x, k=k: (count / x) ** (k / 2)) for k in (1, 2)] if count < 1000 else None
    u, v = nominal_deviations(count)
    assert v == pytest.approx(count**-0.5)
    assert u == pytest.approx(
        math.sqrt(moments[1] - moments[0] ** 2) if moments else 1 / math.sqrt(2 * count), rel=2e-3
    )
    assert math.isnan(nominal_deviations(3)[0])


def test_the_density_is_that_of_chi_squared_also_for_very_many_degrees():
    for freedom in (1.5, 30, 131_071):
        x = stats.chi2(freedom).ppf(np.linspace(0.01, 0.99, 7))
        np.testing.assert_allclose(chi2_density(x, freedom), stats.chi2(freedom).pdf(x), rtol=1e-6)


# ── pictures and pages ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_part_has_its_pictures_and_none_shows_more_than_there_is(tmp_path):
    kinds = ["gap", "noise_by_layer", "values", "noise_panels", "spread", "domains", "pipelines"]
    assert [kind for (kind,), _ in pictures_of(made_up_inspection.whole())] == kinds
    assert save_figures(made_up_inspection.bare(), tmp_path / "b") == ()


def test_what_is_not_finite_leaves_gaps_in_pictures(tmp_path):
    found = save_figures(made_up_inspection.unfinite(), tmp_path, "png")
    assert len(found) == 5 and all(path.read_bytes().startswith(b"\x89PNG") for path in found)


def test_the_three_panels_show_the_law_the_sizes_and_the_positions(tmp_path, monkeypatch):
    seen = kept_axes(monkeypatch)
    made = made_up_inspection.healthy()
    assert noise_panels(made, tmp_path / "new").name == "noise_panels.svg"
    first, second, third = seen
    assert first.get_xlabel() == "n·S²/σ², n = 32,768"
    density, fitted = (line.get_ydata() for line in first.get_lines())
    x = np.asarray(first.get_lines()[0].get_xdata())
    assert np.trapezoid(np.asarray(density), x) == pytest.approx(1, abs=0.01)
    assert np.trapezoid(np.asarray(fitted), x) == pytest.approx(1, abs=0.02)
    dashed = second.get_lines()[-1]
    slope = np.diff(np.log(np.asarray(dashed.get_ydata()))) / np.diff(np.log(np.asarray(dashed.get_xdata())))
    np.testing.assert_allclose(slope, -1)
    assert len(second.get_lines()) == 20 + 1
    assert sorted(set(np.asarray(third.get_lines()[0].get_xdata()))) == [1, 64, 256, 1024]
    with pytest.raises(RequestError, match="no noise to draw"):
        noise_panels(made_up_inspection.bare(), tmp_path)


def test_the_page_has_its_sections_and_says_what_to_do():
    made = replace(made_up_inspection.whole(), findings=warnings(made_up_inspection.ill().findings), path=HERE)
    text = page(page_parts(made, None, "there is no matplotlib."))
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        "In short", "Training pipelines tried", "Running statistics compared with the population",
        "Noise of a batch", "Domains", "Sites, in execution order", "Warnings", "Provenance",
    ]  # fmt: skip
    assert "2 warnings below, with what to do: reference-unchecked, never-trained." in text
    assert "What to do:" in text and "[sampling]" in text
    assert "Figures are left out: there is no matplotlib." in text


@pytest.mark.parametrize("name", ["bare", "whole"])
def test_bnuq_report_shows_an_inspection_in_every_form(name, tmp_path, capsys):
    path, page_path = tmp_path / "x.inspect.h5", tmp_path / "x.html"
    write(made_up_inspection.ALL[name](), path)

    def ran(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        return int(left.value.code or 0), *capsys.readouterr()

    code, out, _ = ran("report", str(path))
    assert code == 0 and "In short" in out and str(path) in out
    code, out, _ = ran("report", str(path), "--json", "--html", str(page_path))
    assert code == 0 and out.startswith("{") and '"command": "inspect"' in out
    text = page_path.read_text(encoding="utf-8")
    assert text.count("<figure") == (7 if name == "whole" else 0) and "Sites, in execution order" in text
    assert text.count("<figcaption><strong>") == text.count("<strong>") - text.count("What to do:")
    assert len(re.findall("</strong> <span>", text)) == text.count("<figure")  # each says how to read it
    code, out, _ = ran("report", str(path), "--markdown", "-")
    assert code == 0 and out.startswith("# bnuq inspect")
    code, out, err = ran("check", str(path), str(path))
    assert (
        code == 2
        and out == ""
        and "is not a result file of bnuq evaluate, but of bnuq inspect" in " ".join(err.split())
    )
    code, _, err = ran("report", str(path), str(path))
    assert code == 2 and "only those can be shown side by side" in " ".join(err.split())
