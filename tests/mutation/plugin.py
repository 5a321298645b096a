"""A plugin of pytest: tests that compare a program with eager by `helpers.check` have their program's world changed instead."""
from __future__ import annotations

import time
from typing import Any

import pytest

from tests import helpers
from tests.mutation.guards import Survey
from tests.mutation.hunt import Hunt
from tests.mutation.world import World

HUNT: Hunt | Survey | None = None        # set by `__main__`
_now = ["?"]


class Anything:
    """Statistics of which tests may think what they like."""

    def __getattr__(self, name: str) -> Any:
        return 0


def check(make: Any, *steps: Any, backend: Any = "eager", backward: bool = False, tolerance: float | None = None, **_: Any) -> Any:
    """In the place of `helpers.check`."""
    call = next((step for step in steps if isinstance(step, helpers.Call)), None)
    if call is not None and HUNT is not None:
        HUNT.world(World(_now[0], make, call, backward))
    return Anything()


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    helpers.check = check


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    _now[0] = item.nodeid
    if HUNT is not None and time.monotonic() > HUNT.until:
        item.session.shouldstop = "the time is over"
