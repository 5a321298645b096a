"""Dicts, their relatives in the standard library, and sets."""
from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import call, check


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Record(dict):
    """A dict with a default, and attribute access."""

    def __missing__(self, key):
        return key * 2

    def __getattr__(self, name):
        return self[name]


class Output(OrderedDict):
    """In the way of model outputs: item access of its own."""

    def __getitem__(self, key):
        return self.to_tuple()[key] if isinstance(key, int) else super().__getitem__(key)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


# Each is called with a tensor, and a dict from outside: {"a": 1.0, "b": tensor, "c": [1, 2]}.
def build(x, d):
    e = {"x": x, 1: 2, None: d["a"]}
    e["y"] = e["x"] + 1
    e[1] = "one"
    del e[None]
    return e, len(e), "x" in e, e.get("z"), e.get("z", x), e.get("x")


def change_outside(x, d):
    d["n"] = x
    d["a"] += 1
    del d["b"]
    d["c"].append(3)
    d.setdefault("a", 5)
    d.setdefault("k", x * 2)
    popped = d.pop("n")
    return popped, d.pop("none", 4), len(d)


def update(x, d):
    e = dict(d)
    e.update(a=2, z=x)
    e.update({"b": 1, "q": x})
    e.update([("r", 1), ("s", x)])
    e.update((k, v) for k, v in [("t", x)])
    e |= {"u": 1}
    d.update(w=x)
    return e, e | {"v": x}, {**d, "y": 1}, dict(d, z=3), dict([("a", x)]), dict(a=x), dict(zip("ab", (x, 1)))


def walk(x, d):
    names = [k for k in d]
    total = x
    for k, v in d.items():
        if k == "b":
            total = total + v
    return (names, list(d.values()), list(d.keys()), total, list(reversed(d)), tuple(d), sorted(d), max(d),
            {k: v for k, v in d.items()})


def views(x, d):
    keys = d.keys()
    d["new"] = x
    return (len(keys), "new" in keys, list(keys), [*d.values()], keys & {"a", "new"}, len(d.items()),
            set(keys) == {"a", "b", "c", "new"})


def missing(x, d):
    result = []
    for key in ("a", "nope"):
        try:
            result.append(d[key])
        except KeyError as e:
            result.append(e.args)
    try:
        d.pop("gone")
    except KeyError:
        result.append(x)
    try:
        del d["gone"]
    except KeyError:
        result.append(x + 1)
    return result


def compare(x, d):
    return {"a": 1} == {"a": 1.0}, {"a": [1, 2]} != {"a": [1, 3]}, d["c"] == [1, 2], d == dict(d), d != {"a": 1}


def keys_by_identity(x, d):
    e = {x: 1, int: 2, len: 3, Color.RED: 4, torch.float32: 5, (1, "a"): 6, frozenset([1]): 7, nn.Linear: 8}
    return (e[x], e[int], e[len], e[Color.RED], e[x.dtype], e[1, "a"], e[frozenset([1])], Color.BLUE in e, d["b"] in e,
            e[nn.Linear])


def ordered(x, d):
    o = OrderedDict(a=1, b=x)
    o["c"] = 3
    o.move_to_end("a")
    o.move_to_end("c", last=False)
    first = o.popitem(last=False)
    return (o, first, list(o), list(o.items())[0], o.popitem()[1], o == OrderedDict(b=x), OrderedDict(d),
            OrderedDict([("k", 1)]), o.copy(), list(reversed(OrderedDict(d))))


def default(x, d):
    e = defaultdict(list)
    e["a"].append(x)
    e["a"].append(1)
    f = defaultdict(lambda: x + 1, d)
    f["zz"]
    return e, e["b"], f["zz"], f["a"], "q" in e, e.get("q"), e.default_factory


def counter(x, d):
    c = Counter("hello")
    c.update(["l", "z"])
    c["y"] += 1
    return c["l"], c["none"], c.most_common(1), dict(c), x + c["h"]


def subclasses(x, d):
    r = Record(a=1)
    r["b"] = x
    return r["b"], r["zz"], r.a, len(r), r.get("zz"), isinstance(r, dict)


def output(x, d):
    o = Output(logits=x)
    o["hidden"] = x + 1
    return o, o.logits, o[0], o["hidden"], o.to_tuple(), list(o.keys()), len(o)


def others(x, d):
    e = dict.fromkeys(["a", "b"], x)
    f = dict.fromkeys(k for k in "cd")
    g = e.copy()
    g.clear()
    k, v = d.popitem()
    return e, f, g, k, v, list(d), bool(g), bool(d), not e, {} or 3


