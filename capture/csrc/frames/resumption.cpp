#include "frames/resumption.h"

#include <ATen/core/grad_mode.h>
#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>

#include "guards/steps.h"

namespace capture {
namespace {

PyTypeObject* resumption_type = nullptr;
PyTypeObject* framed_type = nullptr;
PyObject* raised_name = nullptr;  // "raised"
PyObject* truth = nullptr;        // operator.truth

// The items of the arguments that a resumption is called with.
enum Item { kCells, kArguments, kScopes, kGrad, kHandled, kOperation, kArgs, kKwargs, kItems };

struct Resumption {
  PyObject_HEAD
  PyObject* stand_ins;  // a tuple: for each frame, outermost first, the code that callees find above themselves, or None
  PyObject* callers;    // a list: the functions last made of these, or None
  PyObject* code;       // of the continuation
  PyObject* function;   // the one last made of that, or nullptr
  char keeps_function;  // whether its cells are no call's own, so that it may outlive the call
  PyObject* compiled;   // the CompiledFunction of the continuation
  PyObject* idle;       // None unless Python code counts the rounds of a loop around this break …
  PyObject* loop;       // … or runs that
};

Resumption* unpack(PyObject* object) { return reinterpret_cast<Resumption*>(object); }

bool is_none(PyObject* object) { return object == nullptr || object == Py_None; }

PyObject* item(const Ref& tuple, Item which) { return PyTuple_GET_ITEM(tuple.get(), which); }

// Whether nothing but the operation and the continuation is called.
bool is_direct(const Resumption* self, const Ref& arguments) {
  return is_none(self->idle) && is_none(self->loop) && self->code != nullptr && PyTuple_GET_SIZE(arguments.get()) == kItems &&
         item(arguments, kHandled) == Py_None && PyTuple_CheckExact(item(arguments, kCells)) && PyTuple_CheckExact(item(arguments, kArguments)) &&
         PyTuple_CheckExact(item(arguments, kScopes)) && PyTuple_CheckExact(self->stand_ins) &&
         PyTuple_GET_SIZE(item(arguments, kScopes)) == PyTuple_GET_SIZE(self->stand_ins);
}

// A function without defaults.
Ref function_over(PyObject* code, PyObject* scope, PyObject* cells) {
  Ref function = Ref::steal(checked(PyFunction_New(code, scope)));
  if (PyTuple_GET_SIZE(cells) > 0) checked(PyFunction_SetClosure(function.get(), cells));
  return function;
}

// The continuation over the globals and cells among the arguments: the same function as the last time, where they are the same.
Ref continuation(Resumption* self, const Ref& arguments) {
  PyObject *scope = PyTuple_GET_ITEM(item(arguments, kScopes), 0), *cells = item(arguments, kCells);
  PyObject* closure = PyTuple_GET_SIZE(cells) > 0 ? cells : nullptr;
  if (self->function != nullptr && PyFunction_GET_GLOBALS(self->function) == scope &&
      PyFunction_GET_CLOSURE(self->function) == closure) {
    return Ref::borrow(self->function);
  }
  Ref function = function_over(self->code, scope, cells);
  if (self->keeps_function) Ref old = Ref::steal(std::exchange(self->function, Py_NewRef(function.get())));
  return function;
}

// The function that stands for a frame which callees look at.
Ref caller(Resumption* self, Py_ssize_t frame, PyObject* scope) {
  if (self->callers == nullptr) {
    self->callers = checked(PyList_New(0));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->stand_ins); i++) checked(PyList_Append(self->callers, Py_None));
  }
  PyObject* known = PyList_GET_ITEM(self->callers, frame);
  if (known != Py_None && PyFunction_GET_GLOBALS(known) == scope) return Ref::borrow(known);
  Ref function = Ref::steal(checked(PyFunction_New(PyTuple_GET_ITEM(self->stand_ins, frame), scope)));
  checked(PyList_SetItem(self->callers, frame, Py_NewRef(function.get())));
  return function;
}

