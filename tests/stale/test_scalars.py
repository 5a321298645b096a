"""Pairs of values that are easily taken for each other, as arguments of programs that look at them in every way."""
from __future__ import annotations

import collections
import copy
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from tests.helpers import Call, call, check
from tests.stale.cases import X


class Text(str):
    pass


class Whole(int):
    pass


class Level(enum.Enum):
    LOW = 0
    HIGH = 1


class Grade(enum.IntEnum):
    LOW = 0
    HIGH = 1


@dataclass(frozen=True)
class Setting:
    value: int


Point = collections.namedtuple("Point", "a b")
Size = collections.namedtuple("Size", "a b")

SCALARS = [(1, True), (1, 1.0), (0, False), (0.0, -0.0), (1.5, float("nan")), (float("inf"), -float("inf")),
           (2**62, 2**63), (2**100, 2**100 + 1), (1, 1 + 0j), ("a", "b"), ("a", Text("a")), ("1", 1), ("a", b"a"),
           (1, Whole(1)),
           (1, Grade.HIGH), (Grade.LOW, Grade.HIGH), (Level.LOW, Level.HIGH), (None, 0), (None, ()), (1, (1,)),
           ((1,), [1]), ((1, 2), (1, 2, 3)), ((1, 2), Point(1, 2)), (Point(1, 2), Size(1, 2)), (Setting(1), Setting(2)),
           (int, float), (torch.float32, torch.float64), (torch.device("cpu"), torch.device("meta")),
           (slice(0, 1), slice(0, 2)), (range(2), range(3)), (..., None), (torch.Size([1, 2]), (1, 2)),
           (frozenset({1}), frozenset({2})), ({1}, {2}),
           ({"a": 1}, {"b": 1}), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"a": 1}, collections.OrderedDict(a=1)),
           ([], [1])]


def equality(x, v):
    return x + 1 if v == 1 else x - 1


def truth(x, v):
    return x + 1 if v else x - 1


def text(x, v):
    return x + 1, f"{v!r}", f"{repr(v)}", type(v).__name__


def kind(x, v):
    return x + 1 if isinstance(v, (bool, str)) else x - 1, isinstance(v, int), callable(v)


def operand(x, v):
    return x * v


def index(x, v):
    return x[v]


def key(x, v):
    return x * {1: 2.0, "a": 3.0, (1, 2): 4.0, None: 5.0}.get(v, 6.0)


def size(x, v):
    return x * len(v)


def items(x, v):
    return [x + item for item in v]


def negative(x, v):
    return x * -v


def comparison(x, v):
    return x + 1 if v > 0.5 else x - 1


def passed(x, v):
    return x + 1, v, [v]


def is_immutable(value: Any) -> bool:
    """Whether both worlds may share a value."""
    return isinstance(value, (int, float, complex, str, bytes, frozenset, enum.Enum, Setting))


USES = [equality, truth, text, kind, operand, index, key, size, items, negative, comparison, passed]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("pair", SCALARS, ids=repr)
def test_two_values(pair: tuple, use: Callable) -> None:
    """Whatever is done with them (an exception too): right on capture, on a hit, and after the other one."""
    first, second = (Call(lambda _, v=v: ((X.clone(), v if is_immutable(v) else copy.deepcopy(v)), {})) for v in pair)
    # The sign of a NaN, and of the zero imaginary part of a constant, is lost where the graph is printed as Python.
    tolerance = 0.0 if use is negative and any(isinstance(v, complex) or v != v for v in pair) else None
    fullgraph = not any(isinstance(v, Setting) for v in pair)       # its methods ask for the thread, and hash by value
    stats = check(lambda: use, first, first, second, second, first, captures=None, fullgraph=fullgraph,
                  tolerance=tolerance)
    assert not fullgraph or stats.captures <= 2 and stats.breaks == stats.bailouts == 0


@pytest.mark.parametrize("value", [float("nan"), 2**70, -0.0, "a" * 5000, Grade.HIGH, None, (1, (2.0, "a"))],
                         ids=lambda value: repr(value)[:20])
def test_an_equal_value_is_a_hit(value: Any) -> None:
    check(lambda: text, call(X, value), call(X, value), call(X, value), captures=1)


def divided(x, n):
    1 / n
    return x + 1


def added_in_place(x, n):
    n += 1
    return x * 2


def read(x, n):
    int(n)
    return x + 1


@pytest.mark.parametrize(("program", "first", "second"), [
    (divided, 2, 0), (divided, 2.0, -0.0), (divided, 1, "a"), (added_in_place, 1, "a"), (added_in_place, 1.0, None),
    (added_in_place, 2, torch.ones(2, 3)), (added_in_place, 1, [1]), (read, "12", "x"), (read, 1.0, float("nan")),
], ids=repr)
def test_arithmetic_of_which_nothing_comes(program: Callable, first: Any, second: Any) -> None:
    """… may still raise, or change what it is given."""
    steps = [Call(lambda _, v=v: ((X.clone(), copy.deepcopy(v)), {})) for v in (first, first, second, second, first)]
    check(lambda: program, *steps, captures=None, fullgraph=False)


@pytest.mark.parametrize("program", [
    lambda x: (1 / x.sum().item(), x + 1)[1], lambda x: (int(x.sum() * float("inf")), x + 1)[1],
    lambda x: (7 % int(x.sum()), x + 1)[1], lambda x: (math.log(x.sum().item()), x + 1)[1],
], ids=["division", "int", "remainder", "logarithm"])
def test_arithmetic_on_values_of_tensors_of_which_nothing_comes(program: Callable) -> None:
    check(lambda: program, call(X), call(X), call(X * 0), call(X), captures=None, fullgraph=False)


NUMPYS = [numpy.int8(3), numpy.float16(0.1), numpy.bool_(True), numpy.float64(0.1), numpy.uint64(2 ** 63), numpy.uint8(3), True,
          numpy.complex64(1j), numpy.int64(3), numpy.bool_(False), 3]


@pytest.mark.parametrize("numbers", [NUMPYS, NUMPYS[::-1], [NUMPYS[2], *NUMPYS]], ids=["from int8", "from int", "from bool"])
@pytest.mark.parametrize("program", [
    lambda x, v: x * v, lambda x, v: v + x, lambda x, v: x == v, lambda x, v: x ** v, lambda x, v: torch.full((2,), v),
    lambda x, v: torch.tensor(v), lambda x, v: x.new_tensor([v, v])], ids=["mul", "add", "eq", "pow", "full", "tensor", "list"])
def test_numbers_of_numpy_that_mean_something_else_to_torch(program, numbers) -> None:
    def make():
        state = SimpleNamespace(v=numbers[0])

        def function(x):
            try:
                return program(x, state.v)
            except (RuntimeError, TypeError) as error:
                return type(error)
        return function, state
    steps = [step for v in numbers for step in ((lambda s, v=v: setattr(s, "v", v)), call(torch.tensor([1, 2])))]
    check(make, *steps, captures=None, fullgraph=False, recompile_limit=64)
