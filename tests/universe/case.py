"""One case: a program is captured with some objects, and called with all others. What comes of a hit must be what eager mode
makes of the same objects."""
from __future__ import annotations

import collections
import contextlib
import copy
import fractions
import functools
import inspect
import io
import itertools
import json
import linecache
import math
import operator
import random
import re
import statistics
import string
import textwrap
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import capture
from capture.errors import CaptureError
from tests.fuzz.case import Counts, Engine
from tests.fuzz.hunt import Bug
from tests.universe import objects
from tests.universe.outcome import describe
from tests.universe.programs import ONE, PLACES, TWO, USES, source

OTHERS = 120            # pairs of objects that a program of two operands is called with
WITHOUT_ARGUMENTS = re.compile(r"\b([ab])\.(\w+)\(\)")
Operands = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A program, with what it is captured, and in which order it is called."""

    question: str
    source: str
    place: str
    captured: tuple[Operands, ...]
    calls: tuple[Operands, ...]

    def __str__(self) -> str:
        return f"# captured with {', '.join(map(' and '.join, self.captured))}; then {len(self.calls)} calls\n{self.source}"


def draw(seed: int, number: int) -> Case:
    """The case of a number, among those of a seed."""
    rng = random.Random(f"{seed}:{number}")
    two = rng.random() < 0.4
    question = rng.choice(TWO if two else ONE)
    place, use = rng.choice(PLACES), rng.choice(USES)
    names = "ab" if two else "a"
    captured = tuple(tuple(rng.choice(objects.NAMES) for _ in names) for _ in range(rng.choice((1, 1, 1, 2, 4))))
    text = source(question, names, place, use, rng.random() < 0.3)
    calls = [operands for operands in captured for _ in range(2)]
    if two:
        for first, second in captured:
            calls += [(first, name) for name in rng.sample(objects.NAMES, OTHERS // 2)]
            calls += [(name, second) for name in rng.sample(objects.NAMES, OTHERS // 2)]
        calls += [(rng.choice(objects.NAMES), rng.choice(objects.NAMES)) for _ in range(OTHERS // 4)]
    else:
        calls += [(name,) for name in rng.sample(objects.NAMES, len(objects.NAMES))]
    calls += captured
    return Case(question, text, place, captured, tuple(call for call in calls if call in captured or not misread(question, call)))


def misread(question: str, operands: Operands) -> bool:
    """Whether a call of a method of C lacks its object: `list.sort()`. Where such a call site has seen `[].sort()` often, CPython
    up to 3.13.3 takes what lies beyond its stack for the object (its issue 131998), and may crash, in eager mode too."""
    asked = WITHOUT_ARGUMENTS.findall(question)
    values = dict(zip("ab", map(objects.make, operands))) if asked else {}
    return any(isinstance(getattr(values[name], method, None), types.MethodDescriptorType) for name, method in asked)


# -- worlds ------------------------------------------------------------------------------------------------------------

@capture.disable
def opaque() -> None:
    """A break."""


def keyworded(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


MODULES = (collections, copy, fractions, functools, itertools, json, math, operator, re, string, textwrap, torch, types, weakref)
LIBRARY = {**{module.__name__: module for module in MODULES},
           **{name: value for name, value in vars(objects).items() if isinstance(value, type)}, "np": np,
           "statistics_mean": statistics.mean, "inspect_signature": inspect.signature, "opaque": opaque, "keyworded": keyworded,
           "function": objects.function, "shared": objects.shared}


class World:
    """A program, and what it finds around it, made anew for each call."""

    def __init__(self, case: Case) -> None:
        self.place = case.place
        self.names: dict[str, Any] = {"__name__": "universe", **LIBRARY}
        self.known = set(self.names)
        file = f"<universe {id(self)}>"
        linecache.cache[file] = len(case.source), None, case.source.splitlines(keepends=True), file
        exec(compile(case.source, file, "exec", dont_inherit=True), self.names)
        linecache.cache.pop(file)
        self.program = self.names["program"]
        self.known |= {"program", "ask", "__builtins__", "__warningregistry__"}

    def call(self, program: Callable[..., Any], operands: Operands) -> dict[str, Any]:
        """A call on objects of these names, and all that came of it."""
        around = {"box": types.SimpleNamespace(), "log": [], "table": {"b": 3}, "members": {7},
                  "outside_set": {2, "a", objects.Colour.RED}, "outside_list": [2, "a", None], "outside_tuple": (2, "a", None),
                  "outside_dict": {2: 7, "a": "b", None: 2}}
        values = [objects.make(name) for name in operands]
        x = torch.arange(3.0)
        for name, value in zip("ab", values):
            setattr(around["box"], name, value)
            around[f"given_{name}"] = value
        around["operands"] = values
        for name in set(self.names) - self.known - set(around):
            del self.names[name]                    # what the program left
        self.names.update(around)
        named = dict(zip("ab", values)) if self.place == "keyword" else {}
        args = values if self.place in ("argument", "callee", "packed") else []
        output, error, result = io.StringIO(), None, None
        with contextlib.redirect_stdout(output):
            try:
                result = program(x, *args, **named)
            except CaptureError:
                raise
            except Exception as raised:
                error = raised
        left = {name: value for name, value in self.names.items() if name not in self.known and not name.startswith("given_")}
        return {"result": result, "error": error, "operands": values, "x": x, "output": output.getvalue(), **left}


# -- comparison --------------------------------------------------------------------------------------------------------

def compare(case: Case, engine: Engine) -> list[str]:
    """One line for each call of a case of which a hit, or a capture, made something else than eager mode."""
    with quiet():
        eager, world = World(case), World(case)
        compiled = capture.compile(world.program, recompile_limit=len(case.captured), **engine.arguments)
        unit, problems = compiled.capture_unit, []
        compared = 0
        for operands in case.calls:
            captures, hits = unit.captures, hits_of(unit)
            try:
                outcome = world.call(compiled, operands)
            except CaptureError as error:
                return [*problems, f"{called(operands)}: {type(error).__name__}: {error}"]
            if unit.captures == captures and hits_of(unit) == hits:
                continue                            # it ran natively
            compared += 1
            found, expected = describe(outcome), describe(eager.call(eager.program, operands))
            if found != expected and is_stable(eager, operands, expected):
                what = "hit" if unit.captures == captures else "capture"
                problems.append(f"{called(operands)}: {what}: {difference(expected, found)}")
        stats = capture.stats(compiled)
        engine.counts.add(Counts(compared, stats.captures, stats.hits, len(case.calls) - compared))
        return problems


def hits_of(unit: Any) -> int:
    return sum(entry.hits for member in unit.family for entry in member.tree.entries)


def called(operands: Operands) -> str:
    return " and ".join(operands)


def is_stable(world: World, operands: Operands, expected: Any) -> bool:
    """Whether eager mode comes to the same several times: hashes of objects are addresses, which differ as long as all live."""
    outcomes = [world.call(world.program, operands) for _ in range(8)]
    return all(describe(outcome) == expected for outcome in outcomes)


def difference(expected: Any, found: Any) -> str:
    """The first place where two descriptions differ."""
    for name in ("error", *expected):
        if expected[name] != found.get(name):
            return f"{name}: eager {short(expected[name])}, captured {short(found.get(name))}"
    return f"eager {short(expected)}, captured {short(found)}"


def short(text: Any) -> str:
    return f"{text!r:.300}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def examine(seed: int, number: int, engine: Engine, failing: Callable[[list[str]], None] = lambda problems: None) -> Bug | bool:
    """Runs one case: True, or what is wrong."""
    case = draw(seed, number)
    problems = compare(case, engine)
    return not problems or Bug(number, problems, case)  # type: ignore[arg-type]
