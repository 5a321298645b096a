"""What tests of continuations share: calls that no trace can hold, and tables of programs that are cut at them."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
LOG: list[Any] = []             # what the calls outside have seen; compared like the program's own state


@capture.disable
def outside(value: Any = None, *seen: Any) -> Any:
    """Returns `value`; notes what else it is given, and the exception being handled."""
    LOG.append([s.detach().clone() if isinstance(s, torch.Tensor) else s for s in seen])
    LOG.append(repr(sys.exception()))
    return value


@capture.disable
def raises(error: type[BaseException] = ValueError, text: str = "from outside") -> None:
    LOG.append(repr(sys.exception()))
    raise error(text)


class Cuts(list):
    """Cases for `pytest.mark.parametrize`, named by their functions of one tensor, and checked by `run`.

        @cuts.add(3, captures=2)            # a call is cut 3 times, which takes 2 traces
        @cuts.natively                      # the program goes on natively behind its cut
    """

    def add(self, cuts: int = 1, captures: int | None = None, ends: int = 1, native: int = 0,
            **options: Any) -> Callable[[Any], Any]:
        """Registers a program. Each call is cut `cuts` times; its `captures` traces, one more than there are cuts unless something
        is repeated, end `ends` times with the program. native: how many calls run natively in place of a hit, since code may run
        as something dies."""
        def register(program: Any) -> Any:
            options["hits"] = 3 * (cuts + 1) - (cuts + 1 if captures is None else captures) - native
            options["native"] = native
            options["captures"] = cuts + 1 if captures is None else captures
            options["breaks"] = options["captures"] - ends
            self.append(pytest.param(program, options, id=program.__name__))
            return program
        return register

    def natively(self, program: Any) -> Any:
        self.append(pytest.param(program, {"captures": None}, id=program.__name__))
        return program


def run(program: Any, options: dict[str, Any]) -> None:
    """Capture, hit, and a hit with other values."""
    expected = {name: value for name, value in options.items() if name != "native"}
    stats = compared(program, call(X), call(X), call(X.T.contiguous()), **expected)
    assert options["captures"] is None or stats.native_calls == options["native"], stats


def compared(program: Any, *steps: Any, **expected: Any) -> Any:
    """`check` of a program, and of the calls that it made outside."""
    def make() -> Any:
        LOG.clear()
        return program, LOG
    return check(make, *steps, fullgraph=False, **expected)
