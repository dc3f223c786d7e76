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
from bnuq.report import drawing
from bnuq.report.html import Picture, page
from bnuq.report.parts import Cell, Drawing, Facts, Items, Paragraph, PathLine, Table, title
from bnuq.results import sweep as sweep_file

VOID = {"meta", "br", "use", "path", "rect", "stop"}


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
        title(evil, "bold yellow"),
        Items((evil,)),
        Paragraph(),
        Paragraph(evil, "dim"),
        Drawing((evil,)),
        Table((evil,), ((evil, ()), (evil, (Cell("1.0", "±0.1"),)))),
        PathLine(Path("/there/<b>.h5")),
    ]
    text = page(parts, [Picture("a & b", "<svg></svg>")])
    read = Reader(text)
    assert read.open == [] and not read.links
    assert "<script" not in text and "\x1b" not in text
    assert read.tags["script"] == read.tags["b"] == 0
    assert {tag: read.tags[tag] for tag in ("h1", "h2", "dl", "ul", "table", "svg", "figure")} == dict.fromkeys(
        ("h1", "h2", "dl", "ul", "table", "svg", "figure"), 1
    )
    assert read.text.count("alert(1)") == 9 + 1  # the title twice, what is drawn in characters not at all
    assert text.index("<ul>") < text.index("<svg>") < text.index("<table>")


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
