"""The order in which the statements of a fused program run.

It is the program's order, with each kernel where its first member stood. Where its last one stood, everything that does not need it
would run before, and be in memory meanwhile. A kernel that frees more memory than it takes runs as soon as it can.
"""
from __future__ import annotations

import heapq
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
    kept = set(kept) - set(dying)
    mentioning: dict[str, list[int]] = {}
    for place, statement in enumerate(statements):
        for name in statement.mentions:
            mentioning.setdefault(name, []).append(place)
    users = {name: len(places) for name, places in mentioning.items()}
    there = {name for name in users if name not in buffers or buffers[name].kind in ("input", "constant")}
    sizes = {name: 0 if name not in buffers or name in there and name not in dying else bytes_of(buffers[name]) for name in users}

    def freed(statement: _Statement) -> int:
        """The bytes that are free when the statement has run and were not before; what stays within it is never there."""
        gain = 0
        for name in statement.mentions:
            last = users[name] == 1 and name not in kept
            if (name in there) == last:
                gain += sizes[name] if last else -sizes[name]
        return gain

    done, result = 0, []
    awaiting: dict[int, list[int]] = {}         # a position -> the statements that are asked again when it has run
    heap: list[int] = []                        # statements that can run, and perhaps such as have
    ready: set[int] = set()
    gaining: set[int] = set()                   # … the kernels of these that free memory

    def ask(place: int) -> None:
        missing = statements[place].needs & ~done
        if missing:
            awaiting.setdefault((missing & -missing).bit_length() - 1, []).append(place)
        else:
            heapq.heappush(heap, place)
            ready.add(place)
            weigh(place)

    def weigh(place: int) -> None:
        if statements[place].is_kernel and freed(statements[place]) > 0:
            gaining.add(place)
        else:
            gaining.discard(place)

    for place in range(len(statements)):
        ask(place)
    while len(result) < len(statements):
        while heap and heap[0] not in ready:
            heapq.heappop(heap)
        if not heap:
            raise AssertionError("fusion made a circle of dependencies")
        place = min(gaining, default=heap[0])
        chosen = statements[place]
        ready.remove(place)
        gaining.discard(place)
        done |= chosen.members
        result.append(chosen.members)
        there |= chosen.mentions
        for name in chosen.mentions:
            users[name] -= 1
        for other in ready.intersection(other for name in chosen.mentions for other in mentioning[name]):
            weigh(other)
        for position in bits(chosen.members):
            for other in awaiting.pop(position, ()):
                ask(other)
    return result


def _statement(body: Sequence[Nest | Extern], members: int, order: Order) -> _Statement:
    needs, mentions = 0, set()
    for position in bits(members):
        needs |= order.before[position]
        mentions |= reads(body[position]) | writes(body[position])
    return _Statement(members, needs & ~members, mentions, isinstance(body[bits(members)[0]], Nest))
