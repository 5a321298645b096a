// The extension module `capture._C`.
#include "cuda/devices.h"
#include "cuda/stand_in.h"
#include "frames/code_cache.h"
#include "frames/compiled_calls.h"
#include "frames/compiled_function.h"
#include "executor/executor.h"
#include "cpython/frame_view.h"
#include "guards/call_kind.h"
#include "guards/guard_tree.h"
#include "objects/classes.h"
#include "objects/is_a.h"
#include "objects/known_hash.h"
#include "objects/look_ahead.h"
#include "objects/references.h"
#include "guards/modes.h"
#include "tensors/own_nodes.h"
#include "tensors/called_operators.h"
#include "tensors/diverted.h"
#include "python_ref.h"
#include "tensors/random_state.h"
#include "frames/resumption.h"
#include "objects/set_layout.h"
#include "tensors/snapshot.h"
#include "frames/stance.h"
#include "objects/stand_in.h"
#include "executor/switch.h"
#include "frames/loop_body.h"
#include "frames/tail_call.h"
#include "guards/tensor_properties.h"
#include "tensors/undo.h"
#include "frames/intercept.h"

#include <torch/version.h>

#include <cctype>
#include <cstring>
#include <vector>

namespace capture {
namespace {

PyObject* make_traceback(PyObject*, PyObject* args) {
  PyObject *next, *code, *globals;
  int lasti, lineno;
  if (!PyArg_ParseTuple(args, "OO!O!ii:make_traceback", &next, &PyCode_Type, &code, &PyDict_Type, &globals, &lasti,
                        &lineno)) {
    return nullptr;
  }
  PyFrameObject* frame =
      PyFrame_New(PyThreadState_Get(), reinterpret_cast<PyCodeObject*>(code), globals, nullptr);
  if (frame == nullptr) return nullptr;
  frame_view_set_lasti(frame, lasti);
  PyObject* traceback =
      PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyTraceBack_Type), "OOii", next, frame, lasti, lineno);
  Py_DECREF(frame);
  return traceback;
}

PyObject* show_locals(PyObject*, PyObject* args) {
  PyObject *traceback, *code, *bound, *names;
  if (!PyArg_ParseTuple(args, "OO!O!O:show_locals", &traceback, &PyCode_Type, &code, &PyDict_Type, &bound, &names)) return nullptr;
  std::vector<PyObject*> values(static_cast<size_t>(reinterpret_cast<PyCodeObject*>(code)->co_nlocalsplus), nullptr);
  PyObject *index, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(bound, &at, &index, &value)) {
    size_t place = PyLong_AsSize_t(index);
    if (place >= values.size()) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "no such local variable");
      return nullptr;
    }
    values[place] = value;
  }
  for (; PyTraceBack_Check(traceback); traceback = reinterpret_cast<PyObject*>(reinterpret_cast<PyTracebackObject*>(traceback)->tb_next)) {
    PyFrameObject* frame = reinterpret_cast<PyTracebackObject*>(traceback)->tb_frame;
    if (!frame_view_shows_nothing(frame, reinterpret_cast<PyCodeObject*>(code))) break;
    frame_view_show(frame, values.data(), names == Py_None ? nullptr : names);
    if (reinterpret_cast<PyTracebackObject*>(traceback)->tb_next == nullptr) break;
  }
  Py_RETURN_NONE;
}

PyObject* set_handled_exception(PyObject*, PyObject* exception) {
  if (exception != Py_None && !PyExceptionInstance_Check(exception)) {
    PyErr_Format(PyExc_TypeError, "an exception or None is needed, not %.200s", Py_TYPE(exception)->tp_name);
    return nullptr;
  }
  PyErr_SetHandledException(exception);
  Py_RETURN_NONE;
}

PyObject* reraise(PyObject*, PyObject* exception) {
  if (!PyExceptionInstance_Check(exception)) {
    PyErr_Format(PyExc_TypeError, "an exception is needed, not %.200s", Py_TYPE(exception)->tp_name);
    return nullptr;
  }
  PyErr_Restore(Py_NewRef(Py_TYPE(exception)), Py_NewRef(exception), PyException_GetTraceback(exception));
  return nullptr;
}

PyMethodDef functions[] = {
    {"reraise", reraise, METH_O, "Raises an exception as it is: its context stays what it was."},
    {"set_handled_exception", set_handled_exception, METH_O,
     "Makes an exception, or None, the one that the calling code is handling."},
    {"step_through_mocks", step_through_mocks, METH_O,
     "step_through_mocks(flag)\n\n"
     "Whether debuggers that are told of each line see those of mock functions, which are files, or of the program alone."},
    {"show_locals", show_locals, METH_VARARGS,
     "show_locals(traceback, code, {place: value}, mapping or None)\n\n"
     "Has the first entries of a traceback show these local variables, which `make_traceback` has made for a frame of `code`."},
    {"make_traceback", make_traceback, METH_VARARGS,
     "make_traceback(tb_next, code, globals, lasti, lineno) -> traceback\n\n"
     "A traceback entry for a frame of `code`, for code objects that an interpreter in Python runs."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "capture._C", "Frame hook, code cache and guards of capture.", -1,
                          functions, nullptr, nullptr, nullptr, nullptr};

// Layouts differ between releases of torch, and what reads another's need not fail.
void check_torch() {
  Ref torch = Ref::steal(checked(PyImport_ImportModule("torch")));
  Ref version = Ref::steal(checked(PyObject_GetAttrString(torch.get(), "__version__")));
  const char* found = PyUnicode_AsUTF8(version.get());
  if (found == nullptr) throw PythonError{};
  const size_t length = std::strlen(TORCH_VERSION);
  if (std::strncmp(found, TORCH_VERSION, length) == 0 && !std::isdigit(static_cast<unsigned char>(found[length]))) return;
  PyErr_Format(PyExc_ImportError, "for torch %s, and this is torch %s", TORCH_VERSION, found);
  throw PythonError{};
}

}  // namespace
}  // namespace capture

PyMODINIT_FUNC PyInit__C() {
  using namespace capture;
  Ref module = Ref::steal(PyModule_Create(&definition));
  if (!module) return nullptr;
  try {
    check_torch();
    init_modes(module.get());
    init_tensor_properties(module.get());
    init_code_cache(module.get());
    init_guard_tree(module.get());
    init_call_kind(module.get());
    init_compiled_function(module.get());
    init_compiled_calls(module.get());
    init_tail_call(module.get());
    init_resumption(module.get());
    init_switch(module.get());
    init_executor(module.get());
    cuda::init_devices(module.get());
    cuda::init_stand_in(module.get());
    init_random_state(module.get());
    init_own_nodes(module.get());
    init_called_operators(module.get());
    init_diverted(module.get());
    init_snapshot(module.get());
    init_undo(module.get());
    init_is_a(module.get());
    init_classes(module.get());
    init_references(module.get());
    init_known_hash(module.get());
    init_set_layout(module.get());
    init_look_ahead(module.get());
    init_loop_body(module.get());
    init_intercept(module.get());
    init_stand_in(module.get());
    init_stance();
  } catch (PythonError&) {
    return nullptr;
  }
  return module.release();
}
