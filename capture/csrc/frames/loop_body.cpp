#include "frames/loop_body.h"

#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "cpython/frame_view.h"
#include "frames/compiled_calls.h"
#include "frames/compiled_function.h"
#include "frames/frame_hook.h"
#include "frames/stance.h"
#include "guards/modes.h"
#include "guards/steps.h"

namespace capture {
namespace {

PyTypeObject* loop_body_type = nullptr;
constexpr long kRaised = -1, kDeclined = -2;
constexpr size_t kMostVariables = 60;  // whose presence a number tells

// A local variable that the body uses.
struct Variable {
  int slot;
  bool written;
  bool live;  // read before it is written, in this round or after it
};

struct LoopBody {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* choose;
  PyObject* salvage;
  PyObject* code;  // with the gate. Not owned, only compared
  bool of_module;  // all variables are global ones
  std::vector<Variable>* variables;
  std::vector<int>* cells;
};

LoopBody* unpack(PyObject* object) { return reinterpret_cast<LoopBody*>(object); }

PyObject* outcome(long where, Ref value) { return Py_BuildValue("(lN)", where, value.release()); }

// Whether the death of a value frees so little that nobody notices when it comes; or it would be guarded where it is passed.
bool is_small(PyObject* value) {
  return is_scalar(value) || PyType_Check(value) || PyFunction_Check(value) || PyModule_Check(value) || (THPVariable_Check(value) && THPVariable_Unpack(value).numel() <= 1);
}

// How the frame's variables are handed to the function. What the body replaces is moved there, so that it dies when it is replaced;
// but where that makes no difference, the frame keeps its own, to have it if the body ends in an exception which does not tell what
// it has left. Tensors that the body replaces unread die now, as at a graph break.
enum class Pass { No, Copy, Move, Drop };

Pass how(const Variable& variable, PyObject* value) {
  if (value == nullptr) return Pass::No;
  if (!variable.written) return Pass::Copy;
  bool tensor = THPVariable_Check(value), small = is_small(value);
  if (variable.live) return small || tensor ? Pass::Copy : Pass::Move;
  return small ? Pass::No : tensor ? Pass::Drop : Pass::Move;
}

// The exception being raised, with its traceback; the error indicator is clear then.
Ref fetch_exception() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref::steal(value);
}

void set(PyObject** slot, PyObject* value) { Ref old = Ref::steal(std::exchange(*slot, value)); }

// The frame that this thread executes, which nobody sees for the lifetime of this object.
class Hidden {
 public:
  explicit Hidden(_PyInterpreterFrame* frame) : frame_(frame) { frame_view_hide(frame); }
  ~Hidden() { frame_view_show_again(frame_); }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  _PyInterpreterFrame* frame_;
};

class Round {
 public:
  Round(LoopBody* self, _PyInterpreterFrame* frame) : self_(self), frame_(frame), locals_(frame_view_locals(frame)) {}

  // (where the frame goes on, None or an exception); NULL where the frame runs the round itself.
  PyObject* run(PyObject* item) {
    unsigned long long passed = 0;
    for (size_t i = 0; i < variables().size(); i++) {
      ways_.push_back(how(variables()[i], locals_[variables()[i].slot]));
      if (passes(i)) passed |= 1ull << i;
    }
    Ref cells = closure();
    Ref compiled = cells ? Ref::steal(checked(PyObject_CallFunction(self_->choose, "K", passed))) : Ref();
    if (!compiled || compiled.get() == Py_None) return nullptr;
    PyObject* code = PyFunction_GET_CODE(compiled_function_target(compiled.get()));
    Ref function = Ref::steal(checked(PyFunction_New(code, frame_view_globals(frame_))));
    if (PyTuple_GET_SIZE(cells.get()) > 0) checked(PyFunction_SetClosure(function.get(), cells.get()));
    Ref result = Ref::steal(call(std::move(compiled), std::move(function), arguments(item)));
    if (!result) return raised();
    for (size_t i = 0, at = 1; i < variables().size(); i++) {
      if (variables()[i].written) store(i, PyTuple_GET_ITEM(result.get(), at++));
    }
    return outcome(PyLong_AsLong(PyTuple_GET_ITEM(result.get(), 0)), Ref::borrow(Py_None));
  }

 private:
  const std::vector<Variable>& variables() const { return *self_->variables; }
  bool passes(size_t i) const { return ways_[i] == Pass::Copy || ways_[i] == Pass::Move; }

