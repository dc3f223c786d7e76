"""A report as one HTML page that needs nothing else: no network, no script, pictures in the page's own colours."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnuq.files.writing import write_bytes
from bnuq.report.drawing import parts_of
from bnuq.report.parts import Advice, Cell, Drawing, Facts, Items, Listing, Paragraph, Part, PathLine, Table
from bnuq.report.sanitize import printable

# What pictures are drawn in, and what stands for it on a page, whose colours go with the reader's scheme.
_COLOURS = {
    "#ffffff": "paper", "#1a1a1a": "ink", "#595959": "dim", "#d9d9d9": "line", "#ececec": "grid", "#f3f3f3": "shade",
    "#0072b2": "blue", "#d55e00": "vermilion", "#009e73": "green", "#cc79a7": "purple", "#56b4e9": "sky",
    "#9ecae1": "band", "#dbe9f4": "pale-band",
}  # fmt: skip
_WIDE = 380  # points: a picture wider than this is no smaller than its letters can be read, and moves in its box

SUB = "under"  # in the style of a title: it stands under the one before

_LIGHT = """--ink: #1a1a1a; --dim: #595959; --line: #d9d9d9; --paper: #ffffff; --warn: #8a4b00; --link: #00539c;
  --card: #f6f7f8; --grid: #ececec; --shade: #f3f3f3; --blue: #0072b2; --vermilion: #d55e00; --green: #009e73;
  --purple: #cc79a7; --sky: #56b4e9; --band: #9ecae1; --pale-band: #dbe9f4;"""
_DARK = """--ink: #e8e8e8; --dim: #a8a8a8; --line: #3d3d3d; --paper: #161616; --warn: #ffb454; --link: #7cc0ff;
  --card: #1f2123; --grid: #2b2b2b; --shade: #202020; --blue: #4ba6e8; --vermilion: #ff8438; --green: #2fc596;
  --purple: #e39ac4; --sky: #93d4f8; --band: #33617f; --pale-band: #1f3a4c;"""
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }}
body {{ margin: 0; color: var(--ink); background: var(--paper); font: 1rem/1.55 system-ui, sans-serif;
  overflow-wrap: anywhere; }}
main {{ max-width: 66rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }}
h2 {{ font-size: 1.2rem; line-height: 1.3; margin: 2.6rem 0 .8rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }}
h2.warn {{ color: var(--warn); }} h3 {{ font-size: 1rem; margin: 1.6rem 0 .4rem; }}
p, li, dd {{ max-width: 75ch; }}
a {{ color: var(--link); }}
code, pre {{ font: .92em/1.45 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }}
ul {{ padding-left: 1.25rem; }} li {{ margin: .3rem 0; }}
section.summary {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .1rem 1.1rem .4rem; margin: 1.4rem 0; }}
section.summary h2 {{ margin: .8rem 0 0; padding: 0; border: 0; }}
nav ul {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: 1rem 0; }}
nav li {{ margin: 0; }} nav a {{ display: inline-block; padding: .15rem 0; }}
dl {{ display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.1rem; margin: 0 0 1rem; }}
dt {{ color: var(--dim); }} dd {{ margin: 0; }}
.note, .path {{ color: var(--dim); font-size: .92rem; }}
ul.advice {{ list-style: none; padding: 0; }}
ul.advice li {{ border-left: .25rem solid var(--warn); padding: .1rem 0 .1rem .9rem; margin: 1rem 0; }}
ul.advice p {{ margin: .3rem 0; }} ul.advice code.code {{ color: var(--dim); }}
.scroll {{ position: relative; overflow-x: auto; margin: 1rem 0; }}
.scroll:focus-visible {{ outline: 2px solid var(--link); }}
table {{ border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; overflow-wrap: normal; }}
caption, .unseen {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-weight: 400; }}
thead th {{ color: var(--dim); vertical-align: bottom; }}
tr > :first-child {{ position: sticky; left: 0; z-index: 1; background: var(--paper); text-align: left;
  padding-left: 0; }}
