"""Lists, tuples and deques: how they are made, read, compared and sorted. `sequence_changes` has what changes them."""
from __future__ import annotations

import itertools
import operator
import re
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.core.special import in_python, is_native_iterable, is_native_iterator, is_plain
from capture.interp.function_models.iterators import drain, prepare_drain
from capture.interp.function_models.replays import is_replayed, lazily, varies
from capture.interp.function_models.shadows import compose, depend_plain, elements, items_of, node_of, shadow_of
from capture.interp.function_models.shapes import EQUALITIES, compared_by_sizes, searched_by_sizes
from capture.refgraph.entry_state import VALUES
from capture.refgraph.identical import INTEGERS, LISTS, is_one_of
from capture.refgraph.lookup import maxlen_of, parts
from capture.refgraph.node import SCALARS, Build, Const, ListState, RefNode, Shadow, source_of
from capture.refgraph.repetitions import Repetition
from capture.refgraph.source import Computed
from capture.refgraph.state_queries import item_at

SEQUENCES = (list, tuple, deque)


# -- predicates --------------------------------------------------------------------------------------------------------

def is_position(x: Any) -> bool:
    """Whether `x` is an index or a slice of indices."""
    if type(x) is slice:
        return all(part is None or type(part) in INTEGERS for part in parts(x))
    return type(x) in INTEGERS


def is_indexing(sequence: Any, index: Any, *rest: Any) -> bool:
    return is_a(sequence, SEQUENCES) and is_position(index)


def is_slice_of_native(sequence: Any, index: Any, value: Any) -> bool:
    return is_indexing(sequence, index) and (type(index) is not slice or is_native_iterable(value))


def extends_natively(sequence: Any, items: Any) -> bool:
    return is_a(sequence, (list, deque)) and (is_native_iterable(items) or is_native_iterator(items))


def is_concatenation(a: Any, b: Any) -> bool:
    return (is_a(a, list) and is_a(b, list) or is_a(a, tuple) and is_a(b, tuple)
            or is_a(a, deque) and is_a(b, deque))


def is_copied_in_c(x: Any) -> bool:
    """Whether C copies a sequence without Python code: a deque is made by its class, and walked over."""
    return not is_a(x, deque) or not any(in_python(x, name) for name in ("__new__", "__init__", "__iter__", "__len__"))


def is_repetition(a: Any, b: Any) -> bool:
    return is_a(a, SEQUENCES) and type(b) in INTEGERS or is_a(b, SEQUENCES) and type(a) in INTEGERS


def compares_plainly(a: Any, b: Any) -> bool:
    """Whether a comparison, or a search for `b` in `a`, is decided by data alone."""
    return not (type(a) in SCALARS and type(b) in SCALARS) and has_plain_equality(a) and has_plain_equality(b)


def has_plain_equality(x: Any) -> bool:
    """Whether comparing `x` runs no Python code: data, and classes and regular expressions among it."""
    return is_plain(x) or type(x) is type or type(x) is re.Pattern or type(x) in LISTS and all(map(has_plain_equality, x))


# -- reading -----------------------------------------------------------------------------------------------------------

def look(interp: Interpreter, sequence: Value, *indices: Value, **_: Value) -> None:
    """Before an operation: the items at entry, and the indices."""
    items_of(interp, sequence)
    for index in indices:
        depend_plain(interp, index.shadow, index.real)


def depend_bound(interp: Interpreter, sequence: Value) -> None:
    """Guards the maximal length of an outside deque, beyond which items fall out."""
    node = node_of(sequence) if is_a(sequence.real, deque) else None
    if node is not None and not node.created:
        interp.graph.depend(interp.graph.field(node, "maxlen", maxlen_of(sequence.real)), maxlen_of(sequence.real))


