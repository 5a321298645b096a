"""The modules of torch with the arguments that torch tests them with, compiled, beside eager mode: results, gradients and buffers.

    python -m tests.backends.native.module_samples [--every N] [--first K] [--backend eager]
"""
from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from capture import config
from tests.backends.native.end_to_end.engine import AT_ONCE
from tests.helpers import call, check, seed

TOLERANCE = 1e-4


def samples() -> Iterator[tuple[str, nn.Module, tuple, dict[str, Any]]]:
    """A name, a module, and what it is called with, for all modules, in training and in evaluation."""
    for info in module_db:
        for training in (True, False):
            seed(1)
            made = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
            for number, sample in enumerate(made):
                if sample.forward_input is None:
                    continue
                seed(2)
                arguments = sample.constructor_input
                with warnings.catch_warnings(action="ignore"):
                    module = info.module_cls(*arguments.args, **arguments.kwargs).train(training)
                name = f"{info.name}, {'training' if training else 'evaluation'}, {number} ({sample.desc})"
                yield name, module, *leaves((sample.forward_input.args, sample.forward_input.kwargs))


def leaves(arguments: Any) -> Any:
    """The arguments with tensors that are nothing's results."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), arguments)


def difference(module: nn.Module, args: tuple, kwargs: dict[str, Any], **engine: Any) -> str | None:
    """What is not as in eager mode in two calls, each followed by a backward pass; None where nothing is."""
    try:
        with config.TRIAL_CALLS.set(0):
            check(lambda: copy.deepcopy(module), *[call(*args, **kwargs)] * 2, captures=None, fullgraph=False, backward=True,
                  tolerance=TOLERANCE, **engine)
    except AssertionError as error:
        return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only each n-th sample")
    parser.add_argument("--first", type=int, default=0, help="the number of the first sample")
    parser.add_argument("--backend", default="native")
    options = parser.parse_args()
    engine = AT_ONCE if options.backend == "native" else {"backend": options.backend}
    run = differing = 0
    for number, (name, module, args, kwargs) in enumerate(samples()):
        if number < options.first or number % options.every:
            continue
        run += 1
        if (found := difference(module, args, kwargs, **engine)) is not None:
            differing += 1
            print(f"{number}: {name}\n{found}\n", flush=True)
    print(f"{run} samples, {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
