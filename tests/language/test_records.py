"""Data classes, enumerations and named tuples, in one graph."""
from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import reprlib
import typing
from dataclasses import dataclass, field

import torch

from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@dataclass
class Config:
    scale: float = 2.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    name: str = "c"

    def __post_init__(self):
        self.total = sum(self.sizes)


@dataclass(frozen=True)
class Frozen:
    a: int
    b: typing.Any = None


@dataclass(order=True)
class Ordered:
    rank: int
    item: typing.Any = field(default=None, compare=False)


@dataclass(slots=True, kw_only=True)
class Compact:
    a: typing.Any
    b: int = 3


@dataclass
class Nested:
    config: Config
    items: dict[str, typing.Any]
    pair: tuple[typing.Any, ...] = ()


@programs.add(X)
def creation_and_post_init(x):
    c = Config(sizes=[3, 4])
    return x * c.total, c, Config() == Config(), Config(3.0) == Config(), Config().sizes is not Config().sizes


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0), captures=2)
def a_config_from_outside():
    config = Config()

    def program(x):
        config.name += "!"
        return x * config.scale + sum(config.sizes)
    return program, config


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0), captures=2)
def replacing():
    config = Config()

    def program(x):
        changed = dataclasses.replace(config, name="other", sizes=[5])
        return x * changed.scale + changed.total, changed, changed is config, dataclasses.replace(Frozen(1, x), a=2)
    return program, config


@programs.make(X, change=lambda state: state.items.update(c=7), captures=2)
def as_dict_and_as_tuple():
    nested = Nested(Config(), {"a": 1, "b": [2]}, (3,))

    def program(x):
        d = dataclasses.asdict(nested)
        d["config"]["scale"] = 9.0
        return x * len(d["items"]), d, dataclasses.astuple(nested.config), nested.config.scale
    return program, nested


@programs.add(X)
def fields_and_introspection(x):
    names = [f.name for f in dataclasses.fields(Config)]
    defaults = {f.name: f.default for f in dataclasses.fields(Frozen) if f.default is not dataclasses.MISSING}
    return x, names, defaults, dataclasses.is_dataclass(Config), dataclasses.is_dataclass(3), Config.__match_args__


@programs.add(X)
def frozen_instances(x):
    f = Frozen(1, x)
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as error:
        return f.b * f.a, str(error), hash(Frozen(1)) == hash(Frozen(1)), Frozen(1) == Frozen(1), Frozen(1) != Frozen(2)


@programs.add(X)
def ordered_instances(x):
    items = [Ordered(3, x), Ordered(1, x + 1), Ordered(2, x + 2)]
    return [o.item for o in sorted(items)], max(items).item, Ordered(1) < Ordered(2), Ordered(1) >= Ordered(2)


@programs.add(X)
def compact_instances(x):
    c = Compact(a=x)
    c.b += 1
    return c.a * c.b, c, dataclasses.replace(c, b=1), hasattr(c, "__dict__")


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0))
def representations():
    config = Config()
    return lambda x: (x, repr(config), str(Frozen(1, "b")), f"{Ordered(1)!r}", repr([Frozen(1)])), config


@dataclass
class Linked:
    value: int
    link: object = None
    others: list = dataclasses.field(default_factory=list)


class Marked(Linked):
    @reprlib.recursive_repr(fillvalue="<again>")
    def __repr__(self):
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in ("value", "link"))


@programs.add(X)
def representations_of_what_holds_itself(x):
    one, other = Linked(1), Linked(2)
    one.link, other.link = one, Linked(3, other)
    both = Linked(4, Linked(5))
    both.link.link = both
    one.others.append(one)
    return x, repr(one), str(other), f"{both!r}", repr(Linked(6, Linked(7)))


class Shown:
    def __init__(self, value=None):
        self.value = value

    def __repr__(self):
        return f"<{self.value!r}>"


@programs.add(X)
def representations_of_containers_that_lead_back_to_themselves(x):
    texts = []
    for wrap in (lambda item: [item], lambda item: {"a": item}, lambda item: (item, 1), lambda item: {item},
                 lambda item: frozenset([item])):
        item = Shown()
        item.value = wrap(item)
        texts += [repr(item.value), str(item), f"{[item, [item]]}"]
    return x, texts


@programs.make(X, change=lambda state: setattr(state.link, "link", state), captures=2)
def representations_of_what_comes_to_hold_itself():
    state = Linked(1, Linked(2))
    return lambda x: (x, repr(state)), state


@programs.make(X, fullgraph=False, captures=None)
def marks_of_what_holds_itself():
    marked = Marked(1)
    marked.link = marked
    return lambda x: (x, repr(marked), f"{Marked(2, marked)!r}"), marked


@programs.add(X)
def a_data_class_made_inside(x):
    @dataclass
    class Local:
        a: torch.Tensor
        b: int = 2

        def run(self):
            return self.a * self.b
    return Local(x).run(), Local(x, 3).b, Local(1) == Local(1), Local.__name__


