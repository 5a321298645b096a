"""Models of iterators written in C. Each knows, for the item that the real one returns, its shadow."""
from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable
from types import GeneratorType
from typing import Any

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import BREAKING, model
from capture.interp.core.special import VIEWS, is_native_iterable, is_native_iterator
from capture.interp.function_models.shadows import (
    compose,
    depend_plain,
    dict_node,
    elements,
    items_of,
    members,
    node_of,
    view_item,
    view_mapping,
)
from capture.interp.polyfills.choices import at_indices, index_choices, one_of_each
from capture.refgraph import iterators
from capture.refgraph.effects import Effect
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes, is_one_of
from capture.refgraph.node import SCALARS, Build, Const, Display, Expr, IteratorState, RefNode, Shadow
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import keys_of

KEYS = VIEWS[0]
TUPLE = type(iter(()))
WALKED = (list, tuple, set, frozenset, deque)
VIEW_METHODS = ((dict.keys, (VIEWS[0], VIEWS[3])), (dict.values, (VIEWS[1], VIEWS[4])), (dict.items, (VIEWS[2], VIEWS[5])))
REVERSED_DICTS = Classes(type(reversed(view)) for view in ({}, {}.values(), {}.items()))
Recipe = tuple[Callable[..., Any], tuple[Shadow, ...]]
OPEN = "how many items there are decides how often a loop runs"


class Cursor(IteratorState):
    """The state of an iterator over what is tracked. `node`: the iterator itself."""

    __slots__ = ("node",)

    def __init__(self, node: RefNode) -> None:
        self.node = node


class Constants(Cursor):
    """Over a range or string."""

    __slots__ = ()

    def advance(self, item: Any) -> Shadow:
        return Const(item)

    def recipe(self) -> Recipe:
        make, args, state = iterators.reduced(self.node.real)
        constants = Const(make), *map(Const, args)
        return (operator.call, constants) if state is None else (iterators.resume_at, (*constants, Const(state)))


class Chosen(Cursor):
    """Over choices of indices. `made`: by what and of what; `taken`: how many; one more than there are, once it has ended."""

    __slots__ = ("made", "taken")

    def __init__(self, node: RefNode, kind: type, sizes: tuple[Any, ...]) -> None:
        super().__init__(node)
        self.made, self.taken = (kind, sizes), 0

    def advance(self, item: Any) -> Shadow:
        self.taken += 1
        return Const(item)

    def ended(self) -> None:
        self.taken += 1

    def recipe(self) -> Recipe:
        return iterators.resume_choices, (*map(Const, self.made), Const(self.taken))


class Items(Cursor):
    """Over a list, tuple or deque: by position, in the sequence as it is then."""

    __slots__ = ("interp", "sequence", "position", "step")

    def __init__(self, node: RefNode, interp: Interpreter, sequence: Value, backwards: bool) -> None:
        super().__init__(node)
        self.interp = interp
        self.sequence = Value(None, sequence.shadow)        # known by its shadow alone, so that what it holds can die
        self.position, self.step = (operator.length_hint(node.real) - 1, -1) if backwards else (0, 1)

    def sync(self) -> None:
        left = operator.length_hint(self.node.real)
        if left:
            self.position = left - 1 if self.step < 0 else len(items_of(self.interp, self.sequence)) - left

    def advance(self, item: Any) -> Shadow:
        shadow = items_of(self.interp, self.sequence)[self.position]
        self.position += self.step
        return shadow

    def recipe(self) -> Recipe:
        real, sequence = self.node.real, self.sequence.shadow
        if type(real) in iterators.DEQUES:
            self.sync()
            return iterators.resume_after, (Const(iter if self.step > 0 else reversed), sequence, Const(self.taken()))
        position = iterators.position_of(real)
        make = Const(iter if self.step > 0 else reversed)
        if position is None:
            return iterators.resume_after, (make, Build(tuple, ()) if type(real) is TUPLE else Display(list, ()), Const(1))
        return iterators.resume_at, (make, sequence, Const(position))

    def taken(self) -> int:
        """How many items were taken."""
        return self.position if self.step > 0 else len(items_of(self.interp, self.sequence)) - 1 - self.position


