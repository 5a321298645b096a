"""Kernels raise for the values for which eager mode raises, also where the result does not depend on them."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401

X = torch.arange(12.0).view(3, 4)
PLACES, BEYOND = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
FIRST, NOT_FIRST = torch.tensor([0, 0, 0]), torch.tensor([0, 0, 5])
HALF = torch.tensor([0.0, 0.5, 1.0])

OF_CONSTANTS = {
    "ones": lambda i: torch.ones(3)[i] * 2, "numbers": lambda i: torch.arange(3)[i] + 1,
    "expanded": lambda i: (i.float()[:1] * 2).expand(3)[i], "gather": lambda i: torch.ones(3).gather(0, i) * 2,
    "index_select": lambda i: torch.ones(3, 2).index_select(0, i) * 2, "embedding": lambda i: F.embedding(i, torch.zeros(3, 2)) * 2,
    "take": lambda i: torch.ones(3).take(i), "take_along_dim": lambda i: torch.take_along_dim(torch.ones(3), i),
    "nll_loss": lambda i: F.nll_loss(torch.zeros(3, 3), i), "two": lambda i: torch.ones(3, 2)[i, i.clamp(max=1)],
    "truths": lambda i: torch.ones(3, dtype=torch.bool)[i], "narrow": lambda i: torch.ones(3, dtype=torch.bfloat16)[i] + 1,
}
OF_ONE_ELEMENT = {
    "index": lambda i: X[:1][i] + 1, "take": lambda i: X[:1, :1].take(i) + 1, "gather": lambda i: X[:1, :3].gather(0, i[None]) + 1,
    "embedding": lambda i: F.embedding(i, X[:1]), "loss": lambda i: F.cross_entropy(X[:3, :1], i),
    "scatter": lambda i: torch.zeros(1, 3).scatter(0, i[None], 1.0) + 1,
    "index_add": lambda i: torch.zeros(1).index_add(0, i, torch.ones(3)) + 1,
    "put": lambda i: torch.zeros(1, 1).put(i, torch.ones(3)) + 1,
    "index_put": lambda i: torch.zeros(1).index_put((i,), torch.tensor(1.0)) + 1,
}
UNREAD = {
    "index": (lambda i: (X[i], i * 2)[1], PLACES, BEYOND),
    "through others": (lambda i: ((X[i] + 1).sum(), i * 2)[1], PLACES, BEYOND),
    "shape": (lambda i: torch.zeros_like(X[i]) + 1, PLACES, BEYOND),
    "size": (lambda i: torch.zeros(X[i].shape) + 1, PLACES, BEYOND),
    "loss": (lambda p: (F.binary_cross_entropy(p, p), p * 2)[1], HALF, HALF + 1),
    "quotient": (lambda t: (PLACES // t, t * 2)[1], PLACES + 1, PLACES),
    "assertion": (lambda p: (torch._assert_async(p.max() < 2), p * 2)[1], HALF, HALF + 2),
    "matrix": (lambda p: (torch.linalg.cholesky(p), p * 2)[1], torch.eye(3), torch.zeros(3, 3)),
}
CHECKED = {
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, HALF), HALF, HALF + 1),
    "weighted": (lambda p: F.binary_cross_entropy(p, HALF, weight=HALF, reduction="none"), HALF, HALF - 1),
    "not a number": (lambda p: F.binary_cross_entropy(p, HALF) * 0, HALF, HALF / 0),
    "quantile": (lambda q: torch.quantile(X, q), HALF, HALF + 1), "nanquantile": (lambda q: X.nanquantile(q, 0), HALF, HALF - 1),
    "istft": (lambda w: torch.istft(torch.ones(5, 6, dtype=torch.complex64), 8, window=w), torch.ones(8), torch.zeros(8)),
}
PARTLY_READ = {
    "rows": lambda i: X[i][:2], "row": lambda i: X[i][0], "embedding": lambda i: F.embedding(i, X)[:2],
    "gather": lambda i: X.gather(0, i[:, None])[:1], "index_select": lambda i: X.index_select(0, i)[0],
    "take": lambda i: X[0, :3].take(i)[:2], "take_along_dim": lambda i: torch.take_along_dim(X, i[:, None], 0)[:2],
    "two": lambda i: X[i, i][:2], "crossed": lambda i: X[i[:, None], PLACES[None, :2]][:2], "turned": lambda i: X[i].flip(0)[1:],
    "flat": lambda i: X[i].view(-1)[:8], "columns": lambda i: X[i].t().reshape(-1)[::3], "no columns": lambda i: X[i][:, :0].sum(),
    "by constants": lambda i: X[i][PLACES[:2]], "by themselves": lambda i: X[i][i[:2]],
    "cropped": lambda i: F.pad(X[i], (0, 0, 0, -1)), "of two": lambda i: torch.cat([X, X[i]])[:5],
    "split": lambda i: X[i].split(2)[0],
    "complex": lambda i: X.to(torch.complex64)[i][:2].real, "nll_loss": lambda i: F.nll_loss(X[:, :3], i, reduction="none")[:2],
    "one_hot": lambda i: F.one_hot(i, 3)[:1], "scatter": lambda i: torch.zeros(3, 3).scatter(0, i[None], 1.0)[:, :1],
    "behind others": lambda i: (X[i] * 2 + 1).relu()[:1], "replaced": lambda i: torch.select_scatter(X[i], torch.ones(4), 0, 2),
    "expand_as": lambda i: torch.ones(3, 4).expand_as(X[i]), "view_as": lambda i: X.view(-1).view_as(X[i]),
    "type_as": lambda i: i.type_as(X[i]), "full_like": lambda i: torch.full_like(X[i], 3.0),
}
PROGRAMS = {
    **{f"constants, {name}": (function, PLACES, BEYOND) for name, function in OF_CONSTANTS.items()},
    **{f"one element, {name}": (function, FIRST, NOT_FIRST) for name, function in OF_ONE_ELEMENT.items()},
    **{f"partly read, {name}": (lambda i, function=function: function(i) * 2 + 1, PLACES, BEYOND)
       for name, function in PARTLY_READ.items()},
    "partly read, probabilities": (lambda p: F.binary_cross_entropy(p, HALF, reduction="none")[:2] * 2, HALF, HALF + HALF.floor()),
    **{f"unread, {name}": given for name, given in UNREAD.items()}, **CHECKED}


def outcome(function, x):
    try:
        return function(x)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_that_eager_mode_refuses(name, caught):
    function, good, bad = PROGRAMS[name]

    def program(x):
        if not caught:
            return function(x)
        try:
            return function(x)
        except (RuntimeError, IndexError) as error:
            return x - 1, str(error)
    compiled = capture.compile(program, backend="native", options={"background": False})
    for x in (good, good, bad, good, bad):
        ours, eager = outcome(compiled, x.clone()), outcome(program, x.clone())
        assert type(ours) is type(eager)
        torch.testing.assert_close(ours, eager) if isinstance(eager, torch.Tensor) else None
        if isinstance(eager, tuple):
            assert str(ours) == str(eager)
    assert capture.stats(compiled).captures == 1


def test_gradients_behind_a_check():
    x, t = torch.rand(5, 3, requires_grad=True), torch.rand(5, 3)
    compiled = capture.compile(lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), backend="native", options={"background": False})
    for _ in range(3):
        ours, = torch.autograd.grad(compiled(x, t), x)
    torch.testing.assert_close(ours, *torch.autograd.grad(F.binary_cross_entropy(x.sigmoid(), t), x))
    assert capture.stats(compiled).compiled == 1


def test_indices_of_any_number():
    compiled = capture.compile(lambda x, i: x[i][1:] * 2, backend="native", options={"background": False}, dynamic=True)
    for n in (5, 6, 7, 9):
        x, places = torch.rand(n, 2), torch.arange(n)
        torch.testing.assert_close(compiled(x, places), x[places][1:] * 2)
        with pytest.raises(IndexError):
            compiled(x, places + (places == 0) * n)
    assert capture.stats(compiled).compiled >= 1


def test_checks_stand_where_the_program_makes_them():
    def program(x, i, j):
        first = x[i][:1] * 2
        i.copy_(j)
        return first + x[i][:1]
    compiled = capture.compile(program, backend="native", options={"background": False})
    for i, j in [(PLACES, PLACES), (PLACES, PLACES), (PLACES, BEYOND), (BEYOND, PLACES), (BEYOND, BEYOND), (PLACES, PLACES)]:
        ours, eager = i.clone(), i.clone()
        result, expected = outcome(lambda i: compiled(X, i, j), ours), outcome(lambda i: program(X, i, j), eager)  # noqa: B023
        assert type(result) is type(expected)
        torch.testing.assert_close(ours, eager)


def test_gradients_of_a_part():
    def program(x, i):
        return (F.embedding(i, x)[:2] * 3).sin().sum()
    compiled = capture.compile(program, backend="native", options={"background": False})
    x = torch.rand(3, 4, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(compiled(x, PLACES), x), torch.autograd.grad(program(x, PLACES), x))
        with pytest.raises(IndexError):
            compiled(x, BEYOND)
    assert capture.stats(compiled).compiled == 1
