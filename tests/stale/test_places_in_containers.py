"""A number that is kept in a container, or computed from outside values, and changed there between calls."""
from __future__ import annotations

import collections
import functools
import operator
import types
import weakref

import pytest

from tests.stale.places import Box, attribute_of, changing, computes, decides, place, returns

EXACT: list = []    # reading is plain: a value that is only passed along costs no second capture
DERIVED: list = []  # the value is found by a computation: it may cost one
OPAQUE: list = []   # C code reads it: a break is allowed, a wrong result is not
USES = [decides, computes, returns]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", EXACT)
def test_a_number_contained(place, use) -> None:
    assert changing(place, use) in {"decides": (2,), "computes": (1, 2), "returns": (1,)}[use.__name__]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", DERIVED)
def test_a_number_computed(place, use) -> None:
    assert changing(place, use) in {"decides": (2,), "computes": (1, 2), "returns": (1, 2)}[use.__name__]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", OPAQUE)
def test_a_number_in_a_native_container(place, use) -> None:
    changing(place, use, fullgraph=False)


@place(EXACT)
def list_item():
    items = [0.0, 0.0]
    return lambda: items[1], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_item_from_the_end():
    items = [0.0, 0.0]
    return lambda: items[-1], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_unpacked():
    items = [0.0, 0.0]

    def read():
        first, *rest = items
        return rest[0]
    return read, functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_copied():
    items = [0.0, 0.0]
    return lambda: list(items)[1], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_sliced():
    items = [0.0, 0.0, 0.0]
    return lambda: items[1:][0], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_subclass_item():
    class Items(list):
        pass
    items = Items([0.0, 0.0])
    return lambda: items[1], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_iterated():
    items = [0.0, 0.0]

    def read():
        for item in items:
            last = item
        return last
    return read, functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_zipped_and_enumerated():
    items = [0.0, 0.0]

    def read():
        for index, (item, _) in enumerate(zip(items, "ab")):
            if index == 1:
                return item
    return read, functools.partial(operator.setitem, items, 1)


@place(EXACT)
def list_as_star_arguments():
    items = [0.0, 0.0]
    return lambda: (lambda a, b: b)(*items), functools.partial(operator.setitem, items, 1)


@place(EXACT)
def tuple_item():
    box = Box()

    def write(value):
        box.pair = 1.0, value
    return lambda: box.pair[1], write


@place(EXACT)
def named_tuple_field():
    Pair = collections.namedtuple("Pair", "a b")
    box = Box()

    def write(value):
        box.pair = Pair(1.0, value)
    return lambda: box.pair.b, write


@place(DERIVED)
def deque_item():
    items = collections.deque([0.0, 0.0])
    return lambda: items[1], functools.partial(operator.setitem, items, 1)


@place(EXACT)
def dict_value():
    items = {"value": 0.0}
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_value_by_number():
    items = {3: 0.0}
    return lambda: items[3], functools.partial(operator.setitem, items, 3)


@place(EXACT)
def dict_value_by_object():
    key = Box()
    items = {key: 0.0}
    return lambda: items[key], functools.partial(operator.setitem, items, key)


@place(EXACT)
def dict_get():
    items = {"value": 0.0}
    return lambda: items.get("value", 3.0), functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_items_iterated():
    items = {"a": 1.0, "value": 0.0}

    def read():
        for key, value in items.items():
            if key == "value":
                return value
    return read, functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_values_listed():
    items = {"a": 1.0, "value": 0.0}
    return lambda: list(items.values())[1], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_as_keyword_arguments():
    items = {"value": 0.0}
    return lambda: (lambda value: value)(**items), functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_merged():
    items = {"value": 0.0}
    return lambda: {"a": 1, **items}["value"], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def ordered_dict_value():
    items = collections.OrderedDict(value=0.0)
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def default_dict_value():
    items = collections.defaultdict(float, value=0.0)
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_subclass_value():
    class Items(dict):
        pass
    items = Items(value=0.0)
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(EXACT)
def dict_with_missing():
    class Items(dict):
        def __missing__(self, key):
            return self.fallback
    items = Items()
    return lambda: items["value"], attribute_of(items, "fallback")


@place(DERIVED)
def counter():
    items = collections.Counter()
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(DERIVED)
def user_dict():
    items = collections.UserDict(value=0.0)
    return lambda: items["value"], functools.partial(operator.setitem, items, "value")


@place(DERIVED)
def chain_map():
    inner = {"value": 0.0}
    items = collections.ChainMap({"a": 1}, inner)
    return lambda: items["value"], functools.partial(operator.setitem, inner, "value")


@place(OPAQUE)
def mapping_proxy():
    inner = {"value": 0.0}
    items = types.MappingProxyType(inner)
    return lambda: items["value"], functools.partial(operator.setitem, inner, "value")


@place(DERIVED)
def set_element():
    items = {0.0}

    def write(value):
        items.clear()
        items.add(value)
    return lambda: [*items][0], write


@place(DERIVED)
def sum_of_a_list():
    items = [0.0, 0.0]
    return lambda: sum(items), functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def maximum_of_a_list():
    items = [0.0, 0.0]
    return lambda: max(items), functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def sorted_list():
    items = [-1.0, 0.0]
    return lambda: sorted(items)[1], functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def arithmetic():
    box = Box()
    return lambda: -(box.value * 2 + 1) / -2.5, attribute_of(box)


@place(DERIVED)
def text():
    box = Box()
    return lambda: float(f"{box.value:.3f}"), attribute_of(box)


@place(DERIVED)
def length():
    items = []

    def write(value):
        items[:] = [0] * int(value)
    return lambda: len(items), write


@place(DERIVED)
def mapped_and_filtered():
    items = [0.0, 0.0]
    return lambda: [*map(lambda v: v, filter(None, items))][0], functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def comprehension():
    items = [0.0, 0.0]
    return lambda: {k: v for k, v in enumerate(items)}[1], functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def reduced():
    items = [0.0, 0.0]
    return lambda: functools.reduce(lambda a, b: a + b, items), functools.partial(operator.setitem, items, 1)


@place(DERIVED)
def weak_reference():
    box = Box()
    reference = weakref.ref(box)
    return lambda: reference().value, attribute_of(box)


@place(DERIVED)
def attrgetter():
    box = Box()
    read = operator.attrgetter("value")
    return lambda: read(box), attribute_of(box)
