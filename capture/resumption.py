"""Where a program goes on after a break: makes the call that no trace can hold, then the continuation.

The capturing call and every hit after it end in the same `Resumption`.
"""
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from capture import _C
from capture.interp import unwind
from capture.interp.frame import UserError, Value
from capture.interp.resume import Codes

Globals = dict[str, Any]


class Resumption:
    """The continuations of one chain of live frames.

    `stand_ins`: for each frame, outermost first, what a callee finds above itself (None: nothing). `make_unit(code)` makes the
    unit of an outermost continuation, of which there is another one where an exception is awaited. Entries hold resumptions, so that
    there can be no weak references to them.
    """

    __slots__ = ("codes", "stand_ins", "last_function", "units", "_make_unit")

    def __init__(self, codes: Codes, stand_ins: tuple[types.CodeType | None, ...], last_function: int,
                 make_unit: Callable[[types.CodeType], Any]) -> None:
        self.codes, self.stand_ins = codes, stand_ins
        self.last_function = last_function          # where the innermost continuation is among the arguments; -1: it is the outermost
        self._make_unit = make_unit
        self.units = [make_unit(codes.codes[0])]

    def __call__(self, function: types.FunctionType, arguments: tuple[Any, ...], scopes: tuple[Globals, ...], grad: bool | None,
                 handled: BaseException | None, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`operation(*args, **kwargs)`, then the continuation `function` of `arguments` and the result.

        scopes: the globals of each frame, outermost first. grad: the mode of gradients that the trace left behind, if it
        changed it. handled: the exception that the program is handling.
        """
        if grad is not None:
            torch._C._set_grad_enabled(grad)
        outer = sys.exception()
        if handled is not None:
            unwind.set_handled(handled)
        unit = self.units[0]
        try:
            result = self._perform(scopes, operation, args, kwargs)
        except BaseException as exception:
            self._strip(exception)
            result = exception
            if self.last_function < 0:
                function = _with_code(function, self.codes.raising)
                unit = self._raising_unit()
            else:
                at = self.last_function
                arguments = (*arguments[:at], _with_code(arguments[at], self.codes.raising), *arguments[at + 1:])
        finally:
            unwind.set_handled(outer)
        return _C.TailCall(unit.compiled, function, (*arguments, result))

    def _raising_unit(self) -> Any:
        if len(self.units) == 1:
            self.units.append(self._make_unit(self.codes.raising))
        return self.units[1]

    def _perform(self, scopes: tuple[Globals, ...], operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for stand_in, scope in zip(reversed(self.stand_ins), reversed(scopes), strict=True):
            if stand_in is not None:
                operation, args, kwargs = types.FunctionType(stand_in, scope), (operation, args, kwargs), {}
        return operation(*args, **kwargs)

    def _strip(self, exception: BaseException) -> None:
        """Takes the frames that are ours out of a traceback."""
        ours = {id(code) for code in self.stand_ins}
        entry = exception.__traceback__
        while entry is not None and (entry.tb_frame.f_globals is globals() or id(entry.tb_frame.f_code) in ours):
            entry = entry.tb_next
        exception.__traceback__ = entry


def replay(outcome: Value | UserError) -> Any:
    """What a call has returned or raised that was made already."""
    if isinstance(outcome, UserError):
        raise outcome.exception
    return outcome.real


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
