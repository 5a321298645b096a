// op_to<To>(x): conversions between all element types, as eager converts.
#pragma once
#include "scalar.h"

namespace capture {

CAPTURE_INLINE float widened(bfloat16 x) { return bit_cast<float>(uint32_t(x) << 16); }

#ifdef __CUDACC__
CAPTURE_INLINE float widened(half x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(uint16_t(x)));
    return wide;
}

CAPTURE_INLINE half narrowed_half(float x) {
    uint16_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return half(narrow);
}
#else
CAPTURE_INLINE float widened(half x) {
    uint32_t sign = (uint32_t(x) & 0x8000u) << 16;
    uint32_t rest = (uint32_t(x) & 0x7fffu) << 13;               // exponent and fraction in their new places
    float normal = bit_cast<float>(rest + (112u << 23));            // the difference of the biases
    float special = bit_cast<float>(rest | 0x7f800000u);
    // A denormal is fraction * 2^-24: the fraction beside the exponent of 2^-14, less that 2^-14.
    float denormal = bit_cast<float>(rest + (113u << 23)) - 0x1p-14f;
    float size = rest >= 0x0f800000u ? special : rest < 0x00800000u ? denormal : normal;
    return bit_cast<float>(bit_cast<uint32_t>(size) | sign);
}

CAPTURE_INLINE half narrowed_half(float x) {
    uint32_t bits = bit_cast<uint32_t>(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    uint32_t normal = (size - (112u << 23) + 0x0fffu + ((size >> 13) & 1u)) >> 13;      // a carry out of the fraction is right too
    // Below 2^-14 the unit is 2^-24: adding 1/2, whose unit that is, rounds to it.
    uint32_t denormal = bit_cast<uint32_t>(bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    uint32_t finite = size < 0x38800000u ? denormal : normal;
    uint32_t special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return half((size >= 0x477ff000u ? special : finite) | sign);       // from 65520 on: infinity
}
#endif

// Round to nearest even; every NaN becomes one positive quiet one, which a device chooses.
CAPTURE_INLINE bfloat16 narrowed_bfloat16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return bfloat16(narrow);
#else
    uint32_t bits = bit_cast<uint32_t>(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return bfloat16(x != x ? 0x7fc0u : rounded);
#endif
}

}  // namespace capture

#ifndef __CUDACC__
// -0, defined where no compiler sees it.
extern "C" __attribute__((visibility("hidden"))) const float capture_unseen_zero;
__asm__(".pushsection .rodata\n .balign 4\n capture_unseen_zero: .4byte 0x80000000\n .popsection");
#endif

namespace capture {

// x, but nothing that a compiler knows of: of a float that does not fit an integer, it would make another number than the processor.
template <class T> CAPTURE_INLINE T unforeseen(T x) {
#ifndef __CUDACC__
    return x + T(capture_unseen_zero);
#else
    return x;
#endif
}

}  // namespace capture

// Floats to integers truncate. What does not fit becomes what the x86 instruction for the next wider type leaves, cut to width, as
// eager has it. Anything but zero is true.
template <class To, class From> CAPTURE_INLINE To op_to(From x) {
    using namespace capture;
    if constexpr (same<To, From>) {
        return x;
    } else if constexpr (same<From, bfloat16> || same<From, half>) {
        return op_to<To>(widened(x));
    } else if constexpr (same<From, boolean>) {
        return op_to<To>(uint8_t(x) != 0);
    } else if constexpr (same<To, boolean>) {
        return boolean(op_to<bool>(x));
    } else if constexpr (same<To, bfloat16>) {
        return narrowed_bfloat16(op_to<float>(x));
    } else if constexpr (same<To, half>) {
        return narrowed_half(op_to<float>(x));
    } else if constexpr (is_bool<To>) {
        return x != From(0);
    } else if constexpr (is_bool<From>) {
        return x ? To(1) : To(0);
    } else if constexpr (is_float<From> && sizeof(To) < 4) {
        using Wider = typename Choice<same<To, uint8_t> && same<From, double>, int32_t, int64_t>::type;
        return To(Wider(unforeseen(x)));
    } else if constexpr (is_float<From> && !is_float<To>) {
        return To(unforeseen(x));
    } else {
        return To(x);
    }
}
