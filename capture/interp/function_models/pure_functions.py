"""Python functions that only compute: they change nothing but what they have made themselves, and ask for nothing but their
arguments, constants and functions like them. To call one once more than the program does has no effect.

This is decided by their instructions. Each value on the stack, and in each variable, is one of these: made by the code itself,
something that may be called, a module, or anything.
"""
from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import types
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture._C import is_a
from capture.code_names import SUSPENDS, argument_names
from capture.interp.core.instructions import Does, Instruction, decode, does, exception_table, stack_effect, successors, with_parts
from capture.interp.core.special import in_python
from capture.interp.function_models.isolated_code import globals_of, is_quiet, known_names
from capture.interp.function_models.read_only_methods import BUILTINS, can_be_read, has_value, held_by_closure
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.lookup import instance_attributes, lookup_class
from capture.refgraph.node import SCALARS


class Unfit(Exception):
    """A function may do something else than to compute."""


@dataclass(frozen=True)
class What:
    """What is known of a value."""

    own: bool = False           # the code has made it, or it cannot be changed
    callable: bool = False      # to call it only computes
    makes: bool = False         # … and what that returns is `own`
    module: Any = None


ANY, OWN, CALLABLE, MAKER = What(), What(own=True), What(callable=True), What(callable=True, makes=True)
NULL = What(module=0)           # CPython's, beside what is called
MAKERS = frozenset(map(id, (list, dict, set, sorted, len, range, int, float, bool, abs, divmod, isinstance, issubclass)))
CALLED = frozenset(map(id, (BUILTINS - {id, hash}) | {map, filter, functools.reduce, torch.Size, issubclass}))
MODULES = {math: frozenset(vars(math)), torch: frozenset({"Size"}), functools: frozenset({"reduce"}), operator: frozenset(
    "add sub mul floordiv mod truediv pow neg pos abs index eq ne lt le gt ge and_ or_ xor not_ truth contains getitem".split())}
CONTAINERS, FIXED = (list, dict, set, deque, bytearray), (tuple, str, bytes, frozenset, types.MappingProxyType)
MUTATORS = frozenset(name for cls in CONTAINERS for name in dir(cls) if not any(hasattr(fixed, name) for fixed in FIXED))
CONSTANTS = Classes((*SCALARS, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size))
HARMLESS = frozenset({"__init__"})      # what an object may define that nothing but its making calls
MOST_FUNCTIONS, MOST_LEVELS = 20, 6
ARITHMETIC = frozenset(id(item) for item in vars(operator).values() if type(item) is types.BuiltinFunctionType)


def only_computes(function: types.FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a function with arguments like these does nothing but compute."""
    try:
        _Functions(function).check(args, kwargs)
    except Unfit:
        return False
    return True


class _Functions:
    """A function, and those that it calls."""

    def __init__(self, function: types.FunctionType) -> None:
        self.functions = [function]

    def check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises Unfit if any of it may do more than to compute."""
        try:
            given = inspect.signature(self.functions[0], follow_wrapped=False).bind(*args, **kwargs)
        except (TypeError, ValueError):
            raise Unfit("the arguments do not fit") from None
        given.apply_defaults()
        kinds = {name: parameter.kind for name, parameter in given.signature.parameters.items()}
        fixed = {name for name, x in given.arguments.items() if (
            type(x) in CONSTANTS or type(x) is tuple or kinds[name] is inspect.Parameter.VAR_KEYWORD)}
        for function in self.functions:         # which grows
            if len(self.functions) > MOST_FUNCTIONS:
                raise Unfit("it calls many functions")
            for part in with_parts(function.__code__):
                if part is function.__code__ and part.co_flags & SUSPENDS or not is_quiet(part, ()):
                    raise Unfit("it changes what others see")
            held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *held_by_closure(function)]
            for x in held:
                self.meaning(x)
            for name in globals_of(function.__code__):
                self.meaning(global_of(function, name))
            _Values(self, function, fixed if function is self.functions[0] else set()).check()
        for x in (*args, *kwargs.values()):
            check_argument(x, self.functions)

    def meaning(self, x: Any) -> What:
        """What a name stands for. Raises Unfit for what is not known to compute."""
        if type(x) is types.FunctionType:
            if x is self.functions[0]:
                raise Unfit("it calls itself, with other arguments")
            if not any(x is known for known in self.functions):
                self.functions.append(x)
            return CALLABLE
        if id(x) in MAKERS:
            return MAKER
        if id(x) in CALLED or is_exception(x):
            return CALLABLE
        if type(x) is types.ModuleType and x in MODULES:
            return What(module=x)
        if not is_builtin_data(x):
            raise Unfit(f"it names {type(x).__name__}")
        return OWN if type(x) in CONSTANTS else ANY


