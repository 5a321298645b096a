#include "guards/modes.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <cstring>

#include "cpython/dict_version.h"

namespace capture {
namespace {

constexpr int kKnownDevices = std::tuple_size_v<decltype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES)>;
static_assert(kKnownDevices <= kAutocastDevices);

PyTypeObject* modes_type = nullptr;
PyTypeObject* device_context_type = nullptr;  // torch.utils._device.DeviceContext
PyObject* device_attribute = nullptr;         // "device"
PyObject* fx_namespace = nullptr;             // vars(torch.fx._symbolic_trace)
PyObject* fx_local = nullptr;                 // since torch 2.15: the threading.local in there that has the flag
PyObject* fx_flag = nullptr;                  // the name of the flag that says whether fx is tracing

struct ModesObject {
  PyObject_HEAD
  Modes modes;
};

// The default device lives in a torch function mode: the only one under which a compiled function still is one.
PyObject* default_device_context() {
  using at::impl::PythonTorchFunctionTLS;
  if (PythonTorchFunctionTLS::stack_len() != 1) return nullptr;
  PyObject* mode = PythonTorchFunctionTLS::get_stack_at(0)->ptr(getPyInterpreter());
  return Py_TYPE(mode) == device_context_type ? mode : nullptr;
}

int8_t scalar_number(caffe2::TypeMeta type) { return static_cast<int8_t>(c10::typeMetaToScalarType(type)); }

enum class Format { Bool, Dtype, Number, DeviceType };

struct Field {
  const char* name;
  size_t offset;
  Format format;
};

constexpr Field kFields[] = {
    {"grad", offsetof(Modes, grad), Format::Bool},
    {"inference", offsetof(Modes, inference), Format::Bool},
    {"forward_grad", offsetof(Modes, forward_grad), Format::Bool},
    {"dual_level", offsetof(Modes, dual_level), Format::Bool},
    {"multithreaded_backward", offsetof(Modes, multithreaded_backward), Format::Bool},
    {"view_replay", offsetof(Modes, view_replay), Format::Bool},
    {"anomaly", offsetof(Modes, anomaly), Format::Bool},
    {"autocast_cache", offsetof(Modes, autocast_cache), Format::Bool},
    {"autocast_nesting", offsetof(Modes, autocast_nesting), Format::Number},
    {"default_dtype", offsetof(Modes, default_dtype), Format::Dtype},
    {"has_default_device", offsetof(Modes, has_default_device), Format::Bool},
    {"default_device_type", offsetof(Modes, default_device_type), Format::DeviceType},
    {"default_device_index", offsetof(Modes, default_device_index), Format::Number},
    {"deterministic", offsetof(Modes, deterministic), Format::Bool},
    {"deterministic_warn_only", offsetof(Modes, deterministic_warn_only), Format::Bool},
    {"fill_uninitialized", offsetof(Modes, fill_uninitialized), Format::Bool},
    {"cudnn_enabled", offsetof(Modes, cudnn_enabled), Format::Bool},
    {"cudnn_deterministic", offsetof(Modes, cudnn_deterministic), Format::Bool},
    {"cudnn_benchmark", offsetof(Modes, cudnn_benchmark), Format::Bool},
    {"attention_kernels", offsetof(Modes, attention_kernels), Format::Number},
    {"torch_function", offsetof(Modes, torch_function), Format::Number},
};

int8_t field_value(const Modes& modes, const Field& field) {
  return reinterpret_cast<const int8_t*>(&modes)[field.offset];
}

std::string field_text(const Modes& modes, const Field& field) {
  int8_t value = field_value(modes, field);
  switch (field.format) {
    case Format::Bool: return value ? "True" : "False";
    case Format::Dtype: return c10::toString(static_cast<c10::ScalarType>(value));
    case Format::DeviceType: return c10::DeviceTypeName(static_cast<c10::DeviceType>(value), true);
    case Format::Number: break;
  }
  return std::to_string(value);
}

std::string autocast_text(const Modes& modes, int index) {
  auto device = at::autocast::_AUTOCAST_SUPPORTED_DEVICES[index];
  return "autocast_" + c10::DeviceTypeName(device, true) + "=" +
         c10::toString(static_cast<c10::ScalarType>(modes.autocast_dtypes[index]));
}

std::string keys_text(uint64_t keys) {
  return c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys));
}

