"""Pages in a real browser: at a desk and on a phone, light and dark, without a network and without a complaint."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import at_night
import browser
import made_up_inspection
import pytest
import small_run
import small_segmentation
import small_sweep

from bnuq.report import comparison, evaluation, render
from bnuq.report.document import Report
from bnuq.studies.inspect import view as inspection
from bnuq.studies.sweep import view as sweep

pytestmark = [
    pytest.mark.skipif(browser.found() is None, reason="no Chromium on the PATH"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the browser is steered through a POSIX pipe"),
]
PICTURED = ("classification", "regression", "sweep", "inspection")
PAGES = (*PICTURED, "beside")
LONG = "a_set_of_a_name_" * 6
# What text lies out of its table cell, out of the page, or on other text; pictures and scrolled parts aside.
MISPLACED = r"""(() => {
  const said = [], lines = [], page = document.documentElement.clientWidth;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode, text = node.textContent.trim(), range = document.createRange();
    if (!text || node.parentElement.closest('svg')) continue;
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) {
      const cell = node.parentElement.closest('th, td')?.getBoundingClientRect();
      if (cell && (line.left < cell.left - 1 || line.right > cell.right + 1)) said.push('out of its cell: ' + text);
      let left = line.left, right = line.right;
      for (let box = node.parentElement; box !== document.body; box = box.parentElement) {
        if (getComputedStyle(box).overflowX === 'visible') continue;
        left = Math.max(left, box.getBoundingClientRect().left);
        right = Math.min(right, box.getBoundingClientRect().right);
      }
      if (right - left < 1) continue;
      if (left < -1 || right > page + 1) said.push('out of the page: ' + text);
      for (const other of lines) {
        if (other.node !== node && Math.min(right, other.right) - Math.max(left, other.left) > 1
            && Math.min(line.bottom, other.bottom) - Math.max(line.top, other.top) > 3)
          said.push(text + ' lies on ' + other.node.textContent.trim());
      }
      lines.push({node, left, right, top: line.top, bottom: line.bottom});
    }
  }
  return [said, lines.length];
})()"""

# What text, pictures aside, contrasts with its ground by less than 4.5 : 1 (WCAG 2.2, success criterion 1.4.3).
PALE = r"""(() => {
  const pale = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const light = colour => colour.match(/[\d.]+/g).slice(0, 3)
    .map(each => each / 255).map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  let lines = 0;
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    let ground = texts.currentNode.parentElement;
    if (!text || ground.closest('svg')) continue;
    const ink = light(getComputedStyle(ground).color);
    while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
    const paper = light(getComputedStyle(ground).backgroundColor);
    if ((Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05) < 4.5) pale.push(text);
    lines++;
  }
  return [pale, lines];
})()"""


@pytest.fixture(scope="module")
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One page of every make, the names on them long, made when it is first asked for."""
    folder, of = tmp_path_factory.mktemp("pages"), request.getfixturevalue

    def segmentation() -> Report:
        small_segmentation.write(folder / "pictures")
        few = {"methods": ("mcbn",), "samples": 4, "limit": 8, "ood": ()}
        return evaluation.report(small_segmentation.evaluated(folder / "pictures", **few))

    def recalibrated() -> Report:
        options = {"methods": ("mcbn+mcdo",), "calibrate": "cross"}
        return evaluation.report(small_run.evaluated(of("folder"), out=folder / "r.h5", **options))

    makers: dict[str, Callable[[], Report]] = {
        "classification": lambda: evaluation.report(of("four_methods")),
        "regression": lambda: evaluation.report(of("regression")),
        "sweep": lambda: sweep.report(small_sweep.both()),
        "beside": lambda: comparison.report({"first": of("four_methods"), LONG: of("two_sets")}),
        "inspection": lambda: inspection.report(made_up_inspection.whole()),
        "segmentation": segmentation,
        "recalibrated": recalibrated,
        "long names": lambda: evaluation.report(of("two_sets")),
    }

    class Pages(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            self[name] = folder / f"{name}.html"
            self[name].write_text(render.page(makers[name]()), encoding="utf-8")
            return self[name]

    return Pages()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    opened = browser.Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("width", "dark"),
    at_night.but({(1280, False), (500, False), (390, True)}, itertools.product((1280, 500, 390), (False, True))),
)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_asks_for_nothing_and_says_nothing(pages, window, name, width, dark) -> None:
    window.show(pages[name], width=width, dark=dark)
    assert window.asked_for() == [pages[name].as_uri()]
    assert window.said() == []
    root = "document.documentElement"
    assert window.value(f"{root}.scrollWidth <= {root}.clientWidth")
    assert window.value(f"{root}.clientWidth") >= width - 20  # less a scroll bar: the width was taken
    out = window.value(
        "[...document.querySelectorAll('h1,h2,h3,p,li,dd,dt,figcaption,.scroll,.panels,pre')].filter(one => "
        "one.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(one => one.outerHTML)"
    )
    assert out == []


EVERY = (*PAGES, "segmentation", "recalibrated", "long names")


WINDOWS = [*itertools.product(EVERY, (1280, 500)), ("beside", 700)]
NARROW = {(name, 500) for name in ("classification", "beside", "inspection", "sweep")}  # where text has least room


@pytest.mark.parametrize(("name", "width"), at_night.but(NARROW | {("classification", 1280)}, WINDOWS))
def test_no_text_leaves_its_cell_or_the_page_or_lies_on_other_text(pages, window, name, width) -> None:
    window.show(pages[name], width=width, dark=False)
    said, lines = window.value(MISPLACED)
    assert said == [] and lines > 50


