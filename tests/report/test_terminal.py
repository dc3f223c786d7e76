"""The report: nothing cut, nothing wider than the terminal, readable as it is piped, and in words that hold."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import at_night
import pytest
from report_text import Terminal, one_line, rendered

from bnuq.catalogue import text_of
from bnuq.estimates import Estimate
from bnuq.findings import note, warning, warnings
from bnuq.methods import method_named
from bnuq.metrics import METRICS
from bnuq.records import evaluation_file as result_file
from bnuq.report.document import Cell
from bnuq.report.evaluation import report
from bnuq.report.numbers import count, number, percent, with_error
from bnuq.report.render import print_record
from bnuq.report.sanitize import printable

drawn = partial(rendered, report, width=80, full=True)


CLASSIFICATIONS = ["four_methods", "two_sets", "deterministic", "validated"]
RESULTS = [*CLASSIFICATIONS, "regression", "given_tau", "without_tau", "two_outputs"]


@pytest.mark.parametrize("width", at_night.but({40, 80}, [40, 60, 80, 100]))
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize(("encoding", "full"), [("utf-8", True), ("utf-8", False), ("ascii", True)])
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(request, name, width, encoding, full):
    result = request.getfixturevalue(name)
    for line in drawn(result, full=full, width=width, encoding=encoding).splitlines():
        assert len(line) <= width or str(result.path) in line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", RESULTS)
def test_the_short_report_has_every_method_set_and_warning(request, name):
    result = request.getfixturevalue(name)
    short, full = (one_line(drawn(result, full=full, width=100)) for full in (False, True))
    assert len(short) < len(full)
    for method in result.methods:
        assert f" {method_named(method).plain} " in short
    for score in (name for name, one in result.sets.items() if one.kind == "ood"):
        assert score in short
    assert all(one_line(text_of(finding)) in short for finding in warnings(result.findings))
    assert "--full" in short


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("name", CLASSIFICATIONS)
def test_every_estimate_is_shown_whole_at_every_width(request, name, width):
    result = request.getfixturevalue(name)
    text = drawn(result, width=width)
    assert "…" not in re.sub(r"…\s+\d+\s+passes", "", text)
    for method, of_method in result.methods.items():
        for metric, estimate in of_method.sets["test"].estimates.items():
            is_short = method_named(method).recalibration and "headline" not in METRICS[metric].shown
            if is_short or (method == "deterministic" and metric == "mutual_information"):
                continue
            assert f"{estimate.value:.4f}".replace("-", "−") in text, (method, metric)
        for scores in {} if method_named(method).recalibration else of_method.ood.values():
            for estimates in scores.values():
                assert all(f"{estimates[key].value:.4f}" in text for key in estimates)
                assert f"{estimates['auroc'].low:.4f}–{estimates['auroc'].high:.4f}" in text
    assert all(method in text for method in result.methods)


def test_errors_are_written_out_so_that_they_cannot_be_misread(four_methods):
    for width in (80, 100):
        text = drawn(four_methods, width=width)
        assert re.search(r"±0\.\d{4}", text)
        assert not re.search(r"±\s*\.\d", text)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_columns_are_aligned(four_methods, width):
    """The last digits of a column stand below each other, and below the last letter of its title."""
    for encoding in ("utf-8", "ascii"):
        lines = drawn(four_methods, width=width, encoding=encoding).splitlines()
        heads = [
            k
            for k, line in enumerate(lines)
            if re.fullmatch(r" {9,}deterministic( +mcbn)?( +mcdo)?( +mcbn\+mcdo)?", line)
        ]
        assert heads
        for head in heads:
            ends = {match.end() for match in re.finditer(r"\S+", lines[head])}
            for line in lines[head + 1 : head + 4]:
                numbers = {match.end() for match in re.finditer(r"\d\.\d{4}(?= {2}|$)", line)}
                assert numbers <= ends, (lines[head], line)


def test_four_methods_fit_side_by_side_at_80_columns(four_methods):
    assert re.search(r"^ +deterministic +mcbn +mcdo +mcbn\+mcdo$", drawn(four_methods), flags=re.MULTILINE)


def test_a_pipe_gets_no_escape_codes_and_a_terminal_gets_colour(four_methods, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in drawn(four_methods)
    terminal = Terminal()
    print_record(report, four_methods, terminal, full=True, width=80)
    assert "\x1b[1m" in terminal.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert [line.rstrip() for line in plain.splitlines()] == drawn(four_methods).splitlines()
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            quiet = Terminal()
            print_record(report, four_methods, quiet, full=True, width=80)
            assert quiet.getvalue() == drawn(four_methods)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("name", ["four_methods", "validated", "regression", "without_tau"])
def test_an_encoding_without_our_signs_gets_ascii(request, name, encoding):
    text = drawn(request.getfixturevalue(name), encoding=encoding)
    assert text.isascii()
    assert "+/-" in text and "?" not in text


@pytest.mark.parametrize("name", RESULTS)
def test_the_file_gives_the_same_report(request, name):
    result = request.getfixturevalue(name)
    assert drawn(result_file.read(result.path)) == drawn(result)


def test_a_path_is_whole_on_a_line_of_its_own_where_it_does_not_fit(four_methods):
    path = Path("/somewhere") / ("deep" * 20) / "r.bnuq.h5"
    assert drawn(replace(four_methods, path=path), width=40).splitlines()[-2:] == ["Result:", str(path)]
    assert drawn(replace(four_methods, path=Path("/r.h5"))).splitlines()[-1] == "Result: /r.h5"


def test_cautions_and_notes_with_markup_are_shown_as_they_are(four_methods):
    odd = warning("odd-name", layer="[bold]x[/bold] of [link=evil]f.pt[/link] :smile: \x1b[31m")
    text = one_line(
        drawn(replace(four_methods, findings=(odd, note("arrays-unused", names=["[red]note[/red] \\[x]"]))))
    )
    assert "layer: [bold]x[/bold] of [link=evil]f.pt[/link] :smile: \\x1b[31m Update bnuq" in text
    assert "not used: [red]note[/red] \\[x]" in text


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_network_without_anything_stochastic_is_reported_plainly(deterministic):
    text = one_line(drawn(deterministic))
    assert "In short" in text and "no BatchNorm layers" in text
    assert "Only the deterministic network was evaluated" in text
    assert "mcbn, mcbn+mcdo were left out: the network has no BatchNorm layer" in text
    assert "passes" not in text


def test_a_classification_shows_its_bounds_only_where_there_are_validation_points(validated, four_methods):
    text, bounds = drawn(validated), validated.methods["mcbn"].bounds
    constant, optimum = (bounds[bound]["pll"].value for bound in ("constant", "optimum"))
    own, share = validated.methods["mcbn"].sets["test"].estimates["pll"].value, validated.methods["mcbn"].normalized
    cells = [f"{constant:.4f}", f"{own:.4f}", f"{optimum:.4f}", f"{share['pll'].value:.1f} %"]
    row = r" +".join(re.escape(cell.replace("-", "−")) for cell in cells)
    assert re.search(rf"^   mcbn +{row}", text, flags=re.MULTILINE)
    assert "Normalised: 0 % is the constant, 100 % the optimum" in one_line(text)
    assert "constant" not in drawn(replace(four_methods, findings=warnings(four_methods.findings)))


def test_long_names_of_sets_are_never_cut(two_sets):
    for width in (40, 80):
        text = "".join(drawn(two_sets, width=width).split())
        assert "even_stranger_things_seen_at_night_from_far,50examples,againstthetestset" in text


def test_zero_has_no_sign_and_what_rounding_leaves_of_it_is_zero() -> None:
    assert number(-0.0) == "0.0000" and number(-1e-9) == "−1.0e−09"
    dust = with_error(Estimate(2.1e-17, se=4.4e-18))
    assert (dust.value, dust.error) == ("0.0000", "")
    assert with_error(Estimate(0.285, se=1.2e-17)).error == "" and with_error(Estimate(-1e-17)).value == "0.0000"
    assert count(1, "point") == "1 point"


def test_tiny_numbers_keep_their_digits(four_methods):
    mcbn = four_methods.methods["mcbn"]
    test = mcbn.sets["test"]
    estimates = dict(test.estimates) | {"mutual_information": Estimate(1.234e-7, se=3.2e-8, mc_se=0.0)}
    changed = replace(mcbn, sets=dict(mcbn.sets) | {"test": replace(test, estimates=estimates)})
    text = drawn(replace(four_methods, methods=dict(four_methods.methods) | {"mcbn": changed}))
    assert "1.2e−07" in text and "±3.2e−08" in text


def test_control_and_format_characters_are_written_out():
    assert printable("a\x1b[31m\u202eb\tc\nd é ± 字") == "a\\x1b[31m\\u202eb\\tc\nd é ± 字"
    assert printable("a\nb", lines=False) == "a\\nb"
    assert printable("\udc80") == "\\udc80"


def test_an_error_of_nothing_is_left_out_and_zero_has_no_sign():
    assert with_error(Estimate(1.0, se=0.0)) == Cell("1.0000") and with_error(Estimate(0.5, se=0.1)).error == "±0.1000"
    assert with_error(Estimate(1.0, se=0.0, low=0.863, high=1.0)) == Cell("1.0000", "≥0.86")
    assert percent(Estimate(1.0, se=0.0)) == "100.00 %" and percent(Estimate(0.5, se=0.1)) == "50.00 % ± 10.00"
    assert (number(-0.0), number(-0.25, 1)) == ("0.0000", "−0.2")
