// Where the time of a hit goes. Some hits are timed, not all: reading the clock costs as much as checking a few guards.
#pragma once

#include <cstdint>
#include <ctime>

namespace capture {

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Whether the n-th call of a function is timed: the first ones, then every 32nd.
inline bool is_timed(uint64_t n) { return n < 8 || n % 32 == 0; }

// While a hit of this thread is timed: where graphs add the nanoseconds that they take. Else nullptr.
inline thread_local uint64_t* graph_clock = nullptr;

// Makes `clock` the graph clock for its lifetime.
class GraphClock {
 public:
  explicit GraphClock(uint64_t* clock) : outer_(graph_clock) { graph_clock = clock; }
  ~GraphClock() { graph_clock = outer_; }
  GraphClock(const GraphClock&) = delete;
  GraphClock& operator=(const GraphClock&) = delete;

 private:
  uint64_t* outer_;
};

}  // namespace capture
