// The type `_C.Undo`: copies of tensors made before a graph writes to them, and how to restore these.
#pragma once
#include "python_ref.h"

namespace capture {

void init_undo(PyObject* module);

}  // namespace capture
