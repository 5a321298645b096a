"""Guards on Python code that a trace does not look into: that it is the same code, and that its names mean what they did."""
from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Collection, Iterable
from typing import Any

from capture._C import is_a
from capture.code_names import names_of
from capture.interp.core.instructions import Does, decode, does
from capture.interp.core.registry import MODELS, SIDE_EFFECTS
from capture.interp.core.scope import BUILTINS as BUILTIN_NAMES
from capture.interp.function_models.isolated_code import attributes_of, content, globals_of
from capture.interp.function_models.library_reach import Reach, reach_of
from capture.refgraph.class_attributes import type_attr
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import ABSENT, SCALARS, Build, RefNode, Shadow
from capture.refgraph.source import Attr, Constant, Item, TypeAttr

CALLED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)


def pin_modelled(graph: RefGraph, function: types.FunctionType) -> None:
    """Guards what a function of Python's library names, for which a model stands, and what that names in turn. A hit calls what
    acts on the world anew."""
    module: Any = sys.modules.get(function.__module__)
    if not is_of_python(function) or getattr(module, "__dict__", None) is not function.__globals__:
        return
    pin_code(graph, function)
    named = {name: vars(module)[name] for name in names_of(function.__code__) if name in vars(module)}
    pin_attributes(graph, module, [name for name, value in named.items() if type(value) not in SCALARS])
    pin_attributes_of_modules(graph, function, named.values())
    if not is_repeated(function) and graph.note_library(function):
        pin_reach(graph, reach_of(function))


def is_repeated(function: types.FunctionType) -> bool:
    """Whether every hit calls a function anew."""
    return function in SIDE_EFFECTS and len(MODELS[function]) == 1


def pin_reach(graph: RefGraph, reach: Reach) -> None:
    """Guards all that a function may come to; of functions that it calls itself, that they are not changed in place either. A hit
    looks at the version of each module and class."""
    for function, name, value in reach.called:
        graph.require(Attr(Constant(function), name), "ID", value)
    for module, known in reach.modules.values():
        scope = Constant(vars(module))
        for name, value in known.items():
            graph.require(Item(scope, name), "ID", value)
    for cls, known in reach.classes.values():
        owner = Constant(cls)
        for name, value in known.items():
            graph.require(TypeAttr(owner, name), "ID", value)


def is_replaced(function: types.FunctionType) -> bool:
    """Whether a function of Python's library is no longer what its model stands for: its code, or what it comes to, is something
    else."""
    if not is_of_python(function):
        return False
    original = original_meaning(function)
    if meaning_of(function) != original and meaning_of(function, imported_later(function)) != original:
        return True
    return not is_repeated(function) and not reach_of(function).is_so()


def imported_later(function: types.FunctionType) -> set[str]:
    """The global variables that a function sets itself, and in which it keeps functions in C of Python's library, since it imports
    these at its first call (`random._sha512`, since 3.12)."""
    stored = {instruction.value for instruction in decode(function.__code__) if Does.STORES_NAME in does(instruction)}
    return {name for name in stored if type(function.__globals__.get(name)) is types.BuiltinFunctionType
            and is_of_python(function.__globals__[name])}


@functools.cache
def original_meaning(function: types.FunctionType) -> list[int]:
    """`meaning_of` a function when capture was imported."""
    return meaning_of(function)


def meaning_of(function: types.FunctionType, without: Collection[str] = ()) -> list[int]:
    """The identities of a function's code, of objects that it names, and of what it may call of modules among these. without: names
    of global variables that are left out."""
    names = [name for name in names_of(function.__code__) if name not in without]
    found = list(map(function.__globals__.get, names))
    parts = [vars(module).get(name) for module in found if type(module) is types.ModuleType for name in names]
    return list(map(id, (function.__code__, *(x for x in found if type(x) not in SCALARS), *(x for x in parts if is_a(x, CALLED)))))


def is_of_python(function: types.FunctionType | types.BuiltinFunctionType) -> bool:
    """Whether a function is one of Python's library, whatever its code is now."""
    return str(function.__module__).partition(".")[0] in sys.stdlib_module_names


def pin_attributes_of_class(graph: RefGraph, cls: type, names: Iterable[str]) -> None:
    """Guards what a class has under these names."""
    for name in names:
        _, value, shadow = type_attr(graph, cls, name)
        graph.depend(shadow, value)


def pin_callables(graph: RefGraph, functions: Iterable[types.FunctionType]) -> None:
    """Guards the code of functions, and all functions, classes and modules that are among their variables, or among the attributes
    of these modules. Data may be another one on each call, as long as there is some."""
    for function in functions:
        node = pin_code(graph, function)
        if node is None:
            continue
        scope = function.__globals__
        known = {name: scope.get(name, vars(builtins).get(name)) for name in globals_of(function.__code__)}
        pin_globals(graph, node, function, [name for name, value in known.items() if is_a(value, CALLED)])
        scope_node: Any = graph.slot(node, "__globals__", scope)
        for name in known.keys() & scope.keys():
            graph.require(scope_node.source, "PRESENT", name)
        pin_cells(graph, node, function)
        pin_attributes_of_modules(graph, function, known.values())


def pin_code(graph: RefGraph, function: types.FunctionType) -> RefNode | None:
    """Guards the code of a function, and returns its node; None for one that the trace has made, and knows."""
    node = graph.constant(function)
    assert isinstance(node, RefNode)
    if node.created:
        return None
    graph.slot(node, "__code__", function.__code__)
    return node


def pin_globals(graph: RefGraph, node: RefNode, function: types.FunctionType, names: Iterable[str]) -> None:
    """Guards what these global variables and builtins of a function are."""
    scope: Any = graph.slot(node, "__globals__", function.__globals__)
    for name in names:
        shadow: Shadow = graph.dict_get(scope, name)
        if shadow is ABSENT:
            shadow = graph.dict_get(graph.external(vars(builtins), BUILTIN_NAMES), name)  # type: ignore[arg-type]
        graph.depend(shadow, function.__globals__[name] if name in function.__globals__ else vars(builtins)[name])


def pin_cells(graph: RefGraph, node: RefNode, function: types.FunctionType) -> None:
    """Guards which functions, classes and modules are variables of enclosing functions."""
    cells = function.__closure__ or ()
    shadows = graph.slot(node, "__closure__", function.__closure__)
    assert isinstance(shadows, Build) or not cells
    for cell, shadow in zip(cells, shadows.items if isinstance(shadows, Build) else ()):
        value = content(cell)
        if is_a(value, CALLED):
            graph.depend(graph.slot(shadow, "cell_contents", value), value)  # type: ignore[arg-type]


def pin_attributes_of_modules(graph: RefGraph, function: types.FunctionType, values: Iterable[Any]) -> None:
    """Guards which functions, classes and modules the modules among these values have under names that a function asks for."""
    for module in {id(value): value for value in values if is_a(value, types.ModuleType)}.values():
        named = [name for name in attributes_of(function.__code__) if is_a(vars(module).get(name), CALLED)]
        pin_attributes(graph, module, named)


def pin_attributes(graph: RefGraph, module: types.ModuleType, names: Iterable[str]) -> None:
    """Guards what a module has under these names."""
    held = graph.attributes(graph.constant(module))  # type: ignore[arg-type]
    for name in names:
        graph.depend(graph.dict_get(held, name), vars(module)[name])  # type: ignore[arg-type]
