"""Autograd functions whose passes change or read what belongs to the program: its objects, what it passes to them, and variables of
the call that has made their class. A graph runs them before the trace's changes of objects are made."""
from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import Function

from tests.helpers import call, check

BACKENDS = {"eager": {}, "native": {"options": {"background": False}}}
VALUES = 1., 1., 1., 2., 3., 2.
LOG: list[float] = []
ITEMS = [5.]
STATE = SimpleNamespace(factor=1., calls=0)


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        LOG.append(1.)
        STATE.calls += 1
        return grad * 3


class Scales(Function):
    @staticmethod
    def forward(ctx, x):
        return x * STATE.factor

    @staticmethod
    def backward(ctx, grad):
        return grad * STATE.factor


class Keeps(Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        kept = ctx.kept
        return grad * (kept.factor if isinstance(kept, SimpleNamespace) else kept[0]), None


def counted_in_the_pass(x, w, n):
    Counts.apply(x).sum().backward()
    return len(LOG), LOG[0], STATE.calls


def counted_in_gradients(x, w, n):
    before = STATE.calls
    gradient, = torch.autograd.grad(Counts.apply(x).sum(), x)
    return gradient, before, STATE.calls


def counted_twice(x, w, n):
    y = Counts.apply(Counts.apply(x))
    y.sum().backward()
    return x * STATE.calls


def set_before_the_pass(x, w, n):
    y = Scales.apply(x)
    STATE.factor = n
    y.sum().backward()
    STATE.factor = n + 1
    return y.detach()


def passed_and_set(x, w, n):
    y = Keeps.apply(x, STATE)
    STATE.factor = n
    y.sum().backward()
    return y.detach()


def a_new_list_is_passed_and_changed(x, w, n):
    items = [n]
    y = Keeps.apply(x, items)
    items[0] = n + 1
    return y


def a_list_is_passed_and_changed(x, w, n):
    y = Keeps.apply(x, ITEMS)
    ITEMS[0] = n
    y.sum().backward()
    return y.detach()


# -- classes that the call makes ---------------------------------------------------------------------------------------

def times_an_argument(x, w, n):
    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return x * w

        @staticmethod
        def backward(ctx, grad):
            return grad * 3
    return Made.apply(x)


def times_a_number(x, w, n):
    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return x * n

        @staticmethod
        def backward(ctx, grad):
            return grad * 3
    return Made.apply(x)


def a_gradient_times_what_is_computed(x, w, n):
    v = w * 2

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * v
    y = Made.apply(x)
    v = w * 3
    return y


def a_default(x, w, n):
    class Made(Function):
        @staticmethod
        def forward(ctx, x, factor=n):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * 3
    return Made.apply(x)


def an_attribute_of_the_class(x, w, n):
    class Made(Function):
        factor = n

        @staticmethod
        def forward(ctx, x):
            return x * Made.factor

        @staticmethod
        def backward(ctx, grad):
            return grad * 3
    return Made.apply(x)


def a_partial(x, w, n):
    class Made(Function):
        forward = staticmethod(functools.partial(lambda factor, ctx, x: x * factor, n))
        backward = staticmethod(lambda ctx, grad: grad * 3)
    return Made.apply(x)


def a_helper(x, w, n):
    def helper(x):
        return x * n

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return helper(x)

        @staticmethod
        def backward(ctx, grad):
            return helper(grad)
    return Made.apply(x)


def counted_in_a_list(x, w, n):
    seen = []

    class Made(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(n)
            return grad * 3
    y = Made.apply(x)
    y.sum().backward()
    return y.detach(), seen[0], len(seen)


def a_pass_replaced_for_the_call(x, w, n):
    before = Scales.__dict__["backward"]
    Scales.backward = staticmethod(lambda ctx, grad: grad * n)
    y = Scales.apply(x)
    y.sum().backward()
    Scales.backward = before
    return y.detach()


LEAVE_THE_PASS = [a_new_list_is_passed_and_changed, times_an_argument, times_a_number, a_gradient_times_what_is_computed, a_default,
                  an_attribute_of_the_class, a_partial, a_helper]
RUN_THE_PASS = [counted_in_the_pass, counted_in_gradients, counted_twice, set_before_the_pass, passed_and_set,
                a_list_is_passed_and_changed, counted_in_a_list, a_pass_replaced_for_the_call]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [*LEAVE_THE_PASS, *RUN_THE_PASS])
def test_what_passes_change_and_read(program: Any, backend: str) -> None:
    def make():
        LOG[:], ITEMS[:], STATE.factor, STATE.calls = [], [5.], 1., 0
        return program, SimpleNamespace(log=LOG, items=ITEMS, state=STATE)
    calls = [call(torch.full((2,), value, requires_grad=True), torch.full((2,), value + 2), value + 1) for value in VALUES]
    check(make, *calls, captures=None, fullgraph=False, backward=program in LEAVE_THE_PASS, backend=backend, **BACKENDS[backend])
