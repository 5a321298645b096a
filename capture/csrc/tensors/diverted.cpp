#include "tensors/diverted.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensors/own_nodes.h"

namespace capture {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

template <typename Pointer>
struct WeakOf;
template <typename T>
struct WeakOf<std::shared_ptr<T>> {
  using type = std::weak_ptr<T>;
};
template <typename T>
struct WeakOf<c10::intrusive_ptr<T>> {
  using type = c10::weak_intrusive_ptr<T>;
};
using WeakNode = WeakOf<NodePointer>::type;

// Where gradients of some tensors go. The nodes may die.
using Edges = std::vector<std::pair<WeakNode, uint32_t>>;

constexpr const char* kEdges = "capture._C.Edges";

Edges* edges_in(PyObject* capsule) { return static_cast<Edges*>(PyCapsule_GetPointer(capsule, kEdges)); }

PyObject* edges_of(PyObject*, PyObject* tensors) {
  HANDLE_TH_ERRORS
  if (!PyTuple_Check(tensors)) return PyErr_Format(PyExc_TypeError, "a tuple is needed, not %.200s", Py_TYPE(tensors)->tp_name);
  auto edges = std::make_unique<Edges>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
    PyObject* item = PyTuple_GET_ITEM(tensors, i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(item)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(item);
    edges->emplace_back(WeakNode(tensor.grad_fn()), tensor.output_nr());
  }
  PyObject* capsule = PyCapsule_New(edges.get(), kEdges, [](PyObject* self) { delete edges_in(self); });
  if (capsule != nullptr) edges.release();
  return capsule;
  END_HANDLE_TH_ERRORS
}

// Gradients on their way from a node to the one below it, by backward pass.
struct Passing {
  std::mutex mutex;
  std::unordered_map<int, variable_list> gradients;
};

// Takes the gradients of some of a node's results away from it.
struct Take : torch::autograd::FunctionPreHook {
  std::shared_ptr<Passing> passing;
  std::vector<uint32_t> places;

  variable_list operator()(const variable_list& gradients) override {
    variable_list rest = gradients, taken;
    for (uint32_t place : places) taken.push_back(std::exchange(rest.at(place), at::Tensor()));
    for (const at::Tensor& other : rest) {
      TORCH_CHECK(!other.defined(), "gradients of gradients come to a result of an operation beside one that a compiled graph returns");
    }
    std::lock_guard lock(passing->mutex);
    passing->gradients[torch::autograd::get_current_graph_task_id()] = std::move(taken);
    return rest;
  }
};

// Hands them on.
struct Diverted : Node {
  std::shared_ptr<Passing> passing = std::make_shared<Passing>();

  variable_list apply(variable_list&&) override {
    std::lock_guard lock(passing->mutex);
    auto found = passing->gradients.extract(torch::autograd::get_current_graph_task_id());
    return found.empty() ? variable_list(num_outputs()) : std::move(found.mapped());
  }
  std::string name() const override { return "Diverted"; }

  // Takes what the node of an edge takes: a node of Python's computes gradients of zeros, whose shapes are checked.
  void resemble(const Edge& edge) { input_metadata_.emplace_back(edge.function->input_metadata(edge.input_nr)); }
};

// From now on gradients that come to the nodes of `again` go to `edges`: what formulas save of a result is that result itself.
PyObject* divert(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *capsule, *again;
  if (!PyArg_ParseTuple(args, "OO!:divert", &capsule, &PyTuple_Type, &again)) return nullptr;
  Edges* edges = edges_in(capsule);
  if (edges == nullptr) return nullptr;
  if (edges->size() != static_cast<size_t>(PyTuple_GET_SIZE(again))) return PyErr_Format(PyExc_ValueError, "as many tensors as edges");
  std::map<Node*, std::vector<std::pair<uint32_t, Edge>>> found;
  for (size_t i = 0; i < edges->size(); i++) {
    const auto& [weak, number] = (*edges)[i];
    PyObject* item = PyTuple_GET_ITEM(again, i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(item)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(item);
    NodePointer node = weak.lock();
    if (node && tensor.grad_fn()) found[tensor.grad_fn().get()].emplace_back(tensor.output_nr(), Edge(std::move(node), number));
  }
  for (auto& [node, ways] : found) {
    torch::autograd::edge_list& next = node->next_edges();
    auto first = std::find_if(next.begin(), next.end(), [](const Edge& edge) { return edge.is_valid(); });
    if (first == next.end()) continue;
    auto below = make_node<Diverted>();
    below->resemble(*first);
    auto take = std::make_unique<Take>();
    take->passing = below->passing;
    for (auto& [place, way] : ways) {
      take->places.push_back(place);
      below->add_next_edge(std::move(way));
    }
    node->add_pre_hook(std::move(take));
    for (Edge& edge : next) {
      if (&edge != &*first) edge = Edge();
    }
    *first = Edge(std::move(below), 0);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Autograd does not look behind a node whose number is less than that of the one it looks for. It counts from the inputs.
PyObject* count_from(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *capsule, *tensors;
  if (!PyArg_ParseTuple(args, "OO!:count_from", &capsule, &PyList_Type, &tensors)) return nullptr;
  Edges* edges = edges_in(capsule);
  if (edges == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++) {
    PyObject* item = PyList_GET_ITEM(tensors, i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(item)->tp_name);
    const NodePointer& made = THPVariable_Unpack(item).grad_fn();
    if (!made) continue;
    for (const auto& [weak, number] : *edges) {
      if (NodePointer node = weak.lock()) made->update_topological_nr(Edge(std::move(node), number));
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"edges_of", edges_of, METH_O, "Where the gradients of a tuple of tensors go."},
    {"divert", divert, METH_VARARGS, "Has gradients that come to the nodes of tensors from now on go to these edges."},
    {"count_from", count_from, METH_VARARGS, "Numbers the nodes of new tensors higher than those of the edges, for `divert`."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_diverted(PyObject* module) {
  if (PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
