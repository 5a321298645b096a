#include "objects/references.h"

#include "cpython/finalizer.h"

namespace capture {
namespace {

// Appends the holder to a list if nobody else refers to what it has under `name`.
void append_unshared(PyObject* list, PyObject* holder, PyObject* name) {
  Ref held = Ref::steal(checked(PyObject_GetAttr(holder, name)));
  constexpr Py_ssize_t kHoldersAndOurs = 2;
  if (Py_REFCNT(held.get()) <= kHoldersAndOurs) checked(PyList_Append(list, holder));
}

PyObject* unshared(PyObject*, PyObject* const* args, Py_ssize_t count) try {
  if (count != 2 || !PyList_Check(args[0]) || !PyUnicode_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "unshared takes a list and the name of an attribute");
    return nullptr;
  }
  Ref result = Ref::steal(checked(PyList_New(0)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); ++i) append_unshared(result.get(), PyList_GET_ITEM(args[0], i), args[1]);
  return result.release();
} catch (const PythonError&) {
  return nullptr;
}

PyObject* close_no_more(PyObject*, PyObject* object) {
  if (!PyGen_Check(object) && !PyCoro_CheckExact(object) && !PyAsyncGen_CheckExact(object)) {
    PyErr_Format(PyExc_TypeError, "a generator is needed, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  drop_finalizer(object);
  return Py_NewRef(object);
}

PyMethodDef functions[] = {
    {"close_no_more", close_no_more, METH_O,
     "The same generator, coroutine or asynchronous generator, which runs no more code when it dies: who holds it closes it before."},
    {"unshared", reinterpret_cast<PyCFunction>(unshared), METH_FASTCALL,
     "unshared(holders, name): of a list of objects those that hold the only reference to their attribute `name`, a slot."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_references(PyObject* module) { checked(PyModule_AddFunctions(module, functions)); }

}  // namespace capture
