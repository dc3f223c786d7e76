"""The floors of the house: who may import whom, and what must stay out of a light start."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

from bnuq.studies import STUDIES

PACKAGE = Path(__file__).resolve().parent.parent / "bnuq"

# A file imports only from floors below its own, or from its own room.
FLOORS = [
    {*rooms.split()}
    for rooms in (
        "frozen shapes",
        "arithmetic demo devices estimates findings methods nn perturbations stopping surroundings",
        "errors tasks",
        "catalogue metrics files packing randomness progress user_code",
        "trust forms",
        "sampling",
        "config",
        "store",
        "models data records",
        "evaluation gate",
        "workflows",
        "report",
        "cli",
        "studies",
        "api",
    )
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FRONT_DOORS = {"__init__", "__main__"}  # of the package: they know every room
WITH_TORCH = {"demo", "devices", "nn", "randomness", "forms", "sampling", "models", "data", "evaluation"}
WITHOUT_TORCH = {*FLOOR_OF} - WITH_TORCH - {"workflows", "studies", "api"}
LIGHT_IN_STUDIES = {"__init__", "command", "findings", "plots", "record", "request", "tables", "view"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, and whether the import is at the top of the file."""
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [(alias.name, node in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"bnuq.{alias.name}" for alias in node.names] if node.module == "bnuq" else [node.module]
            imported += [(name, node in top) for name in names]
    return imported


def test_a_file_imports_only_from_floors_below() -> None:
    rooms = {path: room_of(path) for path in modules() if room_of(path) not in FRONT_DOORS}
    assert {*rooms.values()} <= {*FLOOR_OF}  # a room without a floor: give it one here and in ARCHITECTURE.md
    wrong = []
    for path, room in rooms.items():
        for name, _ in imports(path):
            first, _, second = name.partition(".")
            below = second.partition(".")[0]
            if name == "bnuq.studies":  # the list of studies, which is a list of names
                continue
            if first == "experiments":
                wrong.append(f"{path} imports {name}, which stands on the package")
            elif first == "bnuq" and below not in ("", room, "__version__") and FLOOR_OF[below] >= FLOOR_OF[room]:
                wrong.append(f"{path} ({room}) imports {name}, which is not below it")
    assert wrong == []


FINISHES = {"init": "inspect", "export": "monitor"}  # what a study does with what another has found


def test_a_study_is_named_by_the_list_and_by_the_python_interface_alone() -> None:
    """What is in its folder imports no other study but the one that it finishes; nothing outside imports it."""
    wrong = []
    for path in modules():
        room, *inside = path.relative_to(PACKAGE).with_suffix("").parts
        study = inside[0] if room == "studies" else None
        studies = {name.split(".")[2] for name, _ in imports(path) if name.startswith("bnuq.studies.")}
        if room not in ("__init__", "api") and studies - {study, FINISHES.get(str(study))}:
            wrong.append((path, studies))
    assert wrong == []
    folders = {path.parent.name for path in (PACKAGE / "studies").glob("*/__init__.py")}
    assert folders == {study.folder for study in STUDIES.values()}


def test_the_list_of_studies_says_of_which_kind_their_results_are() -> None:
    for name, study in STUDIES.items():
        assert study.result is None or name == study.result_class().COMMAND
        assert study.kind is None or study.kind == study.result_class().KIND


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in modules()}
    graph = {}
    for name, path in names.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        imported = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        graph[name] = (imported | {str(node.module) for node in nodes}) & names.keys() - {name}
    assert [*graphlib.TopologicalSorter(graph).static_order()]  # CycleError names the files


CORE = ("data", "evaluation/methods", "evaluation/tasks", "metrics", "sampling")
MOST_READERS = 20  # files that turn the request into settings, beside the package that makes it and a study's two


def test_the_core_knows_no_request_and_few_files_read_it() -> None:
    readers = [
        path.relative_to(PACKAGE)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bnuq.config")
        if any(alias.name == "Run" for alias in node.names)
    ]
    assert [path for path in readers if path.as_posix().startswith(CORE)] == []
    assert (
        len({path for path in readers if path.parts[0] != "config" and path.stem not in ("request", "compute")})
        <= MOST_READERS
    )


def test_rooms_that_must_be_light_do_not_import_torch_at_the_top() -> None:
    light = [path for path in modules() if room_of(path) in WITHOUT_TORCH | FRONT_DOORS]
    light += [path for path in modules() if room_of(path) == "studies" and path.stem in LIGHT_IN_STUDIES]
    heavy = [(path, name) for path in light for name, top in imports(path) if top and name.split(".")[0] == "torch"]
    assert light and heavy == []


