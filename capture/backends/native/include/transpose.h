// Tiles of memory, transposed, so that every cache line is read once and in whole.
#pragma once
#include "scalar.h"

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define CAPTURE_SHUFFLES 1
#endif
#endif

// Bytes that one instruction writes past the cache, and that instruction.
#if defined(__AVX512F__)
#define CAPTURE_STREAM 64
#define CAPTURE_STREAM_LINE(to, line) __builtin_ia32_movntdq512(to, line)
#elif defined(__AVX__)
#define CAPTURE_STREAM 32
#define CAPTURE_STREAM_LINE(to, line) __builtin_ia32_movntdq256(to, line)
#elif defined(__SSE2__)
#define CAPTURE_STREAM 16
#define CAPTURE_STREAM_LINE(to, line) __builtin_ia32_movntdq(to, line)
#endif
#if defined(CAPTURE_STREAM) && defined(__clang__)
#undef CAPTURE_STREAM_LINE
#define CAPTURE_STREAM_LINE(to, line) __builtin_nontemporal_store(line, to)
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

// Of two rows of 16: exchanges every second group of `step` elements of the one with every first of the other.
template <int step, class Row> CAPTURE_INLINE void exchange(Row& a, Row& b) {
    Row first, second;
    if constexpr (step == 8) {
        first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        second = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    } else if constexpr (step == 4) {
        first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
        second = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    } else if constexpr (step == 2) {
        first = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        second = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    } else {
        first = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
        second = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    }
    a = first;
    b = second;
}

template <int step, class Row> CAPTURE_INLINE void exchange_all(Row (&rows)[16]) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
        if (!(r & step)) exchange<step>(rows[r], rows[r + step]);
}

template <class T> CAPTURE_INLINE void transpose_square(T* to, int64_t pitch, const T* from, int64_t stride) {
    typedef typename Bits<sizeof(T)>::type Row __attribute__((vector_size(16 * sizeof(T))));
    Row rows[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) __builtin_memcpy(&rows[r], from + r * stride, sizeof(Row));
    exchange_all<8>(rows);
    exchange_all<4>(rows);
    exchange_all<2>(rows);
    exchange_all<1>(rows);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) __builtin_memcpy(to + r * pitch, &rows[r], sizeof(Row));
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
    if constexpr (sizeof(T) <= 4) {
        int64_t whole_rows = rows & ~int64_t(15), whole_columns = columns & ~int64_t(15);
        for (int64_t r = 0; r < whole_rows; r += 16)
            for (int64_t c = 0; c < whole_columns; c += 16) {
                for (int64_t next = r + rows; next < r + rows + 16; ++next) __builtin_prefetch(from + next * stride + c, 0, 2);
                transpose_square(to + c * pitch + r, pitch, from + r * stride + c, stride);
            }
        transpose_plainly(to + whole_columns * pitch, pitch, from + whole_columns, stride, rows, columns - whole_columns);
        transpose_plainly(to + whole_rows, pitch, from + whole_rows * stride, stride, rows - whole_rows, whole_columns);
        return;
    }
#endif
    transpose_plainly(to, pitch, from, stride, rows, columns);
}
