// A call of a compiled function: asks the guards; then runs a mock function, on_miss or CPython, and what these leave to be called.
#pragma once

#include <cstdint>

#include "cpython/frame_view.h"
#include "frames/native_kinds.h"
#include "frames/native_streaks.h"
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
  NativeStreaks* native_streaks;
  // For compiled modules only, else NULL: `current(module)` tells what to call in place of the function, or None. It is asked again
  // whenever the class of the module, or of what the module stands for, has changed.
  PyObject* current;
  PyObject* instead;          // its last answer, or NULL …
  unsigned int version;       // … which holds for this version of the module's class …
  PyTypeObject* plain_class;  // … and this class of what it stands for. Not owned, only compared
};

inline CompiledFunction* unpack_function(PyObject* object) { return reinterpret_cast<CompiledFunction*>(object); }

PyObject* call_function(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames);

// Runs a frame of the function of `compiled` as if `compiled` had been called. Owns the frame.
PyObject* compiled_function_run(PyObject* compiled, PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept;

// Calls `function` with all its arguments, and lets go of these as soon as the call has them; what is known of such calls is what
// `compiled` knows.
PyObject* call_as(Ref compiled, Ref function, Ref arguments);

// `_C.RUN_NATIVELY` (borrowed).
PyObject* run_natively_sentinel();

void init_compiled_calls(PyObject* module);

}  // namespace capture
