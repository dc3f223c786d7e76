"""A frozen class does what a frozen dataclass does."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from bnuq.frozen import frozen


def classes(decorate: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A class and one that inherits from it, with every kind of field that bnuq has."""

    @decorate
    class Base:
        number: int
        text: str = "a"
        hidden: object = field(default=None, repr=False, compare=False)
        unhashed: dict[str, int] = field(default_factory=dict, hash=False)

        @property
        def double(self) -> int:
            return 2 * self.number

    @decorate
    class Derived(Base):
        length: int = field(init=False)
        last: tuple[int, ...] = field(default=(), kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.text))

    return Base, Derived


OURS, THEIRS = classes(frozen), classes(dataclass(frozen=True))


@frozen
class Point:
    x: int
    y: int = 2


@frozen(eq=False)
class Unique:
    x: int


@pytest.mark.parametrize("kind", [0, 1])
def test_fields_defaults_and_comparison_are_those_of_a_frozen_dataclass(kind: int) -> None:
    seen = []
    for made in (OURS[kind], THEIRS[kind]):
        one, same, other = made(3), made(3, hidden=5, unhashed={}), made(3, "b", unhashed={"k": 1})
        assert is_dataclass(made) and one.double == 6
        assert one == same and hash(one) == hash(same) and one != other and one != (3, "a", {})
        assert one.unhashed == {} and one.unhashed is not same.unhashed  # each has its own
        changed = replace(one, number=4)
        seen.append([hash(one), vars(other), vars(changed), made.__match_args__])
        seen[-1] += [[(each.name, each.type, each.kw_only) for each in fields(made)]]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"number": 1, "none": 2}, {"number": 1, "length": 2}])
def test_wrong_arguments_are_refused_in_the_same_words(kind: int, arguments: dict[str, int]) -> None:
    if kind == 0 or arguments:
        said = []
        for made in (OURS[kind], THEIRS[kind]):
            for _ in range(2):  # the first object, and later ones
                with pytest.raises(TypeError) as error:
                    made(**arguments)
                said.append(str(error.value))
        assert len(set(said)) == 1


def test_no_field_can_be_set_or_deleted() -> None:
    for one in (*(made(1) for made in (*OURS, *THEIRS)), Point(1)):
        name = fields(one)[0].name
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(one, name, 2)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(one, name)


def test_objects_are_copied_and_pickled_and_one_without_equality_is_only_itself() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == copy.deepcopy(Point(1)) == Point(1, 2) == Point(y=2, x=1)
    assert len({Point(1), Point(1), Point(2)}) == 2 and repr(Point(1)) == "Point(x=1, y=2)"
    one = Unique(1)
    assert one != Unique(1) and one == one and len({one, Unique(1)}) == 2


def test_the_text_of_an_object_is_short_whatever_it_holds() -> None:
    large = Point(np.zeros((1000, 10)), {"a": Point(1), "b": [0] * 999})
    assert repr(large) == "Point(x=float64[1000, 10], y={a, b})"
    assert repr(Point([Point(1)] * 500, 1 / 3)) == "Point(x=[500 × Point], y=0.333333)"
    assert repr(Point(large, "x" * 999)) == "Point(x=Point(…), …)"
    assert repr(OURS[1](3, unhashed=dict.fromkeys("abcde", 1))).endswith(
        "text='a', unhashed={a, … 5}, length=1, last=())"
    )


def test_init_says_what_it_takes_and_stays_wrapped_where_it_was_before_the_first_object() -> None:
    class Late:
        x: int

    made = frozen(Late)
    assert made.__init__.__annotations__ == {"x": "int"}  # type: ignore[misc]
    calls, inner = [], made.__init__  # type: ignore[misc]
    made.__init__ = lambda self, *values: calls.append(values) or inner(self, *values)  # type: ignore
    assert [made(1).x, made(2).x] == [1, 2] and calls == [(1,), (2,)]
    assert str(inspect.signature(made)) == "(x)" and str(inspect.signature(Point)) == "(x, y=2)"
    assert str(inspect.signature(OURS[1])).startswith("(number, text='a', hidden=None, unhashed=")


def test_edges_are_those_of_a_frozen_dataclass() -> None:
    for decorate in (frozen, dataclass(frozen=True)):

        @decorate
        class Rows:
            size: int = 1
            rows: list[int] = field(init=False, default_factory=list)
            names: list[str] = field(default_factory=list)

            def __call__(self, row: int) -> int:
                return row

        @decorate
        class Written:
            size: int

            def __init__(self) -> None:
                object.__setattr__(self, "size", 7)

        class Further(Rows):
            pass

        assert Rows().rows == [] and Rows().rows is not Rows().rows and Written().size == 7
        assert "<factory>" in str(inspect.signature(Rows))
        assert [*inspect.signature(Rows()).parameters] == ["row"]
        further: Any = Further()
        further.more = 3
        assert further.more == 3
        del further.more
        for name in ("size", "rows"):
            with pytest.raises(FrozenInstanceError):
                setattr(further, name, 2)
