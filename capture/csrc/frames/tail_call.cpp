#include "frames/tail_call.h"

#include "frames/compiled_function.h"

namespace capture {
namespace {

PyTypeObject* tail_call_type = nullptr;

PyObject* make(PyObject* type, Ref callable, Ref function, Ref arguments) {
  auto* tail = PyObject_GC_New(TailCall, reinterpret_cast<PyTypeObject*>(type));
  if (tail == nullptr) return nullptr;
  tail->callable = callable.release();
  tail->function = function.release();
  tail->arguments = arguments.release();
  PyObject_GC_Track(tail);
  return reinterpret_cast<PyObject*>(tail);
}

// By vectorcall, since the mock function of every break ends in one.
PyObject* create_tail_call(PyObject* type, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (PyVectorcall_NARGS(nargsf) != 3 || kwnames != nullptr || !PyTuple_CheckExact(args[2])) {
    PyErr_SetString(PyExc_TypeError, "TailCall takes a callable, a function or None, and a tuple of arguments");
    return nullptr;
  }
  PyObject *callable = args[0], *function = args[1], *arguments = args[2];
  if (function != Py_None &&
      (!PyFunction_Check(function) || !is_compiled_function(callable) ||
       argument_count(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))) !=
           static_cast<size_t>(PyTuple_GET_SIZE(arguments)))) {
    PyErr_SetString(PyExc_TypeError, "TailCall of a function takes a CompiledFunction, the function and all its arguments");
    return nullptr;
  }
  return make(type, Ref::borrow(callable), Ref::borrow(function), Ref::borrow(arguments));
}

int traverse_tail_call(PyObject* object, visitproc visit, void* arg) {
  auto* tail = reinterpret_cast<TailCall*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(tail->callable);
  Py_VISIT(tail->function);
  Py_VISIT(tail->arguments);
  return 0;
}

int clear_tail_call(PyObject* object) {
  auto* tail = reinterpret_cast<TailCall*>(object);
  Py_CLEAR(tail->callable);
  Py_CLEAR(tail->function);
  Py_CLEAR(tail->arguments);
  return 0;
}

void dealloc_tail_call(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear_tail_call(object);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_tail_call(Ref callable, Ref function, Ref arguments) {
  return make(reinterpret_cast<PyObject*>(tail_call_type), std::move(callable), std::move(function), std::move(arguments));
}

bool is_tail_call(PyObject* object) { return Py_TYPE(object) == tail_call_type; }

void init_tail_call(PyObject* module) {
  static PyType_Slot tail_call_slots[] = {
      {Py_tp_doc, const_cast<char*>("TailCall(callable, function, arguments)\n\n"
                                    "What a mock function or on_miss returns for its caller to go on with: `function(*arguments)`,\n"
                                    "looked up in the tree of the CompiledFunction `callable`; `callable(*arguments)` if function is None.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_tail_call)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse_tail_call)},
      {Py_tp_clear, reinterpret_cast<void*>(clear_tail_call)},
      {0, nullptr},
  };
  static PyType_Spec tail_call_spec = {"capture._C.TailCall", sizeof(TailCall), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, tail_call_slots};
  Ref tail_type = Ref::steal(checked(PyType_FromSpec(&tail_call_spec)));
  tail_call_type = reinterpret_cast<PyTypeObject*>(tail_type.get());
  tail_call_type->tp_vectorcall = create_tail_call;
  checked(PyModule_AddType(module, tail_call_type));
  tail_type.release();
}

}  // namespace capture
