"""Shadows: what the trace knows of a value, beside the real value.

Immutable values have no identity here: a `Const` follows from guarded values, an `External` was read from outside and
is not guarded until the program depends on it, an `Expr` is arithmetic on these, a `Build` is a fresh immutable
composite (tuple, bound method, slice) of other shadows. Everything with identity is a `RefNode`.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

from capture._C import unshared
from capture.refgraph.identical import LISTS, Classes, is_one_of
from capture.refgraph.source import Computed, Literal, Source

# Immutable types without identity, compared by value. `type(x) in SCALARS` is exact: a subclass is a heap object.
SCALARS = Classes({int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range})


UNKNOWN: Any = object()


class Shadow:
    """Base of all shadows."""

    __slots__ = ("__weakref__",)

    @property
    def parts(self) -> tuple[Shadow, ...]:
        """The shadows that it is made of; none of what stands by itself."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Const(Shadow):
    """A value that follows from guarded values by pure operations. It may be used as a constant."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class External(Shadow):
    """A scalar read from outside at `source`, where it was `value` at entry. Not guarded: a dependence on it must be
    required first."""

    source: Source
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Expr(Shadow):
    """`op(*args)` for a pure builtin C function on scalars: `self.step + 1`. The mock function recomputes it.

    path: what `source_of` has found for it."""

    op: Callable[..., Any]
    args: tuple[Shadow, ...]
    path: Source | None = field(default=UNKNOWN, init=False, repr=False)

    @property
    def parts(self) -> tuple[Shadow, ...]:
        return self.args


@dataclass(frozen=True, slots=True, eq=False)
class Build(Shadow):
    """An immutable composite: `cls` is tuple or a subclass of it, MethodType(func, self), slice, frozenset.

    `source`: where it was found outside as a whole; None for one that the trace built. `maker`: the class, where the trace made
    that too.
    """

    cls: type
    items: tuple[Shadow, ...]
    source: Source | None = None
    maker: RefNode | None = None

    @property
    def parts(self) -> tuple[Shadow, ...]:
        return self.items


@dataclass(frozen=True, slots=True, eq=False)
class Kept(Build):
    """A tuple that a `functools.lru_cache` keeps: the items are known from what its function computes. whole: how a hit finds the
    object itself, which the program gets."""

    whole: Shadow = field(default_factory=Shadow)

    @property
    def parts(self) -> tuple[Shadow, ...]:
        return *self.items, self.whole


@dataclass(frozen=True, slots=True, eq=False)
class Display(Shadow):
    """A new exact list, set, dict or deque written out; the items of a dict are its keys and values in turn."""

    cls: type
    items: tuple[Shadow, ...]

    @property
    def parts(self) -> tuple[Shadow, ...]:
        return self.items


def source_of(shadow: Shadow) -> Source | None:
    """The path which recomputes a scalar shadow at entry, or None when there is none."""
    if type(shadow) is not Expr:        # a subclass is a value that only a hit can compute
        return _source_of_leaf(shadow)
    stack: list[Expr] = [shadow]
    while stack:                        # an expression may be deeper than Python's own stack
        expr = stack[-1]
        missing = [arg for arg in expr.args if type(arg) is Expr and arg.path is UNKNOWN] if expr.path is UNKNOWN else []
        if missing:
            stack += missing
            continue
        if expr.path is UNKNOWN:
            paths = [arg.path if type(arg) is Expr else _source_of_leaf(arg) for arg in expr.args]
            found = None if any(path is None for path in paths) else Computed(expr.op, tuple(paths))  # type: ignore[arg-type]
            object.__setattr__(expr, "path", found)
        stack.pop()
    return shadow.path


def _source_of_leaf(shadow: Shadow) -> Source | None:
    """`source_of` of what is no expression."""
    if isinstance(shadow, Const):
        return Literal(shadow.value) if type(shadow.value) in SCALARS else None
    return shadow.source if isinstance(shadow, External) else None


class Absent(Shadow):
    """The state of a key or attribute that is known not to be there."""

    __slots__ = ()


ABSENT = Absent()


class RefNode(Shadow):
    """One heap object, by identity.

    Invariants: `source` is None exactly for objects that the trace created (`created`). `state` describes the object as it is
    *now*; for an outside object, what `state` does not mention is as it was at entry. The real object is held weakly, or strongly
    if its type allows nothing else (`RefGraph.sweep` releases dead ones).
    """

    __slots__ = ("cls", "source", "state", "attrs", "slots", "serial", "origin", "_ref", "_strong")

    def __init__(self, real: Any, source: Source | None, serial: int, state: Any = None, origin: Shadow | None = None) -> None:
        self.cls: type = type(real)
        self.source: Source = source  # type: ignore[assignment]
        self.serial = serial                        # order of first sight, which is the order of creation
        self.state = state                          # ListState, DictState … below, or None: only identity is known
        self.attrs: RefNode | None = None           # the node of the instance's __dict__, once it was looked at
        self.slots: dict[str, Shadow] = {}          # what is known of C-level attributes (slots, cell contents …)
        self.origin = origin                        # for objects of the trace: how the mock function creates it anew
        try:
            self._ref: Any = weakref.ref(real)
            self._strong = False
        except TypeError:
            self._ref, self._strong = real, True

    @property
    def real(self) -> Any:
        """The object itself, or None when it is dead."""
        return self._ref if self._strong else self._ref()

    @property
    def created(self) -> bool:
        """Whether the trace made this object."""
        return self.source is None

    @property
    def strong(self) -> bool:
        return self._strong

    def is_garbage(self) -> bool:
        """Whether only this node keeps the object alive. 3: our reference, the local variable, getrefcount's own."""
        if not self._strong:
            return self._ref() is None
        obj = self._ref
        return getrefcount(obj) <= 3

    def watch(self, died: Callable[[RefNode], None]) -> None:
        """Has `died` called with the node when the object dies; at once where that cannot be seen."""
        if self._strong:
            return died(self)
        node = weakref.ref(self)
        self._ref = weakref.ref(self._ref(), lambda _: died(mourned) if (mourned := node()) is not None else None)

    def recast(self, real: Any) -> None:
        """The object has become one of another class, of C, whose state nobody tracks."""
        self.cls, self.state, self.attrs, self.slots = type(real), None, None, {}
        self._ref, self._strong = real, True

    def release(self) -> None:
        """Lets go of a dead object."""
        self._ref, self._strong = (lambda: None), False

    def forget(self) -> None:
        """Lets go of the object, when the capture is over, and of an iterator's state, which leads to all that the capture knew."""
        self.release()
        if isinstance(self.state, IteratorState):
            self.state = None

    def __repr__(self) -> str:
        return f"<RefNode {self.serial} {self.cls.__name__} {'new' if self.created else self.source}>"


