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


class Iterating(list[Any]):
    def __iter__(self) -> Any:
        return iter([1, 1])


class Getting(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return [2, 0][index]


class Counting(list[Any]):
    def __len__(self) -> int:
        return 1


QUESTIONS = [
    "x[a]", "x[a,]", "x[:, a]", "torch.stack([x, x])[a]", "x.__getitem__(a)", "x.clone().__setitem__(a, 0.0)", "torch.tensor(a)",
    "torch.tensor([a])", "torch.as_tensor(a)", "torch.asarray(a)", "x.new_tensor(a)", "torch.LongTensor(a)",
    "torch.sparse_coo_tensor([a, a], [1.0, 2.0], (4, 4), check_invariants=True).to_dense()",
    "x.sum(a)", "x.permute(a)", "x.flip(a)", "x.roll(a, a)",
    "torch.zeros(a)", "torch.full(a, 2)", "x.new_zeros(a)", "torch.ones(*a)", "torch.Size(a)", "torch.broadcast_to(x[0, 0], a)"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_methods_that_tell_of_other_items(question: str) -> None:
    """Some functions of torch ask these, others read what lies in a list."""
    names: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, a):\n return {question}", names)
    for cls in (Loud, Iterating, Getting, Counting):
        check(lambda: names["program"], *(call(X, cls([0, 1])) for _ in range(3)), captures=None, fullgraph=False)


def test_an_item_of_a_nested_tensor() -> None:
    check(lambda: lambda x, y: torch.nested.nested_tensor([x, y])[1] * 2, *[call(X, Y)] * 3, captures=None, fullgraph=False)


def test_a_nested_tensor() -> None:
    check(lambda: lambda x, y: torch.nested.nested_tensor([x, y]).size(0), call(X, Y), call(Y, X), captures=None, fullgraph=False)
