"""Objects that note every special method they are asked for: alone, in pairs, and within containers of every kind.

`python -m tests.universe.noting --seed 1 --first 0 --seconds 120` draws questions of builtins, operators, methods and statements.
What comes of each call, and the list of what was asked of which object, must be eager mode's: in the capturing call, on hits, with
other objects, and once the objects are equal that were not.
"""
from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import enum
import functools
import heapq
import io
import itertools
import json
import math
import operator
import pprint
import random
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import capture
from capture.errors import CaptureError
from tests.helpers import without_addresses
from tests.universe.case import LIBRARY as WORDS
from tests.universe.case import quiet
from tests.universe.drawing import main
from tests.universe.noted_questions import question
from tests.universe.special_methods import ANSWERS, BASES, Plain

NOTED: list[str] = []
MOST = 60                   # in one call, which may otherwise never end
CALLS = ("first", "same", "same", "others", "others", "equal", "equal")
STATE = {"equal": False, "by address": False}      # whether the objects of a world equal each other; what orders a set of them


class Colour(enum.Enum):
    RED = 1
    BLUE = "a"


@functools.lru_cache(maxsize=2)
def cached(*args: Any) -> int:
    return len(args)


@dataclass(frozen=True)
class Asked:
    """A question, and what kind of objects it is asked with. methods: what they note, and how they answer; by_value: their hash
    is that of what they hold, so that two objects of one world may collide or not."""

    source: str
    base: type
    methods: tuple[tuple[str, bool], ...]
    kept: bool              # the containers from outside live on from call to call, where the objects are the same

    def __str__(self) -> str:
        listed = ", ".join(f"__{name}__{' of its own' * answers}" for name, answers in self.methods)
        return f"{self.base.__name__} with {listed}{', kept' * self.kept}\n{self.source}"


def program_of(question: str, caught: bool) -> str:
    """The source of a program that asks it. caught: and catches what it raises."""
    if caught:
        question = "try:\n" + textwrap.indent(question, " ") + "\nexcept Exception as e: r = type(e).__name__"
    return f"def program(x, a, b, {', '.join(OUTER)}):\n y = x + 1\n{textwrap.indent(question, ' ')}\n return r\n"


def draw(seed: int, number: int) -> Asked:
    rng = random.Random(f"noting {seed}:{number}")
    source = program_of(question(rng), rng.random() < 0.3)
    keyed = [("hash", False), ("eq", False)] if rng.random() < 0.6 else []
    others = rng.sample([*ANSWERS], rng.choice((0, 1, 2, 4, len(ANSWERS))))
    methods = dict([*keyed, *((name, rng.random() < 0.5) for name in others if not (keyed and name in ("hash", "eq")))])
    base = Plain if rng.random() < 0.4 else rng.choice([*BASES])
    return Asked(source, base, tuple(methods.items()), rng.random() < 0.4)


def method_of(base: type, name: str, answers: bool) -> Callable[..., Any]:
    """A special method that notes its calls."""
    done = getattr(base, f"__{name}__", None)

    def method(self: Any, *args: Any) -> Any:
        NOTED.append(f"{name_of(self)}.{name}")
        if len(NOTED) > MOST:
            raise IndexError if name == "getitem" else StopIteration if name == "next" else RuntimeError
        if name == "eq" and not answers:
            return self is args[0] or STATE["equal"] and type(args[0]) is type(self)
        if name == "hash" and not answers:
            return 5
        if name in ("iter", "reversed") and (answers or done is None):
            return iter((1, 2))
        return ANSWERS[name] if answers or done is None else done(self, *args)
    return method


NAMES: dict[int, str] = {}      # of the objects of a world


def name_of(x: Any) -> str:
    return NAMES.get(id(x), "other")


OUTER: dict[str, Callable[[Any, Any], Any]] = {
    "outer_list": lambda a, b: [a, b], "outer_set": lambda a, b: {a, b}, "outer_dict": lambda a, b: {a: 1, b: 2},
    "outer_ordered": lambda a, b: collections.OrderedDict([(a, 1), (b, 2)]),
    "outer_counter": lambda a, b: collections.Counter([a, b]),
    "outer_deque": lambda a, b: collections.deque([a, b]), "outer_tuple": lambda a, b: (a, b),
    "outer_frozen": lambda a, b: frozenset((a, b)), "outer_default": lambda a, b: collections.defaultdict(int, {a: 1})}
