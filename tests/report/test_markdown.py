"""The report as Markdown: read back as GitHub reads it, and with every text in it harmless."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from bnuq.report.document import Cell, Heading, Listing, Paragraph, Part, PathLine, Report, ReportSection, Table
from bnuq.report.render import print_report
from bnuq.report.render.markdown import code, markdown, text
from bnuq.report.sanitize import printable

HOSTILE = (
    "<script>alert(1)</script>",
    "[a](http://evil.example)",
    "![x](https://evil.example/p.png)",
    "| a | b |",
    "# big",
    "- item",
    "1. item",
    "---",
    "===",
    "> quote",
    "```",
    "`",
    "``a`",
    "**b** __b__ ~~s~~ $m$",
    "a\nb\r\n# c",
    "\\",
    "x\\",
    "@somebody @org/team",
    "someone@evil.example",
    "https://evil.example www.evil.example mailto:a@b.c",
    "#12 GH-12 o/r#3",
    ":+1: :smile:",
    "&lt;b&gt; &#64;me",
    "[^1]: note",
    "[x]: http://evil.example",
    "    code",
    "<!-- x",
    "</details>",
    "~~~",
    "\x1b[31m\u202e",
    "a `|` b",
)


def read(document: str) -> list[Token]:
    """The tokens of a document, as GitHub takes it: raw HTML, tables and strikethrough are on."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(document)


def words(tokens: list[Token]) -> str:
    """What is left of inline tokens for a reader."""
    kept = {"text", "code_inline", "text_special"}
    found = "".join(child.content if child.type in kept else "" for token in tokens for child in token.children or ())
    return found.replace("\u200b", "")


def inline_types(document: str) -> set[str]:
    return {child.type for token in read(document) for child in token.children or ()}


def types(document: str) -> set[str]:
    return {token.type for token in read(document)}


def shown(told: str) -> str:
    """What a reader must see of a text: all of it, on one line, code without its two ticks."""
    return re.sub(r"`([^`]*[^`\s][^`]*)`", r"\1", " ".join(printable(told, lines=False).split()))


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_hostile_text_is_shown_and_does_nothing(evil: str) -> None:
    told = text(evil)
    assert types(told) <= {"paragraph_open", "paragraph_close", "inline"}
    assert inline_types(told) <= {"text", "code_inline"}
    assert words(read(told)) == shown(evil)


@given(st.text(alphabet=st.sampled_from(list("ab1 _*`|\\<>[]()#-+=!&;:@/.~$\n\t\x00")), max_size=24))
@example("`1``1`")
def test_any_text_comes_back_as_it_was_and_is_plain(evil: str) -> None:
    told = text(evil)
    assert inline_types(told) <= {"text", "code_inline"}
    assert types(told) <= {"paragraph_open", "paragraph_close", "inline"}
    assert words(read(told)) == shown(evil)


@given(st.text(alphabet=st.sampled_from(list("ab `|\\<")), max_size=16))
def test_a_path_as_code_comes_back_as_it_was(path: str) -> None:
    if path.strip():
        assert words(read(code(path))).strip() == path.strip()


@pytest.mark.parametrize(
    "acts",
    [
        "@somebody",
        "me@there.example",
        "https://there.example",
        "www.there.example",
        "WWW.there.example",
        "owner/name#12",
        "#12",
        "GH-12",
        "gh-12",
        ":smile:",
        "!12",
        "mailto:x",
    ],
)
def test_mentions_links_references_and_emoji_are_taken_apart(acts: str) -> None:
    assert "&#8203;" in text(acts) and text(acts).replace("&#8203;", "").replace("\\", "") == acts


@pytest.mark.parametrize(
    "plain", ["−0.5 ±0.1", "0.55 GB", "snake_case_name", "a & b", "64 %", "layer1.2.bn1", "10:30", "-0.5"]
)
def test_an_ordinary_text_stays_readable_in_the_source(plain: str) -> None:
    assert text(plain) == plain


def of(*parts: Part) -> str:
    """A report of these parts alone, as Markdown."""
    return markdown(Report("bnuq x", sections=(ReportSection("", parts),)))


