"""What a mock function makes and does, and what it refuses to make."""
from __future__ import annotations

import collections
import operator
import types
from typing import Any, NamedTuple

import pytest
import torch

from capture.errors import Break
from capture.refgraph.effects import Effect, merge_changes
from capture.refgraph.node import Build, Const, DictState, Expr, FunctionState, IteratorState, ListState, RefNode, SetState
from tests.refgraph.world import Pair, World


class Plain:
    pass


class Guarded:
    """Any access to an attribute by way of the class fails, but for what `isinstance` asks."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Guarded
        raise AssertionError(f"user code ran: {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(f"user code ran: {name}")


class Slotted:
    __slots__ = ("a", "b")


class Output(collections.OrderedDict):
    """As the outputs of transformers: keys are attributes too, and Python code of its own sets both."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("user code ran")


class Items(list):
    def append(self, item: Any) -> None:
        raise AssertionError("user code ran")


class Point(NamedTuple):
    x: Any
    y: Any


def run(world: World, result: Pair, *arguments: Any, compute: Any = None) -> Any:
    return world.code(result, compute).function(*arguments)


def test_a_created_list_is_made_anew_each_time():
    world = World()
    real = [1, 2]
    code = world.code(Pair(real, world.graph.create(real, ListState([Const(1), Const(2)]))))
    first, second = code.function(), code.function()
    assert first == second == [1, 2]
    assert first is not second


def test_an_object_stored_twice_is_one_object():
    world = World()
    inner: list = []
    node = world.graph.create(inner, ListState([]))
    left, right = run(world, Pair((inner, inner), Build(tuple, (node, node))))
    assert left is right


def test_a_cycle_is_closed():
    world = World()
    xs: list = []
    node = world.graph.create(xs, ListState([]))
    table = {"xs": xs}
    node.state.items.append(world.graph.create(table, DictState({"xs": node}, complete=True)))
    xs.append(table)
    made = run(world, Pair(xs, node))
    assert made[0]["xs"] is made


def test_a_cycle_through_a_tuple_is_closed():
    world = World()
    xs: list = []
    node = world.graph.create(xs, ListState([]))
    pair = (xs, 1)
    xs.append(pair)
    node.state.items.append(Build(tuple, (node, Const(1))))
    made = run(world, Pair(pair, node.state.items[0]))
    assert made[0][0][0] is made[0]


def test_containers_and_their_subclasses():
    world = World()
    graph = world.graph
    real_deque, real_set = collections.deque([1, 2], 2), {3}
    real_output, real_items = Output(), Items([4])
    collections.OrderedDict.__setitem__(real_output, "b", 5)
    collections.OrderedDict.__setitem__(real_output, "a", 6)
    output = graph.create(real_output, DictState({"b": Const(5), "a": Const(6)}, complete=True))
    world.set_attribute(Pair(real_output, output), "b", Pair(5, Const(5)))
    shadows = (graph.create(real_deque, ListState([Const(1), Const(2)])),
               graph.create(real_set, SetState({3: Const(3)})), output, graph.create(real_items, ListState([Const(4)])))
    made = run(world, Pair((real_deque, real_set, real_output, real_items), Build(tuple, shadows)))
    assert made == (real_deque, real_set, real_output, real_items)
    assert list(map(type, made)) == [collections.deque, set, Output, Items]
    assert made[0].maxlen == 2
    assert list(made[2]) == ["b", "a"]
    assert made[2].__dict__ == {"b": 5}


def test_an_origin_says_how_an_object_is_made():
    world = World()
    real = collections.defaultdict(list)
    real["k"] = 1
    node = world.graph.create(real, DictState({"k": Const(1)}, complete=True),
                              origin=Expr(collections.defaultdict, (Const(list),)))
    made = run(world, Pair(real, node))
    assert type(made) is collections.defaultdict and made.default_factory is list and made == {"k": 1}


