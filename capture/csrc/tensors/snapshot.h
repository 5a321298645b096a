// The type `_C.Snapshot`: whether tensors are the same and unchanged since.
#pragma once
#include "python_ref.h"

namespace capture {

void init_snapshot(PyObject* module);

}  // namespace capture
