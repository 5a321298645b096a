"""`functools.lru_cache` of functions of sizes: one capture for all sizes where the function only computes, and in each case the
results, objects and counts that eager mode has."""
from __future__ import annotations

import functools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
import capture.api  # noqa: F401
from capture.interp.function_models.pure_functions import only_computes
from tests.helpers import call, check

pytestmark = pytest.mark.usefixtures("open_sizes")
SIZES = [(2, 4), (3, 6), (5, 8), (7, 10), (4, 6), (2, 4), (3, 12), (9, 4), (5, 8), (2, 4)]
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}
OPTIONS = [{"maxsize": None}, {"maxsize": 3}, {"maxsize": 64, "typed": True}, {"maxsize": 1}]


class Recipe:
    """As einops has it: an object that is compared by identity, and holds lists."""

    def __init__(self, factor=2):
        self.factors, self.order, self.names = [1, factor], [1, 0], {"a": 0, "b": 1}


class Error(RuntimeError):
    pass


def product(numbers):
    total = 1
    for number in numbers:
        total *= number
    return total


def halves(rows, columns, parts):
    return rows, columns // parts, parts


def shapes(recipe, shape, given=()):
    lengths = list(shape)
    for name, number in given:
        lengths[recipe.names[name]] = number
    if lengths[1] % recipe.factors[1] != 0:
        raise Error(f"cannot divide {lengths[1]} by {recipe.factors[1]}")
    whole = [product([lengths[place] for place in recipe.order])]
    added = {place: length for place, length in enumerate(lengths)}
    order = None if recipe.order == list(range(2)) else recipe.order
    return [lengths[0], lengths[1] // recipe.factors[1], recipe.factors[1]], order, whole, added


def listed(n):
    return [n, n + 1]


def of_halves(s, x):
    return x.reshape(s.halves(x.shape[0], x.shape[1], 2)).sum(2)


def of_shapes(s, x):
    start, order, whole, added = s.shapes(s.recipe, x.shape)
    return x.reshape(start).sum(-1), x.permute(order).reshape(whole) * added[0]


def of_keywords(s, x):
    return x.reshape(s.halves(x.shape[0], parts=2, columns=x.shape[1])) * 2


def of_two(s, x):
    first, second = s.listed(x.shape[0]), s.listed(x.shape[1])
    return x * first[1], x + second[0]


def that_returns_it(s, x):
    return x + 1, s.listed(x.shape[0]), s.shapes(s.recipe, x.shape)


def that_keeps_it(s, x):
    s.held = s.listed(x.shape[0])
    return x * s.held[1]


def of_floats(s, x):
    return x * s.halves(x.shape[0] / 2, x.shape[1] * 2.0, 3)[1]


PROGRAMS = {f.__name__: f for f in (of_halves, of_shapes, of_keywords, of_two, that_returns_it, that_keeps_it, of_floats)}


def make(program, options={}):
    """Builds a program and its state: caches of functions, and what they told."""
    def build():
        cached = {f.__name__: functools.lru_cache(**options)(f) for f in (halves, shapes, listed)}
        state = SimpleNamespace(recipe=Recipe(), told=[], **cached)
        return (lambda x: program(state, x)), state
    return build


def tell(state):
    """Notes what the caches count."""
    state.told.append([cached.cache_info() for cached in (state.halves, state.shapes, state.listed)])


def steps(sizes=SIZES):
    return [step for size in sizes for step in (call(torch.randn(size)), tell)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_one_capture_for_all_sizes(program, options) -> None:
    stats = check(make(program, options), *steps(), captures=None)
    assert stats.captures <= 3, stats.misses


@pytest.mark.parametrize("program", [of_halves, of_shapes, that_returns_it])
def test_compiled(program) -> None:
    def build():
        run, state = make(program)()
        return (lambda x: run(x * 2)), state
    calls = [call(torch.randn(size, requires_grad=True)) for size in SIZES]
    stats = check(build, *calls, *calls, captures=None, backward=program is not that_returns_it, **NATIVE)
    assert stats.captures <= 3 and stats.compiled, stats.misses


def test_the_objects_that_the_cache_keeps_are_returned() -> None:
    cached = functools.lru_cache(listed)
    compiled = capture.compile(lambda x: (x + 1, cached(x.shape[0])), backend="eager")
    for rows in (2, 3, 4, 5, 6, 7, 4, 9):
        assert compiled(torch.ones(rows))[1] is cached(rows)
    assert capture.stats(compiled).captures == 2


# -- results that are others than what the function computes now ------------------------------------------------------------

def change_kept(state):
    """The program changes a list that the cache keeps."""
    state.listed(5).append(0)
    state.listed(5)[1] += 7


def change_recipe(state):
    """What was computed before is kept, though the function would compute something else."""
    state.recipe.factors[1] = 1


def clear(state):
    for cached in (state.halves, state.shapes, state.listed):
        cached.cache_clear()


def keep_others(state):
    """Under keys that are equal, but of other types."""
    clear(state)
    for n in (5.0, 4.0, True):
        state.listed(n)
    state.halves(5.0, 8.0, 2)


@pytest.mark.parametrize("change", [change_kept, change_recipe, clear, keep_others])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("program", [of_halves, of_shapes, of_two, that_returns_it], ids=lambda p: p.__name__)
def test_kept_results_are_changed(program, change, options) -> None:
    check(make(program, options), *steps(), change, *steps(SIZES[2:6]), change, *steps(), captures=None, fullgraph=False,
          recompile_limit=40)


def test_a_name_of_the_function_gets_another_meaning() -> None:
    def build():
        scope = {"factor": 2}
        exec("def scaled(n): return n * factor, [n + factor]", scope)
        cached = functools.lru_cache(scope["scaled"])
        return (lambda x: x * cached(x.shape[0])[0] + cached(x.shape[0])[1][0]), SimpleNamespace(scope=scope, cached=cached)

    def change(state):
        state.scope["factor"] += 1

    def change_code(state):
        state.scope["scaled"].__code__ = (lambda n: (n, [-n])).__code__
    calls = [call(torch.ones(n)) for n in (2, 3, 4, 5, 2)]
    new = [call(torch.ones(n)) for n in (6, 3, 7, 8)]
    check(build, *calls, change, *new, *calls, change_code, *calls, *new, call(torch.ones(11)), captures=None, fullgraph=False)


def test_the_program_changes_what_is_kept_in_the_call() -> None:
    def program(state, x):
        kept = state.listed(x.shape[0])
        kept.append(len(kept))
        return x * kept[-1]
    check(make(program), *steps(), captures=None, fullgraph=False, recompile_limit=40)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sizes_that_are_the_same_by_chance(options) -> None:
    def program(state, x):
        first, second = state.listed(x.shape[0]), state.listed(x.shape[1])
        return x * first[1] + second[0], first, second
    for sizes in ([(3, 3), (5, 5), (5, 7), (8, 8), (2, 4)], [(3, 2), (5, 4), (5, 5), (8, 8), (2, 4)]):
        check(make(program, options), *steps(sizes), *steps(sizes), captures=None)


def pair(n):
    return n, n


ASKING = {
    "is": lambda f, x: (x + 1, f(x.shape[0]) is f(x.shape[1])),
    "is not": lambda f, x: (x + 1, f(x.shape[0]) is not f(x.shape[0])),
    "id": lambda f, x: (x + 1, id(f(x.shape[0])) == id(f(x.shape[1]))),
    "none": lambda f, x: (x + 1, f(x.shape[0]) is None),
}


@pytest.mark.parametrize("function", [listed, pair, lambda n: (n, [n])])
@pytest.mark.parametrize("name", ASKING)
def test_whether_results_are_the_same_object(name, function) -> None:
    def build():
        cached = functools.lru_cache(function)
        return lambda x: ASKING[name](cached, x)
    sizes = [(2, 3), (4, 5), (6, 6), (3, 7), (7, 7), (6, 5), (8, 8), (4, 4)]
    check(build, *(call(torch.ones(size)) for size in sizes), captures=None, fullgraph=False, recompile_limit=40)


# -- functions that do more ----------------------------------------------------------------------------------------------

def test_what_has_effects_runs_as_often_as_in_eager_mode() -> None:
    def build():
        state = SimpleNamespace(runs=[], listed=None)

        @functools.lru_cache
        def counted(n):
            state.runs.append(n)
            return n * 2
        return (lambda x: x * counted(x.shape[0])), state
    calls = [call(torch.ones(n)) for n in (2, 3, 4, 5, 2, 6, 3, 7)]
    check(build, *calls, *calls, captures=None, fullgraph=False)


@pytest.mark.parametrize("function", [lambda n: [i * 2 for i in range(n)], lambda n: (tuple(range(n)), {"n": n})])
def test_functions_that_decide_by_the_size(function) -> None:
    """The trace ends before the call, once it is known that a capture is needed for each size."""
    def build():
        cached = functools.lru_cache(8)(function)
        return (lambda x: (x + 1, cached(x.shape[0]))), SimpleNamespace(cached=cached)
    sizes = [2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 12, 13, 14, 2, 3, 20, 21]
    stats = check(build, *(call(torch.ones(n)) for n in sizes), captures=None, fullgraph=False)
    assert stats.captures <= 7 and stats.breaks <= 1


def test_exceptions_are_not_kept() -> None:
    def program(state, x):
        try:
            return x.reshape(state.shapes(state.recipe, x.shape)[0])
        except Error as error:
            return x - 1, str(error)
    sizes = [(2, 4), (3, 6), (5, 7), (5, 8), (3, 9), (5, 7), (2, 10)]
    check(make(program), *steps(sizes), *steps(sizes), captures=None, fullgraph=False, recompile_limit=40)
    check(make(of_shapes), *steps(sizes), *steps(sizes), captures=None, fullgraph=False, recompile_limit=40)


def test_keys_that_cannot_be_hashed() -> None:
    def program(state, x):
        try:
            return x * state.listed([x.shape[0]])[0]
        except TypeError as error:
            return x - 1, str(error)
    check(make(program), *steps(), captures=None, fullgraph=False)


def test_threads() -> None:
    cached = functools.lru_cache(maxsize=2)(listed)
    compiled = capture.compile(lambda x: x * cached(x.shape[0])[1], backend="eager")
    problems: list[Any] = []

    def run(seed):
        for number in range(150):
            n = 2 + (number * seed) % 11
            if not torch.equal(compiled(torch.ones(n)), torch.full((n,), n + 1.0)):
                problems.append(n)
    compiled(torch.ones(2)), compiled(torch.ones(3))
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and capture.stats(compiled).captures <= 4


# -- which functions only compute --------------------------------------------------------------------------------------------

SHARED = [1]


def appends(n):
    SHARED.append(n)


def appends_by_another_name(n):
    numbers = [] if n else SHARED
    numbers.append(n)


def appends_to_its_argument(recipe):
    recipe.order.append(1)


def changes_an_item(recipe):
    recipe.factors[0] = 3


def changes_in_place(recipe):
    order = recipe.order
    order += [1]


def changes_an_item_of_an_item(n):
    pairs = [SHARED]
    pairs[0][0] = n


def changes_what_it_goes_over(n):
    for numbers in (SHARED,):
        numbers.append(n)


def extends_by_the_class(n):
    list.extend(SHARED, [n])


def passes_a_method_on(n):
    return sorted([n], key=SHARED.append)


def sets_a_global(n):
    global SHARED
    SHARED = n


def sets_an_attribute(recipe):
    recipe.names = {}


def has_inner_state(n):
    def step():
        nonlocal n
        n += 1
    step()
    return n


def prints(n):
    print(n)


def makes_an_object(n):
    return Recipe(n)


def makes_tensors(n):
    return torch.ones(n)


def yields(n):
    yield n


def is_given_a_function(n):
    return n(1)


def imports(n):
    import math
    return math.sqrt(n)


def uses_the_number_of_an_object(n):
    return id(SHARED) + n


def changes_through_a_helper(n):
    appends(n)


def changes_its_own(n):
    numbers = list(range(n))
    numbers += [n]
    numbers[0] = 2
    numbers.sort(reverse=True)
    found = {}
    found["a"] = numbers
    return tuple(numbers), [m * 2 for m in numbers if m > 2], sum(m is None for m in numbers), found


def counts_on(n, *more, **named):
    n *= 2
    for other in more:
        n += other
    named["n"] = n
    more += (n,)
    return named, more


def calls_itself(n):
    return n if type(n) is int else calls_itself(n.order.append(1))


def has_a_list_by_default(n, seen=[]):
    seen += [n]
    return seen[0]


def handles(n):
    try:
        return SHARED[n]
    except IndexError as error:
        raise ValueError(f"no {n}") from error


IMPURE = [appends, appends_by_another_name, appends_to_its_argument, changes_an_item, changes_in_place, changes_an_item_of_an_item,
          changes_what_it_goes_over, extends_by_the_class, passes_a_method_on, sets_a_global, sets_an_attribute, has_inner_state,
          prints, makes_an_object, makes_tensors, yields, is_given_a_function, imports, uses_the_number_of_an_object,
          changes_through_a_helper, calls_itself, has_a_list_by_default]


@pytest.mark.parametrize("function", IMPURE)
def test_functions_that_do_more_than_compute(function) -> None:
    assert not only_computes(function, [Recipe()], {})


@pytest.mark.parametrize("function", [changes_its_own, counts_on, handles, halves, shapes, listed, product])
def test_functions_that_only_compute(function) -> None:
    args = {shapes: [Recipe(), torch.Size([2, 3]), (("a", 2),)], halves: [2, 4, 2]}
    assert only_computes(function, args.get(function, [3]), {})


class Computed(Recipe):
    @property
    def order(self):
        SHARED.append(1)
        return [0]

    @order.setter
    def order(self, value):
        pass


class Counted(Recipe):
    def __len__(self):
        SHARED.append(1)
        return 2


class Open(Recipe):
    def __getattr__(self, name):
        SHARED.append(1)
        return []


@pytest.mark.parametrize("argument", [Computed(), Counted(), Open(), torch.nn.Linear(2, 2), len, Recipe, [appends]], ids=repr)
def test_arguments_with_code_of_their_own(argument) -> None:
    assert not only_computes(shapes, [argument, (2, 3)], {})
