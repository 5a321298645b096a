"""Which of the objects that code knows by name it may pass on to other code, or change.

An object does not escape if the code only takes data out of it at once: `settings.eps`, `table["sizes"][0]`, `len(names)`, `x in
names`. Once it is an argument, a variable, a result or an item of something else, or a method of it is called, any code that runs
then may have it.
"""
from __future__ import annotations

import collections
import types
from collections.abc import Iterator, Mapping
from typing import Any

from capture._C import is_a
from capture.interp.core.instructions import Does, Instruction, decode, does, with_parts
from capture.interp.core.special import in_python
from capture.interp.function_models.read_only_methods import BUILTINS, READING, has_value
from capture.refgraph.identical import LISTS, is_one_of
from capture.refgraph.lookup import MISSING, instance_attributes, lookup_class
from capture.refgraph.ndarrays import is_ndarray
from capture.refgraph.node import SCALARS

CHANGEABLE = (list, dict, set, collections.deque, bytearray)
NO_OBJECTS = (type, types.ModuleType, types.FunctionType)       # which code may name, though they have methods
LOADS = Does.LOADS_CONSTANT | Does.LOADS_LOCAL | Does.LOADS_CELL | Does.LOADS_GLOBAL       # a value, which is all that they do
MOST_LEVELS = 6


def escaping(code: types.CodeType, scope: Mapping[str, Any], shared: Mapping[str, Any], is_object: Any) -> Iterator[Any]:
    """The objects that a code object, with those inside of it, may hand on or change. scope, shared: what its global names and
    variables of other functions mean. is_object: tells instances of the program's classes, and those of the
    classes that hold something which can be changed."""
    def is_state(x: Any, depth: int = MOST_LEVELS) -> bool:
        return is_changeable(x) or is_object(x) or is_a(x, (tuple, frozenset)) and (
            depth == 0 or any(is_state(item, depth - 1) for item in x))

    def is_flat(x: Any) -> bool:
        items = dict.values(x) if is_a(x, dict) else x
        return is_ndarray(x) or is_one_of(type(x), *CHANGEABLE, tuple, frozenset) and not any(map(is_state, items))

    def stays(x: Any, steps: tuple[Instruction, ...], at: int) -> bool:
        """Whether no more than data is taken out of what is on top of the stack after the instruction at `at`."""
        asked = at > 0 and Does.LOADS_GLOBAL in does(steps[at - 1]) and is_reader(scope.get(steps[at - 1].value))
        while is_state(x):
            after, then = steps[at + 1], steps[min(at + 2, len(steps) - 1)]         # a load is not the last instruction
            facts = does(after)
            if Does.LOADS_ATTRIBUTE in facts:
                if not is_object(x):
                    return after.value in READING and is_flat(x)
                x, at = data_of(x, after.value), at + 1
                if x is MISSING:
                    return False
            elif facts & LOADS and Does.READS_ITEM in does(then):
                if is_flat(x):
                    return True
                key = getattr(after.value, "real", MISSING) if Does.LOADS_CONSTANT in facts else MISSING
                x, at = item_of(x, key), at + 2
                if x is MISSING:
                    return False
            else:
                only = Does.CALLS in facts and after.arg == 1 and not after.value       # the argument of a call
                return is_flat(x) and (Does.TAKES_ITEMS in facts or asked and only)
        return True

    for part in with_parts(code):
        # Python 3.13 puts the NULL behind what is called, which is right before the first argument otherwise.
        steps = tuple(step for step in decode(part) if Does.PUSHES_NULL not in does(step))
        for at, step in enumerate(steps):
            facts = does(step)
            names = scope if Does.LOADS_GLOBAL in facts else shared if Does.LOADS_CELL in facts else {}
            x = names.get(step.value) if step.value.__hash__ is not None else None
            if is_state(x) and not stays(x, steps, at) or acts(x, steps[at + 1:at + 2]):
                yield x


def acts(x: Any, after: tuple[Instruction, ...]) -> bool:
    """Whether the instruction after one that loads an object takes a method of it which may change it: of a stream, a queue, a
    module of torch's. What is compared by value does not change, as a rule."""
    if type(x).__eq__ is not object.__eq__ or not after or Does.LOADS_ATTRIBUTE not in does(after[0]) or is_a(x, NO_OBJECTS):
        return False
    return after[0].value not in READING and callable(lookup_class(type(x), after[0].value, None))


def is_reader(x: Any) -> bool:
    """Whether something is a builtin that only reads what it is given, which holds data alone."""
    return is_one_of(type(x), type, types.BuiltinFunctionType) and x in BUILTINS


def is_changeable(x: Any) -> bool:
    """Whether an object is a container that can be changed."""
    return is_a(x, CHANGEABLE) or is_ndarray(x)


def data_of(x: Any, name: str) -> Any:
    """The attribute of this name of an object or class of the program's, if that is data which it or its class holds."""
    if is_a(x, type):
        found = next((vars(base)[name] for base in x.__mro__ if name in vars(base)), MISSING)
        return MISSING if hasattr(type(found), "__get__") or type(x) is not type else found
    if in_python(x, "__getattribute__"):
        return MISSING
    member = lookup_class(type(x), name, MISSING)
    if type(member) is types.MemberDescriptorType:
        return member.__get__(x) if has_value(member, x) else MISSING
    found = instance_attributes(x).get(name, member)
    return MISSING if hasattr(type(found), "__get__") or hasattr(type(member), "__set__") else found


def item_of(x: Any, key: Any) -> Any:
    """What a list, tuple or dict holds at a constant."""
    try:
        return x[key] if type(x) in LISTS or type(x) is dict and type(key) in SCALARS else MISSING
    except (LookupError, TypeError):
        return MISSING
