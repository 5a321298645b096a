#include "guards/tensor_properties.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cctype>
#include <new>
#include <sstream>

#include "cpython/frame_view.h"

namespace capture {
namespace {

PyTypeObject* properties_type = nullptr;

struct PropertiesObject {
  PyObject_HEAD
  TensorProperties properties;
};

const TensorProperties& unpack(PyObject* self) { return reinterpret_cast<PropertiesObject*>(self)->properties; }

const at::TensorImpl* impl_of(PyObject* tensor) { return THPVariable_Unpack(tensor).unsafeGetTensorImpl(); }

// Whether its dimensions have names, which they can have in older versions of torch.
template <class Impl>
bool has_names(const Impl* impl) {
  if constexpr (requires { impl->has_named_tensor_meta(); }) {
    return impl->has_named_tensor_meta();
  } else {
    return false;
  }
}

// Every TensorImpl's autograd metadata is an AutogradMeta; reading its fields avoids a virtual call.
const torch::autograd::AutogradMeta* autograd_of(const at::TensorImpl* impl) {
  return static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
}

// A view's `grad_fn()` would make the node of one that is outdated, which the program could see.
[[gnu::noinline]] BaseGrad base_grad_of(const at::TensorImpl* impl, const torch::autograd::AutogradMeta* meta) {
  if (meta == nullptr || !meta->is_view_ || meta->grad_fn_) return BaseGrad::kNone;
  const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
  if (!view->has_bw_view()) return BaseGrad::kNone;
  if (!view->get_backward_view().base_.requires_grad()) return meta->requires_grad_ ? BaseGrad::kOwn : BaseGrad::kNone;
  return view->get_attr_version() == impl->version_counter().current_version() ? BaseGrad::kApart : BaseGrad::kOutdated;
}

bool requires_grad_of(const torch::autograd::AutogradMeta* meta, BaseGrad base_grad) {
  return meta != nullptr && (meta->requires_grad_ || meta->grad_fn_ || base_grad != BaseGrad::kNone);
}

bool is_leaf_of(const torch::autograd::AutogradMeta* meta) { return meta == nullptr || !meta->grad_fn_; }

// A loop, because it is shorter than a call of memcmp for the few dimensions that tensors have.
inline bool equal(at::IntArrayRef got, const std::vector<int64_t>& expected) {
  if (got.size() != expected.size()) return false;
  const int64_t *left = got.data(), *right = expected.data();
  for (size_t i = 0; i < got.size(); i++) {
    if (left[i] != right[i]) return false;
  }
  return true;
}

// What dimension `d` of a tensor, of which another lies right behind, has for a stride.
inline int64_t dense_stride(at::IntArrayRef sizes, at::IntArrayRef strides, size_t d) {
  return strides[d] * std::max<int64_t>(sizes[d], 1);
}

// Where what lies within dimension `d` ends: another one lies around it from there on. No dimension: where one element ends.
inline int64_t end_of(at::IntArrayRef sizes, at::IntArrayRef strides, size_t d) {
  return d < sizes.size() ? dense_stride(sizes, strides, d) : 1;
}

inline bool stride_matches(int64_t expected, size_t dim, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (expected >= 0) return strides[dim] == expected;
  if (expected > kAround) return strides[dim] == dense_stride(sizes, strides, static_cast<size_t>(-1 - expected));
  return strides[dim] >= end_of(sizes, strides, static_cast<size_t>(kAround - expected));
}

// The stride of a dimension that lies around another, with any room between: see TensorProperties::strides.
std::string open_text(int64_t stride, size_t rank) {
  if (stride > kAround) return "dense over " + std::to_string(-1 - stride);
  const auto inner = static_cast<size_t>(kAround - stride);
  return inner < rank ? "around " + std::to_string(inner) : "any";
}

// Whether layout, sizes and strides, of which some may be any, are as expected. Seldom called, and kept out of what often is.
[[gnu::noinline]] bool matches_open(const TensorProperties& p, const at::TensorImpl* impl) {
  const at::IntArrayRef sizes = impl->sizes();
  if (static_cast<int8_t>(impl->layout()) != p.layout || sizes.size() != p.sizes.size()) return false;
  if (p.any_shape) return true;
  const at::IntArrayRef strides = impl->strides();
  for (size_t d = 0; d < sizes.size(); d++) {
    if (p.sizes[d] >= 0 && p.sizes[d] != sizes[d]) return false;
    if (!stride_matches(p.strides[d], d, sizes, strides)) return false;
  }
  return true;
}

inline bool matches_inline(const TensorProperties& p, PyObject* object) {
  if (Py_TYPE(object) != p.type) return false;
  const at::TensorImpl* impl = impl_of(object);
  // The key set comes first: with equal keys, sizes and strides are plain fields here as they were there.
  if (impl->key_set().raw_repr() != p.keys) return false;
  if (impl->dtype() != caffe2::TypeMeta::fromScalarType(static_cast<c10::ScalarType>(p.dtype))) return false;
  const at::Device device = impl->device();
  if (static_cast<int8_t>(device.type()) != p.device_type || device.index() != p.device_index) return false;
  if (impl->has_symbolic_sizes_strides()) return false;
  if (p.any_shape | p.open_sizes) [[unlikely]] {
    if (!matches_open(p, impl)) return false;
  } else {
    if (!equal(impl->sizes(), p.sizes)) return false;
    if (p.has_strides ? !equal(impl->strides(), p.strides) : static_cast<int8_t>(impl->layout()) != p.layout) return false;
  }
  const torch::autograd::AutogradMeta* meta = autograd_of(impl);
  const bool is_view = meta != nullptr && meta->is_view_;
  const BaseGrad base_grad = is_view ? base_grad_of(impl, meta) : BaseGrad::kNone;
  return base_grad == p.base_grad && requires_grad_of(meta, base_grad) == p.requires_grad && is_leaf_of(meta) == p.is_leaf &&
         (has_own_attributes(object) != 0) == p.has_attributes;
}

// `open`: what is written for a negative number.
template <class Open>
std::string text_of(const std::vector<int64_t>& numbers, Open open) {
  std::string text = "(";
  for (size_t i = 0; i < numbers.size(); i++) {
    text += (i ? ", " : "") + (numbers[i] < 0 ? open(numbers[i]) : std::to_string(numbers[i]));
  }
  return text + (numbers.size() == 1 ? ",)" : ")");
}

constexpr const char* kBaseGrads[] = {"none", "apart", "outdated", "own"};

struct Property {
  const char* name;
  std::string (*text)(const TensorProperties&);
};

std::string bool_text(bool value) { return value ? "True" : "False"; }

// In the order in which differences are worth telling.
constexpr Property kProperties[] = {
    {"type", [](const TensorProperties& p) -> std::string { return p.type->tp_name; }},
    {"dtype",
     [](const TensorProperties& p) -> std::string {
       return std::string("torch.") + torch::getTHPDtype(static_cast<c10::ScalarType>(p.dtype))->name;
     }},
    {"device",
     [](const TensorProperties& p) {
       return c10::Device(static_cast<c10::DeviceType>(p.device_type), p.device_index).str();
     }},
    {"layout",
     [](const TensorProperties& p) {
       std::ostringstream out;
       out << "torch." << static_cast<c10::Layout>(p.layout);
       std::string text = out.str();
       std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
       return text;
     }},
    {"shape", [](const TensorProperties& p) { return text_of(p.sizes, [](int64_t) { return std::string("any"); }); }},
    {"stride",
     [](const TensorProperties& p) {
       return text_of(p.strides, [&p](int64_t stride) { return open_text(stride, p.sizes.size()); });
     }},
    {"requires_grad", [](const TensorProperties& p) { return bool_text(p.requires_grad); }},
    {"is_leaf", [](const TensorProperties& p) { return bool_text(p.is_leaf); }},
    {"base_grad", [](const TensorProperties& p) { return std::string(kBaseGrads[static_cast<size_t>(p.base_grad)]); }},
    {"has_attributes", [](const TensorProperties& p) { return bool_text(p.has_attributes); }},
    {"keys",
     [](const TensorProperties& p) {
       return c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, p.keys));
     }},
};

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_DECREF(unpack(self).type);
  reinterpret_cast<PropertiesObject*>(self)->properties.~TensorProperties();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* repr(PyObject* self) {
  std::string text = "TensorProperties(";
  for (const Property& property : kProperties) {
    if (&property != kProperties) text += ", ";
    text += std::string(property.name) + "=" + property.text(unpack(self));
  }
  text += ")";
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* compare(PyObject* self, PyObject* other, int operation) {
  const TensorProperties* right = tensor_properties_from_python(other);
  if (right == nullptr || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  return PyBool_FromLong((unpack(self) == *right) == (operation == Py_EQ));
}

Py_hash_t hash(PyObject* self) {
  const TensorProperties& p = unpack(self);
  uint64_t value = p.keys ^ reinterpret_cast<uintptr_t>(p.type) ^ p.dtype;
  for (int64_t size : p.sizes) value = value * 1000003 + static_cast<uint64_t>(size);
  for (int64_t stride : p.strides) value = value * 1000003 + static_cast<uint64_t>(stride);
  return static_cast<Py_hash_t>(value >> 1);
}

PyObject* tuple_of(const std::vector<int64_t>& numbers) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(numbers.size()));
  for (size_t i = 0; tuple != nullptr && i < numbers.size(); i++) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), number);
    }
  }
  return tuple;
}

