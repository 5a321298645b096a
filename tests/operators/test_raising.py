"""Operations that raise for some values, and so may on a hit: what the program did before stays, and its handlers run."""
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import call, check

aten = torch.ops.aten
X = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
IDS = torch.tensor([1, 0])
ONES = torch.ones(2, dtype=torch.int32)
# What is done, and arguments for which it is done and for which it raises.
CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "cholesky": (lambda a: aten.linalg_cholesky.default(a), X, -X), "packet": (lambda a: aten.cholesky(a), X, -X),
    "lu_factor": (torch.linalg.lu_factor, X, X * 0), "matrix_norm": (lambda a: torch.norm(a, "nuc"), X, X * torch.nan),
    "lu_solve": (lambda i: torch.linalg.lu_solve(X, i, X), ONES, ONES - 5),
    "lu_unpack": (lambda i: torch.lu_unpack(X, i), ONES, ONES - 5), "weights": (lambda w: torch.cov(X, aweights=w), X[0], -X[0]),
    "variances": (lambda v: F.gaussian_nll_loss(X, X, v), X, -X), "low rank": (lambda a: torch.svd_lowrank(a, 1), X, X * torch.nan),
    "index_select": (lambda i: aten.index_select.default(X, 0, i), IDS, IDS + 5),
    "embedding": (lambda i: aten.embedding.default(X, i), IDS, IDS + 5),
    "gather": (lambda i: aten.gather.default(X, 0, i[None]), IDS, IDS + 5),
    "target": (lambda i: aten.nll_loss.default(X, i), IDS, IDS + 5),
    "remainder": (lambda i: 7 % i, IDS + 1, IDS), "floor_divide": (lambda i: aten.floor_divide.default(IDS, i), IDS + 1, IDS),
    "remainder in place": (lambda i: aten.remainder_.Tensor(IDS + 1, i), IDS + 1, IDS),
    "start": (lambda i: X.narrow(0, i[0], 1), IDS, IDS + 5),
    "index of a list": (lambda i: aten.index.Tensor(X, [i]), IDS, IDS + 5),
    "stored": (lambda i: aten.index_put.default(X, [i], X), IDS, IDS + 5),
    "bernoulli": (lambda p: aten.bernoulli.default(p), X / 4, X), "polar": (lambda p: aten.multinomial.default(p, 1), X, -X),
    "std": (lambda s: torch.normal(0.0, s), X, -X), "target of a loss": (lambda i: F.cross_entropy(X, i), IDS, IDS + 5),
    "range": (lambda a: torch.histc(a, 2), X, X * torch.inf),
    "probabilities": (lambda p: F.binary_cross_entropy(p, X / 4), X / 4, X),
    "sections": (lambda i: torch.tensor_split(X, i[0])[0], IDS, IDS - 3),
    "shapes": (lambda x: x[x > 0] + X[0], X[0].repeat(2) - 1.5, X.view(4)), "empty": (lambda x: x[x > 0].max(), X, -X),
    "halves": (lambda x: x[x > 0].view(2, -1), X[0].repeat(2) - 1.5, X.view(4) - torch.eye(4)[0] * 9),
    "scattered": (lambda x: torch.zeros(4).masked_scatter_(x > 0, X[0]), X[0].repeat(2) - 1.5, X.view(4))}


@pytest.mark.parametrize("name", CASES)
def test_a_handler_finds_what_came_before(name: str) -> None:
    function, good, bad = CASES[name]

    def make():
        state = SimpleNamespace(total=torch.zeros(2, 2), log=[])

        def program(x):
            state.log.append(len(state.log))
            state.total.add_(1)
            try:
                found = function(x)
            except (RuntimeError, IndexError, ValueError) as error:
                state.log.append(type(error).__name__)
                found = None
            return found, state.total * 2
        return program, state
    check(make, call(good), call(good), call(bad), call(good), captures=None, hits=None, fullgraph=False)


@pytest.mark.parametrize("name", CASES)
def test_effects_are_not_done_twice(name: str) -> None:
    function, good, bad = CASES[name]

    def make():
        state = SimpleNamespace(total=torch.zeros(2, 2))

        def program(x):
            print("begins")
            state.total.add_(1)
            return function(x), state.total * 2
        return program, state
    check(make, call(good), call(good), call(bad), call(good), captures=None, hits=None, fullgraph=False)


NUMBERS: dict[str, tuple[Callable[[torch.Tensor, Any], Any], torch.Tensor, list[Any]]] = {
    "power": (lambda x, n: x ** n, torch.tensor([1, 2]), [2, 3, 4, -1]),
    "filled": (lambda x, n: x.fill_(n), torch.tensor([1, 2], dtype=torch.uint8), [2, 3, 4, 300]),
    "added": (lambda x, n: x + n, torch.tensor([1, 2], dtype=torch.int8), [2, 3, 4, 1 << 40]),
    "divided": (lambda x, n: x // n, torch.tensor([1, 2]), [2, 3, 4, 0]),
    "masked": (lambda x, n: x.masked_fill(x > 1, n), torch.tensor([1, 2], dtype=torch.int8), [2, 3, 4, 1 << 40]),
    "quantile": (lambda x, q: torch.quantile(x, q), torch.tensor([1.0, 2]), [0.25, 0.5, 0.75, 1.5]),
    "dropout": (lambda x, p: F.dropout(x, p) * 0, torch.tensor([1.0, 2]), [0.25, 0.5, 0.75, 1.5]),
    "subscript": (lambda x, n: x[n], torch.tensor([1, 2, 3, 4, 5]), [2, 3, 4, 7])}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("handles", [True, False], ids=["handled", "not handled"])
def test_numbers_that_change(name: str, handles: bool) -> None:
    """A number that has become an input of the graph may be one for which the operation raises."""
    function, x, numbers = NUMBERS[name]

    def make():
        state = SimpleNamespace(total=torch.zeros(2, 2), log=[])

        def program(x, n):
            print("begins")
            state.total.add_(1)
            return function(x, n), state.total * 2

        def handling(x, n):
            state.log.append(n)
            try:
                return program(x, n)
            except (RuntimeError, IndexError, ValueError) as error:
                state.log.append(type(error).__name__)
        return handling if handles else program, state
    check(make, *(call(x, n) for n in (*numbers, *numbers)), captures=None, hits=None, fullgraph=False)
