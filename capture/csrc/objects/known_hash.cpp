#include "objects/known_hash.h"

#include "cpython/dict_probe.h"
#include "cpython/set_probe.h"

#include <utility>
#include <vector>

namespace capture {
namespace {

PyObject* equals_nothing(PyObject*, PyObject*, int) { Py_RETURN_FALSE; }

Py_hash_t hash_of_added = 0;        // guarded by the interpreter's lock: no other code runs between its setting and its use
Py_hash_t known_hash(PyObject*) { return hash_of_added; }

PyTypeObject unequal_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// A dict or set, or null with a TypeError.
bool is_keyed(PyObject* container) {
  if (PyDict_Check(container) || PyAnySet_Check(container)) return true;
  PyErr_Format(PyExc_TypeError, "a dict or set is needed, not %.200s", Py_TYPE(container)->tp_name);
  return false;
}

// An entry of a dict, or a member of a set, which has no value.
struct Entry {
  Ref key, value;
  Py_hash_t hash;
};

// All entries, in the order of the table. Allocates no Python object, and so runs no code of the program's.
std::vector<Entry> entries(PyObject* container) {
  std::vector<Entry> result;
  Py_ssize_t position = 0;
  PyObject *key, *value = nullptr;
  Py_hash_t hash;
  while (PyDict_Check(container) ? dict_entry_next(container, &position, &key, &value, &hash) : _PySet_NextEntry(container, &position, &key, &hash))
    result.push_back({Ref::borrow(key), Ref::borrow(value), hash});
  return result;
}

// Those with a hash, in the order in which C compares them with a key that is looked up.
std::vector<Entry> entries_with(PyObject* container, Py_hash_t hash) {
  std::vector<Entry> result;
  if (PyDict_Check(container)) {
    DictProbe probe{};
    PyObject *key, *value;
    while (dict_probe_next(container, hash, &probe, &key, &value)) result.push_back({Ref::borrow(key), Ref::borrow(value), hash});
    return result;
  }
  const auto* set = reinterpret_cast<PySetObject*>(container);
  probe_set(set->mask, hash, [&](size_t slot) {
    const setentry& entry = set->table[slot];
    if (entry.key != nullptr && entry.hash == hash) result.push_back({Ref::borrow(entry.key), Ref(), hash});
    return entry.key != nullptr || entry.hash != 0;
  });
  return result;
}

// Whether a key of a container is the one that is meant: identical, or of equal parts that C compares, since mock functions make
// tuples and numbers anew.
bool is_same(PyObject* kept, PyObject* key) {
  if (kept == key) return true;
  if (Py_TYPE(kept) != Py_TYPE(key) || PyType_HasFeature(Py_TYPE(key), Py_TPFLAGS_HEAPTYPE) || PyFrozenSet_CheckExact(key)) return false;
  if (!PyTuple_CheckExact(key)) {
    int equal = PyObject_RichCompareBool(kept, key, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal > 0;
  }
  if (PyTuple_GET_SIZE(kept) != PyTuple_GET_SIZE(key)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i)
    if (!is_same(PyTuple_GET_ITEM(kept, i), PyTuple_GET_ITEM(key, i))) return false;
  return true;
}

// While this lives, C finds a key equal to no other of a container, and runs no `__eq__` to find that out: keys with its hash
// have been given a type that equals nothing. (A key that is added to a set has it, too, and so the hash that is known.) No other
// code may run meanwhile; so what the container drops is kept until this ends.
class Uncompared {
 public:
  Uncompared(PyObject* container, PyObject* key, Py_hash_t hash) : entries_(entries_with(container, hash)) {
    for (const Entry& entry : entries_) {
      if (is_same(entry.key.get(), key)) holds_key_ = true;
      else others_.emplace_back(entry.key.get(), Py_TYPE(entry.key.get()));
    }
    for (auto [other, type] : others_) Py_SET_TYPE(other, &unequal_type);
  }
  ~Uncompared() {
    for (auto [other, type] : others_) Py_SET_TYPE(other, type);
  }
  Uncompared(const Uncompared&) = delete;
  Uncompared& operator=(const Uncompared&) = delete;

  bool holds_key() const { return holds_key_; }

 private:
  bool holds_key_ = false;
  std::vector<Entry> entries_;
  std::vector<std::pair<PyObject*, PyTypeObject*>> others_;
};

// What the container keeps of each key, in the order of the table.
PyObject* hashed_keys(PyObject*, PyObject* container) {
  if (!is_keyed(container)) return nullptr;
  Ref result = Ref::steal(PyList_New(0));
  for (const Entry& entry : entries(container)) {
    Ref pair = result ? Ref::steal(Py_BuildValue("(On)", entry.key.get(), static_cast<Py_ssize_t>(entry.hash))) : Ref();
    if (!pair || PyList_Append(result.get(), pair.get()) < 0) return nullptr;
  }
  return result.release();
}

PyObject* candidates(PyObject*, PyObject* args) {
  PyObject* container;
  Py_ssize_t hash;
  if (!PyArg_ParseTuple(args, "On:candidates", &container, &hash) || !is_keyed(container)) return nullptr;
  Ref result = Ref::steal(PyList_New(0));
  for (const Entry& entry : entries_with(container, hash))
    if (!result || PyList_Append(result.get(), entry.key.get()) < 0) return nullptr;
  return result.release();
}

PyObject* put(PyObject*, PyObject* args) {
  PyObject *container, *key, *value;
  Py_ssize_t hash;
  if (!PyArg_ParseTuple(args, "OOOn:put", &container, &key, &value, &hash) || !is_keyed(container)) return nullptr;
  if (put_entry(container, key, value, hash) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* take_out(PyObject*, PyObject* args) {
  PyObject *container, *key;
  Py_ssize_t hash;
  if (!PyArg_ParseTuple(args, "OOn:take_out", &container, &key, &hash) || !is_keyed(container)) return nullptr;
  if (PyDict_Check(container)) {
    Uncompared others(container, key, hash);
    if (_PyDict_DelItem_KnownHash(container, key, hash) < 0) return nullptr;
    Py_RETURN_NONE;
  }
  Ref one = Ref::steal(PyDict_New());
  if (!one || _PyDict_SetItem_KnownHash(one.get(), key, Py_None, hash) < 0) return nullptr;
  Ref method = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PySet_Type), "symmetric_difference_update"));
  if (!method) return nullptr;
  Uncompared others(container, key, hash);
  return PyObject_CallFunctionObjArgs(method.get(), container, one.get(), nullptr);
}

PyMethodDef functions[] = {
    {"hashed_keys", hashed_keys, METH_O, "The keys of a dict, or members of a set, each with the hash under which it is kept."},
    {"candidates", candidates, METH_VARARGS, "candidates(container, hash): the keys of a dict, or members of a set, that are kept under a hash, as they are compared."},
    {"put", put, METH_VARARGS, "put(container, key, value, hash): `dict[key] = value`, or `set.add(key)`, of a key with this hash that is there or equals none. "
                               "Compares nothing."},
    {"take_out", take_out, METH_VARARGS, "take_out(container, key, hash): takes a key out of a dict or set that it is in. Compares nothing."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int put_entry(PyObject* container, PyObject* key, PyObject* value, Py_hash_t hash) {
  Uncompared others(container, key, hash);
  if (PyDict_Check(container)) return _PyDict_SetItem_KnownHash(container, key, value, hash);
  if (others.holds_key()) return 0;
  // Taken up from a dict, keys would have their hashes as well, but the set would grow earlier: its order would be another one.
  PyTypeObject* type = Py_TYPE(key);
  hash_of_added = hash;
  Py_SET_TYPE(key, &unequal_type);
  int failed = PySet_Add(container, key);
  Py_SET_TYPE(key, type);
  return failed;
}

void init_known_hash(PyObject* module) {
  unequal_type.tp_name = "capture._C.Unequal";
  unequal_type.tp_flags = Py_TPFLAGS_DEFAULT;
  unequal_type.tp_richcompare = equals_nothing;
  unequal_type.tp_hash = known_hash;
  if (PyType_Ready(&unequal_type) < 0 || PyModule_AddFunctions(module, functions) < 0) throw PythonError();
}

}  // namespace capture
