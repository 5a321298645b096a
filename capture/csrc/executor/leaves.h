// Gradients of leaves, added to their `.grad` while the plan that computes them still runs, as eager mode adds them between two
// nodes: so none waits in memory for the others.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <vector>

namespace capture::executor {

class Leaves {
 public:
  // edges: for each output of a plan the edge of the autograd node that runs on this thread, -1 for none; shorter where the others
  // have none. arguments: what the plan reads. A gradient is taken where all that its edge would do with it is to add it to the
  // `.grad` that is there: for a leaf that the running backward pass reaches, without hooks, and not in memory that the plan reads.
  Leaves(const std::vector<int64_t>& edges, const std::vector<c10::IValue>& arguments);

  bool takes(size_t output) const { return output < nodes_.size() && nodes_[output] != nullptr; }

  // Adds the gradient, in the modes of the thread as they were when this object was made. Throws what ATen throws.
  void add(size_t output, at::Tensor gradient) const;

 private:
  std::vector<torch::autograd::AccumulateGrad*> nodes_;  // by output; the running node keeps them alive
  c10::impl::LocalDispatchKeySet modes_;
};

// Whether a backward pass that comes to this leaf calls hooks.
bool is_hooked(const at::Tensor& leaf);

}  // namespace capture::executor
