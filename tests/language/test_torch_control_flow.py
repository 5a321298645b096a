"""Operators of torch that call functions of the program's: `torch.cond`, `map`, `while_loop`, `scan`, `associative_scan`."""
from __future__ import annotations

import collections
import importlib
import operator
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop

import capture
from tests.helpers import call, check

POSITIVE, NEGATIVE = call(torch.full((3,), 0.5)), call(torch.full((3,), -0.5))
BOTH_WAYS = (POSITIVE, NEGATIVE, POSITIVE, NEGATIVE)


def marked(module):
    """Dynamo, which eager mode runs here, marks the parameters that it has met."""
    for parameter in module.parameters():
        parameter._dynamo_static_input_type = "unguarded"
    return module


@pytest.mark.parametrize("first", [POSITIVE, NEGATIVE])
def test_a_condition_on_a_tensor_has_both_branches_in_one_graph(first):
    def make():
        def f(x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: (x * 2).cos(), (x,)) + 1
        return f
    check(make, first, *BOTH_WAYS, graphs=1)


def test_gradients_of_both_branches():
    def make():
        state = marked(torch.nn.ParameterList([torch.arange(9.0).view(3, 3) / 9, torch.ones(3)]))
        weight, bias = state

        def f(x):
            return torch.cond(x.sum() > 0, lambda x: x.sin() @ weight, lambda x: x.exp() + bias, (x,)) * 2
        return f, state
    inputs = [call(torch.full((3,), value, requires_grad=True)) for value in (0.5, -0.5, 0.25, -0.25)]
    check(make, *inputs, backward=True)


