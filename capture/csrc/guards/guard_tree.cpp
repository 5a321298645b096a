#include "guards/guard_tree.h"

#include <structmember.h>

#include <exception>
#include <new>

#include "guards/checks.h"
#include "guards/program.h"
#include "guards/steps.h"
#include "guards/tree.h"

namespace capture {

namespace {

PyTypeObject* tree_type = nullptr;
PyTypeObject* entry_type = nullptr;

struct TreeObject {
  PyObject_HEAD
  Tree tree;
};

Tree& tree_of(PyObject* object) { return reinterpret_cast<TreeObject*>(object)->tree; }
EntryObject* entry_of(PyObject* object) { return reinterpret_cast<EntryObject*>(object); }

// Runs `body`; C++ exceptions become Python's.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (PythonError&) {
  } catch (std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "capture: %s", error.what());
  }
  return nullptr;
}

PyObject* tree_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&tree_of(self)) Tree;
  return self;
}

int tree_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return tree_of(self).traverse(visit, arg);
}

int tree_tp_clear(PyObject* self) {
  tree_of(self).clear();
  return 0;
}

void tree_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  tree_of(self).~Tree();
  type->tp_free(self);
  Py_DECREF(type);
}

bool require_entry(PyObject* object) {
  if (PyObject_TypeCheck(object, entry_type)) return true;
  PyErr_Format(PyExc_TypeError, "a CacheEntry is needed, not %.200s", Py_TYPE(object)->tp_name);
  return false;
}

PyObject* tree_add(PyObject* self, PyObject* args) {
  PyObject *entry, *nodes, *checks, *lifted, *losses;
  if (!PyArg_ParseTuple(args, "OOOOO:add", &entry, &nodes, &checks, &lifted, &losses) || !require_entry(entry)) return nullptr;
  return guarded([&] {
    tree_of(self).add(entry_of(entry), parse_entry(nodes, checks, lifted, losses));
    return Py_NewRef(Py_None);
  });
}

PyObject* tree_remove(PyObject* self, PyObject* entry) {
  if (!require_entry(entry)) return nullptr;
  if (entry_of(entry)->tree != &tree_of(self)) {
    PyErr_SetString(PyExc_ValueError, "the entry is not in this tree");
    return nullptr;
  }
  tree_of(self).discard(entry_of(entry));
  Py_RETURN_NONE;
}

PyObject* tree_clear(PyObject* self, PyObject*) {
  tree_of(self).clear();
  Py_RETURN_NONE;
}

// Calls body(Arguments) for Python arguments (function, args: list or tuple).
template <class Body>
PyObject* with_arguments(PyObject* args, Body body) {
  PyObject *function, *values;
  if (!PyArg_ParseTuple(args, "OO", &function, &values)) return nullptr;
  Ref tuple = Ref::steal(PySequence_Tuple(values));
  if (!tuple) return nullptr;
  return guarded([&] {
    return body(Arguments{function, &PyTuple_GET_ITEM(tuple.get(), 0), static_cast<size_t>(Py_SIZE(tuple.get()))});
  });
}

PyObject* tree_check(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) {
    Match match = tree_of(self).match(arguments, Modes::current());
    return match.entry ? match.entry.release() : Py_NewRef(Py_None);
  });
}

PyObject* tree_explain(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) { return tree_of(self).explain(arguments, false); });
}

PyObject* tree_explain_all(PyObject* self, PyObject* args) {
  return with_arguments(args, [&](const Arguments& arguments) { return tree_of(self).explain(arguments, true); });
}

PyObject* tree_entries(PyObject* self, void*) {
  return guarded([&] { return tree_of(self).entries(); });
}

