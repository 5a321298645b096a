"""Builtins that look at the frame which calls them. That frame is ours, so they are answered from it, or called from stand-ins
(`program_frames`)."""
from __future__ import annotations

import _abc
import _warnings
import builtins
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.interp.core import scope, unwind
from capture.interp.core.frame import Continuation, Frame, Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.program_frames import in_sight, program_frames
from capture.interp.core.registry import PURE, SEES_CALLERS, hashable, reduction
from capture.interp.polyfills.text import container_repr, is_shown
from capture.refgraph.classes import TYPE_VARIABLES
from capture.refgraph.identical import is_one_of
from capture.refgraph.node import Build, Const, DictState, ListState, RefNode, Shadow

# Answered without a call when they have no arguments (`_getframe`: at most one).
MODULE_NAME = getattr(sys, "_getframemodulename", None)
FRAME_READERS = frozenset({sys._getframe, MODULE_NAME, builtins.super, builtins.globals, builtins.locals, builtins.vars,
                           builtins.dir})
# Called from stand-ins: they ask for their callers' frames, globals, or `from __future__` flags, or warn.
SENSITIVE = frozenset({_abc._abc_register, _warnings.warn, sys._getframe, builtins.exec, builtins.eval, builtins.compile,
                       builtins.__import__, type.__new__, *filter(None, [MODULE_NAME]), *TYPE_VARIABLES})
MODULE = "<module>"     # the name of a module's code
OF = ".frame"           # the slot, of a frame object's node, in which the frame is
C_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
           types.ClassMethodDescriptorType)


def must_see(interp: Interpreter, function: Any, count: int) -> bool:
    """Whether a function, called for real with `count` arguments, is to find the program's frames above its own."""
    if function is type:
        return count > 1    # a new class gets its `__module__` from them
    if is_a(function, C_TYPES):
        return hashable(function) and function in SENSITIVE
    return not interp.inlining or hashable(function) and (
        function in SEES_CALLERS or type(function) is types.FunctionType and function in PURE)


