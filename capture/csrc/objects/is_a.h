// `capture._C.is_a`: whether an object is an instance of a class, by its type alone.
#pragma once
#include "python_ref.h"

namespace capture {

void init_is_a(PyObject* module);

}  // namespace capture
