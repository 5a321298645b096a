"""What no graph can hold yet: it breaks with a reason and a remedy, and runs rightly without `fullgraph`."""
from __future__ import annotations

import decimal
import weakref

import pytest
import torch

import capture
from capture.errors import GraphBreakError
from tests.helpers import call, check

X = torch.tensor([1.0, -2.0])


class Plugin:
    kinds: list = []

    def __init_subclass__(cls, **kwargs):
        Plugin.kinds.append(cls.__name__)


class Target:
    pass


TARGET = Target()
TABLE = weakref.WeakKeyDictionary({TARGET: 3.0})


def a_hook_of_class_creation(x):
    class Made(Plugin):
        scale = 2
    return x * Made.scale, len(Plugin.kinds) > 0


def a_decimal_context(x):
    with decimal.localcontext() as context:
        context.prec = 4
        third = decimal.Decimal(1) / 3
    return x * 2, third


def a_weak_key_dictionary_from_outside(x):
    return x * TABLE[TARGET]


def a_weak_proxy(x):
    return x, weakref.proxy(TARGET) is not None


def a_weak_reference_with_a_callback(x):
    return x, weakref.ref(TARGET, lambda dead: None)() is TARGET


PROGRAMS = [a_hook_of_class_creation, a_decimal_context, a_weak_key_dictionary_from_outside, a_weak_proxy,
            a_weak_reference_with_a_callback]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_break_has_a_reason(program) -> None:
    with pytest.raises(GraphBreakError) as caught:
        capture.compile(program, fullgraph=True)(X)
    assert caught.value.reason.id == "opaque-call" and caught.value.reason.remedy
    assert program.__name__ in str(caught.value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_results_are_right_all_the_same(program) -> None:
    check(lambda: program, call(X), call(X), call(X * 2), fullgraph=False, captures=None)