MODULES = collections, copy, functools, heapq, itertools, json, math, operator, pprint, bisect, torch
LIBRARY: dict[str, Any] = {module.__name__: module for module in MODULES}
LIBRARY |= {name: getattr(collections, name) for name in "Counter OrderedDict deque defaultdict".split()}
X = torch.ones(2)


def outcomes(asked: Asked, engine: Callable[[Any], Any], turned: bool = False) -> Iterable[tuple[str, str]]:
    """What comes of each call, and what it asked of which object. turned: objects lie in memory the other way round."""
    names: dict[str, Any] = {"__name__": "universe", **WORDS, "Colour": Colour, "cached": cached, **LIBRARY}
    exec(asked.source, names)
    program = engine(names["program"])
    methods = {f"__{name}__": method_of(asked.base, name, answers) for name, answers in asked.methods}
    if "__eq__" in methods:
        methods.setdefault("__hash__", lambda self: 5)
    cls: Any = type("Special", (asked.base,), {"__module__": "universe", **methods})
    STATE["by address"] = cls.__hash__ is object.__hash__
    given: tuple[Any, ...] = ()
    for call in CALLS:
        STATE["equal"] = False
        if call in ("first", "others"):
            new = [cls(*BASES[asked.base]) for _ in range(2)]
            new.sort(key=id, reverse=turned)
            NAMES.clear()
            NAMES.update((id(one), name) for one, name in zip(new, "ab"))
        a, b = new
        if not (asked.kept and given and call not in ("first", "others")):
            given = tuple(made(build, a, b) for build in OUTER.values())
        STATE["equal"] = call == "equal"
        cached.cache_clear()
        NOTED.clear()
        try:
            result = program(X, a, b, *given)
        except CaptureError as error:
            yield f"{type(error).__name__}: {error}", ""
            return
        except Exception as error:
            result = type(error).__name__
        notes = " ".join(NOTED)
        yield without_addresses(f"{told(result)}; {told(given)}"), notes


def made(build: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """A container from outside; None for one that these objects cannot be in."""
    NOTED.clear()
    try:
        return build(a, b)
    except Exception:
        return None


def told(x: Any, depth: int = 5) -> str:
    """A result in words, in whose making nothing of the program's is asked."""
    if id(x) in NAMES:
        return NAMES[id(x)]
    base = next((base for base in (tuple, list, dict, set, frozenset, collections.deque) if type.__instancecheck__(base, x)), None)
    if base is not None and depth:
        parts = [told(item, depth - 1) for item in (dict.items(x) if base is dict else base.__iter__(x))]  # type: ignore[attr-defined]
        if base in (set, frozenset) and STATE["by address"]:
            parts.sort()
        return f"{type(x).__name__}({', '.join(parts)})"
    if type(x) in (int, float, str, bool, bytes, complex, type(None), range, torch.Tensor, torch.Size):
        return f"{type(x).__name__} {x!r}"
    return type(x).__name__


def differences(asked: Asked, **arguments: Any) -> list[str]:
    """A line for each call that differs from eager mode's."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        expected = list(outcomes(asked, lambda program: program))
        again = list(outcomes(asked, lambda program: program, turned=True))
        if expected != again:
            return []           # addresses decide
        found = list(outcomes(asked, lambda program: capture.compile(program, **arguments)))
    problems = []
    for call, (name, (eager, asks), (captured, asked_for)) in enumerate(zip(CALLS, expected, found)):
        if asks != asked_for:
            problems.append(f"call {call} ({name}): asked: eager {asks}; captured {asked_for}")
        if eager != captured:
            problems.append(f"call {call} ({name}): eager {eager}; captured {captured}")
    return problems


if __name__ == "__main__":
    sys.exit(main("tests.universe.noting", __doc__, lambda *place: differences(draw(*place), backend="eager"),
                  lambda *place: str(draw(*place)) + "\n"))
