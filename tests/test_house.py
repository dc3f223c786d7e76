"""What the code may cost: the price list is true, and no function or file grows beyond what one can keep in mind."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Above the limits when these were set; none is added, and none grows.
COMPLEX = {"evaluation/datasets.py:load_data": 38}


@pytest.fixture
def make_house(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("make_house")


def test_every_file_has_one_capability_and_every_path_of_one_leads_to_a_file(make_house: ModuleType) -> None:
    for folder, listed in (("bnuq", "package"), ("tests", "tests")):
        paths = [path for offer in make_house.capabilities() for path in getattr(offer, listed)]
        assert [path for path, count in Counter(paths).items() if count > 1] == []
        owners = {path: path for path in paths}
        found = {
            source.path.as_posix(): make_house.owner(source.path, owners)
            for source in make_house.sources(ROOT / folder)
        }
        assert len(found) > 200
        assert [path for path, owner in found.items() if owner is None] == []  # give it one in docs/capabilities.toml
        assert {*paths} - {*found.values()} == set()  # paths without a file of their own


def test_the_sum_of_lines_does_not_grow(make_house: ModuleType) -> None:
    for folder, name in (("bnuq", "package"), ("tests", "tests")):
        lines = sum(source.lines for source in make_house.sources(ROOT / folder))
        assert lines <= make_house.limits()[name], f"{folder}/ may not grow: see `most` in docs/capabilities.toml"


def test_the_price_list_of_the_architecture_is_true(make_house: ModuleType) -> None:
    """Within 5 % or 60 lines, so that few commits need `make house`."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    written, counted = make_house.written_prices(page), make_house.prices()
    assert written.keys() == counted.keys()
    wrong = [
        f"{name}: {before} is {now} today; run make house"
        for name, now in counted.items()
        for before, after in ((written[name].package, now.package), (written[name].tests, now.tests))
        if abs(before - after) > max(60, 0.05 * before)
    ]
    wrong += [
        f"{name}: named by {before} files, {now} today; run make house"
        for name, before, now in ((name, written[name].known, price.known) for name, price in counted.items())
        if (before is None) != (now is None) or (before is not None and abs(before - now) > max(3, 0.1 * before))
    ]
    assert wrong == []
    assert len(page.splitlines()) <= 180


def test_a_price_list_is_read_back_as_it_is_written(make_house: ModuleType) -> None:
    listed = {"a thing (the core)": make_house.Price(10, 20, None), "b": make_house.Price(0, 1, 7)}
    page = f"before\n<!-- prices -->\n{make_house.price_list(listed)}\n<!-- /prices -->\nafter"
    assert make_house.written_prices(page) == listed


def test_no_function_is_more_complex_than_one_can_keep_in_mind(make_house: ModuleType) -> None:
    counts = make_house.complexities(make_house.sources(ROOT / "bnuq"))
    assert len(counts) > 2000
    limits = {name: COMPLEX.get(name, make_house.MOST_COMPLEX) for name in counts}
    assert {name: count for name, count in counts.items() if count > limits[name]} == {}


def test_no_file_imports_half_the_package(make_house: ModuleType) -> None:
    counts = make_house.imports(make_house.sources(ROOT / "bnuq"))
    assert counts["evaluation/runner.py"] > 5
    assert {name: count for name, count in counts.items() if count > make_house.MOST_IMPORTS} == {}


@pytest.mark.parametrize(
    ("question", "limit"),
    [
        (r'\b(is_dense|is_regression)\b|\boutputs == "labels"|\btask (is|==|!=) [A-Z]{2}', 28),
        (r"\bclassifies_points\b|\btask\.(outputs|unit|truth|points|axis|headline|spread|name) [!=]=", 36),
    ],
)
def test_few_lines_ask_which_task_it_is(question: str, limit: int) -> None:
    """Outside the tasks themselves, whose values and scorers know what follows from it."""
    own = {"tasks.py", "evaluation/task.py", "report/tasks.py"}
    files = {path.relative_to(ROOT / "bnuq").as_posix(): path for path in (ROOT / "bnuq").rglob("*.py")}
    lines = [
        f"{name}: {line.strip()}"
        for name, path in files.items()
        if name not in own and not name.startswith("evaluation/tasks/")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(question, line)
    ]
    assert 0 < len(lines) <= limit, "\n".join(lines)


def test_a_line_of_code_has_a_token_that_is_neither_comment_nor_docstring(make_house: ModuleType) -> None:
    text = '"""Doc.\n\nMore."""\n\nimport bnuq.methods  # why\n\n# alone\nx = f(\n    1,\n)\n'
    source = make_house.Source(Path("folder/name.py"), text)
    assert (source.lines, sorted(source.code_lines), source.comment_lines) == (10, [5, 8, 9, 10], 2)
    other = make_house.Source(Path("methods.py"), "from bnuq.methods import METHODS\nfrom bnuq import methods\n")
    assert make_house.imports([source, other]) == {"folder/name.py": 1, "methods.py": 1}
