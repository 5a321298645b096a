// Objects of Python classes that become objects of C in place: `_C.StandIn`, `_C.become`, `_C.exchange`.
#pragma once

#include "python_ref.h"

namespace capture {

void init_stand_in(PyObject* module);

}  // namespace capture
