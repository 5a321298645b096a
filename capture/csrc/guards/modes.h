// The process-wide and thread-wide modes of torch that decide what an operation does.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "guards/difference.h"
#include "python_ref.h"

namespace capture {

constexpr int kAutocastDevices = 16;  // room for those that some version of torch knows

// Plain bytes, so that comparing two is cheap. Enumerations hold torch's own numbers.
struct Modes {
  uint64_t included_keys, excluded_keys;  // thread-local dispatch keys; autocast switches are among the excluded ones
  std::array<int8_t, kAutocastDevices> autocast_dtypes;
  int8_t autocast_cache, autocast_nesting;  // how many autocast blocks lie in one another: the outermost drops the cache
  int8_t grad, inference, forward_grad, multithreaded_backward, view_replay, anomaly, dual_level;
  int8_t default_dtype, has_default_device, default_device_type, default_device_index;
  int8_t deterministic, deterministic_warn_only, fill_uninitialized;
  int8_t cudnn_enabled, cudnn_deterministic, cudnn_benchmark;
  int8_t attention_kernels;  // which are allowed: a bit for each of `job.ATTENTION`
  int8_t torch_function;

  static Modes current();
  bool operator==(const Modes&) const = default;
};

// The thread's modes, to be put back when an exception left a graph half-way through (inside a `with no_grad()`, say).
class ModesAtEntry {
 public:
  ModesAtEntry() : modes_(Modes::current()) {}
  const Modes& modes() const { return modes_; }
  void restore() const;

 private:
  Modes modes_;
};

// Whether torch's own tracers or transforms (fx, jit.trace, make_fx, functorch, modes in Python) watch this thread, or hooks of
// saved tensors do: a checkpoint counts what each operation saves, and its second run must save the same as its first.
bool torch_is_tracing();

// The first field that differs.
Difference modes_difference(const Modes& expected, const Modes& got);

PyObject* modes_to_python(const Modes& modes);
// The Modes inside of a Python `Modes` object; nullptr when `object` is not one.
const Modes* modes_from_python(PyObject* object);

void init_modes(PyObject* module);

}  // namespace capture
