"""Names: globals, builtins, cells and closures."""
from __future__ import annotations

import builtins
import types
from typing import Any

from capture._C import is_a
from capture.errors import Break, is_file_of_capture
from capture.interp.core import unwind
from capture.interp.core.frame import ORIGINALS, Frame, Value
from capture.interp.core.interpreter import Interpreter
from capture.refgraph.node import ABSENT, Build, Const, FunctionState, RefNode, Shadow
from capture.refgraph.source import ImportedModule, InstanceDict

BUILTINS = InstanceDict(ImportedModule("builtins"))


def globals_node(interp: Interpreter, frame: Frame) -> RefNode:
    """The node of the globals of a frame's function."""
    node = frame.function.shadow
    if isinstance(node, RefNode):
        if isinstance(node.state, FunctionState):
            return node.state.globals
        return interp.graph.slot(node, "__globals__", frame.globals)  # type: ignore[return-value]
    raise Break("opaque-call", "the globals of a function of unknown origin were read")


def globals_shadow(interp: Interpreter, frame: Frame) -> Shadow:
    """The shadow of the globals of a frame's function."""
    return Const(frame.globals) if isinstance(frame.function.shadow, Const) else globals_node(interp, frame)


def load_global(interp: Interpreter, frame: Frame, name: str) -> Value:
    """A global or builtin. Raises UserError with CPython's NameError."""
    if name in frame.globals:
        return Value(frame.globals[name], interp.track(_global, interp, frame, name, frame.globals[name]))
    if name in frame.builtins:
        return Value(frame.builtins[name], interp.track(_builtin, interp, frame, name))
    interp.track(_missing, interp, frame, name)
    unwind.throw(NameError(f"name {name!r} is not defined", name=name))


def load_builtin(interp: Interpreter, frame: Frame, name: str) -> Value:
    """A builtin that exists."""
    return Value(frame.builtins[name], interp.track(_builtin, interp, frame, name))


def is_of_capture(frame: Frame) -> bool:
    """Whether a frame runs a function of our own, whose globals are ours too."""
    return frame.builtins is ORIGINALS or isinstance(frame.function.shadow, Const)


def _global(interp: Interpreter, frame: Frame, name: str, real: Any) -> Shadow:
    if is_of_capture(frame):
        ours = type(real) is types.FunctionType and is_file_of_capture(real.__code__.co_filename)
        return Const(real) if ours else interp.graph.constant(real)
    return interp.graph.dict_get(globals_node(interp, frame), name)


def _builtin(interp: Interpreter, frame: Frame, name: str) -> Shadow:
    real = frame.builtins[name]
    if is_of_capture(frame):
        return interp.graph.constant(real)
    interp.graph.dict_get(globals_node(interp, frame), name)
    if frame.builtins is not builtins.__dict__:
        raise Break("opaque-call", "the function has builtins of its own")
    return interp.graph.dict_get(interp.graph.external(frame.builtins, BUILTINS), name)  # type: ignore[arg-type]


def _missing(interp: Interpreter, frame: Frame, name: str) -> Shadow:
    interp.graph.dict_get(globals_node(interp, frame), name)
    return interp.graph.dict_get(interp.graph.external(frame.builtins, BUILTINS), name)  # type: ignore[arg-type]


def store_global(interp: Interpreter, frame: Frame, name: str, value: Value) -> None:
    interp.about_to_change(frame.globals)
    frame.globals[name] = value.real
    interp.track(_set, interp, frame, name, value)


def _set(interp: Interpreter, frame: Frame, name: str, value: Value) -> Shadow:
    interp.graph.dict_set(globals_node(interp, frame), name, value.shadow)
    return Const(None)


