// `_C.Resumption`: on a hit that ends at a break, performs the breaking operation, then calls the continuation.
#pragma once

#include <optional>

#include "python_ref.h"

namespace capture {

bool is_resumption(PyObject* object);

// Does what the TailCall of a resumption stands for, up to the call of the continuation: its CompiledFunction, function and
// arguments take the places of what is given. Where Python code goes on, its outcome instead: NULL with an error.
std::optional<PyObject*> resume(Ref& callable, Ref& function, Ref& arguments);

void init_resumption(PyObject* module);

}  // namespace capture
