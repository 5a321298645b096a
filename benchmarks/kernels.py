"""Fused kernels that are bound by memory: bytes moved per second, as a fraction of what copying memory reaches at the same time.

    python -m benchmarks.kernels [--pairs N] [--json FILE] [kernel …]

The bytes of a kernel are its inputs and outputs, each counted once. Per kernel: ours, and torch.compile's (inductor) beside it;
a ratio is the time of the kernel divided by the time in which `Tensor.copy_` would move as many bytes.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

import capture
from benchmarks.common import Ratio, arguments, paired, report, seconds

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4       # of mallopt(3)
ELEMENTS = 16 << 20         # of the large tensors: 64 MB
GOAL = 1 / 0.85             # of the time of a copy
WARM_UP = 25                # calls, the first of which are also served uncompiled, to see what is faster


@dataclass(frozen=True)
class Subject:
    """A function of tensors, and how many bytes it must read and write."""

    function: Callable[..., object]
    tensors: tuple[torch.Tensor, ...]
    bytes: int


def _gelu(columns: int = 1024) -> Subject:
    def bias_gelu_dropout(x: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x + bias) * mask * (1 / 0.9)

    x = torch.randn(ELEMENTS // columns, columns)
    return Subject(bias_gelu_dropout, (x, torch.randn(columns), torch.rand_like(x) > 0.1), ELEMENTS * (4 + 1 + 4))


def _layer_norm(columns: int = 1024) -> Subject:
    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)

    return Subject(layer_norm, (torch.randn(ELEMENTS // columns, columns), torch.rand(columns), torch.randn(columns)), ELEMENTS * 8)


def _softmax(columns: int = 1024) -> Subject:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    return Subject(softmax, (torch.randn(ELEMENTS // columns, columns),), ELEMENTS * 8)


def _adam() -> Subject:
    def adam(parameter: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-3)

    return Subject(adam, (*(torch.randn(ELEMENTS) for _ in range(3)), torch.rand(ELEMENTS)), ELEMENTS * 7 * 4)


def _column_sum(columns: int = 1024) -> Subject:
    def column_sum(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    return Subject(column_sum, (torch.randn(ELEMENTS // columns, columns),), ELEMENTS * 4)


def _transpose(columns: int = 4096) -> Subject:
    def transpose(x: torch.Tensor) -> torch.Tensor:
        return (x.t() * 2.0).contiguous()

    return Subject(transpose, (torch.randn(ELEMENTS // columns, columns),), ELEMENTS * 8)


def _argmax(columns: int = 4096) -> Subject:
    def argmax(x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1)

    return Subject(argmax, (torch.randn(ELEMENTS // columns, columns),), ELEMENTS * 4)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "bias+gelu+dropout": _gelu, "layernorm": _layer_norm, "softmax": _softmax, "adam": _adam, "column sum": _column_sum,
    "transpose": _transpose, "argmax": _argmax,
}


def measure(name: str, pairs: int) -> list[Ratio]:
    """Ours and inductor's, each against copies of as many bytes."""
    torch.manual_seed(0)
    subject = SUBJECTS[name]()
    source = torch.randn(ELEMENTS)
    target = torch.empty_like(source)
    ratios = []
    for who, compiled in (("capture", capture.compile(subject.function, backend="native", options={"background": False})),
                          ("inductor", torch.compile(subject.function))):
        with torch.no_grad():
            for _ in range(WARM_UP):
                compiled(*subject.tensors)
            ratios.append(paired(f"{name}, {who}", lambda run=compiled: seconds(lambda: run(*subject.tensors)),
                                 lambda: seconds(lambda: target.copy_(source)) * subject.bytes / (8 * ELEMENTS), pairs, GOAL))
        if who == "capture" and capture.stats(compiled).compiled != 1:
            raise RuntimeError(f"not compiled, or slower than uncompiled: {capture.stats(compiled)}")
    return ratios


def keep_memory() -> None:
    """Freed memory is used again; else each result of 64 MB is new memory, whose page faults take longer than the kernel."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def main() -> None:
    keep_memory()
    options = arguments(__doc__, SUBJECTS)
    ratios, failures = [], {}
    for name in options.names:
        try:
            ratios += measure(name, options.pairs)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    report("Kernels bound by memory: time / time of a copy of as many bytes", ratios, failures, options.json)


if __name__ == "__main__":
    main()
