#include "guards/deaths.h"

#include <structmember.h>

#include <algorithm>
#include <vector>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "guards/steps.h"

namespace capture {
namespace {

// Classes whose finalizers are known to change nothing that a trace reads; borrowed, since they are never let go.
std::vector<PyObject*> quiet_classes;
PyObject* own_callback = nullptr;  // the code of the callback by which capture learns that an object has died

// A tensor that nothing watches, and that refers to no Python object.
bool is_bare_tensor(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  auto* variable = reinterpret_cast<THPVariable*>(object);
  if (variable->backward_hooks != nullptr || variable->post_accumulate_grad_hooks != nullptr) return false;
  PyObject** dict = instance_dict_slot(object);
  if (dict == nullptr || *dict != nullptr) return false;
  if (*PyObject_GET_WEAKREFS_LISTPTR(object) != nullptr) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined()) return true;
  return tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr;
}

// Whether closing it may run code: it has begun and not ended, or is a coroutine, which would warn.
bool is_suspended(PyObject* object) {
  auto* generator = reinterpret_cast<PyGenObject*>(object);
  const int state = generator->gi_frame_state;
#if PY_VERSION_HEX >= 0x030D0000
  constexpr int kCreated = -3;
#else
  constexpr int kCreated = -2;
#endif
  return state <= 0 && !(PyGen_CheckExact(object) && state == kCreated);
}

bool is_generator(PyObject* object) {
  return PyGen_CheckExact(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object);
}

bool is_own(PyObject* callback) {
  return PyFunction_Check(callback) && PyFunction_GET_CODE(callback) == own_callback;
}

bool is_watched(PyObject* object) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return false;
  PyObject** list = PyObject_GET_WEAKREFS_LISTPTR(object);
  for (auto* weak = reinterpret_cast<PyWeakReference*>(*list); weak != nullptr; weak = weak->wr_next) {
    if (weak->wr_callback != nullptr && !is_own(weak->wr_callback)) return true;
  }
  return false;
}

bool runs_code(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_finalize != nullptr || type->tp_del != nullptr) {
    if (is_generator(object)) return is_suspended(object) || is_watched(object);
    return std::find(quiet_classes.begin(), quiet_classes.end(), reinterpret_cast<PyObject*>(type)) == quiet_classes.end();
  }
  return is_watched(object);
}

// What a field of C holds, borrowed; nullptr where the descriptor is none.
PyObject** field_of(PyObject* owner, PyObject* descriptor) {
  if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + member->offset);
}

}  // namespace

Loss parse_loss(PyObject* name) {
  constexpr const char* kNames[] = {"item", "attribute", "all"};
  for (size_t i = 0; i < std::size(kNames); i++) {
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, kNames[i]) == 0) return static_cast<Loss>(i);
  }
  PyErr_Format(PyExc_ValueError, "unknown loss %R", name);
  throw PythonError{};
}

void Deaths::lose(PyObject* owner, Loss loss, PyObject* key, Py_hash_t hash) {
  if (loss == Loss::Item) {
    PyObject* item = item_step(owner, key, hash, PyLong_CheckExact(key) ? PyLong_AsSsize_t(key) : kNoIndex);
    if (PyErr_Occurred()) PyErr_Clear();
    if (item != nullptr) drop(item);
  } else if (loss == Loss::All) {
    traverseproc items = nullptr;
    if (PyDict_Check(owner)) items = PyDict_Type.tp_traverse;
    else if (PyList_Check(owner)) items = PyList_Type.tp_traverse;
    else if (PyAnySet_Check(owner)) items = PySet_Type.tp_traverse;
    else items = Py_TYPE(owner)->tp_traverse;
    follow(owner, items);
  } else if (PyType_Check(owner)) {
    PyObject* value = _PyDict_GetItem_KnownHash(reinterpret_cast<PyTypeObject*>(owner)->tp_dict, key, hash);
    if (value != nullptr) drop(value);
    else PyErr_Clear();
  } else {
    PyObject** field = attribute_slot(owner, key);
    if (field == nullptr) {
      PyObject* descriptor = _PyType_Lookup(Py_TYPE(owner), key);
      field = descriptor == nullptr ? nullptr : field_of(owner, descriptor);
    }
    if (field != nullptr) {
      if (*field != nullptr) drop(*field);
      return;
    }
    Owned owned;
    if (PyObject* value = attribute_step(owner, key, owned)) return drop(value, owned.empty() ? 0 : 1);
    if (PyObject* dict = instance_dict_step(owner)) lose(dict, Loss::Item, key, hash);
  }
}

