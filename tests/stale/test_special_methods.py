"""Special methods of classes that derive from builtin ones: defined from the first, or after the capture."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

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


def made(question: str) -> Callable[[Any], Any]:
    names: dict[str, Any] = {"operator": operator}
    exec(f"def program(a):\n r = {question}\n return r", names)
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


# -- later -------------------------------------------------------------------------------------------------------------

LATER = [("contains", of.List, "2 in a"), ("contains", of.Set, "2 in a"), ("getitem", of.Tuple, "a[:1]"),
         ("setitem", of.Dict, "a.__class__.__mro__ and operator.setitem(a, 1, 2) or dict.__len__(a)"),
         ("delitem", of.Deque, "a.append(1) or operator.delitem(a, 0) or len(a)"), ("reversed", of.List, "list(reversed(a))"),
         ("ne", Plain, "a != 2"), ("ne", of.Tuple, "a != ()"), ("lt", of.List, "a < [1]"), ("le", of.Set, "a <= {1}"),
         ("gt", of.List, "a > [1]"), ("ge", of.Set, "a >= {1}"), ("call", Plain, "callable(a)"), ("len", Plain, "bool(a)"),
         ("bool", Plain, "not a"), ("iter", of.List, "list(a)"), ("eq", of.List, "a == []"), ("str", Plain, "str(a)[:6]"),
         ("repr", Plain, "repr([a])[:6]"), ("format", Plain, "f'{a}'[:6]")]
ANSWERS: dict[str, Any] = {"len": 0, "bool": False, "str": "written", "repr": "written", "format": "written", "contains": True}


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
