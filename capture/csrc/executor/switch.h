// `_C.Switch`: a callable that passes its calls on to a target which can be exchanged.
#pragma once

#include "python_ref.h"

namespace capture {

void init_switch(PyObject* module);

}  // namespace capture
