"""The compiler of CUDA kernels: finds NVRTC or nvcc, and compiles source text to the machine code of one architecture.

Neither a GPU nor a driver is needed. NVRTC is a library. It takes 60 to 440 ms for a kernel, a sixth of nvcc's time, in proportion
to the size of a program: so each unique kernel is a program, and threads compile several at a time.
"""
from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capture.backends.native import toolchain
from capture.backends.native.disk_cache import DiskCache, key_of
from capture.errors import ToolchainError

OPTIONS = ("--fmad=false", "--std=c++17")       # products and sums are contracted only where the text says so
BOUNDS = "CAPTURE_BOUNDS("                          # in a program: a kernel of it may have so many registers only
ALL_REGISTERS = "#define ALL_REGISTERS\n"         # before a program: its kernels may have as many as they like (`cuda_kernel.h`)
REMEDY = "run `pip install nvidia-cuda-nvrtc`, or set CUDA_HOME to a CUDA toolkit"
WHEELS = ("cu*/lib", "cuda_nvrtc/lib")          # of the package nvidia, since CUDA 13 and before

KERNEL = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", re.S)
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What a kernel needs: registers and bytes of the stack of each thread, bytes that it spills, shared memory of each block."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True)
class Cubin:
    """A program's machine code, its kernels by name, and all that the compiler said."""

    code: bytes
    kernels: dict[str, Usage]
    log: str

    @property
    def spills(self) -> int:
        """Bytes that its kernels' threads write to memory, and read again, for want of registers."""
        return sum(usage.spill_stores + usage.spill_loads for usage in self.kernels.values())


class Compiles(Protocol):
    """How one program is compiled, by one installation."""

    def __call__(self, source: str, architecture: str) -> tuple[bytes, str]:
        """Machine code and log. Raises ToolchainError."""


@dataclass(frozen=True)
class CudaCompiler:
    """A compiler that answers. `name`: NVRTC or nvcc, with the version; `path`: where it is; major: of its CUDA."""

    name: str
    path: str
    major: int
    compile_one: Compiles

    def __str__(self) -> str:
        return f"{self.name} ({self.path})"

    @property
    def identity(self) -> str:
        """All of the compiler and its options that decides what comes out, for the keys of caches."""
        return repr((self.name, OPTIONS))

    def compile(self, sources: Sequence[str], architecture: str, cache: DiskCache | None = None) -> list[Cubin]:
        """One cubin for each program, for an architecture such as sm_90; several are compiled side by side. Those that the cache
        has are taken from there, the others are put there.

        Raises ToolchainError, with one sentence that holds the remedy and the compiler's output as `log`.
        """
        return toolchain.each([functools.partial(self._cubin, source, architecture, cache) for source in sources])

    def _cubin(self, source: str, architecture: str, cache: DiskCache | None) -> Cubin:
        from capture.backends.native.serialization import FormatError, decode, encode  # with torch, which `doctor` may not have
        key = key_of(self.identity, architecture, source) if cache else ""
        if cache and (known := cache.get(key)) is not None:
            with suppress(FormatError):         # then it is compiled again
                return decode(Cubin, known)
        cubin = self._program(source, architecture)
        if cubin.spills and BOUNDS in source:
            cubin = min(cubin, self._program(ALL_REGISTERS + source, architecture), key=lambda one: one.spills)
        if cache:
            cache.keep(key, encode(cubin))      # of trouble with the folder the artifact will tell
        return cubin

    def _program(self, source: str, architecture: str) -> Cubin:
        code, log = self.compile_one(source, architecture)
        return Cubin(code, usages(log), log)


def usages(log: str) -> dict[str, Usage]:
    """What the assembler says of each kernel."""
    found = {}
    for name, text in KERNEL.findall(log):
        registers, stack, shared = REGISTERS.search(text), STACK.search(text), SHARED.search(text)
        if registers is None or stack is None:
            raise ToolchainError(f"the CUDA compiler does not say what kernel {name} uses; report this with the log of the "
                                 f"exception", log)
        frame, stores, loads = map(int, stack.groups())
        found[name] = Usage(int(registers[1]), frame, stores, loads, int(shared[1]) if shared else 0)
    return found


