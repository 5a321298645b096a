// `_C.LoopBody`: runs a round of a loop as a call of a function, in the place of the frame that the loop is in.
#pragma once

#include "python_ref.h"

namespace capture {

void init_loop_body(PyObject* module);

}  // namespace capture
