#include "guards/deaths.h"

#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <typeinfo>
#include <unordered_map>

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace capture {
namespace {

// Callbacks of our own weak references change nothing that a call reads.
bool is_own(PyObject* callback) {
  if (!PyFunction_Check(callback)) return false;
  PyObject* module = reinterpret_cast<PyFunctionObject*>(callback)->func_module;
  if (module == nullptr || !PyUnicode_CheckExact(module)) return false;
  const char* name = PyUnicode_AsUTF8(module);
  if (name == nullptr) PyErr_Clear();
  constexpr char kPackage[] = "capture.";
  return name != nullptr && std::strncmp(name, kPackage, sizeof kPackage - 1) == 0;
}

bool is_watched(PyObject* object) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return false;
  PyObject** list = PyObject_GET_WEAKREFS_LISTPTR(object);
  for (auto* weak = reinterpret_cast<PyWeakReference*>(*list); weak != nullptr; weak = weak->wr_next) {
    if (weak->wr_callback != nullptr && !is_own(weak->wr_callback)) return true;
  }
  return false;
}

// Whether autograd keeps no Python object for a tensor: no hook, and no node written in Python.
bool is_of_autograd_alone(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr) return true;
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta->hooks_.empty()) return false;
  // Compared by name, since torch does not export the class.
  const torch::autograd::Node* node = meta->grad_fn_.get();
  return node == nullptr || std::strcmp(typeid(*node).name(), "N5torch8autograd6PyNodeE") != 0;
}

// A tensor that nothing watches, and that refers to no Python object.
bool is_bare_tensor(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  auto* variable = reinterpret_cast<THPVariable*>(object);
  if (variable->backward_hooks != nullptr || variable->post_accumulate_grad_hooks != nullptr) return false;
  PyObject** dict = instance_dict_slot(object);
  if (dict == nullptr || (reinterpret_cast<uintptr_t>(*dict) & 1) != 0) return false;  // see instance_dict_step
#if PY_VERSION_HEX < 0x030C0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT) && dict[-1] != nullptr) return false;  // values without a dict
#endif
  if ((*dict != nullptr && PyDict_GET_SIZE(*dict) != 0) || is_watched(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return !tensor.defined() || is_of_autograd_alone(tensor);
}

// Numbers, strings and the like, which refer to nothing, and nobody can watch; and tensors that are like them.
bool is_leaf(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC)) return type->tp_finalize == nullptr && type->tp_weaklistoffset == 0;
  return is_bare_tensor(object);
}

// Whether an object, should it die, is seen at once to run no code: a leaf, or a tuple or list of such.
bool dies_quietly(PyObject* object, int depth = 2) {
  if (is_leaf(object)) return true;
  const bool tuple = PyTuple_CheckExact(object);
  if (depth == 0 || !(tuple || PyList_CheckExact(object))) return false;
  PyObject** items = tuple ? reinterpret_cast<PyTupleObject*>(object)->ob_item : reinterpret_cast<PyListObject*>(object)->ob_item;
  return std::all_of(items, items + Py_SIZE(object), [&](PyObject* item) { return dies_quietly(item, depth - 1); });
}

// Whether the body of a generator has no handler that closing it could run. From 3.12 on all bodies have one, CPython's own.
bool has_no_handler(PyObject* object) {
#if PY_VERSION_HEX < 0x030C0000
  return PyGen_CheckExact(object) &&
         PyBytes_GET_SIZE(reinterpret_cast<PyGenObject*>(object)->gi_code->co_exceptiontable) == 0;
#else
  return false;
#endif
}

// Whether closing a generator may run code: it has begun and not ended, or is a coroutine, which warns.
bool is_suspended(PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  constexpr int kCreated = -3;
#else
  constexpr int kCreated = -2;
#endif
  const int state = reinterpret_cast<PyGenObject*>(object)->gi_frame_state;
  return state <= 0 && !(PyGen_CheckExact(object) && state == kCreated) && !has_no_handler(object);
}

