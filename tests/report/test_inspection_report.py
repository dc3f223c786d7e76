"""The report, the page and the pictures of an inspection: nothing cut, and in words that its numbers bear out."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import at_night
import made_up_inspection
import numpy as np
import pytest
import small_run
from matplotlib.axes import Axes
from report_text import rendered
from scipy import stats

from bnuq.cli.main import main
from bnuq.config import Options, resolve
from bnuq.estimates import Estimate
from bnuq.findings import note, warning, warnings
from bnuq.report import drawing
from bnuq.report.document import Listing, ReportSection, Table
from bnuq.report.render import draw_pictures, markdown, page
from bnuq.studies.inspect.compute import inspect
from bnuq.studies.inspect.findings import findings, independence
from bnuq.studies.inspect.plots import chi2_density, nominal_deviations
from bnuq.studies.inspect.record import Inspection, PipelineFit, Pipelines, write
from bnuq.studies.inspect.view import report

HERE = Path("/results/of/a/long/path/that/is/printed/whole/model.inspect.h5")


drawn = partial(rendered, report, width=80, full=True)


def verdicts(record: Inspection) -> dict[str, str]:
    """The sentences by code, also those of noise, of several with one code the last."""
    noise = independence(record.noise) if record.noise is not None and record.noise.layers else ()
    found = [*findings(record), *noise]
    assert all(each.text.endswith(".") for each in found)
    return {each.code: each.text for each in found}


def section_of(record: Inspection, title: str) -> ReportSection:
    [section] = [section for section in report(record).sections if section.title == title]
    return section


def tables_of(record: Inspection, title: str) -> list[Table]:
    return [part for part in section_of(record, title).parts if isinstance(part, Table)]


def labels(table: Table) -> list[str]:
    return [label for label, cells in table.rows if cells]


SITES = "Sites, in execution order"
GAP = "Running statistics compared with the population"
DOMAINS, PIPELINES = "Domains", "Training pipelines tried"


def changed_layers(record: Inspection, part: str, change: Callable[[Any], Any]) -> Inspection:
    value = getattr(record, part)
    return replace(record, **{part: replace(value, layers=tuple(map(change, value.layers)))})


# ── how it is laid out ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 80, 120]))
@pytest.mark.parametrize("name", made_up_inspection.ALL)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_requested_and_none_ends_in_blanks(name, width, encoding):
    record = replace(made_up_inspection.ALL[name](), path=HERE)
    text = drawn(record, width=width, encoding=encoding)
    verbatim = set() if record.pipelines is None else set(record.pipelines.lines.splitlines())
    for line in text.splitlines():
        assert len(line) <= min(width, 100) or line in {str(HERE), *verbatim}, line
        assert line == line.rstrip()
        assert line in verbatim or not {"{", "}"} & set(line), "a template was not filled in"
    assert str(HERE) in text and "?" not in text


@pytest.mark.parametrize("width", [40, 100])
def test_the_lines_for_the_run_file_can_be_copied_from_any_terminal_and_from_markdown(width):
    record = made_up_inspection.whole()
    assert made_up_inspection.LINES in drawn(record, width=width)
    assert f"```toml\n{made_up_inspection.LINES}```" in markdown(report(record))
    [listing] = [part for part in section_of(record, PIPELINES).parts if isinstance(part, Listing)]
    assert listing.text == made_up_inspection.LINES.rstrip()


def test_few_sites_are_all_shown_and_many_in_groups_that_keep_what_is_noteworthy_apart():
    [table] = tables_of(made_up_inspection.bare(), SITES)
    assert labels(table) == [site.name for site in made_up_inspection.bare().sites]
    [table] = tables_of(replace(made_up_inspection.long(), sites=made_up_inspection.sites(9, flagged=True)), SITES)
    rows = {label: dict(zip(table.header, (cell.value for cell in cells), strict=True)) for label, cells in table.rows}
    assert len(rows) <= 12
    assert (rows["layer1.0.bn1"]["sites"], rows["layer1.0.bn1"]["flags"]) == ("1", "frozen")
    assert (rows["layer1.0.bn2"]["stochastic"], rows["layer1.0.bn2"]["flags"]) == ("yes", "never-trained")
    group = rows["bn1 … layer1.8.bn2"]
    assert (group["sites"], group["kind"], group["channels"], group["z"]) == ("16", "BatchNorm", "8", "1,024")
    assert sum(int(row["sites"]) for row in rows.values()) == 58


def test_a_network_of_many_different_layers_is_folded_all_the_same():
    sites = tuple(
        replace(site, channels=32 + order) if site.kind == "batchnorm" else site
        for order, site in enumerate(made_up_inspection.sites(20))
    )
    [table] = tables_of(replace(made_up_inspection.bare(), sites=sites), SITES)
    assert len(table.rows) <= 12 and any(cell.value.startswith("32–") for _, cells in table.rows for cell in cells)


def test_the_gap_table_has_the_worst_layers_first_and_of_many_the_worst_alone():
    for record, rows in ((made_up_inspection.healthy(), 20), (made_up_inspection.long(), 12)):
        [table] = tables_of(record, GAP)
        assert len(table.rows) == rows and table.rows[0][0] == "layer1.1.bn1"
        ratios = [float(cells[1].value) for _, cells in table.rows]
        assert ratios == sorted(ratios, reverse=True)
    text = " ".join(drawn(made_up_inspection.long()).split())
    assert "… and 44 layers more, at most 8.8 times batch noise" in text and "2,432" in text


def test_layers_of_which_nothing_is_known_come_last():
    record = changed_layers(
        made_up_inspection.healthy(),
        "gap",
        lambda one: replace(one, ratio_mean=math.nan, ratio_log_variance=math.nan) if one.name == "bn1" else one,
    )
    [table] = tables_of(record, GAP)
    assert labels(table)[-1] == "bn1"
    assert "0.40 (means) and 0.44 (variances) times the random error in the median" in verdicts(record)["healthy"]


def test_ratios_are_coloured_by_what_they_say():
    def styles(record: Inspection) -> dict[str, str]:
        tables = [part for section in report(record).sections for part in section.parts if isinstance(part, Table)]
        return {cell.value: cell.style for table in tables for _, cells in table.rows for cell in cells}

    ill = styles(made_up_inspection.ill())
    assert ill["17.6"] == ill["8.0"] == ill["never-trained"] == "bold red"
    assert styles(made_up_inspection.healthy())["0.88"] == "green"


def test_candidates_of_long_names_are_numbered_where_there_is_little_space():
    text = drawn(made_up_inspection.whole(), width=60)
    assert re.search(r"^ 1 +0\.35 +0\.58 +layer1\.0\.bn1 +best$", text, flags=re.MULTILINE)
    assert re.search(r"^ · 1: imagenet, pad 4, crop 32$", text, flags=re.MULTILINE)


def test_the_crossing_has_a_row_for_each_domain_and_a_column_for_whose_statistics():
    distances, crossing = tables_of(made_up_inspection.whole(), DOMAINS)
    digits = dict(distances.rows)["digits"]
    assert [cell.value for cell in digits if cell != digits[2]] == ["900", "no", "40.0", "bn1"]
    assert crossing.header == ("running", "train", "jpeg", "digits", "mixed")
    headings = [number for number, (_, cells) in enumerate(crossing.rows) if not cells]
    assert [crossing.rows[number][0] for number in headings] == ["mutual information", "↑ accuracy", "↑ PLL"]
    of_accuracy = crossing.rows[headings[1] + 1 : headings[2]]
    jpeg = dict(of_accuracy)["  jpeg"]
    assert [cell.value for cell in jpeg[:4]] == ["0.8800", "0.8800", "0.9100", "0.8300"]
    assert [cell.error for cell in jpeg[:3]] == ["±0.0060"] * 3
    assert "  digits" not in dict(of_accuracy)  # it has no labels


def test_candidates_are_ranked_and_those_that_are_indistinguishable_are_marked():
    [table] = tables_of(made_up_inspection.whole(), PIPELINES)
    assert [(label, cells[-1].value) for label, cells in table.rows[:5]] == [
        ("imagenet, pad 4, crop 32", "best"),
        ("imagenet, pad 4, crop 32, flip", "as good"),
        ("cifar10, pad 4, crop 32", "yes"),
        ("imagenet, no augmentation", "no"),
        ("imagenet, BGR, pad 4, crop 32", "no"),
    ]
    [heading] = [number for number, (_, cells) in enumerate(table.rows) if not cells]
    eliminated = [label.strip() for label, _ in table.rows[heading + 1 :]]
    assert "no normalisation, pixels 0–255, no augmentation" in eliminated


# ── what it finds ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", made_up_inspection.ALL)
def test_every_finding_has_its_sentence(name):
    record = made_up_inspection.ALL[name]()
    assert report(record).summary == tuple(each.text for each in findings(record))


def test_a_healthy_network_is_called_so_with_its_worst_layer():
    found = verdicts(made_up_inspection.healthy())
    assert "0.88 times in the worst, `layer1.1.bn1`" in found["healthy"]
    assert found["sites"].startswith("20 BatchNorm layers and 1 dropout can draw samples")
    assert found["sites-fixed"] == "Not sampled: drop2 (its rate is 0)."


def test_an_ill_network_has_its_layers_named_and_what_to_do():
    found = verdicts(made_up_inspection.ill())
    assert next(iter(found)) == "statistics-mismatch"
    assert "and 17.6 times in the worst" in found["statistics-mismatch"]
    told = " ".join(rendered(report, made_up_inspection.ill(), full=True).split())
    assert "Neither a run file nor an option sets `normalize` or `augment`; if training used it, that may be" in told
    assert "recompute-statistics" in found and "search-pipeline" not in found
    assert found["never-trained"].startswith("Never-trained: layer1.0.bn2. Its")
    assert found["frozen"].startswith("Frozen: layer1.0.bn1. It")
    assert ": layer1.1.bn1. Its" in found["not-finite"] and ": layer1.1.bn1. Running" in found["vanishing"]
    assert "2 channels, most in layer1.2.bn1." in found["dead-channels"] and ": rnn (" in found["unreachable"]
    rootless = replace(made_up_inspection.ill(), unreachable=(("", "random numbers in training only"),))
    assert ": the network (random" in verdicts(rootless)["unreachable"]
    assert "8.5 times the random error in the worst layer, layer1.0.bn1 (up to 6 is" in found["no-pipeline-fits"]
    assert "search-pipeline" in verdicts(replace(made_up_inspection.ill(), pipelines=None))


def test_a_layer_that_is_broken_is_not_healed_by_others_that_agree():
    broken = replace(made_up_inspection.healthy(), sites=made_up_inspection.sites(flagged=True))
    assert "unhealthy-elsewhere" in verdicts(broken) and "healthy" not in verdicts(broken)
    alone = replace(made_up_inspection.bare(), sites=made_up_inspection.sites(flagged=True))
    assert "see layer1.1.bn1 and layer1.0.bn2." in verdicts(alone)["layers-broken"]


def test_without_a_reference_it_is_said_what_one_would_add():
    assert "fit-without-reference" in verdicts(made_up_inspection.bare())
    assert set(verdicts(replace(made_up_inspection.bare(), sites=()))) == {"nothing-stochastic"}
    healthy = made_up_inspection.healthy()
    assert healthy.gap is not None
    assert "statistics-unchecked" in verdicts(replace(healthy, gap=replace(healthy.gap, passed=None)))


def unchecked(record: Inspection, *, off: float, names: tuple[str, ...] = ("bn1",), **other: Any) -> Inspection:
    """Some layers without ratios, so many standard deviations off."""
    return changed_layers(
        record,
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
    record = unchecked(made_up_inspection.healthy(), off=431.0, explained_shift=explained)
    assert record.gap is not None
    found = verdicts(replace(record, gap=replace(record.gap, passed=passed)))
    assert next(iter(found)) == ("unhealthy-elsewhere" if passed else "statistics-far") and "healthy" not in found
    assert found["layers-unchecked"].startswith("Not checked: bn1 (")


def test_layers_that_could_not_be_checked_and_are_near_are_named_alone():
    found = verdicts(unchecked(made_up_inspection.healthy(), off=0.0))
    assert "healthy" in found
    assert found["layers-unchecked"].startswith("Not checked: bn1 (")


def test_averages_of_several_calls_are_not_compared_with_batch_noise():
    record = unchecked(made_up_inspection.healthy(), off=1.5)
    sites = tuple(replace(one, flags=("called-again",)) if one.name == "bn1" else one for one in record.sites)
    found = verdicts(replace(record, sites=sites))
    assert next(iter(found)) == "statistics-match-where-checked"
    assert "(running statistics shared by several calls)" in found["layers-unchecked"]


def test_the_median_is_the_one_that_the_verdict_goes_by():
    """That of mean and of log variance is 2.25, that of the larger of both, 3.5, would be too much."""
    record = changed_layers(made_up_inspection.healthy(), "gap", alternating())
    assert "2.2 (variances) times the random error in the median" in verdicts(record)["healthy"]


def alternating() -> Callable[[Any], Any]:
    """One layer is off in the mean, the next in the variance."""
    pairs = itertools.cycle([(3.5, 1.0), (1.0, 3.5)])

    def changed(layer: Any) -> Any:
        mean, log_variance = next(pairs)
        return replace(layer, ratio_mean=mean, ratio_log_variance=log_variance)

    return changed


def test_a_reference_that_was_given_is_not_asked_for():
    bare = made_up_inspection.bare()
    assert list(verdicts(bare))[:2] == ["nothing-unusual", "fit-without-reference"]
    given = {"run": made_up_inspection.inspection().run}
    small = "the training set has 4 examples, fewer than 8"
    noted = (note("noise-on-the-same-points"), note("unmeasured", reason=small))
    found = verdicts(replace(bare, findings=noted, **given))
    assert found["fit-unmeasured"].endswith(f"was not measured: {small}.") and "fit-without-reference" not in found
    none = note("unmeasured", reason="the network has no BatchNorm layer that could be sampled")
    frozen = tuple(replace(one, flags=("frozen",)) for one in bare.sites[:1])
    assert next(iter(verdicts(replace(bare, sites=frozen, findings=(none,))))) == "fit-unmeasured"
    unread = warning("reference-unreadable", reason="absent")
    assert "fit-unread" in verdicts(replace(bare, findings=(unread,), **given))
    weights = warning("not-finite", tensors=["head.weight"])
    assert next(iter(verdicts(replace(bare, findings=(weights,))))) == "weights-not-finite"


def test_the_reason_is_the_one_that_an_inspection_notes(tmp_path):
    small_run.write(tmp_path)
    np.savez(tmp_path / "train.npz", x=np.random.default_rng(0).random((4, 1, 6, 6), np.float32))
    run = resolve("run.toml", Options(device="cpu", out=tmp_path / "x.inspect.h5"), folder=tmp_path)
    assert ": the training set has 4 examples, fewer than 8." in verdicts(inspect(run))["fit-unmeasured"]


@pytest.mark.parametrize("flag", ["vanishing", "frozen", "called-again", "untracked"])
def test_nothing_is_unusual_only_where_nothing_is(flag):
    bare = made_up_inspection.bare()
    flagged = replace(bare, sites=(replace(bare.sites[0], flags=(flag,)), *bare.sites[1:]))
    assert "nothing-unusual" not in verdicts(flagged)
    unfit = verdicts(replace(bare, pipelines=made_up_inspection.ill().pipelines))
    assert "nothing-unusual" not in unfit and "fit-doubtful" in unfit
    assert "fit-by-pipeline" in verdicts(replace(bare, pipelines=made_up_inspection.pipelines()))


def of_candidates(*candidates: PipelineFit) -> Inspection:
    return replace(made_up_inspection.bare(), pipelines=Pipelines(candidates, (), (), ""))


def test_the_limit_that_the_closest_pipeline_exceeds_is_named():
    candidate = made_up_inspection.candidate
    best = candidate("mnist", "", 5.9, median=4.5, passed=False, tied=True)
    near, rival = candidate("fashion", "", 9.0, passed=False, tied=False), candidate("fashion", "", 60.0, tied=False)
    found = verdicts(of_candidates(best, near, rival))
    assert found["no-pipeline-fits"].endswith(": 4.5 times the random error in the median layer (up to 3 is normal).")
    both = verdicts(of_candidates(replace(best, worst=17.0), rival))["no-pipeline-fits"]
    assert "4.5 times" in both and "and 17.0 times" in both


def test_where_none_fits_the_best_is_the_closest_in_the_table():
    candidate = made_up_inspection.candidate
    record = of_candidates(
        candidate("mnist", "", 8.5, tied=True),
        candidate("mnist", "flip", 8.6, tied=True),
        candidate("fashion", "", 60.0, tied=False),
    )
    [table] = tables_of(record, PIPELINES)
    assert [cells[-1].value for _, cells in table.rows] == ["closest", "as close", "no"]
    assert "closest: none fits" in " ".join(drawn(record).split())


def test_mixed_batches_of_one_domain_hold_the_reference_too():
    whole = made_up_inspection.whole()
    assert whole.domains is not None
    assert "mixed: batches of all domains in equal parts" in " ".join(drawn(whole).split())
    alone = replace(whole, domains=replace(whole.domains, domains=whole.domains.domains[:1]))
    assert "mixed: batches of jpeg and the training set in equal parts" in " ".join(drawn(alone).split())


def test_a_cumulative_average_is_called_so():
    bare = made_up_inspection.bare()
    norms = tuple(replace(one, momentum=None) for one in bare.sites if one.kind == "batchnorm")
    assert "and the running averages are cumulative." in " ".join(drawn(replace(bare, sites=norms)).split())
    [table] = tables_of(replace(bare, sites=(norms[0], *bare.sites[1:20])), SITES)
    assert table.rows[0][1][table.header.index("momentum")].value == "cumulative"
    still = tuple(replace(one, momentum=0.0) for one in norms)  # of which nothing is updated
    assert "and momentum is 0." in " ".join(drawn(replace(bare, sites=still)).split())


def test_dependent_values_are_reported_with_the_error_of_a_nominal_noise_model():
    text = verdicts(made_up_inspection.healthy())["values-dependent"]
    assert "in 19 of 20 layers: in bn1, the effective sample size is 1,229 where b·z = 131,072." in text
    assert f"noise {math.sqrt(131072 / 1229):.1f} times too small" in text
    free = changed_layers(
        made_up_inspection.healthy(),
        "noise",
        lambda one: replace(one, values_mean=0.9 * one.nominal, values_deviation=1.1 * one.nominal),
    )
    text = verdicts(free)["values-independent"]
    assert "is 90 % of n" in text and "is within a factor √2 of that" in text
    unknown = changed_layers(
        made_up_inspection.healthy(), "noise", lambda one: replace(one, values_mean=math.nan, values_deviation=math.nan)
    )
    assert not [code for code in verdicts(unknown) if code.startswith("values-")]
    less = verdicts(changed_layers(free, "noise", lambda one: replace(one, values_mean=9.0 * one.nominal)))
    assert "is at most √2 times that" in less["values-independent"]
    none = changed_layers(free, "noise", lambda one: replace(one, values_mean=0.0))
    assert "values-fully-dependent" in verdicts(none)


def test_domains_are_distinguished_by_the_layers_that_differ_most():
    found = verdicts(made_up_inspection.whole())
    assert "distinguishes jpeg from the training set: at most 2.5 times" in found["domain-alike"]
    assert found["domain-distinguishable"].startswith(
        "digits is distinguishable from the training set, most in bn1 (40.0 "
    )
    assert "accuracy 0.880 → 0.910 (+0.030); PLL −0.400 → −0.370 (+0.030)." in found["own-statistics-better"]


def test_what_a_domain_gains_has_its_sign_and_its_error():
    whole = made_up_inspection.whole()
    assert whole.domains is not None

    def shifted(by: float) -> Inspection:
        crossings = tuple(
            replace(one, estimates={"accuracy": Estimate(0.8 + by * (one.statistics == one.domain), se=0.01)})
            for one in whole.domains.crossings  # type: ignore
        )
        return replace(whole, domains=replace(whole.domains, crossings=crossings))  # type: ignore[type-var]

    for by, code in ((0.1, "better"), (-0.1, "worse"), (0.02, "no-effect")):
        assert f"own-statistics-{code}" in verdicts(shifted(by))
    one = Estimate(0.8)  # of one point, whose error is not known
    crossings = tuple(replace(each, estimates={"accuracy": one}) for each in whole.domains.crossings)
    assert "own-statistics-unknown" in verdicts(replace(whole, domains=replace(whole.domains, crossings=crossings)))


def test_what_the_statistics_leave_open_is_said():
    found = verdicts(made_up_inspection.whole())
    assert "fit imagenet, pad 4, crop 32 best: 0.58 times the random error" in found["pipeline-fits"]
    assert found["pipeline-undetermined"].startswith("Undetermined by the statistics: flip: with and without it")


def test_pipelines_that_are_as_good_are_named_where_nothing_tells_what_differs():
    pipelines = made_up_inspection.pipelines()
    found = verdicts(replace(made_up_inspection.bare(), pipelines=replace(pipelines, undetermined=())))
    assert found["pipelines-equivalent"].endswith("equally well: imagenet, pad 4, crop 32, flip.")
    assert "no-pipeline-tried" in verdicts(of_candidates())


def test_a_domain_of_which_nothing_is_known_is_not_called_alike():
    whole = made_up_inspection.whole()
    assert whole.domains is not None
    [jpeg, *others] = whole.domains.domains
    unknown = replace(jpeg, ratio=np.full_like(jpeg.ratio, math.nan))
    found = verdicts(replace(whole, domains=replace(whole.domains, domains=(unknown, *others))))
    assert "No layer of jpeg could" in found["domain-unmeasured"] and "domain-alike" not in found


# ── the formulas ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [5, 32, 900, 1001, 32768])
def test_the_nominal_deviations_are_those_of_an_inverse_chi(count):
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


def drawn_axes(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of the pictures that are saved from now on."""
    axes: list[Axes] = []
    save = drawing._save

    def saving(figure: Any, *rest: Any) -> None:
        axes.extend(figure.axes)
        save(figure, *rest)

    monkeypatch.setattr(drawing, "_save", saving)
    return axes


