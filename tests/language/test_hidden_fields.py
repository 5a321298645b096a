"""Classes with attributes of their own under the names of fields in which C keeps something: C goes on reading the fields. And
partial functions of partial functions, which C merges unless the inner one has attributes."""
from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.helpers import call, check


class Bound(functools.partial):
    """As Pyro's handlers are."""

    __slots__ = ("func",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = abs


class Defaults(collections.defaultdict):
    __slots__ = ("default_factory",)


class Short(collections.deque):
    __slots__ = ("maxlen",)


class Failure(ValueError):
    __slots__ = ("args",)


class Stop(StopIteration):
    __slots__ = ("value",)


class Stopping:
    def __init__(self, stop: StopIteration) -> None:
        self.stop = stop

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise self.stop

    def send(self, value: Any) -> Any:
        raise self.stop


def defaults() -> Defaults:
    made = Defaults(int)
    made.default_factory = lambda: 7
    return made


def short() -> Short:
    made = Short([1, 2], 2)
    made.maxlen = 9
    return made


def failure() -> Failure:
    made = Failure(1, 2)
    made.args = (5,)
    return made


def stop() -> Stop:
    made = Stop(3)
    made.value = 8
    return made


def delegate(stop: StopIteration) -> Any:
    return (yield from Stopping(stop))


def returned(stop: StopIteration) -> Any:
    try:
        next(delegate(stop))
    except StopIteration as end:
        return end.value


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "partial": (lambda: Bound(functools.partial(max, 3)), lambda x: (x(5), x.func, x.args)),
    "partial of it": (lambda: Bound(functools.partial(max, 3)), lambda x: functools.partial(x, 9)(1)),
    "defaultdict": (defaults, lambda x: (x["k"], sorted(x))),
    "copied": (defaults, lambda x: x.copy()["k"]),
    "deque": (short, lambda x: (x.append(4), list(x), x.maxlen, repr(x))),
    "exception": (failure, lambda x: (str(x), repr(x), x.args)),
    "returned value": (stop, lambda x: (returned(x), x.value)),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_c_reads_its_own_fields(name: str, inside: bool) -> None:
    make_object, ask = PROGRAMS[name]

    def make() -> Any:
        given = make_object()

        def program(x: torch.Tensor) -> tuple[Any, ...]:
            return ask(make_object() if inside else given), x + 1
        return program

    check(make, call(torch.ones(1)), call(torch.ones(1)), call(torch.ones(1)), captures=None, fullgraph=False)


def attributed(function: Callable[..., Any]) -> Any:
    made = functools.partial(function, 3)
    made.name = "max"
    return made


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("inner", [lambda f: functools.partial(f, 3), attributed], ids=["plain", "with attributes"])
def test_partial_functions_are_merged_as_c_does(inner: Callable[..., Any], inside: bool) -> None:
    def make() -> Any:
        state = [inner(max)]

        def program(x: torch.Tensor) -> tuple[Any, ...]:
            made = functools.partial(inner(max) if inside else state[0], 4)
            return x + len(made.args), made.args, made.keywords, type(made.func), made(1), made
        return program, state

    def attribute(state: list[Any]) -> None:
        state[0].other = 1

    def renew(state: list[Any]) -> None:
        state[0] = inner(max)

    check(make, *[call(torch.ones(1))] * 2, attribute, *[call(torch.ones(1))] * 2, renew, call(torch.ones(1)), captures=None,
          fullgraph=False)


def test_a_capture_gives_no_partial_function_attributes() -> None:
    def make() -> Any:
        def program(x: torch.Tensor) -> tuple[Any, ...]:
            made = functools.partial(max, 3)
            return x + made(1), made
        state: list[Any] = []
        return lambda x: state.append(functools.partial(program(x)[1], 4).args), state

    check(make, *[call(torch.ones(1))] * 3, captures=None, fullgraph=False)
