#include "cuda/driver.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <map>
#include <utility>

#include "shared_library.h"

namespace capture::cuda {
namespace {

using Context = Context_*;
using Status = int;  // CUresult; 0 is success

constexpr Status kNotFound = 500;
constexpr size_t kMostDevices = 64;
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // of CUdevice_attribute

std::string unusable(int device) { return "cuda:" + std::to_string(device) + " cannot be used"; }

// What we call of the driver, by its own names; since CUDA 4.0 these have not changed.
class Driver {
 public:
  Status (*init)(unsigned);
  Status (*version)(int*);
  Status (*error_name)(Status, const char**);
  Status (*error_string)(Status, const char**);
  Status (*device_count)(int*);
  Status (*device)(int*, int);
  Status (*device_name)(char*, int, int);
  Status (*device_attribute)(int*, int, int);
  Status (*retain_primary_context)(Context*, int);
  Status (*current_context)(Context*);
  Status (*push_context)(Context);
  Status (*pop_context)(Context*);
  Status (*load_module)(Module*, const void*);
  Status (*module_function)(Function*, Module, const char*);
  Status (*launch_kernel)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

  // Throws where there is no driver; the next call looks again.
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  void check(Status status, const std::string& what) const {
    if (status == 0) return;
    const char *name = nullptr, *text = nullptr;
    error_name(status, &name);
    error_string(status, &text);
    std::string code = name == nullptr ? "CUDA error " + std::to_string(status) : name;
    TORCH_CHECK(false, what, ": ", code, text == nullptr ? "" : std::string(" (") + text + ")");
  }

  // The context that torch works in, kept for as long as the process, as torch keeps it.
  Context primary_context(c10::Device device) const {
    static std::array<std::atomic<Context>, kMostDevices> contexts;
    auto& known = contexts.at(static_cast<size_t>(device.index()));
    if (Context context = known.load(std::memory_order_acquire)) return context;
    int number = 0;
    Context context = nullptr;
    check(this->device(&number, device.index()), unusable(device.index()));
    check(retain_primary_context(&context, number), unusable(device.index()));
    known.store(context, std::memory_order_release);
    return context;
  }

 private:
  Driver() : library_("libcuda.so.1") {
    TORCH_CHECK(library_, "NVIDIA's driver cannot be loaded (", dlerror(), "); install it, or make libcuda.so.1 visible here");
    find(init, "cuInit");
    find(version, "cuDriverGetVersion");
    find(error_name, "cuGetErrorName");
    find(error_string, "cuGetErrorString");
    find(device_count, "cuDeviceGetCount");
    find(device, "cuDeviceGet");
    find(device_name, "cuDeviceGetName");
    find(device_attribute, "cuDeviceGetAttribute");
    find(retain_primary_context, "cuDevicePrimaryCtxRetain");
    find(current_context, "cuCtxGetCurrent");
    find(push_context, "cuCtxPushCurrent_v2");
    find(pop_context, "cuCtxPopCurrent_v2");
    find(load_module, "cuModuleLoadData");
    find(module_function, "cuModuleGetFunction");
    find(launch_kernel, "cuLaunchKernel");
    check(init(0), "NVIDIA's driver cannot be used");
  }

  template <class Type>
  void find(Type& place, const char* name) {
    place = reinterpret_cast<Type>(library_.symbol(name));
    TORCH_CHECK(place != nullptr, "NVIDIA's driver has no ", name, "; install a newer one");
  }

  SharedLibrary library_;
};

}  // namespace

Module load_module(c10::Device device, const std::string& cubin) {
  static std::map<std::pair<c10::DeviceIndex, std::string>, Module> loaded;
  auto known = loaded.find({device.index(), cubin});
  if (known != loaded.end()) return known->second;
  const Driver& driver = Driver::get();
  Current current(device);
  Module module = nullptr;
  driver.check(driver.load_module(&module, cubin.data()), "kernels cannot be loaded to cuda:" + std::to_string(device.index()));
  return loaded[{device.index(), cubin}] = module;
}

Function find_function(Module module, const std::string& name) {
  const Driver& driver = Driver::get();
  Function found = nullptr;
  Status status = driver.module_function(&found, module, name.c_str());
  if (status == kNotFound) return nullptr;
  driver.check(status, "kernel " + name + " cannot be loaded");
  return found;
}

void launch(Function function, const std::string& name, unsigned blocks, unsigned threads, void** parameters, void* stream) {
  const Driver& driver = Driver::get();
  Status status = driver.launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
  if (status != 0) driver.check(status, "kernel " + name + " cannot be launched");
}

void* current_stream(c10::Device device) {
  using Ask = int32_t (*)(int32_t, void**);  // of torch's C interface, which its builds for CUDA have; we are linked with none
  static const auto ask = [] {
    SharedLibrary torch("libtorch_cuda.so", RTLD_NOLOAD);
    auto found = torch ? reinterpret_cast<Ask>(torch.symbol("aoti_torch_get_current_cuda_stream")) : nullptr;
    TORCH_CHECK(found != nullptr, "this build of torch has no streams of CUDA; install one for CUDA");
    return found;
  }();
  void* stream = nullptr;
  TORCH_CHECK(ask(device.index(), &stream) == 0, "torch does not tell the current stream of cuda:", device.index());
  return stream;
}

Current::Current(c10::Device device) : device_(device) {
  const Driver& driver = Driver::get();
  Context current = nullptr, wanted = driver.primary_context(device);
  driver.check(driver.current_context(&current), unusable(device.index()));
  if (current == wanted) return;
  driver.check(driver.push_context(wanted), unusable(device.index()));
  pushed_ = true;
}

Current::~Current() {
  Context popped = nullptr;
  if (pushed_) Driver::get().pop_context(&popped);
}

Devices devices() {
  const Driver& driver = Driver::get();
  Devices found;
  int count = 0;
  driver.check(driver.version(&found.version), "NVIDIA's driver does not tell its version");
  driver.check(driver.device_count(&count), "NVIDIA's driver does not tell its devices");
  for (int i = 0; i < count; i++) {
    int device = 0, major = 0, minor = 0;
    char name[256] = "";
    driver.check(driver.device(&device, i), unusable(i));
    driver.check(driver.device_name(name, sizeof name, device), unusable(i));
    driver.check(driver.device_attribute(&major, kCapabilityMajor, device), unusable(i));
    driver.check(driver.device_attribute(&minor, kCapabilityMinor, device), unusable(i));
    found.all.push_back({name, major, minor});
  }
  return found;
}

}  // namespace capture::cuda
