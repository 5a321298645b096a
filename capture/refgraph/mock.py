"""The plan of a mock function: what a cache hit does besides the checks.

A mock function reads the entry state it needs, runs the compiled graph, makes the objects that the trace created and
that outlive it, in their final state, repeats the effects in order, and returns the result. Objects are made in the
order in which the program made them; what they hold is filled in with the same operations that effects consist of.
"""
from __future__ import annotations

import collections
import functools
import itertools
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture.errors import Break
from capture.refgraph.classes import make_class
from capture.refgraph.effects import CallEffect, Effect, Replayed, operands_of, ready_at_entry, settle, user_stack
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes
from capture.refgraph.keys import KeyTable, put
from capture.refgraph.lookup import instance_dict, is_heap_type, is_mutable
from capture.refgraph.memory import storage_of
from capture.refgraph.node import (
    ABSENT,
    Build,
    BytesState,
    ClassState,
    Const,
    DictState,
    Display,
    Expr,
    FunctionState,
    IteratorState,
    ListState,
    RefNode,
    SetState,
    Shadow,
    SleepState,
    TensorState,
    WrittenDict,
)
from capture.refgraph.orders import Filling, filled, filling
from capture.refgraph.publishing import chain_of
from capture.refgraph.requirements import Kind
from capture.refgraph.source import Computed, Constant, Source

