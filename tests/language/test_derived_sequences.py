"""Lists and tuples of classes that the program derives: torch takes what C code finds in them."""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import call, check
from tests.interp.recording.failing import CALLS

X, Y = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]), torch.ones(2, 3)
Pair = namedtuple("Pair", ("first", "second"))


class Plain(list[Any]):
    pass


class Loud(list[Any]):
    """It says that it holds something else."""

    def __iter__(self) -> Any:
        return iter("own")

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: Any) -> Any:
        return "item"


KINDS: dict[str, Callable[[Any, Any], Any]] = {"Pair": Pair, "Plain": lambda a, b: Plain((a, b)), "Loud": lambda a, b: Loud((a, b))}
kinds = pytest.mark.parametrize("of", KINDS.values(), ids=KINDS)


@kinds
def test_sizes_and_tensors(of) -> None:
    def program(x, y):
        return x.repeat(of(2, 3)), x.sum(of(0, 1)), torch.stack(of(x, y)), torch.cat(of(x, y), 1), x.reshape(of(3, 2))
    check(lambda: program, call(X, Y), call(Y, X))


@kinds
def test_writes(of) -> None:
    """An array sees the write, which comes after the first sum."""
    def program(x, y):
        z = x * 2
        array = z.numpy()
        before = array.sum()
        torch._foreach_add_(of(z, y * 1), 1.0)
        return before, array.sum(), z
    check(lambda: program, call(X, Y), call(Y, X), call(X, X), captures=None, fullgraph=False)


@kinds
def test_writes_before_what_fails(of) -> None:
    def make():
        state = SimpleNamespace(a=torch.zeros(2), b=torch.zeros(3), log=[])

        def program(x):
            torch._foreach_add_(of(state.a, state.b), 1.0)
            state.log.append("added")
            return torch.linalg.cholesky(x)
        return program, state
    check(make, *CALLS, captures=None, fullgraph=False)


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function is torch.stack else result


@kinds
def test_an_override_of_an_item(of) -> None:
    def program(x, y):
        return torch.stack(of(x.as_subclass(Doubling), y)).as_subclass(torch.Tensor).sum()
    check(lambda: program, call(X, Y), call(Y, X), call(X, X), captures=None, fullgraph=False)