// The operation's result, called below frames that look like the program's. NULL with an error.
PyObject* perform(Resumption* self, PyObject* scopes, PyObject* operation, PyObject* args, PyObject* kwargs) {
  if (PyObject_TypeCheck(operation, framed_type)) return PyObject_Call(operation, args, kwargs);
  bool asks_truth = operation == reinterpret_cast<PyObject*>(&PyBool_Type) || operation == truth;
  PyObject* tested = asks_truth && PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (tested != nullptr && (is_scalar(tested) || THPVariable_CheckExact(tested))) {  // which looks at no frame
    int answer = PyObject_IsTrue(tested);
    return answer < 0 ? nullptr : PyBool_FromLong(answer);
  }
  Ref function = Ref::borrow(operation), positional = Ref::borrow(args), named = Ref::borrow(kwargs), outer;
  for (Py_ssize_t i = PyTuple_GET_SIZE(self->stand_ins) - 1; i >= 0; i--) {
    if (PyTuple_GET_ITEM(self->stand_ins, i) == Py_None) continue;
    if (outer) {  // which the next one calls
      positional = Ref::steal(checked(PyTuple_Pack(3, function.get(), positional.get(), named.get())));
      named = Ref::steal(checked(PyDict_New()));
      function = std::move(outer);
    }
    outer = caller(self, i, PyTuple_GET_ITEM(scopes, i));
  }
  if (!outer) return PyObject_Call(function.get(), positional.get(), named.get());
  PyObject* stack[] = {nullptr, function.get(), positional.get(), named.get()};
  return PyObject_Vectorcall(outer.get(), stack + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
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
  Ref function = continuation(unpack(self), arguments);
  return PyObject_CallMethodObjArgs(self, raised_name, function.get(), item(arguments, kArguments), exception.get(), nullptr);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Resumption* self = unpack(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->stand_ins);
  Py_VISIT(self->callers);
  Py_VISIT(self->code);
  Py_VISIT(self->function);
  Py_VISIT(self->compiled);
  Py_VISIT(self->idle);
  Py_VISIT(self->loop);
  return 0;
}

int clear(PyObject* object) {
  Resumption* self = unpack(object);
  Py_CLEAR(self->stand_ins);
  Py_CLEAR(self->callers);
  Py_CLEAR(self->code);
  Py_CLEAR(self->function);
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

PyObject* continuation_of(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyCode_Check(args[0]) || !PyDict_Check(args[1]) || !PyTuple_CheckExact(args[2]) ||
      PyTuple_GET_SIZE(args[2]) != PyCode_GetNumFree(reinterpret_cast<PyCodeObject*>(args[0]))) {
    PyErr_SetString(PyExc_TypeError, "continuation takes code, globals, and a tuple of as many cells as the code has free variables");
    return nullptr;
  }
  try {
    return function_over(args[0], args[1], args[2]).release();
  } catch (PythonError&) {
    return nullptr;
  }
}

PyMethodDef functions[] = {
    {"continuation", reinterpret_cast<PyCFunction>(continuation_of), METH_FASTCALL,
     "continuation(code, globals, cells) -> function\n\nWhat types.FunctionType makes of them, at less expense."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"stand_ins", T_OBJECT, offsetof(Resumption, stand_ins), 0, nullptr},
    {"code", T_OBJECT, offsetof(Resumption, code), 0, nullptr},
    {"keeps_function", T_BOOL, offsetof(Resumption, keeps_function), 0, nullptr},
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
    Ref next = continuation(self, arguments);
    Ref compiled = Ref::borrow(self->compiled);
    arguments = extended(item(arguments, kArguments), std::move(result));
    function = std::move(next);
    callable = std::move(compiled);
    return std::nullopt;
  } catch (PythonError&) {
    return nullptr;
  }
}

void init_resumption(PyObject* module) {
  raised_name = checked(PyUnicode_InternFromString("raised"));
  Ref operators = Ref::steal(checked(PyImport_ImportModule("_operator")));
  truth = checked(PyObject_GetAttrString(operators.get(), "truth"));
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
  static PyType_Slot framed_slots[] = {
      {Py_tp_doc, const_cast<char*>("An operation that puts frames which look like the program's above what it calls by itself.")}, {0, nullptr}};
  static PyType_Spec framed_spec = {"capture._C.Framed", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, framed_slots};
  framed_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&framed_spec)));
  checked(PyModule_AddType(module, framed_type));
  checked(PyModule_AddFunctions(module, functions));
}

}  // namespace capture
