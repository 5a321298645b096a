"""Python code that a graph runs as a whole, such as the `forward` of an autograd function: whether it affects nothing else.

A graph runs before the trace's changes of objects are made, and after guards have read what the trace reads later. So code inside
of it must not read objects of the program that the trace may have changed, and must not change any. This is decided by its
instructions and by what their names refer to.
"""
from __future__ import annotations

import argparse
import builtins
import collections
import gc
import itertools
import logging
import math
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from capture._C import is_a
from capture.interp.core.instructions import Does, Instruction, decode, does, with_inner, with_parts
from capture.interp.core.special import in_python
from capture.interp.function_models.effect_callbacks import is_own_file
from capture.interp.function_models.escapes import CHANGEABLE, escaping, is_changeable
from capture.interp.function_models.read_only_methods import BUILTINS, READING, READS, can_be_read, held_by_closure, is_data
from capture.refgraph.effects import operands_of
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import builtin_base
from capture.refgraph.lookup import instance_attributes, instance_dict, lookup_class
from capture.refgraph.ndarrays import is_ndarray
from capture.refgraph.node import SCALARS, Build, Expr, RefNode, Shadow

# What code may do that changes no more than variables, items of these, and attributes.
QUIET = (READS | Does.ASKS_SUPER | Does.STORES_ATTRIBUTE | Does.STORES_ITEM | Does.CHANGES_OPERAND | Does.ENTERS
         | Does.SUSPENDS | Does.AWAITS | Does.AWAITS_ITEM)
ACTING = frozenset({getattr(builtins, name) for name in """
    print open input exec eval compile setattr delattr globals locals vars next __import__ breakpoint""".split()})
ASSIGNING = frozenset({"__setattr__", "__delattr__"})
DEEPEST = 6
MOST_LEVELS = 40        # of objects in objects that are compared


