#include "tensors/snapshot.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace capture {
namespace {

// One tensor as it was. Weak references do not keep its memory, but no other object gets its address while they are here.
// Vectors are compared by value: batch normalisation writes to its running statistics without a new version.
struct Seen {
  Py_ssize_t position;
  c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl> tensor;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* data;
  int64_t offset;
  uint32_t version;
  std::string bytes;  // of a vector or scalar

  bool matches(PyObject* object) const {
    const at::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
    return impl == tensor._unsafe_get_target() && impl->version_counter().current_version() == version &&
           impl->unsafe_storage().unsafeGetStorageImpl() == storage._unsafe_get_target() &&
           impl->unsafe_storage().data() == data && impl->storage_offset() == offset &&
           (bytes.empty() || std::memcmp(impl->data(), bytes.data(), bytes.size()) == 0);
  }
};

struct Snapshot {
  PyObject_HEAD
  std::vector<Seen>* seen;
};

Snapshot* unpack(PyObject* object) { return reinterpret_cast<Snapshot*>(object); }

PyObject* tensor_at(PyObject* tuple, Py_ssize_t position) {
  TORCH_CHECK_INDEX(position >= 0 && position < PyTuple_GET_SIZE(tuple), "there is no input ", position);
  PyObject* object = PyTuple_GET_ITEM(tuple, position);
  TORCH_CHECK_TYPE(THPVariable_Check(object), "input ", position, " is no tensor");
  return object;
}

Seen look(PyObject* tuple, Py_ssize_t position) {
  const at::Tensor& tensor = THPVariable_Unpack(tensor_at(tuple, position));
  TORCH_CHECK_VALUE(tensor.has_storage() && !tensor.is_inference(), "input ", position, " has no storage, or no version");
  const c10::Storage& storage = tensor.storage();
  std::string bytes;
  if (tensor.dim() <= 1) {
    TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.is_contiguous(), "input ", position, " is a vector, but not one in a row on the CPU");
    bytes.assign(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return {position,
          c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
          c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()),
          storage.data(),
          tensor.storage_offset(),
          tensor.unsafeGetTensorImpl()->version_counter().current_version(),
          std::move(bytes)};
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"positions", "inputs", nullptr};
  PyObject *positions, *inputs;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!:Snapshot", const_cast<char**>(names), &PyTuple_Type, &positions, &PyTuple_Type,
                                   &inputs)) {
    return nullptr;
  }
  auto seen = std::make_unique<std::vector<Seen>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); i++) {
    Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(positions, i));
    if (position == -1 && PyErr_Occurred()) return nullptr;
    seen->push_back(look(inputs, position));
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) unpack(self)->seen = seen.release();
  return self;
  END_HANDLE_TH_ERRORS
}

PyObject* matches(PyObject* self, PyObject* inputs) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyTuple_Check(inputs), "matches takes a tuple, not ", Py_TYPE(inputs)->tp_name);
  for (const Seen& seen : *unpack(self)->seen) {
    if (!seen.matches(tensor_at(inputs, seen.position))) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete unpack(self)->seen;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"matches", matches, METH_O,
     "matches(inputs: tuple) -> bool\n\nWhether the tensors at the positions are the same ones, over the same memory, of the same versions."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_snapshot(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "Snapshot(positions, inputs)\n\n"
                      "Remembers which tensors lie at `positions` of the tuple `inputs`, where their elements are, and their version\n"
                      "counters; of vectors and scalars also the values. Holds none of them alive. Raises ValueError for tensors\n"
                      "without storage or version, as those of inference mode are, and for vectors that are not contiguous on the CPU.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Snapshot", sizeof(Snapshot), 0, Py_TPFLAGS_DEFAULT, slots};
  Ref type = Ref::steal(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())));
}

}  // namespace capture