def picked(interp: Interpreter, sequence: Value, index: Value) -> Shadow | list[Shadow] | None:
    """The item, or the items, that a subscript picks from a list from outside, if its length does not matter for that."""
    node, at, graph = sequence.shadow, index.real, interp.graph
    if not isinstance(node, RefNode) or not is_a(sequence.real, list):
        return None
    if type(at) is int:
        changing = item_at_changing(interp, node, index)
        if changing is not None:
            return changing
        depend_plain(interp, index.shadow, at)
        return graph.list_item(node, at)
    places = anchored(at) if type(at) is slice else None
    start = graph.list_start(node)
    if places is None or start is None:
        return None
    depend_plain(interp, index.shadow, at)
    is_there = range(-start.length - len(start.added), start.length)
    if not all(place in is_there for place in places):
        return None
    return [graph.list_item(node, place) for place in places]  # type: ignore[misc]


def item_at_changing(interp: Interpreter, node: RefNode, index: Value) -> Shadow | None:
    """The item of an outside list at an index that differed in an earlier capture, or is computed from such an index. None for
    other indices, or if the list was changed."""
    start = interp.graph.list_start(node)
    if start is None or start.added or start.writes or not -start.length <= index.real < start.length:
        return None
    source = source_of(index.shadow) if varies(interp, index.shadow, index.real) else None
    if source is None:
        return None
    item = list.__getitem__(node.real, index.real)
    path = Computed(item_at, (node.source, source))
    interp.graph.require(path, "TYPE", type(item))          # so that it is there
    return interp.graph.external(item, path)


def anchored(places: slice) -> range | None:
    """The indices that a slice picks from a list of any length that has items at all of these: positive ones, or negative ones.
    None where which they are depends on the length."""
    if any(not is_one_of(type(part), int, types.NoneType) for part in parts(places)) or places.step == 0:
        return None
    step = 1 if places.step is None else places.step
    start, stop = places.start, places.stop
    if start is None and stop is not None and (step > 0) == (stop >= 0):
        start = 0 if step > 0 else -1
    if stop is None and start is not None and (step > 0) == (start < 0):
        stop = 0 if step > 0 else -1
    elif start is None or stop is None or (start < 0) != (stop < 0):
        return None
    return range(start, stop, step)


def look_item(interp: Interpreter, sequence: Value, index: Value) -> None:
    """Before an item is read."""
    if picked(interp, sequence, index) is None:
        depend_plain(interp, index.shadow, index.real)
        items_of(interp, sequence)


@model(operator.getitem, list.__getitem__, tuple.__getitem__, deque.__getitem__, prepare=look_item, applies=is_indexing)
def getitem(interp: Interpreter, result: Any, sequence: Value, index: Value) -> Shadow:
    """`sequence[index]`."""
    if isinstance(sequence.shadow, Const) and is_a(sequence.real, VALUES):
        return Const(result)
    item: Any = picked(interp, sequence, index)
    if item is None:
        item = items_of(interp, sequence)[index.real]
    if result is sequence.real and type(index.real) is slice:       # a tuple, all of it
        return sequence.shadow
    return new_sequence(interp, result, item) if type(index.real) is slice else item


@model(list.copy, deque.copy, deque.__copy__, applies=is_copied_in_c)
def copy(interp: Interpreter, result: Any, sequence: Value) -> Shadow:
    """`sequence.copy()`."""
    depend_bound(interp, sequence)
    return new_sequence(interp, result, list(items_of(interp, sequence)))


@model(operator.add, operator.concat, list.__add__, tuple.__add__, deque.__add__,
       applies=lambda a, b: is_concatenation(a, b) and is_copied_in_c(a) and is_copied_in_c(b))
