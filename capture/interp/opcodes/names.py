"""Opcodes of globals, cells, attributes, imports, and the functions that close over them."""
from __future__ import annotations

import builtins
import functools
import importlib.util
import sys
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.interp.core import scope, unwind
from capture.interp.core.frame import Frame, UserError, Value
from capture.interp.core.instructions import Does, Instruction, opcode
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.program_frames import in_sight
from capture.interp.core.registry import model
from capture.interp.dispatch import attributes, calls
from capture.refgraph.node import Const, Shadow
from capture.refgraph.source import Computed, ImportedModule, Literal


@opcode("LOAD_GLOBAL", does=Does.LOADS_GLOBAL)
def load_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg & 1:
        frame.push(None)
    frame.stack.append(scope.load_global(interp, frame, instruction.value))


@opcode("STORE_GLOBAL", does=Does.STORES_NAME)
def store_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    scope.store_global(interp, frame, instruction.value, frame.pop())


@opcode("DELETE_GLOBAL", does=Does.STORES_NAME)
def delete_global(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    scope.delete_global(interp, frame, instruction.value)


# -- cells -------------------------------------------------------------------------------------------------------------

@opcode("MAKE_CELL", does=Does.MAKES_CELLS)
def make_cell(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.locals[instruction.arg] = scope.make_cell(interp, frame.locals[instruction.arg])


@opcode("COPY_FREE_VARS", does=Does.MAKES_CELLS)
def copy_free_vars(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.locals[-instruction.arg:] = scope.closure(interp, frame.function)


@opcode("LOAD_DEREF", does=Does.LOADS_CELL)
def load_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(scope.load_cell(interp, frame.locals[instruction.arg], instruction.value))  # type: ignore[arg-type]


@opcode("STORE_DEREF", does=Does.STORES_CELL)
def store_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    scope.store_cell(interp, frame.locals[instruction.arg], frame.pop())  # type: ignore[arg-type]


@opcode("DELETE_DEREF", does=Does.STORES_CELL)
def delete_deref(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    scope.delete_cell(interp, frame.locals[instruction.arg], instruction.value)  # type: ignore[arg-type]


# In 3.13 it has what SET_FUNCTION_ATTRIBUTE adds.
@opcode("MAKE_FUNCTION", does=Does.BUILDS, effect=lambda instruction, jumps: -instruction.arg.bit_count())
def make_function(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    code = frame.pop()
    cells = frame.pop() if instruction.arg & 8 else None
    annotations = frame.pop() if instruction.arg & 4 else None
    kwdefaults = frame.pop() if instruction.arg & 2 else None
    defaults = frame.pop() if instruction.arg & 1 else None
    frame.stack.append(scope.make_function(interp, frame, code, defaults, kwdefaults, annotations, cells))


# -- attributes --------------------------------------------------------------------------------------------------------

@opcode("LOAD_ATTR", does=Does.LOADS_ATTRIBUTE, until=(3, 11))
def load_attr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    attributes.load(interp, frame.pop(), instruction.value)


@opcode("LOAD_METHOD", does=Does.LOADS_ATTRIBUTE, until=(3, 11))
def load_method(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    attributes.load_method(interp, frame.pop(), instruction.value)


@opcode("LOAD_ATTR", does=Does.LOADS_ATTRIBUTE, since=(3, 12))
def load_attr_or_method(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if instruction.arg & 1:
        attributes.load_method(interp, frame.pop(), instruction.value)
    else:
        attributes.load(interp, frame.pop(), instruction.value)


@opcode("LOAD_SUPER_ATTR", does=Does.LOADS_ATTRIBUTE | Does.ASKS_SUPER, since=(3, 12))
def load_super_attr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    function, cls, self = frame.popn(3)
    if instruction.arg & 1:
        frame.push(None)
    if function.real is super:
        return attributes.load_super(interp, cls, self, instruction.value)
    calls.call(interp, function, [cls, self] if instruction.arg & 2 else [],
               then=lambda proxy: attributes.load(interp, proxy, instruction.value))


@opcode("STORE_ATTR", does=Does.STORES_ATTRIBUTE)
def store_attr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value, obj = frame.popn(2)
    attributes.store(interp, obj, instruction.value, value)


@opcode("DELETE_ATTR", does=Does.DELETES_ATTRIBUTE)
def delete_attr(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    attributes.delete(interp, frame.pop(), instruction.value)


# -- imports -----------------------------------------------------------------------------------------------------------

@opcode("IMPORT_NAME", does=Does.IMPORTS)
def import_name(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    level, fromlist = frame.popn(2)
    name = instruction.value
    if "__import__" not in frame.builtins:
        unwind.throw(ImportError("__import__ not found"))
    function = frame.builtins["__import__"]
    effectless = _is_imported(frame, name, fromlist.real, level.real)
    namespace = None if frame.namespace is None else frame.namespace.real
    perform = interp.real if effectless else functools.partial(in_sight, interp)     # what is imported may warn
    try:
        module = perform(function, name, frame.globals, namespace, fromlist.real, level.real)
    except UserError as error:
        interp.track(_depend_on_failure, interp, _full_name(frame, name, level.real), error.exception)
        raise
    frame.stack.append(Value(module, interp.track(_module_shadow, interp, function, name, module, effectless)))


def _is_imported(frame: Frame, name: str, fromlist: tuple[str, ...] | None, level: int) -> bool:
    """Whether an import finds everything there already."""
    module = sys.modules.get(_full_name(frame, name, level))
    return is_a(module, types.ModuleType) and all(item in module.__dict__ for item in fromlist or ())


def _full_name(frame: Frame, name: str, level: int) -> str:
    """The name of a module which an import names in relation to the frame's package."""
    package = (frame.globals.get("__package__") or "").split(".")
    return ".".join(filter(None, [*package[:len(package) - level + 1], name])) if level else name


def _depend_on_failure(interp: Interpreter, name: str, exception: BaseException) -> None:
    """An import failed: for want of the module, which is guarded, or for what else only another attempt can tell."""
    if is_a(exception, ModuleNotFoundError) and exception.name in prefixes(name):
        interp.graph.require(Computed(search_state, (Literal(name),)), "VALUE", search_state(name))
    else:
        interp.cannot_repeat(exception, Break("opaque-call", f"import of {name} raised"))


def prefixes(name: str) -> list[str]:
    """The names of a module and of the packages that it is in, outermost first."""
    path = name.split(".")
    return [".".join(path[:i + 1]) for i in range(len(path))]


def search_state(name: str) -> str:
    """What an import that does not find a module depends on: which of the module and its packages exist, and where they are looked
    for."""
    known = ["none" if (module := sys.modules.get(part)) is None else str(getattr(module, "__path__", "no package"))
             for part in prefixes(name)]
    return repr([*known, *sys.path, *map(id, sys.meta_path)])


def _module_shadow(interp: Interpreter, function: Any, name: str, module: Any, effectless: bool) -> Shadow:
    found = is_a(module, types.ModuleType) and sys.modules.get(module.__name__) is module
    if not found or not is_a(function, types.BuiltinFunctionType):
        raise Break("opaque-call", f"import of {name}")
    if not effectless:
        raise first_import(module.__name__)
    return interp.graph.external(module, ImportedModule(module.__name__))


_imported: set[str] = set()        # what was not there yet when a program that was being captured came to import it


def first_import(name: str) -> Break:
    """What an import that runs the code of a module means for the trace: later calls find the module there, unless it is missing
    or the program drops it each time."""
    reason = "opaque-call" if name in _imported else "preparing"
    _imported.add(name)
    return Break(reason, f"import of {name}")


def named_module(name: Any, package: Any = None) -> str | None:
    """The full name of what an import by name looks for, or None for what is no name, or leads out of all packages."""
    if type(name) is not str or not (package is None or type(package) is str):
        return None
    if not name.startswith(".") or not package:
        return name
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:         # the program's call raises it, too
        return None


def is_there(name: Any, package: Any = None) -> bool:
    """Whether an import by name finds its module, and the packages that it is in, there already."""
    found = named_module(name, package)
    return found is not None and all(is_a(sys.modules.get(part), types.ModuleType) for part in prefixes(found))


def is_new(name: Any, package: Any = None) -> bool:
    """Whether an import by name may run the code of modules, and did not before."""
    found = named_module(name, package)
    return found is not None and found not in _imported and not is_there(name, package)


def module_shadow(interp: Interpreter, result: Any, found: str, *named: Value) -> Shadow:
    """The module `found`, which an import by `named` gave."""
    for value in named:
        interp.graph.depend(value.shadow, value.real)
    return interp.graph.external(result, ImportedModule(found))


@model(importlib.import_module, applies=is_there)
def import_module(interp: Interpreter, result: Any, name: Value, package: Value | None = None) -> Shadow:
    """`importlib.import_module(name, package)`: the very module."""
    named = [name] if package is None else [name, package]
    return module_shadow(interp, result, str(named_module(*[value.real for value in named])), *named)


def go_on_natively(interp: Interpreter, *named: Value) -> None:
    """Before an import that may run the code of modules."""
    reason = first_import(str(named_module(*[value.real for value in named])))
    if interp.tries:            # to give up there would be taken for a fault of ours
        raise reason
    interp.give_up(reason)


@model(importlib.import_module, applies=is_new, prepare=go_on_natively)
def import_new_module(interp: Interpreter, result: Any, *named: Value) -> Shadow:
    raise AssertionError("the trace was given up before")


@model(builtins.__import__, applies=lambda name: is_there(name))
def import_package(interp: Interpreter, result: Any, name: Value) -> Shadow:
    """`__import__(name)`: the outermost package."""
    return module_shadow(interp, result, name.real.partition(".")[0], name)


def is_to_be_looked_for(name: Any, *rest: Any, **named: Any) -> bool:
    """Whether a module is one outside of packages that is not imported yet."""
    return type(name) is str and name.isidentifier() and name not in sys.modules and not rest and not named


@model(importlib.util.find_spec, applies=is_to_be_looked_for)
def find_spec(interp: Interpreter, result: Any, name: Value) -> Shadow:
    """`importlib.util.find_spec(name)`: that there is no such module depends on what a failed import of it depends on."""
    if result is not None:
        raise Break("opaque-call", f"importlib.util.find_spec({name.real!r}) of a module that is not imported")
    interp.graph.depend(name.shadow, name.real)
    interp.graph.require(Computed(search_state, (Literal(name.real),)), "VALUE", search_state(name.real))
    return Const(None)


@opcode("IMPORT_FROM", does=Does.IMPORTS)
def import_from(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
    module, name = frame.stack[-1], instruction.value
    assert module is not None

    def missing(exception: BaseException) -> bool:
        if not is_a(exception, AttributeError):
            return False
        package = getattr(module.real, "__name__", None)
        submodule = sys.modules.get(f"{package}.{name}") if is_a(package, str) else None
        if submodule is None:
            unwind.throw(_import_error(module.real, package, name))
        frame.stack.append(Value(submodule, interp.track(_module_shadow, interp, __import__, name, submodule, True)))
        return True
    attributes.load(interp, module, name, on_raise=missing)


def _import_error(module: Any, package: Any, name: str) -> ImportError:
    """The error of CPython for a name that a module lacks."""
    package = package if is_a(package, str) else "<unknown module name>"
    path = getattr(module, "__file__", None)
    if path is None:
        return ImportError(f"cannot import name {name!r} from {package!r} (unknown location)", name=package)
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    hint = repr(package)
    if initializing:
        hint = f"partially initialized module {hint} (most likely due to a circular import)"
    return ImportError(f"cannot import name {name!r} from {hint} ({path})", name=package, path=path)


