// One running call of a plan.
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "executor/memory.h"
#include "executor/plan.h"
#include "executor/leaves.h"

namespace capture::executor {

// What a call works with. It is kept for later calls: what depends only on the integers and on the arena's address, such as tensors
// over the arena, is made when these change. Used by one call at a time; holds no tensors of a call between calls.
class Frame {
 public:
  explicit Frame(const Plan& plan);

  // Sets the arguments: a tensor for each input slot, an int where there is none. With `loose` they may have any strides: such
  // as are not the plan's are copied when they are first needed. Throws RuntimeError for a tensor that is not as the plan declares
  // it, as operators do: a program may come here with one whose `.data` it has set. Then the frame may be used again.
  void set_arguments(std::vector<c10::IValue>& arguments, bool loose);
  size_t arena_bytes() const { return static_cast<size_t>(numbers_[plan_.arena]); }

  // Runs all steps. `arena`: arena_bytes() long. Returns the outputs: tensors, ints and None, which also stands for what `leaves`
  // took. Needs no interpreter lock. Throws IndexError when a kernel met an index out of range, and what operators throw.
  std::vector<c10::IValue> run(void* arena, const Leaves& leaves);

  // Forgets the tensors of the call.
  void clear() noexcept;

 private:
  using Sizes = c10::SmallVector<int64_t, 8>;

  void compute_numbers(const std::vector<c10::IValue>& arguments);
  void prepare(void* arena);
  void run_step(const KernelStep& step, const std::vector<int64_t>& numbers);
  void run_step(const LaunchStep& step, const std::vector<int64_t>& numbers);
  void run_step(const ExternStep& step, const std::vector<c10::IValue>& fixed);
  void release(const std::vector<size_t>& slots);
  bool usable(const Fit& fit);
  void launch(const LaunchStep& step, size_t variant, int64_t blocks, void** parameters);
  void launch_one(const LaunchStep& step, const std::vector<int64_t>& numbers, uint8_t** invalid);
  void launch_tables(const LaunchStep& step, const std::vector<int64_t>& numbers, uint8_t** invalid);
  size_t variant_of(const Entry& entry);
  void use_stream();
  void hand_over(const std::vector<size_t>& outputs, const Leaves& leaves);

  Sizes sizes(const Numbers& numbers) const;
  void* address(size_t slot);
  const at::Tensor& tensor(size_t slot);
  at::Tensor tensor(const Argument& argument);
  c10::IValue value(const Argument& argument);
  c10::IValue list(const Argument& argument);
  void set(size_t slot, at::Tensor tensor);
  void check(size_t slot, const at::Tensor& tensor, bool loose) const;
  void keep_results(const ExternStep& step);
  void keep_result(size_t slot, at::Tensor result);

  struct Shape {
    Sizes sizes;
    Sizes strides;
  };

  const Plan& plan_;
  std::vector<int64_t> numbers_;
  std::vector<Shape> shapes_;  // by slot
  std::vector<int64_t> scratch_;
  void* arena_ = nullptr;
  bool prepared_ = false;
  std::vector<at::Tensor> tensors_;                       // by slot; none for slots in the arena
  std::vector<at::Tensor> uncopied_;                      // by slot: arguments of other strides, until they are needed
  std::vector<void*> addresses_;                          // by slot; nullptr while there is no memory
  std::vector<std::vector<int64_t>> kernel_numbers_;      // by step
  std::vector<std::vector<c10::IValue>> fixed_arguments_; // by step
  std::vector<c10::IValue> stack_;
  void* stream_ = nullptr;                                // of the running call, on a GPU
  std::optional<c10::Stream> constants_used_on_;          // the last one
};

}  // namespace capture::executor
