// GPUs as autograd sees them in a process that only traces.
#pragma once

#include <Python.h>

namespace capture::cuda {

void init_stand_in(PyObject* module);

}  // namespace capture::cuda
