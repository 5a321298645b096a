#include "tensors/own_nodes.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace capture {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Hands on the gradients of one result, or of those that one operation makes.
struct OneResult : Node {
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "OneResult"; }
};

PyObject* give_nodes(PyObject* results, bool shared) {
  HANDLE_TH_ERRORS
  if (!PyTuple_Check(results)) return PyErr_Format(PyExc_TypeError, "a tuple is needed, not %.200s", Py_TYPE(results)->tp_name);
  NodePointer node;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); i++) {
    PyObject* result = PyTuple_GET_ITEM(results, i);
    if (!THPVariable_Check(result)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(result)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(result);
    if (!tensor.requires_grad() || tensor.is_leaf()) continue;
    if (!node || !shared) node = make_node<OneResult>();
    node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
    torch::autograd::set_history(tensor, node);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* give_own_nodes(PyObject*, PyObject* results) { return give_nodes(results, false); }
PyObject* give_shared_node(PyObject*, PyObject* results) { return give_nodes(results, true); }

// Whether the backward pass that has called the current node goes on below it. One that is asked to add to the `.grad` of a result
// calls the result's node, and nothing else.
PyObject* goes_on(PyObject*, PyObject*) {
  const auto* needed = torch::autograd::get_current_graph_task_exec_info();
  const NodePointer node = torch::autograd::get_current_node();
  if (needed == nullptr || needed->empty() || !node) Py_RETURN_TRUE;
  for (const auto& edge : node->next_edges()) {
    const auto found = needed->find(edge.function.get());
    if (found != needed->end() && found->second.should_execute()) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

// The node that knows the operation where autograd keeps the node of a write to a part of a tensor; None for other nodes.
PyObject* node_of_part(PyObject*, PyObject* node) {
  HANDLE_TH_ERRORS
  if (!torch::autograd::THPCppFunction_Check(node)) Py_RETURN_NONE;
  const auto& cdata = reinterpret_cast<torch::autograd::THPCppFunction*>(node)->cdata;
  const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(&*cdata);
  if (write == nullptr || !write->fn) Py_RETURN_NONE;
  return torch::autograd::functionToPyObject(write->fn);
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"give_own_nodes", give_own_nodes, METH_O,
     "Gives each of a tuple of tensors a node of autograd of its own, between it and the node that made it."},
    {"give_shared_node", give_shared_node, METH_O, "Gives a tuple of tensors of one node of autograd another one, before that."},
    {"goes_on", goes_on, METH_NOARGS, "Whether the backward pass needs what is below the node that it has called."},
    {"node_of_part", node_of_part, METH_O,
     "The node of the operation that wrote to a part of a tensor, of a node CopySlices; None of another node."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_own_nodes(PyObject* module) {
  if (PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
