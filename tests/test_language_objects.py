"""Classes, containers and their mutation, end to end."""
from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import math
import operator
import types
import typing
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, call_with, check
from tests.programs import NATIVE, Programs, run
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
    return (r.x, r.y, (-p).x, p == q, p != q, p < q, sorted([q, p])[0] is p, p[0], p[-1], len(p), a, b, 1 in p, p(x), bool(p),
            not p, str(p), f"{p:!}", p @ q, s is q, q.y, [10, 20][p], max(p, q) is q, *p)


@programs.add(X, **NATIVE)
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
    return (c, f, f == Frozen(1), Frozen(1) < Frozen(2), hash(Frozen(1)) == hash(Frozen(1)), dataclasses.replace(f, a=3),
            [field.name for field in dataclasses.fields(c)], message, repr(Config()), x * c.scale * c.total, dataclasses.is_dataclass(c))


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
    return (t, t.scaled(), t[0] is t.a, a, b, c, o, o._asdict(), o._fields, Old._make([1, 2]), given.scaled(), given.a is x,
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
    return (mode.function(x), mode is Mode.MEAN, mode == Mode.SUM, mode.name, mode.value, Mode("sum"), Mode["MEAN"], list(Mode),
            Flags.A | Flags.B, Flags.A in Flags(3), Kind.FIRST == "first", Kind("first"), {Mode.SUM: 1}[Mode.SUM], len(Mode))


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


@programs.add(X, **NATIVE)
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
        super(Right, self).__init__(x)
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
    return (d.f(), d.order, Diamond.name(), isinstance(d, Right), issubclass(Diamond, (int, Base)), [c.__name__ for c in Diamond.__mro__],
            Left(x).f(), type(d) is Diamond, Tagged(x).tagged, Concrete().f(), isinstance(Concrete(), Abstract), Diamond.registered,
            d.__class__.__name__, isinstance(x, (int, torch.Tensor)), callable(d.f))


@programs.add(X, **NATIVE)
def a_class_made_inside(x):
    class Local(Base):
        scale = x.shape[0]

        def f(self):
            return super().f() * self.scale
    return Local(x).f(), Local.__name__


class Stack(list):
    def top(self):
        return self[-1]


class Defaulting(dict):
    def __missing__(self, key):
        return key * 2


@programs.add(X)
def subclasses_of_builtins(x):
    s, d = Stack([1, x]), Defaulting(a=x)
    s.append(x + 1)
    d["b"] = 1
    return s.top(), len(s), d["a"], d["zz"], "zz" in d, s, d


# --- containers

@programs.add(X, [1, 2])
def list_methods(x, given):
    a = [x, 1, x]
    a.append(2)
    a.extend(given)
    a.insert(0, "first")
    popped = a.pop(), a.pop(0)
    b = a.copy()
    numbers = [3, 1, 3]
    numbers.remove(3)
    b.clear()
    c = [3, 1, 2]
    c.sort(reverse=True)
    c.reverse()
    a[0:1] = [7, 8]
    a += (9,)
    del c[::2]
    return a, b, c, numbers, popped, [1, 2, 1].count(1), ["a", "b"].index("b"), a[-2:], [0] * 3, [1] + [2], given * 2, [1, 2] < [1, 3], 2 in c


@programs.add(X, {"a": 1})
def dict_methods(x, given):
    d = {"x": x, **given}
    d.update({"b": 2}, c=3)
    d.setdefault("l", []).append(x)
    popped = d.pop("b"), d.pop("missing", None), d.popitem()
    d |= {"e": 5}
    keys, items = list(d), list(d.items())
    return (d, popped, keys, items, list(d.values()), d.get("x") is x, d.get("no"), "a" in d, len(d), given | {"z": 1}, dict(a=1) == {"a": 1},
            dict.fromkeys("ab", 0), {k: v for k, v in reversed(d.items())}, d.keys() & {"a"}, d.copy() is d, next(iter(d)), {**d, "x": 0})


@programs.add(X, {1, 2, 3})
def set_methods(x, given):
    s = {1, 2}
    s.add(5)
    s.discard(9)
    s |= {7}
    return (s, s & given, s | given, s - given, s ^ given, given.issuperset({1}), 5 in s, frozenset(s), len(s), sorted(given), s.union([8]),
            s == {1, 2, 5, 7}, {n * 2 for n in sorted(given)}, set("a"), s <= given)


@programs.add(X, "Hello World")
def string_methods(x, s):
    return (x, s.upper(), s.split(), "-".join(["a", "b"]), s.replace("l", "L"), s.startswith("He"), s[1:3], s[::-1], s.find("W"), len(s),
            s.strip("H"), "ab" in s, s.encode(), s.partition(" "), s.title(), s.isdigit(), s.zfill(13), s.center(15, "*"), s + "!", s * 2,
            s == "Hello World", s < "I", sorted(s)[:2], [c for c in s if c.isupper()], ord("a"), chr(98), s.rsplit("o", 1), f"{s:>12}")


@programs.add(X, 7, 2.5)
def numbers(x, n, f):
    return (x * n, n + 1, n // 2, n % 4, n ** 2, -n, n & 3, n << 1, f * 2, int(f), float(n), round(f), math.sqrt(n), math.floor(f), math.log(f),
            math.prod([1, 2]), math.pi, n.bit_length(), f.is_integer(), complex(n, f), bool(n), divmod(n, 2), pow(n, 2, 5), abs(-n), max(n, f),
            min(3, n), isinstance(n, int), str(n), hex(n), n == 7.0, sum([n, f]), math.isclose(f, 2.5), range(n)[2:4], list(range(n, 0, -3)),
            operator.mul(n, 2), int("12"), math.inf > n, -0.0, n / 2, ~n, n > f)


@programs.add(X)
def collections_module(x):
    d = collections.deque([1, 2], maxlen=3)
    d.append(x)
    d.appendleft(0)
    d.extend([4])
    popped = d.popleft(), d.pop()
    dd = collections.defaultdict(list)
    dd["a"].append(x)
    dd["b"]
    o = collections.OrderedDict(a=1, b=x)
    o.move_to_end("a")
    c = collections.Counter("abca")
    c.update("a")
    c["z"] += 1
    chain = collections.ChainMap({"a": 1}, {"b": x})
    return d, popped, len(d), d[0], dd, o, list(o), c, c.most_common(1), chain["b"], c["missing"], o.popitem(last=False)


@programs.add(X)
def bytes_and_ranges_and_slices(x):
    s = slice(0, 2, 1)
    return x[:, s], s.start, b"abc"[0], bytes([1, 2]), range(3) == range(0, 3), 2 in range(3), s.indices(5)


@programs.add(X, **NATIVE)
def buffers(x):
    return x, bytearray(b"ab"), memoryview(b"a")[0]


@programs.add(X)
def views_and_iterators(x):
    d = {"a": x, "b": 2}
    it = iter([1, x, 3])
    first = next(it)
    rest = list(it)
    keys = d.keys()
    d["c"] = 3
    return first, rest, list(keys), list(zip(*[[1, 2], [3, 4]])), list(iter(d.values())), list(reversed([1, 2])), [*d], list(map(str, d))


@programs.add(X)
def copies(x):
    items = [x, [1, 2], {"k": x}]
    shallow, deep = copy.copy(items), copy.deepcopy(items[1])
    items[1].append(3)
    return shallow, deep, items[1] is shallow[1]


@programs.add(X)
def type_hints_and_types(x):
    y: torch.Tensor = x * 2
    n: int
    return y, types.SimpleNamespace(a=1).a, typing.cast(int, 3)


@programs.add(X, **NATIVE)
def types_made_inside(x):
    alias = list[int] | None
    return x, isinstance(3, int | str), type("Made", (), {"a": 1}).a, alias is None


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


@pytest.mark.parametrize(("make", "args", "options"), programs)
def test_language(make, args, options) -> None:
    run(make, args, options)


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
