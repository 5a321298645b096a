"""Every function of the kernel header, in every type, against eager; and whether loops over them are vectorised."""
import ctypes
import functools
import itertools
import math
import platform
import re

import pytest
import torch

from capture.backends.native import ops
from capture.backends.native.toolchain import find_compiler
from tests.backends.native.render import ulp

X86 = platform.machine() in ("x86_64", "AMD64")

# Functions whose last digits differ; all others are eager's to the bit. In double eager itself is off by up to 1 ulp.
INEXACT = set("""exp exp_nonpositive exp2 expm1 log log2 log10 log1p sigmoid sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh atan2 erf erfc erfinv lgamma digamma hypot pow""".split())
DOUBLE_BOUND = {name: 5.0 for name in INEXACT} | {"erfinv": 100.0, "digamma": 100.0, "lgamma": 100.0}
NEAR_ZEROS = {"lgamma": 1e-14, "digamma": 1e-14}      # absolute: relative digits are lost where the function is 0
DIVISIONS = ("floordiv", "truncdiv", "remainder", "fmod")


def symbol(name, dtype, result=None):
    return "_".join(str(part).removeprefix("torch.") for part in (name, dtype, result) if part is not None)


def dtypes_of(op, dtype):
    return (torch.bool, dtype, dtype) if op.name == "where" else (dtype,) * op.arity


def all_loops(dtypes):
    for op in ops.OPS.values():
        for dtype in sorted(op.accepts & dtypes, key=str):
            given = dtypes_of(op, dtype)
            result = ops.result_dtype(op.name, *given)
            if result is not None:
                yield ulp.loop(symbol(op.name, dtype), f"op_{op.name}({', '.join('xyz'[:op.arity])})", result, *given)
    for source, target in itertools.product(sorted(dtypes, key=str), repeat=2):
        yield ulp.loop(symbol("to", source, target), f"op_to<{ulp.CTYPES[target]}>(x)", target, source)


def built(folder, dtypes, *flags):
    path = folder / "header.so"
    quiet = "-Wno-unknown-pragmas", "-Wno-pass-failed"      # of clang: a loop that it does not vectorise
    assert "warning" not in ulp.compile_loops(list(all_loops(dtypes)), path, "-Wall", "-Wextra", *quiet, *flags)
    return ctypes.CDLL(str(path))


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return built(tmp_path_factory.mktemp("native"), ops.STORED)


@pytest.fixture(scope="module", params=["native", "sse2"])
def library(request, tmp_path_factory):
    """For functions of floats: also built without FMA and instructions for rounding."""
    if request.param == "native":
        return request.getfixturevalue("native")
    if not X86:
        pytest.skip("there is no such target")
    return built(tmp_path_factory.mktemp("sse2"), ops.FLOATS, "-march=x86-64")


