"""Features of the language, end to end: functions, control flow, exceptions, context managers; with tensors in between."""
from __future__ import annotations

import contextlib
import functools
import itertools

import torch

from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


# --- functions

@programs.make(X)
def closures():
    scale, log = 2.0, []

    def program(x):
        def inner(t, times):
            log.append(times)
            return t * scale * times
        return inner(x, 1) + inner(x, 2)
    return program, log


@programs.make(X)
def nonlocal_variables():
    count = 0

    def program(x):
        nonlocal count
        total = 0.0

        def add(t):
            nonlocal total
            total = total + t
        add(x)
        add(x[0])
        count += 1
        return total
    return program


@programs.make(X)
def a_cell_shared_by_new_functions():
    def program(x):
        state = x

        def update(t):
            nonlocal state
            state = state + t
            return state

        def read():
            return state
        update(1)
        first = read()
        update(x)
        return first, read()
    return program


@programs.add(X)
def functions_made_in_a_loop(x):
    late = [lambda: x * k for k in range(3)]
    early = [lambda k=k: x * k for k in range(3)]
    return [f() for f in late], [f() for f in early]


@programs.add(X, 2, 3)
def star_arguments(x, *args, **kwargs):
    def f(a, /, b, *rest, c=1, d, **others):
        return a * b, rest, c, d, others
    values = (x, *args)
    return f(*values, d=5, **{"e": 6}), f(x, 2, d=[*args, *args], **kwargs), {**{"k": x}, "l": args}


@programs.make(X)
def defaults():
    def helper(x, scale=[2.0], *, shift=1):
        return x * scale[0] + shift
    return lambda x: (helper(x), helper(x, shift=x), helper(x, [3]))


@programs.make(X)
def decorators():
    calls = []

    def traced(label):
        def wrap(f):
            @functools.wraps(f)
            def inner(*args, **kwargs):
                calls.append((label, f.__name__))
                return f(*args, **kwargs)
            return inner
        return wrap

    @traced("outer")
    @traced("inner")
    def double(x):
        return x * 2
    return lambda x: (double(x), double.__name__), calls


@programs.add(X)
def decorators_applied_inside(x):
    def twice(f):
        @functools.wraps(f)
        def g(t):
            return f(f(t))
        return g

    @twice
    def add(t):
        return t + x
    return add(x), add.__name__


@programs.make(X)
def recursion():
    def fold(items, depth):
        if not items:
            return torch.zeros(3)
        head, *tail = items
        return head * depth + fold(tail, depth + 1)
    return lambda x: fold(list(x), 1)


@programs.add(X)
def deep_recursion(x):
    def down(n):
        return x if n == 0 else down(n - 1) + 1
    return down(60)


@programs.add(X)
def mutual_recursion(x):
    def even(n, t):
        return t if n == 0 else odd(n - 1, t * 2)

    def odd(n, t):
        return -t if n == 0 else even(n - 1, t + 1)
    return even(5, x)


@programs.add(X)
def lambdas_and_conditional_expressions(x):
    f = (lambda a: a * 2) if x.ndim == 2 else (lambda a: a)
    return (lambda *a, **k: f(*a, **k))(x), x.ndim and x, None or 3, not x.ndim


@programs.add(X)
def walrus(x):
    if (n := x.shape[0]) > 1 and (y := x * n) is not None:
        return y, n, [z := t + 1 for t in y], z


# --- control flow

@programs.add(X)
def loops(x):
    total = torch.zeros(3)
    for i, row in enumerate(x):
        if i == 0:
            continue
        total = total + row * i
    else:
        total = total + 1
    n = 0
    while n < 5:
        n += 1
        if n == 3:
            break
        total = total * 1.5
    else:
        total = None
    for _ in ():
        pass
    else:
        n += 10
    return total, n


@programs.add(X)
def nested_loops(x):
    result = []
    for i in range(3):
        for j in range(i, 3):
            if (i + j) % 2:
                continue
            if j == 2:
                break
            result.append(x[:, i] * j)
    return result


