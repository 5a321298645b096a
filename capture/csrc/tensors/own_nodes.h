// Gives each result of one autograd node a node of its own; the same for nodes of a replay.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>

#include "python_ref.h"

namespace capture {

// Versions of torch differ in how they count who refers to a node.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Made>
auto make_node() {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Made>();
  } else {
    return c10::make_intrusive<Made>();
  }
}

void init_own_nodes(PyObject* module);

}  // namespace capture
