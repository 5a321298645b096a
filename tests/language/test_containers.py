"""Containers of the language and of collections, holding tensors, in one graph."""
from __future__ import annotations

import collections
import copy
import heapq
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from types import MappingProxyType, SimpleNamespace

import torch
import torch.nn.functional as F

from tests.programs import NATIVE, Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@programs.add(X)
def sets_of_tensors(x):
    y, z = x * 2, x + 1
    s = {x, y, x}
    s.add(z)
    s.discard(y)
    return (len(s), x in s, y in s, {z, x} == s, s - {x} == {z}, frozenset([x, y]) & {x} == {x}, sum(t.sum() for t in [x,
            z] if t in s))


@programs.make(X, change=lambda state: state.seen.clear(), captures=None)
def tensors_noted_in_an_outside_set():
    state = SimpleNamespace(seen=set(), weight=torch.ones(3))

    def program(x):
        new = state.weight not in state.seen
        state.seen.add(state.weight)
        return x * state.weight, new
    return program, state


@programs.add(X)
def special_methods_called_by_name(x):
    class Bag(list):
        def __len__(self):
            return super().__len__() * 2

        def __iter__(self):
            return (t * 2 for t in super().__iter__())

        def __reversed__(self):
            return super().__reversed__()

    class Names(set):
        def __or__(self, other):
            return super().__or__(other) | {"own"}

        def __le__(self, other):
            return not super().__le__(other)
    bag, names = Bag([x, x + 1]), Names("ab")
    return (x.shape.__len__(), len(bag), list(bag), list(reversed(bag)), (x, 1).__len__(), next((x, 1).__iter__()),
            sorted(names | {"c"}), names <= {"a", "b", "c"}, {1}.__and__({1, 2}), {1}.__len__(), deque([x]).__len__(),
            {1, 2}.__rsub__({2, 3}), {1}.__eq__({1}))


@programs.add(X)
def tensors_as_keys(x):
    y = x * 2
    d = {x: "x", y: "y"}
    d[x] = "again"
    return d[x], d.get(y), x + 1 in d, len(d), [d[k] for k in d], (x, 1) in {(x, 1): 2}


@programs.make(X, change=lambda state: state.update(c=4), captures=2)
def views_of_dicts():
    d, e = {"a": 1, "b": 2}, {"b": 2, "c": 3}

    def program(x):
        k = d.keys()
        return (x * len(k), k & e.keys(), k | {"z"}, k - e.keys(), k ^ e.keys(), d.items() & e.items(), d.items() - e.items(),
                k <= e.keys(),
                k.isdisjoint({"q"}), k == {"a", "b"}, sorted(k), list(reversed(d.keys())), ("a", 1) in d.items(), 2 in d.values(),
                "a" in k, {"a"} < k | {"b"}, set(d.items()) == d.items())
    return program, e


@programs.add(X)
def views_of_what_has_no_hash(x):
    d, e, same = {"a": [1], "b": [2]}, {"b": [3], "c": 4}, {"b": [2], "a": [1]}
    found = [d.items() == same.items(), d.items() != e.items(), d.items() <= same.items(), d.items() < same.items(),
             d.items() >= e.items(), d.items() & {"q": 1}.items(), d.items() ^ same.items(), ("a", [1]) in d.items(),
             ("a", [2]) in d.items(), ["a", [1]] in d.items(), 1 in d.items(), {("c", 4)} <= e.items(),
             {("c", 4)} == {"c": 4}.items(), {"c"} > {"c": 4, "d": 5}.keys(), {"c": 1}.keys() < {"c", "d"}]
    return x, found


@programs.add(X, **NATIVE)
def views_of_what_has_no_hash_as_sets(x):
    d, e, found = {"a": [1], "b": [2]}, {"b": [3], "c": 4}, []
    for combine in (lambda: d.items() & {**d}.items(), lambda: d.items() | e.items(), lambda: d.items() ^ e.items(),
                    lambda: ([], 1) in d.items()):
        try:
            found.append(combine())
        except TypeError as error:
            found.append(str(error))
    return x, found


@programs.add(X)
def pairs_are_looked_up_by_their_keys(x):
    log = []

    class Value:
        def __eq__(self, other):
            log.append("compared")
            return 5
    d = {"a": Value(), "b": x}
    return (("a", 1) in d.items(), ("c", Value()) in d.items(), ("b", x) in d.items(), ("a", d["a"]) in d.items(),
            {**d}.items() == d.items(), log)


@programs.add(X)
def views_that_follow_their_dict(x):
    d = {"a": x}
    keys, values, items = d.keys(), d.values(), d.items()
    d["b"] = x * 2
    del d["a"]
    return list(keys), list(values), list(items), len(keys)


