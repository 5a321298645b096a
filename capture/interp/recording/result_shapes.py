"""Which tensor operations have results whose shapes depend on values."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.operators.facts import OpFacts, facts_of


def is_dynamic(facts: OpFacts, target: Any, args: Sequence[Value], kwargs: dict[str, Value], result: Any) -> bool:
    """Whether the operation's result has a shape which depends on the values of its arguments, as a nested tensor's may."""
    if is_nested(result):
        return True
    if not facts.is_of_torch and is_a(target, (OpOverload, OpOverloadPacket)):
        return not declares_shapes(target, [a.real for a in args], {name: v.real for name, v in kwargs.items()}, result)
    return facts.is_dynamic([a.real for a in args] + [v.real for v in kwargs.values()])


def is_nested(result: Any) -> bool:
    """Whether a result is several tensors in one, whose sizes no rule knows."""
    return type(result) is torch.Tensor and result.is_nested


def declares_shapes(target: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether an operator of another library has a kernel for meta tensors that gives the shapes of its results."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if not has_meta_kernel(target) or not any(is_a(leaf, torch.Tensor) for leaf in leaves):
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():
        args, kwargs = pytree.tree_unflatten([
            torch.empty_like(leaf, device="meta") if is_a(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
        try:
            told = target(*args, **kwargs)
        except Exception:       # of whatever kind: a kernel that makes up sizes raises here, and where there is none torch does
            return False
    return shapes_in(told) == shapes_in(result)


def has_meta_kernel(target: OpOverload | OpOverloadPacket) -> bool:
    """Whether an operator has a kernel for tensors without data: else its own body, which may have side effects, would run."""
    overloads = [target] if is_a(target, OpOverload) else [getattr(target, name) for name in target.overloads()]
    return all(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Meta") for overload in overloads)


def shapes_in(result: Any) -> list[Any]:
    """The shapes of the tensors in a result, and what else is in it."""
    return [leaf.shape if is_a(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(result)]


def is_counted(facts: OpFacts, args: Sequence[Value], kwargs: dict[str, Value], operands: Sequence[torch.Tensor],
               maker: Any) -> bool:
    """Whether the shapes of its operands say how many tensors, or dimensions, an operation on tensors returns. maker: the fx target
    that made the first operand. Of rows, only the number depends on values."""
    if facts.drops_dimensions:
        dims = [value.real for value in (*args, *kwargs.values()) if value.real is not operands[0]]
        return dims not in ([1], [-1]) or not facts_of(maker).counts_rows
    given = [value.real for value in (*args[1:], *kwargs.values())]
    return facts.lists_elements and not (facts.splits and any(is_a(real, (list, tuple)) for real in given))
