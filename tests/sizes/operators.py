"""Every operator that torch has samples for, on samples whose sizes are changed: one size by another wherever it occurs."""
from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from capture.interp.recording.undo_log import MOST_BYTES
from tests.functions.catalogue import function_of, samples_of
from tests.helpers import Call, check, compare, run
from tests.samples import name_of

UNDONE = MOST_BYTES // 4 + 1      # elements of what a hit does not copy
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 12, 31)
# What is in memory, which nothing tells; what needs a GPU; what warns in Python, of lines of generated code on hits; what writes
# beyond its memory where lengths do not fit, in eager mode.
LEFT_OUT = ("empty", "new_empty", "jiterator", "resize", "nn.functional.dropout2d", "_segment_reduce")


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator, called with several lists of arguments in turn."""

    name: str
    function: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    backward: bool = False


def cases(samples: int, calls: int, seed: int, only: str = "", every: int = 1, handled: bool = False) -> Iterator[Case]:
    """For each operator and kind of call (function, method, in place) some samples, with sizes changed at random. handled: after a
    write that a hit cannot undo, where a handler is in force."""
    from torch.testing._internal.common_methods_invocations import op_db
    found = sorted(op_db, key=lambda info: (info.name, info.variant_test_name))
    for info in [info for info in found if only in info.name][seed % every::every]:
        if not info.name.startswith(LEFT_OUT):
            chosen = _cases(info, samples, calls, random.Random(f"{seed} {info.name} {info.variant_test_name}"))
            yield from map(under_a_handler, chosen) if handled else chosen


def _cases(info: Any, samples: int, calls: int, chance: random.Random) -> Iterator[Case]:
    name = name_of(info)
    dtype = next((dtype for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool)
                  if dtype in info.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    backward = dtype is torch.float32 and info.supports_autograd
    found = list(itertools.islice(samples_of(info, dtype, backward), 60))
    for sample in chance.sample(found, min(samples, len(found))):
        arguments = (sample.input, *sample.args)
        each = [arguments, *(resized(arguments, chance) for _ in range(calls - 1))]
        kinds = [("", function_of(info)), (".method", info.method_variant), (".in_place", info.inplace_variant)]
        for kind, function in kinds:
            if function is not None and not (kind and function is info.op):
                yield Case(name + kind, _program(function, sample.kwargs), each, backward and not kind)


def _program(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """What calls the operator, and tells how large its results are."""
    def program(*args: Any) -> Any:
        result = function(*args, **kwargs)
        items = result if isinstance(result, (tuple, list)) else [result]
        return result, [(item.shape, item.numel(), item * 2) for item in items if isinstance(item, torch.Tensor)]
    return program


def under_a_handler(case: Case) -> Case:
    """The same after a write that a hit cannot undo, to a tensor that comes first. What the operator raises is handled."""
    def program(written: torch.Tensor, *args: Any) -> Any:
        try:
            written.add_(1)
            return case.function(*args)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            return type(error).__name__, written.sum()
    large = torch.zeros(UNDONE)
    return dataclasses.replace(case, function=program, calls=[(large, *args) for args in case.calls], backward=False)


def resized(arguments: Any, chance: random.Random) -> Any:
    """The arguments, where other sizes stand for some of those that there are, also for integers which are equal to one."""
    leaves = pytree.tree_leaves(arguments)
    sizes = sorted({size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape})
    other = {size: chance.choice(SIZES) if chance.random() < 0.6 else size for size in sizes}
    counts = chance.random() < 0.3

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            return of_shape(leaf, [other[size] for size in leaf.shape])
        return other.get(leaf, leaf) if type(leaf) is int and counts else leaf
    return pytree.tree_map(changed, arguments)


def of_shape(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A tensor of another shape, whose values are repeated, and whose dimensions lie in memory in the same order."""
    count = torch.Size(shape).numel()
    flat = tensor.detach().reshape(-1)
    flat = flat.repeat(-(-count // flat.numel()))[:count] if flat.numel() else flat.new_zeros(count)
    order = sorted(range(len(shape)), key=lambda dim: -tensor.stride(dim))
    made = flat.view([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])
    return made.clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)


def copied(arguments: Any) -> Any:
    """The arguments anew."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad), arguments)


def examine(case: Case, **options: Any) -> Any:
    """Compares a case with eager mode. Raises AssertionError, or an error of capture's, where they differ. None where eager mode
    does something else each time: it reads what is behind a tensor, or warns once."""
    steps = [Call(lambda _, args=args: (copied(args), {})) for args in case.calls]
    try:
        worlds = [run(lambda: case.function, tuple(steps), backward=case.backward) for _ in range(2)]
    except (RuntimeError, AssertionError):          # no result is differentiable, or not for these values
        return None if not case.backward else examine(dataclasses.replace(case, backward=False), **options)
    if compare(*worlds):
        return None
    return check(lambda: case.function, *steps, captures=None, backward=case.backward, fullgraph=False, recompile_limit=60,
                 **options)