tr.heading th {{ font-weight: 600; padding-top: .9rem; }} tr.heading td {{ padding: 0; }}
tr.under > :first-child {{ padding-left: 1rem; }}
td small {{ color: var(--dim); font-size: .86em; }} td b {{ font-weight: 600; }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.5rem 2rem;
  align-items: start; }}
@media (min-width: 60rem) {{
  .pictures.one figure {{ display: grid; grid-template-columns: minmax(0, 36rem) minmax(0, 1fr); gap: 2rem; }}
  .pictures.one figcaption {{ align-self: start; }}
}}
.pictures.one .panels {{ max-width: 36rem; }}
@media (min-width: 60rem) {{
  .pair {{ display: grid; grid-template-columns: 1fr 1fr; gap: 2.5rem; }} .pair > * {{ min-width: 0; }}
  .pair .pictures.one figure {{ display: block; }}
}}
figure {{ margin: 1rem 0; min-width: 0; }} figure.broad {{ grid-column: 1 / -1; }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem 1.5rem;
  align-items: start; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; height: auto; }}
figure svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
figcaption {{ margin-top: .5rem; font-size: .92rem; max-width: 75ch; }} figcaption span {{ display: block; }}
figcaption .about {{ color: var(--dim); }}
pre.drawing {{ line-height: 1.2; }}
pre {{ overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  padding: .8rem 1rem; overflow-wrap: normal; }}
summary {{ cursor: pointer; }}
@media (max-width: 36rem) {{
  dl {{ display: block; }} dd {{ margin: 0 0 .55rem; }}
  th, td {{ padding: .25rem .55rem; }}
  tr > th.long:first-child {{ min-width: 7.5rem; max-width: 9.5rem; white-space: normal; padding-right: .6rem; }}
}}
@media print {{
  main {{ max-width: none; padding: 0; }} body {{ font-size: 10pt; }} nav {{ display: none; }}
  .scroll, .panels, pre {{ overflow: visible; }} pre {{ white-space: pre-wrap; }} a {{ color: inherit; }}
  figure, tr, li, section.summary {{ break-inside: avoid; }} h2 {{ break-after: avoid; }}
  th, td {{ padding: .15rem .4rem; }}
}}
""".strip()

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ heading }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<h1>{{ heading }}</h1>
{%- for block in blocks %}
{%- if block.kind == "contents" %}
<nav aria-label="Contents"><ul>{% for name, text in block.rows %}
<li><a href="#{{ name }}">{{ text }}</a></li>{% endfor %}
</ul></nav>
{%- elif block.kind == "open" %}
<section class="summary" aria-labelledby="{{ block.name }}">
{%- elif block.kind == "close" %}
</section>
{%- elif block.kind == "pair" %}
<div class="pair"><section>
{%- elif block.kind == "beside" %}
</section><section>
{%- elif block.kind == "paired" %}
</section></div>
{%- elif block.kind == "heading" %}
<{{ block.tag }} id="{{ block.name }}"{% if block.warns %} class="warn"{% endif %}>{{ block.text }}</{{ block.tag }}>
{%- elif block.kind == "paragraph" %}
<p{% if block.note %} class="note"{% endif %}>{{ block.text | told }}</p>
{%- elif block.kind == "items" %}
<ul>{% for text in block.texts %}
<li>{{ text | told }}</li>{% endfor %}
</ul>
{%- elif block.kind == "advice" %}
<ul class="advice">{% for text, code, todo in block.rows %}
<li><p>{{ text | told }} <code class="code">{{ code }}</code></p>
{%- if todo %}<p><strong>What to do:</strong> {{ todo | told }}</p>{% endif %}</li>{% endfor %}
</ul>
{%- elif block.kind == "facts" %}
<dl>{% for name, text in block.rows %}
<dt>{{ name }}</dt><dd>{{ text | told }}</dd>{% endfor %}
</dl>
{%- elif block.kind == "table" %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ block.caption }}">
<table><caption>{{ block.caption }}</caption>{% if block.header %}
<thead><tr><td></td>{% for title in block.header %}<th scope="col">{{ title }}</th>{% endfor %}</tr></thead>{% endif %}
{%- for group in block.groups %}
<tbody>{% for label, cells in group %}{% if cells %}
<tr{% if loop.index0 and not group[0][1] %} class="under"{% endif %}>
{#- #}<th scope="row"{% if label | length > 16 %} class="long"{% endif %}>{{ label }}</th>
{%- for cell in cells %}<td>
{%- if cell.style %}<b>{{ cell.value }}</b>{% else %}{{ cell.value }}{% endif %}
{%- if cell.error %} <small>{{ cell.error }}</small>{% endif %}</td>{% endfor %}</tr>{% else %}
<tr class="heading"><th scope="rowgroup"{% if label | length > 16 %} class="long"{% endif %}>{{ label }}</th>
{#- #}<td colspan="{{ block.columns }}"></td></tr>
{%- endif %}{% endfor %}
</tbody>{% endfor %}</table></div>
{%- elif block.kind == "pictures" %}
<div class="pictures{% if block.rows | length == 1 and not block.rows[0].broad %} one{% endif %}">
{%- for one in block.rows %}
<figure{% if one.broad %} class="broad"{% endif %}>
<div class="panels">{% for svg in one.svgs %}{{ svg | safe }}{% endfor %}</div>
<figcaption><strong>{{ one.name }}</strong>{% if one.how %} <span>{{ one.how }}</span>{% endif %}
{%- if one.about %} <span class="about">{{ one.about }}</span>{% endif %}</figcaption>
</figure>
{%- endfor %}
</div>
{%- elif block.kind == "drawing" %}
<pre tabindex="0" class="drawing">{% for row in block.rows %}{{ row }}
{% endfor %}</pre>{% if block.said %}
<p class="note">{{ block.said }}</p>{% endif %}
{%- elif block.kind == "listing" %}
<details open><summary>{{ block.what }}</summary>
<pre tabindex="0"><code>{{ block.text }}</code></pre>
</details>
{%- elif block.kind == "path" %}
<p class="path">{{ block.what }}: <code>{{ block.text }}</code></p>
{%- endif %}
{%- endfor %}
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """SVGs that bnuq drew itself, what they are called and of, and in a sentence how to read them."""

    name: str
    svgs: tuple[str, ...]
    about: str = ""
    how: str = ""

    @property
    def broad(self) -> bool:
        """Whether it takes the whole width: of several panels, or too wide for letters that can be read beside text."""
        return len(self.svgs) > 1 or any(_width(svg) > _WIDE for svg in self.svgs)


def picture_at(path: Path, how: str = "") -> Picture:
    """The picture that was drawn for a page (`drawing.for_page`) into the SVG files of `path`."""
    svgs = [one.read_text(encoding="utf-8") for one in parts_of(path)]
    name, about = (_said(pattern, svgs[0]) for pattern in ("<title>(.*?)</title>", "<dc:description>(.*?)<"))
    return Picture(name or path.stem.replace("_", " "), tuple(svgs), about, how)


def _said(pattern: str, svg: str) -> str:
    found = re.search(pattern, svg, flags=re.DOTALL)
    return html.unescape(found[1]).strip() if found else ""


def page(parts: Iterable[Part | Picture], drawn: Sequence[Picture] = ()) -> str:
    """The report as a page: its first part is the heading; the first items under a heading are the summary in words,
    which facts before it follow, and pictures of `drawn`.

    Every text is escaped, and between two backticks it is code; pictures are not, and must be bnuq's own.
    """
    from jinja2 import Environment  # late: no other report needs it

    blocks = list(_blocks(parts))
    if drawn or any(block["kind"] == "pictures" for block in blocks):
        blocks = list(_without_drawings(blocks))
    heading = blocks.pop(0)["text"]
    summary = next((place for place, block in enumerate(blocks) if block["kind"] == "items"), -1)
    blocks[summary + 1 : summary + 1] = [{"kind": "pictures", "rows": [one]} for one in drawn]
    if summary > 0 and blocks[summary - 1]["kind"] == "heading":
        before, shown, rest = blocks[: summary - 1], blocks[summary - 1 : summary + 1], blocks[summary + 1 :]
        facts = before if all(block["kind"] == "facts" for block in before) else []  # what was found comes before them
        opened = {"kind": "open", "name": shown[0]["name"]}
        blocks = [*before[len(facts) :], opened, *shown, {"kind": "close"}, *facts, _contents(rest), *rest]
    blocks = list(_paired(blocks))
    number = 0
    for block in blocks:
        if block["kind"] == "pictures":
            rows = []
            for one in block["rows"]:
                alt = ". ".join(filter(None, (one.name, one.how, one.about)))
                svgs = tuple(_inlined(svg, f"p{number + place}-", alt) for place, svg in enumerate(one.svgs))
                words = (_clean(one.name), _clean(one.about), _clean(one.how))
                rows.append(Picture(words[0], svgs, *words[1:]))
                number += len(svgs)
            block["rows"] = rows
    environment = Environment(autoescape=True)
    environment.filters["told"] = _with_code
    return environment.from_string(_PAGE).render(heading=heading, blocks=blocks, style=_STYLE)


def write_page(path: Path, parts: Iterable[Part | Picture], drawn: Sequence[Picture] = ()) -> None:
    """Put the page at `path`, whole or not at all; ResultError where it cannot be written."""
    write_bytes(path, page(parts, drawn).encode("utf-8", "backslashreplace"))


def _blocks(parts: Iterable[Part | Picture]) -> Iterator[dict[str, Any]]:
    """What the template draws; pictures that follow each other stand beside each other."""
    row: list[Picture] = []
    said, names = "", set()
    for part in parts:
        if isinstance(part, Picture):
            row.append(part)
            continue
        if row and not (isinstance(part, Paragraph) and not part.text):
            yield {"kind": "pictures", "rows": row}
            row = []
        if isinstance(part, Paragraph) and part.style.startswith("bold") and part.text:
            said = _clean(part.text)
            name = re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-")[:40] or "part"
            while name in names:
                name += "-"
            names.add(name)
            tag = "h3" if SUB in part.style else "h2"
            yield {"kind": "heading", "tag": tag, "text": said, "name": name, "warns": "yellow" in part.style}
        elif isinstance(part, Paragraph) and part.text:
            yield {"kind": "paragraph", "text": _clean(part.text), "note": part.style == "dim"}
        elif isinstance(part, Items):
            yield {"kind": "items", "texts": [_clean(text) for text in part.texts]}
        elif isinstance(part, Advice):
            yield {"kind": "advice", "rows": [tuple(map(_clean, row)) for row in part.rows]}
        elif isinstance(part, Facts):
            yield {"kind": "facts", "rows": [(_clean(name), _clean(text)) for name, text in part.rows]}
        elif isinstance(part, Table):
            yield _table(part, said)
        elif isinstance(part, PathLine):
            yield {"kind": "path", "what": _clean(part.what), "text": _clean(str(part.path))}
        elif isinstance(part, Listing):
            yield {"kind": "listing", "what": part.what, "text": printable(part.text)}
        elif isinstance(part, Drawing):
            rows = [printable(row, lines=False) for row in part.rows]
            yield {"kind": "drawing", "rows": rows, "said": _clean(part.said)}
    if row:
        yield {"kind": "pictures", "rows": row}


_END = {"kind": "end"}


def _without_drawings(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is left where pictures show the same better: no drawings in characters, nor headings of nothing else."""
    ended = [*blocks, _END, _END]
    for place, block in enumerate(blocks):
        after, later = ended[place + 1], ended[place + 2]
        alone = after["kind"] == "drawing" and later["kind"] in ("heading", "end")
        if block["kind"] != "drawing" and not (block["kind"] == "heading" and alone):
            yield block


