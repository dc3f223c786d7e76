"""`frozen`: frozen dataclasses that are quickly made.

`dataclass(frozen=True)` compiles six methods of each class, which takes about a millisecond; a command imports a
hundred to three hundred classes, of many of which it makes no object. Here all classes share five of the methods, and
`__init__` is compiled with the first object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)


@overload
def frozen(cls: Class) -> Class: ...
@overload
def frozen(*, eq: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, *, eq: bool = True) -> Any:
    """`cls` as `dataclass(frozen=True, eq=eq)` makes it; `fields`, `replace` and `is_dataclass` know it as one. Its
    repr is short, whatever it holds."""
    if cls is None:
        return partial(_made, eq=eq)
    return _made(cls, eq=eq)


def _made(cls: Any, *, eq: bool) -> Any:
    cls.__doc__ = cls.__doc__ or cls.__name__  # which dataclass() would take from a signature
    dataclass(init=False, repr=False, eq=False)(cls)  # the fields alone: nothing is compiled
    own = vars(cls)
    if "__init__" not in own:
        cls.__init__, cls.__signature__ = _first_init(cls), _Signature()
    cls.__setattr__, cls.__delattr__ = _refuse, _refuse
    if "__repr__" not in own:
        cls.__repr__ = _repr
    if eq and "__eq__" not in own:
        cls.__eq__ = _eq
    if eq and own.get("__hash__") is None:  # as it is too where the class has an __eq__ of its own
        cls.__hash__ = _hash
    return cls


def _first_init(cls: Any) -> Callable[..., None]:
    made = cache(lambda: _compiled_init(cls))

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if cls.__init__ is init:  # nobody has wrapped it
            cls.__init__ = made()
        made()(self, *args, **kwargs)

    init.__annotations__ = {each.name: each.type for each in fields(cls)}
    return init


class _Signature:
    """What `inspect.signature` says of a class, made when it is asked for."""

    def __get__(self, instance: object, cls: Any) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")  # that of a call, where its class has one

        import inspect  # late: as the class

        _, *parameters = inspect.signature(_compiled_init(cls)).parameters.values()
        return inspect.Signature(parameters)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_factory = _Factory()  # the argument of a field that makes its default


def _compiled_init(cls: Any) -> Callable[..., None]:
    """Assigns the arguments to the fields, or their defaults, and calls `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": _factory}
    places: list[str] = ["self"]
    keywords: list[str] = []
    lines: list[str] = []
    for each in fields(cls):
        name, default = each.name, ""
        if not each.init:
            if each.default_factory is not MISSING:
                names[f"_of_{name}"] = each.default_factory
                lines.append(f"_set(self, {name!r}, _of_{name}())")
            continue
        if each.default is not MISSING:
            names[f"_of_{name}"], default = each.default, f"=_of_{name}"
        elif each.default_factory is not MISSING:
            names[f"_of_{name}"], default = each.default_factory, "=_missing"
            lines.append(f"if {name} is _missing: {name} = _of_{name}()")
        (keywords if each.kw_only else places).append(name + default)
        lines.append(f"_set(self, {name!r}, {name})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = ", ".join([*places, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(lines or ["pass"]), names)
    names["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"  # in messages about missing arguments
    return names["__init__"]


@cache
def _values(cls: type, *, hashed: bool) -> Callable[[Any], tuple[Any, ...]]:
    """Gives those values of an object that are compared, or those that are hashed."""
    names = [each.name for each in fields(cls) if (each.hash if hashed and each.hash is not None else each.compare)]
    return attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)


def _eq(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = _values(self.__class__, hashed=False)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(_values(self.__class__, hashed=True)(self))


_LONGEST = 80  # signs of an object as a text: a dictionary of ten is to be read, too


def _repr(self: Any) -> str:
    """The class and the first fields; of what they hold no more than a look."""
    text = ""
    for each in fields(self):
        shown = f"{each.name}={_in_short(getattr(self, each.name))}" if each.repr else ""
        if text and len(text) + len(shown) > _LONGEST:
            text += ", …"
            break
        text += f"{text and shown and ', '}{shown}"
    return f"{self.__class__.__qualname__}({text})"


def _in_short(value: Any) -> str:
    """The value if that is short, else its kind and size."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}" if len(value) <= 3 else f"{{{next(iter(value))}, … {len(value)}}}"
    if isinstance(value, tuple | list) and (
        len(value) > 8 or not all(isinstance(each, str | int | float) for each in value)
    ):
        return f"[{len(value)} × {type(value[0]).__name__}]"
    if "__dataclass_fields__" in vars(type(value)):
        return f"{type(value).__qualname__}(…)"
    return repr(value)


def _refuse(self: Any, name: str, *value: object) -> None:
    """In place of `__setattr__` and `__delattr__`; a class that inherits without `frozen` may have other attributes."""
    if "__dataclass_fields__" in vars(type(self)) or name in type(self).__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
    (object.__setattr__ if value else object.__delattr__)(self, name, *value)
