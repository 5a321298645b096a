"""Numbers from outside that change from call to call, and where among the arguments of a tensor operation these may stand.

A number that enters an operation is a constant of the graph at first, guarded by value. Once a later capture finds another
number at the same path, it becomes an input of the graph, wherever nothing but values follow from it: the shape, the type and
the memory of the results, which the trace takes for granted, must not depend on it.
"""
from __future__ import annotations

import enum
import functools
import inspect
import operator
import re
import types
from typing import Any

import torch

from capture.refgraph.source import Source


class Place(enum.Enum):
    """What an operation makes of an argument. FIXED: more than its value may follow from it. VALUE: a number to calculate with.
    VALUES: a list of these. INDEX: what a tensor is subscripted with, where an integer picks a row, whichever it is."""

    FIXED = enum.auto()
    VALUE = enum.auto()
    VALUES = enum.auto()
    INDEX = enum.auto()

    @property
    def inner(self) -> Place:
        """The place of an item of such an argument."""
        return {Place.VALUES: Place.VALUE, Place.INDEX: Place.INDEX}.get(self, Place.FIXED)

    def allows(self, real: Any) -> bool:
        """Whether the value itself may be another one of its type on each call."""
        return type(real) is int if self is Place.INDEX else self is Place.VALUE and type(real) in (int, float)


class Numbers:
    """The numbers which entered operations in the captures of one function, by the text of their paths: plain data, that holds
    nothing of the program alive. Two paths of one text at worst make an input of a constant."""

    __slots__ = ("values", "varying")

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.varying: set[str] = set()

    def varies(self, source: Source, real: Any) -> bool:
        """Whether an earlier capture met another number at `source`."""
        path, text = str(source), repr(real)
        if self.values.setdefault(path, text) != text:
            self.varying.add(path)
        return path in self.varying


OPTIONAL = re.compile(r"^Optional\[(.*)\]$")
# Binary operators of Python: whatever number a tensor is combined with, the result's shape is the tensor's.
OPERATORS = frozenset("add sub mul truediv floordiv mod pow and or xor lshift rshift eq ne lt le gt ge".split())
# Operations for which a number decides how many elements the result has, or which tensor it is.
DECIDING = frozenset(("arange", "range", "scale_factor"))
CONSTRUCTORS = frozenset((torch.tensor, torch.as_tensor))
# What can be meant by a number, or by a list of numbers, among the types of a schema's arguments, and means values alone …
SCALAR_TYPES = frozenset(("number", "float", "Tensor"))
CALCULATED = {int: SCALAR_TYPES, float: SCALAR_TYPES, list: frozenset(("List[number]",))}
# … and what cannot be meant.
OTHER = {int: frozenset(("List[Tensor]", "List[number]")),
         float: frozenset(("List[Tensor]", "List[number]", "int", "SymInt", "List[int]", "List[SymInt]", "bool", "str", "Device")),
         list: SCALAR_TYPES | frozenset(("List[Tensor]", "int", "SymInt", "bool", "str", "Device"))}


def place_of(target: Any, where: int | str, real: Any) -> Place:
    """What becomes of the argument `where` (a position or a name), whose value is `real` now, in a call of an fx target."""
    if isinstance(getattr(target, "__self__", None), type):         # of an autograd function: the program's own
        return Place.FIXED
    return _place(target, where, type(real) if type(real) in CALCULATED else tuple)


@functools.lru_cache(maxsize=4096)
def _place(target: Any, where: int | str, kind: type) -> Place:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if _decides(name) or isinstance(where, str) and _decides(where):
        return Place.FIXED
    if isinstance(target, types.BuiltinFunctionType) and getattr(operator, name, None) is target or name.startswith("__"):
        return _place_in_operator(name.strip("_"), where)
    if target in CONSTRUCTORS:
        return Place.FIXED if where not in (0, "data") else Place.VALUE if kind in (int, float) else Place.VALUES
    if isinstance(target, types.FunctionType):
        return _place_in_python(target, where)
    return _place_in_schemas(_schemas(target, name), where, kind)


def _decides(name: str) -> bool:
    """Whether a function or a parameter of this name is one of those where a number has consequences. What drops out with
    probability 0 returns its argument itself."""
    return name in DECIDING or "dropout" in name


def _place_in_operator(name: str, where: int | str) -> Place:
    if name in ("getitem", "setitem") and where == 1:
        return Place.INDEX
    plain = name if name in OPERATORS else name[1:] if name[:1] in ("i", "r") else ""
    return Place.VALUE if plain in OPERATORS or name == "setitem" and where == 2 else Place.FIXED


def _place_in_python(function: types.FunctionType, where: int | str) -> Place:
    """Of a function of torch.nn.functional: its annotations."""
    parameters = enumerate(inspect.signature(function).parameters.values())
    found = next((parameter for position, parameter in parameters if where in (position, parameter.name)), None)
    if found is None or _decides(found.name):
        return Place.FIXED
    return Place.VALUE if found.annotation in (float, float | None, "float", "float | None", "Optional[float]") else Place.FIXED


def _schemas(target: Any, name: str) -> list[Any]:
    """The schemas that a function or method of torch, known to ATen by the same name, may be called by."""
    if isinstance(target, torch._ops.OpOverload):
        return [target._schema]
    packet = target if isinstance(target, torch._ops.OpOverloadPacket) else getattr(torch.ops.aten, name, None)
    schemas = [] if packet is None else [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [schema for schema in schemas if schema.name.startswith("aten::") and any(
        "Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns))]


def _place_in_schemas(schemas: list[Any], where: int | str, kind: type) -> Place:
    """VALUE or VALUES, if that is what each schema means that has such an argument."""
    found = [argument for schema in schemas for position, argument in enumerate(schema.arguments)
             if where in (position, argument.name) and not argument.is_out]
    types = {OPTIONAL.sub(r"\1", str(argument.type)) for argument in found} - OTHER.get(kind, frozenset())
    if not types or not types <= CALCULATED.get(kind, frozenset()) or any(_decides(argument.name) for argument in found):
        return Place.FIXED
    return Place.VALUES if kind is list else Place.VALUE