class KnownCode:
    """What is known of one function and of those that it calls. graph: of the trace; it says what the trace has changed."""

    def __init__(self, graph: RefGraph) -> None:
        # Objects that the trace has changed, or that calls may have changed, which were given them.
        self.changed = {id(node.real) for effect in graph.effects for node in objects_within(operands_of(effect))}
        self.seen: dict[int, types.FunctionType] = {}
        self.read: list[Any] = []                   # objects and containers of the program's that are read
        self.escaped: list[Any] = []                # those of them which any of the code may come to know
        self.reads_state = False                    # the code names data of the program's, which need not be the same on each call
        self.called: list[Any] = []                 # what else the code names, that may be called

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the code knows by name, and so may write to."""
        return [x for x in self.called if is_a(x, torch.Tensor)]

    def learn(self, other: KnownCode) -> None:
        """What is known of more functions, which these call."""
        self.called += other.called
        self.reads_state |= other.reads_state

    def keep_to_themselves(self, functions: Iterable[Any]) -> bool:
        """Whether functions, called with new first arguments of their own, read nothing that the trace may have changed, and change
        nothing but these arguments."""
        found = list(functions)
        functions = [function for function in found if type(function) is types.FunctionType]
        self.reads_state |= len(functions) < len(found)         # an object of the program's, perhaps
        given = {function.__code__ for function in functions}
        return all(map(self.keeps_to_itself, functions)) and not (self.escaped and self.may_change(given))

    def may_change(self, given: set[types.CodeType]) -> bool:
        """Whether any of the code may change objects that have escaped, if they are passed to it. given: code that gets an object
        of its own as its first argument."""
        kinds = set(changeable_in(self.escaped))
        for x in filter(is_of_program, self.escaped):
            kinds |= set(changeable_in(values_of(x)))
            if not all(changes_nothing(method) for method in methods_of(type(x)) if method.__name__ != "__init__"):
                return True
        if not all(is_changeable(x) or is_state(x) or is_a(x, (tuple, frozenset)) for x in self.escaped):
            return True
        kinds |= {type(item) for x in self.escaped if is_a(x, type) for item in held_by_class(x)}
        if not all(map(is_tame, self.called)):
            return True
        codes = {function.__code__ for function in self.seen.values()}
        given |= {code for code in codes if code.co_name == "__init__"}
        return not all(is_quiet(code, code.co_varnames[:1] if code in given else ()) and changes_none_of(kinds, code)
                       and not changes_arguments(code) for code in codes)

    def keeps_to_itself(self, function: Any, depth: int = DEEPEST) -> bool:
        """Whether a function reads nothing that the trace may have changed, and changes only its first argument."""
        if type(function) is not types.FunctionType:
            return True
        if not is_own_file(function.__code__.co_filename):      # a decorator's, perhaps
            self.reads_state |= not is_torch(str(function.__module__))
            return depth == 0 or all(self.keeps_to_itself(part, depth - 1) for held in held_by_closure(function)
                                     for part in (dict.values(held) if is_a(held, dict) else (held,)))
        code, cells = function.__code__, function.__closure__ or ()
        if id(function) in self.seen:
            return True
        self.seen[id(function)] = function
        if depth == 0 or not is_quiet(code, code.co_varnames[:1]) or any(id(cell) in self.changed for cell in cells):
            return False
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self.escaped += [x for x in defaults if not is_stateless(x)]
        shared = dict(zip(code.co_freevars, map(content, cells), strict=True))
        self.escaped += escaping(code, collections.ChainMap(function.__globals__, vars(builtins)), shared, is_state)
        found = [*held_by_closure(function), *self.read_globals(code, function.__globals__), *defaults]
        return all(self.is_constant(item, code, depth) for item in found)

    def read_globals(self, code: types.CodeType, scope: dict[str, Any]) -> Iterable[Any]:
        """What the global names in a code object mean now; this object itself, for one that the trace has changed."""
        for name in globals_of(code):
            changed = id(scope) in self.changed and is_data_of_program(scope.get(name))
            yield self if changed else scope[name] if name in scope else vars(builtins).get(name)

    def is_constant(self, x: Any, code: types.CodeType, depth: int) -> bool:
        """Whether a name in a code object refers to nothing that holds state, or to state that is only read, and does not act on
        the world."""
        cls = type(x)
        self.reads_state |= is_data_of_program(x)
        if cls in SCALARS:
            return True
        if cls is types.FunctionType:
            return self.keeps_to_itself(x, depth - 1)
        self.called.append(x)
        if cls is types.ModuleType:
            return not is_own_file(getattr(x, "__file__", None) or "<frozen >") or self.is_constant_module(x, code, depth)
        if is_a(x, type):
            return not is_own_class(x) or self.is_constant_class(x, code, depth)
        if cls is tuple:
            return all(self.is_constant(item, code, depth) for item in x)
        if is_a(x, (KnownCode, logging.Logger)) or cls is types.BuiltinFunctionType and x in ACTING:
            return False
        if is_changeable(x) or is_of_program(x):
            self.read.append(x)
            return holds_data(x, code) and self.is_unchanged(x)
        return self.is_unchanged(x) and (not is_wrapper(x) or depth > 0 and all(
            is_stateless(part) and self.is_constant(part, code, depth - 1) for part in parts_of(x)))

    def is_unchanged(self, x: Any) -> bool:
        """Whether the trace has changed neither an object nor what it holds. Of arrays that is not known once it has any."""
        seen: dict[int, Any] = {}
        stack = [x] if self.changed else []
        for x in stack:
            if id(x) in seen or type(x) in SCALARS or is_a(x, (type, types.ModuleType, types.FunctionType)):
                continue
            seen[id(x)] = x
            if is_ndarray(x) or not self.changed.isdisjoint((id(x), id(instance_dict(x)), *map(id, type(x).__mro__))):
                return False
            stack += values_of(x)
            if is_a(x, (*CHANGEABLE, tuple, frozenset)):
                stack += dict.values(x) if is_a(x, dict) else x
        return True

    def is_constant_class(self, cls: type, code: types.CodeType, depth: int) -> bool:
        """Whether that holds for a class of the program's: for its methods, and for what it holds besides."""
        shared = [item.__func__ for base in cls.__mro__ if is_own_class(base) for item in vars(base).values()
                  if is_a(item, classmethod) and type(item.__func__) is types.FunctionType]
        if depth == 0 or not self.is_unchanged_class(cls):
            return False
        return all(self.keeps_to_itself(method, depth - 1) for method in methods_of(cls)) and all(
            is_quiet(function.__code__, ()) for function in shared) and all(
            self.is_constant(x, code, depth - 1) and all(map(changes_nothing, methods_of(type(x)))) for x in held_by_class(cls))

    def is_unchanged_class(self, cls: type) -> bool:
        """Whether the trace has changed neither a class nor one that it is derived from."""
        return self.changed.isdisjoint(map(id, cls.__mro__))

    def contents(self) -> tuple[Any, ...]:
        """What is held by all that is read, for comparisons by `same`."""
        seen: set[int] = set()
        return tuple(content_of(x, seen) for x in self.read)

    def is_constant_module(self, module: types.ModuleType, code: types.CodeType, depth: int) -> bool:
        """Whether that holds for what a code object may take out of a module of the program's."""
        scope = vars(module)
        found = [scope[name] for name in attributes_of(code) if name in scope]
        self.escaped += [x for x in found if not is_stateless(x)]
        return depth > 0 and id(scope) not in self.changed and all(self.is_constant(x, code, depth - 1) for x in found)


