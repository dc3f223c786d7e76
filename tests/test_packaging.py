"""What an index and a distribution are given: metadata, links that lead somewhere, and what the package must hold."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
import types
from email.message import Message
from pathlib import Path

import pytest
import yaml

import bnuq
from bnuq.cli.failures import FAULT, reported

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_readme_of_the_package_has_absolute_links_that_the_repository_has_too(monkeypatch) -> None:
    interface = types.SimpleNamespace(MetadataHookInterface=object)  # hatchling builds, and is not installed beside
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    namespace = {"__name__": "hatch_build"}
    exec((ROOT / "hatch_build.py").read_text(encoding="utf-8"), namespace)
    hook = namespace["ReadmeHook"]()  # type: ignore[operator]
    hook.root = str(ROOT)
    metadata = dict(PROJECT)
    hook.update(metadata)
    links = re.findall(r"\]\(([^)\s]+)\)", metadata["readme"]["text"])
    here = f"{PROJECT['urls']['Source']}/blob/main/"
    assert len(links) > 25 and all(link.startswith(("https://", "#")) for link in links)
    own = [link.removeprefix(here).partition("#")[0] for link in links if link.startswith(here)]
    assert len(own) > 20 and all((ROOT / path).exists() for path in own)


def test_version_and_pythons_are_said_once_and_tested() -> None:
    assert PROJECT["version"] == bnuq.__version__
    pythons = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if " :: 3." in each}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert pythons == {*workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]}
    address = PROJECT["urls"]["Source"]
    assert all(url.startswith(address) for url in PROJECT["urls"].values())


@pytest.mark.parametrize("addresses", [["Source, https://a.b", "Issues, https://a.b/issues"], None, ["nonsense"]])
def test_a_bug_is_reported_where_the_metadata_says(monkeypatch, capsys, addresses: list[str] | None) -> None:
    metadata = Message()
    for entry in addresses or ():
        metadata["Project-URL"] = entry
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: metadata)
    assert reported(ZeroDivisionError("oh no")) == FAULT
    where = " at https://a.b/issues" if addresses and len(addresses) == 2 else ""
    assert f"Please report it{where}, with the output" in capsys.readouterr().err
