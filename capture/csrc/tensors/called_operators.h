// Which of torch's operators are called while code runs that nobody looks into.
#pragma once

#include "python_ref.h"

namespace capture {

void init_called_operators(PyObject* module);

}  // namespace capture
