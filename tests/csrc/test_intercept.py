"""`_C.intercept`: compiled functions that take over calls wherever they are made."""
from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from capture import _C
from capture.guards.tree import GuardTree
from tests.threads import in_threads


class Intercepted:
    def outer(self, x):
        return "outer", self.inner(x)

    def inner(self, x):
        return x + 1


@pytest.fixture
def intercept():
    yield lambda **choosers: _C.intercept({f"Intercepted.{name}": chooser for name, chooser in choosers.items()})
    _C.intercept(None)


def compiled(function, answer):
    """A compiled function whose calls no entry fits, and which `answer(arguments)` serves."""
    return _C.CompiledFunction(function, GuardTree(function.__code__), lambda function, args, tree: answer(args))


def test_calls_are_taken_over_until_told_to_stop(intercept) -> None:
    served = compiled(Intercepted.inner, lambda args: ("served", args[1]))
    seen = []
    thing = Intercepted()
    intercept(inner=lambda function, first: seen.append((function, first)) or served)
    assert thing.inner(1) == ("served", 1) and thing.outer(2) == ("outer", ("served", 2))
    assert seen == [(Intercepted.inner, thing)] * 2
    _C.intercept(None)
    assert thing.inner(1) == 2 and len(seen) == 2


def test_only_the_outermost_call_is_taken_over(intercept) -> None:
    log = []
    outer = compiled(Intercepted.outer, lambda args: log.append("outer") or _C.RUN_NATIVELY)
    inner = compiled(Intercepted.inner, lambda args: log.append("inner") or _C.RUN_NATIVELY)
    intercept(outer=lambda *_: outer, inner=lambda *_: inner)
    thing = Intercepted()
    assert thing.outer(1) == ("outer", 2) and log == ["outer"]
    assert thing.inner(1) == 2 and log == ["outer", "inner"]


@pytest.mark.parametrize(("answer", "expected"), [(None, ["inner"]), (_C.RUN_NATIVELY, [])])
def test_a_chooser_may_decline(intercept, answer, expected) -> None:
    log = []
    intercept(outer=lambda *_: answer, inner=lambda *_: log.append("inner"))
    assert Intercepted().outer(1) == ("outer", 2) and log == expected
    assert Intercepted().inner(1) == 2 and log == [*expected, "inner"]


def test_what_a_compiled_function_calls_is_not_looked_at(intercept) -> None:
    thing, log = Intercepted(), []
    intercept(inner=lambda *_: log.append("inner"))
    assert compiled(Intercepted.outer, lambda args: _C.RUN_NATIVELY)(thing, 1) == ("outer", 2) and log == []


def test_calls_of_all_threads_are_taken_over(intercept) -> None:
    served = compiled(Intercepted.inner, lambda args: threading.get_ident())
    intercept(inner=lambda *_: served)
    thing = Intercepted()
    assert in_threads(lambda number: thing.inner(1) == threading.get_ident(), 3) == [True] * 3


def test_errors(intercept) -> None:
    def fail(*_):
        raise KeyError("chooser")
    intercept(inner=fail)
    with pytest.raises(KeyError, match="chooser"):
        Intercepted().inner(1)
    intercept(inner=lambda *_: compiled(Intercepted.outer, lambda args: 1))
    with pytest.raises(ValueError, match="another function"):
        Intercepted().inner(1)
    with pytest.raises(TypeError, match="dict or None"):
        _C.intercept(SimpleNamespace())
    _C.intercept(None)
    assert Intercepted().inner(1) == 2


def test_some_hits_are_timed() -> None:
    function = compiled(Intercepted.inner, lambda args: _C.RUN_NATIVELY)
    graph = _C.Switch(lambda: sum(range(1000)))
    entry = function.tree.insert([], [], lambda self, x: graph(), None)
    for _ in range(100):
        function(Intercepted(), 1)
    assert entry.hits == 100 and 8 <= entry.samples < 20
    assert entry.guard_ns > 0 and entry.mock_ns > 0 and entry.graph_ns > 0


def test_what_a_hit_calls_is_not_taken_over(intercept) -> None:
    outer, log = compiled(Intercepted.outer, lambda args: None), []
    outer.tree.insert([], [], lambda self, x: ("hit", self.inner(x)), None)
    intercept(outer=lambda *_: outer, inner=lambda *_: log.append("inner"))
    thing = Intercepted()
    assert outer(thing, 1) == thing.outer(1) == Intercepted.outer(thing, x=1) == ("hit", 2) and log == []
    assert thing.inner(1) == 2 and log == ["inner"]
