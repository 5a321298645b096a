"""Modules and other objects that a program passes to an autograd function, as they are or in lists, tuples and dicts.

The function is one operation of the graph, which is called with these very objects. The graph refers to them weakly, and guards
make sure that they are the same and hold the same data, from which shapes of results follow. Neither the function's code nor that
of their classes may change them, since the trace may read them afterwards.
"""
from __future__ import annotations

import collections
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Frame, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.function_models.escapes import CHANGEABLE
from capture.interp.function_models.isolated_code import (
    KnownCode,
    attributes_of,
    changes_none_of,
    content,
    is_of_program,
    is_only_read,
    is_own_class,
    is_quiet,
    values_of,
)
from capture.interp.function_models.shadows import items_of
from capture.refgraph.identical import LISTS, Classes
from capture.refgraph.keys import held_by
from capture.refgraph.lookup import instance_attributes, instance_dict
from capture.refgraph.node import SCALARS, Build, RefNode, Shadow
from capture.refgraph.value_types import is_record

CONTAINERS = Classes((list, tuple, dict))
PINNED = (types.FunctionType, types.BuiltinFunctionType, type)
Spec = Callable[[tuple[Any, ...]], Any]         # makes an argument of what the graph passes


class PassedObjects:
    """The objects that are passed to one call. `leaves`: what the graph passes; `tensors`: those held by the objects, which may be
    written to."""

    def __init__(self, interp: Interpreter, cls: type) -> None:
        self.interp, self.graph, self.known = interp, interp.graph, KnownCode(interp.graph)
        parts = [getattr(cls, name, None) for name in ("forward", "setup_context", "backward")]
        self.codes = [part.__code__ for part in parts if type(part) is types.FunctionType]
        self.names = {name for code in self.codes for name in attributes_of(code)}
        self.only_read: list[Any] = []              # objects that nothing but these codes may know
        self.own_modules = False
        self.leaves: list[Value] = []
        self.tensors: list[torch.Tensor] = []
        self.seen: set[int] = set()

    def take_all(self, args: tuple[Value, ...]) -> list[Spec]:
        """How the arguments are made of the leaves."""
        specs = list(map(self.take, args))
        if self.own_modules and self.only_read:
            name = type(self.only_read[0]).__name__
            raise Break("own-code", f"a module may change a {name}, which an autograd function is handed, too")
        return specs

    def take(self, value: Value) -> Spec:
        """How the argument `value` is made."""
        if holds_objects(value.real) and type(value.real) in CONTAINERS:
            return self.take_items(value)
        if is_object(value.real):
            self.depend(value.shadow, value.real)
            self.interp.recorder.note_passed(value.real)
            node = value.shadow
            assert isinstance(node, RefNode)
            self.graph.require(node.source, "ID", value.real)
            reference = weakref.ref(value.real)
            return lambda leaves: reference()
        place = len(self.leaves)
        self.leaves.append(value)
        return lambda leaves: leaves[place]

    def take_items(self, value: Value) -> Spec:
        kind, real = type(value.real), value.real
        if not all(map(stores_nothing, self.codes)):
            raise Break("own-code", f"an autograd function is handed a {kind.__name__}, which its code may change")
        specs = [self.take(item) for item in self.items(value.shadow, real)]
        if kind is dict:
            keys = tuple(real)
            return lambda leaves: dict(zip(keys, (spec(leaves) for spec in specs)))
        return lambda leaves: kind(spec(leaves) for spec in specs)

    def items(self, shadow: Shadow, real: Any) -> Iterator[Value]:
        """What a container holds, which is guarded to hold as much."""
        if is_a(real, dict):
            assert isinstance(shadow, RefNode)
            held = held_by(real)
            for key in self.graph.dict_keys(shadow):
                yield Value(held[key], self.graph.dict_get(shadow, key))
        else:
            yield from (Value(item, part) for item, part in zip(real, items_of(self.interp, Value(real, shadow)), strict=True))

    def depend(self, shadow: Shadow, real: Any) -> None:
        """Guards the data of an object, and of the objects that it holds. Raises Break if its code may change it, or the trace has
        changed it."""
        if id(real) in self.seen:
            return
        self.seen.add(id(real))
        if type(real) in SCALARS or isinstance(shadow, Build) and not is_a(real, tuple):
            return self.graph.depend(shadow, real)
        if type(real) is tuple:
            return self.depend_all(shadow, real)
        if not isinstance(shadow, RefNode) or shadow.source is None or id(real) in self.known.changed:
            raise Break("opaque-call", f"a {type(real).__name__} that the call made or changed is handed to an autograd function")
        self.graph.touch(shadow)
        if is_a(real, torch.Tensor):
            self.tensors.append(real)
        elif is_a(real, (list, dict)):
            self.depend_all(shadow, real)
        elif is_a(real, (set, frozenset)):
            self.graph.set_state(shadow)
        elif is_a(real, PINNED):
            self.graph.require(shadow.source, "ID", real)
        elif is_object(real):
            self.depend_object(shadow, real)
        else:
            raise Break("opaque-call", f"a {type(real).__name__} is held by what is handed to an autograd function")

    def depend_all(self, shadow: Shadow, real: Any) -> None:
        for item in self.items(shadow, real):
            self.depend(item.shadow, item.real)

    def depend_object(self, node: RefNode, real: Any) -> None:
        is_module = is_a(real, torch.nn.Module)
        self.own_modules |= is_module and is_own_class(type(real))
        if not self.changes_nothing(type(real), special=not is_module):
            raise Break("own-code", f"an autograd function is handed a {type(real).__name__}, whose code may change it")
        if not is_module:
            self.only_read.append(real)
            if not all(is_only_read(real, code) for code in self.codes):
                raise Break("own-code", f"an autograd function may change the {type(real).__name__} that it is handed")
        attributes, held = self.graph.attributes(node), instance_attributes(real)
        if attributes is None or id(held) in self.known.changed:
            raise Break("opaque-call", f"a {type(real).__name__} that the call has changed is handed to an autograd function")
        names = self.graph.dict_keys(attributes) if is_module else [name for name in self.names if name in held]
        for name in names:
            self.depend(self.graph.dict_get(attributes, name), held[name])

    def changes_nothing(self, cls: type, special: bool) -> bool:
        """Whether the methods of a class change nothing. Methods of libraries are trusted to change only tensors. special: only
        methods are checked that are called without their name."""
        methods = [item for base in cls.__mro__ if is_own_class(base) for name, item in vars(base).items()
                   if type(item) is types.FunctionType and name != "__init__" and (name.startswith("__") or not special)]
        return all(is_quiet(method.__code__, ()) and stores_nothing(method.__code__) and self.known.keeps_to_itself(method)
                   for method in methods)


