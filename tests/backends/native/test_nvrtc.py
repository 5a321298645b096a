"""The CUDA compilers: machine code without a GPU, what the log says of kernels, and one sentence for each way to fail."""
from __future__ import annotations

from pathlib import Path

import pytest

from capture.backends.native import nvrtc
from capture.backends.native.disk_cache import DiskCache
from capture.errors import ToolchainError

TWICE = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * 256 + threadIdx.x] *= 2; }\n'
HUNGRY = """
extern "C" __global__ void __launch_bounds__(1024) hungry(double* x) {
  __shared__ double part[64];
  double held[96];
  for (int i = 0; i < 96; i++) held[i] = x[i * 1024 + threadIdx.x];
  part[threadIdx.x & 63] = held[5];
  __syncthreads();
  for (int k = 0; k < 9; k++) for (int i = 0; i < 96; i++) held[i] = held[i] * held[(i + 7) % 96] + part[i & 63];
  for (int i = 0; i < 96; i++) x[i * 1024 + threadIdx.x] = held[i];
}
extern "C" __global__ void idle() {}
"""
MULTIPLY_ADD = 'extern "C" __global__ void muladd(float* x) { x[0] = x[1] * x[2] + x[3]; }\n'


def compilers() -> list[nvrtc.CudaCompiler]:
    """An NVRTC and an nvcc, where there are such."""
    found = {}
    for make, paths in ((nvrtc.nvrtc, nvrtc.libraries()), (nvrtc.nvcc, nvrtc.programs())):
        for path in paths:
            try:
                compiler = make(path)
            except ToolchainError:
                continue
            found.setdefault(compiler.name.split()[0], compiler)
    return list(found.values())


@pytest.fixture(params=["NVRTC", "nvcc"])
def compiler(request) -> nvrtc.CudaCompiler:
    found = {one.name.split()[0]: one for one in compilers()}
    if request.param not in found:
        pytest.skip(f"there is no {request.param} here: pip install nvidia-cuda-nvrtc, or install a CUDA toolkit")
    return found[request.param]


def test_programs_become_machine_code_and_the_log_is_read(compiler: nvrtc.CudaCompiler) -> None:
    twice, hungry = compiler.compile([TWICE, HUNGRY], "sm_90")
    assert twice.code.startswith(b"\x7fELF") and list(twice.kernels) == ["twice"] and b"twice" in twice.code
    assert 0 < twice.kernels["twice"].registers < 32 and twice.kernels["twice"].spill_stores == 0
    assert set(hungry.kernels) == {"hungry", "idle"}
    assert hungry.kernels["hungry"].shared == 512 and hungry.kernels["idle"].shared == 0
    assert hungry.kernels["hungry"].spill_stores > 0 and hungry.kernels["hungry"].spill_loads > 0
    assert hungry.kernels["idle"].spill_stores == 0


def test_bounds_that_make_a_kernel_spill_are_dropped(compiler: nvrtc.CudaCompiler) -> None:
    def bounded(kernel: str, bounds: str) -> str:
        return '#include "cuda_kernel.h"\n' + kernel.replace("__launch_bounds__(1024)", bounds)
    few = bounded(HUNGRY, "CAPTURE_BOUNDS(128, 16)")
    _, log = compiler.compile_one(few, "sm_90")
    assert nvrtc.usages(log)["hungry"].registers <= 32
    free, all_, twice = compiler.compile([bounded(HUNGRY, "__launch_bounds__(128)"), few, bounded(
        TWICE.replace("void", "void __launch_bounds__(1024)"), "CAPTURE_BOUNDS(1024, 1)")], "sm_90")
    assert all_.kernels == free.kernels and all_.kernels["hungry"].registers > 100 and not twice.spills


def test_nothing_to_compile_is_nothing(compiler: nvrtc.CudaCompiler) -> None:
    assert compiler.compile([], "sm_90") == []


