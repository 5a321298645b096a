// `_C.Resumption`: on a hit that ends at a break, performs the breaking operation, then calls the continuation.
#pragma once

#include <optional>

#include "python_ref.h"

namespace capture {

bool is_resumption(PyObject* object);

// Performs the breaking operation of a resumption. Then the three are exchanged for the continuation's: its CompiledFunction, its
// function and its arguments, and the caller makes that call. Where Python code goes on instead, returns its outcome: NULL with
// an error.
std::optional<PyObject*> resume(Ref& callable, Ref& function, Ref& arguments);

void init_resumption(PyObject* module);

}  // namespace capture
