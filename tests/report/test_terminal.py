"""The report: nothing cut, nothing wider than the terminal, readable as it is piped, and in words that hold."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bnuq.catalogue import text_of
from bnuq.estimates import Estimate
from bnuq.findings import note, warning, warnings
from bnuq.metrics import standard_error
from bnuq.records import evaluation_file as result_file
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.report.numbers import sparkline
from bnuq.report.sanitize import printable
from bnuq.report.terminal import print_report


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(result: Result, *, full: bool = True, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_report(result, stream, full=full, width=width)
    stream.flush()
    return raw.getvalue().decode(encoding)


def one_line(text: str) -> str:
    return " ".join(text.split())


CLASSIFICATIONS = ["four_methods", "two_sets", "deterministic", "validated"]
RESULTS = [*CLASSIFICATIONS, "regression", "given_tau", "without_tau", "two_outputs"]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("full", [True, False])
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(request, name, width, encoding, full):
    result = request.getfixturevalue(name)
    for line in drawn(result, full=full, width=width, encoding=encoding).splitlines():
        assert len(line) <= width or line == str(result.path)
        assert line == line.rstrip()


@pytest.mark.parametrize("name", RESULTS)
def test_the_short_report_fits_on_a_screen_and_has_every_method_set_and_warning(request, name):
    result = request.getfixturevalue(name)
    short, full = (one_line(drawn(result, full=full, width=100)) for full in (False, True))
    assert len(drawn(result, full=False, width=100).splitlines()) <= 45
    assert len(short) < len(full)
    for method in result.methods:
        assert f" {method} " in short
    for score in (name for name, one in result.sets.items() if one.kind == "ood"):
        assert score in short
    assert all(one_line(text_of(finding)) in short for finding in warnings(result.findings))
    assert "--full" in short


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("name", CLASSIFICATIONS)
def test_every_estimate_is_shown_whole_at_every_width(request, name, width):
    result = request.getfixturevalue(name)
    report = drawn(result, width=width)
    assert "…" not in re.sub(r"…\s+\d+\s+passes", "", report)
    for method, found in result.methods.items():
        for metric, estimate in found.sets["test"].estimates.items():
            if method == "deterministic" and metric in ("mutual_information", "variation_ratio"):
                continue
            assert f"{estimate.value:.4f}".replace("-", "−") in report, (method, metric)
        for scores in found.ood.values():
            for estimates in scores.values():
                assert all(f"{estimates[key].value:.4f}" in report for key in estimates)
                assert f"{estimates['auroc'].low:.4f}–{estimates['auroc'].high:.4f}" in report
    assert all(method in report for method in result.methods)


def test_errors_are_written_out_so_that_they_cannot_be_misread(four_methods):
    for width in (80, 100):
        report = drawn(four_methods, width=width)
        assert re.search(r"±0\.\d{4}", report)
        assert not re.search(r"±\s*\.\d", report)


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
                assert numbers and numbers <= ends, (lines[head], line)


def test_four_methods_fit_side_by_side_at_80_columns(four_methods):
    assert re.search(r"^ +deterministic +mcbn +mcdo +mcbn\+mcdo$", drawn(four_methods), flags=re.MULTILINE)


def test_a_pipe_gets_no_escape_codes_and_a_terminal_gets_colour(four_methods, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in drawn(four_methods)
    terminal = Terminal()
    print_report(four_methods, terminal, full=True, width=80)
    assert "\x1b[1m" in terminal.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert [line.rstrip() for line in plain.splitlines()] == drawn(four_methods).splitlines()
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            quiet = Terminal()
            print_report(four_methods, quiet, full=True, width=80)
            assert quiet.getvalue() == drawn(four_methods)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("name", ["four_methods", "validated", "regression", "without_tau"])
def test_an_encoding_without_our_signs_gets_ascii(request, name, encoding):
    report = drawn(request.getfixturevalue(name), encoding=encoding)
    assert report.isascii()
    assert "+/-" in report and "?" not in report


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
    report = one_line(drawn(replace(four_methods, findings=(odd, note("odd", text="[red]note[/red] \\[x]")))))
    assert "· layer: [bold]x[/bold] of [link=evil]f.pt[/link] :smile: \\x1b[31m [odd-name]" in report
    assert "· text: [red]note[/red] \\[x]" in report


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_auroc(result: Result, value: float, half: float | None = 0.04) -> Result:
    """The result, with one AUROC everywhere, and an interval of `half` to both sides of it."""
    ends = {"low": None, "high": None, "se": None} if half is None else {"low": value - half, "high": value + half}
    methods = {}
    for name, method in result.methods.items():
        ood = {
            s: {score: {k: replace(f, value=value, **ends) for k, f in fs.items()} for score, fs in scores.items()}
            for s, scores in method.ood.items()
        }
        methods[name] = replace(method, ood=ood)
    return replace(result, methods=methods)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.95, "is well separated from the test set: AUROC 0.950 (0.91–0.99)"),
        (0.8, "is partly separated from the test set: AUROC 0.800"),
        (0.6, "is hardly separated from the test set: AUROC 0.600"),
        (0.53, "is not separated from the test set: AUROC 0.530"),
        (0.2, "appears more familiar than the test set: AUROC 0.200"),
    ],
)
def test_the_words_for_an_auroc_are_those_of_its_size_and_interval(four_methods, value, words):
    report = one_line(drawn(with_auroc(four_methods, value)))
    assert f"other {words}" in report
    assert "the best of 14 scores" in report


def test_an_auroc_without_an_interval_gets_no_verdict(four_methods):
    assert "other has too few points to judge: AUROC 0.950 by" in one_line(drawn(with_auroc(four_methods, 0.95, None)))


def test_a_failed_reference_check_is_the_first_thing_said(four_methods):
    check = ReferenceCheck(("bn",), np.array([9.0]), np.array([1.0]), np.array([0.4]), passed=False)
    report = one_line(drawn(replace(four_methods, reference_check=check)))
    assert "In short · Warning: the reference or its pipeline does not match" in report


def test_the_paired_error_of_a_likelihood_goes_by_group(four_methods):
    def error(result: Result) -> float:
        return float(re.findall(r"mcbn explains .*? ± ([\d.]+)\)", one_line(drawn(result)))[0])

    grouped = replace(four_methods.sets["test"], group=np.arange(four_methods.sets["test"].n) // 10)
    pll = with_pll(four_methods, 0.1, 0.5)
    steps = np.repeat([-0.5, 0.5], 10)
    mcbn = pll.methods["mcbn"]
    plain = pll.methods["deterministic"].sets["test"].points["pll"]
    points = dict(mcbn.sets["test"].points) | {"pll": plain + 0.1 + np.resize(steps, len(plain))}
    test = replace(mcbn.sets["test"], points=points)
    result = replace(pll, methods=dict(pll.methods) | {"mcbn": replace(mcbn, sets=dict(mcbn.sets) | {"test": test})})
    assert error(replace(result, sets=dict(result.sets) | {"test": grouped})) > 2 * error(result)


def with_pll(result: Result, change: float, spread: float) -> Result:
    """The result, with mcbn's PLL `change` above the deterministic one, and a paired error of about spread / √n."""
    plain, mcbn = result.methods["deterministic"].sets["test"], result.methods["mcbn"]
    test = mcbn.sets["test"]
    noise = np.resize([-spread, spread], len(plain.points["pll"]))
    pll = plain.points["pll"] + change + noise
    estimates = dict(test.estimates) | {"pll": Estimate(plain.estimates["pll"].value + change, se=0.1, mc_se=1e-6)}
    changed = replace(test, estimates=estimates, points=dict(test.points) | {"pll": pll})
    return replace(
        result, methods=dict(result.methods) | {"mcbn": replace(mcbn, sets=dict(mcbn.sets) | {"test": changed})}
    )


