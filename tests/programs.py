"""Tables of small programs, each compared with eager on capture, on a hit, and on a hit with other values."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import Call, check
from tests.snapshot import tensors

NATIVE = {"fullgraph": False, "captures": None}    # for what may run natively, as long as it is right


class Programs(list):
    """Cases for `pytest.mark.parametrize`, named by their functions.

        @programs.add(torch.randn(3))            # a function, called with these arguments
        @programs.make(torch.randn(3))           # a factory of the program, or of (program, state)
        @programs.make(torch.randn(3), change=lambda state: setattr(state, "scale", 3.0), captures=2)

        test_values = programs.test()            # behind them all: the test of each
    """

    def add(self, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a function without state of its own. `options` are those of `check`."""
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.append(pytest.param(lambda: function, args, options, id=function.__name__))
            return function
        return register

    def make(self, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a factory, called once for each world."""
        def register(factory: Callable[..., Any]) -> Callable[..., Any]:
            self.append(pytest.param(factory, args, options, id=factory.__name__))
            return factory
        return register

    def test(self, **defaults: Any) -> Callable[..., None]:
        """The test that runs each of the programs so far; `defaults` are options for those that say nothing else."""
        @pytest.mark.parametrize(("make", "args", "options"), self)
        def test(make: Callable[[], Any], args: tuple, options: dict[str, Any]) -> None:
            run(make, args, {**defaults, **options})
        return test


def run(make: Callable[[], Any], args: tuple, options: dict[str, Any]) -> None:
    """Capture, hit, and a hit with the same values in another order; then, if `change` is among the options, the same two calls
    again after `change(state)`."""
    options = dict(options)
    change = options.pop("change", None)
    same, other = Call(lambda _: (copy.deepcopy(args), {})), Call(lambda _: (other_values(args), {}))
    check(make, same, same, other, *([] if change is None else [change, same, other]), **options)


def other_values(args: tuple) -> tuple:
    """A copy of `args`, the elements of each tensor moved on by one: the same properties, and still valid arguments."""
    args = copy.deepcopy(args)
    with torch.no_grad():
        for tensor in tensors(args):
            tensor.copy_(tensor.roll(1).clone())
    return args


def function(body: str, **namespace: Any) -> Callable[..., Any]:
    """The function of `x, y, i, m` with this body, ` ;; ` ending its lines; a mere expression is what it returns."""
    if "return" not in body:
        body = f"return {body}"
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **namespace}
    text = body.replace(" ;; ", "\n    ")
    exec(compile(f"def program(x, y, i, m):\n    {text}\n", f"<{body}>", "exec"), scope)
    return scope["program"]
