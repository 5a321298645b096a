// What the text of kernels calls beside operations and reductions, on every machine.
#pragma once
#include "scalar.h"

CAPTURE_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Division that rounds down, for a positive divisor.
CAPTURE_INLINE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
CAPTURE_INLINE int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

// The first extreme so far and its place; NaN is the most extreme.
template <class T> CAPTURE_INLINE void take_max(T& most, int64_t& place, T x, int64_t here) {
    const bool better = (x > most) | ((x != x) & (most == most));
    most = better ? x : most;
    place = better ? here : place;
}
template <class T> CAPTURE_INLINE void take_min(T& least, int64_t& place, T x, int64_t here) {
    const bool better = (x < least) | ((x != x) & (least == least));
    least = better ? x : least;
    place = better ? here : place;
}