@pytest.mark.parametrize("width", at_night.but({390}, [1200, 390]))
@pytest.mark.parametrize("name", PICTURED)
def test_every_picture_is_to_be_seen_and_its_letters_can_be_read(pages, window, name, width) -> None:
    window.show(pages[name], width=width, dark=False)
    sizes = window.value(
        "[...document.querySelectorAll('svg')].map(one => [one.getBoundingClientRect().width, "
        "one.getBoundingClientRect().height, one.viewBox.baseVal.width, one.getAttribute('aria-label').length])"
    )
    assert len(sizes) >= 1
    for wide, high, drawn, alt in sizes:
        assert wide > 200 and high > 100 and alt > 10
        # The smallest letters are drawn 9 points high.
        assert 9 * wide / drawn >= 8.5


@pytest.mark.parametrize("name", PICTURED)
def test_pictures_and_text_take_the_colours_of_the_readers_scheme(pages, window, name) -> None:
    found = []
    for dark in (False, True):
        window.show(pages[name], width=1200, dark=dark)
        found.append(
            window.value(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color, "
                "getComputedStyle(document.querySelector('svg path')).fill]"
            )
        )
    (light_paper, light_ink, light_ground), (dark_paper, dark_ink, dark_ground) = found
    assert light_paper == light_ground == "rgb(255, 255, 255)" and dark_paper == dark_ground
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (dark_paper, dark_ink, light_ink)]
    assert brightness[0] < 150 and brightness[1] > 600 and brightness[2] < 150


@pytest.mark.parametrize("name", ["classification", "inspection"])
def test_on_a_phone_a_wide_table_moves_in_its_box_and_its_first_column_stays(pages, window, name) -> None:
    window.show(pages[name], width=390, dark=False)
    before, after, moved = window.value(
        "(() => { const wide = one => one.scrollWidth > one.clientWidth + 60;"
        "const box = [...document.querySelectorAll('.scroll')].find(wide);"
        "const cell = box.querySelector('tbody tr:last-child th'); const before = cell.getBoundingClientRect().left;"
        "box.scrollLeft = 60; return [before, cell.getBoundingClientRect().left, box.scrollLeft] })()"
    )
    assert moved == 60 and after == pytest.approx(before, abs=1)


def test_links_of_the_contents_lead_somewhere(pages, window) -> None:
    window.show(pages["classification"], width=1200, dark=False)
    assert window.value(
        "(() => { const links = [...document.querySelectorAll('nav a')]; return links.length > 2 && "
        "links.every(one => document.getElementById(one.hash.slice(1)).tagName == 'H2') })()"
    )


@pytest.mark.parametrize("dark", at_night.but({False}, (False, True)))
@pytest.mark.parametrize("name", ("classification", "inspection"))
def test_text_contrasts_with_its_ground_and_every_box_that_moves_is_reached_by_keys(pages, window, name, dark) -> None:
    window.show(pages[name], width=390, dark=dark)
    pale, lines = window.value(PALE)
    assert pale == [] and lines > 50
    boxes, unreached = window.value(
        "(() => { const boxes = [...document.querySelectorAll('*')].filter(one => one.scrollWidth > one.clientWidth + 1"
        " && getComputedStyle(one).overflowX === 'auto');"
        "return [boxes.length, boxes.filter(one => one.tabIndex < 0).map(one => one.outerHTML.slice(0, 99))] })()"
    )
    assert unreached == [] and boxes > 0
    assert window.value(
        "document.documentElement.lang === 'en' && document.querySelectorAll('main').length === 1 && "
        "[...document.querySelectorAll('nav, section')].every(one => one.ariaLabel || "
        "one.getAttribute('aria-labelledby')) && [...document.querySelectorAll('img')].every(one => one.alt.length > 3)"
    )


@pytest.mark.parametrize("name", ("classification", "regression"))
def test_on_paper_the_summary_with_its_first_pictures_takes_two_pages(pages, window, name) -> None:
    window.show(pages[name], width=1000, dark=False, media="print")
    whole = window.paper_pages()
    rest = "[...document.querySelectorAll('.pictured ~ *, .pictured figure:nth-of-type(n + 5)')]"
    window.value(f"{rest}.map(one => one.remove())")
    assert window.value("document.querySelectorAll('.pictured figure').length") == 4
    assert window.paper_pages() == 2 < whole
    window.value("document.querySelector('.pictured').remove()")
    assert window.paper_pages() == 1


def test_on_paper_a_page_is_dark_on_white_and_tables_are_whole(pages, window) -> None:
    window.show(pages["classification"], width=1000, dark=True, media="print")
    assert window.value("getComputedStyle(document.documentElement).getPropertyValue('--paper')").strip() == "#ffffff"
    assert window.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert window.value("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"


def test_a_script_in_a_page_would_not_run(pages, window, tmp_path) -> None:
    text = pages["classification"].read_text(encoding="utf-8")
    (tmp_path / "evil.html").write_text(text.replace("</main>", "</main><script>document.title='ran'</script>"))
    window.show(tmp_path / "evil.html", width=1200, dark=False)
    assert window.value("document.title").startswith("bnuq evaluate")
    assert any("Content Security Policy" in said for said in window.said())  # and what is said would have been seen
