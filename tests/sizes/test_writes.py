"""Writes to parts of tensors at positions, and of sizes, that vary: in kernels, values, versions and memory are eager mode's."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import capture
from capture.config import TRIAL_CALLS
from tests.helpers import call, call_with, check

F = torch.nn.functional
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}


def cache(n: int = 12) -> Tensor:
    return torch.linspace(-1, 1, 2 * 3 * n * 4).view(2, 3, n, 4).mul(9).sin()


def news(n: int = 1) -> Tensor:
    return torch.linspace(-1, 1, 2 * 3 * n * 4).view(2, 3, n, 4).cos()


def slots(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def at_a_position(x: Tensor, k: Tensor, n: int) -> Tensor:
    x[:, :, n:n + 1] = k
    return x[:, :, :n + 1].sum(2)


def block(x: Tensor, k: Tensor, n: int) -> Tensor:
    x[:, :, n:n + k.size(2)] = k
    return F.scaled_dot_product_attention(k, x[:, :, :n + k.size(2)], x[:, :, :n + k.size(2)])


def row(x: Tensor, k: Tensor, n: int) -> Tensor:
    before = x[:, :, n] * 2
    x[:, :, n] = k[:, :, 0]
    return before + x[:, :, n]


def indexed(x: Tensor, k: Tensor, i: Tensor) -> Tensor:
    x.index_copy_(2, i, k)
    return F.scaled_dot_product_attention(k, x, x)


def layer(x: Tensor, k: Tensor, i: Tensor) -> Tensor:
    part = x[1]
    part.index_copy_(1, i, k[0])
    part[:, i] += 1
    return part * 2


def twice(x: Tensor, k: Tensor, i: Tensor) -> Tensor:
    x[:, :, i] = k
    a = torch.tanh(x)
    x[:, 1:, i] = a[:, :2, i]
    return a


VARYING: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "a position": (at_a_position, [(cache(), news(), n) for n in (3, 5, 4, 10, 2, 7)]),
    "blocks": (block, [(cache(n + 6), news(n), n // 2 + 2) for n in (3, 5, 4, 2, 6)]),
    "a row": (row, [(cache(), news(), n) for n in (3, 5, 4, 10, 2, 7)]),
    "slots": (indexed, [(cache(n + 6), news(), slots(n)) for n in (3, 5, 4, 2)]),
    "many slots": (indexed, [(cache(16), news(n), torch.arange(n) * 2) for n in (3, 5, 4, 2, 7)]),
    "slots of a part": (layer, [(cache(n + 6), news(n), torch.arange(n) + 1) for n in (3, 5, 4, 2)]),
    "written twice": (twice, [(cache(n + 6), news(n), torch.arange(n) + 1) for n in (3, 5, 4, 2)])}


@pytest.mark.parametrize("name", VARYING)
def test_two_captures(name: str) -> None:
    program, arguments = VARYING[name]
    with TRIAL_CALLS.set(0), torch.no_grad():
        found = check(lambda: program, *(call(*given) for given in arguments), captures=None, **NATIVE)
    assert found.captures <= 2 and not found.compile_errors and found.compiled == 1, found


def test_sizes_of_zero_and_one() -> None:
    with TRIAL_CALLS.set(0):
        steps = [call(cache(n + 1), news(n), torch.arange(n)) for n in (3, 0, 1, 5, 0, 2, 1)]
        check(lambda: twice, *steps, captures=None, **NATIVE)
        check(lambda: block, *[call(cache(n + 1), news(n), 1) for n in (3, 0, 1, 5, 0, 2, 1)], captures=None, **NATIVE)


@pytest.mark.parametrize("dead", [False, True])
def test_memory_that_others_see(dead: bool) -> None:
    """Views from outside, other arguments on the same memory, results that are views, versions."""
    def make() -> Any:
        def program(x: Tensor, part: Tensor, k: Tensor, i: Tensor) -> Any:
            a = part.sum()
            x.index_copy_(2, i, k)
            b = part.sum()
            part[0, 0] = 5
            return a, b, x[1:] if dead else x, part * 2, x._version
        memory = cache(20)
        return program, {"x": memory[:, :, :9], "part": memory[:, :, 4:12], "memory": memory, "other": cache(20)}

    with TRIAL_CALLS.set(0):
        steps = [call_with(lambda state, n=n: (state["x"], state["part"], news(), slots(n))) for n in (5, 2, 8, 5)]
        steps += [call_with(lambda state, n=n: (state["x"], state["other"], news(), slots(n))) for n in (5, 2, 8)]
        steps += [call_with(lambda state, n=n: (state["x"], state["x"], news(), slots(n))) for n in (5, 2, 8)]
        check(make, *steps, captures=None, fullgraph=False, **NATIVE)


def test_an_index_that_is_out_of_range() -> None:
    def caught(x: Tensor, k: Tensor, i: Tensor) -> Any:
        x[:, :, 0] = 1
        try:
            x.index_copy_(2, i, k)
        except IndexError as error:
            x[:, :, 1] = 2
            return str(error)
        x[:, :, i] += 1
        return x * 2

    def uncaught(x: Tensor, k: Tensor, i: Tensor) -> Any:
        x[:, :, 0] += 1
        x[:, :, i] = k
        return x * 2
    with TRIAL_CALLS.set(0):
        for program in (caught, uncaught):
            steps = [call_with(lambda state, n=n: (state["x"], news(), slots(n))) for n in (5, 2, 30, 8, 12, 3, -40)]
            check(lambda program=program: (program, {"x": cache()}), *steps, captures=None, fullgraph=False, **NATIVE)


def row_of_one(x: Tensor, y: Tensor, i: Tensor) -> None:
    x[0] += 1
    x[i] = 2
    x[1] += 1


def row_of_another(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
    x[0] += 1
    y[i] = 2
    x[1] += 1
    return x[:2] * 2


def looked_up(x: Tensor, y: Tensor, i: Tensor) -> None:
    x[:, 0] = y[i].sum()
    y[i] = 2
    x[1] += y[i].sum()


@pytest.mark.parametrize("program", [row_of_one, row_of_another, looked_up])
def test_what_was_written_before_an_exception(program: Callable[..., Any]) -> None:
    """Of tensors that are too large for a copy of them to be kept: they are left as eager mode leaves them."""
    compiled = capture.compile(program, **{name: NATIVE[name] for name in ("backend", "options")})
    worlds = [(function, torch.ones(600, 600), torch.arange(360000.0).view(600, 600) / 360000) for function in (program, compiled)]
    with TRIAL_CALLS.set(0):
        for place in (3, 5, 7, 700, 4, 900, 900, 6, 2):
            raised, counted = [], []
            for function, *tensors in worlds:
                before = [tensor._version for tensor in tensors]
                try:
                    function(*tensors, slots(place))
                    raised.append(None)
                except IndexError as error:
                    raised.append(type(error))
                counted.append([tensor._version > version for tensor, version in zip(tensors, before)])
            (_, *theirs), (_, *ours) = worlds
            assert raised[0] == raised[1] and all(a <= b for a, b in zip(*counted)), counted
            torch.testing.assert_close(ours, theirs)
    assert capture.stats(compiled).compiled == 1


def test_gradients() -> None:
    def program(x: Tensor, weight: Tensor, k: Tensor, n: int) -> Tensor:
        kept = (x[0] * 2).sum()
        x[:, :, n:n + k.size(2)] = k
        return (x * weight).sin() * kept
    with TRIAL_CALLS.set(0):
        steps = [call(cache(n + 6), cache(n + 6).requires_grad_(), news(n), n // 2 + 2) for n in (3, 5, 4, 2, 6)]
        found = check(lambda: program, *steps, captures=2, backward=True, **NATIVE)
    assert not found.compile_errors and found.compiled == 1, found
