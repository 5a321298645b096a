"""Programs that are cut in functions, methods, closures and expressions of every kind, and go on in a continuation."""
from __future__ import annotations

import functools

import pytest
from torch import nn

from tests.breaks.cuts import Cuts, X, compared, outside, run
from tests.helpers import call, check

CUTS = Cuts()


# -- expressions -------------------------------------------------------------------------------------------------------

@CUTS.add()
def in_a_ternary(x):
    return x * (outside(2) if x.ndim == 2 else 3)


@CUTS.add()
def in_the_condition_of_a_ternary(x):
    return x * (2 if outside(True) else 3)


@CUTS.add(3)
def in_and_and_or(x):
    a = outside(0) or x
    b = outside(1) and x + 1
    c = x.ndim == 7 and outside(1) or outside("c")
    return a, b, c


@CUTS.add(2)
def in_not(x):
    return x if not outside(False) else x + 1, not outside([])


@CUTS.add(2)
def in_comparisons(x):
    return x, 1 < outside(2) < 3, outside("a") not in {"a": 1}


@CUTS.add(2)
def in_conditions(x):
    if outside(True):
        x = x + 1
    if x.ndim == 2 and not outside(False):
        x = x * 2
    elif x.ndim == 3:
        x = x - 1
    return x


@CUTS.add()
def in_an_f_string(x):
    name = "n"
    return x, f"{name!r}: {outside(3):>5} {x.ndim}"


@CUTS.add()
def in_a_walrus(x):
    if (k := outside(3)) > 2:
        x = x * k
    return x, k


@CUTS.add(2)
def in_an_assertion(x):
    assert outside(True), "not reached"
    try:
        assert outside(False), f"reached {x.ndim}"
    except AssertionError as error:
        return x * 2, str(error)


@CUTS.add(3)
def in_displays_and_calls(x):
    return {"a": outside(1), **{"b": x}}, (outside(2), *[x]), dict(c=outside(3), d=x + 1)


@CUTS.add(2)
def in_subscripts(x):
    items = [x, x + 1, x + 2]
    items[outside(1)] = x * 5
    return items[outside(2)], items


@CUTS.add()
def in_a_slice(x):
    return x[outside(0):, 1:]


@CUTS.add(2)
def in_an_augmented_assignment(x):
    y = x.clone()
    y += outside(1)
    box = {"n": 1}
    box["n"] += outside(2)
    return y, box


@CUTS.add()
def in_unpacking(x):
    a, *b = outside((1, 2, 3))
    return x * a, b


@CUTS.add()
def in_a_match_statement(x):
    match outside({"k": 2, "more": [1]}):
        case {"k": int(k), **rest}:
            return x * k, rest
        case _:
            return None


@CUTS.add()
def after_del(x):
    y = x * 2
    z = y + 1
    del y
    outside()
    try:
        return y
    except UnboundLocalError as error:
        return z, str(error)


@CUTS.add()
def a_local_that_is_not_bound(x):
    if x.ndim == 9:
        late = x
    outside()
    try:
        return late
    except NameError as error:
        return type(error).__name__, str(error), x * 2


@CUTS.add()
def a_cell_that_is_not_bound(x):
    def inner():
        return late
    outside()
    try:
        inner()
    except NameError as error:
        text = str(error)
    late = x * 2
    return text, inner()


@CUTS.add()
def looks_at_its_locals(x):
    y = x * 2
    k = outside(3)
    return sorted(locals()), k, y


# -- functions ---------------------------------------------------------------------------------------------------------

@CUTS.add()
def in_a_lambda(x):
    double = lambda t, k=2: outside(t) * k
    return double(x) + 1


@CUTS.add()
def with_all_kinds_of_parameters(x):
    def inner(a, /, b, *rest, c, d=4, **named):
        k = outside(2)
        return a * k, b, rest, c, d, named
    return inner(x, 1, 2, 3, c=5, e=6)


@CUTS.add()
def with_arguments_unpacked(x):
    def inner(*args, **kwargs):
        return args, kwargs
    return inner(*[x, outside(2)], **{"k": x + 1})


@CUTS.add()
def a_cell_shared_with_an_inner_function(x):
    total = 0

    def add(n):
        nonlocal total
        total += outside(n)
        return total
    first = add(5)
    total += 1
    return x * total, first


@CUTS.add(2)
def cells_shared_by_frames_that_wait(x):
    log = []

    def outer(t):
        count = 0

        def inner(u):
            nonlocal count
            count += 1
            u = outside(u * 2)
            count += 1
            log.append(count)
            return u
        a = inner(t)
        count += 10
        b = inner(t + 1)
        return a, b, count
    return outer(x), log


@CUTS.add()
def a_parameter_in_a_cell(x):
    def inner():
        return x * 2
    x = x + 1
    k = outside(2)
    before = inner()
    x = x + k
    return before, inner()


@CUTS.add()
def functions_that_outlive_the_call(x):
    counter = 0

    def step():
        nonlocal counter
        counter += 1
        return counter
    outside()
    return [step(), step()], x * 2


