// Reductions: what each starts from, and how a value joins what has been accumulated.
#pragma once
#include "arithmetic.h"

namespace capture {

template <class T> inline constexpr T lowest = is_signed<T> ? T(Word<T>(1) << (bits_of<T> - 1)) : T(0);
template <> inline constexpr float lowest<float> = -infinity<float>;
template <> inline constexpr double lowest<double> = -infinity<double>;
template <> inline constexpr bool lowest<bool> = false;
template <class T> inline constexpr T highest = T(~lowest<T>);
template <> inline constexpr float highest<float> = infinity<float>;
template <> inline constexpr double highest<double> = infinity<double>;
template <> inline constexpr bool highest<bool> = true;

}  // namespace capture

// Functions, since clang wants no variables in the initializer of a reduction.
template <class T> CAPTURE_INLINE constexpr T identity_sum() { return T(0); }
template <class T> CAPTURE_INLINE constexpr T identity_prod() { return T(1); }
template <class T> CAPTURE_INLINE constexpr T identity_max() { return capture::lowest<T>; }
template <class T> CAPTURE_INLINE constexpr T identity_min() { return capture::highest<T>; }
template <class T> CAPTURE_INLINE constexpr bool identity_any() { return false; }
template <class T> CAPTURE_INLINE constexpr bool identity_all() { return true; }

template <class T> CAPTURE_INLINE T reduce_sum(T total, T x) { return op_add(total, x); }
template <class T> CAPTURE_INLINE T reduce_prod(T total, T x) { return op_mul(total, x); }
// Whether x is NaN does not depend on what came before, and a NaN that came before stays: one instruction waits for the last step.
template <class T> CAPTURE_INLINE T reduce_max(T most, T x) {
    T larger = x > most ? x : most;
    return x != x ? x : larger;
}
template <class T> CAPTURE_INLINE T reduce_min(T least, T x) {
    T smaller = x < least ? x : least;
    return x != x ? x : smaller;
}
CAPTURE_INLINE bool reduce_any(bool found, bool x) { return found | x; }
CAPTURE_INLINE bool reduce_all(bool all, bool x) { return all & x; }

// total + x, and the sum of what rounding has taken off so far. Where the total is not finite, that is NaN.
CAPTURE_INLINE void add_exactly(double& total, double& lost, double x) {
    const double sum = total + x, taken = sum - total;
    lost += (total - (sum - taken)) + (x - taken);
    total = sum;
}
CAPTURE_INLINE double compensated(double total, double lost) { return lost == lost ? total + lost : total; }
