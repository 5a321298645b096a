"""A program, its world and one call of it, run eagerly and captured, with something changed in between."""
from __future__ import annotations

import contextlib
import signal
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import capture
from tests import helpers
from tests.mutation import mutators
from tests.mutation.modes import MODES
from tests.mutation.places import Place, Undo, places

SECONDS = 20        # that a world may take: some changes make programs endless
ROOTS = "args", "kwargs", "program", "state"
Engine = Callable[[Any], Any]


class Inapplicable(Exception):
    """A mutation that cannot be made in this world."""


class Endless(BaseException):
    """A world took too long."""


@dataclass(frozen=True)
class World:
    """`make` and `call` as `helpers.check` takes them. arguments: of `capture.compile`."""

    name: str
    make: Callable[[], Any]
    call: helpers.Call
    backward: bool = False
    tolerance: float | None = None
    arguments: dict[str, Any] = field(default_factory=lambda: {"backend": "eager"}, compare=False)


@dataclass(frozen=True)
class Mutation:
    """What is done at the place that is called `path`; `other`: the path of an object that comes to be there, too."""

    path: str
    name: str
    other: str | None = None

    @property
    def is_of_arguments(self) -> bool:
        """Whether it is made anew for each call, whose arguments are new."""
        return self.path.startswith(ROOTS[:2])

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def all_mutations(world: World) -> list[Mutation]:
    """All that can be changed in a world after two calls."""
    found: list[Mutation] = []

    def look(roots: dict[str, Any]) -> None:
        known = places(roots)
        by_class: dict[type, list[Place]] = {}
        for place in known:
            by_class.setdefault(type(place.value), []).append(place)
        for place in known:
            found.extend(Mutation(place.path, name) for name, _ in mutators.mutations(place))
            others = mutators.alike(place, by_class[type(place.value)])
            found.extend(Mutation(place.path, name, other.path) for name, other in others)
    with limited():
        _Session(world, look).run(lambda program: program)
    return list(dict.fromkeys([*found, *(Mutation("modes", name) for name in MODES)]))


def run(world: World, mutations: tuple[Mutation, ...], engine: Engine,
        watch: Engine = lambda number: None) -> list[helpers.Outcome]:
    """The outcomes of five calls: two before the changes, two after them, and one with what can be taken back taken back.

    watch: is told the number of each call before it is made. Raises Inapplicable for changes that cannot be made, and Endless.
    """
    def change(roots: dict[str, Any]) -> Iterator[Undo]:
        known: dict[str, Place] = {}
        for mutation in mutations:
            if not first and not mutation.is_of_arguments:
                continue
            if mutation.path == "modes":
                yield MODES[mutation.name]()
                continue
            known = known or {place.path: place for place in reversed(places(roots))}
            yield applied(mutation, known)
        first.clear()
    first = [True]
    session = _Session(world, change, watch)
    with limited():
        return session.run(engine)


def applied(mutation: Mutation, known: dict[str, Place]) -> Undo:
    """Makes a change, and returns what takes it back."""
    try:
        place = known[mutation.path]
        if mutation.other is not None:
            assert place.put is not None
            return place.put(known[mutation.other].value)
        with warnings.catch_warnings(action="ignore"):
            undo = dict(mutators.mutations(place))[mutation.name]()
        return undo if undo is not None else (lambda: None)
    except Exception as error:
        raise Inapplicable(f"{mutation}: {type(error).__name__}: {error}") from None


class _Session:
    """One run of a world. change: makes the changes in the world with these roots."""

    def __init__(self, world: World, change: Callable[[dict[str, Any]], Any], watch: Engine = lambda number: None) -> None:
        self.world, self.change, self.watch, self.active, self.calls = world, change, watch, False, 0
        self.undos: list[Undo] = []

    def run(self, engine: Engine) -> list[helpers.Outcome]:
        call = helpers.Call(self.arguments)
        try:
            return helpers.run(self.make, (call, call, self.begin, call, call, self.end, call), engine, self.world.backward)
        finally:
            self.end(None)

    def make(self) -> Any:
        mutators.LOG.clear()
        program, state = helpers._unpack(self.world.make())
        return program, types.SimpleNamespace(program=program, state=state, log=mutators.LOG)

    def begin(self, holder: Any) -> None:
        self.active = True

    def end(self, holder: Any) -> None:
        self.active = False
        while self.undos:
            try:
                self.undos.pop()()
            except Exception as error:
                if holder is not None:
                    raise Inapplicable(f"cannot be taken back: {error}") from None

    def arguments(self, holder: Any) -> tuple[tuple, dict[str, Any]]:
        self.calls += 1
        self.watch(self.calls)
        args, kwargs = self.world.call.arguments(holder.state)
        if not self.active:
            return args, kwargs
        changed = list(args)
        for undo in self.change(dict(zip(ROOTS, (changed, kwargs, holder.program, holder.state)))) or ():
            self.undos.append(undo)
        return tuple(changed), kwargs


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises Endless in what takes too long."""
    def stop(*_: Any) -> None:
        raise Endless
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Compared:
    """What came of a mutation: differences to eager, or why it says nothing."""

    problems: list[str] = field(default_factory=list)
    skipped: str | None = None
    hit: bool = False           # what differs is a hit


def compare(world: World, mutations: tuple[Mutation, ...]) -> Compared:
    """Whether a captured world is the eager one, before and after these changes."""
    try:
        eager = run(world, mutations, lambda program: program)
    except Inapplicable as error:
        return Compared(skipped=str(error))
    except Endless:
        return Compared(skipped="endless")
    except Exception as error:
        return Compared(skipped=f"cannot be looked at: {type(error).__name__}: {error}")
    if any("RecursionError" in repr(outcome.snapshot.table["exception"]) for outcome in eager):
        return Compared(skipped="how deep it comes depends on what called it")
    compiled: list[Any] = []

    def engine(program: Any) -> Any:
        compiled.append(capture.compile(program, **world.arguments))
        return compiled[0]
    hits: list[int] = []
    try:
        captured = run(world, mutations, engine, lambda number: hits.append(capture.stats(compiled[0]).hits))
        hits.append(capture.stats(compiled[0]).hits)
        try:
            problems = helpers.compare(eager, captured, world.tolerance)
        except Exception as error:      # the state of Python's random numbers may hold a tensor
            return Compared(skipped=f"cannot be compared: {type(error).__name__}: {error}")
        if problems and helpers.compare(eager, run(world, mutations, lambda program: program), world.tolerance):
            return Compared(skipped="not deterministic")
        number = int(problems[0].split(":")[0].removeprefix("call ")) if problems else 1
        return Compared(problems, hit=hits[number] > hits[number - 1])
    except Endless:
        return Compared(["endless"])
    except Exception as error:
        return Compared([f"{type(error).__name__}: {error}"])
    finally:
        capture.reset()
