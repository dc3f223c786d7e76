"""What `bnuq export` refuses before anything is read or computed, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bnuq.config import Run
from bnuq.errors import RequestError
from bnuq.evaluation.request_checks import check_request
from bnuq.files.writing import check_writable
from bnuq.methods import DETERMINISTIC, METHOD_NAMES, METHODS, Method, method_named

if TYPE_CHECKING:
    from bnuq.records.evaluation import Result


_DRAWING = tuple(m for m in METHODS if m.differs_by and not m.approximates)
_EXPORTED = (*_DRAWING, method_named(DETERMINISTIC))


def check_export(
    run: Run, *, method: str | None, result: Result | None, path: Path | None = None, reading: bool = True
) -> None:
    """As `check_evaluation`, of a program, and of the `path` where it is to be."""
    if path is not None and path.suffix != ".pt2":
        raise RequestError(f"--out {path}: expected a name that ends in .pt2, a program of torch.export.")
    if path is not None:
        check_writable(path)
    _, run = exported_run(run, method, result)
    check_request(run, needs=("test",), reading=reading)


def exported_run(run: Run, method: str | None, result: Result | None) -> tuple[Method | None, Run]:
    """The method whose samples are exported, before recalibration, None where the network decides; and the request of
    these alone, on the CPU. RequestError where they cannot be."""
    base = _exported_method(method, result)
    methods = run.methods if base is None else () if base.is_single else (base.name,)
    if result is None and run.samples == "auto":
        raise RequestError("--samples auto needs labels; expected a number, or --from RESULT.")
    samples = run.samples if result is None else int(result.sampling["samples"])
    return base, replace(run, methods=methods, samples=samples, perturb=(), device="cpu")


def first_exported(methods: Sequence[Method], where: str) -> Method:
    """The first method of several samples that can be exported; RequestError where there is none."""
    exportable = next((method for method in methods if method in _DRAWING), None)
    if exportable is None:
        raise RequestError(
            f"{where}: no method of {', '.join(map(str, methods))} draws samples that can be exported. The network as "
            "it is: --method deterministic."
        )
    return exportable


def _exported_method(name: str | None, result: Result | None) -> Method | None:
    """The method whose samples are exported, before recalibration; None where the network decides. RequestError for one
    that cannot be."""
    known = (*result.methods,) if result is not None else ()
    if name is None:
        return None if result is None else first_exported([*map(method_named, known)], str(result.path))
    if name not in METHOD_NAMES or method_named(name).plain not in _EXPORTED:
        expected = ", ".join((*map(str, _EXPORTED), "each with +temperature or +vector"))
        raise RequestError(f"--method {name} cannot be exported; expected one of {expected}.")
    if result is not None and name not in known:
        raise RequestError(f"--method {name}: {result.path} has only {', '.join(known)}; expected one of these.")
    method = method_named(name)
    if result is None and method.recalibration is not None:
        raise RequestError(f"--method {name} is fitted in an evaluation. Name its result: --from RESULT.")
    return method.plain
