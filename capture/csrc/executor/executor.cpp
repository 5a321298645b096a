#include "executor/executor.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <memory>
#include <structmember.h>
#include <vector>

#include "executor/leaves.h"
#include "executor/run.h"
#include "python_ref.h"

namespace capture {
namespace {

using executor::Frame;
using executor::is_hooked;
using executor::Plan;
using executor::Value;
using executor::Workspace;

// All but the running of steps happens under the interpreter lock, which protects the frames and the workspaces.
struct State {
  Plan plan;
  std::vector<std::unique_ptr<Frame>> idle;  // a call that finds none, because others are running, makes one more

  std::unique_ptr<Frame> take_frame() {
    if (idle.empty()) return std::make_unique<Frame>(plan);
    auto frame = std::move(idle.back());
    idle.pop_back();
    return frame;
  }
};

struct Executor {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  State* state;
};

Executor* unpack(PyObject* object) { return reinterpret_cast<Executor*>(object); }

// A call's frame and workspace, given back at its end.
class Call {
 public:
  explicit Call(State& state) : state_(state), frame_(state.take_frame()) {}
  ~Call() {
    frame_->clear();
    return_workspace(std::move(workspace_));
    state_.idle.push_back(std::move(frame_));
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::vector<c10::IValue> run(std::vector<c10::IValue>& arguments, const std::vector<int64_t>& edges, bool loose) {
    executor::Leaves leaves(edges, arguments);
    frame_->set_arguments(arguments, loose);
    workspace_ = executor::take_workspace(frame_->arena_bytes(), state_.plan.device);
    pybind11::gil_scoped_release unlocked;
    return frame_->run(workspace_.memory.get(), leaves);
  }

 private:
  State& state_;
  std::unique_ptr<Frame> frame_;
  Workspace workspace_;
};

// Within HANDLE_TH_ERRORS a set error indicator is a python_error.
PyObject* owned(PyObject* object) {
  if (object == nullptr) throw python_error();
  return object;
}

c10::IValue read_argument(PyObject* object) {
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw python_error();
  return number;
}

std::vector<c10::IValue> read_arguments(const Plan& plan, PyObject* const* args, size_t count) {
  TORCH_CHECK_TYPE(count == plan.input_slots.size(), "the plan takes ", plan.input_slots.size(), " arguments, not ", count);
  std::vector<c10::IValue> arguments;
  arguments.reserve(count);
  for (size_t i = 0; i < count; i++) arguments.push_back(read_argument(args[i]));
  return arguments;
}

PyObject* write_output(const c10::IValue& output) {
  if (output.isTensor()) return owned(THPVariable_Wrap(output.toTensor()));
  return output.isNone() ? Py_NewRef(Py_None) : owned(PyLong_FromLongLong(output.toInt()));
}

PyObject* run(Executor* self, std::vector<c10::IValue>& arguments, const std::vector<int64_t>& edges = {}, bool loose = false) {
  Ref keep = Ref::borrow(reinterpret_cast<PyObject*>(self));
  std::vector<c10::IValue> outputs = Call(*self->state).run(arguments, edges, loose);
  Ref result = Ref::steal(owned(PyTuple_New(static_cast<Py_ssize_t>(outputs.size()))));
  for (size_t i = 0; i < outputs.size(); i++) {
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), write_output(outputs[i]));
  }
  return result.release();
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(kwnames == nullptr || PyTuple_GET_SIZE(kwnames) == 0, "an Executor takes no keyword arguments");
  auto arguments = read_arguments(unpack(callable)->state->plan, args, static_cast<size_t>(PyVectorcall_NARGS(nargsf)));
  return run(unpack(callable), arguments);
  END_HANDLE_TH_ERRORS
}

std::vector<int64_t> read_edges(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "edges are a tuple, not ", Py_TYPE(tuple)->tp_name);
  std::vector<int64_t> edges;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    edges.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (edges.back() == -1 && PyErr_Occurred()) throw python_error();
  }
  return edges;
}

PyObject* run_boxed(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= 1 && count <= 3, "run_boxed takes one to three arguments, not ", count);
  PyObject* list = args[0];
  TORCH_CHECK_TYPE(PyList_Check(list), "run_boxed takes a list, not ", Py_TYPE(list)->tp_name);
  std::vector<int64_t> edges = count > 1 ? read_edges(args[1]) : std::vector<int64_t>();
  bool loose = count > 2 && Py_IsTrue(args[2]);
  auto arguments = read_arguments(unpack(self)->state->plan, reinterpret_cast<PyListObject*>(list)->ob_item,
                                  static_cast<size_t>(PyList_GET_SIZE(list)));
  if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) throw python_error();
  return run(unpack(self), arguments, edges, loose);
  END_HANDLE_TH_ERRORS
}

c10::Device read_device(const char* text) {
  c10::Device device{std::string(text)};
  TORCH_CHECK_VALUE(device.is_cpu() || (device.is_cuda() && device.has_index()), "a plan runs on cpu or on a GPU such as cuda:0, not on ", text);
  return device;
}

