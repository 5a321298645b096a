"""Special methods of classes that derive from builtin ones: defined from the first, or after the capture."""
from __future__ import annotations

import decimal
import itertools
import math
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import capture
from capture.interp.dispatch import calls
from tests import subclasses as of

LOG: list[Any] = []


class Plain:
    pass


def answering(answer: Any) -> Callable[..., Any]:
    """A special method that notes its calls."""
    def method(self: Any, *args: Any) -> Any:
        LOG.append(len(args))
        return answer
    return method


def made(question: str, caught: bool = False) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"operator": operator, "math": math, "torch": torch, "np": np, "os": os, "decimal": decimal, "of": of,
                             "O": Plain(), "D": {"": 1, 2: 3, 0.5: 4}, "M": {0, "", (0, 1)}}
    ask = f"try: r = {question}\n except Exception as e: r = type(e)" if caught else f"r = {question}"
    exec(f"def program(a):\n c = []\n {ask}\n return r", names)
    return names["program"]


def told(program: Callable[[Any], Any], a: Any) -> str:
    """What comes of a call, and how often it has called special methods."""
    LOG.clear()
    try:
        result = program(a)
    except Exception as error:
        result = type(error)
    return repr((result, len(LOG)))


# -- from the first ----------------------------------------------------------------------------------------------------

OTHERS = {of.Int: "1", of.Str: "'b'", of.List: "[1]", of.Tuple: "(1,)", of.Dict: "{1: 2}", of.Set: "{1}", of.Ordered: "{1: 2}"}
COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@pytest.mark.parametrize("sign", COMPARISONS)
@pytest.mark.parametrize("base", OTHERS)
def test_a_comparison_that_is_written_in_python(base: type, sign: str) -> None:
    name = COMPARISONS[sign]
    for defined in {name, "eq", "ne", REFLECTED.get(name, name)}:
        for question in (f"a {sign} {OTHERS[base]}", f"{OTHERS[base]} {sign} a", f"[a] {sign} [{OTHERS[base]}]"):
            for answer in (True, NotImplemented):
                methods = {f"__{defined}__": answering(answer), "__hash__": base.__hash__}
                a, program = type("Derived", (base,), methods)(), made(question)
                compiled = capture.compile(program, backend="eager")
                expected = told(program, a)
                assert [told(compiled, a) for _ in range(3)] == [expected] * 3, (question, defined, answer)


@pytest.mark.parametrize("question", ["[1, 2, 3][a]", "'abc'[a]", "(1, 2, 3)[a:]", "operator.index(a)", "range(5)[a]", "[0] * a",
                                      "hex(a)", "[1, 2, 3].pop(a)", "int(a)"])
