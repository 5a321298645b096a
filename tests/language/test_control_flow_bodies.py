"""What bodies of torch's control flow may not do: write to what was there before, or change the state of torch or of the program.

Eager mode, in which Dynamo traces the bodies, refuses it, or does it once. Capture runs the bodies on copies, to record them.
"""
from __future__ import annotations

import random

import pytest
import torch
from torch._higher_order_ops import map, scan, while_loop

import capture
from tests.helpers import call, check, run


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, total):
        ctx.mark_dirty(total)
        return total.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


def caught(x, total):
    try:
        return x @ torch.ones(7)
    except RuntimeError:
        return x + total.data.add_(1)


def swallowed(x, total):
    try:
        return x + total.add_(1)
    except:                         # noqa: E722  what leaves the body to be traced by torch is none of its exceptions
        return x * 3


def swallowed_by_a_block(x, total):
    try:
        y = x + total.add_(1)
    except BaseException:
        y = x * 3
    return y + 1


def first_unknown(x, total):
    compile("1", "a file", "eval")
    return x + total.data.add_(1)


def in_a_block(x, total):
    with torch.no_grad():
        total.add_(1)
    return x * 2


def on_another_device(x, total):
    with torch.device("cpu"):
        return x + torch.ones(2)


WRITES = {
    "add_": lambda x, total: x + total.add_(1), "item": lambda x, total: (total.__setitem__(0, 5.0), x * 2)[1],
    "view": lambda x, total: x + total.view(-1)[:1].mul_(2), "data": lambda x, total: x + total.data.add_(1),
    "out": lambda x, total: torch.sin(x, out=total) + 1, "foreach": lambda x, total: (torch._foreach_add_([total], 1), x * 2)[1],
    "set data": lambda x, total: (setattr(total, "data", x * 3), x * 2)[1],
    "set grad": lambda x, total: (setattr(total, "grad", x * 3), x * 2)[1],
    "function": lambda x, total: Doubled.apply(x, total) + 1, "caught": caught,
    "swallowed": swallowed, "swallowed by a block": swallowed_by_a_block, "unknown first": first_unknown, "block": in_a_block}
OPERATORS = {
    "cond": lambda x, total, body: torch.cond(x.sum() > 0, body, lambda x, total: x * 2, (x, total)),
    "other branch": lambda x, total, body: torch.cond(x.sum() > 0, lambda x, total: x * 2, body, (x, total)),
    "closure": lambda x, total, body: torch.cond(x.sum() > 0, lambda x: body(x, total), lambda x: x * 2, (x,)),
    "within": lambda x, total, body: torch.cond(
        x.sum() > 0, lambda x: torch.cond(x.sum() > 1, lambda x: body(x, total), lambda x: x + 1, (x,)), lambda x: x * 2, (x,)),
    "map": lambda x, total, body: map(lambda row, total: body(row * 1, total), x.view(1, 2), total),
    "map over": lambda x, total, body: map(lambda row: body(row * 1, row), x.view(1, 2)),
    "while_loop": lambda x, total, body: while_loop(
        lambda x, total: x.sum() < 9, lambda x, total: (body(x, total).abs() + 1, total * 1), (x, total)),
    "condition": lambda x, total, body: while_loop(
        lambda x, total: body(x, total).sum() < 9, lambda x, total: (x + 1, total * 1), (x, total)),
    "scan": lambda x, total, body: scan(lambda carry, row: (carry + row, body(row * 1, carry)), total, x.view(1, 2))}


def compared(f, *steps, **settings):
    """Also once the branch that was not taken first is taken."""
    torch._dynamo.reset()
    check(f, *steps, captures=None, fullgraph=False, **settings)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("operator, write", [("cond", write) for write in WRITES] + [("within", "data")] + [
    (operator, write) for operator in OPERATORS for write in ("add_", "swallowed")])