def find_cuda_compiler(major: int | None = None) -> CudaCompiler:
    """NVRTC of the wheel nvidia-cuda-nvrtc, of torch, of the toolkit that CUDA_HOME or CUDA_PATH names, or that the system knows;
    else nvcc. Preferred are those of the given major version of CUDA, torch's own, since an older driver may refuse what a newer
    compiler makes. Raises ToolchainError when there is none."""
    found, broken = [], []
    for path in libraries():
        try:
            found.append(nvrtc(path))
        except ToolchainError as error:
            broken.append(str(error).partition(";")[0])
    for path in programs():
        try:
            found.append(nvcc(path))
        except ToolchainError as error:
            broken.append(str(error).partition(";")[0])
    if not found:
        more = f" that works ({'; '.join(broken)})" if broken else ""
        raise ToolchainError(f"no CUDA compiler{more} was found (looked for NVRTC and nvcc); {REMEDY}")
    return next((compiler for compiler in found if compiler.major == major), found[0])


def libraries() -> Iterator[str]:
    """Where NVRTC may be: existing files, then names that the loader may know. Newest first in each place."""
    for package, patterns in (("nvidia", WHEELS), ("torch", ("lib",))):
        spec = importlib.util.find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec else []
        for pattern in patterns:
            yield from (file for place in places for folder in Path(place).glob(pattern) for file in _nvrtc_in(folder))
    for home in _homes():
        yield from (file for part in ("lib64", "lib") for file in _nvrtc_in(home / part))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


def programs() -> Iterator[str]:
    """Where nvcc is."""
    places = [str(home / "bin") for home in _homes()] + os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which("nvcc", path=os.pathsep.join(places))
    if found:
        yield os.path.abspath(found)


def _homes() -> list[Path]:
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return list(map(Path, [*named, "/usr/local/cuda"]))


def _nvrtc_in(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("libnvrtc[.-]*so*")), reverse=True) if folder.is_dir() else []


# NVRTC.

@functools.lru_cache(maxsize=8)
def nvrtc(path: str) -> CudaCompiler:
    """The library as a compiler. Raises ToolchainError where it cannot be loaded."""
    try:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins*so*")) if os.path.isabs(path) else []:
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)     # what NVRTC looks for where the loader looks
        library = Nvrtc(ctypes.CDLL(path))
        major, minor = library.version()
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"{path} cannot be loaded ({error}); {REMEDY}") from error
    return CudaCompiler(f"NVRTC {major}.{minor}", path, major, library)


class Nvrtc:
    """The functions of libnvrtc. They may be called by several threads, and ctypes lets go of the interpreter lock meanwhile."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "")
        return major.value, minor.value

    def __call__(self, source: str, architecture: str) -> tuple[bytes, str]:
        options = [f"--gpu-architecture={architecture}".encode(), b"--ptxas-options=-v", f"-I{toolchain.INCLUDE}".encode(),
                   *map(str.encode, OPTIONS)]
        program = ctypes.c_void_p()
        self._check(self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None), "")
        try:
            status = self._library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            self._check(status, log)
            return self._bytes("CUBIN", program), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), "")
        data = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, data), "")
        return data.raw

    def _check(self, status: int, log: str) -> None:
        if status:
            first = toolchain.complaint(log) or self._library.nvrtcGetErrorString(status).decode()
            raise ToolchainError(f"NVRTC failed with `{first}`; install another nvidia-cuda-nvrtc, or report this with the log of "
                                 f"the exception", log)


# nvcc.

@functools.lru_cache(maxsize=8)
def nvcc(path: str) -> CudaCompiler:
    """The program as a compiler. Raises ToolchainError where it does not answer as nvcc does."""
    answer = toolchain.run((path, "--version"), None, ANOTHER)
    release = re.search(r"release (\d+)\.(\d+), V([\d.]+)", answer)
    if release is None:
        raise ToolchainError(f"{path} does not tell its version; {ANOTHER}", answer)
    return CudaCompiler(f"nvcc {release[3]}", path, int(release[1]), Nvcc(path))


ANOTHER = "set CUDA_HOME to another CUDA toolkit, or run `pip install nvidia-cuda-nvrtc`"


@dataclass(frozen=True)
class Nvcc:
    """nvcc, a process for each program."""

    path: str

    def __call__(self, source: str, architecture: str) -> tuple[bytes, str]:
        with tempfile.TemporaryDirectory(prefix="capture-") as name:
            folder = Path(name)
            (folder / "kernels.cu").write_text(source)
            command = (self.path, "-cubin", f"-arch={architecture}", *OPTIONS, "-Xptxas=-v",
                       f"-I{toolchain.INCLUDE}", "kernels.cu", "-o", "kernels.cubin")
            log = toolchain.run(command, folder, ANOTHER)
            return (folder / "kernels.cubin").read_bytes(), log