@programs.make(X, change=lambda state: state.append("a"), captures=2)
def counters():
    words = ["a", "b", "a"]

    def program(x):
        c = Counter(words)
        c.update("ab")
        c["q"] += 2
        d = c + Counter(a=1)
        return (x * c["a"], c.most_common(1), c["missing"], sorted(c.elements()), c - Counter(b=1), c & d, c | d, c.total(),
                dict(d), c == d,
                +Counter(a=-1), c <= d)
    return program, words


@programs.add(X)
def a_counter_that_is_subtracted_from(x):
    c = Counter(a=3, b=1)
    c.subtract({"a": 1})
    del c["b"]
    return x, c, repr(c), c.copy(), Counter({"z": 2}), list(c)


@programs.make(X, change=lambda state: state.update(b=9), captures=None)
def chain_maps():
    defaults = {"a": 1, "b": 2}

    def program(x):
        c = ChainMap({"a": x}, defaults)
        child = c.new_child({"c": 3})
        child["d"] = 4
        return (child["a"], child["b"], len(child), sorted(child), child.parents["b"], "z" in child, dict(child), child.get("q", 0),
                child.maps[0])
    return program, defaults


@programs.make(X, change=lambda state: state.append(5), captures=None)
def deques():
    history = deque([1, 2], maxlen=3)

    def program(x):
        d = deque([x, 1], maxlen=4)
        d.append(2)
        d.appendleft(x * 2)
        d.rotate(1)
        d.extend([7])
        d.extendleft([8])
        last = d.pop()
        d.insert(1, "i")
        d.remove("i")
        history.append(3)
        return list(d), last, d[0], len(d), d.maxlen, d.count(2), sum(history), d.index(8), list(reversed(d)), d.copy() == d
    return program, history


@programs.add(X)
def ordered_dicts(x):
    o = OrderedDict(a=1, b=x, c=3)
    o.move_to_end("a")
    o.move_to_end("c", last=False)
    first = o.popitem(last=False)
    o["d"] = 4
    return (list(o), first, o, OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1), list(reversed(o)), list(o.items()), o.copy(),
            o | {"z": 1})


@programs.add(X)
def default_dicts(x):
    d = defaultdict(list)
    for key, row in zip("aba", [*x, x[0]]):
        d[key].append(row)
    tree = defaultdict(lambda: defaultdict(int))
    tree["a"]["b"] += 2
    return d, sorted(d), len(d["z"]), tree["a"]["b"], tree["q"]["r"], "z" in d, d.get("y"), d.default_factory is list


@programs.make(X, change=lambda state: state.pop("a"), captures=None)
def a_default_dict_from_outside():
    d = defaultdict(lambda: 2.0)
    d["a"] = 3.0
    return lambda x: x * d["a"] * d["new"], d


class Attributed(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Missing(dict):
    def __missing__(self, key):
        value = self[key] = len(key)
        return value


class Lowered(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)

    def __getitem__(self, key):
        return super().__getitem__(key.lower())

    def __contains__(self, key):
        return super().__contains__(key.lower())


class Stack(list):
    def push(self, item):
        self.append(item)
        return self

    def __getitem__(self, i):
        return super().__getitem__(i if isinstance(i, slice) else -1 - i)


class Limited(list):
    limit = 2

    def append(self, item):
        super().append(item)
        del self[:-self.limit]


@programs.make(X, change=lambda state: state.__setitem__("scale", 5.0), captures=3)
def a_dict_with_attributes():
    config = Attributed(scale=2.0, sizes=[1, 2])

    def program(x):
        config.last = "program"
        return x * config.scale + sum(config.sizes), hasattr(config, "missing"), "scale" in config, config.get("q"), len(config)
    return program, config


@programs.make(X, change=lambda state: state.pop("abc", None), captures=None)
def a_dict_that_makes_what_is_missing():
    d = Missing(a=5)
    return lambda x: (x * d["a"] + d["abc"], d.get("other"), sorted(d)), d


class Counted(dict):
    reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)

    def keys(self):
        self.reads += 100
        return super().keys()


@programs.make(X)
def dicts_that_others_look_into():
    counted = Counted(a=2.0, b=3.0)

    def program(x):
        counted.reads = 0
        taken = [{**counted}, dict(counted), {} | counted, dict(x=1, **counted), dict.fromkeys(counted)]
        plain = {}
        plain.update(counted)
        reads = counted.reads
        return x * counted["a"], taken, plain, reads, collections.OrderedDict(counted), counted.reads
    return program, counted


@programs.add(X)
def dicts_with_item_methods_of_their_own(x):
    d = Lowered()
    d["KEY"] = x
    d.update(other=1)
    return d["Key"] * 2, "kEY" in d, list(d), d.get("key"), d


