"""What a call replaces or removes dies where it dies in eager mode, if code of the program's runs then: such a call is no hit."""
from __future__ import annotations

import contextlib
import contextvars
import sys
import time
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from capture.refgraph.dropped_references import Drop, Loss
from tests.guards.test_tree import X as ARGUMENT
from tests.guards.test_tree import subject
from tests.helpers import call, check
from tests.lifetimes import deaths

X = torch.arange(2.0)


class Loud:
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    def __del__(self) -> None:
        self.cfg.scale += 1


def replaced(x, box, cfg):
    box.v = x + 1
    return x * cfg.scale


def removed(x, box, cfg):
    y = x * cfg.scale
    box.items.clear()
    return y * cfg.scale


def read_before(x, box, cfg):
    scale = cfg.scale
    box.table["k"] = x
    return x * scale, cfg.scale


def moved(x, box, cfg):
    box.w = box.v
    box.v = x + 1
    return x * cfg.scale


def popped(x, box, cfg):
    if box.items:
        box.items.pop()
    return x * cfg.scale


def popped_and_kept(x, box, cfg):
    last = box.queue.pop()
    x = x * cfg.scale
    box.queue.append(last)
    return x * cfg.scale


def in_a_variable(x, box, cfg):
    box.variable.set(x + 1)
    return x * cfg.scale


def in_a_variable_that_is_read(x, box, cfg):
    if box.variable.get() is not None:
        x = x + 1
    box.variable.set(x + 1)
    return x * cfg.scale


