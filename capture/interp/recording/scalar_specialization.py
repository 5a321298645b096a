"""Numbers from outside that change from call to call, and where among the arguments of a tensor operation these may stand.

A number that enters an operation is a constant of the graph at first, guarded by value. Once a later capture finds another
number at the same path, it becomes an input of the graph, wherever nothing but values follow from it: the shape, the type and
the memory of the results, which the trace assumes, must not depend on it.
"""
from __future__ import annotations

import enum
import functools
import inspect
import operator
import re
import types
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from capture._C import is_a
from capture.errors import CheckFailed, Reformed, UserFrame
from capture.operators.beyond_schemas import DECIDING, MOVING
from capture.operators.facts import OpFacts, facts_of
from capture.operators.schemas import name_of
from capture.refgraph.identical import LISTS, NUMBERS, Classes
from capture.refgraph.source import Computed, Source


class Place(enum.Enum):
    """How an operation uses an argument. FIXED: more than its value may depend on it. VALUE: a number to calculate with. VALUES: a
    list of these. RATE: the probability of dropout, a number to calculate with unless it is 0 or 1: then the argument itself is
    returned, or no random number is drawn. INDEX: a subscript of a tensor, where an integer picks a row, whichever it is. ROW: an
    integer in a list that is a subscript. SIZE: the size of the result in a dimension, or several sizes; the graph may compute
    these."""

    FIXED = enum.auto()
    VALUE = enum.auto()
    VALUES = enum.auto()
    RATE = enum.auto()
    INDEX = enum.auto()
    ROW = enum.auto()
    SIZE = enum.auto()

    @property
    def inner(self) -> Place:
        """The place of an item of such an argument."""
        return {Place.VALUES: Place.VALUE, Place.INDEX: Place.INDEX, Place.SIZE: Place.SIZE}.get(self, Place.FIXED)

    def allows(self, real: Any) -> bool:
        """Whether an argument in this place may have another value of its type on each call."""
        if self in (Place.INDEX, Place.ROW, Place.SIZE):
            return type(real) is int
        return self in (Place.VALUE, Place.RATE) and type(real) in NUMBERS


class Numbers:
    """What the captures of one function have met at each path, by the path's text: numbers that entered operations, and strings
    that others were made from. Plain data, which holds nothing of the program alive. If two paths have the same text, at worst a
    constant counts as varying.

    surprised: a tensor that torch's own code branches on did not hold what was assumed. `changing`: kinds of guards, with paths, at
    which several captures expect different values, and a call had yet another one. `short`: lines in which slices of the last few
    elements were made of tensors that have fewer. `resized`, `reformed`: autograd functions whose results had other sizes, or
    another form, than in the capture.
    """

    __slots__ = ("values", "varying", "surprised", "contents", "changing", "short", "resized",
                 "reformed")

    def __init__(self) -> None:
        self.changing: set[tuple[str, str]] = set()
        self.short: set[UserFrame | None] = set()
        self.contents: dict[str, set[int]] = {}         # hashes of what arrays held
        self.surprised = False
        self.resized: weakref.WeakSet[type] = weakref.WeakSet()
        self.reformed: weakref.WeakSet[type] = weakref.WeakSet()
        self.values: dict[str, str] = {}
        self.varying: set[str] = set()

    def varies(self, source: Source, real: Any) -> bool:
        """Whether an earlier capture met another value at `source`, or at what a path that is new is computed from."""
        path, text = str(source), repr(real)
        if path not in self.values:
            self.values[path] = text
            if isinstance(source, Computed) and self._rests_on_varying(source):
                self.varying.add(path)
        elif self.values[path] != text:
            self.varying.add(path)
        return path in self.varying

    def knows(self, source: Source) -> bool:
        """Whether an earlier operation was given the number at `source`."""
        return str(source) in self.values

    def note_varying(self, paths: Iterable[str]) -> None:
        """Notes paths at which numbers change from call to call."""
        self.varying.update(paths)

    def note_short(self, line: UserFrame | None) -> None:
        """Notes a line that makes a slice of more elements than there are."""
        self.short.add(line)

    def may_vary(self, source: Source, real: Any) -> bool:
        """Whether the number at `source`, which is `real` now, was or will be found to vary."""
        path, text = str(source), repr(real)
        return path in self.varying or self.values.get(path, text) != text or self._rests_on_varying(source)

    def has_many_contents(self, source: Source, content: int) -> bool:
        """Whether the array at `source` held too many different contents (by these hashes) for one capture each."""
        met = self.contents.setdefault(str(source), set())
        met.add(content)
        return len(met) > MOST_CONTENTS

    def missed(self, failed: Iterable[tuple[str, str, str]], continued: bool) -> None:
        """Notes which guard a call has failed of each entry: by kind, path and what was expected. Where several expected different
        things in one place, the trace is to end there, in place of a capture for each value. continued: of a continuation, which is
        given what programs gather in loops that values end: there a second length is enough."""
        failed = set(failed)
        for (kind, path), values in Counter((kind, path) for kind, path, _ in failed).items():
            if values >= (1 if continued and kind == "LENGTH" else MOST_CONTENTS):
                self.changing.add((kind, path))

    def disappointed(self, failed: CheckFailed) -> None:
        """What was taken for granted is not to be so again."""
        if isinstance(failed, Reformed):
            (self.resized if failed.resized else self.reformed).add(failed.cls)
        else:
            self.surprised = True

    def changes_often(self, source: Source, kind: str) -> bool:
        """Whether captures met too many different values at `source` to depend on another one."""
        return bool(self.changing) and (kind, str(source)) in self.changing

    def _rests_on_varying(self, source: Source) -> bool:
        return str(source) in self.varying or isinstance(source, Computed) and any(map(self._rests_on_varying, source.args))