def objects_within(shadows: Iterable[Shadow | None]) -> Iterator[RefNode]:
    """The objects in shadows, also as parts of values that are made of them."""
    for shadow in shadows:
        if isinstance(shadow, RefNode):
            yield shadow
        elif isinstance(shadow, (Build, Expr)):
            yield from objects_within(shadow.parts)


def methods_of(cls: type) -> list[types.FunctionType]:
    """The functions in a class of the program's, and in those that it is derived from."""
    held = [x for base in cls.__mro__ if is_own_class(base) for x in vars(base).values()]
    parts = [*held, *(part for x in held if is_wrapper(x) for part in parts_of(x))]
    return [x for x in parts if type(x) is types.FunctionType]


def held_by_class(cls: type) -> list[Any]:
    """The objects held by a class of the program that can be changed."""
    return [x for base in cls.__mro__ if is_own_class(base) for name, x in vars(base).items()
            if not name.startswith("__") and (is_changeable(x) or is_of_program(x))]


def values_of(x: Any) -> list[Any]:
    """What an object of the program's holds, in its dict and in slots."""
    slots = {name for base in type(x).__mro__ for name, item in vars(base).items() if type(item) is types.MemberDescriptorType}
    return [*instance_attributes(x).values(), *(getattr(x, name, None) for name in slots)]


def is_state(x: Any) -> bool:
    """Whether an object can be changed by code that gets hold of it, or is a class that holds such an object."""
    return is_of_program(x) or is_a(x, type) and is_own_class(x) and bool(held_by_class(x))


def is_data_of_program(x: Any) -> bool:
    """Whether something is data that the program may change between two calls, or holds such by attributes."""
    if is_a(x, types.ModuleType):
        return is_own_file(getattr(x, "__file__", None) or "<frozen >")
    return type(x) in SCALARS or is_changeable(x) or is_a(x, (tuple, torch.Tensor)) or is_of_program(x) or (
        is_a(x, type) and is_own_class(x))


def is_wrapper(x: Any) -> bool:
    """Whether an object of C's stands for others: a bound method, a partial, a property."""
    cls = type(x)
    return cls not in SCALARS and not is_a(x, (type, types.ModuleType, types.FunctionType)) and (
        callable(x) and not in_python(x, "__call__") or hasattr(cls, "__get__") and not in_python(x, "__get__"))


