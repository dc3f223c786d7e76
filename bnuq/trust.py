"""Decides which code may run: finds, allows or refuses, and loads the factories that a user or a file names.

Code that the user names runs. Code that only a file names (a run file found beside a checkpoint, a result file) runs
only with `--trust-code`. That is remembered by the SHA-256 of the naming file and of every code file: the named one,
and those that it imports from its folder. Installed packages are trusted.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from bnuq.errors import RequestError, ResultError, UntrustedCodeError
from bnuq.files.content import is_file, sha256_of_file
from bnuq.files.folders import config_folder, expanded
from bnuq.files.references import without_arguments
from bnuq.files.writing import write_bytes
from bnuq.frozen import frozen
from bnuq.user_code import user_code


@frozen
class NamedBy:
    """Who named a piece of code: a `file` that the user did not name, or the user, if `file` is None. `sha256` is that
    of a file that is yet to be written."""

    file: Path | None = None
    sha256: str | None = None


BY_USER = NamedBy()


def resolve_factory(
    spec: str, *, base: Path, named_by: NamedBy = BY_USER, trust: bool = False, objects: bool = False
) -> Callable[..., Any]:
    """The function that `spec` names: `file.py:factory`, relative to `base`, or `package.module:factory`. Where it may
    name `objects` too, one that cannot be called is what the function returns.

    The folder of its file is importable only while it is loaded or called: two checkpoints may each have their own
    `layers.py`. An exception in it becomes one RequestError that says where it was raised. With `trust`, code that a
    file names is run and remembered.

    Raises UntrustedCodeError, before anything runs, for code that the user did not name; RequestError for an invalid
    spec, and for a file, a module or a function that does not exist.
    """
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise RequestError(f"{spec!r} names no code; expected file.py:function or package.module:function.")
    allow = functools.partial(_allow, spec, named_by=named_by, trust=trust)
    if not names_a_file(spec):
        finder = None if named_by.file is None else _TrustFinder(base, allow)
        return _from_module(spec, place, function, base, allow, finder, objects)
    path, source = source_of(spec, base)
    allow(hashlib.sha256(source).hexdigest(), str(path))
    finder = None if named_by.file is None else _TrustFinder(path.parent, allow)
    return _from_source(spec, path, source, function, finder, objects)


def source_of(spec: str, base: Path) -> tuple[Path, bytes]:
    """The path of the file that `file.py:function` names, and its content; RequestError where it cannot be read."""
    path = (base / expanded(spec.rpartition(":")[0])).resolve()
    try:
        return path, path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        cause = getattr(error, "strerror", None) or str(error)
        cause = "there is no such file" if isinstance(error, FileNotFoundError) else cause
        raise RequestError(f"{spec}: cannot read {path}: {cause}. Check the path.") from error


def code_of(spec: str, base: Path) -> list[str]:
    """SHA-256 of each file of code that `spec` stands for: the file or the module that it names, and all that these
    import, also within functions, from outside the environment's packages; nothing is run."""
    place = without_arguments(spec)[0].rpartition(":")[0]
    path = (base / expanded(place)).resolve() if names_a_file(spec) else None
    files: set[Path] = set()
    with _on_path(base if path is None else path.parent):
        waiting = [*_modules_of(place)] if path is None else [("", path)]
        while waiting:
            name, file = waiting.pop()
            if file not in files and is_file(file):
                files.add(file)
                waiting += (module for imported in _imports_of(file, name) for module in _modules_of(imported))
    return sorted(map(sha256_of_file, files))


def _imports_of(path: Path, name: str) -> Iterator[str]:
    """The names of all modules, and of what may be one, that the file of the module of this name imports."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    try:
        nodes = [*ast.walk(ast.parse(path.read_bytes()))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # or a compiled module
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}".lstrip(".") for alias in node.names)


def _modules_of(name: str) -> Iterator[tuple[str, Path]]:
    """A module, and the packages that it is in, each with its file; nothing of the environment's packages."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1 if parts[0] != "bnuq" else 1):  # whose version stands for it
        module_spec = _module_spec(".".join(parts[:depth]))
        if module_spec is None:
            return
        if module_spec.has_location and module_spec.origin:
            file = Path(module_spec.origin).resolve()
            if _is_installed(file.parents[depth - 1 + (file.stem == "__init__")]):
                return
            yield module_spec.name, file