def loaded_by(code: str) -> set[str]:
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


LIGHT = [
    ["--help"], ["evaluate", "--help"], ["score", "--help"], ["precise-bn", "--help"], ["inspect", "--help"],
    ["report", "--help"], ["check", "--help"], ["data"], ["metrics"], ["methods"],
]  # fmt: skip
IN_TURN = """
import contextlib, io, sys
from bnuq.cli import main
for arguments in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main(arguments)
    heavy = {{"torch", "scipy.stats"}} & set(sys.modules)
    print(*arguments, "imports", *sorted(heavy) or ["nothing heavy"], "and prints", bool(said.getvalue()))
print("bnuq.cli.evaluate" in sys.modules)
"""


def test_help_and_lists_do_not_import_torch() -> None:
    """In one process: what none of them has imported by the end, none of them imports."""
    script = IN_TURN.format(commands=LIGHT)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = [f"{' '.join(arguments)} imports nothing heavy and prints True" for arguments in LIGHT]
    assert done.stdout.splitlines() == [*expected, "True"]


def test_the_list_of_commands_imports_none_of_them() -> None:
    modules = loaded_by("from bnuq.cli import main; main(['--help'])")
    assert "bnuq.cli.help" in modules
    assert not modules & {"numpy", "msgspec", "rich", "bnuq.config", "bnuq.cli.evaluate"}


def test_importing_bnuq_and_its_metrics_and_results_does_not_import_torch() -> None:
    modules = loaded_by("import bnuq; bnuq.metrics; bnuq.Result; bnuq.open; bnuq.check; bnuq.score")
    assert "bnuq.api" in modules
    assert not modules & {"torch", "scipy.stats"}


def test_an_evaluation_starts_without_what_it_rarely_needs() -> None:
    """A compiler takes a second to import, in every process that computes units."""
    modules = loaded_by("import bnuq.workflows.evaluate")
    assert "torch" in modules
    assert not modules & {"torch._dynamo", "torch._inductor", "sympy", "scipy.optimize", "scipy.stats", "matplotlib"}


def test_the_smallest_evaluation_needs_no_scipy_and_a_check_neither_that_nor_torch(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "benchmarks"))
    importlib.import_module("start").small_inputs(tmp_path)
    made = loaded_by(_small_run(tmp_path, "evaluate", "run.toml", "--quiet", "--out", "r.h5"))
    assert (tmp_path / "r.h5").exists() and "torch" in made
    assert not made & {"scipy", "matplotlib", "jinja2", "xarray", "pydantic", "rich", "html", "PIL", "jaxtyping"}
    assert not made & {"bnuq.report.evaluation", "bnuq.report.render"}  # with --quiet no report is made
    checked = loaded_by(_small_run(tmp_path, "check", "r.h5", "r.h5"))
    assert {"bnuq.gate", "bnuq.report.render.terminal"} <= checked
    assert not checked & {"scipy", "torch", "pydantic", "rich", "html", "xml.etree.ElementTree", "asyncio", "jaxtyping"}


def _small_run(folder: Path, *words: str) -> str:
    return f"import os; os.chdir({str(folder)!r}); from bnuq.cli import main; main({[*words]!r})"


def test_the_public_list_is_honest() -> None:
    import bnuq

    assert all(getattr(bnuq, name) is not None for name in bnuq.__all__)
    again = {name for name in bnuq.__all__ if isinstance(getattr(bnuq, name), ModuleType)}
    assert again == {"metrics"}  # a file that is named like its function does not take its place


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest imports them by their bare names: of two with one name it refuses the second."""
    names = [
        path.name for path in Path(__file__).parent.rglob("*.py") if path.name not in ("conftest.py", "__init__.py")
    ]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_the_package_ships_the_types_that_it_claims_and_every_dependency_has_a_lowest_version() -> None:
    import floor

    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert "Typing :: Typed" in text and (PACKAGE / "py.typed").is_file()
    lowest = dict(constraint.split("==") for constraint in floor.constraints())
    assert (
        len(lowest) > 10
        and lowest["typer"] == "0.18"
        and lowest["torch"] in (PACKAGE.parent / "constraints.txt").read_text()
    )


def test_experiments_start_with_what_an_installation_brings() -> None:
    metadata = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    brought = {re.split(r"[^\w-]", each)[0] for each in metadata["project"]["dependencies"]}
    for path in sorted((PACKAGE.parent / "experiments").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [each.module for each in tree.body if isinstance(each, ast.ImportFrom) and not each.level]
        named += [name.name for each in tree.body if isinstance(each, ast.Import) for name in each.names]
        packages = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names)
        assert packages <= brought | {"bnuq", "experiments"}, path
