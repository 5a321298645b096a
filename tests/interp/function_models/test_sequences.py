"""Lists, tuples and deques: of the program's own, and from outside."""
from __future__ import annotations

import operator
from collections import deque, namedtuple
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import call, call_with, check

Point = namedtuple("Point", "x y", defaults=[5])


class Stack(list):
    """A list with attributes of its own."""

    def push(self, item):
        self.append(item)
        return self


# Each is called with a tensor, a list of three numbers from outside, and a list of two tensors from outside.
def build(x, xs, ts):
    a = [x, 1, xs[0]]
    a.append(x + 1)
    a.insert(1, xs[1])
    a.insert(-1, "s")
    return a, a[1:], a[::-2], a[-1], len(a)


def change(x, xs, ts):
    a = list(xs)
    a.extend(ts)
    a += (x, x)
    a[0] = x * 2
    a[1:3] = [7, 8, 9]
    del a[-1]
    del a[::3]
    popped = a.pop()
    first = a.pop(0)
    a.reverse()
    return a, popped, first


def change_outside(x, xs, ts):
    xs.append(x.shape[0])
    xs[0] += 1
    xs.insert(1, x)
    ts.clear()
    ts.extend([x, x + 1, x])
    ts.pop(1)
    ts *= 2
    return len(xs), len(ts), xs[-1]


def slices_of_itself(x, xs, ts):
    xs[:] = xs
    xs[1:1] = xs
    xs.extend(xs)
    xs += xs
    return xs


def algebra(x, xs, ts):
    return xs + [x], ts * 2, 2 * ts, (x,) + tuple(xs), (1, x) * 2, xs.copy(), list(ts), tuple(ts), [*xs, *ts]


def search(x, xs, ts):
    return (2.0 in xs, xs.index(3.0), xs.count(1.0), xs == [1.0, 2.0, 3.0], xs < [1.0, 3.0],
            (1, "a") in [(1, "a"), (2, "b")], ts[0] in ts,
            ts.index(ts[0]), xs != ts)


def remove(x, xs, ts):
    xs.remove(2.0)
    ts.remove(ts[0])
    return xs, ts


def sort(x, xs, ts):
    a = [3, 1, 2, 1.0, True]
    a.sort()
    xs.sort(reverse=True)
    ts.sort(key=lambda t: -t.shape[0])
    return a, xs, ts, sorted(xs), sorted("hello"), sorted([(2, "b"), (1, "z"), (2, "a")])[0][1]


def missing(x, xs, ts):
    found = []
    for i in (2, 3):
        try:
            found.append(xs[i])
        except IndexError as e:
            found.append(str(e))
    try:
        xs.index(7.0)
    except ValueError:
        found.append(x)
    return found


def tuples(x, xs, ts):
    p = Point(x, xs[0])
    q = p._replace(y=2)
    r = Point._make(ts)
    a, (b, *c) = 1, (2, x, 4)
    return p, q.x, r, q[1], p + (1,), p[::-1], Point(x), Point(1, 2).index(2), len(p), a, b, c, q._asdict(), p._fields


def deques(x, xs, ts):
    d = deque(xs, maxlen=3)
    d.append(x)
    d.appendleft(5)
    d.rotate(1)
    e = deque(ts)
    e.extend([x, 1])
    e.extendleft([2, 3])
    e.popleft()
    e.reverse()
    e[0] = 9
    del e[1]
    return d, list(e), e.pop(), d[0], len(d), e.copy(), d.maxlen, 5 in d


def subclass(x, xs, ts):
    s = Stack()
    s.push(x).push(1)
    s.name = "n"
    t = Stack(xs)
    t.push(2)
    return s, t, s[0], len(t), isinstance(s, list), t[1:], s + t


def nested(x, xs, ts):
    a = [[]] * 2
    a[0].append(x)
    b = a
    b.append(a[1])
    c = [a]
    return a, b, c, a[0] is a[1], a is b


def cycle(x, xs, ts):
    a = [x]
    a.append(a)
    return a[1][1][0], a is a[1]