@CUTS.add(4)
def recursion(x):
    def power(t, n):
        if n == 0:
            return outside(t)
        return power(outside(t * 2), n - 1) + n
    return power(x, 3)


@CUTS.add()
def a_decorated_function(x):
    def twice(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args) + f(*args)
        return wrapper

    @twice
    def inner(t):
        return t * len(seen)
    seen = [outside(1)]
    return inner(x)


@CUTS.add()
def a_partial_function(x):
    return functools.partial(outside, x * 2)()


# -- classes -----------------------------------------------------------------------------------------------------------

class Base:
    scale = 3

    def __init__(self, value):
        self.value = value

    def method(self, x):
        return x * outside(self.scale, self.value)


class Derived(Base):
    def __init__(self, value):
        super().__init__(outside(value))
        self.after = value + 1

    def method(self, x):
        return super().method(x + 1) - self.value

    @property
    def size(self):
        return outside(self.value)

    @size.setter
    def size(self, value):
        self.value = outside(value)

    @classmethod
    def make(cls, value):
        return cls(outside(value))

    @staticmethod
    def help(x):
        return outside(x) + 1

    def __call__(self, x):
        return outside(x) * self.value

    def __add__(self, other):
        return outside(other) + self.value

    def __radd__(self, other):
        return outside(other) - self.value

    def __getitem__(self, index):
        return outside(index) * 2

    def __setitem__(self, index, value):
        self.value = outside(index) + value

    def __contains__(self, x):
        return outside(x) == 3

    def __len__(self):
        return outside(2)

    def __bool__(self):
        return outside(False)

    def __eq__(self, other):
        return outside(True)

    def __iter__(self):
        return iter(outside((1, 2)))

    def __hash__(self):
        return outside(7)

    def __str__(self):
        return outside("text")


class Lazy(Base):
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return outside(name)

    @property
    def size(self):
        return outside(self.value)

    @property
    def broken(self):
        outside()
        return self._missing


@CUTS.add()
def a_method(x):
    base = Base(2)
    return base.method(x), base.value


@CUTS.add(2)
def construction_and_super(x):
    derived = Derived(2)
    return derived.method(x), derived.value, derived.after


class Doubling:
    def scale(self, x):
        return x * 2


class DoublingAndOne(Doubling):
    def scale(self, x):
        outside()
        return super().scale(x) + 1


@CUTS.add()
def an_object_that_only_super_needs(x):
    return DoublingAndOne().scale(x)


@CUTS.add(3)
def properties(x):
    derived = Derived(2)
    derived.size = 5
    return x * derived.size


@CUTS.add(3)
def class_and_static_methods(x):
    return Derived.make(2).value, Derived.help(x)


@CUTS.add(4)
def calls_and_additions(x):
    derived = Derived(2)
    return derived(x), derived + x, x[0, 0].item() + derived if x.ndim == 3 else [] + derived if x.ndim == 3 else derived + 1


@CUTS.add(4)
def subscripts_of_objects(x):
    derived = Derived(2)
    derived[3] = 4
    return x * derived[5], 3 in derived, derived.value


@CUTS.add(3)
def the_truth_of_an_object(x):
    derived = Derived(2)
    if derived:
        x = x + 1
    return x, not derived


@CUTS.add(3)
def attributes_that_are_missing(x):
    lazy = Lazy(2)
    return lazy.anything, getattr(lazy, "other"), lazy.size, x * 2


@CUTS.add(2)
def a_property_that_fails_where_attributes_may_be_missing(x):
    lazy = Lazy(2)
    try:
        return lazy.broken
    except AttributeError as error:
        return x * 2, str(error)


@CUTS.add(2)
def iteration_over_an_object(x):
    return [x * k for k in Derived(2)]


@CUTS.add(6)
def len_eq_hash_and_str(x):
    derived = Derived(2)
    return len(derived), derived == x, hash(derived), str(derived), {derived: x}


@CUTS.natively
def a_class_body(x):
    class Local:
        value = outside(3)
        scale = value * 2
    return x * Local.scale


@CUTS.add(2)
def a_generator(x):
    def rows(t):
        for row in t:
            yield outside(row) * 2
    return [row + 1 for row in rows(x)]


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_construct(program, options) -> None:
    run(program, options)


# -- globals and modules -----------------------------------------------------------------------------------------------

COUNTER = 0


def test_globals_are_written_before_and_after_a_cut() -> None:
    def program(x):
        global COUNTER
        COUNTER += 1
        seen = outside(COUNTER)
        COUNTER += 10
        return x * COUNTER, seen

    def reset(state):
        global COUNTER
        COUNTER = 0
    compared(program, reset, call(X), call(X), reset, call(X), captures=None)
    assert COUNTER == 11


def test_a_module_with_hooks() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            y = self.first(x).relu()
            outside(None, y)
            return self.second(y)

    def make():
        model = Model()
        model.first.register_forward_hook(lambda module, args, output: outside(output * 2))
        model.register_forward_pre_hook(lambda module, args: (outside(args[0] + 1),))
        return model
    for backward in (False, True):
        check(make, call(X), call(X), call(X + 1), captures=4, hits=8, breaks=3, fullgraph=False, backward=backward)
