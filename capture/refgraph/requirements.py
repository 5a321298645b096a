"""What can be required of the state at a frame's entry: the table of kinds of guards.

A row has all that is known of a kind outside of the extension, which has the test in a table of its own (csrc/guards/checks.cpp).
The two are compared when `guards.tree` is imported.
"""
from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._prims_common import make_contiguous_strides_for

from capture.refgraph.identical import same
from capture.refgraph.lookup import can_change_class
from capture.refgraph.source import Source, named

Key = tuple[Any, ...]   # what tells requirements apart


class Form(enum.Enum):
    """What a kind expects, and how an entry holds it."""

    OBJECT = "an object, compared by identity: held weakly"
    KEY = "what is looked up in a dict or set: objects in it are held weakly"
    VALUE = "compared as `same` does: held as a copy, objects in it weakly"
    PLAIN = "a bool, int or str, or a frozenset of scalars: held as it is"
    PROPERTIES = "a TensorProperties: equal ones are held as one"
    PATH = "a Source"
    OTHER = "a Source; where that leads nowhere, it is another object"
    SIDES = "a tuple of pairs: (Source, whether it is one of the first side); where one of the others leads nowhere, it differs"
    PLACES = "a tuple of tuples: (Source, group, offset in bytes or None)"
    MODES = "a Modes"

    @property
    def has_paths(self) -> bool:
        """Whether the expectation contains paths."""
        return self in (Form.PATH, Form.OTHER, Form.SIDES, Form.PLACES)

    def with_paths(self, expected: Any, to: Callable[[Source], Any]) -> Any:
        """The expectation, each path in it replaced by what `to` makes of it."""
        if self in (Form.PATH, Form.OTHER):
            return to(expected)
        return tuple((to(source), *rest) for source, *rest in expected) if self.has_paths else expected


