// NVIDIA's driver, loaded while the program runs. Nothing of CUDA is needed to build this, and none of it need be there.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <string>
#include <vector>

namespace capture::cuda {

struct Context_;
struct Module_;
struct Function_;
using Module = Module_*;
using Function = Function_*;

// A kernel that cannot be launched, and whatever else the driver refuses, raises RuntimeError, which names it.

// The code of a cubin, on a device. The same code is loaded once, and stays as long as the process: a CUDA graph that the program
// has recorded may launch its kernels at any time. Needs the interpreter lock.
Module load_module(c10::Device device, const std::string& cubin);

// The kernel of that name, nullptr where the module has none. Needs a `Current` of the module's device.
Function find_function(Module module, const std::string& name);

// Launches a grid of one dimension. `parameters`: the address of each. Needs a `Current` of the function's device.
void launch(Function function, const std::string& name, unsigned blocks, unsigned threads, void** parameters, void* stream);

// The stream that torch uses on this thread, as the driver knows it.
void* current_stream(c10::Device device);

// Makes a device torch's current one on this thread, and the driver's as well, until the object dies. A thread that did not use the
// device before, such as one of autograd's, has no context: torch leaves that to CUDA's runtime, which we do not call.
class Current {
 public:
  explicit Current(c10::Device device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  c10::DeviceGuard device_;
  bool pushed_ = false;
};

// What the driver says of itself, as 13000 for CUDA 13.0, and of its devices: the names and compute capabilities. Throws where there is
// no driver.
struct Devices {
  struct One {
    std::string name;
    int major, minor;
  };
  int version = 0;
  std::vector<One> all;
};
Devices devices();

}  // namespace capture::cuda
