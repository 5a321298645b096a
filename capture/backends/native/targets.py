"""What is between a fused program and the machine code of its kernels, for each kind of device: schedule, dialect, compiler."""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from capture.backends.native import nvrtc, toolchain
from capture.backends.native.disk_cache import default_cache
from capture.backends.native.ir import Kernel, Program
from capture.backends.native.job import Job
from capture.backends.native.memory import allocated
from capture.backends.native.render import CPU, CUDA, CUDA_ON_CPU
from capture.backends.native.render.statements import Function
from capture.backends.native.render.target import Dialect
from capture.backends.native.schedule import batches, cpu, cuda
from capture.backends.native.signature import Unsupported

Library = bytes | tuple[bytes, ...]         # a shared library for the processor, cubins for a GPU
Build = Callable[[Sequence[str]], Library]


@dataclass(frozen=True)
class Target:
    """prepare: what the schedule needs done to a program. schedule: given such a program, and the buffers whose memory is taken
    throughout or until the end, the program as it runs and the functions of its kernels. build: given the job, the compiler of
    units of text in `dialect`; raises ToolchainError where there is none."""

    prepare: Callable[[Program], Program]
    schedule: Callable[[Program, Collection[str]], tuple[Program, list[Function]]]
    dialect: Dialect
    build: Callable[[Job], Build]


def _for_processor(job: Job) -> Build:
    compiler = toolchain.find_compiler()
    _ = compiler.flags      # which are found by compiling, and kept: now, while the graph is traced
    return compiler.compile


def _for_gpu(job: Job) -> Build:
    compiler = nvrtc.find_cuda_compiler(job.options.get("cuda_major"))
    architecture, cache = str(job.options["architecture"]), default_cache()

    def build(sources: Sequence[str]) -> Library:
        return tuple(cubin.code for cubin in compiler.compile(sources, architecture, cache))
    return build


def _on_processor(program: Program, lasting: Collection[str]) -> tuple[Program, list[Function]]:
    return program, [cpu.schedule(statement) for statement in program.body if isinstance(statement, Kernel)]


def _on_device(program: Program, lasting: Collection[str]) -> tuple[Program, list[Function]]:
    inputs = {name for name in program.inputs if isinstance(name, str)}
    by_value, unaligned = program.hosts & inputs, inputs | allocated(program)
    return batches.scheduled(program, lambda kernel: cuda.schedule(kernel, by_value, unaligned), lasting)


PROCESSOR = Target(lambda program: program, _on_processor, CPU, _for_processor)
EMULATOR = Target(cuda.prepared, _on_device, CUDA_ON_CPU, _for_processor)
GPU = Target(cuda.prepared, _on_device, CUDA, _for_gpu)
BY_DEVICE = {"cpu": PROCESSOR, "cuda": GPU}
BY_NAME = {"cuda-on-cpu": EMULATOR}         # as CAPTURE_TARGET says, for graphs on the processor


def target_of(job: Job) -> Target:
    """Raises Unsupported for a CAPTURE_TARGET that there is not."""
    name = job.options.get("target", "")
    if name and name not in BY_NAME:
        raise Unsupported(f"CAPTURE_TARGET names {name!r}; it can be {', '.join(BY_NAME)}")
    return BY_NAME[str(name)] if name and job.device.type == "cpu" else BY_DEVICE[job.device.type]
