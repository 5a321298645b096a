"""Reductions of float64, which no wider type accumulates, against numpy's long double: errors are at most twice eager mode's."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401

pytestmark = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double has no more digits than float64 here")

RESULTS = 30        # at least so many, where that is quick, whose largest errors are compared: by chance a few may be nearly exact
FLOOR = 1.02        # units of the last place: rounded twice, as a sum and as a quotient
Array = Any


def _var(x: Array, dim: int | None) -> Array:
    count = x.size if dim is None else x.shape[dim]
    centred = x - x.sum(dim, keepdims=True) / np.longdouble(count)
    centred = centred - centred.sum(dim, keepdims=True) / np.longdouble(count)
    return (centred * centred).sum(dim) / np.longdouble(count - 1)


def _logsumexp(x: Array, dim: int | None) -> Array:
    most = x.max(dim, keepdims=True)
    return np.log(np.exp(x - most).sum(dim)) + most.squeeze(dim)


REDUCTIONS: dict[str, tuple[Callable[[torch.Tensor, int | None], torch.Tensor], Callable[[Array, int | None], Array]]] = {
    "sum": (lambda x, dim: x.sum(dim), lambda x, dim: x.sum(dim)),
    "mean": (lambda x, dim: x.mean(dim), lambda x, dim: x.sum(dim) / np.longdouble(x.size if dim is None else x.shape[dim])),
    "weighted": (lambda x, dim: (x * 2.5 + 1).sum(dim), lambda x, dim: (x * np.longdouble(2.5) + 1).sum(dim)),
    "var": (lambda x, dim: x.var(dim), _var),
    "std": (lambda x, dim: x.std(dim), lambda x, dim: np.sqrt(_var(x, dim))),
    "norm": (lambda x, dim: torch.linalg.vector_norm(x, dim=dim), lambda x, dim: np.sqrt((x * x).sum(dim))),
    "logsumexp": (lambda x, dim: x.logsumexp(tuple(range(x.dim())) if dim is None else dim), _logsumexp),
    "cumsum": (lambda x, dim: x.cumsum(dim or 0), lambda x, dim: np.cumsum(x, dim or 0)),
}
VALUES: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "positive": lambda shape: torch.rand(shape, dtype=torch.float64),
    "offset": lambda shape: torch.randn(shape, dtype=torch.float64) + 1e4,
    "near one": lambda shape: 1 + torch.randn(shape, dtype=torch.float64) * 1e-9,
    "constant rows": lambda shape: torch.rand((*shape[:-1], 1), dtype=torch.float64).expand(shape).contiguous(),
    "constant": lambda shape: torch.randn((), dtype=torch.float64).expand(shape).contiguous(),
}


def _error(result: torch.Tensor, exact: Array, least: Array) -> float:
    """In units of the last place, or of that of `least`."""
    units = np.spacing(np.maximum(np.abs(exact), least).astype(np.float64)).astype(np.longdouble)
    return float((np.abs(result.numpy().astype(np.longdouble) - exact) / units).max())


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("shape", "dim"), [((100_003,), None), ((7, 20_000), 1), ((7, 20_000), 0), ((20_000, 7), 0),
                                            ((20_000, 40), 0), ((3, 5001, 8), 1), ((40, 1000), None)], ids=str)
def test_errors_are_at_most_twice_eager_modes(name: str, shape: tuple[int, ...], dim: int | None) -> None:
    function, reference = REDUCTIONS[name]
    compiled = capture.compile(lambda x: function(x, dim), backend="native", options={"background": False})
    for kind, make in VALUES.items():
        worst = [0.0, 0.0]
        needed = -(-RESULTS // function(make(shape), dim).unique().numel())
        for draw in range(min(needed, RESULTS if dim is None else 5)):
            torch.manual_seed(draw)
            x = make(shape)
            wide = x.numpy().astype(np.longdouble)
            least = np.square(wide).max() * 1e-38 if name in ("var", "std") else 0      # the reference's own error
            exact = reference(wide, dim)
            for number, result in enumerate((compiled(x), function(x, dim))):
                worst[number] = max(worst[number], _error(result, exact, least))
        assert worst[0] <= 2 * worst[1] + FLOOR, f"{kind}: {worst[0]:.3g} units in the last place, eager mode {worst[1]:.3g}"
    assert capture.stats(compiled).compiled == 1


def test_of_ten_million_elements() -> None:
    compiled = capture.compile(lambda x: (x.sum(), x.var(), x.norm()), backend="native", options={"background": False})
    for x in (torch.full((10**7,), 0.1, dtype=torch.float64), torch.rand(10**7, dtype=torch.float64)):
        wide = x.numpy().astype(np.longdouble)
        exact = [wide.sum(), _var(wide, None), np.sqrt((wide * wide).sum())]
        eager = [x.sum(), x.var(), x.norm()]
        for ours, theirs, value in zip(compiled(x), eager, exact, strict=True):
            assert _error(ours, value, 1e-40) <= 2 * _error(theirs, value, 1e-40) + FLOOR


def test_infinities_and_what_overflows_are_eager_modes() -> None:
    compiled = capture.compile(lambda x: (x.sum(-1), x.sum(0)), backend="native", options={"background": False})
    for special in ([float("inf")], [float("inf"), -float("inf")], [float("nan")], [1.7e308, 1.7e308]):
        x = torch.ones(5000, 20, dtype=torch.float64)
        x[:len(special), 3] = x[3, :len(special)] = torch.tensor(special, dtype=torch.float64)
        for y in (x, x.t().contiguous()):
            for ours, eager in zip(compiled(y), (y.sum(-1), y.sum(0)), strict=True):
                torch.testing.assert_close(ours, eager, equal_nan=True)
