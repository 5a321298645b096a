"""Compiles graphs whose inputs are on cuda:0, on a machine without it: `test_absent_gpu.py` runs this, in a process that has loaded
`fake_cuda/hooks.cpp` before torch."""
from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":      # before torch is imported: it asks for its hooks once
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(Path(importlib.util.find_spec("torch").origin).parent / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from capture.backends.aot.unused_gpus import leave_gpus_alone
from capture.backends.native import nvrtc
from capture.backends.native.artifact import Artifact, Compiled
from capture.backends.native.compiler import compile_job
from capture.backends.native.job import Job, Modes, TensorSpec
from capture.backends.native.signature import Unsupported
from capture.config import CACHE

GPU = torch.device("cuda:0")
ARCHITECTURES = "sm_80", "sm_90", "sm_100"


def compiled(function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], on_processor: Sequence[int] = (),
             architecture: str = "sm_90") -> Artifact:
    """The artifact of a function of tensors on the GPU, but for those at the places `on_processor`."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = [fx.Proxy(graph.placeholder(f"x{place}"), tracer) for place in range(len(tensors))]
    graph.output(tuple(result.node for result in function(*proxies)))
    described = tuple(TensorSpec.of(tensor) if place in on_processor else replace(TensorSpec.of(tensor), device=GPU)
                      for place, tensor in enumerate(tensors))
    return compile_job(Job(fx.GraphModule(nn.Module(), graph), described, Modes.current(),
                           {"architecture": architecture, "cuda_major": 13}))


def floats(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of which no values are asked."""
    return torch.empty(*shape, dtype=dtype).requires_grad_(grad)


def operators(part: Compiled) -> list[str]:
    return [step.op for step in part.plan.steps if step.kind == "extern"]


def launched(part: Compiled) -> list[object]:
    return [step for step in part.plan.steps if step.kind == "launch"]


def usages() -> list[nvrtc.Usage]:
    """What the kernels use that were compiled so far."""
    return [usage for log in LOGS for usage in nvrtc.usages(log).values()]


LOGS: list[str] = []
TEXTS: list[str] = []
PROGRAMS: dict[str, tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]] = {
    "linear": (lambda x, w, b: (F.gelu(x @ w + b),), [floats(64, 32), floats(32, 64, grad=True), floats(64, grad=True)]),
    "normalised": (lambda x, w, b: (F.layer_norm(x, (1024,), w, b),), [floats(512, 1024, grad=True), floats(1024, grad=True),
                                                                       floats(1024, grad=True)]),
    "softmax": (lambda x: (x.softmax(-1),), [floats(256, 2048)]),
    "pointwise": (lambda x, y: (x.tanh() * y + 1,), [floats(1024, 1024), floats(1024)]),
    "half": (lambda x, y: (F.silu(x) * y,), [floats(1024, 1024, dtype=torch.bfloat16), floats(1024, 1024, dtype=torch.bfloat16)]),
    "columns": (lambda x: (x.sum(0), x.amax(0)), [floats(8192, 1024)]),
    "loss": (lambda x, i: (F.cross_entropy(x, i),), [floats(64, 5000, grad=True), torch.randint(5000, (64,))]),
    "attention": (lambda q, k, v: (F.scaled_dot_product_attention(q, k, v),), [floats(2, 4, 64, 32, grad=True) for _ in range(3)]),
    "convolution": (lambda x, w, m, v: (F.batch_norm(F.conv2d(x, w), m, v, training=True).relu(),),
                    [floats(4, 3, 20, 20), floats(8, 3, 3, 3, grad=True), torch.zeros(8), torch.ones(8)]),
}


def test_programs() -> None:
    """All of them are compiled for all architectures; plans are the GPU's, kernels are cubins, few spill."""
    for architecture in ARCHITECTURES:
        for function, tensors in PROGRAMS.values():
            artifact = compiled(function, tensors, architecture=architecture)
            for part in (artifact.forward, *artifact.backward):
                assert part.device == "cuda:0" and (part.library is None or all(cubin[:4] == b"\x7fELF" for cubin in part.library))
    found = usages()
    assert len(found) > 60 and all(usage.spill_loads == 0 for usage in found), [usage for usage in found if usage.spill_loads]


def test_16_bytes_at_a_time() -> None:
    TEXTS.clear()
    for name in ("normalised", "softmax", "pointwise", "half", "columns"):
        artifact = compiled(*PROGRAMS[name])
        first = launched(artifact.forward)[0]
        fits, = [entry.fits for entry in first.entries]
        assert [variant.symbol.endswith("_wide") for variant in first.variants] == [True, False], name
        assert fits[0].aligned and not fits[1].aligned
    assert sum("load_elements<4>" in text for text in TEXTS) >= 4 and any("load_elements<8>" in text for text in TEXTS)


def test_registers_leave_room_for_other_blocks() -> None:
    """Kernels whose threads wait for each other: 1024 threads on a multiprocessor, and nothing is spilled for it."""
    for dtype in (torch.float32, torch.bfloat16):
        for architecture in ARCHITECTURES:
            place = len(LOGS)
            step, = launched(compiled(lambda x: (x.softmax(-1),), [floats(4096, 16384, dtype=dtype)], (), architecture).forward)
            assert {variant.threads for variant in step.variants} == {512} and "CAPTURE_BOUNDS(512, 2)" in TEXTS[-1]
            for usage in nvrtc.usages(LOGS[place]).values():
                assert usage.registers <= 64 and not usage.stack


