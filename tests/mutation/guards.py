"""Guards by themselves: which of them fail when something changes, and what becomes of the program without one of them."""
from __future__ import annotations

import collections
import contextlib
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import capture
from capture import pipeline
from capture.guards.guard import Guard
from capture.guards.tree import GuardTree
from capture.refgraph.graph import RefGraph
from capture.refgraph.requirements import Key, key_of
from capture.refgraph.source import TypeAttr
from tests import helpers
from tests.mutation.world import Endless, Inapplicable, Mutation, World, all_mutations, run

FOLDER = os.path.dirname(capture.__file__)
OWN = {RefGraph.require.__code__, RefGraph.hold.__code__, RefGraph.touch.__code__, RefGraph.depend.__code__}
HEAP = os.path.join(FOLDER, "refgraph")
PASSED = {"track", "touch", "class_attribute", "pin"}      # which hand on what others ask


@dataclass(frozen=True)
class Name:
    """A guard of a world: the number of its entry among those that were made, its number there, and what it is for people."""

    entry: int
    index: int
    kind: str = field(compare=False)
    text: str = field(compare=False)
    place: str = field(compare=False)       # in capture: what required it

    def __str__(self) -> str:
        return f"{self.kind} required in {self.place}: {self.text}"


@dataclass
class Seen:
    """What is seen of guards while a world runs. without: the guard that is left out. failed: those that fail together, in each
    miss. mismatches: where the tree in C++ and the guards as Python disagree."""

    without: Name | None = None
    guards: list[Name] = field(default_factory=list)
    failed: list[frozenset[Name]] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)


def place_of(frame: Any) -> str:
    """What requires something: the first function outside of what is known of the heap, and by which function of that."""
    asked = frame
    while frame.f_code in OWN or frame.f_code.co_filename.startswith(HEAP) or frame.f_code.co_name in PASSED:
        asked, frame = frame, frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename, FOLDER)}:{frame.f_code.co_name} < {asked.f_code.co_name}"


def special_in(source: Any, kind: str, expected: Any) -> str:
    """Which special method of a class a guard is about, if it is about one."""
    name = expected if kind == "NO_ATTR" else source.name if isinstance(source, TypeAttr) else ""
    return f" {name}" if name.startswith("__") else ""


@contextlib.contextmanager
def watching(seen: Seen) -> Iterator[None]:
    """Takes down guards and misses, and leaves `seen.without` out of its entry."""
    require, insert, miss = RefGraph.require, GuardTree.insert, pipeline.miss
    places: dict[Key, str] = {}
    numbers: dict[int, tuple[Any, list[Name]]] = {}        # id of an entry -> itself, and the names of its guards

    def noting_require(graph: RefGraph, source: Any, kind: str, expected: Any) -> None:
        places.setdefault(key_of(source, kind, expected), place_of(sys._getframe(1)) + special_in(source, kind, expected))
        require(graph, source, kind, expected)

    def noting_insert(tree: GuardTree, guards: Any, *rest: Any) -> Any:
        number = len(numbers)
        names = [Name(number, index, guard.kind.name, str(guard)[:160],
                      places.get(key_of(guard.source, guard.kind.name, guard.expected), "?"))
                 for index, guard in enumerate(guards)]
        seen.guards += names
        kept = [(guard, name) for guard, name in zip(guards, names) if name != seen.without]
        entry = insert(tree, [guard for guard, _ in kept], *rest)
        numbers[id(entry)] = entry, [name for _, name in kept]
        places.clear()
        return entry

    def noting_miss(unit: Any, function: Any, args: list[Any], tree: GuardTree) -> Any:
        values = dict(zip(function.__code__.co_varnames, args))
        for entry in tree.entries:
            if id(entry) in numbers:
                guards = entry.guards
                failing = [index for index, guard in enumerate(guards) if not holds(guard, values, function)]
                seen.failed.append(frozenset(numbers[id(entry)][1][index] for index in failing))
                if not failing and not entry.lifted:
                    seen.mismatches.append(f"a miss for which all guards hold: {[str(guard) for guard in guards]}")
        return miss(unit, function, args, tree)
    RefGraph.require, GuardTree.insert, pipeline.miss = noting_require, noting_insert, noting_miss  # type: ignore[method-assign]
    try:
        yield
    finally:
        RefGraph.require, GuardTree.insert, pipeline.miss = require, insert, miss  # type: ignore[method-assign]


