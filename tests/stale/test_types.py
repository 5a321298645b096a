"""Objects of another type where one was captured: what was asked of them has another answer."""
from __future__ import annotations

import enum
import functools
import operator
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import call_with, check

X = torch.arange(3.0)


class Plain:
    """An object that is equal to itself alone."""


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Number(enum.IntEnum):
    TWO = 2


class Colour(enum.Enum):
    RED = 1


class Text(str):
    pass


class Empty(list):
    """A list that is false."""

    def __bool__(self) -> bool:
        return False


class Silent(str):
    def __len__(self) -> int:
        return 0


class Truth:
    def __and__(self, other: object) -> str:
        return "and"

    def __rand__(self, other: object) -> str:
        return "rand"


PLAIN = Plain()
MADE: dict[str, Callable[[], Any]] = {
    "plain": Plain, "equal": EqualToAll, "two": lambda: 2, "enum": lambda: Number.TWO, "colour": lambda: Colour.RED,
    "text": lambda: "a", "own text": lambda: Text("a"), "five": lambda: 5, "none": lambda: None, "tensor": lambda: torch.tensor(2),
    "dtype": lambda: torch.float32, "list": lambda: [2, 3], "false list": lambda: Empty([2]), "silent": lambda: Silent("a"),
    "dict": lambda: {"a": 2}, "view": lambda: {"a": 2}.keys(), "iterator": lambda: iter([2]), "error": lambda: ValueError("a"),
    "class": lambda: int, "truth": Truth, "array": lambda: np.array([2, 3]), "set": lambda: {2, 3}, "function": lambda: len,
    "bytes": lambda: b"a"}


def raised(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except TypeError as error:
        return str(error)


def matched(a: Any) -> str:
    match a:
        case Number.TWO:
            return "two"
        case Colour.RED:
            return "red"
        case _:
            return "else"


def unpacked(a: Any) -> Any:
    try:
        p, q = a
        return q, p
    except (TypeError, ValueError) as error:
        return str(error)


def merged(a: Any) -> Any:
    try:
        return {**a}
    except TypeError as error:
        return str(error)


def spread(a: Any) -> Any:
    try:
        return [*a]
    except TypeError as error:
        return str(error)


def caused(a: Any) -> Any:
    try:
        raise ValueError from a
    except ValueError as error:
        return type(error.__cause__)
    except TypeError as error:
        return str(error)


def assigned(a: Any) -> Any:
    try:
        a.spare = 1
        return a.spare
    except AttributeError as error:
        return str(error)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "==": lambda a: a == Number.TWO, "== backwards": lambda a: Number.TWO == a, "!=": lambda a: a != Colour.RED,
    "== object": lambda a: a == PLAIN, "== dtype": lambda a: a == torch.float32, "== class": lambda a: a == Plain,
    "== function": lambda a: a == len, "== tuple": lambda a: a == (2, 3), "in a tuple": lambda a: a in (Number.TWO, Colour.RED),
    "in a set": lambda a: a in {2, 7} if not isinstance(a, (list, dict, set, np.ndarray)) else None, "match": matched,
    "f-string": lambda a: f"{a}" if type(a) in (int, str, Text, Silent, bytes) else None,
    "truth": lambda a: 1 if a is None or a else 2, "vars": lambda a: raised(lambda: type(vars(a))),
    "unpacked": unpacked, "**": merged, "*": spread, "raise from": caused, "attribute": assigned,
    "&": lambda a: raised(lambda: {1, 2} & a),
    "reduce": lambda a: raised(lambda: functools.reduce(max, a)), "is a tensor": torch.is_tensor,
    "iterator": lambda a: raised(lambda: next(iter(a))), "reference": lambda a: raised(lambda: weakref.ref(a)() is a)}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_question_is_asked_of_another_type(question: str, backwards: bool) -> None:
    """In either order, so that what was captured with one object is called with each other."""
    ask = QUESTIONS[question]
    names = [name for name in (reversed(MADE) if backwards else MADE) for _ in range(2)]
    calls = [call_with(lambda state, name=name: (X, MADE[name]())) for name in [*names, *MADE]]
    check(lambda: (lambda x, a: (x + 1, ask(a))), *calls, captures=None, fullgraph=False, recompile_limit=64)


