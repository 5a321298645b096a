"""Some of the ways in which an autograd function changes what the program reads; `tests.stale.hidden_changes` runs all."""
from __future__ import annotations

import pytest

from tests.stale.hidden_changes import WAYS, differing

BATCHES = 4
EACH = 24           # one of so many ways


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_an_autograd_function_changes_is_seen(batch: int) -> None:
    assert not list(differing(WAYS[batch * EACH // BATCHES::EACH]))
