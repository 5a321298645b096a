"""Models of dicts and of their subclasses in the standard library. Only what the program read is guarded."""
from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import Model, Prepare, model
from capture.interp.core.special import VIEWS, asks_python, in_python, is_key, is_native_iterable
from capture.interp.function_models.identity import depend_length
from capture.interp.function_models.iterators import make_iterator
from capture.interp.function_models.replays import is_changing, parts_of_key, path_of_key
from capture.interp.function_models.sequences import compares_plainly, look_plain
from capture.interp.function_models.shadows import (
    NONE,
    ViewState,
    dict_node,
    elements,
    items_of,
    key_of,
    node_of,
    shadow_of,
    view_mapping,
)
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.effects import Effect
from capture.refgraph.identical import FORMS, Classes
from capture.refgraph.keys import is_python_key
from capture.refgraph.lookup import lookup_class
from capture.refgraph.node import ABSENT, Build, Const, DictState, Expr, External, RefNode, Shadow, WrittenDict
from capture.refgraph.source import Computed, Source
from capture.refgraph.state_queries import has_key, keys_of, under_key

DICTS = (dict, OrderedDict, defaultdict)
PLAIN_KEYS = Classes((int, str, bool, bytes, type(None)))       # of which equal ones are found wherever they come from
LOOK_UPS = frozenset({operator.getitem, operator.contains, dict.get, dict.__getitem__, dict.__contains__})


def methods(name: str) -> list[Any]:
    """The method `name` of each dict type that has one of its own."""
    return [vars(cls)[name] for cls in DICTS if name in vars(cls)]


def method_model(name: str, prepare: Prepare | None, applies: Callable[..., bool]) -> Callable[[Model], Model]:
    """Registers the meaning of the method `name` of every dict type. OrderedDict's own go through the item methods of a
    subclass, which must not be Python then."""
    def natively(mapping: Any, *rest: Any, **named: Any) -> bool:
        return has_native_items(mapping) and applies(mapping, *rest, **named)

    def register(fn: Model) -> Model:
        for method in methods(name):
            if method is defaultdict.__init__:
                continue        # takes a factory first
            model(method, prepare=prepare, applies=natively if method.__objclass__ is OrderedDict else applies)(fn)
        return fn
    return register


def has_native_items(mapping: Any) -> bool:
    """Whether a dict's items are read and written in C."""
    return not any(in_python(mapping, name) for name in ("__getitem__", "__setitem__", "__delitem__", "__contains__"))


# -- predicates --------------------------------------------------------------------------------------------------------

def is_keyed(mapping: Any, key: Any, *rest: Any, **named: Any) -> bool:
    """Whether `key` may be looked up in a dict without running Python code."""
    return is_a(mapping, dict) and is_key(key)


def is_dict(mapping: Any, *rest: Any, **named: Any) -> bool:
    return is_a(mapping, dict)


def is_lookup(mapping: Any, key: Any) -> bool:
    """Whether `mapping[key]` calls no `__missing__`."""
    return is_keyed(mapping, key) and (lookup_missing(mapping) is None or dict.__contains__(mapping, key))


def lookup_missing(mapping: Any) -> Any:
    return lookup_class(type(mapping), "__missing__")


def is_pair(x: Any) -> bool:
    return is_a(x, (tuple, list)) and len(x) == 2 and is_key(x[0])


def merges_natively(x: Any, into: type = dict) -> bool:
    """Whether a dict of the type `into` can take up `x` without running Python code: a dict, or a container of pairs."""
    if asks_python(x, "keys"):
        return False
    if is_a(x, dict):         # which another looks into that is walked over as such, whatever other methods it has
        ordered = issubclass(into, OrderedDict) or is_a(x, OrderedDict)
        return not any(in_python(x, name) for name in ("__iter__", *(("keys", "__getitem__") if ordered else ()))) and all(
            map(is_key, dict.__iter__(x)))
    return is_native_iterable(x) and not is_a(x, (str, bytes, range, set, frozenset)) and all(map(is_pair, x))