class Entries(Cursor):
    """An iterator over a dict or a view of it, whose keys do not change meanwhile."""

    __slots__ = ("interp", "mapping", "view", "keys", "position")

    def __init__(self, node: RefNode, interp: Interpreter, mapping: RefNode, view: type, keys: list[Any]) -> None:
        super().__init__(node)
        self.interp, self.mapping, self.view, self.keys, self.position = interp, mapping, view, keys, 0

    def sync(self) -> None:
        left = operator.length_hint(self.node.real, -1)
        if left < 0:            # an iterator over an OrderedDict tells only what it has left
            left = len(self.node.real.__reduce__()[1][0])
        self.position = len(self.keys) - left

    def advance(self, item: Any) -> Shadow:
        key = self.keys[self.position]
        self.position += 1
        return view_item(self.interp, self.view, self.mapping, key)

    def recipe(self) -> Recipe | None:
        if type(self.node.real) not in iterators.DICTS:
            return None
        self.sync()
        view = next(view for view, kinds in VIEW_METHODS if self.view in kinds)
        backwards = type(self.node.real) in REVERSED_DICTS
        return iterators.resume_view, (self.mapping, Const(view), Const(backwards), Const(self.position))


class Members(Cursor):
    """Over a set, whose members tell themselves apart. `order`: in which they come."""

    __slots__ = ("items", "container", "order")

    def __init__(self, node: RefNode, items: dict[Any, Shadow], container: Value) -> None:
        super().__init__(node)
        self.items, self.container, self.order = items, container.shadow, keys_of(container.real)

    def advance(self, item: Any) -> Shadow:
        return self.items[item]

    def recipe(self) -> Recipe | None:
        made_anew = not isinstance(self.container, Const) and self.container.source is None  # type: ignore[attr-defined]
        if made_anew and not (all(type(item) in SCALARS for item in self.order) and tuple(set(self.items)) == self.order):
            return None
        taken = len(self.order) - operator.length_hint(self.node.real)
        return iterators.resume_after, (Const(iter), self.container, Const(taken))


class Together(Cursor):
    """`zip` over other iterators. `full`: how many of them, from the first on, have another item, where any is from outside."""

    __slots__ = ("interp", "parts", "full")

    def __init__(self, node: RefNode, interp: Interpreter, parts: list[Cursor]) -> None:
        super().__init__(node)
        self.interp, self.parts, self.full = interp, parts, 0

    def sync(self) -> None:
        if any(map(moves_outside, self.parts)):
            items = [part.node.real for part in self.parts]
            if not all(map(can_fork, items)):
                raise Break("outside-iterator", "an iterator from outside was advanced together with one that cannot be copied")
            self.full = sum(itertools.takewhile(bool, (iterators.has_item(item, 0) for item in items)))
        for part in self.parts:
            part.sync()

    def ended(self) -> None:
        """Those before the one that has ended have lost an item."""
        for part in self.parts[:self.full + 1]:
            part.ended()

    def advance(self, item: Any) -> Shadow:
        return Build(tuple, tuple(part.advance(x) for part, x in zip(self.parts, item, strict=True)))

    def recipe(self) -> Recipe:
        strict = len(self.node.real.__reduce__()) > 2
        return iterators.zip_of, (Const(strict), *(part.node for part in self.parts))


class Counted(Cursor):
    """`enumerate` over another iterator."""

    __slots__ = ("part",)

    def __init__(self, node: RefNode, part: Cursor) -> None:
        super().__init__(node)
        self.part = part

    def sync(self) -> None:
        self.part.sync()

    def advance(self, item: Any) -> Shadow:
        return Build(tuple, (Const(item[0]), self.part.advance(item[1])))

    def ended(self) -> None:
        self.part.ended()

    def recipe(self) -> Recipe:
        return enumerate, (self.part.node, Const(self.node.real.__reduce__()[1][1]))


class Outside(Cursor):
    """An outside iterator: what it will yield is looked up ahead of it. `taken`: how many items the trace has taken, in all and
    since `moved`, the effect that repeats it."""

    __slots__ = ("graph", "taken", "moved", "since", "has_item", "peek")

    def __init__(self, node: RefNode, graph: RefGraph) -> None:
        super().__init__(node)
        self.graph, self.taken, self.since = graph, 0, 0
        self.has_item, self.peek = iterators.looking_ahead_of(node.real)
        self.moved: Effect | None = None
        graph.touch(node)

    def sync(self) -> None:
        self.graph.require(self._ahead(self.has_item), "TRUTH", self.has_item(self.node.real, 0))

    def is_open(self) -> bool:
        """Whether it has ended after another number of items of one trace, in another capture."""
        return self.taken > 0 and self.graph.shapes.changes(self._ahead(self.has_item), self.has_item(self.node.real, 0))

    def is_of_any_length(self) -> bool:
        """Whether it had another number of items left in another capture."""
        return self.graph.shapes.changes(self._ahead(iterators.peek), sum(1 for _ in iterators.fork(self.node.real)))

    def advance(self, item: Any) -> Shadow:
        source = self._ahead(self.peek)
        self.taken += 1
        self._move()
        return self.graph.external(item, source)

    def ended(self) -> None:
        self.taken += 1
        self._move()

    def _ahead(self, look: Callable[[Any, int], Any]) -> Computed:
        """What a look past the items that were taken finds, as a path."""
        return Computed(look, (self.node.source, Literal(self.taken)))

    def _move(self) -> None:
        effects = self.graph.effects
        if self.moved is not None and effects and effects[-1] is self.moved:
            effects.pop()
        else:
            self.since = 0
        self.since += 1
        self.graph.effect(_C.skip, self.node, Const(self.since))
        self.moved = effects[-1]  # type: ignore[assignment]


