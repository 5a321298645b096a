"""Keys of dicts and members of sets whose hash or equality is written in Python: the look-up written out, so that what it reads of
them is known. The dict itself is then asked for the very key that was found."""
from __future__ import annotations

import collections
import operator
import weakref
from typing import Any

from capture import _C
from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import are_keys, in_python, is_key, special_method
from capture.interp.polyfills.iteration import same_entries
from capture.refgraph.keys import asks_keys, hash_kept, is_python_key
from capture.refgraph.lookup import MISSING, is_hidden, lookup_class

# -- done by C, and modelled -------------------------------------------------------------------------------------------

def candidates(container: Any, number: int) -> list[Any]:
    """The keys of a dict, or members of a set, that have this hash, in the order in which C compares them."""
    return _C.candidates(container, number)


def keeps(container: Any, key: Any, number: int) -> bool:
    """Whether this very key is still among those with this hash."""
    return any(known is key for known in _C.candidates(container, number))


def kept_hash(container: Any, key: Any) -> int:
    """The hash under which a dict or set keeps this very key."""
    return hash_kept(container, key)


def stored(mapping: Any, key: Any) -> Any:
    """What is under a key that is there."""
    return next(value for known, value in dict.items(mapping) if known is key)


def store(container: Any, key: Any, value: Any, number: int) -> None:
    """Puts a value under a key, or adds a member, that is there or equals none."""
    _C.put(container, key, value, number)


def roomy_set(number: int) -> set[Any]:
    """A new set with the table that C gives it before it takes up a dict of this length."""
    result: set[Any] = set()
    size = len(_C.set_layout(result))
    if number * 5 >= (size - 1) * 3:
        while size <= number * 2:
            size *= 2
        _C.lay_set(result, (), (), bytes(size), 0, ())
    return result


def drop(container: Any, key: Any, number: int) -> None:
    """Takes a key or member out that is there."""
    _C.take_out(container, key, number)


