#include "executor/leaves.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace capture::executor {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

struct Range {
  const char* begin;
  const char* end;
};

Range memory_of(const at::Tensor& tensor) {
  auto* begin = static_cast<const char*>(tensor.storage().data());
  return {begin, begin + tensor.storage().nbytes()};
}

// The memory of the tensors among some values.
class Memory {
 public:
  explicit Memory(const std::vector<c10::IValue>& values) {
    for (const c10::IValue& value : values) {
      if (value.isTensor() && value.toTensor().has_storage()) ranges_.push_back(memory_of(value.toTensor()));
    }
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& left, const Range& right) { return std::less<>()(left.begin, right.begin); });
    for (size_t i = 1; i < ranges_.size(); i++) ranges_[i].end = std::max(ranges_[i].end, ranges_[i - 1].end, std::less<>());
  }

  bool overlaps(const Range& other) const {  // ends grow, so that the last range which begins before another's end decides
    auto behind = std::lower_bound(ranges_.begin(), ranges_.end(), other.end,
                                   [](const Range& range, const char* end) { return std::less<>()(range.begin, end); });
    return behind != ranges_.begin() && std::less<>()(other.begin, (behind - 1)->end);
  }

 private:
  std::vector<Range> ranges_;  // by beginning; `end`: of all ranges so far
};

// Whether the running backward pass calls a node, and does not hand out what comes to it.
bool is_called(Node* node) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr) return false;
  if (chosen->empty()) return true;
  auto found = chosen->find(node);
  return found != chosen->end() && found->second.needed_ && found->second.captures_ == nullptr;
}

bool has_hooks(AccumulateGrad& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

// The leaf's node that an edge leads to, if it only adds in place.
AccumulateGrad* adding(const torch::autograd::Edge& edge) {
  auto* node = dynamic_cast<AccumulateGrad*>(edge.function.get());
  if (node == nullptr || !node->variable.defined() || !is_called(node) || has_hooks(*node)) return nullptr;
  const at::Tensor& leaf = node->variable;
  const at::Tensor& grad = leaf.grad();
  bool plain = grad.defined() && grad.layout() == at::kStrided && grad.device().is_cpu() && grad.scalar_type() == leaf.scalar_type() &&
               !grad.requires_grad() && !grad.unsafeGetTensorImpl()->is_python_dispatch();
  return plain ? node : nullptr;
}

}  // namespace

Leaves::Leaves(const std::vector<int64_t>& edges, const std::vector<c10::IValue>& arguments)
    : modes_(c10::impl::tls_local_dispatch_key_set()) {
  if (edges.empty() || torch::autograd::AnomalyMode::is_enabled()) return;
  auto running = torch::autograd::get_current_node();
  if (running == nullptr) return;
  std::optional<Memory> read;
  for (size_t i = 0; i < edges.size(); i++) {
    auto edge = static_cast<size_t>(edges[i]);
    if (edges[i] < 0 || edge >= running->num_outputs()) continue;
    AccumulateGrad* node = adding(running->next_edge(edge));
    if (node == nullptr) continue;
    if (!read) read.emplace(arguments);
    if (read->overlaps(memory_of(node->variable.grad()))) continue;
    nodes_.resize(edges.size());
    nodes_[i] = node;
  }
}

void Leaves::add(size_t output, at::Tensor gradient) const {
  c10::impl::ForceDispatchKeyGuard as_before(modes_);
  torch::autograd::variable_list gradients;
  gradients.push_back(std::move(gradient));
  nodes_[output]->apply(std::move(gradients));
}

bool is_hooked(const at::Tensor& leaf) {
  auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return node && has_hooks(static_cast<AccumulateGrad&>(*node));
}

}  // namespace capture::executor
