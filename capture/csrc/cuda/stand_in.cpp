// GPUs as autograd sees them in a process that only traces: numbers, with a stream, and no context.
#include "cuda/stand_in.h"

#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>

#include "python_ref.h"

namespace capture::cuda {
namespace {

// torch's own guard makes a context for each device that a thread of autograd is set to.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit Guard(c10::DeviceIndex devices) : devices_(std::clamp<c10::DeviceIndex>(devices, 1, c10::impl::kFakeGuardImplMaxDevices)) {}

  c10::DeviceIndex deviceCount() const noexcept override { return devices_; }
  c10::DeviceType type() const override { return numbers_.type(); }
  c10::Device exchangeDevice(c10::Device device) const override { return numbers_.exchangeDevice(device); }
  c10::Device getDevice() const override { return numbers_.getDevice(); }
  void setDevice(c10::Device device) const override { numbers_.setDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { numbers_.uncheckedSetDevice(device); }
  c10::Stream getStream(c10::Device device) const override { return numbers_.getStream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return numbers_.exchangeStream(stream); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override {
    numbers_.record(event, stream, device, flag);
  }
  void block(void* event, const c10::Stream& stream) const override { numbers_.block(event, stream); }
  bool queryEvent(void* event) const override { return numbers_.queryEvent(event); }
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override { numbers_.destroyEvent(event, device); }

 private:
  c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> numbers_;
  c10::DeviceIndex devices_;
};

PyObject* stand_in_for_gpus(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  constexpr auto kCUDA = c10::DeviceType::CUDA;
  auto known = c10::impl::hasDeviceGuardImpl(kCUDA) ? c10::impl::getDeviceGuardImpl(kCUDA)->deviceCount() : c10::DeviceIndex{1};
  static c10::impl::DeviceGuardImplRegistrar registered(kCUDA, new Guard(known));  // never destroyed: threads use it
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"stand_in_for_gpus", stand_in_for_gpus, METH_NOARGS,
     "Has torch switch between GPUs and streams without a driver, in this process and from now on: for a process that traces."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_stand_in(PyObject* module) { checked(PyModule_AddFunctions(module, functions)); }

}  // namespace capture::cuda
