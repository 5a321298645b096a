"""Containers, strings and numbers, end to end."""
from __future__ import annotations

import collections
import copy
import io
import math
import operator
import types
import typing
import weakref

import torch

from tests.helpers import call, check
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


class Stack(list):
    def top(self):
        return self[-1]


class Key:
    pass


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


test_language = programs.test()


# --- lists from outside that grow from call to call

def test_the_last_items_of_a_list_that_grows_do_not_recapture() -> None:
    def make():
        state = types.SimpleNamespace(losses=[1.0], logs=[[0]], tensors=[torch.ones(2, 3)])

        def program(x):
            before = state.losses[-1]
            state.losses.append(x.mean().item())
            state.logs.append([before])
            state.logs[-1].append(2)
            state.logs[-2].append(3)
            state.tensors.append(x + state.tensors[-1])
            print(before, state.losses[-1], state.losses[-2])
            return x * 2, state.losses[0], state.tensors[-2] * before
        return program, state
    stats = check(make, *[call(X * i) for i in range(8)], captures=None)
    assert stats.captures <= 2 and stats.graphs <= 2, stats


def test_the_last_item_of_a_list_that_has_one_item_is_its_first() -> None:
    def make():
        logs = [[1], [2]]

        def program(x):
            logs[0].append(x.shape[0])
            logs[-1].append(5)
            return x + logs[0][0], logs[-1][-1], len(logs[0])
        return program, logs
    changes = lambda logs: logs.pop(), lambda logs: logs.append([3, 4])
    check(make, call(X), call(X), changes[0], call(X), call(X), changes[1], call(X), captures=None)


def test_the_last_item_of_a_list_that_becomes_empty() -> None:
    def make():
        losses = [1.0, 2.0]

        def program(x):
            last = losses[-1]
            losses.append(3.0)
            return x * 2, last, losses[-1]
        return program, losses
    steps = call(X), call(X), list.clear, call(X), lambda losses: losses.append("text"), call(X), call(X)
    check(make, *steps, captures=None, fullgraph=False)


# --- objects of C

def test_sets_of_weak_references_from_outside() -> None:
    def make():
        known = weakref.WeakSet()

        def program(x):
            key = Key()
            y = x * 2
            known.add(key)
            kept.append(key)
            return y + 1, len(known)
        kept = []
        return program, kept
    check(make, call(X), call(X), call(X), captures=None, fullgraph=False)


def test_methods_of_pybind11_are_not_taken_for_those_of_what_describes_them() -> None:
    def program(x):
        writer = torch._C.PyTorchFileWriter(io.BytesIO())
        y = x * 2
        writer.write_end_of_file()
        return y + 1, writer.archive_name()
    check(lambda: program, *[call(X)] * 4, captures=None, fullgraph=False)


def test_saving_and_loading_is_made_between_traces(tmp_path) -> None:
    def program(x):
        y = x * 2
        torch.save({"y": y}, tmp_path / "y.pt")
        return torch.load(tmp_path / "y.pt")["y"] + 1
    stats = check(lambda: program, *[call(X * i) for i in range(5)], captures=None, fullgraph=False)
    assert stats.captures == 3 and stats.breaks == 2 and not stats.native_calls, stats