def test_every_part_has_its_pictures_and_none_shows_more_than_there_is(tmp_path):
    kinds = ["gap", "noise_by_layer", "noise_panels", "domains"]
    assert [picture.kind for picture in report(made_up_inspection.whole()).pictures] == [(kind,) for kind in kinds]
    assert draw_pictures(report(made_up_inspection.bare()), tmp_path / "b") == ()


@pytest.mark.nightly
def test_what_is_not_finite_leaves_gaps_in_pictures(tmp_path):
    paths = draw_pictures(report(made_up_inspection.unfinite()), tmp_path, "png")
    assert len(paths) == 4 and all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_three_panels_show_the_distribution_the_sizes_and_the_positions(tmp_path, monkeypatch):
    [panels] = [picture for picture in report(made_up_inspection.healthy()).pictures if "panels" in picture.kind[0]]
    axes = drawn_axes(monkeypatch)
    panels.draw(tmp_path / "panels.svg")
    first, second, third = axes
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


def test_the_page_has_its_sections_and_says_what_to_do():
    record = replace(made_up_inspection.whole(), findings=warnings(made_up_inspection.ill().findings), path=HERE)
    text = page(report(record))
    titles = [SITES, GAP, "Noise of a batch", DOMAINS, "Provenance", "About this result"]
    assert re.findall(r"<summary><h3>([^<]+)</h3>", text) == titles
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == ["In short", "Warnings", "Figures", "Next", "Everything else"]
    assert "2 warnings below, with what to do: reference-unchecked, never-trained." in text
    assert "What to do:" in text and "[sampling]" in text and "SHA-256" in text


