"""What objects are asked for is what eager mode asks for: questions that once were not, and a small sample of the search."""
from __future__ import annotations

import collections
import copy
import operator

import pytest

import capture
from tests import subclasses as of
from tests.universe.noting import Asked, differences, draw, program_of
from tests.universe.special_methods import Plain

SEED, BATCHES, BATCH = 0, 3, 20
KEYS = (("hash", False), ("eq", False))
QUESTIONS = [
    "r = list(map((a, b), {a, b}))", "r = (a, b)()",
    "r = Counter([a])", "r = Counter([a, a, b])", "r = Counter([a, b]); r.update([b, 1, 'x'])", "r = {a, b} & {a}", "r = {a, b}",
    "r = {a, b, 8}; r.remove(a); r.add(a)", "r = {a, b}.pop()", "r = frozenset({a, b})", "r = outer_set.union({a, b, 3})",
    "r = outer_dict.keys() ^ outer_frozen", "r = [n == m for n in (a, 1) for m in OrderedDict([(a, 1), (b, 2)])]",
    "r = int(OrderedDict([(a, 1), (b, 2)]))", "r = (lambda **x: x)(**outer_ordered)",
    "r = Counter({1: a}); r.update(outer_ordered)", "o = OrderedDict([(a, 1)]); o.clear(); r = o", "r = dict(outer_ordered)",
    "r = {**outer_ordered}", "r = list(outer_ordered.items())", "r = defaultdict(int, {a: 1}).copy()",
    "outer_dict.clear(); r = 1", "r = outer_dict.popitem()", "r = outer_set.copy()", "print({a: 1, b: 2}); r = 1",
    "print({a, b}); r = 1", "o = outer_deque; r = o.rotate(dict.fromkeys((a, b)))",
    "o = outer_dict; r = o.keys({a: 1}, [(a, 1), (b, 2)])", "r = frozenset(OrderedDict([(a, 1), (b, 2)]))",
    "r = outer_set & {a: 1}.keys()", "r = {a: 1}.items() & {(a, 1), b}", "r = math.fsum(outer_ordered)",
    "r = (a, 1) == (b,), (a, 1) != (b,), [a, 1] == [b]", "r = [k for k, g in itertools.groupby([(a, 1), (b,)])]"]


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_keys_that_python_code_hashes(question: str, caught: bool) -> None:
    for base, kept in ((Plain, False), (of.Int, True)):
        problems = differences(Asked(program_of(question, caught), base, KEYS, kept), backend="eager")
        assert not problems, "\n".join(problems)


@pytest.mark.parametrize("question", [
    "r = sorted([a, b])", "r = sorted([(a, 1), (b, 0)])", "r = sorted([(0, a), (0, b)])", "r = sorted([a, 1, b])",
    "outer_list.sort(reverse=True); r = outer_list", "r = sorted({a: 1, b: 2}, key=lambda n: n)"])
def test_a_sort_asks_once_more_where_a_comparison_declines(question: str) -> None:
    methods = (*KEYS, ("lt", False), ("gt", True))
    problems = differences(Asked(program_of(question, False), Plain, methods, False), backend="eager")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("question", ["r = [2, 7, 2].pop(a)", "r = [2, 7, 2].insert(a, 0)", "r = [2, 7, 2].sort(reverse=a)",
                                      "r = outer_list.pop(a)", "r = 2 in a", "r = format(2, a)", "r = format(a, {1: b})",
                                      "r = inspect_signature(a)", "r = isinstance(2, a)", "r = issubclass(int, a)",
                                      "r = bisect.insort(None, a)", "r = bisect.insort(a, 3, 0, -1)"])
def test_containers_that_C_does_not_walk(question: str) -> None:
    for base in (of.Deque, of.List, of.Tuple, of.Set, of.FrozenSet, of.Dict):
        for later in ("iter", "len", "contains", "format"):
            problems = differences(Asked(program_of(question, True), base, (("iter", True), (later, True)), True), backend="eager")
            assert not problems, "\n".join(problems)


@pytest.mark.parametrize("question", ["r = x[a:]", "r = x[:a]", "r = x[a::b]", "r = x[..., a:]", "r = x[None][a:, b]",
                                      "x[a:] = 3; r = x",
                                      "r = torch.arange(4)[b:]", "r = x.__getitem__(slice(a, b))", "r = x[None, 0, a:]",
                                      "r = x[None][-1, a:b]", "r = x[0:1, a:]", "x[None][0, a:] = 5; r = x", "r = x[None][3, a:]",
                                      "r = x[None][..., 0, a:]", "r = x[::-1, a:]", "r = x[::0]",
                                      "r = x[None][a::-1, b:]", "r = x[None]['x':, a:]", "r = x.sum()[a:]",
                                      "r = x[None][0, ..., a:]", "r = x[None][True, 0, a:]", "r = x[None][[0], a:]"])
def test_bounds_of_parts_of_tensors(question: str) -> None:
    for base in (Plain, of.Float, of.Int):
        problems = differences(Asked(program_of(question, True), base, (("index", True),), False), backend="eager")
        assert not problems, "\n".join(problems)


@pytest.mark.parametrize("default", ["0", "'x'", "None", "a", "2.5", "True", "10**30", "-10**30"])
def test_a_default_is_asked_before_the_length(default: str) -> None:
    question = f"r = operator.length_hint(b, {default})"
    for methods in ((("length_hint", True),), (("length_hint", True), ("index", True))):
        problems = differences(Asked(program_of(question, True), Plain, methods, False), backend="eager")
        assert not problems, "\n".join(problems)


@pytest.mark.parametrize("question", [
    "list.append(1)", "list.append(a, 1, 2)", "set.clear(a)", "list.__init__(a, b)", "operator.contains(a)", "operator.setitem()",
    "Counter.update(a, 3)", "collections.deque.append('a')"])
def test_calls_that_C_refuses(question: str) -> None:
    """With other kinds of objects, each refused in C's own words."""
    program = (f"def program(a, b):\n try: r = {question}\n except Exception as e: r = repr(e)\n return r\n")
    names = {"operator": operator, "collections": collections, "Counter": collections.Counter}
    exec(program, names)
    compiled = capture.compile(names["program"], backend="eager")
    for a in ([1], 3, "a", {1: 2}, [2], {3}, 4.5):
        expected, found = names["program"](copy.copy(a), 1), compiled(copy.copy(a), 1)  # type: ignore[operator]
        assert expected == found


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_is_asked_is_what_eager_mode_asks(batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        asked = draw(SEED, number)
        problems = differences(asked, backend="eager")
        assert not problems, f"--seed {SEED} --first {number}: {asked}" + "\n".join(problems)
