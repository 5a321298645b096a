#include "cuda/launcher.h"

#include "cuda/driver.h"

namespace capture::cuda {
namespace {

class Gpu final : public Launcher {
 public:
  Gpu(c10::Device device, const std::vector<std::string>& cubins) : device_(device) {
    for (const std::string& cubin : cubins) modules_.push_back(load_module(device, cubin));
  }

  void* function(const std::string& symbol) const override {
    Current current(device_);
    for (Module module : modules_) {
      if (Function found = find_function(module, symbol)) return found;
    }
    return nullptr;
  }

  void launch(void* function, const std::string& name, unsigned blocks, unsigned threads, void** parameters,
              void* stream) const override {
    cuda::launch(static_cast<Function>(function), name, blocks, threads, parameters, stream);
  }

 private:
  c10::Device device_;
  std::vector<Module> modules_;
};

class Emulator final : public Launcher {
 public:
  explicit Emulator(const SharedLibrary& library) : library_(library) {}

  void* function(const std::string& symbol) const override { return library_.symbol(symbol + "__emulated"); }

  void launch(void* function, const std::string&, unsigned blocks, unsigned threads, void** parameters, void*) const override {
    reinterpret_cast<void (*)(unsigned, unsigned, void**)>(function)(blocks, threads, parameters);
  }

 private:
  const SharedLibrary& library_;
};

}  // namespace

std::unique_ptr<Launcher> gpu_launcher(c10::Device device, const std::vector<std::string>& cubins) {
  return std::make_unique<Gpu>(device, cubins);
}

std::unique_ptr<Launcher> emulator(const SharedLibrary& library) { return std::make_unique<Emulator>(library); }

}  // namespace capture::cuda