PyObject* modes_repr(PyObject* self) {
  const Modes& modes = reinterpret_cast<ModesObject*>(self)->modes;
  std::string text = "Modes(";
  for (const Field& field : kFields) text += std::string(field.name) + "=" + field_text(modes, field) + ", ";
  for (int i = 0; i < kKnownDevices; i++) text += autocast_text(modes, i) + ", ";
  text += "included_keys=" + keys_text(modes.included_keys) + ", excluded_keys=" + keys_text(modes.excluded_keys) + ")";
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* modes_compare(PyObject* self, PyObject* other, int operation) {
  const Modes* right = modes_from_python(other);
  if (right == nullptr || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  bool equal = reinterpret_cast<ModesObject*>(self)->modes == *right;
  return PyBool_FromLong(equal == (operation == Py_EQ));
}

Py_hash_t modes_hash(PyObject* self) {
  const Modes& modes = reinterpret_cast<ModesObject*>(self)->modes;
  return static_cast<Py_hash_t>((modes.included_keys * 31 + modes.excluded_keys) * 31 + modes.grad) >> 1;
}

PyObject* modes_field(PyObject* self, void* closure) {
  const Field& field = *static_cast<const Field*>(closure);
  int8_t value = field_value(reinterpret_cast<ModesObject*>(self)->modes, field);
  if (field.format == Format::Bool) return PyBool_FromLong(value);
  if (field.format == Format::Number) return PyLong_FromLong(value);
  return PyUnicode_FromString(field_text(reinterpret_cast<ModesObject*>(self)->modes, field).c_str());
}

PyObject* current_modes(PyObject*, PyObject*) { return modes_to_python(Modes::current()); }

// cached_casts(tensors, places): the casts of these of the tensors that autocast takes in the block it is in; None where one is of
// another dtype or lies otherwise than autocast would make it now.
PyObject* cached_casts(PyObject*, PyObject* arguments) {
  PyObject *tensors = nullptr, *places = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!:cached_casts", &PyTuple_Type, &tensors, &PyTuple_Type, &places)) return nullptr;
  HANDLE_TH_ERRORS
  Ref casts = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(places)));
  if (!casts) throw python_error();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
    TORCH_CHECK_INDEX(place >= 0 && place < PyTuple_GET_SIZE(tensors) && THPVariable_Check(PyTuple_GET_ITEM(tensors, place)),
                      "there is no tensor at ", place);
    const at::Tensor& tensor = THPVariable_Unpack(PyTuple_GET_ITEM(tensors, place));
    c10::DeviceType device = tensor.device().type();
    at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
    c10::impl::ExcludeDispatchKeyGuard no_autocast(at::autocast::get_autocast_dispatch_key_from_device_type(device));
    at::Tensor cast = at::autocast::cached_cast(dtype, tensor, device);
    if (cast.scalar_type() != dtype || cast.sizes() != tensor.sizes() || cast.strides() != tensor.strides()) Py_RETURN_NONE;
    PyObject* wrapped = THPVariable_Wrap(cast);
    if (wrapped == nullptr) throw python_error();
    PyTuple_SET_ITEM(casts.get(), i, wrapped);
  }
  return casts.release();
  END_HANDLE_TH_ERRORS
}

PyObject* with_modes_put_back(PyObject*, PyObject* function) {
  ModesAtEntry modes;
  PyObject* result = PyObject_CallNoArgs(function);
  if (result == nullptr) {
    SavedError error;
    modes.restore();
  }
  return result;
}

