"""Random programs of tensors and several Python numbers."""
from __future__ import annotations

from collections import Counter

from tests.backends.native.random_numbers import check


def test_random_programs() -> None:
    assert Counter(map(check, range(40)))["equal"] > 20
