// Runs CUDA C++ kernels on a processor, to test them without a device: included before `cuda_kernel.h`, with g++ or clang++.
//
// The threads of a block are fibers of one thread, switched at barriers and warp operations; a kernel that has none of these runs
// its threads one after the other. In which order they and the blocks run, CAPTURE_EMULATED_ORDER says: 0 forward, 1 backward, any
// other number a random order of its own at each switch. Right kernels do the same in each. Threads that end, or wait elsewhere,
// while others wait for them end the process with a message.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline
#define __shared__ static thread_local

namespace emulator {

struct Dimensions { unsigned x = 1; };

constexpr unsigned most_threads = 1024, stack_bytes = 64 << 10, warp = 32;

enum State : uint8_t { ready, in_block_barrier, in_warp_operation, ended };

struct Fiber {
    ucontext_t first;               // until it runs for the first time
    jmp_buf place;                  // where it waits, from then on
    bool begun;
    State state;
    uint32_t lanes;                 // that the warp operation waits for
    unsigned from;                  // the lane whose value it asks for
    uint64_t given, taken;
};

inline thread_local Dimensions thread, block, threads, blocks;      // threadIdx, blockIdx, blockDim, gridDim
inline thread_local Fiber* fibers = nullptr;
inline thread_local char* stacks = nullptr;
inline thread_local jmp_buf scheduler;
inline thread_local void (*body)(void*) = nullptr;
inline thread_local void* argument = nullptr;

inline unsigned long order() {
    const char* text = getenv("CAPTURE_EMULATED_ORDER");
    return text ? strtoul(text, nullptr, 10) : 0;
}

// The numbers below `count`, in the order that was asked for.
struct Order {
    unsigned long kind = order();
    uint64_t random = kind * 0x9e3779b97f4a7c15u | 1;

    void fill(unsigned* numbers, unsigned count) {
        for (unsigned i = 0; i < count; ++i) numbers[i] = kind == 1 ? count - 1 - i : i;
        for (unsigned i = count; kind > 1 && i > 1; --i) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            const unsigned other = unsigned(random % i), kept = numbers[i - 1];
            numbers[i - 1] = numbers[other], numbers[other] = kept;
        }
    }
};

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "CUDA on CPU: block %u: %s\n", block.x, what);
    abort();
}

[[noreturn]] inline void enter() {
    body(argument);
    fibers[thread.x].state = ended;
    _longjmp(scheduler, 1);
}

inline void wait(State state) {
    Fiber& self = fibers[thread.x];
    self.state = state;
    if (!_setjmp(self.place)) _longjmp(scheduler, 1);
}

__attribute__((noinline)) inline void resume(unsigned number) {
    thread.x = number;
    Fiber& fiber = fibers[number];
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.first);
}

// Lets those of a warp go on whose operation all of its lanes have come to.
inline bool release_warp(unsigned begin) {
    bool any = false;
    for (unsigned i = begin; i < begin + warp && i < threads.x; ++i) {
        if (fibers[i].state != in_warp_operation) continue;
        const uint32_t lanes = fibers[i].lanes;
        if (!(lanes >> (i - begin) & 1)) fail("a lane takes part in a warp operation that does not name it");
        bool all = true;
        for (unsigned j = 0; j < warp; ++j)
            if (lanes >> j & 1) {
                if (begin + j >= threads.x || fibers[begin + j].state == ended) fail("a lane of a warp operation has ended");
                all = all && fibers[begin + j].state == in_warp_operation && fibers[begin + j].lanes == lanes;
            }
        if (!all) continue;
        for (unsigned j = 0; j < warp; ++j)
            if (lanes >> j & 1) fibers[begin + j].taken = fibers[begin + fibers[begin + j].from].given;
        for (unsigned j = 0; j < warp; ++j)
            if (lanes >> j & 1) fibers[begin + j].state = ready;
        any = true;
    }
    return any;
}

inline bool release_block() {
    unsigned waiting = 0, gone = 0;
    for (unsigned i = 0; i < threads.x; ++i) {
        waiting += fibers[i].state == in_block_barrier;
        gone += fibers[i].state == ended;
    }
    if (waiting && gone) fail("threads wait for others that have ended");
    if (waiting < threads.x) return false;
    for (unsigned i = 0; i < threads.x; ++i) fibers[i].state = ready;
    return true;
}