@functools.cache
def sample(dtype, count, seed=0):
    """Special values, random bits, and numbers of ordinary size, in an order of no meaning."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits = torch.randint(-2**63, 2**63 - 1, (count // 2,), generator=generator).to(width).view(dtype)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        sizes = (0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, -1, -2, -7, -8, info.max, info.min, info.max - 1, info.min + 1)
        special = [value for value in sizes if info.min <= value <= info.max]
        small = torch.randint(max(-12, info.min), 12, (count,), generator=generator).to(dtype)
    else:
        info = torch.finfo(dtype)
        sizes = [0.0, 0.5, 1.5, 2.5, 1024.5, 0.1, 0.75, 1.0, 2.0, 3.0, math.pi, math.pi / 2, 10.0, 88.72, 89.0, 100.0, 103.9, 104.1,
                 709.7, 745.2, 1000.0, 2.0**24, 2.0**31, 65504.0, 65519.0, 65520.0, 1e10, 1e30, info.max, info.tiny, info.tiny / 8,
                 info.eps, math.inf, math.nan]
        special = [sign * size for size in sizes for sign in (1.0, -1.0)]
        small = torch.randn(count, generator=generator).mul(4).to(dtype)
    special = torch.tensor(special, dtype=torch.float64 if dtype.is_floating_point else torch.int64).to(dtype)
    pairs = (special.repeat_interleave(len(special)) if seed else special.repeat(len(special)))[:count // 2]
    result = torch.cat([pairs, bits, small])[:count]
    return torch.where(result.isnan(), math.nan, result) if dtype.is_floating_point else result     # no signalling NaNs


def same(result, expected):
    """Whether two tensors are equal to the bit, all NaNs being one."""
    if expected.dtype.is_floating_point:
        return torch.where(expected.isnan(), result.isnan(), (result == expected) & (result.signbit() == expected.signbit()))
    return result == expected


def assert_all(good, name, *tensors):
    if not good.all():
        where = (~good).nonzero().flatten()[:5]
        pytest.fail(f"{name}: {(~good).sum()} of {good.numel()} differ: {[[t[i].item() for t in tensors] for i in where]}")


@pytest.mark.parametrize("name", sorted(ops.OPS.keys() - INEXACT - {"to"}))
def test_exact_functions_are_those_of_eager(native, name):
    for dtype in ops.OPS[name].accepts:
        check_exact(native, name, dtype)


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", *DIVISIONS])
def test_rounding_without_instructions_for_it(library, name):
    for dtype in ops.FLOATS:
        check_exact(library, name, dtype)


def check_exact(library, name, dtype):
    op = ops.OPS[name]
    given = [sample(each, 6001, seed) for seed, each in enumerate(dtypes_of(op, dtype))]
    if name in DIVISIONS and not dtype.is_floating_point:      # eager raises for the one and traps for the other
        given[1] = torch.where((given[1] == 0) | (given[1] == torch.tensor(-1).to(dtype)), 1, given[1])
    expected = op.meaning(*given)
    result = ulp.call(library, symbol(name, dtype), expected.dtype, *given)
    good = same(result, expected)
    if name == "sqrt":                                          # eager's may be rounded to the other side
        good = ulp.errors(result, op.meaning(given[0].double())) <= (0.51 if dtype == torch.float32 else 1)
    if name in ("fmod", "remainder") and dtype.is_floating_point:       # eager's is NaN where the quotient overflows
        exact = op.meaning(*(argument.double() for argument in given)).to(dtype)
        good = same(result, exact) | (exact.isnan() & (given[1] != 0) & (given[0] / given[1]).isinf() & ~result.isnan())
    assert_all(good, f"{name} of {dtype}", *given, result, expected)


@functools.cache
def arguments_and_exact_values(name):
    """Floats, and in double what the function is of them."""
    op = ops.OPS[name]
    given = [sample(torch.float32, 2**20 if name in ulp.BOUNDS else 2**15, seed) for seed in range(op.arity)]
    if name in ulp.BOUNDS:      # every exponent, with the same fractions
        fractions = torch.randint(0, 2**23, (500,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
        bits = torch.arange(512, dtype=torch.int32)[:, None] * 2**23 + fractions
        given[0] = torch.cat([given[0], bits.flatten().view(torch.float32)])
    given = in_domain(name, given)
    return given, op.meaning(*(argument.double() for argument in given))


def in_domain(name, given):
    return [-argument.abs() for argument in given] if name in ulp.NONPOSITIVE else given


@pytest.mark.parametrize("name", sorted(INEXACT))
def test_functions_of_floats(library, name):
    given, exact = arguments_and_exact_values(name)
    result = ulp.call(library, symbol(name, torch.float32), torch.float32, *given)
    wrong = ulp.errors(result, exact)
    good = (wrong <= ulp.BOUNDS.get(name, ulp.IN_DOUBLE)) | close_to_a_zero(name, result, exact)
    assert_all(good, name, *given, result, exact, wrong)


@pytest.mark.parametrize("name", sorted(INEXACT))
def test_functions_of_doubles(library, name):
    op = ops.OPS[name]
    given = in_domain(name, [sample(torch.float64, 2**15, seed) for seed in range(op.arity)])
    if name == "digamma":       # beyond, eager's reflection at a pole is what the rounding of the argument makes of it
        given[0] = torch.where(given[0] < -50, 1.5, given[0])
    expected = op.meaning(*given)
    result = ulp.call(library, symbol(name, torch.float64), torch.float64, *given)
    wrong = ulp.errors(result, expected)
    assert_all((wrong <= DOUBLE_BOUND[name]) | close_to_a_zero(name, result, expected), name, *given, result, expected, wrong)


def close_to_a_zero(name, result, exact):
    return (result - exact).abs() < NEAR_ZEROS.get(name, 0.0)


@pytest.mark.parametrize("dtype", sorted(ops.INTEGERS, key=str), ids=str)
def test_powers_of_integers(native, dtype):
    base, exponent = sample(dtype, 4000), sample(dtype, 4000, seed=1)
    result = ulp.call(native, symbol("pow", dtype), dtype, base, exponent)
    assert_all(same(result, torch.pow(base, exponent)), dtype, base, exponent, result)


@pytest.mark.parametrize("source", sorted(ops.STORED, key=str), ids=str)
def test_conversions(native, source):
    x = sample(source, 2**17)
    if source.itemsize == 2:
        x = torch.arange(-2**15, 2**15).to(torch.int16).view(source)        # all there are
    elif source == torch.float32:       # what lies around the middle of two neighbours in half and bfloat16
        generator = torch.Generator().manual_seed(0)
        middles = torch.randint(0, 2**20, (2**15,), dtype=torch.int32, generator=generator) * 2**12
        middles += torch.randint(-1, 2, (2**15,), dtype=torch.int32, generator=generator)
        x = torch.cat([x, middles.view(torch.float32)])
    for target in sorted(ops.STORED, key=str):
        expected = x.to(target)
        result = ulp.call(native, symbol("to", source, target), target, x)
        assert_all(same(result, expected), f"{source} to {target}", x, result, expected)


@pytest.mark.parametrize("dtype", sorted(ops.INTEGERS, key=str), ids=str)
def test_integer_divisions_that_eager_refuses_do_not_trap(native, dtype):
    info = torch.iinfo(dtype)
    a = torch.tensor([info.min, info.max, 0, 1, 5] * 8, dtype=dtype)
    for name in DIVISIONS:
        ulp.call(native, symbol(name, dtype), dtype, a, torch.zeros_like(a))
        if info.min:
            result = ulp.call(native, symbol(name, dtype), dtype, a, torch.full_like(a, -1))
            assert_all(result == (-a if name in ("floordiv", "truncdiv") else 0), name, a, result)


def test_reductions(tmp_path):
    """Each joins its identity with a value to that value; of max and min NaN wins, in either place."""
    lines = [ulp.loop("max_identity", "reduce_max(identity_max<float>(), x)", torch.float32, torch.float32),
             ulp.loop("min_identity", "reduce_min(identity_min<float>(), x)", torch.float32, torch.float32),
             ulp.loop("max_int", "reduce_max(identity_max<int64_t>(), x)", torch.int64, torch.int64),
             ulp.loop("min_byte", "reduce_min(identity_min<uint8_t>(), x)", torch.uint8, torch.uint8),
             ulp.loop("sum", "reduce_sum(identity_sum<int32_t>(), x)", torch.int32, torch.int32),
             ulp.loop("prod", "reduce_prod(identity_prod<double>(), x)", torch.float64, torch.float64),
             ulp.loop("any", "reduce_any(identity_any<bool>(), x)", torch.bool, torch.bool),
             ulp.loop("all", "reduce_all(identity_all<bool>(), x)", torch.bool, torch.bool),
             ulp.loop("nan_max", "reduce_max(reduce_max(x, y), x)", torch.float32, torch.float32, torch.float32),
             ulp.loop("nan_min", "reduce_min(reduce_min(x, y), x)", torch.float32, torch.float32, torch.float32)]
    ulp.compile_loops(lines, tmp_path / "reductions.so")
    library = ctypes.CDLL(str(tmp_path / "reductions.so"))
    for name, dtype in {"max_identity": torch.float32, "min_identity": torch.float32, "max_int": torch.int64,
                        "min_byte": torch.uint8, "sum": torch.int32, "prod": torch.float64, "any": torch.bool,
                        "all": torch.bool}.items():
        x = sample(dtype, 501)
        assert_all(same(ulp.call(library, name, dtype, x), x), name, x)
    x, y = torch.tensor([1.0, math.nan, 2.0]), torch.tensor([math.nan, 1.0, 3.0])
    assert ulp.call(library, "nan_max", torch.float32, x, y).isnan().tolist() == [True, True, False]
    assert ulp.call(library, "nan_min", torch.float32, x, y).isnan().tolist() == [True, True, False]


F32, F64, BOOL, I32, BF16 = torch.float32, torch.float64, torch.bool, torch.int32, torch.bfloat16
VECTORISED = [(f"op_{name}({', '.join('xy'[:ops.OPS[name].arity])})", dtype, *(dtype,) * ops.OPS[name].arity)
              for dtype, names in ((F32, "add exp exp_nonpositive log tanh erf sigmoid sin cos tan expm1 log1p exp2 atan2 asin "
                                         "erfc sinh acosh pow fmod remainder floordiv floor ceil round trunc sqrt rsqrt maximum "
                                         "fmin nextafter sign"),
                                   (F64, "exp log tanh erf sigmoid expm1 log1p atan floor"),
                                   (I32, "add mul floordiv remainder maximum abs")) for name in names.split()]
VECTORISED += [(f"op_pow({base}, {exponent})", F32, F32) for base in ("x", "op_abs(x)")
               for exponent in ("2.5f", "0.5f", "3.0f", "-1.0f")]
VECTORISED += [("op_where(x, y, z)", F32, BOOL, F32, F32), ("op_lt(x, y)", BOOL, F32, F32),
               ("op_not(op_and(x, y))", BOOL, BOOL, BOOL), ("op_to<float>(x)", F32, BF16), ("op_to<bfloat16>(x)", BF16, F32),
               ("op_to<half>(x)", torch.float16, F32), ("op_to<float>(x)", F32, torch.float16), ("op_to<int32_t>(x)", I32, F32),
               ("op_to<float>(x)", F32, BOOL), ("op_to<bool>(x)", BOOL, F32), ("op_to<uint8_t>(x)", torch.uint8, F32)]


@pytest.mark.skipif("gcc version" not in find_compiler().version, reason="asks GCC what it vectorised")
@pytest.mark.parametrize("march", ["native", "x86-64-v3", "x86-64"] if X86 else ["native"])
def test_loops_are_vectorised(tmp_path, march):
    lines = [ulp.loop(f"loop_{number}", *case) for number, case in enumerate(VECTORISED)]
    log = ulp.compile_loops(lines, tmp_path / "loops.so", f"-march={march}", "-fopt-info-vec-optimized")
    done = {int(line) for line in re.findall(r"loops\.cpp:(\d+):\d+: optimized: +loop vectorized", log)}
    assert not [case for line, case in enumerate(VECTORISED, 2) if line not in done]