def test_a_body_that_writes_to_what_was_there_before_runs_as_in_eager_mode(operator, write, grad):
    def make():
        total = torch.tensor([1.0, 2.0])

        def f(x):
            noise = torch.rand(2)
            try:
                with torch.set_grad_enabled(grad):
                    result = OPERATORS[operator](x, total, WRITES[write])
            except Exception as error:
                result = type(error)
            return result, noise + torch.rand(2), torch.is_grad_enabled()
        return f, total
    positive, negative = call(torch.full((2,), 0.5)), call(torch.full((2,), -0.5))
    compared(make, positive, positive, negative)


@pytest.mark.parametrize("write", ["add_", "data"])
def test_a_body_that_writes_to_what_was_there_before_with_kernels(write):
    def make():
        total = torch.tensor([1.0, 2.0])

        def f(x):
            try:
                return OPERATORS["cond"](x * 2, total, WRITES[write]) + total
            except Exception as error:
                return type(error)
        return f, total
    compared(make, *[call(torch.full((2,), 0.5))] * 3, backend="native", options={"background": False})


GENERATOR = torch.Generator()
STATES = {
    "seed": lambda x: (torch.manual_seed(3), x + torch.rand(2))[1],
    "state": lambda x: (torch.get_rng_state(), x + torch.rand(2))[1],
    "generator": lambda x: x + torch.rand(2, generator=GENERATOR), "its seed": lambda x: (GENERATOR.manual_seed(3), x * 2)[1],
    "python": lambda x: x * random.random(), "device": lambda x: on_another_device(x, None),
    "grad mode": lambda x: (torch.set_grad_enabled(False), x * 2)[1],
    "raising": lambda x: x * torch.rand(2) * {}["a"]}


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
@pytest.mark.parametrize("state", STATES)
def test_a_body_that_changes_a_state_runs_as_in_eager_mode(state, taken):
    def make():
        def f(x):
            noise = torch.rand(2)
            try:
                result = torch.cond(x.sum() > 0, *(STATES[state], lambda x: x * 2)[::1 if taken else -1], (x,))
            except Exception as error:
                result = type(error)
            differentiates = torch.is_grad_enabled()
            torch.set_grad_enabled(True)
            return result, noise + torch.rand(2), differentiates, torch.rand(1, generator=GENERATOR)
        GENERATOR.manual_seed(0)
        return f
    compared(make, *[call(torch.full((2,), 0.5))] * 3)


def test_a_body_with_a_backward_pass_adds_to_no_gradient():
    def make():
        weight = torch.ones(2, requires_grad=True)

        def f(x):
            try:
                return torch.cond(x.sum() > 0, lambda x: ((x * weight).sum().backward(), x * 2)[1], lambda x: x + 1, (x,))
            except Exception as error:
                return type(error)
        return f, weight
    compared(make, *[call(torch.full((2,), 0.5))] * 3)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_condition_within_a_branch(backend):
    def make():
        shift = torch.ones(2)

        def f(x):
            return torch.cond(x.sum() > 0, lambda x: torch.cond(x.sum() > 1, lambda x: x + shift, lambda x: x * 3, (x,)),
                              lambda x: x * 2, (x,)) + 1
        return f, shift
    options = {"options": {"background": False}} if backend == "native" else {}
    check(make, *(call(torch.full((2,), value)) for value in (0.75, 0.75, 0.25, -0.5)), backend=backend, **options)


def test_a_call_that_is_left_to_torch_draws_nothing_on_a_hit():
    """What the body had recorded before it raised is no part of the graph."""
    def make():
        def f(x):
            noise = torch.rand(2)
            try:
                return torch.cond(x.sum() > 0, lambda x: x * torch.rand(2) * {}["a"], lambda x: x, (x,))
            except Exception:
                return noise + torch.rand(2)
        return f
    steps = [call(torch.full((2,), 0.5))] * 3
    compiled = []
    run(make, tuple(steps), lambda program: compiled.append(capture.compile(program, backend="eager")) or compiled[0])
    assert capture.stats(compiled[0]).hits
    compared(make, *steps)