MOST_CONTENTS = 3
OPTIONAL = re.compile(r"^Optional\[(.*)\]$")
# Binary operators of Python: whatever number a tensor is combined with, the result's shape is the tensor's.
OPERATORS = frozenset("add sub mul truediv floordiv mod pow and or xor lshift rshift eq ne lt le gt ge".split())
CONSTRUCTORS = frozenset((torch.tensor, torch.as_tensor))
# What can be meant by a number, or by a list of numbers, among the types of a schema's arguments, and means values alone …
SCALAR_TYPES = frozenset(("number", "float", "Tensor"))
CALCULATED = {int: SCALAR_TYPES, float: SCALAR_TYPES, list: frozenset(("List[number]",))}
PLACED = Classes(CALCULATED)
# … and what cannot be meant.
OTHER = {int: frozenset(("List[Tensor]", "List[number]")),
         float: frozenset(("List[Tensor]", "List[number]", "int", "SymInt", "List[int]", "List[SymInt]", "bool", "str", "Device")),
         list: SCALAR_TYPES | frozenset(("List[Tensor]", "int", "SymInt", "bool", "str", "Device"))}


def counts_in(facts: OpFacts, where: int | str, real: Any) -> list[torch.Tensor]:
    """The tensors that stand for integers, from which more may follow than values, in the argument `where` of an operation."""
    items = real if type(real) in LISTS else [real]
    numbers = [item for item in items if is_a(item, torch.Tensor) and torch.Tensor.numel(item) == 1 and (
        facts.is_decided_by_numbers or not (torch.Tensor.is_floating_point(item) or torch.Tensor.is_complex(item)))]
    return numbers if numbers and not facts.takes_tensor(where) else []


def place_of(target: Any, where: int | str, real: Any) -> Place:
    """What becomes of the argument `where` (a position or a name), whose value is `real` now, in a call of an fx target."""
    if is_a(getattr(target, "__self__", None), type):         # of an autograd function: the program's own
        return Place.FIXED
    return _place(target, where, type(real) if type(real) in PLACED else tuple)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _place(target: Any, where: int | str, kind: type) -> Place:
    name, facts = name_of(target), facts_of(target)
    if facts.is_decided_by_numbers or not facts.is_of_torch:
        return Place.FIXED
    if is_a(target, types.BuiltinFunctionType) and getattr(operator, name, None) is target or name.startswith("__"):
        return _place_in_operator(name.strip("_"), where)
    if target in CONSTRUCTORS:
        return Place.FIXED if where not in (0, "data") else Place.VALUE if kind in (int, float) else Place.VALUES
    if type(target) is types.FunctionType:
        return _place_in_python(target, where)
    return _place_in_schemas(facts, where, kind)


def _place_of_number(function: str, parameter: str) -> Place:
    """What becomes of a number that is an argument of a function of torch's."""
    if parameter == "dropout_p" or parameter == "p" and "dropout" in function:
        return Place.RATE
    return Place.FIXED if parameter in DECIDING or "dropout" in function or "dropout" in parameter else Place.VALUE


def _place_in_operator(name: str, where: int | str) -> Place:
    if name in ("getitem", "setitem") and where == 1:
        return Place.INDEX
    plain = name if name in OPERATORS else name[1:] if name[:1] in ("i", "r") else ""
    return Place.VALUE if plain in OPERATORS or name == "setitem" and where == 2 else Place.FIXED


def _place_in_python(function: types.FunctionType, where: int | str) -> Place:
    """Of a function of torch.nn.functional: its annotations."""
    parameters = enumerate(inspect.signature(function, follow_wrapped=False).parameters.values())
    found = next((parameter for position, parameter in parameters if where in (position, parameter.name)), None)
    if found is None or found.annotation not in (float, float | None, "float", "float | None", "Optional[float]"):
        return Place.FIXED
    return _place_of_number(function.__name__, found.name)


def _place_in_schemas(facts: OpFacts, where: int | str, kind: type) -> Place:
    """What each schema means that has such an argument; FIXED where they differ."""
    found = facts.arguments(where)
    if {argument.name for argument in found} == {MOVING.get(facts.plain)}:
        return Place.INDEX
    types = {OPTIONAL.sub(r"\1", str(argument.type)) for argument in found} - OTHER.get(kind, frozenset())
    if not types or not types <= CALCULATED.get(kind, frozenset()):
        return Place.FIXED
    places = {_place_of_number(facts.name, argument.name) for argument in found}
    place = places.pop() if len(places) == 1 else Place.FIXED
    return place if kind is not list else Place.VALUES if place is Place.VALUE else Place.FIXED
