"""A report as one HTML page that needs nothing else: the parts of the terminal's report, and pictures drawn into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnuq.files.writing import write_bytes
from bnuq.report.parts import Cell, Drawing, Facts, Items, Paragraph, Part, PathLine, Table
from bnuq.report.plain import printable

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --dim: #595959; --line: #d9d9d9; --paper: #ffffff; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --dim: #a8a8a8; --line: #3a3a3a; --paper: #161616; --warn: #ffb454; }
}
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h2.warn { color: var(--warn); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--dim); } dd { margin: 0; }
.scroll { overflow-x: auto; } .note, .path { color: var(--dim); font-size: .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } td small { color: var(--dim); }
tr.heading th { text-align: left; padding-top: .8rem; }
figure { margin: 1rem 0; padding: .5rem; background: #ffffff; border: 1px solid var(--line); border-radius: .4rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 56rem; margin: auto; }
""".strip()

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>{{ heading }}</h1>
{%- for block in blocks %}
{%- if block.kind == "heading" %}
<h2{% if block.warns %} class="warn"{% endif %}>{{ block.text }}</h2>
{%- elif block.kind == "paragraph" %}
<p{% if block.note %} class="note"{% endif %}>{{ block.text }}</p>
{%- elif block.kind == "items" %}
<ul>{% for text in block.texts %}
<li>{{ text }}</li>{% endfor %}
</ul>
{%- elif block.kind == "facts" %}
<dl>{% for name, text in block.rows %}
<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}
</dl>
{%- elif block.kind == "table" %}
<div class="scroll"><table>{% if block.header %}
<thead><tr><th></th>{% for title in block.header %}<th>{{ title }}</th>{% endfor %}</tr></thead>{% endif %}
<tbody>{% for label, cells in block.rows %}{% if cells %}
<tr><td>{{ label }}</td>{% for cell in cells %}<td>{{ cell.value }}{% if cell.error %} <small>{{ cell.error }}</small>
{%- endif %}</td>{% endfor %}</tr>{% else %}
<tr class="heading"><th colspan="{{ block.columns }}">{{ label }}</th></tr>{% endif %}{% endfor %}
</tbody></table></div>
{%- elif block.kind == "picture" %}
<figure role="img" aria-label="{{ block.name }}">{{ block.svg | safe }}</figure>
{%- elif block.kind == "path" %}
<p class="path">{{ block.text }}</p>
{%- endif %}
{%- endfor %}
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """An SVG that bnuq drew itself, and what it is called."""

    name: str
    svg: str


def pictures(paths: Iterable[Path]) -> tuple[Picture, ...]:
    """The SVG files that were just drawn, without what only a file of its own needs, and free to take any width."""
    found = []
    for path in paths:
        svg = path.read_text(encoding="utf-8")
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        head, end, rest = svg.partition(">")
        head = re.sub(r'\s(width|height)="[^"]*"', "", head)
        found.append(Picture(path.stem.replace("_", " "), head + end + rest))
    return tuple(found)


def page(parts: Iterable[Part], drawn: Sequence[Picture] = ()) -> str:
    """The report as a page: its first part is the heading, pictures stand after the summary in words.

    Every text is escaped; pictures are not, and must be bnuq's own.
    """
    from jinja2 import Environment  # late: no other report needs it

    blocks = list(_blocks(parts))
    heading = blocks.pop(0)["text"]
    summary = next((place for place, block in enumerate(blocks) if block["kind"] == "items"), -1)
    blocks[summary + 1 : summary + 1] = [{"kind": "picture", "name": one.name, "svg": one.svg} for one in drawn]
    return Environment(autoescape=True).from_string(_PAGE).render(heading=heading, blocks=blocks, style=_STYLE)


def write_page(path: Path, parts: Iterable[Part], drawn: Sequence[Picture] = ()) -> None:
    """Put the page at `path`, whole or not at all; ResultError where it cannot be written."""
    write_bytes(path, page(parts, drawn).encode())


def _blocks(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Paragraph) and part.text:
            if part.style.startswith("bold"):
                yield {"kind": "heading", "text": _clean(part.text), "warns": "yellow" in part.style}
            else:
                yield {"kind": "paragraph", "text": _clean(part.text), "note": part.style == "dim"}
        elif isinstance(part, Items):
            yield {"kind": "items", "texts": [_clean(text) for text in part.texts]}
        elif isinstance(part, Facts):
            yield {"kind": "facts", "rows": [(_clean(name), _clean(text)) for name, text in part.rows]}
        elif isinstance(part, Table):
            header = [_clean(title) for title in part.header]
            rows = [(_clean(label), [_cell(cell) for cell in cells]) for label, cells in part.rows]
            columns = 1 + max((len(cells) for _, cells in rows), default=len(header))
            header = header if any(header) else []
            yield {"kind": "table", "header": header, "rows": rows, "columns": columns}
        elif isinstance(part, PathLine):
            yield {"kind": "path", "text": f"{part.what}: {_clean(str(part.path))}"}
        else:
            assert isinstance(part, Paragraph | Drawing)  # empty lines, and what pictures show better


def _cell(cell: Cell) -> Cell:
    return Cell(_clean(cell.value), _clean(cell.error))


def _clean(text: str) -> str:
    return printable(text, lines=False).strip()
