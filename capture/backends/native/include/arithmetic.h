// Arithmetic, rounding, tests, bits and choice: exact, as eager has them to the bit (NaNs apart, which are NaNs).
#pragma once
#include "scalar.h"

// Integers wrap. On bool, addition is "or" and multiplication "and".
template <class T> CAPTURE_INLINE T op_add(T a, T b) {
    if constexpr (capture::is_bool<T>) return a | b;
    else if constexpr (capture::is_float<T>) return a + b;
    else return T(capture::Word<T>(a) + capture::Word<T>(b));
}
template <class T> CAPTURE_INLINE T op_sub(T a, T b) {
    if constexpr (capture::is_float<T>) return a - b;
    else return T(capture::Word<T>(a) - capture::Word<T>(b));
}
template <class T> CAPTURE_INLINE T op_mul(T a, T b) {
    if constexpr (capture::is_bool<T>) return a & b;
    else if constexpr (capture::is_float<T>) return a * b;
    else return T(capture::Word<T>(a) * capture::Word<T>(b));
}
// a*b + c, rounded once where the machine can: so is eager's.
CAPTURE_INLINE float op_muladd(float a, float b, float c) { return capture::fused(a, b, c); }
CAPTURE_INLINE double op_muladd(double a, double b, double c) { return capture::fused(a, b, c); }
template <class T> CAPTURE_INLINE T op_neg(T a) {
    if constexpr (capture::is_float<T>) return -a;
    else return T(capture::Word<T>(0) - capture::Word<T>(a));
}
template <class T> CAPTURE_INLINE T op_abs(T a) {
    if constexpr (capture::is_float<T>) return capture::magnitude(a);
    else if constexpr (capture::is_signed<T>) return a < T(0) ? op_neg(a) : a;
    else return a;
}
// 0 for NaN and for both zeros.
template <class T> CAPTURE_INLINE T op_sign(T a) {
    if constexpr (capture::is_bool<T>) return a;
    else if constexpr (capture::is_float<T> || capture::is_signed<T>) return a > T(0) ? T(1) : a < T(0) ? T(-1) : T(0);
    else return a > T(0) ? T(1) : T(0);
}

// NaN wins. Of two equal values (0.0 and -0.0) the second one is the result.
template <class T> CAPTURE_INLINE T op_maximum(T a, T b) {
    if constexpr (capture::is_bool<T>) return a | b;
    T larger = a > b ? a : b;
    return a != a ? a : larger;
}
template <class T> CAPTURE_INLINE T op_minimum(T a, T b) {
    if constexpr (capture::is_bool<T>) return a & b;
    T smaller = a < b ? a : b;
    return a != a ? a : smaller;
}
// NaN loses. Of two equal values the first one is the result.
template <class T> CAPTURE_INLINE T op_fmax(T a, T b) {
    if constexpr (capture::is_bool<T>) return a | b;
    T larger = a >= b ? a : b;
    return b != b ? a : larger;
}
template <class T> CAPTURE_INLINE T op_fmin(T a, T b) {
    if constexpr (capture::is_bool<T>) return a & b;
    T smaller = a <= b ? a : b;
    return b != b ? a : smaller;
}

template <class T> CAPTURE_INLINE T op_div(T a, T b) { return a / b; }
CAPTURE_INLINE float op_sqrt(float x) { return capture::square_root(x); }
CAPTURE_INLINE double op_sqrt(double x) { return capture::square_root(x); }
template <class T> CAPTURE_INLINE T op_reciprocal(T x) { return T(1) / x; }
template <class T> CAPTURE_INLINE T op_rsqrt(T x) { return T(1) / capture::square_root(x); }

