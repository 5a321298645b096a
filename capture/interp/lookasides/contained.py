"""Python code that a graph runs as a whole, such as the `forward` of an autograd function: whether it keeps to itself.

A graph comes before the trace's changes of objects, and guards have read before it what is read after it. So what runs inside of
it must neither read objects of the program's that the trace may have changed, nor change any. This is told by its instructions and
by what their names mean.
"""
from __future__ import annotations

import argparse
import builtins
import collections
import itertools
import logging
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from capture.interp.core.instructions import Does, Instruction, decode, does, with_inner, with_parts
from capture.interp.core.special import is_a
from capture.interp.lookasides.own_code import is_own_file
from capture.interp.lookasides.readers import READING, READS, can_be_read, held_by_closure, is_data
from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import builtin_base
from capture.refgraph.lookup import instance_dict, lookup_class
from capture.refgraph.node import SCALARS

# What code may do that changes no more than variables, items of these, and attributes.
QUIET = READS | Does.ASKS_SUPER | Does.STORES_ATTRIBUTE | Does.STORES_ITEM | Does.CHANGES_OPERAND | Does.ENTERS | Does.SUSPENDS
ACTING = frozenset({getattr(builtins, name) for name in """
    print open input exec eval compile setattr delattr globals locals vars next __import__ breakpoint""".split()})
DEEPEST = 6
MOST_LEVELS = 40        # of objects in objects that are compared
CHANGEABLE = (list, dict, set, collections.deque)


class Contained:
    """What is known of one function and of those that it calls. graph: of the trace, which tells what it has changed."""

    def __init__(self, graph: RefGraph) -> None:
        self.changed = {id(effect.target.real) for effect in graph.effects if isinstance(effect, Effect)}
        self.first = not graph.effects              # the trace has changed nothing, and shown nothing, so far
        self.seen: set[types.CodeType] = set()
        self.read: list[Any] = []                   # objects and containers of the program's that are read

    def keeps_to_itself(self, function: Any, depth: int = DEEPEST) -> bool:
        """Whether a function reads nothing that the trace may have changed, and changes nothing but its first argument."""
        if type(function) is not types.FunctionType or not is_own_file(function.__code__.co_filename):
            return True
        code, cells = function.__code__, function.__closure__ or ()
        if code in self.seen:
            return True
        self.seen.add(code)
        if depth == 0 or not is_quiet(code, code.co_varnames[:1]) or any(id(cell) in self.changed for cell in cells):
            return False
        found = [*held_by_closure(function), *self.named(code, function.__globals__)]
        return all(self.is_constant(item, code, depth) for item in found)

    def named(self, code: types.CodeType, scope: dict[str, Any]) -> Iterable[Any]:
        """What the global names in a code object mean now; this object itself, for one that the trace has changed."""
        for instruction in with_inner(code):
            if Does.LOADS_GLOBAL in does(instruction):
                name = instruction.value
                changed = id(scope) in self.changed and type(scope.get(name)) in SCALARS
                yield self if changed else scope[name] if name in scope else vars(builtins).get(name)

    def is_constant(self, x: Any, code: types.CodeType, depth: int) -> bool:
        """Whether what a name in a code object means is no state, or state that is only read, and does not act on the world."""
        cls = type(x)
        if cls in SCALARS:
            return True
        if cls is types.FunctionType:
            return self.keeps_to_itself(x, depth - 1)
        if cls is types.ModuleType:
            return not is_own_file(getattr(x, "__file__", None) or "<frozen >") or self.is_constant_module(x, code, depth)
        if is_a(x, type):
            methods = [item.__func__ if is_a(item, staticmethod) else item for item in vars(x).values()]
            return all(self.keeps_to_itself(method, depth - 1) for method in methods)
        if cls is tuple:
            return all(self.is_constant(item, code, depth) for item in x)
        if is_a(x, (Contained, logging.Logger)) or cls is types.BuiltinFunctionType and x in ACTING:
            return False
        if is_a(x, CHANGEABLE) or is_of_program(x):
            self.read.append(x)
            return self.first and is_only_read(x, code)
        return True

    def contents(self) -> tuple[Any, ...]:
        """What is held by all that is read, for comparisons by `same`."""
        seen: set[int] = set()
        return tuple(content_of(x, seen) for x in self.read)

    def is_constant_module(self, module: types.ModuleType, code: types.CodeType, depth: int) -> bool:
        """Whether that holds for what a code object may take out of a module of the program's."""
        scope = vars(module)
        return depth > 0 and id(scope) not in self.changed and all(
            self.is_constant(scope[name], code, depth - 1) for name in attributes_of(code) if name in scope)


