"""The report as a page: whole, escaped, without anything from elsewhere, and with the pictures in it."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import small_sweep

from bnuq.cli.main import main
from bnuq.report import drawing
from bnuq.report.document import (
    BulletList,
    Cell,
    Gallery,
    Heading,
    Listing,
    Paragraph,
    Part,
    PathLine,
    Picture,
    Report,
    ReportSection,
    Table,
)
from bnuq.report.render import draw_pictures, page
from bnuq.report.render.pictures import drawn_for_page
from bnuq.studies.sweep import record as sweep_file

VOID = {"meta", "img", "br", "wbr", "use", "path", "rect", "stop"}


def of(*sections: ReportSection | Part, **fields: Any) -> str:
    """The page of a report with these sections; parts of their own in one without a title."""
    made = (each if isinstance(each, ReportSection) else ReportSection("", (each,)) for each in sections)
    return page(Report("bnuq x", sections=tuple(made), **fields))


def picture(kind: str = "p", *, columns: int = 1, how: str = "") -> Picture:
    """A small picture, broad where it has several columns."""

    def draw(path: Path) -> None:
        with drawing.picture(path, title="a & b", about="of <c>", columns=columns, size=(3.0, 1.0)) as panels:
            for axes in panels:
                axes.plot([0, 1], color=drawing.INK)

    return Picture((kind,), draw, how)


class Reader(HTMLParser):
    """Which tags a page opens, in which order they close, and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def ran(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_every_part_has_its_tag_and_every_text_is_escaped() -> None:
    evil = "<script>alert(1)</script>&\x1b[31m"
    parts = (
        picture(how=evil),
        Heading(evil),
        BulletList((evil,)),
        Paragraph(evil, dim=True),
        Table((evil,), ((evil, ()), (evil, (Cell("1.0", "±0.1"),)))),
        Listing("as a file", evil),
    )
    first = ReportSection("", (BulletList((evil,)),))
    text = page(
        Report(
            evil,
            subject=evil,
            facts=((evil, evil),),
            summary=(evil,),
            sections=(first, ReportSection(evil, parts)),
            warnings=((evil, evil, evil),),
            notes=(evil,),
            path=PathLine(Path("/there/<b>.h5"), evil),
        )
    )
    read = Reader(text)
    assert read.open == [] and all(link.startswith("#") for link in read.links)
    assert "<script" not in text and "\x1b" not in text
    assert read.tags["script"] == read.tags["b"] == 0
    once = ("h1", "h4", "dl", "table", "svg", "figure", "main")
    assert {tag: read.tags[tag] for tag in once} == dict.fromkeys(once, 1)
    assert read.tags["section"] == 2  # in short, and in pictures
    assert (read.tags["h2"], read.tags["nav"], read.tags["pre"]) == (5, 1, 2)
    assert text.index("<ul>") < text.index("<nav") < text.index("<svg") < text.index("<table") < text.index("<dl>")


def test_what_several_pictures_say_of_how_to_read_them_is_said_once() -> None:
    text = of(
        ReportSection("A", tuple(picture(name, how="read it so") for name in "abc")), picture("d", how="read it so")
    )
    assert text.count("<span>read it so</span>") == 1 and text.count("<figure") == 4


def test_a_page_may_load_and_run_nothing() -> None:
    text = of()
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_text_between_two_backticks_is_code_and_a_lone_one_is_itself() -> None:
    assert "set <code>a&lt;b</code> and `" in of(BulletList(("set `a<b` and `",)))


def test_pictures_take_the_pages_colours_and_names_of_their_own() -> None:
    def draw(path: Path) -> None:
        with drawing.picture(path, title="a <b>", about="of --> & c") as [axes]:
            axes.plot([0, 1], [0, 1], color=drawing.INK, label="<!-- --> </svg><script>")
            axes.legend()

    pictures = tuple(Picture((name,), draw, "read it so") for name in ("one", "two"))
    drawn = drawn_for_page(Report("", sections=(ReportSection("", pictures),)))["one",]
    assert (drawn.name, drawn.about, drawn.how) == ("a <b>", "of --> & c", "read it so")
    text = of(ReportSection("", pictures))
    read = Reader(text)
    assert read.tags["svg"] == 2 and read.tags["script"] == read.tags["title"] - 1 == 0
    body = text[text.index("<body>") :]
    assert not re.search(r"#[0-9a-f]{6}\b", body) and "var(--ink)" in body and "<!--" not in body
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    assert 'role="img" aria-label="a &lt;b&gt;. read it so. of --&gt; &amp; c"' in text
    assert text.count("<span>read it so</span>") == 1  # what both say is said once


def test_on_a_page_columns_that_can_stand_apart_are_pictures_of_their_own_and_a_saved_file_is_one(tmp_path):
    def draw(path: Path) -> None:
        with drawing.picture(path, title="two", columns=2, size=(4.2, 3.0), apart=True) as panels:
            for number, axes in enumerate(panels):
                axes.plot([0, number], label="a")
            panels[0].legend()

    report = Report("", sections=(ReportSection("", (Picture(("two",), draw),)),))
    assert draw_pictures(report, tmp_path) == (tmp_path / "two.svg",)
    assert [path.name for path in tmp_path.iterdir()] == ["two.svg"]
    drawn = drawn_for_page(report)["two",]
    assert len(drawn.svgs) == 2 and drawn.broad
    assert not drawing.on_page()


def test_every_colour_of_text_can_be_read_on_every_ground_in_both_schemes() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    schemes = re.findall(r":root \{([^}]+)\}", of())
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for ground in ("paper", "card"):
            for ink, least in {"ink": 7, "dim": 4.5, "warn": 4.5, "link": 4.5, "blue": 3, "vermilion": 3}.items():
                light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (ink, ground)


def test_a_table_tells_of_what_its_rows_and_columns_are() -> None:
    rows = (("mcbn", ()), ("  one", (Cell("1"),)), ("mcdo", ()), ("  two", (Cell("2"),)))
    text = of(ReportSection("Estimates", (Table(("a",), rows),)))
    assert 'role="region" aria-label="Estimates"' in text and Reader(text).tags["tbody"] == 2
    assert Counter(re.findall(r'scope="(\w+)"', text)) == {"col": 1, "rowgroup": 2, "row": 2}


def test_headings_go_down_in_order_and_the_contents_lead_to_them() -> None:
    x = (Paragraph("x"),)
    sections = [ReportSection(title, x) for title in ("first", "B & c", "B c")]
    sections += [ReportSection("empty", ()), ReportSection("D", (Heading("under"), *x))]
    text = of(*sections, summary=("a",), warnings=(("odd", "odd-outputs", "look"),), notes=("n",))
    assert re.findall(r"<(h\d)", text) == ["h1", "h2", "h2", "h2", "h2", "h3", "h3", "h3", "h4", "h3"]
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', text)
    assert [name for _, name in links] == ["Warnings", "Everything else"]
    names = re.findall(r'<details class="section" id="([^"]+)"', text)
    assert all(f'id="{name}"' in text for name, _ in links) and len(names) == len({*names}) == 4


def test_the_answer_comes_first_and_says_which_warnings_follow() -> None:
    text = of(
        *(ReportSection("From", (Paragraph("x"),), only_on_page=True), ReportSection("A", (Paragraph("x"),))),
        facts=(("model", "m.pt"),),
        summary=("answer",),
        warnings=(("odd", "odd-outputs", "look"),),
        notes=("n",),
    )
    signs = ("<h1>", '<section class="summary"', "answer", "1 warning below", "</section>", ">From</h2>", "<nav")
    signs += (">Warnings</h2>", "look", ">Everything else</h2>", ">A</h3>", ">Notes</h3>", "m.pt")
    places = [text.index(sign) for sign in signs]
    assert places == sorted(places)


def test_pictures_stand_together_then_images_then_what_is_to_be_read() -> None:
    images = ReportSection("Images", (Gallery(((b"png", "a shoe"),)),), only_on_page=True)
    text = of(
        ReportSection("A", (Paragraph("first"), picture("A"))),
        ReportSection("B", (picture("B"),)),
        *(ReportSection("C", (Heading("of C"), picture("C", columns=2), Paragraph("last"))), images),
    )
    titles = re.findall(r"<h[1-4][^>]*>([^<]+)</h", text)
    assert titles[1:] == ["A", "Figures", "Images", "Everything else", "C", "of C"]
    assert text.count('<section class="pictured"') == 1 and Reader(text).open == []
    pictured = text[text.index('<section class="pictured"') : text.index("</section>")]
    assert pictured.count("<figure") == text.count("<svg") == 3 and text.count("<figure") == 4


def test_a_row_keeps_its_rule_below_the_column_that_stays() -> None:
    # Collapsed borders belong to the table: a cell that stays while others move paints over them.
    text = of(Table(("a",), (("b", (Cell("1"),)),)))
    assert "position: sticky" in text and "border-collapse: separate; border-spacing: 0" in text
    assert "border-collapse: collapse" not in text


def test_a_result_becomes_a_page_of_its_own(deterministic, tmp_path, capsys):
    path = deterministic.path
    assert ran("report", str(path), "--html", str(tmp_path / "page.html")) == 0
    assert "Page:" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    read = Reader(text)
    assert read.open == [] and read.tags["svg"] >= 1 and read.tags["script"] == 0
    assert all(link.startswith("#") for link in read.links)
    assert not re.search(r"url\((?!#)|@import|<link|<img", text)
    assert "In short" in read.text and "prefers-color-scheme: dark" in text
    assert ran("report", str(path), "--html", str(tmp_path / "page.html")) == 0  # a page of bnuq may be replaced
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text


def test_a_page_does_not_replace_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "s.h5", tmp_path / "letter.html"
    sweep_file.write(small_sweep.single(), path)
    other.write_text("<html>dear</html>")
    assert ran("report", str(path), "--html", str(other)) == 2
    assert "exists and is not a page written by bnuq" in capsys.readouterr().err
    assert other.read_text() == "<html>dear</html>"
