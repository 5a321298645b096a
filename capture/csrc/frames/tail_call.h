// `_C.TailCall`: a call that a mock function, or on_miss, leaves to its own caller.
#pragma once

#include "cpython/frame_view.h"
#include "python_ref.h"

namespace capture {

// What a mock function, or on_miss, returns where the program goes on in a continuation: a call that its own caller
// makes, so that neither frames nor arguments pile up however many continuations follow each other.
struct TailCall {
  PyObject_HEAD
  PyObject* callable;   // what is called; or the CompiledFunction whose tree and callbacks serve for …
  PyObject* function;   // … this function, with the code that it is for. None for a plain call
  PyObject* arguments;  // a tuple: all parameters in order
};

// NULL with an error.
PyObject* make_tail_call(Ref callable, Ref function, Ref arguments);

bool is_tail_call(PyObject* object);

// How many fast locals of a frame are arguments.
inline size_t argument_count(const PyCodeObject* code) {
  return static_cast<size_t>(code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
                             ((code->co_flags & CO_VARKEYWORDS) != 0));
}

void init_tail_call(PyObject* module);

}  // namespace capture