// Rounding to integers; integers are their own.
template <class T> CAPTURE_INLINE T op_round(T x) {
    if constexpr (capture::is_float<T>) return capture::nearest(x);
    else return x;
}
template <class T> CAPTURE_INLINE T op_floor(T x) {
    if constexpr (!capture::is_float<T>) return x;
    else {
        T near = capture::nearest(x);
        return near > x ? near - T(1) : near;
    }
}
template <class T> CAPTURE_INLINE T op_ceil(T x) {
    if constexpr (!capture::is_float<T>) return x;
    else {
        T near = capture::nearest(x);
        return capture::copy_sign(near < x ? near + T(1) : near, x);
    }
}
template <class T> CAPTURE_INLINE T op_trunc(T x) {
    if constexpr (!capture::is_float<T>) return x;
    else return capture::copy_sign(op_floor(capture::magnitude(x)), x);
}

namespace capture {

template <class T> CAPTURE_INLINE bool signs_differ(T a, T b) {
    if constexpr (is_float<T>) return copy_sign(T(1), a) != copy_sign(T(1), b);
    else return T(a ^ b) < T(0);
}

// Integer division is done in floating point where that is exact, since no machine divides vectors of integers: a quotient of
// n-bit integers is at least 2^-n (relatively) away from the next integer, so it is not rounded to it in n+1 bits.
template <class T> CAPTURE_INLINE T truncated_quotient(T a, T b) {
    if constexpr (sizeof(T) == 8) {
        T safe = ((b == T(0)) | (b == T(-1))) ? T(1) : b;            // neither may trap; least / -1 wraps
        T quotient = a / safe;
        return b == T(-1) ? op_neg(a) : quotient;
    } else {
        using Real = typename Choice<sizeof(T) == 4, float, double>::type;
        int32_t quotient = int32_t(Real(a) / Real(b));
        if constexpr (is_signed<T>) return b == T(-1) ? op_neg(a) : T(quotient);
        else return T(quotient);
    }
}

// a - b * trunc(a / b), exactly, for finite a and finite b != 0. The quotient of floats, of up to 277 bits, is taken off in double
// from the top, at most 28 bits at a time: so each product and each difference is exact. 1 - 2^-50: the estimate is never above the
// quotient.
#ifdef CAPTURE_CUDA
CAPTURE_INLINE float fmod_finite(float a, float b) { return __builtin_fmodf(a, b); }
#else
CAPTURE_INLINE float fmod_finite(float a, float b) {
    double rest = magnitude(double(a)), divisor = magnitude(double(b));
    double inverse = (1.0 - 0x1p-50) / divisor;
#pragma GCC unroll 11
    for (int step = 0; step < 11; ++step) {
        double quotient = bit_cast<double>(bit_cast<uint64_t>(rest * inverse) & ~uint64_t(0x1ffffff));
        rest -= op_floor(quotient) * divisor;
    }
    rest = rest >= divisor ? rest - divisor : rest;
    return copy_sign(float(rest), a);
}
#endif
CAPTURE_INLINE double fmod_finite(double a, double b) { return __builtin_fmod(a, b); }

}  // namespace capture

// Where an integer divisor is 0 eager raises; here the result is unspecified, and nothing traps. Of floats it is exact, also where
// the quotient overflows (eager has NaN there).
template <class T> CAPTURE_INLINE T op_fmod(T a, T b) {
    using namespace capture;
    if constexpr (is_float<T>) {
        T rest = fmod_finite(a, b);
        rest = magnitude(b) == infinity<T> ? a : rest;
        bool undefined = !(magnitude(a) < infinity<T>) | (b != b) | (b == T(0));
        return rest * (undefined ? capture::nan<T> : T(1));      // not a choice, since GCC does not vectorise what it makes of testing that
    } else {
        return op_sub(a, op_mul(truncated_quotient(a, b), b));
    }
}
// With the sign of the divisor.
template <class T> CAPTURE_INLINE T op_remainder(T a, T b) {
    T rest = op_fmod(a, b);
    if constexpr (capture::is_float<T> || capture::is_signed<T>) {
        bool other_sign = capture::signs_differ(rest, b);
        return ((rest != T(0)) & other_sign) ? op_add(rest, b) : rest;
    } else {
        return rest;
    }
}
template <class T> CAPTURE_INLINE T op_truncdiv(T a, T b) {
    if constexpr (capture::is_float<T>) return op_trunc(a / b);
    else return capture::truncated_quotient(a, b);
}
// For floats as eager does it: from the exact remainder.
template <class T> CAPTURE_INLINE T op_floordiv(T a, T b) {
    using namespace capture;
    T rest = op_fmod(a, b);
    if constexpr (is_float<T>) {
        T quotient = (a - rest) / b;
        bool other_sign = capture::signs_differ(rest, b);
        quotient = ((rest != T(0)) & other_sign) ? quotient - T(1) : quotient;
        T whole = op_floor(quotient);
        whole = quotient - whole > T(0.5) ? whole + T(1) : whole;
        whole = quotient != T(0) ? whole : copy_sign(T(0), a / b);
        return b == T(0) ? a / b : whole;
    } else if constexpr (is_signed<T>) {
        bool other_sign = capture::signs_differ(rest, b);
        T quotient = truncated_quotient(a, b);
        return ((rest != T(0)) & other_sign) ? op_sub(quotient, T(1)) : quotient;
    } else {
        return truncated_quotient(a, b);
    }
}

