"""Settings of torch that a program reads and others change between its calls: a hit returns their current values."""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import capture

X = torch.ones(2)
backends = torch.backends
ATTRIBUTES = [
    *((backends.cudnn, name, value) for name, value in (
        ("benchmark", True), ("deterministic", True), ("enabled", False), ("allow_tf32", False), ("benchmark_limit", 3))),
    *((backends.cuda.matmul, name, value) for name, value in (
        ("allow_tf32", True), ("allow_fp16_reduced_precision_reduction", False), ("fp32_precision", "tf32"),
        ("allow_bf16_reduced_precision_reduction", False), ("allow_fp16_accumulation", True))),
    (backends.mkldnn, "enabled", False), (backends.mkldnn, "deterministic", True), (backends, "fp32_precision", "ieee"),
    (backends.opt_einsum, "enabled", False), (backends.opt_einsum, "strategy", "greedy"),
    (torch.utils.deterministic, "fill_uninitialized_memory", False)]
autograd: Any = torch._C._autograd
invariants = torch.sparse.check_sparse_tensor_invariants
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {     # how it is read and set, and another value
    "precision of products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    "flash attention": (backends.cuda.flash_sdp_enabled, backends.cuda.enable_flash_sdp, False),
    "attention in half precision": (backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
                                    backends.cuda.allow_fp16_bf16_reduction_math_sdp, True),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "debugging determinism": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
    "all warnings": (torch.is_warn_always_enabled, torch.set_warn_always, True),
    "threads": (torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "NaN as an anomaly": (torch.is_anomaly_check_nan_enabled, lambda on: torch.autograd.set_detect_anomaly(False, on), False),
    "sparse tensors": (invariants.is_enabled, lambda on: invariants.enable() if on else invariants.disable(), True),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device),
                       torch.device("meta")),
    "autocast on GPUs": (torch.get_autocast_gpu_dtype, lambda dtype: torch.set_autocast_dtype("cuda", dtype), torch.bfloat16),
    "hooks of saved tensors": (autograd._saved_tensors_hooks_is_enabled, lambda on: (
        autograd._saved_tensors_hooks_enable() if on else autograd._saved_tensors_hooks_disable("none")), False),
    "views replayed": (torch._C._is_view_replay_enabled, torch._C._set_view_replay_enabled, True),
    "threads of backward passes": (torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled, False),
    **{f"{getattr(owner, '__name__', type(owner).__name__)}.{name}": (
        functools.partial(getattr, owner, name), functools.partial(setattr, owner, name), value)
       for owner, name, value in ATTRIBUTES}}


@pytest.fixture(autouse=True)
def settable() -> Iterator[None]:
    """Settings may warn that they are experimental, and torch's own test suite, once imported, forbids to assign to some."""
    with warnings.catch_warnings(), backends.__allow_nonbracketed_mutation():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_read_as_it_is(setting: str) -> None:
    """At most one capture per value; the first is reused."""
    read, change, other = SETTINGS[setting]
    before = read()
    compiled = capture.compile(lambda x: (x * 2, read()), fullgraph=True, backend="eager")
    try:
        for value in before, before, other, other, before, before:
            change(value)
            assert repr(compiled(X)[1]) == repr(read()) == repr(value)
    finally:
        change(before)
    stats = capture.stats(compiled)
    assert stats.captures <= 2 and stats.captures + stats.hits == 6


def test_hooks_that_the_trace_itself_refuses() -> None:
    """torch.func has hooks of saved tensors refused within a level: what is asked there is not how it was at entry."""
    def program(x):
        def inner(y):
            return (y ** 3).sum() * (2 if autograd._saved_tensors_hooks_is_enabled() else 3)
        return torch.func.grad(inner)(x), torch.func.grad(lambda y: torch.func.grad(inner)(y).sum())(x)
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        for one, other in zip(compiled(X), program(X), strict=True):
            assert torch.equal(one, other)
    assert capture.stats(compiled).captures == 1