def grid(document: str) -> list[list[str]]:
    """The cells of the only table in the document, row by row."""
    rows: list[list[str]] = []
    tokens = read(document)
    for place, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(words([tokens[place + 1]]))
    return rows


def test_a_table_has_its_columns_whatever_is_in_its_cells() -> None:
    for evil in HOSTILE:
        document = of(Table((evil, "b"), ((evil, ()), (f"  {evil}", (Cell(evil, evil), Cell("1.0", "±0.1"))))))
        told = shown(evil)
        heading, inset = grid(document)[1], grid(document)[2]
        assert grid(document)[0] == ["", told, "b"]
        assert heading == [told, "", ""]
        assert inset == [f"\u2003{told}", f"{told} {told}".strip(), "1.0 ±0.1"]
        assert inline_types(document) <= {"text", "code_inline", "strong_open", "strong_close"}


def test_numbers_stand_to_the_right_and_the_first_column_to_the_left() -> None:
    html = MarkdownIt("commonmark").enable("table").render(of(Table(("a", "b"), (("x", (Cell("1"), Cell("2"))),))))
    assert html.count('style="text-align:right"') == 4 and html.count('style="text-align:left"') == 2


def test_a_table_without_header_is_still_one() -> None:
    assert grid(of(Table(("", ""), (("x", (Cell("▁█"), Cell("1 → 2"))),))))[1] == ["x", "▁█", "1 → 2"]


def test_every_part_has_its_place_and_headings_go_down_by_one() -> None:
    legend = (Paragraph("first legend", dim=True), Paragraph("second legend", dim=True))
    report = Report(
        "the first",
        facts=(("name", "what it is"),),
        summary=("the answer",),
        sections=(
            ReportSection("A", (Heading("B"), Listing("lines", "a ```\n```"), *legend)),
            ReportSection("Seldom read", (Paragraph("rest"),), folded=True),
            ReportSection("Origin", (Paragraph("machine"),), only_on_page=True),
        ),
        warnings=(("one", "a-code", "do this"),),
        notes=tuple(f"note {number}" for number in range(9)),
        path=PathLine(Path("/there/a_b.h5")),
    )
    document = markdown(report)
    tokens = read(document)
    assert [(t.tag, words([tokens[place + 1]])) for place, t in enumerate(tokens) if t.type == "heading_open"] == [
        ("h2", "the first"), ("h3", "In short"), ("h3", "A"), ("h4", "B"), ("h3", "Warnings"), ("h3", "Notes"),
    ]  # fmt: skip
    # The section, the notes, and how to read it.
    assert document.count("<details>") == document.count("</details>") == 3 and "machine" not in document
    [fence] = [token for token in tokens if token.type == "fence"]
    assert fence.content == "a ```\n```\n"
    assert "- one `a-code` **What to do:** do this" in document and "Result: `/there/a_b.h5`" in document
    assert markdown(report, level=1).startswith("# the first\n")


def test_of_a_check_the_first_line_is_the_verdict_and_what_is_wrong_comes_before_the_facts() -> None:
    report = Report(
        "PLL got worse", facts=(("current", "a.h5"),), summary=("mcbn",), verdict="failed", warnings=(("w", "c", ""),)
    )
    document = markdown(report)
    assert document.startswith("## ❌ PLL got worse\n")
    places = [document.index(sign) for sign in ("- mcbn", "### Warnings", "<details>", "a.h5")]
    assert places == sorted(places)


def test_of_a_check_the_command_stands_before_the_verdict_and_every_path_below() -> None:
    report = Report(
        "bnuq check",
        subject="PLL got worse",
        verdict="failed",
        sections=(ReportSection("same", (Paragraph("everything"),)),),
        path=PathLine(Path("/now.h5"), "Current"),
        other_paths=(PathLine(Path("/base.h5"), "Baseline"),),
    )
    document = markdown(report)
    assert document.startswith("## ❌ bnuq check: PLL got worse\n")
    assert "everything" in document
    assert document.index("Current: `/now.h5`") < document.index("Baseline: `/base.h5`")
    stream = io.StringIO()
    print_report(report, stream)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "PLL got worse" and lines[-2:] == ["Current: /now.h5", "Baseline: /base.h5"]
    assert "everything" in lines
