"""The objects that a trace has met, by identity and in order of creation; and how long those that it has made are kept alive."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from capture._C import noted_along
from capture.refgraph.context import Context
from capture.refgraph.lookup import has_finalizer
from capture.refgraph.node import Build, Const, Expr, External, IteratorState, RefNode, Shadow, garbage_among


class Objects:
    """The nodes of a trace."""

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or Context()
        self.nodes: list[RefNode] = []              # outside objects, and those of ours that are alive, by serial
        self.numbers: dict[int, Shadow] = {}        # what `id` returned -> of what, last
        self.sealed = False
        self._by_id: dict[int, RefNode] = {}
        self._composites: dict[int, tuple[Any, Build]] = {}  # tuples and methods from outside, given to containers or functions
        self._young: list[RefNode] = []             # our objects held strongly, in order of creation
        self._held: list[RefNode] = []              # objects from outside held strongly
        self.derived: list[Any] = []                # objects that nobody else has, which follow from constants
        self._kept: list[Any] = []                  # iterators whose position at the end a hit must know
        self._serial = 0

    def find(self, real: Any) -> RefNode | None:
        """The node of an object met before, by identity."""
        node = self._by_id.get(id(real))
        return node if node is not None and node.real is real else None

    def keep_derived(self, real: Any) -> None:
        """Has the entry keep an object alive that follows from constants: guards may look at what it is made of."""
        self.derived.append(real)

    def note_composite(self, real: Any, shadow: Shadow | None) -> None:
        """A key of a dict, a member of a set, or what a function was given that may return it. What it is follows from guarded
        values; which of equal objects it is, its path tells, if it comes from outside."""
        if isinstance(shadow, Build) and shadow.source is not None:
            self._composites.setdefault(id(real), (real, shadow))       # the first of two paths: as `max` gives the first

    def noted_composite(self, real: Any) -> Build | None:
        """The shadow of a composite from outside that was noted."""
        return self._composites[id(real)][1] if id(real) in self._composites else None      # which is alive as long as it is there

    def is_made(self, cls: type) -> bool:
        """Whether the trace made a class."""
        node = self.find(cls)
        return node is not None and node.created

    def is_noted(self, cls: type, name: str) -> bool:
        """Whether the trace made a class or one of its bases, or has noted something of their attribute `name`."""
        return noted_along(self._by_id, cls, name)

    def numbered(self, numbers: Iterable[Any]) -> list[RefNode]:
        """The objects met before whose `id` is among `numbers`."""
        return [node for number in numbers if type(number) is int and (node := self._by_id.get(number)) is not None]

    def number(self, value: Any) -> Expr | None:
        """The shadow of `id(object)` if the program has asked that of an object; None for other numbers."""
        known = self.numbers.get(value) if type(value) is int else None
        return Expr(id, (known,)) if known is not None else None

    def is_new_number(self, key: Any) -> bool:
        """Whether a key is the `id` of an object that the trace made: no container from outside can have it, but by chance."""
        number = self.number(key)
        if number is None or type(number.args[0]) is External:
            return False
        return not isinstance(number.args[0], RefNode) or number.args[0].created

    def note_number(self, number: int, shadow: Shadow) -> None:
        """`id` returned the number of an object, whose place in memory another one may have had before."""
        if isinstance(shadow, Const):
            self.numbers.pop(number, None)
        else:
            self.numbers[number] = shadow

    def create(self, real: Any, state: Any = None, origin: Shadow | None = None) -> RefNode:
        """The node of an object that the program has just created."""
        node = self._register(RefNode(real, None, self._next(), state, origin))
        if node.strong:
            self._young.append(node)
        return node

    def _register(self, node: RefNode) -> RefNode:
        assert not self.sealed, f"{node} was added to a sealed graph"
        if has_finalizer(node.cls):
            node.watch(self.context.died)
        if node.strong and not node.created:
            self._held.append(node)
        self._by_id[id(node.real)] = node
        self.nodes.append(node)
        return node

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    @property
    def mark(self) -> int:
        """A point in time for `sweep`."""
        return self._serial

    def sweep(self, mark: int) -> None:
        """Lets go of objects created since `mark` that the program no longer holds, so that tensors in them can die."""
        if not self._young or self._young[-1].serial <= mark:
            return
        start = bisect_right(self._young, mark, key=lambda node: node.serial)
        survivors = []
        for node in reversed(self._young[start:]):  # containers created later may hold earlier ones
            if node.is_garbage():
                self._by_id.pop(id(node.real), None)
                node.release()
            else:
                survivors.append(node)
        self._young[start:] = reversed(survivors)

    def let_go(self, everything: bool = False) -> None:
        """Lets go of objects from outside that nobody else holds any more, so that they die as they do without us; or of all. An
        iterator that was moved stays: others from outside may walk over the same."""
        while dead := self._held if everything else [
                node for node in garbage_among(self._held) if not isinstance(node.state, IteratorState)]:
            for node in dead:
                self._by_id.pop(id(node.real), None)
                node.release()
            self._held = [node for node in self._held if node.strong]

    def keep_alive(self, iterators: Iterable[Any]) -> None:
        """Keeps iterators alive until the capture is over."""
        self._kept += iterators

    def release(self) -> None:
        """Lets go of all objects, when the capture is over."""
        self._young.clear()
        self._held.clear()
        self._kept.clear()
        self._composites.clear()
        for node in self.nodes:
            node.forget()

    def seal(self) -> None:
        """From now on nothing is learned or required."""
        self.sealed = True
