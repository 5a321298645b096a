"""Call effects in the plan of a mock function: their order among mutations, and the objects that hold what they return."""
from __future__ import annotations

import pytest

from capture.errors import Break
from capture.refgraph.effects import Replayed, is_foreign
from capture.refgraph.node import Build, BytesState, Const, Expr, ListState, SetState, source_of
from capture.refgraph.publishing import shown_for_the_first_time
from tests.refgraph.world import Pair, World


class Box:
    pass


def counter() -> tuple[list[str], object]:
    """A log, and a function that writes to it and returns how long it is."""
    log: list[str] = []

    def note(*items: object) -> int:
        log.append(" ".join(map(str, items)))
        return len(log)
    return log, note


def test_calls_and_mutations_keep_their_order() -> None:
    log, note = counter()
    box = Box()
    box.x = 0
    world = World(box=box)
    world.attribute(world.box, "x")
    target = world.pairs["box"]
    world.set_attribute(target, "x", Pair(1, Const(1)))
    shown = Expr(vars, (world.box,))
    world.graph.call_effect(Const(note), (shown,))
    world.set_attribute(target, "x", Pair(2, Const(2)))
    world.graph.call_effect(Const(note), (shown,))
    function = world.code(Pair(None, Const(None))).function
    again = Box()
    again.x = 0
    function(again)
    assert log == ["{'x': 1}", "{'x': 2}"] and again.x == 2


def test_an_object_is_complete_once_the_call_was_made_whose_result_it_holds() -> None:
    log, note = counter()
    world = World()
    items: list[object] = []
    node = world.graph.create(items, ListState([]))
    for name in ("a", "b"):
        call = world.graph.call_effect(Const(note), (Const(name),))
        items.append(name)
        node.state.items.append(Replayed(call, (), int))
    world.graph.effect(list.append, node, Const(0))
    last = world.graph.call_effect(Const(note), (node, Const("c")), shown=(node,))
    items[:] = ["a", "b"]
    result = Build(tuple, (node, Replayed(last, ())))
    function = world.code(Pair((items, 3), result)).function
    assert function() == ([1, 2], 3) and log == ["a", "b", "[1, 2] c"]


def test_an_early_call_comes_before_the_graph() -> None:
    log, note = counter()
    world = World()
    tensor = world.tensor()
    world.graph.call_effect(Const(note), (Const("late"),))
    early = world.graph.call_effect(Const(note), (Const("early"),), early=True)
    code = world.code(Pair((tensor.real, 1), Build(tuple, (tensor.shadow, Replayed(early, ())))), lambda: (note("graph"),))
    assert code.function() == (2, 1) and log == ["early", "graph", "late"]
    assert code.first_effect < 100 and len(code.calls) == 1


def test_an_object_is_shown_as_it_was_and_changed_after_the_call() -> None:
    log, note = counter()
    world = World()
    items, inner = [], [0]
    node, part = world.graph.create(items, ListState([])), world.graph.create(inner, ListState([Const(0)]))
    items.append(inner)
    node.state.items.append(part)
    world.graph.call_effect(Const(note), (node,), shown=(node,))
    items.append(1)
    node.state.items.append(Const(1))
    world.graph.effect(list.append, node, Const(1))
    inner[0] = 2
    part.state.items[0] = Const(2)
    world.graph.effect(list.__setitem__, part, Const(0), Const(2))
    world.graph.call_effect(Const(note), (node,), shown=(node,))
    assert world.code(Pair(items, node)).function() == [[2], 1] and log == ["[[0]]", "[[2], 1]"]


def test_an_object_that_changes_after_it_was_shown_and_of_which_no_copy_is_kept_is_refused() -> None:
    world = World()
    data = bytearray()
    node = world.graph.create(data, BytesState(b""))
    world.graph.call_effect(Const(print), (node,), shown=(node,))
    data.append(1)
    node.state.content = b"\1"
    world.graph.effect(bytearray.append, node, Const(1))
    with pytest.raises(Break) as caught:
        world.code(Pair(data, node))
    assert caught.value.reason.id == "late-change"


def test_what_a_call_returned_is_made_by_the_call() -> None:
    world = World()
    real = Box()
    call = world.graph.call_effect(Const(Box), ())
    node = world.graph.create(real, origin=Replayed(call, ()))
    node.attrs = None
    assert is_foreign(node) and source_of(Replayed(call, ())) is None
    made = world.code(Pair(real, node)).function()
    assert type(made) is Box and made is not real
    with pytest.raises(Break):
        world.graph.depend(Replayed(call, ()), 1)


def test_a_set_that_has_died_is_shown_in_the_order_of_its_members() -> None:
    """Effects may still refer to it."""
    world = World()
    members = {1, 2}
    node = world.graph.create(members, SetState({1: Const(1), 2: Const(2)}))
    del members
    assert list(shown_for_the_first_time(world.graph, (node,))[node].state.items) == [1, 2]
