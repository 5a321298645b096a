"""Builtins that look at the frame which calls them. That frame is ours, so they are answered from it, or called from
stand-ins: real frames of CPython that tell file, line, function and globals of the program's own."""
from __future__ import annotations
import __future__

import _abc
import _warnings
import builtins
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from bytecode import Bytecode, CompilerFlags, Instr

from capture.interp import scope, unwind
from capture.interp.frame import Continuation, Frame, UserError, Value
from capture.interp.instructions import NULL_FIRST, decoded
from capture.interp.interpreter import Interpreter
from capture.interp.models import PURE, SEES_CALLERS, hashable, reduction
from capture.interp.polyfills.protocols import container_repr, is_shown
from capture.refgraph.node import Build, Const, DictState, ListState, Shadow

# Answered without a call when they have no arguments (`_getframe`: at most one).
MODULE_NAME = getattr(sys, "_getframemodulename", None)
FRAME_READERS = frozenset({sys._getframe, MODULE_NAME, builtins.super, builtins.globals, builtins.locals, builtins.vars,
                           builtins.dir})
# Called from stand-ins: they ask for their callers' frames, globals, or `from __future__` flags, or warn.
SENSITIVE = frozenset({_abc._abc_register, _warnings.warn, sys._getframe, builtins.exec, builtins.eval, builtins.compile,
                       builtins.__import__, type.__new__, *filter(None, [MODULE_NAME])})
MOST_STAND_INS = 64     # enough for any reasonable `stacklevel`
C_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
           types.ClassMethodDescriptorType)
FUTURE = functools.reduce(
    operator.or_, [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names])
STAND_IN = (lambda function, args, kwargs: function(*args, **kwargs)).__code__  # all of it on its first line


def must_see(interp: Interpreter, function: Any, count: int) -> bool:
    """Whether a function, called for real with `count` arguments, is to find the program's frames above its own."""
    if function is type:
        return count > 1    # a new class gets its `__module__` from them
    if isinstance(function, C_TYPES):
        return hashable(function) and function in SENSITIVE
    return not interp.inlining or hashable(function) and (
        function in SEES_CALLERS or type(function) is types.FunctionType and function in PURE)


