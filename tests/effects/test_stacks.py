"""New objects that are put on a stack, or into a table, of outside objects and taken off again, as handlers and contexts are: they
die before the trace ends."""
from __future__ import annotations

import collections
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check


class Key:
    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.name == other.name


class Handler:
    def __init__(self, held: Any) -> None:
        self.held = held


def reordered() -> set[int]:
    members = {8}
    members.update((0, 16))
    members.discard(8)
    return members


def hashed() -> dict[Any, int]:
    table = {Key("a"): 1}
    table[Key("b")] = 2
    return table


OBJECTS: dict[str, Callable[[], Any]] = {
    "set": reordered, "frozenset": lambda: frozenset(reordered()), "dict": lambda: {"a": 1}, "hashed": hashed,
    "deque": lambda: collections.deque([1, 2, 3], maxlen=2), "ordered": lambda: collections.OrderedDict(a=1),
    "defaultdict": lambda: collections.defaultdict(list, a=[1]), "counter": lambda: collections.Counter("aab"),
    "iterator": lambda: iter([1, 2]), "map": lambda: map(str, [1]), "bytes": lambda: bytearray(b"ab"), "tuple": lambda: (1, [2]),
    "function": lambda: lambda: 1, "class": lambda: type("C", (), {}), "error": lambda: ValueError("no"),
    "slots": lambda: SimpleNamespace(a={1, 2}),
}

UNKNOWN = ("iterator", "map", "hashed")     # of which positions and hashes are not known once they have died: such traces are cut


def pushed(state: Any, held: Any) -> None:
    state.stack.append(held)
    state.seen = len(state.stack)
    state.stack.pop()


def queued(state: Any, held: Any) -> None:
    state.queue.append(held)
    state.seen = len(state.queue)
    state.queue.pop()


def entered(state: Any, held: Any) -> None:
    state.table["now"] = held
    state.seen = list(state.table)
    del state.table["now"]


@pytest.mark.parametrize("put", [pushed, queued, entered], ids=lambda put: put.__name__)
@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_that_come_and_go(kind: str, put: Callable[[Any, Any], None]) -> None:
    def make() -> Any:
        state = SimpleNamespace(stack=[7], queue=collections.deque([7]), table={"last": 7}, seen=None)

        def program(x: torch.Tensor) -> torch.Tensor:
            held = OBJECTS[kind]()
            put(state, held)
            put(state, Handler(held))
            return x + state.seen if isinstance(state.seen, int) else x
        return program, state

    check(make, call(torch.ones(2)), call(torch.ones(2)), lambda state: state.stack.append(1), call(torch.ones(2)), captures=None,
          fullgraph=put is pushed or kind not in UNKNOWN)