class Hashed:
    """Has the hash of a part of a tuple."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number


def hash_of_parts(numbers: list[int]) -> int:
    """The hash of a tuple whose parts have these."""
    return hash(tuple(map(Hashed, numbers)))


# -- looking up --------------------------------------------------------------------------------------------------------

def hash_of(key: Any) -> int:
    """`hash(key)`."""
    if type(key) is not tuple:
        return hash(key)
    numbers = []
    for part in key:
        numbers.append(hash_of(part))
    return hash_of_parts(numbers)


def find(container: Any, key: Any, number: int, adding: bool = False) -> Any:
    """The key of a container that equals `key`, which has this hash; or MISSING. As in C, the search begins again if a comparison
    removes the key that it compares. adding: to a set; a member that was found equal is not added then, whether or not it is still
    there."""
    while True:
        for known in candidates(container, number):
            if known is key:
                return known
            equal = True if known == key else False
            if not (equal and adding or keeps(container, known, number)):
                break
            if equal:
                return known
        else:
            return MISSING


def is_by_python(mapping: Any, key: Any) -> bool:
    """Whether looking up `key` in a dict may run Python code, its own or that of a key with its hash, or fails. (Of weak references
    it is asked elsewhere.)"""
    if is_a(key, weakref.ref):
        return False
    return not is_key(key) or (not is_python_key(key) and not all(map(is_key, _C.candidates(mapping, hash(key)))))


def is_dict_by_python(mapping: Any, key: Any, *rest: Any) -> bool:
    return is_a(mapping, dict) and not is_a(mapping, collections.OrderedDict) and is_by_python(mapping, key)


def is_set_by_python(members: Any, key: Any) -> bool:
    return is_a(members, (set, frozenset)) and not is_a(key, weakref.ref) and not (is_key(key) and are_keys(members))


def is_set_by_set(members: Any, key: Any) -> bool:
    """Whether a set is looked up in a set. A set has no hash: an equal frozenset is looked up instead."""
    return is_a(members, (set, frozenset)) and is_a(key, set) and lookup_class(type(key), "__hash__") is None


@polyfill(operator.contains, set.__contains__, frozenset.__contains__, applies=is_set_by_set)
def contains_set(self: Any, key: Any) -> bool:
    """`key in self`."""
    return (set if is_a(self, set) else frozenset).__contains__(self, frozenset(key))


@polyfill(set.discard, applies=is_set_by_set)
def discard_set(self: Any, key: Any) -> None:
    """`self.discard(key)`."""
    set.discard(self, frozenset(key))


@polyfill(set.remove, applies=is_set_by_set)
def remove_set(self: Any, key: Any) -> None:
    """`self.remove(key)`."""
    number = set.__len__(self)
    set.discard(self, frozenset(key))
    if set.__len__(self) == number:
        raise KeyError(key)


def are_dicts_by_python(a: Any, b: Any) -> bool:
    return is_a(a, dict) and is_a(b, dict) and not (are_keys(a) and are_keys(b)) and not asks_keys(a) and not asks_keys(b)


def found_by_python(self: Any, other: Any, key: Any) -> Any:
    """What a dict has under a key of another one, or MISSING: the key is not hashed again."""
    known = find(other, key, kept_hash(self, key))
    return MISSING if known is MISSING else stored(other, known)


@polyfill(operator.eq, dict.__eq__, applies=are_dicts_by_python)
def equal(self: Any, other: Any) -> bool:
    """`self == other` of dicts."""
    return same_entries(self, other, found_by_python)


@polyfill(operator.ne, dict.__ne__, applies=are_dicts_by_python)
def unequal(self: Any, other: Any) -> bool:
    """`self != other` of dicts."""
    return not dict.__eq__(self, other)


@polyfill(operator.getitem, dict.__getitem__, applies=lambda mapping, key: is_dict_by_python(mapping, key) and not (
    is_a(mapping, collections.defaultdict) and is_hidden(type(mapping), "default_factory")))
def getitem(self: Any, key: Any) -> Any:
    """`self[key]`."""
    known = find(self, key, hash_of(key))
    if known is not MISSING:
        return stored(self, known)
    if is_a(self, collections.defaultdict):
        factory = self.default_factory
        if factory is not None:
            value = factory()
            self[key] = value
            return value
    elif in_python(self, "__missing__"):
        return special_method(self, "__missing__")(key)
    raise KeyError(key)


@polyfill(operator.setitem, dict.__setitem__, applies=is_dict_by_python)
def setitem(self: Any, key: Any, value: Any) -> None:
    """`self[key] = value`."""
    number = hash_of(key)
    known = find(self, key, number)
    store(self, key if known is MISSING else known, value, number)


@polyfill(operator.delitem, dict.__delitem__, applies=is_dict_by_python)
@polyfill(set.remove, applies=is_set_by_python)
def remove(self: Any, key: Any) -> None:
    """`del self[key]`, `self.remove(key)`."""
    number = hash_of(key)
    known = find(self, key, number)
    if known is MISSING:
        raise KeyError(key)
    drop(self, known, number)


@polyfill(operator.contains, dict.__contains__, applies=is_dict_by_python)
@polyfill(operator.contains, set.__contains__, frozenset.__contains__, applies=is_set_by_python)
def contains(self: Any, key: Any) -> bool:
    """`key in self`."""
    return find(self, key, hash_of(key)) is not MISSING


@polyfill(dict.get, applies=is_dict_by_python)
def get(self: Any, key: Any, default: Any = None) -> Any:
    """`self.get(key, default)`."""
    known = find(self, key, hash_of(key))
    return default if known is MISSING else stored(self, known)


@polyfill(dict.setdefault, applies=is_dict_by_python)
def setdefault(self: Any, key: Any, default: Any = None) -> Any:
    """`self.setdefault(key, default)`."""
    number = hash_of(key)
    known = find(self, key, number)
    if known is not MISSING:
        return stored(self, known)
    store(self, key, default, number)
    return default


@polyfill(dict.pop, applies=is_dict_by_python)
def pop(self: Any, key: Any, default: Any = MISSING) -> Any:
    """`self.pop(key, default)`."""
    number = hash_of(key)
    known = find(self, key, number)
    if known is MISSING:
        if default is MISSING:
            raise KeyError(key)
        return default
    value = stored(self, known)
    drop(self, known, number)
    return value


@polyfill(set.add, applies=is_set_by_python)
def add(self: Any, key: Any) -> None:
    """`self.add(key)`."""
    number = hash_of(key)
    if find(self, key, number, adding=True) is MISSING:
        store(self, key, None, number)


def add_common(self: Any, members: Any, key: Any) -> None:
    """Adds `key` to a set if it is among these members, and hashes it once, as `members.intersection([key])` does."""
    if not is_by_python(members, key):
        if key in members:
            self.add(key)
        return
    number = hash_of(key)
    if find(members, key, number) is not MISSING and find(self, key, number, adding=True) is MISSING:
        store(self, key, None, number)


@polyfill(set.discard, applies=is_set_by_python)
def discard(self: Any, key: Any) -> None:
    """`self.discard(key)`."""
    number = hash_of(key)
    known = find(self, key, number)
    if known is not MISSING:
        drop(self, known, number)


# -- written out -------------------------------------------------------------------------------------------------------

def dict_of(keys: Any, values: Any) -> Any:
    """`{key: value, …}`."""
    result: dict[Any, Any] = {}
    for i in range(len(keys)):
        result[keys[i]] = values[i]
    return result


def set_of(members: Any) -> Any:
    """`{member, …}`."""
    result: set[Any] = set()
    for member in members:
        result.add(member)
    return result


def holds_python_keys(x: Any) -> bool:
    """Whether a container's items are to be keys that Python code hashes or compares."""
    return is_a(x, (list, tuple, dict, collections.deque)) and not in_python(x, "__iter__") and not are_keys(x)


@polyfill(set, applies=lambda *args: len(args) == 1 and holds_python_keys(args[0]))
def make_set(members: Any) -> Any:
    """`set(members)`: a dict gives the hashes of its members."""
    if type(members) is not dict:
        return set_of(members)
    result = roomy_set(len(members))
    for member in members:
        number = kept_hash(members, member)
        if find(result, member, number, adding=True) is MISSING:
            store(result, member, None, number)
    return result


def is_pair_by_python(x: Any) -> bool:
    return is_a(x, (list, tuple)) and len(x) == 2 and not is_key(x[0])


def are_pairs_by_python(*args: Any, **named: Any) -> bool:
    return len(args) == 1 and is_a(args[0], (list, tuple)) and any(map(is_pair_by_python, args[0]))


@polyfill(dict, applies=are_pairs_by_python)
def make_dict(pairs: Any, /, **named: Any) -> Any:
    """`dict(pairs, **named)`."""
    result: dict[Any, Any] = {}
    for key, value in pairs:
        result[key] = value
    result.update(named)
    return result
