"""Attributes of generic aliases: nearly all are those of the class that the alias is made of."""
from __future__ import annotations

import collections.abc

import pytest
import torch

from tests.programs import NATIVE, run

X = torch.tensor([1.0, -2.0, 3.0])


class Own(list):
    kind = "own"

    def __len__(self):
        return 7

    @classmethod
    def made(cls):
        return cls.kind, cls.__name__


ALIASES = {"list": list[int], "of a class of the program": Own[int], "Callable": collections.abc.Callable[[int], str]}
NAMES = ("__getitem__", "__eq__", "__hash__", "__len__", "__call__", "__class__", "__doc__", "__name__", "__origin__",
         "__args__", "__parameters__", "__repr__", "__init__", "__module__", "__iter__", "__copy__", "__or__", "__dir__",
         "__mro_entries__", "append", "kind", "made", "missing")


def asked(alias, name):
    try:
        return getattr(alias, name)
    except AttributeError as error:
        return str(error)


@pytest.mark.parametrize("kind", ALIASES)
@pytest.mark.parametrize("name", NAMES)
def test_attributes(kind, name):
    alias = ALIASES[kind]
    expected = repr(asked(alias, name))

    def program(x):
        return x + 1, repr(asked(alias, name)), hasattr(alias, name), repr(getattr(alias, name, 5))
    assert program(X)[1] == expected
    run(lambda: program, (X,), NATIVE)


def test_what_the_class_has_follows_the_class():
    def make():
        class Kept(list):
            kind = "kept"

        alias = Kept[int]
        return lambda x: (x * 2, alias.kind, alias.__len__([1, 2])), Kept
    run(make, (X,), {"change": lambda kept: setattr(kept, "kind", "changed")})
