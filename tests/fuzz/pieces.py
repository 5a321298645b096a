"""What a world is made of: pieces of source text, with the places in them that programs use and that change from outside.

A line `BODY a b` stands for random statements, which may use and assign the tensors `a` and `b` and the number `n`.
"""
from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import capture


@dataclass
class Places:
    """Expressions that denote places of a world, by what they hold at first: all can be assigned, and most can be deleted. Then
    what a piece alone is done to."""

    numbers: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    dicts: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)      # of a tensor, to a tensor of the same shape
    readers: list[str] = field(default_factory=list)        # calls and attributes that compute numbers
    objects: list[str] = field(default_factory=list)        # instances with a dictionary
    classes: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)          # strings
    managers: list[str] = field(default_factory=list)       # of `with` statements
    generators: list[str] = field(default_factory=list)     # and other iterators, which go on from call to call
    globals: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)     # for programs
    changes: list[str] = field(default_factory=list)        # from outside: templates, see `steps.Stepper.change`

    def __add__(self, other: Places) -> Places:
        return Places(*([*getattr(self, f.name), *getattr(other, f.name)] for f in fields(self)))

    @property
    def objects_of_all_kinds(self) -> list[str]:
        return [*self.objects, *self.modules, *self.lists, *self.dicts, *self.sets, *self.tensors]


@dataclass
class Piece:
    """A part of a world: its text, and the places that it adds."""

    text: str
    places: Places


def piece(text: str, statements: Iterable[str] = (), changes: Iterable[str] = (), **places: str) -> Piece:
    """`places`: expressions of each kind, separated by spaces; those with spaces in them, by semicolons."""
    split = {kind: [part.strip() for part in (listed.split(";") if ";" in listed else listed.split())] for kind,
             listed in places.items()}
    return Piece(textwrap.dedent(text).strip("\n"), Places(**split, statements=[*statements], changes=[*changes]))


@capture.disable
def outside(value: Any = None, *seen: Any) -> Any:
    """What no trace can hold."""
    return value


def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns, or raises, in a thread of its own."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((function(), None))
        except Exception as error:
            outcome.extend((None, error))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome.pop()
    return outcome[0]


@capture.disable
def fails(error: Exception) -> None:
    """Raises, where no trace can hold it. Its frame does not lead to the exception, which leads to the program's frame."""
    try:
        raise error
    finally:
        del error


IMPORTS = """
import abc, collections, contextlib, contextvars, copy, dataclasses, enum, functools, itertools, math, operator, os, random
import threading, types, weakref
import numpy
import torch, torch.utils.checkpoint
import torch.nn.functional as F
from torch import nn
from tests.fuzz.pieces import fails, in_thread, outside
"""

BASE = piece("""
    G, H, flag, name, nothing, log = 2.0, 3, True, "tanh", None, []
    weight, shift = torch.linspace(0, 1, 3), torch.tensor([1.0, -2.0, 0.5])
    items, table, flags, pair = [1.0, 2.0], {"a": 5.0, "c": 1}, {"on"}, (1.0, "a")

    class Base:
        scale = 2.0

        def apply(self, x):
            return x * self.scale

        @property
        def doubled(self):
            return self.value * 2

        @classmethod
        def made(cls, value):
            made = cls()
            made.value = value
            return made

        @staticmethod
        def moved(x, by=1.0):
            return x + by

        def __call__(self, x):
            return self.apply(x) + self.value

    class Derived(Base):
        def apply(self, x):
            return super().apply(x) + 1

        def bump(self, a):
            n = self.value
            BODY a
            return a

    class Other(Base):
        scale = -1.0

    box, twin = Derived(), Other.made(0.5)
    box.value, box.items, box.table, box.tensor, box.child = 1.5, [1.0, 2.0], {"a": 1.0, "b": 2}, torch.ones(3), Base.made(3)
""", numbers="G H box.value twin.value Base.scale box.scale Derived.scale table['a'] items[0] items[-1] box.table['b'] "
             "box.child.value box.items[1]",
    tensors="weight shift box.tensor", lists="items box.items log", dicts="table box.table vars(box)", sets="flags",
    functions="box.apply twin.apply box twin box.child.apply Base.moved box.moved box.bump",
    readers="box.doubled len(items) sum(box.items) table.get('b',7.0) getattr(box,'extra',4.0) Base.made(2).value len(box.table) "
            "pair[0]",
    objects="box twin box.child", classes="Base Derived Other", names="name pair[1]", globals="G H flag nothing weight items table",
    managers="torch.no_grad(); torch.enable_grad(); contextlib.suppress(Exception); contextlib.nullcontext(2) as n; "
             "contextlib.ExitStack() as stack; torch.autocast('cpu', dtype=torch.bfloat16); torch.set_grad_enabled(bool(n)); "
             "torch.inference_mode(False)",
    generators="iter([1.0,2.0])")


def world(chosen: Iterable[Piece]) -> tuple[list[str], Places]:
    """The texts of a world of these pieces, behind the imports, and all their places."""
    pieces = [BASE, *chosen]
    return [IMPORTS.strip(), *(each.text for each in pieces)], sum((each.places for each in pieces), Places())