def test_instances_are_made_without_their_class():
    world = World()
    real = object.__new__(Guarded)
    node = world.graph.create(real)
    namespace = world.graph.attributes(node)
    object.__getattribute__(real, "__dict__")["x"] = 1
    world.graph.dict_set(namespace, "x", Const(1))
    made = run(world, Pair(real, node))
    assert type(made) is Guarded
    assert object.__getattribute__(made, "__dict__") == {"x": 1}


def test_slots_and_instances_with_nothing():
    world = World()
    slotted, empty = Slotted(), Plain()
    node = world.graph.create(slotted)
    slotted.a = 1
    world.graph.set_slot(node, "a", Const(1))
    made, other = run(world, Pair((slotted, empty), Build(tuple, (node, world.graph.create(empty)))))
    assert made.a == 1 and not hasattr(made, "b")
    assert type(other) is Plain and other.__dict__ == {}


def test_exceptions_and_namespaces():
    class Mine(ValueError):
        def __init__(self, *args: Any) -> None:
            raise AssertionError("user code ran")

    world = World()
    error, mine, space = KeyError("k"), ValueError.__new__(Mine, 1, 2), types.SimpleNamespace()
    shadows = [world.graph.create(real, origin=Build(type(real), tuple(map(Const, real.args)))) for real in (error, mine)]
    node = world.graph.create(space)
    world.set_attribute(Pair(space, node), "x", Pair(1, Const(1)))
    made = run(world, Pair((error, mine, space), Build(tuple, (*shadows, node))))
    assert [type(made[0]), made[0].args, type(made[1]), made[1].args] == [KeyError, ("k",), Mine, (1, 2)]
    assert made[2] == types.SimpleNamespace(x=1)


def test_a_function_that_refers_to_itself():
    def make():
        def countdown(n: int, step=1) -> int:
            return 0 if n <= 0 else 1 + countdown(n - step)
        return countdown

    real = make()
    world = World()
    graph = world.graph
    cell = graph.create(real.__closure__[0])
    globals = graph.constant(real.__globals__)
    node = graph.create(real, FunctionState(real.__code__, globals, Build(tuple, (Const(1),)), Const(None), (cell,)))
    cell.slots["cell_contents"] = node
    made = run(world, Pair(real, node))
    assert made is not real and made(5) == 5
    assert made.__closure__[0].cell_contents is made
    assert made.__qualname__ == real.__qualname__ and made.__annotations__ == real.__annotations__


def test_immutable_composites():
    world = World(x=1)
    reals = (Point(1, 2), slice(1, 2, None), frozenset({3}), torch.Size([1, 2]), torch.return_types.max((1, 2)), 1.5)
    parts = (Build(Point, (world.x, Const(2))), Build(slice, (world.x, Const(2), Const(None))),
             Build(frozenset, (Const(3),)), Build(torch.Size, (world.x, Const(2))),
             Build(torch.return_types.max, (world.x, Const(2))), Const(1.5))
    made = run(world, Pair(reals, Build(tuple, parts)), 7)
    assert made == (Point(7, 2), slice(7, 2, None), frozenset({3}), torch.Size([7, 2]), (7, 2), 1.5)
    assert list(map(type, made)) == list(map(type, reals))


def test_bound_methods_keep_their_object():
    items = Items()
    world = World(items=items)
    bound = Build(types.MethodType, (world.graph.constant(Items.append), world.items))
    native = Build(types.BuiltinFunctionType, (Const(list.extend), world.items))
    other = Items()
    methods = run(world, Pair((items.append, items.extend), Build(tuple, (bound, native))), other)
    assert methods == (other.append, other.extend)
    assert all(method.__self__ is other for method in methods)


def test_a_tuple_from_outside_keeps_its_identity():
    pair = (1, [2])
    world = World(pair=pair)
    other = (3, [4])
    assert run(world, Pair(pair, world.pair), other) is other


