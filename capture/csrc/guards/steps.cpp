#include "guards/steps.h"

#include <cstddef>

#include "cpython/dict_probe.h"
#include "guards/tensor_properties.h"

namespace capture {
namespace {

PyTypeObject* deque_type = nullptr;  // collections.deque
PyObject* own_module = nullptr;      // capture._C

// Names of attributes, interned as those of nodes are: equal ones are one object.
struct Names {
  PyObject *cell_contents, *func, *self, *backward_hooks, *post_accumulate_grad_hooks, *grad, *value_of_context, *referent;
} names;

// Keeps the garbage collector, and so finalizers and other threads, out of an evaluation.
class CollectorPaused {
 public:
  CollectorPaused() : was_enabled_(PyGC_Disable()) {}
  ~CollectorPaused() {
    if (was_enabled_) PyGC_Enable();
  }
  CollectorPaused(const CollectorPaused&) = delete;
  CollectorPaused& operator=(const CollectorPaused&) = delete;

 private:
  int was_enabled_;
};

PyObject* no_value() {
  PyErr_Clear();
  return nullptr;
}

struct FunctionField {
  const char* text;
  size_t offset;
  PyObject* name = nullptr;  // interned
};

// Direct, because the getters of `__code__` and `__defaults__` raise audit events, which run Python code.
FunctionField function_fields[] = {
    {"__code__", offsetof(PyFunctionObject, func_code)},
    {"__defaults__", offsetof(PyFunctionObject, func_defaults)},
    {"__kwdefaults__", offsetof(PyFunctionObject, func_kwdefaults)},
    {"__closure__", offsetof(PyFunctionObject, func_closure)},
    {"__globals__", offsetof(PyFunctionObject, func_globals)},
    {"__name__", offsetof(PyFunctionObject, func_name)},
    {"__qualname__", offsetof(PyFunctionObject, func_qualname)},
};

bool may_be_null(const char* name) { return name[2] == 'd' || name[2] == 'k' || (name[2] == 'c' && name[3] == 'l'); }

}  // namespace

bool is_deque(PyObject* object) { return PyObject_TypeCheck(object, deque_type); }

PyObject* deque_item(PyObject* base, Py_ssize_t index) {
  if (!is_deque(base)) return nullptr;
  PyObject* item = deque_type->tp_as_sequence->sq_item(base, index < 0 ? index + Py_SIZE(base) : index);
  if (item == nullptr) return no_value();
  Py_DECREF(item);
  return item;
}

bool is_scalar(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
         object == Py_None || type == &PyBytes_Type || type == &PyComplex_Type;
}

namespace {

// What stands in the slots of a class that has these methods in Python.
hashfunc python_hash = nullptr;
richcmpfunc python_comparison = nullptr;

template <typename Test>
bool any_part(PyObject* key, Test test) {
  if (PyWeakref_CheckRef(key)) {
    key = referent_of(key);
    if (key == nullptr) return false;
  }
  if (test(Py_TYPE(key))) return true;
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
      if (any_part(PyTuple_GET_ITEM(key, i), test)) return true;
    }
  }
  if (PyFrozenSet_Check(key)) {
    Py_ssize_t position = 0;
    PyObject* member;
    Py_hash_t hash;
    while (_PySet_NextEntry(key, &position, &member, &hash)) {
      if (any_part(member, test)) return true;
    }
  }
  return false;
}

}  // namespace

bool runs_python(PyObject* key) {
  return any_part(key, [](PyTypeObject* type) {
    return type->tp_hash == python_hash || type->tp_richcompare == python_comparison;
  });
}

KeyHash hash_key(PyObject* key) {
  Py_hash_t hash = PyObject_Hash(key);
  if (hash == -1) throw PythonError{};
  bool can_turn = any_part(key, [](PyTypeObject* type) { return !PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE); });
  return {hash, can_turn && !runs_python(key)};
}

PyObject* module_step(PyObject* name) {
  PyObject* modules = PyImport_GetModuleDict();
  if (modules == nullptr || !PyDict_Check(modules)) return nullptr;
  PyObject* module = PyDict_GetItemWithError(modules, name);
  return module != nullptr ? module : no_value();
}

PyObject** attribute_slot(PyObject* base, PyObject* name) {
  if (PyFunction_Check(base)) {
    for (const FunctionField& field : function_fields) {
      if (name == field.name) {
        return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(base) + field.offset);
      }
    }
  }
  if (PyCell_Check(base) && name == names.cell_contents) {
    return &reinterpret_cast<PyCellObject*>(base)->ob_ref;
  }
  if (PyMethod_Check(base)) {
    if (name == names.func) return &reinterpret_cast<PyMethodObject*>(base)->im_func;
    if (name == names.self) return &reinterpret_cast<PyMethodObject*>(base)->im_self;
  }
  return nullptr;
}

