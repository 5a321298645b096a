"""Tensors with attributes of their own under the names of methods: whatever asks them is answered by the program."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
NAMES = sorted(name for name in dir(torch.Tensor) if not name.startswith("__") and callable(getattr(torch.Tensor, name))
               and not hasattr(type(getattr(torch.Tensor, name)), "__set__"))


def hiding(names: list[str], tensor: torch.Tensor) -> torch.Tensor:
    for name in ("tag", *names):        # so that it always has attributes
        vars(tensor)[name] = 7
    return tensor


def used(x: Any, w: Any) -> Any:
    y = torch.nn.functional.linear(x, w).relu()
    y[0] += w[:, 0]
    return y * w, [y.shape[0], len(x), y.is_leaf], torch.cat([x, x]) @ w, -w


def trained(x: Any, w: Any) -> Any:
    loss = torch.nn.functional.linear(x, w).relu().mean()
    loss.backward()
    with torch.no_grad():
        w -= w.grad
    return loss.item(), f"{loss:.3f}"


def assigned(x: Any, w: Any) -> Any:
    x.numel = x.dim = 3
    return x * w, x.numel


PROGRAMS: dict[str, Callable[..., Any]] = {"used": used, "trained": trained, "assigned": assigned}


def plain(value: Any) -> Any:
    """What tensors hold, without asking them."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor.tolist(value), tuple(value.shape), value.dtype, value.requires_grad
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcomes(name: str, engine: Callable[[Any], Any], wait: Callable[[], Any]) -> list[Any]:
    """What calls return, and what they leave of the tensor that they are given: plain ones, then ones with hidden methods, …"""
    found: list[Any] = []
    outside = torch.nn.Parameter(torch.ones(2, 2))
    run, kept = engine(PROGRAMS[name]), engine(lambda x: PROGRAMS[name](x, outside))
    for names in ([], [], [], NAMES, NAMES[:1], [], NAMES):
        for function in (run, kept):
            vars(outside).clear()
            x, given = X.clone(), torch.ones(2, 2, requires_grad=name == "trained")
            args = (hiding(names, x),) if function is kept else (x, hiding(names, given))
            hiding(names, outside)
            try:
                found.append(plain(function(*args)))
            except (RuntimeError, TypeError) as error:
                found.append(str(error))
            found.append(plain([x, given, outside, *(tensor.grad for tensor in (given, outside) if tensor.grad is not None)]))
            outside.grad = None
        wait()
    return found


@pytest.mark.parametrize("name, backend", [*((name, "eager") for name in PROGRAMS), ("trained", "native")])
def test_methods_are_hidden(name: str, backend: str) -> None:
    options = {"background": False} if backend == "native" else None
    compiled: list[Any] = []

    def engine(program: Any) -> Any:
        compiled.append(capture.compile(program, backend=backend, options=options))
        return compiled[-1]
    eager = outcomes(name, lambda program: program, lambda: None)
    assert outcomes(name, engine, capture.wait) == eager
    assert name == "assigned" or all(capture.stats(function).hits for function in compiled)
