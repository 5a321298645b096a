"""What tests of `flex_attention` have in common."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from capture import config
from tests import helpers
from tests.language.flex_attention.cases import ENGINES


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Kernels stay, however slow; torch does not remember what it has compiled for other tests."""
    torch._dynamo.reset()
    with config.TRIAL_CALLS.set(0):
        yield


@pytest.fixture(params=ENGINES)
def check(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def check(make: Callable[[], Any], *steps: Any, tolerance: float = 1e-4, unused: int = 0, **arguments: Any) -> Any:
        """unused: how many of the captures have no hit, and so no kernels."""
        stats = helpers.check(make, *steps, tolerance=tolerance, **ENGINES[request.param], **arguments)
        if request.param == "native" and stats.captures:
            assert not stats.compile_errors and stats.compiled == stats.graphs - unused, stats
        return stats
    return check


@pytest.fixture
def differentiable(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the processor torch refuses queries, keys and values that require gradients, though eager mode could compute these."""
    monkeypatch.setattr(flex, "_validate_device", lambda query, key, value: None)
