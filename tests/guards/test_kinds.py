"""Every kind of guard: what a trace requires twice of one object is guarded twice, or refused."""
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from capture import _C
from capture.guards.collect import collect
from capture.guards.guard import Kind
from capture.guards.tree import GuardTree
from capture.refgraph.graph import RefGraph
from capture.refgraph.source import InstanceDict, Item, Local

SUBJECT = Local("x", 0)


def subject(x):
    return x


def part(name: str) -> Item:
    return Item(InstanceDict(SUBJECT), name)


@dataclass
class Example:
    """Two requirements of one object that differ. Each has a change that makes it false, and what undoes that: where a kind allows
    but one requirement of an object, the first alone holds of `x`."""

    x: Any
    first: Any
    second: Any
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]]
    source: Any = SUBJECT


EXAMPLES: dict[Kind, Callable[[], Example]] = {}


def example(make: Callable[[], Example]) -> Callable[[], Example]:
    EXAMPLES[Kind[make.__name__.upper()]] = make
    return make


def on_part(value: Any, other: Any, first: Any, second: Any) -> Example:
    """Of an attribute, to which another value is assigned."""
    box = types.SimpleNamespace(part=value)
    return Example(box, first, second, [(lambda: setattr(box, "part", other), lambda: setattr(box, "part", value))], part("part"))


@example
def type() -> Example:
    return on_part(1, True, int, bool)


@example
def id() -> Example:
    one, other = types.SimpleNamespace(), types.SimpleNamespace()
    return on_part(one, other, one, other)


@example
def value() -> Example:
    return on_part((1, [2.0]), (1, [-2.0]), (1, [2.0]), (True, [2.0]))


@example
def truth() -> Example:
    items = [1]
    return Example(items, True, False, [(items.clear, lambda: items.append(1))])


@example
def length() -> Example:
    items = [1]
    return Example(items, 1, 2, [(lambda: items.append(1), items.pop)])


@example
def keys() -> Example:
    table = {"a": 1, "b": 2}
    return Example(table, ("a", "b"), ("b", "a"), [(lambda: table.update(a=table.pop("a")),
                                                       lambda: table.update(b=table.pop("b")))])


@example
def present() -> Example:
    table = {"a": 1, "b": 2}
    return Example(table, "a", "b", [(lambda: table.pop("a"), lambda: table.update(a=1)),
                                     (lambda: table.pop("b"), lambda: table.update(b=1))])


@example
def absent() -> Example:
    table = {"c": 1}
    return Example(table, "a", "b", [(lambda: table.update(a=1), lambda: table.pop("a")),
                                     (lambda: table.update(b=1), lambda: table.pop("b"))])


@example
def no_attr() -> Example:
    class Box:
        pass
    return Example(Box, "a", "b", [(lambda: setattr(Box, "a", 1), lambda: delattr(Box, "a")),
                                   (lambda: setattr(Box, "b", 1), lambda: delattr(Box, "b"))])


@example
def mro() -> Example:
    class One:
        pass

    class Other:
        pass

    class Both(One):
        pass
    return Example(Both, Both.__mro__, (Both, Other, object),
                   [(lambda: setattr(Both, "__bases__", (Other,)), lambda: setattr(Both, "__bases__", (One,)))])


@example
def content() -> Example:
    numbers = {1, 2}
    return Example(numbers, frozenset((1, 2)), frozenset((True, 2)), [(lambda: numbers.discard(2), lambda: numbers.add(2))])


@example
def member() -> Example:
    numbers = {1, 2}
    return Example(numbers, 1, 2, [(lambda: numbers.discard(1), lambda: numbers.add(1)),
                                   (lambda: numbers.discard(2), lambda: numbers.add(2))])


@example
def not_member() -> Example:
    numbers = {3}
    return Example(numbers, 1, 2, [(lambda: numbers.add(1), lambda: numbers.discard(1)),
                                   (lambda: numbers.add(2), lambda: numbers.discard(2))])


