"""Autograd functions whose results have another form on a later call: a shape that depends on values, or on a setting that
`forward` reads, another type; and what the program does with that."""
from __future__ import annotations

import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers import call, check
from tests.stale.cases import user_module

SETTINGS = SimpleNamespace(rows=2)
ROWS = 2


def longest(mask: torch.Tensor) -> torch.Tensor:
    return mask.nonzero().flatten()


FORWARDS = {
    "mask": lambda ctx, x: x[x > 0],
    "nonzero": lambda ctx, x: (x > 0).nonzero().to(x.dtype),
    "where": lambda ctx, x: torch.where(x > 0)[0].double(),
    "masked_select": lambda ctx, x: x.masked_select(x > 0),
    "unique": lambda ctx, x: x.clamp(min=0).unique(),
    "slice by a number": lambda ctx, x: x[:int((x > 0).sum().item())] * 1,
    "slice by a tensor": lambda ctx, x: x[:(x > 0).sum()] * 1,
    "repeat_interleave": lambda ctx, x: x.repeat_interleave((x > 0).long()),
    "expand": lambda ctx, x: x.sum().expand(int((x > 0).sum())).clone(),
    "split": lambda ctx, x: torch.tensor_split(x, (x > 0).sum()[None].cpu())[0] * 1,
    "branch": lambda ctx, x: x * 2 if x.sum() > 0 else x[:1] * 2,
    "tolist": lambda ctx, x: x.new_tensor([v for v in x.tolist() if v > 0]),
    "numpy": lambda ctx, x: torch.from_numpy(x.detach().numpy()[x.detach().numpy() > 0]),
    "asarray": lambda ctx, x: torch.from_numpy(np.asarray(x.detach())[np.asarray(x.detach()) > 0]),
    "helper": lambda ctx, x: x[longest(x > 0)],
    "type": lambda ctx, x: x * 2 if x.sum() > 0 else (x * 2).double(),
    "layout": lambda ctx, x: x[:, None] + x if x.sum() > 0 else (x[:, None] + x).T,
    "dimensions": lambda ctx, x: x * 2 if x.sum() > 0 else x[None] * 2,
}
READERS = {
    "shape": lambda y: y.sum() * y.shape[0],
    "numel": lambda y: y.numel(),
    "branch": lambda y: y + 1 if len(y) > 2 else y - 1,
    "loop": lambda y: [row * i for i, row in enumerate(y)],
    "list": lambda y: list(y),
    "derived": lambda y: (y * 2).reshape(-1).shape,
    "new": lambda y: torch.zeros(y.shape) + y,
    "dtype": lambda y: str(y.dtype),
    "stride": lambda y: (y.stride(), y.is_contiguous()),
    "dim": lambda y: y.dim(),
    "text": lambda y: f"{tuple(y.shape)}",
    "passed on": lambda y: (y.sum(), y.mean()),
}
VALUES = [1., -2, 3, -4], [1., -2, 3, -4], [-1., 2, 3, 4], [-1., 2, 3, 4], [1., -2, -3, -4], [5., 6, 7, 8.]
VALUES = ([1., -2, 3, -4], [1., -2, 3, -4], [-1., 2, 3, 4], [-1., 2, 3, 4], [1., -2, -3, -4], [5., 6, 7, 8.])
CALLS = [torch.tensor(values) for values in VALUES]


def function_of(forward):
    def backward(ctx, gradient):
        return None
    return type("Picks", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


BOTH = [*((name, "eager") for name in FORWARDS), *((name, "native") for name in ("mask", "branch", "type"))]


@pytest.mark.parametrize(("forward", "backend"), BOTH)
def test_what_a_result_is_like_depends_on_values(forward: str, backend: str) -> None:
    for reader in READERS.values():
        def make(read=reader):
            function = function_of(FORWARDS[forward])

            def f(x):
                return read(function.apply(x))
            return f
        check(make, *map(call, CALLS), captures=None, hits=None, breaks=None, fullgraph=False, backend=backend,
              **({"options": {"background": False}} if backend == "native" else {}))


# -- settings, writes, and what stays one graph --------------------------------------------------------------------------

class Setting:
    rows = 2


class ByGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:ROWS] * 1


class ByAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:SETTINGS.rows] * 1


class ByClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:Setting.rows] * 1


class ByOwnAttribute(torch.autograd.Function):
    rows = 2

    @staticmethod
    def forward(ctx, x):
        return x[:ByOwnAttribute.rows] * 1


class ByArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows=2):
        return x[:rows] * 1


def set_rows(rows: int):
    def change(state) -> None:
        global ROWS
        ROWS = SETTINGS.rows = Setting.rows = ByOwnAttribute.rows = rows
    return change


@pytest.mark.parametrize("function", [ByGlobal, ByAttribute, ByClass, ByOwnAttribute])
def test_a_setting_says_of_what_shape_a_result_is(function: type) -> None:
    def make():
        set_rows(2)(None)

        def f(x):
            y = function.apply(x)
            return y + y.shape[0], [row for row in y]
        return f
    x = call(torch.arange(4.))
    check(make, x, x, set_rows(3), x, x, set_rows(1), x, captures=None, hits=None, breaks=None, fullgraph=False)


def test_a_number_among_the_arguments_says_of_what_shape_a_result_is() -> None:
    def f(x, rows):
        y = ByArgument.apply(x, rows)
        return y + y.shape[0], [row for row in y]
    check(lambda: f, *(call(torch.arange(4.), rows) for rows in (2, 2, 3, 1, 3, 2, 4)), captures=None, hits=None, breaks=None,
          fullgraph=False)


class Counts(torch.autograd.Function):
    """Has the first result of sizes that depend on values, after it has written to its second argument."""

    @staticmethod
    def forward(ctx, x, seen):
        seen += 1
        return x[:int(x.sum() > 0) + 1] * 1


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_was_changed_before_is_taken_back(backend: str) -> None:
    """The call runs again natively: buffers, random numbers and gradients are as they were, and output comes once."""
    def make():
        state = SimpleNamespace(seen=torch.zeros(3), total=torch.zeros(1), weight=nn.Parameter(torch.ones(4)), calls=0)

        def f(x):
            print("called", state.calls)
            state.calls += 1
            state.weight.grad = None
            state.total.add_(x.sum())
            y = Counts.apply(x + torch.rand(4), state.seen)
            state.total.mul_(y.shape[0])
            return y * y.shape[0] * state.weight[:1], torch.rand(2)
        return f, state

    def some_gradient(state) -> None:
        state.weight.grad = torch.ones(4)
    calls = [call(torch.full((4,), value)) for value in (-5., -4., 6., 7., -3., 8.)]
    steps = [step for one in calls for step in (some_gradient, one)]
    check(make, *steps, captures=None, hits=None, breaks=None, fullgraph=False, backend=backend)


class Rounds(torch.autograd.Function):
    """A straight-through estimator that reads what tensors hold, and a setting."""

    @staticmethod
    def forward(ctx, x):
        scale = x.abs().max().item() / LEVELS
        return (x / scale).round() * scale if scale > 0 else x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


LEVELS = 7


class Masks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        out[x < 0] = 0.
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * (x > 0)


@pytest.mark.parametrize("function", [Rounds, Masks])
def test_shapes_that_stay_are_one_graph(function: type) -> None:
    """Also where the shape decides, and where functions follow each other and are given parameters."""
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def f(x):
            weight = function.apply(model[0].weight)
            y = function.apply(model[1](x @ weight))
            if y.shape[0] > 1:
                y = y.reshape(y.shape[0], -1) * len(y)
            return function.apply(y)
        return f, model
    check(make, *(call(torch.randn(3, 4)) for _ in range(4)), captures=1, backward=True)


def test_sizes_seen_to_depend_on_values_are_one_graph() -> None:
    """Neither a check nor another capture, where nothing decides by them."""
    def f(x):
        y = Selected.apply(x)
        return y.sum() * y.shape[0], y.mean(), y * 2
    check(lambda: f, *map(call, CALLS), captures=1)


class Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[x > 0]


# -- state that `forward` reads, and what the trace has changed before ----------------------------------------------------

class Table:
    levels = [1.0]
    scale = 2.0

    def __init__(self) -> None:
        self.items, self.scale = [1, 2], 3.0

    def count(self) -> int:
        return len(self.items)


LEVELS_BY_NAME = {"low": 1.0, "all": [1, 2]}
TABLE, SEEN, LAYER = Table(), [0], nn.Linear(1, 1)
READ: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "dict": lambda ctx, x: x * LEVELS_BY_NAME["low"], "inner list": lambda ctx, x: x * len(LEVELS_BY_NAME["all"]),
    "list": lambda ctx, x: x * len(SEEN), "object": lambda ctx, x: x * TABLE.scale, "method": lambda ctx, x: x * TABLE.count(),
    "class": lambda ctx, x: x * Table.levels[0], "inherited": lambda ctx, x: x * TABLE.levels[0],
    "module": lambda ctx, x: x * 2 if LAYER.training else x, "hooks": lambda ctx, x: x * len(LAYER._forward_hooks)}