def comprehensions(x, xs, ts):
    return ([v * 2 for v in xs if v > 1], {v: x for v in xs}, {v for v in (1, 2)}, [a + b for a in xs for b in xs],
            tuple(t for t in ts))


def operators(x, xs, ts):
    a = [1, 2]
    operator.setitem(a, 0, x)
    operator.iadd(a, (3,))
    operator.imul(a, 2)
    operator.delitem(a, 1)
    return (a, operator.getitem(a, 1), operator.concat([x], xs), operator.contains(xs, 1.0),
            operator.length_hint([1, 2]), list.append(a, 3))


@pytest.mark.parametrize("program", [build, change, change_outside, slices_of_itself, algebra, search, remove, sort,
                                     missing, tuples, deques,
                                     subclass, nested, cycle, comprehensions, operators], ids=lambda f: f.__name__)
def test_sequences(program) -> None:
    arguments = call(torch.ones(2), [1.0, 2.0, 3.0], [torch.zeros(2), torch.ones(3)])
    check(lambda: program, arguments, arguments)


def test_only_what_is_read_is_guarded() -> None:
    def make():
        state = SimpleNamespace(values=[1.0, 2.0, 3.0])
        def f(x):
            return x * state.values[1], state.values
        return f, state
    check(make, call(torch.ones(2)), lambda s: s.values.__setitem__(2, 9.0), call(torch.ones(2)), captures=1)
    check(make, call(torch.ones(2)), lambda s: s.values.__setitem__(1, 9.0), call(torch.ones(2)), captures=2)
    check(make, call(torch.ones(2)), lambda s: s.values.append(9.0), call(torch.ones(2)), captures=1)
    check(make, call(torch.ones(2)), lambda s: s.values.clear(), call(torch.ones(2)),
          captures=1)    # the program raises then


def test_truth_of_a_list_is_not_its_length() -> None:
    def make():
        state = SimpleNamespace(values=[1.0])
        def f(x):
            return x + 1 if state.values else x
        return f, state
    check(make, call(torch.ones(2)), lambda s: s.values.append(9.0), call(torch.ones(2)), captures=1)
    check(make, call(torch.ones(2)), lambda s: s.values.clear(), call(torch.ones(2)), captures=2)


def test_a_list_that_grows_has_any_length() -> None:
    def make():
        state = SimpleNamespace(history=[], first=[1.0])
        def f(x):
            state.history.append(x * 2)
            state.first.append(state.first[0])
            if state.history:
                x = x + 1
            return x, len(state.first) if x.dim() == 2 else None
        return f, state
    check(make, *[call(torch.ones(2)) for _ in range(5)], captures=1)


def test_a_deque_that_fills_up_has_any_length() -> None:
    def make():
        state = SimpleNamespace(history=deque(), last=deque([0.0], maxlen=3))
        def f(x):
            state.history.append(x * 2)
            state.last.append(x + 1)
            return x + 3 if state.history else x
        return f, state
    check(make, *[call(torch.ones(2)) for _ in range(5)], captures=1)


def test_a_deque_that_was_appended_to_and_is_read_has_its_length_and_bound() -> None:
    def make():
        state = SimpleNamespace(last=deque([1.0], maxlen=3))
        def f(x):
            state.last.append(x.sum())
            return x + len(state.last), list(state.last), state.last[0]
        return f, state
    def enlarge(state):
        state.last = deque(state.last, maxlen=4)
    check(make, *[call(torch.ones(2)) for _ in range(4)], enlarge, call(torch.ones(2)), call(torch.ones(2)), captures=5)


@pytest.mark.parametrize("program", [lambda d, x: d.extend([x, x]), lambda d, x: d.copy(), lambda d, x: d + d, lambda d, x: d * 2,
                                     lambda d, x: d.appendleft(x), lambda d, x: d.__iadd__([x])])