@functools.cache
def _is_installed(folder: Path) -> bool:
    """Whether packages were installed into this folder, or it is Python's own."""
    paths = sysconfig.get_paths()
    own = {*(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    own |= {str(Path(paths["platstdlib"]) / "lib-dynload"), site.getusersitepackages()}
    return folder in map(Path.resolve, map(Path, own)) or next(folder.glob("*.dist-info"), None) is not None


def names_a_file(spec: str) -> bool:
    """Whether `spec` is of the form `file.py:function`, with arguments or without."""
    return without_arguments(spec)[0].rpartition(":")[0].lower().endswith(".py")


def running(spec: str, action: str, path: Path | None = None) -> contextlib.AbstractContextManager[None]:
    """Guards an `action` on the code that `spec` names, see `user_code`."""

    def advice(message: str) -> str:
        if "missing" in message and "argument" in message and "(" not in spec:
            return f"Fix the code, name another function, or give arguments: {spec}(…), with quotes around all of it."
        return "Fix the code, or name another function."

    return user_code(f"{spec}: {action} failed with", advice=advice, file=path)


def _from_source(
    spec: str, path: Path, source: bytes, function: str, finder: MetaPathFinder | None, objects: bool
) -> Callable[..., Any]:
    # Compiled from the bytes that were hashed: a loader might use an outdated __pycache__ that was never checked.
    name = f"bnuq_code_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    importable = functools.partial(_importable, path.parent, {}, finder)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up while the class is made
    try:
        with running(spec, "loading it", path), importable():
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        factory = _function_of(module, function, f"{path}", objects)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return _guarded(factory, spec, path, importable)


def _from_module(
    spec: str,
    name: str,
    function: str,
    base: Path,
    allow: Callable[[str | None, str], None],
    finder: MetaPathFinder | None,
    objects: bool,
) -> Callable[..., Any]:
    importable = functools.partial(_importable, base, {}, finder) if finder else functools.partial(_on_path, base)
    with importable():
        module_spec = _module_spec(name)
        if module_spec is None:
            raise RequestError(
                f"{spec}: there is no module {name!r} in this environment. "
                "Install it, or name a file as file.py:function."
            )
        origin = Path(module_spec.origin) if module_spec.has_location and module_spec.origin else None
        allow(sha256_of_file(origin) if origin else None, str(origin or name))
        known = set(sys.modules)
        try:
            with running(spec, "importing it", origin):
                module = importlib.import_module(name)
        except BaseException:
            top = name.partition(".")[0]
            for loaded in set(sys.modules) - known:
                if loaded.partition(".")[0] == top:
                    del sys.modules[loaded]
            raise
    factory = _function_of(module, function, name, objects)
    return _guarded(factory, spec, origin, importable)


def _module_spec(name: str) -> ModuleSpec | None:
    """The spec of a module, found without running its parents, unlike `importlib.util.find_spec`."""
    top, *submodules = name.split(".")
    try:
        module_spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for depth, _ in enumerate(submodules, start=2):
        if module_spec is None or module_spec.submodule_search_locations is None:
            return None
        module_spec = PathFinder.find_spec(".".join([top, *submodules][:depth]), module_spec.submodule_search_locations)
    return module_spec


def _function_of(module: ModuleType, function: str, where: str, objects: bool) -> Callable[..., Any]:
    factory = getattr(module, function, None)
    if callable(factory):
        return factory
    if objects and factory is not None:
        return lambda: factory
    public = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    defined = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    available = ", ".join(sorted(defined or public)[:20]) or "no functions at all"
    raise RequestError(f"{where} has no function {function!r}; it has {available}.")


def _guarded(
    factory: Callable[..., Any],
    spec: str,
    path: Path | None,
    importable: Callable[[], contextlib.AbstractContextManager[None]],
) -> Callable[..., Any]:
    @functools.wraps(factory, updated=())
    def guarded(*args: object, **kwargs: object) -> Any:
        with running(spec, "calling it", path), importable():
            return factory(*args, **kwargs)

    return guarded


class _TrustFinder(MetaPathFinder):
    """Finds modules imported from `folder`, checks that they may run, and compiles the bytes that were hashed."""

    def __init__(self, folder: Path, allow: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._allow = allow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, inner = fullname.partition(".")
        if inner and not _lies_in(sys.modules.get(top), self._folder):
            return None
        module_spec = PathFinder.find_spec(fullname, path if inner else [str(self._folder)], target)
        if module_spec is None or not module_spec.has_location or module_spec.origin is None:
            return None
        content = Path(module_spec.origin).read_bytes()
        self._allow(hashlib.sha256(content).hexdigest(), module_spec.origin)
        if isinstance(module_spec.loader, SourceFileLoader):
            module_spec.loader = _FromBytes(fullname, module_spec.origin, content)
        return module_spec


class _FromBytes(SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the bytes were read for this one
        return compile(self._source, self.path, "exec", dont_inherit=True)


@contextlib.contextmanager
def _importable(folder: Path, siblings: dict[str, ModuleType], finder: MetaPathFinder | None) -> Iterator[None]:
    """Make `folder` importable inside the block; `siblings` caches modules from it between blocks."""
    known = set(sys.modules)
    sys.modules.update(siblings)
    if finder is not None:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    try:
        with _on_path(folder):
            yield
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        added = sys.modules.keys() - known
        tops = {name.partition(".")[0] for name in added} - known
        local_modules = {top for top in tops if _lies_in(sys.modules.get(top), folder)}
        for name in added:
            if name.partition(".")[0] in local_modules:
                siblings[name] = sys.modules.pop(name)


def _lies_in(module: ModuleType | None, folder: Path) -> bool:
    """Whether the module is directly in `folder`; a virtual environment inside it is not the project's code."""
    if module is None:
        return False
    name = module.__name__
    file = getattr(module, "__file__", None)
    places = [Path(file)] if file else [Path(place) for place in getattr(module, "__path__", ())]
    return any(place in (folder / f"{name}.py", folder / name / "__init__.py", folder / name) for place in places)


@contextlib.contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _allow(spec: str, digest: str | None, where: str, *, named_by: NamedBy, trust: bool) -> None:
    if named_by.file is None:
        return
    naming = named_by.sha256 or sha256_of_file(named_by.file)
    if trust:
        if digest is not None:
            _remember(naming, digest, f"{named_by.file}: {spec}")
        return
    if digest is None or (naming, digest) not in _trusted():
        raise UntrustedCodeError(
            f"{named_by.file} names code that you did not name: {spec.rpartition(':')[2]} in {where}. "
            "Nothing was run. Read it, and what it imports from its folder; to run it, use --trust-code once (it is "
            "remembered until one of these files changes)."
        )


def _trusted() -> dict[tuple[str, str], str]:
    """The code that was trusted before; none where the list cannot be read."""
    try:
        entries = json.loads(_list_of_trusted().read_bytes())["trusted"]
        return {(entry["named_by"], entry["code"]): entry["what"] for entry in entries}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _remember(naming: str, code: str, description: str) -> None:
    trusted = _trusted() | {(naming, code): description}
    entries = [{"named_by": n, "code": c, "what": w} for (n, c), w in trusted.items()]
    with contextlib.suppress(OSError, ResultError):
        _list_of_trusted().parent.mkdir(parents=True, exist_ok=True)
        write_bytes(_list_of_trusted(), json.dumps({"trusted": entries}, indent=1).encode(), named=False)


def _list_of_trusted() -> Path:
    return config_folder() / "trusted.json"
