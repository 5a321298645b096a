"""How a mock function makes each object that the trace has created and that outlives it: empty, and then filled."""
from __future__ import annotations

import collections
import functools
import itertools
import operator
import pathlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.refgraph.classes import make_class
from capture.refgraph.effects import Effect, is_foreign
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import SETS, Classes
from capture.refgraph.keys import KeyTable, put
from capture.refgraph.lookup import instance_attributes, instance_dict, is_heap_type, is_hidden, maxlen_of
from capture.refgraph.node import (
    ABSENT,
    Build,
    BytesState,
    ClassState,
    Const,
    DictState,
    Display,
    DormantState,
    Expr,
    FunctionState,
    IteratorState,
    Kept,
    ListState,
    RefNode,
    SetState,
    Shadow,
    TensorState,
    WrittenDict,
)
from capture.refgraph.publishing import chain_of
from capture.refgraph.repetitions import Repetition
from capture.refgraph.set_orders import Filling, filled, filling

# What a class may extend, the more special first: made empty by the `__new__` of these, then filled.
CONTAINERS = (collections.OrderedDict, collections.defaultdict, dict, collections.deque, list, set)
BASES = (*CONTAINERS, types.SimpleNamespace, _C.StandIn, object)
DISPLAYED = Classes((list, dict, set))
FIELDS = "default_factory", "maxlen"                           # in which C keeps what a recipe gives an object of these
POINTER = object.__basicsize__ // 2
WRAPPERS = Classes((staticmethod, classmethod))              # they take over the attributes of what they wrap
# Attributes which only an object's creation sets: of functions, deques, partial functions, proxies, weak references, descriptors.
READ_ONLY = {"exceptions", "message", "fget", "fset", "fdel", "__func__", "__closure__", "__globals__", "__builtins__", "maxlen",
             "func", "keywords", "mapping", "()"}
# … and those in which it keeps what it computes again when they are missing.
CACHES = {pathlib.PurePath: frozenset(("_str", "_hash", "_pparts", "_cached_cparts", "_drv", "_root", "_tail_cached",
                                       "_lines_cached", "_str_normcase_cached", "_parts_normcase_cached"))}


