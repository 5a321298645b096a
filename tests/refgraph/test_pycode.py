"""The source of mock functions: what it looks like, what it holds, and what it does not run."""
from __future__ import annotations

import gc
import linecache
import math
import operator
import sys
import traceback
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from capture.refgraph.mock import MockPlan
from capture.refgraph.node import Build, Const, Expr, External, ListState
from capture.refgraph.pycode import generate
from capture.refgraph.source import Attr, Constant, Function, ImportedModule, InstanceDict, Item, Local, TypeAttr, TypeOf
from capture.refgraph.verify import same_value
from tests.refgraph.world import Pair, World

NOTHING = Pair(None, Const(None))


class Loud(dict):
    """Runs Python code whenever it is asked for something."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("user code ran")

    __setitem__ = __delitem__ = __getitem__


def test_a_trivial_function():
    x, y = torch.ones(2), torch.ones(2)
    world = World(x=x, y=y)
    world.input(world.x, world.y)
    code = world.code(world.tensor(), operator.add)
    assert code.source == "def mock(x, y):\n    t0, = graph(x, y)\n    return t0\n"
    assert code.globals == {"graph": operator.add}
    assert code.graph == "graph" and code.lifted == ()


def test_inputs_that_are_not_arguments_are_lifted():
    module = torch.nn.Linear(2, 2)
    x = torch.ones(2)
    world = World(module=module, x=x)
    parameters = world.attribute(world.module, "_parameters")
    weight = world.graph.dict_get(parameters, "weight")
    world.input(world.x, weight)
    code = world.code(world.tensor(), lambda *tensors: (tensors,))
    assert code.source == "def mock(module, x, lifted):\n    t0, = graph(*lifted)\n    return t0\n"
    assert code.lifted == (Local("x", 1), Item(Item(InstanceDict(Local("module", 0)), "_parameters"), "weight"))
    assert code.function(module, x, (1, 2)) == (1, 2)


def test_what_the_function_leads_to_is_lifted():
    def function() -> None: ...
    globals = function.__globals__
    world = World()
    source = Item(Attr(Function(), "__globals__"), "NOTHING")
    world.graph.external(globals, Attr(Function(), "__globals__"))
    x = world.graph.external(torch.ones(1), Item(source, 0))
    world.input(x)
    t = world.tensor()
    code = world.code(Pair((2, t.real), Build(tuple, (External(source, 2), t.shadow))), lambda *inputs: (inputs,))
    assert code.lifted == (x.source, source)
    assert "graph(*lifted[:1])" in code.source
    assert code.function(("x", NOTHING)) == (NOTHING, ("x",))


def test_a_subpath_is_read_once():
    thing = SimpleNamespace(a=1, b=2)
    world = World(thing=thing)
    total = Expr(operator.add, (world.attribute(world.thing, "a"), world.attribute(world.thing, "b")))
    world.set_attribute(Pair(thing, world.thing), "a", Pair(3, total))
    code = world.code(NOTHING)
    assert code.source.count("__dict__") == 1
    other = SimpleNamespace(a=10, b=20)
    code.function(other)
    assert other.a == 30


def test_names_of_arguments_do_not_clash():
    items: list = [1]
    world = World(graph_=1, graph=items, lifted=2, t0=3, list=4, list0=5, lookup=6)
    world.graph.list_state(world.pairs["graph"].shadow).items.append(Const(1))
    items.append(1)
    world.graph.effect(list.extend, world.pairs["graph"].shadow, Build(tuple, (Const(1),)))
    new = [7]
    node = world.graph.create(new, ListState([Const(7)]))
    t = world.tensor()
    code = world.code(Pair((new, t.real), Build(tuple, (node, t.shadow))), lambda: ("tensor",))
    other: list = []
    assert code.function(0, other, 0, 0, 0, 0, 0) == ([7], "tensor")
    assert other == [1]


def test_no_code_of_the_users_runs_on_a_subclass_of_dict():
    table = Loud(a=1)
    world = World(table=table)
    value = world.graph.dict_get(world.table, "a")
    dict.__setitem__(table, "b", 1)
    world.graph.dict_set(world.table, "b", value)
    dict.__delitem__(table, "a")
    world.graph.dict_delete(world.table, "a")
    other = Loud(a=5)
    world.code(NOTHING).function(other)
    assert dict(dict.items(other)) == {"b": 5}


def test_every_kind_of_path():
    thing = SimpleNamespace(a=[1], kind=SimpleNamespace)
    sources = [Attr(Constant(operator.add), "__name__"), Attr(ImportedModule("math"), "pi"), TypeOf(Local("thing", 0)),
               TypeAttr(Constant(SimpleNamespace), "__init__"), Item(Item(InstanceDict(Local("thing", 0)), "a"), 0)]
    shadows = tuple(External(source, None) for source in sources)
    made = generate(MockPlan((), (), Build(tuple, shadows), {}, {}), ["thing"], [], None, "paths").function(thing)
    assert made == ("add", math.pi, SimpleNamespace, SimpleNamespace.__init__, 1)


def test_constants_are_exact():
    values = (0.0, -0.0, math.inf, -math.inf, math.nan, complex(-0.0, math.nan), 1, True, -1, 2 ** 5000, "\ud800\n",
              b"\0", None, ..., range(3), NotImplemented, torch.float32, torch.device("cpu"),
              (1, (-0.0,)), slice(1, None))
    world = World()
    made = world.code(Pair(values, Build(tuple, tuple(map(Const, values))))).function()
    assert all(map(same_value, made, values))
    assert made[6] is not True and made[7] is True


def test_what_the_code_uses_itself_may_be_a_value_too():
    """Values are held weakly where that goes, and the module `sys` is what paths to other modules begin with."""
    shadows = External(Attr(ImportedModule("math"), "pi"), None), Const(sys), Const(math)
    made = generate(MockPlan((), (), Build(tuple, shadows), {}, {}), [], [], None, "both").function()
    assert made == (math.pi, sys, math)


def test_arithmetic_keeps_its_precedence_and_is_shared():
    world = World(n=3)
    negative = Expr(operator.pow, (Const(-2), world.n))
    total = Expr(operator.mul, (Expr(operator.add, (negative, world.n)), Expr(operator.neg, (negative,))))
    code = world.code(Pair((-40, -40), Build(tuple, (total, total))))
    assert code.function(3) == (-40, -40)
    assert code.source.count("**") == 1
    assert code.function(2) == (-24, -24)


def test_long_chains_of_arithmetic_are_split_up():
    world = World(n=0)
    total = world.n
    for _ in range(3000):
        total = Expr(operator.add, (total, Const(1)))
    assert world.code(Pair(3000, total)).function(5) == 3005


def test_classes_are_held_weakly():
    class Mine:
        pass

    world = World()
    real = Mine()
    code = world.code(Pair(real, world.graph.create(real)))
    assert type(code.function()) is Mine
    alive = weakref.ref(Mine)
    del world, real, Mine
    gc.collect()
    assert alive() is None


def test_tracebacks_show_the_source_while_the_function_lives():
    def fails() -> None:
        raise ValueError

    code = World().code(NOTHING, fails)
    function = code.function
    try:
        function()
    except ValueError as error:
        lines = traceback.format_exception(error)
    assert any("graph()" in line and code.filename in line for line in lines)
    assert code.filename in linecache.cache
    del code, function
    gc.collect()
    assert "<capture mock mock>" not in linecache.cache


def test_lines_say_what_they_do():
    table: dict = {}
    world = World(table=table)
    world.graph.dict_get(world.table, "k")
    table["k"] = 1
    world.graph.dict_set(world.table, "k", Const(1))
    code = world.code(NOTHING)
    (line, text), = code.lines.items()
    assert text == "table"
    assert code.source.splitlines()[line - 1].strip() == "table['k'] = 1"
