#include "executor/switch.h"

#include <structmember.h>

#include <cstddef>

#include "stopwatch.h"

namespace capture {
namespace {

struct Switch {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* target;
  PyObject* tier;
  PyObject* weakrefs;
};

Switch* unpack(PyObject* object) { return reinterpret_cast<Switch*>(object); }

PyObject* call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Ref target = Ref::borrow(unpack(self)->target);  // may be exchanged while it runs
  if (graph_clock == nullptr) return PyObject_Vectorcall(target.get(), args, nargsf, kwnames);
  uint64_t* clock = graph_clock;
  GraphClock inner(nullptr);  // a graph may call compiled functions in turn
  uint64_t start = now_ns();
  PyObject* result = PyObject_Vectorcall(target.get(), args, nargsf, kwnames);
  *clock += now_ns() - start;
  return result;
}

PyObject* refuse() {
  PyErr_SetString(PyExc_TypeError, "the target of a Switch must be callable");
  return nullptr;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"target", "tier", nullptr};
  PyObject *target, *tier = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Switch", const_cast<char**>(names), &target, &tier)) return nullptr;
  if (!PyCallable_Check(target)) return refuse();
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  unpack(self)->vectorcall = call;
  unpack(self)->target = Py_NewRef(target);
  unpack(self)->tier = Py_NewRef(tier);
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(unpack(self)->target);
  Py_VISIT(unpack(self)->tier);
  return 0;
}

int clear(PyObject* self) {
  // The target stays callable until deallocation: a finalizer in the same garbage may still call this. What a target
  // refers to is free to break the cycle.
  Py_CLEAR(unpack(self)->tier);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (unpack(self)->weakrefs != nullptr) PyObject_ClearWeakRefs(self);
  Py_CLEAR(unpack(self)->target);
  Py_CLEAR(unpack(self)->tier);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_target(PyObject* self, void*) { return Py_NewRef(unpack(self)->target); }

int set_target(PyObject* self, PyObject* value, void*) {
  if (value == nullptr || !PyCallable_Check(value)) {
    refuse();
    return -1;
  }
  Ref old = Ref::steal(unpack(self)->target);  // released last: its death may run code
  unpack(self)->target = Py_NewRef(value);
  return 0;
}

PyMemberDef members[] = {
    {"tier", T_OBJECT, offsetof(Switch, tier), 0, "Whoever exchanges the target."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Switch, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Switch, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef getters[] = {
    {"target", get_target, set_target, "What is called.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

void init_switch(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Switch(target, tier=None)\n\nPasses its calls on to `target`, which may be exchanged at any "
                                    "time; calls under way are not affected.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_getset, getters},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Switch", sizeof(Switch), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  Ref type = Ref::steal(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())));
}

}  // namespace capture
