#include "objects/classes.h"

#include <new>
#include <unordered_set>

namespace capture {
namespace {

// -- a set of classes ---------------------------------------------------------------------------------------------------

struct Classes {
  PyObject_HEAD
  PyObject* members;  // a tuple, which keeps them alive
  std::unordered_set<PyObject*> identities;
};

Classes* as_classes(PyObject* self) { return reinterpret_cast<Classes*>(self); }

PyObject* classes_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* given;
  static const char* names[] = {"classes", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Classes", const_cast<char**>(names), &given)) return nullptr;
  PyObject* members = PySequence_Tuple(given);
  if (members == nullptr) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    Py_DECREF(members);
    return nullptr;
  }
  as_classes(self)->members = members;
  new (&as_classes(self)->identities) std::unordered_set<PyObject*>;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members); ++i) as_classes(self)->identities.insert(PyTuple_GET_ITEM(members, i));
  return self;
}

int classes_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_classes(self)->members);
  return 0;
}

void classes_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  as_classes(self)->identities.~unordered_set();
  Py_CLEAR(as_classes(self)->members);
  Py_TYPE(self)->tp_free(self);
}

int classes_contains(PyObject* self, PyObject* cls) { return as_classes(self)->identities.count(cls) > 0; }

Py_ssize_t classes_length(PyObject* self) { return static_cast<Py_ssize_t>(as_classes(self)->identities.size()); }

PyObject* classes_iter(PyObject* self) { return PyObject_GetIter(as_classes(self)->members); }

PySequenceMethods classes_as_sequence = {};

PyTypeObject classes_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// -- what classes have --------------------------------------------------------------------------------------------------

// A class and a name, the first two of `args`; false with a TypeError for anything else, or another number of arguments.
bool are_class_and_name(const char* function, PyObject* const* args, Py_ssize_t count, Py_ssize_t most) {
  if (count >= 2 && count <= most && PyType_Check(args[0]) && PyUnicode_Check(args[1])) return true;
  PyErr_Format(PyExc_TypeError, "%s takes a class and a name", function);
  return false;
}

// What a class has under a name along its MRO, borrowed; null without an error if that is nothing.
PyObject* found(PyObject* cls, PyObject* name) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  if (type->tp_mro == nullptr && PyType_Ready(type) < 0) throw PythonError{};     // some of C's are made ready when first asked
  return _PyType_Lookup(type, name);
}

PyObject* lookup_class(PyObject*, PyObject* const* args, Py_ssize_t count) try {
  if (!are_class_and_name("lookup_class", args, count, 3)) return nullptr;
  PyObject* value = found(args[0], args[1]);
  return Py_NewRef(value != nullptr ? value : count == 3 ? args[2] : Py_None);
} catch (const PythonError&) {
  return nullptr;
}

PyObject* has(PyObject*, PyObject* const* args, Py_ssize_t count) try {
  if (!are_class_and_name("has", args, count, 2)) return nullptr;
  return Py_NewRef(found(args[0], args[1]) != nullptr ? Py_True : Py_False);
} catch (const PythonError&) {
  return nullptr;
}

// Whether one of a trace's nodes, by the address of their objects, is that of a class which the trace has made (it has no `source`),
// or among whose `slots` is this name.
bool is_noted(PyObject* nodes, PyObject* cls, PyObject* name) {
  static PyObject* const slots_name = checked(PyUnicode_InternFromString("slots"));
  static PyObject* const source_name = checked(PyUnicode_InternFromString("source"));
  Ref address = Ref::steal(checked(PyLong_FromVoidPtr(cls)));
  PyObject* node = PyDict_GetItemWithError(nodes, address.get());
  if (node == nullptr) {
    if (PyErr_Occurred()) throw PythonError{};
    return false;
  }
  Ref source = Ref::steal(checked(PyObject_GetAttr(node, source_name)));
  if (source.get() == Py_None) return true;
  Ref slots = Ref::steal(checked(PyObject_GetAttr(node, slots_name)));
  if (!PyDict_Check(slots.get()) || PyDict_GET_SIZE(slots.get()) == 0) return false;
  int contains = PyDict_Contains(slots.get(), name);
  checked(contains);
  return contains == 1;
}

PyObject* noted_along(PyObject*, PyObject* const* args, Py_ssize_t count) try {
  if (count != 3 || !PyDict_Check(args[0]) || !PyType_Check(args[1]) || !PyUnicode_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "noted_along takes a dict of nodes, a class and a name");
    return nullptr;
  }
  Ref mro = Ref::borrow(reinterpret_cast<PyTypeObject*>(args[1])->tp_mro);
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro.get()); ++i)
    if (is_noted(args[0], PyTuple_GET_ITEM(mro.get(), i), args[2])) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
} catch (const PythonError&) {
  return nullptr;
}

PyMethodDef functions[] = {
    {"lookup_class", reinterpret_cast<PyCFunction>(lookup_class), METH_FASTCALL,
     "lookup_class(cls, name, default=None): what a class has under `name` along its MRO, unbound, or `default`."},
    {"has", reinterpret_cast<PyCFunction>(has), METH_FASTCALL,
     "has(cls, name): whether a class has anything under `name` along its MRO."},
    {"noted_along", reinterpret_cast<PyCFunction>(noted_along), METH_FASTCALL,
     "noted_along(nodes, cls, name): whether a trace has made `cls` or one of its bases, or has noted something of their attribute "
     "`name`. nodes: those of the trace (`RefNode`), by the `id` of their objects."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_classes(PyObject* module) {
  classes_as_sequence.sq_length = classes_length;
  classes_as_sequence.sq_contains = classes_contains;
  classes_type.tp_name = "capture._C.Classes";
  classes_type.tp_doc = "A set of classes. To ask whether it has one runs no Python code of a metaclass, which may hash and compare "
                        "its classes.";
  classes_type.tp_basicsize = sizeof(Classes);
  classes_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  classes_type.tp_new = classes_new;
  classes_type.tp_traverse = classes_traverse;
  classes_type.tp_dealloc = classes_dealloc;
  classes_type.tp_iter = classes_iter;
  classes_type.tp_as_sequence = &classes_as_sequence;
  checked(PyType_Ready(&classes_type));
  checked(PyModule_AddObjectRef(module, "Classes", reinterpret_cast<PyObject*>(&classes_type)));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