def add(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a + b`."""
    depend_bound(interp, a)
    items = [*items_of(interp, a), *items_of(interp, b)]
    for operand in (a, b):
        if result is operand.real:      # a tuple to which nothing was added
            return operand.shadow
    return new_sequence(interp, result, items)


@model(operator.mul, list.__mul__, tuple.__mul__, deque.__mul__, list.__rmul__, tuple.__rmul__,
       applies=lambda a, b: is_repetition(a, b) and is_copied_in_c(a) and is_copied_in_c(b))
def mul(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a * n`, `n * a`."""
    sequence, n = (a, b) if is_a(a.real, SEQUENCES) else (b, a)
    opened = repeated(interp, result, sequence, n)
    if opened is not None:
        return opened
    interp.graph.depend(n.shadow, n.real)
    depend_bound(interp, sequence)
    if result is sequence.real:         # a tuple once
        return sequence.shadow
    return new_sequence(interp, result, items_of(interp, sequence) * n.real)


def repeated(interp: Interpreter, result: Any, sequence: Value, n: Value) -> Shadow | None:
    """A list that repeats others' items as often as a number says that changes from call to call; None for any other sequence."""
    sizes = interp.graph.sizes
    interp.recorder.sizes.free(interp.recorder, n.shadow)
    if type(result) is not list or type(n.real) is not int or not sizes.is_free(n.shadow):
        return None
    times = sizes.of(n.shadow, n.real)
    if not sizes.decide(operator.ge, times, 0):
        return None
    return interp.graph.create(result, Repetition(items_of(interp, sequence), times, sizes))


def new_sequence(interp: Interpreter, real: Any, items: list[Shadow]) -> Shadow:
    """The shadow of a list, tuple or deque which an operation has just returned."""
    if is_a(real, tuple):
        return compose(interp, real, items)
    if not is_a(real, deque):
        return interp.graph.create(real, ListState(items))
    node = interp.graph.create(real, ListState(list(deque(items, maxlen_of(real)))))
    node.slots["maxlen"] = Const(maxlen_of(real))
    return node


def searches_plainly(a: Any, b: Any) -> bool:
    return is_a(a, SEQUENCES) and compares_plainly(a, b)


ORDERS = frozenset(getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge"))


def first_difference(a: Value, b: Value) -> list[Value]:
    """The items of two tuples up to the first two that differ, which decide how the tuples compare. Nothing where one of them is
    different on each call."""
    deciding: list[Value] = []
    for left, right in zip(parts_of_tuple(a), parts_of_tuple(b)):
        if is_replayed(left.shadow) or is_replayed(right.shadow):
            break
        deciding += left, right
        if left.real != right.real:
            return deciding
    return []


def parts_of_tuple(value: Value) -> Iterable[Value]:
    """The items of a tuple; none of anything else."""
    if type(value.real) is not tuple or not isinstance(value.shadow, (Build, Const)):
        return ()
    return map(Value, value.real, value.shadow.items if isinstance(value.shadow, Build) else map(Const, value.real))


def comparison(function: Callable[..., Any], applies: Callable[..., bool]) -> None:
    """Registers a comparison, or a search, among plain data."""
    @model(function, applies=applies)
    def compare(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
        if function in ORDERS and (is_replayed(a.shadow) or is_replayed(b.shadow)) and (deciding := first_difference(a, b)):
            look_plain(interp, *deciding)
            return Const(result)
        if function in EQUALITIES and compared_by_sizes(interp, a, b):
            return Const(result)
        if function in SEARCHES and searched_by_sizes(interp, a, b, every=function not in FINDING):
            return Const(result)
        computed = None if function is operator.indexOf else lazily(interp, function, (a, b), {}, result)      # which may raise
        if computed is not None:
            return computed
        depend_plain(interp, a.shadow, a.real)
        depend_plain(interp, b.shadow, b.real)
        return Const(result)


FINDING = frozenset({operator.contains, operator.indexOf, *(cls.__contains__ for cls in SEQUENCES)})
SEARCHES = FINDING | {operator.countOf, *(cls.count for cls in SEQUENCES)}
for _function in SEARCHES:
    comparison(_function, searches_plainly)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _function in (getattr(operator, _name), *(getattr(cls, f"__{_name}__") for cls in SEQUENCES)):
        comparison(_function, compares_plainly)


@model(list.index, tuple.index, deque.index, applies=lambda sequence, *args: all(map(is_plain, (sequence, *args))))
def index(interp: Interpreter, result: int, sequence: Value, x: Value, *bounds: Value) -> Shadow:
    """`sequence.index(x)`."""
    if not bounds and searched_by_sizes(interp, sequence, x, every=False):
        return Const(result)
    for value in (sequence, x, *bounds):
        depend_plain(interp, value.shadow, value.real)
    return Const(result)


# -- creation ----------------------------------------------------------------------------------------------------------

def is_native(*args: Any) -> bool:
    return not args or len(args) == 1 and (is_native_iterable(args[0]) or is_native_iterator(args[0]))


def prepare_items(interp: Interpreter, *args: Value) -> None:
    """Before the items of `args[-1]` are consumed."""
    prepare_drain(interp, args[-1] if args else None)


def consumed(interp: Interpreter, real: Any, source: Value) -> list[Shadow]:
    """The shadows of the items of `real`, which were taken from `source`."""
    if is_native_iterator(source.real):
        return drain(interp, source, real)
    return elements(interp, source)


@model(list, prepare=prepare_items, applies=is_native)
def make_list(interp: Interpreter, result: list[Any], *args: Value) -> Shadow:
    """`list(x)`."""
    return interp.graph.create(result, ListState(consumed(interp, result, args[0]) if args else []))


@model(tuple, prepare=prepare_items, applies=is_native)
def make_tuple(interp: Interpreter, result: tuple[Any, ...], *args: Value) -> Shadow:
    """`tuple(x)`."""
    if args and args[0].real is result and args[0].shadow is not None:
        return args[0].shadow
    return compose(interp, result, consumed(interp, result, args[0]) if args else [])


@model(tuple.__new__, prepare=prepare_items, applies=lambda cls, *args: is_native(*args))
def new_tuple(interp: Interpreter, result: tuple[Any, ...], cls: Value, *args: Value) -> Shadow:
    """`tuple.__new__(cls, x)`, which makes namedtuples too."""
    interp.graph.depend(cls.shadow, cls.real)
    return make_tuple(interp, result, *args)


def is_native_deque(iterable: Any = (), maxlen: int | None = None) -> bool:
    return is_native_iterable(iterable)


@model(deque, applies=is_native_deque)
def make_deque(interp: Interpreter, result: deque[Any], iterable: Value | None = None,
               maxlen: Value | None = None) -> Shadow:
    """`deque(iterable, maxlen)`."""
    if maxlen is not None:
        interp.graph.depend(maxlen.shadow, maxlen.real)
    return new_sequence(interp, result, elements(interp, iterable) if iterable is not None else [])


# -- searching and sorting among plain data ----------------------------------------------------------------------------

def look_plain(interp: Interpreter, *args: Value, **kwargs: Value) -> None:
    """Before an operation that compares: all data at entry."""
    for value in (*args, *kwargs.values()):
        depend_plain(interp, value.shadow, value.real)


IN_ORDER = (list, tuple, type({}.items()))


def order_of(interp: Interpreter, iterable: Value) -> list[Shadow] | None:
    """The items of `iterable` in order, where some differ on each call, but the order follows from what is known."""
    shadows, reals = elements(interp, iterable), list(iterable.real)
    order = sorted(range(len(reals)), key=reals.__getitem__)
    values = [Value(reals[i], shadows[i]) for i in order]
    if not any(is_replayed(value.shadow) for value in values):
        return None
    deciding = [first_difference(a, b) for a, b in itertools.pairwise(values)]
    if not all(deciding):
        return None
    look_plain(interp, *itertools.chain(*deciding))
    return [value.shadow for value in values]


@model(sorted, applies=lambda iterable, *, key=None, reverse=False: key is None and is_plain(iterable))
def sorted_(interp: Interpreter, result: list[Any], iterable: Value, **options: Value) -> Shadow:
    """`sorted(iterable)` of plain data."""
    known = order_of(interp, iterable) if not options and is_a(iterable.real, IN_ORDER) else None
    if known is not None:
        return interp.graph.create(result, ListState(known))
    look_plain(interp, iterable, *options.values())
    return interp.graph.create(result, ListState([shadow_of(interp, item) for item in result]))
