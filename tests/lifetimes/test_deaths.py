"""What a call replaces or removes dies where it dies in eager mode, if code of the program's runs then."""
from __future__ import annotations

import collections
import datetime
import functools
import types
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import capture
from capture import _C
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


def program(use):
    def made():
        cfg = SimpleNamespace(scale=1.0)
        box = SimpleNamespace(v=None, w=None, items=[], table={"k": None})
        places[id(cfg)] = box       # not compared, which would keep alive what is to die
        return lambda x: use(x, box, cfg), cfg
    places: dict[int, Any] = {}
    return made, lambda cfg: places[id(cfg)]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("use", [replaced, removed, read_before, moved], ids=lambda use: use.__name__)
def test_deaths_in_the_capture_on_hits_and_after(use, backend) -> None:
    made, box_of = program(use)

    def loud(cfg: Any) -> None:
        box = box_of(cfg)
        box.v, box.table["k"] = Loud(cfg), (1, [Loud(cfg)])
        box.items[:] = [Loud(cfg)]
    steps = [call(X), call(X), loud, call(X), call(X), loud, call(X), call(X), call(X)]
    options = {"options": {"background": False}} if backend == "native" else {}
    for first in ([], [loud]):
        check(made, *first, *steps, captures=None, fullgraph=False, backend=backend, **options)


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


def test_what_dies_quietly_is_one_capture() -> None:
    """Also where it is looked into: tensors, containers, objects, generators that have not begun."""
    made, box_of = program(replaced)
    kept = SimpleNamespace()
    for value in (3, "text", torch.ones(2), torch.ones(2, requires_grad=True) * 2, [X, (X,)], {"k": SimpleNamespace(a=X)},
                  (x for x in "ab"), lambda: X, torch.nn.Linear(2, 2), kept):
        check(made, call(X), lambda cfg, value=value: setattr(box_of(cfg), "v", value), call(X), call(X), captures=1, hits=2)


def test_what_is_held_elsewhere_does_not_die() -> None:
    made, box_of = program(replaced)
    held: list[Any] = []

    def loud(cfg: Any) -> None:
        held.append(Loud(cfg))
        box_of(cfg).v = [held[-1]]
    check(made, call(X), loud, call(X), loud, call(X), captures=1, hits=2)


def test_it_is_said_why() -> None:
    cfg, box = SimpleNamespace(scale=1.0), SimpleNamespace(v=None)
    compiled = capture.compile(lambda x: replaced(x, box, cfg), backend="eager")
    compiled(X)
    box.v = Loud(cfg)
    compiled(X)
    assert "no code that runs as what is replaced or removed dies" in str(capture.explain(compiled))


@pytest.mark.parametrize("number", range(30))
def test_random_programs(number) -> None:
    deaths.compare(1, number)


@pytest.mark.parametrize("number", range(3))
def test_random_programs_with_kernels(number) -> None:
    deaths.compare(2, number, "native")


OWNERS = [
    np.zeros(3), np.float64(2), np.dtype("f4"), torch.zeros(3), torch.zeros(2, requires_grad=True), torch.nn.Linear(2, 2),
    torch.Generator(), print, len, int, type("C", (), {}), type("C", (), {})(), collections.deque([1]), datetime.date(2020, 1, 1),
    functools.partial(print, 1), types.SimpleNamespace(a=1), slice(1, 2), range(3), iter([1]), (i for i in [1]), memoryview(b"ab"),
    BaseException("a"), property(), {1: 2}, [1], {1}, "a", 1, None, (1,), types.MethodType(print, 1), types.CellType(1)]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: type(owner).__name__)
def test_any_object_can_be_asked(owner):
    """An attribute that is made for who asks, such as an array's shape, is not what the object holds."""
    for name in dir(owner):
        _C.loud_death(None, (owner, "attribute", name))
    for key in (0, -1, "a", None, (1,)):
        _C.loud_death(None, (owner, "item", key))
    _C.loud_death(None, (owner, "all", None))
