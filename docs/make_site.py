"""`make docs`, first half: gathers the pages of the site in build/docs and its configuration in build/mkdocs.yml.

The pages of docs/ are written for GitHub. On the site, links out of docs/ lead to GitHub, and every heading gets the
anchor that GitHub gives it. The command line, the Python interface and the gallery become pages here. The results of
the gallery are kept in build/gallery, and computed again after `make clean`; those that need BNUQ_TEST_DATA are left
out without it. `make schema`: writes docs/schema/ again instead, the JSON schemas as they are published.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from bnuq.cli.main import app
from bnuq.report import json_schema

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PAGES, GALLERY, SITE = BUILD / "docs", BUILD / "gallery", ROOT / "docs" / "site"
GENERATED = ("cli.md", "api/bnuq.md", "api/metrics.md", "api/nn.md", "gallery.md")
SCHEMAS = ROOT / "docs" / "schema"
_ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "docs/measured/README.md": "measured/index.md"}
_FENCE = re.compile(r"^```.*?^```$\n?", re.MULTILINE | re.DOTALL)


# ── pages of the repository ──────────────────────────────────────────────────────────────────────────────────────────


def places() -> dict[Path, str]:
    """Where each page and picture of the repository stands on the site."""
    found: dict[Path, str] = {}
    for folder in (ROOT / "docs", ROOT / "docs" / "measured", SCHEMAS, SITE):
        base = SITE if folder == SITE else ROOT / "docs"
        found |= {
            path: path.relative_to(base).as_posix()
            for path in sorted(folder.iterdir())
            if path.suffix in (".md", ".svg", ".css", ".json")
        }
    return found | {ROOT / source: place for source, place in _ELSEWHERE.items()}


def on_site(text: str, source: Path, places: dict[Path, str], repository: str) -> str:
    """The Markdown of a page of the repository as it stands on the site; code stays as it is."""
    here = Path(places[source]).parent

    def relinked(match: re.Match[str]) -> str:
        link, hash_, anchor = match[1].partition("#")
        target = Path(os.path.normpath(source.parent / link))
        if "://" in link or not link or not target.exists():
            return match[0]
        if target in places:
            return f"]({os.path.relpath(places[target], here)}{hash_}{anchor})"
        kind = "tree" if target.is_dir() else "raw" if target.suffix == ".svg" else "blob"
        return f"]({repository}/{kind}/main/{target.relative_to(ROOT).as_posix()}{hash_}{anchor})"

    used: dict[str, int] = {}

    def anchored(match: re.Match[str]) -> str:
        name = re.sub(r"[^\w\- ]", "", match[2].lower()).replace(" ", "-")
        used[name] = used.get(name, -1) + 1
        return f"{match[1]} {match[2]} {{#{name}{f'-{used[name]}' if used[name] else ''}}}"

    pieces = zip(_FENCE.split(text), [*_FENCE.findall(text), ""], strict=True)
    out = []
    for prose, code in pieces:
        prose = re.sub(r"^(#+) (.+)$", anchored, prose, flags=re.MULTILINE)
        out += [re.sub(r"\]\(([^)\s]+)\)", relinked, prose), code]
    return _as_here("".join(out))


def _as_here(text: str) -> str:
    """What GitHub's Markdown allows and that of the site does not: two escapes, and Markdown in what is folded."""
    return text.replace(r"\<", "&lt;").replace(r"\~", "~").replace("<details>", '<details markdown="1">')


