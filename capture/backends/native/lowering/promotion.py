"""Type promotion, exactly as eager's: `torch._prims_common.elementwise_dtypes`, asked once for each combination."""
from __future__ import annotations

import functools

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes

from capture.backends.native.index import Index
from capture.backends.native.lowering.lazy import Lazy

__all__ = ["Kind", "promoted"]


def promoted(operands: list[Lazy | Index | bool | int | float | None], kind: Kind) -> tuple[torch.dtype, torch.dtype]:
    """The dtype to compute in, and that of the result. Operands that are None do not count."""
    return _promoted(tuple((x.dtype, bool(x.shape)) if isinstance(x, Lazy) else int if isinstance(x, Index) else type(x)
                           for x in operands if x is not None), kind, torch.get_default_dtype())


@functools.cache
def _promoted(operands: tuple[tuple[torch.dtype, bool] | type, ...], kind: Kind,
              default: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    examples = [torch.empty((1,) if x[1] else (), dtype=x[0], device="meta") if isinstance(x, tuple) else x(1) for x in operands]
    return elementwise_dtypes(*examples, type_promotion_kind=kind)