def is_update(mapping: Any, *others: Any, **named: Any) -> bool:
    return is_a(mapping, dict) and len(others) <= 1 and all(map(merges_natively, others))


def is_construction(*others: Any, **named: Any) -> bool:
    return len(others) <= 1 and all(map(merges_natively, others))


# -- reading -----------------------------------------------------------------------------------------------------------

def find_key(interp: Interpreter, mapping: Value, key: Value) -> Any:
    """Depends on the key for a look-up."""
    node = dict_node(mapping)
    return key_of(interp, key, dict.__iter__(mapping.real), outside=node.source is not None)


def changing_place(interp: Interpreter, mapping: Value, key: Value) -> tuple[Source, Source] | None:
    """The paths of an outside dict and of a key that differed in an earlier capture, or is computed from such a key: by these, each
    hit looks up the value at entry. None if the key is not such a one, or the dict was changed."""
    node, graph, source = mapping.shadow, interp.graph, path_of_key(interp, key)
    if source is None or not isinstance(node, RefNode) or node.source is None or node in graph.volatile:
        return None
    changed = any(isinstance(effect, Effect) and effect.target is node for effect in graph.effects)
    if changed or any(map(is_python_key, keys_of(mapping.real))):
        return None
    graph.dict_state(node).anywhere = True
    return node.source, source


def under_changing(interp: Interpreter, mapping: Value, key: Value) -> Shadow | None:
    """What a dict has at such a place, or ABSENT; which of the two is guarded. None if there is no such place."""
    place = changing_place(interp, mapping, key)
    if place is None:
        return None
    if not dict.__contains__(mapping.real, key.real):
        interp.graph.require(Computed(has_key, place), "VALUE", False)
        return ABSENT
    item, path = dict.__getitem__(mapping.real, key.real), Computed(under_key, place)
    interp.graph.require(path, "TYPE", type(item))          # so that it is there
    return interp.graph.external(item, path)


def stored_last(interp: Interpreter, function: Any, args: list[Value]) -> Shadow | None:
    """The value just stored in a dict under a key that changes, for a look-up of that very key; None for any other."""
    node = args[0].shadow if len(args) > 1 and function in LOOK_UPS else None
    if not isinstance(node, RefNode) or not isinstance(node.state, WrittenDict):
        return None
    (where, stored, value), key = node.state.writes[-1], args[1]
    source = path_of_key(interp, key)
    if source is None or source != path_of_key(interp, Value(stored, where)) or not all(
            type(part.real) in PLAIN_KEYS or type(part.real) in FORMS for part in parts_of_key(key)):
        return None
    return value if is_changing(interp, key) else None


def found_under(interp: Interpreter, mapping: Value, key: Value) -> Shadow:
    """What a dict has under a key, or ABSENT."""
    last = stored_last(interp, dict.get, [mapping, key])
    if last is not None:
        return last
    changing = under_changing(interp, mapping, key)
    return interp.graph.dict_get(dict_node(mapping), find_key(interp, mapping, key)) if changing is None else changing


def look(interp: Interpreter, mapping: Value, key: Value, *rest: Value) -> None:
    """Before a look-up: reads what is there now."""
    found_under(interp, mapping, key)


def look_before(interp: Interpreter, mapping: Value, key: Value, *rest: Value) -> None:
    """Before a change to the entry of one key: reads what is there now."""
    interp.graph.dict_get(dict_node(mapping), find_key(interp, mapping, key))


def look_up(interp: Interpreter, mapping: Value, key: Value) -> None:
    """Before `mapping[key]`: reads what is there now; if nothing is, guards that the class has no `__missing__`."""
    look(interp, mapping, key)
    if not dict.__contains__(mapping.real, key.real):
        pin_special(interp.graph, type(mapping.real), "__missing__")


@model(operator.getitem, *methods("__getitem__"), prepare=look_up, applies=is_lookup)
def getitem(interp: Interpreter, result: Any, mapping: Value, key: Value) -> Shadow:
    """`mapping[key]`."""
    return found_under(interp, mapping, key)


