"""Classes made inside of the frame, metaclasses, and what takes part in attribute access, in one graph."""
from __future__ import annotations

import abc
import enum
import functools
import types
import typing
from types import SimpleNamespace

import pytest
import torch

from tests.programs import Programs, run

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


# --- classes made inside

@programs.add(X)
def a_class_statement(x):
    class Scaler:
        """Multiplies."""
        factor = 2.0

        def __init__(self, shift):
            self.shift = shift

        def __call__(self, t):
            return t * self.factor + self.shift
    return Scaler(1)(x), Scaler.factor, Scaler.__name__, Scaler.__doc__, isinstance(Scaler(2), Scaler)


@programs.make(X, change=lambda state: setattr(state, "factor", 5.0), captures=2)
def a_class_body_that_reads_state():
    state = SimpleNamespace(factor=2.0)

    def program(x):
        class Scaler:
            factor = state.factor
            sizes = [n for n in range(3)]

            def run(self, t):
                return t * self.factor, self.sizes
        return Scaler().run(x)
    return program, state


class Base:
    scale = 2.0
    registry: list = []

    def __init__(self, x):
        self.x = x

    def run(self):
        return self.x * self.scale


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0), captures=2)
def a_subclass_made_inside():
    class Parent:
        scale = 2.0

        def run(self, x):
            return x * self.scale

    def program(x):
        class Child(Parent):
            def run(self, x):
                return super().run(x) + 1

        class GrandChild(Child):
            scale = 3.0
        return Child().run(x), GrandChild().run(x), GrandChild.__mro__[1] is Child, issubclass(GrandChild, Parent)
    return program, Parent


@programs.add(X)
def class_attributes_assigned(x):
    class Counter:
        count = 0

        @classmethod
        def increment(cls):
            cls.count += 1
            return cls.count
    Counter.increment()
    Counter.extra = x
    return Counter.increment(), Counter.extra * 2, Counter.count, hasattr(Counter, "missing"), "extra" in vars(Counter)


@programs.add(X)
def methods_of_all_kinds(x):
    class Kit:
        base = 3

        @staticmethod
        def double(t):
            return t * 2

        @classmethod
        def scaled(cls, t):
            return t * cls.base

        @property
        def size(self):
            return self.base + 1

        def plain(self, t):
            return self.double(t) + self.size

        alias = plain
    kit = Kit()
    return kit.double(x), Kit.double(x), kit.scaled(x), Kit.scaled(x), kit.size, kit.alias(x), Kit.plain(kit, x)


@programs.add(X)
def a_class_made_by_type(x):
    def run(self, t):
        return t * self.factor
    Made = type("Made", (), {"factor": 2, "run": run})
    Sub = type("Sub", (Made, Base), dict(factor=3, __init__=lambda self: None))
    return Made().run(x), Sub().run(x), Made.__name__, type(Made()) is Made, Sub.__bases__ == (Made, Base)


@programs.add(X)
def a_class_made_by_new_class(x):
    Made = types.new_class("Made", (Base,), {}, lambda ns: ns.update(scale=7.0))
    return Made(x).run()


@programs.add(X)
def slots_in_a_class_made_inside(x):
    class Pair:
        __slots__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b
    p = Pair(x, x + 1)
    p.a = p.a * 2
    try:
        p.c = 1
    except AttributeError:
        return p.a + p.b, hasattr(p, "c")


@programs.add(X)
def classes_made_by_a_factory(x):
    def make(n):
        class Layer:
            width = n

            def __call__(self, t):
                return t * self.width + n
        Layer.__name__ = f"Layer{n}"
        return Layer
    layers = [make(n)() for n in range(3)]
    for layer in layers:
        x = layer(x)
    return x, [type(layer).__name__ for layer in layers], type(layers[0]) is type(layers[1])


@programs.add(X)
def class_decorators(x):
    def registered(cls):
        registry[cls.__name__] = cls
        cls.tagged = True
        return cls
    registry = {}

    @registered
    class A:
        def run(self, t):
            return t + 1

    @functools.total_ordering
    class Version:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n
    return registry["A"]().run(x), A.tagged, Version(1) >= Version(1), Version(2) <= Version(1)


@programs.add(X)
def descriptors_are_told_their_names(x):
    class Field:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, owner=None):
            return self if obj is None else obj.__dict__[self.name] * 2

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value

    class A:
        first = 1
        weight = Field()
        last = 2
    a = A()
    a.weight = x
    return a.weight, A.weight.name, [name for name in A.__dict__ if name[0] != "_"]


T = typing.TypeVar("T")


