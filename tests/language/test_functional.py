"""Builtins and library functions that call what they are given, and functions made of functions, in one graph."""
from __future__ import annotations

import copy
import functools
import itertools
import operator
import threading
import weakref
from types import MethodType, SimpleNamespace

import torch

from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@programs.make(X, change=lambda state: setattr(state, "weight", -1), captures=2)
def sorting_by_functions():
    state = SimpleNamespace(weight=1)

    def program(x):
        items = [(2, x), (1, x + 1), (3, x + 2)]
        ranked = sorted(items, key=lambda p: p[0] * state.weight)
        return [t for _, t in ranked], min(items, key=lambda p: p[0])[1], max(items, key=lambda p: p[0] * state.weight)[1]
    return program, state


@programs.add(X)
def sorting_in_place(x):
    items = [x[0], x.sum(), x]
    items.sort(key=lambda t: t.ndim)
    words = ["b", "A", "c"]
    words.sort(key=str.lower, reverse=True)
    return items, words, sorted("hello", key=functools.cmp_to_key(lambda a, b: (a > b) - (a < b))), sorted([3, 1], key=operator.neg)


@programs.make(X, change=lambda state: state.append(5.0), captures=2)
def mapping_and_filtering():
    factors = [1.0, 2.0, -3.0]

    def program(x):
        scaled = map(lambda f: x * f, filter(lambda f: f > 0, factors))
        pairs = list(map(lambda a, b: a * b, x, factors))
        return list(scaled), pairs, list(filter(None, [0, 1])), list(map(str, factors)), dict(zip("ab", map(torch.neg, x)))
    return program, factors


@programs.add(X)
def folds(x):
    return (functools.reduce(torch.add, x), functools.reduce(lambda a, b: a * b, [x, 2, 3]), functools.reduce(operator.add, [[1],
            [x]], []),
            sum((t for t in x), torch.zeros(3)), any(t.ndim == 1 for t in x), all(map(lambda t: t.ndim == 2, x)), max(3, 1,
                key=lambda n: -n))


@programs.add(X)
def iterator_tools(x):
    return (list(itertools.accumulate(x, lambda a, b: a + b)), list(itertools.accumulate([1, 2, 3], operator.mul, initial=1)),
            [(k, [t for _, t in g]) for k, g in itertools.groupby([(1, x), (1, x + 1), (2, x)], key=lambda p: p[0])],
            list(itertools.product([x], "ab", repeat=1)), list(itertools.chain([x], (1,
                2))), list(itertools.islice(itertools.count(1), 2, 5)),
            list(itertools.starmap(lambda a, b: a * b, [(x, 2)])), list(itertools.zip_longest(x, [1], fillvalue=0)),
            list(itertools.takewhile(lambda n: n < 2, [1, 2, 1])), list(itertools.dropwhile(lambda n: n < 2, [1, 2, 1])),
            list(itertools.combinations([x, 1, 2], 2)), list(itertools.permutations([1, 2])), list(itertools.pairwise(x)),
            list(itertools.compress([x, 1], [1, 0])), list(itertools.repeat(x, 2)), list(itertools.filterfalse(bool, [0, 1])))


@programs.add(X)
def shared_iterators(x):
    a, b = itertools.tee(x * 2)
    next(a)
    it = iter([1, 2, 3, 4])
    pairs = list(zip(it, it))
    cycle = itertools.cycle([x, -x])
    return list(a), list(b), pairs, [next(cycle) for _ in range(3)], next(it, "end"), list(iter([3, 2, 1].pop, 1))


@programs.add(X)
def operators_as_functions(x):
    return (operator.itemgetter(1)(x), operator.itemgetter(0, 1)([x, 2]), operator.attrgetter("shape")(x),
            operator.methodcaller("sum", dim=0)(x),
            operator.mul(x, 2), operator.getitem({"a": x}, "a"), operator.concat([x],
                [1]), operator.attrgetter("a.b")(SimpleNamespace(a=SimpleNamespace(b=x))))


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0), captures=2)
def partial_functions():
    state = SimpleNamespace(scale=2.0)

    def affine(x, a, b=0, *, c=0):
        return x * a * state.scale + b + c
    outside = functools.partial(affine, b=3)

    def program(x):
        inside = functools.partial(affine, x, 2, c=1)
        nested = functools.partial(inside, b=4)
        return outside(x, 1), outside(x, 1, b=5), inside(), nested(c=2), nested.args[0] is x, nested.keywords, inside.func is affine
    return program, state


