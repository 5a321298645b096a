"""The operators of torch with the arguments that torch tests them with, under transforms of torch.func and in gradients that the
program computes: traced, lowered, fused and evaluated, beside eager mode, with the gradients of what comes out.

    python -m tests.backends.native.derivative_samples [--every N] [--first K] [operator …]
"""
from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import grad, jvp, vmap
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import capture
from capture.backends.native.signature import Unsupported
from tests.backends.native.stages import Stages, compare, copied, evaluated, finished
from tests.samples import name_of, samples_of

Function = Callable[..., Any]
TOLERANCES = {"rtol": 1e-3, "atol": 3e-4}
SAMPLES = 2         # of each operator
UNWRITTEN = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))
# Where a formula of autograd takes another way for tensors without data, whose result lies otherwise in memory.
OTHER_LAYOUT = {"ormqr": "plain"}


def of_tensors(op: Function, sample: Any) -> tuple[Function, list[Tensor]]:
    """A sample as a function of its floating point tensors, and these."""
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def function(*given: Tensor) -> Any:
        filled = dict(zip(places, given, strict=True))
        args, kwargs = pytree.tree_unflatten([filled.get(place, leaf) for place, leaf in enumerate(leaves)], spec)
        return op(*args, **kwargs)
    return function, [leaves[place].detach() for place in places]


def floating(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def programs(function: Function, tensors: Sequence[Tensor]) -> Iterator[tuple[str, Function, list[Tensor]]]:
    """What is made of a function of tensors: a name, a program, its inputs."""
    every = tuple(range(len(tensors)))
    batches = [torch.stack([tensor, tensor * 0.5]) for tensor in tensors]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]

    def total(*given: Tensor) -> Any:
        return sum((result * 0.7).sum() for result in floating(function(*given)))

    def gradients(*given: Tensor, **options: Any) -> list[Tensor]:
        return floating(torch.autograd.grad(total(*given), given, allow_unused=True, **options))
    yield "vmap", lambda *given: floating(vmap(function)(*given)), batches
    yield "vmap of the first", lambda *given: floating(vmap(function, (0, *[None] * (len(given) - 1)))(*given)), [
        batches[0], *tensors[1:]]
    yield "grad", grad(total, argnums=every), list(tensors)
    yield "grad of leaves", grad(total, argnums=every), leaves
    yield "vmap of grad", vmap(grad(total, argnums=every)), batches
    yield "jvp", lambda *given: floating(jvp(lambda *own: tuple(floating(function(*own))), given, tuple(
        one * 0.3 for one in given))), list(tensors)
    yield "plain", gradients, leaves
    yield "penalty", lambda *given: sum((one * one).sum() for one in gradients(*given, create_graph=True)), leaves


def graph_of(program: Function, inputs: Sequence[Tensor]) -> tuple[fx.GraphModule, list[Tensor]] | None:
    """The graph of a call, if that is one, and what it is given: inputs, and other tensors of the sample."""
    made: list[tuple[fx.GraphModule, list[Tensor]]] = []

    def keep(gm: fx.GraphModule, example_inputs: Any) -> Function:
        made.append((gm, list(map(copied, example_inputs))))
        return gm.forward
    keep.takes_backward = keep.takes_assignments = keep.takes_sizes = True  # type: ignore[attr-defined]
    compiled = capture.compile(lambda *given: program(*given), backend=keep)
    for _ in range(2):
        compiled(*map(copied, inputs))
    return made[0] if len(made) == 1 and not capture.stats(compiled).breaks else None


def outcome(program: Function, inputs: Sequence[Tensor]) -> str:
    """"same", why a program is not compiled, or what differs."""
    try:
        program(*map(copied, inputs))
    except Exception:       # of whatever class, as the operator likes
        return "eager mode raises"
    try:
        found = graph_of(program, inputs)
        if found is None:
            return "not one graph"
        gm, given = found
        stages = Stages(gm, given)
        if stages.traced.core is not None:
            return "results are computed from others"
        compare(gm, stages.callable([evaluated(program) for program in stages.fused()]), given, TOLERANCES)
    except Unsupported as error:
        return f"uncompiled: {error}"
    except Exception as error:
        return f"DIFFERS: {type(error).__name__}: {error}"
    finally:
        capture.reset()
        finished()
    return "same"


def outcomes(info: Any) -> Iterator[tuple[str, str]]:
    """What comes of each program of an operator."""
    samples = list(itertools.islice(samples_of(info, torch.float32), 30))
    for number, sample in enumerate(samples[::max(1, len(samples) // SAMPLES)][:SAMPLES]):
        function, tensors = of_tensors(info.op, sample)
        for name, program, inputs in programs(function, tensors) if tensors else ():
            if OTHER_LAYOUT.get(name_of(info)) != name:
                yield f"{name_of(info)}, {number}, {name}", outcome(program, inputs)


def operators(names: Sequence[str] = ()) -> list[Any]:
    """The operators that torch has samples of, or those of these names."""
    return [info for info in op_db if torch.float32 in info.supported_dtypes("cpu") and name_of(info) not in UNWRITTEN
            and (not names or name_of(info) in names)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only each n-th operator")
    parser.add_argument("--first", type=int, default=0, help="the number of the first operator")
    parser.add_argument("operators", nargs="*", help="names of operators (default: all)")
    options = parser.parse_args()
    found: Counter[str] = Counter()
    with warnings.catch_warnings(action="ignore"):
        for info in operators(options.operators)[options.first::options.every]:
            for name, text in outcomes(info):
                found[text if not text.startswith("DIFFERS") else "DIFFERS"] += 1
                if text.startswith("DIFFERS"):
                    print(f"{name}: {text}\n", flush=True)
    for text, count in found.most_common():
        print(f"{count}: {text}")
    return int(found["DIFFERS"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
