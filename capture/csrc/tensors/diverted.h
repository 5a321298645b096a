// Gradients that come to results of a graph which is run again, handed to the results that the program has.
#pragma once

#include "python_ref.h"

namespace capture {

void init_diverted(PyObject* module);

}  // namespace capture