def garbage_among(held: list[RefNode]) -> list[RefNode]:
    """The nodes whose objects nobody else refers to, of such that hold theirs strongly."""
    return unshared(held, "_ref")


class ListState:
    """A list's or deque's items, in order, all known. `distinct`: those that occur, perhaps fewer than there are."""

    __slots__ = ("items",)

    def __init__(self, items: list[Shadow]) -> None:
        self.items = items

    @property
    def distinct(self) -> list[Shadow]:
        return self.items


class ListStart:
    """An outside list from which only items were read, or to which items were appended; or a deque to which items were appended.
    The trace holds for any length. `length`: at entry. `known`: items at entry, by index. `added`: the items appended. `writes`:
    stores at indices that change from call to call, with their items: after one, no item of the list is read."""

    __slots__ = ("length", "known", "added", "writes")

    def __init__(self, length: int) -> None:
        self.length = length
        self.known: dict[int, Shadow] = {}
        self.added: list[Shadow] = []
        self.writes: dict[int, Shadow] = {}


class DictState:
    """What is known of a dict: `items[key]` is a shadow, or ABSENT. Order is the real dict's.

    `complete`: every key of the real dict is in `items`. `entry_keys`: the keys at entry, noted before the first
    addition or removal, so that they can still be guarded afterwards. `anywhere`: it was read under a key that may be any.
    Keys are real objects with builtin equality, or compared by identity.
    """

    __slots__ = ("items", "complete", "entry_keys", "anywhere")

    def __init__(self, items: dict[Any, Shadow], complete: bool) -> None:
        self.items = items
        self.complete = complete
        self.entry_keys: tuple[Any, ...] | None = None
        self.anywhere = False


class WrittenDict:
    """A dict in which something was stored under a key that differs on each call: from then on it may be written to, but not read.

    `before`: what was known of it before. `writes`: the key's shadow, the key itself and the value's shadow of each store since.
    """

    __slots__ = ("before", "writes")

    def __init__(self, before: DictState) -> None:
        self.before = before
        self.writes: list[tuple[Shadow, Any, Shadow]] = []


@dataclass(frozen=True, slots=True)
class Order:
    """In which order a set from outside was iterated at entry (None: that is guarded already), where its members lay, and at
    which slot `pop` would have begun to look."""

    source: Source
    members: tuple[Any, ...] | None
    layout: bytes
    finger: int


class SetState:
    """A set's members, all of them: member -> its shadow, in the order in which they were added, as far as that is known.
    `follows`: the outside sets whose order decides the order of this one. `at_entry`: it is such an outside set, as it was at
    entry. `filling`: how a published set is made as it was then (`orders.Filling`)."""

    __slots__ = ("items", "follows", "at_entry", "filling")

    def __init__(self, items: dict[Any, Shadow], follows: tuple[Order, ...] = (), at_entry: bool = False,
                 filling: Any = None) -> None:
        self.items, self.follows, self.at_entry, self.filling = items, follows, at_entry, filling


