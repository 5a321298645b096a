// Kernels in CUDA's form, grids of blocks of threads, and who runs them: a GPU, or the processor in its place.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "shared_library.h"

namespace capture::cuda {

class Launcher {
 public:
  virtual ~Launcher() = default;

  // A kernel by its name, nullptr where there is none.
  virtual void* function(const std::string& symbol) const = 0;

  // Runs a grid of one dimension, or has it run on `stream`. `parameters`: the address of each. `name`: for errors, which it
  // throws.
  virtual void launch(void* function, const std::string& name, unsigned blocks, unsigned threads, void** parameters,
                      void* stream) const = 0;
};

// Kernels on a GPU, in one of some cubins. Needs the interpreter lock.
std::unique_ptr<Launcher> gpu_launcher(c10::Device device, const std::vector<std::string>& cubins);

// Kernels that were compiled for the processor: for NAME the library, which must outlive the launcher, has
// `extern "C" void NAME__emulated(unsigned blocks, unsigned threads, void** parameters)`, which returns when the grid has run.
std::unique_ptr<Launcher> emulator(const SharedLibrary& library);

}  // namespace capture::cuda
