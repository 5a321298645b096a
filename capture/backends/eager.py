"""The backend that runs the fx graph uncompiled, by torch's eager kernels."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The code that fx generated for `gm`: same arguments and results as calling `gm`, without `Module.__call__`."""
    return gm.forward
