"""Scalars that are computed in more steps than Python's own stack is deep."""
from __future__ import annotations

import random

import pytest
import torch

from tests.helpers import call, check

X = torch.arange(1.0, 7.0).reshape(2, 3)
STEPS = 1500        # more than the limit of recursion


def counts_from_outside(x, start):
    while start < STEPS:
        start += 1
    return x * start


def doubles(x, n):
    for _ in range(60):
        n = (n + n) % 1000003
    return x * n


def calls_itself(x, n):
    return x if n == 0 else calls_itself(x + 1, n - 1)


def text_that_grows(x, text):
    for _ in range(STEPS):
        text += "a"
    return x + 1, text


@pytest.mark.parametrize("program, values", [
    (counts_from_outside, (0, 1, 0, 1, 5, 7, 2 * STEPS, 9)), (calls_itself, (3, 70, 200, 70, 3, 5)),
    (text_that_grows, ("a", "b", "a", "c", "a")), (doubles, (3, 3, 5, 7, 3))], ids=["counts", "recursion", "text", "doubles"])
def test_a_number_from_outside(program, values) -> None:
    check(lambda: program, *(call(X, value) for value in values), captures=None, fullgraph=False)


def sums_items(x):
    total = 0.0
    for _ in range(STEPS):
        total += x[0, 0].item()
    return x, total


def sums_random_numbers(x):
    total = 0.0
    for _ in range(STEPS):
        total += random.random()
    return x * total, total


def writes_items(x):
    text = ""
    for _ in range(STEPS):
        text += f"{x.sum().item():.1f}, "
    return text


def doubles_a_draw(x):
    value = random.random()
    for _ in range(60):
        value = (value + value) % 1.7
    return x * value


@pytest.mark.parametrize("program", [sums_items, sums_random_numbers, writes_items, doubles_a_draw],
                         ids=lambda program: program.__name__)
def test_what_only_a_hit_knows(program) -> None:
    check(lambda: program, call(X), call(X + 1), call(-X), captures=None, fullgraph=False)


def test_a_decision_on_it() -> None:
    def program(x):
        total = 0.0
        for _ in range(STEPS):
            total += x[0, 0].item()
        return x * 2 if total > STEPS else x
    check(lambda: program, call(X), call(X + 1), call(-X), call(X), captures=None, fullgraph=False)
