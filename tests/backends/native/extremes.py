"""Operators of OpInfo and their gradients on extreme inputs, compiled, against float64: where eager mode is right, the error must
be at most twice eager mode's.

`python -m tests.backends.native.extremes [--samples N] [--large] [--dtype D] [operator …]` runs all that have samples of float32
(hours with many samples) and prints what is worse; the tests do the same with a choice of them.
"""
from __future__ import annotations

import argparse
import functools
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
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from capture.backends.native.signature import Unsupported
from tests.backends.native.render.ulp import FORMATS, errors
from tests.backends.native.stages import Stages, compiled, finished, gradients_of, recorded
from tests.samples import name_of

FACTOR = 2.0        # times eager mode's largest error among the elements of a result …
FLOOR = 2.0         # … and so many units in the last place, which the kernel header's functions may be off: see `ulp.BOUNDS`
FLOOR_OF_SUMS = 0.51    # rounded once
RIGHT = 0.25        # of a result: no digits of what is farther off are right
DRAWS = 20          # of inputs, at most, whose largest errors are compared: by chance the few elements of a result may be exact
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
    "mixed": lambda shape: KINDS[MIXED[int(torch.randint(len(MIXED), ()))]](shape),     # another kind for each tensor
}
MIXED: list[str] = [kind for kind in KINDS if kind not in ("special", "mixed")]


@dataclass
class Case:
    """A call whose tensors of `dtype` are to be replaced. `inputs`: all tensors of the call; where some of them require gradients,
    these are compared as well, in units of their largest element."""

    name: str
    label: str
    gm: Any
    inputs: list[Tensor]
    dtype: torch.dtype
    floor: float
    each: bool                      # whether each element is compared in its own units, or all in those of the largest
    pointwise: bool                 # whether gradients are, too
    stages: Stages | None = None


LEFT_OUT = ("jiterator", "empty", "new_empty")      # of GPUs only, and those whose results hold whatever was in memory
OPERATORS = {name_of(info): info for info in sorted(op_db, key=name_of)
             if torch.float32 in info.supported_dtypes("cpu") and not info.name.startswith(LEFT_OUT)
             and "wrapper_set_seed" not in getattr(getattr(info.op, "__code__", None), "co_names", ())}      # random numbers
REDUCTIONS = [name for name, info in OPERATORS.items() if isinstance(info, ReductionOpInfo)]
POINTWISE = [name for name, info in OPERATORS.items() if isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo))]
# Operators that are called on longer inputs, too: along a dimension, …
ALONG = [*REDUCTIONS, "cumprod", "cumsum", "log_softmax", "logcumsumexp", "logsumexp", "nn.functional.normalize",
         "nn.functional.softmin", "norm", "softmax", "std_mean", "var_mean"]
# … with two tensors of one shape, …
PAIRS = ["dist", "linalg.vecdot", "nn.functional.binary_cross_entropy_with_logits", "nn.functional.cosine_similarity",
         "nn.functional.gaussian_nll_loss", "nn.functional.huber_loss", "nn.functional.kl_div", "nn.functional.l1_loss",
         "nn.functional.mse_loss", "nn.functional.pairwise_distance", "nn.functional.poisson_nll_loss",
         "nn.functional.smooth_l1_loss", "nn.functional.soft_margin_loss"]
# … with rows or channels that are normalized, and with weights for these.
ROWS = ["nn.functional.layer_norm", "nn.functional.rms_norm"]
CHANNELS = {"nn.functional.batch_norm": (None, None), "nn.functional.group_norm": (1,), "nn.functional.instance_norm": (None, None)}
SHAPES = ((4, 1000), (1003, 5))

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def longer(name: str, shape: Sequence[int]) -> Iterator[Arguments]:
    x, last = torch.randn(shape), tuple(shape[-1:])
    if name in REDUCTIONS:
        yield (x,), {}
    for dim in sorted({0, len(shape) - 1}) if name in ALONG else ():
        yield ({"nn.functional.normalize": (x, 2.0), "norm": (x, 2.0)}.get(name, (x,))), {"dim": dim}
    if name in PAIRS:
        more = (torch.rand(shape),) if name == "nn.functional.gaussian_nll_loss" else ()
        yield (x, torch.randn(shape), *more), {}
    if name in ROWS:
        yield from (((x, last), {}), ((x, last, torch.randn(last)), {}))
    if name in CHANNELS:
        batch = x.view(4, 5, -1) if x.numel() % 20 == 0 else x.view(1, 5, -1) if "instance" in name else x
        weights = {"weight": torch.randn(batch.shape[1]), "bias": torch.randn(batch.shape[1])}
        training = {"training": True} if "batch" in name else {}
        yield from (((batch, *CHANNELS[name]), {**given, **training}) for given in ({}, weights))