PyMethodDef tree_methods[] = {
    {"_add", tree_add, METH_VARARGS, "_add(entry, nodes, checks, lifted, losses): see capture/guards/tree.py."},
    {"_explain", tree_explain, METH_VARARGS,
     "_explain(function, args) -> [(entry, index of the check or -1, subject, expected, found, aspect)]"},
    {"_explain_all", tree_explain_all, METH_VARARGS, "_explain_all(function, args): the same, of every check that fails."},
    {"check", tree_check, METH_VARARGS, "check(function, args): the entry that applies to these arguments, or None."},
    {"remove", tree_remove, METH_O, "Removes an entry. ValueError when it is not in this tree."},
    {"clear", tree_clear, METH_NOARGS, "Removes all entries."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef tree_getters[] = {
    {"entries", tree_entries, nullptr, "The entries alive, in the order in which they are tried: by hits when the last was added, then by age; superseded ones last.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *mock, *payload;
  if (!PyArg_ParseTuple(args, "OO:CacheEntry", &mock, &payload)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  entry_of(self)->mock = Py_NewRef(mock);
  entry_of(self)->payload = Py_NewRef(payload);
  entry_of(self)->alive = true;
  return self;
}

int entry_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(entry_of(self)->mock);
  Py_VISIT(entry_of(self)->payload);
  Py_VISIT(entry_of(self)->dict);
  return 0;
}

int entry_clear(PyObject* self) {
  // A cleared entry must never be found again; its mock stays an object, for whoever is about to call it.
  PyObject* mock = std::exchange(entry_of(self)->mock, Py_NewRef(Py_None));
  entry_of(self)->alive = false;
  if (entry_of(self)->tree != nullptr) entry_of(self)->tree->note_death();
  Py_CLEAR(entry_of(self)->payload);
  Py_CLEAR(entry_of(self)->dict);
  Py_DECREF(mock);
  return 0;
}

void entry_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (entry_of(self)->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(entry_of(self)->mock);
  Py_CLEAR(entry_of(self)->payload);
  Py_CLEAR(entry_of(self)->dict);
  type->tp_free(self);
  Py_DECREF(type);
}

// An object that the entry depends on has died.
PyObject* entry_kill(PyObject* self, PyObject*) {
  entry_of(self)->alive = false;
  if (Tree* tree = entry_of(self)->tree) tree->discard(entry_of(self));
  Py_RETURN_NONE;
}

PyObject* entry_supersede(PyObject* self, PyObject*) {
  entry_of(self)->superseded = true;
  if (Tree* tree = entry_of(self)->tree) tree->reorder();
  Py_RETURN_NONE;
}

PyMethodDef entry_methods[] = {
    {"_supersede", entry_supersede, METH_NOARGS, "Has it tried after all others: another one fits the calls that it fits."},
    {"_kill", entry_kill, METH_NOARGS, "Takes the entry out of service, and out of its tree."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef entry_members[] = {
    {"mock", T_OBJECT, offsetof(EntryObject, mock), 0, "What a hit calls; None: the frame runs natively."},
    {"payload", T_OBJECT, offsetof(EntryObject, payload), 0, "The pipeline's own."},
    {"hits", T_ULONGLONG, offsetof(EntryObject, hits), READONLY, "How often the entry was used."},
    {"ran_natively", T_ULONGLONG, offsetof(EntryObject, ran_natively), READONLY,
     "Calls that it fitted and that ran natively all the same: what a hit replaces might have run code as it dies."},
    {"samples", T_ULONGLONG, offsetof(EntryObject, samples), READONLY, "How many of the hits were timed."},
    {"guard_ns", T_ULONGLONG, offsetof(EntryObject, guard_ns), READONLY, "Nanoseconds of those: guards,"},
    {"graph_ns", T_ULONGLONG, offsetof(EntryObject, graph_ns), READONLY, "graph,"},
    {"mock_ns", T_ULONGLONG, offsetof(EntryObject, mock_ns), READONLY, "mock function without the graph."},
    {"superseded", T_BOOL, offsetof(EntryObject, superseded), READONLY, "Whether another entry fits all that it fits."},
    {"alive", T_BOOL, offsetof(EntryObject, alive), READONLY, "False once removed, or once an object it needs died."},
    {"__dictoffset__", T_PYSSIZET, offsetof(EntryObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(EntryObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

template <size_t N>
Ref names_tuple(const char* const (&names)[N]) {
  Ref tuple = Ref::steal(checked(PyTuple_New(N)));
  for (size_t i = 0; i < N; i++) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(PyUnicode_FromString(names[i])));
  }
  return tuple;
}

}  // namespace

Match guard_tree_match(PyObject* tree, PyObject* function, PyObject* const* arguments, size_t count,
                       const Modes& modes) {
  return tree_of(tree).match({function, arguments, count}, modes);
}

bool is_guard_tree(PyObject* object) { return PyObject_TypeCheck(object, tree_type); }

void init_guard_tree(PyObject* module) {
  init_steps(module);
  static PyType_Slot tree_slots[] = {
      {Py_tp_doc, const_cast<char*>("The guarded entries of one code object; the base of capture.guards.tree.GuardTree.")},
      {Py_tp_new, reinterpret_cast<void*>(tree_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(tree_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(tree_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(tree_tp_clear)},
      {Py_tp_methods, tree_methods},
      {Py_tp_getset, tree_getters},
      {0, nullptr},
  };
  static PyType_Spec tree_spec = {"capture._C.GuardTree", sizeof(TreeObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tree_slots};
  tree_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&tree_spec)));
  checked(PyModule_AddType(module, tree_type));

  static PyType_Slot entry_slots[] = {
      {Py_tp_doc, const_cast<char*>("CacheEntry(mock, payload); the base of capture.guards.tree.CacheEntry.")},
      {Py_tp_new, reinterpret_cast<void*>(entry_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(entry_clear)},
      {Py_tp_methods, entry_methods},
      {Py_tp_members, entry_members},
      {0, nullptr},
  };
  static PyType_Spec entry_spec = {"capture._C.CacheEntry", sizeof(EntryObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, entry_slots};
  entry_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&entry_spec)));
  checked(PyModule_AddType(module, entry_type));

  checked(PyModule_AddObjectRef(module, "STEPS", names_tuple(kStepNames).get()));
  Ref kinds = Ref::steal(checked(PyTuple_New(kCheckKinds)));
  for (size_t i = 0; i < kCheckKinds; i++) {
    const CheckRow& row = kCheckRows[i];
    PyObject* names = checked(Py_BuildValue("(ss)", row.name, kFormNames[static_cast<size_t>(row.form)]));
    PyTuple_SET_ITEM(kinds.get(), static_cast<Py_ssize_t>(i), names);
  }
  checked(PyModule_AddObjectRef(module, "KINDS", kinds.get()));
}

}  // namespace capture
