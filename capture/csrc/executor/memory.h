// Where the tensors of a plan live: workspaces for arenas, fresh allocations, views. All that knows about the device is here.
#pragma once

#include <ATen/ATen.h>

namespace capture::executor {

// Memory for the arena of one running call.
struct Workspace {
  c10::DataPtr memory;
  size_t bytes = 0;
};

// Workspaces of the processor are shared by all executors of the process: the backward pass takes the one that the forward pass
// returned, whose pages the system need not map again. A call that finds none free, because others run at the same time, gets a new
// one. Those of a GPU are torch's: its allocator keeps memory itself, in the order of a stream, so that kernels which still run
// when a call has returned are done before others of the same stream are given the memory. All functions need the interpreter lock.
Workspace take_workspace(size_t bytes, c10::Device device);
void return_workspace(Workspace workspace) noexcept;
size_t idle_workspace_bytes();
size_t release_workspaces();  // frees those that no call uses; returns their bytes

// A tensor of its own. Its elements have any value.
at::Tensor allocate(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device);

// A tensor over memory that it does not own.
at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device);

// A tensor over the memory of another, which autograd knows nothing of. `offset`: in elements of `dtype` from where `base` begins.
at::Tensor view_of(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype);

}  // namespace capture::executor
