"""The order in which the statements of a fused program run.

It is the program's order, with each kernel where its first member stood. Where its last one stood, everything that does not need it
would run before, and be in memory meanwhile. A kernel that frees more memory than it takes runs as soon as it can.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from capture.backends.native.cost import bytes_of
from capture.backends.native.dependencies import Order, bits
from capture.backends.native.ir import Buffer, Extern, Nest
from capture.backends.native.rewrite import reads, writes


@dataclass(slots=True)
class _Statement:
    """What runs as one. members, needs: positions in the body as bit masks; `needs` must come before."""

    members: int
    needs: int
    mentions: set[str]
    is_kernel: bool


def in_order(body: Sequence[Nest | Extern], groups: Sequence[int], order: Order, buffers: Mapping[str, Buffer],
             kept: Collection[str], dying: Collection[str]) -> list[int]:
    """The groups of statements, as bit masks, in the order in which they run. kept: buffers that outlive the body; dying: inputs
    that do not, nor their last use in it."""
    statements = [_statement(body, members, order) for members in sorted(groups, key=lambda members: members & -members)]
    memory, waiting = _Memory(statements, buffers, kept, dying), _Waiting(statements)
    result: list[int] = []
    gaining: set[int] = set()               # kernels that can run and free memory
    changed = set(waiting.able)             # what may be one of them now, or no more
    while waiting.able:
        for place in changed:
            gains = statements[place].is_kernel and memory.freed(statements[place]) > 0
            (gaining.add if gains else gaining.discard)(place)
        place = min(gaining or waiting.able)
        gaining.discard(place)
        result.append(statements[place].members)
        found = waiting.has_run(place)
        changed = found | memory.has_run(statements[place]) & waiting.able
    if len(result) < len(statements):
        raise AssertionError("fusion made a circle of dependencies")
    return result


class _Memory:
    """What is in memory while statements run."""

    def __init__(self, statements: Sequence[_Statement], buffers: Mapping[str, Buffer], kept: Collection[str],
                 dying: Collection[str]) -> None:
        self.kept = set(kept) - set(dying)
        self.mentioning: dict[str, list[int]] = {}          # the places of statements
        for place, statement in enumerate(statements):
            for name in statement.mentions:
                self.mentioning.setdefault(name, []).append(place)
        self.users = {name: len(places) for name, places in self.mentioning.items()}
        self.there = {name for name in self.users if name not in buffers or buffers[name].kind in ("input", "constant")}
        self.sizes = {name: 0 if name not in buffers or name in self.there and name not in dying else bytes_of(buffers[name])
                      for name in self.users}

    def freed(self, statement: _Statement) -> int:
        """The bytes that are free when the statement has run and were not before; what stays within it is never there."""
        gain = 0
        for name in statement.mentions:
            last = self.users[name] == 1 and name not in self.kept
            if (name in self.there) == last:
                gain += self.sizes[name] if last else -self.sizes[name]
        return gain

    def has_run(self, statement: _Statement) -> set[int]:
        """The places of the statements that may free more now, or less."""
        self.there |= statement.mentions
        for name in statement.mentions:
            self.users[name] -= 1
        return {place for name in statement.mentions for place in self.mentioning[name]}


class _Waiting:
    """Statements that have not run. able: the places of those that can."""

    def __init__(self, statements: Sequence[_Statement]) -> None:
        self.statements = statements
        self.done = 0
        self.awaiting: dict[int, list[int]] = {}            # a position in the body -> what is asked again when that has run
        self.able = {place for place in range(len(statements)) if self._can_run(place)}

    def has_run(self, place: int) -> set[int]:
        """The places of the statements that can run from now on."""
        self.able.remove(place)
        self.done |= self.statements[place].members
        asked = [other for position in bits(self.statements[place].members) for other in self.awaiting.pop(position, ())]
        found = set(filter(self._can_run, asked))
        self.able |= found
        return found

    def _can_run(self, place: int) -> bool:
        missing = self.statements[place].needs & ~self.done
        if missing:
            last = missing.bit_length() - 1         # most likely it runs last, too
            self.awaiting.setdefault(last, []).append(place)
        return not missing


def _statement(body: Sequence[Nest | Extern], members: int, order: Order) -> _Statement:
    needs, mentions = 0, set()
    for position in bits(members):
        needs |= order.before[position]
        mentions |= reads(body[position]) | writes(body[position])
    return _Statement(members, needs & ~members, mentions, isinstance(body[bits(members)[0]], Nest))
