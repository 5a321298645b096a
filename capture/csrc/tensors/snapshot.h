// The type `_C.Snapshot`: tells whether tensors are the same objects as before, and unchanged.
#pragma once
#include "python_ref.h"

namespace capture {

void init_snapshot(PyObject* module);

}  // namespace capture
