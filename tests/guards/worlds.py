"""Random object graphs, guards on them, and mutations: what the tests of guards are fed with."""
from __future__ import annotations

import functools
import operator
import random
import sys
import types
from collections import OrderedDict, deque, namedtuple
from typing import Any

import torch

from capture import _C
from capture.guards import helpers
from capture.guards.guard import Guard, Kind
from capture.refgraph.identical import BUILTIN_SCALARS
from capture.refgraph.source import (
    Attr,
    Computed,
    Constant,
    Function,
    ImportedModule,
    InstanceDict,
    Item,
    Literal,
    Local,
    Source,
    TypeAttr,
    TypeOf,
)


class Plain:
    """An instance with a dict."""

    limit = 3

    def method(self) -> int:
        return self.limit


class Other(Plain):
    limit = 4


class Slotted:
    __slots__ = ("a", "b")


class MyDict(dict):
    def __getitem__(self, key: object) -> object:
        raise AssertionError("a guard ran user code")

    __len__ = __contains__ = __iter__ = __eq__ = __getitem__
    __hash__ = None


class MyList(list):
    def __getitem__(self, index: object) -> object:
        raise AssertionError("a guard ran user code")

    __len__ = __iter__ = __eq__ = __getitem__
    __hash__ = None


class Hostile:
    """Every attribute access and comparison of it is user code."""

    def __init__(self) -> None:
        object.__setattr__(self, "a", 1)

    def __getattribute__(self, name: str) -> object:
        raise AssertionError("a guard ran user code")

    __eq__ = __len__ = __bool__ = __getattribute__
    __hash__ = object.__hash__


Point = namedtuple("Point", "a b")
ATTRIBUTES = ["__defaults__", "__kwdefaults__", "__code__", "__closure__", "__globals__", "cell_contents", "__self__",
              "__func__", "func", "args", "keywords", "a", "b", "grad"]
NAMES = ["a", "b", "c", "limit", "method"]
module = types.ModuleType("capture_test_world")
sys.modules[module.__name__] = module


def is_any(x: Any, classes: tuple[type, ...]) -> bool:
    """`isinstance` that asks the object nothing."""
    return helpers.builtin_base(x, classes) is not None


def some_function(a: int = 1, *, b: int = 2) -> int:
    return a + b


def closure_over(value: Any) -> types.FunctionType:
    def inner() -> Any:
        return value
    return inner


def empty_cell() -> types.FunctionType:
    def inner() -> Any:
        return value
    if False:
        value = 1
    return inner


def leaf(rng: random.Random) -> Any:
    """A value without parts."""
    return rng.choice([
        0, 1, -1, True, False, None, 1.0, 0.0, -0.0, float("nan"), "a", "b", "", b"x", 2**70, 1 + 0j,
        complex(0.0, -0.0), range(3), slice(1, None, 2), torch.float32, torch.device("cpu"), len, Ellipsis, Plain,
        Other, int, some_function, module, (), (1, 2.0), (True, "a"), frozenset({1, 2}), frozenset({1.0}),
        torch.Size([2, 3]), Point(1, 2)])


def tensor(rng: random.Random) -> torch.Tensor:
    """A small tensor of some dtype, shape and layout."""
    made = torch.zeros(rng.choice([(2, 3), (3, 2), (6,), (1, 2, 3, 1, 1, 1)]),
                       dtype=rng.choice([torch.float32, torch.float64]))
    if rng.random() < 0.3:
        made = made.transpose(0, -1)
    if rng.random() < 0.4:
        made = torch.nn.Parameter(made, requires_grad=rng.random() < 0.5)
    return made