@model(dict.get, prepare=look, applies=is_keyed)
def get(interp: Interpreter, result: Any, mapping: Value, key: Value, default: Value | None = None) -> Shadow:
    """`mapping.get(key, default)`."""
    return or_default(found_under(interp, mapping, key), default)


def or_default(found: Shadow, default: Value | None) -> Shadow:
    if found is not ABSENT:
        return found
    return default.shadow if default is not None else NONE


def look_for_key(interp: Interpreter, mapping: Value, key: Value) -> None:
    """Before the question whether a key is there."""
    if changing_place(interp, mapping, key) is None:
        look(interp, mapping, key)


@model(operator.contains, *methods("__contains__"), prepare=look_for_key, applies=is_keyed)
def contains(interp: Interpreter, result: bool, mapping: Value, key: Value) -> Shadow:
    """`key in mapping`."""
    place = changing_place(interp, mapping, key)
    return Const(result) if place is None else External(Computed(has_key, place), result)


@model(*methods("__len__"), applies=is_dict)
def length(interp: Interpreter, result: int, mapping: Value) -> Shadow:
    """`dict.__len__(mapping)`."""
    depend_length(interp, mapping)
    return Const(result)


@model(*methods("__iter__"), applies=is_dict)
def iterate(interp: Interpreter, result: Any, mapping: Value) -> Shadow:
    """`dict.__iter__(mapping)`."""
    return make_iterator(interp, result, mapping)


def view(method: Callable[..., Any]) -> None:
    """Registers `keys`, `values` or `items`."""
    def make(interp: Interpreter, result: Any, mapping: Value) -> Shadow:
        node = dict_node(mapping)
        return interp.graph.create(result, ViewState(node), origin=Expr(method, (node,)))
    model(method)(make)


for _name in ("keys", "values", "items"):
    for _method in methods(_name):
        view(_method)


def contains_in_view(shown: Any, x: Any) -> bool:
    return is_a(shown, VIEWS) and type(shown).__name__.endswith("keys") and is_key(x)


@model(operator.contains, *(cls.__contains__ for cls in VIEWS if cls.__name__.endswith("keys")),
       applies=contains_in_view,
       prepare=lambda interp, shown, x: interp.graph.dict_get(view_mapping(shown.shadow), x.real))
def view_contains(interp: Interpreter, result: bool, shown: Value, x: Value) -> Shadow:
    """`x in mapping.keys()`."""
    interp.graph.depend(x.shadow, x.real)
    return Const(result)


# -- creation ----------------------------------------------------------------------------------------------------------

def new_dict(interp: Interpreter, real: Any, items: dict[Any, Shadow]) -> RefNode:
    """The node of a dict that an operation has just returned."""
    return interp.graph.create(real, DictState(items, complete=True))


def entries(interp: Interpreter, x: Value) -> list[tuple[Any, Shadow]]:
    """The keys and shadows that `dict.update(x)` takes from `x`."""
    graph = interp.graph
    if is_a(x.real, dict):
        node = dict_node(x)
        return [(key, graph.dict_get(node, key)) for key in graph.dict_keys(node)]
    result = []
    for shadow, pair in zip(elements(interp, x), x.real, strict=True):
        key, value = items_of(interp, Value(pair, shadow))
        result.append((key_of(interp, Value(pair[0], key)), value))
    return result


def gathered(interp: Interpreter, others: tuple[Value, ...], named: dict[str, Value]) -> dict[Any, Shadow]:
    """What a constructor collects from its arguments."""
    items: dict[Any, Shadow] = {}
    for other in others:
        items.update(entries(interp, other))
    items.update((name, value.shadow) for name, value in named.items())
    return items


@model(dict, OrderedDict, applies=is_construction)
def make_dict(interp: Interpreter, result: dict[Any, Any], *others: Value, **named: Value) -> Shadow:
    """`dict(x, **named)`."""
    return new_dict(interp, result, gathered(interp, others, named))