def is_of_program(x: Any) -> bool:
    """Whether an object is what the program makes to hold things."""
    return is_a(x, (types.SimpleNamespace, argparse.Namespace)) or is_own_class(type(x))


def is_own_class(cls: type) -> bool:
    """Whether a class is part of the program."""
    return is_own_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen >")


def is_only_read(x: Any, code: types.CodeType) -> bool:
    """Whether code that knows an object by name can do nothing but read data of it."""
    names = attributes_of(code)
    if is_a(x, CHANGEABLE):
        return is_data(x) and changes_none_of(set(changeable_in([x])), code)
    held = instance_dict(x) or {}
    known = [name for name in names if name in held or lookup_class(type(x), name) is not None]
    reached = changeable_in(held.get(name, lookup_class(type(x), name)) for name in known)
    return all(can_be_read(x, name) for name in known) and changes_none_of(set(reached), code)


def changeable_in(values: Iterable[Any], depth: int = DEEPEST) -> Iterator[type]:
    """The classes of the containers among values, and inside of these, that can be changed."""
    for x in values:
        if is_a(x, CHANGEABLE):
            yield type(x)
        if depth and is_a(x, (*CHANGEABLE, tuple)):
            yield from changeable_in(dict.values(x) if is_a(x, dict) else x, depth - 1)


def changes_none_of(kinds: set[type], code: types.CodeType) -> bool:
    """Whether code changes no container of these classes: by an item, a method, or in place by another name."""
    return not kinds or not changes_items(code) and all(
        name in READING for name in attributes_of(code) if any(hasattr(kind, name) for kind in kinds))


def changes_items(code: types.CodeType) -> bool:
    """Whether code stores items, deletes them, or changes in place what may have another name."""
    stores = any(Does.STORES_ITEM in does(instruction) for instruction in with_inner(code))
    return stores or any(map(changes_in_place, with_parts(code)))


def changes_in_place(code: types.CodeType) -> bool:
    """Whether a code object changes in place more than variables which nothing but operators and calls have set."""
    steps = list(itertools.pairwise(decode(code)))
    shared = {after.value for before, after in steps
              if Does.WRITES_LOCAL in does(after) and Does.MAKES not in does(before)}
    return any(Does.CHANGES_OPERAND in does(before) and (Does.WRITES_LOCAL not in does(after) or after.value in shared)
               for before, after in steps)


def content_of(x: Any, seen: set[int], depth: int = MOST_LEVELS) -> Any:
    """What a container or an object of the program's holds, through and through, as a tuple; the object itself for others, and for
    those that were `seen`."""
    base = builtin_base(x, (dict, list, set, tuple, frozenset, collections.deque))
    held = x if base is dict else instance_dict(x) if base is None and is_of_program(x) else None
    if depth == 0 or id(x) in seen or base is None and held is None:
        return x
    seen.add(id(x))
    if held is not None:
        return tuple((key, content_of(item, seen, depth - 1)) for key, item in dict.items(held))
    return tuple(content_of(item, seen, depth - 1) for item in base.__iter__(x))


def attributes_of(code: types.CodeType) -> set[str]:
    """The names of the attributes that a code object reads."""
    return {instruction.value for instruction in with_inner(code) if Does.LOADS_ATTRIBUTE in does(instruction)}


def is_quiet(code: types.CodeType, first: tuple[str, ...]) -> bool:
    """Whether no instruction changes more than variables, items of these, and attributes of the first argument."""
    last = None
    for instruction in with_inner(code):
        facts = does(instruction)
        if facts & ~QUIET or Does.STORES_CELL in facts and instruction.value in code.co_freevars:
            return False
        if Does.STORES_ATTRIBUTE in facts and not (last is not None and loaded_by(last) in first):
            return False
        last = instruction
    return True


def loaded_by(instruction: Instruction) -> str | None:
    """The local variable that an instruction puts on top of the stack, or None."""
    return instruction.value if instruction.opname in ("LOAD_FAST", "LOAD_FAST_CHECK") else None
