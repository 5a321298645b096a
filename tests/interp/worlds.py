"""Runs a program by CPython and by the interpreter, and describes what can be observed of each run.

A program is a function of one argument, `log`, to which it appends what it sees on its way.
"""

from __future__ import annotations

import dis
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capture.interp import function_models, opcodes  # noqa: F401  (what they register)
from capture.interp.core import instructions  # noqa: F401  (what they register)
from capture.interp.core.frame import Frame, UserError, Value
from capture.interp.core.instructions import Instruction
from capture.interp.core.interpreter import Interpreter
from capture.interp.coroutines import generator_methods  # noqa: F401  (what they register)
from capture.interp.dispatch import accessors, calls  # noqa: F401  (what they register)
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.scalar_specialization import Numbers
from capture.refgraph.context import Context
from capture.refgraph.graph import RefGraph
from capture.refgraph.node import RefNode
from capture.refgraph.source import Function, Local

Program = Callable[[list[Any]], Any]
OWN = __file__


def describe(exception: BaseException | None, seen: tuple[int, ...] = ()) -> Any:
    """Type, text, notes, user's lines, and the same of cause, context and parts."""
    if exception is None or id(exception) in seen:
        return None
    seen += (id(exception),)
    lines = [
        (frame.f_code.co_name, line)
        for frame, line in traceback.walk_tb(exception.__traceback__)
        if frame.f_code.co_filename != OWN
    ]
    parts = [describe(part, seen) for part in exception.exceptions] if isinstance(exception, BaseExceptionGroup) else []
    return (
        type(exception).__name__,
        str(exception),
        getattr(exception, "__notes__", []),
        lines,
        exception.__suppress_context__,
        describe(exception.__cause__, seen),
        describe(exception.__context__, seen),
        parts,
    )


def observe(run: Callable[[Program, list[Any]], Any], program: Program) -> dict[str, Any]:
    """Result, exception, log, and the exception left behind as being handled."""
    log: list[Any] = []
    result = error = None
    try:
        result = run(program, log)
    except BaseException as exception:
        error = describe(exception)
    return {"result": result, "error": error, "log": log, "handled": sys.exception()}


def natively(program: Program, log: list[Any]) -> Any:
    return program(log)


def interpreted(program: Program, log: list[Any]) -> Any:
    """On real values alone."""
    interp = Interpreter(None, None)
    return result_of(interp, calls.make_frame(interp, Value(program, None), [Value(log, None)], {}))


class Deaths(Context):
    """Tells an interpreter of objects that have died."""

    interp: Interpreter

    def died(self, node: RefNode) -> None:
        self.interp.died(node)


def tracking_interpreter() -> Interpreter:
    """One that keeps shadows."""
    run = Deaths()
    graph = RefGraph(context=run)
    run.interp = Interpreter(graph, FxRecorder(graph, Numbers()))
    return run.interp


def tracked(program: Program, log: list[Any]) -> Any:
    """With shadows, as long as the trace holds."""
    interp = tracking_interpreter()
    graph = interp.graph
    function = Value(program, graph.external(program, Function()))
    return result_of(
        interp, calls.make_root_frame(interp, function, [Value(log, graph.external(log, Local("log", 0)))])
    )


def result_of(interp: Interpreter, frame: Frame) -> Any:
    """Runs a frame as a call from Python would: its exception is raised as it is."""
    try:
        return interp.run(frame).real
    except UserError as error:
        raised = error.exception
    context = raised.__context__
    try:
        raise raised
    finally:
        raised.__context__ = context
        del raised


@contextmanager
def checked_stack() -> Iterator[None]:
    """Checks, after every instruction that neither enters nor leaves a frame, that the depth of the stack changed by
    what `dis` declares."""
    before = dict(instructions.HANDLERS)

    def check(name: str, handler: instructions.Handler) -> instructions.Handler:
        def checked(interp: Interpreter, frame: Frame, instruction: Instruction) -> None:
            depth, pc = len(frame.stack), frame.pc
            handler(interp, frame, instruction)
            begins_again = frame.pc == pc - 1
            if interp.frame is frame and not begins_again and name not in RESHAPED:
                argument = instruction.arg if dis.opmap[name] >= dis.HAVE_ARGUMENT else None
                # LOAD_METHOD's second slot and CALL's are counted by PRECALL and KW_NAMES in 3.11
                effects = {
                    dis.stack_effect(dis.opmap[name], argument, jump=jump)
                    for jump in ((True, False) if frame.pc != pc or dis.opmap[name] in dis.hasjrel else (False,))
                }
                if name == "CALL":
                    effects = {-instruction.arg - 1}
                elif name == "MAKE_FUNCTION":       # in 3.13 with what SET_FUNCTION_ATTRIBUTE takes
                    effects = {-instruction.arg.bit_count()}
                assert len(frame.stack) - depth in effects, (
                    f"{name} {instruction.arg}: {depth} -> {len(frame.stack)}, not {effects}"
                )

        return checked

    for name, handler in before.items():
        instructions.HANDLERS[name] = check(name, handler)
    instructions._cache.clear()
    try:
        yield
    finally:
        instructions.HANDLERS.update(before)
        instructions._cache.clear()


# Those whose declared effect is that of the compiler's model, not of what the interpreter leaves: the iterator popped
# at exhaustion, END_SEND taken in, and what an exception handler finds.
RESHAPED = frozenset({"FOR_ITER", "SEND", "RETURN_GENERATOR", "YIELD_VALUE", "CLEANUP_THROW", "END_ASYNC_FOR"})


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from functions_in(constant)