// What a plan is made of: tuples, lists and records, and plain objects.
Value value_of(PyObject* object) {
  if (object == Py_None) return Value();
  if (PyBool_Check(object)) return Value(object == Py_True);
  if (PyFloat_Check(object)) return Value(PyFloat_AS_DOUBLE(object));
  if (PyComplex_Check(object)) return Value(c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object)));
  if (PyLong_Check(object)) {
    int64_t number = PyLong_AsLongLong(object);
    if (number == -1 && PyErr_Occurred()) throw python_error();
    return Value(number);
  }
  if (PyUnicode_Check(object)) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == nullptr) throw python_error();
    return Value(std::string(text, static_cast<size_t>(length)));
  }
  TORCH_CHECK_VALUE(PyTuple_Check(object) || PyList_Check(object), "invalid plan: it holds a ", Py_TYPE(object)->tp_name);
  Value::List items;
  for (Py_ssize_t i = 0; i < Py_SIZE(object); i++) {
    items.push_back(value_of(PyList_Check(object) ? PyList_GET_ITEM(object, i) : PyTuple_GET_ITEM(object, i)));
  }
  return Value(std::move(items));
}

void open_kernels(PyObject* library, Plan& plan) {
  if (plan.device.is_cuda()) {
    plan.launcher = cuda::gpu_launcher(plan.device, pybind11::cast<std::vector<std::string>>(library));
    return;
  }
  Ref path = Ref::steal(owned(PyOS_FSPath(library)));
  if (!executor::open_library(value_of(path.get()).text(), plan)) {
    PyErr_Format(PyExc_OSError, "the kernels cannot be loaded: %s", dlerror());
    throw python_error();
  }
}

// `library`: the path of a shared library, for a GPU a sequence of cubins, or None for plans without kernels. `constants`: tensors on
// the device.
void read_plan(PyObject* source, PyObject* library, PyObject* constants, c10::Device device, Plan& plan) {
  plan.device = device;
  if (library != Py_None) open_kernels(library, plan);
  for (pybind11::handle constant : pybind11::handle(constants)) {
    TORCH_CHECK_TYPE(THPVariable_Check(constant.ptr()), "constants must be tensors");
    plan.constants.push_back(THPVariable_Unpack(constant.ptr()));
    TORCH_CHECK_VALUE(plan.constants.back().device() == device, "a constant is on ", plan.constants.back().device(), ", not on ", device);
  }
  executor::read_plan(value_of(source), plan);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"plan", "library", "constants", "device", nullptr};
  PyObject *plan, *library = Py_None, *constants = nullptr;
  const char* device = "cpu";
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOs:Executor", const_cast<char**>(names), &plan, &library, &constants, &device)) {
    return nullptr;
  }
  Ref none = Ref::steal(owned(PyTuple_New(0)));
  if (constants == nullptr) constants = none.get();
  auto state = std::make_unique<State>();
  read_plan(plan, library, constants, read_device(device), state->plan);
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  unpack(object)->vectorcall = call;
  unpack(object)->state = state.release();
  return object;
  END_HANDLE_TH_ERRORS
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  delete unpack(object)->state;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* release_workspaces(PyObject*, PyObject*) { return PyLong_FromSize_t(executor::release_workspaces()); }

PyObject* workspace_bytes(PyObject*, PyObject*) { return PyLong_FromSize_t(executor::idle_workspace_bytes()); }

PyMethodDef methods[] = {
    {"run_boxed", reinterpret_cast<PyCFunction>(run_boxed), METH_FASTCALL,
     "run_boxed(arguments: list, edges: tuple = (), loose: bool = False) -> tuple\n\n"
     "Like a call, but takes the arguments out of the list, which is empty then: a tensor that nobody else holds dies after\n"
     "the last step that needs it.\n"
     "edges: for each output the edge of the autograd node that runs on this thread along which it is a gradient, -1 for none.\n"
     "A gradient that would only be added to the `.grad` of a leaf, because that is there and no hook waits for it, is added\n"
     "as soon as it is computed, and dies; None is returned in its place.\n"
     "loose: whether tensors may have other strides than the plan's; they are copied when they are first needed."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Executor, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyObject* any_is_hooked(PyObject*, PyObject* leaves) {
  HANDLE_TH_ERRORS
  if (!PyTuple_Check(leaves)) return PyErr_Format(PyExc_TypeError, "a tuple is needed, not %.200s", Py_TYPE(leaves)->tp_name);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); i++) {
    PyObject* item = PyTuple_GET_ITEM(leaves, i);
    if (!THPVariable_Check(item)) return PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(item)->tp_name);
    if (is_hooked(THPVariable_Unpack(item))) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"any_is_hooked", any_is_hooked, METH_O, "Whether a backward pass that comes to one of these leaves calls hooks."},
    {"release_workspaces", release_workspaces, METH_NOARGS,
     "Frees the memory that executors keep for their next calls; returns how many bytes. Running calls are not disturbed."},
    {"workspace_bytes", workspace_bytes, METH_NOARGS, "The bytes that executors keep for their next calls."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_executor(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "Executor(plan, library=None, constants=(), device='cpu')\n\n"
                      "Runs a `plan.Plan`. library: the path of the shared library with its kernels; the loader takes files of\n"
                      "one path for one library, so that it must not be used for another while this object lives. With a device\n"
                      "such as 'cuda:0', a sequence of cubins. constants: a sequence of tensors, on the device.\n"
                      "A call takes the plan's arguments and returns a tuple of its outputs. It runs without the interpreter\n"
                      "lock, below autograd, and bumps no version counters. Several threads may call at the same time. Raises\n"
                      "IndexError when a kernel meets an index out of range, RuntimeError for a tensor that is not as the\n"
                      "plan declares it, and what ATen raises.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Executor", sizeof(Executor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  Ref type = Ref::steal(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
