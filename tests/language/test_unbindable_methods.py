"""Special methods that cannot be bound, since their descriptor raises: C drops the error of some, and takes them for missing."""
from __future__ import annotations

import pytest

from tests.helpers import call_with, check


class Uncallable:
    __get__ = None


class Raising:
    def __get__(self, obj, owner):
        raise ValueError("not bound")


class Nothing:
    def __get__(self, obj, owner):
        return None


class Counting:
    """The method that it gives returns a number."""

    def __get__(self, obj, owner):
        return lambda *args: 3


ASKED = {
    "__iter__": [iter, list, lambda x: 7 in x, lambda x: [*x], lambda x: dict(x), lambda x: list(map(str, x))],
    "__hash__": [hash, lambda x: {x: 1}[x], lambda x: x in {1}, lambda x: hash((1, x))],
    "__repr__": [repr, str, "{!r}".format, lambda x: f"{x}", lambda x: repr([x])],
    "__str__": [str], "__len__": [len, bool], "__bool__": [bool], "__eq__": [lambda x: x == 1], "__contains__": [lambda x: 1 in x],
    "__getitem__": [lambda x: x[0]]}


@pytest.mark.parametrize("items", [False, True], ids=["", "items"])
@pytest.mark.parametrize("descriptor", [Uncallable, Raising, Nothing, Counting])
@pytest.mark.parametrize("name", ASKED)
def test_special_methods_that_cannot_be_bound(name, descriptor, items):
    """In the first call the class has no such method of its own."""
    def make():
        own = {"__getitem__": lambda self, i: [7, 8][i]} if items else {}
        cls = type("Own", (), own)

        def f(x):
            results = []
            for ask in ASKED[name]:
                try:
                    answer = ask(x)
                    answer = list(answer) if hasattr(answer, "__next__") else answer
                    results.append(answer.split(" at ")[0] if isinstance(answer, str) else answer)
                except (TypeError, ValueError, KeyError) as error:
                    results.append((type(error), str(error), error.__context__))
            return [answer for answer in results if not isinstance(answer, int) or -9 < answer < 9]
        return f, cls

    one = call_with(lambda cls: (cls(),))
    check(make, one, lambda cls: setattr(cls, name, descriptor()), one, one, captures=None, fullgraph=False)


def test_a_type_error_of_what_is_searched_is_another():
    class Own:
        def __iter__(self):
            raise TypeError("mine")

    def f(x):
        try:
            return 3 in x
        except TypeError as error:
            return str(error), error.__context__
    one = call_with(lambda state: (Own(),))
    check(lambda: f, one, one, captures=None, fullgraph=False)
