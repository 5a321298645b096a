"""A number that is kept in instances, classes, functions and modules, and changed there between calls."""
from __future__ import annotations

import builtins
import contextvars
import dataclasses
import enum
import functools
import itertools
import operator
import sys
import threading
import types
import weakref

import pytest
import torch

from tests.stale.cases import user_module
from tests.stale.places import Box, attribute_of, changing, computes, decides, place, returns

EXACT: list = []    # reading is plain: a value that is only passed along costs no second capture
DERIVED: list = []  # the value is found by a computation: it may cost one
OPAQUE: list = []   # C code reads it: a break is allowed, a wrong result is not
USES = [decides, computes, returns]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", EXACT)
def test_a_number_kept(place, use) -> None:
    assert changing(place, use) in {"decides": (2,), "computes": (1, 2), "returns": (1,)}[use.__name__]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", DERIVED)
def test_a_number_found_by_computation(place, use) -> None:
    assert changing(place, use) in {"decides": (2,), "computes": (1, 2), "returns": (1, 2)}[use.__name__]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", OPAQUE)
def test_a_number_read_by_native_code(place, use) -> None:
    changing(place, use, fullgraph=False)


# --- instances

@place(EXACT)
def attribute():
    box = Box()
    return lambda: box.value, attribute_of(box)


@place(EXACT)
def attribute_of_an_attribute():
    box = Box()
    box.inner = Box()
    return lambda: box.inner.value, attribute_of(box.inner)


@place(EXACT)
def attribute_of_a_replaced_object():
    box = Box()

    def write(value):
        box.inner = types.SimpleNamespace(value=value)
    return lambda: box.inner.value, write


@place(EXACT)
def slot():
    class Slotted:
        __slots__ = ("value",)
    box = Slotted()
    return lambda: box.value, attribute_of(box)


@place(EXACT)
def namespace():
    box = types.SimpleNamespace()
    return lambda: box.value, attribute_of(box)


@place(EXACT)
def dataclass():
    @dataclasses.dataclass
    class Record:
        value: float = 0.0
    record = Record()
    return lambda: record.value, attribute_of(record)


@place(EXACT)
def behind_a_property():
    class Hidden:
        @property
        def value(self):
            return self._value
    box = Hidden()
    return lambda: box.value, attribute_of(box, "_value")


@place(EXACT)
def behind_a_descriptor():
    class Field:
        def __get__(self, instance, owner):
            return instance.hidden

    class Hidden:
        value = Field()
    box = Hidden()
    return lambda: box.value, attribute_of(box, "hidden")


@place(EXACT)
def behind_getattr():
    class Forwarding:
        def __init__(self):
            self.store = {}

        def __getattr__(self, name):
            return self.store[name]
    box = Forwarding()
    return lambda: box.value, functools.partial(operator.setitem, box.store, "value")


@place(EXACT)
def behind_getattribute():
    class Forwarding:
        def __getattribute__(self, name):
            return object.__getattribute__(self, "_" + name)
    box = Forwarding()
    return lambda: box.value, attribute_of(box, "_value")


@place(EXACT)
def getattr_with_default():
    box = Box()
    return lambda: getattr(box, "value", 0.0), attribute_of(box)


@place(EXACT)
def instance_dictionary():
    box = Box()
    return lambda: box.__dict__["value"], attribute_of(box)


@place(EXACT)
def vars_of_an_instance():
    box = Box()
    return lambda: vars(box)["value"], attribute_of(box)


@place(EXACT)
def self_of_a_bound_method():
    class Holder:
        def read(self):
            return self.value
    box = Holder()
    return box.read, attribute_of(box)


@place(EXACT)
def callable_object():
    class Holder:
        def __call__(self):
            return self.value
    box = Holder()
    return box, attribute_of(box)


@place(EXACT)
def subscripted_object():
    class Holder:
        def __getitem__(self, key):
            return self.value
    box = Holder()
    return lambda: box[3], attribute_of(box)


@place(EXACT)
def module_attribute_of_a_network():
    network = torch.nn.Linear(1, 1)
    return lambda: network.value, attribute_of(network)


@place(EXACT)
def attribute_of_a_tensor():
    weight = torch.nn.Parameter(torch.ones(1))
    return lambda: weight.value, attribute_of(weight)


@place(EXACT)
def instance_dictionary_of_a_tensor():
    weight = torch.ones(2)
    return lambda: weight.__dict__["value"], attribute_of(weight)


# --- classes

@place(EXACT)
def class_attribute():
    class Owner:
        pass
    return lambda: Owner.value, attribute_of(Owner)


@place(EXACT)
def class_attribute_through_an_instance():
    class Owner:
        pass
    box = Owner()
    return lambda: box.value, attribute_of(Owner)


@place(EXACT)
def attribute_of_a_base_class():
    class Base:
        pass

    class Derived(Base):
        pass
    box = Derived()
    return lambda: box.value, attribute_of(Base)


@place(EXACT)
def attribute_of_a_base_through_super():
    class Base:
        pass

    class Derived(Base):
        value = 7.0

        def read(self):
            return super().value
    return Derived().read, attribute_of(Base)


