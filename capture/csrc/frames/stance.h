// Whether compiled code may run: not while a stance of `torch.compiler.set_stance` forbids it, or a debugger or coverage traces lines.
#pragma once

#include "python_ref.h"

namespace capture {

// Whether it asks that nothing compiled runs (`"force_eager"`).
bool eager_is_forced();

// Whether it is the default one, or there is none.
bool stance_is_default();

// Whether a debugger or a tool that measures coverage is at work, which shall see the program's own lines; not those of mock functions,
// unless these are files, written to be stepped through.
bool program_is_traced();

// step_through_mocks(flag): whether mock functions are such files from now on.
PyObject* step_through_mocks(PyObject*, PyObject* flag);

void init_stance();

}  // namespace capture
