"""Classes, their instances, and what the outside sees of changes, end to end."""
from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import traceback
import typing
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, call_with, check
from tests.programs import NATIVE, Programs
from tests.stale.cases import user_module

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __radd__(self, other):
        return self if other == 0 else NotImplemented

    def __mul__(self, k):
        return Point(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Point(-self.x, -self.y)

    def __eq__(self, other):
        return isinstance(other, Point) and self.y == other.y

    def __hash__(self):
        return hash(self.y)

    def __lt__(self, other):
        return self.y < other.y

    def __getitem__(self, i):
        return (self.x, self.y)[i]

    def __len__(self):
        return 2

    def __iter__(self):
        return iter((self.x, self.y))

    def __contains__(self, value):
        return value == self.y

    def __call__(self, t):
        return t * self.x

    def __bool__(self):
        return self.y != 0

    def __str__(self):
        return f"Point({self.y})"

    def __format__(self, spec):
        return f"<{spec}{self.y}>"

    def __matmul__(self, other):
        return self.x @ other.x.T

    def __iadd__(self, other):
        self.y += other
        return self

    def __index__(self):
        return self.y


@programs.add(X)
def special_methods(x):
    p, q = Point(x, 1), Point(x * 2, 2)
    r = sum([p, q]) + 3 * p * 2
    s = q
    s += 5
    a, b = p
    return (r.x, r.y, (-p).x, p == q, p != q, p < q, sorted([q, p])[0] is p, p[0], p[-1], len(p), a, b, 1 in p, p(x),
            bool(p),
            not p, str(p), f"{p:!}", p @ q, s is q, q.y, [10, 20][p], max(p, q) is q, *p)


@programs.add(X)
def keys_with_an_equality_of_their_own(x):
    return {Point(x, 1): x}[Point(None, 1)], Point(x, 2) in {Point(None, 2)}, [Point(x, 1)].index(Point(None, 1))


@programs.add(X)
def instances_made_inside(x):
    p = Point(x, 2)
    p.extra = [p.x]
    setattr(p, "name", "p")
    del p.y
    return p, hasattr(p, "y"), getattr(p, "y", 5), getattr(p, "name"), vars(p) is p.__dict__, sorted(vars(p))


@programs.add(X)
def cyclic_objects(x):
    a, b = SimpleNamespace(), [x]
    a.self, a.other = a, b
    b.append(a)
    b.append(b)
    d = {"a": a}
    d["d"] = d
    return a, b, d


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    sizes: list = dataclasses.field(default_factory=lambda: [1, 2])
    name: str = "c"

    def __post_init__(self):
        self.total = sum(self.sizes)


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Frozen:
    a: int
    b: object = dataclasses.field(default=None, compare=False)


@programs.add(X)
def data_classes(x):
    c = Config(sizes=[3, x.shape[0]])
    f = Frozen(1, x)
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as error:
        message = str(error)
    return (c, f, f == Frozen(1), Frozen(1) < Frozen(2), hash(Frozen(1)) == hash(Frozen(1)),
            dataclasses.replace(f, a=3),
            [field.name for field in dataclasses.fields(c)], message, x * c.scale * c.total,
            dataclasses.is_dataclass(c))


@programs.add(X)
def representations_of_data_classes(x):
    return x, repr(Config()), str(Frozen(1))


@programs.make(X)
def a_configuration_object():
    config = Config(scale=3.0)
    return lambda x: (x * config.scale + sum(config.sizes), config.name, config.total), config


class Triple(typing.NamedTuple):
    a: object
    b: int = 2
    c: tuple = ()

    def scaled(self):
        return self.a * self.b


Old = collections.namedtuple("Old", "first second", defaults=[7])


@programs.add(X, Triple(X))
def named_tuples(x, given):
    t = Triple(x, c=(x,))
    a, b, c = t
    o = Old(x)._replace(second=x + 1)
    return (t, t.scaled(), t[0] is t.a, a, b, c, o, o._asdict(), o._fields, Old._make([1, 2]), given.scaled(),
            given.a is x,
            isinstance(t, tuple), t._replace(b=3), len(t))


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"

    @property
    def function(self):
        return {"sum": torch.sum, "mean": torch.mean}[self.value]


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Kind(str, enum.Enum):
    FIRST = "first"


@programs.add(X, Mode.MEAN)
def enums(x, mode):
    return (mode.function(x), mode is Mode.MEAN, mode == Mode.SUM, mode.name, mode.value, Mode("sum"), Mode["MEAN"],
            list(Mode),
            Flags.A | Flags.B, Flags.A in Flags(3), Kind.FIRST == "first", Kind("first"), {Mode.SUM: 1}[Mode.SUM],
            len(Mode))


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, None)

    def __set__(self, obj, value):
        setattr(obj, self.name, (value, "set"))