class Printer(Protocol):
    """How paths and objects are written: for people, or for `eval`."""

    def path(self, source: Source) -> str: ...
    def value(self, value: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What the guards of one entry say together. `objects`: by path, the object that is to be there; `items`: of which paths,
    by base and key, something is required."""

    objects: Mapping[Source | None, Any]
    items: Set[tuple[Source, Any]]


Text = Callable[[str, Any, Printer], str]
Implication = Callable[[Source | None, Any, Known], bool]
BEFORE = "set the key or attribute before the first call, to None if it has no value yet"
ONE_OBJECT = "pass the same object in both places on every call, or on none"
OTHER = "do not change it between calls, or change it before the first one"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """All about a kind of guard except its check in C++. text, words: functions of the path and the expectation; the text is for
    `eval`, the words are for reports. A kind without words is about classes, functions and absent attributes, which reports only
    count."""

    condition: str
    form: Form
    text: Text
    words: Text | None = None
    remedy: str = OTHER
    several: bool = False                               # two requirements of one object with different expectations may both hold
    of_content: bool = False                            # it is about the content of a container, beyond single keys of a dict
    class_of: Callable[[Any], type] | None = None       # the class of an object that meets the expectation
    implied: Implication = lambda source, expected, known: False    # other guards of the entry imply it: then it is left out


def tensor_in_words(path: str, expected: Any, names: Callable[[int], str] = lambda dim: "any") -> str:
    """`.weight float32, (4, s0), requires_grad`: only unusual properties are named. names: of the open sizes, by dimension."""
    sizes = [names(dim) if size < 0 else str(size) for dim, size in enumerate(expected.shape)]
    shape = f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
    parts = [str(expected.dtype).removeprefix("torch."), "of any shape" if expected.any_shape else shape]
    parts += [f"of class {expected.type.__name__}"] * (expected.type.__name__ not in ("Tensor", "Parameter"))
    parts += [f"on {expected.device}"] * (expected.device.type != "cpu")
    is_open = expected.any_shape or expected.open_sizes
    usual = is_open or tuple(expected.stride) == make_contiguous_strides_for(tuple(expected.shape))
    parts += [f"strides {tuple(expected.stride)}"] * (not usual)
    parts += ["requires_grad"] * expected.requires_grad
    return f"{path} {', '.join(parts)}"


class Kind(enum.Enum):
    """What is checked of `x`, the object at the guard's source, against `expected`. An unreachable path fails.

    A Python expression runs no user code: lengths, keys and items are read by the builtin type's own functions.
    """

    TYPE = Row(
        "type(x) is expected", Form.OBJECT,
        text=lambda x, e, to: f"type({x}) is {to.value(e)}",
        words=lambda x, e, to: f"{x} {e.__name__}",
        remedy="pass objects of one type; each type is captured once",
        class_of=lambda e: e,
        implied=lambda source, e, known: source in known.objects and not can_change_class(type(known.objects[source])))
    ID = Row(
        "x is expected", Form.OBJECT,
        text=lambda x, e, to: f"{x} is {to.value(e)}",
        remedy="make the object once, outside, and pass the same one each time; define functions outside of the loop, too",
        class_of=type)
    VALUE = Row(
        "x has expected's exact type and value; floats bit for bit; containers recursively", Form.VALUE,
        text=lambda x, e, to: f"same({x}, {to.value(e)})",
        words=lambda x, e, to: f"{x} is {to.value(e)}",
        remedy="none needed if it is only used in arithmetic with tensors: the new capture takes any value; if it decides a "
               "branch, a shape or an index, pass it as a tensor or keep it the same",
        class_of=type)
    TRUTH = Row(
        "bool(x) is expected, for a builtin scalar, range, Ellipsis or container whose class does not define it", Form.PLAIN,
        text=lambda x, e, to: f"truth({x}) is {e}",
        words=lambda x, e, to: f"{x} is {'true' if e else 'false or empty'}",
        remedy="none needed for one branch: each side is captured once; with many branches, each combination is captured: move "
               "them out of the compiled function, or choose with torch.where",
        of_content=True)
    LENGTH = Row(
        "builtin len(x) == expected, for list, tuple, dict, set, frozenset, str, bytes, bytearray, deque", Form.PLAIN,
        text=lambda x, e, to: f"length({x}) == {e}",
        words=lambda x, e, to: f"{x} has length {e}",
        remedy="keep the number of items the same; each length is captured once",
        of_content=True)
    KEYS = Row(
        "x is a dict or set (or subclass) with exactly the keys expected, in order: compared as VALUE or by identity", Form.VALUE,
        text=lambda x, e, to: f"same(keys({x}), {to.value(e)})",
        words=lambda x, e, to: f"{x} has the keys {to.value(e)}",
        remedy="keep the same keys in the same order; each set of keys is captured once",
        of_content=True)
    PRESENT = Row(
        "x is a dict, and has the key expected", Form.KEY,
        text=lambda x, e, to: f"has_key({x}, {to.value(e)})",
        remedy=BEFORE, several=True,
        implied=lambda source, e, known: (source, e) in known.items)
    ABSENT = Row(
        "x is a dict, and lacks the key expected", Form.KEY,
        text=lambda x, e, to: f"not has_key({x}, {to.value(e)})",
        remedy=BEFORE, several=True)
    NO_ATTR = Row(
        "x is a class, and its MRO has no attribute named expected", Form.PLAIN,
        text=lambda x, e, to: f"lacks_attribute({x}, {e!r})",
        several=True)
    MRO = Row(
        "x is a class whose MRO is expected: a tuple, compared by identity", Form.VALUE,
        text=lambda x, e, to: f"same(mro({x}), {to.value(e)})")
    CONTENT = Row(
        "x is a set or frozenset (or subclass), and equals expected: a frozenset of builtin scalars", Form.PLAIN,
        text=lambda x, e, to: f"same_members({x}, {to.value(e)})",
        words=lambda x, e, to: f"{x} holds {to.value(e)}",
        remedy="keep the members of the set the same, or make it outside",
        of_content=True)
    MEMBER = Row(
        "x is a set or frozenset (or subclass) holding expected: a scalar or an object hashed by identity", Form.KEY,
        text=lambda x, e, to: f"is_member({x}, {to.value(e)})",
        words=lambda x, e, to: f"{x} holds {to.value(e)}",
        several=True, of_content=True)
    NOT_MEMBER = Row(
        "x is a set or frozenset (or subclass) that does not hold expected", Form.KEY,
        text=lambda x, e, to: f"not is_member({x}, {to.value(e)})",
        words=lambda x, e, to: f"{x} does not hold {to.value(e)}",
        several=True, of_content=True)
    TENSOR = Row(
        "x is a tensor with the properties expected", Form.PROPERTIES,
        text=lambda x, e, to: f"fits({x}, {to.value(e)})" if e.open_sizes else
        f"tensor_properties({x}{', any_shape=True' * e.any_shape}) == {to.value(e)}",
        words=lambda x, e, to: tensor_in_words(x, e),
        class_of=lambda e: torch.Tensor)
    ALIAS = Row(
        "x is the object at expected", Form.PATH,
        text=lambda x, e, to: f"{x} is {to.path(e)}",
        words=lambda x, e, to: f"{x} is {named(str(e))}",
        remedy=ONE_OBJECT, several=True,
        implied=lambda source, e, known: source in known.objects)
    DISTINCT = Row(
        "x is not the object at expected", Form.OTHER,
        text=lambda x, e, to: f"distinct({x}, lambda: {to.path(e)})",
        words=lambda x, e, to: f"{x} is not {named(str(e))}",
        remedy=ONE_OBJECT, several=True)
    SEPARATE = Row(
        "each object of the first side is none of the others at expected, of either side; x is its first one", Form.SIDES,
        text=lambda x, e, to: f"separate({', '.join(f'(lambda: {to.path(s)}, {first})' for s, first in e)})",
        words=lambda x, e, to: f"{x} and what else is written to ({sum(first for _, first in e)} objects) are different ones, and "
                               f"none of {sum(not first for _, first in e)} others",
        remedy=ONE_OBJECT)
    STORAGE = Row(
        "the tensors at expected share storage within groups only, there", Form.PLACES,
        text=lambda x, e, to: f"share_memory({', '.join(f'({to.path(s)}, {g}, {offset})' for s, g, offset in e)})",
        words=lambda x, e, to: f"memory is shared among {len(e)} tensors as it was",
        remedy="pass tensors that share memory in the same way, or clone() them")
    MODES = Row(
        "the process-wide and thread-wide modes of torch equal expected; source is None", Form.MODES,
        text=lambda x, e, to: f"modes() == {to.value(e)}",
        remedy="call it under the same modes of torch (gradients, autocast, default dtype …): each combination is captured once")

    row: Row                        # an attribute of its own: enum's `value` is a property of Python, and asked for often

    def __init__(self, row: Row) -> None:
        self.row = row

    __hash__ = object.__hash__      # by identity, as it compares; enum's own hashes the name


ROWS: Mapping[str, Row] = {kind.name: kind.row for kind in Kind}


def key_of(source: Source | None, kind: str, expected: Any) -> Key:
    """The key under which a requirement is stored: a second one with the same key must say the same."""
    return (source, kind, expected) if ROWS[kind].several else (source, kind)


def agree(kind: str, known: Any, expected: Any) -> bool:
    """Whether two requirements under one key say the same."""
    row = ROWS[kind]
    if row.several or known is expected:
        return True
    if row.form is Form.OBJECT:
        return False
    return same(known, expected) if row.form in (Form.VALUE, Form.PLAIN) else bool(known == expected)
