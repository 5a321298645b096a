// What the loops of kernels are written with, beside the operations: reductions of `omp simd` loops, and small helpers.
#pragma once
#include "helpers.h"
#include "reduce.h"
#include "transpose.h"

// `reduction(capture_sum: total)` and so on. One declaration for each type: in a list, GCC takes the first one's initial value for all.
#define CAPTURE_PRAGMA(text) _Pragma(#text)
#define CAPTURE_REDUCTION(name, T) \
    CAPTURE_PRAGMA(omp declare reduction(capture_##name: T: omp_out = reduce_##name(omp_out, omp_in)) initializer(omp_priv = identity_##name<T>()))
#define CAPTURE_REDUCTIONS(T) CAPTURE_REDUCTION(sum, T) CAPTURE_REDUCTION(prod, T) CAPTURE_REDUCTION(max, T) CAPTURE_REDUCTION(min, T)
CAPTURE_REDUCTIONS(uint8_t)
CAPTURE_REDUCTIONS(int8_t)
CAPTURE_REDUCTIONS(int16_t)
CAPTURE_REDUCTIONS(int32_t)
CAPTURE_REDUCTIONS(int64_t)
CAPTURE_REDUCTIONS(float)
CAPTURE_REDUCTIONS(double)

// The same number, which the compiler does not know.
CAPTURE_INLINE int64_t opaque(int64_t number) {
    __asm__("" : "+r"(number));
    return number;
}

// Memory is asked for what will soon be read or written; the rest of a long row the machine foresees by itself. Nothing is
// touched, so the elements need not exist.
inline constexpr int64_t cache_line = 64, longest_fetch = 16 << 10;
template <class T> CAPTURE_INLINE void fetch(const T* first, int64_t count) {
    const int64_t bytes = smaller(count * int64_t(sizeof(T)), longest_fetch);
    for (int64_t i = 0; i < bytes; i += cache_line) __builtin_prefetch(reinterpret_cast<const char*>(first) + i, 0, 2);
}
template <class T> CAPTURE_INLINE void fetch_for_writing(const T* first, int64_t count) {
    const int64_t bytes = smaller(count * int64_t(sizeof(T)), longest_fetch);
    for (int64_t i = 0; i < bytes; i += cache_line) __builtin_prefetch(reinterpret_cast<const char*>(first) + i, 1, 3);
}
