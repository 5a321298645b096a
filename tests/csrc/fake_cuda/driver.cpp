// A libcuda.so.1 whose two GPUs are the processor: cubins are shared libraries with emulated kernels, and a launch runs the grid at
// once. It refuses what the real one refuses (no context, another context's kernel), fails on demand, and tells what was launched.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int kDevices = 2;
constexpr int kInvalidImage = 200, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500;

struct Context { int device; };
struct Module { void* library; Context* context; };
struct Function { void (*run)(unsigned, unsigned, void**); Context* context; };
struct Launch { int device; unsigned blocks, threads; void* stream; };

Context contexts[kDevices] = {{0}, {1}};
thread_local std::vector<Context*> stack;
std::mutex lock;
std::map<std::string, int> calls, failing;   // by function; failing: with what the next call fails
std::vector<Launch> launches;

int begin(const char* name) {
  std::lock_guard<std::mutex> locked(lock);
  calls[name]++;
  auto found = failing.find(name);
  if (found == failing.end()) return 0;
  int status = found->second;
  failing.erase(found);
  return status;
}

Context* current() { return stack.empty() ? nullptr : stack.back(); }

size_t elf_bytes(const char* image) {  // to the end of the table of sections, which is the end of the file
  uint64_t offset;
  uint16_t width, count;
  memcpy(&offset, image + 40, 8);
  memcpy(&width, image + 58, 2);
  memcpy(&count, image + 60, 2);
  return offset + size_t{width} * count;
}

}  // namespace

#define BEGIN(NAME) if (int status = begin(#NAME)) return status

extern "C" {

int cuInit(unsigned) { BEGIN(cuInit); return 0; }
int cuDriverGetVersion(int* version) { BEGIN(cuDriverGetVersion); *version = 13000; return 0; }
int cuGetErrorName(int status, const char** name) { *name = status == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int status, const char** text) { *text = status == 701 ? "too many resources requested for launch" : "as told"; return 0; }
int cuDeviceGetCount(int* count) { BEGIN(cuDeviceGetCount); *count = kDevices; return 0; }
int cuDeviceGet(int* device, int index) { BEGIN(cuDeviceGet); *device = index; return index < kDevices ? 0 : 101; }
int cuDeviceGetName(char* name, int bytes, int device) { snprintf(name, bytes, "Fake %d", device); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(Context** context, int device) { BEGIN(cuDevicePrimaryCtxRetain); *context = &contexts[device]; return 0; }
int cuCtxGetCurrent(Context** context) { *context = current(); return 0; }
int cuCtxPushCurrent_v2(Context* context) { BEGIN(cuCtxPushCurrent_v2); stack.push_back(context); return 0; }
int cuCtxPopCurrent_v2(Context** context) {
  if (stack.empty()) return kInvalidContext;
  *context = stack.back();
  stack.pop_back();
  return 0;
}

int cuModuleLoadData(Module** module, const void* image) {
  BEGIN(cuModuleLoadData);
  if (current() == nullptr) return kInvalidContext;
  auto* bytes = static_cast<const char*>(image);
  if (strncmp(bytes, "\177ELF", 4) != 0) return kInvalidImage;
  int file = memfd_create("cubin", 0);
  if (write(file, bytes, elf_bytes(bytes)) < 0) return kInvalidImage;
  void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kInvalidImage;   // the file stays open: the loader knows libraries by their names
  *module = new Module{library, current()};
  return 0;
}

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  BEGIN(cuModuleGetFunction);
  void* found = dlsym(module->library, (std::string(name) + "__emulated").c_str());
  if (found == nullptr) return kNotFound;
  *function = new Function{reinterpret_cast<void (*)(unsigned, unsigned, void**)>(found), module->context};
  return 0;
}

int cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  BEGIN(cuLaunchKernel);
  if (current() == nullptr) return kInvalidContext;
  if (current() != function->context) return kInvalidHandle;
  if (x == 0 || y != 1 || z != 1 || threads == 0 || threads_y != 1 || threads_z != 1 || shared != 0 || extra != nullptr) return 1;
  {
    std::lock_guard<std::mutex> locked(lock);
    launches.push_back({function->context->device, x, threads, stream});
  }
  function->run(x, threads, parameters);
  return 0;
}

// For tests.

void fake_fail(const char* name, int status) { std::lock_guard<std::mutex> locked(lock); failing[name] = status; }
int fake_calls(const char* name) { std::lock_guard<std::mutex> locked(lock); return calls[name]; }
int fake_contexts_pushed() { return static_cast<int>(stack.size()); }
int fake_launches() { std::lock_guard<std::mutex> locked(lock); return static_cast<int>(launches.size()); }
void fake_launch(int number, int64_t* found) {
  std::lock_guard<std::mutex> locked(lock);
  const Launch& launch = launches.at(static_cast<size_t>(number));
  found[0] = launch.device, found[1] = launch.blocks, found[2] = launch.threads, found[3] = reinterpret_cast<int64_t>(launch.stream);
}
}
