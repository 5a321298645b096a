"""How the tests of this folder compile: with the native backend, in time for the first hit, and always kept."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capture
from capture import config
from capture.backends.native.tiers import Stage, Tier
from tests import helpers

AT_ONCE = {"backend": "native", "options": {"background": False}}
ENGINES = {"eager": {"backend": "eager"}, "native": AT_ONCE}
compile = functools.partial(capture.compile, fullgraph=True, **AT_ONCE)


@pytest.fixture(autouse=True)
def no_trial() -> Iterator[None]:
    """Compiled code stays, however slow it is on such small models."""
    with config.TRIAL_CALLS.set(0):
        yield


def check(make: Callable[[], Any], *steps: Any, tolerance: float = 2e-5, compiled: int | None = None, **arguments: Any) -> None:
    """`helpers.check`, and that all graphs, or the last `compiled` of them, were compiled.

    Sums are added in another order than eager adds them: values are compared with a tolerance.
    """
    stats = helpers.check(make, *steps, tolerance=tolerance, **AT_ONCE, **arguments)
    assert not stats.compile_errors and stats.compiled == (stats.graphs if compiled is None else compiled), stats


def tiers(function: Any) -> list[Tier]:
    """How the graphs of a compiled function or module are run."""
    return [entry.payload.tier for entry in capture.api.unit_of(function).tree.entries]


def tier_of(function: Any) -> Tier:
    """That of a function with one entry."""
    tier, = tiers(function)
    return tier


def runs_compiled(function: Any) -> bool:
    """Whether all its graphs run compiled."""
    return bool(tiers(function)) and all(tier.stage is Stage.COMPILED for tier in tiers(function))