// The hooks of a tensor that requires gradients, which the backward pass runs.
bool is_hooks(PyObject* name) {
  return name == names.backward_hooks || name == names.post_accumulate_grad_hooks;
}

PyObject* attribute_step(PyObject* base, PyObject* name, Owned& owned) {
  if (PyObject** slot = attribute_slot(base, name)) {
    if (*slot != nullptr) return *slot;
    // A function without defaults has None for them; an empty cell has nothing.
    return PyFunction_Check(base) && may_be_null(PyUnicode_AsUTF8(name)) ? Py_None : nullptr;
  }
  CollectorPaused paused;
  if (PyContextVar_CheckExact(base)) {  // its value, in the thread's present context, stands as the attribute "get()"
    PyObject* value = nullptr;
    if (name != names.value_of_context) return nullptr;
    return PyContextVar_Get(base, nullptr, &value) == 0 ? owned.keep(value) : no_value();
  }
  if (PyWeakref_CheckRef(base) && name == names.referent) {  // what it refers to
    return referent_of(base);
  }
  if (is_tensor(base)) {
    if (name == names.grad) return owned.keep(tensor_grad(base));
    if (!is_hooks(name)) return nullptr;
  }
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(base), name);
  if (descriptor == nullptr) return nullptr;
  PyTypeObject* kind = Py_TYPE(descriptor);
  if (kind != &PyMemberDescr_Type && kind != &PyGetSetDescr_Type) return nullptr;
  Ref keep = Ref::borrow(descriptor);
  PyObject* value = kind->tp_descr_get(descriptor, base, reinterpret_cast<PyObject*>(Py_TYPE(base)));
  return value != nullptr ? owned.keep(value) : no_value();
}

PyObject** instance_dict_slot(PyObject* base) {
  PyTypeObject* type = Py_TYPE(base);
  if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) return reinterpret_cast<PyObject**>(base) - 3;
  if (type->tp_dictoffset <= 0) return nullptr;  // none, or behind a variable number of items
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(base) + type->tp_dictoffset);
}

PyObject* instance_dict_step(PyObject* base) {
  PyTypeObject* type = Py_TYPE(base);
  if (type->tp_dictoffset == 0 && !(type->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return nullptr;
  if (PyType_Check(base)) return nullptr;  // a class is read along its MRO, and the type itself owns that dict
  if (PyObject** slot = instance_dict_slot(base)) {
    // An even, non-null word is a dict; else the values still lie in the object and no dict has been made.
    if (*slot != nullptr && (reinterpret_cast<uintptr_t>(*slot) & 1) == 0) return *slot;
  }
  PyObject* dict = PyObject_GenericGetDict(base, nullptr);
  if (dict == nullptr) return no_value();
  Py_DECREF(dict);  // the object keeps it
  return dict;
}

PyObject* type_attribute_step(PyObject* base, PyObject* name) {
  return PyType_Check(base) ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(base), name) : nullptr;
}

bool is_ours(PyObject* operation) {
  return PyFunction_Check(operation) || (PyCFunction_Check(operation) && PyCFunction_GET_SELF(operation) == own_module);
}

// Operations of C work on scalars; functions of capture's own see for themselves what they are given.
PyObject* computed_step(PyObject* operation, PyObject* const* operands, size_t count, Owned& owned) {
  const bool ours = is_ours(operation);
  for (size_t i = 0; i < count; i++) {
    if (operands[i] == nullptr || !(ours || is_scalar(operands[i]) || PyRange_Check(operands[i]))) return nullptr;
  }
  CollectorPaused paused;
  PyObject* value = PyObject_Vectorcall(operation, operands, count, nullptr);
  return value != nullptr ? owned.keep(value) : no_value();
}

void init_steps(PyObject* module) {
  own_module = module;
  auto interned = [](const char* text) { return checked(PyUnicode_InternFromString(text)); };
  for (FunctionField& field : function_fields) field.name = interned(field.text);
  names = {interned("cell_contents"), interned("__func__"), interned("__self__"), interned("_backward_hooks"),
           interned("_post_accumulate_grad_hooks"), interned("grad"), interned("get()"), interned("()")};
  Ref scope = Ref::steal(checked(PyDict_New()));
  const char* text = "type('', (), {'__hash__': lambda x: 0, '__eq__': lambda x, y: False})";
  Ref example = Ref::steal(checked(PyRun_String(text, Py_eval_input, scope.get(), scope.get())));
  python_hash = reinterpret_cast<PyTypeObject*>(example.get())->tp_hash;
  python_comparison = reinterpret_cast<PyTypeObject*>(example.get())->tp_richcompare;
  Ref collections = Ref::steal(checked(PyImport_ImportModule("collections")));
  deque_type = reinterpret_cast<PyTypeObject*>(checked(PyObject_GetAttrString(collections.get(), "deque")));
}

}  // namespace capture