@model(defaultdict, applies=lambda *args, **named: is_construction(*args[1:], **named))
def make_defaultdict(interp: Interpreter, result: Any, *args: Value, **named: Value) -> Shadow:
    """`defaultdict(factory, x, **named)`."""
    node = new_dict(interp, result, gathered(interp, args[1:], named))
    factory = args[0].shadow if args else NONE
    node.slots["default_factory"] = factory
    return node


@model(OrderedDict.copy, applies=lambda mapping: type(mapping) is OrderedDict)
@model(dict.copy, applies=lambda mapping: is_dict(mapping) and merges_natively(mapping))
def copy(interp: Interpreter, result: Any, mapping: Value) -> Shadow:
    """`mapping.copy()`."""
    return new_dict(interp, result, dict(entries(interp, mapping)))


@model(defaultdict.copy, defaultdict.__copy__, applies=lambda mapping: type(mapping) is defaultdict
       and all(map(is_key, dict.__iter__(mapping))))
def copy_defaultdict(interp: Interpreter, result: Any, mapping: Value) -> Shadow:
    """`mapping.copy()` of a defaultdict."""
    factory = interp.graph.slot(dict_node(mapping), "default_factory", mapping.real.default_factory)
    node = new_dict(interp, result, dict(entries(interp, mapping)))
    node.slots["default_factory"] = factory
    return node


@model(dict.fromkeys, OrderedDict.fromkeys, applies=lambda keys, *value: is_native_iterable(keys)
       and all(map(is_key, keys)))
def fromkeys(interp: Interpreter, result: Any, keys: Value, value: Value | None = None) -> Shadow:
    """`dict.fromkeys(keys, value)`."""
    shadow = value.shadow if value is not None else NONE
    for key, real in zip(elements(interp, keys), keys.real, strict=True):
        key_of(interp, Value(real, key))
    return new_dict(interp, result, dict.fromkeys(keys.real, shadow))


@model(operator.or_, *methods("__or__"), applies=lambda a, b: (type(a) is dict or type(a) is OrderedDict) and is_a(b, dict)
       and merges_natively(b, type(a)))