@dataclass(frozen=True, slots=True, eq=False)
class Perform(Shadow):
    """The result of `operation(*args)`, done at its place (an iterator is moved on), or after all else (the rest of a call whose
    trace was cut)."""

    operation: Callable[..., Any]
    args: tuple[Shadow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How to make one object: `empty`, an expression (None: a graph output, which is there already), then the effects
    `fill`; or `final` in place of both, once all that it holds is there."""

    node: RefNode
    empty: Shadow | None
    final: Shadow | None
    fill: tuple[Effect, ...]

    @property
    def contents(self) -> Iterator[Shadow]:
        """All that must be there before the object is in its final state."""
        return (shadow for effect in self.fill for shadow in effect.args)


def operands(shadow: Shadow) -> tuple[Shadow, ...]:
    """The parts that an expression is made from; objects have none."""
    if isinstance(shadow, (Expr, Perform)):
        return shadow.args
    if isinstance(shadow, Kept):
        return (shadow.whole,)
    if isinstance(shadow, Build) and shadow.maker is not None:
        return *shadow.items, shadow.maker
    if isinstance(shadow, Display) or isinstance(shadow, Build) and shadow.source is None:
        return shadow.items
    return ()


def recipe_of(graph: RefGraph, node: RefNode) -> Recipe:
    """The recipe of one created object, in its final state or as it was when it was published."""
    return _RecipeFinder(graph, node).recipe()


class _RecipeFinder:
    """Finds the recipe of one created object, in its final state or as it was when it was published."""

    def __init__(self, graph: RefGraph, node: RefNode) -> None:
        self.graph, self.node, self.cls, self.real = graph, node, node.cls, node.real
        self.known = graph.published.get(node, node)

    def recipe(self) -> Recipe:
        node, state = self.node, self.known.state
        if isinstance(state, TensorState) and state.node is not None:
            return Recipe(node, None, None, tuple(self.attributes()))     # what C keeps of it, the graph assigns
        if self.cls is types.CellType:
            contents = self.known.slots.get("cell_contents", ABSENT)
            final = None if contents is ABSENT else Expr(types.CellType, (contents,))
            return Recipe(node, Expr(types.CellType, ()), final, self.slots())
        # What the program has changed of an object that a call returned is an effect.
        fill = () if is_foreign(node) else (*self.items(), *self.attributes(), *self.slots())
        plain = node.origin is None and not self.known.attrs and not self.known.slots
        return Recipe(node, self.empty(), self.display() if plain else None, fill)

    def empty(self) -> Shadow:
        node, cls, state = self.node, self.cls, self.known.state
        if isinstance(node.origin, RefNode):        # the instance whose attributes this dict holds
            return Expr(instance_dict, (node.origin,))
        if isinstance(state, IteratorState):
            recipe = None if self.real is None else state.recipe()          # of one that has died nobody can be asked
            if recipe is None:
                raise self.escape("its position is not known to the mock function")
            return Perform(*recipe)
        if node.origin is not None:
            return node.origin
        if isinstance(state, BytesState):
            return Expr(bytearray, (Const(state.content),))
        if isinstance(state, ClassState):
            entries = {"__module__": Const(self.real.__module__), "__qualname__": Const(self.real.__qualname__), **node.slots}
            items = tuple(part for name, value in entries.items() for part in (Const(name), value))
            return Expr(make_class, (state.meta, Const(self.real.__name__), state.bases, Display(dict, items)))
        if isinstance(state, FunctionState):
            return Expr(types.FunctionType, (Const(state.code), state.globals, Const(state.code.co_name),
                                             state.defaults, Build(tuple, state.closure)))
        if cls in DISPLAYED:
            return Display(cls, ())
        if cls is collections.deque:
            return Expr(cls, (Build(tuple, ()), Const(self.maxlen())))
        base = next(c for c in BASES if issubclass(cls, c))
        if not _extends_in_python(cls, base) or is_hidden(cls, *FIELDS):
            raise self.escape("it is not made of attributes and items alone")
        if base in CONTAINERS and state is None:
            raise self.escape("what it holds is not known")
        return Expr(base.__new__, (self.graph.find(cls) if self.graph.is_made(cls) else Const(cls),))  # type: ignore[arg-type]

    def display(self) -> Shadow | None:
        state = self.known.state
        if isinstance(state, DictState) and isinstance(state.items, KeyTable):
            return None
        if isinstance(state, Repetition) and state.is_open:
            return Expr(operator.mul, (Display(list, tuple(state.once)), self.graph.sizes.shadow(state.times)))
        if self.cls is list and isinstance(state, ListState):
            return Display(list, tuple(state.items))
        if self.cls is collections.deque and isinstance(state, ListState):
            return Expr(self.cls, (Build(tuple, tuple(state.items)), Const(self.maxlen())))
        if self.cls in SETS and isinstance(state, SetState):
            return filled(self.cls, self.filling(state))
        if self.cls is dict and isinstance(state, (DictState, WrittenDict)):
            return Display(dict, tuple(part for entry in self.entries(state) for part in entry))
        return None

    def items(self) -> Iterator[Effect]:
        """What a container holds."""
        node, state = self.node, self.known.state
        if isinstance(state, Repetition) and state.is_open:
            items = Build(tuple, tuple(state.once))
            yield Effect(list.extend, node, (Expr(operator.mul, (items, self.graph.sizes.shadow(state.times))),))
        elif isinstance(state, ListState):
            if self.maxlen() is not None and self.cls is not collections.deque and node.origin is None:
                yield Effect(collections.deque.__init__, node, (Build(tuple, ()), Const(self.maxlen())))
            extend = list.extend if issubclass(self.cls, list) else collections.deque.extend
            if state.items:
                yield Effect(extend, node, (Build(tuple, tuple(state.items)),))
        elif isinstance(state, DictState) and isinstance(state.items, KeyTable):
            yield from self.hashed(state)
        elif isinstance(state, SetState) and state.items and issubclass(self.cls, set):
            members, laid = self.filling(state)
            yield Effect(_C.lay_set, node, (members, *laid)) if laid else Effect(set.update, node, (members,))
        elif isinstance(state, (DictState, WrittenDict)):
            ordered = issubclass(self.cls, collections.OrderedDict)
            setitem = collections.OrderedDict.__setitem__ if ordered else dict.__setitem__
            for entry in self.entries(state):
                yield Effect(setitem, node, entry)
        elif isinstance(state, FunctionState):
            yield from self.function(state)
        elif isinstance(node.state, DormantState):
            yield Effect(node.state.become_dormant, node, node.state.record)
        if is_a(self.real, collections.defaultdict) and self.real.default_factory is not None \
                and node.origin is None and "default_factory" not in node.slots:
            raise self.escape("its default_factory is not known")

    def filling(self, state: SetState) -> Filling:
        """What a set takes in, in its order. Nobody sees that of one that has died."""
        if self.real is None:
            return state.filling or Filling(Build(tuple, tuple(state.items.values())))
        return state.filling or filling(self.real, state.items)

    def hashed(self, state: DictState) -> Iterator[Effect]:
        """The entries of a dict of which Python code hashes some keys: their hashes are as they were."""
        if not state.complete:
            raise self.escape("not all of its keys are known")
        if self.real is None:
            raise self.escape("it has died, and the hashes of its keys with it")
        hashes = {id(key): number for key, number in _C.hashed_keys(self.real)}
        for key, value in state.items.items():
            if value is not ABSENT:
                yield Effect(put, self.node, (self.graph.key_shadow(key), value, Const(hashes[id(key)])))

    def function(self, state: FunctionState) -> Iterator[Effect]:
        """What a function is given besides what it is made with."""
        if not _is_none(state.kwdefaults):
            yield Effect(object.__setattr__, self.node, (Const("__kwdefaults__"), state.kwdefaults))
        annotations = getattr(self.real, "__annotations__", None)
        if annotations and "__annotations__" not in self.node.slots:
            items = tuple(self.graph.key_shadow(part) for entry in annotations.items() for part in entry)
            yield Effect(object.__setattr__, self.node, (Const("__annotations__"), Display(dict, items)))

    def entries(self, state: DictState | WrittenDict) -> Iterator[tuple[Shadow, Shadow]]:
        writes: list[tuple[Shadow, Any, Shadow]] = []
        if isinstance(state, WrittenDict):
            writes, state = state.writes, state.before
        if not state.complete:
            raise self.escape("not all of its keys are known")
        known = ((self.graph.key_shadow(key), value) for key, value in state.items.items() if value is not ABSENT)
        return itertools.chain(known, ((key, value) for key, _, value in writes))

    def attributes(self) -> Iterator[Effect]:
        """Attributes in the instance `__dict__`. A dict that is the object's own is filled by its own recipe."""
        attrs = self.known.attrs
        if attrs is None:
            whole = isinstance(self.known.state, IteratorState) and self.known.state.is_whole
            if self.real is not None and not whole and self.cls not in WRAPPERS and instance_attributes(self.real):
                raise self.escape("its attributes are not known")
        elif attrs.origin is not self.node:
            yield Effect(object.__setattr__, self.node, (Const("__dict__"), attrs))

    def slots(self) -> tuple[Effect, ...]:
        """Attributes at fixed places: those of `__slots__`, and those that C code defines."""
        node = self.node
        if isinstance(node.state, ClassState):
            return ()
        declared = dict(_declared_slots(self.cls))
        for name, slot in declared.items():
            cached = any(name in names for cls, names in CACHES.items() if issubclass(self.cls, cls))
            if name not in node.slots and not cached and self.real is not None and _is_set(slot, self.real):
                raise self.escape(f"its attribute {name!r} is not known")
        chain = self.chain() if is_a(self.real, BaseException) else {}
        return tuple(Effect(object.__setattr__, node, (Const(name), value)) for name, value in {**chain, **self.known.slots}.items()
                     if value is not ABSENT and (name in declared or name not in READ_ONLY) and self.cls is not functools.partial)

    def chain(self) -> dict[str, Shadow]:
        """What `raise` has noted in an exception: its cause and its context."""
        parts = chain_of(self.graph, self.real)
        for name, value in parts.items():
            if value is None:
                raise self.escape(f"its {name} is not known")
            if self.known is not self.node and self.known.slots.get(name) is not value and name != "__suppress_context__":
                raise self.escape(f"its {name} has changed since it was shown to a call")
        return parts  # type: ignore[return-value]

    def maxlen(self) -> int | None:
        return maxlen_of(self.real) if is_a(self.real, collections.deque) else None

    def escape(self, why: str) -> Break:
        return Break("escaping-object", f"a new {self.cls.__module__}.{self.cls.__qualname__} outlives the call; {why}")


def _is_none(shadow: Shadow) -> bool:
    return isinstance(shadow, Const) and shadow.value is None


def _declared_slots(cls: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    """What the Python classes among `cls` and its bases declare in `__slots__`."""
    for base in type.__getattribute__(cls, "__mro__"):
        if is_heap_type(base) and "__slots__" in base.__dict__:
            yield from ((name, slot) for name, slot in base.__dict__.items()
                        if is_a(slot, types.MemberDescriptorType))


def _is_set(slot: types.MemberDescriptorType, real: Any) -> bool:
    try:
        slot.__get__(real)
    except AttributeError:
        return False
    return True


def _extends_in_python(cls: type, base: type) -> bool:
    """Whether `cls` adds nothing to the layout of `base` but an instance dict, weak references and slots."""
    if cls is base:
        return True
    if not is_heap_type(cls):
        return False
    size = base.__basicsize__ + POINTER * len(list(_declared_slots(cls)))
    for offset in ("__dictoffset__", "__weakrefoffset__"):
        if getattr(cls, offset) > 0 and getattr(base, offset) == 0:     # negative: kept before the object
            size += POINTER
    return cls.__basicsize__ == size and cls.__itemsize__ == base.__itemsize__
