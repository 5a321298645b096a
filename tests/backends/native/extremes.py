"""Operators of OpInfo on extreme inputs, compiled, against float64: the error must be at most twice eager mode's.

`python -m tests.backends.native.extremes [--samples N] [--large] [operator …]` runs all that have samples of float32 (hours with
many samples) and prints what is worse; the tests do the same with a choice of them.
"""
from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import SEED, set_rng_seed
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, UnaryUfuncInfo

from capture.backends.native.signature import Unsupported
from tests.backends.native.render.ulp import errors
from tests.backends.native.stages import Stages, compiled, finished, gradients_of, recorded

FACTOR = 2.0        # times eager mode's largest error among the elements of a result …
FLOOR = 2.0         # … and so many units in the last place, which the kernel header's functions may be off: see `ulp.BOUNDS`
FLOOR_OF_SUMS = 0.51    # rounded once
DRAWS = 6           # of inputs, whose largest errors are compared: by chance the few elements of a result may be exact
LARGE = 10_000_000
CHUNK = 24          # operators whose kernels make one library

Make = Callable[[torch.Size], Tensor]


def _rows(shape: torch.Size) -> Tensor:
    return torch.randn((*shape[:-1], 1)).expand(shape).contiguous() if shape else torch.randn(shape)


def _signs(shape: torch.Size) -> Tensor:
    values = torch.rand(shape) + 1.0
    return values * (1 - 2 * (torch.arange(values.numel()) % 2)).view(shape)


def _special(shape: torch.Size) -> Tensor:
    chosen = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-38, 3.4e38, 0.5, -2.0])
    return chosen[torch.randint(len(chosen), shape)]


KINDS: dict[str, Make] = {
    "usual": torch.randn, "positive": torch.rand, "tiny": lambda shape: torch.randn(shape) * 1e-22,
    "subnormal": lambda shape: torch.randn(shape) * 1e-40, "large": lambda shape: torch.randn(shape) * 1e4,
    "huge": lambda shape: torch.randn(shape) * 1e25, "greatest": lambda shape: torch.rand(shape) * 1e37,
    "offset 1e4": lambda shape: torch.randn(shape) + 1e4, "offset 1e7": lambda shape: torch.randn(shape) + 1e7,
    "constant rows": _rows, "alternating signs": _signs, "near one": lambda shape: 1 + torch.randn(shape) * 1e-6,
    "special": _special,
}


@dataclass
class Case:
    """A call whose tensors of float32 are to be replaced. `inputs`: all tensors of the call; where some of them require gradients,
    these are compared as well, in units of their largest element."""

    name: str
    label: str
    gm: Any
    inputs: list[Tensor]
    floor: float
    each: bool                      # whether each element is compared in its own units, or all in those of the largest
    stages: Stages | None = None


def name_of(info: OpInfo) -> str:
    return ".".join(filter(None, (info.name, info.variant_test_name)))


LEFT_OUT = ("jiterator", "empty", "new_empty")      # of GPUs only, and those whose results hold whatever was in memory
OPERATORS = {name_of(info): info for info in sorted(op_db, key=name_of)
             if torch.float32 in info.supported_dtypes("cpu") and not info.name.startswith(LEFT_OUT)
             and "wrapper_set_seed" not in getattr(getattr(info.op, "__code__", None), "co_names", ())}      # random numbers
REDUCTIONS = [name for name, info in OPERATORS.items() if isinstance(info, ReductionOpInfo)]
POINTWISE = [name for name, info in OPERATORS.items() if isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo))]
SHAPES = ((4, 1000), (1003, 5))     # of reductions' inputs, instead of OpInfo's small ones


