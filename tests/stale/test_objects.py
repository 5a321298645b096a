"""Instances and classes that change between calls: attributes appear, methods are patched, bases replaced."""
from __future__ import annotations

import abc
import types

import pytest

from tests.stale.cases import Table, edits, exchange, run

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_an_object_or_its_class_changes(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


def double(self, x):
    return x * 2


def triple(self, x):
    return x * 3


def family():
    """A base class, a class and an instance, with one method `apply`."""
    class Base:
        def apply(self, x):
            return x + 1

    class Derived(Base):
        pass
    return Base, Derived, Derived()


# --- attributes that appear and disappear

@CHANGES.add()
def attribute_appears_hasattr():
    _, _, box = family()
    return lambda x: x + 1 if hasattr(box, "flag") else x, lambda: setattr(box, "flag", 1), lambda: delattr(box, "flag")


@CHANGES.add()
def attribute_appears_getattr_default():
    _, _, box = family()
    return lambda x: x * getattr(box, "factor", 2), lambda: setattr(box, "factor", 3), lambda: delattr(box, "factor")


@CHANGES.add()
def attribute_appears_except():
    _, _, box = family()

    def program(x):
        try:
            return x * box.factor
        except AttributeError:
            return x
    return program, lambda: setattr(box, "factor", 3), lambda: delattr(box, "factor")


@CHANGES.add()
def attribute_appears_on_the_class():
    _, cls, box = family()
    return lambda x: x + 1 if hasattr(box, "flag") else x, lambda: setattr(cls, "flag", 1), lambda: delattr(cls, "flag")


@CHANGES.add()
def attribute_appears_on_the_base():
    base, _, box = family()
    return (lambda x: x + 1 if hasattr(box, "flag") else x, lambda: setattr(base, "flag", 1),
            lambda: delattr(base, "flag"))


@CHANGES.add()
def instance_attribute_shadows_the_class():
    _, cls, box = family()
    cls.factor = 2
    return lambda x: x * box.factor, lambda: setattr(box, "factor", 3), lambda: delattr(box, "factor")


@CHANGES.add()
def class_attribute_shadows_the_base():
    base, cls, box = family()
    base.factor = 2
    return lambda x: x * box.factor, lambda: setattr(cls, "factor", 3), lambda: delattr(cls, "factor")


@CHANGES.add(captures=None, fullgraph=False)
def slot_is_emptied():
    class Slotted:
        __slots__ = ("factor",)
    box = Slotted()
    box.factor = 2
    return (lambda x: x + 1 if hasattr(box, "factor") else x, lambda: delattr(box, "factor"),
            lambda: setattr(box, "factor", 2))


@CHANGES.add()
def attribute_becomes_none():
    _, _, box = family()
    box.bias = 1.0
    return (lambda x: x if box.bias is None else x + 1, lambda: setattr(box, "bias", None),
            lambda: setattr(box, "bias", 1.0))


@CHANGES.add()
def instance_dictionary_is_iterated():
    box = types.SimpleNamespace(a=1)
    return lambda x: x + sum(len(k) for k in vars(box)), lambda: setattr(box, "bb", 1), lambda: delattr(box, "bb")


@CHANGES.add()
def instance_dictionary_is_replaced():
    _, _, box = family()
    box.factor = 2
    before = box.__dict__
    return (lambda x: x * box.factor, lambda: setattr(box, "__dict__", {"factor": 3}),
            lambda: setattr(box, "__dict__", before))


@CHANGES.add(captures=1)
def unrelated_attribute_appears():
    _, _, box = family()
    box.factor = 2
    return lambda x: x * box.factor, lambda: setattr(box, "other", 3), lambda: delattr(box, "other")


@CHANGES.add(captures=1)
def unrelated_class_attribute_appears():
    _, cls, box = family()
    return lambda x: box.apply(x), lambda: setattr(cls, "other", 3), lambda: delattr(cls, "other")


# --- methods

@CHANGES.add()
def method_patched_on_the_class():
    _, cls, box = family()
    return lambda x: box.apply(x), lambda: setattr(cls, "apply", double), lambda: delattr(cls, "apply")


@CHANGES.add()
def method_patched_on_the_base():
    base, _, box = family()
    before = base.apply
    return lambda x: box.apply(x), lambda: setattr(base, "apply", double), lambda: setattr(base, "apply", before)


@CHANGES.add()
def method_patched_on_the_instance():
    _, _, box = family()
    return lambda x: box.apply(x), *edits(box, "apply", lambda x: x * 5)


@CHANGES.add()
def bound_method_patched_on_the_instance():
    _, _, box = family()
    return (lambda x: box.apply(x), *edits(box, "apply", types.MethodType(double, box)))


@CHANGES.add()
def method_becomes_static():
    _, cls, box = family()
    return (lambda x: box.apply(x), *edits(cls, "apply", staticmethod(lambda x: x * 5)))


@CHANGES.add()
def method_becomes_a_class_method():
    _, cls, box = family()
    return lambda x: box.apply(x), *edits(cls, "apply", classmethod(double))


@CHANGES.add()
def super_method_patched():
    base, cls, box = family()

    def apply(self, x):
        return super(cls, self).apply(x) * 2
    cls.apply = apply
    before = base.apply
    return lambda x: box.apply(x), lambda: setattr(base, "apply", triple), lambda: setattr(base, "apply", before)


@CHANGES.add()
def property_shadows_the_instance_attribute():
    _, cls, box = family()
    box.factor = 2
    return (lambda x: x * box.factor, *edits(cls, "factor", property(lambda self: 3)))


@CHANGES.add()
def getter_of_a_property_is_replaced():
    _, cls, box = family()
    cls.factor = before = property(lambda self: 2)
    return (lambda x: x * box.factor, lambda: setattr(cls, "factor", property(lambda self: 3)),
            lambda: setattr(cls, "factor", before))


@CHANGES.add()
def code_of_a_method_is_replaced():
    base, _, box = family()
    before = base.apply.__code__
    return (lambda x: box.apply(x), lambda: setattr(base.apply, "__code__", double.__code__),
            lambda: setattr(base.apply, "__code__", before))


@CHANGES.add()
def getattr_is_added():
    _, cls, box = family()
    return (lambda x: x * getattr(box, "factor", 2)), *edits(cls, "__getattr__", lambda self, name: 3)


@CHANGES.add()
def getattr_is_replaced():
    _, cls, box = family()
    cls.__getattr__ = lambda self, name: 2
    return (lambda x: x * box.factor), *exchange(cls, "__getattr__", lambda self, name: 3)


@CHANGES.add()
def getattribute_is_added():
    _, cls, box = family()
    box.factor = 2
    return (lambda x: x * box.factor), *edits(cls, "__getattribute__", lambda self, name: 3)


@CHANGES.add()
def setattr_is_added():
    _, cls, box = family()
    box.factor = 2

    def program(x):
        box.last = 1
        return x * box.factor
    return program, *edits(cls, "__setattr__", lambda self, name, value: object.__setattr__(self, name, value + 1))


def special(name, first, second, use):
    """A class whose special method `name` is `first`, then `second`."""
    def make():
        cls = type("Special", (), {name: first})
        box = cls()
        return lambda x: use(x, box), lambda: setattr(cls, name, second), lambda: setattr(cls, name, first)
    make.__name__ = f"special_method_{name.strip('_')}"
    return make


for case in [
    special("__call__", double, triple, lambda x, box: box(x)),
    special("__mul__", lambda self, x: x * 2, lambda self, x: x * 3, lambda x, box: box * x),
    special("__getitem__", lambda self, key: 2, lambda self, key: 3, lambda x, box: x * box["a"]),
    special("__bool__", lambda self: True, lambda self: False, lambda x, box: x if box else x + 1),
    special("__len__", lambda self: 0, lambda self: 2, lambda x, box: x if box else x + 1),
    special("__eq__", lambda self, other: True, lambda self, other: False, lambda x, box: x if box == 1 else x + 1),
    special("__lt__", lambda self, other: True, lambda self, other: False, lambda x, box: x if box < 1 else x + 1),
    special("__contains__", lambda self, item: True, lambda self, item: False, lambda x, box: x if 1 in box else x + 1),
    special("__iter__", lambda self: iter([1, 2]), lambda self: iter([3]), lambda x, box: sum((x * i for i in box), x)),
    special("__neg__", lambda self: 2, lambda self: 3, lambda x, box: x * -box),
    special("__index__", lambda self: 0, lambda self: 1, lambda x, box: x[[box][0].__index__()]),
    special("__float__", lambda self: 2.0, lambda self: 3.0, lambda x, box: x * float(box)),
    special("__str__", lambda self: "a", lambda self: "bb", lambda x, box: x * len(str(box))),
    special("__format__", lambda self, spec: "a", lambda self, spec: "bb", lambda x, box: x * len(f"{box}")),
    special("__hash__", lambda self: 1, lambda self: 2, lambda x, box: x * hash(box)),
    special("__enter__", lambda self: 2, lambda self: 3, lambda x, box: type(box).__enter__(box) * x),
]:
    CHANGES.add()(case)


@CHANGES.add()
def truth_of_a_plain_object_gets_a_method():
    _, cls, box = family()
    return (lambda x: x if box else x + 1), *edits(cls, "__bool__", lambda self: False)


@CHANGES.add()
def truth_of_a_plain_object_gets_a_length():
    _, cls, box = family()
    return (lambda x: x if box else x + 1), *edits(cls, "__len__", lambda self: 0)


@CHANGES.add()
def equality_of_plain_objects_gets_a_method():
    _, cls, box = family()
    other = cls()
    return (lambda x: x if box == other else x + 1), *edits(cls, "__eq__", lambda self, other: True)


@CHANGES.add()
def reflected_operator_is_replaced():
    _, cls, box = family()
    cls.__rmul__ = lambda self, other: 2
    return (lambda x: x + 5 * box), *exchange(cls, "__rmul__", lambda self, other: 3)


@CHANGES.add()
def constructor_is_patched():
    _, cls, _ = family()
    cls.__init__ = before = lambda self: setattr(self, "factor", 2)
    return (lambda x: x * cls().factor, lambda: setattr(cls, "__init__", lambda self: setattr(self, "factor", 3)),
            lambda: setattr(cls, "__init__", before))


@CHANGES.add()
def new_is_added():
    _, cls, _ = family()

    def new(cls):
        self = object.__new__(cls)
        self.factor = 3
        return self
    cls.factor = 2
    return lambda x: x * cls().factor, lambda: setattr(cls, "__new__", new), lambda: delattr(cls, "__new__")


# --- classes, bases and metaclasses

@CHANGES.add()
def bases_are_replaced():
    base, cls, box = family()

    class Other:
        def apply(self, x):
            return x * 5
    return (lambda x: box.apply(x), lambda: setattr(cls, "__bases__", (Other,)),
            lambda: setattr(cls, "__bases__", (base,)))


@CHANGES.add()
def bases_are_replaced_and_isinstance_decides():
    base, cls, box = family()

    class Other:
        pass
    return (lambda x: x + 1 if isinstance(box, base) else x, lambda: setattr(cls, "__bases__", (Other,)),
            lambda: setattr(cls, "__bases__", (base,)))


@CHANGES.add()
def base_is_inserted_in_the_order():
    base, cls, box = family()

    class Mixin:
        def apply(self, x):
            return x * 5
    return (lambda x: box.apply(x), lambda: setattr(cls, "__bases__", (Mixin, base)),
            lambda: setattr(cls, "__bases__", (base,)))


@CHANGES.add()
def class_of_an_instance_is_replaced():
    base, cls, box = family()

    class Other(base):
        def apply(self, x):
            return x * 5
    return lambda x: box.apply(x), lambda: setattr(box, "__class__", Other), lambda: setattr(box, "__class__", cls)


@CHANGES.add()
def class_of_an_instance_decides():
    base, cls, box = family()
    return (lambda x: x + 1 if type(box) is cls else x, lambda: setattr(box, "__class__", base),
            lambda: setattr(box, "__class__", cls))


@CHANGES.add()
def metaclass_method_is_patched():
    class Meta(type):
        def apply(cls, x):
            return x + 1

    class Owner(metaclass=Meta):
        pass
    before = Meta.apply
    return lambda x: Owner.apply(x), lambda: setattr(Meta, "apply", double), lambda: setattr(Meta, "apply", before)


@CHANGES.add()
def metaclass_attribute_is_shadowed():
    class Meta(type):
        factor = 2

    class Owner(metaclass=Meta):
        pass
    return lambda x: x * Owner.factor, lambda: setattr(Owner, "factor", 3), lambda: delattr(Owner, "factor")


@CHANGES.add()
def instance_check_of_a_metaclass():
    class Meta(type):
        def __instancecheck__(cls, instance):
            return cls.answer

    class Owner(metaclass=Meta):
        answer = True
    return (lambda x: x + 1 if isinstance(3, Owner) else x, lambda: setattr(Owner, "answer", False),
            lambda: setattr(Owner, "answer", True))


@CHANGES.add(captures=None, fullgraph=False)
def abstract_class_gets_a_virtual_subclass():
    class Abstract(abc.ABC):
        pass
    box = type("Plain", (), {})()
    return lambda x: x + 1 if isinstance(box, Abstract) else x, lambda: Abstract.register(type(box)), lambda: None


@CHANGES.add()
def class_in_a_variable_is_replaced():
    base, cls, _ = family()
    box = types.SimpleNamespace(cls=cls)
    cls.factor, base.factor = 2, 3
    return lambda x: x * box.cls().factor, lambda: setattr(box, "cls", base), lambda: setattr(box, "cls", cls)


@CHANGES.add()
def object_in_a_variable_gets_another_class():
    base, cls, first = family()
    cls.factor, base.factor = 2, 3
    box = types.SimpleNamespace(item=first)
    second = base()
    return lambda x: x * box.item.factor, lambda: setattr(box, "item", second), lambda: setattr(box, "item", first)


@CHANGES.add(captures=1)
def object_in_a_variable_is_replaced_by_an_equal_one():
    _, cls, first = family()
    box = types.SimpleNamespace(item=first)
    return lambda x: box.item.apply(x), lambda: setattr(box, "item", cls()), lambda: setattr(box, "item", first)


@CHANGES.add()
def identity_of_an_object_decides():
    _, cls, first = family()
    box = types.SimpleNamespace(item=first)
    second = cls()
    return (lambda x: x + 1 if box.item is first else x, lambda: setattr(box, "item", second),
            lambda: setattr(box, "item", first))


@CHANGES.add()
def key_of_an_object_in_a_dict():
    _, cls, first = family()
    second = cls()
    factors = {first: 2, second: 3}
    box = types.SimpleNamespace(item=first)
    return lambda x: x * factors[box.item], lambda: setattr(box, "item", second), lambda: setattr(box, "item", first)