@programs.add(X)
def generic_classes_made_inside(x):
    class Box(typing.Generic[T]):
        def __init__(self, item: T) -> None:
            self.item = item

        def get(self) -> T:
            return self.item
    return Box(x).get() * 2, issubclass(Box, typing.Generic), Box.__orig_bases__ == (typing.Generic[T],)


@programs.add(X)
def abstract_classes_made_inside(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

        def doubled(self):
            return self.area() * 2

    class Square(Shape):
        def __init__(self, side):
            self.side = side

        def area(self):
            return self.side * self.side
    try:
        Shape()
    except TypeError:
        return Square(x).doubled(), isinstance(Square(x), Shape)


@programs.add(X)
def exceptions_made_inside(x):
    class Stop(Exception):
        def __init__(self, value):
            super().__init__("stopped")
            self.value = value
    try:
        raise Stop(x * 2)
    except Stop as stop:
        return stop.value, str(stop), isinstance(stop, Exception)


@programs.add(X)
def instances_of_inner_classes_that_escape(x):
    class Result:
        def __init__(self, value, name):
            self.value, self.name = value, name
    return Result(x * 2, "r"), Result


@programs.make(X)
def inner_classes_that_are_registered():
    registry = []

    class Parent:
        def run(self):
            return "parent"

    def program(x):
        class Made(Parent):
            __slots__ = ("a",)

            def __init__(self):
                self.a = x

            def run(self):
                return super().run() + "made", self.a * 2

            @property
            def doubled(self):
                return self.a * 2

            @staticmethod
            def static():
                return 1

            @classmethod
            def name(cls):
                return cls.__name__
        registry.append(Made)
        return Made().run(), Made(), Made.name(), Made().doubled
    return program, registry


@programs.add(X)
def enums_made_inside(x):
    class Mode(enum.Enum):
        SUM = "sum"
        MEAN = "mean"

    class Flag(enum.IntFlag):
        A = enum.auto()
        B = enum.auto()
    return getattr(x, Mode.SUM.value)(), Mode("mean") is Mode.MEAN, [m.name for m in Mode], (Flag.A | Flag.B).value


# --- metaclasses

class Registering(type):
    kinds: dict = {}

    def __new__(meta, name, bases, namespace, **kwargs):
        cls = super().__new__(meta, name, bases, namespace)
        cls.tag = name.lower()
        return cls

    def __call__(cls, *args, **kwargs):
        obj = super().__call__(*args, **kwargs)
        obj.tagged = cls.tag
        return obj

    @property
    def upper(cls):
        return cls.__name__.upper()

    def __len__(cls):
        return 3

    def __getitem__(cls, key):
        return key, cls.tag

    def __contains__(cls, key):
        return key in cls.__dict__

    def __iter__(cls):
        return iter((cls.tag,))


class Tagged(metaclass=Registering):
    factor = 2

    def __init__(self, x):
        self.x = x


@programs.add(X)
def metaclass_protocols(x):
    t = Tagged(x)
    return t.x * 2, t.tagged, Tagged.upper, len(Tagged), Tagged["k"], "factor" in Tagged, list(Tagged), Tagged.tag


@programs.add(X)
def a_class_with_a_metaclass_made_inside(x):
    class Child(Tagged):
        def run(self):
            return self.x * self.factor
    c = Child(x)
    return c.run(), c.tagged, Child.upper, type(Child) is Registering


class Singleton(type):
    instances: dict = {}

    def __call__(cls, *args):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args)
        return cls.instances[cls]


@programs.make(X, change=lambda state: state.instances[state].__dict__.update(scale=5.0), captures=2)
def a_singleton():
    class Config(metaclass=Singleton):
        def __init__(self):
            self.scale = 2.0
    Config()
    return lambda x: (x * Config().scale, Config() is Config()), Config


@programs.add(X)
def a_metaclass_made_inside(x):
    class Meta(type):
        def __call__(cls, *args):
            return super().__call__(*args), cls.__name__

    class Made(metaclass=Meta):
        def __init__(self, t):
            self.t = t
    made, name = Made(x)
    return made.t * 2, name


# --- attributes

class Positive:
    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        if value < 0:
            raise ValueError(f"{self.name} is negative")
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Measured:
    width = Positive()
    _cached = 0

    def __init__(self, width, x):
        self.width, self.x = width, x

    @property
    def area(self):
        return self.x * self.width

    @area.setter
    def area(self, value):
        self.x = value / self.width

    @functools.cached_property
    def squared(self):
        Measured._cached += 1
        return self.x * self.x

    def __getattr__(self, name):
        if name.startswith("times_"):
            return lambda t: t * int(name[6:])
        raise AttributeError(f"no {name}")