@pytest.mark.parametrize("name", ["bare", "whole"])
def test_bnuq_report_shows_an_inspection_in_every_form(name, tmp_path, capsys):
    path, page_path = tmp_path / "x.inspect.h5", tmp_path / "x.html"
    write(made_up_inspection.ALL[name](), path)

    def ran(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        return int(left.value.code or 0), *capsys.readouterr()

    code, out, _ = ran("report", str(path))
    assert code == 0 and "in order" not in out and f"report {path} --full" in out
    code, out, _ = ran("report", str(path), "--json", "--html", str(page_path))
    assert code == 0 and out.startswith("{") and '"command": "inspect"' in out
    text = page_path.read_text(encoding="utf-8")
    pictures = 4 if name == "whole" else 0
    assert text.count("<figure") == pictures and "BatchNorm" in text
    assert len(re.findall("</strong> <span>", text)) == pictures  # each says how to read it
    code, out, _ = ran("report", str(path), "--markdown", "-")
    assert code == 0 and out.startswith("# bnuq inspect")
    code, out, err = ran("check", str(path), str(path))
    expected = "is not a result file of bnuq evaluate, but of bnuq inspect"
    assert (code, out) == (2, "") and expected in " ".join(err.split())
    code, _, err = ran("report", str(path), str(path))
    assert code == 2 and "only those can be shown side by side" in " ".join(err.split())
