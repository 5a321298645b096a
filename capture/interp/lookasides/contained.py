"""Python code that a graph runs as a whole, such as the `forward` of an autograd function: whether it keeps to itself.

A graph comes before the trace's changes of objects, and guards have read before it what is read after it. So what runs inside of
it must neither read objects of the program's that the trace may have changed, nor change any. This is told by its instructions and
by what their names mean.
"""
from __future__ import annotations

import argparse
import builtins
import logging
import sys
import types
from collections.abc import Iterable
from typing import Any

from capture.interp.instructions import Does, Instruction, does, with_inner
from capture.interp.lookasides.own_code import is_own_file
from capture.interp.lookasides.readers import READING, READS, can_be_read, held_by_closure, is_data
from capture.interp.special import is_a
from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.lookup import instance_dict, lookup_class
from capture.refgraph.node import SCALARS

# What code may do that changes no more than variables, items of these, and attributes.
QUIET = READS | Does.ASKS_SUPER | Does.STORES_ATTRIBUTE | Does.STORES_ITEM | Does.CHANGES_OPERAND | Does.ENTERS | Does.SUSPENDS
ACTING = frozenset({getattr(builtins, name) for name in """
    print open input exec eval compile setattr delattr globals locals vars next __import__ breakpoint""".split()})
DEEPEST = 6


class Contained:
    """What is known of one function and of those that it calls. graph: of the trace, which tells what it has changed."""

    def __init__(self, graph: RefGraph) -> None:
        self.changed = {id(effect.target.real) for effect in graph.effects if isinstance(effect, Effect)}
        self.first = not graph.effects              # the trace has changed nothing, and shown nothing, so far
        self.seen: set[types.CodeType] = set()

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
        if is_a(x, (list, dict, set, types.SimpleNamespace, argparse.Namespace)) or is_own_class(cls):
            return self.first and is_only_read(x, code)
        return True

    def is_constant_module(self, module: types.ModuleType, code: types.CodeType, depth: int) -> bool:
        """Whether that holds for what a code object may take out of a module of the program's."""
        scope = vars(module)
        return depth > 0 and id(scope) not in self.changed and all(
            self.is_constant(scope[name], code, depth - 1) for name in attributes_of(code) if name in scope)


def is_own_class(cls: type) -> bool:
    """Whether a class is part of the program."""
    return is_own_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen >")


def is_only_read(x: Any, code: types.CodeType) -> bool:
    """Whether code that knows an object by name can do nothing but read data of it."""
    names = attributes_of(code)
    if is_a(x, (list, dict, set)):
        return not stores_items(code) and is_data(x) and all(name in READING for name in names if hasattr(type(x), name))
    held = instance_dict(x) or {}
    return all(can_be_read(x, name) for name in names if name in held or lookup_class(type(x), name) is not None)


def attributes_of(code: types.CodeType) -> set[str]:
    """The names of the attributes that a code object reads."""
    return {instruction.value for instruction in with_inner(code) if Does.LOADS_ATTRIBUTE in does(instruction)}


def stores_items(code: types.CodeType) -> bool:
    """Whether a code object stores items, or deletes them."""
    return any(Does.STORES_ITEM in does(instruction) for instruction in with_inner(code))


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