@pytest.mark.parametrize(
    ("change", "spread", "words"),
    [
        (0.2, 0.1, "mcbn explains the labels better than the deterministic network"),
        (-0.2, 0.1, "mcbn explains the labels worse"),
        (0.2, 1.0, "mcbn explains the labels about as well as the deterministic network"),
    ],
)
def test_a_likelihood_is_called_better_or_worse_only_beyond_twice_its_paired_error(four_methods, change, spread, words):
    report = one_line(drawn(with_pll(four_methods, change, spread)))
    assert f"{words}: PLL" in report
    assert f"({change:+.4f} ± ".replace("-", "−") in report


@pytest.mark.parametrize(
    ("change", "wrong", "words"),
    [
        (0.0, 20, "about as well as the deterministic network: PLL .*, but is right less often: accuracy"),
        (0.2, 20, "better than the deterministic network: PLL .*, but is right less often: accuracy"),
        (-0.2, 20, "explains the labels worse: PLL .*, and is right less often: accuracy"),
        (-np.inf, 20, "−inf nats, and is right less often: accuracy"),
        (0.0, 1, None),
    ],
)
def test_accuracy_is_spoken_of_where_it_differs_by_more_than_twice_its_error(four_methods, change, wrong, words):
    result = with_pll(four_methods, change, 0.1)
    plain, mcbn = (result.methods[name] for name in ("deterministic", "mcbn"))
    alone = plain.sets["test"]
    right = np.ones(60)
    alone = replace(alone, estimates=dict(alone.estimates) | {"accuracy": Estimate(1.0, se=0.0)})
    alone = replace(alone, points=dict(alone.points) | {"accuracy": right})
    fewer = right.copy()
    fewer[:wrong] = 0
    test = mcbn.sets["test"]
    estimate = Estimate(float(fewer.mean()), se=0.05, mc_se=0.01)
    test = replace(test, estimates=dict(test.estimates) | {"accuracy": estimate})
    test = replace(test, points=dict(test.points) | {"accuracy": fewer})
    methods = dict(result.methods) | {
        "deterministic": replace(plain, sets=dict(plain.sets) | {"test": alone}),
        "mcbn": replace(mcbn, sets=dict(mcbn.sets) | {"test": test}),
    }
    report = one_line(drawn(replace(result, methods=methods)))
    told = report[report.index("· mcbn ") if change > -np.inf else report.index("· mcbn: ") :].split(" · ")[0]
    if words is None:
        assert "right" not in told
    else:
        error = 100 * np.hypot(standard_error(fewer - right), 0.01)
        assert re.search(words, told)
        assert f"accuracy 100.00 → {100 * fewer.mean():.2f} % (−{100 - 100 * fewer.mean():.2f} ± {error:.2f})" in told


