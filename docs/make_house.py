"""`make house`: prints measures of the code, and writes the price list of ARCHITECTURE.md.

With a folder as argument, that of another checkout, it prints the measures of the code there, and writes nothing.
docs/capabilities.toml says which files a capability has. Half a minute; it imports no file that it measures.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from bnuq.methods import METHODS
from bnuq.perturbations import KINDS
from bnuq.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
MOST_COMPLEX, MOST_IMPORTS = 25, 25
MAINTAINED = ("evaluation/runner.py", "gate/*.py", "studies/inspect/findings.py", "models/*.py")
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_PRICES = re.compile(r"(<!-- prices\b[^>]*-->\n).*(\n<!-- /prices -->)", re.DOTALL)
_ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+|–) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A Python file: its path below the folder that is measured, and its text."""

    path: Path
    text: str

    @cached_property
    def lines(self) -> int:
        """All lines of the file."""
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the syntax tree."""
        return tuple(ast.walk(ast.parse(self.text)))

    @cached_property
    def _docstring_lines(self) -> frozenset[int]:
        docstrings = (node for node in self.nodes if isinstance(node, ast.Expr) and _is_text(node.value))
        return frozenset(number for node in docstrings for number in _lines_of(node))

    @cached_property
    def _all_tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        return tuple(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def _tokens(self) -> tuple[tokenize.TokenInfo, ...]:
        """The tokens of code: neither layout nor docstrings."""
        documented = self._docstring_lines
        return tuple(
            token for token in self._all_tokens if token.type not in _LAYOUT and token.start[0] not in documented
        )

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """Lines with a token of code, so neither blank lines nor those of comments and docstrings alone."""
        return frozenset(number for token in self._tokens for number in range(token.start[0], token.end[0] + 1))

    @property
    def comment_lines(self) -> int:
        """Lines with a comment, alone or after code."""
        return sum(token.type == tokenize.COMMENT for token in self._all_tokens)

    @cached_property
    def code(self) -> str:
        """The tokens of code, each once, and dotted names in one piece."""
        words = " ".join(token.string for token in self._tokens).replace(" . ", ".").split(" ")
        return " ".join(dict.fromkeys(words))

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """All functions and methods, also those inside others."""
        return tuple(node for node in self.nodes if isinstance(node, ast.FunctionDef))

    @cached_property
    def literals(self) -> frozenset[str]:
        """The values of all string literals of the code."""
        return frozenset(str(node.value) for node in self.nodes if isinstance(node, ast.Constant) and _is_text(node))

    @property
    def module(self) -> str:
        """The name by which it is imported."""
        return ".".join(("bnuq", *self.path.with_suffix("").parts)).removesuffix(".__init__")

    @property
    def maintainability(self) -> float:
        """Radon's maintainability index, from 0 to 100; higher is better."""
        from radon.metrics import mi_visit  # late: the price list does without

        return mi_visit(self.text, multi=True)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@cache
def sources(folder: Path) -> tuple[Source, ...]:
    """The Python files below a folder, in order of their paths."""
    paths = sorted(folder.rglob("*.py"))
    return tuple(Source(path.relative_to(folder), path.read_text(encoding="utf-8")) for path in paths)


@dataclass(frozen=True)
class Capability:
    """What bnuq can do: the paths of its files in the package and in the tests, and what other files call it."""

    name: str
    package: Sequence[str]
    tests: Sequence[str]
    names: str | None = None


@dataclass(frozen=True)
class Price:
    """The lines of a capability in the package and in the tests, and how many files of others know of it; None for the
    core, which all know."""

    package: int
    tests: int
    known: int | None


def capabilities() -> list[Capability]:
    """Those of docs/capabilities.toml."""
    return [Capability(name, **table) for name, table in _tables().items() if name != "most"]


def limits() -> dict[str, int]:
    """The lines that the package and the tests may have."""
    return dict(_tables()["most"])


def _tables() -> dict[str, Any]:
    return tomllib.loads((ROOT / "docs" / "capabilities.toml").read_text(encoding="utf-8"))


def owner(file: Path, paths: dict[str, str]) -> str | None:
    """The capability of a file: that of the longest of the `paths` that leads to it; None without any."""
    parts = file.with_suffix("").parts
    ends = range(len(parts), 0, -1)
    return next((paths[path] for end in ends if (path := "/".join(parts[:end])) in paths), None)


