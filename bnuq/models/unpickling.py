"""Unpickles what torch.save wrote: tensors and plain objects alone, unless the file is trusted."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

import numpy as np
import torch

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.models.archives import Archive
from bnuq.models.kinds import EXPECTED, listed
from bnuq.models.pickles import PickleSurvey, survey_legacy


def survey_of_zip(archive: Archive) -> PickleSurvey:
    """What the `data.pkl` of torch's zip requests; ModelError for a zip that no `torch.save` wrote."""
    names = archive.sizes
    if f"{archive.root}/data.pkl" not in names:
        content = "NumPy arrays (.npz)" if any(n.endswith(".npy") for n in names) else f"{listed(names) or 'nothing'}"
        raise ModelError(f"{archive.path}: is a zip archive without a data.pkl; it holds {content}; {EXPECTED}.")
    return archive.survey()


def survey_of_legacy(path: Path, data: bytes) -> PickleSurvey:
    survey = survey_legacy(io.BytesIO(data), size=len(data))
    if survey is None:
        raise ModelError(f"{path}: is a pickle, but not one that torch.save wrote, so it was not opened; {EXPECTED}.")
    return survey


# Objects of the standard library that scripts save with weights. Making one runs no code but its own, which only stores
# what it is given; paths of any system become pure ones, which cannot touch a file.
_PATHS = {"PosixPath": PurePosixPath, "PurePosixPath": PurePosixPath, "WindowsPath": PureWindowsPath,
          "PureWindowsPath": PureWindowsPath, "Path": PurePath, "PurePath": PurePath}  # fmt: skip


class _NumpyDtype:
    """Stands for the dtype of a pickled NumPy scalar."""

    _state: object = None

    def __init__(self, code: str, *_: object) -> None:
        self._code, self._order = code, "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise ValueError("it holds a NumPy scalar without a byte order")
        self._order, self._state = state[1], state

    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, (self._code, False, True), self._state

    def value(self, data: bytes) -> complex | str | bytes | None:
        """The number or text whose bytes these are; None for anything else, such as a date."""
        if not re.fullmatch(r"[biufcSU]\d{1,9}", self._code):
            return None
        dtype = np.dtype(self._order + self._code)
        if len(data) != dtype.itemsize:
            raise ValueError(f"a NumPy scalar has {len(data)} bytes; expected {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0].item()


class _NumpyArray:
    """Stands for a pickled NumPy array, such as the state of a random generator, and is pickled as that again."""

    _state: object = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), self._state

    @staticmethod
    def reconstructed(*_: object) -> _NumpyArray:
        return _NumpyArray()


_NUMPY: tuple[Any, ...] = (
    (_NumpyDtype, "numpy.dtype"),
    (_NumpyArray, "numpy.ndarray"),
    *((_NumpyDtype.value, f"numpy.{core}.multiarray.scalar") for core in ("_core", "core")),
    *((_NumpyArray.reconstructed, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
)
_PLAIN_OBJECTS: list[Any] = [
    *_NUMPY,
    argparse.Namespace,
    types.SimpleNamespace,
    *(getattr(datetime, name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
    *((kind, f"{module}.{name}") for module in ("pathlib", "pathlib._local") for name, kind in _PATHS.items()),
]


def unpickled(
    path: Path,
    data: bytes,
    survey: PickleSurvey,
    *,
    trust_pickle: bool,
    main: Callable[[], types.ModuleType] | None = None,
) -> Any:
    """What the file holds. Classes of the `__main__` that wrote it are those of `main`, where that is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated storages and pickle protocols: nothing the user can change
        try:
            with torch.serialization.safe_globals(_PLAIN_OBJECTS):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as refusal:
            if trust_pickle:
                with _as_main(main() if main and any(name.startswith("__main__.") for name in survey.code) else None):
                    return _run(path, data)
            if survey.code:
                _refuse_to_run(path, survey, refusal)
            raise


def _refuse_to_run(path: Path, survey: PickleSurvey, refusal: Exception) -> NoReturn:
    lightning = " It is a Lightning checkpoint: these are in its hyper-parameters or callbacks." * (
        "pytorch-lightning_version" in survey.keys
    )
    raise UntrustedCodeError(
        f"{path}: holds more than weights: to load it, {listed(survey.code, order=False)} would have to run. "
        f"Nothing was run.{lightning} Save the weights alone (torch.save(model.state_dict(), …)) or, if you trust "
        f"whoever made the file, add --trust-pickle (in Python: trust_pickle=True)."
    ) from refusal


@contextlib.contextmanager
def _as_main(module: types.ModuleType | None) -> Iterator[None]:
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module or before
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _run(path: Path, data: bytes) -> Any:
    """Unpickle for real, with the folder of the file importable: a pickled network names its class, not its code."""
    folders = [str(path.resolve().parent), str(Path.cwd())]
    sys.path.extend(folders)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{path}: needs code that is not here: {error}. A pickled network is found by the name of its class; "
            f"put the file that defines it beside the checkpoint, or save the state dict and name --arch."
        ) from error
    finally:
        for folder in folders:
            sys.path.reverse()
            sys.path.remove(folder)
            sys.path.reverse()