def test_mistakes_are_told(compiler: nvrtc.CudaCompiler) -> None:
    with pytest.raises(ToolchainError, match=r"failed with `kernels\.cu\(2\): error.*`; .*report this with the log") as raised:
        compiler.compile([TWICE, TWICE + "syntax error"], "sm_90")
    assert "error" in raised.value.log
    with pytest.raises(ToolchainError, match="failed with"):
        compiler.compile([TWICE], "sm_1")


def test_what_was_compiled_is_kept_on_disk(compiler: nvrtc.CudaCompiler, tmp_path: Path) -> None:
    cache, compiled = DiskCache(tmp_path / "cache", 1 << 20), []

    def counted(source: str, architecture: str) -> tuple[bytes, str]:
        compiled.append((source, architecture))
        return compiler.compile_one(source, architecture)
    counting = nvrtc.CudaCompiler(compiler.name, compiler.path, compiler.major, counted)
    first = counting.compile([TWICE], "sm_80", cache)
    assert counting.compile([TWICE], "sm_80", cache) == first and len(compiled) == 1
    counting.compile([TWICE], "sm_90", cache)
    counting.compile([MULTIPLY_ADD], "sm_80", cache)
    assert len(compiled) == 3


def test_products_and_sums_are_not_contracted(compiler: nvrtc.CudaCompiler) -> None:
    """Contracted, it would be shorter by an instruction."""
    def code(text: str) -> bytes:
        return compiler.compile([text], "sm_90")[0].code
    apart = MULTIPLY_ADD.replace("x[1] * x[2] + x[3]", "__fadd_rn(__fmul_rn(x[1], x[2]), x[3])")
    fused = MULTIPLY_ADD.replace("x[1] * x[2] + x[3]", "__fmaf_rn(x[1], x[2], x[3])")
    assert machine_code(code(MULTIPLY_ADD)) == machine_code(code(apart)) != machine_code(code(fused))


def machine_code(cubin: bytes) -> bytes:
    """The section `.text.muladd` of an ELF file."""
    def number(place: int, width: int) -> int:
        return int.from_bytes(cubin[place:place + width], "little")
    table, width, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    base = number(table + names * width + 24, 8)
    for place in range(table, table + width * count, width):
        name = cubin[base + number(place, 4):].partition(b"\0")[0]
        if name == b".text.muladd":
            return cubin[number(place + 24, 8):][:number(place + 32, 8)]
    raise AssertionError("there is no such section")


# --- what is missing or broken

@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is found but what tests put into this folder: as a library, or as a program on PATH."""
    monkeypatch.setattr(nvrtc, "libraries", lambda: map(str, sorted(tmp_path.glob("*.so"))))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_homes", list)
    return tmp_path


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_there_is_none(nowhere: Path) -> None:
    with pytest.raises(ToolchainError, match=r"^no CUDA compiler was found \(looked for NVRTC and nvcc\); run `pip "):
        nvrtc.find_cuda_compiler()


def test_there_is_none_that_works(nowhere: Path) -> None:
    (nowhere / "libnvrtc.so").write_text("no library")
    script(nowhere / "nvcc", "echo nothing")
    with pytest.raises(ToolchainError, match=r"^no CUDA compiler that works \(.*libnvrtc.so cannot be .*; .*nvcc does not tell"):
        nvrtc.find_cuda_compiler()


@pytest.mark.parametrize(("version", "name"), [(12, "nvcc 12.1.105"), (13, "nvcc 13.0.88"), (14, "nvcc 12.1.105")])
def test_torchs_own_version_is_preferred(version: int, name: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("12.1.105", "13.0.88"):
        script(nowhere / f"nvcc{text}", f"echo Cuda compilation tools, release {text[:4]}, V{text}")
    monkeypatch.setattr(nvrtc, "programs", lambda: [str(nowhere / "nvcc12.1.105"), str(nowhere / "nvcc13.0.88")])
    assert nvrtc.find_cuda_compiler(version).name == name


def test_a_log_that_says_too_little_is_told() -> None:
    with pytest.raises(ToolchainError, match="does not say what kernel k uses; report this"):
        nvrtc.usages("ptxas info    : Compiling entry function 'k' for 'sm_90'\n")
    assert nvrtc.usages("") == {}
