"""What tests of whole programs share."""
from __future__ import annotations

from typing import Any

import pytest

from tests.backends.native.end_to_end.engine import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request: Any) -> dict[str, Any]:
    """The arguments of `capture.compile` for one backend of several."""
    return ENGINES[request.param]
