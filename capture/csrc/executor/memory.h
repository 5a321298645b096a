// Where the tensors of a plan live: workspaces for arenas, fresh allocations, views. All that knows about the device is here.
#pragma once

#include <ATen/ATen.h>

namespace capture::executor {

// Memory for the arena of one running call.
struct Workspace {
  c10::DataPtr memory;
  size_t bytes = 0;
};

// Workspaces are shared by all executors of the process: the backward pass takes the one that the forward pass returned, whose
// pages the system need not map again. A call that finds none free, because others run at the same time, gets one of its own.
// All functions need the interpreter lock.
Workspace take_workspace(size_t bytes);
void return_workspace(Workspace workspace) noexcept;
size_t idle_workspace_bytes();
size_t release_workspaces();  // frees those that no call uses; returns their bytes

// A tensor of its own. Its elements have any value.
at::Tensor allocate(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

// A tensor over memory that it does not own.
at::Tensor tensor_over(void* memory, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

// A tensor over the memory of another, which autograd knows nothing of. `offset`: in elements of `dtype` from where `base` begins.
at::Tensor view_of(const at::Tensor& base, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype);

}  // namespace capture::executor
