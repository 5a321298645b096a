"""One function in the eager and in the captured world: the call that is captured, a hit, and calls with other values.

    finding = examine(Case("np.mean", lambda x: np.mean(x.numpy()), lambda: (torch.ones(3),)))

is None if all calls agree and those after the first are hits; else it says whether the function is wrong, breaks or misses.
"""
from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree

import capture
from capture.errors import CaptureError, GraphBreakError
from tests.helpers import describe_exception, modes, seed
from tests.snapshot import differences, take, tensors

CALLS = 4               # captured, a hit with the same arguments, and two with other values
NATIVE = {"backend": "native", "options": {"background": False}}


@dataclass(frozen=True)
class Case:
    """A function, and its arguments. `backward`: from its results, too. `name`: what cases with one cause have in common."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    backward: bool = False


@dataclass(frozen=True)
class Finding:
    """What is wrong with a case. `kind`: "wrong", "fault" (an exception of capture's own), "break" or "miss"."""

    kind: str
    name: str
    text: str


def examine(case: Case, tolerance: float | None = None, **options: Any) -> Finding | None:
    """Compares a case with eager mode."""
    options = {"backend": "eager"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager = _run(case.function, case)
            compiled = capture.compile(case.function, fullgraph=True, **options)
            captured = _run(compiled, case)
        except GraphBreakError as reason:
            return Finding("break", case.name, str(reason).split("\n")[0])
        except CaptureError as error:
            return Finding("fault", case.name, f"{type(error).__name__}: {error}"[:400])
        stats = capture.stats(compiled)
        capture.reset()
    for number, ((left, ok), (right, fine)) in enumerate(zip(eager, captured, strict=True)):
        lines = differences(left, right, tolerance)
        if lines:
            if ok != fine:
                lines = [line for line in lines if line.startswith("exception")]
            return Finding("wrong", case.name, f"call {number}: " + "; ".join(lines[:3]))
    returned = sum(ok for _, ok in eager)
    if returned == CALLS and stats.hits < CALLS - 1:
        return Finding("miss", case.name, f"{stats.captures} captures, {stats.hits} hits: {str(stats.misses)[:200]}")
    return None


def _run(function: Callable[..., Any], case: Case) -> list[tuple[Any, bool]]:
    outcomes = []
    for number in range(CALLS):
        args = copied(case.arguments, number // 2 if number else 0)
        seed()
        result = error = None
        try:
            result = function(*args)
            if case.backward:
                _backward(result)
        except CaptureError:
            raise
        except Exception as raised:
            error = {key: value for key, value in describe_exception(raised).items() if key in ("type", "args")}
        roots = {"result": result, "args": args}
        world = {"exception": error, "arrays": _arrays(result, roots), "versions": [_version(t) for t in tensors(roots)], **modes()}
        outcomes.append((take(roots, world), error is None))
    return outcomes


def _backward(result: Any) -> None:
    outputs = [t for t in tensors(result) if t.requires_grad and t.grad_fn is not None]
    if outputs:
        torch.autograd.backward(outputs, [torch.arange(t.numel(), dtype=torch.float64).cos().to(t.dtype).view(t.shape)
                                          for t in outputs])


def _version(tensor: torch.Tensor) -> Any:
    return None if tensor.is_inference() else tensor._version, tensor._is_view()


def _arrays(result: Any, roots: Any) -> list[Any]:
    """How the arrays of a result lie in memory, and on which of all tensors."""
    every = tensors(roots)
    found = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, numpy.ndarray):
            below = [place for place, t in enumerate(every) if t.layout is torch.strided and t.numel() and leaf.size
                     and numpy.may_share_memory(leaf, t.detach().resolve_conj().resolve_neg().numpy())]
            found.append((leaf.strides, leaf.flags.writeable, leaf.flags.owndata, below))
    return found


def copied(arguments: tuple[Any, ...], turn: int) -> tuple[Any, ...]:
    """The arguments anew, each tensor with its elements moved on by `turn` places: as many, and of the same kind."""
    memo: dict[int, Any] = {}           # what is one, or shares memory, still does

    def other(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        new = copy.deepcopy(leaf, memo)
        if turn and isinstance(leaf, torch.Tensor) and leaf.numel() > 1:
            with torch.no_grad():
                new.copy_(leaf.detach().flatten().roll(turn).view(leaf.shape))
        return new
    return pytree.tree_map(other, arguments)
