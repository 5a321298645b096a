"""Leaves: those that a graph itself makes, and the gradients of those that it is given."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from tests import helpers
from tests.backends.native.end_to_end.engine import AT_ONCE, check, no_trial  # noqa: F401
from tests.helpers import call
from tests.snapshot import tensors


def assigned(x):
    y = torch.zeros(3)
    y.requires_grad = True
    return y, x * 2


def view_without_gradients(x):
    y = (x * 2).detach().requires_grad_() * 2
    with torch.no_grad():
        return y[0]


def view_of_both_without_gradients(x):
    y = torch.ones(3, requires_grad=True) * x.sum()
    with torch.no_grad():
        return y[0]


def between_operations(x):
    y = (x.detach().sin() * 2 + 1).requires_grad_()
    return (y.cos() * 3).exp() + x, y


def a_view_of_an_input(x):
    """As the first layer of speech models."""
    y = x.detach()[None]
    y.requires_grad = True
    return (y * 2).sin() + x, (y.cos() * 3).sum()


def around_a_mask(x):
    y = (x.detach() * 2).cos()
    y.requires_grad = True
    kept = y.masked_select(x > 0)
    return (kept * 2).sin().sum() + (x * 3).cos().sum() + (y.exp() * 2).sum()


def views_made_before(x):
    y = (x.detach() * 2).sin()
    view = y[1:]
    y.requires_grad_()
    return (view * 2).cos(), (y * 3).cos() + x, view, y[1:]


def written_before(x):
    y = (x.detach() * 2).sin()
    y.add_(1)
    y.requires_grad_()
    return (y * 3).cos(), y, (x * 2).sin()


def required_already(x):
    y = (x * 2).sin().requires_grad_()
    return (y * 3).cos(), y


def turned_off_again(x):
    y = (x.detach() * 2).sin().requires_grad_()
    first = (y * 3).cos() + x
    y.requires_grad_(False)
    return first, (y * 4).sin(), y


def under_no_grad(x):
    with torch.no_grad():
        y = (x * 2).sin().requires_grad_()
        z = (y * 3).cos()
    return z, y, (y * 2).exp() * x


def its_gradient(x):
    y = (x.detach() * 2).sin().requires_grad_()
    gradient, = torch.autograd.grad((y * y).sin().sum(), y, create_graph=True)
    return (gradient * 2).cos() + x, y


def a_pass_to_it(x):
    y = (x.detach() * 2).sin().requires_grad_()
    ((y * y).sin() * 2).sum().backward()
    return (y.grad * 2).cos() + x, y


def two_of_them(x):
    y = (x.detach() * 2).sin().requires_grad_()
    z = (y.detach() * 3).cos()
    z.requires_grad = True
    return ((y * z).sin() * 2).sum() + x.sum(), y, z


PROGRAMS: dict[str, Callable[..., Any]] = {
    **{program.__name__: program for program in (
        between_operations, a_view_of_an_input, around_a_mask, views_made_before, written_before, required_already,
        turned_off_again, under_no_grad, its_gradient, a_pass_to_it, two_of_them)},
    "made": lambda x: torch.ones(x.shape[0], 2, requires_grad=True),
    "made so later": lambda x: torch.zeros(3).requires_grad_(),
    "beside another": lambda x: (torch.ones(3, requires_grad=True), x * 2),
    "assigned": assigned,
    "of an input": lambda x: (x.detach().requires_grad_(), x * 2),
    "of a copy": lambda x: (x.detach().clone().requires_grad_(), x * 2),
    "computed of one": lambda x: torch.ones(3, requires_grad=True) * x.detach().sum(),
    "computed of both": lambda x: torch.ones(3, requires_grad=True) * x.sum(),
    "view without gradients": view_without_gradients,
    "view of both without gradients": view_of_both_without_gradients,
    "unseen": lambda x: (torch.ones(3, requires_grad=True) * 2).detach() + x,
    "an input": lambda x: x.requires_grad_() * 2,
    "an input returned": lambda x: (x.requires_grad_(), x * 2),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_leaves_of_a_graph(name: str, grad: bool) -> None:
    x = torch.tensor([1.0, -2.0, 3.0]).requires_grad_(grad)
    results = tensors(PROGRAMS[name](copy.deepcopy(x)))
    helpers.check(lambda: PROGRAMS[name], *[call(x)] * 3, captures=None, fullgraph=False, tolerance=1e-6,
                  backward=any(result.grad_fn is not None for result in results), **AT_ONCE)


@pytest.mark.parametrize("name", ["between_operations", "a_view_of_an_input", "around_a_mask", "views_made_before", "two_of_them"])
def test_the_graph_around_a_leaf_is_compiled(name: str) -> None:
    x = torch.tensor([1.0, -2.0, 3.0]).requires_grad_()
    compiled = capture.compile(PROGRAMS[name], **AT_ONCE)
    for _ in range(8):          # a piece is compiled at its second call, and so is a piece of that
        compiled(x)
        assert capture.wait(60)
    graph, = (entry.graph for frame in capture.report(compiled).frames for entry in frame.entries)
    assert graph.compiled >= graph.operations // 2, graph.state


def test_a_graph_that_raises_has_changed_nothing_by_making_a_leaf() -> None:
    """Not even a view of an input: what may raise later is in the same graph, also under a handler."""
    def program(x, index):
        try:
            y = x[None]
            y.requires_grad = True
            return torch.index_select((y * 2).sin(), 1, index)
        except IndexError as error:
            return str(error)[:20]
    x, good, bad = torch.randn(3), torch.tensor([0, 2]), torch.tensor([0, 5])
    stats = helpers.check(lambda: program, *[call(x, index) for index in (good, good, bad, good)], captures=None, fullgraph=False,
                          tolerance=1e-6, **AT_ONCE)
    assert stats.graphs == 1


PARTS: dict[str, Callable[..., Any]] = {
    "chunks": lambda x, p, q: x * torch.cat([p, q]).chunk(2)[0] + torch.cat([p, q]).chunk(2)[1],
    "one split": lambda x, p, q: sum(part * x for part in torch.cat([p, q]).split(3)),
    "rows": lambda x, p, q: x * torch.stack([p, q])[0] + torch.stack([p, q])[1],
    "biases": lambda x, p, q: torch.nn.functional.linear(x, torch.eye(3), torch.cat([p, q]).chunk(2)[1]),
}


@pytest.mark.parametrize("name", PARTS)
def test_gradients_that_are_parts_of_one_buffer(name: str) -> None:
    """From the second pass on leaves have gradients, to which theirs are added."""
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = (torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]) * factor) for factor in (1, 2))

        def forward(self, x):
            return PARTS[name](x, self.p, self.q)
    check(Net, *[call(torch.arange(6.0).view(2, 3) + n) for n in range(4)], backward=True)


def set_to(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = x * 2
    with torch.no_grad():
        x.set_(y)
    return before, x * 3


def set_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        torch.ops.aten.set_.source_Tensor(x, y)
    return x * 3


def alias_set(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.detach().set_(y)
    return x * 2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [set_to, set_first, alias_set])
@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
def test_inputs_that_are_set_to_other_memory(backend: str, program: Callable[..., Any], grad: bool) -> None:
    """Autograd takes a leaf for a new one then: what was computed before does not depend on it any more."""
    def seen(function: Callable[..., Any], number: int) -> list[Any]:
        x, y = torch.full((2,), float(number), requires_grad=grad), torch.tensor([5.0, number])
        results = function(x, y)
        results = results if isinstance(results, tuple) else (results,)
        return [x.tolist(), x.data_ptr() == y.data_ptr(), x._version, x.is_leaf,
                [[result.tolist(), gradient(result, x), backpropagated(result, x)]
                 for result in results]]

    options = {"options": {"background": False}} if backend == "native" else {}
    compiled = capture.compile(program, fullgraph=True, backend=backend, **options)
    assert [seen(compiled, number) for number in range(4)] == [seen(program, number) for number in range(4)]
    assert capture.stats(compiled).hits == 3


def backpropagated(result: torch.Tensor, x: torch.Tensor) -> list[float] | None:
    if result.requires_grad:
        result.sum().backward(retain_graph=True)
    return None if x.grad is None else x.grad.tolist()


def gradient(result: torch.Tensor, x: torch.Tensor) -> list[float] | str:
    try:
        return torch.autograd.grad(result.sum(), x, retain_graph=True)[0].tolist()
    except RuntimeError as error:
        return str(error)
