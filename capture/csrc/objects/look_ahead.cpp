#include "objects/look_ahead.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "cpython/frame_view.h"

namespace capture {
namespace {

PyObject* reduce_name = nullptr;  // "__reduce__"

bool is_over_dict(PyTypeObject* type) {
  return type == &PyDictIterKey_Type || type == &PyDictIterValue_Type || type == &PyDictIterItem_Type;
}

// How the iterator would be made anew: (type, arguments, …). None of the types that are asked runs Python code for that.
Ref reduced(PyObject* iterator) { return Ref::steal(checked(PyObject_CallMethodNoArgs(iterator, reduce_name))); }

// Iterators that were met on the way. What one yields depends on the others if two of them walk over the same.
using Met = c10::SmallVector<PyObject*, 8>;

bool is_met_again(PyObject* iterator, Met& met) {
  if (std::find(met.begin(), met.end(), iterator) != met.end()) return true;
  met.push_back(iterator);
  return false;
}

bool can_look_ahead(PyObject* iterator, Met& met) {
  if (is_met_again(iterator, met)) return false;
  PyTypeObject* type = Py_TYPE(iterator);
  if (type == &PyRangeIter_Type || type == &PyListIter_Type || type == &PyTupleIter_Type || is_over_dict(type)) return true;
  if (type != &PyZip_Type && type != &PyEnum_Type) return false;
  Ref made = reduced(iterator);
  PyObject* parts = PyTuple_GET_ITEM(made.get(), 1);
  Py_ssize_t count = type == &PyEnum_Type ? 1 : PyTuple_GET_SIZE(parts);
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!can_look_ahead(PyTuple_GET_ITEM(parts, i), met)) return false;
  }
  return true;
}

// Whether there is an item after `ahead` others; `item`, unless it is null, becomes that.
bool look(PyObject* iterator, Py_ssize_t ahead, Ref* item, Met& met);

bool look_in_range(PyObject* iterator, Py_ssize_t ahead, Ref* item) {
  long next, step, left;
  range_iterator_state(iterator, &next, &step, &left);
  if (ahead >= left) return false;
  auto value = static_cast<unsigned long>(next) + static_cast<unsigned long>(ahead) * static_cast<unsigned long>(step);
  if (item != nullptr) *item = Ref::steal(checked(PyLong_FromLong(static_cast<long>(value))));
  return true;
}

bool look_in_sequence(PyObject* iterator, Py_ssize_t ahead, Ref* item) {
  Py_ssize_t position;
  PyObject* sequence = sequence_iterator_state(iterator, &position);
  if (sequence == nullptr || ahead >= Py_SIZE(sequence) - position) return false;
  position += ahead;
  if (item != nullptr) {
    *item = Ref::borrow(PyList_Check(sequence) ? PyList_GET_ITEM(sequence, position) : PyTuple_GET_ITEM(sequence, position));
  }
  return true;
}

int find_dict(PyObject* object, void* found) {
  if (!PyDict_CheckExact(object)) return 0;
  *static_cast<PyObject**>(found) = object;
  return 1;
}

// By counting, since the entries of a dict have gaps. Throws PythonError where the dict has changed.
bool look_in_dict(PyObject* iterator, Py_ssize_t ahead, Ref* item) {
  Py_ssize_t left = PyObject_LengthHint(iterator, 0);
  if (left < 0) throw PythonError{};
  if (left == 0) {  // at its end; or the dict has changed, of which this raises
    reduced(iterator);
    return false;
  }
  if (ahead >= left) return false;
  if (item == nullptr) return true;
  PyObject* dict = nullptr;
  Py_TYPE(iterator)->tp_traverse(iterator, find_dict, &dict);
  if (dict == nullptr) {  // of a subclass of dict
    PyErr_SetString(PyExc_TypeError, "an iterator over what is no plain dict");
    throw PythonError{};
  }
  PyObject *key, *value;
  Py_ssize_t position = 0;
  for (Py_ssize_t taken = PyDict_GET_SIZE(dict) - left + ahead; taken >= 0; taken--) {
    if (!PyDict_Next(dict, &position, &key, &value)) return false;
  }
  PyTypeObject* type = Py_TYPE(iterator);
  *item = type == &PyDictIterKey_Type     ? Ref::borrow(key)
          : type == &PyDictIterValue_Type ? Ref::borrow(value)
                                          : Ref::steal(checked(PyTuple_Pack(2, key, value)));
  return true;
}

