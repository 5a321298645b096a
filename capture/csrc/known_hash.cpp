#include "known_hash.h"

namespace capture {
namespace {

// A dict or set, or null with a TypeError.
bool is_keyed(PyObject* container) {
  if (PyDict_Check(container) || PyAnySet_Check(container)) return true;
  PyErr_Format(PyExc_TypeError, "a dict or set is needed, not %.200s", Py_TYPE(container)->tp_name);
  return false;
}

// What the container keeps of each key, in the order of the table.
PyObject* hashed_keys(PyObject*, PyObject* container) {
  if (!is_keyed(container)) return nullptr;
  Ref result = Ref::steal(PyList_New(0));
  Py_ssize_t position = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  while (result && (PyDict_Check(container) ? _PyDict_Next(container, &position, &key, &value, &hash)
                                            : _PySet_NextEntry(container, &position, &key, &hash))) {
    Ref pair = Ref::steal(Py_BuildValue("(On)", key, static_cast<Py_ssize_t>(hash)));
    if (!pair || PyList_Append(result.get(), pair.get()) < 0) return nullptr;
  }
  return result.release();
}

PyObject* put(PyObject*, PyObject* args) {
  PyObject *container, *key, *value;
  Py_ssize_t hash;
  if (!PyArg_ParseTuple(args, "OOOn:put", &container, &key, &value, &hash) || !is_keyed(container)) return nullptr;
  if (PyDict_Check(container)) {
    if (_PyDict_SetItem_KnownHash(container, key, value, hash) < 0) return nullptr;
    Py_RETURN_NONE;
  }
  Ref one = Ref::steal(PyDict_New());       // a set takes up the keys of a dict with their hashes
  if (!one || _PyDict_SetItem_KnownHash(one.get(), key, Py_None, hash) < 0 || _PySet_Update(container, one.get()) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* take_out(PyObject*, PyObject* args) {
  PyObject *container, *key;
  Py_ssize_t hash;
  if (!PyArg_ParseTuple(args, "OOn:take_out", &container, &key, &hash) || !is_keyed(container)) return nullptr;
  if (PyDict_Check(container)) {
    if (_PyDict_DelItem_KnownHash(container, key, hash) < 0) return nullptr;
    Py_RETURN_NONE;
  }
  Ref one = Ref::steal(PyDict_New());
  if (!one || _PyDict_SetItem_KnownHash(one.get(), key, Py_None, hash) < 0) return nullptr;
  Ref method = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PySet_Type), "symmetric_difference_update"));
  return method ? PyObject_CallFunctionObjArgs(method.get(), container, one.get(), nullptr) : nullptr;
}

PyMethodDef functions[] = {
    {"hashed_keys", hashed_keys, METH_O, "The keys of a dict, or members of a set, each with the hash under which it is kept."},
    {"put", put, METH_VARARGS, "put(container, key, value, hash): `dict[key] = value`, or `set.add(key)`, of a key with this hash."},
    {"take_out", take_out, METH_VARARGS, "take_out(container, key, hash): takes a key out of a dict or set that it is in."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_known_hash(PyObject* module) {
  if (PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