def prices() -> dict[str, Price]:
    """The price of each capability, the most expensive first."""
    package, offers = sources(ROOT / "bnuq"), capabilities()
    owners = {path: offer.name for offer in offers for path in offer.package}
    test_owners = {path: offer.name for offer in offers for path in offer.tests}
    lines, test_lines = Counter[str | None](), Counter[str | None]()
    for source in package:
        lines[owner(source.path, owners)] += source.lines
    for source in sources(ROOT / "tests"):
        test_lines[owner(source.path, test_owners)] += source.lines
    known = {
        offer.name: sum(
            owner(source.path, owners) != offer.name and bool(re.search(offer.names, source.code)) for source in package
        )
        for offer in offers
        if offer.names is not None
    }
    listed = {offer.name: Price(lines[offer.name], test_lines[offer.name], known.get(offer.name)) for offer in offers}
    return dict(sorted(listed.items(), key=lambda item: -item[1].package - item[1].tests))


def price_list(listed: dict[str, Price]) -> str:
    """The table of ARCHITECTURE.md."""
    rows = (
        f"| {name} | {price.package} | {price.tests} | {'–' if price.known is None else price.known} |"
        for name, price in listed.items()
    )
    return "\n".join(("| capability | package | tests | files of others that name it |", "|---|---:|---:|---:|", *rows))


def written_prices(page: str) -> dict[str, Price]:
    """The price list that a page has between its markers."""
    table = _PRICES.search(page)
    assert table is not None, "the page has no markers for prices"
    return {
        name: Price(int(package), int(tests), None if known == "–" else int(known))
        for name, package, tests, known in _ROW.findall(table[0])
    }


def imports(package: Sequence[Source]) -> dict[str, int]:
    """How many modules of bnuq each file imports, at its top or later; names of a package count as one module.
    `bnuq.frozen` and `bnuq.shapes` do not count, as what they stand for would not: `dataclasses`, jaxtyping."""
    known = {source.module for source in package} - {"bnuq.frozen", "bnuq.shapes"}
    counts = {}
    for source in package:
        modules = set()
        for node in source.nodes:
            if isinstance(node, ast.Import):
                modules |= known.intersection(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                modules |= names & known
                modules |= {node.module} if names - known else set()
        counts[source.path.as_posix()] = len(modules)
    return counts


def complexities(package: Sequence[Source]) -> dict[str, int]:
    """The cyclomatic complexity of each function and method, as radon counts it: with the functions inside it."""
    from radon.complexity import cc_visit

    return {
        f"{source.path.as_posix()}:{block.fullname}": block.complexity
        for source in package
        for block in cc_visit(source.text)
        if block.letter in "FM"
    }


def _above(counts: dict[str, int], limit: int) -> str:
    listed = [f"{name} {count}" for name, count in counts.items() if count > limit]
    return f"{len(listed)} ({', '.join(listed)})" if listed else "0"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def _repeated(names: Counter[str]) -> str:
    repeated = sorted(((count, name) for name, count in names.items() if count > 1), reverse=True)
    most = ", ".join(f"{name} × {count}" for count, name in repeated[:4])
    return f"{len(repeated)} ({most})" if repeated else "0"


def _used_once(package: Sequence[Source]) -> int:
    """The lines of code of functions with a name that starts with one underscore and is used in one place."""
    uses = Counter[str]()
    for source in package:
        for node in source.nodes:
            if isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, ast.alias):
                uses[node.name] += 1
    lines = 0
    for source in package:
        for function in source.functions:
            is_private = function.name.startswith("_") and not function.name.startswith("__")
            if is_private and uses[function.name] == 1:
                lines += len(source.code_lines.intersection(_lines_of(function)))
    return lines


def _naming(package: Sequence[Source], names: Sequence[str]) -> str:
    """In how many files each name is a string literal: all together, and those of most files."""
    files = {name: sum(name in source.literals for source in package) for name in names}
    several = sum(any(name in source.literals for name in names) for source in package)
    most = ", ".join(f"{name} {count}" for name, count in sorted(files.items(), key=lambda item: -item[1]))
    return f"{several} ({most})"