PyObject* wrap(TensorProperties properties) {
  PyObject* self = properties_type->tp_alloc(properties_type, 0);
  if (self == nullptr) return nullptr;
  Py_INCREF(properties.type);
  new (&reinterpret_cast<PropertiesObject*>(self)->properties) TensorProperties(std::move(properties));
  return self;
}

PyObject* of(PyObject*, PyObject* tensor) {
  try {
    return wrap(tensor_properties_of(tensor));
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* of_any_shape(PyObject* self, PyObject*) {
  TensorProperties properties = unpack(self);
  properties.forget_shape();
  return wrap(std::move(properties));
}

// The dimensions in an iterable. Throws PythonError.
std::vector<size_t> dimensions_in(PyObject* iterable, const TensorProperties& properties) {
  Ref items = Ref::steal(checked(PySequence_Tuple(iterable)));
  std::vector<size_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); i++) {
    const size_t dim = PyLong_AsSize_t(PyTuple_GET_ITEM(items.get(), i));
    if (PyErr_Occurred()) throw PythonError{};
    if (!properties.has_strides || properties.any_shape || dim >= properties.sizes.size()) {
      PyErr_Format(PyExc_ValueError, "dimension %zu of %zu cannot be free", dim, properties.sizes.size());
      throw PythonError{};
    }
    found.push_back(dim);
  }
  return found;
}