bool is_generator(PyObject* object) {
  return PyGen_CheckExact(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object);
}

bool runs_code(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  const bool finalized = type->tp_finalize != nullptr || type->tp_del != nullptr;
  return (finalized && !(is_generator(object) && !is_suspended(object))) || is_watched(object);
}

// The field of C in which an attribute is kept, such as those that `__slots__` make; nullptr where there is none.
PyObject** field_of(PyObject* owner, PyObject* name) {
  if (PyObject** field = attribute_slot(owner, name)) return field;
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(owner), name);
  if (descriptor == nullptr || Py_TYPE(descriptor) != &PyMemberDescr_Type) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + member->offset);
}

// A key as a position; kNoIndex for what is none.
Py_ssize_t index_of(PyObject* key) {
  if (!PyLong_CheckExact(key)) return kNoIndex;
  const Py_ssize_t index = PyLong_AsSsize_t(key);
  if (index != -1 || !PyErr_Occurred()) return index;
  PyErr_Clear();  // too large for any sequence
  return kNoIndex;
}

// The item at a key, perhaps nullptr; nothing where looking it up may run code.
std::optional<PyObject*> changing_item(PyObject* owner, PyObject* key) {
  if (key == nullptr || !is_scalar(key)) return std::nullopt;
  return item_step(owner, key, PyObject_Hash(key), index_of(key));
}

bool is_empty(PyObject* container) {
  if (PyDict_Check(container)) return PyDict_GET_SIZE(container) == 0;
  return PyAnySet_Check(container) && PySet_GET_SIZE(container) == 0;
}

class Deaths {
 public:
  explicit Deaths(const Owned& owned) : owned_(owned) {}

  // `key`: that of a changing item.
  void lose(PyObject* owner, const Loss& loss, PyObject* key) {
    switch (loss.drop) {
      case Drop::Item: return drop(item_step(owner, loss.key, loss.hash, loss.index));
      case Drop::ChangingItem: {
        std::optional<PyObject*> item = changing_item(owner, key);
        return item ? drop(*item) : follow(owner, traverse_of_contents(owner));
      }
      case Drop::Attribute: return lose_attribute(owner, loss);
      case Drop::Contents: return follow(owner, traverse_of_contents(owner));
      case Drop::Nothing: return quiet_.push_back(owner);
    }
  }

  // Follows what was dropped: whether some of it dies, and runs code.
  bool run_code() {
    for (size_t i = 0; i < dying_.size(); i++) {
      PyObject* object = dying_[i];
      if (std::find(quiet_.begin(), quiet_.end(), object) != quiet_.end()) continue;
      if (runs_code(object)) return true;
      follow(object, Py_TYPE(object)->tp_traverse);
    }
    return false;
  }

 private:
  // An object loses a reference; nullptr: there is none. `ours`: how many of the others are ours, besides those that are `owned_`.
  void drop(PyObject* object, Py_ssize_t ours = 0) {
    if (object == nullptr || is_leaf(object)) return;
    const Py_ssize_t references = Py_REFCNT(object) - ours - owned_.count(object);
    if (references <= 0) return;  // made for who asked, such as an array's shape: the owner holds none
    if (references > 1 && (PyType_Check(object) || ++lost_[object] < references)) return;  // a class refers to itself
    dying_.push_back(object);
  }

  void lose_attribute(PyObject* owner, const Loss& loss) {
    PyObject* name = loss.key;
    if (PyType_Check(owner)) return drop(item_step(reinterpret_cast<PyTypeObject*>(owner)->tp_dict, name, loss.hash, kNoIndex));
    if (PyObject** field = field_of(owner, name)) return drop(*field);
    Owned owned;
    if (PyObject* value = attribute_step(owner, name, owned)) return drop(value, owned.empty() ? 0 : 1);
    if (PyObject* dict = instance_dict_step(owner)) drop(item_step(dict, name, loss.hash, kNoIndex));
  }

