"""How often an object is asked for its attributes: a capturing call, and a hit, ask what eager mode asks, and in the same order.

`python -m tests.universe.asking --seed 1 --first 0 --seconds 120` draws questions of the universe, and objects that note what they
are asked for: by a `__getattribute__`, or by a `__class__` that is a property.
"""
from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

import capture
from capture.errors import CaptureError
from tests.universe import classes, objects
from tests.universe.case import Case, Operands, World, quiet
from tests.universe.drawing import main
from tests.universe.programs import ONE, PLACES, TWO, USES, source

ASKED: list[str] = []       # what objects were asked for since the call began
BASES: tuple[type, ...] = (
    *(cls for cls in vars(classes).values() if isinstance(cls, type) and cls.__module__ == classes.__name__
      and not issubclass(cls, type) and cls not in (classes.ClassOfItsOwn, classes.Attributes)),
    objects.Dict, objects.List, objects.Set, objects.Tuple, objects.FrozenSet, objects.Int, objects.Float, objects.Bytes,
    objects.Deque, objects.Ordered, ValueError, KeyError, torch.nn.Identity, torch.nn.ReLU, object)


def noting_getattribute(base: type) -> dict[str, Any]:
    """Each attribute of an instance that is asked for."""
    def __getattribute__(self: Any, name: str) -> Any:
        ASKED.append(name)
        return base.__getattribute__(self, name)
    return {"__getattribute__": __getattribute__}


def noting_class(base: type) -> dict[str, Any]:
    """Each time that an instance is asked what it is; it says the truth."""
    def what(self: Any) -> Any:
        ASKED.append("__class__")
        return type(self)
    return {"__class__": property(what)}


def lying_class(base: type) -> dict[str, Any]:
    """The same, but it says that it is another."""
    def what(self: Any) -> Any:
        ASKED.append("__class__")
        return dict
    return {"__class__": property(what)}


WAYS: tuple[Callable[[type], dict[str, Any]], ...] = (noting_getattribute, noting_getattribute, noting_class, lying_class)


Kind = tuple[type, Callable[[type], dict[str, Any]]]            # base and way


def make_class(base: type, way: Callable[[type], dict[str, Any]]) -> Any:
    """A class whose instances note what they are asked for."""
    return type(base)("Asked", (base,), {"__module__": "universe", **way(base)})


def instance(cls: Any) -> Any:
    """An instance of such a class."""
    new = cls.__new__(cls)
    with contextlib.suppress(Exception):
        cls.__init__(new)
    return new


def draw(seed: int, number: int) -> tuple[Case, list[Kind]]:
    """A question, and of what kinds the objects are that it is asked of."""
    rng = random.Random(f"{seed}:{number}")
    names = "ab" if rng.random() < 0.3 else "a"
    question, place, use = rng.choice(TWO if len(names) == 2 else ONE), rng.choice(PLACES), rng.choice(USES)
    kinds = [(rng.choice(BASES), rng.choice(WAYS)) for _ in names]
    operands: Operands = tuple(f"asked_{name}" for name in names)
    return Case(question, source(question, names, place, use, rng.random() < 0.5), place, (operands,), (operands,) * 3), kinds


def differences(seed: int, number: int, **arguments: Any) -> list[str]:
    """A line for each of three calls in which objects were asked for other things than in eager mode."""
    case, kinds = draw(seed, number)
    problems = []
    with quiet():
        worlds = World(case), World(case)
        programs = worlds[0].program, capture.compile(worlds[1].program, **arguments)
        made = [[make_class(*kind) for kind in kinds] for _ in worlds]
        for call in range(3):
            eager, captured = map(note, worlds, programs, made, (case.captured[0],) * 2)
            if eager != captured:
                problems.append(f"call {call}: eager {short(eager)}, captured {short(captured)}")
    return problems


def note(world: World, program: Any, made: list[Any], operands: Operands) -> list[str]:
    """What the objects of a call are asked for, and which error ended it."""
    for name, cls in zip(operands, made):
        objects.OBJECTS[name] = functools.partial(instance, cls)
    ASKED.clear()
    try:
        outcome = world.call(program, operands)
        return [*ASKED, type(outcome["error"]).__name__]
    except CaptureError as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        for name in operands:
            del objects.OBJECTS[name]


def told(kind: Kind) -> str:
    """A kind in words."""
    base, way = kind
    return f"{base.__name__} by {way.__name__}"


def short(asked: list[str]) -> str:
    return f"{len(asked)} {asked[:12]}{'…' if len(asked) > 12 else ''}"


def asked(seed: int, number: int) -> str:
    """What is asked of what, in words."""
    case, kinds = draw(seed, number)
    return f"{', '.join(map(told, kinds))}\n{case.source}"


if __name__ == "__main__":
    sys.exit(main("tests.universe.asking", __doc__, lambda *place: differences(*place, backend="eager"), asked))
