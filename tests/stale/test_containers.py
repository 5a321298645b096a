"""Lists, dicts and sets outside of the program that change in length, order, keys or type between calls."""
from __future__ import annotations

import collections
import functools
import operator
import types

import pytest

from tests.stale.cases import Table, run

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_a_container_changes(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


# --- lists

def product(x, items):
    for item in items:
        x = x * item
    return x


@CHANGES.add()
def list_grows():
    items = [2.0, 3.0]
    return lambda x: product(x, items), lambda: items.append(5.0), lambda: items.pop()


@CHANGES.add()
def list_is_emptied():
    items = [2.0]
    return lambda x: x * 2 if items else x, lambda: items.clear(), lambda: items.append(2.0)


@CHANGES.add()
def length_of_list_decides():
    items = [2.0]
    return lambda x: x * 2 if len(items) > 1 else x, lambda: items.append(1.0), lambda: items.pop()


@CHANGES.add()
def list_is_reversed():
    items = ["relu", "tanh"]

    def program(x):
        for name in items:
            x = getattr(x, name)()
        return x
    return program, items.reverse, items.reverse


@CHANGES.add(captures=1)
def list_items_are_exchanged_and_only_returned():
    items = [2.0, 3.0]
    return lambda x: (x + 1, items[0], items[1]), items.reverse, items.reverse


@CHANGES.add(captures=1)
def list_grows_beyond_what_is_read():
    items = [2.0, 3.0]
    return lambda x: (x + 1, items[0]), lambda: items.append(5.0), lambda: items.pop()


@CHANGES.add(captures=1)
def list_grows_and_the_last_item_is_read():
    items = [2.0, 3.0]
    return lambda x: (x + 1, items[-1]), lambda: items.append(5.0), lambda: items.pop()


@CHANGES.add()
def list_becomes_a_tuple():
    box = types.SimpleNamespace(items=[1.0])
    before = box.items
    return (lambda x: (x + 1, isinstance(box.items, list)), lambda: setattr(box, "items", (1.0,)),
            lambda: setattr(box, "items", before))


@CHANGES.add(captures=1)
def list_is_replaced_by_an_equal_one():
    box = types.SimpleNamespace(items=[1.0, 2.0])
    return (lambda x: x + sum(box.items), lambda: setattr(box, "items", [1.0, 2.0]),
            lambda: setattr(box, "items", [1.0, 2.0]))


@CHANGES.add()
def membership_in_a_list():
    items = ["a", "b"]
    return lambda x: x + 1 if "c" in items else x, lambda: items.append("c"), lambda: items.remove("c")


@CHANGES.add()
def index_in_a_list():
    items = ["a", "b"]
    return lambda x: x + items.index("b"), items.reverse, items.reverse


@CHANGES.add()
def lists_are_compared():
    first, second = [1, [2, 3]], [1, [2, 3]]
    return lambda x: x + 1 if first == second else x, lambda: first[1].append(4), lambda: first[1].pop()


@CHANGES.add()
def nested_list_grows():
    items = [[1.0], [2.0]]
    return lambda x: sum((product(x, row) for row in items), x), lambda: items[1].append(3.0), lambda: items[1].pop()


@CHANGES.add()
def slice_of_a_list():
    items = [1.0, 2.0, 3.0]
    return lambda x: product(x, items[1:]), lambda: items.append(4.0), lambda: items.pop()


@CHANGES.add()
def list_contains_itself():
    items = [1.0]
    return (lambda x: x + 1 if items[-1] is items else x), lambda: items.append(items), lambda: items.pop()


@CHANGES.add()
def two_names_of_one_list_part():
    box = types.SimpleNamespace(a=[1.0], b=[1.0])
    before = box.b

    def program(x):
        box.a.append(len(box.b))
        del box.a[1:]
        return x + 1 if box.a is box.b else x
    return program, lambda: setattr(box, "b", box.a), lambda: setattr(box, "b", before)


@CHANGES.add()
def written_list_comes_to_be_one_with_a_read_list():
    box = types.SimpleNamespace(a=[1.0], b=[1.0])
    before = box.b

    def program(x):
        box.a[0] = 5.0
        value = box.b[0]
        box.a[0] = 1.0
        return x * value
    return program, lambda: setattr(box, "b", box.a), lambda: setattr(box, "b", before)


# --- dicts

@CHANGES.add()
def dict_gets_a_key():
    items = {"relu": 1}

    def program(x):
        for name in items:
            x = getattr(x, name)()
        return x
    return program, lambda: items.update(tanh=2), lambda: items.pop("tanh")


@CHANGES.add()
def dict_order_changes():
    items = {"relu": 1, "tanh": 2}

    def program(x):
        for name, value in items.items():
            x = getattr(x, name)() + value
        return x

    def swap():
        first = next(iter(items))
        items[first] = items.pop(first)
    return program, swap, swap


@CHANGES.add(captures=1)
def dict_order_changes_and_does_not_matter():
    items = {"a": 1.0, "b": 2.0}

    def swap():
        first = next(iter(items))
        items[first] = items.pop(first)
    return lambda x: (x + 1, items["a"], items["b"]), swap, swap


@CHANGES.add(captures=1)
def dict_gets_a_key_that_does_not_matter():
    items = {"a": 1.0}
    return lambda x: (x + 1, items["a"]), lambda: items.update(b=2), lambda: items.pop("b")


@CHANGES.add()
def absent_key_appears_membership():
    items = {"a": 1.0}
    return lambda x: x + 1 if "b" in items else x, lambda: items.update(b=2), lambda: items.pop("b")


@CHANGES.add()
def absent_key_appears_get():
    items = {"a": 1.0}
    return lambda x: x * items.get("b", 3.0), lambda: items.update(b=2.0), lambda: items.pop("b")


@CHANGES.add()
def absent_key_appears_lookup():
    items = {"a": 1.0}

    def program(x):
        try:
            return x * items["b"]
        except KeyError:
            return x
    return program, lambda: items.update(b=2.0), lambda: items.pop("b")


@CHANGES.add()
def absent_key_appears_in_a_missing_default():
    class Items(dict):
        def __missing__(self, key):
            return 7.0
    items = Items(a=1.0)
    return lambda x: x * items["b"], lambda: items.update(b=2.0), lambda: items.pop("b")


@CHANGES.add()
def absent_key_appears_setdefault():
    items = {}

    def program(x):
        value = items.setdefault("a", 2.0)
        del items["a"]
        return x * value

    def undo():
        items.clear()
    return program, lambda: items.update(a=5.0), undo


@CHANGES.add()
def absent_key_appears_pop():
    items = {}

    def program(x):
        value = items.pop("a", 2.0)
        if value != 2.0:
            items["a"] = value
        return x * value
    return program, lambda: items.update(a=5.0), lambda: items.clear()


@CHANGES.add()
def absent_object_key_appears():
    key, items = object(), {}
    return lambda x: x + 1 if key in items else x, lambda: items.setdefault(key, 1), lambda: items.clear()


@CHANGES.add()
def key_of_equal_value_has_another_type():
    items = {1: "a"}

    def replace(key):
        items.clear()
        items[key] = "a"
    return (lambda x: (x + 1, [type(k).__name__ for k in items])), lambda: replace(True), lambda: replace(1)


@CHANGES.add()
def dict_is_emptied():
    items = {"a": 1}
    return lambda x: x + 1 if items else x, items.clear, lambda: items.update(a=1)


@CHANGES.add()
def length_of_dict_decides():
    items = {"a": 1}
    return lambda x: x + len(items), lambda: items.update(b=1), lambda: items.pop("b")


@CHANGES.add()
def dict_becomes_an_ordered_dict():
    box = types.SimpleNamespace(items={"a": 1.0})
    before = box.items
    return (lambda x: (x + 1, type(box.items) is dict), lambda: setattr(box, "items", collections.OrderedDict(a=1.0)),
            lambda: setattr(box, "items", before))


@CHANGES.add()
def ordered_dict_moves_to_end():
    items = collections.OrderedDict(relu=1, tanh=2)

    def program(x):
        for name in items:
            x = getattr(x, name)()
        return x
    return program, lambda: items.move_to_end("relu"), lambda: items.move_to_end("tanh")


@CHANGES.add()
def dicts_are_compared():
    first, second = {"a": 1}, {"a": 1}
    return lambda x: x + 1 if first == second else x, lambda: second.update(a=2), lambda: second.update(a=1)


@CHANGES.add()
def keyword_arguments_from_a_dict_get_another_name():
    options = {"dim": 0}

    def change():
        options["keepdim"] = True
    return lambda x: x.sum(**options), change, lambda: options.pop("keepdim")


@CHANGES.add()
def default_dict_factory():
    items = collections.defaultdict(lambda: 2.0)

    def program(x):
        value = items["a"]
        del items["a"]
        return x * value
    before = items.default_factory
    return (program, lambda: setattr(items, "default_factory", lambda: 3.0),
            lambda: setattr(items, "default_factory", before))


@CHANGES.add()
def keys_of_two_dicts_are_compared():
    first, second = {"a": 1}, {"a": 1}
    return lambda x: x + 1 if first.keys() == second.keys() else x, lambda: second.update(b=2), lambda: second.pop("b")


@CHANGES.add()
def value_becomes_none():
    items = {"bias": 2.0}
    replace = functools.partial(operator.setitem, items, "bias")
    return lambda x: x if items["bias"] is None else x + 1, lambda: replace(None), lambda: replace(2.0)


# --- sets

@CHANGES.add()
def set_gets_an_element():
    names = {"a"}
    return lambda x: x + 1 if "b" in names else x, lambda: names.add("b"), lambda: names.discard("b")


@CHANGES.add()
def set_loses_an_element():
    names = {"a", "b"}
    return lambda x: x + 1 if "b" in names else x, lambda: names.discard("b"), lambda: names.add("b")


@CHANGES.add()
def set_is_iterated():
    numbers = {1}
    return lambda x: product(x, numbers), lambda: numbers.add(2), lambda: numbers.discard(2)


@CHANGES.add()
def length_of_set_decides():
    numbers = {1}
    return lambda x: x + len(numbers), lambda: numbers.add(2), lambda: numbers.discard(2)


@CHANGES.add()
def set_is_emptied():
    numbers = {1}
    return lambda x: x + 1 if numbers else x, lambda: numbers.clear(), lambda: numbers.add(1)


@CHANGES.add()
def set_of_objects():
    key, members = object(), set()
    return lambda x: x + 1 if key in members else x, lambda: members.add(key), lambda: members.discard(key)


@CHANGES.add()
def intersection_of_sets():
    first, second = {1, 2}, {2}
    return lambda x: x + len(first & second), lambda: second.add(1), lambda: second.discard(1)


@CHANGES.add()
def frozenset_is_replaced():
    box = types.SimpleNamespace(names=frozenset("ab"))
    return (lambda x: x + 1 if "c" in box.names else x, lambda: setattr(box, "names", frozenset("abc")),
            lambda: setattr(box, "names", frozenset("ab")))


# --- deques, ranges and others

@CHANGES.add()
def deque_is_rotated():
    items = collections.deque([1.0, 2.0])
    return lambda x: product(x, items) - items[0], lambda: items.rotate(1), lambda: items.rotate(-1)


@CHANGES.add(captures=None, fullgraph=False)
def bytearray_changes():
    data = bytearray(b"ab")
    replace = functools.partial(operator.setitem, data, 0)
    return lambda x: x + data[0], lambda: replace(9), lambda: replace(ord("a"))


@CHANGES.add()
def range_is_replaced():
    box = types.SimpleNamespace(steps=range(2))
    return (lambda x: sum((x * i for i in box.steps), x), lambda: setattr(box, "steps", range(3)),
            lambda: setattr(box, "steps", range(2)))


@CHANGES.add()
def slice_is_replaced():
    box = types.SimpleNamespace(part=slice(0, 1))
    return lambda x: x[box.part], lambda: setattr(box, "part", slice(0, 2)), lambda: setattr(box, "part", slice(0, 1))
