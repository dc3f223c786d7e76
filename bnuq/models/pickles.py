"""What a pickle requests, found out without running any of it: the code it names and the memory it needs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from bnuq.files.pickles import BoundedUnpickler
from bnuq.frozen import frozen

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
