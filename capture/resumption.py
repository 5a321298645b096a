"""Where a program goes on after a break: makes the call that no trace can hold, then the continuation.

The capturing call and every hit after it end in the same `Resumption`.
"""
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture.guards.tree import GuardTree
from capture.interp.breaks.continuation_code import Codes
from capture.interp.breaks.idle_loops import Left
from capture.interp.core import unwind
from capture.interp.core.frame import UserError, Value
from capture.interp.coroutines import generators
from capture.interp.polyfills.stand_ins import is_code_of_stand_in, turn_all

IDLE_ROUNDS = 32        # of a loop, after which it is left to CPython
Globals = dict[str, Any]
OURS = frozenset(map(id, (globals(), vars(generators))))       # globals of functions that program code is called by here


@dataclass(slots=True, eq=False)
class Loop:
    """A loop that CPython runs to its end. Holds, for both variants of the continuation (after a result, after an exception), its
    code and a function that runs that natively. If its frame is not the outermost: `outer` continues the frames outside,
    `rest(left)` all frames after the loop."""

    variants: tuple[tuple[types.CodeType, Any], ...]
    tell: Callable[[], None]            # reports that it is left to CPython
    outer: Any = None
    rest: Any = None


def natively(code: types.CodeType, scope: Globals) -> Any:
    """A CompiledFunction that has CPython run every call of `code`. Its arguments die as early as those of an ordinary call."""
    function = types.FunctionType(code, scope, code.co_name, None, tuple(types.CellType() for _ in code.co_freevars))

    def run(function: types.FunctionType, args: list[Any], tree: GuardTree) -> Any:
        if not any(type(x) is types.FunctionType and is_code_of_stand_in(x.__code__) for x in (function, *args)):
            turn_all(args)
        return _C.RUN_NATIVELY
    return _C.CompiledFunction(function, GuardTree(code), run)


def _follow(tail: Any) -> None:
    """A placeholder: a call of FOLLOW with a TailCall as its last argument makes the calls of that, to the end."""


FOLLOW = _C.CompiledFunction(_follow, GuardTree(_follow.__code__), lambda function, args, tree: args.pop())