@place(EXACT)
def metaclass_attribute():
    class Meta(type):
        pass

    class Owner(metaclass=Meta):
        pass
    return lambda: Owner.value, attribute_of(Meta)


@place(EXACT)
def metaclass_property():
    class Meta(type):
        @property
        def value(cls):
            return cls.hidden

    class Owner(metaclass=Meta):
        pass
    return lambda: Owner.value, attribute_of(Owner, "hidden")


@place(EXACT)
def classmethod_reads_its_class():
    class Owner:
        @classmethod
        def read(cls):
            return cls.value
    return Owner.read, attribute_of(Owner)


@place(EXACT)
def class_of_an_instance():
    class Owner:
        pass
    box = Owner()
    return lambda: type(box).value, attribute_of(Owner)


@place(DERIVED)
def enum_member_attribute():
    class Level(enum.Enum):
        HIGH = 1
    return lambda: Level.HIGH.weight, attribute_of(Level.HIGH, "weight")


# --- functions and modules

@place(EXACT)
def global_variable():
    user = user_module("def read(): return value")
    return user.read, functools.partial(operator.setitem, vars(user), "value")


@place(EXACT)
def attribute_of_a_module():
    user = user_module("")
    return lambda: user.value, attribute_of(user)


@place(EXACT)
def attribute_of_an_imported_module():
    sys.modules["capture_test_settings"] = settings = types.ModuleType("capture_test_settings")

    def read():
        import capture_test_settings
        return capture_test_settings.value
    return read, attribute_of(settings)


@place(EXACT)
def name_imported_from_a_module():
    sys.modules["capture_test_settings"] = settings = types.ModuleType("capture_test_settings")

    def read():
        from capture_test_settings import value
        return value
    return read, attribute_of(settings)


@place(EXACT)
def builtin_name():
    user = user_module("def read(): return capture_test_value")
    return user.read, attribute_of(builtins, "capture_test_value")


@place(DERIVED)
def getattr_of_a_module():
    user = user_module("""
        hidden = {}
        def __getattr__(name): return hidden[name]
    """)
    return lambda: user.value, functools.partial(operator.setitem, user.hidden, "value")


@place(EXACT)
def globals_dictionary():
    user = user_module("def read(): return globals()['value']")
    return user.read, functools.partial(operator.setitem, vars(user), "value")


@place(EXACT)
def closure_cell():
    value = 0.0

    def write(new):
        nonlocal value
        value = new
    return lambda: value, write


@place(EXACT)
def cell_of_a_nested_function():
    value = 0.0

    def write(new):
        nonlocal value
        value = new

    def read():
        return (lambda: [value for _ in range(1)][0])()
    return read, write


@place(EXACT)
def default_argument():
    def read(value=0.0):
        return value

    def write(value):
        read.__defaults__ = (value,)
    return read, write


@place(EXACT)
def keyword_default():
    def read(*, value=0.0):
        return value

    def write(value):
        read.__kwdefaults__ = {"value": value}
    return read, write


@place(EXACT)
def item_of_the_keyword_defaults():
    def read(*, value=0.0):
        return value
    return read, functools.partial(operator.setitem, read.__kwdefaults__, "value")


@place(EXACT)
def attribute_of_a_function():
    def read():
        return read.value
    return read, attribute_of(read)


@place(DERIVED)
def partial_argument():
    box = Box()

    def write(value):
        box.read = functools.partial(lambda value: value, value)
    return lambda: box.read(), write


@place(DERIVED)
def partial_keyword():
    box = Box()

    def write(value):
        box.read = functools.partial(lambda *, value: value, value=value)
    return lambda: box.read(), write


@place(EXACT)
def keyword_of_one_partial():
    read = functools.partial(lambda *, value: value, value=0.0)
    return read, functools.partial(operator.setitem, read.keywords, "value")


@place(EXACT)
def generator_reads_it():
    box = Box()

    def generate():
        yield 1.0
        yield box.value
    return lambda: [*generate()][1], attribute_of(box)


@place(OPAQUE)
def context_variable():
    variable = contextvars.ContextVar("variable")
    return lambda: variable.get(), lambda value: variable.set(value) and None


@place(OPAQUE)
def thread_local():
    local = threading.local()
    return lambda: local.value, attribute_of(local)


@place(OPAQUE)
def iterator_state():
    items = [0.0]
    return lambda: next(itertools.cycle(items)), functools.partial(operator.setitem, items, 0)


@place(OPAQUE)
def weak_key_dictionary():
    key = Box()
    items = weakref.WeakKeyDictionary()
    return lambda: items[key], functools.partial(items.__setitem__, key)


@place(OPAQUE)
def array_of_numpy():
    import numpy
    items = numpy.zeros(2)
    return lambda: float(items[1]), functools.partial(operator.setitem, items, 1)


@place(OPAQUE)
def tensor_value():
    weight = torch.zeros(2)
    return lambda: weight[1].item(), functools.partial(operator.setitem, weight, 1)


@place(OPAQUE)
def cached_function():
    box = Box()

    @functools.lru_cache
    def cached():
        return box.value

    def write(value):
        box.value = value
        cached.cache_clear()
    return cached, write
