"""Containers, strings and numbers, end to end."""
from __future__ import annotations

import collections
import copy
import math
import operator
import types
import typing

import pytest
import torch

from tests.programs import Programs, run

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


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
    return (a, b, c, numbers, popped, [1, 2, 1].count(1), ["a", "b"].index("b"), a[-2:], [0] * 3, [1] + [2], given * 2,
            [1, 2] < [1, 3], 2 in c)


@programs.add(X, {"a": 1})
def dict_methods(x, given):
    d = {"x": x, **given}
    d.update({"b": 2}, c=3)
    d.setdefault("l", []).append(x)
    popped = d.pop("b"), d.pop("missing", None), d.popitem()
    d |= {"e": 5}
    keys, items = list(d), list(d.items())
    return (d, popped, keys, items, list(d.values()), d.get("x") is x, d.get("no"), "a" in d, len(d), given | {"z": 1},
            dict(a=1) == {"a": 1},
            dict.fromkeys("ab", 0), {k: v for k, v in reversed(d.items())}, d.keys() & {"a"}, d.copy() is d,
            next(iter(d)), {**d, "x": 0})


@programs.add(X, {1, 2, 3})
def set_methods(x, given):
    s = {1, 2}
    s.add(5)
    s.discard(9)
    s |= {7}
    return (s, s & given, s | given, s - given, s ^ given, given.issuperset({1}), 5 in s, frozenset(s), len(s),
            sorted(given), s.union([8]),
            s == {1, 2, 5, 7}, {n * 2 for n in sorted(given)}, set("a"), s <= given)


@programs.add(X, "Hello World")
def string_methods(x, s):
    return (x, s.upper(), s.split(), "-".join(["a", "b"]), s.replace("l", "L"), s.startswith("He"), s[1:3], s[::-1],
            s.find("W"), len(s),
            s.strip("H"), "ab" in s, s.encode(), s.partition(" "), s.title(), s.isdigit(), s.zfill(13),
            s.center(15, "*"), s + "!", s * 2,
            s == "Hello World", s < "I", sorted(s)[:2], [c for c in s if c.isupper()], ord("a"), chr(98),
            s.rsplit("o", 1), f"{s:>12}")


@programs.add(X, 7, 2.5)
def numbers(x, n, f):
    return (x * n, n + 1, n // 2, n % 4, n ** 2, -n, n & 3, n << 1, f * 2, int(f), float(n), round(f), math.sqrt(n),
            math.floor(f), math.log(f),
            math.prod([1, 2]), math.pi, n.bit_length(), f.is_integer(), complex(n, f), bool(n), divmod(n, 2),
            pow(n, 2, 5), abs(-n), max(n, f),
            min(3, n), isinstance(n, int), str(n), hex(n), n == 7.0, sum([n, f]), math.isclose(f, 2.5), range(n)[2:4],
            list(range(n, 0, -3)),
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


@programs.add(X)
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
    return (first, rest, list(keys), list(zip(*[[1, 2], [3, 4]])), list(iter(d.values())), list(reversed([1, 2])), [*d],
            list(map(str, d)))


@programs.add(X)
def copies(x):
    items = [x, [1, 2], {"k": x}]
    shallow, deep = copy.copy(items), copy.deepcopy(items[1])
    items[1].append(3)
    return shallow, deep, items[1] is shallow[1]


@programs.add(X)
def type_hints_and_types(x):
    y: torch.Tensor = x * 2
    return y, types.SimpleNamespace(a=1).a, typing.cast(int, 3)


@programs.add(X)
def types_made_inside(x):
    alias = list[int] | None
    return x, isinstance(3, int | str), type("Made", (), {"a": 1}).a, alias is None


@pytest.mark.parametrize(("make", "args", "options"), programs)
def test_language(make, args, options) -> None:
    run(make, args, options)
