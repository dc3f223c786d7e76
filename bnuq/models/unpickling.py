"""Unpickles what torch.save wrote: tensors and plain objects alone, unless the file is trusted.

What a pickle or a zip archive of torch requests, the code it names and the memory it needs, is found out and checked
before anything in it is run or read.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import re
import sys
import types
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, Literal, NoReturn

import numpy as np
import torch

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.files.pickles import BoundedUnpickler
from bnuq.frozen import frozen
from bnuq.models.kinds import EXPECTED, listed

# Bytes an element, by the name that torch gives its storages in pickles; float8 and the like go as UntypedStorage.
_ELEMENT_SIZE = {
    **dict.fromkeys(("ComplexDoubleStorage",), 16),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# What tensors, and dicts of them, are made of; and objects that only store what they are given.
_HARMLESS = re.compile(
    r"torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout"
    r"|torch\.((cuda|sparse|storage)\.)?\w*(Storage|Tensor)|torch\.nn\.parameter\.Parameter|torch\.(Size|device)"
    r"|torch\.(b?float|u?int|qu?int|complex|bool|half|double|long)\w*"
    r"|collections\.(OrderedDict|Counter)|_codecs\.encode|builtins\.(set|bytearray|complex)"
    r"|argparse\.Namespace|types\.SimpleNamespace|pathlib(\._local)?\.(Pure)?(Posix|Windows)?Path"
    r"|datetime\.(datetime|date|time|timedelta|timezone)|numpy\.(dtype|ndarray|_?core\.multiarray\.(scalar|_reconstruct))"
)
_TENSOR_CLASS = re.compile(r"torch\.((cuda|sparse|storage)\.)?\w*(Storage|Tensor)")  # checkpoints name them, as types
_MOST_TEXT = 2**26  # bytes of the code of a TorchScript archive, its only compressed members
_PROGRAMS = re.compile(r"(?:.+/)?(?:models/[^/]+\.json|serialized_exported_program\.json|serialized_state_dict\.pt)")
_MARKED = re.compile(r"(?:.+/)?(?:archive_format|data/aotinductor/.+)")


@frozen
class PickleSurvey:
    """`named` are the functions and classes that a pickle names, `storages` the bytes that each storage needs."""

    named: tuple[str, ...]
    storages: Mapping[str, int]
    keys: tuple[str, ...]  # of the outermost dict, where it is one and they are text

    @property
    def code(self) -> tuple[str, ...]:
        """What is named beyond that which tensors are made of."""
        return tuple(name for name in self.named if not _HARMLESS.fullmatch(name))


def survey_pickle(data: bytes) -> PickleSurvey:
    """What the pickle in `data` requests.

    Raises whatever a damaged pickle makes the parser raise, and ValueError for one that torch could not load in time
    and memory proportional to its size.
    """
    return _survey(_InertUnpickler(io.BytesIO(data), size=len(data)))


def survey_legacy(stream: BinaryIO, *, size: int) -> PickleSurvey | None:
    """What a file that torch wrote before it used zip requests; None where the pickle is not one of torch's.

    Raises ValueError where the storages do not fit into the file's `size` bytes, or are not those that follow.
    """
    if _InertUnpickler(stream, size=size).load() != _LEGACY_MAGIC:
        return None
    _InertUnpickler(stream, size=size).load()  # protocol version
    _InertUnpickler(stream, size=size).load()  # sizes of the writing machine's integers
    survey = _survey(_InertUnpickler(stream, size=size))
    following = _InertUnpickler(stream, size=size).load()
    if {str(key) for key in following if isinstance(key, int | str)} != set(survey.storages):
        raise ValueError("its list of storages is not the one that its tensors use")
    expected = sum(survey.storages.values()) + 8 * len(following)
    if expected > size - stream.tell():
        raise ValueError(f"its tensors need {expected} bytes and {size - stream.tell()} follow")
    return survey


class _Inert(dict[Any, Any]):
    """Stands for every object that a pickle would make: takes anything, does nothing. One serves a whole class."""

    asks = ""

    def __new__(cls, *_args: object, **_kwargs: object) -> _Inert:
        kind = cls if isinstance(cls, type) else _Inert  # of an object, too
        if "alone" not in kind.__dict__:
            kind.alone = dict.__new__(kind)  # type: ignore[attr-defined]
        return kind.alone  # type: ignore[attr-defined]

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def __call__(self, *_args: object, **_kwargs: object) -> _Inert:
        return _Inert()

    def __setstate__(self, _state: object) -> None: ...

    def append(self, _item: object) -> None: ...

    def extend(self, _items: object) -> None: ...

    def add(self, _item: object) -> None: ...

    def __setitem__(self, _key: object, _value: object) -> None: ...

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be a key, or in a set


class _InertUnpickler(BoundedUnpickler):
    def __init__(self, stream: BinaryIO, *, size: int) -> None:
        super().__init__(stream, encoding="latin1", size=size)
        self.named: dict[str, type[_Inert]] = {}
        self.storages: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> type[_Inert]:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full not in self.named:
            self.named[full] = type("_Inert", (_Inert,), {"asks": full})
        return self.named[full]

    def persistent_load(self, pid: Any) -> _Inert:
        kind = pid[0] if isinstance(pid, tuple) and pid else None
        if kind in ("module", b"module"):  # of a pickled network: its class, with its source
            return _Inert()
        if kind not in ("storage", b"storage") or len(pid) < 5:
            raise ValueError("it refers to something outside that is not a storage")
        _, kind, key, location, count, *_ = pid
        if not isinstance(key, int | str):  # of nested tuples, the text alone may not end
            raise ValueError(f"the name of a storage is a {type(key).__name__}")
        if not isinstance(location, str | bytes):
            raise ValueError(f"storage {key} lies on a {type(location).__name__}")
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"storage {key} has a {type(count).__name__} for the number of its elements, or < 0")
        size = count * _ELEMENT_SIZE.get(str(getattr(kind, "asks", "")).rpartition(".")[2], 1)
        self.storages[str(key)] = max(size, self.storages.get(str(key), 0))
        return _Inert()

    def check_call(self, function: Any, arguments: Any) -> list[Any]:
        """Also raise ValueError where a call that torch makes to build tensors takes memory for a mere number."""
        values = super().check_call(function, arguments)
        name = getattr(function, "asks", "")
        if not _HARMLESS.fullmatch(name) or name.startswith("numpy."):  # whose stand-ins hash and copy nothing
            return values
        if name.startswith("pathlib.") and not all(isinstance(value, str) for value in values):
            raise ValueError("it makes a path from non-text")  # of paths, it doubles each time
        if _TENSOR_CLASS.fullmatch(name):
            raise ValueError(f"it calls {name}, which makes a tensor without data")
        for value in values:
            if name == "builtins.bytearray" and isinstance(value, int):
                raise ValueError("it makes an array of bytes without data")
            if isinstance(value, list):  # it may become a set, or a dict
                for item in value:
                    for key in item[:1] if isinstance(item, list) else (item,):
                        self.check_key(key)
        return values


def _survey(unpickler: _InertUnpickler) -> PickleSurvey:
    top = unpickler.load()
    keys = tuple(key for key in top if isinstance(key, str)) if isinstance(top, dict) else ()
    return PickleSurvey(tuple(unpickler.named), unpickler.storages, keys)


@frozen
class Archive:
    """A zip archive whose members are within bounds and match their checksums. `root` is the folder of the first."""

    path: Path
    root: str
    content: zipfile.ZipFile
    sizes: Mapping[str, int]

    @cached_property
    def form(self) -> Literal["TorchScript", "exported program", "checkpoint"]:
        """What torch wrote, by the names of the members."""
        if any(_PROGRAMS.fullmatch(name) or _MARKED.fullmatch(name) for name in self.sizes):
            return "exported program"
        return "TorchScript" if is_torchscript(self.sizes, self.root) else "checkpoint"

    def survey(self) -> PickleSurvey:
        """What the pickle of a checkpoint requests; ModelError for storages that are shorter than it says."""
        survey = survey_pickle(self.content.read(f"{self.root}/data.pkl"))
        sizes = {key: self.sizes.get(f"{self.root}/data/{key}", 0) for key in survey.storages}
        check_storages(self.path, survey, sizes)
        return survey


def is_torchscript(names: Collection[str], root: str) -> bool:
    """Whether an archive with members of these names is TorchScript, saved by `torch.jit.save`."""
    return f"{root}/constants.pkl" in names or any(name.startswith(f"{root}/code/") for name in names)


def check_storages(path: Path, survey: PickleSurvey, available: Mapping[str, int]) -> None:
    """Raise ModelError where a storage has fewer bytes `available` than it needs."""
    for key, needed in survey.storages.items():
        if needed > available[key]:
            raise ModelError(
                f"{path}: storage {key} needs {needed} bytes and has {available[key]}: the file is damaged or forged. "
                f"Fetch or write it again."
            )


def opened(path: Path, data: bytes) -> Archive:
    """The archive in `data`; ModelError where it unpacks to more than torch writes, lists a member twice, names a place
    outside of it, or is damaged."""
    content = zipfile.ZipFile(io.BytesIO(data))
    members = content.infolist()
    root = members[0].filename.partition("/")[0] if members else ""
    archive = Archive(path, root, content, {member.filename: member.file_size for member in members})
    if outside := [name for name in archive.sizes if ".." in name.split("/") or name.startswith("/") or "\\" in name]:
        raise ModelError(f"{path}: lists the member {outside[0]!r}, which lies outside of it: it is hostile.")
    code = f"{root}/code/" if archive.form == "TorchScript" else None
    text = sum(member.file_size for member in members if code and member.filename.startswith(code))
    declared = sum(member.file_size for member in members) - text
    if declared > len(data) or text > _MOST_TEXT:
        raise ModelError(
            f"{path}: its members unpack to {declared + text} bytes, the file has {len(data)}. torch stores weights "
            f"uncompressed, so this file was changed or made to exhaust memory. Save it again with torch."
        )
    if len({name if code else name.casefold() for name in archive.sizes}) < len(members):
        raise ModelError(f"{path}: lists a member twice, as torch never does. Save it again with torch.")
    if (broken := content.testzip()) is not None:
        raise ModelError(
            f"{path}: {broken} does not match its checksum (CRC-32): the file is damaged. Fetch or write it again."
        )
    return archive


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
                with _as_main(main() if main and _of_main(survey) else None):
                    return _run(path, data, _of_main(survey))
            if survey.code:
                _refuse_to_run(path, survey, refusal)
            raise


def _refuse_to_run(path: Path, survey: PickleSurvey, refusal: Exception) -> NoReturn:
    lightning = " It is a Lightning checkpoint: these are in its hyper-parameters or callbacks." * (
        "pytorch-lightning_version" in survey.keys
    )
    script = f" --arch FILE.py:{names[0]} (the file that defines it)" if (names := _of_main(survey)) else ""
    raise UntrustedCodeError(
        f"{path}: holds more than weights: to load it, {listed(survey.code, order=False)} would have to run. "
        f"Nothing was run.{lightning} Save the weights alone (torch.save(model.state_dict(), …)) or, if you trust "
        f"whoever made the file, add --trust-pickle{script} (in Python: trust_pickle=True)."
    ) from refusal


def _of_main(survey: PickleSurvey) -> list[str]:
    """The names in the pickle that the script which wrote it defined."""
    return [name.removeprefix("__main__.") for name in survey.code if name.startswith("__main__.")]


@contextlib.contextmanager
def _as_main(module: types.ModuleType | None) -> Iterator[None]:
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module or before
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _run(path: Path, data: bytes, of_main: Sequence[str]) -> Any:
    """Unpickle for real, with the folder of the file importable: a pickled network names its class, not its code."""
    folders = [str(path.resolve().parent), str(Path.cwd())]
    sys.path.extend(folders)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        remedy = "put the file that defines it beside the checkpoint, or save the state dict and name --arch"
        if of_main and "__main__" in str(error):
            remedy = (
                f"{of_main[0]} was defined in the script that saved it. Name the file that defines it: --arch "
                f"FILE.py:{of_main[0]} --trust-pickle; or save the weights alone, torch.save(model.state_dict(), …)"
            )
        raise ModelError(
            f"{path}: needs code that is not here: {error}. A pickled network is found by the name of its class; "
            f"{remedy}."
        ) from error
    finally:
        for folder in folders:
            sys.path.reverse()
            sys.path.remove(folder)
            sys.path.reverse()