# What a class may extend, the more special first: made empty by the `__new__` of these, then filled.
CONTAINERS = (collections.OrderedDict, collections.defaultdict, dict, collections.deque, list, set)
BASES = (*CONTAINERS, types.SimpleNamespace, _C.StandIn, object)
DISPLAYED = Classes((list, dict, set))
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
    """The result of `operation(*args)`, done at its place: an iterator that is moved on; after all else, what follows a trace that
    was cut."""

    operation: Callable[..., Any]
    args: tuple[Shadow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Make:
    """`node = value`: an object of the trace comes into being."""

    node: RefNode
    value: Shadow


@dataclass(frozen=True, slots=True, eq=False)
class MockPlan:
    """`outputs`: the tensors which the graph must return, in order. `numbers`: what it takes besides tensors. `early` is done
    before the graph, by `clocks` nothing changes; `steps` come after it. `risks`: what is computed even where nothing comes of it.
    `classes`: the guarded type at each path that the mock function reads, and at the paths below it, where one is guarded.
    `before`: what has all be as it was that is changed until the graph has run and the risks are over."""

    outputs: tuple[RefNode, ...]
    steps: tuple[Make | Effect | CallEffect, ...]
    result: Shadow
    classes: dict[Source, type]
    numbers: tuple[Shadow, ...] = ()
    risks: tuple[Shadow, ...] = ()
    early: tuple[Make | Effect | CallEffect, ...] = ()
    clocks: frozenset[CallEffect] = frozenset()
    before: Perform | None = None


def plan(graph: RefGraph, result: Shadow, inputs: Iterable[RefNode], numbers: tuple[Shadow, ...] = (), effects_before: int = 0,
         before: Perform | None = None) -> MockPlan:
    """Plans the mock function of a sealed graph. `inputs`: the tensors that the compiled graph takes; `numbers`: what it takes
    after them, entry state and arithmetic on it. `effects_before`: how many effects come before the first operation that may raise
    of a graph that cannot run again; `before`: see `MockPlan`.

    Raises Break when an object outlives the trace that cannot be made anew.
    """
    first = settle(graph.effects[:effects_before])
    effects = [*first, *settle(graph.effects[effects_before:])]
    _check_shown(graph, effects)
    roots = [result, *numbers, *graph.risks, *filter(None, [before]), *[
        shadow for effect in effects for shadow in operands_of(effect)]]
    recipes, outputs, shadows = _reach(graph, roots)
    hurried = first[:ready_at_entry(first, graph.early)]
    early = [effect for effect in effects if effect in hurried
             or (effect in graph.early if isinstance(effect, CallEffect) else effect.early)]
    clocks = frozenset(effect for effect in graph.early if effect.stream is None)
    returned = [recipe for recipe in recipes if isinstance(recipe.node.origin, Replayed) and recipe.node.origin.op in early]
    steps = _construct([recipe for recipe in recipes if recipe not in returned],
                       [effect for effect in effects if effect not in early])
    first_steps = [step for effect in early for step in (
        effect, *(Make(recipe.node, recipe.empty) for recipe in returned if recipe.node.origin.op is effect))]  # type: ignore[union-attr,arg-type]
    classes = _classes(graph, [*shadows, *inputs])
    return MockPlan(tuple(outputs), tuple(steps), result, classes, numbers, tuple(graph.risks), tuple(first_steps), clocks, before)


def _check_shown(graph: RefGraph, effects: list[Effect | CallEffect]) -> None:
    """Raises Break when a call effect looks at an object that was changed afterwards: it would see the final state.

    What a call is shown of the outside may lead to all that was put there before. A hook, registered after the graph, would be on
    another node of autograd if its tensor was written to in between; an array of numpy, another one's.
    """
    for storage, (serial, done, stack) in graph.unwritten.items():
        if graph.written_since(serial, storage):
            raise Break("late-change", f"{done} that was written to after it", stack)
    inputs = [node.state for node in graph.nodes if isinstance(node.state, TensorState)]
    outside: set[int | None] = {None, *(state.storage[0] for state in inputs if state.storage is not None)}
    placed: list[Shadow] = []
    for effect in effects:
        if isinstance(effect, CallEffect):
            objects = [node for node in _objects(effect.shown)
                       if not isinstance(node.state, TensorState) and not _is_builtin(node.real)]
            reached = [recipe.node for recipe in _reach(graph, [*objects, *placed])[0]] if objects else []
            storages = outside.union(map(_storage, reached)) if objects else set()
            times = [*(graph.changed.get(node, 0) for node in reached), *(graph.written.get(storage, 0) for storage in storages)]
            if max(times, default=0) > effect.serial:
                raise Break("late-change", "an object was shown to a call that prints or logs, and changed after it",
                            user_stack(effect.positions))
        placed += operands_of(effect)


def _is_builtin(real: Any) -> bool:
    """Whether an object is a class of C, such as the category of a warning: it leads to nothing that changes."""
    return issubclass(type(real), type) and not is_mutable(real)


def _storage(node: RefNode) -> int | None:
    """The storage of a tensor of the trace; None for one that is dead, and for other objects."""
    storage = storage_of(node.real) if isinstance(node.real, torch.Tensor) else None
    return storage[0] if storage else None


# -- what outlives the trace -----------------------------------------------------------------------------------------


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


def _reach(graph: RefGraph, roots: list[Shadow]) -> tuple[list[Recipe], list[RefNode], list[Shadow]]:
    """Recipes of all created objects that the roots lead to, the tensors among them, and every shadow on the way."""
    recipes: list[Recipe] = []
    outputs: list[RefNode] = []
    shadows: list[Shadow] = []                      # keeps the shadows alive, so that no id is used twice
    seen: set[int] = set()
    queue = collections.deque(roots)
    while queue:
        shadow = queue.popleft()
        if id(shadow) in seen:
            continue
        seen.add(id(shadow))
        shadows.append(shadow)
        if isinstance(shadow, RefNode) and isinstance(shadow.origin, Replayed):
            recipes.append(Recipe(shadow, shadow.origin, None, ()))
        elif isinstance(shadow, RefNode) and shadow.created:
            recipe = _Cook(graph, shadow).recipe()
            recipes.append(recipe)
            if isinstance(shadow.state, TensorState):
                outputs.append(shadow)
            else:
                queue.append(recipe.empty)  # type: ignore[arg-type]
            attrs = graph.published.get(shadow, shadow).attrs
            if attrs is not None:
                queue.append(attrs)
            queue.extend(recipe.contents)
        else:
            if isinstance(shadow, Build) and graph.is_made(shadow.cls) and shadow.maker is None:
                raise Break("escaping-object", f"a new {shadow.cls.__qualname__} outlives the call, whose class was made in it")
            queue.extend(operands(shadow))
    return recipes, outputs, shadows


def operands(shadow: Shadow) -> tuple[Shadow, ...]:
    """The parts that an expression is made from; objects have none."""
    if isinstance(shadow, (Expr, Perform)):
        return shadow.args
    if isinstance(shadow, Build) and shadow.maker is not None:
        return *shadow.items, shadow.maker
    if isinstance(shadow, Display) or isinstance(shadow, Build) and shadow.source is None:
        return shadow.items
    return ()


class _Cook:
    """Finds the recipe of one created object, as it was when it was published, or as it is in the end."""

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
        fill = (*self.items(), *self.attributes(), *self.slots())
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
        if not _extends_in_python(cls, base):
            raise self.escape("it is not made of attributes and items alone")
        if base in CONTAINERS and state is None:
            raise self.escape("what it holds is not known")
        return Expr(base.__new__, (self.graph.find(cls) if self.graph.is_made(cls) else Const(cls),))  # type: ignore[arg-type]

    def display(self) -> Shadow | None:
        state = self.known.state
        if isinstance(state, (SetState, DictState)) and isinstance(state.items, KeyTable):
            return None
        if self.cls is list and isinstance(state, ListState):
            return Display(list, tuple(state.items))
        if self.cls is collections.deque and isinstance(state, ListState):
            return Expr(self.cls, (Build(tuple, tuple(state.items)), Const(self.maxlen())))
        if self.cls in (set, frozenset) and isinstance(state, SetState):
            return filled(self.cls, self.filling(state))
        if self.cls is dict and isinstance(state, (DictState, WrittenDict)):
            return Display(dict, tuple(part for entry in self.entries(state) for part in entry))
        return None

    def items(self) -> Iterator[Effect]:
        """What a container holds."""
        node, state = self.node, self.known.state
        if isinstance(state, ListState):
            if self.maxlen() is not None and self.cls is not collections.deque and node.origin is None:
                yield Effect(collections.deque.__init__, node, (Build(tuple, ()), Const(self.maxlen())))
            extend = list.extend if issubclass(self.cls, list) else collections.deque.extend
            if state.items:
                yield Effect(extend, node, (Build(tuple, tuple(state.items)),))
        elif isinstance(state, (SetState, DictState)) and isinstance(state.items, KeyTable):
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
        elif isinstance(node.state, SleepState):
            yield Effect(node.state.settle, node, node.state.record)
        if isinstance(self.real, collections.defaultdict) and self.real.default_factory is not None \
                and node.origin is None and "default_factory" not in node.slots:
            raise self.escape("its default_factory is not known")

    def filling(self, state: SetState) -> Filling:
        """What a set takes in, in its order."""
        return state.filling or filling(self.real, state.items)

    def hashed(self, state: DictState | SetState) -> Iterator[Effect]:
        """The entries of a container of which Python code hashes some keys: their hashes are as they were."""
        if isinstance(state, DictState) and not state.complete:
            raise self.escape("not all of its keys are known")
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
            if self.real is not None and not whole and self.cls not in WRAPPERS and instance_dict(self.real):
                raise self.escape("its attributes are not known")
        elif attrs.origin is not self.node:
            yield Effect(object.__setattr__, self.node, (Const("__dict__"), attrs))

    def slots(self) -> tuple[Effect, ...]:
        """Attributes at fixed places: those of `__slots__`, and those that C code defines."""
        node = self.node
        if isinstance(node.state, ClassState):
            return ()
        for name, slot in _declared_slots(self.cls):
            cached = any(name in names for cls, names in CACHES.items() if issubclass(self.cls, cls))
            if name not in node.slots and not cached and self.real is not None and _is_set(slot, self.real):
                raise self.escape(f"its attribute {name!r} is not known")
        chain = self.chain() if isinstance(self.real, BaseException) else {}
        return tuple(Effect(object.__setattr__, node, (Const(name), value)) for name, value in {**chain, **self.known.slots}.items()
                     if value is not ABSENT and name not in READ_ONLY and self.cls is not functools.partial)

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
        return getattr(self.real, "maxlen", None) if issubclass(self.cls, collections.deque) else None

    def escape(self, why: str) -> Break:
        return Break("escaping-object", f"a new {self.cls.__module__}.{self.cls.__qualname__} outlives the call; {why}")


def _is_none(shadow: Shadow) -> bool:
    return isinstance(shadow, Const) and shadow.value is None


def _declared_slots(cls: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    """What the Python classes among `cls` and its bases declare in `__slots__`."""
    for base in type.__getattribute__(cls, "__mro__"):
        if is_heap_type(base) and "__slots__" in base.__dict__:
            yield from ((name, slot) for name, slot in base.__dict__.items()
                        if isinstance(slot, types.MemberDescriptorType))


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


# -- in which order it is made ---------------------------------------------------------------------------------------


def _construct(recipes: list[Recipe], effects: list[Effect | CallEffect]) -> list[Make | Effect | CallEffect]:
    """All objects in the order of their creation, complete once what they hold is there: cycles are closed last. Then the
    effects, with the objects between them that hold what a call effect has returned."""
    steps: list[Make | Effect | CallEffect] = []
    in_order = sorted(recipes, key=lambda recipe: recipe.node.serial)
    pending = {recipe.node: recipe for recipe in in_order if recipe.empty is not None}
    unfilled = [recipe for recipe in recipes if recipe.empty is None]
    making: set[RefNode] = set()
    undone = {effect for effect in effects if isinstance(effect, CallEffect)}
    changes: dict[RefNode, list[Effect]] = {}           # of outside containers, which iterators over them must not see
    for effect in effects:
        if isinstance(effect, Effect):
            changes.setdefault(effect.target, []).append(effect)

    def ready(shadows: Iterable[Shadow]) -> bool:
        return not any(leaf in pending or leaf in undone for leaf in _leaves(shadows))

    def awaits(recipe: Recipe, seen: set[Recipe]) -> bool:
        """Whether an object cannot be made before an effect was done."""
        seen.add(recipe)
        if isinstance(recipe.node.state, IteratorState) and any(changes.get(part) for part in _objects([recipe.empty])):  # type: ignore[list-item]
            return True
        return any(leaf in undone or leaf in pending and pending[leaf] not in seen and awaits(pending[leaf], seen)
                   for leaf in _leaves([recipe.empty]))  # type: ignore[list-item]

    def make(recipe: Recipe) -> None:
        node = recipe.node
        if node in making:
            raise Break("escaping-object", f"a new {node.cls.__qualname__} outlives the call; it is made from itself")
        making.add(node)
        for part in _objects([recipe.empty]):  # type: ignore[list-item]
            if part in pending:
                make(pending[part])
            if isinstance(recipe.empty, Perform):   # an iterator looks into what it walks over
                complete_now(part)
        complete = ready(recipe.contents)           # an object that holds itself is not
        del pending[node]
        if complete and recipe.final is not None:
            steps.append(Make(node, recipe.final))
            return
        steps.append(Make(node, recipe.empty))  # type: ignore[arg-type]
        if complete:
            steps.extend(recipe.fill)
        else:
            unfilled.append(recipe)

    def complete_now(node: RefNode) -> None:
        """Fills an object that was made before what it holds."""
        recipe = next((recipe for recipe in unfilled if recipe.node is node), None)
        if recipe is not None:
            for part in _objects(recipe.contents):
                if part in pending:
                    make(pending[part])
            if not ready(recipe.contents):
                name = node.cls.__qualname__
                raise Break("escaping-object", f"an iterator outlives the call; what it walks over, a {name}, is not complete then")
            unfilled.remove(recipe)
            steps.extend(recipe.fill)

    def advance() -> None:
        """Makes and fills all that is possible by now."""
        for recipe in list(pending.values()):
            if recipe.node in pending and not ((undone or changes) and awaits(recipe, set())):
                make(recipe)
        for recipe in list(unfilled):
            if ready(recipe.contents):
                unfilled.remove(recipe)
                steps.extend(recipe.fill)

    advance()
    for effect in effects:
        if isinstance(effect, Effect):
            for part in _objects(operands_of(effect)):
                if part in pending:             # held by what is changed: it is made all the same
                    make(pending[part])
        steps.append(effect)
        if isinstance(effect, CallEffect):
            undone.remove(effect)
            advance()
        else:
            changes[effect.target].remove(effect)
            if not changes[effect.target]:
                del changes[effect.target]
                advance()
    return steps


def _leaves(shadows: Iterable[Shadow]) -> Iterator[RefNode | CallEffect]:
    """The objects, and the call effects, that expressions refer to."""
    stack = list(shadows)
    while stack:
        shadow = stack.pop()
        if isinstance(shadow, RefNode):
            yield shadow
        elif isinstance(shadow, Replayed):
            yield shadow.op
        stack.extend(operands(shadow))


def _objects(shadows: Iterable[Shadow]) -> Iterator[RefNode]:
    """The objects which expressions refer to."""
    return (leaf for leaf in _leaves(shadows) if isinstance(leaf, RefNode))


# -- what is known of the paths --------------------------------------------------------------------------------------


def _classes(graph: RefGraph, shadows: Iterable[Shadow]) -> dict[Source, type]:
    """The guarded type at every path that leads to one of `shadows`."""
    classes: dict[Source, type] = {}
    stack = [source for shadow in shadows if (source := getattr(shadow, "source", None)) is not None]
    seen: set[Source] = set()
    while stack:
        source = stack.pop()
        if source in seen:
            continue
        seen.add(source)
        cls = _class_at(graph, source)
        if cls is not None:
            classes[source] = cls
        stack.extend(bases(source))
    return classes


def bases(source: Source) -> tuple[Source, ...]:
    """The paths that one step is taken from."""
    if isinstance(source, Computed):
        return source.args
    return () if source.base is None else (source.base,)


def _class_at(graph: RefGraph, source: Source) -> type | None:
    if isinstance(source, Constant):
        return type(source.value)
    for kind, class_of in CLASS_OF.items():
        requirement = graph.requirements.get((source, kind))
        if requirement is not None:
            return class_of(requirement[2])
    return None


# By kind of guard: the class of an object that meets its expectation.
CLASS_OF = {kind.name: kind.row.class_of for kind in Kind if kind.row.class_of is not None}
