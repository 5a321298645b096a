"""`a += b` and its like, of a container that every call changes: who is asked, what changes, and what comes of it."""
from __future__ import annotations

import collections
import fractions
import types

import numpy
import pytest
import torch

from tests.helpers import call_with, check

X = torch.ones(2)


class Reflecting:
    """Is asked before a list, which is no number."""

    def __radd__(self, other):
        return "added", list(other)

    def __rmul__(self, other):
        return "multiplied", list(other)


class ReflectingItems(Reflecting):
    def __iter__(self):
        return iter([7, 8])


class Declining:
    def __radd__(self, other):
        return NotImplemented

    __rmul__ = __radd__

    def __iter__(self):
        return iter([7, 8])

    def __index__(self):
        return 2


OPERANDS = {
    "reflecting": Reflecting(), "reflecting items": ReflectingItems(), "declining": Declining(), "array": numpy.arange(3),
    "short array": numpy.arange(2), "numpy's number": numpy.int64(2), "tensor": torch.arange(3), "number tensor": torch.tensor(2),
    "list": [4, 5], "tuple": (4, 5), "deque": collections.deque([1]), "fraction": fractions.Fraction(2), "bool": True, "int": 2,
    "text": "ab", "range": range(2)}


def answering(self, other):
    return "answered", type(other).__name__


BASES = (list, collections.deque, bytearray)
DERIVED = [type(f"Derived{cls.__name__}", (cls,), {}) for cls in BASES]
ANSWERING = [type(f"Answering{cls.__name__}", (cls,), dict.fromkeys(("__add__", "__radd__", "__mul__", "__rmul__"), answering))
             for cls in BASES]


@pytest.mark.parametrize("operator", ["+=", "*="])
@pytest.mark.parametrize("cls", [*BASES, *DERIVED, *ANSWERING])
@pytest.mark.parametrize("operand", OPERANDS)
def test_sequences(operand: str, cls: type, operator: str) -> None:
    names: dict = {}
    exec(f"def program(x, changed, b):\n a = changed\n a {operator} b\n return x + 1, a, a is changed, len(changed)", names)
    check(lambda: (names["program"], types.SimpleNamespace(a=cls([1, 2, 3]))),
          *[call_with(lambda state: (X, state.a, OPERANDS[operand]))] * 3, captures=None, fullgraph=False)


@pytest.mark.parametrize("key", [numpy.float64(2), numpy.int64(1), numpy.float32(3)])
@pytest.mark.parametrize("body", [
    "table[key] = 1; return len(table), bool(table)", "table[key] = 1; del table[key]; return len(table)",
    "table[key] = 1; return 1 in table, 2.0 in table", "table[1] = 5; return table.get(key), table",
    "items[int(key) - 1] = key; return items", "items *= key; return items"])
def test_numbers_of_numpy_as_keys(body: str, key: object) -> None:
    names: dict = {}
    exec("def program(x, table, items, key):\n " + body.replace("; ", "\n "), names)
    check(lambda: (names["program"], types.SimpleNamespace(table={}, items=[1, 2, 3])),
          *[call_with(lambda state: (X, state.table, state.items, key))] * 3, captures=None, fullgraph=False)


@pytest.mark.parametrize("asked", ["len(a)", "bool(a)", "a + other", "a == b", "a.copy()", "list(a)"])
@pytest.mark.parametrize("base", [list, collections.deque, set, dict, tuple])
def test_containers_whose_class_says_what_they_hold(base: type, asked: str) -> None:
    """Their class gets an `__iter__` of Python: C functions go on to look at what there is."""
    def make():
        cls = type("Told", (base,), {})
        held = cls({1: 2, 3: 4, 5: 6}) if base is dict else cls([1, 3, 5])
        names: dict = {"a": held, "b": base(held), "other": base(held), "collections": collections}
        exec(f"""def program(x):
 try:
  if hasattr(a, "append"):
   a.append(7)
  elif hasattr(a, "add"):
   a.add(len(a) + 10)
  return x + 1, {asked}, len(a)
 except TypeError as error:
  return x, str(error), len(a)""", names)
        return names["program"], types.SimpleNamespace(cls=cls, held=held)

    def change(state) -> None:
        state.cls.__iter__ = lambda self: iter((1, 3))
    calls = [call_with(lambda state: (X,))] * 3
    check(make, *calls, change, *calls, captures=None, fullgraph=False)
    check(make, change, *calls, captures=None, fullgraph=False)
