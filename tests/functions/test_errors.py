"""A small part of `python -m tests.functions.errors`."""
from __future__ import annotations

import itertools

import pytest
import torch

from tests.functions.compare import NATIVE
from tests.functions.errors import cases, examine

pytest.importorskip("expecttest")       # torch's samples need it


@pytest.mark.parametrize(("first", "options"), [(3, {}), (8, NATIVE)], ids=["eager", "native"])
def test_errors_are_eager_modes(first, options):
    some = list(itertools.islice(cases(40, first=first), 0, None, 40))
    assert len(some) > 20
    assert not [finding for case in some for finding in examine(*case, **options)]


def test_what_differs_is_found():
    calls: list[int] = []

    def forgetful(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        raise ValueError(len(calls))
    assert [finding.kind for finding in examine("counts", forgetful, [((torch.ones(2),), {})] * 2)]
