"""Functions of torch that a program puts others in the place of, which call the former ones: as profilers and counters do."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import capture
from tests.stale.patched import OPERATORS, problems_of, sample_of

ARRAY = np.array([1.0, 2.0], dtype=np.float32)
FUNCTIONS = {
    "a function": (torch, "relu", lambda x: torch.relu(x) + 1),
    "a method": (Tensor, "relu", lambda x: x.relu() + 1),
    "a method in Python": (Tensor, "unflatten", lambda x: x.unflatten(0, (2, 2)) + 1),
    "an operator": (Tensor, "__add__", lambda x: x + 1),
    "a function of a module of C": (torch._C._nn, "gelu", lambda x: torch._C._nn.gelu(x)),
    "a function of arrays": (torch, "from_numpy", lambda x: torch.from_numpy(np.concatenate([ARRAY, ARRAY * 2])) + x),
    "a function of what follows from arrays": (torch, "from_numpy", lambda x: x + torch.from_numpy(ARRAY.copy()).sum()),
    "a function in Python": (torch.nn.functional, "relu", lambda x: torch.nn.functional.relu(x)),
}


class Counter:
    """Counts the calls of a function in whose place it is put."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls, original = 0, getattr(owner, name)

        def counted(*args: object, **kwargs: object) -> object:
            self.calls += 1
            return original(*args, **kwargs)
        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_before_the_capture_and_after_it(kind: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, program = FUNCTIONS[kind]
    x = torch.tensor([-1.0, 0.0, 2.0, 3.0])
    expected = program(x)
    compiled = capture.compile(program, backend=backend, options={"background": False} if backend == "native" else None)
    assert torch.equal(compiled(x), expected) and torch.equal(compiled(x), expected)
    counters = []
    for _ in range(2):
        counters.append(Counter(monkeypatch, owner, name))
        for calls in range(1, 4):
            torch.testing.assert_close(compiled(x), expected)
            assert [counter.calls for counter in counters[:-1]] == [3 + calls] * (len(counters) - 1)
            assert counters[-1].calls == calls


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, backend: str) -> None:
    assert problems_of(torch.Tensor, name, OPERATORS[name], *sample_of(None), backend) == []


def test_an_operator_that_torch_has_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1.0, 2.0])
    compiled = capture.compile(lambda x: x + 3, backend="aot_eager")
    assert torch.equal(compiled(x), x + 3) and torch.equal(compiled(x), x + 3)
    monkeypatch.setattr(Tensor, "__add__", Tensor.__sub__)
    assert torch.equal(compiled(x), x - 3) and torch.equal(compiled(x), x - 3)
    monkeypatch.undo()
    assert torch.equal(compiled(x), x + 3)


@pytest.mark.parametrize("program", [
    lambda x: torch.from_numpy(np.asarray(x)) + x, lambda x: x + float(np.asarray(x, dtype=np.float64).sum()),
    lambda x: x + torch.tensor(np.array(x))], ids=["asarray", "asarray with a dtype", "array"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_the_method_by_which_numpy_asks(program: Callable, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1.0, 2.0])
    compiled = capture.compile(program, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
    monkeypatch.setattr(Tensor, "__array__", lambda x, *dtype, **copy: ARRAY * 5)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
    monkeypatch.undo()
    assert torch.equal(compiled(x), program(x))


def test_a_function_held_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [torch.relu, torch.nn.functional.gelu]
    x = torch.tensor([-1.0, 0.0, 2.0, 3.0])

    def program(x: Tensor) -> Tensor:
        return held[0](x) + held[1](x)
    expected = program(x)
    compiled = capture.compile(program, backend="eager")
    assert torch.equal(compiled(x), expected)
    monkeypatch.setattr(torch, "relu", torch.abs)
    monkeypatch.setattr(torch._C._nn, "gelu", torch.abs)
    assert torch.equal(compiled(x), expected) and torch.equal(compiled(x), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("kind", ["a method", "a function in Python"])
def test_another_result_is_that_of_the_replacement_once(kind: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, program = FUNCTIONS[kind]
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda x: original(x) * 2 + 1)
    x = torch.tensor([-1.0, 0.0, 2.0, 3.0])
    compiled = capture.compile(program, backend=backend, options={"background": False} if backend == "native" else None)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x))
    assert capture.stats(compiled).hits == 2


@pytest.mark.parametrize("name", ["__rsub__", "__floordiv__", "__rpow__"])
def test_another_result_beside_other_operations_is_that_of_the_replacement_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(Tensor, name)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return 5 - x, x // 2, 3 ** x, torch.relu(x).sin()
    monkeypatch.setattr(Tensor, name, lambda x, other: original(x, other) * 10)
    x = torch.tensor([-1.0, 0.0, 2.0, 3.0])
    compiled = capture.compile(program, backend="native", options={"background": False})
    for _ in range(4):
        torch.testing.assert_close(compiled(x), program(x))
    assert capture.stats(compiled).hits == 3


def test_a_function_of_python_that_is_known_by_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = capture.compile(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), backend="eager")
    x = torch.ones(3)
    for _ in range(2):
        compiled(x)
    counter = Counter(monkeypatch, torch, "cond")
    for calls in range(1, 4):
        assert torch.equal(compiled(x), x + 1) and counter.calls == calls