def holds(guard: Guard, values: dict[str, Any], function: Any) -> bool:
    """Whether a guard holds, by its definition in Python."""
    try:
        return guard.evaluate(values, function)
    except Exception:           # the object that it expects has died
        return False


@dataclass
class Tally:
    """What became of the guards of one kind that one place in capture requires. alone: those that some change fails alone; told:
    without which a hit is wrong then; equal: for all such changes, a hit without them is right."""

    guards: int = 0
    failed: int = 0
    alone: int = 0
    told: int = 0
    equal: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Survey:
    """`each`: mutations of a world; `tries`: changes by which a guard may be told."""

    each: int
    seed: int = 0
    tries: int = 3
    part: float = 1.0
    until: float = math.inf
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: collections.defaultdict(Tally))
    mismatches: list[str] = field(default_factory=list)
    worlds: int = 0
    mutations: int = 0

    def world(self, world: World) -> None:
        """Looks which guards of a world fail, and drops those that fail alone."""
        rng = random.Random(f"{self.seed}:{world.name}")
        if rng.random() >= self.part or time.monotonic() > self.until:
            return
        try:
            known = all_mutations(world)
        except (Exception, Endless):
            return
        guards: dict[Name, None] = {}
        failed: set[Name] = set()
        alone: dict[Name, list[Mutation]] = collections.defaultdict(list)
        self.worlds += 1
        for mutation in rng.sample(known, min(self.each, len(known))):
            seen = Seen()
            if self.outcomes(world, mutation, seen) is None:
                continue
            self.mutations += 1
            self.mismatches += [f"{world.name}: {mutation}: {text}" for text in seen.mismatches]
            first = {name for name in seen.guards if name.entry == 0}
            guards |= dict.fromkeys(sorted(first, key=lambda name: name.index))
            for failing in seen.failed:
                failed |= failing & first
                if len(failing) == 1 and failing <= first and mutation not in alone[next(iter(failing))]:
                    alone[next(iter(failing))].append(mutation)
        for name in guards:
            tally = self.tallies[name.kind, name.place]
            tally.guards += 1
            tally.failed += name in failed
            tally.alone += bool(alone[name])
            tells = [self.tells(world, name, mutation) for mutation in rng.sample(alone[name], min(self.tries, len(alone[name])))]
            tally.told += any(tells)
            if tells and not any(tells):
                tally.equal += 1
                tally.examples.append(f"{world.name}: {name.text}  ({', '.join(map(str, alone[name][:2]))})")

    def outcomes(self, world: World, mutation: Mutation, seen: Seen) -> list[helpers.Outcome] | None:
        """A captured run; None where it cannot be."""
        try:
            with watching(seen):
                return run(world, (mutation,), lambda program: capture.compile(program, **world.arguments))
        except (Inapplicable, Exception, Endless):
            return None
        finally:
            capture.reset()

    def tells(self, world: World, name: Name, mutation: Mutation) -> bool:
        """Whether a world without one of its guards differs from the eager one after a change."""
        try:
            eager = run(world, (mutation,), lambda program: program)
        except (Exception, Endless):
            return False
        found = self.outcomes(world, mutation, Seen(without=name))
        return found is None or bool(helpers.compare(eager, found, world.tolerance))

    def report(self) -> str:
        """A table: kinds and places, those that nothing tells first."""
        rows = sorted(self.tallies.items(), key=lambda item: (item[1].told > 0, -item[1].guards))
        lines = [f"{self.worlds} worlds, {self.mutations} mutations, {sum(t.guards for t in self.tallies.values())} guards",
                 f"{'guards':>7} {'failed':>7} {'alone':>7} {'told':>7} {'equal':>7}"]
        for (kind, place), tally in rows:
            lines.append(f"{tally.guards:7} {tally.failed:7} {tally.alone:7} {tally.told:7} {tally.equal:7}  {kind} {place}")
            lines += [f"{'':40}{example}" for example in tally.examples[:4]] if not tally.told else []
        return "\n".join([*lines, "", *(f"MISMATCH {text}" for text in self.mismatches)])