def packages(package: Sequence[Source]) -> str:
    """Which packages import which: how many files of the one import the other."""
    arrows = Counter[tuple[str, str]]()
    for source in package:
        modules = {node.module for node in source.nodes if isinstance(node, ast.ImportFrom) and node.module}
        imported = {module.split(".")[1] for module in modules if module.startswith("bnuq.")}
        arrows.update((source.path.parts[0], other) for other in imported if len(source.path.parts) > 1)
    into: dict[str, list[str]] = {}
    for (one, other), files in arrows.most_common():
        if one != other:
            into.setdefault(one, []).append(f"{other} {files}")
    return "; ".join(f"{one} → {', '.join(others)}" for one, others in sorted(into.items()))


def arguments(package: Sequence[Source]) -> str:
    """The five types of bnuq's own that most functions take."""
    own = {node.name for source in package for node in source.nodes if isinstance(node, ast.ClassDef)}
    taken = Counter[str]()
    for source in package:
        for function in source.functions:
            given = (each.annotation for each in (*function.args.args, *function.args.kwonlyargs) if each.annotation)
            taken.update({name for each in given for name in re.findall(r"\w+", ast.unparse(each))} & own)
    return ", ".join(f"{name} {count}" for name, count in taken.most_common(5))


def measures(root: Path) -> Iterator[tuple[str, str]]:
    """Every measure of the code below a folder, with its name."""
    package, tests = sources(root / "bnuq"), sources(root / "tests")
    lines = sum(source.lines for source in package)
    code_lines = sum(len(source.code_lines) for source in package)
    yield "lines of the package (files)", f"{lines} ({len(package)})"
    yield "lines of the tests (files)", f"{sum(source.lines for source in tests)} ({len(tests)})"
    yield "lines of code: with a token that is neither comment nor docstring", str(code_lines)
    functions = sum(len(source.functions) for source in package)
    yield "functions per 1,000 lines of code", f"{1000 * functions / code_lines:.0f}"
    yield "private functions used once, share of lines of code", _percent(_used_once(package), code_lines)
    ranked = sorted(imports(package).values())
    yield "imported modules of bnuq a file, p90 / max", f"{ranked[int(0.9 * len(ranked))]} / {ranked[-1]}"
    yield f"files that import more than {MOST_IMPORTS}", _above(imports(package), MOST_IMPORTS)
    yield "complexity of a function, max", str(max(complexities(package).values()))
    yield f"functions of a complexity above {MOST_COMPLEX}", _above(complexities(package), MOST_COMPLEX)
    yield "packages, and how many of their files import which", packages(package)
    yield "arguments that most functions take", arguments(package)
    for pattern in MAINTAINED:
        indices = [(source.maintainability, source) for source in package if source.path.match(pattern)]
        index, source = min(indices, key=lambda pair: pair[0])
        yield f"maintainability of {pattern}, lowest", f"{index:.1f} ({source.path.name}, {source.lines} lines)"
    yield "lines with comments, share of all lines", _percent(sum(source.comment_lines for source in package), lines)
    classes = Counter(node.name for source in package for node in source.nodes if isinstance(node, ast.ClassDef))
    yield "class names that occur more than once", _repeated(classes)
    files = Counter(source.path.name for source in package if source.path.name != "__init__.py")
    yield "file names that occur more than once", _repeated(files)
    yield (
        "files with a literal that names a method (each method)",
        _naming(package, [str(method) for method in METHODS]),
    )
    yield "files with a literal that names a task (each task)", _naming(package, sorted({task.name for task in TASKS}))
    yield "files with a literal that names a perturbation (each)", _naming(package, tuple(KINDS))


def main(arguments: Sequence[str]) -> None:
    """Print the measures; without a folder, also write the price list."""
    root = Path(arguments[0]).resolve() if arguments else ROOT
    for name, value in measures(root):
        print(f"| {name} | {value} |")
    if not arguments:
        page = ROOT / "ARCHITECTURE.md"
        text, count = _PRICES.subn(
            lambda match: f"{match[1]}{price_list(prices())}{match[2]}", page.read_text(encoding="utf-8")
        )
        assert count == 1, f"{page} has no markers for prices"
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