# ── the command line and the Python interface ────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    """Every command with its arguments and options, as its help has them."""
    lines = ["# The command line", "", "Every command, argument and option, with its default.", ""]
    for name, sentence in app.commands.sentences():
        lines += [f"- [`bnuq {name}`](#bnuq-{name}): {_escaped(sentence)}"]
    for name in app.commands:
        command = app.commands[name]
        context = typer.Context(command, info_name=f"bnuq {name}")
        usage = " ".join((f"bnuq {name}", *command.collect_usage_pieces(context)))
        lines += ["", f"## bnuq {name} {{#bnuq-{name}}}", "", "```text", re.sub("[{}]", "", usage), "```", ""]
        lines += [_escaped(" ".join(part.split())) + "\n" for part in re.split(r"\n\s*\n", command.help or "")]
        for title, rows in command.panels(context).items():
            lines += ["", f"### {title} {{#bnuq-{name}-{title.lower().replace(' ', '-')}}}"]
            for option, text, note in rows:
                default = f" *{_escaped(note.strip('[]'))}*" if note else ""
                lines += ["", f"`{option}`", f":   {_escaped(text)}{default}"]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text of the command line as Markdown: code stays code, and no other sign has a meaning."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_>\[\]#])", r"\\\1", piece.replace("<", "&lt;"))
        for piece in pieces
    )


def public_names(module: str) -> dict[str, Any]:
    """What a module gives its users, by name; modules that are imported with it are not meant."""
    home = importlib.import_module(module)
    names = getattr(home, "__all__", None) or [name for name in vars(home) if not name.startswith("_")]
    values = {name: getattr(home, name) for name in names if name != "__version__"}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


def api_page(module: str) -> str:
    """The docstrings of a module's public names, by the modules that they are defined in."""
    names = public_names(module)
    homes: dict[str, list[str]] = {}
    for name, value in names.items():
        homes.setdefault(getattr(value, "__module__", None) or "", []).append(name)
    purpose = (importlib.import_module(module).__doc__ or "").strip()
    lines = [f"# {module}", "", f"Every public name of `{module}`, with its docstring.", "", purpose]
    for home, members in sorted(homes.items(), key=lambda item: (not item[0].startswith("bnuq"), item[0])):
        if not home.startswith("bnuq"):
            lines += ["", "## Constants", "", "| name | value |", "| --- | --- |"]
            lines += [f"| `{module}.{name}` | {_constant(names[name])} |" for name in members]
            continue
        if len(homes) > 1:
            first = re.split(r"(?<=[.?])\s", (sys.modules[home].__doc__ or home).strip())[0]
            lines += ["", f"## {home.removeprefix('bnuq.')}", "", " ".join(first.split())]
        for name in members:
            lines += ["", f"::: {module}.{name}"]
    return "\n".join((*lines, ""))


def _constant(value: Any) -> str:
    if isinstance(value, dict):
        return "by name: " + ", ".join(f"`{key}`" for key in value)
    return f"`{' '.join(repr(value).split())}`".replace("|", "\\|")


# ── the gallery ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shown:
    """A report of the gallery: what it is of, and the command that computes its result."""

    name: str
    title: str
    about: str
    command: str
    needs_data: bool = False


QUICK = "sample_configs/quickstart.toml --limit 400"
GALLERY_OF = (
    Shown("quickstart", "Classification", "A small CNN on Fashion-MNIST, the network of the demo; digits as the "
          "unfamiliar data.", f"evaluate {QUICK} --samples 16"),
    Shown("cifar", "ResNet-20 on CIFAR-10", "A published network: which mini-batch noise does it see, and does it know "
          "a photograph from a printed digit?", "evaluate sample_configs/cifar_resnet20.toml --limit 200 --samples 8",
          needs_data=True),
    Shown("regression", "Regression", "Disease progression of diabetes patients: intervals, PLL and CRPS between a "
          "constant uncertainty and the optimum.", "evaluate sample_configs/regression.toml --samples 32"),
    Shown("camvid", "Segmentation", "Street scenes of CamVid: the uncertainty of each pixel, as maps.",
          "evaluate sample_configs/camvid.toml --limit 20 --samples 2 --method mcbn", needs_data=True),
    Shown("sweep", "Batch size", "MCBN of the demo's network at several mini-batch sizes.",
          f"sweep-batch-size {QUICK} --samples 8 --draw-sets 2 --batch-sizes 8,32,128 --train-points 400"),
)  # fmt: skip
CANDIDATE = f"evaluate {QUICK} --samples 16 --batch-size 4"
CHECK = "check candidate.h5 quickstart.h5 --allow batch-size --markdown check.md"


