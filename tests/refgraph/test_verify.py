"""Any change of the heap that the graph does not know of is found."""
from __future__ import annotations

import operator
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capture.errors import Break
from capture.refgraph.node import ABSENT, Build, Const, DictState, Expr, FunctionState, ListState, SetState
from capture.refgraph.verify import same_value, verify
from tests.refgraph.world import Pair, World

NOTHING = Pair(None, Const(None))


class Slotted:
    __slots__ = ("x",)


def tracked_list(world: World) -> Any:
    world.graph.list_state(world.items)
    return world.pairs["items"].real


def change_item(world: World) -> None:
    tracked_list(world)[0] = 2


def change_type(world: World) -> None:
    tracked_list(world)[0] = True


def change_object(world: World) -> None:
    tracked_list(world)[1] = []


def append(world: World) -> None:
    tracked_list(world).append(1)


def set_key(world: World) -> None:
    world.graph.dict_get(world.table, "a")
    world.pairs["table"].real["a"] = 5


def delete_key(world: World) -> None:
    world.graph.dict_get(world.table, "a")
    del world.pairs["table"].real["a"]


def add_absent_key(world: World) -> None:
    assert world.graph.dict_get(world.table, "z") is ABSENT
    world.pairs["table"].real["z"] = 1


def add_key_to_complete(world: World) -> None:
    world.graph.dict_keys(world.table)
    world.pairs["table"].real["z"] = 1


def add_key_after_entry(world: World) -> None:
    world.graph.dict_prepare(world.table)
    world.pairs["table"].real["z"] = 1


def reorder(world: World) -> None:
    world.graph.dict_keys(world.table)
    table = world.pairs["table"].real
    table["a"] = table.pop("a")


def set_attribute(world: World) -> None:
    world.attribute(world.thing, "x")
    world.pairs["thing"].real.x = 5


def replace_dict(world: World) -> None:
    world.attribute(world.new, "x")
    world.pairs["new"].real.__dict__ = {"x": 1}


def change_set(world: World) -> None:
    world.graph.set_state(world.members)
    world.pairs["members"].real.add(4)


def change_slot(world: World) -> None:
    world.graph.slot(world.slotted, "x", 1)
    world.pairs["slotted"].real.x = 2


def empty_slot(world: World) -> None:
    world.graph.slot(world.slotted, "x", 1)
    del world.pairs["slotted"].real.x


def change_cell(world: World) -> None:
    world.graph.slot(world.cell, "cell_contents", 1)
    world.pairs["cell"].real.cell_contents = 2


CHANGES: list[Callable[[World], None]] = [
    change_item, change_type, change_object, append, set_key, delete_key, add_absent_key, add_key_to_complete,
    add_key_after_entry, reorder, set_attribute, replace_dict, change_set, change_slot, empty_slot, change_cell]


class Plain:
    pass


def make_world() -> World:
    slotted, new = Slotted(), Plain()
    slotted.x, new.x = 1, 1
    return World(items=[1, [2]], table={"a": 1, "b": 2}, thing=SimpleNamespace(x=1), members={1, 2}, slotted=slotted,
                 cell=types.CellType(1), new=new)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_that_was_not_tracked(change):
    world = make_world()
    change(world)
    with pytest.raises(Break) as caught:
        verify(world.graph, NOTHING)
    assert caught.value.reason.id == "untracked-mutation"


def test_what_was_tracked_is_accepted():
    world = make_world()
    graph, pairs = world.graph, world.pairs
    for name in ("items", "table", "thing", "members"):
        assert pairs[name].shadow is not None
    graph.list_state(world.items)
    graph.dict_keys(world.table)
    pairs["table"].real["c"] = 4
    total = Expr(operator.add, (graph.dict_get(world.table, "a"), Const(3)))
    graph.dict_set(world.table, "c", total)
    graph.set_state(world.members)
    world.set_attribute(pairs["thing"], "x", Pair(4, total))
    graph.slot(world.cell, "cell_contents", 1)
    verify(graph, Pair((4, pairs["items"].real), Build(tuple, (total, world.items))))


def test_arithmetic_is_recomputed():
    world = World(n=3)
    total = Expr(operator.mul, (world.n, Const(2.0)))
    verify(world.graph, Pair(6.0, total))
    with pytest.raises(Break, match="the result"):
        verify(world.graph, Pair(6, total))


def test_created_objects_are_compared():
    world = World()
    xs, table, members = [1], {"a": 1}, {1}
    world.graph.create(xs, ListState([Const(1)]))
    world.graph.create(table, DictState({"a": Const(1)}, complete=True))
    world.graph.create(members, SetState({1: Const(1)}))
    verify(world.graph, NOTHING)
    members.remove(1)
    members.add(True)
    with pytest.raises(Break, match="a new set"):
        verify(world.graph, NOTHING)


def test_functions_are_compared():
    def f(x=1): ...
    world = World()
    globals = world.graph.constant(f.__globals__)
    node = world.graph.create(f, FunctionState(f.__code__, globals, Build(tuple, (Const(1),)), Const(None), ()))
    verify(world.graph, Pair(f, node))
    f.__defaults__ = (2,)
    with pytest.raises(Break, match="__defaults__"):
        verify(world.graph, Pair(f, node))


def test_the_result_must_be_the_very_tensor():
    world = World()
    t = world.tensor()
    verify(world.graph, t)
    with pytest.raises(Break, match="the result"):
        verify(world.graph, Pair(torch.zeros(2), t.shadow))


def test_the_dead_are_not_compared():
    world = World()
    world.graph.create(Plain(), None).slots["x"] = Const(1)
    verify(world.graph, NOTHING)


@pytest.mark.parametrize("left, right, expected", [
    (0.0, -0.0, False), (float("nan"), float("nan"), True), (1, True, False), (1, 1.0, False), ((1,), (1,), True),
    ((1,), (1.0,), False), (complex(0, 0.0), complex(0, -0.0), False), (frozenset({1}), frozenset({True}), False),
    (torch.device("cpu"), torch.device("cpu"), True), ([], [], False), (slice(1), slice(1), True)])
def test_same(left, right, expected):
    assert same_value(left, right) is expected
