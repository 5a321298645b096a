"""Builds the extensions `capture._C` and `capture._process`, and the library `libcapture_package.so`, which runs packages without
Python. Needs torch and a C++20 compiler: `pip install --no-build-isolation -e .`

With CAPTURE_SANITIZE, a list for `-fsanitize=` such as `address,undefined`, their code checks itself: docs/processes.md says how
tests are run with such a build.
"""
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.errors import CompileError
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths, library_paths

CSRC = Path("capture/csrc")
TORCH_HEADERS = CSRC / "torch_headers.h"
PROCESS = CSRC / "process"      # what `capture._process` is made of …
PACKAGE = CSRC / "package"      # … and this, with what runs plans, the library; all else is `capture._C`
LIBRARY = "libcapture_package"
RUNS_PLANS = ("executor/leaves", "executor/literals", "executor/memory", "executor/plan", "executor/run", "cuda/driver",
              "cuda/launcher")
FRAME_VIEWS = {(3, 11): "frame_view_311.c", (3, 12): "frame_view_312.c", (3, 13): "frame_view_313.c"}

if sys.version_info[:2] not in FRAME_VIEWS:
    raise RuntimeError(f"capture supports Python 3.11 to 3.13; this is {sys.version.split()[0]}")

C_FILES = "dict_probe.c", "finalizer.c", FRAME_VIEWS[sys.version_info[:2]]
SANITIZE = os.environ.get("CAPTURE_SANITIZE", "")
# The table of types that `vptr` asks for is hidden in torch's libraries.
SANITIZERS = [f"-fsanitize={SANITIZE}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all", "-g1", "-O1"] if SANITIZE else []
JOBS = int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))     # the variable that torch's own builds go by
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-Wno-unused-parameter"]


class ParallelBuild(BuildExtension):
    """Compiles the files of an extension side by side, and before them the headers of torch, which take longer than most files."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile(*args: Any, **kwargs: Any) -> list[str]:
            compile_one, calls = self.compiler._compile, list[tuple[Any, ...]]()
            self.compiler._compile = lambda *call: calls.append(call)
            try:
                objects = compile_all(*args, **kwargs)
            finally:
                self.compiler._compile = compile_one
            with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
                if not self.is_library:         # torch_headers.h has Python's
                    calls = with_torch_headers(compile_one, calls, Path(folder))
                jobs = [pool.submit(compile_one, *call) for call in calls]
                try:
                    for job in jobs:
                        job.result()
                finally:
                    for job in jobs:
                        job.cancel()
            return objects
        self.compiler.compile = compile
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        self.is_library = ext.name.endswith(LIBRARY)
        super().build_extension(ext)

    def get_ext_filename(self, ext_name: str) -> str:
        *package, name = ext_name.split(".")
        return os.path.join(*package, f"{name}.so") if name == LIBRARY else super().get_ext_filename(ext_name)


def with_torch_headers(compile_one: Callable[..., None], calls: Sequence[tuple[Any, ...]], folder: Path) -> list[tuple[Any, ...]]:
    """The same calls, in which files that include headers of torch begin with TORCH_HEADERS, precompiled in `folder`: 500 MB, for
    which there may be no room."""
    chosen = [call for call in calls if includes_torch(Path(call[1]))]
    if not chosen:
        return list(calls)
    _, _, _, arguments, *rest = chosen[0]
    header = folder / TORCH_HEADERS.name
    shutil.copy(TORCH_HEADERS, header)          # which the compiler reads itself if it cannot use what was made of it
    try:
        compile_one(f"{header}.gch", str(header), ".h", [*arguments, "-w", "-x", "c++-header"], *rest)
    except CompileError:
        return list(calls)
    return [(*call[:3], [*call[3], "-include", str(header)] if call in chosen else call[3], *call[4:]) for call in calls]


@functools.cache
def includes_torch(file: Path) -> bool:
    """Whether a file includes large headers of torch, itself or by headers of ours. Those of c10 are small."""
    included = re.findall(r'^#include [<"](.+)[>"]', file.read_text(), re.MULTILINE)
    return any(name.startswith(("ATen/", "torch/csrc/")) or (CSRC / name).exists() and includes_torch(CSRC / name)
               for name in included)


FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fopenmp", *WARNINGS, *SANITIZERS]

# With -fopenmp at::parallel_for runs on several threads. The linker is not given it: the functions are of torch's own libgomp.
setup(
    ext_modules=[
        CppExtension(
            "capture._C",
            [*(str(path) for path in sorted(CSRC.rglob("*.cpp")) if PACKAGE not in path.parents),
             *(str(CSRC / "cpython" / name) for name in C_FILES)],
            depends=[str(path) for path in sorted(CSRC.rglob("*.h"))],
            include_dirs=[str(CSRC)],
            extra_compile_args={"cxx": FLAGS},
            extra_link_args=SANITIZERS,
        ),
        Extension(f"capture.{LIBRARY}",
                  [*map(str, sorted(PACKAGE.glob("*.cpp"))), *(str(CSRC / f"{name}.cpp") for name in RUNS_PLANS)],
                  depends=[str(path) for path in sorted(CSRC.rglob("*.h"))], include_dirs=[str(CSRC), *include_paths()],
                  library_dirs=library_paths(), libraries=["c10", "torch_cpu", "torch"], language="c++",
                  extra_compile_args={"cxx": FLAGS}, extra_link_args=["-Wl,-rpath,$ORIGIN/../torch/lib", *SANITIZERS]),
        Extension("capture._process", [str(PROCESS / "process.c"), str(PROCESS / "line.c")],
                  depends=[str(PROCESS / "line.h")], include_dirs=[str(CSRC)],
                  extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-pthread", *WARNINGS, *SANITIZERS],
                  extra_link_args=SANITIZERS),
    ],
    cmdclass={"build_ext": ParallelBuild.with_options(use_ninja=False)},
)