def union(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a | b`."""
    return new_dict(interp, result, dict(entries(interp, a) + entries(interp, b)))


# -- changes -----------------------------------------------------------------------------------------------------------

def prepare_change(interp: Interpreter, mapping: Value, *args: Value, **named: Value) -> None:
    """Before a change: the keys at entry."""
    interp.graph.dict_prepare(dict_node(mapping))


def prepare_key(interp: Interpreter, mapping: Value, key: Value, *rest: Value) -> None:
    """Before a change of one key: reads its entry, and the keys at entry."""
    prepare_change(interp, mapping)
    look_before(interp, mapping, key)


def prepare_store(interp: Interpreter, mapping: Value, key: Value, value: Value) -> None:
    prepare_change(interp, mapping)
    if not is_changing(interp, key):
        find_key(interp, mapping, key)


@model(operator.setitem, *methods("__setitem__"), prepare=prepare_store, applies=is_keyed)
def setitem(interp: Interpreter, result: None, mapping: Value, key: Value, value: Value) -> Shadow:
    """`mapping[key] = value`."""
    changing = key.shadow if is_changing(interp, key) else None
    interp.graph.dict_set(dict_node(mapping), key.real, value.shadow, changing)
    return NONE


@model(operator.delitem, *methods("__delitem__"), prepare=prepare_key, applies=is_keyed)
def delitem(interp: Interpreter, result: None, mapping: Value, key: Value) -> Shadow:
    """`del mapping[key]`."""
    interp.graph.dict_delete(dict_node(mapping), key.real)
    return NONE


@method_model("setdefault", prepare=prepare_key, applies=is_keyed)
def setdefault(interp: Interpreter, result: Any, mapping: Value, key: Value, default: Value | None = None) -> Shadow:
    """`mapping.setdefault(key, default)`."""
    node = dict_node(mapping)
    found = interp.graph.dict_get(node, key.real)
    if found is not ABSENT:
        return found
    shadow = or_default(ABSENT, default)
    interp.graph.dict_set(node, key.real, shadow)
    return shadow


@method_model("pop", prepare=prepare_key, applies=is_keyed)
def pop(interp: Interpreter, result: Any, mapping: Value, key: Value, default: Value | None = None) -> Shadow:
    """`mapping.pop(key, default)`."""
    node = dict_node(mapping)
    found = interp.graph.dict_get(node, key.real)
    if found is not ABSENT:
        interp.graph.dict_delete(node, key.real)
    return or_default(found, default)


def prepare_keys(interp: Interpreter, mapping: Value, *rest: Value, **named: Value) -> None:
    interp.graph.dict_keys(dict_node(mapping))


@method_model("popitem", prepare=prepare_keys, applies=is_dict)
def popitem(interp: Interpreter, result: tuple[Any, Any], mapping: Value, *last: Value, **named: Value) -> Shadow:
    """`mapping.popitem()`."""
    for value in (*last, *named.values()):
        interp.graph.depend(value.shadow, value.real)
    node = dict_node(mapping)
    key = result[0]
    pair = Build(tuple, (shadow_of(interp, key), interp.graph.dict_get(node, key)))
    if is_python_key(key):
        interp.graph.dict_forget(node, key)
        interp.graph.effect(dict.popitem, node)     # which does not hash it
    else:
        interp.graph.dict_delete(node, key)
    return pair


@model(*methods("clear"), prepare=prepare_keys, applies=is_dict)
def clear(interp: Interpreter, result: None, mapping: Value) -> Shadow:
    """`mapping.clear()`."""
    node = dict_node(mapping)
    keys = interp.graph.dict_keys(node)
    if any(map(is_python_key, keys)):
        for key in keys:
            interp.graph.dict_forget(node, key)
        interp.graph.effect(dict.clear, node)       # which hashes none of them
    else:
        for key in keys:
            interp.graph.dict_delete(node, key)
    return NONE


@method_model("update", prepare=prepare_change, applies=is_update)
@method_model("__init__", prepare=prepare_change, applies=is_update)
def update(interp: Interpreter, result: None, mapping: Value, *others: Value, **named: Value) -> Shadow:
    """`mapping.update(x, **named)`."""
    node = dict_node(mapping)
    for key, shadow in gathered(interp, others, named).items():
        interp.graph.dict_set(node, key, shadow)
    return NONE


@model(defaultdict.__init__, prepare=lambda interp, self, *args, **named: prepare_change(interp, self),
       applies=lambda self, *args, **named: is_construction(*args[1:], **named))
def init_defaultdict(interp: Interpreter, result: None, self: Value, *args: Value, **named: Value) -> Shadow:
    """`defaultdict.__init__` of a subclass."""
    node = dict_node(self)
    node.slots["default_factory"] = args[0].shadow if args else NONE
    return update(interp, result, self, *args[1:], **named)


@model(operator.ior, *methods("__ior__"), prepare=prepare_change, applies=lambda a, b: is_a(a, dict)
       and merges_natively(b, type(a)))
def ior(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a |= b`."""
    update(interp, None, a, b)
    return node_of(a)


@model(OrderedDict.move_to_end, prepare=prepare_keys, applies=is_keyed)
def move_to_end(interp: Interpreter, result: None, mapping: Value, key: Value, last: Value | None = None) -> Shadow:
    """`mapping.move_to_end(key, last)`."""
    find_key(interp, mapping, key)
    if last is not None:
        interp.graph.depend(last.shadow, last.real)
    node = dict_node(mapping)
    items = node.state.items
    moved = {key.real: items.pop(key.real)}
    at_end = last is None or bool(last.real)
    node.state.items = {**items, **moved} if at_end else {**moved, **items}
    interp.graph.effect(OrderedDict.move_to_end, node, Const(key.real), Const(at_end))
    return NONE


@model(operator.eq, operator.ne, *methods("__eq__"), *methods("__ne__"), prepare=look_plain,
       applies=lambda a, b: is_a(a, dict) and compares_plainly(a, b))
def compare(interp: Interpreter, result: Any, a: Value, b: Value) -> Shadow:
    """`a == b` of plain data."""
    return Const(result)


