// The type `_C.Undo`: tensors as they are before a graph writes to them.
#pragma once
#include "python_ref.h"

namespace capture {

void init_undo(PyObject* module);

}  // namespace capture
