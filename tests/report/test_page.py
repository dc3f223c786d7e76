"""The page of one evaluation: its sections in order, each with its pictures, and how to repeat it."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from bnuq.config import read_run_file
from bnuq.findings import note, warning
from bnuq.report.document import Table
from bnuq.report.evaluation import report
from bnuq.report.plotting import HOW
from bnuq.report.provenance import run_file
from bnuq.report.render import html, markdown, page
from bnuq.report.render.pictures import DrawnPicture, drawn_for_page


@pytest.fixture(scope="module")
def four_pictures(four_methods) -> dict[tuple[str, ...], DrawnPicture]:
    return drawn_for_page(report(four_methods))


@pytest.fixture(scope="module")
def regression_pictures(regression) -> dict[tuple[str, ...], DrawnPicture]:
    return drawn_for_page(report(regression))


@pytest.fixture(scope="module")
def four_page(four_methods, four_pictures) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "drawn_for_page", lambda _: four_pictures)  # once is enough
        return page(report(four_methods))


def headings(text: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]+)</h2>", text)


def test_a_classification_has_its_sections_in_reading_order(four_methods, four_pictures, monkeypatch) -> None:
    warned = replace(four_methods, findings=(warning("reference-unchecked"), note("mcbn-added")))
    monkeypatch.setattr(html, "drawn_for_page", lambda _: four_pictures)
    text = page(report(warned))
    assert headings(text) == ["In short", "Warnings", "Figures", "Next", "Everything else"]
    assert re.findall(r"<summary><h3>([^<]+)</h3>", text) == [
        *("Compared with the best single pass", "Test set, 60 examples", "By class", "Failure detection"),
        *("other, 50 examples, against the test set", "Provenance", "Notes", "About this result"),
    ]
    assert text.index("In short") < text.index("<table") < text.index("<svg") < text.rindex("<svg")
    assert text.rindex("<svg") < text.index(f"bnuq report {four_methods.path.name} --full") < text.index("<details")
    assert "<title>bnuq evaluate: model.pt</title>" in text
    assert "1 warning below, with what to do: reference-unchecked." in text
    without = replace(report(warned), warnings=(("too few", "too-few-points", ""),))
    assert "1 warning below: too-few-points." in page(without)


def test_a_regression_has_its_sections_in_reading_order(regression, regression_pictures, monkeypatch) -> None:
    monkeypatch.setattr(html, "drawn_for_page", lambda _: regression_pictures)
    assert headings(page(report(regression))) == ["In short", "Figures", "Next", "Everything else"]


@pytest.mark.parametrize("name", ["four", "regression"])
def test_every_picture_stands_on_the_page_once_and_how_to_read_it_is_said_once(request, monkeypatch, name) -> None:
    made = report(request.getfixturevalue("four_methods" if name == "four" else name))
    of_page = request.getfixturevalue(f"{name}_pictures")
    drawn = of_page.values()
    assert len(drawn) == len(made.pictures) == len({picture.name for picture in drawn})
    monkeypatch.setattr(html, "drawn_for_page", lambda _: of_page)  # once is enough
    text = page(made)
    assert text.count("<figure") == len(drawn) and text.count("<svg") == sum(len(picture.svgs) for picture in drawn)
    for how in {HOW[picture.kind[0]] for picture in made.pictures}:
        assert text.count(f"<span>{how}</span>") == 1


def test_the_page_holds_every_estimate_of_the_terminals_report(four_methods, four_page) -> None:
    text = four_page
    for method in four_methods.methods.values():
        for estimate in method.sets["test"].estimates.values():
            assert f"{estimate.value:.4f}".replace("-", "−") in text
        for scores in method.ood["other"].values():
            assert f"{scores['auroc'].value:.4f}" in text


def test_provenance_has_versions_hashes_and_the_path(four_methods, four_page) -> None:
    text = four_page
    provenance = text[text.index('id="provenance"') :]
    hashes = [evaluated.sha256 for evaluated in four_methods.sets.values()]
    assert all(sha in provenance for sha in [*hashes, four_methods.model["sha256"]])
    for key in ("bnuq", "torch", "numpy", "time"):
        assert str(four_methods.provenance[key]) in provenance
    assert str(four_methods.path) in provenance


@pytest.mark.parametrize("name", ["four_methods", "deterministic", "validated", "regression", "without_tau"])
def test_in_markdown_the_report_has_all_its_tables_and_its_answer(request, name) -> None:
    result = request.getfixturevalue(name)
    made = report(result)
    document = markdown(made)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(document)
    tables = [part for section in made.sections for part in section.parts if isinstance(part, Table)]
    assert sum(token.type == "table_open" for token in tokens) == len(tables) > 0
    assert sum(token.type == "tr_open" for token in tokens) == sum(1 + len(table.rows) for table in tables)
    assert "### In short" in document and f"`{result.path}`" in document and "Provenance" not in document


# ── the run, to be copied ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["four_methods", "regression", "validated", "two_sets"])
def test_the_run_as_shown_is_a_run_file_that_says_the_same(request, name, tmp_path) -> None:
    result = request.getfixturevalue(name)
    text = run_file(result.run)
    (tmp_path / "again.toml").write_text(text, encoding="utf-8")
    assert read_run_file(tmp_path / "again.toml").model.checkpoint == result.run["model"]["checkpoint"]
    asked = json.loads(json.dumps(result.run))  # as its file holds it
    without = {section: keys for section, keys in asked.items() if section != "options" and keys}
    assert tomllib.loads(text) == without
    assert "# [options]" in text and '# precision = "auto"' in text


def test_any_text_and_number_in_a_run_comes_back_from_toml() -> None:
    texts = ['a "b" \\ c', "line\nbreak\ttab", "\x1b\x7f\u202e", "字 😀", "", "#", "a.b"]
    run = {"model": {"texts": texts, "x y": {"q.r": 1.5, "s": [1, 2.0, True]}, "big": 1e300, "no": float("inf")}}
    assert tomllib.loads(run_file(run)) == run
    assert tomllib.loads(run_file({"a": {"n": None, "m": {"k": None}}, "b": {}})) == {"a": {"m": {}}}


# ── what to do ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_warning_stands_beside_what_to_do_on_the_page_and_in_markdown(deterministic) -> None:
    findings = (warning("constant-targets", set="<the> set"), warning("made-up", text="Unheard of."))
    made = report(replace(deterministic, findings=findings))
    text = page(made)
    assert "All targets of &lt;the&gt; set are the same. <code" in text and "Unheard of. <code" in text
    advice = text[text.index('<ul class="advice">') :]
    assert advice[: advice.index("</ul>")].count("What to do:") == 2
    document = markdown(made)
    assert "**What to do:** Check that the right column" in document and "Unheard of. `made-up`" in document
