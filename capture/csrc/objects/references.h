// `capture._C.unshared`: which objects hold the only reference to another one.
#pragma once

#include "python_ref.h"

namespace capture {

void init_references(PyObject* module);

}  // namespace capture
