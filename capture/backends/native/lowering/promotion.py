"""Type promotion, exactly as eager's: `torch._prims_common.elementwise_dtypes`, asked once for each combination."""
from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from capture.backends.native.index import Index
from capture.backends.native.lowering.lazy import Lazy

__all__ = ["Kind", "Operand", "Types", "promoted"]


Operand = Lazy | Index | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Types:
    """The dtypes of an operation: what its operands have in `common`, what it computes in (wider, if narrow), and the result's."""

    common: torch.dtype
    compute: torch.dtype
    result: torch.dtype


def promoted(operands: Iterable[Operand], kind: Kind) -> Types:
    """The dtypes of an operation on these operands. Those that are None do not count."""
    return _promoted(tuple(x.number or (x.dtype, bool(x.shape)) if isinstance(x, Lazy) else int if isinstance(x, Index) else type(x)
                           for x in operands if x is not None), kind, torch.get_default_dtype())


@functools.cache
def _promoted(operands: tuple[tuple[torch.dtype, bool] | type, ...], kind: Kind, default: torch.dtype) -> Types:
    examples = [torch.empty((1,) if x[1] else (), dtype=x[0], device="meta") if isinstance(x, tuple) else x(1) for x in operands]
    compute, result = elementwise_dtypes(*examples, type_promotion_kind=kind)
    common = elementwise_dtypes(*examples, type_promotion_kind=Kind.DEFAULT)[1] if kind is Kind.ALWAYS_BOOL else result
    return Types(common, compute, result)
