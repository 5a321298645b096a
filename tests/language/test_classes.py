"""Classes made inside of the frame, and what takes part in attribute access, in one graph."""
from __future__ import annotations

import abc
import enum
import functools
import types
import typing
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import capture
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


# --- operators of classes that derive from builtin ones

def answer(self, other):
    return "answer", type(other).__name__


class Joined(list):
    __add__ = __radd__ = __mul__ = __rmul__ = answer


class United(set):
    __or__ = __ror__ = __sub__ = answer


class Merged(dict):
    __or__ = __ror__ = answer


class Unwilling(list):
    def __radd__(self, other):
        return NotImplemented


@programs.add(X)
def operators_in_place_of_builtin_subclasses(x):
    """C does an operation in place, whatever the class has for the one that makes a new object; but for repeating."""
    joined, united, merged, repeated = Joined([1]), United({1}), Merged(a=1), Joined([1])
    before = joined, united, merged
    joined += [2]
    united |= {2}
    merged |= {"b": 2}
    repeated *= 2
    return x * 2, joined, united, merged, repeated, before


@programs.add(X)
def operators_of_builtin_subclasses(x):
    """What derives from the left operand's class goes first."""
    return (x * 2, [1] + Joined(), Joined() + [1], 2 * Joined(), Joined() * 2, {1} | United(), United() | {1}, {"a": 1} | Merged(),
            [1] + Unwilling([2]), Unwilling([2]) + [1])


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


# --- attributes that come and go

@programs.make(X, change=lambda state: setattr(state, "act_late", torch.relu), captures=2)
def attributes_by_their_names():
    class Bag:
        def op_double(self, t):
            return t * 2

        def op_plus(self, t):
            return t + 1
    bag = Bag()
    bag.act_tanh = torch.tanh

    def program(x):
        for name in dir(bag):
            if name.startswith(("op_", "act_")):
                x = getattr(bag, name)(x)
        return x, dir(Bag) == sorted(dir(Bag)), "op_plus" in dir(Bag)
    return program, bag


@programs.make(X, change=lambda cls: setattr(cls, "op_late", lambda self, t: t - 5), captures=2)
def a_class_that_gets_a_method():
    class Bag:
        def op_double(self, t):
            return t * 2

    def program(x):
        for name in dir(Bag()):
            if name.startswith("op_"):
                x = getattr(Bag(), name)(x)
        return x
    return program, Bag


@programs.make(X, change=lambda module: setattr(module, "stage2", torch.nn.Sigmoid()), captures=2)
def stages_of_a_module():
    module = torch.nn.Module()
    module.stage0, module.stage1 = torch.nn.ReLU(), torch.nn.Tanh()

    def program(x):
        for name in dir(module):
            if name.startswith("stage"):
                x = getattr(module, name)(x) + 1
        return x, "relu" in dir(torch.nn.functional)
    return program, module


class Flagged:
    flag = 1


class FlaggedMore(Flagged):
    flag = 5


@programs.make(X)
def a_class_attribute_for_a_while():
    def program(x):
        Flagged.extra = 3
        scaled = x * FlaggedMore().extra
        del Flagged.extra
        return scaled, hasattr(FlaggedMore, "extra"), getattr(Flagged(), "extra", None)
    return program, Flagged


@programs.make(X, change=lambda state: setattr(Flagged, "flag", 7), captures=2)
def a_class_attribute_that_is_deleted():
    Flagged.flag = 1

    def program(x):
        FlaggedMore.flag = 5
        del FlaggedMore.flag
        try:
            del FlaggedMore.flag
        except AttributeError as error:
            text = str(error)
        inherited = FlaggedMore.flag, FlaggedMore().flag
        FlaggedMore.flag = 6
        return x * inherited[0], inherited[1], text, FlaggedMore.flag
    return program, FlaggedMore


@programs.make(X)
def a_class_attribute_is_patched():
    class Scaled:
        factor = 2.0

        def scale(self, x):
            return x * self.factor
    scaled = Scaled()

    def program(x):
        with mock.patch.object(Scaled, "factor", 5.0):
            patched = scaled.scale(x)
        with mock.patch.object(scaled, "factor", 6.0):
            return patched, scaled.scale(x)
    return program, scaled


def test_a_deleted_class_attribute_is_looked_for_again() -> None:
    class Base:
        pass

    class Derived(Base):
        k = 2.0

    def program(x):
        del Derived.k
        return x * getattr(Derived, "k", 3.0)
    compiled = capture.compile(program, backend="eager")
    assert torch.equal(compiled(X), X * 3)
    Derived.k = 2.0
    assert torch.equal(compiled(X), X * 3) and "k" not in vars(Derived)
    Derived.k, Base.k = 2.0, 5.0
    assert torch.equal(compiled(X), X * 5)
    with pytest.raises(AttributeError):
        compiled(X)


test_classes = programs.test()