class BytesState:
    """The content of a byte array, as a whole."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


class TensorState:
    """A tensor: its node in the fx graph (None: an outside tensor not used yet) and its properties when first seen (None: they
    cannot be guarded; the tensor is only passed on).

    `dynamic`: its shape depends on the values of tensors, so that no constant may be read from it. `storage`: the identity of an
    outside tensor's storage when first seen, and the offset in it in bytes; None where there is none (sparse tensors). `constant`:
    its values follow from constants alone, as long as nobody has written to them. `recomputable`: its values follow from constants
    and from what outside tensors held at entry that guards may read. `sizes`: a Size for each dimension, if some change between
    calls. `cuts`: pairs of Sizes; which of these pairs are equal decides whether its elements lie next to one another in memory.
    `lies`: some of its sizes are 1 now, and strides like these are those that it has where they are not; (): which is not known.
    None: strides like its own. `copies`: of tensors that it was made of, and that were copied or viewed, as they lay in memory:
    their sizes, cuts, and the sizes that they were given.
    `found`: `properties` as they were, with no size left open.
    """

    __slots__ = ("node", "properties", "dynamic", "storage", "constant", "recomputable", "sizes", "cuts", "lies", "copies", "found")

    def __init__(self, node: Any, properties: Any, dynamic: bool = False, storage: tuple[int, int] | None = None,
                 constant: bool = False, recomputable: bool = False) -> None:
        self.node, self.properties, self.dynamic, self.storage = node, properties, dynamic, storage
        self.constant, self.recomputable = constant, recomputable
        self.sizes: tuple[Any, ...] | None = None
        self.cuts: tuple[tuple[Any, Any], ...] = ()
        self.lies: tuple[int, ...] | None = None
        self.copies: tuple[tuple[tuple[Any, ...], tuple[tuple[Any, Any], ...], tuple[Any, ...]], ...] = ()
        self.found: Any = properties


class HandleState(TensorState):
    """An object of torch's own that only the graph knows how to make or to change: a generator, a node of autograd, a storage."""

    __slots__ = ()


class ArrayState(TensorState):
    """An array of numpy that the graph makes, since a tensor is made of it, or it is written to."""

    __slots__ = ()


class FunctionState:
    """A Python function made by the trace: its parts, as shadows."""

    __slots__ = ("code", "globals", "name", "defaults", "kwdefaults", "closure")

    def __init__(self, code: Any, globals: RefNode, defaults: Shadow, kwdefaults: Shadow, closure: tuple[RefNode, ...]) -> None:
        self.code, self.globals, self.defaults, self.kwdefaults, self.closure = code, globals, defaults, kwdefaults, closure


class ClassState:
    """A class made by the trace: its metaclass and bases. Its slots hold what was in its namespace or was assigned since."""

    __slots__ = ("meta", "bases")

    def __init__(self, meta: Shadow, bases: Shadow) -> None:
        self.meta, self.bases = meta, bases


class DormantState:
    """A generator of the trace that outlives it: made blank, and brought to where it stands by `become_dormant(generator,
    *record)`, once all that it holds is there."""

    __slots__ = ("become_dormant", "record")

    def __init__(self, become_dormant: Callable[..., None], record: tuple[Shadow, ...]) -> None:
        self.become_dormant, self.record = become_dormant, record


class IteratorState:
    """An iterator of the trace over known shadows. `is_whole`: what its recipe makes has all attributes of its own."""

    __slots__ = ()
    is_whole = False

    def sync(self) -> None:
        """Called before the real `next`: the iterator may have been moved by another one that shares it."""

    def advance(self, item: Any) -> Shadow:
        """The shadow of the `item` which the real `next` has just returned."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called when the real `next` has found no item."""

    def recipe(self) -> tuple[Callable[..., Any], tuple[Shadow, ...]] | None:
        """The operation and its arguments that make an iterator at this position; None when it cannot be made."""
        return None


def roots_of_identity(shadow: Expr) -> list[Shadow]:
    """The scalars, and the identities of objects, from which a value follows; empty if it follows from anything else, or from no
    identity. The identity of an object of the trace, which differs on every run, may only be compared."""
    roots: list[Shadow] = []
    seen: set[int] = set()
    stack = list(shadow.args)
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if is_one_of(type(part), Const, External):
            roots.append(part)
        elif isinstance(part, (Build, Display)) and part.cls in LISTS:
            stack += part.items
        elif type(part) is not Expr:
            return []
        elif part.op is not id:
            stack += part.args
        elif any(part is arg for arg in shadow.args) or isinstance(part.args[0], RefNode) and part.args[0].source is not None:
            roots.append(part)
        else:
            return []
    return roots if any(type(root) is Expr for root in roots) else []
