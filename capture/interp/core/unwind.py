"""Exceptions of the program: raising them, finding their handlers, and keeping true which one is being handled."""
from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from capture import _C
from capture._C import is_a
from capture.interp.core.frame import Abandoned, Frame, UserError, Value
from capture.interp.core.instructions import Cover, exception_table
from capture.refgraph.class_attributes import naming
from capture.refgraph.effects import Traceback
from capture.refgraph.identical import Classes
from capture.refgraph.lookup import arguments_of
from capture.refgraph.node import SCALARS, Build, Const, RefNode, Shadow
from capture.refgraph.runtime import extend

if TYPE_CHECKING:
    from capture.interp.core.interpreter import Interpreter

# Builtins written in Python: in a traceback they are as invisible as those written in C.
OWN_PACKAGES = frozenset({"capture.interp.polyfills", "capture.interp.function_models"})


def throw(exception: BaseException) -> NoReturn:
    """Raises an exception in the current frame, as new: the exception being handled becomes its context."""
    traceback = exception.__traceback__
    try:
        raise exception
    except BaseException:
        exception.__traceback__ = traceback
    raise UserError(exception)


def hand_on(interp: Interpreter, exception: BaseException, on_raise: Callable[[BaseException], bool] | None) -> None:
    """An exception comes out of an operation: `on_raise` takes it over, or it goes on. Not to be called while our own code
    handles an exception, which the program would then see."""
    if on_raise is None or not on_raise(exception):
        raise UserError(exception)
    interp.caught(exception)


def raised(interp: Interpreter, exception: BaseException, reraised: bool, outer: Frame | None) -> None:
    """Leaves frames until one has a handler for `exception`, which then is about to run. Raises UserError when `outer`
    is reached. Every frame passed, the catching one too, becomes an entry of the traceback; not the first one if
    `reraised`."""
    while True:
        frame = interp.frame
        if frame is outer:
            raise UserError(exception)
        assert frame is not None
        own = frame.globals.get("__package__") in OWN_PACKAGES
        if not reraised and not own:
            before = exception.__traceback__
            exception.__traceback__ = _C.make_traceback(before, frame.code, frame.globals, frame.instruction.offset, frame.line)
            interp.track(_extend_traceback, interp, frame, exception, before)
        reraised = False
        cover = find_cover(frame) if own or not is_a(exception, Abandoned) else None
        if cover is not None:
            try:
                interp.caught(exception)
            except UserError as abandoned:
                exception, reraised = abandoned.exception, True
                continue
            del frame.stack[cover.depth:]
            if cover.lasti:
                unit = frame.instruction.offset // 2
                frame.stack.append(Value(unit, Const(unit)))
            frame.stack.append(exception_value(interp, exception))
            frame.pc = cover.target
            return
        if frame.asked is not None and is_a(exception, AttributeError):
            tell_attribute(interp, exception, *frame.asked)
        on_raise = frame.on_raise
        show_locals(frame, exception)
        interp.leave(frame)
        if on_raise is not None:
            try:
                taken, replaced = on_raise(exception), None
            except UserError as error:
                taken, replaced = False, error.exception
            if taken:
                interp.caught(exception)
                return
            if replaced is not None:
                exception, replaced = replaced, None


def show_locals(frame: Frame, exception: BaseException) -> None:
    """Sets the local variables that an exception's traceback shows for a frame that it leaves. They live as long as the
    traceback."""
    bound = {place: value.real for place, value in enumerate(frame.locals) if value is not None}
    names = None if frame.namespace is None else frame.namespace.real
    seen: set[int] = set()
    link: BaseException | None = exception
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__traceback__ is not None:
            _C.show_locals(link.__traceback__, frame.code, bound, names)
        link = link.__context__


def tell_attribute(interp: Interpreter, exception: AttributeError, obj: Value, name: str) -> None:
    """Sets `name` and `obj` of an AttributeError that leaves a property or `__getattr__`, as CPython does, if they are not set."""
    if exception.name is None and exception.obj is None:
        exception.name, exception.obj = name, obj.real
        interp.track(_told, interp, exception, obj, name)