@programs.add(X, [1, 2, 3])
def unpacking(x, items):
    a, (b, *c), *d = x, (1, 2, 3), 4, 5
    first, *_, last = items
    (e, f), g = x, [*items, *x.shape]
    a, b = b, a
    return a, b, c, d, first, last, e, f, g


@programs.add(X)
def comprehensions(x):
    rows = [r for r in x if r.shape[0] == 3]
    return (rows, {i: r * i for i, r in enumerate(rows)}, {r.ndim for r in rows}, [a * b for a in rows for b in rows],
            list(r + 1 for r in rows), [[y for y in range(z)] for z in range(3)], {k: v for k, v in zip("ab", x)})


@programs.add(X, 2)
def matching(x, n):
    def kind(value):
        match value:
            case torch.Tensor() if value.ndim == 2:
                return "matrix", value * 2
            case torch.Tensor():
                return "tensor", value
            case 0 | 1:
                return "small"
            case int(k) if k > 1:
                return "int", k
            case [first, *rest]:
                return "sequence", first, rest
            case {"key": inner, **others}:
                return "mapping", inner, others
            case complex(real=r, imag=0.0):
                return "real", r
            case str() as text:
                return text.upper()
            case None:
                return "none"
            case _:
                return "other"
    return [kind(v) for v in (x, x[0], 1, n, [x, 1, 2], {"key": x, "more": 1}, 3 + 0j, "text", None, 2.5)]


@programs.add(X, "name", 3.14159)
def formatted_strings(x, name, number):
    text = f"{name!r:>10}|{number:.{x.ndim}f}|{x.shape}|{name=}|{x.ndim:03d}"
    return x, text, "%s-%d" % (name, 3), "{} {k}".format(name, k=number), name + "!"


@programs.add(X)
def chained_comparisons_and_boolean_operators(x):
    n = x.shape[1]
    return x if 1 < n <= 3 != 4 else -x, 1 < n < 2, n in (1, 2, 3), n not in [3], n is n, x is not None and x.ndim == 2


@programs.add(X)
def deletions(x):
    items, d = [x, x + 1, x + 2], {"a": x, "b": 2}
    y = items[1]
    del items[0], d["b"], y
    try:
        y
    except UnboundLocalError as error:
        return items, d, str(error)


@programs.add(X)
def assertions(x):
    assert x.ndim == 2, f"expected a matrix, got {x.ndim}"
    return x * 2


# --- exceptions

@programs.add(X)
def exceptions_raised_and_caught(x):
    log = []
    try:
        try:
            raise ValueError("first", 1)
        except KeyError:
            log.append("wrong")
        finally:
            log.append("finally")
    except (TypeError, ValueError) as error:
        log.append(error.args)
    else:
        log.append("wrong")
    try:
        log.append("body")
    except Exception:
        log.append("wrong")
    else:
        log.append("else")
    return x * len(log), log


@programs.add(X)
def exceptions_of_builtins(x):
    log = []
    for action in (lambda: {}["a"], lambda: [][1], lambda: None.name, lambda: int("x"), lambda: 1 // 0,
                   lambda: next(iter(())), lambda: "a" + 1, lambda: undefined, lambda: (lambda a: a)(), lambda: [].index(3)):
        try:
            action()
        except Exception as error:
            log.append((type(error).__name__, str(error)))
    return x + len(log), log