@programs.add(X)
def lists_with_methods_of_their_own(x):
    s = Stack([x, x + 1]).push(x + 2)
    recent = Limited()
    for row in (x, x * 2, x * 3):
        recent.append(row)
    return s[0], len(s), s, recent, [t.sum() for t in recent], isinstance(s, list), s[0:1], list(s)


@programs.make(X, change=lambda state: state.append(4.0), captures=2)
def an_outside_list_of_a_subclass():
    class Weights(list):
        @property
        def total(self):
            return sum(self)
    weights = Weights([1.0, 2.0])
    return lambda x: x * weights.total + len(weights), weights


@programs.add(X)
def user_containers(x):
    class D(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(str(key), value)

    class L(collections.UserList):
        pass
    d, items = D({1: x}), L([x, x + 1])
    d[2] = 5
    items.append(3)
    return d["1"] * 2, d.data, len(d), items[0], len(items), items.data


@programs.add(X)
def mapping_proxies(x):
    d = {"a": x, "b": 2}
    p = MappingProxyType(d)
    d["c"] = 3
    return p["a"], p["c"], len(p), list(p), "b" in p, p.get("q"), dict(p)


@programs.make(X, change=lambda state: state.defaults.update(k=5), captures=2)
def unions_of_proxies():
    state = SimpleNamespace(defaults={"k": 2})
    shown = MappingProxyType(state.defaults)

    def program(x):
        made = MappingProxyType(OrderedDict(a=x))
        return x * shown["k"], shown | {"z": 1}, {"z": 1} | shown, made["a"], "a" in made, made
    return program, state


@programs.add(X)
def slices_and_nested_containers(x):
    items = [x, [x + 1, {"a": (x, [2])}], 3]
    items[1][1]["a"][1].append(x * 2)
    items[1:] = items[1:] * 2
    del items[::3]
    return items, items[0] is items[-2], [i for i in range(10)][8:2:-3]


@programs.make(X, change=lambda state: state.reverse(), captures=2)
def sorting_and_searching():
    names = ["b", "a", "c"]

    def program(x):
        order = sorted(range(len(names)), key=names.__getitem__)
        return (x[:, order], sorted(names, reverse=True), names.index("c"), min(names), max(names, key=lambda n: n == "b"),
                list(enumerate(names)))
    return program, names


@programs.make(X, captures=None)
def containers_that_hold_themselves():
    """As arguments of functions of C, of torch and of Python."""
    state = SimpleNamespace(items=[1.0], table={"a": 2})
    state.items.append(state.items)
    state.table["table"] = state.table

    def take(kept, *rest, **named):
        return len(kept) + len(rest) + len(named)

    def program(x):
        loop = [x]
        loop.append(loop)
        failed = []
        for operation in (lambda: torch.add(x, state.items), lambda: torch.stack(state.table), lambda: F.linear(loop, x)):
            try:
                operation()
            except TypeError as error:
                failed.append(str(error)[:9])
        text = repr(state.items), str(loop[1] is loop), f"{state.table}"
        return x + take(state.items, loop, kept=state.table), text, failed, isinstance(state.table, dict), list(map(len, [loop]))
    return program, state


@programs.add(X)
def copies_of_containers(x):
    items = [1, [x], {"k": [2]}, (3, [4])]
    shallow = copy.copy(items)
    deep = copy.deepcopy([1, {"a": [2, (3, [4])]}, {5}])
    items[1].append(6)
    nested = {"a": [1]}
    nested["self"] = nested
    twin = copy.deepcopy(nested)
    return (shallow, deep, shallow[1] is items[1], twin["self"] is twin, twin["a"] is nested["a"], copy.copy({1, 2}),
            copy.copy(deque([1])))


@programs.add(X)
def heaps(x):
    heap = []
    for priority, row in ((3, x), (1, x + 1), (2, x + 2)):
        heapq.heappush(heap, (priority, row))
    first = heapq.heappop(heap)
    replaced = heapq.heapreplace(heap, (0, x))
    both = heapq.heappushpop(heap, (9, x * 9))
    numbers = [5, 1, 4]
    heapq.heapify(numbers)
    return first, replaced, both, heap, numbers, heapq.nlargest(2, [3, 1, 2]), heapq.nsmallest(2, [3, 1, 2], key=lambda n: -n)


@programs.make(X, change=lambda state: heapq.heappush(state, 0), captures=2)
def a_heap_from_outside():
    heap = [1, 3, 2]

    def program(x):
        smallest = heapq.heappop(heap)
        heapq.heappush(heap, smallest)
        return x * smallest, list(heapq.merge([1, 4], [2]))
    return program, heap


test_containers = programs.test()
