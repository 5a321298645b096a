#include "frames/intercept.h"

#include "frames/compiled_calls.h"
#include "frames/compiled_function.h"
#include "frames/frame_hook.h"
#include "cpython/frame_view.h"
#include "guards/modes.h"
#include "frames/stance.h"

namespace capture {
namespace {

class Interceptor final : public FrameInterceptor {
 public:
  // choosers: {qualified name: chooser}, or nullptr to stop.
  void set(PyObject* choosers) {
    Ref old = Ref::steal(choosers_);  // released last: its death may run code
    choosers_ = Py_XNewRef(choosers);
    set_interceptor(choosers == nullptr ? nullptr : this);
  }

  bool wants(PyCodeObject* code) noexcept override { return chooser(code) != nullptr; }

  PyObject* run(PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept override {
    if (program_is_traced() || torch_is_tracing() || eager_is_forced()) return pass_frame_on(tstate, frame, true);
    Ref compiled = Ref::steal(choose(frame));
    if (!compiled) {
      frame_view_discard(tstate, frame);
      return nullptr;
    }
    if (is_compiled_function(compiled.get())) return compiled_function_run(compiled.get(), tstate, frame);
    return pass_frame_on(tstate, frame, compiled.get() == run_natively_sentinel());
  }

 private:
  // Borrowed. Names are strings, whose lookup raises nothing.
  PyObject* chooser(PyCodeObject* code) const noexcept {
    return choosers_ == nullptr ? nullptr : PyDict_GetItemWithError(choosers_, code->co_qualname);
  }

  // NULL with a Python error when the chooser raised.
  PyObject* choose(_PyInterpreterFrame* frame) const noexcept {
    PyCodeObject* code = frame_view_code(frame);
    Ref chooser = Ref::borrow(this->chooser(code));
    PyObject* first = code->co_argcount > 0 ? frame_view_locals(frame)[0] : Py_None;
    PyObject* function = frame_view_function(frame);
    PyObject* chosen = PyObject_CallFunctionObjArgs(chooser.get(), function, first, nullptr);
    if (chosen != nullptr && is_compiled_function(chosen) && compiled_function_target(chosen) != function) {
      Py_DECREF(chosen);
      PyErr_SetString(PyExc_ValueError, "capture: the compiled function is one of another function");
      return nullptr;
    }
    return chosen;
  }

  PyObject* choosers_ = nullptr;
};

PyObject* intercept(PyObject*, PyObject* choosers) {
  static Interceptor the_interceptor;
  if (choosers != Py_None && !PyDict_CheckExact(choosers)) {
    PyErr_Format(PyExc_TypeError, "a dict or None is needed, not %.200s", Py_TYPE(choosers)->tp_name);
    return nullptr;
  }
  the_interceptor.set(choosers == Py_None ? nullptr : choosers);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"intercept", intercept, METH_O,
     "intercept({qualified name: chooser}), or intercept(None) to stop\n\n"
     "For each frame, in any thread, of a function whose code has that name, chooser(function, first argument) says what is to\n"
     "run it: a CompiledFunction of that function, None for the interpreter, or RUN_NATIVELY for the interpreter with no look\n"
     "at the frames inside. Frames inside of one that a compiled function runs are not looked at either."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_intercept(PyObject* module) { checked(PyModule_AddFunctions(module, functions)); }

}  // namespace capture
