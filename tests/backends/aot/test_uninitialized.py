"""Deterministic mode fills memory that nobody has written to; so do kernels."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import capture
from tests.backends.native.end_to_end.engine import no_trial  # noqa: F401

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "empty": lambda x: torch.empty(4, 3), "empty_like": lambda x: torch.empty_like(x), "new_empty": lambda x: x.new_empty(3),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2)),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)),
    "int32": lambda x: torch.empty(3, dtype=torch.int32), "bool": lambda x: torch.empty(3, dtype=torch.bool),
    "bfloat16": lambda x: torch.empty(3, dtype=torch.bfloat16), "complex64": lambda x: torch.empty(3, dtype=torch.complex64),
    "computed with": lambda x: torch.empty(3) + x, "written to": lambda x: torch.empty(3).fill_(2.0) + x,
}


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("name", CALLS)
def test_memory_is_filled(name: str, deterministic: None) -> None:
    x = torch.ones(3)
    function = capture.compile(CALLS[name], backend="native", options={"background": False})
    for _ in range(3):
        ours, eager = function(x), CALLS[name](x)
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == eager.stride()
    assert capture.stats(function).compiled == 1


def test_memory_is_filled_while_the_mode_says_so(deterministic: None) -> None:
    function = capture.compile(lambda x: torch.empty(3).isnan() & (x > 0), backend="native", options={"background": False})
    x = torch.ones(3)
    for filled in (True, False, True):
        torch.utils.deterministic.fill_uninitialized_memory = filled
        for _ in range(2):
            result = function(x)
            assert not filled or bool(result.all())
    assert capture.stats(function).captures == 2
