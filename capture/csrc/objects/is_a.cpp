#include "objects/is_a.h"

namespace capture {
namespace {

PyObject* subclass_check = nullptr;  // `type.__subclasscheck__`, which asks for nothing but what a class derives from

// Whether a metaclass, such as that of abstract base classes, has a say in what derives from its classes.
bool has_a_say(PyTypeObject* metaclass) {
  static PyObject* name = PyUnicode_InternFromString("__subclasscheck__");
  return metaclass != &PyType_Type && _PyType_Lookup(metaclass, name) != subclass_check;
}

// 1 if a class is one of `kinds` or derives from it, 0 if not, -1 with an error.
int derives(PyTypeObject* cls, PyObject* kinds) {
  if (PyTuple_CheckExact(kinds)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); ++i)
      if (int found = derives(cls, PyTuple_GET_ITEM(kinds, i)); found != 0) return found;
    return 0;
  }
  if (PyType_Check(kinds)) {
    if (PyType_IsSubtype(cls, reinterpret_cast<PyTypeObject*>(kinds))) return 1;
    if (!has_a_say(Py_TYPE(kinds))) return 0;
  }
  return PyObject_IsSubclass(reinterpret_cast<PyObject*>(cls), kinds);
}

PyObject* is_a(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_Format(PyExc_TypeError, "is_a takes an object and what it may be, not %zd arguments", count);
    return nullptr;
  }
  int found = derives(Py_TYPE(args[0]), args[1]);
  return found < 0 ? nullptr : Py_NewRef(found ? Py_True : Py_False);
}

PyMethodDef functions[] = {
    {"is_a", reinterpret_cast<PyCFunction>(is_a), METH_FASTCALL,
     "is_a(x, kinds): whether `x` is an instance of one of some classes, as C code decides it. (`isinstance` asks `x` for its "
     "`__class__`, which may run code of the program, and may say anything.)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_is_a(PyObject* module) {
  Ref namespace_of_type = Ref::steal(checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyType_Type), "__dict__")));
  subclass_check = checked(PyObject_GetItem(namespace_of_type.get(), Ref::steal(checked(PyUnicode_FromString("__subclasscheck__"))).get()));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