def cases(name: str, samples: int, shapes: Sequence[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32) -> Iterator[Case]:
    """Calls of an operator, and their gradients: a few of its samples, and longer inputs."""
    info = OPERATORS[name]
    set_rng_seed(SEED)
    found = list(itertools.islice(info.sample_inputs_func(info, "cpu", dtype, False), 100))
    floor = FLOOR_OF_SUMS if name in REDUCTIONS else FLOOR
    calls = [(f"#{number}", (sample.input, *sample.args), sample.kwargs)
             for number, sample in enumerate(found[::max(1, len(found) // samples)][:samples])]
    calls += [(f"{tuple(shape)} {_shown(args, kwargs)}", args, kwargs) for shape in shapes for args, kwargs in longer(name, shape)]
    for label, *arguments in calls:
        for kind, requires_grad in (("", False), (", gradients", True)):
            args, kwargs = pytree.tree_map(functools.partial(_given, dtype, requires_grad), arguments)
            yield from _case(name, f"{name} {label}{kind}", info.op, args, kwargs, dtype, floor)


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join(["*" * isinstance(value, Tensor) or repr(value) for value in args[1:]]
                     + [f"{key}={'*' if isinstance(value, Tensor) else value}" for key, value in kwargs.items()])


def _given(dtype: torch.dtype, requires_grad: bool, value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype not in (dtype, torch.float32):
        return value
    value = value.detach().to(dtype)
    return value.clone().requires_grad_() if requires_grad else value


def _case(name: str, label: str, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
          dtype: torch.dtype, floor: float) -> Iterator[Case]:
    try:
        gm, inputs = recorded(op, args, kwargs)
        before = torch.get_rng_state()
        with torch.enable_grad():
            results = gm(*(tensor.clone() for tensor in inputs))
        if any(tensor.requires_grad for tensor in inputs) and not any(result.requires_grad for result in results):
            return
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError):
        return
    draws = not torch.equal(torch.get_rng_state(), before)
    if not draws and any(tensor.dtype == dtype for tensor in inputs):
        yield Case(name, label, gm, inputs, dtype, floor, name in REDUCTIONS + POINTWISE, name in POINTWISE)


@dataclass
class Comparison:
    """Largest errors of elements that are right in eager mode; how many are NaN or infinite by mistake, in one of both only."""

    ours: float = 0.0
    theirs: float = 0.0
    ours_wrong: int = 0
    theirs_wrong: int = 0

    def add(self, ours: Tensor, theirs: Tensor, limit: float) -> None:
        right = theirs < limit
        self.ours = max(self.ours, torch.where(right & ours.isfinite(), ours.clamp(max=limit), 0.0).max().item())
        self.theirs = max(self.theirs, torch.where(right, theirs, 0.0).max().item())
        self.ours_wrong += int((ours.isinf() & right).sum())
        self.theirs_wrong += int((theirs.isinf() & (ours < limit)).sum())

    def is_worse(self, floor: float) -> bool:
        return self.ours > FACTOR * self.theirs + floor or self.ours_wrong > FACTOR * self.theirs_wrong

    def __str__(self) -> str:
        wrong = f"; {self.ours_wrong} wrong, in eager mode {self.theirs_wrong} others" if self.ours_wrong else ""
        return f"off by {self.ours:.3g} units in the last place, eager mode by {self.theirs:.3g}{wrong}"


def worse(case: Case, run: Callable[..., Sequence[Tensor]], kinds: Sequence[str]) -> Iterator[str]:
    """What is worse than in eager mode, and on which inputs."""
    for kind in kinds:
        results: dict[int, Comparison] = {}
        suspects: dict[int, Comparison] = {}
        for draw in range(DRAWS):
            for number, (ours, theirs) in _errors(case, run, kind, SEED + draw).items():
                results.setdefault(number, Comparison()).add(ours, theirs, RIGHT * 2.0**FORMATS[case.dtype][0])
            suspects = {number: result for number, result in results.items() if result.is_worse(_floor(case, number))}
            if not suspects:
                break
        for number, result in suspects.items():
            yield f"{case.label}, {kind}, result {number}: {result}"


def _floor(case: Case, number: int) -> float:
    return case.floor if number >= 0 else FLOOR


def _errors(case: Case, run: Callable[..., Sequence[Tensor]], kind: str, seed: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Our errors and eager mode's, by the number of the result, and of gradients from -1 downwards."""
    torch.manual_seed(seed)
    inputs = [torch.empty_like(tensor).copy_(KINDS[kind](tensor.shape)) if tensor.dtype == case.dtype else tensor.detach()
              for tensor in case.inputs]
    wide = [tensor.double() if tensor.dtype == case.dtype else tensor for tensor in inputs]
    try:
        (eager, slopes), (exact, exact_slopes) = (_values(case, case.gm, given) for given in (inputs, wide))
    except (RuntimeError, ValueError):
        return {}
    ours, our_slopes = _values(case, run, inputs)
    compared = [(number, each, case.each) for number, each in enumerate(zip(ours, eager, exact, strict=True))]
    if len(exact_slopes) == len(slopes):        # not so where a conversion to double returns its operand
        each = case.pointwise and all(tensor.shape == eager[0].shape for tensor in slopes)      # none is a sum of several
        triples = zip(our_slopes, slopes, exact_slopes, strict=True)
        compared += [(-1 - number, triple, each) for number, triple in enumerate(triples)]
    return {number: (_error(a, c, each), _error(b, c, each)) for number, (a, b, c), each in compared
            if b.dtype == case.dtype and c.dtype == torch.float64 and b.numel()}


def _values(case: Case, run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and the gradients of inputs that require them."""
    leaves = [given.clone().requires_grad_(tensor.requires_grad) for given, tensor in zip(inputs, case.inputs, strict=True)]
    with torch.set_grad_enabled(any(tensor.requires_grad for tensor in case.inputs)):
        results = list(run(*leaves))
        return results, [slope for slope in gradients_of(results, leaves) if slope is not None]


def _error(result: Tensor, exact: Tensor, each: bool) -> Tensor:
    """In units of the last place. Zeros may have either sign: of equal extremes, reductions take any. Unless `each`, infinity will
    do in place of NaN: which of them infinite inputs lead to depends on the order of operations, in eager mode, too."""
    digits, least, greatest = FORMATS[result.dtype]
    result, exact = result.detach().contiguous() + 0.0, exact.detach().contiguous() + 0.0
    finite = exact[exact.isfinite()].abs()
    if each:
        error = errors(result, exact)
    else:
        size = torch.cat([finite.new_zeros(1), finite]).max().clamp(2.0**(least + digits - 1), 2.0**greatest)
        unit = torch.ldexp(torch.ones(()).double(), torch.frexp(size)[1] - digits)
        same = (result == exact) | (~result.isfinite() & exact.isnan())
        off = (result.double().clamp(-2.0**greatest, 2.0**greatest) - exact.clamp(-2.0**greatest, 2.0**greatest)).abs() / unit
        error = torch.where(same, 0.0, off).nan_to_num(nan=float("inf"))
    return torch.where(~result.isfinite() & (exact.abs() < 2.0**(greatest - 1)), float("inf"), error)


def search(names: Sequence[str], samples: int = 1, kinds: Sequence[str] = tuple(KINDS),
           shapes: Sequence[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32) -> tuple[int, list[str]]:
    """How many calls were compared, and what is worse."""
    found: list[str] = []
    ready: list[tuple[Case, list[Any]]] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for case in itertools.chain.from_iterable(cases(name, samples, shapes, dtype) for name in names):
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
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("operators", nargs="*")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    names = options.operators or [name for name, info in OPERATORS.items() if dtype in info.supported_dtypes("cpu")]
    shapes = (*SHAPES, (LARGE,)) if options.large else SHAPES
    total, count = 0, 0
    for start in range(0, len(names), CHUNK):
        run, found = search(names[start:start + CHUNK], options.samples, shapes=shapes, dtype=dtype)
        total, count = total + run, count + len(found)
        print(*found, f"{total} calls, {count} worse", sep="\n", flush=True)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
