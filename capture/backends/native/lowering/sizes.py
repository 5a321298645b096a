"""Sizes of fake tensors as ints and `Index` expressions over symbols."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capture.backends.native.index import Size, Symbol
from capture.backends.native.ir import Expr
from capture.backends.native.lowering.lazy import Spec
from capture.backends.native.signature import Unsupported
from capture.backends.native.symbolic import as_number, as_size


class Sizes:
    """Converts torch's symbolic sizes. `symbols`: by name, those that the program's inputs give."""

    def __init__(self, symbols: Mapping[str, Symbol]) -> None:
        self._symbols = symbols
        self._known: dict[Any, Size] = {}

    def size(self, value: int | torch.SymInt) -> Size:
        """Raises Unsupported for a size that does not follow from the inputs' by integer arithmetic."""
        if isinstance(value, int):
            return value
        expr = value.node.expr
        if expr not in self._known:
            self._known[expr] = as_size(value, self._symbols)
        return self._known[expr]

    def number(self, value: torch.SymFloat) -> Expr:
        """What is calculated of sizes, in float64. Raises Unsupported."""
        return as_number(value, self._symbols)

    def spec(self, fake: torch.Tensor) -> Spec:
        """What a result looks like. Raises Unsupported for tensors that are not strided memory."""
        if fake.layout != torch.strided:
            raise Unsupported(f"a tensor of layout {fake.layout}")
        return Spec(tuple(map(self.size, fake.shape)), fake.dtype, tuple(map(self.size, fake.stride())), fake.device)