// Each warp runs as far ahead of the others as it can: to the next barrier of the block.
inline void run_warp(unsigned begin, Order& order) {
    unsigned lanes[warp];
    bool ran;
    do {
        ran = false;
        order.fill(lanes, warp);
        for (unsigned lane : lanes)
            if (begin + lane < threads.x && fibers[begin + lane].state == ready) resume(begin + lane), ran = true;
    } while (release_warp(begin) || ran);
}

inline void run_fibers(Order& order) {
    if (!fibers) {
        fibers = static_cast<Fiber*>(malloc(most_threads * sizeof(Fiber)));
        stacks = static_cast<char*>(malloc(size_t(most_threads) * stack_bytes));
    }
    for (unsigned i = 0; i < threads.x; ++i) {
        Fiber& fiber = fibers[i];
        fiber.begun = false, fiber.state = ready;
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = stacks + size_t(i) * stack_bytes;
        fiber.first.uc_stack.ss_size = stack_bytes;
        fiber.first.uc_link = nullptr;
        makecontext(&fiber.first, reinterpret_cast<void (*)()>(enter), 0);
    }
    unsigned warps[most_threads / warp];
    do {
        order.fill(warps, (threads.x + warp - 1) / warp);
        for (unsigned i = 0; i * warp < threads.x; ++i) run_warp(warps[i] * warp, order);
    } while (release_block());
    for (unsigned i = 0; i < threads.x; ++i)
        if (fibers[i].state != ended) fail("threads wait for each other at different places");
}

template <class T> T exchange(uint32_t lanes, T value, unsigned from) {
    Fiber& self = fibers[thread.x];
    self.given = 0;
    memcpy(&self.given, &value, sizeof(T));
    self.lanes = lanes, self.from = from;
    wait(in_warp_operation);
    T result;
    memcpy(&result, &fibers[thread.x].taken, sizeof(T));
    return result;
}

// Launches: parameters as cuLaunchKernel takes them, addresses of the arguments' values.

template <int...> struct Numbers {};
template <int count, int... rest> struct Below : Below<count - 1, count - 1, rest...> {};
template <int... rest> struct Below<0, rest...> { using type = Numbers<rest...>; };

template <class... Parameters> struct Launch {
    void (*kernel)(Parameters...);
    void** parameters;

    template <int... number> void call(Numbers<number...>) { kernel(*static_cast<Parameters*>(parameters[number])...); }
    static void run(void* self) { static_cast<Launch*>(self)->call(typename Below<sizeof...(Parameters)>::type()); }
};

// `waits`: whether the kernel has barriers or warp operations.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), bool waits, unsigned block_count, unsigned thread_count, void** parameters) {
    Launch<Parameters...> call{kernel, parameters};
    if (thread_count > most_threads) fail("too many threads");
    body = call.run, argument = &call;
    blocks.x = block_count, threads.x = thread_count;
    Order order;
    static thread_local unsigned numbers[most_threads];
    unsigned* const turns = static_cast<unsigned*>(malloc(sizeof(unsigned) * (block_count + 1)));
    order.fill(turns, block_count);
    for (unsigned turn = 0; turn < block_count; ++turn) {
        block.x = turns[turn];
        if (waits) {
            run_fibers(order);
            continue;
        }
        order.fill(numbers, thread_count);
        for (unsigned i = 0; i < thread_count; ++i) thread.x = numbers[i], call.run(&call);
    }
    free(turns);
}

inline bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace emulator

#define threadIdx emulator::thread
#define blockIdx emulator::block
#define blockDim emulator::threads
#define gridDim emulator::blocks

inline void __syncthreads() { emulator::wait(emulator::in_block_barrier); }
inline void __syncwarp(uint32_t lanes) { emulator::exchange(lanes, 0, emulator::thread.x % emulator::warp); }
template <class T> T __shfl_xor_sync(uint32_t lanes, T value, int distance) {
    return emulator::exchange(lanes, value, (emulator::thread.x % emulator::warp) ^ unsigned(distance));
}