@programs.add(X)
def a_data_class_made_by_function(x):
    Made = dataclasses.make_dataclass("Made", ["a", ("b", int, 3)])
    return Made(x).a * Made(x).b, [f.name for f in dataclasses.fields(Made)]


@programs.add(X)
def data_classes_as_keys(x):
    table = {Frozen(1, "a"): x, Frozen(2, "b"): x * 2}
    table[Frozen(1, "a")] = x + 1
    return table[Frozen(2, "b")], table[Frozen(1, "a")], Frozen(3) in table, len(table), len({Frozen(1), Frozen(1)})


@programs.add(X)
def inheritance_of_data_classes(x):
    @dataclass
    class Child(Config):
        extra: typing.Any = None

        def run(self):
            return self.extra * self.scale
    return Child(extra=x).run(), Child(4.0, extra=x).total


@programs.add(X)
def copies_of_data_classes(x):
    c = Config()
    c.sizes.append([2])
    shallow, deep = copy.copy(c), copy.deepcopy(c)
    c.sizes[-1].append(3)
    return x, shallow, deep, shallow.sizes is c.sizes, deep.sizes is c.sizes


# --- enumerations

class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"
    DEFAULT = "sum"

    @classmethod
    def parse(cls, text):
        return cls(text.lower())

    def apply(self, t):
        return getattr(t, self.value)()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Text(str, enum.Enum):
    A = "a"


@programs.add(X, Mode.SUM)
@programs.add(X, Mode.MEAN)
def members_of_enumerations(x, mode):
    return (mode.apply(x), mode is Mode.SUM, mode == Mode.MEAN, mode.name, Mode.parse("MEAN"), Mode["SUM"], list(Mode), len(Mode),
            Mode.DEFAULT is Mode.SUM, mode in (Mode.SUM,), mode in Mode, str(mode), repr(mode), f"{mode}")


@programs.add(X)
def invalid_members(x):
    try:
        Mode("other")
    except ValueError as error:
        first = str(error)
    try:
        Mode["OTHER"]
    except KeyError as error:
        return x, first, str(error)


@programs.make(X, change=lambda state: state.update(mode=Mode.MEAN), captures=2)
def dispatch_over_an_enumeration():
    state = {"mode": Mode.SUM}
    table = {Mode.SUM: torch.sum, Mode.MEAN: torch.mean}
    return lambda x: (table[state["mode"]](x), {m.name: m.value for m in Mode}), state


@programs.add(X)
def integer_enumerations(x):
    return (x * Level.HIGH, Level.LOW + 1, Level.HIGH > Level.LOW, Level(3).name, sorted([Level.HIGH, Level.LOW]), [10,
            20][Level.LOW],
            x[:, Level.LOW], range(Level.HIGH), f"{Level.HIGH:03d}", max(Level), Text.A + "b", Text("a") is Text.A)


@programs.add(X)
def flags(x):
    both = Access.READ | Access.WRITE
    return (x, both is Access.BOTH, Access.READ in both, both & Access.READ, ~Access.READ, bool(Access(0)), both ^ Access.WRITE,
            Access.READ.value)


# --- named tuples

class Triple(typing.NamedTuple):
    a: typing.Any
    b: int = 2
    c: tuple = ()

    def scaled(self):
        return self.a * self.b


Old = collections.namedtuple("Old", "first second", defaults=[7])


@programs.add(X, Triple(X, 3))
def named_tuples(x, given):
    t = Triple(x, c=(x,))
    a, *rest = t
    return (t.scaled(), given.scaled(), a, rest, t._replace(b=5), t._asdict(), Old._make([x, 1]), Old(x)._fields, t[0] is t.a,
            given == given, isinstance(t, tuple), len(t), given.b, Old(1, 2) < Old(1, 3), Old(1).second, repr(Old(1)))


@programs.add(X)
def a_named_tuple_made_inside(x):
    Point = collections.namedtuple("Point", "x y")
    p = Point(x, 2)
    return p.x * p.y, p._fields, Point._make([1, 2]).y


@programs.add(X)
def a_typed_named_tuple_made_inside(x):
    class Output(typing.NamedTuple):
        logits: torch.Tensor
        loss: float = 0.0
    out = Output(x * 2)
    return out.logits, out.loss, out[0]


@programs.add(X)
def an_enumeration_of_texts_made_inside(x):
    class Reduction(str, enum.Enum):
        MAX = "max"
        MIN = "min"

        def __str__(self):
            return self.value
    return getattr(torch, Reduction.MAX)(x), f"{Reduction.MIN}", Reduction("max") == "max", hasattr(x, Reduction.MIN)


@programs.add(X)
def named_tuples_that_outlive_their_class(x):
    Point = collections.namedtuple("Point", "x y")

    class Output(typing.NamedTuple):
        logits: torch.Tensor
        loss: float = 0.0

        def total(self):
            return self.logits.sum() + self.loss
    point = Point(x, 2)
    return point, [point._replace(y=3)], Output(x * 2), Output(x, 1.0).total()


test_records = programs.test()