class Attributes:
    described = Descriptor()
    shared = [1]
    __slots_like__ = ("a",)

    def __init__(self, x):
        self._x = x

    @property
    def x(self):
        return self._x * 2

    @x.setter
    def x(self, value):
        self._x = value + 1

    @x.deleter
    def x(self):
        self._x = None

    @classmethod
    def make(cls, x):
        return cls(x)

    @staticmethod
    def double(x):
        return x * 2

    @torch.no_grad()
    def method(self):
        return self._x

    def __getattr__(self, name):
        if name.startswith("dynamic_"):
            return name, self._x
        raise AttributeError(name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Intercepted:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __setattr__(self, name, value):
        self.log.append(name)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.log.append("-" + name)
        object.__delattr__(self, name)

    def __getattribute__(self, name):
        return 42 if name == "answer" else super().__getattribute__(name)


@programs.add(X)
def properties_and_descriptors(x):
    o = Attributes.make(x)
    first = o.x
    o.x = x
    o.described = 5
    second = o.described, o.x, o.dynamic_a, hasattr(o, "missing"), Attributes.double(x), o.double(x), o.method()
    del o.x
    bound = o.method
    s = Slotted(x)
    return (first, second, o._x, bound(), bound.__self__ is o, s.a, hasattr(s, "b"), o.shared is Attributes.shared,
            type(Attributes.described).__name__)


@programs.add(X)
def attribute_access_of_its_own(x):
    i = Intercepted()
    i.value = x
    del i.value
    return x, i.log, i.answer


class Base:
    created = 0

    def __new__(cls, *args):
        self = super().__new__(cls)
        self.order = ["new"]
        return self

    def __init__(self, x):
        self.order.append("Base")
        self.x = x

    def f(self):
        return self.x + 1

    def __init_subclass__(cls, **kwargs):
        cls.registered = True


class Left(Base):
    def __init__(self, x):
        super().__init__(x)
        self.order.append("Left")

    def f(self):
        return super().f() * 2


class Right(Base):
    def __init__(self, x):
        super().__init__(x)
        self.order.append("Right")

    def f(self):
        return super().f() * 3


class Diamond(Left, Right):
    def f(self):
        return super().f(), Right.f(self), Base.f(self)

    @classmethod
    def name(cls):
        return cls.__name__


class Meta(type):
    def __call__(cls, *args):
        obj = super().__call__(*args)
        obj.tagged = cls.tag
        return obj

    @property
    def tag(cls):
        return cls.__name__.lower()


class Tagged(metaclass=Meta):
    def __init__(self, x):
        self.x = x


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


class Concrete(Abstract):
    def f(self):
        return "f"


@programs.add(X)
def inheritance(x):
    d = Diamond(x)
    return (d.f(), d.order, Diamond.name(), isinstance(d, Right), issubclass(Diamond, (int, Base)),
            [c.__name__ for c in Diamond.__mro__],
            Left(x).f(), type(d) is Diamond, Tagged(x).tagged, Concrete().f(), isinstance(Concrete(), Abstract),
            Diamond.registered,
            d.__class__.__name__, isinstance(x, (int, torch.Tensor)), callable(d.f))


@programs.add(X, **NATIVE)
def a_class_made_inside(x):
    class Local(Base):
        scale = x.shape[0]

        def f(self):
            return super().f() * self.scale
    return Local(x).f(), Local.__name__


# --- what the arguments and the outside see

@programs.add(X, [1, [2]], {"k": 0}, SimpleNamespace(n=1, items=[]))
def arguments_changed_in_place(x, items, mapping, obj):
    items[1].append(x)
    items.append(items[0])
    mapping["k"] += 1
    mapping["new"] = x * 2
    obj.n += 1
    obj.items.append(mapping)
    obj.fresh = {"x": x}
    return items, mapping, obj


@programs.make(X)
def outside_state_changed():
    state = SimpleNamespace(steps=0, log=[], table={"a": [], "b": 1}, seen={2}, last=X, previous=X)

    def program(x):
        state.steps += 1
        state.log.append("called")
        state.table["a"].append(state.steps)
        state.table.setdefault("b", x)
        state.seen.add(x.ndim)
        state.last, state.previous = x, state.last
        return x * 2
    return program, state


@programs.make(X)
def an_attribute_deleted_and_made():
    state = SimpleNamespace(a=1)

    def program(x):
        del state.a
        state.b = x
        state.a = 2
        del state.b
        return hasattr(state, "b"), x + state.a
    return program, state


@programs.make(X)
def class_attributes_changed():
    class Counter:
        count = 0

        @classmethod
        def increment(cls):
            cls.count += 1
            return cls.count
    return lambda x: (x, Counter.increment()), Counter


@programs.make(X)
def a_global_changed():
    module = user_module("""
        calls = 0
        last = None
        def program(x):
            global calls, last
            calls += 1
            last = x * 2
            return last + 1
    """)
    return module.program, module.__dict__["__builtins__"] and SimpleNamespace(read=lambda: (module.calls, module.last))


@programs.make(X)
def sys_modules_and_builtins():
    module = user_module("""
        import sys
        limit = 3
        def helper(x):
            return x * limit
        def program(x):
            return helper(x), 'torch' in sys.modules, __name__, len([x]), globals()['limit'], sorted(locals())
    """)
    return module.program


@programs.add(X)
def imports_inside(x):
    import math
    from collections import OrderedDict as Ordered

    import torch.nn.functional as functional
    return functional.relu(x) * math.pi, Ordered(a=1)


test_language = programs.test()


def test_scalars_that_change_but_are_only_stored_are_no_recapture() -> None:
    def make():
        state = SimpleNamespace(step=0, lr=0.1, name="")

        def program(x, lr, name):
            state.step += 1
            state.lr, state.name = lr * 0.5, name
            return x * 2, lr
        return program, state
    check(make, *[call(X, 0.1 * k, "n" * k) for k in range(1, 5)], captures=1)


def test_identity_of_arguments_is_kept() -> None:
    def make():
        state = SimpleNamespace(items=[1], obj=SimpleNamespace(a=1))
        return (lambda items, obj: (items, [obj], items)), state
    step = call_with(lambda state: (state.items, state.obj))
    check(make, step, step)


def test_a_getattribute_of_c_does_not_ask_the_hook() -> None:
    """`object.__getattribute__` called by name: a `__getattr__` of the class is for `getattr` alone."""
    class Lazy:
        plain = property(lambda self: self.missing_too)

        def __getattr__(self, name):
            if name == "given":
                return 2.0
            return object.__getattribute__(self, name)

    def make():
        lazy = Lazy()

        def program(x):
            found = []
            for name in ("given", "missing", "plain"):
                for get in (getattr, object.__getattribute__):
                    try:
                        found.append(get(lazy, name))
                    except AttributeError as error:
                        found.append((str(error), len(traceback.extract_tb(error.__traceback__))))
            return x + 1, found
        return program
    check(make, call(X), call(X), captures=None, fullgraph=False)


class EqualText(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class EqualItems(list):
    def __eq__(self, other):
        return True


@pytest.mark.parametrize("value", [EqualText("z"), EqualItems([1])])
def test_unequal_asks_no_equality_where_a_builtin_has_an_answer_of_its_own(value):
    def make():
        def f(x, value):
            return x * (1 if value != 2 else 3), value != 2, 2 != value, value == 2, value in (2,)
        return f

    check(make, call(X, value), call(X, value), call(X, 2), captures=2)
