"""Models of threads and locks. A lock that the trace makes concerns nobody else. The trace ends before a lock from outside is
taken, so that every hit reads what the lock protects while it holds the lock. (Under fullgraph the lock is held around the effects
of a hit.)"""
from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.function_models.shadows import node_of
from capture.refgraph.effects import Replayed
from capture.refgraph.node import Const, IteratorState, Shadow
from capture.refgraph.source import Computed


@model(_thread.get_ident)
def identify(interp: Interpreter, result: int) -> Shadow:
    """Which thread this is: a trace that asks is one of this thread."""
    interp.graph.require(Computed(_thread.get_ident, ()), "VALUE", result)
    return Const(result)


LOCKS = (_thread.LockType, _thread.RLock)
TAKING = frozenset({"acquire", "__enter__"})
GIVING_BACK = frozenset({"release", "__exit__"})


@model(_thread.allocate_lock, _thread.RLock)
def make_lock(interp: Interpreter, result: Any) -> Shadow:
    """A new lock."""
    return interp.graph.create(result, Held(type(result) is _thread.RLock))


def made_by_class(interp: Interpreter, result: Any, cls: Value) -> Shadow:
    """A new lock, as it is made since Python 3.13."""
    return make_lock(interp, result)


if "__new__" in vars(_thread.LockType):
    model(_thread.LockType.__new__)(made_by_class)


class Held(IteratorState):
    """The state of a lock that the trace makes: how many times it is taken."""

    __slots__ = ("reentrant", "times")
    is_whole = True

    def __init__(self, reentrant: bool) -> None:
        self.reentrant, self.times = reentrant, 0

    def recipe(self) -> tuple[Callable[..., Any], tuple[Shadow, ...]]:
        return held_lock, (Const(self.reentrant), Const(self.times))


def held_lock(reentrant: bool, times: int) -> Any:
    """A new lock that is taken so many times."""
    lock = _thread.RLock() if reentrant else _thread.allocate_lock()
    for _ in range(times):
        lock.acquire()
    return lock


def operation(method: Callable[..., Any], name: str) -> None:
    """Registers a method that takes or gives back a lock, or asks for it."""
    def operate(interp: Interpreter, result: Any, lock: Value, *args: Value, **kwargs: Value) -> Shadow:
        node, values = node_of(lock), (*args, *kwargs.values())
        for value in values:
            interp.graph.depend(value.shadow, value.real)
        if node.created:
            if isinstance(node.state, Held):
                node.state.times += (name in TAKING and result is not False) - (name in GIVING_BACK)
            return Const(result)
        interp.graph.touch(node)
        given = () if name == "__exit__" else values
        call = interp.graph.call_effect(Const(_thread_release if name == "__exit__" else method),
                                        (node, *(value.shadow for value in given)), tuple(kwargs))
        waits = name in TAKING and not values
        return Const(result) if result is None or waits else Replayed(call, (), bool)
    model(method, refuses=taken_between_traces if name in TAKING else None)(operate)


def taken_between_traces(interp: Interpreter, lock: Value, *args: Value, **kwargs: Value) -> Break | None:
    """Why no trace that can be cut takes a lock from outside."""
    if interp.early_breaks is None or node_of(lock).created:
        return None
    return Break("lock", f"{type(lock.real).__qualname__}.acquire()")


def _thread_release(lock: Any) -> None:
    """Gives a lock back at the end of a `with`, whatever ended it."""
    lock.release()


for _cls in LOCKS:
    for _name in ("acquire", "release", "__enter__", "__exit__", "locked"):
        if hasattr(_cls, _name):
            operation(getattr(_cls, _name), _name)
