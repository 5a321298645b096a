"""Every function, method and operator of torch for which torch has samples, with another in its place: that is called on each
call on which it is in eager mode, whether it was put there before the capture or after it, and no more when it is gone.

    python -m tests.stale.patched --backend aot_eager
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CAPTURE_STRICT", "1")        # read when capture is imported

import torch

import capture
from capture.errors import BackendError
from tests.samples import samples_of

CALLS = 3


class Counted:
    """The calls of what stands in the place of `owner.name`."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.calls = owner, name, 0

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        original, own = getattr(self.owner, self.name), self.name in vars(self.owner)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)
        setattr(self.owner, self.name, counted)
        try:
            yield
        finally:
            if own:
                setattr(self.owner, self.name, original)
            else:
                delattr(self.owner, self.name)

    def calls_of(self, program: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> list[int]:
        """How often it is called on each of some calls of a program."""
        counts = []
        for _ in range(CALLS):
            self.calls = 0
            torch.manual_seed(0)
            program(*args, **kwargs)
            counts.append(self.calls)
        return counts


def places() -> Iterator[tuple[str, Any, str, Callable[..., Any], Any]]:
    """(name, owner, attribute, program, operation) of all that torch has samples for."""
    from torch.testing._internal.common_methods_invocations import op_db
    for op in op_db:
        *path, name = op.name.split(".")
        with contextlib.suppress(AttributeError):
            owner = functools.reduce(getattr, path, torch)
            getattr(owner, name)
            yield f"torch.{op.name}", owner, name, functools.partial(_function, owner, name), op
        if path:
            continue
        for method in (name, f"{name}_"):
            if hasattr(torch.Tensor, method) and not name.startswith("_"):
                yield f"torch.Tensor.{method}", torch.Tensor, method, functools.partial(_method, method), op
        for variant, special in ((op.operator_variant, f"__{name}__"), (op.inplace_operator_variant, f"__i{name}__")):
            if variant is not None and hasattr(torch.Tensor, special):
                yield f"torch.Tensor.{special}", torch.Tensor, special, functools.partial(_operator, variant), op
    for special, program in OPERATORS.items():
        yield f"torch.Tensor.{special}", torch.Tensor, special, program, None


OPERATORS: dict[str, Callable[..., Any]] = {
    "__len__": lambda x: x + len(x), "__iter__": lambda x: [t + 1 for t in x], "__bool__": lambda x: x + 1 if x[0, 0] else x,
    "__float__": lambda x: (x + 1, float(x[0, 0])), "__int__": lambda x: (x + 1, int(x[0, 0])), "__abs__": lambda x: abs(x),
    "__neg__": lambda x: -x, "__invert__": lambda x: ~(x > 1), "__contains__": lambda x: x + 1 if 1.0 in x else x,
    "__getitem__": lambda x: x[0], "__radd__": lambda x: 1 + x, "__rsub__": lambda x: 1 - x, "__rmul__": lambda x: 2 * x,
    "__rtruediv__": lambda x: 1 / x, "__rpow__": lambda x: 2 ** x, "__matmul__": lambda x: x @ x, "__lt__": lambda x: x < 1,
    "__eq__": lambda x: x == 1}


def _function(owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def _method(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(x, name)(*args, **kwargs)


def _operator(variant: Any, *args: Any) -> Any:
    return variant(*args)


def sample_of(op: Any) -> tuple[tuple, dict[str, Any]] | None:
    """The first sample arguments of an operation that begin with a tensor."""
    if op is None:
        return (torch.tensor([[1.0, 2.0], [3.0, 4.0]]),), {}
    if not op.dtypes:               # only for another device
        return None
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    for sample in samples_of(op, dtype):
        if isinstance(sample.input, torch.Tensor) and sample.input.layout is torch.strided:
            return (sample.input, *sample.args), sample.kwargs
    return None


def problems_of(owner: Any, name: str, program: Callable[..., Any], args: tuple, kwargs: dict[str, Any], backend: str) -> list[str]:
    """Where calls of what stands in the place of a function are other than in eager mode; None of them where eager raises."""
    counted = Counted(owner, name)
    try:
        with counted.patched():
            expected = counted.calls_of(program, args, kwargs)
        program(*args, **kwargs)
    except Exception:
        return []
    options = {"background": False} if backend == "native" else None
    late, early = (capture.compile(_copy(program), backend=backend, options=options) for _ in range(2))
    problems = []

    def see(when: str, compiled: Callable[..., Any], expected: list[int]) -> None:
        found = counted.calls_of(compiled, args, kwargs)
        traces = backend.startswith("aot")          # the first call, with functions of torch that may be the one in question
        if found[traces:] != expected[traces:]:
            problems.append(f"{when}: {found} calls, eager {expected}")
    for _ in range(CALLS):
        late(*args, **kwargs)
    with counted.patched():
        see("after the capture", late, expected)
        see("before it", early, expected)
    see("gone", late, [0] * CALLS)
    see("gone before it", early, [0] * CALLS)
    with counted.patched():
        see("again", late, expected)
    return problems


def _copy(program: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, so that nothing is known of it."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return program(*args, **kwargs)
    return call


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stale.patched", description=__doc__)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tried = found = 0
    for number, (what, owner, name, program, op) in enumerate(places()):
        if not options.first <= number < options.first + options.count:
            continue
        try:
            sample = sample_of(op)
            if sample is None:
                continue
            problems = problems_of(owner, name, program, *sample, options.backend)
        except BackendError:        # it takes no such graph
            continue
        except Exception as error:
            problems = [f"{type(error).__name__}: {str(error)[:300]}"]
        tried += 1
        if problems:
            found += 1
            print(number, what, *problems, sep="\n    ", flush=True)
    print(f"{tried} tried, {found} differ")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
