"""Python code that only computes with the tensors and numbers it is given. Called again with tensors of the same form, it does the
same, as long as its names mean the same.

The code may use torch's operations, and functions of the program that are such code as well. It asks a tensor only for what follows
from its form (dtype, shape …).
"""
from __future__ import annotations

import builtins
import math
import operator
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.amp.autocast_mode import custom_bwd, custom_fwd
from torch.autograd.function import FunctionCtx, once_differentiable

from capture._C import is_a
from capture.errors import Break
from capture.interp.function_models.isolated_code import KnownCode, attributes_of, content, globals_of, is_torch
from capture.interp.function_models.pinned_code import pin_attributes, pin_code, pin_globals
from capture.interp.function_models.read_only_methods import BUILTINS
from capture.interp.recording.tensors import is_operation
from capture.operators.properties import READERS, Property, has
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import SCALARS, Build, Shadow

# Builtins that tell one object from another, or write.
TELLING = frozenset({type, id, repr, str, ascii, format, bytes})
NAMEABLE = frozenset(map(id, (BUILTINS - TELLING) | {torch.Size, torch.Tensor, torch.no_grad, torch.dtype, torch.device}))
CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.device)
# What tensors and contexts are asked that follows from more than the form of tensors, or changes more than values.
ASKING = frozenset("""
    grad _grad grad_fn _version _base is_leaf retain_grad register_hook register_prehook register_post_accumulate_grad_hook backward
    set_ untyped_storage requires_grad_ mark_dirty mark_shared_storage set_materialize_grads save_for_forward metadata
    next_functions to_save __class__ __dict__ resize_ resize_as_ share_memory_ names rename_ __subclasses__ mro
    """.split()) | READERS
# What Python's instructions call of tensors without naming it.
OF_OPERATOR = {name for name, value in vars(operator).items() if type(value) is types.BuiltinFunctionType and name[:2] == "__"}
OPERATORS = ("__len__", "__iter__", "__bool__", "__getattribute__", "__getattr__", *(
    name for name in dir(torch.Tensor) if not OF_OPERATOR.isdisjoint((name, name.replace("__r", "__", 1)))))
OF_LAYOUT = frozenset({"stride", "is_contiguous", "storage_offset", "is_non_overlapping_and_dense"})


class Unfit(Exception):
    """Code may do something else than to compute."""


def code_under(function: Any) -> tuple[types.FunctionType, bool]:
    """The function of the program's under decorators of torch's for passes, and whether one of these forbids that it be
    differentiated."""
    once = False
    while type(function) is types.FunctionType:
        if (found := DECORATORS.get(function.__code__)) is None:
            return function, once
        once |= found[1]
        function = dict(zip(function.__code__.co_freevars, map(content, function.__closure__ or ()), strict=True))[found[0]]
    raise Unfit("a pass is no function")


def _pass(ctx: Any) -> None:
    """A pass, to be decorated."""


DECORATORS = {decorated.__code__: (name, once) for decorated, name, once in [
    (once_differentiable(_pass), "fn", True),
    (custom_fwd(_pass, device_type="cpu"), "fwd", False), (custom_bwd(_pass, device_type="cpu"), "bwd", False)]}


class ComputingCode:
    """The code of some functions, and of those that they call. Raises Unfit where it may do something else."""

    def __init__(self, graph: RefGraph, functions: Sequence[types.FunctionType]) -> None:
        self.graph = graph
        known = KnownCode(graph)
        if not known.keep_to_themselves(functions):
            raise Unfit("it changes objects")
        self.functions = list(known.seen.values())
        if not all(any(function is each for each in self.functions) for function in functions):
            raise Unfit("it is code of a library, which is not looked at")
        self.modules: dict[int, types.ModuleType] = {}
        self.attributes = set().union(*(attributes_of(function.__code__) for function in self.functions))
        if not self.attributes.isdisjoint(ASKING) or any(has(name, Property.UNGUARDED) for name in self.attributes if (
                name in vars(torch.Tensor) or name in vars(torch._C.TensorBase))):
            raise Unfit("it asks more of tensors than their form")
        for function in self.functions:
            for value in (*self.held(function), *(value for _, value in read_globals(function))):
                self.check(value)

    def attributes_of(self, function: types.FunctionType) -> set[str]:
        """The attributes that a function reads, and those that it calls."""
        known = KnownCode(self.graph)
        known.keep_to_themselves([function])
        return set().union(*(attributes_of(each.__code__) for each in known.seen.values()))

    def held(self, function: types.FunctionType) -> Iterator[Any]:
        """What a function holds besides its code."""
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        yield from map(content, function.__closure__ or ())

    def check(self, value: Any) -> None:
        """Raises Unfit for what a name may not refer to."""
        if type(value) is types.ModuleType and (value is math or is_torch(value.__name__)):
            if id(value) not in self.modules:
                self.modules[id(value)] = value
                for name in self.attributes & vars(value).keys():
                    self.check(vars(value)[name])
        elif type(value) is tuple:
            for item in value:
                self.check(item)
        elif not (type(value) in SCALARS or is_a(value, CONSTANTS) or is_operation(value) or is_math(value) or id(value) in NAMEABLE
                  or is_a(value, type) and issubclass(value, Exception) and value.__module__ == "builtins"
                  or any(value is function for function in self.functions)):
            raise Unfit(f"it names {value!r:.80}")

    def pin(self, classes: set[type]) -> None:
        """Guards what the functions and names are, and what tensors of these classes do. Raises Break where that is not known."""
        graph = self.graph
        for function in self.functions:
            node = pin_code(graph, function)
            if node is None:
                raise Break("opaque-call", "an autograd function of the trace's own calls a function that it makes")
            for part in ("__defaults__", "__kwdefaults__", "__closure__"):
                self.pin_all(graph.slot(node, part, getattr(function, part)), getattr(function, part))
            pin_globals(graph, node, function, [name for name, _ in read_globals(function)])
        for module in self.modules.values():
            pin_attributes(graph, module, self.attributes & vars(module).keys())
        for cls in (torch.Tensor, FunctionCtx, *sorted(classes - {torch.Tensor}, key=id)):
            pin_special(graph, cls, *sorted(self.attributes & set(dir(cls))), *(OPERATORS if cls is not FunctionCtx else ()))

    def pin_all(self, shadow: Shadow, real: Any) -> None:
        """Guards what defaults and the variables of a closure hold."""
        if real is None:
            self.graph.depend(shadow, real)
        elif is_a(real, dict):
            for key, item in real.items():
                self.graph.depend(self.graph.dict_get(shadow, key), item)  # type: ignore[arg-type]
        else:
            assert isinstance(shadow, Build)
            for item, value in zip(shadow.items, real, strict=True):
                if type(value) is types.CellType:
                    item, value = self.graph.slot(item, "cell_contents", content(value)), content(value)  # type: ignore[arg-type]
                self.graph.depend(item, value)


def is_math(value: Any) -> bool:
    """Whether something is a function of the module `math`."""
    return type(value) is types.BuiltinFunctionType and value.__module__ == "math"


def read_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The global variables and builtins that a function's code reads. Raises Unfit where there is none of the name."""
    for name in globals_of(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif name in vars(builtins):
            yield name, vars(builtins)[name]
        else:
            raise Unfit(f"the name {name} refers to nothing")
