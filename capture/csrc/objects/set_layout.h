// Functions of `capture._C` on where a set keeps its members: what its order of iteration, and that of all that is added to it, follow from.
#pragma once
#include "python_ref.h"

namespace capture {

void init_set_layout(PyObject* module);

}  // namespace capture