// Tests.
template <class T> CAPTURE_INLINE bool op_eq(T a, T b) { return a == b; }
template <class T> CAPTURE_INLINE bool op_ne(T a, T b) { return a != b; }
template <class T> CAPTURE_INLINE bool op_lt(T a, T b) { return a < b; }
template <class T> CAPTURE_INLINE bool op_le(T a, T b) { return a <= b; }
template <class T> CAPTURE_INLINE bool op_gt(T a, T b) { return a > b; }
template <class T> CAPTURE_INLINE bool op_ge(T a, T b) { return a >= b; }
template <class T> CAPTURE_INLINE bool op_isnan(T x) { return x != x; }
template <class T> CAPTURE_INLINE bool op_isinf(T x) {
    if constexpr (capture::is_float<T>) return capture::magnitude(x) == capture::infinity<T>;
    else return false;
}
template <class T> CAPTURE_INLINE bool op_signbit(T x) {
    if constexpr (capture::is_float<T>) return capture::copy_sign(T(1), x) < T(0);
    else return x < T(0);
}

// Bits; logic on bool.
template <class T> CAPTURE_INLINE T op_and(T a, T b) { return T(a & b); }
template <class T> CAPTURE_INLINE T op_or(T a, T b) { return T(a | b); }
template <class T> CAPTURE_INLINE T op_xor(T a, T b) { return T(a ^ b); }
template <class T> CAPTURE_INLINE T op_not(T a) {
    if constexpr (capture::is_bool<T>) return a ^ true;
    else return T(~a);
}
// A negative count, or one of at least the width, shifts everything out.
template <class T> CAPTURE_INLINE T op_lshift(T a, T count) {
    constexpr T width = capture::bits_of<T>;
    T shifted = T(capture::Word<T>(a) << (count & (width - 1)));
    return ((count < T(0)) | (count >= width)) ? T(0) : shifted;
}
template <class T> CAPTURE_INLINE T op_rshift(T a, T count) {
    constexpr T width = capture::bits_of<T>;
    T shifted = T(a >> (count & (width - 1)));
    T all_out = a < T(0) ? T(-1) : T(0);
    return ((count < T(0)) | (count >= width)) ? all_out : shifted;
}

template <class T> CAPTURE_INLINE T op_where(bool condition, T a, T b) { return condition ? a : b; }

template <class T> CAPTURE_INLINE T op_copysign(T a, T sign) { return capture::copy_sign(a, sign); }

template <class T> CAPTURE_INLINE T op_nextafter(T a, T towards) {
    using namespace capture;
    using Bits = typename Choice<sizeof(T) == 8, int32_t, int64_t>::type;
    Bits outwards = (a < towards) == (a > T(0)) ? Bits(1) : Bits(-1);
    T next = bit_cast<T>(Word<T>(bit_cast<Bits>(a)) + Word<T>(outwards));
    next = a == T(0) ? copy_sign(bit_cast<T>(Bits(1)), towards) : next;
    next = a == towards ? towards : next;
    return ((a != a) | (towards != towards)) ? capture::nan<T> : next;
}
