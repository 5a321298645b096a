"""What takes part in attribute access: descriptors, properties, slots, hooks, functions' attributes; in one graph."""
from __future__ import annotations

import enum
import functools
import threading
import types

import numpy
import pytest
import torch

import capture
from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


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
        return x * s.b, Slotted.__slots__
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


@programs.add(X)
def a_function_is_given_other_code(x):
    """As `torch.no_grad()(function)` does in torch 2.15, for what a traceback names."""
    def f(t, by=2):
        return t * by
    f.__code__ = f.__code__.replace(co_name="renamed")
    made = [f(x), f.__name__, f.__qualname__.split(".")[-1], f.__code__.co_name, f]
    f.__code__ = (lambda t, by=3: t + by).__code__
    return made, f(x), f.__defaults__, f.__name__, f.__code__.co_name


@programs.make(X, change=lambda state: setattr(state, "__code__", (lambda t: t - 1).__code__), captures=2)
def a_function_is_given_the_code_of_one_outside():
    def outside(t):
        return t * 3

    def program(x):
        def f(t):
            return t * 2
        f.__code__ = outside.__code__
        return f(x)
    return program, outside


@programs.make(X, change=lambda state: setattr(state, "__code__", (lambda t: t - 1).__code__), captures=2)
def code_of_a_function_outside_is_renamed():
    def outside(t):
        return t * 3

    def program(x):
        def f(t):
            return t * 2
        f.__code__ = outside.__code__.replace(co_name="renamed")
        return f(x), f.__code__.co_name
    return program, outside


@programs.make(X, change=lambda state: setattr(state, "method", lambda x: x - 1), captures=2)
def a_method_shadowed_by_an_instance():
    class Model:
        def method(self, x):
            return x + 1
    model = Model()
    return lambda x: model.method(x), model


class Tagged:
    def __init__(self, x):
        self.x, self.tagged = x, "tagged"


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


@programs.make(X, change=lambda local: setattr(local, "scale", 3.0), captures=2)
def an_attribute_of_a_thread_local():
    local = threading.local()
    local.scale = 2.0
    return lambda x: x * local.scale, local


@programs.make(X, change=lambda local: setattr(local, "scale", 3.0), captures=2)
def an_attribute_that_a_thread_local_lacks():
    local = threading.local()
    return lambda x: (x * getattr(local, "scale", 1.0), hasattr(local, "scale")), local


@programs.make(X, change=lambda s: setattr(s, "b", 3.0), captures=2)
def an_empty_slot():
    class Slotted:
        __slots__ = ("a", "b")
    s = Slotted()
    s.a = 2.0
    return lambda x: x * (s.b if hasattr(s, "b") else s.a), s


@programs.make(X, change=lambda s: delattr(s, "b"), captures=2)
def a_slot_that_is_emptied():
    class Slotted:
        __slots__ = ("a", "b")
    s = Slotted()
    s.a, s.b = 2.0, 3.0
    return lambda x: x * getattr(s, "b", s.a), s


@programs.make(X, change=lambda classes: setattr(classes[1], "scale", 5.0), captures=2)
def a_class_attribute_read_through_a_subclass():
    class Base:
        scale = 1.0

    class Derived(Base):
        pass

    def program(x):
        Base.scale = 3.0
        return x * Derived.scale + Derived().scale, Base.scale
    return program, [Base, Derived]


@programs.make(X, change=lambda local: setattr(local, "depth", 5), captures=None)
def attributes_of_a_thread_local_that_are_written():
    local = threading.local()
    local.depth = 0

    def program(x):
        local.depth += 1
        local.last = "seen"
        y = x * local.depth
        local.depth -= 1
        del local.last
        return y, hasattr(local, "last"), sorted(vars(local))
    return program, local


class Stack(threading.local):
    def __init__(self):
        self.items = [1.0]

    @property
    def top(self):
        return self.items[-1]


@programs.make(X, change=lambda stack: stack.items.append(4.0), captures=2)
def a_stack_for_each_thread():
    stack = Stack()

    def program(x):
        stack.items.append(3.0)
        stack.current = x.shape[0]
        y = x * stack.top + stack.current
        stack.items.pop()
        return y * stack.top
    return program, stack


def test_a_thread_local_is_another_in_each_thread() -> None:
    local = threading.local()
    local.scale = 2.0
    program = capture.compile(lambda x: x * getattr(local, "scale", 7.0), fullgraph=True, backend="eager")
    results: list[torch.Tensor] = []

    def other() -> None:
        results.append(program(X))
        local.scale = 3.0
        results.append(program(X))
    assert torch.equal(program(X), X * 2) and torch.equal(program(X), X * 2)
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    thread.join(60)
    assert torch.equal(results[0], X * 7) and torch.equal(results[1], X * 3) and torch.equal(program(X), X * 2)
    assert capture.stats(program).captures == 3