def value(rng: random.Random, depth: int = 3) -> Any:
    """A random value, with parts down to `depth`."""
    if depth == 0 or rng.random() < 0.25:
        return leaf(rng) if rng.random() < 0.8 else tensor(rng)

    def part() -> Any:
        return value(rng, depth - 1)

    match rng.randrange(14):
        case 0 | 1 | 2 | 3:
            made: Any = rng.choice([Plain, Other])()
            for name in rng.sample(NAMES, rng.randrange(4)):
                made.__dict__[name] = part()
            return made
        case 4:
            made = Slotted()
            made.a = part()
            return made
        case 5:
            return [part() for _ in range(rng.randrange(4))]
        case 6:
            return tuple(part() for _ in range(rng.randrange(4)))
        case 7:
            return {rng.choice(["a", "b", 0, 1, (1, "x"), None, 2.5]): part() for _ in range(rng.randrange(4))}
        case 8:
            return OrderedDict((name, part()) for name in rng.sample(NAMES, rng.randrange(4)))
        case 9:
            return rng.choice([MyDict({name: part() for name in rng.sample(NAMES, 2)}), MyList([part(), part()])])
        case 10:
            return closure_over(part()) if rng.random() < 0.8 else empty_cell()
        case 11:
            return functools.partial(some_function, part(), b=part())
        case 12:
            return set(rng.sample([0, 1, 2.5, "a", None], 2)) if rng.random() < 0.7 else deque(range(rng.randrange(3)))
        case _:
            return types.MethodType(some_function, [part()]) if rng.random() < 0.5 else Hostile()


def steps(source: Source, found: Any, rng: random.Random) -> list[tuple[Source, Any]]:
    """All that one step leads to from an object, as far as it exists."""
    candidates: list[Source] = [InstanceDict(source), TypeOf(source)]
    if is_any(found, (dict,)):
        candidates += [Item(source, key) for key in dict.keys(found)] + [Item(source, "missing")]
    elif is_any(found, (list, tuple, deque)):
        candidates += [Item(source, i) for i in range(-1, 1 + (helpers.length(found) or 0))]
    elif is_any(found, (type,)):
        candidates += [TypeAttr(source, name) for name in NAMES]
    candidates += [Attr(source, name) for name in ATTRIBUTES]
    reached = []
    for candidate in candidates:
        try:
            reached.append((candidate, follow(candidate, found)))
        except helpers.Unreachable:
            if rng.random() < 0.02:
                reached.append((candidate, None))
    return reached


def follow(step: Source, base: Any) -> Any:
    """One step from `base`. Raises Unreachable."""
    match step:
        case InstanceDict():
            return helpers.instance_dict(base)
        case TypeOf():
            return type(base)
        case Item(key=key):
            return helpers.item(base, key)
        case TypeAttr(name=name):
            return helpers.lookup(base, name)
        case Attr(name=name):
            return helpers.attribute(base, name)
    raise AssertionError(step)


def paths(world: list[Any], function: types.FunctionType, rng: random.Random, count: int) -> list[tuple[Source, Any]]:
    """Random paths into a world (the values of locals v0, v1 …) and what they lead to."""
    roots: list[tuple[Source, Any]] = [(Local(f"v{i}", i), v) for i, v in enumerate(world)]
    roots += [(Function(), function), (Constant(Plain), Plain), (ImportedModule(module.__name__), module),
              (Constant(some_function), some_function), (Literal(3), 3)]
    found = []
    for _ in range(count):
        source, reached = rng.choice(roots[:len(world)]) if rng.random() < 0.8 else rng.choice(roots)
        for _ in range(rng.randrange(7)):
            onward = steps(source, reached, rng)
            if not onward:
                break
            source, reached = rng.choice(onward)
        found.append((source, reached))
        if type(reached) in (int, float):
            operation = rng.choice([operator.add, operator.mod, operator.floordiv])
            found.append((Computed(operation, (source, Literal(2))), operation(reached, 2)))
    return found


