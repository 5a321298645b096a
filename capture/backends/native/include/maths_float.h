// Functions of floats. Errors are stated in ulp of the exact result: the largest over all 2^32 arguments, with FMA and without.
#pragma once
#include "maths_double.h"

namespace capture {

// 2^n for an integer n of -126 … 127.
CAPTURE_INLINE float power_of_two(float n) { return bit_cast<float>(bit_cast<uint32_t>(n + (0x1.8p23f + 127)) << 23); }

// The same steps as in double.
CAPTURE_INLINE float ln2_multiple(float x) { return (x * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f; }
CAPTURE_INLINE float ln2_rest(float x, float n) { return fused(-n, -0x1.bd0106p-13f, fused(-n, 0x1.63p-1f, x)); }

// e^r for an r of at most ln(2)/2.
CAPTURE_INLINE float exp_near_zero(float r) {
    return horner(r, 0x1.6a4508p-10f, 0x1.1239aap-7f, 0x1.5558b8p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f);
}

CAPTURE_INLINE float expm1_near_zero(float r) {
    float series = horner(r, 0x1.a12a42p-13f, 0x1.6d4920p-10f, 0x1.1110e0p-7f, 0x1.5554e4p-5f, 0x1.555556p-3f, 0.5f);
    return fused(r * r, series, r);
}

// ln(x) + low for x > 0.
CAPTURE_INLINE float logarithm(float x, float low) {
    bool small = x < 0x1p-126f;
    uint32_t offset = bit_cast<uint32_t>(small ? x * 0x1p23f : x) - 0x3f3504f3u + (127u << 23);     // of sqrt(1/2)
    float r = bit_cast<float>((offset & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float exponent = float(int32_t(offset >> 23)) - (small ? 150.0f : 127.0f);
    float series = horner(r, -0x1.43b246p-4f, 0x1.02814ep-3f, -0x1.0a33eap-3f, 0x1.231ce6p-3f, -0x1.54d03ep-3f, 0x1.999f14p-3f,
                          -0x1.0000cep-2f, 0x1.555554p-2f);
    low = fused(exponent, -0x1.bd0106p-13f, fused(fused(r, series, -0.5f), r * r, low));
    return fused(exponent, 0x1.63p-1f, r + low);
}

CAPTURE_INLINE float logarithm_or_special(float x, float value) {
    value = x == infinity<float> ? x : value;
    value = x == 0.0f ? -infinity<float> : value;
    return x >= 0.0f ? value : nan<float>;
}

}  // namespace capture

// 1.2 ulp. Beyond 104 it is 0 or infinity. The power of two is multiplied by in two steps: a float has no 2^128, no 2^-150.
CAPTURE_INLINE float op_exp(float x) {
    using namespace capture;
    float kept = magnitude(x) > 104.0f ? copy_sign(104.0f, x) : x;
    constexpr float shift = 0x1.8p23f + 2 * 127;
    float shifted = fused(kept, 0x1.715476p+0f, shift);         // ends in the bits of a whole number and both steps' offsets
    uint32_t exponents = bit_cast<uint32_t>(shifted), first = (exponents >> 1) << 23, second = (exponents << 23) - first;
    return exp_near_zero(ln2_rest(kept, shifted - shift)) * bit_cast<float>(first) * bit_cast<float>(second);
}

// 1.2 ulp. For an x of at most 0, or NaN. It is computed 2^64 times as large, where no result is subnormal.
CAPTURE_INLINE float op_exp_nonpositive(float x) {
    using namespace capture;
    constexpr float shift = 0x1.8p23f + 127 + 64;
    float shifted = fused(x, 0x1.715476p+0f, shift);
    float scaled = exp_near_zero(ln2_rest(x, shifted - shift)) * bit_cast<float>(bit_cast<uint32_t>(shifted) << 23);
    return x < -104.0f ? 0.0f : scaled * 0x1p-64f;
}

// 1.2 ulp.
CAPTURE_INLINE float op_exp2(float x) {
    using namespace capture;
    float kept = magnitude(x) > 151.0f ? copy_sign(151.0f, x) : x;
    constexpr float shift = 0x1.8p23f + 2 * 127;
    float shifted = kept + shift;                               // as in op_exp
    uint32_t exponents = bit_cast<uint32_t>(shifted), first = (exponents >> 1) << 23, second = (exponents << 23) - first;
    float rest = kept - (shifted - shift);
    float power = horner(rest, 0x1.41fbe6p-13f, 0x1.5f3e5cp-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e430p-1f, 1.0f);
    return power * bit_cast<float>(first) * bit_cast<float>(second);
}

// 1.6 ulp.
CAPTURE_INLINE float op_expm1(float x) {
    using namespace capture;
    float kept = x > 89.0f ? 89.0f : x;
    kept = kept < -20.0f ? -20.0f : kept;
    float n = ln2_multiple(kept);
    float half_way = (n * 0.5f + 0x1.8p23f) - 0x1.8p23f;
    float first = power_of_two(half_way), second = power_of_two(n - half_way), inverse = power_of_two(half_way - n);
    return copy_sign(fused(first, expm1_near_zero(ln2_rest(kept, n)), first - inverse) * second, x);
}

// 1.98 ulp. e^-|x| cannot overflow, and keeps all digits of small results; the digits that 1 + e loses are made good.
CAPTURE_INLINE float op_sigmoid(float x) {
    float e = op_exp(-capture::magnitude(x));
    float sum = 1.0f + e, lost = (1.0f - sum) + e;
    float value = (x < 0.0f ? e : 1.0f) / sum;
    return value - value * lost * (x < 0.0f ? 1.0f - value : value);           // the last factor is 1 / sum
}

// 1.1 ulp.
CAPTURE_INLINE float op_log(float x) { return capture::logarithm_or_special(x, capture::logarithm(x, 0.0f)); }

// 1.2 ulp.
CAPTURE_INLINE float op_log1p(float x) {
    using namespace capture;
    float sum = 1.0f + x;
    float lost = x > 1.0f ? 1.0f - (sum - x) : x - (sum - 1.0f);
    float value = logarithm_or_special(sum, logarithm(sum, lost / sum));
    return x == 0.0f ? x : value;
}

// 1.6 ulp.
CAPTURE_INLINE float op_tanh(float x) {
    using namespace capture;
    float size = magnitude(x), s = x * x;
    float series = horner(s, -0x1.b03424p-8f, 0x1.5cffc0p-6f, -0x1.b99d76p-5f, 0x1.110fe2p-3f, -0x1.555554p-2f);
    float near = fused(x * s, series, x);
    float far = 1.0f - 2.0f / (op_exp(2.0f * size) + 1.0f);
    return copy_sign(size < 0.55f ? near : far, x);
}

// 1.5 ulp with FMA, 1.99 without. Near zero an odd polynomial, then another one. From 3.89 on it is 1.
CAPTURE_INLINE float op_erf(float x) {
    using namespace capture;
    float size = magnitude(x), a = size > 3.89f ? 3.89f : size;
    float series = horner(x * x, 0x1.11ab32p-14f, -0x1.8c6ab6p-11f, 0x1.50454ep-8f, -0x1.b76b50p-6f, 0x1.ce2378p-4f,
                          -0x1.812702p-2f, 0x1.06eba6p-3f);
    float far = horner(a - 0x1.3fff92p+1f, -0x1.29642ep-17f, 0x1.54a05cp-16f, 0x1.0019dep-14f, -0x1.20f85cp-12f, 0x1.2cef24p-12f,
                       0x1.282edap-11f, -0x1.714982p-9f, 0x1.903fe6p-8f, -0x1.1a59c0p-7f, 0x1.11b250p-7f, -0x1.64f458p-8f,
                       0x1.1d8458p-9f, 0x1.ffcaa8p-1f);
    return size < 1.2f ? fused(x, series, x) : copy_sign(far, x);
}

namespace capture {

// x >= 0 in quarters of a turn: the nearest whole number of them, modulo 2^24, and what is left, -1/2 … 1/2, to at least 25 bits.
struct Turn { int32_t quarters; double rest; };

// 2/pi is cut into pieces of 28 bits, whose products with a float are exact in double. The bits whose products are whole turns
// (they depend on the exponent of x) are left out, and 112 more are enough: no float is closer to a multiple of pi/2 than 2^-31.
CAPTURE_INLINE Turn turn(float value) {
    double x = value;
    bool b1 = x >= 0x1p51, b2 = x >= 0x1p77, b3 = x >= 0x1p103;
    double p0 = b3 ? 0x1.abe8fa80p-79 : b2 ? 0x1.4a7f09c0p-54 : b1 ? 0x1.727220a0p-27 : 0x1.45f306c0p-1;
    double p1 = b3 ? 0x1.a6ee06c0p-107 : b2 ? 0x1.5f47d4c0p-82 : b1 ? 0x1.29fc2740p-56 : 0x1.c9c882a0p-29;
    double p2 = b3 ? 0x1.b14acc80p-135 : b2 ? 0x1.377036c0p-110 : b1 ? 0x1.7d1f5340p-84 : 0x1.4fe13a80p-59;
    double p3 = b3 ? 0x1.e21c8200p-163 : b2 ? 0x1.8a5664c0p-138 : b1 ? 0x1.bb81b680p-113 : 0x1.f47d4d00p-86;
    double first = x * p0;
    double turns = (first * 0.25 + 0x1.8p52) - 0x1.8p52;
    double sum = (first - 4.0 * turns) + x * p1;
    double quarters = (sum + 0x1.8p52) - 0x1.8p52;
    return {int32_t(quarters), ((sum - quarters) + x * p2) + x * p3};
}

// The sine, or for odd quarters the cosine, of the rest of a turn.
CAPTURE_INLINE float sine_of_rest(Turn turn, bool cosine) {
    float r = float(turn.rest * (0.5 * pi_high)), s = r * r;
    float sine = fused(r * s, horner(s, 0x1.6dbcfcp-19f, -0x1.a013a4p-13f, 0x1.11110ep-7f, -0x1.555556p-3f), r);
    float cosine_value = fused(s, horner(s, 0x1.9bd786p-16f, -0x1.6c12d0p-10f, 0x1.555554p-5f, -0.5f), 1.0f);
    return cosine ? cosine_value : sine;
}

}  // namespace capture

// 1.6 ulp.
CAPTURE_INLINE float op_sin(float x) {
    using namespace capture;
    Turn t = turn(magnitude(x));
    float value = sine_of_rest(t, t.quarters & 1);
    uint32_t sign = (uint32_t(t.quarters & 2) << 30) ^ (bit_cast<uint32_t>(x) & 0x80000000u);
    return bit_cast<float>(bit_cast<uint32_t>(value) ^ sign);
}

// 1.6 ulp.
CAPTURE_INLINE float op_cos(float x) {
    using namespace capture;
    Turn t = turn(magnitude(x));
    float value = sine_of_rest(t, !(t.quarters & 1));
    uint32_t sign = uint32_t((t.quarters + 1) & 2) << 30;
    return bit_cast<float>(bit_cast<uint32_t>(value) ^ sign);
}

// 0.51 ulp.
CAPTURE_INLINE float op_tan(float x) {
    using namespace capture;
    Turn t = turn(magnitude(x));
    double r = t.rest * (0.5 * pi_high), s = r * r;
    double sine = r + r * s * horner(s, -0x1.aa27435ae36f6p-26, 0x1.71d9a79f7c8bfp-19, -0x1.a019fd9820cb8p-13, 0x1.1111110fd28f7p-7,
                                     -0x1.5555555555166p-3);
    double cosine = 1.0 + s * horner(s, -0x1.25239a9550aefp-22, 0x1.a015c25366932p-16, -0x1.6c16bf534c9ebp-10, 0x1.55555555027adp-5,
                                     -0.5);
    double tangent = ((t.quarters & 1) ? -cosine : sine) / ((t.quarters & 1) ? sine : cosine);
    return bit_cast<float>(bit_cast<uint32_t>(float(tangent)) ^ (bit_cast<uint32_t>(x) & 0x80000000u));
}

// The rest in double: 0.51 ulp.
CAPTURE_INLINE float op_log2(float x) { return float(op_log2(double(x))); }
CAPTURE_INLINE float op_log10(float x) { return float(op_log10(double(x))); }
CAPTURE_INLINE float op_sinh(float x) { return float(op_sinh(double(x))); }
CAPTURE_INLINE float op_cosh(float x) { return float(op_cosh(double(x))); }
CAPTURE_INLINE float op_asinh(float x) { return float(op_asinh(double(x))); }
CAPTURE_INLINE float op_acosh(float x) { return float(op_acosh(double(x))); }
CAPTURE_INLINE float op_atanh(float x) { return float(op_atanh(double(x))); }
CAPTURE_INLINE float op_asin(float x) { return float(op_asin(double(x))); }
CAPTURE_INLINE float op_acos(float x) { return float(op_acos(double(x))); }
CAPTURE_INLINE float op_atan(float x) { return float(op_atan(double(x))); }
CAPTURE_INLINE float op_atan2(float y, float x) { return float(op_atan2(double(y), double(x))); }
CAPTURE_INLINE float op_erfc(float x) { return float(op_erfc(double(x))); }
CAPTURE_INLINE float op_hypot(float x, float y) { return float(op_hypot(double(x), double(y))); }

// e^(y * ln|x|) in double: 0.51 ulp. The sign is that of x for odd y; a negative number has no power that is not whole.
CAPTURE_INLINE float op_pow(float x, float y) {
    using namespace capture;
    float size = magnitude(x);
    float value = float(op_exp(double(y) * op_log(double(size))));
    bool whole = op_trunc(y) == y;
    bool odd = whole & (op_trunc(0.5f * y) != 0.5f * y);
    value = ((x < 0.0f) & (size < infinity<float>) & !whole) ? nan<float> : value;
    value = ((size == 1.0f) & whole) ? 1.0f : value;
    value = ((x == 1.0f) | (y == 0.0f)) ? 1.0f : value;
    uint32_t sign = bit_cast<uint32_t>(x) & (odd ? 0x80000000u : 0u);      // GCC vectorises no choice by a bool that stays as it is
    return bit_cast<float>(bit_cast<uint32_t>(value) | sign);
}
