// One step of an access path: from an object to the next, without running Python code. Names of attributes are interned strings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "python_ref.h"

namespace capture {

enum class Step : uint8_t {
  Local,           // argument `index`
  Function,        // the function of the frame
  Constant,        // key: the object, or a weak reference to it
  ImportedModule,  // sys.modules[key]
  Literal,         // key: the value
  Attr,            // C-level attribute `key`
  InstanceDict,    // __dict__
  Item,            // [key] of a list, tuple, deque or dict
  TypeOf,          // type(…)
  TypeAttr,        // attribute `key` along the MRO of a class, unbound
  Computed,        // key(*operands)
};
constexpr const char* kStepNames[] = {"Local",        "Function", "Constant", "ImportedModule", "Literal", "Attr",
                                      "InstanceDict", "Item",     "TypeOf",   "TypeAttr",       "Computed"};

// New references made during one evaluation, released when it has ended. Paths hand out borrowed references.
class Owned {
 public:
  PyObject* keep(PyObject* object) {
    if (object != nullptr) references_.push_back(Ref::steal(object));
    return object;
  }
  void clear() { references_.clear(); }
  bool empty() const { return references_.empty(); }
  Py_ssize_t count(PyObject* object) const {
    return std::count_if(references_.begin(), references_.end(), [&](const Ref& reference) { return reference.get() == object; });
  }

 private:
  std::vector<Ref> references_;
};

// All steps return nullptr, without a Python error, for an unreachable value.

PyObject* module_step(PyObject* name);
PyObject* attribute_step(PyObject* base, PyObject* name, Owned& owned);
PyObject* instance_dict_step(PyObject* base);
PyObject* type_attribute_step(PyObject* base, PyObject* name);
PyObject* computed_step(PyObject* operation, PyObject* const* operands, size_t count, Owned& owned);

bool is_deque(PyObject* object);

// The item of a deque, which holds on to it; nullptr for other objects.
PyObject* deque_item(PyObject* base, Py_ssize_t index);

// The hash of a key, taken once, and what tells whether the key still is what it was then.
struct KeyHash {
  Py_hash_t value = 0;
  // C hashes and compares the key, but its class, or that of a part, could come to do so in Python. What asks no such code any more
  // than then holds of no dict or set: no entry that was made before it applies.
  bool may_turn = false;
};

KeyHash hash_key(PyObject* key);  // throws PythonError
bool runs_python(PyObject* key);  // whether Python code of its class, or of its parts', hashes it or compares it

inline bool has_turned(const KeyHash& hash, PyObject* key) { return hash.may_turn && runs_python(key); }

// `index`: the key as a position, for lists, tuples and deques; kNoIndex for keys that are not integers.
constexpr Py_ssize_t kNoIndex = PY_SSIZE_T_MIN;
inline PyObject* item_step(PyObject* base, PyObject* key, Py_hash_t hash, Py_ssize_t index) {
  if (PyDict_Check(base)) {
    PyObject* value = _PyDict_GetItem_KnownHash(base, key, hash);
    if (value == nullptr && PyErr_Occurred()) PyErr_Clear();
    return value;
  }
  if (index == kNoIndex) return nullptr;
  bool list = PyList_Check(base);
  if (!list && !PyTuple_Check(base)) return deque_item(base, index);
  Py_ssize_t size = Py_SIZE(base);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return nullptr;
  return list ? PyList_GET_ITEM(base, index) : PyTuple_GET_ITEM(base, index);
}

// Where `base` keeps the pointer to its `__dict__`, once instance_dict_step succeeded; nullptr where it cannot be said.
PyObject** instance_dict_slot(PyObject* base);

// The field of `base` that attribute `name` reads; nullptr where the attribute is not a plain field.
PyObject** attribute_slot(PyObject* base, PyObject* name);

// Exact scalar types of Python: their instances are immutable, and their operations run no foreign code.
bool is_scalar(PyObject* object);

// `module`: capture._C, which is borrowed: it outlives all steps.
void init_steps(PyObject* module);

}  // namespace capture