def _told(interp: Interpreter, exception: AttributeError, obj: Value, name: str) -> Shadow:
    node = _exception_shadow(interp, exception)
    interp.graph.set_slot(node, "name", Const(name))
    interp.graph.set_slot(node, "obj", obj.shadow)
    return node


def is_asynchronous(exception: BaseException) -> bool:
    """Whether an exception came out of a signal handler, which may run in the midst of our own code."""
    return is_a(exception, KeyboardInterrupt) or from_handler(exception) is not None


def from_handler(exception: BaseException) -> types.TracebackType | None:
    """The part of a traceback that begins in a signal handler of the program's; None where there is none."""
    codes = {getattr(handler, "__code__", None) for handler in map(signal.getsignal, signal.valid_signals()) if callable(handler)}
    entry = exception.__traceback__
    while entry is not None and entry.tb_frame.f_code not in codes:
        entry = entry.tb_next
    return entry


def is_handled(interp: Interpreter) -> bool:
    """Whether some handler, `finally` or `with` of the live frames takes over an exception that is raised now."""
    frame = interp.frame
    while frame is not None:
        if find_cover(frame) is not None:
            return True
        frame = frame.back
    return False


def find_cover(frame: Frame) -> Cover | None:
    """What handles an exception raised by the present instruction."""
    at = frame.pc - 1
    for cover in exception_table(frame.code):
        if cover.start <= at < cover.end:
            return cover
    return None


# Exceptions which are all that their arguments are.
PLAIN_EXCEPTIONS = Classes((ZeroDivisionError, OverflowError, ArithmeticError, TypeError, ValueError, IndexError, KeyError,
                            LookupError, RuntimeError, AssertionError, NotImplementedError))


def exception_value(interp: Interpreter, exception: BaseException) -> Value:
    """An exception as a stack slot."""
    return Value(exception, interp.track(_exception_shadow, interp, exception))


def _exception_shadow(interp: Interpreter, exception: BaseException) -> RefNode:
    node = interp.graph.find(exception)
    if node is None:        # of the interpreter itself: what it says follows from what is guarded
        if not all(type(arg) in SCALARS for arg in arguments_of(exception)):
            return interp.graph.create(exception)
        obj = exception.obj if type(exception) is AttributeError else None
        args = tuple(naming(interp.graph, arg, obj) if type(arg) is str else Const(arg) for arg in arguments_of(exception))
        node = interp.graph.create(exception, origin=Build(type(exception), args) if type(exception) in PLAIN_EXCEPTIONS else None)
        node.slots["args"] = Build(tuple, args)
    return node


def _extend_traceback(interp: Interpreter, frame: Frame, exception: BaseException, before: types.TracebackType | None) -> Shadow:
    """Notes that an exception has got an entry of its traceback for `frame`, after the real one."""
    graph, node = interp.graph, _exception_shadow(interp, exception)
    known = node.slots.get("__traceback__")
    if known is None:
        known = Const(None) if before is None else graph.find(before) if node.created else graph.slot(node, "__traceback__", before)
    if known is None:
        return node             # raised by native code of the program, which the trace does not repeat
    entry = frame.function.shadow, Const(frame.code), Const(frame.instruction.offset), Const(frame.line)
    more = known.args if isinstance(known, Traceback) else (known,)
    graph.set_slot(node, "__traceback__", Traceback(extend, (*more, *entry)))
    return node


# -- the exception being handled ---------------------------------------------------------------------------------------
# CPython keeps one per thread and one per generator; a generator without one sees that of whoever resumed it.

def swap_handled(frame: Frame, exception: BaseException | None) -> BaseException | None:
    """Makes `exception` the one being handled in `frame`, and returns which one was, to be given back later."""
    owner: Frame | None = frame
    while owner is not None and owner.generator is None:
        owner = owner.back
    if owner is None:
        previous = sys.exception()
        set_handled(exception)
        return previous
    body = owner.generator
    previous, body.handled = body.handled, exception
    set_handled(exception if exception is not None else body.base)
    return previous


def set_handled(exception: BaseException | None) -> None:
    """Sets the thread's `sys.exception()`."""
    _C.set_handled_exception(exception)

