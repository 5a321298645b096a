// What a TENSOR guard compares of a tensor, and where its memory lies.
#pragma once

#include <cstdint>
#include <vector>

#include "guards/difference.h"
#include "python_ref.h"

namespace capture {

// What autograd does with a view that has no node, though it or its base requires gradients.
enum class BaseGrad : uint8_t {
  kNone,      // no such view
  kApart,     // made under `no_grad`, of a base that requires gradients: a leaf that does so, too
  kOutdated,  // the same, and the base was written to since: it gets a node as soon as it is asked for it
  kOwn,       // a leaf that requires gradients, which its base does not: after writes, its views give it none
};

constexpr int64_t kAround = -(int64_t{1} << 20);  // less than -1 - d for any dimension d

struct TensorProperties {
  PyTypeObject* type;  // borrowed by the struct, owned by the Python object around it
  uint64_t keys;       // raw dispatch key set: backend, functionality, conjugate, negative, inference …
  uint16_t dtype;      // c10::ScalarType
  int8_t device_type, device_index;
  int8_t layout;
  bool requires_grad, is_leaf;
  BaseGrad base_grad;
  bool has_attributes;  // of its own, which may hide those of its class
  bool has_strides;
  bool any_shape;       // of as many dimensions as there are `sizes`, whose values are -1 then
  bool open_sizes;      // some of `sizes` are -1, which stands for any, or some of `strides` are open
  // An open stride is -1 - d: the product of size and stride of dimension d, as where these lie densely; or kAround - d: at least
  // that; or kAround minus the number of dimensions: any.
  std::vector<int64_t> sizes, strides;

  void forget_shape();
  // Lets the sizes of `dims` be any, and strides follow from them; and dimensions `around` others lie farther apart.
  void free(const std::vector<size_t>& dims, const std::vector<size_t>& around);
  void loosen(const TensorProperties& expected);  // what `expected` leaves open, if the rest is as expected
  bool matches(PyObject* object) const;  // any object; runs no Python code
  bool operator==(const TensorProperties&) const = default;
};

// One tensor to compare, as it is known to come out; `object` is nullptr where there is nothing to compare.
struct TensorWatch {
  PyObject* object;
  const TensorProperties* properties;
  bool matched;
};

// Compares watches[begin, end); the index of the first that comes out differently, or `end`.
size_t first_changed(const TensorWatch* watches, size_t begin, size_t end);

bool is_tensor(PyObject* object);

// The properties of a tensor. Throws PythonError (TypeError) for other objects, and for tensors whose properties are
// not plain: subclasses with a dispatch of their own, symbolic or nested sizes, named dimensions.
TensorProperties tensor_properties_of(PyObject* object);

// The first property that differs.
Difference tensor_difference(const TensorProperties& expected, PyObject* object);

// Memory of a tensor: its storage, the storage's address and the tensor's first byte in it.
struct TensorMemory {
  const void* storage;
  const void* data;
  int64_t offset;
};
bool tensor_memory(PyObject* object, TensorMemory& memory);  // false: not a tensor, or one without storage

// `tensor.grad` (new reference), without `__torch_function__`; nullptr without an error when `object` is no tensor.
PyObject* tensor_grad(PyObject* object);

bool is_torch_device(PyObject* object);

// The TensorProperties inside of a Python object; nullptr when `object` is not one.
const TensorProperties* tensor_properties_from_python(PyObject* object);

void init_tensor_properties(PyObject* module);

}  // namespace capture
