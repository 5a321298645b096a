"""What is written into a part of a tensor must be as large as that. Kernels for all sizes do not look at it: it is guarded."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from capture.config import TRIAL_CALLS
from tests.helpers import call, check

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
PROGRAMS: dict[str, Program] = {
    "added": lambda y, z, i: y.index_add(0, i, z) * 2, "copied": lambda y, z, i: y.index_copy(0, i, z) * 2,
    "put": lambda y, z, i: y.index_put((i,), z) * 2, "put, a list": lambda y, z, i: y.index_put([i], z, accumulate=True) * 2,
    "stored": lambda y, z, i: (y.clone().__setitem__(i, z), y * 2), "a slice": lambda y, z, i: store(y, slice(None, z.size(0)), z),
    "columns": lambda y, z, i: store(y, (slice(None), slice(0, 3)), z[:, :3]), "a row": lambda y, z, i: store(y, 0, z[0]),
    "both": lambda y, z, i: store(y, (i, i), z[:, 0]), "one for all": lambda y, z, i: store(y, i, z[:1]),
    "a number": lambda y, z, i: store(y, (i, 0), 2.0) + z.sum(), "a mask": lambda y, z, i: store(y, y > 0, z.mean()),
    "all": lambda y, z, i: store(y, ..., z), "in a new dimension": lambda y, z, i: store(y, (None, i), z[None]),
    "a row in place": lambda y, z, i: y.select_scatter(z[0], 0, 1) * 2, "a slice in place": lambda y, z, i: y.slice_scatter(
        z, 0, 0, z.size(0)) * 2, "every second": lambda y, z, i: y.slice_scatter(z[: (y.size(0) + 1) // 2], 0, step=2),
    "a diagonal": lambda y, z, i: y.diagonal_scatter(z[:, 0]) * 2, "flat": lambda y, z, i: y.put(i, z[:, 0]),
    "scattered": lambda y, z, i: y.scatter_add(0, i[:, None].expand(-1, z.size(1)), z) * 2}
FITTING = ((4, 6, 4, 6, 4), (5, 8, 5, 8, 5), (3, 4, 3, 4, 3), (6, 8, 6, 8, 6), (6, 8, 6, 8, 6))
OTHER = ((4, 6, 4, 3, 4), (4, 6, 3, 6, 4), (5, 8, 5, 8, 4), (5, 8, 5, 12, 5), (6, 4, 3, 8, 3), (6, 4, 9, 4, 6), (6, 4, 6, 4, 9),
         (4, 6, 1, 6, 4), (4, 6, 4, 1, 4), (4, 6, 4, 6, 1))
NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}, "tolerance": 1e-4}


def store(y: torch.Tensor, key: Any, z: Any) -> torch.Tensor:
    y = y.clone()
    y[key] = z
    return y * 2


def given(rows: int, columns: int, own_rows: int, own_columns: int, indices: int) -> Any:
    generator = torch.Generator().manual_seed(rows * 100 + own_columns)
    shapes = (rows, columns), (own_rows, own_columns)
    return call(*(torch.randn(shape, generator=generator) for shape in shapes), torch.arange(indices) % rows)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_does_not_fit_raises(name: str) -> None:
    with TRIAL_CALLS.set(0):
        for options in ({}, NATIVE):
            steps = [given(*sizes) for sizes in (*FITTING, *(sizes for other in OTHER for sizes in (other, other)), *FITTING)]
            check(lambda: PROGRAMS[name], *steps, captures=None, fullgraph=False, recompile_limit=60, **options)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"every second", "a mask"}))
def test_what_fits_is_captured_once(name: str) -> None:
    stats = check(lambda: PROGRAMS[name], *(given(*sizes) for sizes in FITTING), captures=None, fullgraph=False)
    assert stats.captures == 2, stats.misses
