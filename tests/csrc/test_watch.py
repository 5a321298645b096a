"""`_C.watch`: compiled functions that take over calls wherever they are made."""
from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from capture import _C
from capture.guards.tree import GuardTree
from tests.threads import in_threads


class Watched:
    def outer(self, x):
        return "outer", self.inner(x)

    def inner(self, x):
        return x + 1


@pytest.fixture
def watch():
    yield lambda **choosers: _C.watch({f"Watched.{name}": chooser for name, chooser in choosers.items()})
    _C.watch(None)


def compiled(function, answer):
    """A compiled function whose calls no entry fits, and which `answer(arguments)` serves."""
    return _C.CompiledFunction(function, GuardTree(function.__code__), lambda function, args, tree: answer(args))


def test_calls_are_taken_over_until_the_watch_ends(watch) -> None:
    served = compiled(Watched.inner, lambda args: ("served", args[1]))
    seen = []
    thing = Watched()
    watch(inner=lambda function, first: seen.append((function, first)) or served)
    assert thing.inner(1) == ("served", 1) and thing.outer(2) == ("outer", ("served", 2))
    assert seen == [(Watched.inner, thing)] * 2
    _C.watch(None)
    assert thing.inner(1) == 2 and len(seen) == 2


def test_only_the_outermost_call_is_taken_over(watch) -> None:
    log = []
    outer = compiled(Watched.outer, lambda args: log.append("outer") or _C.RUN_NATIVELY)
    inner = compiled(Watched.inner, lambda args: log.append("inner") or _C.RUN_NATIVELY)
    watch(outer=lambda *_: outer, inner=lambda *_: inner)
    thing = Watched()
    assert thing.outer(1) == ("outer", 2) and log == ["outer"]
    assert thing.inner(1) == 2 and log == ["outer", "inner"]


@pytest.mark.parametrize(("answer", "expected"), [(None, ["inner"]), (_C.RUN_NATIVELY, [])])
def test_a_chooser_may_decline(watch, answer, expected) -> None:
    log = []
    watch(outer=lambda *_: answer, inner=lambda *_: log.append("inner"))
    assert Watched().outer(1) == ("outer", 2) and log == expected
    assert Watched().inner(1) == 2 and log == [*expected, "inner"]


def test_what_a_compiled_function_calls_is_not_looked_at(watch) -> None:
    thing, log = Watched(), []
    watch(inner=lambda *_: log.append("inner"))
    assert compiled(Watched.outer, lambda args: _C.RUN_NATIVELY)(thing, 1) == ("outer", 2) and log == []


def test_all_threads_are_watched(watch) -> None:
    served = compiled(Watched.inner, lambda args: threading.get_ident())
    watch(inner=lambda *_: served)
    thing = Watched()
    assert in_threads(lambda number: thing.inner(1) == threading.get_ident(), 3) == [True] * 3


def test_errors(watch) -> None:
    def fail(*_):
        raise KeyError("chooser")
    watch(inner=fail)
    with pytest.raises(KeyError, match="chooser"):
        Watched().inner(1)
    watch(inner=lambda *_: compiled(Watched.outer, lambda args: 1))
    with pytest.raises(ValueError, match="another function"):
        Watched().inner(1)
    with pytest.raises(TypeError, match="dict or None"):
        _C.watch(SimpleNamespace())
    _C.watch(None)
    assert Watched().inner(1) == 2


def test_some_hits_are_timed() -> None:
    function = compiled(Watched.inner, lambda args: _C.RUN_NATIVELY)
    graph = _C.Switch(lambda: sum(range(1000)))
    entry = function.tree.insert([], [], lambda self, x: graph(), None)
    for _ in range(100):
        function(Watched(), 1)
    assert entry.hits == 100 and 8 <= entry.samples < 20
    assert entry.guard_ns > 0 and entry.mock_ns > 0 and entry.graph_ns > 0


def test_what_a_hit_calls_is_not_taken_over(watch) -> None:
    outer, log = compiled(Watched.outer, lambda args: None), []
    outer.tree.insert([], [], lambda self, x: ("hit", self.inner(x)), None)
    watch(outer=lambda *_: outer, inner=lambda *_: log.append("inner"))
    thing = Watched()
    assert outer(thing, 1) == thing.outer(1) == Watched.outer(thing, x=1) == ("hit", 2) and log == []
    assert thing.inner(1) == 2 and log == ["inner"]
