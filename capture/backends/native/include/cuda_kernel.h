// What the text of a CUDA kernel calls: `op_<name>` as on the CPU, vectors of 16 bytes, and what a group of threads does together.
//
// No header of NVIDIA's is needed: NVRTC and nvcc know the names of the language, and `cuda_on_cpu.h` defines them for g++, so that
// the same text runs on a processor. Compile with --fmad=false: what is contracted says so (`op_muladd`).
//
// A group is `threads` threads, a power of two, that work on one row: part of a warp, or the whole block.
#pragma once
#define CAPTURE_CUDA 1

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#define INT64_MIN (-0x7fffffffffffffffl - 1)
#endif

#ifdef __CUDACC__
#define CAPTURE_INLINE static __device__ __forceinline__
#define CAPTURE_CALLED static __device__ __noinline__
// The compilers' own names of what the device has.
#define __builtin_fabsf fabsf
#define __builtin_fabs fabs
#define __builtin_copysignf copysignf
#define __builtin_copysign copysign
#define __builtin_sqrtf sqrtf
#define __builtin_sqrt sqrt
#define __builtin_fmaf fmaf
#define __builtin_fma fma
#define __builtin_rintf rintf
#define __builtin_rint rint
#define __builtin_trunc trunc
#define __builtin_fmod fmod
#define __builtin_fmodf fmodf
#define __builtin_tan tan
#define __builtin_log log
#define __builtin_exp exp
#define __builtin_erf erf
#define __builtin_memcpy memcpy
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)
#endif

// Of a kernel whose threads wait for each other: those of a block, and how many blocks a multiprocessor should have registers for, so
// that some work while others wait. `ALL_REGISTERS` says that it cannot have them without spills.
#ifdef ALL_REGISTERS
#define CAPTURE_BOUNDS(threads, blocks) __launch_bounds__(threads)
#else
#define CAPTURE_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

#include "scalar.h"
#include "convert.h"
#include "arithmetic.h"
#include "special.h"
#include "cuda_maths.h"
#include "reduce.h"
#include "helpers.h"

// `count` elements that lie side by side in memory, at an address that a vector of as many bytes, at most 16, may have.
template <class T, int count> struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) Elements {
    T at[count];
};
template <int count, class T> CAPTURE_INLINE Elements<T, count> load_elements(const T* from) {
    return *reinterpret_cast<const Elements<T, count>*>(from);
}
template <int count, class T> CAPTURE_INLINE void store_elements(T* to, const Elements<T, count>& elements) {
    *reinterpret_cast<Elements<T, count>*>(to) = elements;
}

// The parameters of several kernels that one launch runs: `first` says with which block each begins, and where the last one ends;
// `of` has a kernel's parameters, each in the first of 8 bytes. Those that there are not begin behind the last block.
template <int room, int parameters> struct Table {
    uint32_t first[room + 1];
    uint64_t of[room][parameters];

    // Which kernel this block is a part of: the last that begins here or before.
    __device__ __forceinline__ unsigned entry() const {
        unsigned low = 0, high = room;
        while (high - low > 1) {
            const unsigned middle = (low + high) / 2;
            if (first[middle] <= blockIdx.x) low = middle;
            else high = middle;
        }
        return low;
    }
    __device__ __forceinline__ unsigned block(unsigned entry) const { return blockIdx.x - first[entry]; }
    __device__ __forceinline__ unsigned blocks(unsigned entry) const { return first[entry + 1] - first[entry]; }
    template <class T> __device__ __forceinline__ T at(unsigned entry, int number) const {
        if constexpr (sizeof(T) == 8) return capture::bit_cast<T>(of[entry][number]);
        else if constexpr (sizeof(T) == 4) return capture::bit_cast<T>(uint32_t(of[entry][number]));
        else if constexpr (sizeof(T) == 2) return capture::bit_cast<T>(uint16_t(of[entry][number]));
        else return capture::bit_cast<T>(uint8_t(of[entry][number]));
    }
};

// Indices were out of range: a device stops with an error, as eager mode's kernels do there; on a processor the bits that say what is
// to be raised go to a byte.
#ifdef __CUDACC__
extern "C" __device__ void __assertfail(const char* what, const char* file, unsigned line, const char* function, unsigned long size);
#endif
CAPTURE_INLINE void report(uint8_t* where, uint8_t bits) {
    if (!bits) return;
#ifdef __CUDACC__
    __assertfail("index out of range", "a kernel of capture", 0, "", sizeof(char));
#else
    __atomic_fetch_or(where, bits, __ATOMIC_RELAXED);
#endif
}

namespace capture {

// The lanes of this thread's group in its warp.
template <int threads> CAPTURE_INLINE uint32_t lanes() {
    if constexpr (threads >= 32) return 0xffffffffu;
    else return ((1u << threads) - 1) << (threadIdx.x & 31 & ~uint32_t(threads - 1));
}

template <class T> CAPTURE_INLINE T from_lane(uint32_t lanes, T value, int distance) {
    if constexpr (sizeof(T) == 8) return bit_cast<T>(__shfl_xor_sync(lanes, bit_cast<unsigned long long>(value), distance));
    else if constexpr (sizeof(T) == 4) return bit_cast<T>(__shfl_xor_sync(lanes, bit_cast<uint32_t>(value), distance));
    else return T(__shfl_xor_sync(lanes, int32_t(value), distance));
}

}  // namespace capture

// All threads of the group have come here, and see what the others wrote.
template <int threads> CAPTURE_INLINE void group_sync() {
    if constexpr (threads > 32) __syncthreads();
    else if constexpr (threads > 1) __syncwarp(capture::lanes<threads>());
}

// The sum of neighbouring elements: of each four in float32, in pairs, and of these in float64.
template <int count> CAPTURE_INLINE double joined_sum(const float (&x)[count]) {
    double total = 0;
    _Pragma("unroll")
    for (int i = 0; i < count; i += 4) total += double((x[i] + x[i + 1]) + (x[i + 2] + x[i + 3]));
    return total;
}

// The values of the group's threads combined, in an order that depends on nothing but `threads`. All threads get the result.
#define CAPTURE_GROUP(name) \
    template <int threads, class T> CAPTURE_INLINE T group_##name(T value) { \
        _Pragma("unroll") \
        for (int distance = 1; distance < threads && distance < 32; distance *= 2) { \
            const T other = capture::from_lane(capture::lanes<threads>(), value, distance); \
            value = threadIdx.x & distance ? reduce_##name(other, value) : reduce_##name(value, other); \
        } \
        if constexpr (threads > 32) { \
            __shared__ T of_warps[threads / 32]; \
            if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x / 32] = value; \
            __syncthreads(); \
            value = of_warps[0]; \
            _Pragma("unroll") \
            for (int warp = 1; warp < threads / 32; ++warp) value = reduce_##name(value, of_warps[warp]); \
            __syncthreads(); \
        } \
        return value; \
    }
CAPTURE_GROUP(sum)
CAPTURE_GROUP(prod)
CAPTURE_GROUP(max)
CAPTURE_GROUP(min)
CAPTURE_GROUP(any)
CAPTURE_GROUP(all)