@programs.add(X)
def descriptors(x):
    m = Measured(2, x)
    try:
        m.width = -1
    except ValueError as error:
        message = str(error)
    m.width = 3
    area = m.area
    m.area = x
    del m.width
    return area, m.x, message, hasattr(m, "width"), Measured.width.name


@programs.make(X, change=lambda state: setattr(state, "width", 5), captures=2)
def descriptors_of_outside_objects():
    m = Measured(2, 1.0)
    return lambda x: x * m.width + m.area, m


@programs.add(X)
def a_cached_property(x):
    class Lazy:
        computed = 0

        def __init__(self, t):
            self.t = t

        @functools.cached_property
        def doubled(self):
            log.append("computed")
            return self.t * 2
    log = []
    lazy = Lazy(x)
    first = lazy.doubled
    same = lazy.doubled is first
    del lazy.doubled
    again = lazy.doubled
    return first, again, same, log, "doubled" in lazy.__dict__


@programs.make(X, change=lambda state: state.__dict__.pop("table", None), captures=None)
def a_cached_property_of_an_outside_object():
    class Model:
        size = 3

        @functools.cached_property
        def table(self):
            return [float(n) for n in range(self.size)]
    model = Model()
    return lambda x: x * sum(model.table), model


@programs.add(X)
def missing_attributes(x):
    m = Measured(2, x)
    return m.times_3(x), getattr(m, "other", None), hasattr(m, "times_4"), getattr(m, "times_2")(m.x)


@programs.make(X, change=lambda state: setattr(state, "gamma", 5.0), captures=2)
def attributes_found_by_getattr_and_then_set():
    class Config:
        def __getattr__(self, name):
            if name == "gamma":
                return 2.0
            raise AttributeError(name)
    config = Config()
    return lambda x: x * config.gamma, config


@programs.make(X, change=lambda state: state._values.__setitem__("scale", 5.0), captures=3)
def a_config_with_attribute_access():
    class Config:
        def __init__(self, **values):
            object.__setattr__(self, "_values", values)

        def __getattr__(self, name):
            try:
                return self._values[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name, value):
            self._values[name] = value

        def __contains__(self, name):
            return name in self._values
    config = Config(scale=2.0, name="c")

    def program(x):
        config.steps = getattr(config, "steps", 0)
        return x * config.scale, "scale" in config, hasattr(config, "other"), config.name
    return program, config


@programs.make(X, change=lambda state: state.__setattr__("b", 7.0), captures=2)
def slots():
    class Slotted:
        __slots__ = ("a", "b", "c")

        def __init__(self):
            self.a, self.b = 1.0, 2.0
    s = Slotted()

    def program(x):
        s.a = s.a + 1
        return x * s.b, hasattr(s, "c"), Slotted.__slots__
    return program, s


@programs.add(X)
def a_property_made_by_hand(x):
    class Point:
        def __init__(self, t):
            self._t = t

        def get(self):
            return self._t

        def put(self, value):
            self._t = value * 2
        t = property(get, put, doc="the tensor")
    p = Point(x)
    p.t = x + 1
    return p.t, Point.t.__doc__, Point.t.fget(p) is p.t


@programs.make(X, change=lambda state: setattr(state, "scale", 3.0), captures=2)
def attributes_of_functions():
    def scaled(x):
        return x * scaled.scale
    scaled.scale, scaled.calls = 2.0, 0

    def program(x):
        scaled.calls += 1
        scaled.last = "program"
        return scaled(x)
    return program, scaled


@programs.add(X)
def attributes_of_functions_made_inside(x):
    def f(t):
        f.count += 1
        return t * f.count
    f.count = 1
    setattr(f, "name", "f")
    return f(x), f(x), f.count, f.name, f.__name__, f.__dict__


@programs.make(X, change=lambda state: setattr(state, "method", lambda x: x - 1), captures=2)
def a_method_shadowed_by_an_instance():
    class Model:
        def method(self, x):
            return x + 1
    model = Model()
    return lambda x: model.method(x), model


@programs.add(X)
def dunder_attributes(x):
    t = Tagged(x)
    return (x, t.__class__ is Tagged, t.__class__.__name__, t.__dict__, type(t).__module__, Tagged.__init__.__name__,
            Tagged.__qualname__, t.__init__.__self__ is t, object.__getattribute__(t, "x") is x, vars(t))


@programs.add(X)
def a_class_reassigned(x):
    class A:
        def run(self):
            return x * 2

    class B:
        def run(self):
            return x * 3
    a = A()
    first = a.run()
    a.__class__ = B
    return first, a.run(), type(a) is B


@pytest.mark.parametrize(("make", "args", "options"), programs)
def test_classes(make, args, options) -> None:
    run(make, args, options)