def cases(name: str, samples: int, shapes: Sequence[Sequence[int]] = SHAPES) -> Iterator[Case]:
    """Calls of an operator: a few of its samples, and of reductions these on longer inputs."""
    info = OPERATORS[name]
    set_rng_seed(SEED)
    found = list(itertools.islice(info.sample_inputs_func(info, "cpu", torch.float32, False), 100))
    floor = FLOOR_OF_SUMS if name in REDUCTIONS else FLOOR
    for number, sample in enumerate(found[::max(1, len(found) // samples)][:samples]):
        yield from _case(name, f"{name} #{number}", info.op, (sample.input, *sample.args), sample.kwargs, floor)
    for shape, dim in itertools.product(shapes, (None, 0, -1)) if name in REDUCTIONS else ():
        x, kwargs = torch.randn(shape), {} if dim is None else {"dim": dim}
        yield from _case(name, f"{name} {tuple(shape)} {kwargs}", info.op, (x,), kwargs, floor)
        yield from _case(name, f"{name} {tuple(shape)} {kwargs}, gradients", info.op, (x.clone().requires_grad_(),), kwargs, floor)


def _case(name: str, label: str, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
          floor: float) -> Iterator[Case]:
    try:
        gm, inputs = recorded(op, args, kwargs)
        before = torch.get_rng_state()
        results = gm(*(tensor.clone() for tensor in inputs))
        if any(tensor.requires_grad for tensor in inputs) and not any(tensor.requires_grad for tensor in results):
            return
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return
    draws = not torch.equal(torch.get_rng_state(), before)
    if not draws and any(tensor.dtype == torch.float32 for tensor in inputs):
        yield Case(name, label, gm, inputs, floor, name in REDUCTIONS + POINTWISE)


def worse(case: Case, run: Callable[..., Sequence[Tensor]], kinds: Sequence[str]) -> Iterator[str]:
    """What is worse than in eager mode, and on which inputs."""
    for kind in kinds:
        largest: dict[int, tuple[float, float]] = {}
        suspects: set[int] = set()
        for draw in range(DRAWS):
            found = _errors(case, run, kind, SEED + draw)
            for number, (got, theirs) in found.items():
                got_before, theirs_before = largest.get(number, (0.0, 0.0))
                largest[number] = max(got, got_before), max(theirs, theirs_before)
            suspects = {number for number, (got, theirs) in largest.items() if got > FACTOR * theirs + _floor(case, number)}
            if not suspects:
                break
        for number in suspects:
            got, theirs = largest[number]
            yield f"{case.label}, {kind}, result {number}: off by {got:.3g} units in the last place, eager mode by {theirs:.3g}"


def _floor(case: Case, number: int) -> float:
    return case.floor if number >= 0 else FLOOR


def _errors(case: Case, run: Callable[..., Sequence[Tensor]], kind: str, seed: int) -> dict[int, tuple[float, float]]:
    """Ours and eager mode's largest error, by the number of the result, and of gradients from -1 downwards."""
    torch.manual_seed(seed)
    inputs = [torch.empty_like(tensor).copy_(KINDS[kind](tensor.shape)) if tensor.dtype == torch.float32 else tensor.detach()
              for tensor in case.inputs]
    wide = [tensor.double() if tensor.dtype == torch.float32 else tensor for tensor in inputs]
    try:
        (eager, slopes), (exact, exact_slopes) = (_values(case, case.gm, given) for given in (inputs, wide))
    except (RuntimeError, ValueError):
        return {}
    ours, our_slopes = _values(case, run, inputs)
    compared = [(number, each, case.each) for number, each in enumerate(zip(ours, eager, exact, strict=True))]
    compared += [(-1 - number, each, False) for number, each in enumerate(zip(our_slopes, slopes, exact_slopes, strict=True))]
    return {number: (_error(a, c, each), _error(b, c, each)) for number, (a, b, c), each in compared
            if b.dtype == torch.float32 and c.dtype == torch.float64 and b.numel()}


def _values(case: Case, run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and the gradients of inputs that require them."""
    leaves = [given.clone().requires_grad_(tensor.requires_grad) for given, tensor in zip(inputs, case.inputs, strict=True)]
    with torch.set_grad_enabled(any(tensor.requires_grad for tensor in case.inputs)):
        results = list(run(*leaves))
        return results, [slope for slope in gradients_of(results, leaves) if slope is not None]


def _error(result: Tensor, exact: Tensor, each: bool) -> float:
    """In units of the last place. Zeros may have either sign: of equal extremes, reductions take any."""
    result, exact = result.detach().contiguous() + 0.0, exact.detach().contiguous() + 0.0
    finite = exact[exact.isfinite()].abs()
    if each or not finite.numel():
        return errors(result, exact).max().item()
    unit = torch.ldexp(torch.ones(()).double(), torch.frexp(finite.max().clamp(2.0**-126, 2.0**128))[1] - 24)
    same = (result == exact) | (result.isnan() & exact.isnan())
    off = (result.double().clamp(-2.0**128, 2.0**128) - exact.clamp(-2.0**128, 2.0**128)).abs() / unit
    return torch.where(same, 0.0, off).nan_to_num(nan=float("inf")).max().item()


def search(names: Sequence[str], samples: int = 1, kinds: Sequence[str] = tuple(KINDS),
           shapes: Sequence[Sequence[int]] = SHAPES) -> tuple[int, list[str]]:
    """How many calls were compared, and what is worse."""
    found: list[str] = []
    ready: list[tuple[Case, list[Any]]] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for case in itertools.chain.from_iterable(cases(name, samples, shapes) for name in names):
            try:
                with torch.set_grad_enabled(any(tensor.requires_grad for tensor in case.inputs)):
                    case.stages = Stages(case.gm, case.inputs)
                programs = case.stages.fused()
            except Unsupported:
                continue
            ready.append((case, programs))
        plans = iter(compiled([program for _, programs in ready for program in programs]) if ready else ())
        for case, programs in ready:
            assert case.stages is not None
            found += worse(case, case.stages.callable([next(plans) for _ in programs]), kinds)
    finished()
    return len(ready) * len(kinds), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--large", action="store_true", help=f"reductions of {LARGE} elements, too")
    parser.add_argument("operators", nargs="*")
    options = parser.parse_args()
    names = options.operators or list(OPERATORS)
    shapes = (*SHAPES, (LARGE,)) if options.large else SHAPES
    total, count = 0, 0
    for start in range(0, len(names), CHUNK):
        run, found = search(names[start:start + CHUNK], options.samples, shapes=shapes)
        total, count = total + run, count + len(found)
        print(*found, f"{total} calls, {count} worse", sep="\n", flush=True)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
