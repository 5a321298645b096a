#include "objects/stand_in.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>

namespace capture {
namespace {

constexpr size_t ROOM = 10;  // words, for what any type keeps of whose instances a stand-in may become one

// The base of stand-ins. `room` is for what the object becomes.
struct StandIn {
  PyObject_HEAD
  PyObject* weak_references;
  PyObject* room[ROOM];
};

PyObject* base = nullptr;  // their class

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* cls = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<StandIn*>(self)->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  cls->tp_free(self);
  Py_DECREF(cls);
}

// The class of objects whose content has gone over to a stand-in.
PyTypeObject husk = {PyVarObject_HEAD_INIT(nullptr, 0)};

int hold_nothing(PyObject*, visitproc, void*) { return 0; }

void free_husk(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyObject_GC_Del(self);
}

// Whether instances have nothing before their first field but what the garbage collector needs, nor anything after the last.
bool is_laid_out_plainly(PyTypeObject* cls) {
#ifdef Py_TPFLAGS_PREHEADER
  constexpr unsigned long before = Py_TPFLAGS_PREHEADER;
#else
  constexpr unsigned long before = Py_TPFLAGS_MANAGED_DICT;
#endif
  return PyType_IS_GC(cls) && !(cls->tp_flags & before) && cls->tp_free == PyObject_GC_Del && cls->tp_itemsize == 0 &&
         cls->tp_dictoffset == 0;
}

PyObject** fields_of(PyObject* object) { return reinterpret_cast<PyObject**>(object + 1); }

PyObject** end_of(PyObject* object) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + Py_TYPE(object)->tp_basicsize);
}

PyObject* become(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyObject_TypeCheck(args[0], reinterpret_cast<PyTypeObject*>(base))) {
    PyErr_SetString(PyExc_TypeError, "become(stand_in, made, parent)");
    return nullptr;
  }
  PyObject *object = args[0], *made = args[1], *parent = args[2];
  PyTypeObject *before = Py_TYPE(object), *after = Py_TYPE(made);
  size_t size = static_cast<size_t>(after->tp_basicsize);
  if (!is_laid_out_plainly(before) || !is_laid_out_plainly(after) || after->tp_weaklistoffset != 0 || size > sizeof(StandIn)) {
    PyErr_Format(PyExc_TypeError, "a %.200s cannot become a %.200s", before->tp_name, after->tp_name);
    return nullptr;
  }
  PyObject_GC_UnTrack(object);
  PyObject_GC_UnTrack(made);
  auto* references = reinterpret_cast<PyWeakReference**>(&reinterpret_cast<StandIn*>(object)->weak_references);
  while (*references != nullptr) _PyWeakref_ClearRef(*references);
  before->tp_clear(object);  // lets go of what its slots hold
  std::copy(fields_of(made), end_of(made), fields_of(object));
  Py_SET_TYPE(object, after);  // and what `made` held of that is the object's
  Py_SET_TYPE(made, &husk);
  PyObject_GC_Track(object);
  PyObject_GC_Track(made);
  Py_DECREF(before);
  if (parent != Py_None) std::replace(fields_of(parent), end_of(parent), made, object);
  Py_RETURN_NONE;
}

// What `exchange` looks for, and the tuple that holds it.
struct Search {
  PyObject* held;
  PyObject* tuple;
};

int find_tuple(PyObject* object, void* arg) {
  auto* search = static_cast<Search*>(arg);
  if (!PyTuple_CheckExact(object)) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
    if (PyTuple_GET_ITEM(object, i) == search->held) search->tuple = object;
  }
  return search->tuple != nullptr;
}

PyObject* exchange(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyObject_IS_GC(args[0]) || Py_TYPE(args[0])->tp_itemsize != 0) {
    PyErr_SetString(PyExc_TypeError, "exchange(object, held, other)");
    return nullptr;
  }
  PyObject *object = args[0], *held = args[1], *other = args[2];
  PyObject** field = std::find(fields_of(object), end_of(object), held);
  Search search{held, nullptr};
  if (field == end_of(object)) {
    Py_TYPE(object)->tp_traverse(object, find_tuple, &search);
    if (search.tuple == nullptr) {
      PyErr_Format(PyExc_ValueError, "a %.200s does not hold that", Py_TYPE(object)->tp_name);
      return nullptr;
    }
    PyObject** items = reinterpret_cast<PyTupleObject*>(search.tuple)->ob_item;
    field = std::find(items, items + PyTuple_GET_SIZE(search.tuple), held);
  }
  *field = Py_NewRef(other);
  Py_DECREF(held);
  Py_RETURN_NONE;
}

// For tp_traverse: the type of the object, until it has been told of that.
struct Holder {
  PyObject* type;
};

int hold(PyObject* object, void* arg) {
  auto* holder = static_cast<Holder*>(arg);
  if (object == holder->type) {  // which tp_alloc holds already
    holder->type = nullptr;
  } else {
    Py_INCREF(object);
  }
  return 0;
}

PyObject* clone(PyObject*, PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (!is_laid_out_plainly(type) || type->tp_weaklistoffset != 0) {
    PyErr_Format(PyExc_TypeError, "a %.200s cannot be cloned", type->tp_name);
    return nullptr;
  }
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) return nullptr;
  std::copy(fields_of(object), end_of(object), fields_of(made));
  Holder holder{type->tp_flags & Py_TPFLAGS_HEAPTYPE ? reinterpret_cast<PyObject*>(type) : nullptr};
  type->tp_traverse(made, hold, &holder);
  return made;
}

PyMethodDef functions[] = {
    {"clone", clone, METH_O,
     "clone(object)\n\nAnother object of C with the same fields. Only for types that keep nothing in memory of their own, and tell the "
     "garbage collector of all that they hold. Nobody is asked."},
    {"become", reinterpret_cast<PyCFunction>(become), METH_FASTCALL,
     "become(stand_in, made, parent)\n\n"
     "Makes a stand-in what `made` is, in place: an object of that type which holds what `made` did. Nothing is left to `made`. The "
     "class of the stand-in is no more asked for anything. parent: an object of C that knows `made` without holding it, or None."},
    {"exchange", reinterpret_cast<PyCFunction>(exchange), METH_FASTCALL,
     "exchange(object, held, other)\n\nHas an object of C, or a tuple of its own, hold `other` where it holds `held`. Nobody is asked."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(StandIn, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("An object of a class of Python that can become one of C in place.")},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"capture._C.StandIn", sizeof(StandIn), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

void init_stand_in(PyObject* module) {
  husk.tp_name = "capture._C.Husk";
  husk.tp_basicsize = sizeof(PyObject);
  husk.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  husk.tp_traverse = hold_nothing;
  husk.tp_dealloc = free_husk;
  checked(PyType_Ready(&husk));
  base = checked(PyType_FromSpec(&spec));
  checked(PyModule_AddObjectRef(module, "StandIn", base));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
