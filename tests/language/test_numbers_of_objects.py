"""`id(x)` of what has no identity of its own in a trace: tuples and other composites, numbers and text. Within a call it is one
number, on each side of a break."""
from __future__ import annotations

import collections
import pprint
from collections.abc import Callable

import pytest
import torch

from tests.helpers import call, check

Pair = collections.namedtuple("Pair", "first second")
X, A, B = torch.ones(2), torch.ones(1), torch.zeros(1)
MADE: dict[str, Callable] = {
    "tuple": lambda a, b, k: (a, b), "nested": lambda a, b, k: ((a,), b), "named": lambda a, b, k: Pair(a, b),
    "list": lambda a, b, k: [a, b], "frozenset": lambda a, b, k: frozenset((k, "x")), "slice": lambda a, b, k: slice(k, b),
    "method": lambda a, b, k: a.add, "number": lambda a, b, k: k * 1.5, "text": lambda a, b, k: "k" + str(k),
    "tensor": lambda a, b, k: a, "given": lambda a, b, k: k}


def in_dict(x, y):
    known = {id(y): 1}
    x.sum().item()
    del known[id(y)]
    return known


def under_variable(x, y):
    number, known = id(y), {}
    known[number] = y
    x.sum().item()
    return number in known, known[id(y)] is y, known.pop(number) is y, known


def in_set(x, y):
    known, number = {id(y), id(x)}, id(y)
    x.sum().item()
    return id(y) in known, number in known, id(x) in known, len(known), number == id(y)


def in_key(x, y):
    known = {(id(y), 3): 1}
    x.sum().item()
    return known[id(y), 3]


def beside_another(x, y):
    other = (y, y)
    known = {id(y): 1, id(other): 2}
    x.sum().item()
    return known[id(y)], known[id(other)], len(known)


def of_what_has_died(x, y):
    number = id(x[0])
    known = {number: 2}
    return known[number]


@pytest.mark.parametrize("asks", [in_dict, under_variable, in_set, in_key, beside_another, of_what_has_died])
@pytest.mark.parametrize("made", [*MADE])
def test_numbers_of_objects(made: str, asks: Callable) -> None:
    def program(x, a, b, k, decide):
        y, make = x + 1, MADE[made]
        value = make(a, b, k)
        if decide:
            return y, asks(x, value)
        return y, asks(x, value), asks(x, value)

    again = [call(X, A, B, int("1000"), True) for _ in range(3)]
    check(lambda: program, *again, call(X, A, B, int("1000"), False), call(X, A, B, int("2000"), True), *again,
          captures=None, fullgraph=False)


@pytest.mark.parametrize("shown", [lambda a: (a, a), lambda a: {"k": (a, 1), "j": [(a,)]}, lambda a: [a, (a, (a,))]])
def test_tuples_of_tensors_are_printed(shown: Callable) -> None:
    def program(x):
        return x + 1, pprint.pformat(shown(x)), pprint.saferepr(shown(x)), repr(shown(x))

    check(lambda: program, *[call(X)] * 4, captures=None, fullgraph=False)
