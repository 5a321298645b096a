"""Builds the extension `capture._C`. Needs torch and a C++20 compiler: `pip install --no-build-isolation -e .`"""
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("capture/csrc")
FRAME_VIEWS = {(3, 11): "frame_view_311.c", (3, 12): "frame_view_312.c"}

if sys.version_info[:2] not in FRAME_VIEWS:
    raise RuntimeError(f"capture supports Python 3.11 and 3.12; this is {sys.version.split()[0]}")

WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type", "-Wno-unused-parameter"]

# With -fopenmp at::parallel_for runs on several threads. The linker is not given it: the functions are of torch's own libgomp.
setup(
    ext_modules=[
        CppExtension(
            "capture._C",
            [*map(str, sorted(CSRC.glob("*.cpp"))), str(CSRC / "dict_probe.c"), str(CSRC / FRAME_VIEWS[sys.version_info[:2]])],
            depends=[str(path) for path in sorted(CSRC.glob("*.h"))],
            extra_compile_args={"cxx": ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fopenmp", *WARNINGS]},
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
