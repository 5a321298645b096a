"""Matching, groups of exceptions, scopes and what is evaluated at run time, in one graph."""
from __future__ import annotations

import builtins
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.programs import Programs
from tests.stale.cases import user_module

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


# --- match

@dataclass
class Point:
    x: Any
    y: Any


@programs.add(X, "scale", 3)
@programs.add(X, "shift", 4)
@programs.add(X, "other", 4)
def matching_literals_and_captures(x, name, n):
    match name, n:
        case "scale", int(k) if k > 2:
            return x * k
        case "shift" | "move", k:
            return x + k
        case _:
            return x


@programs.add(X)
def matching_classes(x):
    def kind(value):
        match value:
            case Point(x=torch.Tensor() as t, y=0):
                return t
            case Point(a, Point(b, _)):
                return a, b
            case Point():
                return "point"
            case str(s) | bytes(s):
                return s
            case float() | int():
                return "number"
            case None:
                return "none"
    return [kind(v) for v in (Point(x, 0), Point(1, Point(x, 2)), Point(1, 2), "s", b"b", 2.0, True, None, [])]


@programs.add(X)
def matching_sequences_and_mappings(x):
    def kind(value):
        match value:
            case []:
                return "empty"
            case [one]:
                return one
            case [first, *_, last]:
                return first, last
            case {"op": "add", "args": [a, b]}:
                return a + b
            case {"op": str(op), **rest}:
                return op, rest
            case {}:
                return "mapping"
    return [kind(v) for v in ([], (x,), [1, 2, x], {"op": "add", "args": [x, 1]}, {"op": "neg", "n": 2}, {}, "ab")]


@programs.make(X, change=lambda state: setattr(state, "command", ("neg",)), captures=2)
def matching_state():
    state = SimpleNamespace(command=("scale", 2.0))

    def program(x):
        match state.command:
            case ("scale", factor):
                return x * factor
            case ("neg",):
                return -x
    return program, state


@programs.add(X)
def matching_values_by_name(x):
    match x.dtype:
        case torch.float64:
            return "double"
        case torch.float32:
            return x * 2


# --- exceptions

@programs.add(X)
def groups_of_exceptions(x):
    log = []
    try:
        raise ExceptionGroup("both", [ValueError(1), TypeError(2), ExceptionGroup("inner", [ValueError(3)])])
    except* ValueError as group:
        log.append([type(e).__name__ for e in group.exceptions])
    except* TypeError as group:
        log.append(group.exceptions[0].args)
    return x, log


@programs.add(X)
def a_single_exception_handled_as_a_group(x):
    try:
        raise KeyError("k")
    except* (KeyError, IndexError) as group:
        y = x * len(group.exceptions)
    return y


@programs.add(X)
def a_group_that_is_not_raised(x):
    try:
        y = x * 2
    except* ValueError:
        y = x
    else:
        y = y + 1
    finally:
        y = y * 3
    return y