def in_sight(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for a function that looks at its callers."""
    frames = program_frames(interp)
    level = kwargs.get("stacklevel", args[2] if function is _warnings.warn and len(args) > 2 else 1)
    if level > len(frames):                         # it looks beyond the compiled function
        if "stacklevel" in kwargs:
            kwargs["stacklevel"] = level + _own_frames()
        else:
            args = (*args[:2], level + _own_frames(), *args[3:])
    return called_from(frames, function, args, kwargs)


def in_place(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for an operation, which may warn, and is found on the stack by who looks for what takes long: it is called
    from a frame like the innermost of the program's."""
    return called_from(program_frames(interp, 1), function, args, kwargs)


def in_full_sight(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for a debugger: it finds the local variables of its callers, too."""
    return called_from(program_frames(interp), function, args, kwargs, showing=True)


def called_from(frames: list[Frame], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                showing: bool = False) -> Any:
    """Calls a function from stand-ins of `frames`, the innermost first. Raises UserError, without an entry of ours. showing: they
    have the local variables."""
    call: tuple[Any, tuple[Any, ...], dict[str, Any]] = function, args, kwargs
    stand_ins = set()
    for frame in frames:
        values = bound_locals(frame) if showing else {}
        code = full_stand_in_of(frame, list(values)) if showing else stand_in_of(frame)
        caller = types.FunctionType(code, frame.globals)  # type: ignore[arg-type]
        stand_ins.add(id(code))
        call = caller, (*call, *values.values()), {}
    try:
        return call[0](*call[1], **call[2])
    except BaseException as exception:
        entry = exception.__traceback__.tb_next  # type: ignore[union-attr]
        while entry is not None and id(entry.tb_frame.f_code) in stand_ins:
            entry = entry.tb_next
        exception.__traceback__ = entry
        error = exception
    raise UserError(error)


def warned(interp: Interpreter, depth: int = 0) -> tuple[int, tuple[Any, ...]] | None:
    """What the program has been warned of at its present line, or at that of a caller, and is not to be again: the version of the
    filters and the keys, as a module's `__warningregistry__` has them. None if there is nothing."""
    frame = next(iter(program_frames(interp, depth + 1)[depth:]), None)
    known = None if frame is None else frame.globals.get("__warningregistry__")
    if not known:
        return None
    keys = tuple(key for key in known if type(key) is tuple and len(key) == 3 and key[2] == frame.line)  # type: ignore[union-attr]
    return (known.get("version", 0), keys) if keys else None


def program_frames(interp: Interpreter, most: int = MOST_STAND_INS) -> list[Frame]:
    """The innermost frames of the program, the innermost first."""
    frames: list[Frame] = []
    frame = interp.frame
    while frame is not None and len(frames) < most:
        if frame.globals.get("__package__") not in unwind.OWN_PACKAGES:
            frames.append(frame)
        frame = frame.back
    return frames


def _own_frames() -> int:
    """How many frames of ours are between the program's innermost stand-in and the caller of the compiled function."""
    frame, count = sys._getframe(1), 1      # that of `called_from`
    while frame is not None and frame.f_globals.get("__name__", "").startswith("capture."):
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


def stand_in_of(frame: Frame) -> types.CodeType | None:
    """Code that looks like a frame's where that is now, and calls what it is given; None for a frame of our own."""
    if frame.globals.get("__package__") in unwind.OWN_PACKAGES:
        return None
    known, line, code = decoded(frame.code).stand_ins, frame.line, frame.code
    if line not in known:
        known[line] = STAND_IN.replace(
            co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line,
            co_flags=STAND_IN.co_flags & ~FUTURE | code.co_flags & FUTURE)
    return known[line]


def full_stand_in_of(frame: Frame, names: list[str]) -> types.CodeType:
    """Code that looks like a frame's where that is now: it has these variables, whose values follow what it is to call."""
    code, made = frame.code, Bytecode()
    made.name, made.qualname, made.filename, made.first_lineno = code.co_name, code.co_qualname, code.co_filename, frame.line
    made.flags = CompilerFlags.OPTIMIZED | CompilerFlags.NEWLOCALS
    called = [".function", ".args", ".kwargs"]
    made.argnames = [*called, *names]
    made.argcount = len(made.argnames)
    operands = [operation for name in called for operation in (("LOAD_FAST", name), ("DELETE_FAST", name))]
    at_null = 0 if NULL_FIRST else 2
    made.extend(Instr(*each, lineno=frame.line) for each in (     # type: ignore[arg-type]
        ("RESUME", 0), *operands[:at_null], ("PUSH_NULL",), *operands[at_null:], ("CALL_FUNCTION_EX", 1), ("RETURN_VALUE",)))
    return made.to_code()


def with_scope(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The arguments of a call with the scope made explicit that it would take from its caller."""
    frame = interp.frame
    if frame is None or kwargs:
        return args
    if real in (builtins.exec, builtins.eval) and all(arg.real is None for arg in args[1:]):
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
    if in_cell and first is not None and isinstance(first.real, types.CellType):
        first = scope.load_cell(interp, first, frame.code.co_varnames[0])
    if first is None:
        unwind.throw(RuntimeError("super(): arg[0] deleted"))
    proxy = interp.real(super, cls.real, first.real)
    return Value(proxy, Build(super, (cls.shadow, first.shadow)) if interp.tracking else None)


def frame_object(interp: Interpreter, reader: Any, args: list[Value]) -> Value | None:
    """`sys._getframe(depth)`: a frame like the program's, of which the trace knows globals, code and line; or the name of its
    module. None for one beyond the program's frames."""
    depth = args[0].real if args else 0
    frames = program_frames(interp)
    if type(depth) is not int or not 0 <= depth < len(frames):
        return None
    real = in_sight(interp, reader, depth)

    def model() -> Shadow:
        for value in args:
            interp.graph.depend(value.shadow, value.real)
        namespace = scope.globals_node(interp, frames[depth])
        if reader is MODULE_NAME:
            return interp.graph.dict_get(namespace, "__name__")
        node = interp.graph.create(real)
        node.slots |= {"f_globals": namespace, "f_code": interp.graph.constant(real.f_code), "f_lineno": Const(real.f_lineno)}
        return node
    return Value(real, interp.track(model))


def bound_locals(frame: Frame) -> dict[str, Any]:
    """The local variables of a frame that have a value, cells opened; of a class body, its names."""
    if frame.namespace is not None:
        return dict(frame.namespace.real)
    code = frame.code
    names = code.co_varnames + tuple(n for n in code.co_cellvars if n not in code.co_varnames) + code.co_freevars
    found = {}
    for name, value in zip(names, frame.locals):
        if value is not None and type(value.real) is types.CellType and name in (*code.co_cellvars, *code.co_freevars):
            found |= {name: value.real.cell_contents} if scope.is_bound(value) else {}
        elif value is not None:
            found[name] = value.real
    return found


def local_variables(interp: Interpreter, frame: Frame) -> Value:
    """`locals()`: the bound variables, cells opened; of a class body, its namespace. Until 3.12 the frame of a function keeps one
    dict of them, which each call brings up to date; then each call makes one (PEP 667)."""
    if frame.namespace is not None:
        return frame.namespace
    code = frame.code
    names = code.co_varnames + tuple(n for n in code.co_cellvars if n not in code.co_varnames) + code.co_freevars
    found: dict[str, Value] = {}
    for name, value in zip(names, frame.locals):
        in_cell = name in code.co_cellvars or name in code.co_freevars
        if in_cell and value is not None and isinstance(value.real, types.CellType):
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
        """Who watches frames is told of CPython's alone: what is called from now on gets no frames of ours."""
        if interp.tracking or kwargs or len(args) != 1:
            return False                            # which ends the trace
        interp.inlining = False
        interp.deliver(Value(interp.real(setter, args[0].real), None), then)
        return True


_watching(sys.settrace)
_watching(sys.setprofile)
