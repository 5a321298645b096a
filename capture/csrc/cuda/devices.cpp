#include "cuda/devices.h"

#include <torch/csrc/Exceptions.h>

#include "cuda/driver.h"

namespace capture::cuda {
namespace {

// (version, [(name, major, minor)])
PyObject* cuda_devices(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  Devices found = devices();
  Ref list = Ref::steal(PyList_New(0));
  if (!list) throw python_error();
  for (const Devices::One& device : found.all) {
    Ref described = Ref::steal(Py_BuildValue("sii", device.name.c_str(), device.major, device.minor));
    if (!described || PyList_Append(list.get(), described.get()) < 0) throw python_error();
  }
  return Py_BuildValue("iO", found.version, list.get());
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"cuda_devices", cuda_devices, METH_NOARGS,
     "cuda_devices() -> (version, [(name, major, minor), …])\n\n"
     "What NVIDIA's driver says of itself, as 13000 for CUDA 13.0, and of its devices: the names and compute capabilities. Raises\n"
     "RuntimeError where there is no driver."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_devices(PyObject* module) { checked(PyModule_AddFunctions(module, functions)); }

}  // namespace capture::cuda
