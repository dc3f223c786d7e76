"""Arrays in annotations, with their dtype and axes: Float[np.ndarray, "draw channel"].

The types are jaxtyping's for type checkers, and where it is imported before bnuq, as the tests do: they hold functions
to their shapes. It takes as long to import as a small result to be read, for hooks that bnuq does not use. Without it
the types here tell numpy's arrays apart in the same way, by their dtype and the number and size of their axes.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

__all__ = [
    "Bool",
    "Float",
    "Float16",
    "Float32",
    "Float64",
    "Int8",
    "Int16",
    "Int64",
    "Integer",
    "Num",
    "Shaped",
    "UInt8",
    "UInt16",
    "UInt64",
]

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import (
        Bool,
        Float,
        Float16,
        Float32,
        Float64,
        Int8,
        Int16,
        Int64,
        Integer,
        Num,
        Shaped,
        UInt8,
        UInt16,
        UInt64,
    )
else:

    class _ArrayType(type):
        """The type of arrays of one of these dtypes, or of any; a text has the names or sizes of the axes, and `*` or
        `...` where there may be several."""

        dim_str: str
        array: Any
        dtypes: frozenset[str]

        def __instancecheck__(cls, value: object) -> bool:
            if not hasattr(value, "dtype") or not (cls.array is Any or isinstance(value, cls.array)):
                return False
            if cls.dtypes and value.dtype.name not in cls.dtypes:
                return False
            axes, shape = cls.dim_str.split(), value.shape
            several = next((at for at, axis in enumerate(axes) if axis.startswith(("*", "..."))), None)
            if several is not None:  # any number of axes there
                after = len(axes) - several - 1
                axes, shape = axes[:several] + axes[several + 1 :], shape[:several] + shape[len(shape) - after :]
            fits = len(axes) == len(shape) and value.ndim >= len(axes)
            return fits and all(not axis.isdigit() or int(axis) == size for axis, size in zip(axes, shape, strict=True))

    class _Kind:
        def __init__(self, name: str, *dtypes: str) -> None:
            self._name, self._dtypes = name, frozenset(dtypes)
            self._of = cache(self._made)

        def __getitem__(self, item: tuple[Any, str]) -> type:
            return self._of(*item)

        def _made(self, array: Any, axes: str) -> type:
            name = f"{self._name}[{getattr(array, '__name__', array)}, '{axes.strip()}']"
            return _ArrayType(name, (), {"dim_str": axes.strip(), "array": array, "dtypes": self._dtypes})

    _FLOATS = ("float16", "float32", "float64")
    _INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
    Bool, Shaped = _Kind("Bool", "bool"), _Kind("Shaped")
    Float, Integer = _Kind("Float", "bfloat16", *_FLOATS), _Kind("Integer", *_INTEGERS)
    Num = _Kind("Num", "bfloat16", "complex64", "complex128", *_FLOATS, *_INTEGERS)
    Float16, Float32, Float64 = (_Kind(name.capitalize(), name) for name in _FLOATS)
    Int8, Int16, Int64 = (_Kind(f"Int{bits}", f"int{bits}") for bits in (8, 16, 64))
    UInt8, UInt16, UInt64 = (_Kind(f"UInt{bits}", f"uint{bits}") for bits in (8, 16, 64))
