"""`python -m capture doctor`: what capture finds on this machine, and what each thing that it lacks costs."""
from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from capture import extensions
from capture.backends.native.disk_cache import OURS, DiskCache, default_cache, key_of
from capture.backends.native.nvrtc import find_cuda_compiler
from capture.backends.native.toolchain import find_compiler
from capture.errors import ToolchainError

WIDTH = 15                  # of the first column


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `cost`: what it costs if it is missing, and the remedy; empty if nothing is missing. broken:
    capture cannot work without it."""

    subject: str
    found: str
    cost: str = ""
    broken: bool = False

    def __str__(self) -> str:
        return f"{self.subject:<{WIDTH}} {self.found}" + (f"\n{'':<{WIDTH}} -> {self.cost}" if self.cost else "")


def examine() -> Iterator[Finding]:
    """All findings, in order; those that need torch only where it can be imported."""
    yield Finding("Python", f"{sys.version.split()[0]} ({sys.executable})")
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        yield Finding("torch", "none", f"nothing can be compiled: torch cannot be imported ({error}); install it", broken=True)
        return
    yield Finding("torch", f"{torch.__version__}, {build_of(torch)}")
    yield extension()
    yield compiler()
    yield cache()
    yield cuda_compiler(torch)
    yield gpus(torch)


def build_of(torch: ModuleType) -> str:
    """What a build of torch is for."""
    if torch.version.cuda:
        return f"for CUDA {torch.version.cuda}"
    return f"for ROCm {torch.version.hip}" if torch.version.hip else "for CPUs"


def extension() -> Finding:
    """Whether the extension modules fit."""
    try:
        extensions.check("_C")
    except ImportError as error:
        return Finding("extension", "unusable", f"nothing can be captured: {error}", broken=True)
    return Finding("extension", "fits this Python and torch")


def compiler() -> Finding:
    """The C++ compiler, which compiles an empty unit."""
    try:
        found = find_compiler()
        _ = found.flags
    except ToolchainError as error:
        return Finding("C++ compiler", "none that works", f"graphs run uncompiled: {error}", broken=True)
    version = re.search(r"^.*\bversion \d.*$", found.version, re.M)
    return Finding("C++ compiler", f"{found} ({version[0]})" if version else str(found))


def cache() -> Finding:
    """The folder of the disk cache, which is written to."""
    found = default_cache()
    if found.folder is None:
        return Finding("cache", "none", "graphs are compiled again in every process; unset CAPTURE_CACHE, or set CAPTURE_CACHE_DIR "
                                        "to a folder")
    key = key_of("doctor")
    trouble = found.keep(key, b"doctor")
    if not trouble and found.get(key) != b"doctor":
        trouble = f"the cache folder {found.folder} does not give back what was put there; set CAPTURE_CACHE_DIR to another folder"
    return Finding("cache", described(found), trouble)


def described(found: DiskCache) -> str:
    """The folder and how full it is."""
    sizes = []
    if found.folder is not None and os.path.isdir(found.folder) and os.access(found.folder, os.R_OK | os.X_OK):
        sizes = [item.stat(follow_symlinks=False).st_size for item in os.scandir(found.folder) if OURS.fullmatch(item.name)]
    return f"{found.folder}, {len(sizes)} entries, {sum(sizes) / 2**20:.1f} of {found.limit >> 20} MB"


def cuda_compiler(torch: ModuleType) -> Finding:
    """NVRTC or nvcc."""
    major = torch.version.cuda and int(torch.version.cuda.partition(".")[0])
    try:
        return Finding("CUDA compiler", str(find_cuda_compiler(major or None)))
    except ToolchainError as error:
        return Finding("CUDA compiler", "none", f"graphs on a GPU run uncompiled: {error}")


def gpus(torch: ModuleType) -> Finding:
    """The driver and its devices, if torch can use them."""
    try:
        version, devices = importlib.import_module("capture._C").cuda_devices()
    except (ImportError, RuntimeError) as error:
        return Finding("GPUs", "none", f"everything runs on the processor: {error}")
    names = ", ".join(f"{name} (sm_{major}{minor})" for name, major, minor in devices) or "none"
    found = f"{names}; the driver is for CUDA {version // 1000}.{version % 1000 // 10}"
    if devices and not torch.version.cuda:
        return Finding("GPUs", found, "everything runs on the processor: this build of torch is not for CUDA; install one that is")
    return Finding("GPUs", found)


def report(write: Callable[[str], object] = print) -> int:
    """Writes all findings; returns the exit status: 1 if capture cannot do its work here."""
    broken = False
    for finding in examine():
        write(str(finding))
        broken = broken or finding.broken
    write("capture cannot do its work here." if broken else "capture can do its work here.")
    return int(broken)
