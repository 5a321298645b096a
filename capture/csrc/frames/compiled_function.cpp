#include "frames/compiled_function.h"

#include <c10/util/SmallVector.h>
#include <structmember.h>

#include <cstddef>
#include <utility>

#include "frames/compiled_calls.h"
#include "frames/native_kinds.h"
#include "frames/native_streaks.h"
#include "frames/trees.h"
#include "guards/guard_tree.h"

namespace capture {
namespace {

PyTypeObject* compiled_type = nullptr;
PyObject* plain_name = nullptr;  // the slot of a compiled module for what it stands for

// What a compiled module stands for; itself, if it was made by its class.
Ref plain_module(PyObject* module) {
  PyObject* slot = _PyType_Lookup(Py_TYPE(module), plain_name);
  if (slot == nullptr || Py_TYPE(slot) != &PyMemberDescr_Type) return Ref::borrow(module);
  Py_ssize_t offset = reinterpret_cast<PyMemberDescrObject*>(slot)->d_member->offset;
  PyObject* plain = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(module) + offset);
  return Ref::borrow(plain == nullptr ? module : plain);
}

// What is to be called for a compiled module in the place of the function; NULL for the function. Throws PythonError.
PyObject* replacement(CompiledFunction* self, PyObject* module, PyObject* plain) {
  unsigned int version = Py_TYPE(module)->tp_version_tag;  // 0: the class has changed, and not been looked at since
  if (version == 0 || version != self->version || Py_TYPE(plain) != self->plain_class) {
    Ref current = Ref::borrow(self->current);
    Ref answer = Ref::steal(checked(PyObject_CallOneArg(current.get(), module)));
    Ref before = Ref::steal(std::exchange(self->instead, answer.get() == Py_None ? nullptr : answer.release()));
    self->version = Py_TYPE(module)->tp_version_tag;
    self->plain_class = Py_TYPE(plain);
  }
  return self->instead;
}

// The call of a compiled module is that of what it stands for: the program's code sees the module that it has made.
PyObject* call_module(CompiledFunction* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  try {
    Ref plain = plain_module(args[0]);
    Ref instead = Ref::borrow(replacement(self, args[0], plain.get()));
    if (instead) return PyObject_Vectorcall(instead.get(), args, nargsf, kwnames);
    if (plain.get() == args[0]) plain = plain_module(args[0]);  // by now there is one
    size_t count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
    c10::SmallVector<PyObject*, 16> all(args, args + count + (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames)));
    all[0] = plain.get();
    PyObject* result = call_function(self, all.data(), count, kwnames);
    if (Py_TYPE(plain.get()) != self->plain_class) {  // a lazy module became another in the call, and so does this one
      SavedError error;
      try {
        replacement(self, args[0], plain.get());
      } catch (PythonError&) {
        PyErr_WriteUnraisable(args[0]);
      }
    }
    return result;
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  CompiledFunction* self = unpack_function(callable);
  Ref keep = Ref::borrow(callable);
  bool of_module = self->current != nullptr && PyVectorcall_NARGS(nargsf) > 0;
  return of_module ? call_module(self, args, nargsf, kwnames) : call_function(self, args, nargsf, kwnames);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "tree", "on_miss", "on_error", nullptr};
  PyObject *function, *tree, *on_miss, *on_error = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|O:CompiledFunction", const_cast<char**>(names),
                                   &PyFunction_Type, &function, &tree, &on_miss, &on_error)) {
    return nullptr;
  }
  if (!is_guard_tree(tree)) {
    PyErr_Format(PyExc_TypeError, "tree must be a GuardTree, not %.200s", Py_TYPE(tree)->tp_name);
    return nullptr;
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  CompiledFunction* self = unpack_function(object);
  self->trees = new Trees;
  self->native_kinds = new NativeKinds;
  self->native_streaks = new NativeStreaks;
  self->dict = Py_BuildValue("{sO}", "__wrapped__", function);
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->on_miss = Py_NewRef(on_miss);
  self->on_error = Py_NewRef(on_error);
  self->code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  self->tree = tree;
  try {
    checked(self->dict);
    self->trees->add(self->code, tree);
  } catch (PythonError&) {
    Py_CLEAR(object);
  }
  return object;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  CompiledFunction* self = unpack_function(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->on_miss);
  Py_VISIT(self->on_error);
  Py_VISIT(self->dict);
  Py_VISIT(self->current);
  Py_VISIT(self->instead);
  return self->trees != nullptr ? self->trees->traverse(visit, arg) : 0;  // not yet, while it is being created
}

