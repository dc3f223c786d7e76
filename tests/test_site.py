"""The site: every page has its place, links and anchors hold there, and the references have every name and option."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from bnuq.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("bnuq", "bnuq.metrics", "bnuq.nn")


@pytest.fixture(scope="module")
def make_site() -> ModuleType:
    """The script, imported as `make docs` runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return importlib.import_module("make_site")


def test_every_page_has_one_place_in_the_navigation_or_is_left_out_by_name(make_site: ModuleType) -> None:
    config = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [*make_site.in_navigation(config["nav"]), *config["not_in_nav"].split()]
    assert [*map("".join, config["nav"])] == ["Start", "Guides", "CI", "Reference", "Evidence"]
    pages = {place for source, place in make_site.places().items() if source.suffix == ".md"}
    assert len(named) == len(set(named))
    assert pages | {*make_site.GENERATED} == {*named}


def test_a_link_leads_to_the_site_where_the_page_is_there_and_to_the_repository_otherwise(make_site) -> None:
    text = """# A page: `--risk`, twice

See [the gate](gate.md#four-commands), [a file](../bnuq/api.py), [a folder](../sample_configs), [home](../README.md#x),
[itself](#twice), [elsewhere](https://example.org/a.md), ![a curve](measured/toy.svg) and [nothing](nowhere.md).

```sh
# not a heading, and [no link](gate.md)
```

## Twice
## Twice
"""
    made = make_site.on_site(text, ROOT / "docs" / "methods.md", make_site.places(), "https://git.example/bnuq")
    assert re.findall(r"\]\(([^)]+)\)", made) == [
        *("gate.md#four-commands", "https://git.example/bnuq/blob/main/bnuq/api.py"),
        *("https://git.example/bnuq/tree/main/sample_configs", "index.md#x", "#twice", "https://example.org/a.md"),
        *("measured/toy.svg", "nowhere.md", "gate.md"),  # what is nowhere is refused by the strict build
    ]
    assert re.findall(r"\{#([^}]+)\}", made) == ["a-page---risk-twice", "twice", "twice-1"]
    below = make_site.on_site("[m](../methods.md)", ROOT / "docs/measured/zoo.md", make_site.places(), "")
    assert below == "[m](../methods.md)"


def test_the_reference_of_the_command_line_has_every_command_and_option(make_site: ModuleType) -> None:
    page = make_site.cli_page()
    parts = dict(re.findall(r"^## bnuq (\S+) .*?\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert [*parts] == [*app.commands]
    options = 0
    for name, part in parts.items():
        terms = re.findall(r"^`([^`\n]+)`\n:   (\S.*)$", part, flags=re.MULTILINE)
        spelled = " ".join(term for term, _ in terms).replace("[no-]", "")
        for parameter in app.commands[name].params:
            if parameter.param_type_name != "option":
                continue
            spellings = parameter.opts or parameter.secondary_opts
            assert all(re.search(rf"(?<!\S){each}(?!\S)", spelled.replace(",", "")) for each in spellings)
            texts = [text for term, text in terms if spellings[-1] in term.replace("[no-]", "")]
            plain = [text.replace("\\", "").replace("&lt;", "<") for text in texts]
            assert any(text.startswith(parameter.help) for text in plain), (name, spellings)
            options += 1
    assert options > 200
    assert "`-T, --samples INTEGER|auto`\n:   Number T of stochastic forward passes, or auto. *default: 64*" in page


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_what_its_reference_shows(make_site: ModuleType, module: str) -> None:
    page = make_site.api_page(module)
    for name, value in make_site.public_names(module).items():
        if not callable(value):
            assert f"| `{module}.{name}` | " in page
            continue
        assert page.count(f"::: {module}.{name}\n") == 1
        text = inspect.getdoc(value) or ""
        assert text.partition("\n\n")[0].rstrip().endswith((".", ":", "…")), name
        assert not re.search(r"^ {4}", text, flags=re.MULTILINE), name  # which would be code on the page
        if not inspect.isclass(value):
            signature = inspect.signature(value)
            empty = inspect.Parameter.empty
            assert signature.return_annotation is not empty, name
            assert all(each.annotation is not empty for each in signature.parameters.values()), name
    for home in {getattr(value, "__module__", "bnuq") for value in make_site.public_names(module).values()}:
        assert (sys.modules[home].__doc__ or "").strip()
