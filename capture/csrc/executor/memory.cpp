#include "executor/memory.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <vector>

namespace capture::executor {
namespace {

constexpr size_t kMostIdleBytes = size_t{1} << 30;  // kept between calls; what is more goes back to the system

std::vector<Workspace>& idle_workspaces() {
  static auto* idle = new std::vector<Workspace>;  // never destroyed: threads may run while the process ends
  return *idle;
}

void set_geometry(const at::Tensor& tensor, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
}

c10::DispatchKeySet keys_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

}  // namespace

Workspace take_workspace(size_t bytes, c10::Device device) {
  if (bytes == 0) return {};
  if (!device.is_cpu()) {
    c10::DeviceGuard guard(device);
    return {c10::GetAllocator(device.type())->allocate(bytes), bytes};
  }
  auto& idle = idle_workspaces();
  auto smaller = [](const Workspace& left, const Workspace& right) { return left.bytes < right.bytes; };
  std::sort(idle.begin(), idle.end(), smaller);
  auto fits = std::find_if(idle.begin(), idle.end(), [&](const Workspace& one) { return one.bytes >= bytes; });
  if (fits != idle.end()) {
    Workspace found = std::move(*fits);
    idle.erase(fits);
    return found;
  }
  if (!idle.empty()) idle.pop_back();  // the new one takes the place of the largest that there is
  return {c10::GetCPUAllocator()->allocate(bytes), bytes};
}

void return_workspace(Workspace workspace) noexcept {
  bool kept = workspace.bytes > 0 && workspace.memory.device().is_cpu();
  if (!kept || idle_workspace_bytes() + workspace.bytes > kMostIdleBytes) return;
  try {
    idle_workspaces().push_back(std::move(workspace));
  } catch (const std::bad_alloc&) {  // then it is freed
  }
}

size_t idle_workspace_bytes() {
  size_t total = 0;
  for (const Workspace& one : idle_workspaces()) total += one.bytes;
  return total;
}

size_t release_workspaces() {
  size_t total = idle_workspace_bytes();
  idle_workspaces().clear();
  return total;
}

at::Tensor allocate(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::detail::empty_strided_cpu(sizes, strides, dtype);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(device.type()), keys_of(device), dtype);
}

at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  c10::InferenceMode normal(false);  // it outlives the call, and the mode that the call is made in
  size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(memory, device));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys_of(device), c10::scalarTypeToTypeMeta(dtype));
  set_geometry(tensor, 0, sizes, strides);
  return tensor;
}

at::Tensor view_of(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype) {
  int64_t start = base.storage_offset() * static_cast<int64_t>(base.element_size());
  auto width = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(start % width == 0, "a tensor begins at byte ", start, " of its memory, where no element of ", dtype, " can");
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                         c10::scalarTypeToTypeMeta(dtype));
  set_geometry(tensor, start / width + offset, sizes, strides);
  return tensor;
}

}  // namespace capture::executor