class Stop(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


@programs.add(X)
def exceptions_through_calls(x):
    def search(t, depth):
        if depth == 3:
            raise Stop(t * depth)
        search(t + 1, depth + 1)
    try:
        search(x, 0)
    except Stop as stop:
        return stop.value, stop.args[0] is stop.value


@programs.add(X)
def return_in_finally_and_loops(x):
    def f(n):
        try:
            return x * n
        finally:
            if n == 2:
                return -x

    def g():
        for i in range(5):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
            finally:
                log.append(i)
    log = []
    g()
    return f(1), f(2), log


@programs.add(X)
def re_raised(x):
    def inner():
        try:
            raise KeyError("a")
        except KeyError as error:
            raise RuntimeError("b") from error
    try:
        try:
            inner()
        except RuntimeError:
            x = x + 1
            raise
    except RuntimeError as error:
        return x, repr(error.__cause__), error.__context__ is error.__cause__


@programs.add(X)
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("both", [ValueError(1), TypeError(2), ValueError(3)])
    except* ValueError as group:
        log.append([error.args for error in group.exceptions])
    except* TypeError as group:
        log.append(len(group.exceptions))
    return x, log


# --- context managers

@programs.make(X)
def context_managers():
    log = []

    class Manager:
        def __init__(self, name, swallow=False):
            self.name, self.swallow = name, swallow

        def __enter__(self):
            log.append(("enter", self.name))
            return self

        def __exit__(self, kind, value, traceback):
            log.append(("exit", self.name, kind.__name__ if kind else None))
            return self.swallow

    @contextlib.contextmanager
    def generated(value):
        log.append("setup")
        try:
            yield value * 2
        except KeyError:
            log.append("caught")
        finally:
            log.append("teardown")

    def program(x):
        with Manager("a") as a, Manager("b", True):
            y = x * 2
            raise ValueError
        with generated(x) as z, contextlib.suppress(IndexError):
            y = y + z
            [][0]
        with generated(x):
            raise KeyError("inside")
        with contextlib.nullcontext(x) as w, contextlib.ExitStack() as stack:
            stack.enter_context(Manager(a.name + "c"))
            stack.callback(log.append, "callback")
            return y + w
    return program, log


@programs.make(X)
def a_manager_as_decorator():
    log = []

    @contextlib.contextmanager
    def logged():
        log.append("in")
        yield
        log.append("out")

    @logged()
    def double(x):
        return x * 2
    return lambda x: double(x) + double(x), log


# --- builtins that take functions

@programs.add(X, [3, 1, 2])
def builtins_with_callables(x, items):
    return (sorted(items, key=lambda n: -n), max(items, key=lambda n: n % 3), min(items),
            list(map(lambda a, b: a * b, x, items)),
            list(filter(lambda n: n > 1, items)), functools.reduce(lambda a, b: a * b, x, 2.0), sum(items, 10),
            sum(x[i] for i in range(2)),
            list(zip(items, x, strict=False)), list(enumerate(items, 1)), any(map(bool, items)), list(reversed(items)),
            list(iter(lambda: items.pop(), 1)), items, sorted(["b", "A"], key=str.lower), list(map(str, items)),
            abs(-3), divmod(7, 2))


@programs.add(X)
def partials(x):
    add = functools.partial(torch.add, alpha=2)
    f = functools.partial(lambda a, b, c=1: a * b + c, x, c=3)
    return add(x, x), f(2), f(2, c=x), f.args[0] is x, functools.partial(f, 5)()


@programs.make(X)
def a_cached_function():
    computed = []

    @functools.cache
    def size(n):
        computed.append(n)
        return n * 2
    return lambda x: x * size(x.shape[0]) + size(3)


@programs.add(X)
def itertools_functions(x):
    chunks = [list(group) for _, group in itertools.groupby([1, 1, 2], key=lambda n: n)]
    return (list(itertools.chain(x, [1])), list(itertools.product("ab", [1, 2])), list(itertools.accumulate([1, 2, 3])),
            list(itertools.accumulate(x, torch.add)), list(itertools.repeat(x, 2)),
            list(itertools.starmap(torch.add, [(x, x)])),
            list(itertools.combinations(range(3), 2)), list(itertools.permutations([1, 2])),
            list(zip(itertools.count(5), x)), chunks,
            list(itertools.zip_longest([1], [2, 3])), list(itertools.pairwise(x)),
            list(itertools.islice(itertools.cycle([1, 2]), 3)),
            list(itertools.takewhile(lambda n: n < 2, range(5))), list(itertools.chain.from_iterable([[1], [2]])))


test_language = programs.test()
