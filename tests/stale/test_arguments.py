"""Arguments that differ from call to call: aliasing, properties of tensors, functions, counts and names."""
from __future__ import annotations

import collections
import functools
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import Call, call, call_with, check
from tests.stale.cases import X


def variants(program: Callable, *calls: Call, captures: int | None = None, fullgraph: bool = True) -> None:
    """Each call twice, then all of them once more: as many captures as there are calls, if nothing else is said."""
    steps = [step for each in calls for step in (each, each)]
    check(lambda: program, *steps, *calls, captures=captures or len(calls), fullgraph=fullgraph)


Point = collections.namedtuple("Point", "a b")
Size = collections.namedtuple("Size", "a b")


# --- identity and aliasing

@pytest.mark.parametrize("backend", ["eager", "native"])
def test_batches_are_slices_of_the_data(backend: str) -> None:
    data, targets = torch.arange(40.0).reshape(10, 4), torch.arange(10.0)

    def make():
        norm, rows = torch.nn.BatchNorm1d(4), torch.zeros(12, 4)

        def step(x, y, row):
            row.copy_(x[0])
            return norm(x) * y[:, None]
        return step, (norm, rows)
    steps = [call_with(lambda state, i=i: (data[2 * i:2 * i + 2], targets[2 * i:2 * i + 2], state[1][i])) for i in range(5)]
    options = {"options": {"background": False}, "tolerance": 1e-5} if backend == "native" else {}
    check(make, *steps, captures=1, backend=backend, **options)


def test_places_of_what_depends_on_values() -> None:
    def make():
        total = torch.zeros(6)

        def pick(x):
            row, column = torch.where(x > 0)
            if row.numel() == 0:
                return None
            total.index_add_(0, column, x[row, column])
            return row * 2
        return pick, total
    tensors = [torch.arange(6.0).reshape(2, 3) - shift for shift in range(5)]
    steps = [call_with(lambda state, x=x: (x.clone(),)) for x in tensors]
    stats = check(make, *steps, *steps, fullgraph=False, captures=None)
    assert stats.captures <= 4, stats.misses        # the numbers of elements, and with them the places, are others each time



def is_same(x, y):
    return x + 1 if x is y else x - y


def write_and_read(x, y):
    x.add_(1)
    return y * 2


def write_both(x, y):
    x.mul_(2)
    y.add_(1)
    return x + y


def add(x, y):
    return x + y


def returned(x, y):
    return x, y, x + y


Y = X.clone() + 10
BASE = torch.arange(12.0)


@pytest.mark.parametrize(("program", "captures"), [
    (is_same, 2), (write_and_read, 2), (write_both, 2), (add, None), (returned, None),
], ids=["is_same", "write_and_read", "write_both", "add", "returned"])
def test_the_same_tensor_twice(program: Callable, captures: int | None) -> None:
    same, other = call(X, X), call(X, Y)
    check(lambda: program, other, other, same, same, other, captures=captures)
    check(lambda: program, same, same, other, other, same, captures=captures)


def views(first: tuple[int, int], second: tuple[int, int]) -> Call:
    """Two views of one fresh tensor."""
    def arguments(state: Any) -> tuple[tuple, dict]:
        base = BASE.clone()
        return (base[slice(*first)], base[slice(*second)]), {}
    return Call(arguments)


@pytest.mark.parametrize("program", [write_and_read, write_both, add], ids=lambda program: program.__name__)
def test_views_that_overlap(program: Callable) -> None:
    apart, overlapping, elsewhere = views((0, 4), (4, 8)), views((0, 4), (1, 5)), views((0, 4), (2, 6))
    separate = call(BASE[:4].clone(), BASE[4:8].clone())
    steps = [step for each in (separate, apart, overlapping, elsewhere) for step in (each, each)]
    check(lambda: program, *steps, separate, overlapping, captures=None)
    check(lambda: program, *reversed(steps), overlapping, separate, captures=None)


def test_the_same_list_twice() -> None:
    def program(x, a, b):
        a.append(1.0)
        return x * len(b)
    shared = [1.0]
    variants(program, call(X, [1.0], [1.0]), call(X, shared, shared))


def test_the_same_dict_twice() -> None:
    def program(x, a, b):
        a["k"] = 5.0
        return x * b["k"]
    shared = {"k": 1.0}
    variants(program, call(X, {"k": 1.0}, {"k": 1.0}), call(X, shared, shared))


def test_the_same_object_twice() -> None:
    def program(x, a, b):
        a.value = 5.0
        return x * b.value
    shared, first, second = (types.SimpleNamespace(value=1.0) for _ in range(3))
    variants(program, call(X, first, second), call(X, shared, shared))


