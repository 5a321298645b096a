#include "guards/checks.h"

#include <cstring>
#include <iterator>

#include "cpython/dict_probe.h"
#include "guards/steps.h"
#include "guards/tensor_properties.h"

namespace capture {
namespace {

bool same_double(double left, double right) { return std::memcmp(&left, &right, sizeof left) == 0; }

bool equal_by_c_type(PyObject* x, PyObject* expected) {
  int result = PyObject_RichCompareBool(x, expected, Py_EQ);
  if (result < 0) PyErr_Clear();
  return result > 0;
}

bool same_items(PyObject* const* left, PyObject* const* right, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!same(left[i], right[i])) return false;
  }
  return true;
}

bool same_dict(PyObject* x, PyObject* expected) {
  if (PyDict_GET_SIZE(x) != PyDict_GET_SIZE(expected)) return false;
  Py_ssize_t left = 0, right = 0;
  PyObject *left_key, *left_value, *right_key, *right_value;
  while (PyDict_Next(x, &left, &left_key, &left_value) && PyDict_Next(expected, &right, &right_key, &right_value)) {
    if (!same(left_key, right_key) || !same(left_value, right_value)) return false;
  }
  return true;
}

// Sets of scalars: each member of x has its `same` counterpart in expected. Other members never compare equal, because
// comparing them could run code.
bool same_set(PyObject* x, PyObject* expected) {
  if (PySet_GET_SIZE(x) != PySet_GET_SIZE(expected)) return false;
  Py_ssize_t position = 0;
  PyObject* member;
  Py_hash_t hash;
  while (_PySet_NextEntry(x, &position, &member, &hash)) {
    if (!is_scalar(member)) return false;
    Py_ssize_t other_position = 0;
    PyObject* other;
    Py_hash_t other_hash;
    bool found = false;
    while (!found && _PySet_NextEntry(expected, &other_position, &other, &other_hash)) {
      found = hash == other_hash && same(member, other);
    }
    if (!found) return false;
  }
  return true;
}

