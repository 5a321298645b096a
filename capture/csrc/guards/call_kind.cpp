#include "guards/call_kind.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "guards/steps.h"
#include "guards/tensor_properties.h"

namespace capture {
namespace {

constexpr int kMaxDepth = 3;
constexpr Py_ssize_t kMaxItems = 32;

PyObject* training_name = nullptr;
Py_hash_t training_hash = 0;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

uint64_t of_pointer(const void* pointer) { return mixed(0, reinterpret_cast<uintptr_t>(pointer)); }

uint64_t of_tensor(PyObject* object, uint64_t hash) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined()) return hash;
  auto device = tensor.device();
  hash = mixed(hash, static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.requires_grad()) << 8 |
                         static_cast<uint64_t>(tensor.layout()) << 9 | static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 16 |
                         static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 24);
  return mixed(hash, static_cast<uint64_t>(tensor.key_set().has(c10::DispatchKey::NestedTensor) ? -1 : tensor.dim()));
}

uint64_t structure(PyObject* object, int depth);

// A list holds things of some structures, however many of them.
uint64_t of_list(PyObject* list, uint64_t hash, int depth) {
  std::array<uint64_t, kMaxItems> items;
  auto count = static_cast<size_t>(std::min(PyList_GET_SIZE(list), kMaxItems));
  for (size_t i = 0; i < count; i++) items[i] = structure(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i)), depth + 1);
  auto* end = items.data() + count;
  std::sort(items.data(), end);
  end = std::unique(items.data(), end);
  for (auto* item = items.data(); item != end; item++) hash = mixed(hash, *item);
  return hash;
}

uint64_t of_dict(PyObject* dict, uint64_t hash, int depth) {
  if (PyDict_GET_SIZE(dict) > kMaxItems) return hash;
  uint64_t total = 0;  // in whatever order
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &key, &value);) {
    if (!PyUnicode_CheckExact(key)) return hash;
    total += mixed(static_cast<uint64_t>(PyObject_Hash(key)), structure(value, depth + 1));
  }
  return mixed(hash, total + 1);
}

uint64_t structure(PyObject* object, int depth) {
  if (object == nullptr || object == Py_None || PyBool_Check(object)) return of_pointer(object);
  uint64_t hash = of_pointer(Py_TYPE(object));
  if (is_scalar(object)) return hash;
  if (is_tensor(object)) return of_tensor(object, hash);
  if (PyTuple_CheckExact(object)) {
    if (depth >= kMaxDepth) return hash;
    hash = mixed(hash, static_cast<uint64_t>(PyTuple_GET_SIZE(object)));
    for (Py_ssize_t i = 0; i < std::min(PyTuple_GET_SIZE(object), kMaxItems); i++) {
      hash = mixed(hash, structure(PyTuple_GET_ITEM(object, i), depth + 1));
    }
    return hash;
  }
  if (PyList_CheckExact(object)) return depth < kMaxDepth ? of_list(object, hash, depth) : hash;
  if (PyDict_CheckExact(object)) return depth < kMaxDepth ? of_dict(object, hash, depth) : hash;
  if (PyObject** slot = instance_dict_slot(object); slot != nullptr && *slot != nullptr && (reinterpret_cast<uintptr_t>(*slot) & 1) == 0) {
    PyObject* training = PyDict_CheckExact(*slot) ? item_step(*slot, training_name, training_hash, kNoIndex) : nullptr;
    if (training != nullptr && PyBool_Check(training)) hash = mixed(hash, of_pointer(training));
  }
  return hash;
}

PyObject* kind_of_arguments(PyObject*, PyObject* list) {
  if (!PyList_CheckExact(list)) {
    PyErr_Format(PyExc_TypeError, "a list of arguments is needed, not %.200s", Py_TYPE(list)->tp_name);
    return nullptr;
  }
  auto count = static_cast<size_t>(PyList_GET_SIZE(list));
  return PyLong_FromUnsignedLongLong(call_kind(reinterpret_cast<PyListObject*>(list)->ob_item, count, Modes::current()));
}

PyMethodDef functions[] = {
    {"call_kind", kind_of_arguments, METH_O,
     "call_kind(arguments): a number for what is static in a call: the modes, and types and structure of the arguments."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

uint64_t call_kind(PyObject* const* arguments, size_t count, const Modes& modes) {
  std::array<uint64_t, sizeof(Modes) / sizeof(uint64_t)> words{};
  std::memcpy(words.data(), &modes, offsetof(Modes, torch_function) + sizeof modes.torch_function);  // not the padding behind it
  uint64_t hash = 0;
  for (uint64_t word : words) hash = mixed(hash, word);
  for (size_t i = 0; i < count; i++) hash = mixed(hash, structure(arguments[i], 0));
  return hash;
}

uint64_t quick_kind(PyObject* const* arguments, size_t count) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  uint64_t hash = mixed(keys.included_.raw_repr(), keys.excluded_.raw_repr());
  hash = mixed(hash, static_cast<uint64_t>(autograd.get_grad_mode()) | static_cast<uint64_t>(autograd.get_inference_mode()) << 1);
  for (size_t i = 0; i < count; i++) hash = mixed(hash, structure(arguments[i], kMaxDepth));
  return hash;
}

void init_call_kind(PyObject* module) {
  training_name = checked(PyUnicode_InternFromString("training"));
  training_hash = PyObject_Hash(training_name);
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
