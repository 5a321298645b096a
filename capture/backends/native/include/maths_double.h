// Functions of doubles. Errors are stated in ulp of the exact result. They take any argument, NaN and infinity as in C99's Annex F.
// The functions of floats that `maths_float.h` does not write out are these, rounded: correct to 0.51 ulp.
#pragma once
#include "arithmetic.h"

namespace capture {

inline constexpr double pi_high = 0x1.921fb54442d18p+1, pi_low = 0x1.1a62633145c07p-53;
inline constexpr double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;      // n * ln2_high is exact to 2^21

// 2^n for an integer n of -1022 … 1023: adding leaves n + 1023 in the lowest bits, from where it is shifted into the exponent.
CAPTURE_INLINE double power_of_two(double n) { return bit_cast<double>(bit_cast<uint64_t>(n + (0x1.8p52 + 1023)) << 52); }

// x = n * ln2 + rest, |rest| <= ln2 / 2; for |x| < 2^20.
CAPTURE_INLINE double ln2_multiple(double x) { return (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52; }
CAPTURE_INLINE double ln2_rest(double x, double n) { return fused(-n, ln2_low, fused(-n, ln2_high, x)); }

// e^r - 1 for |r| <= ln2 / 2.
CAPTURE_INLINE double expm1_near_zero(double r) {
    double rest = horner(r, 0x1.1f7340dbc337ep-29, 0x1.af4e554377204p-26, 0x1.27e4db46cddd1p-22, 0x1.71de01fdbf9cap-19,
                         0x1.a01a01a6e1e2ap-16, 0x1.a01a01abf85abp-13, 0x1.6c16c16c162c3p-10, 0x1.11111111100bep-7,
                         0x1.5555555555556p-5, 0x1.5555555555557p-3, 0.5);
    return fused(r * r, rest, r);
}

// x * 2^n, rounded once if the result is normal, for |n| < 2044: in two steps, since a double holds no such power.
CAPTURE_INLINE double scaled(double x, double n) {
    double half_way = (n * 0.5 + 0x1.8p52) - 0x1.8p52;
    return x * power_of_two(half_way) * power_of_two(n - half_way);
}

// e^x * 2^shift.
CAPTURE_INLINE double exp_scaled(double x, double shift) {
    x = x > 712.0 ? 712.0 : x;
    x = x < -746.0 ? -746.0 : x;
    double n = ln2_multiple(x);
    return scaled(1.0 + expm1_near_zero(ln2_rest(x, n)), n + shift);
}

// The exponent and the fraction of a number: x = 2^exponent * (1 + rest), 1 + rest of sqrt(1/2) … sqrt(2).
struct Logarithm { double exponent, rest; };

CAPTURE_INLINE Logarithm logarithm_parts(double x) {
    bool small = x < 0x1p-1022;
    double normal = small ? x * 0x1p54 : x;
    uint64_t offset = bit_cast<uint64_t>(normal) - 0x3fe6a09e667f3bcdull + (uint64_t(1023) << 52);     // of sqrt(1/2)
    uint64_t fraction = (offset & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull;
    double exponent = bit_cast<double>((offset >> 52) | 0x4330000000000000ull) - (0x1p52 + 1023);
    return {small ? exponent - 54.0 : exponent, bit_cast<double>(fraction) - 1.0};
}

// ln(2^exponent * (1 + rest)) + low, the series of fdlibm in s = rest / (2 + rest).
CAPTURE_INLINE double logarithm_sum(Logarithm x, double low) {
    double s = x.rest / (2.0 + x.rest), z = s * s;
    double half_square = 0.5 * x.rest * x.rest;
    double series = z * horner(z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                               2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                               6.666666666666735130e-01);
    double correction = s * (half_square + series) + (x.exponent * ln2_low + low);
    return x.exponent * ln2_high - ((half_square - correction) - x.rest);
}

// `value`, which is a logarithm of x, or what that is at the ends of the range.
CAPTURE_INLINE double logarithm_or_special(double x, double value) {
    value = x == infinity<double> ? x : value;
    value = x == 0.0 ? -infinity<double> : value;
    return x >= 0.0 ? value : nan<double>;
}

// atan(z) for z of 0 … 1.
CAPTURE_INLINE double atan_of_fraction(double z) {
    double s = z * z;
    double series = horner(s, 0x1.04a3628aee536p-17, -0x1.890e58e18ff08p-14, 0x1.19e6b726893d0p-11, -0x1.0110cfd66bd22p-9,
                           0x1.50ea3497605b5p-8, -0x1.552f78ddf9b30p-7, 0x1.198ad7e0bd0c6p-6, -0x1.8c59dbc673323p-6,
                           0x1.f0f041d3e2f50p-6, -0x1.20f157ad652dfp-5, 0x1.42a843b89b0ebp-5, -0x1.62c464c86804fp-5,
                           0x1.85c82bf04fbd6p-5, -0x1.af1a76061e434p-5, 0x1.e1e0069edf96ep-5, -0x1.1110f9a06b09dp-4,
                           0x1.3b13af957f086p-4, -0x1.745d1731e853fp-4, 0x1.c71c71c6882cdp-4, -0x1.2492492491234p-3,
                           0x1.999999999997dp-3, -0x1.5555555555555p-2);
    return fused(z * s, series, z);
}

// The angle of (x, y): atan2 but for its sign; y >= 0.
CAPTURE_INLINE double angle(double y, double x) {
    double width = magnitude(x);
    bool steep = y > width;
    double smaller = steep ? width : y, larger = steep ? y : width;
    double z = smaller / larger;
    z = smaller == larger ? 1.0 : z;                // two infinities
    z = larger == 0.0 ? 0.0 : z;
    double result = atan_of_fraction(z);
    result = steep ? 0.5 * pi_high - (result - 0.5 * pi_low) : result;
    result = op_signbit(x) ? pi_high - (result - pi_low) : result;
    return ((x != x) | (y != y)) ? nan<double> : result;
}

// erf(x) for |x| <= 1.
CAPTURE_INLINE double erf_near_zero(double x) {
    double series = horner(x * x, 0x1.05ffd737fb32ep-34, -0x1.389d4f2641625p-30, 0x1.f7b4bf3b13964p-27, -0x1.5f1ecb6f0764cp-23,
                           0x1.b9df224ca4b97p-20, -0x1.f4d1e3183f7aep-17, 0x1.f9a321d5b8e1ep-14, -0x1.c02db3dac435fp-11,
                           0x1.565bcd0dbaa38p-8, -0x1.b82ce31284e00p-6, 0x1.ce2f21a042b30p-4, -0x1.812746b0379e6p-2,
                           0x1.06eba8214db69p-3);
    return fused(x, series, x);
}

// erfc(a) for a >= 0.45, as e^(-a^2) * p(u) / (1 + 2a), u = (a - 3) / (a + 3); the square with the digits that a double loses.
CAPTURE_INLINE double erfc_tail(double a) {
    a = a > 28.0 ? 28.0 : a;
    double u = (a - 3.0) / (a + 3.0);
    double p = horner(u, -0x1.e03c4f2163101p-27, 0x1.6a9a406f5b5d2p-26, 0x1.d23ba2610d4cfp-24, -0x1.f6f22a39d80ffp-24,
                      -0x1.509bb2541ab37p-21, 0x1.6cf73cd80ca78p-22, 0x1.d31f6d8be26c6p-19, -0x1.84c4d727a1828p-21,
                      -0x1.514aa914c3778p-16, 0x1.4c03cdbec91c0p-18, 0x1.065abe3378fe1p-13, -0x1.b9121163600b6p-14,
                      -0x1.98db56de56314p-11, 0x1.ef1bdc8c24643p-10, 0x1.4b884e6a44624p-9, -0x1.8574c40afcefdp-6,
                      0x1.17ca2877dfce1p-4, -0x1.e88b803a4b1a1p-4, 0x1.098366a5b4a52p-3, -0x1.85a15c58aa4edp-5,
                      -0x1.15c084bb9e8fap-3, 0x1.40c522d7e4987p+0);
    double coarse = bit_cast<double>(bit_cast<uint64_t>(a) & ~uint64_t(0x07ffffff));
    double rest = (a - coarse) * (a + coarse);
    return exp_scaled(-coarse * coarse, 0.0) * ((1.0 - rest + 0.5 * rest * rest) * p / (1.0 + 2.0 * a));
}

}  // namespace capture

// 1 ulp.
CAPTURE_INLINE double op_exp(double x) { return capture::exp_scaled(x, 0.0); }

// 1 ulp.
CAPTURE_INLINE double op_exp2(double x) {
    using namespace capture;
    x = x > 1025.0 ? 1025.0 : x;
    x = x < -1076.0 ? -1076.0 : x;
    double n = (x + 0x1.8p52) - 0x1.8p52;
    return scaled(1.0 + expm1_near_zero((x - n) * 0x1.62e42fefa39efp-1), n);
}
CAPTURE_INLINE double op_exp_nonpositive(double x) { return op_exp(x); }

// 2 ulp.
CAPTURE_INLINE double op_expm1(double x) {
    using namespace capture;
    double kept = x > 712.0 ? 712.0 : x;
    kept = kept < -40.0 ? -40.0 : kept;
    double n = ln2_multiple(kept);
    double r = ln2_rest(kept, n);
    double half_way = (n * 0.5 + 0x1.8p52) - 0x1.8p52;
    double first = power_of_two(half_way), second = power_of_two(n - half_way), inverse = power_of_two(half_way - n);
    return copy_sign((first * expm1_near_zero(r) + (first - inverse)) * second, x);
}

// 1 ulp.
CAPTURE_INLINE double op_log(double x) {
    using namespace capture;
    return logarithm_or_special(x, logarithm_sum(logarithm_parts(x), 0.0));
}

// 2 ulp; exact for powers of two.
CAPTURE_INLINE double op_log2(double x) {
    using namespace capture;
    Logarithm parts = logarithm_parts(x);
    double fraction = logarithm_sum({0.0, parts.rest}, 0.0);
    return logarithm_or_special(x, parts.exponent + fused(fraction, 0x1.71547652b82fep+0, fraction * 0x1.777d0ffda0d24p-56));
}

// 2 ulp.
CAPTURE_INLINE double op_log10(double x) {
    using namespace capture;
    Logarithm parts = logarithm_parts(x);
    double fraction = logarithm_sum({0.0, parts.rest}, 0.0);
    double low = fused(parts.exponent, 0x1.fef311f12b358p-46, fraction * 0x1.bcb7b1526e50ep-2);
    return logarithm_or_special(x, fused(parts.exponent, 0x1.34413509f7800p-2, low));
}

// 2 ulp. What 1 + x loses is added to the logarithm of it.
CAPTURE_INLINE double op_log1p(double x) {
    using namespace capture;
    double sum = 1.0 + x;
    double lost = x > 1.0 ? 1.0 - (sum - x) : x - (sum - 1.0);
    double value = logarithm_or_special(sum, logarithm_sum(logarithm_parts(sum), lost / sum));
    return x == 0.0 ? x : value;
}

// 2 ulp.
CAPTURE_INLINE double op_sigmoid(double x) {
    double e = op_exp(-capture::magnitude(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

// 3 ulp.
CAPTURE_INLINE double op_tanh(double x) {
    double size = capture::magnitude(x);
    double e = op_expm1(2.0 * (size > 22.0 ? 22.0 : size));
    return capture::copy_sign(e / (e + 2.0), x);
}

// 3 ulp.
CAPTURE_INLINE double op_sinh(double x) {
    using namespace capture;
    double size = magnitude(x);
    double e = op_expm1(size > 40.0 ? 40.0 : size);
    double value = 0.5 * (e + e / (e + 1.0));
    return copy_sign(size > 40.0 ? exp_scaled(size, -1.0) : value, x);
}

// 2 ulp.
CAPTURE_INLINE double op_cosh(double x) {
    double e = capture::exp_scaled(capture::magnitude(x), -1.0);
    return e + 0.25 / e;
}

// 3 ulp.
CAPTURE_INLINE double op_asinh(double x) {
    using namespace capture;
    double size = magnitude(x);
    bool large = size > 0x1p54;                     // where sqrt(1 + x^2) is x
    double square = large ? 0.0 : size * size;
    double value = op_log1p(size + square / (1.0 + square_root(1.0 + square)));
    return copy_sign(large ? value + 0x1.62e42fefa39efp-1 : value, x);
}

// 3 ulp.
CAPTURE_INLINE double op_acosh(double x) {
    using namespace capture;
    bool large = x > 0x1p54;
    double beyond = x - 1.0;
    double root = large ? 0.0 : square_root(2.0 * beyond + beyond * beyond);
    double value = op_log1p(beyond + root);
    value = large ? value + 0x1.62e42fefa39efp-1 : value;
    return x >= 1.0 ? value : nan<double>;
}

// 3 ulp.
CAPTURE_INLINE double op_atanh(double x) {
    double size = capture::magnitude(x);
    return capture::copy_sign(0.5 * op_log1p(2.0 * size / (1.0 - size)), x);
}

// 2 ulp.
CAPTURE_INLINE double op_atan2(double y, double x) { return capture::copy_sign(capture::angle(capture::magnitude(y), x), y); }
CAPTURE_INLINE double op_atan(double x) { return op_atan2(x, 1.0); }

// 4 ulp.
CAPTURE_INLINE double op_asin(double x) { return op_atan2(x, capture::square_root((1.0 - x) * (1.0 + x))); }
CAPTURE_INLINE double op_acos(double x) { return capture::angle(capture::square_root((1.0 - x) * (1.0 + x)), x); }

// 2 ulp.
CAPTURE_INLINE double op_erf(double x) {
    using namespace capture;
    double size = magnitude(x);
    return size < 1.0 ? erf_near_zero(x) : copy_sign(1.0 - erfc_tail(size), x);
}

// 4 ulp.
CAPTURE_INLINE double op_erfc(double x) {
    using namespace capture;
    double tail = erfc_tail(magnitude(x));
    double near = 1.0 - erf_near_zero(x);
    double far = x < 0.0 ? 2.0 - tail : tail;
    return ((x < 0.5) & (x > -1.0)) ? near : far;
}

// 2 ulp. The larger one is taken out, so that nothing overflows on the way.
CAPTURE_INLINE double op_hypot(double x, double y) {
    using namespace capture;
    double a = magnitude(x), b = magnitude(y);
    double larger = a > b ? a : b, smaller = a > b ? b : a;
    double ratio = smaller / larger;
    double value = larger * square_root(1.0 + ratio * ratio);
    value = larger == 0.0 ? 0.0 : value;
    value = ((x != x) | (y != y)) ? nan<double> : value;
    return ((a == infinity<double>) | (b == infinity<double>)) ? infinity<double> : value;
}

// The C library's: reducing any double modulo pi takes a thousand bits of it. Loops over these are not vectorised.
CAPTURE_INLINE double op_sin(double x) { return __builtin_sin(x); }
CAPTURE_INLINE double op_cos(double x) { return __builtin_cos(x); }
CAPTURE_INLINE double op_tan(double x) { return __builtin_tan(x); }
CAPTURE_INLINE double op_pow(double x, double y) { return __builtin_pow(x, y); }
