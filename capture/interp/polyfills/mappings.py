"""Dicts that are filled from Python code, or that call it for missing keys."""
from __future__ import annotations

import collections
import gc
import operator
import types
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import VIEWS, in_python, is_iterable, is_key, is_native_iterable, special_method, type_name
from capture.interp.polyfills import keys
from capture.interp.polyfills.iteration import iterator_of
from capture.refgraph.identical import is_one_of
from capture.refgraph.keys import asks_keys
from capture.refgraph.lookup import MISSING, is_hidden, lookup_class


def is_foreign(x: Any) -> bool:
    """Whether a dict takes the items of `x` by running Python code, or one by one. (Something that is iterated over as a dict is
    read as one, whatever other methods it has.)"""
    if is_a(x, dict) and not is_a(x, collections.OrderedDict):
        return in_python(x, "__iter__")
    return is_foreign_to_ordered(x) or asks_keys(x)


def is_foreign_to_ordered(x: Any) -> bool:
    """The same of an OrderedDict, which asks dicts for keys and items."""
    if is_a(x, dict):
        return in_python(x, "__iter__") or in_python(x, "keys") or in_python(x, "__getitem__")
    return lookup_class(type(x), "keys") is not None or is_iterable(x) and not is_native_iterable(x)


def listed_keys(mapping: Any) -> list[Any]:
    """The keys of a mapping, which a dict lists before it takes any item."""
    found = mapping.keys()
    return list(iterator_of(found, f"{type_name(mapping)}.keys() returned a non-iterable (type {type_name(found)})"))


def is_construction(*others: Any, **named: Any) -> bool:
    return len(others) == 1 and is_foreign(others[0])


@polyfill(dict, applies=is_construction)
def dict_(other: Any, /, **named: Any) -> Any:
    """`dict(other, **named)`."""
    result: dict[Any, Any] = {}
    update(result, other)
    result.update(named)
    return result


@polyfill(collections.OrderedDict, applies=lambda *others, **named: len(others) == 1 and is_foreign_to_ordered(others[0]))
def ordered_dict(other: Any, /, **named: Any) -> Any:
    """`OrderedDict(other, **named)`."""
    result: Any = collections.OrderedDict()
    take(result, other)
    result.update(named)
    return result


@polyfill(dict.update, dict.__init__, applies=lambda self, *others, **named: len(others) == 1 and is_foreign(others[0]))
def update(self: Any, other: Any, /, **named: Any) -> None:
    """`dict.update(self, other, **named)`."""
    for key, value in items_of(other, dict_pair, listed_keys):
        dict.__setitem__(self, key, value)
    dict.update(self, named)


def merge_dict(target: dict[str, Any], other: dict[str, Any]) -> None:
    """Keyword arguments `**other` beside those in `target`. Raises KeyError with a name that is in both."""
    for name in target:
        if dict.__contains__(other, name):
            raise KeyError(name)
    dict.update(target, other)


def merge_foreign(target: dict[str, Any], other: Any) -> None:
    """The same of a mapping with methods of its own. Raises AttributeError for what is no mapping."""
    for name in listed_keys(other):
        if name in target:
            raise KeyError(name)
        target[name] = other[name]


def has_python_items(self: Any) -> bool:
    return in_python(self, "__setitem__") or in_python(self, "__getitem__")


@polyfill(collections.OrderedDict.update, collections.OrderedDict.__init__,
          applies=lambda self, *others, **named: len(others) <= 1
          and (any(map(is_foreign_to_ordered, others)) or has_python_items(self)))
def update_ordered(self: Any, /, *others: Any, **named: Any) -> None:
    """`OrderedDict.update(self, other, **named)`, which goes through the item methods."""
    for other in others:
        take(self, other)
    for key in named:
        self[key] = named[key]


def take(self: Any, other: Any) -> None:
    """`self[key] = value` for all that `other` has."""
    for key, value in items_of(other, ordered_pair, walked_keys):
        self[key] = value