def test_an_argument_inside_of_another() -> None:
    def program(x, box):
        x.add_(1)
        return box["x"] * 2
    variants(program, call(X, {"x": Y}), call(X, {"x": X}))


@pytest.mark.parametrize("make", [lambda items: [items], lambda items: (items,), lambda items: slice(items, items[0])])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("write", [False, True])
def test_a_list_that_an_argument_holds(make: Callable, write: bool, cut: bool) -> None:
    """A slice holds its bounds as a tuple its items: equal slices may hold different lists."""
    def program(x, a, held):
        y = x * 2
        if cut and y.sum() > 1000:
            y = y + 1
        first = held.start if isinstance(held, slice) else held[0]
        if write:
            first[0] += 1.0
        return y * a[0], first is a, held, len(first)
    shared = [1.0]
    calls = call(X, [1.0], make([1.0])), call(X, shared, make(shared))
    check(lambda: program, *calls, *calls, *calls, captures=None, breaks=None, fullgraph=not cut)


def test_an_argument_that_is_outside_state_too() -> None:
    def make():
        state = types.SimpleNamespace(weight=X.clone(), other=Y.clone())

        def program(x):
            x.add_(1)
            return state.weight * 2
        return program, state
    other = Call(lambda state: ((state.other,), {}))
    same = Call(lambda state: ((state.weight,), {}))
    check(make, other, other, same, same, other, captures=2)


@pytest.mark.parametrize("program", [is_same, write_and_read], ids=lambda program: program.__name__)
def test_three_arguments_in_all_groupings(program: Callable) -> None:
    def three(x, y, z):
        return program(x, y), program(y, z), program(z, x)
    a, b, c = X, X + 1, X + 2
    calls = [call(*arguments) for arguments in ((a, b, c), (a, a, c), (a, b, a), (a, b, b), (a, a, a))]
    variants(three, *calls)


# --- tensors

SQUARE = torch.arange(9.0).reshape(3, 3)
DIFFERENT: dict[str, tuple[Callable, Any, Any]] = {
    "strides": (lambda x: (x.view(-1) if x.is_contiguous() else x + 1), SQUARE, SQUARE.t()),
    "shape": (lambda x: x.sum() / x.shape[0], SQUARE, SQUARE[:2].clone()),
    "dimensions": (lambda x: x.flatten().sum(), SQUARE, SQUARE[0].clone()),
    "dtype": (lambda x: x + 1, SQUARE, SQUARE.double()),
    "integer": (lambda x: x / 2, SQUARE, SQUARE.long()),
    "complex": (lambda x: x * 2, SQUARE, SQUARE.to(torch.complex64)),
    "requires_grad": (lambda x: x * 2, SQUARE, SQUARE.clone().requires_grad_()),
    "parameter": (lambda x: x * 2 if isinstance(x, torch.nn.Parameter) else x, SQUARE.clone().requires_grad_(),
                  torch.nn.Parameter(SQUARE)),
    "meta": (lambda x: x * 2, SQUARE, SQUARE.to("meta")),
    "none": (lambda x: torch.ones(2) if x is None else x * 2, SQUARE, None),
    "number": (lambda x: torch.ones(2) * x, SQUARE[0, :2].clone(), 2.0),
    "channels_last": (lambda x: x.relu(), torch.ones(1, 2, 3, 3),
                      torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last)),
    "expanded": (lambda x: x * 2, SQUARE, torch.ones(1, 3).expand(3, 3)),
    "empty": (lambda x: x.sum(), SQUARE, torch.ones(0, 3)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_tensor_with_another_property(name: str) -> None:
    program, first, second = DIFFERENT[name]
    variants(program, call(first), call(second))


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda x: x.conj().imag], ids=["conjugate", "negative"])
def test_a_view_that_computes(view: Callable) -> None:
    """Such views do not survive a copy: they are made in each world."""
    def arguments(change: Callable) -> Call:
        return Call(lambda _: ((change(SQUARE.to(torch.complex64)),), {}))
    variants(lambda x: x * 2, arguments(lambda x: x if view is torch.Tensor.conj else x.imag), arguments(view))


def test_a_leaf_and_the_result_of_an_operation() -> None:
    def arguments(leaf: bool) -> Call:
        def build(state: Any) -> tuple[tuple, dict]:
            x = SQUARE.clone().requires_grad_()
            return (x if leaf else x * 1,), {}
        return Call(build)
    variants(lambda x: x + 1 if x.is_leaf else x * 2, arguments(True), arguments(False))
    variants(lambda x: x + 1 if x.requires_grad and not x.is_leaf else x * 2, arguments(True), arguments(False))