int clear(PyObject* object) {
  // The function and its tree stay usable until deallocation: a finalizer in the same garbage may still call this.
  // Cycles are broken through on_miss, the dict and the trees' own tp_clear.
  CompiledFunction* self = unpack_function(object);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->current);
  Py_CLEAR(self->instead);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  CompiledFunction* self = unpack_function(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) PyObject_ClearWeakRefs(object);
  delete self->trees;
  delete self->native_kinds;
  delete self->native_streaks;
  Py_CLEAR(self->function);
  Py_CLEAR(self->on_miss);
  Py_CLEAR(self->on_error);
  Py_CLEAR(self->dict);
  Py_CLEAR(self->current);
  Py_CLEAR(self->instead);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* instance, PyObject*) {
  return instance == nullptr || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

PyObject* itself(PyObject* self, PyObject*) { return Py_NewRef(self); }

PyObject* repr(PyObject* self) { return PyUnicode_FromFormat("<compiled %R>", unpack_function(self)->function); }

PyObject* refuse(PyObject* self, PyObject* args) {
  unsigned long long kind, calls = NativeKinds::kAll;
  if (!PyArg_ParseTuple(args, "K|K:_refuse", &kind, &calls)) return nullptr;
  unpack_function(self)->native_kinds->add(kind, calls);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"_refuse", refuse, METH_VARARGS,
     "_refuse(kind, calls=all): so many calls of this `call_kind` that no entry fits run natively, until entries of any function come "
     "or go."},
    {"__copy__", itself, METH_NOARGS, "Itself, as of any function."},
    {"__deepcopy__", itself, METH_O, "Itself, as of any function."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"function", T_OBJECT, offsetof(CompiledFunction, function), READONLY, "The original function."},
    {"tree", T_OBJECT, offsetof(CompiledFunction, tree), READONLY, "The guard tree of the function's current code."},
    {"traced", T_ULONGLONG, offsetof(CompiledFunction, traced), 0,
     "How many calls ran natively because a debugger or a tool that measures coverage was told of each line."},
    {"refused", T_ULONGLONG, offsetof(CompiledFunction, refused), 0,
     "How many calls ran natively because there are too many entries for calls of their kind."},
    {"deferred", T_ULONGLONG, offsetof(CompiledFunction, deferred), 0,
     "How many calls ran natively because captures of calls of their kind were never hit."},
    {"on_miss", T_OBJECT, offsetof(CompiledFunction, on_miss), READONLY, "Called when no entry applies."},
    {"current", T_OBJECT, offsetof(CompiledFunction, current), 0,
     "Of a compiled module: `current(module)` says what to call instead of the function, or None; asked when a class has changed."},
    {"__dictoffset__", T_PYSSIZET, offsetof(CompiledFunction, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CompiledFunction, weakrefs), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CompiledFunction, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

// Attributes of the function that it compiles: who treats it as a function reads and sets them there.
PyObject* attribute_of_function(PyObject* self, void* name) {
  return PyObject_GetAttrString(unpack_function(self)->function, static_cast<const char*>(name));
}

int set_attribute_of_function(PyObject* self, PyObject* value, void* name) {
  return PyObject_SetAttrString(unpack_function(self)->function, static_cast<const char*>(name), value);
}

#define OF_FUNCTION(name) {name, attribute_of_function, set_attribute_of_function, nullptr, const_cast<char*>(name)}

// To `isinstance` it is a function: torch's own tools (TorchScript, fx, operators) and `inspect` take nothing else.
PyObject* class_of_functions(PyObject*, void*) { return Py_NewRef(reinterpret_cast<PyObject*>(&PyFunction_Type)); }

PyGetSetDef getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__class__", class_of_functions, nullptr, nullptr, nullptr},
    OF_FUNCTION("__code__"), OF_FUNCTION("__defaults__"), OF_FUNCTION("__kwdefaults__"), OF_FUNCTION("__closure__"),
    OF_FUNCTION("__globals__"), OF_FUNCTION("__builtins__"),
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

bool is_compiled_function(PyObject* object) { return PyObject_TypeCheck(object, compiled_type); }

PyObject* compiled_function_target(PyObject* compiled) { return unpack_function(compiled)->function; }

void init_compiled_function(PyObject* module) {
  plain_name = checked(PyUnicode_InternFromString("capture_plain"));
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "CompiledFunction(function, tree, on_miss, on_error=None)\n\n"
                      "Calls like `function`; each call is looked up in `tree`, a GuardTree. When no entry applies,\n"
                      "on_miss(function, arguments: list, the tree) gives the result, or RUN_NATIVELY. When a mock\n"
                      "function raises, on_error(entry, exception) answers RUN_NATIVELY, to run the call again natively,\n"
                      "or None, to let the exception pass with the traceback that it has then.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
      {Py_tp_repr, reinterpret_cast<void*>(repr)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {Py_tp_getset, getters},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      "capture._C.CompiledFunction", sizeof(CompiledFunction), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  compiled_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, compiled_type));


}

}  // namespace capture