bool same_range(PyObject* x, PyObject* expected) {
  for (const char* name : {"start", "stop", "step"}) {
    Ref left = Ref::steal(PyObject_GetAttrString(x, name)), right = Ref::steal(PyObject_GetAttrString(expected, name));
    if (!left || !right || !same(left.get(), right.get())) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

bool any_set(PyObject* x) { return PyAnySet_Check(x); }

// KEYS: of a dict or set, in the order in which the builtin type iterates.
bool keys_test(const Check& check, PyObject* x) {
  if (!PyDict_Check(x) && !PyAnySet_Check(x)) return false;
  if (builtin_length(x) != PyTuple_GET_SIZE(check.expected)) return false;
  if (!PyDict_Check(x) || PyODict_Check(x)) {
    Ref iterator = Ref::steal(PyDict_Check(x) ? PyODict_Type.tp_iter(x) : PySet_Type.tp_iter(x));
    for (Py_ssize_t i = 0; iterator && i < PyTuple_GET_SIZE(check.expected); i++) {
      Ref key = Ref::steal(PyIter_Next(iterator.get()));
      if (!key || !same(key.get(), PyTuple_GET_ITEM(check.expected, i))) iterator = Ref();
    }
    if (PyErr_Occurred()) PyErr_Clear();
    return static_cast<bool>(iterator);
  }
  Py_ssize_t position = 0, i = 0;
  PyObject* key;
  while (PyDict_Next(x, &position, &key, nullptr)) {
    if (!same(key, PyTuple_GET_ITEM(check.expected, i++))) return false;
  }
  return true;
}

bool is_as_it_was(const Check& check) { return !has_turned(check.hash, check.expected); }

bool has_key(const Check& check, PyObject* x) {
  bool found = _PyDict_GetItem_KnownHash(x, check.expected, check.hash.value) != nullptr;
  if (!found && PyErr_Occurred()) PyErr_Clear();
  return found;
}

bool is_member(const Check& check, PyObject* set) {
  int found = PySet_Contains(set, check.expected);
  if (found < 0) PyErr_Clear();
  return found > 0;
}

// What a class says of the truth of its instances.
struct TruthSlots {
  explicit TruthSlots(const PyTypeObject* type)
      : truth(type->tp_as_number ? type->tp_as_number->nb_bool : nullptr),
        length(type->tp_as_mapping ? type->tp_as_mapping->mp_length : nullptr),
        size(type->tp_as_sequence ? type->tp_as_sequence->sq_length : nullptr) {}
  bool operator==(const TruthSlots&) const = default;
  inquiry truth;
  lenfunc length, size;
};

// Whether a class leaves the truth of its instances to the builtin type that it derives from.
bool has_builtin_truth(const PyTypeObject* type) {
  const PyTypeObject* base = type;
  while (base->tp_base && !PyType_HasFeature(const_cast<PyTypeObject*>(base), Py_TPFLAGS_IMMUTABLETYPE)) base = base->tp_base;
  return base == type || TruthSlots(base) == TruthSlots(type);
}

// -1: not of a type whose truth is known.
int builtin_truth(PyObject* x) {
  Py_ssize_t length = builtin_length(x);
  if (length >= 0) return has_builtin_truth(Py_TYPE(x)) ? length > 0 : -1;
  return is_scalar(x) || PyRange_Check(x) || x == Py_Ellipsis ? PyObject_IsTrue(x) : -1;
}

bool never(const Check&, PyObject*) { return false; }

// -- what is derived from expectations

void refuse(const Check& check, const char* needed) {
  PyErr_Format(PyExc_TypeError, "a %s guard expects %s, not %.200s", row_of(check).name, needed, Py_TYPE(check.expected)->tp_name);
  throw PythonError{};
}

void prepare_class(Check& check) {
  if (!PyType_Check(check.expected)) refuse(check, "a class");
}

void prepare_truth(Check& check) {
  if (!PyBool_Check(check.expected)) refuse(check, "a bool");
  check.number = check.expected == Py_True;
}

void prepare_length(Check& check) {
  if (!PyLong_Check(check.expected)) refuse(check, "an int");
  check.number = PyLong_AsSsize_t(check.expected);
  if (check.number == -1 && PyErr_Occurred()) throw PythonError{};
}

void prepare_tuple(Check& check) {
  if (!PyTuple_CheckExact(check.expected)) refuse(check, "a tuple");
}

void prepare_name(Check& check) {
  if (!PyUnicode_CheckExact(check.expected)) refuse(check, "a str");
}

void prepare_frozenset(Check& check) {
  if (!PyFrozenSet_CheckExact(check.expected)) refuse(check, "a frozenset");
}

void prepare_tensor(Check& check) {
  check.native = tensor_properties_from_python(check.expected);
  if (check.native == nullptr) refuse(check, "a TensorProperties");
}

// -- explanations

std::string quoted(const Check& check) { return brief(check.expected); }

std::string found_brief(const Check&, PyObject* x) { return brief(x); }

std::string found_type(const Check&, PyObject* x) { return brief(reinterpret_cast<PyObject*>(Py_TYPE(x))); }

std::string found_identity(const Check& check, PyObject* x) {
  std::string text = brief(x);
  return text == brief(check.expected) ? "another " + text : text;
}

std::string found_keys(const Check&, PyObject* x) {
  if (!PyDict_Check(x)) return brief(x);
  std::string text = "keys (";
  Py_ssize_t position = 0;
  PyObject* key;
  while (PyDict_Next(x, &position, &key, nullptr) && text.size() < 200) text += brief(key) + ", ";
  return text + ")";
}

}  // namespace

constexpr CheckRow kCheckRows[] = {
    {"TYPE", Form::Object, Watched::Type, prepare_class,
     [](const Check& c, PyObject* x) { return reinterpret_cast<PyObject*>(Py_TYPE(x)) == c.expected; },
     [](const Check& c) { return "type " + brief(c.expected); }, found_type},
    {"ID", Form::Object, Watched::Identity, nullptr, [](const Check& c, PyObject* x) { return x == c.expected; },
     [](const Check& c) { return "the object " + brief(c.expected); }, found_identity},
    {"VALUE", Form::Value, Watched::Value, nullptr,
     [](const Check& c, PyObject* x) { return same(x, c.expected); }, quoted, found_brief},
    {"TRUTH", Form::Plain, Watched::Truth, prepare_truth,
     [](const Check& c, PyObject* x) { return builtin_truth(x) == c.number; },
     [](const Check& c) { return std::string(c.number ? "a true value" : "a false or empty value"); }, found_brief},
    {"LENGTH", Form::Plain, Watched::Length, prepare_length,
     [](const Check& c, PyObject* x) { return builtin_length(x) == c.number; },
     [](const Check& c) { return "length " + std::to_string(c.number); },
     [](const Check&, PyObject* x) {
       Py_ssize_t length = builtin_length(x);
       return length >= 0 ? "length " + std::to_string(length) : brief(x);
     }},
    {"KEYS", Form::Value, Watched::Order, prepare_tuple, keys_test,
     [](const Check& c) { return "keys " + brief(c.expected); }, found_keys},
    {"PRESENT", Form::Key, Watched::Keys, nullptr,
     [](const Check& c, PyObject* x) { return PyDict_Check(x) && is_as_it_was(c) && has_key(c, x); },
     [](const Check& c) { return "a dict with key " + brief(c.expected); }, found_keys},
    {"ABSENT", Form::Key, Watched::Keys, nullptr,
     [](const Check& c, PyObject* x) { return PyDict_Check(x) && is_as_it_was(c) && !has_key(c, x); },
     [](const Check& c) { return "a dict without key " + brief(c.expected); }, found_keys},
    {"NO_ATTR", Form::Plain, Watched::Class, prepare_name,
     [](const Check& c, PyObject* x) { return PyType_Check(x) && type_attribute_step(x, c.expected) == nullptr; },
     [](const Check& c) { return "a class without attribute " + brief(c.expected); },
     [](const Check&, PyObject* x) { return brief(x) + (PyType_Check(x) ? " which has it" : ""); }},
    {"MRO", Form::Value, Watched::Class, prepare_tuple,
     [](const Check& c, PyObject* x) { return PyType_Check(x) && same(reinterpret_cast<PyTypeObject*>(x)->tp_mro, c.expected); },
     [](const Check& c) { return "a class with the order " + brief(c.expected); },
     [](const Check&, PyObject* x) {
       return PyType_Check(x) ? "one with " + brief(reinterpret_cast<PyTypeObject*>(x)->tp_mro) : brief(x);
     }},
    {"CONTENT", Form::Plain, Watched::Members, prepare_frozenset,
     [](const Check& c, PyObject* x) { return any_set(x) && same_set(x, c.expected); }, quoted, found_brief},
    {"MEMBER", Form::Key, Watched::Members, nullptr,
     [](const Check& c, PyObject* x) { return any_set(x) && is_as_it_was(c) && is_member(c, x); },
     [](const Check& c) { return "a set with " + brief(c.expected); }, found_brief},
    {"NOT_MEMBER", Form::Key, Watched::Members, nullptr,
     [](const Check& c, PyObject* x) { return any_set(x) && is_as_it_was(c) && !is_member(c, x); },
     [](const Check& c) { return "a set without " + brief(c.expected); }, found_brief},
    {"TENSOR", Form::Properties, Watched::Tensor, prepare_tensor,
     [](const Check& c, PyObject* x) { return static_cast<const TensorProperties*>(c.native)->matches(x); },
     [](const Check&) { return std::string("a tensor"); }, found_brief},
    {"ALIAS", Form::Path, Watched::Nothing, nullptr, never,
     [](const Check&) { return std::string("the same object"); },
     [](const Check&, PyObject*) { return std::string("different ones"); }},
    {"DISTINCT", Form::Other, Watched::Nothing, nullptr, never,
     [](const Check&) { return std::string("different objects"); },
     [](const Check&, PyObject*) { return std::string("the same one"); }},
    {"SEPARATE", Form::Sides, Watched::Nothing, nullptr, never,
     [](const Check&) { return std::string("different objects"); },
     [](const Check&, PyObject*) { return std::string("one in two places"); }},
    {"STORAGE", Form::Places, Watched::Nothing, nullptr, never,
     [](const Check&) { return std::string("tensors to share memory as they did"); },
     [](const Check&, PyObject*) { return std::string("another sharing"); }},
    {"MODES", Form::Modes, Watched::Nothing, nullptr, never, nullptr, nullptr},  // see modes_difference
};

const size_t kCheckKinds = std::size(kCheckRows);

Check make_check(Kind kind, uint32_t node, uint64_t entries, PyObject* expected, const KeyHash& hash) {
  const CheckRow& row = row_of(kind);
  const bool whole = row.form == Form::Object || row.form == Form::Key;
  Check check{kind, row.watched, node, entries, whole ? referent(expected) : expected, hash, 0, nullptr};
  if (row.prepare != nullptr) row.prepare(check);
  return check;
}

bool expects_the_same(const Check& left, const Check& right) {
  if (left.expected == right.expected) return true;
  const Form form = row_of(left).form;
  if (form == Form::Object) return false;
  if (form != Form::Properties) return same(left.expected, right.expected);
  int equal = PyObject_RichCompareBool(left.expected, right.expected, Py_EQ);
  checked(equal);
  return equal != 0;
}

std::optional<Difference> explain_failure(const Check& check, PyObject* x) {
  const CheckRow& row = row_of(check);
  if (row.test(check, x)) return std::nullopt;
  if (row.form == Form::Properties) return tensor_difference(*static_cast<const TensorProperties*>(check.native), x);
  return Difference{row.expectation(check), row.finding(check, x), ""};
}

bool same(PyObject* x, PyObject* expected) {
  if (PyWeakref_CheckRefExact(expected)) return x != Py_None && x == referent_of(expected);
  if (x == expected) return true;
  PyTypeObject* type = Py_TYPE(expected);
  if (Py_TYPE(x) != type) return false;
  if (type == &PyFloat_Type) return same_double(PyFloat_AS_DOUBLE(x), PyFloat_AS_DOUBLE(expected));
  if (type == &PyComplex_Type) {
    const Py_complex left = reinterpret_cast<PyComplexObject*>(x)->cval;
    const Py_complex right = reinterpret_cast<PyComplexObject*>(expected)->cval;
    return same_double(left.real, right.real) && same_double(left.imag, right.imag);
  }
  if (is_scalar(expected) || type == &PyByteArray_Type || is_torch_device(expected)) {
    return equal_by_c_type(x, expected);
  }
  if (PyTuple_Check(expected)) {
    return PyTuple_GET_SIZE(x) == PyTuple_GET_SIZE(expected) &&
           same_items(&PyTuple_GET_ITEM(x, 0), &PyTuple_GET_ITEM(expected, 0), PyTuple_GET_SIZE(x));
  }
  if (PyList_Check(expected)) {
    return PyList_GET_SIZE(x) == PyList_GET_SIZE(expected) &&
           same_items(reinterpret_cast<PyListObject*>(x)->ob_item, reinterpret_cast<PyListObject*>(expected)->ob_item,
                      PyList_GET_SIZE(x));
  }
  if (PyDict_CheckExact(expected)) return same_dict(x, expected);
  if (PyAnySet_Check(expected)) return same_set(x, expected);
  if (type == &PySlice_Type) {
    auto *left = reinterpret_cast<PySliceObject*>(x), *right = reinterpret_cast<PySliceObject*>(expected);
    return same(left->start, right->start) && same(left->stop, right->stop) && same(left->step, right->step);
  }
  if (type == &PyRange_Type) return same_range(x, expected);
  return false;
}

bool is_frozen(PyObject* expected) {
  if (PyTuple_Check(expected)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
      if (!is_frozen(PyTuple_GET_ITEM(expected, i))) return false;
    }
    return true;
  }
  return is_scalar(expected) || PyFrozenSet_CheckExact(expected) || is_torch_device(expected) ||
         PyRange_Check(expected);
}

