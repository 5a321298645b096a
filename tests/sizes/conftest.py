"""What tests of sizes that change share."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from capture.config import FREE_SIZES, TRIAL_CALLS


@pytest.fixture
def open_sizes() -> Iterator[None]:
    """A size that was seen to change is captured for all sizes, whatever the environment says."""
    with FREE_SIZES.set(1):
        yield


@pytest.fixture
def kernels_at_once() -> Iterator[None]:
    """Compiled code stays, however slow it is on such small models."""
    with TRIAL_CALLS.set(0):
        yield