def walked_keys(mapping: Any) -> Any:
    """The keys of a mapping, which an OrderedDict takes one by one."""
    return mapping.keys()


def items_of(other: Any, pair_of: Any, keys_of: Any) -> Any:
    """Keys and values of a mapping, or the pairs of an iterable; `pair_of` reads the pair at a place, `keys_of` the keys."""
    if hasattr(other, "keys"):
        for key in keys_of(other):
            yield key, other[key]
    else:
        i = 0
        for pair in other:
            yield pair_of(pair, i)
            i += 1


def dict_pair(pair: Any, i: int) -> Any:
    """Key and value, as a dict reads them."""
    parts: Any
    try:
        parts = list(pair)
    except TypeError:
        parts = MISSING
    if parts is MISSING:
        raise TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence")
    if len(parts) != 2:
        raise ValueError(f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required")
    return parts[0], parts[1]


def ordered_pair(pair: Any, i: int) -> Any:
    """Key and value, as an OrderedDict reads them."""
    parts = []
    for part in pair:
        if len(parts) == 2:
            raise ValueError("too many values to unpack (expected 2)")
        parts.append(part)
    if len(parts) < 2:
        raise ValueError(f"need more than {len(parts)} value{'' if parts else 's'} to unpack")
    return parts[0], parts[1]


@polyfill(dict.fromkeys, applies=lambda iterable, *value: is_iterable(iterable) and not is_native_iterable(iterable))
def fromkeys(iterable: Any, value: Any = None) -> Any:
    """`dict.fromkeys(iterable, value)`."""
    result = {}
    for key in iterable:
        result[key] = value
    return result


@polyfill(dict.__dict__["fromkeys"], applies=lambda cls, iterable, value=None, /: cls is not dict and issubclass(cls, dict))
def fromkeys_of(cls: Any, iterable: Any, value: Any = None, /) -> Any:
    """`cls.fromkeys(iterable, value)` of a subclass of dict."""
    result = cls()
    for key in iterable:
        result[key] = value
    return result


# -- missing keys ------------------------------------------------------------------------------------------------------

def lacks(self: Any, key: Any) -> bool:
    """Whether looking up `key` asks `__missing__`."""
    return is_a(self, dict) and is_key(key) and not dict.__contains__(self, key)


@polyfill(operator.getitem, dict.__getitem__, applies=lambda self, key: lacks(self, key)
          and in_python(self, "__missing__"))
def getitem_or_missing(self: Any, key: Any) -> Any:
    """`self[key]` where the class has a `__missing__`."""
    if dict.__contains__(self, key):
        return dict.get(self, key)
    return special_method(self, "__missing__")(key)


@polyfill(operator.getitem, dict.__getitem__, collections.defaultdict.__missing__,
          applies=lambda self, key: lacks(self, key)
          and lookup_class(type(self), "__missing__") is collections.defaultdict.__missing__
          and not is_hidden(type(self), "default_factory"))
def getitem_or_default(self: Any, key: Any) -> Any:
    """`self[key]` of a defaultdict."""
    if dict.__contains__(self, key):
        return dict.get(self, key)
    factory = self.default_factory
    if factory is None:
        raise KeyError(key)
    value = factory()
    self[key] = value
    return value


@polyfill(collections._count_elements, applies=lambda mapping, iterable: True)  # type: ignore[attr-defined]
def count_elements(mapping: Any, iterable: Any) -> None:
    """What `Counter` counts with. A dict with the methods of C is looked up, and stored to, by one hash."""
    iterator = iter(iterable)
    by_hash = is_a(mapping, dict) and lookup_class(type(mapping), "get") is dict.get
    by_hash = by_hash and lookup_class(type(mapping), "__setitem__") is dict.__setitem__
    get: Any = dict.get if by_hash else mapping.get
    for item in iterator:
        if not by_hash:
            mapping[item] = get(item, 0) + 1
        elif keys.is_by_python(mapping, item):
            number = keys.hash_of(item)
            known = keys.find(mapping, item, number)
            count = 1 if known is MISSING else keys.stored(mapping, known) + 1
            known = keys.find(mapping, item, number)
            keys.store(mapping, item if known is MISSING else known, count, number)
        else:
            dict.__setitem__(mapping, item, get(mapping, item, 0) + 1)


# -- mapping proxies ---------------------------------------------------------------------------------------------------

def proxied(shown: Any) -> Any:
    """The mapping behind a mapping proxy or a view, which Python code cannot ask for."""
    return next(iter(gc.get_referents(shown)), None)


def mapping_of(shown: Any) -> Any:
    """The dict behind a mapping proxy or a view, to read. A model gives its shadow."""
    return proxied(shown)


def is_proxy(x: Any, *rest: Any) -> bool:
    return type(x) is types.MappingProxyType and is_one_of(type(proxied(x)), dict, collections.OrderedDict)


@polyfill(len, types.MappingProxyType.__len__, applies=is_proxy)
def proxy_len(x: Any) -> int:
    """`len(proxy)`."""
    return len(mapping_of(x))


@polyfill(iter, types.MappingProxyType.__iter__, applies=lambda x, *rest: not rest and is_proxy(x))
def proxy_iter(x: Any) -> Any:
    """`iter(proxy)`."""
    return iter(mapping_of(x))


@polyfill(types.MappingProxyType.keys, applies=is_proxy)
def proxy_keys(x: Any) -> Any:
    """`proxy.keys()`."""
    return mapping_of(x).keys()


@polyfill(types.MappingProxyType.values, applies=is_proxy)
def proxy_values(x: Any) -> Any:
    """`proxy.values()`."""
    return mapping_of(x).values()


@polyfill(types.MappingProxyType.items, applies=is_proxy)
def proxy_items(x: Any) -> Any:
    """`proxy.items()`."""
    return mapping_of(x).items()


@polyfill(operator.or_, applies=lambda a, b: is_proxy(a) or is_proxy(b))
def proxy_union(a: Any, b: Any) -> Any:
    """`proxy | other`, `other | proxy`."""
    left = mapping_of(a) if is_a(a, types.MappingProxyType) else a
    return left | (mapping_of(b) if is_a(b, types.MappingProxyType) else b)


@polyfill(types.MappingProxyType.copy, applies=is_proxy)
@polyfill(dict, applies=lambda *args, **named: len(args) == 1 and not named and is_proxy(args[0]))
def proxy_copy(x: Any) -> Any:
    """`proxy.copy()`, `dict(proxy)`."""
    return mapping_of(x).copy()


# -- views -------------------------------------------------------------------------------------------------------------

KEYS, ITEMS = ((VIEWS[0], VIEWS[3]), (VIEWS[2], VIEWS[5]))
SHOWN = (*KEYS, *ITEMS)         # as sets
SETS = (set, frozenset)


def is_view_algebra(a: Any, b: Any) -> bool:
    """Whether an operator on a view of keys or items is one on sets of what it shows."""
    return (is_a(a, SHOWN) or is_a(b, SHOWN)) and all(is_a(x, (*SHOWN, *SETS)) or x is b and is_iterable(b) for x in (a, b))


def is_view_comparison(a: Any, b: Any) -> bool:
    return is_view_algebra(a, b) and all(is_a(x, (*SHOWN, *SETS)) for x in (a, b))


def members_of(x: Any) -> set[Any]:
    """A set of what a view shows; of a dict's keys, with a table that is large enough from the first."""
    mapping = mapping_of(x) if is_a(x, KEYS) else None
    return set(mapping) if type(mapping) is dict else set(x)


@polyfill(operator.or_, applies=is_view_algebra)
def union(a: Any, b: Any) -> Any:
    """`view | other`."""
    result = members_of(a)
    result.update(b)
    return result


@polyfill(operator.sub, applies=is_view_algebra)
def difference(a: Any, b: Any) -> Any:
    """`view - other`."""
    result = members_of(a)
    result.difference_update(b)
    return result


@polyfill(operator.and_, applies=is_view_algebra)
def intersection(a: Any, b: Any) -> Any:
    """`view & other`: what one shows is looked up in the other, and no more of it is hashed than C would."""
    view, other = (a, b) if is_a(a, SHOWN) else (b, a)
    result: set[Any] = set()
    if type(other) is set and len(view) <= len(other):
        for item in view:
            keys.add_common(result, other, item)
        return result
    if is_a(other, SHOWN) and len(other) > len(view):
        view, other = other, view
    for item in other:
        if item in view:
            result.add(item)
    return result


@polyfill(operator.xor, applies=is_view_algebra)
def symmetric_difference(a: Any, b: Any) -> Any:
    """`view ^ other`. Of two views of items, what both show is compared and not hashed."""
    if not (is_a(a, ITEMS) and is_a(b, ITEMS)):
        result = members_of(a)
        result.symmetric_difference_update(b)
        return result
    small, large = (a, b) if len(b) > len(a) else (b, a)
    left, result = dict(mapping_of(large)), set()
    for key, value in small:
        if (key, value) in left.items():
            del left[key]
        else:
            result.add((key, value))
    for item in left.items():
        result.add(item)
    return result


@polyfill(operator.eq, applies=is_view_comparison)
def equal(a: Any, b: Any) -> bool:
    """`view == other`."""
    view, other = (a, b) if is_a(a, SHOWN) else (b, a)
    return len(a) == len(b) and contains_all(other, view)


@polyfill(operator.ne, applies=is_view_comparison)
def unequal(a: Any, b: Any) -> bool:
    """`view != other`."""
    return not equal(a, b)


@polyfill(operator.le, applies=is_view_comparison)
def is_subset(a: Any, b: Any) -> bool:
    """`view <= other`."""
    return len(a) <= len(b) and contains_all(b, a)


@polyfill(operator.lt, applies=is_view_comparison)
def is_proper_subset(a: Any, b: Any) -> bool:
    """`view < other`."""
    return len(a) < len(b) and contains_all(b, a)


@polyfill(operator.ge, applies=is_view_comparison)
def is_superset(a: Any, b: Any) -> bool:
    """`view >= other`."""
    return is_subset(b, a)


@polyfill(operator.gt, applies=is_view_comparison)
def is_proper_superset(a: Any, b: Any) -> bool:
    """`view > other`."""
    return is_proper_subset(b, a)


def contains_all(other: Any, view: Any) -> bool:
    """Whether all that `view` shows is in `other`."""
    for item in view:
        if item not in other:
            return False
    return True


@polyfill(*(cls.isdisjoint for cls in (*KEYS, *ITEMS)), applies=lambda view, other: True)
def isdisjoint(self: Any, other: Any) -> bool:
    """`view.isdisjoint(other)`."""
    for item in other:
        if item in self:
            return False
    return True


@polyfill(operator.contains, *(cls.__contains__ for cls in KEYS),
          applies=lambda view, key: is_a(view, KEYS) and keys.is_by_python(proxied(view), key))
def contains_key(self: Any, key: Any) -> bool:
    """`key in mapping.keys()`."""
    return dict.__contains__(mapping_of(self), key)


@polyfill(operator.contains, *(cls.__contains__ for cls in ITEMS), applies=lambda view, pair: is_a(view, ITEMS))
def contains_item(self: Any, pair: Any) -> bool:
    """`pair in mapping.items()`."""
    if not is_a(pair, tuple) or len(pair) != 2:
        return False
    key, value = pair
    found = dict.get(mapping_of(self), key, MISSING)
    return found is not MISSING and (found is value or bool(found == value))


@polyfill(operator.contains, applies=lambda view, value: is_a(view, (VIEWS[1], VIEWS[4])))
def contains_value(self: Any, value: Any) -> bool:
    """`value in mapping.values()`."""
    for item in self:
        if item is value or item == value:
            return True
    return False
