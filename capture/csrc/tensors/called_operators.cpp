#include "tensors/called_operators.h"

#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace capture {
namespace {

using Names = std::set<std::string>;

// One set for each piece of code that is listened to: such code may call another one.
thread_local std::vector<Names> listening;
thread_local at::CallbackHandle callback = 0;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (name) {
    for (Names& names : listening) names.insert(name->name);
  }
  return nullptr;
}

PyObject* begin_listening(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (listening.empty()) {
    callback = at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  }
  listening.emplace_back();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* called_operators(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (listening.empty()) {
    PyErr_SetString(PyExc_RuntimeError, "nobody listens");
    return nullptr;
  }
  const Names names = std::move(listening.back());
  listening.pop_back();
  if (listening.empty()) at::removeCallback(callback);
  Ref found = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
  Py_ssize_t at = 0;
  for (const std::string& name : names) {
    PyObject* text = found ? PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())) : nullptr;
    if (text == nullptr) return nullptr;
    PyTuple_SET_ITEM(found.get(), at++, text);
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"begin_listening", begin_listening, METH_NOARGS, "Notes the operators of torch that this thread calls, until `called_operators()`."},
    {"called_operators", called_operators, METH_NOARGS,
     "The names of those that were called since the last `begin_listening()`, which it ends. Raises RuntimeError without one."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_called_operators(PyObject* module) {
  if (PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