def nested(x, d):
    e = {}
    e.setdefault("a", {})["b"] = x
    e["self"] = e
    return e["self"]["self"]["a"]["b"], e["a"]


def mutated_while_walked(x, d):
    try:
        for k in d:
            d[k + "!"] = x
    except RuntimeError:
        return list(d)


PROGRAMS = [build, change_outside, update, walk, views, missing, compare, keys_by_identity, ordered, default, counter,
            subclasses, output, others,
            nested, mutated_while_walked]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_dicts(program) -> None:
    arguments = call(torch.ones(2), {"a": 1.0, "b": torch.zeros(2), "c": [1, 2]})
    check(lambda: program, arguments, arguments)


# Each is called with a tensor, and a set from outside: {"a", "b"}.
def set_algebra(x, s):
    t = {"b", "c", 1}
    t.add(x.dtype)
    t.discard("c")
    t |= {2}
    t -= {1}
    u = set()
    u.update(t, ["k"])
    return (t & s, s | t == t | s, s - t, len(s ^ t), s <= {"a", "b", "c"}, s == {"b", "a"}, s.isdisjoint(t), {"a"} < s,
            u, u.copy(), set("ab") == s,
            frozenset(s) == s, {1, 2}.union([3]), {1, 2}.intersection({2}), s.issuperset(["a"]), {v for v in (1, 2, 2)},
            len({x, x}), x in {x})


def set_changes(x, s):
    s.add("z")
    s.discard("nope")
    s.remove("a")
    s.update(k for k in ("q", "r"))
    try:
        s.remove("gone")
    except KeyError:
        x = x + 1
    return x, "z" in s, "a" in s, len(s), sorted(s), bool(s)


def constants(x, s):
    t = {3, 1, 2}
    total = 0
    for v in t:
        total += v
    return x * total, x.dim() in {1, 2}, "a" in s, [v for v in sorted(s)], max({1, 5}), t.pop() in (1, 2, 3)


@pytest.mark.parametrize("program", [set_algebra, set_changes, constants], ids=lambda f: f.__name__)
def test_sets(program) -> None:
    arguments = call(torch.ones(2), {"a", "b"})
    check(lambda: program, arguments, arguments)


def with_state(**values):
    def decorate(f):
        def make():
            state = SimpleNamespace(**{name: value() for name, value in values.items()})
            return (lambda x: f(x, state)), state
        return make
    return decorate


def test_only_the_keys_that_are_read_are_guarded() -> None:
    @with_state(d=lambda: {"a": 1.0, "b": 2.0})
    def make(x, s):
        return x * s.d["a"] if "z" not in s.d else x

    check(make, call(torch.ones(2)), lambda s: s.d.update(b=5, c=6), call(torch.ones(2)), captures=1)
    check(make, call(torch.ones(2)), lambda s: s.d.update(a=5), call(torch.ones(2)), captures=2)
    check(make, call(torch.ones(2)), lambda s: s.d.update(z=5), call(torch.ones(2)), captures=2)


def test_order_is_guarded_where_it_is_walked() -> None:
    @with_state(d=lambda: {"a": 1.0, "b": 2.0})
    def make(x, s):
        for value in s.d.values():
            x = x * value + 1
        return x

    check(make, call(torch.ones(2)), lambda s: s.d.update(a=s.d.pop("a")), call(torch.ones(2)), captures=2)


def test_membership_depends_on_the_set() -> None:
    @with_state(s=lambda: {"a"})
    def make(x, s):
        return x + 1 if "b" in s.s else x

    check(make, call(torch.ones(2)), lambda s: s.s.add("b"), call(torch.ones(2)), captures=2)


def test_tensor_keys_are_told_apart() -> None:
    def f(x, y):
        e = {x: 1}
        return x + 1 if y in e else y
    def make():
        return lambda x, y: f(x, y)
    a = torch.ones(2)
    check(make, call(torch.ones(2), torch.ones(2)), call(a, a), call(torch.ones(2), torch.ones(2)), call(a, a),
          captures=2)


def test_keys_of_several_objects() -> None:
    def make():
        state = SimpleNamespace(cache={}, kind=dict)
        def f(x):
            key = int, (state.kind, 1)
            if key not in state.cache:
                state.cache[key] = 2.0
            return x * state.cache[key]
        return f, state
    def forget(state):
        del state.cache[int, (dict, 1)]
    def change(state):
        state.cache[int, (dict, 1)] = 3.0
    def rename(state):
        state.kind = list
    x = call(torch.ones(2))
    check(make, x, x, x, forget, x, x, change, x, x, rename, x, x, captures=5)
