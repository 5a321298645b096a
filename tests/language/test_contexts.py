"""Context managers and the tools of contextlib, in one graph."""
from __future__ import annotations

import contextlib
import contextvars
import threading
import warnings
from types import SimpleNamespace

import torch

from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@contextlib.contextmanager
def swapped(obj, **attributes):
    before = {name: getattr(obj, name) for name in attributes}
    for name, value in attributes.items():
        setattr(obj, name, value)
    try:
        yield obj
    finally:
        for name, value in before.items():
            setattr(obj, name, value)


@programs.make(X, change=lambda state: setattr(state, "scale", 4.0), captures=2)
def a_setting_swapped_for_a_while():
    state = SimpleNamespace(scale=2.0, log=[])

    def program(x):
        with swapped(state, scale=3.0) as inner:
            inside = x * inner.scale
            state.log.append("inside")
        return inside, x * state.scale
    return program, state


@programs.make(X)
def exceptions_pass_through_managers():
    state = SimpleNamespace(scale=2.0)

    def program(x):
        try:
            with swapped(state, scale=3.0):
                y = x * state.scale
                raise KeyError("inside")
        except KeyError as error:
            return y, state.scale, error.args
    return program, state


@programs.make(X, change=lambda state: state.append(3), captures=2)
def an_exit_stack():
    factors = [2.0, 5.0]

    @contextlib.contextmanager
    def entered(name, log):
        log.append(("enter", name))
        yield name
        log.append(("exit", name))

    def program(x):
        log = []
        with contextlib.ExitStack() as stack:
            values = [stack.enter_context(entered(f, log)) for f in factors]
            stack.callback(log.append, "callback")
            stack.push(lambda *exc: log.append(exc[0] is None))
            y = sum(x * v for v in values)
        return y, log
    return program, factors


@programs.add(X)
def an_exit_stack_that_is_moved(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        kept = stack.pop_all()
    log.append(2)
    kept.close()
    return x + len(log), log


@programs.add(X)
def an_exit_stack_that_swallows(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ZeroDivisionError))
        stack.callback(lambda: log.append("still called"))
        x = x * 2
        1 // 0
    return x, log


@programs.add(X)
def suppression(x):
    with contextlib.suppress(KeyError, IndexError):
        x = x + 1
        [][1]
        x = x + 10
    with contextlib.suppress(ValueError):
        x = x * 2
    with contextlib.suppress():
        x = x - 1
    return x


@programs.add(X)
def null_contexts(x):
    with contextlib.nullcontext() as nothing, contextlib.nullcontext(x * 2) as y:
        return nothing, y


@programs.add(X, True)
@programs.add(X, False)
def a_manager_that_is_chosen(x, enabled):
    with torch.no_grad() if enabled else contextlib.nullcontext():
        return x * 2


@programs.add(X)
def closing(x):
    class Resource:
        closed = False

        def close(self):
            self.closed = True
    with contextlib.closing(Resource()) as resource:
        before = resource.closed
    return x, before, resource.closed


@programs.add(X)
def managers_as_decorators(x):
    class Traced(contextlib.ContextDecorator):
        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, *exc):
            log.append("exit")
            return False
    log = []

    @Traced()
    def double(t):
        return t * 2
    return double(x) + double(x), log


@programs.add(X)
def abstract_managers(x):
    class Managed(contextlib.AbstractContextManager):
        def __exit__(self, *exc):
            log.append(exc[0])
            return True
    log = []
    with Managed() as m:
        raise ValueError
    return x, log, isinstance(m, contextlib.AbstractContextManager)


@programs.add(X)
def nested_and_parenthesised_managers(x):
    @contextlib.contextmanager
    def plus(t, n):
        yield t + n
    with (plus(x, 1) as a, plus(a, 2) as b, plus(b, 3) as c):
        return a, b, c


@programs.add(X)
def managers_and_control_flow(x):
    @contextlib.contextmanager
    def noted(name):
        yield
        log.append(name)
    log = []
    for i in range(4):
        with noted(i):
            if i == 1:
                continue
            if i == 2:
                break
            x = x + i

    def early():
        with noted("early"):
            return x * 2
    return early(), log


@programs.make(X, change=lambda state: state.append(4))
def locks():
    lock, shared = threading.Lock(), []

    def program(x):
        with lock:
            shared.append("held")
        acquired = lock.acquire()
        held = lock.locked()
        lock.release()
        return x * 2, acquired, held, lock.locked()
    return program, shared


@programs.make(X)
def reentrant_locks_in_objects():
    class Cache:
        def __init__(self):
            self.lock, self.items = threading.RLock(), {}

        def get(self, key, make):
            with self.lock:
                if key not in self.items:
                    with self.lock:
                        self.items[key] = make()
                return self.items[key]
    cache = Cache()
    cache.items["a"] = 2.0
    return lambda x: x * cache.get("a", lambda: 3.0), cache.items


@programs.add(X)
def a_lock_made_inside(x):
    lock = threading.Lock()
    with lock:
        return x * 2


def set_value(state) -> None:
    state.variable.set(7.0)


@programs.make(X, change=set_value, captures=2)
def context_variables_without_a_value():
    state = SimpleNamespace(variable=contextvars.ContextVar("variable", default=2.0), bare=contextvars.ContextVar("bare"))

    def program(x):
        try:
            state.bare.get()
        except LookupError:
            x = x + 1
        token = state.bare.set(3.0)
        y = x * state.variable.get() * state.bare.get()
        state.bare.reset(token)
        return y, state.bare.get(None)
    return program, state


@programs.add(X)
def warnings_that_are_filtered(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x * 2
    return y


test_contexts = programs.test()
