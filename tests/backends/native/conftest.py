"""What tests of the native backend share."""
from __future__ import annotations

import pytest

from capture.backends.native import sidecar
from tests import compiling


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling processes that start within the test are forks, which are ready at once."""
    monkeypatch.setattr(sidecar, "command", compiling.forking())