void Deaths::drop_any(PyObject* object, Py_ssize_t ours) {
  if (is_bare_tensor(object)) return;
  if (nodes_ != Py_None && is_held_by_node(object)) ours++;
  const Py_ssize_t references = Py_REFCNT(object) - ours;
  if (references <= 0) return;  // made for who asked, such as an array's shape: the owner holds none
  if (references > 1 && (PyType_Check(object) || ++lost_[object] < references)) return;  // a class refers to itself
  dying_.push_back(object);
}

bool Deaths::is_held_by_node(PyObject* object) const {
  Ref id = Ref::steal(checked(PyLong_FromVoidPtr(object)));
  PyObject* node = PyDict_GetItemWithError(nodes_, id.get());
  if (node == nullptr) return false;
  Ref held = Ref::steal(PyObject_GetAttrString(node, "_ref"));
  if (!held) PyErr_Clear();
  return held.get() == object;
}

void Deaths::follow(PyObject* object, traverseproc traverse) {
  if (traverse != nullptr && PyObject_IS_GC(object)) traverse(object, visit, this);  // a static class is none of the collector's
}

int Deaths::visit(PyObject* object, void* self) {
  static_cast<Deaths*>(self)->drop(object);
  return 0;
}

PyTypeObject* Deaths::loud() {
  for (size_t i = 0; i < dying_.size(); i++) {
    PyObject* object = dying_[i];
    if (runs_code(object)) return Py_TYPE(object);
    follow(object, Py_TYPE(object)->tp_traverse);
  }
  return nullptr;
}

namespace {

PyObject* loud_death(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    if (count == 0 || (args[0] != Py_None && !PyDict_Check(args[0]))) return PyErr_Format(PyExc_TypeError, "nodes are needed");
    Deaths deaths(args[0]);
    for (Py_ssize_t i = 1; i < count; i++) {
      PyObject *owner, *name, *key;
      if (!PyArg_ParseTuple(args[i], "OOO", &owner, &name, &key)) return nullptr;
      const Py_hash_t hash = PyObject_Hash(key);
      if (hash == -1) return nullptr;
      deaths.lose(owner, parse_loss(name), key, hash);
    }
    PyTypeObject* cls = deaths.loud();
    return Py_NewRef(cls == nullptr ? Py_None : reinterpret_cast<PyObject*>(cls));
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* let_die(PyObject*, PyObject* cls) {
  if (std::find(quiet_classes.begin(), quiet_classes.end(), cls) == quiet_classes.end()) quiet_classes.push_back(Py_NewRef(cls));
  Py_RETURN_NONE;
}

PyObject* watch_by(PyObject*, PyObject* code) {
  Py_XSETREF(own_callback, Py_NewRef(code));
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"loud_death", reinterpret_cast<PyCFunction>(loud_death), METH_FASTCALL,
     "loud_death(nodes, *losses) -> type | None\n\nnodes: of a trace, by the id of their objects, whose own references do not count; "
     "or None. Each loss is (owner, 'item', 'attribute' or 'all', key): references that are about to be dropped. The class of an "
     "object that dies of it, and by whose death code of the program's runs. None: there is none."},
    {"let_die", let_die, METH_O, "let_die(cls)\n\nThe finalizers of its instances change nothing that a trace reads."},
    {"watch_by", watch_by, METH_O, "watch_by(code)\n\nThe code of the callbacks of capture's own weak references."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_deaths(PyObject* module) { checked(PyModule_AddFunctions(module, functions)); }

}  // namespace capture
