// The state of torch's random numbers on the CPU, for many threads.
#pragma once

#include "python_ref.h"

namespace capture {

void init_random_state(PyObject* module);

}  // namespace capture
