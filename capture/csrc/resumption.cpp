#include "resumption.h"

#include <ATen/core/grad_mode.h>
#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>

namespace capture {
namespace {

PyTypeObject* resumption_type = nullptr;
PyObject* raised_name = nullptr;  // "raised"

// The items of the arguments that a resumption is called with.
enum Item { kFunction, kArguments, kScopes, kGrad, kHandled, kOperation, kArgs, kKwargs, kItems };

struct Resumption {
  PyObject_HEAD
  PyObject* stand_ins;  // a tuple: for each frame, outermost first, the code that callees find above themselves, or None
  PyObject* compiled;   // the CompiledFunction of the continuation
  PyObject* idle;       // None unless Python code counts the rounds of a loop around this break …
  PyObject* loop;       // … or runs that
};

Resumption* unpack(PyObject* object) { return reinterpret_cast<Resumption*>(object); }

bool is_none(PyObject* object) { return object == nullptr || object == Py_None; }

PyObject* item(const Ref& tuple, Item which) { return PyTuple_GET_ITEM(tuple.get(), which); }

// Whether nothing but the operation and the continuation is called.
bool is_direct(const Resumption* self, const Ref& arguments) {
  return is_none(self->idle) && is_none(self->loop) && PyTuple_GET_SIZE(arguments.get()) == kItems &&
         item(arguments, kHandled) == Py_None && PyTuple_CheckExact(item(arguments, kArguments)) &&
         PyTuple_CheckExact(item(arguments, kScopes)) && PyTuple_CheckExact(self->stand_ins) &&
         PyTuple_GET_SIZE(item(arguments, kScopes)) == PyTuple_GET_SIZE(self->stand_ins);
}

// The operation's result, called below frames that look like the program's. NULL with an error.
PyObject* perform(const Resumption* self, PyObject* scopes, PyObject* operation, PyObject* args, PyObject* kwargs) {
  bool tests_tensor = operation == reinterpret_cast<PyObject*>(&PyBool_Type) && PyTuple_GET_SIZE(args) == 1 &&
                      THPVariable_CheckExact(PyTuple_GET_ITEM(args, 0));
  if (tests_tensor) {  // which looks at no frame
    int truth = PyObject_IsTrue(PyTuple_GET_ITEM(args, 0));
    return truth < 0 ? nullptr : PyBool_FromLong(truth);
  }
  Ref function = Ref::borrow(operation), positional = Ref::borrow(args), named = Ref::borrow(kwargs);
  for (Py_ssize_t i = PyTuple_GET_SIZE(self->stand_ins) - 1; i >= 0; i--) {
    PyObject* code = PyTuple_GET_ITEM(self->stand_ins, i);
    if (code == Py_None) continue;
    Ref call = Ref::steal(checked(PyTuple_Pack(3, function.get(), positional.get(), named ? named.get() : Py_None)));
    function = Ref::steal(checked(PyFunction_New(code, PyTuple_GET_ITEM(scopes, i))));
    positional = std::move(call);
    named = Ref::steal(checked(PyDict_New()));
  }
  return PyObject_Call(function.get(), positional.get(), named.get());
}

// The items of a tuple and one more, which is stolen.
Ref extended(PyObject* tuple, Ref last) {
  Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  Ref longer = Ref::steal(checked(PyTuple_New(count + 1)));
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(longer.get(), i, Py_NewRef(PyTuple_GET_ITEM(tuple, i)));
  PyTuple_SET_ITEM(longer.get(), count, last.release());
  return longer;
}

// What `raised` says to the exception that the operation has raised.
PyObject* go_on_raising(PyObject* self, const Ref& arguments) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Ref owned_type = Ref::steal(type), exception = Ref::steal(value), owned_traceback = Ref::steal(traceback);
  owned_traceback = Ref();
  return PyObject_CallMethodObjArgs(self, raised_name, item(arguments, kFunction), item(arguments, kArguments), exception.get(), nullptr);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Resumption* self = unpack(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->stand_ins);
  Py_VISIT(self->compiled);
  Py_VISIT(self->idle);
  Py_VISIT(self->loop);
  return 0;
}

int clear(PyObject* object) {
  Resumption* self = unpack(object);
  Py_CLEAR(self->stand_ins);
  Py_CLEAR(self->compiled);
  Py_CLEAR(self->idle);
  Py_CLEAR(self->loop);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"stand_ins", T_OBJECT, offsetof(Resumption, stand_ins), 0, nullptr},
    {"compiled", T_OBJECT, offsetof(Resumption, compiled), 0, nullptr},
    {"idle", T_OBJECT, offsetof(Resumption, idle), 0, nullptr},
    {"loop", T_OBJECT, offsetof(Resumption, loop), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

bool is_resumption(PyObject* object) { return PyObject_TypeCheck(object, resumption_type); }

std::optional<PyObject*> resume(Ref& callable, Ref& function, Ref& arguments) {
  Resumption* self = unpack(callable.get());
  if (!is_direct(self, arguments)) return PyObject_Call(callable.get(), arguments.get(), nullptr);
  try {
    if (PyObject* grad = item(arguments, kGrad); grad != Py_None) at::GradMode::set_enabled(grad == Py_True);
    Ref result = Ref::steal(perform(self, item(arguments, kScopes), item(arguments, kOperation), item(arguments, kArgs), item(arguments, kKwargs)));
    if (!result) return go_on_raising(callable.get(), arguments);
    Ref compiled = Ref::borrow(self->compiled);
    function = Ref::borrow(item(arguments, kFunction));
    arguments = extended(item(arguments, kArguments), std::move(result));
    callable = std::move(compiled);
    return std::nullopt;
  } catch (PythonError&) {
    return nullptr;
  }
}

void init_resumption(PyObject* module) {
  raised_name = checked(PyUnicode_InternFromString("raised"));
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "What `capture.resumption.Resumption` extends. A TailCall of it whose loop CPython does not run, and under no\n"
                      "handled exception, is done without calling it: the operation, then `compiled` on the continuation; or\n"
                      "`raised(function, arguments, exception)`, which returns what comes next.")},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.Resumption", sizeof(Resumption), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots};
  resumption_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, resumption_type));
}

}  // namespace capture