def text_of(x: torch.Tensor, a: Any) -> Any:
    return x + 1, f"{a}"


@pytest.mark.parametrize("stored", [False, True])
def test_the_text_of_a_string_is_the_string_itself(stored: bool) -> None:
    def make() -> Any:
        log: list[Any] = []

        def program(x: torch.Tensor, a: Any) -> Any:
            log.append(f"{a}")
            return x + 1
        return (program if stored else text_of), types.SimpleNamespace(log=log)
    check(make, *(call_with(lambda state, value=value: (X, value)) for value in ("a", "b", 5, Text("a"), "c", 2.5, "a")),
          captures=None)


def test_the_text_of_a_dict_says_what_it_holds_now() -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        made = dict.fromkeys(["k"], a)
        return x + 1, f"{made}", str(dict(b=a)), f"{ {1: [a]} }"
    check(lambda: program, *(call_with(lambda state, value=value: (X, value)) for value in ("a", "b", 5, "a", None)),
          captures=None)


def test_a_set_begins_anew() -> None:
    def program(x: torch.Tensor, a: set[int]) -> Any:
        a.__init__()  # type: ignore[misc]
        kept = {1}
        kept.__init__([2])  # type: ignore[misc]
        return x + 1, a, kept
    check(lambda: program, *(call_with(lambda state: (X, {1, 2})) for _ in range(3)))


def test_a_frame_has_one_dict_of_its_variables() -> None:
    def program(x: torch.Tensor) -> Any:
        before = locals()
        late = 5
        seen = "late" in before, locals() is before, "late" in before
        before["spare"] = 3
        del late
        again = vars()
        exec("made = 7")
        kept = locals().get("spare"), eval("'made' in locals() and made")       # since 3.13 each dict is one of its own
        return x + 1, seen, again is before, "late" in before, kept, sorted(before)
    check(lambda: program, call_with(lambda state: (X,)), call_with(lambda state: (X,)))


def test_what_says_how_a_list_is_sorted_is_read_first() -> None:
    def program(x: torch.Tensor, key: Any, reverse: Any) -> Any:
        try:
            return x + 1, sorted([2, 1], key=key, reverse=reverse)
        except (TypeError, OverflowError) as error:
            return str(error)
    calls = [call_with(lambda state, reverse=reverse: (X, 3, reverse)) for reverse in ([], {}, True, 1 << 80, 1 << 40, 2)]
    check(lambda: program, *calls, captures=None, fullgraph=False)


ASKED: list[str] = []


class Nosy(type):
    """A metaclass that notes who compares or hashes its classes, and says that they are equal to all."""

    def __eq__(cls, other: object) -> bool:
        ASKED.append("==")
        return True

    def __hash__(cls) -> int:
        ASKED.append("hash")
        return 2


class Watched(metaclass=Nosy):
    def __repr__(self) -> str:
        return "watched"


def test_no_class_is_compared_but_by_the_program() -> None:
    def program(x: torch.Tensor, a: Any, ask: Any) -> Any:
        ASKED.clear()
        return x + 1, raised(lambda: ask(a)), list(ASKED)
    asks = [*(question for name, question in QUESTIONS.items() if "class" not in name), lambda a: [a] == [iter([2])],
            lambda a: a < 2, lambda a: [1, 2][a], lambda a: f"{[a] == [2]}", lambda a: {a: 2}[a], lambda a: a + 2,
            lambda a: sorted(a), lambda a: a()]
    for ask in asks:
        calls = [call_with(lambda state, make=make, ask=ask: (X, make(), ask)) for make in (Watched, Watched, lambda: 2, Watched)]
        check(lambda: program, *calls, captures=None, fullgraph=False, recompile_limit=8)


def test_pairs_that_are_no_sequences() -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        made: Any = OrderedDict()
        return x + 1, raised(lambda: {2: "a"}.update(a)), raised(lambda: dict(a)), raised(lambda: made.update(a))
    makes = (lambda: np.array([1, 2], dtype=object), lambda: np.array([1.5]), lambda: iter([2]), lambda: iter([[2, 3]]))
    check(lambda: program, *(call_with(lambda state, make=make: (X, make())) for make in makes for _ in range(2)),
          captures=None, fullgraph=False, recompile_limit=8)


