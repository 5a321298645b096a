"""What a trace has changed, and which calls it has made, in order."""
from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from capture.errors import Break, UserFrame
from capture.refgraph.context import Context
from capture.refgraph.effects import ADDING, POPPING, CallEffect, Effect, calls_in, changed_by, draws_before, is_foreign
from capture.refgraph.memory import size_of
from capture.refgraph.node import Const, RefNode, Shadow
from capture.refgraph.objects import Objects
from capture.refgraph.publishing import Past
from capture.refgraph.source import Source


@dataclass(frozen=True)
class Final:
    """A tensor that must not change after a call in a trace: neither its layout, memory and history, nor what it holds.

    storage: its own. since: when the call was made, in the order of the trace. what: names the call in messages. stack: the lines
    before which the trace may end. unwritten: that it is written to matters, too."""

    tensor: RefNode
    storage: int | None
    since: int
    what: str
    stack: tuple[UserFrame, ...] = ()
    unwritten: bool = True


class Changes(Objects):
    """The effects of a trace and its writes to tensor memory, in order, and what its call effects have been shown."""

    def __init__(self, context: Context | None = None) -> None:
        super().__init__(context)
        self.effects: list[Effect | CallEffect] = []
        self.early: set[CallEffect] = set()         # those that are done before the graph runs
        self.dropped: list[RefNode] = []            # tensors that lose their gradients before the graph runs
        self.dropped_bytes = 0                      # … and how many bytes these may take
        self.has_shown = False                      # a call effect was shown an object
        self.changed: dict[RefNode, int] = {}       # objects of ours -> when they were changed last; see `mark`
        self.written: dict[int | None, int] = {}    # storages -> when they were written to last; None: perhaps any
        self.recomputable: dict[int, int] = {}              # … by what follows from constants and from numbers held at entry
        self.published: dict[RefNode, Past] = {}    # objects of ours that call effects were shown -> as they were then
        # Tensors and their storages -> when they were given another layout, memory or history last.
        self.relaid: dict[RefNode | int | None, int] = {}
        self.final: list[Final] = []                # tensors that must not change any more
        # The attributes of objects that a call effect may have changed -> the names of those that it has not.
        self.volatile: dict[RefNode, frozenset[str]] = {}
        self.kept: dict[RefNode, Shadow] = {}       # objects that a cache has too -> what returned them
        self.waited = False                         # time passed in a call effect
        self.replaces = False                       # an effect has replaced or removed something
        self.pops = False                           # … which the program may have
        self.resumed: set[Source] = set()           # generators from outside whose code is the trace's, to their death
        self.followed = 0                           # how many effects are followed by something that may read the program's state

    # -- effects -----------------------------------------------------------------------------------------------------

    def effect(self, operation: Any, target: RefNode, *args: Shadow) -> None:
        """A mutation of `target`, already done for real. One of our own objects that nobody has seen needs no replay."""
        if target in self.kept or target.source is not None and any(node.cls is target.cls for node in self.kept):
            raise Break("untracked-mutation", f"a {target.cls.__name__} was changed that a functools.lru_cache keeps, or may keep")
        if target.source is not None or target in self.published or is_foreign(target):
            self.effects.append(Effect(operation, target, args))
            if operation not in ADDING:
                self._note_replacing(operation)
        else:
            self.changed[target] = self._next()

    def note_kept(self, node: RefNode, call: Shadow) -> None:
        """A cache has an object too, which `call` has returned. Raises Break if one from outside was changed that it may be."""
        if any(effect.target.cls is node.cls and effect.target.source is not None for effect in self.effects
               if isinstance(effect, Effect)):
            raise Break("untracked-mutation", f"a functools.lru_cache keeps a {node.cls.__name__}, and others were changed")
        self.kept[node] = call

    def _note_replacing(self, operation: Any) -> None:
        self.replaces = True
        self.pops = self.pops or operation in POPPING
        self.context.replaced()

    def resume(self, generator: Source) -> None:
        """The trace goes on with a generator from outside."""
        self.resumed.add(generator)

    def note_reading(self) -> None:
        """From now on the program may read what code has changed that ran as something died of the effects so far."""
        self.followed = len(self.effects)

    def drop_gradient(self, node: RefNode, early: bool) -> None:
        """`tensor.grad = None` of an outside tensor, already done for real: it lets go of memory, so that it is done before the
        graph runs if nothing was computed yet, nor shown to a call (`early`)."""
        early = early and not self.has_shown
        node.slots["grad"] = Const(None)
        self.effects.append(Effect(setattr, node, (Const("grad"), Const(None)), early))
        if early:
            self.dropped.append(node)
            self.dropped_bytes += size_of(node.real)
        self._note_replacing(setattr)

    def called(self, effect: CallEffect, early: bool, published: Mapping[RefNode, Past]) -> None:
        """A call that acts on the world was made. early: it needs nothing of the graph. published: what it was shown."""
        self.publish(published)
        self.effects.append(effect)
        self.has_shown = self.has_shown or any(isinstance(shadow, RefNode) for shadow in effect.shown)
        if early:
            self.early.add(effect)
        change = changed_by(effect)
        if change is not None:
            self._note_replacing(change[1])

    def publish(self, objects: Mapping[RefNode, Past]) -> None:
        """Has these objects of ours made as they are now; later changes of them are effects."""
        self.published.update(objects)

    def withdraw(self, effect: Effect | CallEffect) -> None:
        """Removes an effect: the graph itself does the same."""
        self.effects.remove(effect)

    def note_volatile(self, node: RefNode, kept: frozenset[str] = frozenset()) -> None:
        """A call effect may have changed the attributes of an object, but for those that it has `kept`."""
        self.volatile[node] = kept & self.volatile.get(node, kept)

    def note_wait(self) -> None:
        """Time has passed in a call effect."""
        self.waited = True

    def make_early(self, shadow: Shadow) -> bool:
        """Has call effects made before the graph, so that the graph can take their results, or a scalar computed from these. False
        if the order of effects forbids it."""
        for call in calls_in(shadow) or ():
            needed = draws_before(self.effects, self.early, call)
            if needed is None:
                return False
            self.early.update(needed)
        return calls_in(shadow) is not None

    # -- writes to memory ------------------------------------------------------------------------------------------------

    def wrote(self, storages: Iterable[int | None]) -> None:
        """Tensors of these storages were written to."""
        self.written.update(dict.fromkeys(storages, self._next()))

    def written_since(self, serial: int, storage: int | None) -> bool:
        """Whether tensors of a storage were, or may have been, written to after a point in the order of the trace."""
        return max(self.written.get(storage, 0), self.written.get(None, 0)) > serial

    def wrote_recomputable(self, storages: Iterable[int]) -> None:
        """The last writes to these storages follow from constants and from numbers held at entry."""
        self.recomputable.update({storage: self.written[storage] for storage in storages})

    def relay(self, tensor: RefNode, storage: int | None) -> None:
        """A tensor, now of this storage, was given another layout, memory or history; with it, perhaps, views of it."""
        self.relaid.update(dict.fromkeys((tensor, storage), self._next()))

    def forbid_changes(self, final: Final) -> None:
        """A tensor must not change after a call that was shown it, and that a hit makes when the graph has run."""
        self.final.append(final)

    def allow_changes(self, storages: Container[int | None]) -> None:
        """Allows changes of tensors on these storages again: the calls have become part of the graph."""
        self.final = [final for final in self.final if final.storage not in storages]

    def changed_since_final(self, final: Final) -> bool:
        """Whether a tensor that must not change has changed, or may have."""
        relaid = max(self.relaid.get(final.tensor, 0), self.relaid.get(final.storage, 0))
        return relaid > final.since or final.unwritten and self.written_since(final.since, final.storage)