class Region:
    """A context that keeps what it is given, as `torch.autocast` does."""

    def __init__(self, device, dtype=None, *, enabled=True):
        self.device, self.dtype, self.enabled = device, dtype, enabled

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@programs.add(X)
def partial_functions_of_constants(x):
    region, size = functools.partial(Region, "cpu", enabled=False), functools.partial(functools.partial(torch.full, (2,)), 3.0)
    with region() as kept, functools.partial(torch.autocast, "cpu", enabled=False)():
        y = x @ x.T
    return y, vars(kept), region(torch.bool).dtype, size(), functools.partial(lambda *items: items, 1, ("a", None))(x)


@programs.make(X, change=lambda state: state.kept.append((state.clamp(X), state.rows(X))))
def getters_that_outlive_the_call():
    state = SimpleNamespace(kept=[])

    def program(x):
        state.clamp, state.rows = operator.methodcaller("clamp", min=0), operator.itemgetter(0, 1)
        return state.clamp(x), state.rows(x)
    return program, state


@programs.make(X, change=lambda state: setattr(state, "scale", 5.0), captures=2)
def partial_methods():
    class Model:
        scale = 2.0

        def run(self, x, times):
            return x * times * self.scale
        twice = functools.partialmethod(run, times=2)
    model = Model()
    return lambda x: model.twice(x), model


