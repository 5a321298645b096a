"""Calls of compiled graphs with the casts of weights that torch's autocast keeps while a block lasts."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capture import _C

Call = Callable[..., Any]


def with_casts(plain: Call, places: tuple[int, ...], call: Call) -> Call:
    """A callable that passes to `call`, behind its inputs, the casts of the inputs in `places` that torch keeps in this autocast
    block. If a cast has another dtype or shape, as the weight had when it was cast, `plain` runs: the uncompiled graph."""
    def run(*inputs: Any) -> Any:
        casts = _C.cached_casts(inputs, places)
        return plain(*inputs) if casts is None else call(*inputs, *casts)
    return run