@pytest.mark.parametrize("flag", [True, False])
def test_a_condition_of_python_takes_one_branch(flag):
    def make():
        def f(x, flag):
            return torch.cond(flag, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return f
    x = torch.randn(3)
    check(make, call(x, flag), call(x, flag), call(x, not flag), call(x, flag), captures=2, hits=2)


def test_what_branches_read_is_guarded():
    def make():
        state = SimpleNamespace(scale=2.0, shift=torch.ones(3))

        def f(x):
            return torch.cond(x.sum() > 0, lambda: x * state.scale, lambda: x + state.shift)
        return f, state

    def change(state):
        torch._dynamo.reset()       # torch 2.15 compiles branches in eager mode too; not where a number was another before
        state.scale = 3.0

    def replace(state):
        state.shift = torch.zeros(3)
    check(make, POSITIVE, NEGATIVE, change, POSITIVE, NEGATIVE, replace, NEGATIVE, captures=2)


def test_modules_structures_and_conditions_in_branches():
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                marked(model)
                parameter.fill_(0.1 * (number + 1))

        def inner(x):
            return torch.cond(x.max() > 0.4, lambda x: x + 1, lambda x: x - 1, (x,))

        def f(x):
            result = torch.cond(x.sum() > 0, lambda x: {"a": model(x), "b": (inner(x),)},
                                lambda x: {"a": x.exp(), "b": (x * 2,)}, (x,))
            return result["a"] + result["b"][0]
        return f, model
    check(make, *BOTH_WAYS, call(torch.full((3,), 0.2)), backward=True)


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("operands", [
    lambda x: ({"a": x, "b": x * 2},), lambda x: ({"b": x * 2, "a": x},), lambda x: [{"a": x, "b": x}],
    lambda x: ({"a": x, "b": [x * 2, (x,)]}, {}), lambda x: ({"a": x, "b": x * 3, "c": ()}, [])])
def test_operands_of_a_condition_in_containers(operands, backend):
    def make():
        def f(x):
            y = torch.cond(x.sum() > 0, lambda d, *more: {"sum": sum(torch.utils._pytree.tree_leaves(d)) + len(d)},
                           lambda d, *more: {"sum": d["a"] * 3 - len(more)}, operands(x))
            return y["sum"] + 1
        return f
    inputs = [call(torch.full((3,), value, requires_grad=True)) for value in (0.5, -0.5, 0.25, -0.25)]
    options = {"backend": "native", "options": {"background": False}} if backend == "native" else {}
    check(make, *inputs, call(torch.ones(3)), captures=2, backward=False, **options)


def test_gradients_with_regard_to_operands_in_containers():
    def make():
        def f(x, y):
            return torch.cond(x.sum() > 0, lambda p, d: p[0].sin() * d["y"], lambda p, d: p[1] * d["y"].exp(),
                              ((x, x * 2), {"y": y}))
        return f
    inputs = [call(torch.full((3,), value, requires_grad=True), torch.ones(3, requires_grad=True)) for value in (0.5, -0.5, 0.25)]
    check(make, *inputs, backward=True)


def test_a_dict_from_outside_as_operand_is_guarded():
    def make():
        state = SimpleNamespace(d={"a": torch.ones(3), "b": torch.zeros(3)})

        def f(x):
            return torch.cond(x.sum() > 0, lambda d, x: sum(d.values()) * x, lambda d, x: d["a"] - x, (state.d, x))
        return f, state

    def more(state):
        state.d["c"] = torch.ones(3)
    check(make, POSITIVE, NEGATIVE, lambda state: state.d.update(a=torch.zeros(3)), POSITIVE, NEGATIVE, more, POSITIVE, NEGATIVE,
          captures=2)


@pytest.mark.parametrize("operands", [
    lambda x: (Pair(x, x),), lambda x: Pair(x, x), lambda x: (collections.OrderedDict(a=x),), lambda x: (None, x),
    lambda x: {"a": x}, lambda x: ({"a": x, "b": 1},)])
def test_operands_that_torch_refuses(operands):
    def make():
        def f(x):
            return torch.cond(x.sum() > 0, lambda *given: x.sin(), lambda *given: x.cos(), operands(x))
        return f
    check(make, POSITIVE, NEGATIVE, POSITIVE, captures=None, fullgraph=False)


def test_a_branch_that_changes_its_operands():
    def make():
        def change(d):
            d["a"] = d["b"]
            return d["b"] * 2

        def f(x):
            return torch.cond(x.sum() > 0, change, lambda d: d["a"] - d["b"], ({"a": x, "b": x * 2},))
        return f
    check(make, POSITIVE, NEGATIVE, POSITIVE, captures=None, fullgraph=False)


def test_random_numbers_in_branches():
    def make():
        def f(x):
            y = torch.cond(x.sum() > 0, lambda x: torch.nn.functional.dropout(x, 0.5), lambda x: x * torch.rand(3), (x,))
            return y + torch.rand(3)
        return f
    check(make, *BOTH_WAYS)


def test_strides_of_operands():
    def make():
        def f(x):
            return torch.cond(x.sum() > 0, lambda x: x.sin() * x.stride(0), lambda x: x.cos() + x.stride(1), (x[:, ::2],))
        return f
    check(make, call(torch.arange(24.0).view(4, 6)[:4]), call(-torch.arange(24.0).view(4, 6)))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_module_with_a_condition(backend):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            marked(self)

        def forward(self, x):
            return torch.cond(x.mean() > 0, self.first, self.second, (x * 2,)).relu().sum()
    options = {"backend": "native", "options": {"background": False}} if backend == "native" else {}
    check(Model, *BOTH_WAYS, backward=False, **options)


def test_the_map_of_a_function():
    def make():
        shift = torch.ones(4, requires_grad=True)

        def f(x, y):
            return map(lambda row, y: row.sin() * y + shift, x, y)
        return f, shift
    x, y = torch.arange(12.0).view(3, 4).requires_grad_(), torch.ones(4)
    check(make, call(x, y), call(x, y), call(x.detach() + 1, y), call(x, y * 3), captures=2, hits=2, backward=True)


def test_a_loop_runs_as_often_as_its_condition_says():
    def make():
        step = torch.tensor(1)

        def f(n, x):
            return while_loop(lambda i, x: i < n, lambda i, x: (i + step, x * 2 + n), (torch.tensor(0), x))
        return f, step
    x = torch.arange(3.0)
    check(make, *(call(torch.tensor(n), x + n) for n in (3, 3, 0, 7, 1)))


def test_scans():
    def make():
        def f(x):
            carry, ys = scan(lambda carry, x: (carry + x, carry * x), torch.zeros(3), x)
            return carry, ys, associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")
        return f
    x = torch.arange(12.0).view(4, 3)
    check(make, call(x), call(x), call(x * 3 - 1))


def test_a_branch_that_writes_to_what_was_there_before_runs_as_in_eager_mode():
    def make():
        total = torch.zeros(3)

        def f(x):
            try:
                return torch.cond(x.sum() > 0, lambda x: x + total.add_(1), lambda x: x - 1, (x,))
            except Exception as error:
                return type(error)
        return f, total
    check(make, *BOTH_WAYS, captures=None, fullgraph=False)


NUMBER = 0


def assigns_a_global(state):
    global NUMBER
    NUMBER += 1


CHANGES = [
    assigns_a_global, lambda state: setattr(state, "n", 1), lambda state: state.known.pop("b", None),
    lambda state: next(state.walk, None), lambda state: state.total.requires_grad_(), lambda state: random.random(),
    lambda state: operator.setitem(state.items, 0, 9)]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_branch_that_changes_an_object_is_refused_as_in_eager_mode(change):
    """Neither branch may: Dynamo, which traces both, refuses that. Nothing has changed then."""
    class State:
        def __init__(self):
            self.items, self.known, self.numbers, self.walk = [1], {"b": 2}, {1}, iter([1, 2])
            self.total, self.ends = torch.zeros(3), collections.deque([1])

    def outcomes(compiled):
        state, seen = State(), []

        def changing(x):
            change(state)
            return x.sin()

        def f(x):
            return torch.cond(x.sum() > 0, torch.cos, changing, (x,))
        program = capture.compile(f, backend="eager") if compiled else f
        random.seed(0)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                program(torch.full((3,), 0.5))
            shown = {**vars(state), "walk": operator.length_hint(state.walk)}
            seen.append((repr(shown), NUMBER, vars(State).get("n"), random.getstate()))
        return seen
    assert outcomes(True) == outcomes(False)


@pytest.mark.parametrize("branch", [
    lambda x: x, lambda x: x[:2], lambda x: (x.sin(), 3), lambda x: x.sin().double(), lambda x: x.sin()[:2], lambda x: {0: x.sin()},
    lambda x: x.nosuch, lambda x: torch.eye(3)[x.long() + 5].sum(0)])
def test_branches_that_do_not_fit_run_as_in_eager_mode(branch):
    def f(x):
        try:
            return torch.cond(x.sum() > 0, lambda x: x.cos(), branch, (x,))
        except Exception as error:
            return type(error)

    def outcome(function, x):
        result = function(x)
        return result if isinstance(result, type) else result.tolist()
    compiled = capture.compile(f, backend="eager")
    for value in (0.5, 0.5, 0.25):
        x = torch.full((3,), value)
        assert outcome(f, x) == outcome(compiled, x)


def test_a_branch_whose_sizes_depend_on_values_runs_as_in_eager_mode():
    def f(x):
        y = torch.cond(x.sum() > 0, lambda x: x[x > 0], lambda x: x[x < 0], (x,))
        return y.sum() * y.shape[0], y
    compiled = capture.compile(f, backend="eager")
    for values in ([1., -2, 3, 4], [1., -2, 3, 4], [1., 2, 3, -4], [1., 2, -3, -4]):
        x = torch.tensor(values)
        assert [t.tolist() for t in f(x)] == [t.tolist() for t in compiled(x)]


ITEMS = [1.0, 2.0]
RAISING = {"index": lambda y: y[5] + 0, "list": lambda y: y * ITEMS[5], "key": lambda y: y * {}["a"],
           "size": lambda y: y.reshape(9), "name": lambda y: y.missing,
           "nested": lambda y: torch.cond(y.sum() > 0, lambda z: z[5] + 0, lambda z: z, (y,))}
OPERATORS = {
    "cond": lambda x, body: torch.cond(x.sum() > 0, body, lambda y: y * 2, (x,)),
    "other branch": lambda x, body: torch.cond(x.sum() > 0, lambda y: y * 2, body, (x,)),
    "map": lambda x, body: map(lambda row: body(row.reshape(1)), x),
    "while_loop": lambda x, body: while_loop(lambda y: y.sum() < 9, lambda y: (body(y),), (x,)),
    "scan": lambda x, body: scan(lambda one, other: (one + other, body(one.reshape(1))), x[0], x)}


@pytest.mark.parametrize("operator, body", [("cond", body) for body in RAISING] + [(operator, "index") for operator in OPERATORS])
def test_a_body_that_raises_is_reported_as_in_eager_mode(operator, body):
    def program(x):
        try:
            return OPERATORS[operator](x + 1, RAISING[body])
        except Exception as error:
            return type(error), str(error)
    check(lambda: program, call(torch.ones(2)), call(torch.ones(2)), captures=None, fullgraph=False)


@pytest.mark.parametrize("program", [
    lambda x, y: map(lambda row, first: row * 2 + first, x, x[0]), lambda x, y: map(lambda row: row + x.sum(), x),
    lambda x, y: map(lambda row, a, b: row + a + b, x, y, y), lambda x, y: map(lambda row: row + y + y, x),
    lambda x, y: map(lambda rows: rows[0] + rows[1], (x, x)), lambda x, y: map(lambda row, first: row + first, x.clone(), x[0]),
    lambda x, y: torch.cond(x.sum() > 0, lambda a, b: a.sum() + b.sum(), lambda a, b: a.sum(), (x, x[0])),
    lambda x, y: torch.cond(x.sum() > 0, lambda a: a + x[0] + x[1], lambda a: a - x[1], (y,)),
    lambda x, y: torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, x)),
    lambda x, y: torch.cond(x[0, 0] > 0, lambda a: a + 1, lambda a: a - 1, (x,)),
    lambda x, y: while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, a * 2, b + 1), (torch.tensor(0), x, x[0])),
    lambda x, y: scan(lambda one, other: (one + other, one * x[1]), x[0], x)])
@pytest.mark.parametrize("grad", [False, True])
def test_bodies_that_take_tensors_on_the_same_memory(program, grad):
    def tried(x, y):
        with torch.set_grad_enabled(grad):
            try:
                return program(x, y)
            except RuntimeError as error:
                return str(error).splitlines()[0]
    given = torch.arange(4.).reshape(2, 2) + 1, torch.ones(2)
    check(lambda: tried, call(*given), call(*given), captures=None, fullgraph=False)


def test_a_branch_that_imports_a_module_is_left_to_torch():
    """An import that runs the code of a module, in a call that torch makes as a whole, is no fault of capture's."""
    def branch(x):
        importlib.import_module("wave")
        return x.sin()

    def f(x):
        return torch.cond(x.sum() > 0, branch, torch.cos, (x,))
    compiled = capture.compile(f, backend="eager")
    for program in (compiled, f, compiled):
        sys.modules.pop("wave", None)
        with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError):
            program(torch.ones(3))