def guards_for(reached: list[tuple[Source, Any]], rng: random.Random) -> list[Guard]:
    """Guards that hold (mostly) for paths and what they lead to."""
    guards = []
    for source, x in reached:
        kinds: list[tuple[Kind, Any]] = [(Kind.TYPE, type(x)), (Kind.ID, x)]
        by_value = (*BUILTIN_SCALARS, tuple, list, dict, range, slice, torch.device)
        if is_any(x, by_value) and type(x) not in (MyDict, MyList):
            kinds.append((Kind.VALUE, x))
        if helpers.truth(x) is not None:
            kinds.append((Kind.TRUTH, helpers.truth(x)))
        if helpers.length(x) is not None:
            kinds.append((Kind.LENGTH, helpers.length(x)))
        if is_any(x, (dict,)):
            keys = helpers.keys(x) or ()
            kinds += [(Kind.KEYS, keys), (Kind.ABSENT, "absent")] + [(Kind.PRESENT, key) for key in keys[:1]]
        if is_any(x, (type,)):
            kinds += [(Kind.NO_ATTR, "c"), (Kind.MRO, helpers.mro(x))]
        if is_any(x, (set, frozenset)) and all(type(m) in BUILTIN_SCALARS for m in x):
            kinds += [(Kind.CONTENT, frozenset(x)), (Kind.NOT_MEMBER, "absent")]
            kinds += [(Kind.KEYS, tuple(x))] + [(Kind.MEMBER, member) for member in list(x)[:1]]
        if is_any(x, (torch.Tensor,)):
            properties = _C.tensor_properties(x)
            kinds.append((Kind.TENSOR, rng.choice([properties, properties.of_any_shape()])))
            kinds.append((Kind.STORAGE, ((source, 0, x.storage_offset() * x.element_size()),)))
        other = rng.choice(reached)
        if isinstance(source, Computed):           # has no identity: it is made anew each time
            del kinds[1]
        elif not isinstance(other[0], Computed):
            kinds.append((Kind.ALIAS, other[0]) if other[1] is x else (Kind.DISTINCT, other[0]))
            objects = [pair for pair in rng.sample(reached, min(3, len(reached))) if not isinstance(pair[0], Computed)]
            kinds.append((Kind.SEPARATE, ((source, True), *(
                (path, rng.random() < 0.5) for path, there in objects if there is not x))))
        guards += [Guard(source, kind, expected) for kind, expected in rng.sample(kinds, min(2, len(kinds)))]
    return guards


def mutate(world: list[Any], rng: random.Random) -> None:
    """One random change somewhere in the world."""
    if rng.random() < 0.1:
        world[rng.randrange(len(world))] = value(rng)
        return
    if rng.random() < 0.05:
        for owner in (Plain, Other):
            if rng.random() < 0.5:
                owner.limit = rng.choice([3, 4])
        module.__dict__["a"] = leaf(rng)
        return
    if rng.random() < 0.02:
        if "c" in Plain.__dict__:
            del Plain.c
        else:
            Plain.c = 1
        return
    x = rng.choice(world)
    for _ in range(rng.randrange(6)):
        onward = [reached for source, reached in steps(Local("v", 0), x, rng) if not isinstance(source, TypeOf)
                  and type(reached) not in (types.CodeType, types.ModuleType, type(None)) and not is_namespace(reached)]
        if not onward:
            break
        x = rng.choice(onward)
    change(x, rng)


def is_namespace(x: Any) -> bool:
    """Whether x is the dict of a module: to change those would change more than the world."""
    return is_any(x, (dict,)) and "__name__" in dict.keys(x)


def change(x: Any, rng: random.Random) -> None:
    """Changes one object in place, where it can be."""
    fresh = value(rng, 2)
    if is_any(x, (OrderedDict,)) and len(x) > 1 and rng.random() < 0.5:
        x.move_to_end(next(iter(x)))
    elif type(x) in (Plain, Other):
        match rng.randrange(4):
            case 0:
                x.__class__ = rng.choice([Plain, Other])
            case 1:
                x.__dict__ = {"a": fresh}
            case _:
                x.__dict__[rng.choice(NAMES)] = fresh
    elif is_any(x, (dict,)):
        own = OrderedDict if is_any(x, (OrderedDict,)) else dict
        match rng.randrange(3):
            case 0 if dict.__len__(x):
                own.pop(x, next(own.__iter__(x)))
            case 1:
                own.clear(x)
            case _:
                own.__setitem__(x, rng.choice(["a", "b", 0]), fresh)
    elif is_any(x, (list,)):
        match rng.randrange(3):
            case 0:
                list.append(x, fresh)
            case 1 if list.__len__(x):
                list.pop(x)
            case _ if list.__len__(x):
                list.__setitem__(x, 0, fresh)
    elif is_any(x, (set,)):
        x.symmetric_difference_update({rng.choice([0, 1, "a"])})
    elif is_any(x, (deque,)):
        x.append(1)
    elif is_any(x, (Slotted,)):
        x.a = fresh
    elif is_any(x, (types.CellType,)):
        x.cell_contents = fresh
    elif is_any(x, (torch.Tensor,)) and x.is_leaf:
        match rng.randrange(3):
            case 0:
                x.requires_grad_(not x.requires_grad)
            case 1:
                x.data = torch.zeros(3, 2, dtype=x.dtype)
            case _:
                x.grad = None if x.grad is not None else torch.zeros_like(x)
    elif is_any(x, (types.FunctionType,)) and x.__closure__ is not None:
        x.__defaults__ = rng.choice([None, (1,), (fresh,)])
