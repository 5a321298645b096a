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
PROGRAMS = {
    **{f"constants, {name}": (function, PLACES, BEYOND) for name, function in OF_CONSTANTS.items()},
    **{f"one element, {name}": (function, FIRST, NOT_FIRST) for name, function in OF_ONE_ELEMENT.items()},
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
