// `_C.cuda_devices`: what NVIDIA's driver says of itself and of its devices.
#pragma once

#include "python_ref.h"

namespace capture::cuda {

void init_devices(PyObject* module);

}  // namespace capture::cuda
