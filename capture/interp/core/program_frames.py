"""Stand-in frames: real CPython frames that show file, line, function and globals of the program, whose own frames are in our
interpreter. C functions that look at their callers are called from these."""
from __future__ import annotations
import __future__

import _warnings
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from bytecode import Bytecode, CompilerFlags, Instr

from capture.interp.core import scope, unwind
from capture.interp.core.frame import Frame, UserError
from capture.interp.core.instructions import NULL_FIRST, decoded
from capture.interp.core.interpreter import Interpreter

MOST_STAND_INS = 64     # enough for any reasonable `stacklevel`
FUTURE = functools.reduce(
    operator.or_, [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names])
STAND_IN = (lambda function, args, kwargs: function(*args, **kwargs)).__code__  # all of it on its first line


def in_sight(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for a function that looks at its callers."""
    frames = program_frames(interp)
    level = kwargs.get("stacklevel", args[2] if function is _warnings.warn and len(args) > 2 else 1)
    if level > len(frames):                         # it looks beyond the compiled function
        if "stacklevel" in kwargs:
            kwargs["stacklevel"] = level + _own_frames()
        elif function is _warnings.warn:
            args = (*args[:2], level + _own_frames(), *args[3:])
    return called_from(frames, function, args, kwargs)


def in_place(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for an operation that may warn, or that takes long and is found on the stack by profilers: it is called
    from a frame like the innermost one of the program."""
    return called_from(program_frames(interp, 1), function, args, kwargs)


def in_full_sight(interp: Interpreter, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`Interpreter.real` for a debugger: it also finds the local variables of its callers."""
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
    """The warnings that the program has had at its present line, or at a caller's, and is not to have again: the version of the
    filters and the keys, as a module's `__warningregistry__` has them. None if there are none."""
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
    """Code of a function that looks like a frame at its present line, and calls what it is given; None for a frame of our own."""
    if frame.globals.get("__package__") in unwind.OWN_PACKAGES:
        return None
    known, line, code = decoded(frame.code).stand_ins, frame.line, frame.code
    if line not in known:
        known[line] = STAND_IN.replace(
            co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line,
            co_flags=STAND_IN.co_flags & ~FUTURE | code.co_flags & FUTURE)
    return known[line]


def full_stand_in_of(frame: Frame, names: list[str]) -> types.CodeType:
    """Code of a function that looks like a frame at its present line and has these variables; their values follow the function that
    it is to call."""
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
