"""Numbers among a graph's inputs: which of them compiled code takes."""
from __future__ import annotations

import math

import torch

from capture.backends.native.numbers import ALL, Domain, fits, spec_of


def test_numbers_that_fit() -> None:
    assert all(map(fits, (0.0, -1e38, math.nan, math.inf, -math.inf, 2**63 - 1, -(2**63 - 1))))
    assert not any(map(fits, (1e39, -1e300, 2**63, -2**63)))


def test_domains() -> None:
    domain = Domain(least=0.0, nan=False) & Domain(apart=frozenset((2.0,)))
    assert all(fits(value, domain) for value in (0.0, 1.5, 3, math.inf))
    assert not any(fits(value, domain) for value in (2, 2.0, -1, math.nan))
    assert [fits(value, Domain(most=65504.0)) for value in (65504.0, -65505.0, 70000, math.inf)] == [True, False, False, True]
    assert domain & ALL == domain and ALL.holds(math.nan)


def test_what_stands_for_numbers() -> None:
    assert [(spec.dtype, spec.shape, spec.number) for spec in map(spec_of, (int, float))] == [
        (torch.int64, (), True), (torch.float64, (), True)]