  // Of a container its items alone, and not what a subclass adds.
  static traverseproc traverse_of_contents(PyObject* owner) {
    if (PyDict_Check(owner)) return PyDict_Type.tp_traverse;
    if (PyList_Check(owner)) return PyList_Type.tp_traverse;
    if (PyAnySet_Check(owner)) return PySet_Type.tp_traverse;
    return Py_TYPE(owner)->tp_traverse;
  }

  void follow(PyObject* object, traverseproc traverse) {
    if (traverse != nullptr && PyObject_IS_GC(object)) traverse(object, visit, this);  // a static class is none of the collector's
  }

  static int visit(PyObject* object, void* self) {
    static_cast<Deaths*>(self)->drop(object);
    return 0;
  }

  const Owned& owned_;
  c10::SmallVector<PyObject*, 8> dying_;
  c10::SmallVector<PyObject*, 2> quiet_;  // that run no code
  std::unordered_map<PyObject*, Py_ssize_t> lost_;  // of objects with several references: how many of these
};

}  // namespace

Loss make_loss(uint32_t node, PyObject* drop, Ref& key, size_t count) {
  constexpr const char* kNames[] = {"item", "changing item", "attribute", "contents", "nothing"};
  for (size_t i = 0; i < std::size(kNames); i++) {
    if (!PyUnicode_Check(drop) || PyUnicode_CompareWithASCIIString(drop, kNames[i]) != 0) continue;
    if (static_cast<Drop>(i) == Drop::Attribute) {  // steps compare names by identity
      PyObject* name = key.release();
      PyUnicode_InternInPlace(&name);
      key = Ref::steal(name);
    }
    Loss loss{node, static_cast<Drop>(i), key.get(), node, PyObject_Hash(key.get()), kNoIndex};
    if (loss.hash == -1) throw PythonError{};
    loss.index = index_of(key.get());
    if (loss.drop == Drop::ChangingItem) {
      if (loss.index < 0 || static_cast<size_t>(loss.index) >= count) {
        PyErr_Format(PyExc_IndexError, "%R is no node", key.get());
        throw PythonError{};
      }
      loss.key_node = static_cast<uint32_t>(loss.index);
    }
    return loss;
  }
  PyErr_Format(PyExc_ValueError, "unknown drop %R", drop);
  throw PythonError{};
}

bool may_run_code(const std::vector<Loss>& losses, const std::vector<PyObject*>& values, const Owned& owned) {
  // Nearly always it is seen at once: all die quietly, but for one perhaps, which others hold too.
  PyObject* suspect = nullptr;
  size_t suspects = 0;
  for (const Loss& loss : losses) {
    PyObject* owner = values[loss.node];
    if (owner == nullptr || loss.drop == Drop::Nothing) continue;
    if (loss.drop == Drop::Item || loss.drop == Drop::ChangingItem) {
      std::optional<PyObject*> value = loss.drop == Drop::Item ? item_step(owner, loss.key, loss.hash, loss.index)
                                                               : changing_item(owner, values[loss.key_node]);
      if (value && (*value == nullptr || dies_quietly(*value))) continue;
      suspect = value.value_or(nullptr);
    } else if (loss.drop == Drop::Attribute) {
      PyObject** field = PyType_Check(owner) ? nullptr : field_of(owner, loss.key);
      if (field != nullptr && (*field == nullptr || dies_quietly(*field))) continue;
      suspect = field == nullptr ? nullptr : *field;
    } else {
      if (is_empty(owner) || (PyList_CheckExact(owner) && dies_quietly(owner, 1))) continue;
      suspects++;  // of several
    }
    suspects++;
  }
  if (suspects == 0 || (suspects == 1 && suspect != nullptr && Py_REFCNT(suspect) > 1 && owned.empty())) return false;
  Deaths deaths(owned);
  for (const Loss& loss : losses) {
    if (PyObject* owner = values[loss.node]) deaths.lose(owner, loss, values[loss.key_node]);
  }
  return deaths.run_code();
}

}  // namespace capture