class Endless:
    def __iter__(self) -> int:
        return 2


class Counted:
    """It says how many items it has."""

    def __len__(self) -> int:
        ASKED.append("len")
        return 2

    def __iter__(self) -> Any:
        return iter("ab")


def test_what_is_no_iterable() -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        ASKED.clear()
        log: list[Any] = [1, 2]

        def assign(at: slice) -> Any:
            log[at] = a
            return list(log)
        asks = (lambda: ",".join(a), lambda: assign(slice(None)), lambda: assign(slice(0, 2, 2)))
        return x + 1, *map(raised, asks), list(ASKED)
    makes = (lambda: np.float32(1), Endless, lambda: 2, Counted, Plain, lambda: iter(["a"]))
    for order in (makes, makes[::-1]):
        check(lambda: program, *(call_with(lambda state, make=make: (X, make())) for make in order for _ in range(2)),
              captures=None, fullgraph=False, recompile_limit=16)


class OwnTuple(tuple[Any, ...]):
    def __iter__(self) -> Any:
        return iter((7, 8))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: Any) -> Any:
        return 9


class OwnList(list[Any]):
    __iter__, __len__, __getitem__ = OwnTuple.__iter__, OwnTuple.__len__, OwnTuple.__getitem__  # type: ignore[assignment]


@pytest.mark.parametrize("ask", [lambda a: a.__contains__(2), lambda a: 2 in a, lambda a: a.count(2), lambda a: a.index(2),
                                 lambda a: a == type(a)([2, 3]), lambda a: a != type(a)([2, 3]), lambda a: a < type(a)([2, 3, 4])])
def test_a_search_is_in_what_the_sequence_holds(ask: Callable[[Any], Any]) -> None:
    makes = (lambda: (2, 3), lambda: OwnTuple((2, 3)), lambda: OwnList([2, 3]), lambda: [2, 3], lambda: OwnTuple((2, EqualToAll())))
    for order in (makes, makes[::-1]):
        calls = [call_with(lambda state, make=make: (X, make())) for make in order for _ in range(2)]
        check(lambda: lambda x, a: (x + 1, ask(a)), *calls, captures=None, fullgraph=False, recompile_limit=8)


# -- names ---------------------------------------------------------------------------------------------------------------

class Unhashable(str):
    __hash__ = None  # type: ignore[assignment]


class Hashed(str):
    """A name that is hashed by Python code."""

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


class Named:
    a = 1

    @property
    def computed(self) -> int:
        return 2


TAKING_NAMES: dict[str, Callable[[Any, Any], Any]] = {
    "hasattr": lambda x, name: hasattr(x, name), "getattr": lambda x, name: getattr(x, name),
    "getattr or": lambda x, name: getattr(x, name, 5), "setattr": lambda x, name: setattr(x, name, 1),
    "delattr": lambda x, name: delattr(x, name), "__getattribute__": lambda x, name: x.__getattribute__(name),
    "object.__getattribute__": lambda x, name: object.__getattribute__(x, name),
    "object.__setattr__": lambda x, name: object.__setattr__(x, name, 1),
    "type.__getattribute__": lambda x, name: type.__getattribute__(type(x), name),
    "attrgetter": lambda x, name: operator.attrgetter(name)(x), "methodcaller": lambda x, name: operator.methodcaller(name)(x),
    "vars": lambda x, name: name in vars(x), "dict": lambda x, name: x.__dict__.get(name, 7),
    "super": lambda x, name: getattr(super(Named, x), name, 3)}


@pytest.mark.parametrize("first", ["a", "computed", "missing"])
@pytest.mark.parametrize("name", TAKING_NAMES)
def test_names_of_another_type(name: str, first: str) -> None:
    """They are looked up as CPython does: by their own hash."""
    def make():
        def program(tensor, text):
            try:
                return tensor + 1, TAKING_NAMES[name](Named(), text)
            except (TypeError, AttributeError) as error:
                return tensor + 1, type(error), str(error)
        return program
    texts = [first, first, Unhashable(first), Hashed(first), first, Text(first), 3, None]
    check(make, *(call_with(lambda _, text=text: (X, text)) for text in texts), captures=None, hits=None, breaks=None,
          fullgraph=False)
