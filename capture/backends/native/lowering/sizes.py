"""Sizes of fake tensors as ints and `Index` expressions over symbols."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capture.backends.native.index import Index, Size, Symbol, index
from capture.backends.native.lowering.lazy import Spec, plain
from capture.backends.native.lowering.scalar import at_least
from capture.backends.native.signature import Unsupported


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
        known = self._known.get(expr)
        if known is None:
            known = self._known[expr] = plain(self._convert(expr))
        return known

    def spec(self, fake: torch.Tensor) -> Spec:
        """What a result looks like. Raises Unsupported for tensors that are not strided memory."""
        if fake.layout != torch.strided:
            raise Unsupported(f"a tensor of layout {fake.layout}")
        return Spec(tuple(map(self.size, fake.shape)), fake.dtype, tuple(map(self.size, fake.stride())), fake.device)

    def _convert(self, expr: Any) -> Index:
        """From sympy's form, taken apart by the names of its classes: importing sympy takes long, and torch does when it must."""
        kind = expr.func.__name__
        if expr.is_Integer:
            return index(int(expr))
        if expr.is_Symbol:
            if str(expr) not in self._symbols:
                raise Unsupported(f"the size {expr} is not that of an input")
            return index(self._symbols[str(expr)])
        if kind in ("Add", "Mul"):
            total, *rest = map(self._convert, expr.args)
            for part in rest:
                total = total + part if kind == "Add" else total * part
            return total
        if kind == "Pow" and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            base = self._convert(expr.args[0])
            result = base
            for _ in range(int(expr.args[1]) - 1):
                result = result * base
            return result
        if kind in ("FloorDiv", "CleanDiv"):
            return self._convert(expr.args[0]) // self._convert(expr.args[1])
        if kind in ("Mod", "PythonMod"):
            return self._convert(expr.args[0]) % self._convert(expr.args[1])
        if kind == "Max":           # of strides, which are 1 at least
            parts = list(map(self._convert, expr.args))
            for part in parts:
                if all(at_least(part, other) is None for other in parts):
                    return part
        raise Unsupported(f"the size {expr}")
