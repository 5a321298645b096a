"""Calls of torch's operators that raise, in the eager and in the captured world: types and texts of exceptions are compared.

`python -m tests.functions.errors [--native] [--only NAME] [--every N]`: what torch's own tests expect to raise (`error_inputs`),
and samples whose numbers are replaced: indices out of range, matrices of zeros, NaN. Each call raises in the call that is captured,
where a handler catches it, and after calls that did not raise and were captured, on a hit if guards allow.
"""
from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import capture
import tests.search_settings  # noqa: F401
from capture.errors import CaptureError
from tests.functions.catalogue import LEFT_OUT, function_of
from tests.functions.compare import NATIVE, Finding
from tests.helpers import seed, without_addresses
from tests.samples import name_of, samples_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
SAMPLES = 8             # of one operator, of which each is called with other numbers
# Of these LAPACK ends the process at NaN, and the text tells what lies in memory beside the table.
NOT_RUN = ("linalg.eigvals", "nn.functional.embedding_bag")


def calling(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)
    return program


def between(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(x: Any, *args: Any, **kwargs: Any) -> Any:
        x = x.clone() if isinstance(x, torch.Tensor) and x.layout is torch.strided else x
        result = function(x, *args, **kwargs)
        return result, x + 1 if isinstance(x, torch.Tensor) and x.layout is torch.strided else None
    return program


def catching(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            return type(error), str(error), len(error.args)
    return program


PROGRAMS = {"raised": calling, "between operations": between, "caught": catching}


def outcomes(program: Callable[..., Any], calls: list[Arguments]) -> list[Any]:
    """Of each call the exception, or that there was none."""
    found: list[Any] = []
    for arguments in calls:
        args, kwargs = pytree.tree_map(fresh, arguments)
        seed()
        try:
            result = program(*args, **kwargs)
        except CaptureError as error:
            found.append(("fault", type(error).__name__, str(error)[:300]))
        except Exception as error:
            found.append((type(error).__qualname__, without_addresses(repr(error.args))))
        else:
            caught = isinstance(result, tuple) and bool(result) and isinstance(result[0], type)
            found.append(("caught", result[0].__qualname__, without_addresses(result[1]), result[2]) if caught else "returned")
    return found


def fresh(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or type(leaf) is not torch.Tensor:
        return leaf
    try:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    except RuntimeError:
        return leaf


def examine(name: str, function: Callable[..., Any], calls: list[Arguments], **options: Any) -> Iterator[Finding]:
    """What differs in any form of program; in one for mistakes, which are many."""
    for form, made in list(PROGRAMS.items())[-1 if MISTAKE in name else 0:]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = made(function)
            eager = outcomes(program, calls)
            if all(outcome == "returned" for outcome in eager):
                return
            compiled = capture.compile(program, **{"backend": "eager", **options})
            captured = outcomes(compiled, calls)
            stats = capture.stats(compiled)
            capture.reset()
        for number, (left, right) in enumerate(zip(eager, captured, strict=True)):
            if left != right:
                kind = "fault" if right[0] == "fault" else "wrong"
                yield Finding(kind, name, f"{form}, call {number} ({stats.captures} captures, {stats.hits} hits): "
                                          f"{str(left)[:300]}, captured {str(right)[:300]}")
                break


def cases(every: int = 1, only: str = "", first: int = 0) -> Iterator[tuple[str, Callable[..., Any], list[Arguments]]]:
    from torch.testing._internal.common_methods_invocations import op_db
    for info in sorted(op_db, key=name_of)[first::every]:
        if info.name.startswith(LEFT_OUT) or name_of(info) in NOT_RUN or only not in name_of(info):
            continue
        dtypes = info.supported_dtypes("cpu")
        if not dtypes:
            continue
        function, dtype = function_of(info), torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
        found = [((sample.input, *sample.args), sample.kwargs) for sample in itertools.islice(samples_of(info, dtype), 60)]
        found = found[::max(1, len(found) // SAMPLES)]
        for number, (args, kwargs) in enumerate(raising(info)):
            yield f"{name_of(info)} error #{number}", function, [(args, kwargs)] * 3
            alike = [sample for sample in found if spec(sample) == spec((args, kwargs))] or found[:1]
            for before in ([alike[0]] * 2, alike[:2] * 2):
                yield f"{name_of(info)} after samples #{number}", function, [*before, (args, kwargs), before[0], (args, kwargs)]
        for number, sample in enumerate(found):
            for kind, replaced in others(sample):
                yield f"{name_of(info)} {kind} #{number}", function, [sample, sample, replaced, sample, replaced]
        for variant in dict.fromkeys((function, info.method_variant, info.inplace_variant)):
            for kind, replaced in mistakes(found[-1]) if found and variant is not None else ():
                yield f"{name_of(info)} {MISTAKE} {kind}", variant, [found[-1], found[-1], replaced, replaced]


def spec(arguments: Arguments) -> Any:
    return pytree.tree_structure(arguments)


def raising(info: Any) -> Iterator[Arguments]:
    seed()
    if info.error_inputs_func is None:
        return
    for error in info.error_inputs_func(info, "cpu"):
        yield (error.sample_input.input, *error.sample_input.args), error.sample_input.kwargs


def others(sample: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The sample with the numbers of its tensors replaced, which fits the same guards."""
    leaves = [leaf for leaf in pytree.tree_leaves(sample) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    if any(not leaf.dtype.is_floating_point and leaf.dtype != torch.bool for leaf in leaves):
        for value in (1000, -1000):
            yield f"indices {value}", pytree.tree_map(lambda leaf, value=value: full(leaf, value, False), sample)
    if any(leaf.dtype.is_floating_point for leaf in leaves):
        for value in (0.0, -1.0, float("nan")):
            yield f"values {value}", pytree.tree_map(lambda leaf, value=value: full(leaf, value, True), sample)


MISTAKE = "given"
WRONG: dict[str, Any] = {
    "text": "text", "None": None, "number": 3.5, "large": 1000, "small": -1000, "list": [1, "text"], "nothing": (),
    "object": object, "no elements": torch.ones(0), "shape": torch.ones(7, 11), "truths": torch.ones(2, dtype=torch.bool),
    "complex": torch.ones(2, 2, dtype=torch.complex64), "integers": torch.ones(2, 3, dtype=torch.int64)}


def mistakes(sample: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The sample with one argument of a wrong type, shape or size, or with one too many."""
    args, kwargs = sample
    for kind, value in WRONG.items():
        for place in range(len(args)):
            yield f"{kind} at {place}", ((*args[:place], value, *args[place + 1:]), kwargs)
        for key in kwargs:
            yield f"{kind} as {key}", (args, {**kwargs, key: value})
    yield "one too many", ((*args, *["text"] * 9), kwargs)
    yield "unknown keyword", (args, {**kwargs, "unknown": 1})
    for place in range(1, len(args)):
        yield f"{place} missing", (args[:place], kwargs)


def full(leaf: Any, value: float, floating: bool) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.dtype == torch.bool \
            or leaf.dtype.is_floating_point != floating or leaf.dtype.is_complex or not leaf.numel():
        return leaf
    if leaf.dtype == torch.uint8 and value < 0:
        return leaf
    with torch.no_grad():
        new = leaf.detach().clone()
        if floating:
            new.fill_(value)
        else:
            new[tuple(size - 1 for size in new.shape)] = min(value, torch.iinfo(leaf.dtype).max)
        return new.requires_grad_(leaf.requires_grad)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.functions.errors", description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--every", type=int, default=1, help="one of so many operators")
    parser.add_argument("--first", type=int, default=0, help="the first operator")
    parser.add_argument("--native", action="store_true", help="with kernels")
    options = parser.parse_args()
    ran = wrong = 0
    for name, function, calls in cases(options.every, options.only, options.first):
        ran += 1
        for finding in examine(name, function, calls, **(NATIVE if options.native else {})):
            wrong += 1
            print(finding.kind, finding.name, finding.text, sep=" | ", flush=True)
    print(f"{ran} cases, {wrong} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
