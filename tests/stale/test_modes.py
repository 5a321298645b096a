"""Modes of the process and thread that change between calls."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

import capture
from capture import config
from tests.helpers import call, check
from tests.stale.cases import X

Mode = Callable[[], AbstractContextManager]
WEIGHT = torch.nn.Parameter(torch.eye(3))


def setting(setter: Callable, getter: Callable, value) -> Mode:
    """A context manager out of a pair of functions of torch's."""
    @contextlib.contextmanager
    def mode() -> Iterator[None]:
        before = getter()
        setter(value)
        try:
            yield
        finally:
            setter(before)
    return mode


MODES: dict[str, Mode] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast_off": lambda: torch.autocast("cpu", enabled=False),
    "autocast_half": lambda: torch.autocast("cpu", torch.float16),
    "default_dtype": setting(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "default_device": lambda: torch.device("meta"),
    "deterministic": setting(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True),
}


def linear(x):
    return x @ WEIGHT


def factory(x):
    return torch.arange(3.0) + torch.tensor(1.5), x + 1


def grad_decides(x):
    return x * WEIGHT[0] if torch.is_grad_enabled() else x + 1


def inference_decides(x):
    return x + 1 if torch.is_inference_mode_enabled() else x - 1


def autocast_decides(x):
    return x + 1 if torch.is_autocast_enabled("cpu") else x - 1


def autocast_dtype(x):
    return (x @ WEIGHT).to(torch.get_autocast_dtype("cpu"))


def default_dtype(x):
    return x.to(torch.get_default_dtype())


def deterministic_decides(x):
    return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1


PROGRAMS = [linear, factory, grad_decides, inference_decides, autocast_decides, autocast_dtype, default_dtype,
            deterministic_decides]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_entered_between_calls(mode: str, program: Callable) -> None:
    if mode == "default_device" and program is factory:
        pytest.skip("tensors of the meta device have no values")
    once = call(X)
    with contextlib.ExitStack() as stack:
        check(lambda: program, once, once, lambda _: stack.enter_context(MODES[mode]()), once, once,
              lambda _: stack.close(), once, captures=2)


@pytest.mark.parametrize("second", [torch.float16, torch.bfloat16], ids=str)
def test_the_dtype_of_autocast_changes(second: torch.dtype) -> None:
    with contextlib.ExitStack() as stack:
        def enter(dtype: torch.dtype) -> Callable:
            def change(_) -> None:
                stack.close()
                stack.enter_context(torch.autocast("cpu", dtype))
            return change
        once = call(X)
        check(lambda: linear, enter(torch.bfloat16), once, once, enter(second), once, enter(torch.bfloat16), once,
              lambda _: stack.close(), captures=1 if second is torch.bfloat16 else 2)


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps"])
def test_the_dtype_of_autocast_is_asked_where_it_is_off(device: str) -> None:
    def program(x):
        return x.to(torch.get_autocast_dtype(device)) * 2
    once, before = call(X), torch.get_autocast_dtype(device)

    def change(dtype: torch.dtype) -> Callable:
        return lambda _: torch.set_autocast_dtype(device, dtype)
    try:
        check(lambda: program, change(torch.bfloat16), once, once, change(torch.float64), once, once, change(torch.bfloat16), once,
              captures=2)
    finally:
        torch.set_autocast_dtype(device, before)


@pytest.mark.parametrize("captured", [False, True])
def test_modes_inside_of_the_program_do_not_leak(captured: bool) -> None:
    def program(x):
        with torch.set_grad_enabled(captured):
            y = x @ WEIGHT
        return y, x @ WEIGHT, torch.is_grad_enabled()
    once = call(X)
    with contextlib.ExitStack() as stack:
        check(lambda: program, once, once, lambda _: stack.enter_context(torch.no_grad()), once, once,
              lambda _: stack.close(), once, captures=2)


def test_random_numbers_go_on_after_a_hit() -> None:
    once = call(X)
    check(lambda: (lambda x: x + torch.rand(3) + torch.randn_like(x)), once, once, once,
          lambda _: torch.manual_seed(3), once, once, captures=1)


def on_then_off(x):
    torch.set_grad_enabled(True)
    y = x.relu() * WEIGHT.sum()
    torch.set_grad_enabled(False)
    return x.relu() * y


def off_at_the_end(x):
    y = x.relu() * WEIGHT.sum()
    torch.set_grad_enabled(False)
    return x.relu() * y


def on_at_the_end(x):
    y = x.relu() * WEIGHT.sum()
    torch.set_grad_enabled(True)
    return x.relu() * y


@pytest.mark.parametrize("backend", ["eager", "native", "aot_eager"])
@pytest.mark.parametrize("program", [on_then_off, off_at_the_end, on_at_the_end])
@pytest.mark.parametrize("block", [
    contextlib.nullcontext, torch.inference_mode, torch.no_grad, lambda: contextlib.nullcontext(torch.set_grad_enabled(False))])
def test_the_gradient_mode_that_a_program_leaves_behind(block: Mode, program: Callable, backend: str) -> None:
    options = {"background": False} if backend == "native" else None
    compiled = capture.compile(program, backend=backend, options=options)
    with config.TRIAL_CALLS.set(0):
        for around in (block, block, block, lambda: contextlib.ExitStack()):
            found = []
            for function in (program, compiled):
                with around():
                    result = function(X)
                    found.append((torch.is_grad_enabled(), result.requires_grad, result.is_inference(), result.tolist()))
                torch.set_grad_enabled(True)
            assert found[0] == found[1]
