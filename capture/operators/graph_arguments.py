"""The nodes that stand in arguments of a node of an fx graph."""
from __future__ import annotations

from typing import Any

from torch import fx


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in a nest of arguments, in order and with repetition."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
