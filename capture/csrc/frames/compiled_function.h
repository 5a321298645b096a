// `_C.CompiledFunction`: a function whose frames are looked up in a guard tree before they run.
#pragma once

#include "cpython/frame_view.h"
#include "python_ref.h"

namespace capture {

bool is_compiled_function(PyObject* object);

// The function that it compiles (borrowed).
PyObject* compiled_function_target(PyObject* compiled);

// Runs a frame of the function of `compiled` as if `compiled` had been called. Owns the frame.
PyObject* compiled_function_run(PyObject* compiled, PyThreadState* tstate, _PyInterpreterFrame* frame) noexcept;

// `_C.RUN_NATIVELY` (borrowed).
PyObject* run_natively_sentinel();

void init_compiled_function(PyObject* module);

}  // namespace capture
