"""`functools.lru_cache` of functions from outside: what they remember is forgotten, or was never remembered."""
from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import call, check

X = torch.tensor([1.0, -2.0, 3.0])


class Box:
    def __init__(self, value):
        self.value = value


@dataclass(frozen=True)
class Config:
    size: int


def forget(state):
    """What the function would compute now is another result; then its memory is cleared."""
    state.box.value += 5
    state.cached.cache_clear()


def remember(**options):
    """A cached function of an object, and what counts how often it ran."""
    state = SimpleNamespace(box=Box(2), runs=[])

    @functools.lru_cache(**options)
    def cached(box, *args, scale=1):
        state.runs.append(len(args))
        return {"factor": box.value * scale, box: args}
    state.cached = cached
    return state


CALLS = {
    "of an object": lambda s, x: x * s.cached(s.box)["factor"],
    "of more": lambda s, x: x * s.cached(s.box, 1, "a", torch.float32, Box, None)["factor"],
    "by name": lambda s, x: x * s.cached(box=s.box, scale=3)["factor"],
    "twice": lambda s, x: (x * s.cached(s.box)["factor"], s.cached(s.box) is s.cached(s.box)),
    "what it returned": lambda s, x: (x + 1, s.cached(s.box)),
}


@pytest.mark.parametrize("options", [{"maxsize": None}, {"maxsize": 8}, {"maxsize": None, "typed": True}, {"typed": True}], ids=str)
@pytest.mark.parametrize("program", CALLS.values(), ids=CALLS)
def test_a_memory_of_objects_is_cleared(program, options) -> None:
    def make():
        state = remember(**options)
        return (lambda x: program(state, x)), state
    check(make, call(X), call(X), forget, call(X), call(X + 1), lambda state: setattr(state, "box", Box(7)), call(X), call(X),
          captures=3)


def test_a_memory_of_a_modules_method() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate, self.runs = 2.0, 0

        @functools.lru_cache(maxsize=4)
        def table(self, size):
            self.runs += 1
            return torch.arange(size) * self.rate

        def forward(self, x):
            return x * self.table(3)

    def make():
        net = Net()
        return net, net

    def forget(net):
        net.rate = 3.0
        Net.table.cache_clear()
    check(make, call(X), call(X), forget, call(X), call(X), captures=2)


def test_what_is_not_remembered_is_computed_anew() -> None:
    def make():
        state = remember(maxsize=0)
        return (lambda x: x * state.cached(state.box)["factor"] + 1), state

    def change(state):
        state.box.value = 7
    check(make, call(X), call(X), change, call(X), call(X), fullgraph=False, captures=None)


def test_a_memory_that_is_full_forgets_what_is_asked_for_next() -> None:
    def make():
        state = remember(maxsize=1)
        return (lambda x: x * state.cached(state.box)["factor"] * state.cached(state.box, 1)["factor"]), state
    check(make, call(X), call(X), call(X), forget, call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("maxsize", "sizes", "breaks"), [(1, (3, 6), 3), (2, (3, 6, 9), 4), (2, (3, 6, 3), 0)])
def test_a_memory_that_loses_what_the_next_call_asks_for(maxsize, sizes, breaks, backend) -> None:
    """The third capture finds that what two others relied on was forgotten: from then on these calls are made between traces."""
    def make():
        state = SimpleNamespace(rate=2.0, runs=0)

        @functools.lru_cache(maxsize=maxsize)
        def table(size):
            state.runs += 1
            return torch.arange(size) * state.rate
        state.table = table
        return (lambda x: ([(x * 2 + table(size).sum()).sin() for size in sizes], table(sizes[-1]))), state

    def change(state):
        state.rate += 1
        state.table.cache_clear()
    options = {"options": {"background": False}} if backend == "native" else {}
    steps = [call(x) for x in (X, X + 1, X, X + 2, X, X)]
    stats = check(make, *steps, change, *steps, fullgraph=False, captures=None, backend=backend, tolerance=1e-6, **options)
    assert stats.native_calls <= 1 and stats.breaks == breaks and stats.captures == (3 + breaks if breaks else 2)
    check(make, *steps[:3], captures=None)


