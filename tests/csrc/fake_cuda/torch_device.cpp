// The part of a CUDA build of torch that plans need, libtorch_cuda.so, on the processor's memory: two devices, streams that are only
// numbers, and an allocator that counts.
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kDevices = 2;
thread_local c10::DeviceIndex device = 0;
thread_local std::array<c10::StreamId, kDevices> streams = {};
std::atomic<int> recorded = 0, allocated = 0, freed = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device next) const override {
    c10::Device before = getDevice();
    device = next.index();
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, device}; }
  void setDevice(c10::Device next) const override { device = next.index(); }
  void uncheckedSetDevice(c10::Device next) const noexcept override { device = next.index(); }
  c10::Stream getStream(c10::Device of) const override { return c10::Stream(c10::Stream::UNSAFE, of, streams.at(of.index())); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    c10::Stream before = getStream(next.device());
    streams.at(next.device_index()) = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { recorded++; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Counting final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    allocated++;
    void* memory = std::aligned_alloc(512, (bytes / 512 + 1) * 512);
    return {memory, memory, raw_deleter(), {c10::kCUDA, device}};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* memory) {
      freed++;
      std::free(memory);
    };
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Counting allocator;
const bool registered = (c10::SetAllocator(c10::kCUDA, &allocator), true);

}  // namespace

extern "C" {
int32_t aoti_torch_get_current_cuda_stream(int32_t index, void** stream) {
  *stream = reinterpret_cast<void*>(streams.at(index));
  return 0;
}
void fake_set_stream(int index, int64_t stream) { streams.at(index) = stream; }
void fake_set_device(int index) { device = static_cast<c10::DeviceIndex>(index); }
int fake_device() { return device; }
int fake_recorded() { return recorded; }
int fake_allocated() { return allocated; }
int fake_freed() { return freed; }
}