  // NULL where the frame has not made a cell yet.
  Ref closure() const {
    Ref cells = Ref::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(self_->cells->size()))));
    for (size_t i = 0; i < self_->cells->size(); i++) {
      PyObject* cell = locals_[(*self_->cells)[i]];
      if (cell == nullptr || !PyCell_Check(cell)) return Ref();
      PyTuple_SET_ITEM(cells.get(), static_cast<Py_ssize_t>(i), Py_NewRef(cell));
    }
    return cells;
  }

  Ref arguments(PyObject* item) {
    std::vector<Ref> values, dropped;
    for (size_t i = 0; i < variables().size(); i++) {
      PyObject** slot = &locals_[variables()[i].slot];
      if (ways_[i] == Pass::Copy) values.push_back(Ref::borrow(*slot));
      if (ways_[i] == Pass::Move) values.push_back(Ref::steal(std::exchange(*slot, nullptr)));
      if (ways_[i] == Pass::Drop) dropped.push_back(Ref::steal(std::exchange(*slot, nullptr)));
    }
    if (item != nullptr) values.push_back(Ref::borrow(item));
    Ref tuple = Ref::steal(checked(PyTuple_New(static_cast<Py_ssize_t>(values.size()))));
    for (size_t i = 0; i < values.size(); i++) PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), values[i].release());
    return tuple;
  }

  // The frame of the function stands in for this frame, which nobody sees meanwhile.
  PyObject* call(Ref compiled, Ref function, Ref arguments) {
    NotIntercepted scope;
    Hidden hidden(frame_);
    return call_as(std::move(compiled), std::move(function), std::move(arguments));
  }

  // What the body leaves in a variable; the type LoopBody stands for nothing.
  void store(size_t i, PyObject* value) {
    PyObject** slot = &locals_[variables()[i].slot];
    if (value != reinterpret_cast<PyObject*>(loop_body_type)) {
      set(slot, Py_NewRef(value));
    } else if (passes(i)) {
      set(slot, nullptr);
    }
  }

  PyObject* raised() {
    Ref exception = fetch_exception();
    Ref left = Ref::steal(checked(PyObject_CallOneArg(self_->salvage, exception.get())));
    for (size_t i = 0, at = 0; left.get() != Py_None && i < variables().size(); i++) {
      if (variables()[i].written) store(i, PyTuple_GET_ITEM(left.get(), at++));
    }
    return outcome(kRaised, std::move(exception));
  }

  LoopBody* self_;
  _PyInterpreterFrame* frame_;
  PyObject** locals_;
  std::vector<Pass> ways_;
};

PyObject* call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  LoopBody* self = unpack(object);
  size_t count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  _PyInterpreterFrame* frame = frame_view_current();
  if (frame == nullptr || count > 1 || kwnames != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a LoopBody is called by the code of its loop, with at most one argument");
    return nullptr;
  }
  PyObject* item = count == 1 ? args[0] : nullptr;
  try {
    bool declines = reinterpret_cast<PyObject*>(frame_view_code(frame)) != self->code || !frames_are_intercepted() ||
                    program_is_traced() || torch_is_tracing() || eager_is_forced() ||
                    (self->of_module && frame_view_names(frame) != frame_view_globals(frame));
    PyObject* result = declines ? nullptr : Round(self, frame).run(item);
    if (result == nullptr && !PyErr_Occurred()) result = outcome(kDeclined, Ref::borrow(item == nullptr ? Py_None : item));
    return result;
  } catch (PythonError&) {
    return nullptr;
  }
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"code", "choose", "salvage", "variables", "cells", nullptr};
  PyObject *code, *choose, *salvage, *variables, *cells;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO!O!:LoopBody", const_cast<char**>(names), &PyCode_Type, &code, &choose,
                                   &salvage, &PyTuple_Type, &variables, &PyTuple_Type, &cells)) {
    return nullptr;
  }
  Ref object = Ref::steal(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  LoopBody* self = unpack(object.get());
  self->vectorcall = call;
  self->choose = Py_NewRef(choose);
  self->salvage = Py_NewRef(salvage);
  self->code = code;
  self->of_module = (reinterpret_cast<PyCodeObject*>(code)->co_flags & CO_OPTIMIZED) == 0;
  self->variables = new std::vector<Variable>;
  self->cells = new std::vector<int>;
  if (static_cast<size_t>(PyTuple_GET_SIZE(variables)) > kMostVariables) {
    PyErr_Format(PyExc_ValueError, "capture: more than %zu variables", kMostVariables);
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(variables); i++) {
    int slot, written, live;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(variables, i), "ipp", &slot, &written, &live)) return nullptr;
    self->variables->push_back({slot, written != 0, live != 0});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); i++) {
    self->cells->push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(cells, i))));
  }
  return PyErr_Occurred() ? nullptr : object.release();
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  LoopBody* self = unpack(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->choose);
  Py_VISIT(self->salvage);
  return 0;
}

int clear(PyObject* object) {
  LoopBody* self = unpack(object);
  Py_CLEAR(self->choose);
  Py_CLEAR(self->salvage);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  delete unpack(object)->variables;
  delete unpack(object)->cells;
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LoopBody, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

void init_loop_body(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(
                      "LoopBody(code, choose, salvage, variables, cells)\n\n"
                      "Called by the code of a loop, `code`, with the item of a `for` loop: runs a round, and returns the number of the exit by\n"
                      "which it ended, and None; -1 and the exception that it raised; or -2 and the item, where the frame is to run the\n"
                      "round by itself. variables: of the frame, a tuple for each that the round uses: its slot, whether it is written\n"
                      "to, whether it is live. cells: slots of cells. choose(the variables that are passed, as bits of a number): a\n"
                      "CompiledFunction of these, the item and the cells, whose result is a tuple of the exit and the variables that\n"
                      "it writes to, with this type in place of those that are unbound; or None. salvage(exception): the same\n"
                      "variables where the function raised, or None.")},
      {Py_tp_new, reinterpret_cast<void*>(create)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec = {"capture._C.LoopBody", sizeof(LoopBody), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  loop_body_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)));
  checked(PyModule_AddType(module, loop_body_type));
}

}  // namespace capture