@pytest.mark.parametrize("result", [
    lambda rate, size: rate * size, lambda rate, size: [rate * size], lambda rate, size: (rate, [size])])
def test_a_link_of_a_full_memory_is_used_again(result) -> None:
    """For the same key, after the function has computed something else."""
    def make():
        state = SimpleNamespace(rate=2.0)

        @functools.lru_cache(maxsize=1)
        def table(size):
            return result(state.rate, size)
        state.table = table
        return (lambda x: (x * 3, table(3))), state

    def change(state):
        state.rate += 1
        state.table(4), state.table(3)
    check(make, call(X), call(X), change, call(X), change, call(X), call(X), captures=3)


def test_an_exception_is_not_remembered() -> None:
    def make():
        known = {}

        @functools.lru_cache
        def look_up(name):
            return known[name]

        def program(x):
            try:
                return x * look_up("a")
            except KeyError:
                return x - 1
        return program, known
    check(make, call(X), call(X), lambda known: known.update(a=3), call(X), call(X), captures=None, fullgraph=False)


@pytest.mark.parametrize("cls", [Box, Config])
def test_objects_that_are_made_inside(cls) -> None:
    def make():
        state = SimpleNamespace(rate=2.0, size=3, runs=0)

        @functools.lru_cache
        def table(key):
            state.runs += 1
            return state.rate * (key.size if cls is Config else key.value)
        state.cached = table
        return (lambda x: x * table(cls(state.size)) + 1), state

    def forget(state):
        state.rate = 3.0
        state.cached.cache_clear()
    check(make, call(X), call(X), lambda state: setattr(state, "size", 4), call(X), forget, call(X), call(X),
          captures=None, fullgraph=False)


@pytest.mark.parametrize("maxsize", [None, 8])
def test_a_class_that_is_referred_to_weakly(maxsize) -> None:
    """As `inspect.getattr_static` does since Python 3.12."""
    def make():
        state = SimpleNamespace(cls=Box, rate=2.0)

        @functools.lru_cache(maxsize=maxsize)
        def table(*references):
            return state.rate * len(references[0]().__name__)
        state.cached = table
        return (lambda x: x * table(weakref.ref(state.cls), weakref.ref(Config))), state

    def forget(state):
        state.rate = 3.0
        state.cached.cache_clear()
    check(make, call(X), call(X), forget, call(X), call(X), lambda state: setattr(state, "cls", Config), call(X), call(X),
          captures=3)


def test_a_result_that_looks_like_a_memory() -> None:
    """A bounded memory shows the garbage collector its results, too, and among these may be dicts with the same keys."""
    def make():
        state = SimpleNamespace(rate=2.0)

        @functools.lru_cache(maxsize=8)
        def table(size):
            return {size: state.rate, 1: 1}
        state.cached = table
        return (lambda x: x * table(3)[3]), state

    def forget(state):
        state.rate = 3.0
        state.cached.cache_clear()
    check(make, call(X), call(X), forget, call(X), call(X), captures=2)


@pytest.mark.parametrize("maxsize", [None, 2, 8])
def test_hits_are_counted_and_move_what_they_find(maxsize) -> None:
    def make():
        state = remember(maxsize=maxsize)
        state.told = []

        def tell(*numbers):
            for number in numbers:
                state.cached(state.box, number)
            state.told.append((state.cached.cache_info(), len(state.runs)))
        state.tell = tell

        def program(x):
            y = x * state.cached(state.box, 1)["factor"]
            return y * state.cached(state.box, 1)["factor"]
        return program, state
    steps = call(X), lambda s: s.tell(2), call(X), lambda s: s.tell(), call(X), lambda s: s.tell(3), call(X), lambda s: s.tell(2, 3)
    check(make, *steps, *steps, captures=None)


def test_a_memory_tells_of_its_hits_inside_of_the_call() -> None:
    def make():
        state = remember(maxsize=4)
        return (lambda x: (x * state.cached(state.box)["factor"], state.cached.cache_info())), state
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)