LEAVING = Does.JUMPS | Does.BRANCHES | Does.LEAVES | Does.BEGINS | Does.MAKES_CELLS       # the rest of the stack as it is
SLICE_STORED = -4


class _Values:
    """The values in the variables, and on the stack, of one function and of the functions inside of it. A variable counts by its
    name alone, whichever of these functions it is of."""

    def __init__(self, known: _Functions, function: types.FunctionType, fixed: set[str]) -> None:
        """fixed: names of arguments that cannot be changed."""
        self.known, self.function, self.parts = known, function, tuple(with_parts(function.__code__))
        given = {name for part in self.parts for name in argument_names(part) if part is not function.__code__ or name not in fixed}
        self.given = given | set(function.__code__.co_freevars)
        self.variables: dict[str, What] = dict.fromkeys(self.given, ANY)

    def check(self) -> None:
        """Raises Unfit if any instruction may do more than to compute. What is known of variables gets less until it holds."""
        before: dict[str, What] | None = None
        while before != self.variables:
            before = dict(self.variables)
            for part in self.parts:
                self.walk(part, judge=False)
        for part in self.parts:
            self.walk(part, judge=True)

    def walk(self, code: types.CodeType, judge: bool) -> None:
        """Follows the instructions of a code object. judge: raise Unfit, now that it is known what variables hold."""
        steps = decode(code)
        stacks: dict[int, list[What]] = {0: []}
        todo = [0]
        handlers = [(cover, [ANY] * (cover.depth + cover.lasti + 1)) for cover in exception_table(code)]

        def reach(at: int, stack: list[What]) -> None:
            known = stacks.get(at)
            merged = stack if known is None else list(map(join, known, stack))
            if merged != known:
                if known is not None and len(known) != len(stack):
                    raise Unfit("its stack is not understood")
                stacks[at] = merged
                todo.append(at)
        while todo:
            at = todo.pop()
            for cover, stack in handlers:
                if cover.start <= at < cover.end:
                    reach(cover.target, stack)
            for after in successors(steps[at], at):
                jumps = after != at + 1
                reach(after, self.after(steps[at], list(stacks[at]), jumps, judge))

    def after(self, step: Instruction, stack: list[What], jumps: bool, judge: bool) -> list[What]:
        """The stack after an instruction."""
        facts, change = does(step), stack_effect(step, jumps)
        if Does.CALLS in facts or Does.CALLS_NAMED in facts:
            return self.call(stack, step.arg + (Does.CALLS_NAMED in facts), judge)
        if Does.LOADS_GLOBAL in facts:
            return [*stack, *[NULL] * (change - 1), self.known.meaning(global_of(self.function, step.value))]
        if Does.LOADS_ATTRIBUTE in facts:
            owner = stack.pop()
            return [*stack, self.attribute(owner, step.value, judge), *[owner] * change]
        if Does.SWAPS in facts:
            stack[-1], stack[-step.arg] = stack[-step.arg], stack[-1]
            return stack
        if Does.COPIES in facts or Does.PUSHES_NULL in facts:
            return [*stack, stack[-step.arg] if Does.COPIES in facts else NULL]
        if Does.STORES_ITEM in facts:
            if judge and not stack[-2 if change > SLICE_STORED else -3].own:
                raise Unfit("it stores items in what it is given")
        elif (Does.WRITES_LOCAL in facts or Does.STORES_CELL in facts) and change < 0:
            self.variables[step.value] = join(self.variables.get(step.value, stack[-1]), stack[-1])
        elif (made := self.made(step, facts, stack, judge)) is not None:
            return [*stack[:len(stack) + change - 1], made]
        elif not (facts & LEAVING or Does.FILLS in facts):
            return [ANY] * (len(stack) + change)        # it may have moved what was there
        return [*stack[:len(stack) + change], *[ANY] * change]

    def made(self, step: Instruction, facts: Does, stack: list[What], judge: bool) -> What | None:
        """What an instruction puts on the stack, if it puts one value there for those that it takes."""
        if Does.LOADS_LOCAL in facts or Does.LOADS_CELL in facts:
            return self.variables.get(step.value, OWN)
        if Does.CHANGES_OPERAND in facts and judge and not stack[-2].own:
            raise Unfit("it changes in place what it is given")
        if facts & (Does.LOADS_CONSTANT | Does.BUILDS) or Does.MAKES in facts and id(step.value) in ARITHMETIC:
            return OWN
        if Does.MAKES in facts:
            raise Unfit("it calls what is not known")
        return ANY if facts & (Does.READS_LOCAL | Does.READS_ITEM | Does.TAKES_ITEMS) else None

    def attribute(self, owner: What, name: str, judge: bool) -> What:
        """What an attribute of a value is."""
        if owner.module is not None:
            if name not in MODULES.get(owner.module, ()):
                raise Unfit(f"it names {name}")
            return CALLABLE
        if judge and not owner.own and name in MUTATORS or name.startswith("__") or name.endswith("_"):
            raise Unfit(f"it asks for {name} of what it is given")
        return CALLABLE

    def call(self, stack: list[What], taken: int, judge: bool) -> list[What]:
        """The stack after a call of what is below so many values."""
        first, second = stack[-taken - 2:len(stack) - taken]
        callee = second if first == NULL else first
        if judge and not (callee.callable or callee.own):       # a function that the code has made, or what nobody can call
            raise Unfit("it calls what it is given")
        return [*stack[:len(stack) - taken - 2], OWN if callee.makes else ANY]


