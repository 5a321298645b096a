// Functions of `capture._C` on the slots in which a set keeps its members, which decide its order of iteration.
#pragma once
#include "python_ref.h"

namespace capture {

void init_set_layout(PyObject* module);

}  // namespace capture
