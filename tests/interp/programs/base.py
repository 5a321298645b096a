"""The list of programs, and classes that several of them use."""
from __future__ import annotations

import sys
from typing import Any

PROGRAMS: list[Any] = []


def program(function):
    PROGRAMS.append(function)
    return function


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __repr__(self):
        return f"Point({self.x}, {self.y})"

    __hash__ = None


class Counter:
    def __init__(self, n):
        self.i, self.n = 0, n

    def __iter__(self):
        return self

    def __next__(self):
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.i


class Manager:
    def __init__(self, log, swallows=False, fails_on=None):
        self.log, self.swallows, self.fails_on = log, swallows, fails_on

    def __enter__(self):
        self.log.append("enter")
        if self.fails_on == "enter":
            raise LookupError("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, str(value), traceback is None, repr(sys.exception())))
        if self.fails_on == "exit":
            raise LookupError("exit")
        return self.swallows

