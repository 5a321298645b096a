"""Several requirements of one kind on one object: each is a guard of its own, whichever the program asks for first."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

import capture
from capture.guards.guard import Kind
from tests.stale.cases import Made, X, run

Question = Callable[[], Any]
Change = Callable[[], Any]
# Two questions of which the answers change one by one: (question, change, its undoing) for each.
Questions = list[tuple[Question, Change, Change]]
CASES: dict[Kind, Callable[[], Questions]] = {}


def asks(kind: Kind) -> Callable[[Callable[[], Questions]], Callable[[], Questions]]:
    """Registers a factory of questions, each of which comes to a requirement of this kind on the same object."""
    def register(make: Callable[[], Questions]) -> Callable[[], Questions]:
        CASES[kind] = make
        return make
    return register


@asks(Kind.PRESENT)
def keys_that_are_there() -> Questions:
    table = {"a": 1, "b": 2, "c": 3}
    return [(lambda: "a" in table, lambda: table.pop("a"), lambda: table.update(a=1)),
            (lambda: "b" in table, lambda: table.pop("b"), lambda: table.update(b=2))]


@asks(Kind.ABSENT)
def keys_that_are_not_there() -> Questions:
    table = {"c": 3}
    return [(lambda: "a" in table, lambda: table.update(a=1), lambda: table.pop("a")),
            (lambda: "b" in table, lambda: table.update(b=2), lambda: table.pop("b"))]


@asks(Kind.NO_ATTR)
def attributes_that_a_class_has_not() -> Questions:
    class Box:
        pass
    box = Box()
    return [(lambda: hasattr(box, "a"), lambda: setattr(Box, "a", 1), lambda: delattr(Box, "a")),
            (lambda: hasattr(box, "b"), lambda: setattr(Box, "b", 1), lambda: delattr(Box, "b"))]


@asks(Kind.MEMBER)
def members() -> Questions:
    numbers = {1, 2, 3}
    return [(lambda: 2 in numbers, lambda: numbers.discard(2), lambda: numbers.add(2)),
            (lambda: 3 in numbers, lambda: numbers.discard(3), lambda: numbers.add(3))]


@asks(Kind.NOT_MEMBER)
def what_is_no_member() -> Questions:
    numbers = {1}
    return [(lambda: 2 in numbers, lambda: numbers.add(2), lambda: numbers.discard(2)),
            (lambda: 3 in numbers, lambda: numbers.add(3), lambda: numbers.discard(3))]


@asks(Kind.ALIAS)
def tuples_that_are_one() -> Questions:
    one, other = (X, 1), (X, 1)
    box = types.SimpleNamespace(own=one, first=one, second=one)
    return [(lambda: box.own is box.first, lambda: setattr(box, "first", other), lambda: setattr(box, "first", one)),
            (lambda: box.own is box.second, lambda: setattr(box, "second", other), lambda: setattr(box, "second", one))]


@asks(Kind.DISTINCT)
def objects_that_are_not_one() -> Questions:
    own, one, other = [], [], []
    box = types.SimpleNamespace(own=own, first=one, second=other)
    return [(lambda: box.own is box.first, lambda: setattr(box, "first", own), lambda: setattr(box, "first", one)),
            (lambda: box.own is box.second, lambda: setattr(box, "second", own), lambda: setattr(box, "second", other))]


def test_every_such_kind_is_asked_for() -> None:
    assert set(CASES) == {kind for kind in Kind if kind.row.several}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)
def test_both_are_guarded(kind: Kind) -> None:
    (first, *_), (second, *_) = CASES[kind]()
    program = capture.compile(lambda x: (x + 1, first(), second()), backend="eager", fullgraph=True)
    program(X)
    entry, = program.capture_unit.tree.entries
    sources = [guard.source for guard in entry.guards if guard.kind is kind]
    assert any(sources.count(source) > 1 for source in sources), sources


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("backwards", [False, True], ids=["", "backwards"])
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)
def test_each_is_made_false(kind: Kind, backwards: bool, changed: int) -> None:
    def make() -> Made:
        questions = CASES[kind]()
        _, change, undo = questions[changed]
        asked = [question for question, _, _ in (reversed(questions) if backwards else questions)]

        def program(x: Any) -> Any:
            return x * 2 if asked[0]() else x, x - 1 if asked[1]() else x
        return program, change, undo
    run(make, captures=2)
