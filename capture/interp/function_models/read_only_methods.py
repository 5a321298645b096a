"""Methods that only read: Python code of the program whose instructions cannot change anything.

They format, count and compute with plain data that an object holds. Code that may call anything else is not a reader.
"""
from __future__ import annotations

import builtins
import collections
import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.instructions import WITHIN, Does, decode, does
from capture.interp.core.special import in_python
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.lookup import MISSING, instance_attributes, lookup_class
from capture.refgraph.node import SCALARS

# What code may do that changes nothing but its own variables.
READS = (WITHIN | Does.MAKES | Does.READS_LOCAL | Does.LOADS_LOCAL | Does.WRITES_LOCAL | Does.LOADS_CELL | Does.STORES_CELL
         | Does.LOADS_CONSTANT | Does.LOADS_GLOBAL | Does.LOADS_ATTRIBUTE | Does.READS_ITEM | Does.TAKES_ITEMS | Does.CALLS
         | Does.PUSHES_NULL | Does.RAISES | Does.JUMPS | Does.BRANCHES | Does.LEAVES)
BUILTINS = frozenset({getattr(builtins, name) for name in """abs all any ascii bin bool bytes complex dict divmod enumerate float
    format frozenset hex id int isinstance len list max min oct ord chr pow range repr reversed round set sorted str sum tuple type
    zip""".split()})
# Names of methods and attributes of data, and of classes.
READING = frozenset("""
    __class__ __name__ __qualname__ __module__ count index get items keys values copy format join split rsplit strip
    lstrip rstrip upper lower title capitalize center ljust rjust zfill replace startswith endswith find encode decode hex
    real imag item tolist dim ndim numel size shape dtype device mean sum max min std var norm abs any all detach cpu
    nelement""".split())
PLAIN = Classes((list, tuple, dict, set, frozenset, collections.deque, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype,
                 torch.device))
DEEPEST = 6


@dataclass(frozen=True)
class Uses:
    """The names that a code object uses. None of its instructions changes anything but its own variables."""

    attributes: frozenset[str]
    names: frozenset[str]


@functools.lru_cache(maxsize=4096)
def uses_of(code: types.CodeType) -> Uses | None:
    """What a code object, with those inside of it, names; None for one that may change something."""
    attributes, names = set(), set()
    for instruction in decode(code):
        facts = does(instruction)
        if facts & ~READS or Does.STORES_CELL in facts and instruction.value in code.co_freevars:
            return None
        if Does.LOADS_ATTRIBUTE in facts:
            attributes.add(instruction.value)
        if Does.LOADS_GLOBAL in facts:
            names.add(instruction.value)
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            inner = uses_of(constant)
            if inner is None:
                return None
            attributes |= inner.attributes
            names |= inner.names
    return Uses(frozenset(attributes), frozenset(names))


def only_reads(x: Any, function: types.FunctionType, depth: int = DEEPEST) -> bool:
    """Whether a method of the program's does nothing but read data that the object `x` holds."""
    uses = uses_of(function.__code__)
    if uses is None or depth == 0 or in_python(x, "__getattr__") or not is_one_of(
            lookup_class(type(x), "__getattribute__"), *PLAIN_ACCESS):
        return False
    if not all(is_data(item) for item in held_by_closure(function)):
        return False
    scope = function.__globals__
    for name in uses.names:
        found = scope[name] if name in scope else vars(builtins).get(name)
        if not (type(found) in SCALARS or is_one_of(type(found), type, types.BuiltinFunctionType) and found in BUILTINS):
            return False
    return all(can_be_read(x, name, depth) for name in uses.attributes)


PLAIN_ACCESS = (object.__getattribute__, tuple.__getattribute__, BaseException.__getattribute__)


def held_by_closure(function: types.FunctionType) -> Iterator[Any]:
    """What the variables hold that a function shares with others; an empty one holds nothing that can be read."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue


def can_be_read(x: Any, name: str, depth: int = DEEPEST) -> bool:
    """Whether an attribute of this name is data of the object, a method of its that only reads, or one of data."""
    member = lookup_class(type(x), name, MISSING)
    if type(member) is types.FunctionType:
        return only_reads(x, member, depth - 1)
    if type(member) is property:
        return type(member.fget) is types.FunctionType and only_reads(x, member.fget, depth - 1)
    if type(member) is types.MemberDescriptorType:
        return is_data(member.__get__(x)) if has_value(member, x) else True
    held = instance_attributes(x)
    if name in held:
        return is_data(held[name])
    return name in READING or member is not MISSING and is_data(member)


def has_value(slot: types.MemberDescriptorType, x: Any) -> bool:
    """Whether a slot of an object is not empty."""
    try:
        slot.__get__(x)
    except AttributeError:
        return False
    return True


def is_data(x: Any, depth: int = DEEPEST) -> bool:
    """Whether a value is data, all through, of builtin classes or torch's."""
    cls = type(x)
    if cls in SCALARS:
        return True
    if cls not in PLAIN or depth == 0:
        return False
    if is_a(x, dict):
        return all(is_data(part, depth - 1) for entry in x.items() for part in entry)
    return is_a(x, torch.Tensor) or is_one_of(cls, torch.dtype, torch.device) or all(is_data(item, depth - 1) for item in x)
