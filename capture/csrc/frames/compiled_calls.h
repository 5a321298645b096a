// A call of a compiled function: asks the guards; then runs a mock function, on_miss or CPython, and what these leave to be called.
#pragma once

#include <cstdint>

#include "cpython/frame_view.h"
#include "frames/native_kinds.h"
#include "frames/rests.h"
#include "frames/trees.h"
#include "python_ref.h"

namespace capture {

struct CompiledFunction {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* on_miss;
  PyObject* on_error;
  PyObject* dict;
  PyObject* weakrefs;
  PyCodeObject* code;  // borrowed from function: the code object that `tree` is for
  PyObject* tree;      // borrowed from trees
  Trees* trees;
  uint64_t calls;  // that guards were evaluated for
  unsigned long long traced;  // calls that ran natively because lines are traced
  unsigned long long refused;  // … because there are too many entries for their kind
  unsigned long long deferred;  // … because captures of their kind were never hit
  NativeKinds* native_kinds;
  Rests* rests;
  // Of the calls of a compiled module, NULL else: `current(module)` is asked what to call in the place of the function, or None, whenever
  // the class of the module, or of what it stands for, has changed. The answer, or NULL, and the classes that it holds for.
  PyObject* current;
  PyObject* instead;
  unsigned int version;
  PyTypeObject* plain_class;  // not owned, only compared
};

inline CompiledFunction* unpack_function(PyObject* object) { return reinterpret_cast<CompiledFunction*>(object); }

PyObject* call_function(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// Runs a frame of the function of `compiled` as if `compiled` had been called. Owns the frame.
PyObject* compiled_function_run(PyObject* compiled, PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept;

// `_C.RUN_NATIVELY` (borrowed).
PyObject* run_natively_sentinel();

void init_compiled_calls(PyObject* module);

}  // namespace capture