def test_what_a_thread_writes_is_its_own() -> None:
    stack = Stack()

    def program(x):
        stack.count = getattr(stack, "count", 0) + 1
        return x * stack.top * stack.count
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    expected = [X * 1, X * 2, X * 3]
    results: dict[str, list[torch.Tensor]] = {}

    def calls(name: str) -> None:
        results[name] = [compiled(X) for _ in range(3)]
    calls("main")
    thread = threading.Thread(target=calls, args=("other",), daemon=True)
    stack.items[0] = 1.0
    thread.start()
    thread.join(60)
    for found in (results["main"], results["other"]):
        assert all(map(torch.equal, found, expected))


test_attributes = programs.test()


def misspelt(layer, name):
    try:
        return getattr(layer, name)
    except AttributeError as error:
        return error


def test_an_error_tells_what_was_asked_of_which_object() -> None:
    def make():
        layer = torch.nn.Linear(2, 2)

        def program(x):
            error = misspelt(layer, "weigth")
            return x * 2, error.name, error.obj is layer, str(error)
        return program, layer
    check(make, call(torch.ones(2)), call(torch.zeros(2)))


def test_an_error_that_leaves_the_call_tells_it() -> None:
    layer = torch.nn.Linear(2, 2)
    compiled = capture.compile(lambda x: layer.weigth * x)
    for _ in range(3):
        with pytest.raises(AttributeError) as raised:
            compiled(torch.ones(2))
        assert raised.value.name == "weigth" and raised.value.obj is layer


def test_an_error_that_is_kept_tells_it() -> None:
    layer, kept = torch.nn.Linear(2, 2), []

    def program(x):
        kept.append(misspelt(layer, "weigth"))
        return x * 2
    compiled = capture.compile(program, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    assert capture.stats(compiled).hits == 2
    assert [(error.name, error.obj) for error in kept] == [("weigth", layer)] * 3


class Box:
    """Instances of it have no attributes to begin with."""


@pytest.mark.parametrize("given", [{"flag": True}, {}])
def test_attributes_stored_after_the_dict_of_an_instance_was_asked_for(given) -> None:
    """CPython 3.13 keeps them in the instance all the same, and the version of the dict as it was."""
    def make():
        box = Box()
        for name, value in given.items():
            setattr(box, name, value)
        vars(box)
        return (lambda x: x * 2 if getattr(box, "flag", False) else x + 1), box

    def flip(box):
        box.flag = not getattr(box, "flag", False)
    check(make, call(X), call(X), flip, call(X), call(X), flip, call(X), flip, call(X), lambda box: delattr(box, "flag"), call(X),
          captures=None)


class Field(str, enum.Enum):
    A = "a"


class Name(str):
    pass


class Reading:
    def __getattr__(self, name):
        return type(name).__name__


class ReadingAll:
    def __getattribute__(self, name):
        return type(name).__name__


class Writing:
    def __setattr__(self, name, value):
        self.__dict__["seen"] = type(name).__name__

    def __delattr__(self, name):
        self.__dict__["seen"] = type(name).__name__


class Of(type):
    def __getattr__(cls, name):
        return type(name).__name__


class OfClass(metaclass=Of):
    pass


def keys_after(obj, name):
    setattr(obj, name, 1)
    setattr(obj, name, 2)
    if hasattr(obj, "b"):
        delattr(obj, name)
    return vars(obj).get("seen"), [type(key).__name__ for key in vars(obj)]


def key_past_the_class(obj, name):
    object.__setattr__(obj, name, 1)
    return [type(key).__name__ for key in vars(obj)]


def deleted(obj, name):
    if isinstance(obj, Writing):
        delattr(obj, name)
        return vars(obj)["seen"]


@pytest.mark.parametrize("name", [Field.A, Name("a"), numpy.str_("a"), "a"], ids=lambda name: type(name).__name__)
@pytest.mark.parametrize("make", [Reading, ReadingAll, Writing, lambda: OfClass, torch.nn.Module, types.SimpleNamespace])
@pytest.mark.parametrize("program", [getattr, lambda obj, name: getattr(obj, name, None), hasattr, keys_after, key_past_the_class,
                                     deleted])
def test_a_name_that_is_no_plain_text(program, make, name) -> None:
    """Code of the program is given it as it is, and a new attribute's key is this very object."""
    def run(x, obj, name):
        try:
            return x + 1, program(obj, name)
        except (AttributeError, TypeError) as error:
            return x + 2, type(error)
    compiled = capture.compile(run, backend="eager")
    for _ in range(3):
        assert str(compiled(X, make(), name)) == str(run(X, make(), name))
