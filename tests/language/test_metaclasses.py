"""Metaclasses, and what a class does when others derive from it, in one graph."""
from __future__ import annotations

import torch

from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


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


class Answering:
    def __call__(self, *args):
        return args


class AnsweredByAnObject(type):
    __call__ = Answering()      # binds to nothing, as in CPython


class Unmade(metaclass=AnsweredByAnObject):
    def __init__(self, x):
        self.x = x


@programs.add(X, fullgraph=False, captures=None)
def a_metaclass_whose_call_is_an_object(x):
    return x * 2, Unmade(x, 3)


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


class Plugin:
    """Keeps a register of what derives from it."""

    kinds: dict = {}
    required: tuple = ()

    def __init_subclass__(cls, /, name=None, required=(), **kwargs):
        super().__init_subclass__(**kwargs)
        Plugin.kinds[name or cls.__name__] = cls
        cls.required = (*cls.required, *required)
        for method in cls.required:
            if not hasattr(cls, method):
                raise TypeError(f"{cls.__name__} lacks {method}")


@programs.add(X)
def subclasses_that_are_registered(x):
    class Twice(Plugin, name="twice", required=["run"]):
        def run(self, t):
            return t * 2

    class More(Twice):
        def run(self, t):
            return super().run(t) + 1
    try:
        class Empty(Plugin, required=["run"]):
            pass
    except TypeError as error:
        message = str(error)
    ran = [Plugin.kinds[name]().run(x) for name in ("twice", "More")]
    return ran, More.required, More.__mro__[1] is Twice, More.__bases__ == (Twice,), message


class Slotted:
    __slots__ = ("a",)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.known = True


@programs.add(X)
def subclasses_of_all_layouts(x):
    class Entry(Slotted):
        __slots__ = ("b",)

    class Table(dict, Plugin):
        pass

    class Layer(Plugin, torch.nn.Module):
        def forward(self, t):
            return t + 1

    class Failure(ValueError, Plugin):
        pass
    entry = Entry()
    entry.b = 3
    y = Layer()(x) * entry.b
    return y, Table(a=1)["a"], hasattr(entry, "__dict__"), Entry.known, issubclass(Failure, ValueError), str(Failure("f"))


def scale_by_seven(cls, **kwargs):
    cls.scale = 7


@programs.make(X, change=lambda cls: setattr(cls, "__init_subclass__", classmethod(scale_by_seven)), captures=2)
def a_hook_that_is_replaced():
    class Base:
        def __init_subclass__(cls, **kwargs):
            cls.scale = 3

    def program(x):
        class Made(Base):
            pass
        return x * Made.scale
    return program, Base


test_metaclasses = programs.test()


def test_classes_that_hash_and_compare_are_not_asked() -> None:
    """Only the program hashes and compares its classes; they may come to be unhashable."""
    def make():
        log = []

        class Meta(type):
            def __hash__(cls):
                log.append("hash")
                return 7

            def __eq__(cls, other):
                log.append("equals")
                return NotImplemented

        class Held(metaclass=Meta):
            scale = 3

            def by(self):
                return self.scale

        class Number(float, metaclass=Meta):
            pass
        held, number = Held(), Number(2.0)

        def program(x):
            made = Held()
            made.value = 3
            x = x + isinstance(held, (int, str)) + held.by() + made.value + len({"a": made}) + number
            return x, type(held), made, [made, held], f"{held.scale}", hasattr(held, "missing"), isinstance(made, Held), \
                issubclass(Held, (int, object)), number
        return program, (log, Meta)

    def forget(state):
        del state[1].__eq__
        state[1].__hash__ = None
    x = torch.ones(2)
    check(make, call(x), call(x), forget, call(x), captures=None)
