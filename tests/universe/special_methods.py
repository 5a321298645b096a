"""Special methods of classes that derive from builtin ones: each is asked as often as in eager mode, whether it is written in
Python from the first or the class gets it later.

`python -m tests.universe.special_methods --seed 1 --first 0 --seconds 120` draws questions of the universe, and objects whose class
has one such method, which notes its calls.
"""
from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import capture
from capture.errors import CaptureError
from tests import subclasses as of
from tests.universe import objects
from tests.universe.case import Case, World, difference, quiet
from tests.universe.drawing import main
from tests.universe.outcome import describe
from tests.universe.programs import ONE, PLACES, USES, source

NAME = "special"
NOTED: list[str] = []       # the calls of special methods
MOST = 30                   # in one program, which may otherwise never end


class Plain:
    pass


BASES: dict[type, tuple[Any, ...]] = {
    of.Int: (2,), of.Float: (2.0,), of.Complex: (2j,), of.Str: ("a",), of.Bytes: (b"a",), of.List: ([2, 7],), of.Tuple: ((2, 7),),
    of.Dict: ({2: 7, "a": 3},), of.Set: ({2, 7},), of.FrozenSet: ({2, 7},), of.Deque: ([2, 7],), of.Ordered: ({2: 7, "a": 3},),
    of.ByteArray: (b"a",), Plain: ()}
ANSWERS: dict[str, Any] = {
    "bool": False, "len": 1, "iter": None, "next": 3, "contains": True, "getitem": 9, "setitem": None, "delitem": None,
    "reversed": None, "eq": True, "ne": True, "lt": True, "le": False, "gt": True, "ge": False, "hash": 1, "str": "s", "repr": "r",
    "format": "f", "index": 1, "int": 3, "float": 1.5, "complex": 1j, "call": 8, "bytes": b"b", "fspath": "p", "round": 4,
    "trunc": 4, "floor": 4, "ceil": 4, "length_hint": 3, "missing": 4, "abs": 5, "neg": 5, "pos": 5, "invert": 5, "dir": ["a"],
    **{prefix + name: 6 for prefix in ("", "r", "i") for name in (
        "add sub mul truediv floordiv mod divmod pow matmul lshift rshift and or xor").split()}}


@dataclass(frozen=True)
class Asked:
    """A question, and the class of the object that it is asked of. answers: the method does not do what that of its base does."""

    case: Case
    base: type
    method: str
    answers: bool
    later: bool             # the class gets the method after two calls
    fresh: bool             # each call has an object of its own

    def __str__(self) -> str:
        return (f"{self.base.__name__} with __{self.method}__{' of its own' * self.answers}{', later' * self.later}"
                f"{', other objects' * self.fresh}\n{self.case.source}")


def draw(seed: int, number: int) -> Asked:
    rng = random.Random(f"{seed}:{number}")
    while True:
        question, place, use = rng.choice(ONE), rng.choice(PLACES), rng.choice(USES)
        case = Case(question, source(question, "a", place, use, rng.random() < 0.2), place, ((NAME,),), ((NAME,),))
        base, method = rng.choice([*BASES]), rng.choice([*ANSWERS])
        asked = Asked(case, base, method, rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.3)
        with quiet():
            if next(iter(outcomes(replace(asked, later=False), lambda program: program)))[1]:      # else it is not asked
                return asked


def method_of(base: type, name: str, answers: bool) -> Callable[..., Any]:
    """A special method that notes its calls."""
    done = getattr(base, f"__{name}__", None)

    def method(self: Any, *args: Any) -> Any:
        NOTED.append(name)
        if len(NOTED) > MOST:
            raise IndexError if name == "getitem" else StopIteration if name == "next" else RuntimeError
        if name in ("iter", "reversed") and (answers or done is None):
            return iter((1, 2))
        return ANSWERS[name] if answers or done is None else done(self, *args)
    return method


def outcomes(asked: Asked, engine: Callable[[Any], Any]) -> Iterable[tuple[Any, list[str]]]:
    """What comes of each call, and which special methods it called."""
    world = World(asked.case)
    program = engine(world.program)
    cls: Any = type("Special", (asked.base,), {"__module__": "universe"})
    method = method_of(asked.base, asked.method, asked.answers)
    new = types.MethodType(lambda cls: cls(*BASES[asked.base]), cls)
    same = new()
    objects.OBJECTS[NAME] = new if asked.fresh else lambda: same
    try:
        for call in range(5):
            if call == (2 if asked.later else 0):
                setattr(cls, f"__{asked.method}__", method)
            NOTED.clear()
            try:
                outcome = world.call(program, (NAME,))
                notes = list(NOTED)
            except CaptureError as error:
                yield {"error": f"{type(error).__name__}: {error}"}, []
                return
            del outcome["operands"]
            yield described(outcome), notes
    finally:
        del objects.OBJECTS[NAME]


def described(outcome: dict[str, Any]) -> Any:
    """An outcome in words: the same for the same, whatever the special methods of a class tell."""
    try:
        return describe(outcome)
    except Exception as error:
        return {"error": f"cannot be described: {type(error).__name__}"}


def differences(asked: Asked, **arguments: Any) -> list[str]:
    """A line for each call that differs from eager mode's."""
    with quiet():
        found = list(outcomes(asked, lambda program: capture.compile(program, **arguments)))
        expected = list(outcomes(asked, lambda program: program))
        again = list(outcomes(asked, lambda program: program))
    problems = []
    for call, (eager, captured, second) in enumerate(zip(expected, found, again)):
        if eager[1] != captured[1]:
            problems.append(f"call {call}: called: eager {eager[1]}, captured {captured[1]}")
        elif eager[0] != captured[0] and eager == second:
            problems.append(f"call {call}: {difference(eager[0], captured[0])}")
    return problems


if __name__ == "__main__":
    sys.exit(main("tests.universe.special_methods", __doc__, lambda *place: differences(draw(*place), backend="eager"),
                  lambda *place: str(draw(*place))))
