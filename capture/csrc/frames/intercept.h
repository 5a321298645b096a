// `_C.intercept`: compiled functions that take over calls wherever a program makes them.
#pragma once

#include "python_ref.h"

namespace capture {

void init_intercept(PyObject* module);

}  // namespace capture
