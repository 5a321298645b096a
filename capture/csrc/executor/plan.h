// A plan as the executor reads it: the tuples of capture/backends/native/plan.py, with names resolved.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/launcher.h"
#include "executor/value.h"
#include "shared_library.h"

namespace capture::executor {

using Number = uint32_t;  // a position in the table of integers
using Numbers = std::vector<Number>;

struct Row {
  enum class Kind { kConst, kArgument, kSize, kAdd, kMul, kDiv, kMod, kMax };
  Kind kind;
  int64_t left;
  int64_t right;
};

struct Slot {
  enum class Kind { kInput, kHost, kConstant, kArena, kFresh, kResult };
  Kind kind;
  size_t position;
  std::string name;
  at::ScalarType dtype;
  Numbers sizes;
  Numbers strides;
  bool written;
  bool in_kernels = false;  // whether a kernel reads or writes it
};

// An argument of an operator, or an output. `fixed`: it changes only when the arena or the table of integers does.
struct Argument {
  enum class Kind { kValue, kTensor, kNumber, kList };
  Kind kind = Kind::kValue;
  bool fixed = true;
  c10::IValue value;            // kValue
  size_t slot = 0;              // kTensor
  bool whole = false;           // kTensor: the slot's tensor as it is, else a view:
  Numbers sizes;
  Numbers strides;
  std::optional<Number> offset;
  at::ScalarType dtype{};
  Number number = 0;            // kNumber
  std::vector<Argument> items;  // kList
  c10::TypePtr type;            // kList: of the elements; kNumber: of itself
};

using KernelFunction = void (*)(void* const* buffers, const int64_t* numbers, int64_t begin, int64_t end);

struct KernelStep {
  std::string name;
  KernelFunction function;
  std::vector<size_t> buffers;
  Numbers numbers;
  Number total;
  Number grain;
  bool checks;
  std::vector<size_t> released;
};

struct ExternStep {
  std::string name;
  c10::OperatorHandle op;
  std::vector<Argument> args;    // as many as the operator's schema has
  std::vector<int64_t> results;  // slots; -1: not kept
  std::vector<size_t> released;
};

// One way to run a kernel of CUDA's form.
struct Variant {
  void* function;
  unsigned threads;
};

// What a variant asks for, and how many blocks it takes.
struct Fit {
  Number blocks;
  std::vector<size_t> aligned;                        // slots that must begin at a multiple of 16 bytes
  std::vector<std::pair<Number, int64_t>> divisible;  // numbers, and what they must be multiples of
};

// A kernel of a launch.
struct Entry {
  std::vector<size_t> buffers;
  Numbers numbers;
  std::vector<Fit> fits;  // by variant: the first that can be used is; the last one asks for nothing
};

struct LaunchStep {
  std::string name;
  std::vector<Variant> variants;
  std::vector<Entry> entries;
  size_t room;  // for how many entries a launch has parameters, in a table; 0: they are those of the only entry
  bool checks;
  std::vector<size_t> released;
};

struct Plan {
  std::vector<Row> numbers;
  bool symbolic = false;  // whether the integers depend on the arguments
  std::vector<int64_t> input_slots;
  std::vector<Slot> slots;
  std::vector<std::variant<KernelStep, LaunchStep, ExternStep>> steps;
  std::vector<Argument> outputs;
  std::vector<std::vector<size_t>> finished;  // by step: outputs that nothing else needs or changes after it
  Number arena = 0;
  std::vector<at::Tensor> constants;
  c10::Device device = c10::kCPU;                // of all tensors but those of kHost, which are on the processor
  std::unique_ptr<SharedLibrary> library;        // of kernels for the processor
  std::unique_ptr<cuda::Launcher> launcher;      // of kernels in CUDA's form
};

// Reads the fields of plan.py's `Plan` into a Plan that has its device, constants (on that device), library and launcher. Throws
// ValueError for what is no plan, and what c10 throws.
void read_plan(const Value& source, Plan& plan);

// Loads the kernels of a plan that runs on the processor: its own, and CUDA's, emulated. False if they cannot be loaded; dlerror says
// why.
bool open_library(const std::string& path, Plan& plan);

}  // namespace capture::executor
