"""Unpickling that a hostile pickle cannot make expensive: hashing of keys and memory are bounded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

_LARGEST_KEY = 100  # values in a tuple that is a key, those of tuples in it included
_DEEPEST_TUPLE = 1000  # hashing recurses in C
_COPIED = (str, bytes, bytearray, list, dict, set, frozenset)


def _with_keys_checked(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """`load`, after these entries of the stack were checked as keys."""

    def checked(unpickler: Any) -> None:
        for key in unpickler.stack[keys]:
            unpickler.check_key(key)
        load(unpickler)

    return checked


def _with_call_checked(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """`load`, after the function and the arguments on the stack were checked."""

    def checked(unpickler: Any) -> None:
        unpickler.check_call(*unpickler.stack[-2:])
        load(unpickler)

    return checked


# The Python unpickler, not the C one: a memo index of 2**32 makes the latter allocate 64 GB.
class BoundedUnpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """Takes time and memory in proportion to the pickle. Subclasses say what its classes and functions become.

    Shared references make a few hundred bytes stand for a tuple of 2**200 values, and hashing or printing it would not
    end. So a tuple may not hold more values than the pickle has bytes, a key is plain or a small tuple, and what calls
    are given to copy is bounded.
    """

    def __init__(self, stream: BinaryIO, *, encoding: str, size: int) -> None:
        super().__init__(stream, encoding=encoding)  # type: ignore[arg-type]  # "bytes" is one, too
        self._most = size
        self._copies_left = 10 * size + 10_000
        self._tuples: dict[int, tuple[int, int, tuple[Any, ...]]] = {}  # by id: values, depth, and the tuple kept alive

    def check_key(self, key: Any) -> None:
        """Raise ValueError for what is expensive to hash."""
        if type(key) is tuple:
            if self.extent(key)[0] > _LARGEST_KEY:
                raise ValueError(f"a key is a tuple of more than {_LARGEST_KEY} values")
        elif isinstance(key, frozenset | list | dict | set | bytearray):
            raise ValueError(f"a key is a {type(key).__name__}")

    def check_call(self, function: Any, arguments: Any) -> list[Any]:  # noqa: ARG002 - subclasses know it
        """What the tuple of arguments, and the tuples in it, hold.

        Raises ValueError if calls have been given the same values over and over, which they may copy.
        """
        contents, pending = [], [arguments]
        if type(arguments) is tuple:
            self._copies_left -= self.extent(arguments)[0]
        while pending and self._copies_left >= 0:
            value = pending.pop()
            if type(value) is tuple:
                pending += value
                continue
            contents.append(value)
            if isinstance(value, _COPIED):
                self._copies_left -= len(value)
        if self._copies_left < 0:
            raise ValueError("it copies the same values over and over")
        return contents

    def extent(self, value: tuple[Any, ...]) -> tuple[int, int]:
        """How many values a tuple and the tuples in it hold, and how deep they are nested."""
        if not value:
            return 0, 0
        return self._tuples[id(value)][:2]

    def _append_tuple(self, items: list[Any]) -> None:
        count, depth = len(items), 1
        for item in items:
            if type(item) is tuple:
                inner = self.extent(item)
                count, depth = count + inner[0], max(depth, 1 + inner[1])
        if count > self._most or depth > _DEEPEST_TUPLE:
            raise ValueError("it nests tuples in tuples without end")
        result = tuple(items)
        if result:
            self._tuples[id(result)] = count, depth, result
        self.append(result)  # type: ignore[attr-defined]

    def _load_tuple(self) -> None:
        self._append_tuple(self.pop_mark())  # type: ignore[attr-defined]

    def _load_last(self, count: int) -> None:
        stack = self.stack  # type: ignore[attr-defined]
        items = stack[-count:]
        if len(items) < count:
            raise IndexError("its stack is empty")
        del stack[-count:]
        self._append_tuple(items)

    def _memoize(self, index: int) -> None:
        if not 0 <= index <= self._most:
            raise ValueError(f"it numbers its objects up to {index}")
        self.memo[index] = self.stack[-1]  # type: ignore[attr-defined]

    def _load_put(self) -> None:
        self._memoize(int(self.readline()[:-1]))  # type: ignore[attr-defined]

    def _load_long_binput(self) -> None:
        self._memoize(int.from_bytes(self.read(4), "little"))  # type: ignore[attr-defined]

    def _load_bytearray8(self) -> None:
        """The one operation that makes room for what it declares before it reads; the others read what is there."""
        size = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        data = self.read(size)  # type: ignore[attr-defined]
        if len(data) < size:
            raise ValueError(f"an array of {size} bytes is declared and {len(data)} follow")
        self.append(bytearray(data))  # type: ignore[attr-defined]

    _plain: ClassVar[dict[int, Callable[[Any], None]]] = pickle._Unpickler.dispatch  # type: ignore[attr-defined]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_plain,
        pickle.TUPLE[0]: _load_tuple,
        pickle.TUPLE1[0]: lambda self: self._load_last(1),
        pickle.TUPLE2[0]: lambda self: self._load_last(2),
        pickle.TUPLE3[0]: lambda self: self._load_last(3),
        pickle.SETITEM[0]: _with_keys_checked(_plain[pickle.SETITEM[0]], slice(-2, -1)),
        pickle.SETITEMS[0]: _with_keys_checked(_plain[pickle.SETITEMS[0]], slice(None, None, 2)),
        pickle.DICT[0]: _with_keys_checked(_plain[pickle.DICT[0]], slice(None, None, 2)),
        pickle.ADDITEMS[0]: _with_keys_checked(_plain[pickle.ADDITEMS[0]], slice(None)),
        pickle.FROZENSET[0]: _with_keys_checked(_plain[pickle.FROZENSET[0]], slice(None)),
        pickle.REDUCE[0]: _with_call_checked(_plain[pickle.REDUCE[0]]),
        pickle.NEWOBJ[0]: _with_call_checked(_plain[pickle.NEWOBJ[0]]),
        pickle.BUILD[0]: _with_call_checked(_plain[pickle.BUILD[0]]),
        pickle.PUT[0]: _load_put,
        pickle.LONG_BINPUT[0]: _load_long_binput,
        pickle.BYTEARRAY8[0]: _load_bytearray8,
    }
