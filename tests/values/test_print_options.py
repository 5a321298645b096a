"""Texts of tensors follow how tensors are printed where they are written, inside of the call and between two calls."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._tensor_str import printoptions

from tests.helpers import call, check
from tests.programs import NATIVE, Programs

X = torch.arange(6.0) * 1.23456
programs = Programs()


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    torch.set_printoptions(profile="default")


@programs.add(X, **NATIVE)
def set_in_the_call(x):
    torch.set_printoptions(precision=2)
    first = str(x * 2)
    print(x * 2)
    torch.set_printoptions(precision=4)
    return first, str(x * 2), f"{x}"


@programs.add(X, **NATIVE)
def set_after_a_text(x):
    first = repr(x), "%s" % x
    torch.set_printoptions(precision=1)
    second = repr(x), str(torch.tensor([1.23456]))
    torch.set_printoptions(precision=4)
    return first, second


@programs.add(X, **NATIVE)
def set_for_a_block(x):
    with printoptions(threshold=0, edgeitems=0):
        first = str(x)
    with printoptions(sci_mode=True):
        return first, repr(x), str(x.sum()), [x], f"{x}"


test_in_the_call = programs.test()


def test_between_two_calls() -> None:
    def program(x):
        print(x)
        return x + 1, str(x), f"{torch.ones(3) / 3}", repr(torch.tensor([1.23456]))

    def sets(precision):
        return lambda _: torch.set_printoptions(precision=precision)
    steps = [step for precision in (4, 2, 4, 2) for step in (sets(precision), call(X), call(X))]
    check(lambda: program, *steps, captures=None)
