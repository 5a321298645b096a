"""Integers that say where in a tensor something lies, and change from call to call: one graph, compiled once for all of them."""
from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from capture.backends.native.places import select_rows
from capture.config import TRIAL_CALLS
from tests.helpers import call, check

X = torch.linspace(-2.0, 2.0, 1200).view(10, 12, 10)
PLACES = [3, 5, 2, 7, 4, 6, 0, 1, 0, 1, 3, 8]
FEW = PLACES[:5]
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-5}


def written(*keys: Callable[[int], Any]) -> Callable[..., torch.Tensor]:
    """A program that assigns to several places."""
    def program(x: torch.Tensor, i: int) -> torch.Tensor:
        y = x.clone()
        for key in keys:
            y[key(i)] = y[key(i)] * 2 + 1
            y[key(i)] = 0.5
            y[key(i)] += 1
        return y
    return program


READ: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "row": lambda x, i: x[i].exp(), "rows": lambda x, i: x[i] * x[i + 1] - x[i - 2], "from the end": lambda x, i: x[-i - 1] + 1,
    "column": lambda x, i: x[:, i].sum(0) * 2, "after an ellipsis": lambda x, i: x[..., i, :1] * x[..., i].sum(1, True),
    "two": lambda x, i: x[i, 2, i + 1] * x[i, i], "beside a slice": lambda x, i: x[1:, i, ::2].tanh().sum() * x[i, 2:, None],
    "window": lambda x, i: x[i:i + 2].exp(), "window of columns": lambda x, i: x[:, 2 * i - i:i + 3].exp().sum(1),
    "beside an index": lambda x, i: x[i, torch.tensor([1, 0])] + x[torch.tensor([1, 0]), i],
    "list": lambda x, i: x[[0, i, 2]] * x[:, [i - 1, i, -i]].sum(), "list beside a row": lambda x, i: x[i, :, [i, 1]].exp(),
    "select": lambda x, i: x.select(1, i) * 2, "narrow": lambda x, i: torch.narrow(x, 0, i, 2).cos().sum(0) * x.narrow(1, i, 1),
    "roll": lambda x, i: x.roll(i, 1) + x.roll((i, -i), (0, 2)),
    "triangle": lambda x, i: x.triu(i - 4) + torch.tril(x, diagonal=i),
    "calculated with, too": lambda x, i: x[i] * i + x[i] / (i + 1)}
WRITTEN = {
    "row": written(lambda i: i), "column": written(lambda i: (slice(None), i)), "window": written(lambda i: slice(i, i + 2)),
    "single": written(lambda i: (i, i + 1, 2)), "from the end": written(lambda i: (..., -i - 1)),
    "beside an index": written(lambda i: (i, torch.tensor([1, 2]))), "list": written(lambda i: [0, i]),
    "list of columns": written(lambda i: (slice(1, None), [i, 1, i - 1]))}
MASK = X.mean((1, 2)) > 0
MASKED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "column": lambda x, i: x.exp()[MASK, i].sin() + 1, "row": lambda x, i: x[i, X[0, :, 0] > -1] * 2,
    "of two dimensions": lambda x, i: x[X.mean(2) > 0, i] * 2, "window": lambda x, i: x[MASK, i:i + 2].exp(),
    "window behind an ellipsis": lambda x, i: x[MASK, ..., i - 1:i + 1, 2] * 2,
    "of what a mask chose": lambda x, i: x[MASK][:, i] * 2,
    "list of what a mask chose": lambda x, i: x[MASK][:, :, [i, 0]] * 2}


@pytest.mark.parametrize("name", READ)
def test_reading(name: str) -> None:
    check(lambda: READ[name], *(call(X.clone().requires_grad_(), i) for i in PLACES), captures=2, backward=True)


@pytest.mark.parametrize("name", READ)
def test_reading_with_kernels(name: str) -> None:
    compiled_once(READ[name], True)


@pytest.mark.parametrize("name", WRITTEN)
def test_writing_with_kernels(name: str) -> None:
    check(lambda: WRITTEN[name], *(call(X, i) for i in PLACES), captures=2)
    compiled_once(WRITTEN[name], False)


@pytest.mark.parametrize("options", [{}, NATIVE], ids=["eager", "native"])
@pytest.mark.parametrize("name", MASKED)
def test_beside_masks(name: str, options: dict[str, Any]) -> None:
    """How many elements a mask chooses is not known; which rows and columns are taken of these may vary all the same."""
    steps = [call(X.roll(n, 0), i) for n, i in enumerate((3, 5, 2, 7, 4, 6, 1, 8))]
    found = check(lambda: MASKED[name], *steps, captures=2, **options)
    assert found.breaks == 0