PyMethodDef modes_methods[] = {
    {"current", current_modes, METH_NOARGS | METH_STATIC, "The modes in force in this thread."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef modes_functions[] = {
    {"modes", current_modes, METH_NOARGS, "The modes of torch in force in this thread: a `Modes`."},
    {"with_modes_put_back", with_modes_put_back, METH_O,
     "Calls a function without arguments. If it raises, torch's modes are what they were before."},
    {"cached_casts", cached_casts, METH_VARARGS, "The casts of tensors that autocast takes in this block, or None."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Modes Modes::current() {
  Modes m;
  std::memset(static_cast<void*>(&m), 0, sizeof m);
  auto keys = c10::impl::tls_local_dispatch_key_set();
  m.included_keys = keys.included_.raw_repr();
  m.excluded_keys = keys.excluded_.raw_repr();
  for (int i = 0; i < kKnownDevices; i++) {
    m.autocast_dtypes[i] =
        static_cast<int8_t>(at::autocast::get_autocast_dtype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i]));
  }
  m.autocast_cache = at::autocast::is_autocast_cache_enabled();
  at::autocast::increment_nesting();  // torch has no other way to ask
  m.autocast_nesting = static_cast<int8_t>(at::autocast::decrement_nesting());
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  m.grad = autograd.get_grad_mode();
  m.inference = autograd.get_inference_mode();
  m.forward_grad = autograd.get_fw_grad_mode();
  m.multithreaded_backward = autograd.get_multithreading_enabled();
  m.view_replay = autograd.get_view_replay_enabled();
  m.anomaly = torch::autograd::AnomalyMode::is_enabled();
  m.dual_level = torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
  m.default_dtype = scalar_number(c10::get_default_dtype());
  if (PyObject* context = default_device_context()) {
    Ref device = Ref::steal(PyObject_GetAttr(context, device_attribute));
    if (device && THPDevice_Check(device.get())) {
      const at::Device& value = reinterpret_cast<THPDevice*>(device.get())->device;
      m.has_default_device = 1;
      m.default_device_type = static_cast<int8_t>(value.type());
      m.default_device_index = value.index();
    } else {
      PyErr_Clear();
    }
  }
  const at::Context& context = at::globalContext();
  m.deterministic = context.deterministicAlgorithms();
  m.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  m.fill_uninitialized = context.deterministicFillUninitializedMemory();
  m.cudnn_enabled = context.userEnabledCuDNN();
  m.cudnn_deterministic = context.deterministicCuDNN();
  m.cudnn_benchmark = context.benchmarkCuDNN();
  m.attention_kernels = static_cast<int8_t>(context.userEnabledFlashSDP() | context.userEnabledMemEfficientSDP() << 1 |
                                            context.userEnabledMathSDP() << 2 | context.userEnabledCuDNNSDP() << 3);
  m.torch_function = static_cast<int8_t>(at::impl::PythonTorchFunctionTLS::get_disabled_state());
  return m;
}

void ModesAtEntry::restore() const {
  // Nesting first: leaving the outermost autocast clears its cache of casts, as `autocast.__exit__` does.
  int nesting = at::autocast::increment_nesting();
  do {
    nesting = at::autocast::decrement_nesting();
    if (nesting == 0 && modes_.autocast_nesting == 0) at::autocast::clear_cache();
  } while (nesting > modes_.autocast_nesting);
  for (int i = 0; i < kKnownDevices; i++) {
    at::autocast::set_autocast_dtype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i],
                                     static_cast<c10::ScalarType>(modes_.autocast_dtypes[i]));
  }
  at::autocast::set_autocast_cache_enabled(modes_.autocast_cache);
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  autograd.set_grad_mode(modes_.grad);
  autograd.set_inference_mode(modes_.inference);
  autograd.set_fw_grad_mode(modes_.forward_grad);
  autograd.set_multithreading_enabled(modes_.multithreaded_backward);
  autograd.set_view_replay_enabled(modes_.view_replay);
  c10::impl::PODLocalDispatchKeySet keys{};
  keys.set_included(c10::DispatchKeySet(c10::DispatchKeySet::RAW, modes_.included_keys));
  keys.set_excluded(c10::DispatchKeySet(c10::DispatchKeySet::RAW, modes_.excluded_keys));
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

namespace {

// A thread that has never traced has no flag of its own. It is given one, since a failing look-up in each call would cost more.
bool fx_is_tracing() {
  if (fx_local == nullptr) {
    static uint64_t looked_at = 0;
    static bool tracing = false;
    if (dict_version(fx_namespace) != looked_at) {
      tracing = PyDict_GetItemWithError(fx_namespace, fx_flag) == Py_True;
      looked_at = dict_version(fx_namespace);
    }
    return tracing;
  }
  Ref flag = Ref::steal(PyObject_GetAttr(fx_local, fx_flag));
  if (flag) return flag.get() == Py_True;
  PyErr_Clear();
  if (PyObject_SetAttr(fx_local, fx_flag, Py_False) < 0) PyErr_Clear();
  return false;
}

}  // namespace

bool torch_is_tracing() {
  constexpr c10::DispatchKeySet tracers({
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
      c10::DispatchKey::Tracer, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
      c10::DispatchKey::PreDispatch, c10::DispatchKey::Functionalize});
  if (c10::impl::tls_local_dispatch_key_set().included_.has_any(tracers)) return true;
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return true;
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return true;
  if (at::impl::PythonTorchFunctionTLS::stack_len() > 0 && default_device_context() == nullptr) return true;
  return fx_is_tracing();
}

Difference modes_difference(const Modes& expected, const Modes& got) {
  for (c10::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    c10::DispatchKeySet off(at::autocast::get_autocast_dispatch_key_from_device_type(device));
    bool expected_off = expected.excluded_keys & off.raw_repr(), got_off = got.excluded_keys & off.raw_repr();
    if (expected_off != got_off) {
      return {expected_off ? "off" : "on", got_off ? "off" : "on", "autocast on " + c10::DeviceTypeName(device, true)};
    }
  }
  for (int i = 0; i < kKnownDevices; i++) {
    if (expected.autocast_dtypes[i] != got.autocast_dtypes[i]) {
      return {autocast_text(expected, i), autocast_text(got, i), "dtype of autocast"};
    }
  }
  for (const Field& field : kFields) {
    if (field_value(expected, field) != field_value(got, field)) {
      return {field_text(expected, field), field_text(got, field), field.name};
    }
  }
  if (expected.included_keys != got.included_keys) {
    return {keys_text(expected.included_keys), keys_text(got.included_keys), "included dispatch keys"};
  }
  return {keys_text(expected.excluded_keys), keys_text(got.excluded_keys), "excluded dispatch keys"};
}

PyObject* modes_to_python(const Modes& modes) {
  PyObject* self = modes_type->tp_alloc(modes_type, 0);
  if (self != nullptr) reinterpret_cast<ModesObject*>(self)->modes = modes;
  return self;
}

const Modes* modes_from_python(PyObject* object) {
  return Py_TYPE(object) == modes_type ? &reinterpret_cast<ModesObject*>(object)->modes : nullptr;
}

void init_modes(PyObject* module) {
  static PyGetSetDef getters[std::size(kFields) + 1] = {};
  for (size_t i = 0; i < std::size(kFields); i++) {
    getters[i] = {kFields[i].name, modes_field, nullptr, nullptr, const_cast<Field*>(&kFields[i])};
  }
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("A snapshot of torch's process-wide and thread-wide modes; immutable.")},
      {Py_tp_repr, reinterpret_cast<void*>(modes_repr)},
      {Py_tp_richcompare, reinterpret_cast<void*>(modes_compare)},
      {Py_tp_hash, reinterpret_cast<void*>(modes_hash)},
      {Py_tp_getset, getters},
      {Py_tp_methods, modes_methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Modes", sizeof(ModesObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
  modes_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, modes_type));
  checked(PyModule_AddFunctions(module, modes_functions));

  Ref device_module = Ref::steal(checked(PyImport_ImportModule("torch.utils._device")));
  device_context_type =
      reinterpret_cast<PyTypeObject*>(checked(PyObject_GetAttrString(device_module.get(), "DeviceContext")));
  device_attribute = checked(PyUnicode_InternFromString("device"));
  Ref fx_module = Ref::steal(checked(PyImport_ImportModule("torch.fx._symbolic_trace")));
  fx_namespace = Py_NewRef(PyModule_GetDict(fx_module.get()));
  fx_local = Py_XNewRef(PyDict_GetItemString(fx_namespace, "_is_fx_tracing_tls"));
  fx_flag = checked(PyUnicode_InternFromString(fx_local == nullptr ? "_is_fx_tracing_flag" : "flag"));
}

}  // namespace capture