def stores_nothing(code: types.CodeType) -> bool:
    """Whether code changes no container."""
    return changes_none_of(set(CHANGEABLE), code)


def is_object(real: Any) -> bool:
    """Whether `real` is an instance of a class of Python that no graph can be given."""
    return not is_a(real, (torch.Tensor, *CONTAINERS, collections.OrderedDict, *PINNED, int, float, str)) and (
        type(real) not in SCALARS and type(real).__weakrefoffset__ != 0 and not is_record(real) and instance_dict(real) is not None)


def holds_objects(real: Any, depth: int = 4) -> bool:
    """Whether an argument is such an object, or a container with one."""
    if type(real) in CONTAINERS and depth:
        return any(holds_objects(item, depth - 1) for item in (real.values() if type(real) is dict else real))
    return is_object(real)


def keeps_containers(interp: Interpreter, result: Any, args: list[Any]) -> bool:
    """Whether an autograd function that has been called with these arguments keeps a list or dict of them in its context which the
    program knows elsewhere: it may change that before the backward pass, and the graph would pass a copy."""
    given = containers_in(args)
    if not given:
        return False
    parts = result if is_a(result, tuple) else (result,)
    contexts = [part.grad_fn for part in parts if is_a(part, torch.Tensor)]
    kept = given.keys() & containers_in(instance_attributes(x) for x in contexts if is_a(x, BackwardCFunction)).keys()
    nodes = [interp.graph.find(given[key]) for key in kept]
    known = KnownCode(interp.graph).changed | containers_in(variables_of(interp.frame), objects=True).keys() if kept else set()
    return not kept.isdisjoint(known) or any(node is not None and not node.created for node in nodes)


def variables_of(frame: Frame | None) -> Iterator[Any]:
    """What the variables of a frame, and of those that have called it, hold."""
    while frame is not None:
        for value in frame.locals:
            if value is not None:
                yield content(value.real) if type(value.real) is types.CellType else value.real
        frame = frame.back


def containers_in(values: Iterable[Any], objects: bool = False) -> dict[int, Any]:
    """The lists and dicts among values, and inside of these, by id. objects: also those in objects of the program's."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = list(values)
    while stack:
        x = stack.pop()
        is_container = is_a(x, (list, tuple, dict))
        if id(x) in seen or not (is_container or objects and is_of_program(x)):
            continue
        seen.add(id(x))
        if is_a(x, (list, dict)):
            found[id(x)] = x
        stack += (dict.values(x) if is_a(x, dict) else x) if is_container else values_of(x)
    return found


def applied(cls: Any, specs: list[Spec]) -> Callable[..., Any]:
    """`cls.apply` of arguments made of what the graph passes."""
    return lambda *leaves: cls.apply(*(spec(leaves) for spec in specs))


def tensors_of(values: Iterable[Any], depth: int = 8) -> Iterator[torch.Tensor]:
    """The tensors that such objects, and containers of them, hold."""
    for x in values:
        if is_a(x, torch.Tensor):
            yield x
        elif depth and (type(x) in CONTAINERS or is_object(x)):
            table = x if type(x) is dict else instance_attributes(x)
            yield from tensors_of(x if type(x) in LISTS else dict.values(table), depth - 1)
