"""Devices: tensors elsewhere than on the CPU, and what a program asks of GPUs, which are pretended here."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import numpy
import pytest
import torch

import capture
from capture.interp.recording.tensors import GPU_FACTS
from tests.helpers import call, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
plain = Programs()


@plain.add(X)
def on_a_device_by_name(x):
    return x.to("cpu"), x.to(torch.device("cpu"), torch.float64), x.to(x.device), x.cpu() * 2


@plain.add(X)
def elsewhere(x):
    y = torch.empty_like(x, device="meta") @ x.t().to("meta")
    return y.shape, y.is_meta, y.device, y + 1, x * 2


@plain.add(X)
def on_a_default_device(x):
    before = torch.ones(2)
    with torch.device("meta") as device:
        y = torch.zeros(3) + torch.arange(3)
        with torch.device("cpu"):
            z = torch.ones(3)
    return y.device, y, x + z + torch.zeros(3), before, device


@plain.make(X, change=lambda state: state.array.fill(3.0))
def arrays_on_a_default_device():
    state = SimpleNamespace(array=numpy.ones(3))

    def program(x):
        with torch.device("meta"):
            there = (torch.get_default_device(), torch.tensor(state.array), torch.as_tensor(state.array),
                     torch.tensor(numpy.arange(3)), torch.from_numpy(state.array), x.new_tensor(state.array),
                     torch.as_tensor(state.array, device="cpu"))
        return there, torch.tensor(state.array), x * torch.as_tensor(state.array), torch.get_default_device()
    return program, state


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_arrays_become_tensors_where_the_caller_says(device: str) -> None:
    array = numpy.ones(3)
    compiled = capture.compile(lambda x: (torch.tensor(array) * 2, torch.as_tensor(array), torch.get_default_device(), x + 1),
                               fullgraph=True)
    for place in (device, None, device, device):
        with torch.device(place) if place else contextlib.nullcontext():
            first, second, default, _ = compiled(X)
            assert first.device == second.device == default == torch.tensor(1).device
    assert capture.stats(compiled).captures == 2


@plain.make(X)
def on_a_device_that_a_function_is_given():
    state = SimpleNamespace(device=torch.device("meta"))

    def program(x):
        with state.device:
            return torch.zeros(3), torch.empty(0).device
    return program, state


@plain.add(X, fullgraph=False, captures=None)
def a_break_in_a_default_device(x):
    with torch.device("meta"):
        y = torch.zeros(3)
        if x.sum() > 1:
            y = torch.ones(4)
        return y, torch.empty(2), x * 2


@plain.add(X, fullgraph=False, captures=None)
def an_exception_in_a_default_device(x):
    try:
        with torch.device("meta"):
            torch.zeros(3)
            raise ValueError
    except ValueError:
        return torch.zeros(2), x * 2


@plain.add(X)
def is_there_a_gpu(x):
    return x.to("cuda" if torch.cuda.is_available() else "cpu") + torch.cuda.device_count(), torch.cuda.is_bf16_supported()


@plain.add(X)
def what_takes_a_gpu(x):
    try:
        return torch.cuda.current_device(), x + 1
    except (AssertionError, RuntimeError) as error:     # torch was built without CUDA; the machine has no driver
        return type(error), x * 2


@plain.add(X, fullgraph=False, captures=None)
def waits_for_a_gpu(x):
    y = x * 2
    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError) as error:
        return type(error), y + 1
    return y


@plain.add(X, fullgraph=False, captures=None)
def what_is_pinned_for_a_gpu(x):
    try:
        return x.pin_memory().is_pinned(), x.is_pinned()
    except (AssertionError, RuntimeError) as error:
        return type(error), x.is_pinned()


@plain.add(X)
def seeds_of_gpus(x):
    torch.cuda.manual_seed(3)
    torch.cuda.manual_seed_all(4)
    return x * 2


@plain.add(X)
def casts_of_gpus(x):
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", torch.bfloat16):
        return x @ x.t(), torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")


@plain.add(X)
def casts_of_the_gpu_that_there_is(x):
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        return x @ x.t()


test_values = pytest.mark.filterwarnings("ignore")(plain.test())


def test_a_default_device_ends_when_an_operation_raises() -> None:
    def program(x, index):
        with torch.device("meta"):
            y = torch.zeros(3)
        with torch.device("cpu"):
            return y, torch.index_select(x, 0, index), torch.zeros(2)
    good, bad = torch.tensor([0, 1]), torch.tensor([7])
    check(lambda: program, call(X, good), call(X, good), call(X, bad), call(X, good), captures=None)
    assert torch.zeros(1).device.type == "cpu" and not torch.overrides._len_torch_function_stack()


@pytest.mark.parametrize("name", ["cuda", "cpu"])
def test_a_type_of_device_given_by_name(name: str) -> None:
    def program(x, kind):
        return x.to(torch.get_autocast_dtype(device_type=kind))
    other = "cpu" if name == "cuda" else "cuda"
    check(lambda: program, call(X, name), call(X, name), call(X, other), call(X, other), call(X, name), captures=2)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What programs are told of GPUs: which is the `current` one, and whether it takes bfloat16 and of what generation it is."""
    state = SimpleNamespace(current=0)
    monkeypatch.setattr(torch.cuda, "pretended", state, raising=False)
    answers = {torch.cuda.current_device: lambda: pretended.current,  # noqa: F821
               torch.cuda.is_initialized: lambda: pretended.current is not None,  # noqa: F821
               torch.cuda.is_bf16_supported: lambda including_emulation=True: pretended.current != 1,  # noqa: F821
               torch.cuda.get_device_capability: lambda device=None: (8 + (pretended.current or 0), 0),  # noqa: F821
               torch.cuda.get_device_name: lambda device=None: f"GPU {pretended.current}"}  # noqa: F821
    for function, answer in answers.items():
        monkeypatch.setattr(function, "__code__", answer.__code__)
        monkeypatch.setattr(function, "__defaults__", answer.__defaults__)
    yield state


def on_the_current_gpu(x):
    return x + torch.cuda.current_device()


def by_generation(x):
    return x + 1 if torch.cuda.get_device_capability() >= (9, 0) else x * 2


def by_name(x):
    return x + 1 if torch.cuda.get_device_name(None).endswith("1") else x * 2


def by_precision(x):
    return x.bfloat16() if torch.cuda.is_bf16_supported(including_emulation=False) else x.half()


def made_without_a_number(x):
    return torch.empty_like(x, device="meta") * 2, x + 1


PROGRAMS = [on_the_current_gpu, by_generation, by_name, by_precision, made_without_a_number]


def test_all_facts_are_asked_for() -> None:
    assert {function.__name__ for function in GPU_FACTS} <= {name for program in PROGRAMS for name in program.__code__.co_names}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_another_gpu_is_the_current_one(gpus: SimpleNamespace, program) -> None:
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for captures, current in [(1, 0), (1, 0), (2, 1), (2, 1), (2, 0)]:
        gpus.current = current
        got, expected = compiled(X), program(X)
        if program is made_without_a_number:
            assert got[0].is_meta
            got, expected = got[1], expected[1]
        assert got.dtype is expected.dtype and torch.equal(got, expected)
        assert capture.stats(compiled).captures == captures


def test_what_does_not_ask_does_not_depend_on_it(gpus: SimpleNamespace) -> None:
    compiled = capture.compile(lambda x: x * 2, backend="eager", fullgraph=True)
    for gpus.current in (0, 0, 1):
        assert torch.equal(compiled(X), X * 2)
    assert capture.stats(compiled).captures == 1