def test_an_infinite_likelihood_is_shown_without_a_verdict(four_methods):
    result = with_pll(four_methods, -np.inf, 0.1)
    report = one_line(drawn(result))
    assert "mcbn: PLL" in report and "−inf nats" in report


def test_a_network_without_anything_stochastic_is_reported_plainly(deterministic):
    report = one_line(drawn(deterministic))
    assert "Deterministic network: accuracy" in report
    assert "no BatchNorm layers" in report
    assert "Only the deterministic network was evaluated" in report
    assert "mcbn was left out: the network has no BatchNorm layer" in report
    assert "AUROC" not in report and "passes" not in report


def test_a_classification_shows_its_bounds_only_where_there_are_validation_points(validated, four_methods):
    report, bounds = drawn(validated), validated.methods["mcbn"].bounds
    constant, optimum = (bounds[bound]["pll"].value for bound in ("constant", "optimum"))
    own, share = validated.methods["mcbn"].sets["test"].estimates["pll"].value, validated.methods["mcbn"].normalized
    cells = [f"{constant:.4f}", f"{own:.4f}", f"{optimum:.4f}", f"{share['pll'].value:.1f} %"]
    row = r" +".join(re.escape(cell.replace("-", "−")) for cell in cells)
    assert re.search(rf"^ mcbn +{row}", report, flags=re.MULTILINE)
    assert "Normalised: 0 % is the constant, 100 % the optimum" in one_line(report)
    assert "constant" not in drawn(replace(four_methods, findings=warnings(four_methods.findings)))


def test_long_names_of_sets_are_never_cut(two_sets):
    for width in (40, 80):
        report = "".join(drawn(two_sets, width=width).split())
        assert "even_stranger_things_seen_at_night_from_far,50points,againstthetestset" in report


def test_tiny_numbers_keep_their_digits(four_methods):
    mcbn = four_methods.methods["mcbn"]
    test = mcbn.sets["test"]
    estimates = dict(test.estimates) | {"mutual_information": Estimate(1.234e-7, se=3.2e-8, mc_se=0.0)}
    changed = replace(mcbn, sets=dict(mcbn.sets) | {"test": replace(test, estimates=estimates)})
    report = drawn(replace(four_methods, methods=dict(four_methods.methods) | {"mcbn": changed}))
    assert "1.2e−07" in report and "±3.2e−08" in report


def test_a_sparkline_spans_its_range():
    assert sparkline([0.0, 0.5, 1.0], low=0.0, high=1.0) == "▁▅█"
    assert sparkline([2.0, 2.0], low=2.0, high=2.0) == "▄▄"


def test_control_and_format_characters_are_written_out():
    assert printable("a\x1b[31m\u202eb\tc\nd é ± 字") == "a\\x1b[31m\\u202eb\\tc\nd é ± 字"
    assert printable("a\nb", lines=False) == "a\\nb"
    assert printable("\udc80") == "\\udc80"
