// Functions without a vectorised form: called for each element.
#pragma once
#include "arithmetic.h"

#ifndef __CUDACC__
extern "C" double lgamma_r(double x, int* sign) noexcept;     // of libm; clang knows no builtin of it
#endif

namespace capture {

#ifdef __CUDACC__
CAPTURE_INLINE double log_gamma(double x) { return lgamma(x); }
#else
// The sign of gamma goes to a local: that of lgamma is a global variable of the process.
CAPTURE_INLINE double log_gamma(double x) {
    int sign;
    return lgamma_r(x, &sign);
}
#endif

// Cephes' psi. Up the recurrence to x >= 10, then the asymptotic series; below 0 by reflection. A few ulp, where it is not near one
// of its zeros.
CAPTURE_CALLED double digamma(double x) {
    constexpr double pi = 3.14159265358979323846;
    if (x == 0) return copy_sign(infinity<double>, -x);
    double reflected = 0;
    if (x < 0) {
        if (x == __builtin_trunc(x)) return nan<double>;
        reflected = -pi / __builtin_tan(pi * (x - __builtin_trunc(x)));
        x = 1 - x;
    }
    double result = 0;
    for (; x < 10; x += 1) result -= 1 / x;
    if (x == 10) return result + reflected + 2.25175258906672110764;
    double series = 0;
    if (x < 1e17) {
        double square = 1 / (x * x);
        series = square * horner(square, 8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                                 -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                                 8.33333333333333333333e-2);
    }
    return result + reflected + __builtin_log(x) - 0.5 / x - series;
}

// Rational approximations of the central range and of the tails, then two steps of Newton's method.
CAPTURE_CALLED double erfinv(double y) {
    constexpr double two_over_sqrt_pi = 1.12837916709551257390;
    double size = magnitude(y);
    if (!(size <= 1)) return nan<double>;
    if (size == 1) return copy_sign(infinity<double>, y);
    double x;
    if (size <= 0.7) {
        double z = y * y;
        x = y * horner(z, -0.140543331, 0.914624893, -1.645349621, 0.886226899)
              / horner(z, 0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0);
    } else {
        double z = __builtin_sqrt(-__builtin_log((1 - size) / 2));
        x = copy_sign(horner(z, 1.641345311, 3.429567803, -1.62490649, -1.970840454) / horner(z, 1.6370678, 3.5438892, 1.0), y);
    }
    for (int step = 0; step < 2; ++step) x -= (__builtin_erf(x) - y) / (two_over_sqrt_pi * __builtin_exp(-x * x));
    return x;
}

template <class T> CAPTURE_CALLED T integer_power(T base, T exponent) {
    if (exponent < T(0)) {
        if (base == T(1)) return T(1);
        if (base == T(-1)) return (exponent & 1) ? T(-1) : T(1);
        return T(0);
    }
    T power = 1;
    for (; exponent; exponent = T(exponent >> 1), base = op_mul(base, base))
        if (exponent & 1) power = op_mul(power, base);
    return power;
}

}  // namespace capture

CAPTURE_INLINE double op_lgamma(double x) { return capture::log_gamma(x); }
CAPTURE_INLINE float op_lgamma(float x) { return float(capture::log_gamma(x)); }
CAPTURE_INLINE double op_digamma(double x) { return capture::digamma(x); }
CAPTURE_INLINE float op_digamma(float x) { return float(capture::digamma(x)); }
CAPTURE_INLINE double op_erfinv(double x) { return capture::erfinv(x); }
CAPTURE_INLINE float op_erfinv(float x) { return float(capture::erfinv(x)); }

// Integers wrap; of a negative power only 1 and -1 have a reciprocal, the rest is 0.
template <class T> CAPTURE_INLINE T op_pow(T a, T b) { return capture::integer_power(a, b); }

// Euclid's algorithm on magnitudes; that of the least integer overflows, as eager's.
template <class T> CAPTURE_INLINE T op_gcd(T a, T b) {
    a = op_abs(a), b = op_abs(b);
    while (a != T(0)) {
        T rest = T(b % a);
        b = a, a = rest;
    }
    return b;
}