@pytest.mark.parametrize("write", [
    lambda x, i: x.__setitem__((MASK, i), 2), lambda x, i: x.__setitem__((MASK, slice(i, i + 2)), x.mean()),
    lambda x, i: x.__setitem__((MASK, i), x[MASK, i - 1] * 2)])
def test_writing_beside_masks(write: Callable[[torch.Tensor, int], None]) -> None:
    def program(x: torch.Tensor, i: int) -> torch.Tensor:
        write(x, i)
        return x * 2
    check(lambda: program, *(call(X.clone(), i) for i in (3, 5, 2, 7, 4, 6, 1, 8)), captures=2, **NATIVE)


def test_bounds_that_vary_by_turns() -> None:
    """Each bound that was alike by chance in the first two captures takes one more."""
    def window(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
        return x[n - m:n].exp()

    def block(x: torch.Tensor, k: torch.Tensor, n: int) -> torch.Tensor:
        x[n:n + k.size(0)] = k
        return x[:n + k.size(0)].exp()
    bounds = [(5, 2), (7, 3), (4, 1), (9, 4), (9, 2), (3, 3)]
    for options in ({}, NATIVE):
        check(lambda: window, *(call(X, n, m) for n, m in bounds), captures=3, **options)
        check(lambda: block, *(call(X.clone(), X[:m] * 2, n) for n, m in (*bounds[:3], (6, 4), (8, 2))), captures=2, **options)


def compiled_once(program: Callable[..., Any], backward: bool, places: list[int] = FEW, artifacts: int = 1) -> None:
    """The second capture's graph is compiled, for all places."""
    with TRIAL_CALLS.set(0):
        steps = [call(X.clone().requires_grad_(backward), i) for i in places]
        found = check(lambda: program, *steps, captures=2, backward=backward, **NATIVE)
    assert not found.compile_errors and found.compiled == artifacts, found


def test_the_first_two_places() -> None:
    """Each has an artifact of its own, and here the first capture is hit, too."""
    compiled_once(READ["rows"], True, PLACES, 4)


class Ring(nn.Module):
    """Writes each call's values behind those of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.length = 3, 20
        self.register_buffer("held", torch.zeros(20, 12, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held[self.at] = x
        self.held[self.at:self.at + 1] *= 2
        self.at = (self.at + 1) % self.length
        return self.held.sum(0)


def test_a_ring_buffer() -> None:
    found = check(Ring, *[call(X[0])] * 45, captures=2, **NATIVE)
    assert not found.compile_errors


def test_a_cache_of_keys_that_is_written_at_a_position() -> None:
    def make() -> Any:
        held = torch.zeros(1, 12, 8)

        def program(x: torch.Tensor, at: int) -> torch.Tensor:
            held[:, at:at + x.size(1)] = x
            return (x @ held[:, :at + x.size(1)].mT).softmax(-1) @ held[:, :at + x.size(1)]
        return program, held
    found = check(make, *(call(torch.randn(1, 1, 8), at) for at in (2, 3, 4, 5, 6, 7)), captures=2, **NATIVE)
    assert not found.compile_errors


def test_a_place_drawn_at_random() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        i, j = random.randint(0, 4), random.randint(0, 4)
        return x[:, i:i + 6, j:j + 6] * x[i].sum()
    found = check(lambda: program, *[call(X)] * 12, captures=1, **NATIVE)
    assert not found.compile_errors


def test_places_outside_raise_as_in_eager_mode() -> None:
    def program(x: torch.Tensor, i: int) -> Any:
        try:
            return x[i] * 2, x.select(0, i)
        except IndexError as error:
            return str(error)
    places = (3, 4, 5, 12, 3, -11, 10, -1, -1, -2, 9)
    check(lambda: program, *(call(X, i) for i in places), captures=None, fullgraph=False, **NATIVE)


def test_subscripts_that_are_left_alone() -> None:
    """What a tensor among the parts takes is not known: it may be a mask of several dimensions."""
    graph = fx.Graph()
    x, mask = graph.placeholder("x"), graph.placeholder("mask")
    n = graph.call_method("size", (x, 0))
    for key in ((mask, n), (..., n, mask), (True, n), [True, n], [[n, n], [1, n]], [mask, n]):
        graph.call_function(operator.getitem, (x, key))
    before = str(graph)
    select_rows(graph)
    assert str(graph) == before
