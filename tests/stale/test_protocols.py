"""What the language asks of classes without a word in the program, and answers otherwise after a change."""
from __future__ import annotations

import collections
import types

import pytest
import torch

import capture
from tests.stale.cases import Table, edits, exchange, run, user_module

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_a_protocol_changes(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


# --- subclasses of builtin containers come to have methods of their own

def gains(name, base, content, method, use):
    """An instance of a fresh subclass of `base`, whose class gets the special method `name`."""
    def make():
        cls = type("Custom", (base,), {})
        box = cls(content)
        return (lambda x: use(x, box)), *edits(cls, name, method)
    make.__name__ = f"{base.__name__}_gains_{name.strip('_')}"
    CHANGES.add()(make)


def total(x, items):
    for item in items:
        x = x + item
    return x


def found_or(items, default):
    try:
        return items["a"]
    except KeyError:
        return default


gains("__iter__", list, [1.0], lambda self: iter([5.0]), total)
gains("__len__", list, [1.0], lambda self: 7, lambda x, box: x * len(box))
gains("__getitem__", list, [1.0], lambda self, index: 7.0, lambda x, box: x * box[0])
gains("__contains__", list, [1.0], lambda self, item: False, lambda x, box: x + 1 if 1.0 in box else x)
gains("__bool__", list, [1.0], lambda self: False, lambda x, box: x + 1 if box else x)
gains("__eq__", list, [1.0], lambda self, other: False, lambda x, box: x + 1 if box == [1.0] else x)
gains("index", list, [1.0], lambda self, item: 7, lambda x, box: x * box.index(1.0))
gains("__getitem__", dict, {"a": 1.0}, lambda self, key: 7.0, lambda x, box: x * box["a"])
gains("__missing__", dict, {"a": 1.0}, lambda self, key: 7.0,
      lambda x, box: x * (box["b"] if hasattr(box, "__missing__") else 2))
gains("__missing__", dict, {"b": 1.0}, lambda self, key: 7.0, lambda x, box: x * found_or(box, 3.0))
gains("__iter__", dict, {1.0: 1.0}, lambda self: iter([5.0]), total)
gains("__contains__", dict, {"a": 1.0}, lambda self, key: False, lambda x, box: x + 1 if "a" in box else x)
gains("items", dict, {"a": 1.0}, lambda self: [("b", 7.0)], lambda x, box: x * [v for _, v in box.items()][0])
gains("keys", dict, {"a": 1.0}, lambda self: ["a", "a"], lambda x, box: x * len(list(box.keys())))
gains("get", dict, {"a": 1.0}, lambda self, key: 7.0, lambda x, box: x * box.get("a"))
gains("__len__", collections.OrderedDict, {"a": 1.0}, lambda self: 7, lambda x, box: x * len(box))
gains("__iter__", tuple, (1.0,), lambda self: iter([5.0]), total)
gains("__getitem__", tuple, (1.0,), lambda self, index: 7.0, lambda x, box: x * box[0])
gains("__contains__", set, {1}, lambda self, item: False, lambda x, box: x + 1 if 1 in box else x)
gains("__add__", int, 1, lambda self, other: 7.0, lambda x, box: x * (box + 1))
gains("__format__", str, "a", lambda self, spec: "bbb", lambda x, box: x * len(f"{box}"))


# --- descriptors

class Field:
    def __get__(self, instance, owner):
        return 3


@CHANGES.add()
def descriptor_becomes_one_with_priority():
    class Descriptor(Field):
        pass

    class Owner:
        factor = Descriptor()
    box = Owner()
    vars(box)["factor"] = 2
    return (lambda x: x * box.factor), *edits(Descriptor, "__set__", lambda self, instance, value: None)


@CHANGES.add()
def class_attribute_becomes_a_descriptor():
    class Plain:
        pass

    class Owner:
        plain = Plain()
    Owner.plain.factor = 2
    box = Owner()

    def get(self, instance, owner):
        return types.SimpleNamespace(factor=3)
    return (lambda x: x * box.plain.factor), *edits(Plain, "__get__", get)


@CHANGES.add()
def getter_of_a_descriptor_is_replaced():
    class Descriptor(Field):
        pass

    class Owner:
        factor = Descriptor()
    box = Owner()
    return (lambda x: x * box.factor), *edits(Descriptor, "__get__", lambda self, instance, owner: 5)


@CHANGES.add()
def slot_is_covered_by_a_property():
    class Slotted:
        __slots__ = ("factor",)
    box = Slotted()
    box.factor = 2
    return (lambda x: x * box.factor), *exchange(Slotted, "factor", property(lambda self: 3))


@CHANGES.add()
def property_that_raised_gets_a_fallback():
    class Owner:
        @property
        def factor(self):
            raise AttributeError("factor")
    box = Owner()
    return (lambda x: x * getattr(box, "factor", 2)), *edits(Owner, "__getattr__", lambda self, name: 3)


@CHANGES.add()
def class_gets_an_initialiser():
    class Owner:
        factor = 2

    def init(self):
        self.factor = 3
    return (lambda x: x * Owner().factor), *edits(Owner, "__init__", init)


@CHANGES.add()
def metaclass_gets_a_call():
    class Meta(type):
        pass

    class Owner(metaclass=Meta):
        factor = 2

    def call(cls):
        return types.SimpleNamespace(factor=3)
    return (lambda x: x * Owner().factor), *edits(Meta, "__call__", call)


@CHANGES.add()
def metaclass_gets_a_property_with_priority():
    class Meta(type):
        pass

    class Owner(metaclass=Meta):
        factor = 2
    return (lambda x: x * Owner.factor), *edits(Meta, "factor", property(lambda cls: 3))


# --- iteration and contexts

@CHANGES.add()
def step_of_an_iterator_is_replaced():
    class Countdown:
        def __init__(self):
            self.left = 2

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            self.left -= 1
            return self.left

    def immediately(self):
        raise StopIteration
    return (lambda x: total(x + 1, Countdown())), *exchange(Countdown, "__next__", immediately)


@CHANGES.add()
def entry_of_a_context_is_replaced():
    class Context:
        def __enter__(self):
            return 2

        def __exit__(self, *exception):
            return None
    context = Context()

    def program(x):
        with context as factor:
            return x * factor
    return program, *exchange(Context, "__enter__", lambda self: 3)


@CHANGES.add()
def exit_of_a_context_comes_to_swallow_exceptions():
    class Context:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return False
    context = Context()

    def program(x):
        try:
            with context:
                raise KeyError(1)
        except KeyError:
            return x + 1
        return x
    return program, *exchange(Context, "__exit__", lambda self, *exception: True)


@CHANGES.add()
def reflected_method_of_a_subclass_takes_priority():
    class Base:
        def __add__(self, other):
            return 2

    class Derived(Base):
        pass
    first, second = Base(), Derived()
    return (lambda x: x * (first + second)), *edits(Derived, "__radd__", lambda self, other: 3)


@CHANGES.add()
def missing_operator_appears():
    class Owner:
        pass
    box = Owner()

    def program(x):
        try:
            return x * (box + 1)
        except TypeError:
            return x
    return program, *edits(Owner, "__add__", lambda self, other: 3)


@CHANGES.add()
def pattern_attributes_of_a_class():
    class Point:
        __match_args__ = ("a",)
        a, b = 2, 3

    def program(x):
        match point:
            case Point(factor):
                return x * factor
    point = Point()
    return program, *exchange(Point, "__match_args__", ("b",))


# --- identity that was established does not establish the type

@CHANGES.add()
def class_of_an_object_known_by_identity():
    class First:
        def apply(self, x):
            return x + 1

    class Second:
        def apply(self, x):
            return x * 5
    item = First()
    box = types.SimpleNamespace(item=item)
    return (lambda x: box.item.apply(x) if box.item is item else x), *exchange(item, "__class__", Second)


@CHANGES.add()
def class_of_a_key():
    class First:
        factor = 2

    class Second:
        factor = 3
    key = First()
    table = {key: 1}
    return (lambda x: x * [k.factor for k in table][0]), *exchange(key, "__class__", Second)


@CHANGES.add()
def classes_in_a_tuple():
    user = user_module("""
        kinds = (int, str)
        def program(x): return x + 1 if isinstance(2.0, kinds) else x
    """)
    return user.program, *exchange(user, "kinds", (int, float))


# --- compiled functions

@CHANGES.add()
def compiled_helper_is_replaced():
    box = user_module("", helper=capture.compile(lambda x: x + 1))
    return (lambda x: box.helper(x)), *exchange(box, "helper", capture.compile(lambda x: x * 5))


@CHANGES.add()
def compiled_method_is_replaced():
    class Owner:
        @capture.compile
        def apply(self, x):
            return x + 1
    box = Owner()
    return (lambda x: box.apply(x)), *exchange(Owner, "apply", capture.compile(lambda self, x: x * 5))


# --- tensors with attributes

@CHANGES.add()
def attribute_of_a_parameter_appears():
    weight = torch.nn.Parameter(torch.ones(3))
    return (lambda x: x + weight * getattr(weight, "factor", 2)), *edits(weight, "factor", 3)


def test_an_attribute_of_a_tensor_shadows_a_method() -> None:
    """Such a tensor is left to eager mode."""
    def make():
        weight = torch.nn.Parameter(torch.ones(3))
        return (lambda x: x + weight.exp()), *edits(weight, "exp", lambda: torch.zeros(3))
    run(make, captures=None, fullgraph=False)