def program(use):
    """`use(x, box, cfg)`, and where to find its box: that is not compared, which would keep alive what is to die."""
    def made():
        cfg = SimpleNamespace(scale=1.0)
        box = SimpleNamespace(v=None, w=None, items=[], table={"k": None}, queue=deque([None]),
                              variable=contextvars.ContextVar("variable", default=None))
        places[id(cfg)] = box
        return lambda x: use(x, box, cfg), cfg
    places: dict[int, Any] = {}
    return made, lambda cfg: places[id(cfg)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("use", [replaced, removed, read_before, moved, popped, popped_and_kept, in_a_variable,
                                 in_a_variable_that_is_read],
                         ids=lambda use: use.__name__)
def test_deaths_in_the_capture_on_hits_and_after(use, backend) -> None:
    made, box_of = program(use)

    def loud(cfg: Any) -> None:
        box = box_of(cfg)
        box.v, box.table["k"] = Loud(cfg), (1, [Loud(cfg)])
        box.items[:] = [Loud(cfg)]
        box.queue[-1] = Loud(cfg)
        box.variable.set([Loud(cfg)])
    steps = [call(X), call(X), loud, call(X), call(X), loud, call(X), call(X), call(X)]
    options = {"options": {"background": False}} if backend == "native" else {}
    for first in ([], [loud]):
        check(made, *first, *steps, captures=None, fullgraph=False, backend=backend, **options)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_places_that_change(kind) -> None:
    """Only what is there is looked at, not all that is stored."""
    def made():
        cfg = SimpleNamespace(scale=1.0)
        stored[id(cfg)] = [None] * 6 if kind == "list" else dict.fromkeys("abcdef")

        def use(x, i):
            stored[id(cfg)][i] = x + 1
            return x * cfg.scale
        return use, cfg
    stored: dict[int, Any] = {}
    keys = range(6) if kind == "list" else "abcdef"

    def loud(cfg: Any) -> None:
        for key in keys:
            stored[id(cfg)][key] = [Loud(cfg)]
    check(made, *(call(X, key) for key in keys), loud, *(call(X, key) for key in keys), captures=None, fullgraph=False)


def test_callbacks_and_generators() -> None:
    made, box_of = program(replaced)
    references = []

    def watched(cfg: Any) -> None:
        box = box_of(cfg)
        box.v = [deaths.Plain()]
        references.append(weakref.ref(box.v[0], lambda _: setattr(cfg, "scale", 7.0)))

    def suspended(cfg: Any) -> None:
        def body():
            try:
                yield
            finally:
                cfg.scale = 9.0
        box_of(cfg).v = {"k": body()}
        next(box_of(cfg).v["k"])
    check(made, call(X), call(X), watched, call(X), call(X), suspended, call(X), call(X), captures=None, fullgraph=False)


def test_generators_that_the_trace_runs_to_their_end() -> None:
    """A stack of contexts drops what it leaves behind a break: generators, which then wait no more. accelerate accumulates so."""
    @contextlib.contextmanager
    def scope(log: list[str]):
        yield
        log.append("left")

    def use(x, log):
        with contextlib.ExitStack() as stack:
            stack.enter_context(scope(log))
            y = x * 2
            time.perf_counter()
            y = y + 1
        return y * len(log)
    function = capture.compile(use, backend="eager")
    for _ in range(4):
        log: list[str] = []
        assert torch.equal(function(X, log), X * 2 + 1) and log == ["left"]
    stats = capture.stats(function)
    assert (stats.captures, stats.hits, stats.native_calls) == (2, 6, 0), stats


def test_gradients_that_are_let_go() -> None:
    """Their own Python objects may be watched."""
    def made():
        w = torch.ones(2, requires_grad=True)
        cfg = SimpleNamespace(scale=1.0)

        def use(x):
            w.grad = None
            return x * cfg.scale
        weights[id(cfg)] = w
        return use, cfg
    weights: dict[int, Any] = {}
    watching = []

    def watched(cfg: Any) -> None:
        w = weights[id(cfg)]
        w.grad = torch.ones(2)
        watching.append(weakref.ref(w.grad, lambda _: setattr(cfg, "scale", cfg.scale + 1)))
    check(made, call(X), call(X), watched, call(X), call(X), watched, call(X), captures=None, fullgraph=False)


def test_what_dies_quietly_is_one_capture() -> None:
    """Also where it is looked into: tensors, containers, objects, generators that have not begun."""
    made, box_of = program(replaced)
    kept = SimpleNamespace()
    watched = torch.ones(2)
    reference = weakref.ref(watched)        # without a callback
    for value in (3, "text", torch.ones(2), torch.ones(2, requires_grad=True) * 2, [X, (X,)], {"k": SimpleNamespace(a=X)},
                  (x for x in "ab"), lambda: X, torch.nn.Linear(2, 2), kept, watched):
        check(made, call(X), lambda cfg, value=value: setattr(box_of(cfg), "v", value), call(X), call(X), captures=1, hits=2)
    assert reference() is watched


def test_what_is_held_elsewhere_does_not_die() -> None:
    made, box_of = program(replaced)
    held: list[Any] = []

    def loud(cfg: Any) -> None:
        held.append(Loud(cfg))
        box_of(cfg).v = [held[-1]]
    check(made, call(X), loud, call(X), loud, call(X), captures=1, hits=2)


def test_what_dies_last_is_no_hindrance() -> None:
    """Nothing is read after it."""
    def last(x, box, cfg):
        x = x * cfg.scale
        box.v = x
        return x
    made, box_of = program(last)
    loud = lambda cfg: setattr(box_of(cfg), "v", Loud(cfg))       # noqa: E731
    check(made, call(X), lambda cfg: setattr(cfg, "scale", 1.0), loud, call(X), lambda cfg: setattr(cfg, "scale", 1.0), call(X),
          captures=1, hits=2)


def test_such_calls_run_natively_and_it_is_said_why() -> None:
    """However often: they lead to no further capture, and the entry stays."""
    cfg, box = SimpleNamespace(scale=1.0), SimpleNamespace(v=None)
    compiled = capture.compile(lambda x: replaced(x, box, cfg), backend="eager")
    compiled(X)
    for _ in range(3):
        cfg.scale, box.v = 1.0, Loud(cfg)
        assert torch.equal(compiled(X), X * 2)
    cfg.scale = 1.0
    assert torch.equal(compiled(X), X)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls) == (1, 1, 3)
    text = "3 calls ran natively: a value that this call replaces runs code as it dies"
    assert text in str(capture.explain(compiled)) and text in str(capture.report(compiled))


@pytest.mark.parametrize("number", range(40))
def test_random_programs(number) -> None:
    deaths.compare(1, number)


@pytest.mark.parametrize("number", range(3))
def test_random_programs_with_kernels(number) -> None:
    deaths.compare(2, number, "native")


# -- what the extension is asked ---------------------------------------------------------------------------------------

OWNERS = [
    torch.zeros(3), torch.zeros(2, requires_grad=True), torch.nn.Linear(2, 2), torch.Generator(), print, int, type("C", (), {}),
    type("C", (), {})(), deque([1]), SimpleNamespace(a=1), slice(1, 2), range(3), iter([1]), (i for i in [1]),
    BaseException("a"), {1: 2}, [1], {1}, "a", 1, None, (1,), sys, Loud.__init__]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: type(owner).__name__)
def test_any_object_can_be_asked(owner) -> None:
    """An attribute that is made for who asks, such as a tensor's shape, is not what the object holds."""
    asked = [Loss(ARGUMENT, Drop.ATTRIBUTE, name) for name in dir(owner)]
    asked += [Loss(ARGUMENT, Drop.ITEM, key) for key in (0, -1, "a", None, (1,))]
    tree = capture.guards.tree.GuardTree(subject.__code__)
    entry = tree.insert([], [], None, None, (), [*asked, Loss(ARGUMENT, Drop.CONTENTS, None)])
    assert tree.check(subject, [owner, None]) is entry