@programs.add(X)
def a_group_partly_handled(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            x = x + 1
    except ExceptionGroup as rest:
        return x, len(rest.exceptions), type(rest.exceptions[0]).__name__, rest.message


@programs.add(X)
def splitting_groups(x):
    group = ExceptionGroup("g", [ValueError(1), KeyError(2)])
    match, rest = group.split(ValueError)
    return x, len(match.exceptions), rest.exceptions[0].args, group.subgroup(OSError), group.derive([OSError()]).message


@programs.add(X)
def exception_attributes(x):
    try:
        try:
            {}["k"]
        except KeyError as first:
            first.add_note("a note")
            raise ValueError("v") from first
    except ValueError as error:
        return x, error.args, error.__cause__.args, error.__cause__.__notes__, error.__suppress_context__, repr(error), str(error)


@programs.add(X)
def retries(x):
    for attempt in range(4):
        try:
            if attempt < 2:
                raise RuntimeError(attempt)
            break
        except RuntimeError as error:
            x = x + error.args[0]
    else:
        x = None
    return x, attempt


# --- scopes

@programs.add(X)
def nonlocal_state(x):
    def counter():
        n, last = 0, None

        def step(t):
            nonlocal n, last
            n += 1
            last = t * n
            return last

        def reset():
            nonlocal n
            n = 0
            return last
        return step, reset
    step, reset = counter()
    a, b = step(x), step(x)
    return a, b, reset(), step(x)


@programs.make(X, change=lambda state: state.reset(), captures=None)
def nonlocal_state_from_outside():
    calls, history = 0, []

    def program(x):
        nonlocal calls
        calls += 1
        history.append(calls)
        return x * 2, calls

    def reset():
        nonlocal calls
        calls = 0
    return program, SimpleNamespace(reset=reset, history=history)


@programs.make(X, change=lambda state: state.module.__dict__.update(scale=5.0), captures=2)
def globals_written():
    module = user_module("""
        scale, calls, cache = 2.0, 0, {}
        def program(x):
            global calls, last
            calls += 1
            cache['n'] = calls
            last = x * scale
            globals()['other'] = 'set'
            return last, globals()['scale'], 'missing' in globals()
    """)
    return module.program, SimpleNamespace(module=module, read=lambda: (module.calls, module.cache))


@programs.make(X, change=lambda state: state.module.__dict__.update(len=lambda x: 7), captures=2)
def a_builtin_shadowed_by_a_global():
    module = user_module("""
        def program(x):
            return x * len([1, 2, 3])
    """)
    return module.program, SimpleNamespace(module=module)


@programs.add(X)
def deleted_names(x):
    y = x * 2
    f = lambda: y
    z = f()
    del y
    try:
        f()
    except NameError as error:
        return z, str(error)


@programs.add(X)
def functions_with_defaults_changed(x):
    def f(t, k=2, *, s=1):
        return t * k + s
    a = f(x)
    f.__defaults__ = (5,)
    f.__kwdefaults__ = {"s": 3}
    return a, f(x)


@programs.add(X)
def star_expressions(x):
    def f(*args, **kwargs):
        return args, kwargs
    head, *middle, tail = [x, 1, 2, x + 1]
    return f(*middle, *(3,), k=head, **{"l": tail}), [*middle, *middle], {**{"a": head}, "b": 1}, (*middle,)


# --- evaluated at run time

@programs.add(X)
def evaluation(x):
    return (eval("x * n", {"x": x, "n": 3}), eval("1 + 2"), eval("len([1, 2])"), eval(compile("[i * 2 for i in range(3)]", "",
            "eval")))


@programs.make(X, change=lambda state: state.update(n=5), captures=2)
def evaluation_in_a_namespace():
    namespace = {"n": 3}
    return lambda x: eval("x * n", namespace, {"x": x}), namespace


@programs.add(X)
def evaluation_of_local_names(x):
    scale = 2
    return eval("x * scale")


@programs.add(X)
def execution(x):
    namespace = {"x": x}
    exec("y = x * 2\ndef f(t):\n    return t + y", namespace)
    return namespace["y"], namespace["f"](x)


@programs.make(X, change=lambda state: os.environ.__setitem__("CAPTURE_TEST_SCALE", "5"), captures=2)
def the_environment():
    os.environ["CAPTURE_TEST_SCALE"] = "2"
    os.environ.pop("CAPTURE_TEST_MISSING", None)

    def program(x):
        scale = int(os.environ["CAPTURE_TEST_SCALE"])
        debug = os.environ.get("CAPTURE_TEST_MISSING", "0") == "1"
        return x * scale, debug, os.getenv("CAPTURE_TEST_SCALE"), "CAPTURE_TEST_MISSING" in os.environ
    return program


@programs.add(X)
def local_imports(x):
    import collections.abc
    import math as m
    from os import path
    from os.path import join, splitext

    import torch.nn.functional as F
    return F.relu(x) * m.pi, join("a", "b"), splitext("a.b"), path.basename("c/d"), isinstance([], collections.abc.Sequence)


@programs.add(X)
def imports_by_name(x):
    import importlib
    math = importlib.import_module("math")
    return x * math.sqrt(4), __import__("json").__name__


@programs.add(X)
def scopes_as_data(x):
    a, b = 1, x * 2
    found = locals()
    return sorted(found), found["b"], "program" in globals(), vars(builtins)["len"]([1]), callable(globals()["scopes_as_data"])


test_control = programs.test()
