// `_C.Executor`: runs a plan (capture/backends/native/plan.py) in one call.
#pragma once

#include "python_ref.h"

namespace capture {

void init_executor(PyObject* module);

}  // namespace capture
