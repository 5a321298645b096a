// Tiles of memory, transposed, so that every cache line is read once and in whole.
#pragma once
#include "scalar.h"

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define CAPTURE_SHUFFLES 1
#endif
#endif

// Bytes of the widest vector that the machine moves and shuffles; the compiler takes wider ones apart, element by element.
#if defined(__AVX512F__)
#define CAPTURE_VECTOR 64
#elif defined(__AVX2__)
#define CAPTURE_VECTOR 32
#else
#define CAPTURE_VECTOR 16
#endif

// Writes past the cache pay where one instruction writes a whole line; in halves they took 1.6 times as long as through the cache.
#if defined(__AVX512F__)
#define CAPTURE_STREAM 64
#ifdef __clang__
#define CAPTURE_STREAM_LINE(to, line) __builtin_nontemporal_store(line, to)
#else
#define CAPTURE_STREAM_LINE(to, line) __builtin_ia32_movntdq512(to, line)
#endif
#endif

namespace capture {

// to[c * pitch + r] = from[r * stride + c]
template <class T> CAPTURE_INLINE void transpose_plainly(T* to, int64_t pitch, const T* from, int64_t stride, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) to[c * pitch + r] = from[r * stride + c];
}

#ifdef CAPTURE_SHUFFLES
template <int size> struct Bits;
template <> struct Bits<1> { using type = uint8_t; };
template <> struct Bits<2> { using type = uint16_t; };
template <> struct Bits<4> { using type = uint32_t; };
template <> struct Bits<8> { using type = uint64_t; };

template <int... lane> struct Lanes {};
template <int size> struct Square;      // of how many rows and columns
template <> struct Square<2> { using lanes = Lanes<0, 1>; };
template <> struct Square<4> { using lanes = Lanes<0, 1, 2, 3>; };
template <> struct Square<8> { using lanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7>; };
template <> struct Square<16> { using lanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>; };

// Exchanges every second group of `step` elements of `a` with every first of `b`.
template <int step, class Row, int... lane> CAPTURE_INLINE void exchange(Row& a, Row& b, Lanes<lane...>) {
    constexpr int size = sizeof...(lane);
    const Row first = __builtin_shufflevector(a, b, (lane & step ? size + lane - step : lane)...);
    b = __builtin_shufflevector(a, b, (lane & step ? size + lane : lane + step)...);
    a = first;
}

template <int step, int size, class Row> CAPTURE_INLINE void exchange_all(Row (&rows)[size]) {
#pragma GCC unroll 16
    for (int r = 0; r < size; ++r)
        if (!(r & step)) exchange<step>(rows[r], rows[r + step], typename Square<size>::lanes());
    if constexpr (step > 1) exchange_all<step / 2>(rows);
}

template <int size, class T> CAPTURE_INLINE void transpose_square(T* to, int64_t pitch, const T* from, int64_t stride) {
    typedef typename Bits<sizeof(T)>::type Row __attribute__((vector_size(size * sizeof(T))));
    Row rows[size];
#pragma GCC unroll 16
    for (int r = 0; r < size; ++r) __builtin_memcpy(&rows[r], from + r * stride, sizeof(Row));
    exchange_all<size / 2>(rows);
#pragma GCC unroll 16
    for (int r = 0; r < size; ++r) __builtin_memcpy(to + r * pitch, &rows[r], sizeof(Row));
}
#endif

}  // namespace capture

// Writes whole lines of the cache to memory without reading them first; what is not whole lines, in the ordinary way.
template <class T> CAPTURE_INLINE void stream(T* to, const T* from, int64_t count) {
#if defined(CAPTURE_STREAM)
    typedef long long Line __attribute__((vector_size(CAPTURE_STREAM)));
    if (((reinterpret_cast<uintptr_t>(to) | uintptr_t(count * int64_t(sizeof(T)))) & 63) == 0) {
        for (int64_t i = 0; i < count; i += int64_t(CAPTURE_STREAM / sizeof(T))) {
            Line line;
            __builtin_memcpy(&line, from + i, sizeof(Line));
            CAPTURE_STREAM_LINE(reinterpret_cast<Line*>(to + i), line);
        }
        return;
    }
#endif
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// Other threads see what was streamed only after this.
CAPTURE_INLINE void streamed() {
#if defined(CAPTURE_STREAM)
    __builtin_ia32_sfence();
#endif
}

// to[c * pitch + r] = from[r * stride + c] for all r < rows and c < columns.
template <class T> CAPTURE_CALLED void transpose_tile(T* to, int64_t pitch, const T* from, int64_t stride, int64_t rows, int64_t columns) {
    using namespace capture;
#ifdef CAPTURE_SHUFFLES
    if constexpr (sizeof(T) <= 8) {
        constexpr int widest = CAPTURE_VECTOR / sizeof(T), size = widest < 16 ? widest : 16;
        const int64_t whole_rows = rows - rows % size, whole_columns = columns - columns % size;
        for (int64_t r = 0; r < whole_rows; r += size)
            for (int64_t c = 0; c < whole_columns; c += size) {
                for (int64_t next = r + rows; next < r + rows + size; ++next) __builtin_prefetch(from + next * stride + c, 0, 2);
                transpose_square<size>(to + c * pitch + r, pitch, from + r * stride + c, stride);
            }
        transpose_plainly(to + whole_columns * pitch, pitch, from + whole_columns, stride, rows, columns - whole_columns);
        transpose_plainly(to + whole_rows, pitch, from + whole_rows * stride, stride, rows - whole_rows, whole_columns);
        return;
    }
#endif
    transpose_plainly(to, pitch, from, stride, rows, columns);
}