def moves_outside(cursor: Cursor) -> bool:
    """Whether an iterator moves one from outside."""
    if isinstance(cursor, Together):
        return any(map(moves_outside, cursor.parts))
    return isinstance(cursor, Outside) or isinstance(cursor, Counted) and moves_outside(cursor.part)


# -- making them -------------------------------------------------------------------------------------------------------

def cursor_of(interp: Interpreter, value: Value) -> Cursor:
    """The state of a tracked iterator of C."""
    node = value.shadow
    if isinstance(node, RefNode):
        if node.state is None and node.source is not None and can_fork(value.real):
            keep_apart(interp.graph, node)
            node.state = Outside(node, interp.graph)
        if isinstance(node.state, Cursor):
            return node.state
        if node.source is None and isinstance(node.origin, Expr):
            raise Break("changing-result", OPEN)
    raise Break("outside-iterator", f"a {type(value.real).__name__} from outside was advanced")


def keep_apart(graph: RefGraph, node: RefNode) -> None:
    """Guards that an iterator from outside walks over nothing that another one walks over which the trace moves."""
    for other in [other for other in graph.nodes if isinstance(other.state, Outside)]:
        if not can_fork(other.real) or not iterators.are_apart(other.real, node.real):
            raise Break("outside-iterator", "two iterators from outside were advanced that walk over the same one")
        if type(node.real) in iterators.WALKING_ALONE and type(other.real) in iterators.WALKING_ALONE:
            for one in (node, other):
                graph.require(one.source, "TYPE", type(one.real))
        else:
            graph.require(Computed(iterators.are_apart, (other.source, node.source)), "TRUTH", True)


def can_fork(iterator: Any) -> bool:
    """Whether one can look ahead of an iterator."""
    try:
        iterators.fork(iterator)
    except (TypeError, RuntimeError):       # the latter where a dict has changed meanwhile, which ends the loop
        return False
    return True


def make_iterator(interp: Interpreter, real: Any, container: Value, backwards: bool = False) -> RefNode:
    """The node of the iterator `real`, just made over a container."""
    node = interp.graph.create(real)
    source = getattr(container.shadow, "source", None)
    sized = is_one_of(type(container.real), list, range, tuple) and source is not None
    if sized and interp.graph.shapes.is_of_any_length(source, container.real):  # type: ignore[arg-type]
        interp.graph.require(source, "TYPE", type(container.real))
        node.origin = Expr(reversed if backwards else iter, (container.shadow,))
    elif type(container.real) in SCALARS or is_a(container.real, (str, bytes)):
        interp.graph.depend(container.shadow, container.real)
        node.state = Constants(node)
    elif is_a(container.real, (set, frozenset)):
        elements(interp, container)
        node.state = Members(node, members(interp, container), container)
    elif is_a(container.real, (dict, *VIEWS)):
        is_view = is_a(container.real, VIEWS)
        mapping = view_mapping(container.shadow) if is_view else dict_node(container)
        keys = interp.graph.dict_keys(mapping)
        node.state = Entries(node, interp, mapping, type(container.real) if is_view else KEYS,
                             keys[::-1] if backwards else keys)
    else:
        items_of(interp, container)
        node.state = Items(node, interp, container, backwards)
    return node


def part_of(interp: Interpreter, real: Any, argument: Value) -> Cursor:
    """The cursor of an iterator which `zip` or `enumerate` holds for `argument`."""
    if real is argument.real:
        return cursor_of(interp, argument)
    state = make_iterator(interp, real, argument).state
    if state is None:
        raise Break("changing-result", OPEN)
    return state


@model(iter, applies=lambda x, *sentinel: not sentinel and (is_native_iterable(x) or is_native_iterator(x)))
def iter_(interp: Interpreter, result: Any, x: Value) -> Shadow:
    """`iter(x)` of a builtin container or iterator."""
    return interp.graph.touch(node_of(x)) if result is x.real else make_iterator(interp, result, x)


@model(iter, applies=lambda x, *sentinel: not sentinel and is_a(x, GeneratorType))
def iter_generator(interp: Interpreter, result: Any, x: Value) -> Shadow:
    """`iter(generator)` is the generator."""
    return interp.graph.touch(node_of(x))


