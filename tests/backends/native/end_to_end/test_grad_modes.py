"""Kernels of graphs in the midst of which gradients are turned off or on: what requires gradients, and these, are eager mode's."""
from __future__ import annotations

import os

import pytest
import torch

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401

KERNELS = {"backend": "native", "options": {"background": False}}


def broken_in_no_grad(x):
    y = x.sin() * 2
    with torch.no_grad():
        z = x.cos() + 1
        os.stat("/")            # the trace ends here
        w = z * 3
    return y, w, y.exp() * w


def turned_on_inside(x):
    w = x.cos() * 3
    with torch.enable_grad():
        y = x.sin() * 2
    return y, w


def left_off(x):
    y = x * 2 + 1
    torch.set_grad_enabled(False)
    return y, y.sin() + 1


def left_on(x):
    y = x * 2 + 1
    torch.set_grad_enabled(True)
    return y


def outcome(program, grad):
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    torch.set_grad_enabled(grad)
    results = program(x)
    after = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    wanted = [t.square().sum() for t in results if isinstance(results, tuple) and t.requires_grad]
    gradient = torch.autograd.grad(sum(wanted), x)[0] if wanted else None
    return results, [t.requires_grad for t in results], after, gradient


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("program", [broken_in_no_grad, turned_on_inside, left_off, left_on])
def test_gradients_turned_off_and_on(program, grad):
    compiled = capture.compile(program, **KERNELS)
    for _ in range(4):          # captured, as it is, with kernels
        torch.testing.assert_close(outcome(compiled, grad), outcome(program, grad))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("program, graphs", [(broken_in_no_grad, 2), (turned_on_inside, 1), (left_off, 1), (left_on, 1)])
def test_they_are_compiled(program, graphs, grad):
    compiled = capture.compile(program, **KERNELS)
    for _ in range(3):
        outcome(compiled, grad)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.compiled, stats.compile_errors) == (graphs, graphs, [])


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_under_other_backends(backend):
    for program in (turned_on_inside, left_off, left_on):
        compiled = capture.compile(program, backend=backend)
        for grad in (True, False, True, False):
            torch.testing.assert_close(outcome(compiled, grad), outcome(program, grad))


def test_an_exception_leaves_the_mode_of_gradients_as_it_was():
    def program(x, index):
        with torch.enable_grad():
            return x.exp()[index]
    compiled = capture.compile(program, **KERNELS)
    with torch.no_grad():
        for index in (0, 1, 7, 2):
            try:
                compiled(torch.ones(3), torch.tensor([index]))
            except IndexError:
                assert index == 7
            assert not torch.is_grad_enabled()


SCALE = torch.nn.Parameter(torch.ones(3))


def of_what_requires_none(x, target):
    target.requires_grad = False
    SCALE.requires_grad = True
    return ((x - target) * SCALE).pow(2).mean()


def changed_and_back(x, target):
    target.requires_grad = True
    target.requires_grad = False
    return (x - target).pow(2).mean() * SCALE, target.requires_grad


def test_assignments_that_change_nothing_are_compiled() -> None:
    """A tensor that required no gradients is told not to; with one that did, the call is another one, whose tensor is changed."""
    function = capture.compile(of_what_requires_none, **KERNELS)
    for required in (False, False, False, True, True, True, False):
        x, target = torch.arange(3.).requires_grad_(), torch.ones(3, requires_grad=required)
        loss = function(x, target)
        torch.testing.assert_close(loss, of_what_requires_none(x, target.detach()))
        assert not target.requires_grad
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], torch.tensor([-2 / 3, 0, 2 / 3]))
    stats = capture.stats(function)
    assert (stats.captures, stats.compiled) == (2, 1)
    assert stats.compile_errors == ["the graph assigns the attribute 'requires_grad' of a tensor"]
    again = capture.compile(changed_and_back, **KERNELS)
    for _ in range(4):
        result, required = again(torch.arange(3.), target := torch.ones(3))
        assert not required and not target.requires_grad
        torch.testing.assert_close(result, changed_and_back(torch.arange(3.), torch.ones(3))[0])
