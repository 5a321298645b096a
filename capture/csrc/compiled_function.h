// `_C.CompiledFunction`: a function whose frames are looked up in a guard tree before they run.
#pragma once

#include "python_ref.h"

namespace capture {

void init_compiled_function(PyObject* module);

}  // namespace capture