@pytest.mark.parametrize("asked", ["x * 2", "(x * 2).requires_grad", "x.requires_grad", "x.is_leaf", "x.grad_fn is None"])
def test_a_view_without_a_node_whose_base_requires_gradients(asked: str) -> None:
    def arguments(*, apart: bool = False, outdated: bool = False) -> Call:
        def build(state: Any) -> tuple[tuple, dict]:
            weight = SQUARE.clone().requires_grad_()
            base = weight * 1 if apart else SQUARE.clone()
            with torch.set_grad_enabled(not apart):
                view = base[0]
            if outdated:
                base.mul_(weight)
            return (view,), {}
        return Call(build)
    program = eval(f"lambda x: {asked}")
    calls = [arguments(), arguments(apart=True), arguments(outdated=True)]
    for first, second in itertools.permutations(calls, 2):
        variants(program, first, second)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("body", ["t = x.view(-1)\n with torch.no_grad(): t.mul_(2)\n return t.sin() * 2",
                                  "t = x.view(-1)\n with torch.no_grad(): t.mul_(2)\n return t.sin() + x.exp().sum()",
                                  "with torch.no_grad(): t = x[1:]; t.mul_(2)\n return x * 2 if t.requires_grad else x * 3"])
def test_a_leaf_that_is_a_view(backend: str, body: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(f"def program(x):\n {body}", names)
    options = {"options": {"background": False}, "tolerance": 1e-5} if backend == "native" else {}
    leaves = [call_with(lambda state: (SQUARE.clone().requires_grad_(),)),
              call_with(lambda state: (SQUARE.flatten().clone().view(3, 3).requires_grad_(),)),
              call_with(lambda state: (SQUARE.flatten().clone().view(3, 3).detach().requires_grad_(),))]
    for first, second, third in itertools.permutations(leaves):
        check(lambda: names["program"], first, first, second, second, third, third, captures=2, backend=backend, backward=True,
              **options)


def test_a_tensor_that_has_a_gradient() -> None:
    def arguments(gradient: bool) -> Call:
        def build(state: Any) -> tuple[tuple, dict]:
            x = SQUARE.clone().requires_grad_()
            x.grad = torch.ones(3, 3) if gradient else None
            return (x,), {}
        return Call(build)
    variants(lambda x: x + 1 if x.grad is None else x.grad * 2, arguments(True), arguments(False))


def test_an_offset_is_no_new_capture() -> None:
    check(lambda: (lambda x: x * 2), call(SQUARE[0]), call(SQUARE[1]), call(SQUARE[2]), captures=1)


def test_a_tensor_made_in_inference_mode() -> None:
    def arguments(state: Any) -> tuple[tuple, dict]:
        with torch.inference_mode():
            return (SQUARE.clone(),), {}
    variants(lambda x: x * 2, call(SQUARE), Call(arguments))


# --- containers, counts and names

def collect(x, *args, **kwargs):
    return [x + value for value in (*args, *kwargs.values())], list(kwargs)


@pytest.mark.parametrize(("first", "second"), [
    (call(X), call(X, 1.0)), (call(X, 1.0), call(X, 1.0, 2.0)), (call(X, 1.0), call(X, a=1.0)),
    (call(X, a=1.0), call(X, b=1.0)), (call(X, a=1.0, b=2.0), call(X, b=2.0, a=1.0)), (call(X, 1.0), call(X, Y)),
    (call(X, Y), call(X, Y, Y)),
], ids=["none or one", "one or two", "position or keyword", "names", "order of names", "number or tensor", "tensors"])
def test_counts_and_names_of_arguments(first: Call, second: Call) -> None:
    variants(collect, first, second)


def test_defaults_given_or_not() -> None:
    def program(x, scale=2.0, *, shift=1.0):
        return x * scale + shift
    calls = call(X), call(X, 2.0), call(X, scale=2.0), call(X, shift=1.0)
    check(lambda: program, *calls, *calls, captures=1)
    variants(program, call(X), call(X, 3.0), call(X, shift=2.0))


@pytest.mark.parametrize(("first", "second"), [
    ([X, Y], [X]), ([X, Y], (X, Y)), ((X, Y), Point(X, Y)), (Point(X, Y), Size(X, Y)), ({"a": X}, {"b": X}),
    ([X], [None]), ([X, [Y]], [X, Y]), ({"a": X, "b": Y}, {"b": Y, "a": X}), ([], [X]),
], ids=["length", "list or tuple", "tuple or named", "two named", "keys", "none", "nesting", "order",
        "empty"])
def test_containers_of_tensors(first: Any, second: Any) -> None:
    def program(inputs):
        values = list(inputs.values() if isinstance(inputs, dict) else inputs)
        return [v + len(values) for v in values if isinstance(v, (torch.Tensor, float))], type(inputs).__name__
    variants(program, call(first), call(second))


# --- objects and functions

class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        return x * 2 if self.factor > 2 else x


class Shift(Scale):
    def apply(self, x):
        return x + self.factor


def test_two_instances_of_one_class() -> None:
    variants(lambda x, box: box.apply(x), call(X, Scale(2)), call(X, Scale(3)))


def test_instances_of_two_classes() -> None:
    variants(lambda x, box: box.apply(x), call(X, Scale(2)), call(X, Shift(2)))


def test_two_instances_in_the_same_state_are_one_capture() -> None:
    check(lambda: (lambda x, box: box.apply(x)), *(call(X, Scale(3)) for _ in range(4)), captures=1)


def test_bound_methods() -> None:
    variants(lambda x, method: method(x), call(X, Scale(2).apply), call(X, Scale(3).apply), call(X, Shift(3).apply))


def closure(factor):
    def apply(x):
        return x + 1 if factor > 2 else x - factor
    return apply


def default(factor):
    def apply(x, factor=factor):
        return x + 1 if factor > 2 else x - factor
    return apply


@pytest.mark.parametrize(("first", "second"), [
    (closure(2), closure(3)), (default(2), default(3)), (closure(2), default(2)), (torch.relu, torch.tanh),
    (functools.partial(torch.add, other=2), functools.partial(torch.add, other=3)),
    (functools.partial(closure(2)), functools.partial(closure(3))),
    (functools.partial(torch.sum, dim=0), torch.sum), (operator.neg, operator.pos), (Scale(2).apply, closure(2)),
    (torch.Tensor.relu, torch.Tensor.tanh), (torch.nn.ReLU(), torch.nn.Tanh()),
    (torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, bias=False)),
    (torch.nn.LeakyReLU(0.1), torch.nn.LeakyReLU(0.2)), (list, tuple),
], ids=["closures", "defaults", "closure or default", "torch functions", "partials", "partials of closures",
        "partial or not",
        "operators", "method or function", "tensor methods", "modules", "layers", "settings of a module", "types"])