def test_an_integer_is_an_index_as_it_is(question: str) -> None:
    """C does not ask the `__index__` of a class that derives from int."""
    a, program = type("Derived", (of.Int,), {"__index__": answering(2)})(1), made(question)
    compiled = capture.compile(program, backend="eager")
    expected = told(program, a)
    assert [told(compiled, a) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize(("name", "base", "value", "question"), [
    ("int", of.Float, 2.0, "'%d' % a"), ("float", of.Int, 2, "'%.1f' % a"), ("float", of.Int, 2, "math.sqrt(a)"),
    ("float", of.Int, 2, "complex(a)"), ("index", of.Float, 2.0, "'abc'.__getitem__(a)"), ("ror", of.Float, 2.0, "{1: 2} | a"),
    ("index", of.Dict, {}, "[5, 6, 7].pop(a)"), ("index", of.Float, 2.0, "c.append([5, 6].insert(a, 4)) or c"),
    ("index", of.Ordered, {}, "[2, 7, 2].index(2, a)"),
    ("len", of.Set, {1}, "list(a)"), ("len", of.Tuple, (1,), "c.extend(a) or c"), ("length_hint", of.Set, {1}, "tuple(a)"),
    ("len", of.Set, {1}, "frozenset(a)"), ("len", of.Set, {1}, "math.fsum(a)"), ("iter", of.Dict, {2: 7}, "(lambda *b: b)(*a)"),
    ("iter", of.Set, {2}, "(lambda *b: b)(*set.__iter__(a))"),
    ("getitem", of.List, [1], "torch.tensor([a])"), ("len", of.List, [1], "torch.tensor([a])"),
    ("iter", of.List, [2], "torch.tensor(a)"), ("iter", of.List, [2], "c.extend(i for i in (1, 2)) or a.extend(c)"),
    ("iter", of.Str, "ab", "list(str.__iter__(a))"), ("getitem", of.Tuple, (1, 2), "list(reversed(a))"),
    ("len", of.Tuple, (1, 2), "list(reversed(a))"),
    ("len", of.Tuple, (1, 2), "np.float64(2) == a"), ("len", of.Tuple, (1, 2), "a != np.float64(2)"),
    ("getitem", of.Str, "a", "'{a}'.format_map(a)"), ("getitem", of.Str, "a", "'a'.translate(a)"),
    ("format", of.Str, "a", "'{}'.format(a)"), ("index", of.Str, "a", "'a'.center(a)"), ("index", of.Str, "a", "a.zfill(a)"),
    ("bytes", of.Int, 2, "b'%s' % (a,)"), ("bytes", of.Bytes, b"a", "int.from_bytes(a, 'big')"),
    ("complex", of.Float, 2.0, "complex(a)"), ("trunc", of.Bytes, b"2", "int(a)"), ("fspath", of.Int, 2, "os.fspath(a)"),
    ("radd", of.Bytes, b"a", "decimal.Decimal(2) + a"), ("add", of.Str, "a", "os.path.join(a, 'b')"),
    ("sub", of.Int, 2, "np.arange(a)"), ("trunc", of.Bytes, b"2", "np.array([a])"), ("len", of.List, [1], "(lambda *b: b)(*a)"),
    ("len", of.Tuple, (1, 2), "max(*a)"), ("iter", of.Deque, [2], "a < a"), ("iter", of.Deque, [2], "a == of.Deque([2])"),
    ("eq", of.Str, "a", "O.__dict__.get(a)"), ("len", of.Dict, {"b": 1}, "type('C', (), {'__slots__': a}).b and 1"),
    ("hash", of.Str, "b", "type('C', (), {'__slots__': (a,)}).b and 1")])
@pytest.mark.parametrize("caught", [False, True])
def test_a_method_that_C_calls(name: str, base: type, value: Any, question: str, caught: bool) -> None:
    """In calls of C that could be known beforehand, if the method were not there."""
    method = answering({"iter": None, "length_hint": 1, "len": 1}.get(name, 1)) if name != "iter" else noted_iter(base)
    a, program = type("Derived", (base,), {f"__{name}__": method})(value), made(question, caught)
    compiled = capture.compile(program, backend="eager")
    expected = [told(program, a) for _ in range(3)]
    a = type(a)(value)
    assert [told(compiled, a) for _ in range(3)] == expected


@pytest.mark.parametrize(("name", "base", "question"), [
    ("iter", base, question) for base in (of.List, of.Tuple, of.Set, of.FrozenSet, of.Deque, of.Dict, of.Str) for question in (
        "zip(a)", "enumerate(a)", "iter(a)")] + [("reversed", base, "reversed(a)") for base in (of.List, of.Deque, of.Dict)])
def test_an_iterator_that_outlives_the_call(name: str, base: type, question: str) -> None:
    """What a hit makes it of has been asked already."""
    def method(self: Any) -> Any:
        LOG.append(name)
        return getattr(base, f"__{name}__")(self)
    program = made(f"list, {question}")
    compiled = capture.compile(program, backend="eager")
    a = type("Derived", (base,), {f"__{name}__": method})("ab" * (base is of.Str))
    for _ in range(4):
        LOG.clear()
        result = compiled(a)[1]
        assert LOG == [name] and list(result) == list(program(a)[1])


@pytest.mark.parametrize("question", ["np.float64(2) == a", "a != np.float64(2)", "np.str_('b') == a", "a == np.bytes_(b'b')"])
def test_a_number_of_numpy_compares_with_items_that_python_code_tells(question: str) -> None:
    """Its class derives from float or str, and compares otherwise: each call has an array of its own."""
    a, program = type("Derived", (of.Tuple,), {"__len__": answering(2)})((2, 7)), made(question)
    compiled, kept = capture.compile(program, backend="eager"), []
    for _ in range(4):
        expected = told(program, a)
        assert told(compiled, a) == expected
        kept.append(compiled(a))
    assert len(set(map(id, kept))) == 4 or type(kept[0]) is bool


@pytest.mark.parametrize("question", ["a * 2", "2 * a", "a.__mul__(2)", "a.copy()", "a + a", "a + of.Deque([3])"])
@pytest.mark.parametrize("name", ["init", "iter", "len"])
def test_a_deque_that_is_copied_by_its_class(name: str, question: str) -> None:
    def method(self: Any, *args: Any) -> Any:
        LOG.append(name)
        return getattr(of.Deque, f"__{name}__")(self, *args)
    for cls in (type("Derived", (of.Deque,), {f"__{name}__": method}), of.Deque):
        a, program = cls([2, 7]), made(question)
        program.__globals__["of"] = of
        compiled = capture.compile(program, backend="eager")
        expected = told(program, a)
        assert [told(compiled, a) for _ in range(3)] == [expected] * 3


def noted_iter(base: Any) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        LOG.append("iter")
        return base.__iter__(self)
    return method


# -- later -------------------------------------------------------------------------------------------------------------

LATER = [("contains", of.List, "2 in a"), ("contains", of.Set, "2 in a"), ("getitem", of.Tuple, "a[:1]"),
         ("setitem", of.Dict, "a.__class__.__mro__ and operator.setitem(a, 1, 2) or dict.__len__(a)"),
         ("delitem", of.Deque, "a.append(1) or operator.delitem(a, 0) or len(a)"), ("reversed", of.List, "list(reversed(a))"),
         ("ne", Plain, "a != 2"), ("ne", of.Tuple, "a != ()"), ("lt", of.List, "a < [1]"), ("le", of.Set, "a <= {1}"),
         ("gt", of.List, "a > [1]"), ("ge", of.Set, "a >= {1}"), ("call", Plain, "callable(a)"), ("len", Plain, "bool(a)"),
         ("bool", Plain, "not a"), ("iter", of.List, "list(a)"), ("eq", of.List, "a == []"), ("str", Plain, "str(a)[:6]"),
         ("repr", Plain, "repr([a])[:6]"), ("format", Plain, "f'{a}'[:6]")]
ANSWERS: dict[str, Any] = {"len": 0, "bool": False, "str": "written", "repr": "written", "format": "written", "contains": True,
                           "hash": 1, "int": 3, "float": 1.5, "index": 2}


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(("name", "base", "question"), LATER, ids=lambda part: getattr(part, "__name__", part))
def test_a_method_that_a_class_gets_later(name: str, base: type, question: str, guarded: bool,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of C functions guard that classes go on to lack it (`pin_protocols`): without these guards a hit is wrong."""
    if not guarded:
        monkeypatch.setattr(calls, "pin_protocols", lambda interp, real, args: None)
    cls, program = type("Derived", (base,), {}), made(question)
    compiled = capture.compile(program, backend="eager")
    assert told(compiled, cls()) == told(program, cls())
    method = (lambda self: iter((7, 8))) if name in ("iter", "reversed") else answering(ANSWERS.get(name, "told"))
    setattr(cls, f"__{name}__", method)
    expected = told(program, cls())
    assert [told(compiled, cls()) == expected for _ in range(2)] == [guarded] * 2


OF_ONE_OBJECT = [("int", of.Int, "int(a)"), ("int", of.Float, "int(a)"), ("int", of.Float, "'%d' % a"),
                 ("float", of.Int, "float(a)"), ("float", of.Float, "float(a)"), ("float", of.Int, "math.sqrt(a)"),
                 ("float", of.Int, "complex(a)"),
                 ("index", of.Float, "operator.length_hint(a, 1) if callable(a) else hex(a)"), ("hash", of.Str, "{'': 1}.get(a)"),
                 ("hash", Plain, "a in {1: 2}"), ("hash", Plain, "len({a})"), ("hash", of.Tuple, "len({a: 1})"),
                 ("hash", of.Float, "{0.0, 1.0} - {a}"), ("hash", of.Int, "{0: 1}[a]"), ("hash", of.Int, "{(0, 1): 1}.get((a, 1))"),
                 ("eq", of.Int, "{2: a} == {2: 2}"), ("eq", of.Str, "[a] == ['b']"), ("eq", of.Float, "('b', a) == ('b', 2)"),
                 ("float", of.Int, "'%.1f' % (a,)"), ("float", of.Int, "math.fsum([a])"), ("str", of.Int, "'%s' % (a,)"),
                 ("hash", of.Int, "{n: 1 for n in (a, 2)}"), ("iter", of.Int, "[*a, *a]"),
                 ("iter", of.Int, "(lambda *b: b)(*a)"), ("len", of.List, "torch.tensor([a])"),
                 ("iter", of.List, "torch.tensor(a)"), ("round", of.Float, "round(a, 1)"), ("floor", of.Float, "math.floor(a)"),
                 ("abs", of.Int, "abs(a)"), ("divmod", of.Int, "divmod(a, 2)"), ("trunc", of.Float, "math.trunc(a)"),
                 ("lt", of.Int, "sorted([2, a])"), *[("iter", base, question) for base in (of.List, of.Tuple) for question in (
                     "(lambda *b: b)(*a)", "[b for b, c in (a,)]", "[b for b, *c in (a,)]", "[*a]", "(*a, 1)", "{*a}")],
                 ("index", of.List, "torch.ones(()).repeat(a).shape"), ("index", of.Dict, "c.sort(reverse=a)"),
                 ("len", of.Tuple, "[*reversed(a)]"), ("len", of.Bytes, "type(reversed(a))"),
                 ("hash", of.Str, "getattr(2, a, 7)"), ("hash", of.Str, "hasattr(2, a)"), ("bytes", of.Int, "b'%s' % (a,)"),
                 ("len", of.List, "np.float64(2) == a"), ("getitem", of.Str, "'a'.translate(a)"),
                 ("fspath", of.Float, "os.path.basename(a)"), ("radd", of.Str, "os.path.join('a', a)"),
                 ("complex", of.Int, "complex(a)"), ("index", of.Str, "'a'.zfill(a)"), ("len", of.List, "(lambda *b: b)(*a)"),
                 ("trunc", of.Bytes, "np.add(1, a)"), ("iter", of.Deque, "a <= a"),
                 *[(name, base, question) for name in ("hash", "eq") for base in (of.Int, of.Str, of.Tuple, Plain) for question in (
                     "D.get(a)", "a in D", "a in M", "M.__contains__((a, 1))", "D.get((a, 2), 3)")]]


@pytest.mark.parametrize(("name", "base", "question"), OF_ONE_OBJECT, ids=lambda part: getattr(part, "__name__", part))
def test_a_method_that_the_class_of_a_known_object_gets_later(name: str, base: type, question: str) -> None:
    """Also where C comes to the object in what it is given, or no function is called."""
    cls, program = type("Derived", (base,), {}), made(question, caught=True)
    compiled, a = capture.compile(program, backend="eager"), cls()
    assert [told(compiled, a) for _ in range(2)] == [told(program, a)] * 2
    method = answering(ANSWERS.get(name, "told")) if name != "iter" else lambda self: iter((7, 8))
    setattr(cls, f"__{name}__", method)
    expected = told(program, a)
    assert [told(compiled, a) for _ in range(2)] == [expected] * 2


def test_an_iterator_of_a_class_that_gets_a_step_of_its_own() -> None:
    cls, program = type("Derived", (itertools.count,), {}), made("next(a)")
    compiled = capture.compile(program, backend="eager")
    assert [told(compiled, cls()) for _ in range(2)] == [told(program, cls())] * 2
    setattr(cls, "__next__", answering(3))
    assert [told(compiled, cls()) for _ in range(2)] == [told(program, cls())] * 2


def test_a_method_whose_class_comes_to_forbid_binding() -> None:
    """C calls what stands under `__get__`, None too."""
    class Callable_:
        def __call__(self) -> int:
            return 3

    cls, program = type("Owner", (), {"told": Callable_()}), made("a.told()", caught=True)
    compiled = capture.compile(program, backend="eager")
    assert [told(compiled, cls()) for _ in range(2)] == [told(program, cls())] * 2
    Callable_.__get__ = None  # type: ignore[attr-defined]
    assert told(program, cls()) == "(<class 'TypeError'>, 0)"
    assert [told(compiled, cls()) for _ in range(2)] == [told(program, cls())] * 2


# -- products ----------------------------------------------------------------------------------------------------------

class Declining(of.Float):
    def __mul__(self, other: Any) -> Any:
        return NotImplemented


class Indexed(Declining):
    def __index__(self) -> int:
        return 2


class Tuples(of.Tuple):
    __mul__ = Declining.__mul__


class Lists(of.List):
    __mul__ = Declining.__mul__


class Reflected(of.List):
    __rmul__ = Declining.__mul__


class InPlace(of.List):
    __imul__ = Declining.__mul__


FACTORS = ["Declining(2)", "Indexed(2)", "Lists([1])", "Reflected([1])", "InPlace([1])", "of.List([1])", "Tuples((1,))", "'ab'",
           "[1]", "(1,)", "None", "2", "2.0"]


@pytest.mark.parametrize("product", ["r = {} * {}", "r = {}; r *= {}"])
@pytest.mark.parametrize("first", FACTORS)
def test_what_repeats_a_sequence(first: str, product: str) -> None:
    """C asks numbers first, then sequences whose classes have no product of their own."""
    for second in FACTORS:
        names = dict(globals())
        exec(f"def program():\n try:\n  {product.format(first, second)}\n  return type(r), r\n"
             " except Exception as e: return repr(e)", names)
        compiled = capture.compile(names["program"], backend="eager")
        assert [compiled() for _ in range(3)] == [names["program"]()] * 3, second
