"""How far functions of the kernel header are from exact, in units of the last place.

`python -m tests.backends.native.render.ulp [function …]` measures functions of floats over all 2^32 arguments (some minutes
each) and fails when one is farther off than `BOUNDS` says; the tests do the same with a sample.
"""
from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from capture.backends.native import ops
from capture.backends.native.toolchain import INCLUDE, find_compiler

# The largest errors over all floats, with FMA and without, rounded up. What is not named is computed in double: 0.51.
BOUNDS = {"exp": 1.2, "exp_nonpositive": 1.2, "exp2": 1.2, "expm1": 1.6, "log": 1.1, "log1p": 1.2, "tanh": 1.6, "erf": 1.99,
          "sigmoid": 1.98, "sin": 1.6, "cos": 1.6}
IN_DOUBLE = 0.51
NONPOSITIVE = {"exp_nonpositive"}       # functions that take no positive arguments

# Binary digits, the exponents of the least number and of the first power of two beyond the greatest.
FORMATS = {torch.float16: (11, -24, 16), torch.bfloat16: (8, -133, 128), torch.float32: (24, -149, 128),
           torch.float64: (53, -1074, 1024)}
CTYPES = {torch.bool: "bool", torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t",
          torch.int64: "int64_t", torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16",
          torch.float16: "half"}


def loop(symbol: str, expression: str, result: torch.dtype, *arguments: torch.dtype) -> str:
    """A C function `symbol(out, a, b, c, count)` which computes `expression` of x, y, z. One line, so its number names it."""
    loads = "".join(f"{CTYPES[dtype]} {value} = op_to<{CTYPES[dtype]}>(static_cast<const {_stored(dtype)}*>({array})[i]); "
                    for dtype, value, array in zip(arguments, "xyz", "abc", strict=False))
    return (f'extern "C" void {symbol}(void* out, const void* a, const void* b, const void* c, int64_t count) {{ '
            f'(void)a, (void)b, (void)c; _Pragma("omp simd") for (int64_t i = 0; i < count; ++i) {{ {loads}'
            f'static_cast<{_stored(result)}*>(out)[i] = op_to<{_stored(result)}>({expression}); }} }}\n')


def _stored(dtype: torch.dtype) -> str:
    return "boolean" if dtype == torch.bool else CTYPES[dtype]


def compile_loops(lines: list[str], library: Path, *flags: str) -> str:
    """Writes the shared library of some `loop`s, which start in line 2. Returns what the compiler said."""
    source = library.with_suffix(".cpp")
    source.write_text('#include "capture_kernel.h"\n' + "".join(lines))
    compiler = find_compiler()
    command = [*compiler.command, *compiler.flags.compile, *flags, f"-I{INCLUDE}", "-shared", source, "-o", library, "-lm"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def call(library: ctypes.CDLL, symbol: str, result: torch.dtype, *arguments: torch.Tensor) -> torch.Tensor:
    """Runs a loop over contiguous tensors of one length."""
    out = torch.empty(arguments[0].shape, dtype=result)
    pointers = [ctypes.c_void_p(argument.data_ptr()) for argument in arguments] + [None] * (3 - len(arguments))
    getattr(library, symbol)(ctypes.c_void_p(out.data_ptr()), *pointers, ctypes.c_int64(out.numel()))
    return out


def errors(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The distance of each result from the exact value (float64), in units of the result's last place there; infinite where one
    of them is NaN and the other is not, or where a zero has the wrong sign. Infinity counts as the next power of two.
    """
    digits, least, greatest = FORMATS[result.dtype]
    beyond = 2.0**greatest if greatest < 1024 else float("inf")
    exponent = torch.frexp(exact)[1].clamp(max=greatest)
    unit = torch.ldexp(torch.ones_like(exact), (exponent - digits).clamp(min=least))
    distance = (result.double().clamp(-beyond, beyond) - exact.clamp(-beyond, beyond)).abs() / unit
    distance = torch.where(result == exact, 0.0, distance)
    wrong = (result.isnan() != exact.isnan()) | (~exact.isnan() & (result == 0) & (result.signbit() != exact.signbit()))
    return torch.where(wrong, float("inf"), torch.where(exact.isnan(), 0.0, distance))


def main(names: list[str]) -> int:
    names = names or list(BOUNDS)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ulp.so"
        compile_loops([loop(name, f"op_{name}(x)", torch.float32, torch.float32) for name in names], path)
        library = ctypes.CDLL(str(path))
        for name in names:
            worst, place = 0.0, 0.0
            for start in range(-2**31, 2**31, 2**24):
                x = torch.arange(start, start + 2**24, dtype=torch.int32).view(torch.float32)
                x = -x.abs() if name in NONPOSITIVE else x
                wrong = errors(call(library, name, torch.float32, x), ops.OPS[name].meaning(x.double()))
                if wrong.max() > worst:
                    worst, place = wrong.max().item(), x[wrong.argmax()].item()
            failed |= worst > BOUNDS.get(name, IN_DOUBLE)
            print(f"{name:8} {worst:.3f} ulp at {float(place).hex()}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