def gallery() -> str:
    """Compute what is missing, write each report to its page, and say on a page of its own what they are."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    samples = GALLERY / "sample_configs"
    shutil.copytree(ROOT / "sample_configs", samples, dirs_exist_ok=True)
    shutil.copytree(ROOT / "bnuq" / "demo", GALLERY / "bnuq" / "demo", dirs_exist_ok=True)
    data = os.environ.get("BNUQ_TEST_DATA")
    if data and not (samples / "data").exists():
        (samples / "data").symlink_to(data)
    about = "Real reports, as `bnuq report --html` writes them, of fewer images and passes than one would use."
    lines = ["# Gallery", "", about, ""]
    (PAGES / "gallery").mkdir(parents=True)
    for shown in GALLERY_OF:
        if shown.needs_data and not data:
            continue
        result, page = GALLERY / f"{shown.name}.h5", PAGES / "gallery" / f"{shown.name}.html"
        if not result.exists():
            _bnuq(f"{shown.command} --quiet --out {result.name}")
        _bnuq(f"report {result.name} --html {page}")
        how = _wrapped(f"bnuq {shown.command} --out {result.name}"), f"bnuq report {result.name} --html {page.name}"
        lines += [f"## [{shown.title}](gallery/{page.name})", "", shown.about, "", "```text", *how, "```", ""]
    if not (GALLERY / "candidate.h5").exists():
        _bnuq(f"{CANDIDATE} --quiet --out candidate.h5")
    _bnuq(f"{CHECK} --quiet", right=(0, 1))
    verdict = (GALLERY / "check.md").read_text(encoding="utf-8").splitlines()[:20]
    about = "The first lines of what a pull request is told when the mini-batch size of the demo changes from 64 to 4."
    lines += ["## A check that fails", "", about, "", "```text", f"bnuq {CHECK}", "", *verdict, "```", ""]
    return "\n".join(lines)


def _wrapped(command: str) -> str:
    """A command over several lines, each option with its value."""
    kept = re.sub(r" (?!--)", "\0", command)
    return " \\\n    ".join(textwrap.wrap(kept, 68, break_on_hyphens=False)).replace("\0", " ")


def _bnuq(words: str, right: tuple[int, ...] = (0,)) -> None:
    command = [sys.executable, "-m", "bnuq", *words.split()]
    code = subprocess.run(command, cwd=GALLERY, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in right:
        raise SystemExit(f"bnuq {words}: exit code {code}")


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_navigation(entries: Any) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(entries, str):
        yield entries
    for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
        yield from in_navigation(entry)


def _existing(entries: Any) -> Any:
    """The navigation without pages that are not there, and without parts that then are empty."""
    if isinstance(entries, str):
        return entries if (PAGES / entries).exists() else None
    if isinstance(entries, dict):
        return {title: kept for title, inner in entries.items() if (kept := _existing(inner))} or None
    return [kept for entry in entries if (kept := _existing(entry))]


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    config = yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    where = places()
    for source, place in where.items():
        target = PAGES / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = on_site(source.read_text(encoding="utf-8"), source, where, config["extra"]["repository"])
            target.write_text(text, encoding="utf-8")
        else:
            shutil.copy(source, target)
    made = {"cli.md": cli_page(), "gallery.md": gallery()}
    made |= {f"api/{name.rpartition('.')[2]}.md": api_page(name) for name in ("bnuq", "bnuq.metrics", "bnuq.nn")}
    for place, text in made.items():
        (PAGES / place).parent.mkdir(exist_ok=True)
        (PAGES / place).write_text(text, encoding="utf-8")
    config["nav"] = _existing(config["nav"])
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def write_schemas() -> None:
    """Write the JSON schemas: what changes in one of them is a change for those who read JSON."""
    for name in json_schema.names():
        text = json.dumps(json_schema.schema(name), indent=1, ensure_ascii=False)
        (SCHEMAS / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    write_schemas() if sys.argv[1:] == ["schema"] else main()