def _paired(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Two sections that follow each other, of a single narrow picture each, beside each other where there is room."""
    ended, place = [*blocks, _END], 0
    while place < len(blocks):
        if _of_one_picture(ended[place : place + 3]) and _of_one_picture(ended[place + 2 : place + 5]):
            first, second = blocks[place : place + 2], blocks[place + 2 : place + 4]
            yield from ({"kind": "pair"}, *first, {"kind": "beside"}, *second, {"kind": "paired"})
            place += 4
        else:
            yield blocks[place]
            place += 1


def _of_one_picture(blocks: Sequence[dict[str, Any]]) -> bool:
    """Whether these are a heading, a single narrow picture below it, and the next heading or the end."""
    if [block["kind"] for block in blocks] not in (["heading", "pictures", after] for after in ("heading", "end")):
        return False
    [heading, pictures, after] = blocks
    alone = len(pictures["rows"]) == 1 and not pictures["rows"][0].broad
    return alone and heading["tag"] == "h2" == after.get("tag", "h2")


def _table(table: Table, caption: str) -> dict[str, Any]:
    groups: list[list[tuple[str, list[Cell]]]] = [[]]
    for label, cells in table.rows:
        if not cells and groups[-1]:
            groups.append([])
        groups[-1].append((_clean(label), [_cell(cell) for cell in cells]))
    header = [_clean(title) for title in table.header]
    columns = max((len(cells) for _, cells in table.rows), default=len(header))
    header = header if any(header) else []
    return {"kind": "table", "header": header, "groups": groups, "columns": columns, "caption": caption or "figures"}


def _contents(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Links to the sections, where there are enough of them to get lost in."""
    rows = [(block["name"], block["text"]) for block in blocks if block["kind"] == "heading" and block["tag"] == "h2"]
    return {"kind": "contents" if len(rows) > 2 else "none", "rows": rows}


def _inlined(svg: str, prefix: str, alt: str) -> str:
    """An SVG of matplotlib's as part of a page: any width, the page's colours, names that no other picture has."""
    svg = svg[svg.index("<svg") :]
    for waste in ("<metadata>.*?</metadata>", "<title>.*?</title>", "<!--.*?-->", "<style[^>]*>.*?</style>"):
        svg = re.sub(waste, "", svg, flags=re.DOTALL)
    head, end, rest = svg.partition(">")
    head = re.sub(r'\s(width|height|xmlns|version)="[^"]*"', "", head)
    width = _width(head)
    wide = f' style="min-width: {0.95 * width:.0f}px"' if width > _WIDE else ""
    head += f' role="img" aria-label="{html.escape(_clean(alt))}"{wide}'
    rest = re.sub(r'\bid="', f'id="{prefix}', rest)
    rest = re.sub(r'(href="|url\()#', rf"\1#{prefix}", rest)
    for colour, name in _COLOURS.items():
        rest = rest.replace(f": {colour}", f": var(--{name})")
    return head + end + re.sub(r"\n\s*", "\n", rest).strip()


def _width(svg: str) -> float:
    """In points."""
    box = re.search(r'viewBox="[\d.+-]+ [\d.+-]+ ([\d.]+)', svg[:2000])
    return float(box[1]) if box else 0.0


def _with_code(words: str) -> Any:
    """The text escaped, with what is between two backticks as code."""
    from markupsafe import Markup

    pieces = re.split(r"`([^`]+)`", words)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if place % 2 else piece for place, piece in enumerate(pieces)
    )


def _cell(cell: Cell) -> Cell:
    return Cell(_clean(cell.value), _clean(cell.error), "bold" if "bold" in cell.style else "")


def _clean(text: str) -> str:
    return printable(text, lines=False).strip()