def test_functions_as_arguments(first: Callable, second: Callable) -> None:
    variants(lambda x, f: f(x), call(X, first), call(X, second))


def test_modules_with_other_weights_are_one_capture() -> None:
    calls = [call(X, torch.nn.Linear(3, 3)) for _ in range(4)]
    check(lambda: (lambda x, layer: layer(x)), *calls, captures=1)


def test_a_generator_as_argument() -> None:
    def arguments(state: Any) -> tuple[tuple, dict]:
        return (X.clone(), (i + 1.0 for i in range(3))), {}
    def program(x, numbers):
        return [x * n for n in numbers]
    check(lambda: program, *[Call(arguments)] * 3, captures=None, fullgraph=False)


def test_a_class_as_argument() -> None:
    variants(lambda x, cls: cls(2).apply(x), call(X, Scale), call(X, Shift))


ITERATING = {
    "list comprehension": lambda x, numbers: [x * n for n in numbers], "sum": lambda x, numbers: x * sum(numbers),
    "unpacking": lambda x, numbers: x * (lambda first, *rest: first)(*numbers), "starred": lambda x, numbers: [x, *numbers],
    "iter": lambda x, numbers: x * next(iter(numbers)), "enumerate": lambda x, numbers: [x * n + i for i, n in enumerate(numbers)],
}
ITERABLES = {
    "generator": lambda: (i + 1.0 for i in range(2)), "map": lambda: map(float, (1, 2)), "iterator": lambda: iter([1.0, 2.0]),
    "list": lambda: [1.0, 2.0], "tuple": lambda: (1.0, 2.0), "dict": lambda: {1.0: 0, 2.0: 0}, "none": lambda: None}


@pytest.mark.parametrize("first", ["generator", "map", "iterator"])
@pytest.mark.parametrize("use", ITERATING)
def test_an_iterator_and_then_another_iterable(use: str, first: str) -> None:
    """That an iterator is its own is so for what is of this type."""
    for second in ITERABLES:
        calls = [Call(lambda state, make=ITERABLES[name]: ((X.clone(), make()), {})) for name in (first, first, second, first)]
        check(lambda: ITERATING[use], *calls, captures=None, fullgraph=False)
