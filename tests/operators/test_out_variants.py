"""What operators write to given tensors is their result, however these lie in memory; those of which this is not true are in a
table. `OUT_SAMPLES=20` for a longer search."""
from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from capture.backends.native.lowering.externs import out_variant
from capture.operators.beyond_schemas import LAYING_OUT_THEMSELVES
from tests.samples import samples_of

SAMPLES = int(os.environ.get("OUT_SAMPLES", "3"))
# Results of these hold what is not defined.
NOT_COMPARED = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())


def orders(rank: int) -> Iterator[tuple[int, ...]]:
    yield tuple(reversed(range(rank)))
    if rank > 2:
        yield (0, *range(2, rank), 1)
        yield tuple(range(rank))


MARGIN = 4096       # elements before and behind a tensor, so that writes beside it are seen and do no harm


def laid(like: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    memory = torch.full((like.numel() + 2 * MARGIN,), 7, dtype=like.dtype)[MARGIN:-MARGIN]
    made = memory.view([like.shape[dim] for dim in order]).permute([order.index(dim) for dim in range(like.dim())])
    return made.fill_(torch.nan if like.is_floating_point() or like.is_complex() else 1)


def is_beside_untouched(tensor: torch.Tensor) -> bool:
    memory = torch.as_strided(tensor, (tensor.numel() + 2 * MARGIN,), (1,), 0)
    expected = torch.full((MARGIN,), 7, dtype=tensor.dtype)
    return torch.equal(memory[:MARGIN], expected) and torch.equal(memory[-MARGIN:], expected)


class Comparing(TorchDispatchMode):
    """Collects the operators whose out variants do otherwise where the given tensors lie otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()
        self.wrong: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else [result]
        if not func._schema.is_mutable and not func.is_view and torch.Tag.nondeterministic_seeded not in func.tags and (
                func._opname not in NOT_COMPARED and all(isinstance(one, torch.Tensor) and one.layout is torch.strided
                                                         and one.dim() > 1 and one.numel() for one in results)):
            if (variant := out_variant(func)) is not None:
                self.compare(func, *variant, args, kwargs, results)
        return result

    def compare(self, func: Any, variant: Any, names: tuple[str, ...], args: Any, kwargs: Any,
                results: list[torch.Tensor]) -> None:
        known = {argument.name for argument in variant._schema.arguments}
        kwargs = {name: value for name, value in kwargs.items() if name in known}
        self.called.add(func._opname)
        for order in zip(*(orders(one.dim()) for one in results), strict=False):
            outs = [laid(one, one_order) for one, one_order in zip(results, order, strict=True)]
            strides = [out.stride() for out in outs]
            try:
                variant(*args, **kwargs, **dict(zip(names, outs, strict=True)))
            except RuntimeError:
                self.wrong.add(func._opname)
                continue
            for out, one, before in zip(outs, results, strides, strict=True):
                same = torch.allclose(out, one, rtol=1e-3, atol=1e-3, equal_nan=True)
                if not same or out.stride() != before or not is_beside_untouched(out):
                    self.wrong.add(func._opname)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() not in (4, 5) or tensor.layout is not torch.strided:
        return tensor
    dims = (0, *range(2, tensor.dim()), 1)
    made = tensor.detach().permute(dims).contiguous().permute([dims.index(dim) for dim in range(tensor.dim())])
    return made.requires_grad_(tensor.requires_grad)


def run(op: Any) -> Comparing:
    comparing = Comparing()
    for dtype in (torch.float32, torch.int64):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in itertools.islice(samples_of(op, dtype, dtype.is_floating_point and op.supports_autograd), SAMPLES):
            for lay in (lambda tensor: tensor), channels_last:
                args, kwargs = tree_map_only(torch.Tensor, lay, ((sample.input, *sample.args), sample.kwargs))
                with comparing, contextlib.suppress(RuntimeError):       # some refuse channels last
                    result = op(*args, **kwargs)
                    made = [one for one in (result if isinstance(result, (tuple, list)) else [result])
                            if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_complex()]
                    if made:
                        sum(one.sum() for one in made).backward()
    return comparing


@pytest.mark.parametrize("part", range(8))
def test_out_variants_write_their_results_wherever_these_lie(part: int) -> None:
    for op in [op for op in op_db if not op.name.startswith("jiterator")][part::8]:
        assert run(op).wrong <= LAYING_OUT_THEMSELVES, op.name
