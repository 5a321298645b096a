// The types that kernels compute with, and the few means by which scalar code is written without branches.
#pragma once
#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

#ifndef __CUDACC__      // there `cuda_kernel.h` has said what these are
// Everything is inlined before GCC and clang vectorise the loop around it.
#define CAPTURE_INLINE static inline __attribute__((always_inline))
// What has loops or tables of its own: one copy for each translation unit, called.
#define CAPTURE_CALLED static __attribute__((noinline, unused))
#endif

// What lies in memory only; `op_to` reads and makes them. Enumerations: GCC does not vectorise loops with local structs.
enum class boolean : uint8_t {};        // 0 or 1. GCC does not vectorise a loop that loads a `bool`, but one that tests a byte.
enum class bfloat16 : uint16_t {};      // the upper half of a float
enum class half : uint16_t {};          // IEEE binary16

namespace capture {

template <class A, class B> inline constexpr bool same = false;
template <class A> inline constexpr bool same<A, A> = true;

template <class T> inline constexpr bool is_float = same<T, float> || same<T, double>;
template <class T> inline constexpr bool is_bool = same<T, bool>;
template <class T> inline constexpr bool is_signed = T(-1) < T(0);
template <class T> inline constexpr int bits_of = 8 * int(sizeof(T));

template <bool wide, class Narrow, class Wide> struct Choice { using type = Narrow; };
template <class Narrow, class Wide> struct Choice<true, Narrow, Wide> { using type = Wide; };

// The unsigned type in which an integer's arithmetic wraps; at least 32 bits wide, so that nothing is promoted to int.
template <class T> using Word = typename Choice<sizeof(T) == 8, uint32_t, uint64_t>::type;

// The same bits as another type of the same size.
template <class To, class From> CAPTURE_INLINE To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    __builtin_memcpy(&result, &value, sizeof(To));
    return result;
}

CAPTURE_INLINE float magnitude(float x) { return __builtin_fabsf(x); }
CAPTURE_INLINE double magnitude(double x) { return __builtin_fabs(x); }
CAPTURE_INLINE float copy_sign(float x, float sign) { return __builtin_copysignf(x, sign); }
CAPTURE_INLINE double copy_sign(double x, double sign) { return __builtin_copysign(x, sign); }
CAPTURE_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
CAPTURE_INLINE double square_root(double x) { return __builtin_sqrt(x); }

// a*b + c: rounded once where the machine can, else twice. Nothing here relies on the single rounding.
#if defined(__FMA__) || defined(__aarch64__) || defined(CAPTURE_CUDA)
CAPTURE_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CAPTURE_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
CAPTURE_INLINE float fused(float a, float b, float c) { return a * b + c; }
CAPTURE_INLINE double fused(double a, double b, double c) { return a * b + c; }
#endif

template <class T> inline constexpr T infinity = T(__builtin_inff());
template <class T> inline constexpr T nan = T(__builtin_nanf(""));

// Horner's rule: c[0]*x^n + … + c[n], highest power first.
template <class T> CAPTURE_INLINE T horner(T, T c) { return c; }
template <class T, class... Rest> CAPTURE_INLINE T horner(T x, T c0, T c1, Rest... rest) {
    return horner(x, fused(c0, x, c1), rest...);
}

// Round to the nearest integer, halves to even. Adding 2^23 (2^52) leaves no bits below the point.
#if defined(__SSE4_1__) || defined(__aarch64__) || defined(CAPTURE_CUDA)
CAPTURE_INLINE float nearest(float x) { return __builtin_rintf(x); }
CAPTURE_INLINE double nearest(double x) { return __builtin_rint(x); }
#else
template <class T> CAPTURE_INLINE T nearest_by_adding(T x, T big) {
    T distant = copy_sign(big, x);
    T rounded = copy_sign((x + distant) - distant, x);
    return magnitude(x) < big ? rounded : x;
}
CAPTURE_INLINE float nearest(float x) { return nearest_by_adding(x, 0x1p23f); }
CAPTURE_INLINE double nearest(double x) { return nearest_by_adding(x, 0x1p52); }
#endif

}  // namespace capture