def with_scope(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments of a call with the scope made explicit that it would take from its caller."""
    frame = interp.frame
    if frame is None or kwargs:
        return args
    if is_one_of(real, builtins.exec, builtins.eval) and all(arg.real is None for arg in args[1:]):
        namespace = Value(frame.globals, interp.track(scope.globals_node, interp, frame))
        return [args[0], namespace, local_variables(interp, frame)]
    return args


def frame_reader(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`super()`, `globals()`, `locals()`, `vars()`, `dir()`; None for other calls of these."""
    frame = interp.frame
    if real in (sys._getframe, MODULE_NAME) and not kwargs and len(args) <= 1:
        return frame_object(interp, real, args)
    if args or kwargs or frame is None:
        return None
    if real is builtins.globals:
        return Value(frame.globals, interp.track(scope.globals_node, interp, frame))
    if real is builtins.dir:
        found = sorted(local_variables(interp, frame).real)
        shadow = interp.track(lambda: interp.graph.create(found, ListState([Const(name) for name in found])))
        return Value(found, shadow)
    if real is not builtins.super:
        return local_variables(interp, frame)
    names = frame.code.co_freevars
    if not frame.code.co_argcount:
        unwind.throw(RuntimeError("super(): no arguments"))
    if "__class__" not in names:
        unwind.throw(RuntimeError("super(): __class__ cell not found"))
    cell = frame.locals[len(frame.locals) - len(names) + names.index("__class__")]
    if not scope.is_bound(cell):  # type: ignore[arg-type]
        unwind.throw(RuntimeError("super(): empty __class__ cell"))
    cls = scope.load_cell(interp, cell, "__class__")  # type: ignore[arg-type]
    first = frame.locals[0]
    in_cell = frame.code.co_varnames[0] in frame.code.co_cellvars
    if in_cell and first is not None and is_a(first.real, types.CellType):
        first = scope.load_cell(interp, first, frame.code.co_varnames[0])
    if first is None:
        unwind.throw(RuntimeError("super(): arg[0] deleted"))
    proxy = interp.real(super, cls.real, first.real)
    return Value(proxy, Build(super, (cls.shadow, first.shadow)) if interp.tracking else None)


def frame_object(interp: Interpreter, reader: Callable[..., Any], args: list[Value]) -> Value | None:
    """`sys._getframe(depth)`: a frame like the program's, of which the trace knows globals, code, line, local variables and caller;
    or the name of its module. None for one beyond the program's frames."""
    depth = args[0].real if args else 0
    frames = program_frames(interp)
    if type(depth) is not int or not 0 <= depth < len(frames):
        return None
    for value in args:
        interp.track(interp.graph.depend, value.shadow, value.real)
    if reader is not sys._getframe:
        namespace = interp.track(scope.globals_node, interp, frames[depth])
        return Value(in_sight(interp, reader, depth), interp.track(interp.graph.dict_get, namespace, "__name__"))
    return object_of(interp, frames[depth], frames)


def object_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value:
    """The frame object of one of the program's frames: the same as long as that lives."""
    if frame.object is None:
        real = in_sight(interp, sys._getframe, frames.index(frame))

        def model() -> Shadow:
            node = interp.graph.create(real)
            node.slots[OF] = Const(frame)
            return node
        frame.object = Value(real, interp.track(model))
    return frame.object


def attribute_of_frame(name: str) -> Callable[[Callable[[Interpreter, Frame, list[Frame]], Value | None]], Any]:
    """Registers what an attribute of a frame object is that `object_of` has made; None: what the stand-in has."""
    def register(read: Callable[[Interpreter, Frame, list[Frame]], Value | None]) -> Any:
        @reduction(types.FrameType.__dict__[name])
        def attribute(interp: Interpreter, args: list[Value], kwargs: dict[str, Value], then: Continuation | None,
                      on_raise: Any) -> bool:
            object, frames = args[0], program_frames(interp)
            of = object.shadow.slots.get(OF) if isinstance(object.shadow, RefNode) else None
            alive = [frame for frame in frames if frame.object is not None and frame.object.real is object.real]
            known = [of.value] if isinstance(of, Const) else alive
            found = read(interp, known[0], frames) if known else None
            if found is not None:
                interp.deliver(found, then)
            return found is not None
        return read
    return register


@attribute_of_frame("f_code")
def code_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value:
    """The code that it runs."""
    return Value(frame.code, interp.track(interp.graph.constant, frame.code))


@attribute_of_frame("f_globals")
def globals_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value:
    """Its global variables."""
    return Value(frame.globals, interp.track(scope.globals_node, interp, frame))


@attribute_of_frame("f_lineno")
def line_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value:
    """The line at which it is now."""
    return Value(frame.line, Const(frame.line))


@attribute_of_frame("f_back")
def caller_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value | None:
    """The frame that called it, as long as it runs."""
    caller = dict(itertools.pairwise(frames)).get(frame)
    return None if caller is None else object_of(interp, caller, frames)


@attribute_of_frame("f_locals")
def variables_of(interp: Interpreter, frame: Frame, frames: list[Frame]) -> Value:
    """Its local variables: of one that was cut by a break, those that are alive behind that."""
    return local_variables(interp, frame)


def local_variables(interp: Interpreter, frame: Frame) -> Value:
    """`locals()`: the bound variables, cells opened; of a class body, its namespace; of a module, of whose loop a function runs the
    body, its globals. Until 3.12 the frame of a function keeps one dict of them, which each call brings up to date; then each call
    makes one (PEP 667)."""
    code = frame.code
    if frame.namespace is not None:
        return frame.namespace
    if code.co_name == MODULE:
        return Value(frame.globals, interp.track(scope.globals_node, interp, frame))
    names = code.co_varnames + tuple(n for n in code.co_cellvars if n not in code.co_varnames) + code.co_freevars
    found: dict[str, Value] = {}
    for name, value in zip(names, frame.locals):
        in_cell = name in code.co_cellvars or name in code.co_freevars
        if in_cell and value is not None and is_a(value.real, types.CellType):
            value = scope.load_cell(interp, value, name) if scope.is_bound(value) else None
        if value is not None:
            found[name] = value
    if frame.variables is None or sys.version_info >= (3, 13):
        new: dict[str, Any] = {}
        frame.variables = Value(new, interp.track(interp.graph.create, new, DictState({}, complete=True)))
    for name in names:
        bring_up_to_date(interp, frame.variables, name, found.get(name))
    return frame.variables


def bring_up_to_date(interp: Interpreter, variables: Value, name: str, value: Value | None) -> None:
    """Has the dict of a frame's variables show one as it is now; None: it is not bound."""
    if value is not None:
        variables.real[name] = value.real
        interp.track(lambda: interp.graph.dict_set(variables.shadow, name, value.shadow))  # type: ignore[arg-type]
    elif name in variables.real:
        del variables.real[name]
        interp.track(lambda: interp.graph.dict_delete(variables.shadow, name))  # type: ignore[arg-type]


@reduction(is_shown)
def _is_shown(interp: Interpreter, args: list[Value], kwargs: dict[str, Value], then: Continuation | None, on_raise: Any) -> bool:
    frame, found = interp.frame, 0
    while frame is not None:
        if frame.code is container_repr.__code__ and frame.locals[0] is not None:
            found += frame.locals[0].real is args[0].real
        frame = frame.back
    interp.deliver(Value(found > 1, Const(found > 1)), then)
    return True


def _watching(setter: Callable[[Any], None]) -> None:
    @reduction(setter)
    def watch(interp: Interpreter, args: list[Value], kwargs: dict[str, Value], then: Continuation | None, on_raise: Any) -> bool:
        """A function that makes tools watch frames: they see CPython's alone, so that calls from now on get no frames of ours."""
        if interp.tracking or kwargs or len(args) != 1:
            return False                            # which ends the trace
        interp.stop_inlining()
        interp.deliver(Value(interp.real(setter, args[0].real), None), then)
        return True


_watching(sys.settrace)
_watching(sys.setprofile)