CHANGES: dict[str, Callable[[], Any]] = {
    "dict": lambda: LEVELS_BY_NAME.update(low=LEVELS_BY_NAME["low"] + 1), "inner list": lambda: LEVELS_BY_NAME["all"].append(1),
    "list": lambda: SEEN.append(1), "object": lambda: setattr(TABLE, "scale", TABLE.scale + 1),
    "method": lambda: TABLE.items.append(1), "class": lambda: setattr(Table, "levels", [Table.levels[0] + 1]),
    "inherited": lambda: Table.levels.insert(0, Table.levels[0] + 1),
    "module": lambda: LAYER.train(not LAYER.training), "hooks": lambda: LAYER.register_forward_hook(lambda *args: None)}


def reset() -> None:
    LEVELS_BY_NAME.update(low=1.0, all=[1, 2])
    SEEN[:] = [0]
    LAYER.train()
    LAYER._forward_hooks.clear()
    TABLE.items, TABLE.scale, Table.levels = [1, 2], 3.0, [1.0]


@pytest.mark.parametrize("name", READ)
def test_what_the_trace_changes_before(name: str) -> None:
    """The graph comes before the trace's changes, of which the function must know."""
    def make():
        reset()
        function, change = function_of(READ[name]), CHANGES[name]

        def f(x):
            change()
            return function.apply(x) + 1
        return f
    check(make, *(call(torch.arange(4.)) for _ in range(4)), captures=None, hits=None, breaks=None, fullgraph=False)


@pytest.mark.parametrize("name", [name for name in READ if name not in ("list", "method")])
def test_what_the_trace_does_not_change_is_one_graph(name: str) -> None:
    def make():
        reset()
        function, state = function_of(READ[name]), SimpleNamespace(calls=0, seen=[])

        def f(x):
            state.calls += 1
            state.seen.append(state.calls)
            print("call")
            return function.apply(x) + 1, state.calls
        return f, state
    check(make, *(call(torch.arange(4.)) for _ in range(4)), captures=1)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


def other_forward(local: Any) -> types.CodeType:
    return (lambda ctx, x: joined(x) if local else x).__code__


HELPERS = user_module("def double(x): return x * 2")
CHANGED_PASSES: dict[str, Callable[[Any], Any]] = {
    "forward": lambda state: setattr(state.cls, "forward", staticmethod(lambda ctx, x: joined(x))),
    "code of forward": lambda state: setattr(state.cls.forward, "__code__", other_forward(None)),
    "global": lambda state: globals().update(doubled=joined),
    "code of a global": lambda state: setattr(doubled, "__code__", joined.__code__),
    "variable": lambda state: state.assign(joined),
    "of a module": lambda state: setattr(HELPERS, "double", joined),
    "builtin": lambda state: globals().update(sum=lambda items: joined(items[0])),
    "setup_context": lambda state: setattr(state.cls, "setup_context", staticmethod(lambda ctx, inputs, output: None))}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("way", CHANGED_PASSES)
def test_the_code_of_a_pass_changes(way: str, backend: str) -> None:
    """The shape of its result followed from nothing but the code."""
    before = doubled, doubled.__code__, HELPERS.double

    def make():
        def assign(new):
            nonlocal local
            local = new
        local = doubled

        class Passing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return doubled(x) + local(x) + HELPERS.double(x) + sum([x])

            @staticmethod
            def backward(ctx, grad):
                return grad * 7

        def f(x):
            try:
                y = Passing.apply(x)
            except (RuntimeError, TypeError):
                return x
            return y + 1, y.shape[0]
        return f, SimpleNamespace(cls=Passing, assign=assign)

    def restore(state: Any) -> None:
        globals().update(doubled=before[0])
        globals().pop("sum", None)
        before[0].__code__, HELPERS.double = before[1:]
    one = call(torch.ones(1))       # with which a longer tensor can be added
    try:
        check(make, one, one, CHANGED_PASSES[way], one, one, restore, captures=None, fullgraph=False, backend=backend,
              options={"background": False} if backend == "native" else None)
    finally:
        restore(None)
