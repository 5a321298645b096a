"""Operators of OpInfo whose operands and results are edited before the backward pass, by `.data` or so that autograd counts it:
gradients and errors are eager mode's.

`python -m tests.backends.aot.edits [--samples N] [--again] [--parts] [operator …]` runs all operators that have gradients, and
prints what differs. The graphs are traced as for kernels, and run by torch. --again: gradients of gradients, which may raise where
something was edited, but may not be others. --parts: the operators that work in place, on a part of a tensor.
"""
from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED, set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo

from capture.backends.aot.observed import overlaps_itself
from capture.backends.native.signature import Unsupported
from tests.aliasing.hunt import CHANGED
from tests.backends.native.stages import recorded
from tests.backends.native.traced import worlds
from tests.functions.catalogue import function_of
from tests.samples import name_of

# How one tensor is edited: to values of another kind, to zeros, so that results are no longer what their operands make them, and so
# that it is counted.
EDITS: dict[str, Callable[[Tensor], Any]] = {
    "scaled": lambda t: t.data.mul_(0.5).add_(0.25), "zeros": lambda t: t.data.zero_(),
    "moved": lambda t: t.data.copy_(t.data.flatten().roll(1).view_as(t)), "counted": torch.no_grad()(lambda t: t.mul_(0.5))}
LEFT_OUT = ("jiterator", "empty", "new_empty")      # of GPUs only, and those whose results hold whatever was in memory
TOLERANCE = {"rtol": 1e-5, "atol": 1e-7, "equal_nan": True}
Run = Callable[..., Sequence[Tensor]]


@dataclass
class Outcome:
    """compared: passes; unsupported: calls that are left to torch; refused: passes that raise since something was edited."""

    compared: int = 0
    unsupported: int = 0
    refused: int = 0
    found: list[str] = field(default_factory=list)


OPERATORS = {name_of(info): info for info in sorted(op_db, key=name_of)
             if info.supports_autograd and torch.float64 in info.supported_dtypes("cpu") and not info.name.startswith(LEFT_OUT)}

IN_PLACE = [name for name, info in OPERATORS.items()
            if info.inplace_variant is not None and name != "nn.functional.rrelu"]     # which sets a seed, in eager mode alone


def search(names: Sequence[str], samples: int = 1, edits: Sequence[str] = tuple(EDITS), again: bool = False,
           parts: bool = False) -> Outcome:
    """Compares a few samples of each operator. again: gradients of gradients, too. parts: of the operators in place, on a part of a
    tensor."""
    outcome = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            for number, sample in enumerate(_samples(OPERATORS[name], samples)):
                arguments = (sample.input, *sample.args)
                op = _on_a_part(OPERATORS[name].inplace_variant) if parts else function_of(OPERATORS[name])
                _compare(f"{name} #{number}", op, arguments, sample.kwargs, edits, outcome, again)
    return outcome


def _on_a_part(in_place: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes to the first half of a tensor, and returns the part and the whole."""
    def write(operand: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        whole = torch.stack([operand, operand])
        part = whole[0]
        in_place(part, *args, **kwargs)
        return part, whole
    return write


def _samples(info: OpInfo, count: int) -> list[Any]:
    set_rng_seed(SEED)
    found = list(itertools.islice(info.sample_inputs_func(info, "cpu", torch.float64, True), 100))
    return found[::max(1, len(found) // count)][:count]


def _compare(label: str, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], edits: Sequence[str],
             outcome: Outcome, again: bool) -> None:
    try:
        gm, inputs = recorded(op, args, kwargs)
        results = gm(*_copies(inputs))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return
    if not any(result.requires_grad and result.grad_fn is not None for result in results):
        return
    try:
        both = worlds(gm, _copies(inputs))
    except Unsupported:
        outcome.unsupported += 1
        return
    if any(place >= len(inputs) for place, _ in both.traced.signature.gradients):       # inputs that tracing adds: refused later
        outcome.unsupported += 1
        return
    for edit, place in [("none", None), *itertools.product(edits, _places(inputs, results))]:
        theirs, ours = (_gradients(run, inputs, edit, place, again) for run in (gm.forward, both.compiled))
        outcome.compared += 1
        if place is not None and isinstance(ours, str) and CHANGED in ours:
            outcome.refused += 1
        elif not _same(theirs, ours):
            outcome.found.append(f"{label}: {edit} {place}: eager {_shown(theirs)}, compiled {_shown(ours)}")


def _places(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[tuple[str, int]]:
    """The tensors of floats that can be edited."""
    for kind, tensors in (("operand", inputs), ("result", results)):
        for number, tensor in enumerate(tensors):
            if tensor.is_floating_point() and tensor.layout is torch.strided and tensor.numel() and not overlaps_itself(tensor):
                yield kind, number


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Inputs that are no leaves: an operator may write to them."""
    return [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad) for tensor in inputs]


def _gradients(run: Run, inputs: Sequence[Tensor], edit: str, place: tuple[str, int] | None,
               again: bool) -> list[Tensor | None] | str:
    """Of all inputs, or the error of the pass. again: also those of these gradients."""
    leaves = _copies(inputs)
    torch.manual_seed(SEED)
    results = list(run(*leaves))
    roots = [result for result in results if result.requires_grad and result.grad_fn is not None]
    generator = torch.Generator().manual_seed(SEED)
    slopes = [torch.randn(root.shape, dtype=root.dtype, generator=generator).requires_grad_(again) for root in roots]
    if place is not None:
        kind, number = place
        EDITS[edit]((leaves if kind == "operand" else results)[number])
    variables = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        found = list(torch.autograd.grad(roots, variables, slopes, allow_unused=True, create_graph=again))
        differentiable = [gradient for gradient in found if again and gradient is not None and gradient.requires_grad]
        if differentiable:
            further = [torch.randn(gradient.shape, dtype=gradient.dtype, generator=generator) for gradient in differentiable]
            found += torch.autograd.grad(differentiable, [*variables, *slopes], further, allow_unused=True)
        return found
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) or isinstance(ours, str):
        return bool(theirs == ours)
    return all(a is b is None or (a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape
                                  and torch.allclose(a.to_dense(), b.to_dense(), **TOLERANCE))
               for a, b in zip(theirs, ours, strict=True))


def _shown(outcome: Any) -> str:
    return outcome if isinstance(outcome, str) else str([None if t is None else t.flatten()[:4].tolist() for t in outcome])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("operators", nargs="*")
    options = parser.parse_args()
    total = Outcome()
    for name in options.operators or (IN_PLACE if options.parts else OPERATORS):
        outcome = search([name], options.samples, again=options.again, parts=options.parts)
        total.compared += outcome.compared
        total.unsupported += outcome.unsupported
        total.refused += outcome.refused
        total.found += outcome.found
        print(*outcome.found, sep="\n", end="\n" * bool(outcome.found), flush=True)
    print(f"{total.compared} passes compared, {total.unsupported} calls left to torch, {total.refused} passes refused, "
          f"{len(total.found)} differ")
    return bool(total.found)


if __name__ == "__main__":
    sys.exit(main())
