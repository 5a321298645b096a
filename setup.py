"""Builds the extensions `capture._C` and `capture._process`. Needs torch and a C++20 compiler:
`pip install --no-build-isolation -e .`

With CAPTURE_SANITIZE, a list for `-fsanitize=` such as `address,undefined`, their code checks itself: docs/processes.md says how
tests are run with such a build.
"""
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("capture/csrc")
PROCESS = CSRC / "process"      # what `capture._process` is made of; all else is `capture._C`
FRAME_VIEWS = {(3, 11): "frame_view_311.c", (3, 12): "frame_view_312.c", (3, 13): "frame_view_313.c"}

if sys.version_info[:2] not in FRAME_VIEWS:
    raise RuntimeError(f"capture supports Python 3.11 to 3.13; this is {sys.version.split()[0]}")

C_FILES = "dict_probe.c", FRAME_VIEWS[sys.version_info[:2]]
SANITIZE = os.environ.get("CAPTURE_SANITIZE", "")
# The table of types that `vptr` asks for is hidden in torch's libraries.
SANITIZERS = [f"-fsanitize={SANITIZE}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all", "-g1", "-O1"] if SANITIZE else []
JOBS = int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))     # the variable that torch's own builds go by
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-Wno-unused-parameter"]


class ParallelBuild(BuildExtension):
    """Compiles the files of an extension side by side: one takes seconds, for torch's headers."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile(*args: Any, **kwargs: Any) -> list[str]:
            compile_one, jobs = self.compiler._compile, list[Future[None]]()
            with ThreadPoolExecutor(JOBS) as pool:
                self.compiler._compile = lambda *one: jobs.append(pool.submit(compile_one, *one))
                try:
                    objects = compile_all(*args, **kwargs)
                    for job in jobs:
                        job.result()
                finally:
                    self.compiler._compile = compile_one
                    for job in jobs:
                        job.cancel()
            return objects
        self.compiler.compile = compile
        super().build_extensions()


# With -fopenmp at::parallel_for runs on several threads. The linker is not given it: the functions are of torch's own libgomp.
setup(
    ext_modules=[
        CppExtension(
            "capture._C",
            [*map(str, sorted(CSRC.rglob("*.cpp"))), *(str(CSRC / "cpython" / name) for name in C_FILES)],
            depends=[str(path) for path in sorted(CSRC.rglob("*.h"))],
            include_dirs=[str(CSRC)],
            extra_compile_args={"cxx": ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fopenmp", *WARNINGS, *SANITIZERS]},
            extra_link_args=SANITIZERS,
        ),
        Extension("capture._process", [str(PROCESS / "process.c"), str(PROCESS / "line.c")],
                  depends=[str(PROCESS / "line.h")], include_dirs=[str(CSRC)],
                  extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-pthread", *WARNINGS, *SANITIZERS],
                  extra_link_args=SANITIZERS),
    ],
    cmdclass={"build_ext": ParallelBuild.with_options(use_ninja=False)},
)
