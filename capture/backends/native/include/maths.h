#pragma once
#include "arithmetic.h"
#define CAPTURE_UNARY(name) \
    CAPTURE_INLINE float op_##name(float x) { return __builtin_##name##f(x); } \
    CAPTURE_INLINE double op_##name(double x) { return __builtin_##name(x); }
CAPTURE_UNARY(exp) CAPTURE_UNARY(exp2) CAPTURE_UNARY(expm1) CAPTURE_UNARY(log) CAPTURE_UNARY(log2) CAPTURE_UNARY(log10) CAPTURE_UNARY(log1p)
CAPTURE_UNARY(sin) CAPTURE_UNARY(cos) CAPTURE_UNARY(tan) CAPTURE_UNARY(asin) CAPTURE_UNARY(acos) CAPTURE_UNARY(atan)
CAPTURE_UNARY(sinh) CAPTURE_UNARY(cosh) CAPTURE_UNARY(tanh) CAPTURE_UNARY(asinh) CAPTURE_UNARY(acosh) CAPTURE_UNARY(atanh)
CAPTURE_UNARY(erf) CAPTURE_UNARY(erfc)
#define CAPTURE_BINARY(name) \
    CAPTURE_INLINE float op_##name(float x, float y) { return __builtin_##name##f(x, y); } \
    CAPTURE_INLINE double op_##name(double x, double y) { return __builtin_##name(x, y); }
CAPTURE_BINARY(atan2) CAPTURE_BINARY(hypot)
template <class T> CAPTURE_INLINE T op_sigmoid(T x) { return T(1) / (T(1) + op_exp(-x)); }
