"""Every operator that torch has sample inputs for (OpInfo), traced and lowered for all sizes and run with some, against eager mode.

    python -m tests.backends.native.all_sizes [--samples 4] [--first NAME] [--compiled] [--small]
"""
from __future__ import annotations

import argparse
import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.aot.symbols import Symbols
from capture.backends.native.job import TensorSpec
from capture.backends.native.signature import Unsupported
from tests.backends.native.stages import Stages, compare, compiled, copied, evaluated, finished, recorded
from tests.backends.native.test_opinfo import OPERATORS, TOLERANCES, OpInfo, name_of, samples_of

os.environ |= {"TENSORIFY_PYTHON_SCALARS": "0"}         # as in the compiling process
Change = Callable[[int], int]
OTHERS: tuple[Change, ...] = (lambda size: size + 3, lambda size: 2 * size + 1, lambda size: size)


@dataclass
class Found:
    """What came of the samples of an operator: how often each outcome, and what failed."""

    outcomes: Counter[str]
    failures: list[str]


def free(tensor: Tensor) -> TensorSpec:
    """A spec of an input of any size, but for dimensions of 0 and 1."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    properties = _C.tensor_properties(tensor)
    return TensorSpec.of(tensor, properties.with_free(dims) if dims else properties)


def resized(tensor: Tensor, change: Change) -> Tensor:
    """A tensor of another size, in the same order in memory: of the same numbers, repeated."""
    sizes = [change(size) if size > 1 else size for size in tensor.shape]
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    values = tensor.detach().flatten()
    count = torch.Size(sizes).numel()
    made = values.repeat(count // max(1, len(values)) + 1)[:count] if len(values) else values
    made = made.view([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(tensor.dim())])
    return copied(made).requires_grad_(tensor.requires_grad)


def check(gm: fx.GraphModule, inputs: Sequence[Tensor], through: Callable[..., list],
          first: Change = lambda size: size) -> Iterator[str]:
    """What came of one graph: one word for each of the sizes. first: makes those of the call that is compiled for. Raises what the
    comparison does."""
    symbols = Symbols()
    stages = Stages(gm, [free(resized(tensor, first)) for tensor in inputs], symbols)
    plans = through(stages)
    signature = symbols.closed(stages.traced.signature)
    stages.traced = replace(stages.traced, signature=signature)
    call, covers = stages.callable(plans), signature.size_check()
    if not signature.symbols:
        yield "without sizes"
        return
    for change in OTHERS:
        own = [resized(tensor, change) for tensor in inputs]
        if not accepts(gm, own):
            yield "refused by eager mode"
        elif not covers(own):
            yield "does not fit"
        else:
            compare(gm, call, own, TOLERANCES)
            yield "equal"


def accepts(gm: fx.GraphModule, inputs: Sequence[Tensor]) -> bool:
    """Whether eager mode accepts the inputs, and makes as many results of them."""
    try:
        gm(*map(copied, inputs))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def lowered(stages: Stages) -> list:
    return list(map(evaluated, stages.lowered))


def built(stages: Stages) -> list:
    return compiled(stages.fused())


def search(info: OpInfo, count: int, through: Callable[..., list] = lowered, first: Change = lambda size: size) -> Found:
    """Some samples of an operator, with gradients where it has them."""
    found = Found(Counter(), [])
    gradients = info.supports_autograd
    if torch.float32 not in info.supported_dtypes("cpu"):
        return found
    samples = list(itertools.islice(samples_of(info, torch.float32, gradients), 100))
    for number, sample in enumerate(samples[::max(1, len(samples) // count)][:count]):
        try:
            gm, inputs = recorded(info.op, (sample.input, *sample.args), sample.kwargs)
            if not all(tensor.numel() for tensor in inputs):
                continue            # the reference interpreter reads what kernels do not come to
        except (RuntimeError, ValueError, NotImplementedError):
            continue
        try:
            found.outcomes.update(check(gm, [copied(tensor) for tensor in inputs], through, first))
        except Unsupported as reason:
            found.outcomes[f"unsupported: {reason}"[:120]] += 1
        except Exception as error:      # collected: one run shows all
            shapes = [tuple(tensor.shape) for tensor in inputs]
            found.failures.append(
                f"{name_of(info)} #{number} {shapes} {sample.args} {sample.kwargs}: {type(error).__name__}: {error}")
        finished()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--first", default="")
    parser.add_argument("--compiled", action="store_true", help="with kernels; else the reference interpreter stands for them")
    parser.add_argument("--small", action="store_true", help="compiled for sizes of 2 to 4; what is computed of them may be 0 or 1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    for info in OPERATORS:
        if name_of(info) < options.first:
            continue
        found = search(info, options.samples, built if options.compiled else lowered,
                       (lambda size: 2 + size % 3) if options.small else lambda size: size)
        total += found.outcomes
        print(name_of(info), dict(found.outcomes), flush=True)
        for failure in found.failures:
            print("  FAILED", failure[:600], flush=True)
    print(total.most_common(40))


if __name__ == "__main__":
    main()
