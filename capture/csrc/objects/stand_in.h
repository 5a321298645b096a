// Stand-ins, objects of Python classes that can become C objects in place: `_C.StandIn`, `_C.become`, `_C.exchange`.
#pragma once

#include "python_ref.h"

namespace capture {

void init_stand_in(PyObject* module);

}  // namespace capture
