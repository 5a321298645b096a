"""Draws mutations of worlds, and keeps what they find."""
from __future__ import annotations

import collections
import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.mutation.world import Endless, Mutation, World, all_mutations, compare


@dataclass
class Bug:
    """A world that differs from the eager one after some changes. stale: in a hit."""

    world: World
    mutations: tuple[Mutation, ...]
    problems: list[str]
    stale: bool

    @property
    def kind(self) -> str:
        """What it has in common with others: the change, and what differs."""
        changes = ", ".join(mutation.name if mutation.other is None else "= other" for mutation in self.mutations)
        return f"{'stale' if self.stale else 'other'} | {changes} | {re.sub(r'[0-9]+|0x[0-9a-f]+', '', self.problems[0])[:90]}"

    def __str__(self) -> str:
        return "\n".join([f"{self.world.name}", *(f"    {mutation}" for mutation in self.mutations), *self.problems[:4]])


@dataclass
class Hunt:
    """`each`: mutations of each world; every third is a pair. part: of the worlds, drawn at random. until: no world is begun after
    that. tell: is given each bug."""

    each: int
    seed: int = 0
    part: float = 1.0
    until: float = math.inf
    tell: Callable[[Bug], None] = lambda bug: None
    worlds: int = 0
    mutations: int = 0
    possible: int = 0
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    bugs: list[Bug] = field(default_factory=list)

    def world(self, world: World) -> None:
        """Changes a world in some ways, and compares each time."""
        rng = random.Random(f"{self.seed}:{world.name}")
        if rng.random() >= self.part or time.monotonic() > self.until:
            return
        try:
            known = all_mutations(world)
        except (Exception, Endless) as error:
            self.skipped[f"world: {type(error).__name__}"] += 1
            return
        if self.examine(world, ()):
            return                              # differs in any case
        self.worlds += 1
        self.possible += len(known)
        for _ in range(min(self.each, len(known))):
            self.examine(world, draw(known, rng))

    def examine(self, world: World, mutations: tuple[Mutation, ...]) -> bool:
        """Compares one mutated world. Returns whether it differs."""
        found = compare(world, mutations)
        if found.skipped is not None:
            self.skipped[re.split("[:(]", found.skipped)[-1 if ": " in found.skipped else 0].strip()[:40]] += 1
            return False
        self.mutations += 1
        if found.problems:
            if len(mutations) > 1:
                for single in mutations:
                    if compare(world, (single,)).problems:
                        mutations = (single,)
                        break
            bug = Bug(world, mutations, found.problems, found.hit)
            self.bugs.append(bug)
            self.tell(bug)
        return bool(found.problems)


def draw(known: list[Mutation], rng: random.Random) -> tuple[Mutation, ...]:
    """One mutation or two. First a place, then what is done there: a large class has many places, a function few."""
    by_path: dict[str, list[Mutation]] = {}
    for mutation in known:
        by_path.setdefault(mutation.path, []).append(mutation)
    paths = list(by_path)
    chosen = [rng.choice(by_path[rng.choice(paths)]) if rng.random() < 0.6 else rng.choice(known)
              for _ in range(1 if rng.random() < 0.7 else 2)]
    return tuple(dict.fromkeys(chosen))