bool look_together(PyObject* iterator, Py_ssize_t ahead, Ref* item, Met& met) {
  Ref made = reduced(iterator);
  PyObject* parts = PyTuple_GET_ITEM(made.get(), 1);
  bool strict = PyTuple_GET_SIZE(made.get()) > 2;
  Py_ssize_t count = PyTuple_GET_SIZE(parts);
  Ref items = item == nullptr ? Ref() : Ref::steal(checked(PyTuple_New(count)));
  for (Py_ssize_t i = 0; i < count; i++) {
    Ref part;
    if (look(PyTuple_GET_ITEM(parts, i), ahead, items ? &part : nullptr, met)) {
      if (items) PyTuple_SET_ITEM(items.get(), i, part.release());
      continue;
    }
    bool others = i > 0;  // have items
    for (Py_ssize_t j = i + 1; strict && !others && j < count; j++) others = look(PyTuple_GET_ITEM(parts, j), ahead, nullptr, met);
    if (strict && others) {
      PyErr_SetString(PyExc_ValueError, "zip() of different lengths");
      throw PythonError{};
    }
    return false;
  }
  if (items) *item = std::move(items);
  return count > 0;
}

bool look_at_counted(PyObject* iterator, Py_ssize_t ahead, Ref* item, Met& met) {
  Ref made = reduced(iterator);
  PyObject* parts = PyTuple_GET_ITEM(made.get(), 1);
  Ref value;
  if (!look(PyTuple_GET_ITEM(parts, 0), ahead, item == nullptr ? nullptr : &value, met)) return false;
  if (item == nullptr) return true;
  Ref more = Ref::steal(checked(PyLong_FromSsize_t(ahead)));
  Ref number = Ref::steal(checked(PyNumber_Add(PyTuple_GET_ITEM(parts, 1), more.get())));
  *item = Ref::steal(checked(PyTuple_Pack(2, number.get(), value.get())));
  return true;
}

bool look(PyObject* iterator, Py_ssize_t ahead, Ref* item, Met& met) {
  PyTypeObject* type = Py_TYPE(iterator);
  if (is_met_again(iterator, met)) {
    PyErr_Format(PyExc_TypeError, "C cannot look ahead of a %.200s that is walked over by several", type->tp_name);
    throw PythonError{};
  }
  if (type == &PyRangeIter_Type) return look_in_range(iterator, ahead, item);
  if (type == &PyListIter_Type || type == &PyTupleIter_Type) return look_in_sequence(iterator, ahead, item);
  if (type == &PyZip_Type) return look_together(iterator, ahead, item, met);
  if (type == &PyEnum_Type) return look_at_counted(iterator, ahead, item, met);
  if (is_over_dict(type)) return look_in_dict(iterator, ahead, item);
  PyErr_Format(PyExc_TypeError, "C cannot look ahead of a %.200s", type->tp_name);
  throw PythonError{};
}

// The arguments of a function: an iterator and a number, which is not negative.
Py_ssize_t number_in(PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t number = -1;
  if (count == 2) number = PyLong_AsSsize_t(args[1]);
  if (number >= 0) return number;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "an iterator and a number that is not negative are needed");
  throw PythonError{};
}

PyObject* has_item(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    Py_ssize_t ahead = number_in(args, count);
    Met met;
    return PyBool_FromLong(look(args[0], ahead, nullptr, met));
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* peek(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    Py_ssize_t ahead = number_in(args, count);
    Ref item;
    Met met;
    if (look(args[0], ahead, &item, met)) return item.release();
    PyErr_SetNone(PyExc_StopIteration);
  } catch (PythonError&) {
  }
  return nullptr;
}

PyObject* skip(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    Py_ssize_t left = number_in(args, count);
    if (!PyIter_Check(args[0])) {
      PyErr_Format(PyExc_TypeError, "an iterator is needed, not %.200s", Py_TYPE(args[0])->tp_name);
      return nullptr;
    }
    for (; left > 0; left--) {
      Ref item = Ref::steal(PyIter_Next(args[0]));
      if (item) continue;
      if (PyErr_Occurred()) return nullptr;
      break;
    }
    Py_RETURN_NONE;
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* can_look_ahead_of(PyObject*, PyObject* iterator) {
  try {
    Met met;
    return PyBool_FromLong(can_look_ahead(iterator, met));
  } catch (PythonError&) {
    return nullptr;
  }
}

PyMethodDef functions[] = {
    {"can_look_ahead", can_look_ahead_of, METH_O,
     "Whether has_item and peek know iterators of this kind: over ranges, lists, tuples and dicts, and zip and enumerate of such, "
     "where each is walked over once."},
    {"has_item", reinterpret_cast<PyCFunction>(has_item), METH_FASTCALL,
     "has_item(iterator, ahead) -> bool\n\nWhether `iterator` will yield another item after `ahead` others. TypeError for other iterators."},
    {"peek", reinterpret_cast<PyCFunction>(peek), METH_FASTCALL,
     "peek(iterator, ahead)\n\nThe item that `iterator` will yield after `ahead` others. StopIteration where there is none."},
    {"skip", reinterpret_cast<PyCFunction>(skip), METH_FASTCALL,
     "skip(iterator, count)\n\nTakes `count` items; one more than there are to exhaust the iterator."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void init_look_ahead(PyObject* module) {
  reduce_name = checked(PyUnicode_InternFromString("__reduce__"));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
