// Functions of floats on CUDA devices: the device's library, which eager mode calls too. On a processor they are the C library's.
#pragma once
#include "special.h"

#ifdef __CUDACC__
#define CAPTURE_MATHS(name) name
#else
#define CAPTURE_MATHS(name) __builtin_##name      // <math.h> takes longer to compile than all the rest
#endif
#define CAPTURE_OF_ONE(name) \
    CAPTURE_INLINE float op_##name(float x) { return CAPTURE_MATHS(name##f)(x); } \
    CAPTURE_INLINE double op_##name(double x) { return CAPTURE_MATHS(name)(x); }
#define CAPTURE_OF_TWO(name) \
    CAPTURE_INLINE float op_##name(float x, float y) { return CAPTURE_MATHS(name##f)(x, y); } \
    CAPTURE_INLINE double op_##name(double x, double y) { return CAPTURE_MATHS(name)(x, y); }
CAPTURE_OF_ONE(exp)
CAPTURE_OF_ONE(exp2)
CAPTURE_OF_ONE(expm1)
CAPTURE_OF_ONE(log)
CAPTURE_OF_ONE(log2)
CAPTURE_OF_ONE(log10)
CAPTURE_OF_ONE(log1p)
CAPTURE_OF_ONE(sin)
CAPTURE_OF_ONE(cos)
CAPTURE_OF_ONE(tan)
CAPTURE_OF_ONE(asin)
CAPTURE_OF_ONE(acos)
CAPTURE_OF_ONE(atan)
CAPTURE_OF_ONE(sinh)
CAPTURE_OF_ONE(cosh)
CAPTURE_OF_ONE(tanh)
CAPTURE_OF_ONE(asinh)
CAPTURE_OF_ONE(acosh)
CAPTURE_OF_ONE(atanh)
CAPTURE_OF_ONE(erf)
CAPTURE_OF_ONE(erfc)
CAPTURE_OF_TWO(atan2)
CAPTURE_OF_TWO(hypot)
CAPTURE_OF_TWO(pow)
#undef CAPTURE_OF_ONE
#undef CAPTURE_OF_TWO
#undef CAPTURE_MATHS

template <class T> CAPTURE_INLINE T op_exp_nonpositive(T x) { return op_exp(x); }
template <class T> CAPTURE_INLINE T op_sigmoid(T x) { return T(1) / (T(1) + op_exp(-x)); }
