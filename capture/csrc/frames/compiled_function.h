// `_C.CompiledFunction`: a function whose frames are looked up in a guard tree before they run. What it is to Python, and calls of
// compiled modules.
#pragma once

#include "python_ref.h"

namespace capture {

bool is_compiled_function(PyObject* object);

// The function that it compiles (borrowed).
PyObject* compiled_function_target(PyObject* compiled);

void init_compiled_function(PyObject* module);

}  // namespace capture