def join(one: What, other: What) -> What:
    """What is known of a value that is one of two."""
    return one if one == other else What(one.own and other.own, one.callable and other.callable, one.makes and other.makes)


def global_of(function: types.FunctionType, name: str) -> Any:
    """What a global name means. Raises Unfit if there is none."""
    for scope in (function.__globals__, vars(builtins)):
        if name in scope:
            return scope[name]
    raise Unfit(f"the name {name} refers to nothing")


def is_exception(x: Any) -> bool:
    """Whether something is a class of exceptions that are made by C code."""
    return is_a(x, type) and issubclass(x, BaseException) and not any(
        type(lookup_class(x, name)) is types.FunctionType for name in ("__init__", "__new__"))


def is_builtin_data(x: Any, depth: int = MOST_LEVELS) -> bool:
    """Whether something is numbers, text and the like, and builtin containers of these."""
    if type(x) in CONSTANTS:
        return True
    if depth == 0 or not is_one_of(type(x), list, tuple, dict, set, frozenset):
        return False
    items = (part for entry in x.items() for part in entry) if type(x) is dict else x
    return all(is_builtin_data(item, depth - 1) for item in items)


def check_argument(x: Any, functions: Sequence[types.FunctionType]) -> None:
    """Raises Unfit for an argument that runs code of its own when it is used, or whose attributes are more than data."""
    if is_builtin_data(x):
        return
    if type(x) is tuple:
        for item in x:
            check_argument(item, functions)
        return
    if is_a(x, (*CONTAINERS, *FIXED, type, types.ModuleType)) or callable(x) or in_python(x, "__getattr__"):
        raise Unfit(f"it is given {type(x).__name__}")
    if any(name not in HARMLESS and name.startswith("__") and type(item) is types.FunctionType for base in type(x).__mro__
           for name, item in vars(base).items()):
        raise Unfit("it is given an object with special methods")
    held = instance_attributes(x)
    for name in {name for function in functions for name in known_names(x, function.__code__)}:
        member = lookup_class(type(x), name)
        in_slot = type(member) is types.MemberDescriptorType and has_value(member, x)
        if not can_be_read(x, name) or in_slot and not is_builtin_data(member.__get__(x)) or (
                name in held and not is_builtin_data(held[name])):
            raise Unfit(f"it asks for {name}")

