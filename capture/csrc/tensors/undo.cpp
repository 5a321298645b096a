#include "tensors/undo.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace capture {
namespace {

// The memory between the first and the last element of a tensor, and what it held. Neither versions nor autograd know of it.
class Bytes {
 public:
  explicit Bytes(const at::Tensor& tensor) : storage_(tensor.storage()) {
    int64_t elements = tensor.numel() == 0 ? 0 : 1;
    for (int64_t i = 0; elements > 0 && i < tensor.dim(); i++) elements += (tensor.size(i) - 1) * tensor.stride(i);
    start_ = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
    size_ = static_cast<size_t>(elements) * tensor.itemsize();
    if (size_ == 0 || storage_.data() == nullptr) {
      size_ = 0;
    } else if (storage_.device().is_cpu()) {
      kept_.reset(new char[size_]);
      std::memcpy(kept_.get(), static_cast<const char*>(storage_.data()) + start_, size_);
    } else {
      copy_ = view().clone();
    }
  }

  void put_back() const {
    if (size_ == 0) return;
    TORCH_CHECK(start_ + size_ <= storage_.nbytes(), "the memory of a tensor was made smaller");
    if (kept_ != nullptr) {
      std::memcpy(static_cast<char*>(storage_.mutable_data()) + start_, kept_.get(), size_);
    } else {
      view().copy_(copy_);
    }
  }

 private:
  at::Tensor view() const {
    at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage_.device()));
    return bytes.set_(storage_, static_cast<int64_t>(start_), {static_cast<int64_t>(size_)}, {1});
  }

  c10::Storage storage_;
  size_t start_ = 0, size_ = 0;
  std::unique_ptr<char[]> kept_;  // on the CPU
  at::Tensor copy_;               // elsewhere
};

struct Kept {
  std::vector<Bytes> bytes;
  std::vector<std::pair<c10::VariableVersion, uint32_t>> versions;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;  // of tensors that lose theirs
};

struct Undo {
  PyObject_HEAD
  Kept* kept;
};

Undo* unpack(PyObject* object) { return reinterpret_cast<Undo*>(object); }

const at::Tensor& tensor_at(PyObject* tensors, Py_ssize_t index) {
  PyObject* object = PyTuple_GET_ITEM(tensors, index);
  TORCH_CHECK_TYPE(THPVariable_Check(object), "a ", Py_TYPE(object)->tp_name, " is no tensor");
  return THPVariable_Unpack(object);
}

const at::Tensor& storage_at(PyObject* tensors, Py_ssize_t index) {
  const at::Tensor& tensor = tensor_at(tensors, index);
  TORCH_CHECK_VALUE(tensor.has_storage(), "a tensor has no storage");
  return tensor;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"written", "counted", "dropped", nullptr};
  PyObject *written, *counted, *dropped;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!:Undo", const_cast<char**>(names), &PyTuple_Type, &written, &PyTuple_Type,
                                   &counted, &PyTuple_Type, &dropped)) {
    return nullptr;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto kept = std::make_unique<Kept>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(written); i++) kept->bytes.emplace_back(storage_at(written, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(counted); i++) {
    const c10::VariableVersion& version = storage_at(counted, i).unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) kept->versions.emplace_back(version, version.current_version());
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dropped); i++) {
    const at::Tensor& tensor = tensor_at(dropped, i);
    const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
    if (gradient.defined()) kept->gradients.emplace_back(tensor, gradient);
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) unpack(self)->kept = kept.release();
  return self;
  END_HANDLE_TH_ERRORS
}

PyObject* put_back(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Bytes& bytes : unpack(self)->kept->bytes) bytes.put_back();
  for (auto& [counter, version] : unpack(self)->kept->versions) counter.set_version(version);
  for (auto& [tensor, gradient] : unpack(self)->kept->gradients) tensor.mutable_grad() = gradient;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete unpack(self)->kept;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"put_back", put_back, METH_NOARGS,
     "put_back() -> None\n\n"
     "Has memory, version counters and gradients be what they were. Raises RuntimeError where memory has shrunk since."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_undo(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "Undo(written, counted, dropped)\n\n"
                      "Keeps a copy of the memory that the tensors `written` lie in, the version counters of those that are `counted`, and\n"
                      "the gradients of those `dropped`. Raises ValueError for a tensor without storage.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Undo", sizeof(Undo), 0, Py_TPFLAGS_DEFAULT, slots};
  Ref type = Ref::steal(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())));
}

}  // namespace capture