Py_ssize_t builtin_length(PyObject* x) {
  if (PyDict_Check(x)) return PyDict_GET_SIZE(x);
  if (PyList_Check(x) || PyTuple_Check(x) || PyBytes_Check(x) || PyByteArray_Check(x)) return Py_SIZE(x);
  if (PyUnicode_Check(x)) return PyUnicode_GET_LENGTH(x);
  if (PyAnySet_Check(x)) return PySet_GET_SIZE(x);
  if (is_deque(x)) return Py_SIZE(x);
  return -1;
}

const void* length_field(PyObject* x) {
  if (PyDict_Check(x)) return &reinterpret_cast<PyDictObject*>(x)->ma_used;
  if (PySet_Check(x)) return &reinterpret_cast<PySetObject*>(x)->used;
  if (PyList_Check(x) || PyByteArray_Check(x) || is_deque(x)) return &reinterpret_cast<PyVarObject*>(x)->ob_size;
  return nullptr;
}

std::string brief(PyObject* x) {
  constexpr size_t kLongest = 120;
  if (PyWeakref_CheckRef(x)) x = referent_of(x);  // a part of a key, too
  if (PyType_Check(x)) return reinterpret_cast<PyTypeObject*>(x)->tp_name;
  if (PyTuple_CheckExact(x) || PyList_CheckExact(x)) {
    bool tuple = PyTuple_CheckExact(x);
    std::string text = tuple ? "(" : "[";
    for (Py_ssize_t i = 0; i < Py_SIZE(x); i++) {
      if (text.size() > kLongest) return text + "…" + (tuple ? ")" : "]");
      text += (i ? ", " : "") + brief(tuple ? PyTuple_GET_ITEM(x, i) : PyList_GET_ITEM(x, i));
    }
    return text + (tuple ? ")" : "]");
  }
  if (is_scalar(x)) {
    Ref repr = Ref::steal(PyObject_Repr(x));
    const char* text = repr ? PyUnicode_AsUTF8(repr.get()) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      return std::string(Py_TYPE(x)->tp_name);
    }
    std::string result = text;
    return result.size() > 2 * kLongest ? result.substr(0, kLongest) + "…" : result;
  }
  std::string name;
  if (PyFunction_Check(x)) {
    const char* text = PyUnicode_AsUTF8(reinterpret_cast<PyFunctionObject*>(x)->func_qualname);
    name = text ? std::string(" ") + text : "";
    PyErr_Clear();
  } else if (PyModule_Check(x)) {
    const char* text = PyModule_GetName(x);
    name = text ? std::string(" ") + text : "";
    PyErr_Clear();
  } else if (Py_ssize_t length = builtin_length(x); length >= 0) {
    name = " of length " + std::to_string(length);
  }
  return "<" + std::string(Py_TYPE(x)->tp_name) + name + ">";
}

}  // namespace capture