def test_rows_of_a_large_vocabulary() -> None:
    """Nothing of the size of the scores is written but the result."""
    artifact = compiled(lambda x: (x.softmax(-1),), [floats(4096, 131072, dtype=torch.bfloat16)])
    plan = artifact.forward.plan
    assert [slot.kind for slot in plan.slots] == ["input", "fresh"] and plan.numbers[plan.arena] == ("const", 0)


def test_lists_of_tensors() -> None:
    """Kernels that differ in buffers and sizes are launched together, and read their parameters and 16 bytes from there."""
    def program(*tensors: Tensor) -> tuple[Tensor, ...]:
        for weight, gradient in zip(tensors[::2], tensors[1::2]):
            weight.mul_(0.99).add_(gradient, alpha=-0.1)
        return ()
    before, place = len(LOGS), len(TEXTS)
    step, = launched(compiled(program, [floats(40 + number // 2) for number in range(60)]).forward)
    assert len(step.entries) == 30 and step.room >= 30 and len(LOGS) == before + 1
    assert "Table<" in TEXTS[place] and "load_elements<4>" in TEXTS[place]
    assert all(usage.stack == 0 for usage in nvrtc.usages(LOGS[-1]).values())        # no copy of the table


def test_dropout_is_eager_modes_operator() -> None:
    """Which number an element gets depends on the kernel that draws it."""
    artifact = compiled(lambda x: (F.dropout(x * 2, 0.1) + 1,), [floats(64, 64, grad=True)])
    assert operators(artifact.forward) == ["aten::native_dropout"]


def test_scatters_and_scans_are_atens() -> None:
    artifact = compiled(lambda x, i, y: (x.index_add(0, i, y), y.cumsum(0)), [floats(9, 5), torch.randint(9, (40,)), floats(40, 5)])
    assert sorted(operators(artifact.forward)) == ["aten::cumsum", "aten::index_add"]


def test_what_comes_from_the_processor_and_goes_there() -> None:
    """`.to(device)` of inputs and of results, and what is computed on the processor, are operators of the plan."""
    def program(x: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        moved = (batch * 2).to(GPU)
        return (x * moved).sum(0).to("cpu"), moved.exp()
    artifact = compiled(program, [floats(64, 64), floats(64)], on_processor=[1])
    plan = artifact.forward.plan
    assert operators(artifact.forward) == ["aten::mul", "aten::_to_copy", "aten::_to_copy"]
    multiplied = next(step for step in plan.steps if step.kind == "extern")
    assert multiplied.overload == "Scalar"
    assert [plan.slots[arg[1]].kind for arg in multiplied.args if arg[0] == "tensor"] == ["host"]
    assert len(launched(artifact.forward)) == 1
    assert operators(compiled(lambda x: (x.sum().cpu(),), [floats(64, 64)]).forward) == ["aten::_to_copy"]


def test_numbers_on_the_processor() -> None:
    """A tensor of one element on the CPU is passed by value; others cannot take part."""
    artifact = compiled(lambda x, s: (x * s,), [floats(64, 64), torch.tensor(2.0)], on_processor=[1])
    assert [slot.kind for slot in artifact.forward.plan.slots] == ["input", "host", "fresh"]
    assert "float buffer" in TEXTS[-1]
    there = compiled(lambda x, s: ((s * x.sum().cpu()).to(GPU) + x,), [floats(64, 64), floats(64)], on_processor=[1])
    assert operators(there.forward) == ["aten::_to_copy", "aten::mul", "aten::_to_copy"]
    number = torch.tensor(2.0)
    for function, others, message in (
            (lambda x, s: (x * s.sum(),), [floats(64)], "takes part"), (lambda x, s: (x * s, s * 2), [number], "is a result"),
            (lambda x, s: (x * s,), [torch.tensor(1 + 2j)], "takes part"),
            (lambda x, s, t: (x * (s * (t + 1)).to(GPU),), [floats(64), number], "computed on the CPU")):
        try:
            compiled(function, [floats(64, 64), *others], on_processor=[1, 2])
        except Unsupported as error:
            assert message in str(error), str(error)
        else:
            raise AssertionError("compiled")


def main() -> None:
    leave_gpus_alone()
    compile_one = nvrtc.CudaCompiler._cubin

    @functools.cache        # several tests have the same kernels
    def compiled_once(self: nvrtc.CudaCompiler, source: str, architecture: str) -> nvrtc.Cubin:
        return compile_one(self, source, architecture, None)

    def noting(self: nvrtc.CudaCompiler, source: str, architecture: str, cache: None) -> nvrtc.Cubin:
        cubin = compiled_once(self, source, architecture)
        LOGS.append(cubin.log)
        TEXTS.append(source)
        return cubin
    nvrtc.CudaCompiler._cubin = noting
    with CACHE.set(0):
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                print(name, flush=True)
                test()
    print(f"compiled {len(LOGS)} programs, {max(usage.registers for usage in usages())} registers at most")


if __name__ == "__main__":
    main()