@model(*(cls.__iter__ for cls in WALKED), applies=lambda x: is_a(x, WALKED))
def iterate(interp: Interpreter, result: Any, x: Value) -> Shadow:
    """`list.__iter__(x)` and its like, of a subclass too that has an `__iter__` of its own."""
    return make_iterator(interp, result, x)


@model(reversed, list.__reversed__, deque.__reversed__, applies=lambda x: is_a(x, (
    list, tuple, deque, range, str, bytes, dict, *VIEWS)))
def reversed_(interp: Interpreter, result: Any, x: Value) -> Shadow:
    """`reversed(x)`."""
    return make_iterator(interp, result, x, backwards=True)


def only_native(*iterables: Any, **options: Any) -> bool:
    """Whether no argument is iterated by Python code, and none could be advanced twice for one item."""
    iterators = [x for x in iterables if is_native_iterator(x)]
    if not all(is_native_iterable(x) or is_native_iterator(x) for x in iterables):
        return False
    return len(set(map(id, iterators))) == len(iterators)


@model(zip, applies=only_native)
def zip_(interp: Interpreter, result: Any, *iterables: Value, strict: Value | None = None) -> Shadow:
    """`zip(*iterables)`."""
    if strict is not None:
        interp.graph.depend(strict.shadow, strict.real)
    reals = result.__reduce__()[1] if iterables else ()
    parts = [part_of(interp, real, argument) for real, argument in zip(reals, iterables, strict=True)]
    node = interp.graph.create(result)
    node.state = Together(node, interp, parts)
    return node


@model(index_choices)
def choose_indices(interp: Interpreter, result: Any, kind: Value, *args: Value) -> Shadow:
    """An iterator over tuples of indices."""
    for value in args:
        interp.graph.depend(value.shadow, value.real)
    node = interp.graph.create(result)
    node.state = Chosen(node, kind.real, tuple(value.real for value in args))
    return node


@model(at_indices)
def pick(interp: Interpreter, result: tuple[Any, ...], pool: Value, indices: Value) -> Shadow:
    """The items of a pool at indices."""
    depend_plain(interp, indices.shadow, indices.real)
    items = items_of(interp, pool)
    return compose(interp, result, [items[index] for index in indices.real])


@model(one_of_each)
def pick_of_each(interp: Interpreter, result: tuple[Any, ...], pools: Value, indices: Value) -> Shadow:
    """An item of each pool."""
    depend_plain(interp, indices.shadow, indices.real)
    known = [items_of(interp, Value(pool, shadow)) for pool, shadow in zip(pools.real, items_of(interp, pools))]
    return compose(interp, result, [items[index] for items, index in zip(known, indices.real)])


@model(enumerate, applies=lambda iterable, start=0: only_native(iterable) and type(start) is int)
def enumerate_(interp: Interpreter, result: Any, iterable: Value, start: Value | None = None) -> Shadow:
    """`enumerate(iterable, start)`."""
    if start is not None:
        interp.graph.depend(start.shadow, start.real)
    part = part_of(interp, result.__reduce__()[1][0], iterable)
    node = interp.graph.create(result)
    node.state = Counted(node, part)
    return node


# -- moving them -------------------------------------------------------------------------------------------------------

def prepare_next(interp: Interpreter, iterator: Value, *default: Value) -> None:
    cursor_of(interp, iterator).sync()


def is_native_next(iterator: Any, *default: Any) -> bool:
    return is_native_iterator(iterator) and not default


BREAKING[next] = "outside-iterator"


@model(next, *{cls.__next__ for cls in (type(iter([])), type(iter(())), type(iter({})), zip, enumerate, reversed)},
       prepare=prepare_next,
       applies=is_native_next)
def next_(interp: Interpreter, result: Any, iterator: Value) -> Shadow:
    """`next(iterator)`."""
    return cursor_of(interp, iterator).advance(result)


def prepare_drain(interp: Interpreter, iterable: Value | None) -> None:
    """Before an iterator is consumed natively."""
    if iterable is not None and is_native_iterator(iterable.real):
        cursor = cursor_of(interp, iterable)
        cursor.sync()
        while isinstance(cursor, Counted):
            cursor = cursor.part
        if isinstance(cursor, Outside) and interp.can_cut and cursor.is_of_any_length():
            raise Break("changing-result", OPEN)
        if isinstance(cursor, Together) and moves_outside(cursor):      # which of them ended is not to be seen afterwards
            raise Break("outside-iterator", "an iterator from outside was exhausted together with others")


def drain(interp: Interpreter, iterator: Value, items: Any) -> list[Shadow]:
    """The shadows of all the `items` that an iterator has yielded."""
    cursor = cursor_of(interp, iterator)
    shadows = [cursor.advance(item) for item in items]
    if moves_outside(cursor):
        cursor.sync()               # it has ended here
        cursor.ended()
    return shadows


