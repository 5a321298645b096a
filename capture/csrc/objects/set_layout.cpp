#include "objects/set_layout.h"

#include "cpython/set_probe.h"
#include "objects/known_hash.h"

#include <algorithm>
#include <vector>

namespace capture {
namespace {

// What a slot of the table of a set holds (CPython's setobject.h), as a byte of its layout. Python knows `member` by SET_MEMBER.
enum Slot : char { unused, member, dummy };

constexpr Py_hash_t hash_of_dummy = -1;
PyObject* key_of_dummy = nullptr;  // which no header of CPython's tells since 3.13: read out of a set

// A set or frozenset, or null with a TypeError.
PySetObject* as_set(PyObject* object) {
  if (PyAnySet_Check(object)) return reinterpret_cast<PySetObject*>(object);
  PyErr_Format(PyExc_TypeError, "a set is needed, not %.200s", Py_TYPE(object)->tp_name);
  return nullptr;
}

PyObject* set_layout(PyObject*, PyObject* object) {
  const PySetObject* set = as_set(object);
  PyObject* result = set != nullptr ? PyBytes_FromStringAndSize(nullptr, set->mask + 1) : nullptr;
  if (result == nullptr) return nullptr;
  std::transform(set->table, set->table + set->mask + 1, PyBytes_AS_STRING(result),
                 [](const setentry& entry) { return entry.key == nullptr ? unused : entry.hash == hash_of_dummy ? dummy : member; });
  return result;
}

PyObject* set_finger(PyObject*, PyObject* object) {
  const PySetObject* set = as_set(object);
  return set != nullptr ? PyLong_FromSsize_t(set->finger & set->mask) : nullptr;
}

// A table that a set may be given: where each of its members lies.
class Table {
 public:
  explicit Table(PyObject* layout) : size_(PyBytes_GET_SIZE(layout)), entries_(PyMem_New(setentry, size_)) {
    if (entries_ == nullptr) throw std::bad_alloc();
    for (size_t i = 0; i < size_; ++i) {
      bool is_dummy = PyBytes_AS_STRING(layout)[i] == dummy;
      entries_[i] = {is_dummy ? key_of_dummy : nullptr, is_dummy ? hash_of_dummy : 0};
      fill_ += is_dummy;
    }
  }
  ~Table() { PyMem_Free(entries_); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Lays a member, borrowed, into a slot. False if there is none, or it is taken.
  bool lay(PyObject* key, Py_hash_t hash, size_t slot) {
    if (slot >= size_ || entries_[slot].key != nullptr) return false;
    entries_[slot] = {key, hash};
    ++fill_, ++used_;
    return true;
  }

  // Whether looking up a key with this hash comes to a slot.
  bool leads_to(Py_hash_t hash, size_t slot) const {
    bool found = false;
    probe_set(size_ - 1, hash, [&](size_t at) {
      found = at == slot;
      return !found && entries_[at].key != nullptr;
    });
    return found;
  }

  // Whether CPython would leave a table of this size so full.
  bool is_sound() const { return size_ >= PySet_MINSIZE && (size_ & (size_ - 1)) == 0 && fill_ < size_ && used_ <= fill_; }

  // Makes it that of an empty set, which takes references to the members.
  void give_to(PySetObject* set, Py_ssize_t finger) {
    for (size_t i = 0; i < size_; ++i)
      if (entries_[i].key != nullptr && entries_[i].hash != hash_of_dummy) Py_INCREF(entries_[i].key);
    if (set->table != set->smalltable) PyMem_Free(set->table);
    if (size_ == PySet_MINSIZE) {
      std::copy(entries_, entries_ + size_, set->smalltable);
      set->table = set->smalltable;
    } else {
      set->table = std::exchange(entries_, nullptr);
    }
    set->mask = static_cast<Py_ssize_t>(size_) - 1;
    set->fill = static_cast<Py_ssize_t>(fill_);
    set->used = static_cast<Py_ssize_t>(used_);
    set->finger = finger;
  }

 private:
  size_t size_, fill_ = 0, used_ = 0;
  setentry* entries_;
};

// The hash of a member: one that is known already, since Python code would compute it, or what the member says.
Py_hash_t hash_of(PyObject* member, PyObject* hashes, Py_ssize_t i) {
  PyObject* known = i < PyTuple_GET_SIZE(hashes) ? PyTuple_GET_ITEM(hashes, i) : Py_None;
  return known == Py_None ? PyObject_Hash(member) : PyLong_AsSsize_t(known);
}

// Lays members into their slots. False, and nothing done, where they have other hashes than those for which the layout is.
bool lay(PySetObject* set, PyObject* layout, Py_ssize_t finger, PyObject* members, PyObject* slots, PyObject* hashes) {
  const Py_ssize_t number = PyTuple_GET_SIZE(members);
  std::vector<std::pair<Py_hash_t, size_t>> laid;
  for (Py_ssize_t i = 0; i < number; ++i) {
    Py_hash_t hash = hash_of(PyTuple_GET_ITEM(members, i), hashes, i);
    size_t slot = PyLong_AsSize_t(PyTuple_GET_ITEM(slots, i));
    if (PyErr_Occurred()) throw PythonError();
    laid.emplace_back(hash, slot);
  }
  Table table(layout);
  for (Py_ssize_t i = 0; i < number; ++i)
    if (!table.lay(PyTuple_GET_ITEM(members, i), laid[i].first, laid[i].second)) return false;
  if (!table.is_sound() || !std::all_of(laid.begin(), laid.end(), [&](auto& one) { return table.leads_to(one.first, one.second); })) return false;
  table.give_to(set, finger);
  return true;
}

bool add_each(PyObject* set, PyObject* members) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members); ++i)
    if (PySet_Add(set, PyTuple_GET_ITEM(members, i)) < 0) return false;
  return true;
}