def parts_of(x: Any) -> Iterator[Any]:
    """What that refers to, but for what describes it."""
    for part in gc.get_referents(x):
        yield from ([item for name, item in part.items() if not (type(name) is str and name.startswith("__"))]
                    if type(part) is dict else (part,))


def changes_nothing(function: types.FunctionType) -> bool:
    """Whether a function changes only its variables."""
    return is_quiet(function.__code__, ()) and changes_none_of(set(CHANGEABLE), function.__code__)


def is_tame(x: Any) -> bool:
    """Whether nothing that this code names changes an object that it is given, except tensors (torch's functions). Functions of the
    program are examined by themselves."""
    if is_a(x, type):
        return x in BUILTINS or is_own_class(x) or is_torch(x.__module__) or issubclass(x, BaseException)
    if is_a(x, types.ModuleType):
        return x is math or is_torch(x.__name__) or is_own_file(getattr(x, "__file__", None) or "<frozen >")
    if not callable(x) or is_of_program(x) or type(x) is types.BuiltinFunctionType and x in BUILTINS:
        return True
    owner = getattr(x, "__self__", None)
    return is_torch(getattr(owner if is_a(owner, type) else x, "__module__", None) or "")


def is_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def is_stateless(x: Any) -> bool:
    """Whether what a function or a wrapper holds is no state."""
    return not is_changeable(x) and not is_a(x, tuple) and not is_of_program(x) or is_a(x, tuple) and all(map(is_stateless, x))


def content(cell: types.CellType) -> Any:
    """What a variable that functions share holds, or None."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def is_of_program(x: Any) -> bool:
    """Whether an object is what the program makes to hold things."""
    return is_a(x, (types.SimpleNamespace, argparse.Namespace)) or is_own_class(type(x))


def is_own_class(cls: type) -> bool:
    """Whether a class is part of the program."""
    return is_own_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen >")


def holds_data(x: Any, code: types.CodeType) -> bool:
    """Whether what code that knows an object by name finds there is data, or methods that only read."""
    return is_ndarray(x) or is_data(x) if is_changeable(x) else all(can_be_read(x, name) for name in known_names(x, code))


def is_only_read(x: Any, code: types.CodeType) -> bool:
    """Whether code that is given an object can only read data of it."""
    held = instance_attributes(x)
    reached = changeable_in([x] if is_changeable(x) else [
        held.get(name, lookup_class(type(x), name)) for name in known_names(x, code)])
    return holds_data(x, code) and changes_none_of(set(reached), code)


def known_names(x: Any, code: types.CodeType) -> list[str]:
    """The attributes of an object that code reads, if it does so of this one."""
    held = instance_attributes(x)
    return [name for name in attributes_of(code) if name in held or lookup_class(type(x), name) is not None]


def changeable_in(values: Iterable[Any], depth: int = DEEPEST) -> Iterator[type]:
    """The classes of the containers among values, and inside of these, that can be changed."""
    for x in values:
        if is_changeable(x):
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


def changes_arguments(code: types.CodeType) -> bool:
    """Whether a code object changes in place what it is given as an argument."""
    given = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    return any(Does.CHANGES_OPERAND in does(before) and after.value in given for before, after in itertools.pairwise(decode(code)))


def attributes_of(code: types.CodeType) -> set[str]:
    """The names of the attributes that a code object reads."""
    return {instruction.value for instruction in with_inner(code) if Does.LOADS_ATTRIBUTE in does(instruction)}


def globals_of(code: types.CodeType) -> list[str]:
    """The names of the global variables and builtins that a code object reads, in order."""
    return list(dict.fromkeys(instruction.value for instruction in with_inner(code) if Does.LOADS_GLOBAL in does(instruction)))


def is_quiet(code: types.CodeType, first: tuple[str, ...]) -> bool:
    """Whether the instructions change only variables, items of these, and attributes of the first argument."""
    last = None
    if not ASSIGNING.isdisjoint(attributes_of(code)):
        return False
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
    return instruction.value if Does.LOADS_LOCAL in does(instruction) else None
