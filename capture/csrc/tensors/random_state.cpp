#include "tensors/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>

namespace capture {
namespace {

// `torch.get_rng_state` takes the generator's mutex while it holds the interpreter's lock, and makes a Python object under it: the
// garbage collector may run there, and code of a finalizer that lets another thread go on, which waits for the mutex with
// the interpreter's lock in its hand. Here nobody has both.
class LockedGenerator {
 public:
  LockedGenerator() : generator_(at::detail::getDefaultCPUGenerator()), mutex_(generator_.mutex()) {}
  at::Generator* operator->() { return &generator_; }

 private:
  pybind11::gil_scoped_release unlocked_;
  at::Generator generator_;
  std::scoped_lock<std::mutex> mutex_;
};

PyObject* get_random_state(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  const at::Tensor state = LockedGenerator()->get_state();
  return THPVariable_Wrap(state);
  END_HANDLE_TH_ERRORS
}

PyObject* set_random_state(PyObject*, PyObject* state) {
  HANDLE_TH_ERRORS
  if (!THPVariable_Check(state)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(state)->tp_name);
  LockedGenerator()->set_state(THPVariable_Unpack(state));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"get_random_state", get_random_state, METH_NOARGS,
     "A tensor with the state of the CPU's default generator, as `torch.get_rng_state()`, which threads can bring to a stand-still."},
    {"set_random_state", set_random_state, METH_O, "Sets it, as `torch.set_rng_state(state)`. Raises as that does."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_random_state(PyObject* module) {
  if (PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
