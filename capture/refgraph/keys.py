"""Keys whose hash or equality is written in Python. Our own tables hold them by identity, and what the dicts and sets of the
program keep of them is written without asking for their hash again: its `__hash__` runs as often as the program makes it run."""
from __future__ import annotations

import enum
import gc
import itertools
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.refgraph.lookup import has, is_mutable, lookup_class
from capture.refgraph.node import SCALARS, Build
from capture.refgraph.source import Computed, Item, Literal, Source
from capture.refgraph.state_queries import holds_reference, key_at, keys_of, referents

# Written in Python, but of no consequence: by identity, by name.
HARMLESS = frozenset({torch.Tensor.__hash__, torch.Tensor.__eq__, enum.Enum.__hash__})
ORDERED_VIEWS = tuple(type(view(OrderedDict())) for view in (OrderedDict.keys, OrderedDict.values, OrderedDict.items))
COMPARED = (tuple, list, frozenset)         # by guards, item by item (`identical.same`)


def is_python_key(key: Any) -> bool:
    """Whether hashing a key, or comparing it with one of the same hash, runs Python code."""
    cls = type(key)
    if cls in SCALARS:
        return False
    if cls is not tuple and cls is not frozenset and (_is_in_python(cls, "__hash__") or _is_in_python(cls, "__eq__")):
        return True
    base: Any = tuple if is_a(key, tuple) else frozenset if is_a(key, frozenset) else None
    return base is not None and any(map(is_python_key, base.__iter__(key)))


def _is_in_python(cls: type, name: str) -> bool:
    method = lookup_class(cls, name)
    if type(method) is not types.FunctionType:
        return is_mutable(type(method))
    return method not in HARMLESS or type(lookup_class(cls, "__getattribute__")) is types.FunctionType      # asked for its name


class Identity:
    """A key of a `KeyTable`, which stands for one object."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return id(self.key)

    def __eq__(self, other: object) -> bool:
        return type(other) is Identity and self.key is other.key


def own(key: Any) -> Any:
    return Identity(key) if is_python_key(key) else key


class KeyTable(dict[Any, Any]):
    """A dict of ours by the keys of a dict or set of the program's, some of which Python code hashes."""

    def __init__(self, items: dict[Any, Any] | Iterator[tuple[Any, Any]] = ()) -> None:  # type: ignore[assignment]
        super().__init__()
        for key, value in items.items() if isinstance(items, dict) else items:
            self[key] = value

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self, own(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        dict.__setitem__(self, own(key), value)

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, own(key))

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, own(key))

    def __iter__(self) -> Iterator[Any]:
        return (key.key if type(key) is Identity else key for key in dict.__iter__(self))

    def get(self, key: Any, default: Any = None) -> Any:
        return dict.get(self, own(key), default)

    def pop(self, key: Any, *default: Any) -> Any:
        return dict.pop(self, own(key), *default)

    def items(self) -> Any:
        return [(key.key if type(key) is Identity else key, value) for key, value in dict.items(self)]

    def keys(self) -> Any:
        return list(self)


def table(keys: Iterable[Any], items: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    """Our own table of what a dict or set of the program's holds, under these keys."""
    return KeyTable(items) if any(map(is_python_key, keys)) else dict(items)


def hash_kept(container: Any, key: Any) -> int:
    """The hash under which a container stores this very key. Raises KeyError if it is not there."""
    for known, number in _C.hashed_keys(container):
        if known is key:
            return number
    raise KeyError("no such key")


def value_at(mapping: Any, index: int) -> Any:
    """The value of the dict's entry of this number. Raises StopIteration if there is none, TypeError for other objects."""
    return next(itertools.islice(dict.values(mapping), index, None))


def asks_keys(x: Any) -> bool:
    """Whether walking over `x` hashes keys in Python: an OrderedDict, and its views, look up each of its keys."""
    if is_a(x, ORDERED_VIEWS):
        x = next(iter(gc.get_referents(x)), None)
    return is_a(x, OrderedDict) and any(map(is_python_key, dict.__iter__(x)))


def held_by(mapping: Any) -> dict[Any, Any]:
    """What a dict of the program's holds, where no key is hashed again."""
    return table(dict.__iter__(mapping), dict.items(mapping))  # type: ignore[arg-type]


def path_of_entry(mapping: Source | None, index: int, key: Any, compared: bool) -> Source:
    """The path to the value that a dict has under a key, which is the one at `index`. The path goes by that number alone if Python
    code may compare the key with others (`compared`), or hashes the object that it refers to."""
    by_number = compared or is_a(key, weakref.ref)
    return Computed(value_at, (mapping, Literal(index))) if by_number else Item(mapping, key)  # type: ignore[arg-type]


def require_keys(graph: Any, source: Source | None, keys: tuple[Any, ...]) -> None:
    """Guards the keys of a dict, or the members of a set, in order. Weak references tell themselves apart by what they refer to."""
    if not any(is_a(key, weakref.ref) for key in keys):
        return graph.hold(source, "KEYS", keys)
    if not all(is_a(key, weakref.ref) for key in keys):
        raise Break("opaque-call", "a container of weak references and other keys is compared")
    graph.require(Computed(referents, (source,)), "VALUE", tuple(key() for key in keys))  # type: ignore[arg-type]
    for index, key in enumerate(keys):
        graph.external(key, Computed(key_at, (source, Literal(index))))  # type: ignore[arg-type]


def note_keys(graph: Any, source: Source | None, keys: tuple[Any, ...]) -> None:
    """Notes where those keys of an outside dict or set are found that its guard compares by what they hold: on a hit equal ones may
    be other objects. Tuples of plain numbers and text have no identity."""
    for index, key in enumerate(keys):
        if is_a(key, COMPARED) and not is_scalar_key(key):
            path = Item(Computed(keys_of, (source,)), index)  # type: ignore[arg-type]
            if (type(key) is tuple or has(type(key), "_fields")) and not any(is_a(part, COMPARED) for part in key):
                parts = tuple(graph.find(part) or graph.constant(part) for part in key)     # guarded already
                graph.note_composite(key, Build(type(key), parts, path))
            else:
                graph.note_composite(key, graph.external(key, path))


def is_scalar_key(key: Any) -> bool:
    """Whether a key is a scalar or a tuple of such."""
    return type(key) in SCALARS or type(key) is tuple and all(map(is_scalar_key, key))


def require_reference(graph: Any, node: Any, key: weakref.ref[Any]) -> tuple[Source, ...] | None:
    """Guards whether an outside dict or set has a weak reference among its keys at entry. Returns the paths to the reference and to
    its object, or None if there is none. A reference to an object that the trace made was not there at entry."""
    target = graph.find(key())
    if target is None:
        raise Break("opaque-call", "a weak reference to an object that is not known was looked up")
    if target.source is None:
        return None
    operands: Any = (node.source, graph.touch(target).source)
    found = holds_reference(node.real, target.real)
    graph.require(Computed(holds_reference, operands), "VALUE", found)
    return operands if found else None


# -- what mock functions do --------------------------------------------------------------------------------------------

def put(container: Any, key: Any, value: Any, number: int) -> None:
    """`container[key] = value`, or `container.add(key)`, of a key with this hash."""
    _C.put(container, key, value, number)


def take_out(container: Any, key: Any, number: int) -> None:
    """Takes a key with this hash out of a dict or set."""
    _C.take_out(container, key, number)
