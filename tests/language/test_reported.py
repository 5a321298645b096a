"""Programs of the kinds for which users of `torch.compile` have reported wrong results, crashes and breaks, in one graph."""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.helpers import call, call_with, check

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
LEAF = X.clone().requires_grad_()
CASES: list[Any] = []


def case(*steps, **options):
    """Registers a factory of a program, or of one and its state, with the steps of `check`: three calls, if none are given."""
    def register(make):
        CASES.append(pytest.param(make, steps or (call(X), call(X), call(X + 1)), options, id=make.__name__))
        return make
    return register


@case(captures=2)
def which_object_it_is_decides():
    state = SimpleNamespace(a=SimpleNamespace(count=0), b=SimpleNamespace(count=0))

    def program(x):
        current = state.a
        for _ in range(4):
            current.count += 1
            x, current = (x + current.count, state.b) if current is state.a else (x * 2, state.a)
        return x, current is state.a
    return program, state


@case(call(torch.tensor([2]), torch.tensor([0])), call(torch.tensor([3]), torch.tensor([0])),
      lambda model: setattr(model, "cache", torch.tensor([0, 0])), call(torch.tensor([1]), torch.tensor([1])))
def a_cache_that_is_replaced():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.tensor([0, 0])

        def forward(self, x, position):
            self.cache[position] = x
            return self.cache
    model = Model()
    return model, model


@case(captures=2)
def a_list_of_the_class():
    class Model(nn.Module):
        items = []

        def forward(self, x):
            Model.items.append(x)
            return len(self.items)
    return Model(), SimpleNamespace(items=Model.items)


@case()
def an_object_that_is_replaced_in_a_loop():
    @dataclasses.dataclass
    class Region:
        hidden: torch.Tensor
    state = SimpleNamespace(region=Region(torch.zeros(2, 3)))

    def step():
        return state.region.hidden + 1

    def program(x):
        for _ in range(2):
            state.region = Region(x)
            x = step()
        return x
    return program, state


@case()
def a_list_that_grows_while_it_is_walked_over():
    def program(x):
        values = [x.sum()]

        def grow():
            for item in values:
                if len(values) < 3:
                    values.append(item + 1)
                yield item
        return torch.stack(list(grow())).sum()
    return program


@case(captures=2)
def what_methods_of_a_class_of_the_call_change():
    state = {"n": 0, "log": []}

    def program(x):
        class Helper:
            def __enter__(self):
                state["n"] += 1
                return self

            def __exit__(self, *error):
                state["log"].append(tuple(x.shape))
        with Helper():
            y = x * state["n"]
        return y
    return program, state


APART, TOGETHER = call_with(lambda state: ([], [], X)), call_with(lambda state: (state.both, state.both, X))


@case(APART, TOGETHER, APART, TOGETHER, captures=2)
def lists_that_are_one():
    def program(left, right, x):
        left.append(x + 1)
        right.append(x - 1)
        return left, right
    return program, SimpleNamespace(both=[])


@case()
def a_dict_that_is_frozen():
    class Frozen(collections.OrderedDict):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for key, value in self.items():
                setattr(self, key, value)
            self.__frozen = True

        def __setattr__(self, name, value):
            if getattr(self, "_Frozen__frozen", False):
                raise TypeError("frozen")
            super().__setattr__(name, value)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = Frozen(scale=2.0, act="relu")

        def forward(self, x):
            y = getattr(F, self.config["act"])(x) * self.config.scale
            try:
                self.config.scale = 3
            except TypeError as error:
                return y, str(error), Frozen(a=x)
    model = Model()
    return model, model


@case()
def a_named_tuple_with_an_operator():
    class Pair(NamedTuple):
        x: Any
        y: int = 1

        def __add__(self, other):
            return Pair(self.x + other.x, self.y + other.y)

    def program(x):
        pair = Pair(x, 2) + Pair(1)
        return pair.x * pair.y, pair._replace(y=5).y, pair._asdict()["y"], type(pair) is Pair
    return program


@case()
def views_by_strides():
    def program(x):
        y = x.clone()
        view = y.diagonal().as_strided((2,), (1,), 0)
        view.add_(1.0)
        whole = torch.arange(10)[::2].as_strided((4,), (2,), 2)
        whole.add_(1)
        return y, view, view.stride(), whole, torch.as_strided_copy(whole, (2,), (3,))
    return program


@case()
def an_alias_that_is_resized():
    def program(x):
        base = x + 1
        alias = base.view(-1)
        alias.resize_(3)
        return base + 1, alias, base.shape
    return program


@case(call(LEAF), call(LEAF))
def gradients_switched_off_and_on():
    def program(x):
        y = x * 2.0
        y.detach_()
        with torch.no_grad():
            a = x * 3
            with torch.enable_grad():
                b = x + 1
        return y, a, b, y.requires_grad, a.requires_grad, b.requires_grad, y.grad_fn
    return program


@case()
def an_exception_within_two_contexts():
    log = []

    @contextlib.contextmanager
    def named(name):
        try:
            yield name
        except ValueError as error:
            log.append(repr(error))
        finally:
            log.append(name)

    def program(x):
        with named("a") as a, named("b"):
            y = x.sin()
            raise ValueError(a)
        return y
    return program, log


@case()
def exceptions_with_notes_and_causes():
    def program(x):
        try:
            try:
                raise KeyError("k")
            except KeyError as error:
                error.add_note("note")
                raise ValueError("v") from error
        except ValueError as error:
            return x + 1, repr(error.__cause__), error.__cause__.__notes__, error.__suppress_context__
    return program


@case()
def a_cached_function_that_counts():
    state = SimpleNamespace(runs=0)

    @functools.cache
    def cached(n):
        state.runs += 1
        return n + 1
    return (lambda x: (x * cached(1), state.runs)), state


@case()
def tensors_as_keys():
    def program(x):
        a, b = x * 1, x * 2
        table = {a: "a", b: "b"}
        return table[a], table.get(b), x in table, len({a, b, a}), {id(a): 1}.get(id(b))
    return program


@case()
def closures_of_a_loop():
    def program(x):
        late, early = [lambda t: t * i for i in range(3)], [lambda t, i=i: t * i for i in range(3)]
        return [f(x) for f in late], [f(x) for f in early]
    return program


@case(*[call(X)] * 5, captures=3)
def modules_that_are_exchanged_inside():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            y = self.act(x)
            self.act = nn.Tanh() if type(self.act) is nn.ReLU else nn.ReLU()
            self.register_buffer("mask", y > 0, persistent=False)
            return y * self.mask, sorted(dict(self.named_buffers()))
    model = Model()
    return model, model


@case(call(X), call(X), lambda state: state.layer.weight.data.mul_(2), call(X),
      lambda state: setattr(state.layer, "weight", nn.Parameter(torch.ones(2, 3))), call(X))
def weights_that_change():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(0.3)
        layer.bias.zero_()
    return (lambda x: layer(x)), SimpleNamespace(layer=layer)


@case()
def generators_that_are_driven():
    def totals():
        total = 0
        while True:
            try:
                got = yield total
            except ValueError as error:
                got = len(error.args)
            if got is None:
                return "end"
            total = total + got

    def program(x):
        driven = totals()
        next(driven)
        seen = [driven.send(x), driven.send(2), driven.throw(ValueError(1, 2))]
        try:
            driven.send(None)
        except StopIteration as end:
            return seen, end.value
    return program


@pytest.mark.parametrize(("make", "steps", "options"), CASES)
def test_what_was_reported(make, steps, options) -> None:
    check(make, *steps, **options)