PyObject* with_free(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 && count != 2) return PyErr_Format(PyExc_TypeError, "with_free(dims, around=())");
  try {
    TensorProperties properties = unpack(self);
    const std::vector<size_t> dims = dimensions_in(args[0], properties);
    const std::vector<size_t> around = count == 2 ? dimensions_in(args[1], properties) : std::vector<size_t>{};
    if (dims.empty() && around.empty()) return Py_NewRef(self);
    properties.free(dims, around);
    return wrap(std::move(properties));
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* like(PyObject* self, PyObject* expected) {
  const TensorProperties* open = tensor_properties_from_python(expected);
  if (open == nullptr) return PyErr_Format(PyExc_TypeError, "TensorProperties are needed, not %.200s", Py_TYPE(expected)->tp_name);
  TensorProperties properties = unpack(self);
  properties.loosen(*open);
  return wrap(std::move(properties));
}

// size(tensor, dimension), stride(tensor, dimension): an int; TypeError for what is no such tensor. Runs no Python code.
template <bool kStride>
PyObject* layout_at(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const Py_ssize_t dim = count == 2 ? PyLong_AsSsize_t(args[1]) : -1;
  if (PyErr_Occurred()) return nullptr;
  if (count != 2 || !is_tensor(args[0]) || impl_of(args[0])->has_symbolic_sizes_strides() || dim < 0 ||
      static_cast<size_t>(dim) >= impl_of(args[0])->sizes().size() ||
      (kStride && impl_of(args[0])->layout() != at::kStrided)) {
    return PyErr_Format(PyExc_TypeError, kStride ? "stride(tensor, dimension)" : "size(tensor, dimension)");
  }
  const at::TensorImpl* impl = impl_of(args[0]);
  return PyLong_FromLongLong((kStride ? impl->strides() : impl->sizes())[static_cast<size_t>(dim)]);
}

PyGetSetDef getters[] = {
    {"type", [](PyObject* self, void*) { return Py_NewRef(reinterpret_cast<PyObject*>(unpack(self).type)); }, nullptr,
     nullptr, nullptr},
    {"dtype",
     [](PyObject* self, void*) {
       return Py_NewRef(reinterpret_cast<PyObject*>(
           torch::getTHPDtype(static_cast<c10::ScalarType>(unpack(self).dtype))));
     },
     nullptr, nullptr, nullptr},
    {"device",
     [](PyObject* self, void*) {
       return THPDevice_New(
           at::Device(static_cast<c10::DeviceType>(unpack(self).device_type), unpack(self).device_index));
     },
     nullptr, nullptr, nullptr},
    {"shape", [](PyObject* self, void*) { return tuple_of(unpack(self).sizes); }, nullptr, nullptr, nullptr},
    {"stride", [](PyObject* self, void*) { return tuple_of(unpack(self).strides); }, nullptr, nullptr, nullptr},
    {"requires_grad", [](PyObject* self, void*) { return PyBool_FromLong(unpack(self).requires_grad); }, nullptr,
     nullptr, nullptr},
    {"is_leaf", [](PyObject* self, void*) { return PyBool_FromLong(unpack(self).is_leaf); }, nullptr, nullptr, nullptr},
    {"base_grad",
     [](PyObject* self, void*) { return PyUnicode_FromString(kBaseGrads[static_cast<size_t>(unpack(self).base_grad)]); },
     nullptr, nullptr, nullptr},
    {"has_attributes", [](PyObject* self, void*) { return PyBool_FromLong(unpack(self).has_attributes); }, nullptr,
     nullptr, nullptr},
    {"keys", [](PyObject* self, void*) { return PyLong_FromUnsignedLongLong(unpack(self).keys); }, nullptr, nullptr,
     nullptr},
    {"any_shape", [](PyObject* self, void*) { return PyBool_FromLong(unpack(self).any_shape); }, nullptr, nullptr,
     nullptr},
    {"open_sizes", [](PyObject* self, void*) { return PyBool_FromLong(unpack(self).open_sizes); }, nullptr, nullptr,
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* matches_python(PyObject* self, PyObject* object) { return PyBool_FromLong(unpack(self).matches(object)); }

PyMethodDef methods[] = {
    {"of", of, METH_O | METH_STATIC, "The properties of a tensor; TypeError for anything else."},
    {"of_any_shape", of_any_shape, METH_NOARGS, "The same but for the shape: with as many dimensions, of any sizes."},
    {"with_free", reinterpret_cast<PyCFunction>(with_free), METH_FASTCALL,
     "with_free(dims, around=()): the same, with any sizes in `dims`: strides that are products of such sizes follow them. "
     "around: dimensions that may lie farther apart."},
    {"like", like, METH_O, "The same, but for what other properties leave open and have as they have."},
    {"matches", matches_python, METH_O, "Whether an object is a tensor with these properties."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef functions[] = {
    {"tensor_properties", of, METH_O, "The properties of a tensor; TypeError for anything else."},
    {"size", reinterpret_cast<PyCFunction>(layout_at<false>), METH_FASTCALL,
     "size(tensor, dimension): how large a tensor is there."},
    {"stride", reinterpret_cast<PyCFunction>(layout_at<true>), METH_FASTCALL,
     "stride(tensor, dimension): how far apart its elements lie there."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void TensorProperties::forget_shape() {
  any_shape = true;
  std::fill(sizes.begin(), sizes.end(), -1);
  strides.clear();
}

void TensorProperties::free(const std::vector<size_t>& dims, const std::vector<size_t>& around) {
  const std::vector<int64_t> known_sizes = sizes, known_strides = strides;
  for (size_t dim : dims) sizes[dim] = -1;
  open_sizes = !dims.empty();
  std::vector<size_t> order;  // from the innermost dimension outwards
  for (size_t d = sizes.size(); d-- > 0;) {
    if (known_strides[d] != 0) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return known_strides[a] < known_strides[b]; });
  const auto lies_around = [&](size_t place) {
    return known_strides[order[place]] >= end_of(known_sizes, known_strides, place > 0 ? order[place - 1] : sizes.size());
  };
  size_t nested = order.size();  // from there on outwards, each dimension lies around the one before
  while (nested > 0 && lies_around(nested - 1)) nested--;
  bool moved = false;  // one that lies farther in may lie farther apart: this one stays around it
  for (size_t place = 0; place < order.size(); place++) {
    const size_t d = order[place], inner = place > 0 ? order[place - 1] : sizes.size();
    if (place >= nested && std::find(around.begin(), around.end(), d) != around.end()) {
      strides[d] = kAround - static_cast<int64_t>(inner);
      open_sizes = moved = true;
    } else if (inner < sizes.size() && (sizes[inner] < 0 || strides[inner] < 0) &&
               known_strides[d] == end_of(known_sizes, known_strides, inner)) {
      strides[d] = -1 - static_cast<int64_t>(inner);
    } else if (moved) {
      strides[d] = kAround - static_cast<int64_t>(inner);
    }
  }
}

void TensorProperties::loosen(const TensorProperties& expected) {
  if (expected.any_shape) return forget_shape();
  if (!expected.open_sizes || !has_strides || sizes.size() != expected.sizes.size()) return;
  const std::vector<int64_t> known_sizes = sizes, known_strides = strides;
  for (size_t d = 0; d < sizes.size(); d++) {
    if (expected.sizes[d] < 0) sizes[d] = -1;
    if (stride_matches(expected.strides[d], d, known_sizes, known_strides)) strides[d] = expected.strides[d];
  }
  open_sizes = true;
}

bool TensorProperties::matches(PyObject* object) const { return matches_inline(*this, object); }

size_t first_changed(const TensorWatch* watches, size_t begin, size_t end) {
  // A tensor is spread over several objects, each known only from the one before: fetch them some tensors ahead.
  constexpr size_t kImplAhead = 8, kAutogradAhead = 4;
  auto is_there = [&](size_t i) { return i < end && watches[i].object != nullptr && watches[i].matched; };
  for (size_t i = begin; i < end; i++) {
    if (is_there(i + kImplAhead)) {
      const auto* impl = reinterpret_cast<const char*>(impl_of(watches[i + kImplAhead].object));
      for (int line = 0; line < 3; line++) __builtin_prefetch(impl + 64 * line);
    }
    if (is_there(i + kAutogradAhead)) {
      const auto* autograd = autograd_of(impl_of(watches[i + kAutogradAhead].object));
      if (autograd != nullptr) {
        __builtin_prefetch(autograd);
        __builtin_prefetch(&autograd->requires_grad_);
      }
    }
    const TensorWatch& watch = watches[i];
    if (watch.object != nullptr && matches_inline(*watch.properties, watch.object) != watch.matched) return i;
  }
  return end;
}

bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

TensorProperties tensor_properties_of(PyObject* object) {
  if (!is_tensor(object)) {
    PyErr_Format(PyExc_TypeError, "a tensor is needed, not %.200s", Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  const at::TensorImpl* impl = impl_of(object);
  if (impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || impl->is_nested() || has_names(impl)) {
    PyErr_Format(PyExc_TypeError, "a %.200s has no plain properties: only plain tensors can be guarded",
                 Py_TYPE(object)->tp_name);
    throw PythonError{};
  }
  TensorProperties p{};
  p.type = Py_TYPE(object);
  p.keys = impl->key_set().raw_repr();
  p.dtype = static_cast<uint16_t>(impl->dtype().toScalarType());
  const at::Device device = impl->device();
  p.device_type = static_cast<int8_t>(device.type());
  p.device_index = device.index();
  p.layout = static_cast<int8_t>(impl->layout());
  p.has_strides = impl->layout() == at::kStrided;
  p.sizes = impl->sizes().vec();
  if (p.has_strides) p.strides = impl->strides().vec();
  const torch::autograd::AutogradMeta* meta = autograd_of(impl);
  p.base_grad = base_grad_of(impl, meta);
  p.requires_grad = requires_grad_of(meta, p.base_grad);
  p.is_leaf = is_leaf_of(meta);
  p.has_attributes = has_own_attributes(object) != 0;
  return p;
}

Difference tensor_difference(const TensorProperties& expected, PyObject* object) {
  try {
    TensorProperties got = tensor_properties_of(object);
    got.loosen(expected);
    for (const Property& property : kProperties) {
      std::string left = property.text(expected), right = property.text(got), name = property.name;
      if (left != right) return {name + " " + left, name + " " + right, "", name};
    }
    return {"type " + std::string(expected.type->tp_name), "another class of that name", ""};
  } catch (PythonError&) {
    PyErr_Clear();
    return {"a tensor", "a " + std::string(Py_TYPE(object)->tp_name), ""};
  }
}

bool tensor_memory(PyObject* object, TensorMemory& memory) {
  if (!is_tensor(object)) return false;
  const at::TensorImpl* impl = impl_of(object);
  if (!impl->has_storage() || impl->is_python_dispatch()) return false;
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  memory = {storage, storage->data(), impl->storage_offset() * static_cast<int64_t>(impl->itemsize())};
  return true;
}

PyObject* tensor_grad(PyObject* object) {
  if (!is_tensor(object) || !THPVariable_CheckExact(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const at::Tensor& grad = tensor.unsafeGetTensorImpl()->grad();
  if (!grad.defined() && !tensor.is_leaf() && !tensor.retains_grad()) return nullptr;  // torch warns of asking for it
  return THPVariable_Wrap(grad);
}

bool is_torch_device(PyObject* object) { return THPDevice_Check(object); }

const TensorProperties* tensor_properties_from_python(PyObject* object) {
  return Py_TYPE(object) == properties_type ? &unpack(object) : nullptr;
}

void init_tensor_properties(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("What a guard compares of a tensor; immutable.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_repr, reinterpret_cast<void*>(repr)},
      {Py_tp_richcompare, reinterpret_cast<void*>(compare)},
      {Py_tp_hash, reinterpret_cast<void*>(hash)},
      {Py_tp_getset, getters},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.TensorProperties", sizeof(PropertiesObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
  properties_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, properties_type));
  checked(PyModule_AddFunctions(module, functions));
  checked(PyModule_AddIntConstant(module, "AROUND", kAround));
}

}  // namespace capture
