"""The page of one evaluation: its sections in order, each with its pictures, and what lets somebody make it again."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bnuq.config import read_run_file
from bnuq.findings import note, warning
from bnuq.records.evaluation import Result
from bnuq.report.html import Picture, page
from bnuq.report.markdown import markdown
from bnuq.report.page import HOW, page_parts, run_file, shown_of
from bnuq.report.parts import Listing, Part
from bnuq.report.plots import pictures_of
from bnuq.report.terminal import report_parts

PACKAGE = Path(__file__).resolve().parents[2] / "bnuq"


@pytest.fixture
def paged(tmp_path: Path) -> Callable[[Result], list[Part | Picture | Listing]]:
    return lambda result: list(page_parts(result, shown_of(pictures_of(result), tmp_path)))


def headings(text: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]+)</h2>", text)


def test_a_classification_has_its_sections_in_reading_order(four_methods, paged) -> None:
    warned = replace(four_methods, findings=(warning("reference-unchecked"), note("mcbn-added")))
    text = page(paged(warned))
    assert headings(text) == [
        *("In short", "Methods side by side", "Calibration", "Error against coverage", "other against the test set"),
        *("Over the number of samples", "Warnings", "Notes", "Provenance"),
    ]
    assert "<title>bnuq evaluate: model.pt</title>" in text
    assert text.index("In short") < text.index("Deterministic network") < text.index("<dt>model</dt>")
    assert "1 warning below, with what to do: reference-unchecked." in text


def test_a_regression_has_its_sections_in_reading_order(regression, paged) -> None:
    text = page(paged(regression))
    found = headings(text)
    expected = [
        *("In short", "Methods side by side", "Calibration", "Error against coverage", "far against the test set"),
        *("Over the number of samples", "Uncertainty and error", "Provenance"),
    ]
    assert [heading for heading in found if heading in expected] == expected


@pytest.mark.parametrize("name", ["four_methods", "regression", "deterministic", "two_sets", "without_tau"])
def test_every_picture_stands_on_the_page_once_under_its_section_and_says_how_to_read_it(request, name, paged) -> None:
    result = request.getfixturevalue(name)
    parts = paged(result)
    pictures = [part for part in parts if isinstance(part, Picture)]
    expected = [kind for (kind, *_), _ in pictures_of(result)]
    assert len(pictures) == len(expected) and len({picture.name for picture in pictures}) == len(pictures)
    explained = [picture.how for picture in pictures if picture.how]
    assert sorted(explained) == sorted({HOW[kind] for kind in expected})  # each sentence once
    text = page(parts)
    assert text.count("<svg") == sum(len(picture.svgs) for picture in pictures)


def test_without_pictures_the_curves_are_drawn_in_characters_and_it_is_said_why(four_methods) -> None:
    text = page(page_parts(four_methods, {}, without="no matplotlib"))
    assert "<svg" not in text and "Figures are left out: no matplotlib" in text
    assert "PLL of the first" in text and "Calibration" not in headings(text)


def test_the_page_holds_every_estimate_of_the_terminals_report(four_methods, paged) -> None:
    text = page(paged(four_methods))
    for method in four_methods.methods.values():
        for estimate in method.sets["test"].estimates.values():
            assert f"{estimate.value:.4f}".replace("-", "−") in text
        for scores in method.ood["other"].values():
            assert f"{scores['auroc'].value:.4f}" in text


def test_provenance_tells_versions_hashes_and_the_command(four_methods, paged) -> None:
    text = page(paged(four_methods))
    told = text[text.index('id="provenance"') :]
    hashes = [one.sha256 for one in four_methods.sets.values()]
    assert all(sha in told for sha in [*hashes, four_methods.model["sha256"]])
    for key in ("bnuq", "torch", "numpy", "time"):
        assert str(four_methods.provenance[key]) in told
    assert str(four_methods.path) in told


# ── the run, to be copied ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["four_methods", "regression", "validated", "two_sets"])
def test_the_run_as_shown_is_a_run_file_that_says_the_same(request, name, tmp_path) -> None:
    result = request.getfixturevalue(name)
    text = run_file(result.run)
    (tmp_path / "again.toml").write_text(text, encoding="utf-8")
    spoken = read_run_file(tmp_path / "again.toml")
    assert spoken.model.checkpoint == result.run["model"]["checkpoint"]
    asked = json.loads(json.dumps(result.run))  # as its file holds it
    without = {section: keys for section, keys in asked.items() if section != "options" and keys}
    assert tomllib.loads(text) == without
    assert "# [options]" in text and f'# precision = "{result.sampling["precision"]}"' in text


def test_any_text_and_number_in_a_run_comes_back_from_toml() -> None:
    texts = ['a "b" \\ c', "line\nbreak\ttab", "\x1b\x7f\u202e", "字 😀", "", "#", "a.b"]
    run = {"model": {"texts": texts, "x y": {"q.r": 1.5, "s": [1, 2.0, True]}, "big": 1e300, "no": float("inf")}}
    assert tomllib.loads(run_file(run)) == run
    assert tomllib.loads(run_file({"a": {"n": None, "m": {"k": None}}, "b": {}})) == {"a": {"m": {}}}


# ── what to do ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_warning_stands_beside_what_to_do_on_the_page_and_in_markdown_and_as_ever_on_the_terminal(
    deterministic, paged
) -> None:
    findings = (warning("constant-targets", set="<the> set"), warning("made-up", text="Unheard of."))
    result = replace(deterministic, findings=findings)
    text = page(paged(result))
    assert "All targets of &lt;the&gt; set are the same. <code" in text and "Unheard of. <code" in text
    advice = text[text.index('<ul class="advice">') :]
    assert advice[: advice.index("</ul>")].count("What to do:") == 1
    document = markdown(report_parts(result))
    assert "**What to do:** Check that the right column" in document and "Unheard of. `made-up`" in document