@programs.add(X)
def wrapped_functions(x):
    def logged(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            log.append(f.__name__)
            return f(*args, **kwargs)
        inner.count = 3
        return inner
    log = []

    @logged
    @logged
    def double(t: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        return t * 2
    return (double(x), log, double.__name__, double.__doc__, double.__wrapped__.__wrapped__(x), double.count,
            sorted(double.__annotations__))


@programs.make(X, change=lambda state: state.cache_clear(), captures=None)
def cached_functions():
    @functools.cache
    def table(n, scale=1.0):
        return [scale * i for i in range(n)]
    return lambda x: (x * sum(table(3)), table(3) is table(3), table(2, scale=2.0)), table


@programs.add(X)
def a_cached_function_made_inside(x):
    @functools.cache
    def fibonacci(n):
        calls.append(n)
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
    calls = []
    return x * fibonacci(6), len(calls)


@programs.add(X)
def a_cached_function_of_tensors(x):
    @functools.lru_cache(maxsize=4)
    def double(t):
        calls.append(1)
        return t * 2
    calls = []
    return double(x) + double(x), len(calls)


@functools.singledispatch
def describe(value):
    return "object", value


@describe.register
def _(value: int):
    return "int", value + 1


@describe.register(list)
def _(value):
    return "list", [describe(item) for item in value]


@describe.register(torch.Tensor)
def _(value):
    return "tensor", value * 2


@programs.add(X)
def single_dispatch(x):
    return describe(x), describe(3), describe([x, 1, "s"]), describe(2.5), describe.dispatch(bool) is describe.dispatch(int)


@programs.make(X, change=lambda state: describe.register(state.kind, lambda value: ("own", value)), captures=2)
def single_dispatch_that_learns():
    class Own:
        pass
    own = Own()
    return lambda x: (x, describe(own), describe(1)), SimpleNamespace(kind=Own)


@programs.add(X)
def single_dispatch_of_methods(x):
    class Visitor:
        @functools.singledispatchmethod
        def visit(self, value):
            return value

        @visit.register(torch.Tensor)
        def _(self, value):
            return value * 2

        @visit.register(tuple)
        def _(self, value):
            return [self.visit(v) for v in value]
    return Visitor().visit((x, 1, (x,)))


@programs.add(X)
def methods_made_by_hand(x):
    class Model:
        scale = 3
    model = Model()
    model.run = MethodType(lambda self, t: t * self.scale, model)
    bound = model.run
    return model.run(x), bound.__self__ is model, bound.__func__(model, x), [].append.__name__, "a-b".split.__call__("-")


@programs.add(X)
def recursion_by_a_cell(x):
    fact = lambda n: 1 if n < 2 else n * fact(n - 1)
    compose = lambda *fs: functools.reduce(lambda f, g: lambda t: g(f(t)), fs)
    return x * fact(4), compose(torch.neg, lambda t: t + 1, torch.abs)(x)


# --- copies, weak references, threads

class Node:
    def __init__(self, value, children=()):
        self.value, self.children, self.parent = value, list(children), None
        for child in self.children:
            child.parent = self


class Custom:
    def __init__(self, value):
        self.value, self.copies = value, 0

    def __copy__(self):
        made = type(self)(self.value)
        made.copies = self.copies + 1
        return made

    def __deepcopy__(self, memo):
        return Custom(copy.deepcopy(self.value, memo))


class Reduced:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __reduce__(self):
        return Reduced, (self.a, "reduced")


class Stateful:
    def __init__(self):
        self.kept, self.dropped = [1], 2

    def __getstate__(self):
        return {"kept": self.kept}

    def __setstate__(self, state):
        self.__dict__.update(state, restored=True)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@programs.add(X)
def copies_of_objects(x):
    leaf = Node([1])
    tree = Node("root", [leaf, Node(2)])
    shallow, deep = copy.copy(tree), copy.deepcopy(tree)
    return (x, shallow, deep, shallow.children is tree.children, deep.children[0].parent is deep, copy.copy(Custom(x)).copies,
            copy.deepcopy(Custom([1])).value, copy.copy(Reduced(1, 2)).b, copy.copy(Stateful()), copy.deepcopy(Stateful()))


@programs.make(X, change=lambda state: state.children.append(Node(7)), captures=2)
def copies_of_outside_objects():
    tree = Node(1, [Node(2), Node(3)])

    def program(x):
        twin = copy.deepcopy(tree)
        twin.value += 1
        return x * sum(c.value for c in twin.children), twin.value, tree.value, twin
    return program, tree


@programs.add(X)
def copies_of_slots_and_functions(x):
    f = lambda: 1
    s = copy.copy(Slotted(x))
    return (s.a * 2, hasattr(s, "b"), copy.deepcopy(Slotted([1])).a, copy.copy(f) is f, copy.deepcopy((1, "a")),
            copy.deepcopy(len) is len)


@programs.make(X, change=lambda state: setattr(state, "value", 5.0), captures=2)
def weak_references():
    holder = SimpleNamespace(target=Node(2.0))
    reference = weakref.ref(holder.target)

    def program(x):
        target = reference()
        return x if target is None else x * target.value
    return program, holder.target


@programs.add(X)
def weak_references_made_inside(x):
    node = Node(x)
    node.child = Node(1)
    node.child.parent = weakref.ref(node)
    method = weakref.WeakMethod(Bound(x).run)
    return node.child.parent().value * 2, method() is None, weakref.ref(node) is weakref.ref(node)


class Bound:
    def __init__(self, x):
        self.x = x

    def run(self):
        return self.x


@programs.make(X, change=lambda state: setattr(state.key, "value", 5.0), captures=2)
def weak_dictionaries():
    state = SimpleNamespace(key=Node(2.0), values=weakref.WeakValueDictionary())
    state.values["k"] = state.key

    def program(x):
        table, node = weakref.WeakKeyDictionary(), Node(1)
        table[node] = x
        return x * state.values["k"].value, "q" in state.values, table[node] * 2, node in table, state.key in table, len(table)
    return program, state


@programs.add(X)
def threads(x):
    return x, threading.current_thread() is threading.main_thread(), threading.get_ident() == threading.main_thread().ident


@programs.add(X)
def what_cannot_be_reduced(x):
    failed = []
    for items in (None, 3, []):
        try:
            functools.reduce(operator.add, items)
        except TypeError as error:
            failed.append((str(error), error.__context__))
    return x, failed


test_functional = programs.test()
