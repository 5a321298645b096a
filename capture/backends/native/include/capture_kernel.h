// What a kernel calls: `op_<name>` for each name of the table in `ops.py`, overloaded by the type of its arguments.
//
// Everything but `special.h` is branch-free scalar code (choices by `?:`, `&` and `|` in the place of `&&` and `||`, bit patterns,
// polynomials), so that GCC and clang vectorise a `#pragma omp simd` loop around it, for SSE2, AVX2 and AVX-512 alike. No torch, no
// headers of the C++ library: a kernel compiles in fractions of a second. Compile with -O3 -fno-math-errno -fno-trapping-math
// -ffp-contract=off, never with -ffast-math: NaN, infinities, signed zeros and the order of operations are meant.
//
// Types: bool, uint8_t, int8_t … int64_t, float, double; boolean (a bool in memory), bfloat16 and half only as arguments and
// results of `op_to<To>(x)`.
#pragma once
#include "scalar.h"
#include "convert.h"
#include "arithmetic.h"
#include "maths_float.h"
#include "special.h"
#include "reduce.h"