def test_what_falls_out_of_a_deque_depends_on_its_bound(program) -> None:
    def make():
        state = SimpleNamespace(last=deque([1.0], maxlen=2))
        def f(x):
            made = program(state.last, x)
            return len(state.last), made
        return f, state
    def reset(state, maxlen):
        state.last = deque([1.0], maxlen=maxlen)
    check(make, call(torch.ones(2)), lambda s: reset(s, 1), call(torch.ones(2)), lambda s: reset(s, None), call(torch.ones(2)),
          lambda s: reset(s, 2), call(torch.ones(2)), captures=3)


def test_a_list_that_grows_and_is_read_has_its_length() -> None:
    def make():
        state = SimpleNamespace(history=[1.0])
        def f(x):
            state.history.append(x)
            return x + len(state.history), state.history[-1], state.history[0]
        return f, state
    check(make, *[call(torch.ones(2))] * 5, captures=2)


def test_values_that_only_move_are_not_guarded() -> None:
    def make():
        state = SimpleNamespace(values=[1.0, 2.0])
        def f(x):
            state.values.append(state.values.pop(0))
            return x + 1
        return f, state
    check(make, call(torch.ones(2)), call(torch.ones(2)), lambda s: s.values.__setitem__(0, 7.0), call(torch.ones(2)),
          captures=1)


NO_INDICES = [SimpleNamespace().__init__, pytest.raises(KeyError).__enter__, "".join, len, slice(1), (1,), [1], 1.5, None]


@pytest.mark.parametrize("index", NO_INDICES, ids=lambda index: type(index).__name__)
def test_what_is_no_index(index) -> None:
    """The error names its type."""
    def program(x, index):
        told = []
        for use in (lambda: [2, 7].pop(index), lambda: [2, 7].insert(index, 1), lambda: (2, 7).index(2, index),
                    lambda: [2] * index, lambda: range(index), lambda: deque([2, 7]).rotate(index)):
            try:
                use()
            except TypeError as error:
                told.append(str(error))
        return x + len(told), told
    check(lambda: program, call(torch.ones(2), index), call(torch.ones(2), index), captures=None, fullgraph=False)


RETURNED_TUPLES = {
    "slice": lambda k: k[:], "part": lambda k: k[:2], "plus nothing": lambda k: k + (), "nothing plus": lambda k: () + k,
    "concat": lambda k: operator.concat(k, ()), "iadd": lambda k: operator.iadd(k, ()), "sum": lambda k: sum([k, ()], ()),
    "max": lambda k: max(k, ()), "max of list": lambda k: max([(), k]), "min": lambda k: min(k, (9, 9)),
    "sorted": lambda k: sorted([k, ()])[-1], "key": lambda k: max({k: 1}),
    "member": lambda k: max({k}), "item": lambda k: max({1: k}.items())[1],
}


def test_the_first_of_equal_tuples_is_returned() -> None:
    """Also where both were one object in the capturing call."""
    def make():
        state = SimpleNamespace(one=tuple([1, 2]), other=tuple([1, 2]))
        def f(x, p, q):
            return x + 1, max(p, q) is p, max(q, p) is q
        return f, state
    pairs = [("one", "one"), ("one", "other"), ("other", "one"), ("other", "other")]
    check(make, *[call_with(lambda s, p=p, q=q: (torch.ones(2), getattr(s, p), getattr(s, q))) for p, q in pairs],
          captures=None, fullgraph=False)


@pytest.mark.parametrize("name", RETURNED_TUPLES)
def test_a_tuple_that_is_returned_as_it_is(name) -> None:
    """The very object, on hits too, where CPython gives back what it was given."""
    def make():
        state = SimpleNamespace(given=[(1, 2), (1, 2), (3,), (4, 5, 6), ()], last=None)
        def f(x, k):
            state.last = RETURNED_TUPLES[name](k)
            return x + 1, state.last is k
        return f, state
    same = []
    def note(state):
        same.append([state.last is given for given in state.given])
    calls = [step for k in (0, 1, 2, 3, 4, 0, 1, 2, 3, 4) for step in (call_with(lambda s, k=k: (torch.ones(2), s.given[k])), note)]
    check(make, *calls, captures=None, fullgraph=False)
    assert same[:10] == same[10:]
