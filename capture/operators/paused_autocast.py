"""Operations of graphs in which the casts that autocast makes are written out: it pauses while these and what takes them run."""
from __future__ import annotations

import torch
from torch import Tensor

from capture import _C

# How a graph enters and leaves autocast blocks.
SWITCHES = frozenset((
    torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled, torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting, torch.clear_autocast_cache))


def pause(*devices: str) -> None:
    """Operators on these types of devices make no casts from here on."""
    for name in devices:
        torch.set_autocast_enabled(name, False)


def resume(*devices: str) -> None:
    """They do so again."""
    for name in devices:
        torch.set_autocast_enabled(name, True)


def kept_cast(tensor: Tensor) -> Tensor:
    """The cast of a leaf that autocast keeps in this block."""
    casts = _C.cached_casts((tensor,), (0,))
    assert casts is not None        # it lies in memory as the tensor does, of which the graph was made
    return casts[0]
