"""Every warning and note has its sentence: codes and values where they are produced, and the catalogue, agree."""

from __future__ import annotations

import ast
import functools
import inspect
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bnuq.catalogue as catalogue_package
from bnuq.catalogue import CATALOGUE, distinct, remedy, summary, text_of
from bnuq.findings import Catalogue, Entry, Finding, about, note, notes, warning, warnings
from bnuq.findings import sentence as sentence_of

ROOT = Path(__file__).resolve().parent.parent
PARTS = (catalogue_package.INPUTS, catalogue_package.EVALUATION, catalogue_package.COMMANDS)


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    """Every call that makes a warning or a note, with where it stands."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted([*(ROOT / "bnuq").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        if path.name == "findings.py" or not ("note(" in text or "warning(" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("note", "warning"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def fields(entry: Entry) -> set[str]:
    """The values that a sentence names."""
    if isinstance(entry.sentence, str):
        return {name for _, name, _, _ in string.Formatter().parse(entry.sentence) if name is not None}
    return set(inspect.signature(entry.sentence).parameters)


def test_every_code_that_is_produced_has_a_sentence_of_its_values_and_every_sentence_is_used():
    produced = set()
    for where, call in calls():
        assert len(call.args) == 1 and isinstance(call.args[0], ast.Constant), f"{where}: the code is no literal"
        code, names = call.args[0].value, {keyword.arg for keyword in call.keywords}
        assert code in CATALOGUE, f"{where}: {code} has no sentence"
        assert names == fields(CATALOGUE[code]), f"{where}: {code}"
        produced.add(code)
    assert produced == set(CATALOGUE)


def test_a_code_stands_in_one_part_of_the_catalogue():
    assert sum(map(len, PARTS)) == len(CATALOGUE)


def test_no_finding_is_taken_for_an_array_or_an_estimate_of_its_file():
    """A result file has {"estimate": …}, {"array": …} and {"values": …} where these are."""
    assert not [code for code, entry in CATALOGUE.items() if fields(entry) in ({"estimate"}, {"array"}, {"values"})]


def test_only_warnings_have_remedies():
    produced = {call.args[0].value: call.func.id for _, call in calls()}  # type: ignore[attr-defined]
    for code, entry in CATALOGUE.items():
        assert not (produced[code] == "note" and entry.remedy), code


CASES: Catalogue = {"template": Entry("{set} has {points} points"), "function": Entry(lambda names: " ".join(names))}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"layers": ["a"], "frozen": True}, "1 layer: a, frozen"),
        ({"layers": list("abcdef"), "frozen": False}, "6 layers: a, b, c, d, e and 1 more"),
    ],
)
def test_a_template_writes_lists_and_chooses_words_by_number_and_truth(values: dict[str, object], text: str):
    template = Entry("{layers:number} {layers:layer|layers}: {layers:listed}{frozen:, frozen|}")
    assert sentence_of(note("layers", **values), {"layers": template}) == text


def test_a_sentence_is_a_template_or_a_function_of_the_values_after_its_subject():
    template = note("template", set="test", points=3)
    assert sentence_of(template, CASES) == "test has 3 points"
    assert sentence_of(note("function", names=["a", "b"]), CASES) == "a b"
    (subject,) = about("net", about("test", [template]))
    assert sentence_of(subject, CASES) == "net: test: test has 3 points"


UNKNOWN = ", which another version of bnuq found and this one does not know"


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (warning("of-a-newer-version", layer="1"), f"of-a-newer-version{UNKNOWN}: layer: 1"),
        (warning("few-samples", count=3), "count: 3"),
        (warning("tau-at-range-end", of="mcbn", end="high", tau="text"), "of: mcbn; end: high; tau: text"),
        (replace(note("unknown"), subject="net"), f"net: unknown{UNKNOWN}"),
    ],
)
def test_what_another_version_found_is_shown_by_its_values(finding: Finding, text: str):
    assert text_of(finding) == text
    assert isinstance(remedy(finding), str)


def test_warnings_and_notes_come_apart_and_repeats_are_those_of_one_code_and_sentence():
    same = [warning("worse-than-the-mean", error=error, sd=1.0) for error in (2.00001, 2.00002, 3.0)]
    findings = [same[0], note("mcbn-added"), *same[1:], note("mcbn-added")]
    assert warnings(findings) == tuple(same) and notes(findings) == (note("mcbn-added"), note("mcbn-added"))
    assert list(distinct(findings).values()) == [same[0], note("mcbn-added"), same[2]]


def test_json_has_the_code_and_the_sentence_of_warnings_and_the_sentences_of_notes():
    shared = replace(warning("splits-share-test-set", splits=[0, 1]), runs=2)
    content = summary([note("mcbn-added"), warning("few-samples", samples=4, minimum=8), shared])
    assert content["notes"] == [text_of(note("mcbn-added"))]
    assert [row["code"] for row in content["warnings"]] == ["few-samples", "splits-share-test-set"]
    assert "use at least 8" in content["warnings"][0]["text"] and set(content["warnings"][0]) == {"code", "text"}
    assert content["warnings"][1]["runs"] == 2


@pytest.mark.parametrize(
    ("where", "part"), [('["logits"]', "its `logits` entry"), (".logits", "its `logits` entry"), ("[0]", "the first")]
)
def test_the_part_of_the_output_that_is_scored_is_named(where, part):
    assert f"returns several outputs; {part}" in text_of(note("output-taken-from", where=where))
