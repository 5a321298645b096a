// `capture._C.Classes`, a set of classes, and what classes have: asked without Python code of the program's.
#pragma once

#include "python_ref.h"

namespace capture {

void init_classes(PyObject* module);

}  // namespace capture