@example
def tensor() -> Example:
    properties = _C.tensor_properties(torch.ones(2, 3))
    return on_part(torch.ones(2, 3), torch.ones(2, 4), properties, properties.of_any_shape())


@example
def alias() -> Example:
    one, other = types.SimpleNamespace(), types.SimpleNamespace()
    box = types.SimpleNamespace(part=one, first=one, second=one)
    return Example(box, part("first"), part("second"), [
        (lambda: setattr(box, "first", other), lambda: setattr(box, "first", one)),
        (lambda: setattr(box, "second", other), lambda: setattr(box, "second", one))], part("part"))


@example
def distinct() -> Example:
    own, one, other = types.SimpleNamespace(), types.SimpleNamespace(), types.SimpleNamespace()
    box = types.SimpleNamespace(part=own, first=one, second=other)
    return Example(box, part("first"), part("second"), [
        (lambda: setattr(box, "first", own), lambda: setattr(box, "first", one)),
        (lambda: setattr(box, "second", own), lambda: setattr(box, "second", other))], part("part"))


@example
def separate() -> Example:
    own, one, other = types.SimpleNamespace(), types.SimpleNamespace(), types.SimpleNamespace()
    box = types.SimpleNamespace(part=own, first=one, second=other)
    sides = ((part("part"), True), (part("first"), True), (part("second"), False))
    return Example(box, sides, (sides[0], (part("absent"), False)), [
        (lambda: setattr(box, "second", one), lambda: setattr(box, "second", other))], part("part"))


@example
def storage() -> Example:
    whole = torch.zeros(6)
    box = types.SimpleNamespace(part=whole, first=whole[2:], second=whole[4:])
    together = ((part("part"), 0, 0), (part("first"), 0, 8))
    return Example(box, together, ((part("part"), 0, 0), (part("second"), 0, 16)), [
        (lambda: setattr(box, "first", torch.zeros(4)), lambda: setattr(box, "first", whole[2:]))], part("part"))


@example
def modes() -> Example:
    now = _C.modes()
    with torch.no_grad():
        return Example(1, now, _C.modes(), [(lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True))], None)


def required(kind: Kind, source: Any, expected: list[Any]) -> GuardTree:
    graph = RefGraph()
    for one in expected:
        graph.require(source, kind.name, one)
    tree = GuardTree(subject.__code__)
    guards = collect(graph)
    assert [guard.kind for guard in guards] == [kind] * len(expected)
    tree.insert(guards, [], None, None)
    return tree


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(Kind)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("backwards", [False, True], ids=["", "backwards"])
def test_two_requirements_of_one_object_are_guarded_or_refused(kind, backwards):
    made = EXAMPLES[kind]()
    both = [made.first, made.second]
    if backwards:
        both.reverse()
    if not kind.row.several:
        with pytest.raises(AssertionError, match=kind.name):
            required(kind, made.source, both)
    tree = required(kind, made.source, both if kind.row.several else [made.first])
    assert len(made.changes) == 1 + kind.row.several, "an example has a change for each requirement that may hold"
    for change, undo in made.changes:
        assert tree.check(subject, [made.x])
        change()
        try:
            assert not tree.check(subject, [made.x]) and tree.explain(subject, [made.x])[0].guard.kind is kind
        finally:
            undo()
    assert tree.check(subject, [made.x])


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_what_is_required_again_is_one_guard(kind):
    made, again = EXAMPLES[kind](), EXAMPLES[kind]()
    expected = [made.first, made.first if kind.row.form.name in ("OBJECT", "VALUE") else again.first]
    graph = RefGraph()
    for one in expected:
        graph.require(made.source, kind.name, one)
    assert len(collect(graph)) == 1


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_every_kind_can_be_read(kind):
    made = EXAMPLES[kind]()
    guard, = collect(graph_of(kind, made))
    assert guard.as_python() and guard.evaluate({"x": made.x}, subject) and kind.row.remedy and kind.row.condition


def graph_of(kind: Kind, made: Example) -> RefGraph:
    graph = RefGraph()
    graph.require(made.source, kind.name, made.first)
    return graph