// The same of members whose hashes are known. Another set takes them in, as a frozenset would not, and gives up its table.
bool add_known(PySetObject* set, PyObject* members, PyObject* hashes) {
  Ref other = Ref::steal(PySet_New(nullptr));
  for (Py_ssize_t i = 0; other && i < PyTuple_GET_SIZE(members); ++i) {
    PyObject* member = PyTuple_GET_ITEM(members, i);
    Py_hash_t hash = hash_of(member, hashes, i);
    if (PyErr_Occurred() || put_entry(other.get(), member, Py_None, hash) < 0) return false;
  }
  Ref layout = other ? Ref::steal(set_layout(nullptr, other.get())) : Ref();
  if (!layout) return false;
  const auto* made = reinterpret_cast<PySetObject*>(other.get());
  Table table(layout.get());
  for (Py_ssize_t slot = 0; slot <= made->mask; ++slot)
    if (made->table[slot].key != nullptr) table.lay(made->table[slot].key, made->table[slot].hash, slot);
  table.give_to(set, made->finger);
  return true;
}

PyObject* lay_set(PyObject*, PyObject* args) {
  PyObject *object, *layout, *members, *slots, *hashes;
  Py_ssize_t finger;
  if (!PyArg_ParseTuple(args, "OO!O!O!nO!:lay_set", &object, &PyTuple_Type, &members, &PyTuple_Type, &slots, &PyBytes_Type, &layout, &finger,
                        &PyTuple_Type, &hashes)) return nullptr;
  PySetObject* set = as_set(object);
  if (set == nullptr) return nullptr;
  if (set->used != 0 || PyTuple_GET_SIZE(members) != PyTuple_GET_SIZE(slots)) {
    PyErr_SetString(PyExc_ValueError, "an empty set and a slot for each member are needed");
    return nullptr;
  }
  try {
    if (lay(set, layout, finger, members, slots, hashes)) Py_RETURN_NONE;
    return (PyTuple_GET_SIZE(hashes) != 0 ? add_known(set, members, hashes) : add_each(object, members)) ? Py_NewRef(Py_None) : nullptr;
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef functions[] = {
    {"set_layout", set_layout, METH_O, "What each slot of the table of a set holds, a byte each: nothing, a member (SET_MEMBER), or the place of one that was taken out."},
    {"set_finger", set_finger, METH_O, "The slot at which `set.pop` begins to look."},
    {"lay_set", lay_set, METH_VARARGS,
     "lay_set(set, members, slots, layout, finger, hashes): gives an empty set its members, each in its slot, so that the set has this layout. "
     "Where their hashes are others than in the set that had it, they are added one by one. hashes: those of members that Python code hashes, "
     "beside None for the others; they are not asked for, and nothing is compared. () if there are none."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void init_set_layout(PyObject* module) {
  Ref set = Ref::steal(checked(PySet_New(nullptr)));
  checked(PySet_Add(set.get(), Py_None));
  checked(PySet_Discard(set.get(), Py_None));
  const auto* table = reinterpret_cast<PySetObject*>(set.get())->smalltable;
  key_of_dummy = std::find_if(table, table + PySet_MINSIZE, [](const setentry& entry) { return entry.hash == hash_of_dummy; })->key;
  checked(PyModule_AddFunctions(module, functions));
  checked(PyModule_AddIntConstant(module, "SET_MEMBER", member));
}

}  // namespace capture
