"""Iterators that the captured code makes, and that leave it: they are of CPython's own types, in the state that they have in eager
mode."""
from __future__ import annotations

import copy
import functools
import gc
import itertools
import operator
import pickle
import sys
import types
from typing import Any

import pytest
import torch

import capture


class Sequence:
    """Has items alone."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> Any:
        if index >= self.size:
            raise IndexError(index)
        return index * 10

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> Any:
        return Sequence, (self.size,)


class Walker:
    """An iterator in Python, which counts how often it is asked for one."""

    def __init__(self, size: int) -> None:
        self.left, self.asked = size, 0

    def __iter__(self) -> Walker:
        self.asked += 1
        return self

    def __next__(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left


def double(x: Any) -> Any:
    return x * 2


def is_odd(x: Any) -> bool:
    return x % 2 == 1


def add(*parts: Any) -> Any:
    return sum(parts)


def generate(n: int) -> Any:
    yield from range(n)


ITERATORS = {
    "sequence": lambda: iter(Sequence(3)),
    "reversed": lambda: reversed(Sequence(3)),
    "callable": lambda: iter([4, 3, 2, 1].pop, 3),
    "callable-python": lambda: iter(functools.partial(next, Walker(5)), 2),
    "map": lambda: map(double, [1, 2, 3]),
    "map-two": lambda: map(add, Walker(3), (5, 6)),
    "map-lambda": lambda: map(lambda x: x + 1, Sequence(2)),
    "filter": lambda: filter(is_odd, Walker(5)),
    "filter-none": lambda: filter(None, [0, 1, 2]),
    "zip": lambda: zip(Walker(3), [1, 2]),
    "zip-strict": lambda: zip(Sequence(2), [1, 2], strict=True),
    "enumerate": lambda: enumerate(Walker(3), 7),
    "count": lambda: itertools.count(3, 2),
    "count-float": lambda: itertools.count(0.5),
    "cycle": lambda: itertools.cycle(Walker(3)),
    "cycle-empty": lambda: itertools.cycle([]),
    "repeat": lambda: itertools.repeat("x", 3),
    "repeat-endless": lambda: itertools.repeat("x"),
    "chain": lambda: itertools.chain([1, 2], Walker(2), Sequence(1)),
    "chain-iterable": lambda: itertools.chain.from_iterable(map(range, [1, 2])),
    "accumulate": lambda: itertools.accumulate(Walker(4)),
    "accumulate-function": lambda: itertools.accumulate([1, 2, 3], operator.mul, initial=5),
    "islice": lambda: itertools.islice(Walker(9), 1, 7, 2),
    "islice-endless": lambda: itertools.islice(Walker(4), 1, None),
    "filterfalse": lambda: itertools.filterfalse(is_odd, Walker(5)),
    "starmap": lambda: itertools.starmap(add, zip([1, 2], Walker(2))),
    "takewhile": lambda: itertools.takewhile(is_odd, [1, 3, 2, 5]),
    "dropwhile": lambda: itertools.dropwhile(is_odd, [1, 3, 2, 5]),
    "compress": lambda: itertools.compress(Walker(4), [1, 0, 1, 1]),
    "pairwise": lambda: itertools.pairwise(Walker(4)),
    "zip-longest": lambda: itertools.zip_longest([1], Walker(3), fillvalue=()),
    "groupby": lambda: itertools.groupby([1, 1, 3, 2, 2], is_odd),
    "groupby-none": lambda: itertools.groupby(Walker(2)),
    "product": lambda: itertools.product([1, 2], "ab"),
    "permutations": lambda: itertools.permutations([1, 2, 3], 2),
    "combinations": lambda: itertools.combinations([1, 2, 3], 2),
    "replacement": lambda: itertools.combinations_with_replacement("ab", 2),
    "generator": lambda: map(double, generate(3)),
    "list": lambda: iter([1, 2, 3]),
}
STEPS = (0, 1, 2, 9)


class Box:
    """Something outside."""

    it: Any = None


@capture.disable
def opaque(it: Any) -> Any:
    return describe(it, 1)


def advanced(make: Any, steps: int) -> Any:
    it = make()
    for _ in range(steps):
        next(it, None)
    return it


def by_return(make: Any, steps: int, box: Box, held: list[Any], x: torch.Tensor) -> Any:
    return x + 1, advanced(make, steps)


def by_attribute(make: Any, steps: int, box: Box, held: list[Any], x: torch.Tensor) -> Any:
    box.it = advanced(make, steps)
    return x + 1, None


def by_list(make: Any, steps: int, box: Box, held: list[Any], x: torch.Tensor) -> Any:
    it = advanced(make, steps)
    held.append((it, {"same": it}))
    return x + 1, it


def by_call(make: Any, steps: int, box: Box, held: list[Any], x: torch.Tensor) -> Any:
    it = advanced(make, steps)
    y = x + 1
    return y, opaque(it), it


def behind_break(make: Any, steps: int, box: Box, held: list[Any], x: torch.Tensor) -> Any:
    it = advanced(make, min(steps, 1))
    torch._dynamo.graph_break()
    for _ in range(steps - 1):
        next(it, None)
    return x + 1, it


WAYS = (by_return, by_attribute, by_list, by_call, behind_break)


def describe(x: Any, depth: int = 6) -> Any:
    """What can be seen of a value without changing it."""
    if isinstance(x, (tuple, list)) and depth:
        return type(x), [describe(part, depth - 1) for part in x]
    if isinstance(x, dict):
        return {key: describe(value, depth - 1) for key, value in x.items()}
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, Sequence):
        return "sequence", x.size
    if isinstance(x, Walker):
        return "walker", x.left, x.asked
    if isinstance(x, types.GeneratorType):
        return "generator"
    if not hasattr(type(x), "__next__"):
        return x if isinstance(x, (int, str, float, types.NoneType)) else type(x)
    hint = operator.length_hint(x, -1) if depth else None
    shown = repr(x) if isinstance(x, (itertools.count, itertools.repeat)) else None
    reduced = describe(x.__reduce__(), depth - 1) if depth and type(x).__reduce__ is not object.__reduce__ else None
    return type(x).__mro__, hint, shown, reduced


def take(it: Any) -> list[Any]:
    """Up to six items, and what the groups among them hold."""
    found = []
    for item in itertools.islice(it, 6):
        if isinstance(item, tuple) and item and isinstance(item[-1], itertools._grouper):  # type: ignore[attr-defined]
            item = (*item[:-1], list(item[-1]))
        found.append(item)
    return found


def drained(it: Any) -> Any:
    """What an iterator tells, a copy and a pickle of it, and then what it yields."""
    if it is None or not hasattr(type(it), "__next__"):
        return describe(it)
    seen = [describe(it)]
    for duplicate in (copy.copy, lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        if isinstance(it, itertools.groupby) and duplicate is copy.copy:
            continue                # which takes from the same groups
        try:
            seen.append(("copy", type(duplicate(it)).__mro__))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            seen.append(type(error))
    seen += [describe(next(it, None)), take(it), next(it, None) is None, describe(it)]
    return seen


def run(function: Any, make: Any, steps: int) -> Any:
    box, held = Box(), []
    result = function(make, steps, box, held, torch.ones(2))
    if held:
        assert held[0][0] is held[0][1]["same"] is result[1]
    it = next((x for x in (box.it, *result[1:]) if hasattr(type(x), "__next__")), None)
    return describe(result), describe(held), drained(it)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_that_leave_are_of_c(name: str, way: Any) -> None:
    """After none of its steps, some or all: each iterator and each way has each of these with some of the others."""
    steps = STEPS[(list(ITERATORS).index(name) + WAYS.index(way)) % len(STEPS)]
    expected = run(way, ITERATORS[name], steps)
    compiled = capture.compile(way)
    for _ in range(3):
        assert run(compiled, ITERATORS[name], steps) == expected
    stats = capture.stats(compiled)
    assert stats.hits >= 2 and stats.bailouts == 0, stats


def test_iterators_share_what_they_walk_over() -> None:
    def program(walker: Any, x: torch.Tensor) -> Any:
        first = map(double, walker)
        both = zip(first, first)
        next(both)
        return x + 1, first, both, {"method": filter(is_odd, first)}

    def seen(function: Any) -> Any:
        walker = Walker(9)
        _, first, both, held = function(walker, torch.ones(2))
        return describe([both, held["method"]]), next(first), next(both), next(first), walker.left, walker.asked, next(both)
    expected, compiled = seen(program), capture.compile(program, fullgraph=True)
    for _ in range(3):
        assert seen(compiled) == expected


def test_iterators_of_a_call_that_is_given_up() -> None:
    def program(box: Box, x: torch.Tensor) -> Any:
        box.it = map(double, [1, 2, 3])
        next(box.it)
        generator = generate(1)
        for _ in range(3):
            next(generator, None)
        return x + 1, opaque(box.it), filter(None, box.it)

    def seen(function: Any) -> Any:
        box = Box()
        _, told, it = function(box, torch.ones(2))
        return told, describe(box.it), describe(it), list(it)
    expected, compiled = seen(program), capture.compile(program)
    for _ in range(3):
        assert seen(compiled) == expected


def test_methods_that_are_held_go_on() -> None:
    def program(x: torch.Tensor) -> Any:
        it = map(double, [1, 2, 3])
        return x + 1, it.__next__, it

    def seen(function: Any) -> Any:
        _, method, it = function(torch.ones(2))
        return method(), next(it), method()
    expected, compiled = seen(program), capture.compile(program)
    for _ in range(3):
        assert seen(compiled) == expected


def test_nothing_is_left_behind() -> None:
    def program(tracked: Any, x: torch.Tensor) -> Any:
        it = itertools.zip_longest(map(double, tracked), itertools.chain(tracked), fillvalue=tracked)
        next(it)
        groups = itertools.groupby(tracked)
        return x + 1, it, groups, next(groups)

    compiled = capture.compile(program)
    tracked = Walker(1000)
    before = sys.getrefcount(tracked)
    for _ in range(4):
        compiled(tracked, torch.ones(2))
    capture.reset()
    del compiled
    gc.collect()
    assert sys.getrefcount(tracked) == before