def test_an_outside_tensor_is_read_by_its_path():
    x = torch.ones(2)
    world = World(x=x)
    world.input(world.x)
    y = world.tensor()
    other, computed = torch.zeros(3), torch.zeros(1)
    left, right = run(world, Pair((x, y.real), Build(tuple, (world.x, y.shadow))), other, compute=lambda x: (computed,))
    assert left is other and right is computed


def test_attributes_of_a_new_tensor():
    world = World()
    t = world.tensor()
    world.set_attribute(t, "tag", Pair("a", Const("a")))
    made = run(world, t, compute=lambda: (torch.ones(1),))
    assert made.tag == "a"


def test_effects_are_repeated_on_the_entry_state():
    counter = Plain()
    counter.step = 3
    counter.log = []
    world = World(counter=counter)
    node = world.counter
    step = Expr(operator.add, (world.attribute(node, "step"), Const(1)))
    world.set_attribute(Pair(counter, node), "step", Pair(4, step))
    log = world.attribute(node, "log")
    world.graph.list_state(log).items.append(step)
    counter.log.append(4)
    world.graph.effect(list.append, log, step)
    other = Plain()
    other.step, other.log = 10, ["start"]
    assert run(world, Pair(None, Const(None)), other) is None
    assert other.__dict__ == {"step": 11, "log": ["start", 11]}


def test_values_swapped_are_read_before_they_change():
    pair = Plain()
    pair.a, pair.b = 1, 2
    world = World(pair=pair)
    a, b = world.attribute(world.pair, "a"), world.attribute(world.pair, "b")
    world.set_attribute(Pair(pair, world.pair), "a", Pair(2, b))
    world.set_attribute(Pair(pair, world.pair), "b", Pair(1, a))
    other = Plain()
    other.a, other.b = 5, 6
    run(world, Pair(None, Const(None)), other)
    assert (other.a, other.b) == (6, 5)


def test_assignments_that_are_overwritten_are_left_out():
    world = World(table={})
    node = world.table

    def put(key: str, value: int) -> Effect:
        return Effect(dict.__setitem__, node, (Const(key), Const(value)))

    clear = Effect(dict.clear, node, ())
    first, second, last = put("a", 1), put("b", 2), put("a", 3)
    assert merge_changes([first, second, last]) == [last, second]
    assert merge_changes([first, clear, last]) == [first, clear, last]


def test_what_is_pushed_and_popped_again_is_left_out():
    world = World(stack=[], other=[])

    def push(node: RefNode, value: int) -> Effect:
        return Effect(list.append, node, (Const(value),))

    one, two, elsewhere = push(world.stack, 1), push(world.stack, 2), push(world.other, 3)
    pop, first_out = Effect(list.pop, world.stack, ()), Effect(list.pop, world.stack, (Const(0),))
    assert merge_changes([one, two, elsewhere, pop]) == [one, elsewhere]
    assert merge_changes([one, two, pop, elsewhere, pop, pop]) == [elsewhere, pop]
    assert merge_changes([one, two, first_out, pop]) == [one, two, first_out, pop]


@pytest.mark.parametrize("real", [iter([1]), (i for i in ()), list.__new__(type("C", (list,), {})), Plain.__dict__])
def test_what_cannot_be_made_breaks(real):
    world = World()
    with pytest.raises(Break, match=type(real).__qualname__) as caught:
        world.code(Pair(real, world.graph.create(real)))
    assert caught.value.reason.id == "escaping-object"


def test_what_is_not_known_completely_breaks():
    known, table, moving = Plain(), {"a": 1}, iter([1])
    known.x = 1
    for real, state in (known, None), (table, DictState({}, complete=False)), (moving, IteratorState()):
        world = World()
        with pytest.raises(Break) as caught:
            world.code(Pair(real, world.graph.create(real, state)))
        assert caught.value.reason.id == "escaping-object"
