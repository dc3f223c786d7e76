"""The report as a page: whole, escaped, without anything from elsewhere, and with the pictures in it."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import small_run
import small_sweep

from bnuq.cli.main import main
from bnuq.records import sweep as sweep_file
from bnuq.report import drawing
from bnuq.report.html import SUB, Picture, page, picture_at
from bnuq.report.parts import Advice, Cell, Drawing, Facts, Items, Listing, Paragraph, PathLine, Table, title

VOID = {"meta", "br", "use", "path", "rect", "stop"}
SVG = '<svg viewBox="0 0 100 50"><path d="M 0 0" style="fill: #ffffff"/></svg>'


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
    parts = [
        title(f"bnuq {evil}"),
        Facts(((evil, evil),)),
        title("In short"),
        Items((evil,)),
        title(evil, "bold yellow"),
        Advice(((evil, evil, evil),)),
        Paragraph(),
        Paragraph(evil, "dim"),
        Drawing((evil,), said=evil),
        Table((evil,), ((evil, ()), (evil, (Cell("1.0", "±0.1"),)))),
        Listing("as a file", evil),
        PathLine(Path("/there/<b>.h5"), evil),
    ]
    text = page(parts, [Picture("a & b", (SVG,), evil, evil)])
    read = Reader(text)
    assert read.open == [] and all(link.startswith("#") for link in read.links)
    assert "<script" not in text and "\x1b" not in text
    assert read.tags["script"] == read.tags["b"] == 0
    once = ("h1", "dl", "table", "caption", "svg", "figure", "main", "pre", "section")
    assert {tag: read.tags[tag] for tag in once} == dict.fromkeys(once, 1)
    assert (read.tags["h2"], read.tags["ul"]) == (2, 2)
    # The title twice, the caption of the table; what is drawn in characters not at all, as there is a picture.
    assert read.text.count("alert(1)") == 2 + 2 + 1 + 1 + 3 + 1 + 1 + 3 + 1 + 1 + 2
    assert text.index("<ul>") < text.index("<svg") < text.index("<table>")


def test_without_pictures_what_is_drawn_in_characters_is_there() -> None:
    parts = [title("bnuq x"), title("A"), Drawing(("▁▂<b>",), said="so")]
    assert "▁▂&lt;b&gt;" in page(parts) and "so" in page(parts)
    drawn = page([*parts, title("B"), Paragraph("b")], [Picture("a", (SVG,))])
    assert "▁▂" not in drawn and ">A</h2>" not in drawn and ">B</h2>" in drawn


def test_a_page_may_load_and_run_nothing() -> None:
    text = page([title("bnuq x")])
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_text_between_two_backticks_is_code_and_a_lone_one_is_itself() -> None:
    text = page([title("bnuq x"), Items(("set `a<b` and `",))])
    assert "set <code>a&lt;b</code> and `" in text


def test_pictures_take_the_pages_colours_and_names_of_their_own(tmp_path: Path) -> None:
    with drawing.for_page(), drawing.picture(tmp_path / "x.svg", title="a <b>", about="of --> & c") as [axes]:
        axes.plot([0, 1], [0, 1], color=drawing.INK, label="<!-- --> </svg><script>")
        axes.legend()
    picture = picture_at(tmp_path / "x.svg", "read it so")
    assert (picture.name, picture.about, picture.how) == ("a <b>", "of --> & c", "read it so")
    text = page([title("bnuq x")], [picture, picture])
    read = Reader(text)
    assert read.tags["svg"] == 2 and read.tags["script"] == read.tags["title"] - 1 == 0
    body = text[text.index("<body>") :]
    assert not re.search(r"#[0-9a-f]{6}\b", body) and "var(--ink)" in body and "<!--" not in body
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    assert 'role="img" aria-label="a &lt;b&gt;. read it so. of --&gt; &amp; c"' in text


def test_on_a_page_columns_that_can_stand_apart_are_pictures_of_their_own_and_a_saved_file_is_one(
    tmp_path: Path,
) -> None:
    def draw(path: Path) -> None:
        with drawing.picture(path, title="two", columns=2, size=(4.2, 3.0), apart=True) as panels:
            for number, axes in enumerate(panels):
                axes.plot([0, number], label="a")
            panels[0].legend()

    draw(tmp_path / "saved.svg")
    with drawing.for_page():
        draw(tmp_path / "page.svg")
    assert drawing.parts_of(tmp_path / "saved.svg") == [tmp_path / "saved.svg"]
    assert [path.name for path in drawing.parts_of(tmp_path / "page.svg")] == ["page.svg", "page__01.svg"]
    assert not drawing.on_page()
    assert picture_at(tmp_path / "page.svg").broad


def test_every_colour_of_text_can_be_read_on_every_ground_in_both_schemes() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    text = page([title("bnuq x")])
    schemes = re.findall(r":root \{([^}]+)\}", text)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        for ground in ("paper", "card"):
            for ink, least in {"ink": 7, "dim": 4.5, "warn": 4.5, "link": 4.5, "blue": 3, "vermilion": 3}.items():
                light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (ink, ground)


def test_a_table_tells_of_what_its_rows_and_columns_are() -> None:
    rows = (("mcbn", ()), ("  one", (Cell("1"),)), ("mcdo", ()), ("  two", (Cell("2"),)))
    text = page([title("bnuq x"), title("Estimates"), Table(("a",), rows)])
    read = Reader(text)
    assert "<caption>Estimates</caption>" in text and read.tags["tbody"] == 2
    scopes = Counter(re.findall(r'scope="(\w+)"', text))
    assert scopes == {"col": 1, "rowgroup": 2, "row": 2}


def test_headings_go_down_in_order_and_the_contents_lead_to_them() -> None:
    parts = [title("bnuq x"), title("In short"), Items(("a",))]
    parts += [title("B & c"), title("under", f"bold {SUB}"), title("B c"), title("D")]
    text = page(parts)
    assert re.findall(r"<(h\d)", text) == ["h1", "h2", "h2", "h3", "h2", "h2"]
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', text)
    assert [name for _, name in links] == ["B &amp; c", "B c", "D"]
    assert all(f'id="{name}"' in text for name, _ in links) and len({name for name, _ in links}) == 3


def test_the_summary_comes_first_and_the_facts_before_it_follow_it() -> None:
    parts = [title("bnuq x"), Facts((("model", "m.pt"),)), title("In short"), Items(("found",))]
    text = page([*parts, title("A"), Items(("a",)), title("B"), title("C")])
    places = [text.index(sign) for sign in ("<h1>", '<section class="summary"', "found", "</section>", "m.pt", "<nav")]
    assert places == sorted(places) and text.index("<nav") < text.index(">A</h2>")
    kept = page([title("bnuq x"), title("A"), Facts((("model", "m.pt"),)), title("In short"), Items(("found",))])
    assert kept.index("m.pt") < kept.index("found")  # facts of a section stay in it


def test_two_sections_of_a_narrow_picture_each_stand_beside_each_other_and_no_others() -> None:
    narrow, broad = Picture("n", (SVG,)), Picture("b", (SVG, SVG))
    sections = [title("A"), narrow, title("B"), narrow, title("C"), narrow, title("D"), broad, title("E"), narrow]
    text = page([title("bnuq x"), *sections, Paragraph("more")])
    assert text.count('<div class="pair">') == 1
    pair = text[text.index('<div class="pair">') : text.index("</section></div>")]
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", pair) == ["A", "B"] and pair.count("<section>") == 2
    assert Reader(text).open == []
    assert '<div class="pair">' not in page(
        [title("bnuq x"), title("A"), narrow, Paragraph("said"), title("B"), narrow]
    )


def test_a_row_keeps_its_rule_below_the_column_that_stays() -> None:
    # Collapsed borders belong to the table: a cell that stays while others move paints over them.
    text = page([title("bnuq x"), Table(("a",), (("b", (Cell("1"),)),))])
    assert "position: sticky" in text and "border-collapse: separate; border-spacing: 0" in text
    assert "border-collapse: collapse" not in text


@pytest.mark.parametrize("kind", ["evaluate", "sweep"])
def test_a_result_becomes_a_page_of_its_own(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "evaluate":
        small_run.write(tmp_path)
        path = small_run.evaluated(tmp_path).path
        assert path is not None
    else:
        path = tmp_path / "s.h5"
        sweep_file.write(small_sweep.both(), path)
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
    assert "is another file than a page of bnuq" in capsys.readouterr().err
    assert other.read_text() == "<html>dear</html>"


def test_without_matplotlib_the_page_says_that_pictures_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.h5"
    sweep_file.write(small_sweep.single(), path)
    monkeypatch.setattr(drawing, "why_not", lambda: "figures are drawn by matplotlib, which is not installed.")
    assert ran("report", str(path), "--html", str(tmp_path / "page.html"), "--json") == 0
    read = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert read.tags["svg"] == 0 and "Pictures are left out" in read.text