class Resumption(_C.Resumption):
    """The continuations of one chain of live frames.

    A hit that ends here runs none of this Python code, as long as no exception is being handled or raised, and no idle loop is
    around.

    `stand_ins`: for each frame, outermost first, the frame that a callee finds above itself (None: none). `functions`: where the
    inner continuations are among the arguments of the outermost one. `make_unit(code, resumption)` makes the unit of an outermost
    continuation; there is another one for the case of an exception. `makes_no_cells`: whether the closure of the outermost one is
    that of the compiled function. Entries hold resumptions strongly, as there can be no weak references to them.
    """

    __slots__ = ("codes", "functions", "units", "leads_to", "rounds", "_make_unit")

    def __init__(self, codes: Codes, stand_ins: tuple[types.CodeType | None, ...], functions: tuple[int, ...],
                 make_unit: Callable[[types.CodeType, Resumption], Any], makes_no_cells: bool) -> None:
        self.codes, self.stand_ins, self.functions = codes, stand_ins, functions
        self.code, self.keeps_function = codes.codes[0], makes_no_cells
        self._make_unit = make_unit
        self.units: list[Any] = []
        self._add_unit(codes.codes[0])
        self.compiled = self.units[0].compiled
        self.leads_to: dict[Resumption, bool] = {}  # where its traces are cut again; whether some of these traces work on tensors
        self.idle: Loop | None = None               # around this break
        self.rounds = 0                             # of that
        self.loop: Loop | None = None               # that is left to CPython

    def __call__(self, cells: tuple[types.CellType, ...], arguments: tuple[Any, ...], scopes: tuple[Globals, ...],
                 grad: bool | None, handled: BaseException | None,
                 operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`operation(*args, **kwargs)`, then the continuation over `cells`, of `arguments` and the result.

        scopes: the globals of each frame, outermost first. grad: the mode of gradients that the trace left behind, if it
        changed it. handled: the exception that the program is handling.
        """
        if grad is not None:
            torch._C._set_grad_enabled(grad)
        if handled is None:
            result, raised = self._attempt(scopes, operation, args, kwargs)
        else:
            outer = sys.exception()
            unwind.set_handled(handled)
            try:
                result, raised = self._attempt(scopes, operation, args, kwargs)
            finally:
                unwind.set_handled(outer)
        function = types.FunctionType(self.code, scopes[0], self.code.co_name, None, cells)
        if self.idle is not None and self.loop is None:
            self.rounds += 1
            if self.rounds >= IDLE_ROUNDS:
                self.loop = self.idle
                self.idle.tell()
        if self.loop is not None:
            return self._run_loop(self.loop, function, arguments, scopes, result, raised)
        return self.proceed(function, arguments, result, raised)

    def raised(self, function: types.FunctionType, arguments: tuple[Any, ...], exception: BaseException) -> _C.TailCall:
        """The call of the continuation `function` for an operation that raised an exception."""
        self._strip(exception)
        return self.proceed(function, arguments, exception, True)

    def proceed(self, function: types.FunctionType, arguments: tuple[Any, ...], result: Any, raised: bool) -> _C.TailCall:
        """The call of the continuation `function` with the result of the operation, or its exception."""
        if not raised:
            return _C.TailCall(self.compiled, function, (*arguments, result))
        if not self.functions:
            return _C.TailCall(self._raising_unit().compiled, _with_code(function, self.codes.raising), (*arguments, result))
        arguments = awaiting_exception(arguments, self.functions[-1], self.codes)
        return _C.TailCall(self.compiled, function, (*arguments, result))

    def _run_loop(self, loop: Loop, function: types.FunctionType, arguments: tuple[Any, ...], scopes: tuple[Globals, ...],
                  result: Any, raised: bool) -> _C.TailCall:
        """Runs the loop of the innermost frame, then what follows it: in that frame or, if the loop returns, in the frames
        outside."""
        code, native = loop.variants[raised]
        if not self.functions:
            return _C.TailCall(native, _with_code(function, code), (*arguments, result))
        at = self.functions[-1]
        tail = _C.TailCall(native, _with_code(arguments[at], code), (*arguments[at + 1:], result))
        del result
        outcome, raised = self._attempt(scopes[:-1], FOLLOW, (tail,), {})
        if isinstance(outcome, Left):
            target = loop.rest(outcome)
            inner = types.FunctionType(target.codes.codes[-1], outcome.scope, outcome.code.co_name, None, outcome.cells)
            return target.proceed(*self._recoded(target, function, arguments[:at], inner, *outcome.values), None, False)
        return loop.outer.proceed(*self._recoded(loop.outer, function, arguments[:at]), outcome, raised)

    def _recoded(self, target: Resumption, function: types.FunctionType, arguments: tuple[Any, ...],
                 *more: Any) -> tuple[types.FunctionType, tuple[Any, ...]]:
        """The outer ones of these continuations as `target` has them."""
        outer = list(arguments)
        for at, code in zip(self.functions[:-1], target.codes.codes[1:]):
            outer[at] = _with_code(outer[at], code)
        return _with_code(function, target.codes.codes[0]), (*outer, *more)

    def _attempt(self, scopes: tuple[Globals, ...], operation: Callable[..., Any], args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Performs an operation below frames that look like the outermost ones. Returns its result or exception, and whether it
        raised."""
        try:
            return below(self.stand_ins, scopes, operation, args, kwargs), False
        except BaseException as exception:
            self._strip(exception)
            return exception, True

    def notice(self, target: Resumption, works: bool) -> None:
        """Notes that a trace which begins here was cut at `target`, and whether it has tensor operations."""
        self.leads_to[target] = self.leads_to.get(target, False) or works

    def is_idle(self) -> bool:
        """Whether traces lead from here back to here, and none on the way has tensor operations."""
        steps = [(origin, target) for origin in self._reached() for target in list(origin.leads_to)]
        around = [(origin, target) for origin, target in steps if self in {target, *target._reached()}]
        return bool(around) and not any(origin.leads_to[target] for origin, target in around)

    def leave_loop(self, make: Callable[[], Loop | None]) -> None:
        """Leaves the loop around this break to CPython, which is known to be idle. make: as below."""
        if self.loop is None:
            self.loop = make()

    def look_for_idle_loop(self, make: Callable[[], Loop | None]) -> None:
        """Notes whether there is an idle loop around this break, after another trace to it. make: the loop as CPython runs it, None
        if it cannot."""
        if not self.is_idle():
            self.idle = None
        elif self.idle is None:
            self.idle = make()

    def _reached(self) -> list[Resumption]:
        """The resumptions at which traces from here end, and this one."""
        reached = {self: None}
        todo = [self]
        while todo:
            new = [target for target in list(todo.pop().leads_to) if target not in reached]      # to which other threads add
            reached.update(dict.fromkeys(new))
            todo += new
        return list(reached)

    def _raising_unit(self) -> Any:
        if len(self.units) == 1:
            self._add_unit(self.codes.raising)
        return self.units[1]

    def _add_unit(self, code: types.CodeType) -> None:
        self.units.append(self._make_unit(code, self))

    def _strip(self, exception: BaseException) -> None:
        strip(exception, self.stand_ins)


class Rest(_C.Framed):
    """What is left of a call that a trace has ended inside of: the operation, then continuations of its frames, run by CPython.

    `stand_ins`: as of a Resumption, for all live frames. `codes`: of the continuations; the function of the innermost one is at
    `at` in what the rest is called with. Entries hold these: weak references to them cannot be.
    """

    __slots__ = ("stand_ins", "codes", "at")

    def __init__(self, stand_ins: tuple[types.CodeType | None, ...], codes: Codes, at: int) -> None:
        self.stand_ins, self.codes, self.at = stand_ins, codes, at

    def __call__(self, outer: tuple[Globals, ...], scopes: tuple[Globals, ...], chain: tuple[Any, ...],
                 operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """outer, scopes: the globals of the frames that are continued later, and of the call's. chain: the function of the
        outermost one of these, and what that takes but for the result."""
        try:
            outcome = [below(self.stand_ins, (*outer, *scopes), operation, args, kwargs)]
        except BaseException as exception:
            strip(exception, self.stand_ins)
            outcome, chain = [exception], awaiting_exception(chain, self.at, self.codes)
        function, *taken = chain
        try:
            return below(self.stand_ins, outer, function, (*taken, outcome.pop()), {})
        except BaseException as exception:
            strip(exception, self.stand_ins)
            raise


def below(stand_ins: tuple[types.CodeType | None, ...], scopes: tuple[Globals, ...], operation: Callable[..., Any],
          args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls `operation(*args, **kwargs)` below frames that look like those of the program, with these globals."""
    if isinstance(operation, _C.Framed):
        return operation(*args, **kwargs)
    for stand_in, scope in zip(reversed(stand_ins[:len(scopes)]), reversed(scopes), strict=True):
        if stand_in is not None:
            operation, args, kwargs = types.FunctionType(stand_in, scope), (operation, args, kwargs), {}
    return operation(*args, **kwargs)


def strip(exception: BaseException, stand_ins: tuple[types.CodeType | None, ...]) -> None:
    """Removes our own frames from a traceback."""
    ours = {id(code) for code in stand_ins}
    entry = exception.__traceback__
    while entry is not None and (id(entry.tb_frame.f_globals) in OURS or id(entry.tb_frame.f_code) in ours
                                 or entry.tb_frame.f_globals.get("__package__") in unwind.OWN_PACKAGES):
        entry = entry.tb_next
    exception.__traceback__ = entry


def awaiting_exception(arguments: tuple[Any, ...], at: int, codes: Codes) -> tuple[Any, ...]:
    """Arguments with the variant that awaits an exception in place of the innermost continuation, which is the one at `at`."""
    function = generators.go_on_raising if arguments[at] is generators.go_on else _with_code(arguments[at], codes.raising)
    return *arguments[:at], function, *arguments[at + 1:]


def replay(outcome: Value | UserError) -> Any:
    """Returns or raises what a call returned or raised that was made before."""
    if isinstance(outcome, UserError):
        raise outcome.exception
    return outcome.real


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