def delete_global(interp: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.globals:
        interp.track(lambda: interp.graph.dict_get(globals_node(interp, frame), name))
        unwind.throw(NameError(f"name {name!r} is not defined", name=name))

    def forget() -> Shadow:
        interp.graph.dict_get(globals_node(interp, frame), name)
        return Const(None)
    interp.track(forget)
    interp.about_to_change(frame.globals)
    del frame.globals[name]

    def delete() -> Shadow:
        interp.graph.dict_delete(globals_node(interp, frame), name)
        return Const(None)
    interp.track(delete)


# -- cells -------------------------------------------------------------------------------------------------------------

def make_cell(interp: Interpreter, value: Value | None) -> Value:
    """A new cell, empty when `value` is None."""
    real = types.CellType() if value is None else types.CellType(value.real)

    def model() -> Shadow:
        node = interp.graph.create(real)
        node.slots["cell_contents"] = ABSENT if value is None else value.shadow
        return node
    return Value(real, interp.track(model))


def is_bound(cell: Value) -> bool:
    """Whether a cell has contents."""
    try:
        _ = cell.real.cell_contents
    except ValueError:
        return False
    return True


def load_cell(interp: Interpreter, cell: Value, name: str) -> Value:
    """A cell's contents. Raises UserError with CPython's NameError when it is empty."""
    if not is_bound(cell):
        if interp.frame is not None and name in interp.frame.code.co_freevars:
            unwind.throw(NameError(f"cannot access free variable {name!r} where it is not associated with a value "
                                   f"in enclosing scope", name=name))
        unwind.throw(UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value", name=name))
    real = cell.real.cell_contents
    return Value(real, interp.track(lambda: interp.graph.slot(cell.shadow, "cell_contents", real)))  # type: ignore[arg-type]


def store_cell(interp: Interpreter, cell: Value, value: Value | None) -> None:
    """Assigns, or with None empties, a cell."""
    interp.about_to_change(cell.real)
    if value is None:
        del cell.real.cell_contents
    else:
        cell.real.cell_contents = value.real
    interp.track(_store_cell, interp, cell, ABSENT if value is None else value.shadow)


def _store_cell(interp: Interpreter, cell: Value, shadow: Shadow) -> Shadow:
    node: RefNode = cell.shadow  # type: ignore[assignment]
    node.slots["cell_contents"] = shadow
    if shadow is ABSENT:
        interp.graph.effect(delattr, node, Const("cell_contents"))
    else:
        interp.graph.effect(setattr, node, Const("cell_contents"), shadow)
    return Const(None)


def delete_cell(interp: Interpreter, cell: Value, name: str) -> None:
    load_cell(interp, cell, name)
    store_cell(interp, cell, None)


def closure(interp: Interpreter, function: Value) -> list[Value]:
    """The cells that a function closes over, in order of `co_freevars`."""
    real = function.real.__closure__ or ()

    def shadows() -> Any:
        node = function.shadow
        if isinstance(node, Const):
            return tuple(interp.graph.constant(cell) for cell in real)
        if isinstance(node.state, FunctionState):  # type: ignore[attr-defined]
            return node.state.closure  # type: ignore[attr-defined]
        return interp.graph.slot(node, "__closure__", real).items  # type: ignore[arg-type,attr-defined]
    known = interp.track(shadows)
    return [Value(cell, known[i] if known is not None else None) for i, cell in enumerate(real)]


def make_function(interp: Interpreter, frame: Frame, code: Value, defaults: Value | None, kwdefaults: Value | None,
                  annotations: Value | None, cells: Value | None) -> Value:
    """MAKE_FUNCTION: a new function over the globals of `frame`."""
    real = types.FunctionType(code.real, frame.globals, None, None, cells.real if cells else None)
    real.__defaults__ = defaults.real if defaults else None
    real.__kwdefaults__ = kwdefaults.real if kwdefaults else None
    if annotations is not None:
        names = annotations.real
        real.__annotations__ = dict(zip(names[::2], names[1::2])) if is_a(names, tuple) else names

    def model() -> Shadow:
        known = cells.shadow.items if cells and isinstance(cells.shadow, Build) else ()
        trusted = isinstance(frame.function.shadow, Const)
        globals = interp.graph.constant(frame.globals) if trusted else globals_node(interp, frame)
        return interp.graph.create(real, FunctionState(
            code.real, globals, defaults.shadow if defaults else Const(None),  # type: ignore[arg-type]
            kwdefaults.shadow if kwdefaults else Const(None), known))  # type: ignore[arg-type]
    return Value(real, interp.track(model))
