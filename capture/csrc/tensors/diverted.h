// Passes gradients of the results of a replayed graph on to the program's own results.
#pragma once

#include "python_ref.h"

namespace capture {

void init_diverted(PyObject* module);

}  // namespace capture
