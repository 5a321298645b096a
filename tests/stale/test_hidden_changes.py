"""Some of the ways in which an autograd function changes what the program reads; `tests.stale.hidden_changes` runs all."""
from __future__ import annotations

import pytest

from tests.stale.hidden_changes import WAYS, Recording, differing, differing_if_recorded

BATCHES = 4
EACH = 36           # one of so many ways


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_an_autograd_function_changes_is_seen(batch: int) -> None:
    assert not list(differing(WAYS[batch * EACH // BATCHES::EACH]))


def test_what_a_backward_pass_would_change_is_not_recorded() -> None:
    """One that changes nothing is."""
    recording = Recording()
    assert not list(differing_if_recorded(WAYS[::EACH], recording)) and recording.count == 0
    assert list(differing_if_recorded(["y = [1]; y.append(2)"], recording)) and recording.count == 2
