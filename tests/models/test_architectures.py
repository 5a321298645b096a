"""Some of the architectures that `tests.models.architectures` goes through, beside eager mode, with lengths that change."""
from __future__ import annotations

import pytest

from tests.models.architectures import compare


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["bart", "ctrl", "ernie"])
def test_an_architecture(name: str, training: bool) -> None:
    """One graph, in two captures for all lengths."""
    stats = compare(name, training, native=False)
    assert (stats.captures, stats.breaks) == (2, 0)
